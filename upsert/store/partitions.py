"""Partitions by name and value (pure): texts and typed values, specifications, what a filter says of them.

A partition is known by the texts of its values, in folders and manifests alike. The text of a value is
unambiguous and reads back, so a partition is compared, pruned and shown without opening one of its files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.errors import SchemaError
from upsert.schema import TableSchema
from upsert.store.filters import Filter
from upsert.store.hashing import normalised_floats, one_array
from upsert.store.paths import Partition

EVERY_ROW: Final = Filter(())
"""What is left of a filter that a whole partition meets."""

Codes = tuple[npt.NDArray[np.int64], list[str | None]]
"""A number for each row's value of a column, and the text of each number."""


@dataclass(frozen=True)
class Overwrite:
    """Which partitions a commit replaces: all that a specification names, or those that its rows lie in.

    Attributes:
        spec: values that partitions must have to be replaced; none for the whole table.
        is_dynamic: of these, only the partitions in which rows were written.
    """

    spec: Partition = ()
    is_dynamic: bool = False

    def replaces(self, partition: Partition, written: Collection[Partition]) -> bool:
        """Whether a partition is replaced by a commit that wrote rows into some.

        >>> Overwrite((("day", "1"),)).replaces((("day", "1"), ("hub", None)), written=())
        True
        """
        return is_within(partition, self.spec) and (not self.is_dynamic or partition in written)


def is_within(partition: Partition, spec: Partition) -> bool:
    """Whether a partition has all values of a specification."""
    return set(spec) <= set(partition)


def check_within(written: Iterable[Partition], spec: Partition, of: str) -> None:
    """Refuse rows outside of the partitions that a specification names.

    Raises:
        SchemaError: a partition that rows were written into is none of them.
    """
    for partition in written:
        if not is_within(partition, spec):
            raise SchemaError(
                f"{of}: rows must lie in the partition {partition_name(spec)}, got rows of "
                f"{partition_name(partition)}; filter them out, or name another partition"
            )


def partition_name(partition: Partition) -> str:
    """Columns and values as people read them.

    >>> partition_name((("day", "2013-01-01"), ("hub", None)))
    'day=2013-01-01/hub=NULL'
    """
    return "/".join(f"{name}={'NULL' if text is None else text}" for name, text in partition)


def filled(
    schema: TableSchema, rows: pa.Table | pa.RecordBatchReader, spec: Partition
) -> pa.Table | pa.RecordBatchReader:
    """The rows with those columns of a specification that they lack, each with its one value."""
    given = rows.schema.names if isinstance(rows, pa.Table | pa.RecordBatchReader) else ()
    missing = {name: partition_values([t], schema.type_of(name))[0] for name, t in spec if name not in given}
    if not missing or not given:
        return rows
    if isinstance(rows, pa.Table):
        return _with_constants(rows, missing)
    fields = [pa.field(name, value.type) for name, value in missing.items()]
    pieces = (_with_constants(pa.Table.from_batches([batch]), missing) for batch in rows)
    batches = (batch for piece in pieces for batch in piece.to_batches())
    return pa.RecordBatchReader.from_batches(pa.schema([*rows.schema, *fields]), batches)


def _with_constants(rows: pa.Table, values: Mapping[str, pa.Scalar]) -> pa.Table:
    for name, value in values.items():
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


def specified(schema: TableSchema, spec: Mapping[str, object], of: str) -> Partition:
    """The partition values that a specification names, in the table's order.

    Args:
        schema: the table's schema.
        spec: some or all partition columns; values of the column's type, None for NULL, or text that reads
            as one, as in ``PARTITION (day = '2013-01-01')``.
        of: what the specification belongs to, for messages.

    Raises:
        SchemaError: a column is no partition column, or a value does not fit it.

    >>> schema = TableSchema.of({"day": pa.date32(), "n": pa.int32()}, partitioned_by=["day"])
    >>> specified(schema, {"day": "2013-01-01"}, of="example")
    (('day', '2013-01-01'),)
    """
    if not isinstance(spec, Mapping):
        raise SchemaError(f"{of}: a partition must be given as columns and values, got {spec!r}")
    there = schema.partitioned_by
    if unknown := [name for name in spec if name not in there]:
        raise SchemaError(
            f"{of}: a partition must be given by partition columns ({', '.join(there) or 'there are none'}), "
            f"got {', '.join(map(repr, unknown))}"
        )
    return tuple((name, _text(schema, name, spec[name], of)) for name in there if name in spec)


