"""Where rows belong: partitions by name and value, and the split of rows by partition and bucket (pure).

A partition is known by the texts of its values, in folders and manifests alike. The text of a value is
unambiguous and reads back, so a partition is compared, pruned and shown without opening one of its files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time
from decimal import Context, Decimal, Inexact, InvalidOperation
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert import types
from upsert.arrays import combinations, is_null, one_array
from upsert.errors import SchemaError
from upsert.schema import TableSchema
from upsert.store.paths import BucketId, Partition
from upsert.store.rows.conform import Signs
from upsert.store.rows.hashing import normalised_floats
from upsert.store.rows.layout import Layout

Codes = tuple[npt.NDArray[np.int64], list[str | None]]
"""A number for each row's value of a column, and the text of each number."""


@dataclass(frozen=True)
class Overwrite:
    """Which partitions a commit replaces: those that have all values of ``spec``, none for the whole table.

    If ``is_dynamic``, of these only the partitions in which rows were written.
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


def beginning_of(spec: Partition, columns: Sequence[str]) -> tuple[str | None, ...]:
    """The values of the first partition columns, as far as a specification has them.

    >>> beginning_of((("hour", "3"), ("day", "1")), ["day", "hub", "hour"])
    ('1',)
    """
    values = dict(spec)
    return tuple(values[name] for name in takewhile(values.__contains__, columns))


def check_within(written: Iterable[Partition], spec: Partition, of: str) -> None:
    """Refuse rows outside of the partitions that a specification names, by a ``SchemaError``."""
    for partition in written:
        if not is_within(partition, spec):
            raise SchemaError(
                f"{of}: rows must lie in the partition {partition_name(spec)}, got rows of "
                f"{partition_name(partition)}; filter them out, or name another partition"
            )


def partition_name(partition: Partition) -> str:
    """Columns and values as people read them."""
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

    Values are of the column's type, None for NULL, or texts that read as one: PARTITION (day = '2013-01-01').
    A column that is none of the partition's, or a value that does not fit it, is a ``SchemaError``.

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
    type_, length = schema.type_of(name), schema.column(name).length
    if isinstance(value, str) and length is not None and not value[length.characters :].strip(" "):
        value = value[: length.characters]  # as rows are stored
    try:
        if isinstance(value, str) and pa.types.is_time(type_):
            array = types.times_of(pa.array([value]), type_)
        elif isinstance(value, str | Decimal) and pa.types.is_decimal(type_):
            array = pa.array([_exactly(Decimal(value), type_)], type_)
        elif isinstance(value, str) and not pa.types.is_string(type_):
            array = pa.array([value]).cast(type_)
        elif isinstance(value, datetime) and pa.types.is_date(type_) and value.time() != time.min:
            raise ValueError("Arrow would leave the time of day out")
        elif isinstance(value, int | Decimal) and not isinstance(value, bool) and pa.types.is_floating(type_):
            array = pa.array([float(value)], type_)  # as SQL has numbers; the nearest one is meant
        else:
            array = pa.array([value], type_)
    except (pa.ArrowException, TypeError, ArithmeticError, ValueError) as cause:
        zone = " with its zone, as '2013-01-31 08:00:00Z'" if type_ == types.TIMESTAMP else ""
        raise SchemaError(
            f"{of}: partition column {name!r} must be given a value of {types.sql_name(type_)}{zone}, got "
            f"{value!r}"
        ) from cause
    if value is None and not schema.column(name).nullable:
        raise SchemaError(f"{of}: partition column {name!r} is NOT NULL, got None; no row can lie there")
    return partition_codes(array)[1][0]


def _exactly(number: Decimal, type_: pa.DataType) -> Decimal:
    """A number with the digits of a type; Arrow does not see each with too many, and dies of 1E-999999999.

    Raises:
        ArithmeticError: it has more.
    """
    context = Context(type_.precision, traps=[InvalidOperation, Inexact])
    return number.quantize(Decimal(1).scaleb(-type_.scale), context=context)


def partition_codes(column: pa.Array | pa.ChunkedArray) -> Codes:
    """A partition column's values as texts, binaries as hexadecimal digits; equal ones have one number."""
    array = one_array(column)
    if pa.types.is_floating(array.type):
        array = pa.array(normalised_floats(array), type=array.type, mask=is_null(array))
    encoded = array.dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy().astype(np.int64)
    if pa.types.is_binary(array.type):
        return codes, [None if value is None else value.hex() for value in encoded.dictionary.to_pylist()]
    values = encoded.dictionary
    texts = types.instant_texts(values) if values.type == types.TIMESTAMP else values.cast(pa.string())
    return codes, texts.to_pylist()


def partition_values(texts: Iterable[str | None], type_: pa.DataType) -> pa.Array:
    """The values of a partition column that some texts say."""
    if pa.types.is_binary(type_):
        return pa.array([None if text is None else bytes.fromhex(text) for text in texts], type_)
    if pa.types.is_time(type_):
        return types.times_of(pa.array(list(texts), pa.string()), type_)
    return pa.array(list(texts), pa.string()).cast(type_)


class Portion(NamedTuple):
    """Rows of one bucket, in input order, and the sign of each (None: all positive)."""

    bucket_id: BucketId
    rows: pa.Table
    weights: Signs | None


def split(layout: Layout, rows: pa.Table, weights: Signs | None) -> Iterator[Portion]:
    """The rows of each bucket that has any; ``rows`` as ``rows.conform`` returns them."""
    if not rows.num_rows:
        return
    buckets = layout.buckets_of(rows)
    columns = [_codes_of(layout, name, rows) for name in layout.schema.partitioned_by]
    ones, group_of = combinations([buckets, *(codes for codes, _ in columns)])
    if len(ones) == 1:
        yield Portion(_bucket_id(layout, columns, buckets, 0), rows, weights)
        return
    # numpy sorts numbers of two bytes by their digits
    order = np.argsort(group_of.astype(np.min_scalar_type(len(ones))), kind="stable")
    ends = np.cumsum(np.bincount(group_of))
    whole = rows.combine_chunks()
    for number, row in enumerate(ones.tolist()):
        own = order[(ends[number - 1] if number else 0) : ends[number]]
        signs = None if weights is None else weights[own]
        yield Portion(_bucket_id(layout, columns, buckets, row), whole.take(pa.array(own)), signs)


def _codes_of(layout: Layout, name: str, rows: pa.Table) -> Codes:
    codes, texts = partition_codes(rows.column(name))
    try:
        partition_values(texts, layout.schema.type_of(name))
    except pa.ArrowInvalid as cause:  # a text does not read back
        raise SchemaError(
            f"partition column {name!r} must hold values between the years 0 and 9999: {cause}"
        ) from cause
    return codes, texts


def _bucket_id(layout: Layout, columns: list[Codes], buckets: npt.NDArray[np.int64], row: int) -> BucketId:
    values = (texts[codes[row]] for codes, texts in columns)
    return tuple(zip(layout.schema.partitioned_by, values, strict=True)), int(buckets[row])
