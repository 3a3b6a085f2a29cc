"""Streams whose rows can be looked up elsewhere: ``with_lookup`` marks one, a join finds the mark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltajoin.latest.marks import LOOKUP_SIDE_MARK, mark_of
from deltajoin.latest.spec import ALL_BUT_BEFORE, INSERTS, UPSERTS, LookupSide
from deltajoin.lookup.checks import check_source, name_of
from deltajoin.lookup.protocol import LookupSource
from upsert import types
from upsert.errors import ConfigurationError, CorruptTableError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN, RowKind

_of_frames: Final[WeakKeyDictionary[DataFrame, LookupSide]] = WeakKeyDictionary()


def with_lookup(
    df: DataFrame,
    source: LookupSource,
    *,
    keys: str | Sequence[str],
    upsert_key: str | Sequence[str],
    order_by: str | Sequence[str] = (),
    kinds: Sequence[str] | None = None,
    immutable: Sequence[str] = (),
) -> DataFrame:
    """A stream of changes whose rows can also be looked up, as a side of a join by lookups (FLIP-486).

    The source must have what the stream tells: exactly the rows that come out of all of its changes, under
    the same filters, with at least the same columns. It may show a change before the stream brings it. What
    was declared of the stream here (kinds, what is immutable) is believed; kinds are also checked row by row.

    >>> import pyarrow as pa
    >>> from deltajoin.lookup import MemoryLookup
    >>> users = spark.readStream.format("rate").load().selectExpr("value AS id", "string(timestamp) AS name")
    >>> source = MemoryLookup(pa.table({"id": [1], "name": ["ann"]}), ["id"])
    >>> with_lookup(users, source, keys="id", upsert_key="id")
    DataFrame[id: bigint, name: string, _row_kind: string]

    Args:
        df: a streaming DataFrame. With a column ``_row_kind`` it says what each row is; without, every row is
            the new value of its upsert key.
        source: where rows are looked up.
        keys: the columns by which the source is asked; a join must have a value for each of them.
        upsert_key: the columns by which a later row replaces an earlier one, not NULL. For a log without a
            key, those that tell its rows apart in the result.
        order_by: the columns that say which of two rows of one upsert key is newer, not NULL, such as an
            offset or a sequence number. () is enough where all changes of a key come from one task in order,
            as from one partition of Kafka and from managed tables; elsewhere two tasks that bring different
            rows of a key in one batch are an error.
        kinds: which kinds of change the stream may carry: of ``+I``, ``+U``, ``-D``. Default: all three with
            ``_row_kind``, else ``+I`` and ``+U``. Fewer kinds allow more joins: ["+I"] says that rows are
            only ever added.
        immutable: columns that an upsert key has the same values of for ever.

    Returns:
        The same rows with ``_row_kind`` last, and a mark for `lookup_delta_join` and `planner.optimize`.

    Raises:
        ConfigurationError: the DataFrame is no stream, or arguments contradict each other.
        SchemaError: a column is missing, or has another type in the source.
    """
    if not df.isStreaming:
        raise ConfigurationError("with_lookup needs a streaming DataFrame, got a batch one; use Spark's join")
    side = LookupSide(
        _columns(df),
        source,
        _names(upsert_key),
        _kinds(df, kinds),
        _names(order_by),
        _names(immutable),
    )
    _check(side, _names(keys))
    columns = [quoted(name) for name in side.columns.names]
    if ROW_KIND_COLUMN in df.columns and side.can_update:
        # the row that comes after it says by its key what it replaces
        df = df.where(F.col(ROW_KIND_COLUMN) != RowKind.UPDATE_BEFORE.value)
    kind = F.col(ROW_KIND_COLUMN) if ROW_KIND_COLUMN in df.columns else F.lit(_kind_of_rows(side))
    metadata = {LOOKUP_SIDE_MARK: mark_of(side)}
    marked = df.select(*columns, kind.alias(ROW_KIND_COLUMN, metadata=metadata))
    _of_frames[marked] = side
    return marked


def side_of(df: DataFrame, name: str) -> LookupSide:
    """What `with_lookup` was told about a DataFrame.

    Raises:
        ConfigurationError: it is not the very one that it returned.
    """
    side = _of_frames.get(df)
    if side is None:
        raise ConfigurationError(
            f"lookup join: the {name} side must be a DataFrame as with_lookup returned it, got another one; "
            "filter and project below with_lookup, over a source that gives the same rows"
        )
    return side


def quoted(name: str) -> str:
    """A column's name as Spark SQL takes it, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def _kind_of_rows(side: LookupSide) -> str:
    """The kind of the rows of a stream that has no kinds."""
    return (RowKind.INSERT if side.kinds == INSERTS else RowKind.UPDATE_AFTER).value


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _columns(df: DataFrame) -> pa.Schema:
    fields = []
    for field in df.schema.fields:
        if field.name == ROW_KIND_COLUMN:
            continue
        try:
            fields.append(pa.field(field.name, types.from_json(field.dataType.jsonValue())))
        except CorruptTableError as cause:
            raise SchemaError(
                f"with_lookup: column {field.name!r} must have a type that a table can have, got "
                f"{field.dataType.simpleString().upper()}; cast it, or leave it out"
            ) from cause
    return pa.schema(fields)


def _kinds(df: DataFrame, given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return ALL_BUT_BEFORE if ROW_KIND_COLUMN in df.columns else UPSERTS
    known = [kind.value for kind in RowKind]
    if isinstance(given, str) or not given or not set(given) <= set(known):
        raise ConfigurationError(f"with_lookup: kinds must be some of {known}, got {given!r}")
    return tuple(kind for kind in known if kind in given)


def _check(side: LookupSide, keys: Sequence[str]) -> None:
    check_source(side.source)
    if set(keys) != set(side.source.keys):
        raise ConfigurationError(
            f"with_lookup: keys must be those that {name_of(side.source)} is asked by, "
            f"{list(side.source.keys)!r}, got {list(keys)!r}"
        )
    named: dict[str, Any] = {
        "keys": keys,
        "upsert_key": side.upsert_key,
        "order_by": side.order_by,
        "immutable": side.immutable,
    }
    for argument, names in named.items():
        for name in names:
            if name not in side.columns.names:
                raise SchemaError(
                    f"with_lookup: {argument} must name columns of the stream, which are "
                    f"{', '.join(side.columns.names)}, got {name!r}"
                )
    if not side.upsert_key:
        raise ConfigurationError("with_lookup: upsert_key must name at least one column, got none")
    for column in side.columns:
        at = side.source.schema.get_field_index(column.name)
        if at < 0 or side.source.schema.field(at).type != column.type:
            found = "no such column" if at < 0 else types.sql_name(side.source.schema.field(at).type)
            raise SchemaError(
                f"with_lookup: {name_of(side.source)} must give column {column.name!r} as "
                f"{types.sql_name(column.type)}, as the stream does, got {found}; cast one of them, or "
                "select what the source gives"
            )