def _text(schema: TableSchema, name: str, value: object, of: str) -> str | None:
    type_ = schema.type_of(name)
    try:
        if isinstance(value, str) and not pa.types.is_string(type_):
            array = pa.array([value]).cast(type_)
        else:
            array = pa.array([value], type_)
    except (pa.ArrowException, TypeError, OverflowError, ValueError) as cause:
        raise SchemaError(
            f"{of}: partition column {name!r} must be given a value of {types.sql_name(type_)}, got {value!r}"
        ) from cause
    if value is None and not schema.column(name).nullable:
        raise SchemaError(f"{of}: partition column {name!r} is NOT NULL, got None; no row can lie there")
    return partition_codes(array)[1][0]


def partition_codes(column: pa.Array | pa.ChunkedArray) -> Codes:
    """The values of a partition column as texts, binaries as hexadecimal digits; equal ones have one number.

    >>> partition_codes(pa.array([b"a/", None, b"a/"]))
    (array([0, 1, 0]), ['612f', None])
    """
    array = one_array(column)
    if pa.types.is_floating(array.type):
        mask = pc.is_null(array).to_numpy(zero_copy_only=False)
        array = pa.array(normalised_floats(array), type=array.type, mask=mask)
    encoded = array.dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy().astype(np.int64)
    if pa.types.is_binary(array.type):
        return codes, [None if value is None else value.hex() for value in encoded.dictionary.to_pylist()]
    texts: list[str | None] = encoded.dictionary.cast(pa.string()).to_pylist()
    return codes, texts


def check_reads_back(texts: Iterable[str | None], type_: pa.DataType, name: str) -> None:
    """Refuse values that cannot be told from their texts.

    Raises:
        SchemaError: a day or time beyond the year 9999 is among them.
    """
    try:
        partition_values(texts, type_)
    except pa.ArrowInvalid as cause:
        raise SchemaError(
            f"partition column {name!r} must hold values between the years 0 and 9999: {cause}"
        ) from cause


def partition_values(texts: Iterable[str | None], type_: pa.DataType) -> pa.Array:
    """The values of a partition column that some texts stand for.

    >>> partition_values(["2013-01-01", None], pa.date32()).to_pylist()
    [datetime.date(2013, 1, 1), None]
    """
    if pa.types.is_binary(type_):
        return pa.array([None if text is None else bytes.fromhex(text) for text in texts], type_)
    return pa.array(list(texts), pa.string()).cast(type_)


def remaining(where: Filter, partitions: Iterable[Partition], schema: TableSchema) -> dict[Partition, Filter]:
    """For each partition that may have a row of which a filter is true, what is left to ask of its rows.

    ``EVERY_ROW`` where the filter is true of the whole partition; partitions without such a row are missing.
    """
    distinct = list(dict.fromkeys(partitions))
    if not where.alternatives or not schema.partitioned_by or not distinct:
        return dict.fromkeys(distinct, where)
    columns = [
        partition_values([partition[position][1] for partition in distinct], schema.type_of(name))
        for position, name in enumerate(schema.partitioned_by)
    ]
    values = pa.table(columns, names=list(schema.partitioned_by))
    left: list[list[tuple[Any, ...]]] = [[] for _ in distinct]
    for alternative in where.alternatives:
        known = tuple(p for p in alternative if p.column in schema.partitioned_by)
        rest = tuple(p for p in alternative if p.column not in schema.partitioned_by)
        may_hold = Filter((known,)).mask(values).to_numpy() if known else np.ones(len(distinct), np.bool_)
        for number in np.flatnonzero(may_hold).tolist():
            left[number].append(rest)
    return {
        partition: EVERY_ROW if () in rests else Filter(tuple(rests))
        for partition, rests in zip(distinct, left, strict=True)
        if rests
    }
