"""Joins of two streams whose rows can be looked up: ``with_lookup``, ``lookup_delta_join``.

A lookup source is a value of Python, which a plan of Spark cannot hold. So a plan holds a name, under which
the process that made the plan finds what was said of the stream.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import pyarrow as pa
from cachetools import LRUCache
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltajoin.enrichment import On, pairs_of
from deltajoin.expressions import Condition
from deltajoin.latest.operator import join_streams
from deltajoin.latest.spec import ALL_BUT_BEFORE, INSERTS, UPSERTS, LatestJoin, LookupSide, check_join
from deltajoin.lookup.protocol import LookupSource, check_source, name_of
from deltajoin.settings import JoinSettings
from upsert import types
from upsert.conditions.evaluate import check_is_condition
from upsert.errors import ConfigurationError, CorruptTableError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.spark.connect import parallelism
from upsert.spark.java import conf_of
from upsert.store.kept import Kept
from upsert.types import quoted

LOOKUP_SIDE_MARK: Final = "deltajoin.lookup_side"
"""Metadata of the ``_row_kind`` of a marked stream: the name of its side."""

MAX_SIDES: Final = 1_000
"""So many sides have a name at once; of more, those that no plan has asked for longest lose it."""

_sides: Final = Kept[str, LookupSide](lambda: LRUCache(MAX_SIDES), is_inherited=True)


def mark_of(side: LookupSide) -> str:
    """A new name for a side."""
    mark = uuid.uuid4().hex
    _sides.put(mark, side)
    return mark


def side_of_mark(mark: str) -> LookupSide | None:
    """The side of a name; None for a name that another process gave, or that has been lost."""
    return _sides.get(mark)


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

    The source must have exactly the rows that result from all changes of the stream, under the same filters,
    with at least the same columns. It may show a change earlier than the stream. What is declared here about
    the stream (``kinds``, ``immutable``) is not verified, except for the kind of each row.

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
            offset or a sequence number. () is enough if all changes of a key come from one task in order,
            as from one partition of Kafka and from managed tables; otherwise two tasks that bring different
            rows of a key in one batch are an error.
        kinds: which of the kinds ``+I``, ``+U`` and ``-D`` the stream may have. Default: all three with
            ``_row_kind``, else ``+I`` and ``+U``. Fewer kinds allow more joins: ["+I"] says that rows are
            only added.
        immutable: columns whose values never change for an upsert key.

    Returns:
        The same rows with ``_row_kind`` last, and a mark for `lookup_delta_join` and `planner.optimize`.

    Raises:
        ConfigurationError: the DataFrame is no stream, or arguments contradict each other.
        SchemaError: a column is missing, or has another type in the source.
    """
    if not df.isStreaming:
        raise ConfigurationError("with_lookup needs a streaming DataFrame, got a batch one; use Spark's join")
    side = LookupSide(
        _columns(df), source, _names(upsert_key), _kinds(df, kinds), _names(order_by), _names(immutable)
    )
    _check_side(side, _names(keys))
    columns = [quoted(name) for name in side.columns.names]
    if ROW_KIND_COLUMN in df.columns and side.can_update:
        # the row that comes after it says by its key what it replaces
        df = df.where(F.col(ROW_KIND_COLUMN) != RowKind.UPDATE_BEFORE.value)
    of_rows = RowKind.INSERT if side.kinds == INSERTS else RowKind.UPDATE_AFTER
    kind = F.col(ROW_KIND_COLUMN) if ROW_KIND_COLUMN in df.columns else F.lit(of_rows.value)
    metadata = {LOOKUP_SIDE_MARK: mark_of(side)}
    marked = df.select(*columns, kind.alias(ROW_KIND_COLUMN, metadata=metadata))
    _of_frames[marked] = side
    return marked


def side_of(df: DataFrame, name: str) -> LookupSide:
    """What `with_lookup` declared about a DataFrame, which must be the very one that it returned."""
    side = _of_frames.get(df)
    if side is None:
        raise ConfigurationError(
            f"lookup join: the {name} side must be a DataFrame as with_lookup returned it, got another one; "
            "filter and project below with_lookup, over a source that gives the same rows"
        )
    return side


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


def _check_side(side: LookupSide, keys: Sequence[str]) -> None:
    check_source(side.source)
    if set(keys) != set(side.source.keys):
        raise ConfigurationError(
            f"with_lookup: keys must be those that {name_of(side.source)} is asked by, "
            f"{list(side.source.keys)!r}, got {list(keys)!r}"
        )
    for argument in ("keys", "upsert_key", "order_by", "immutable"):
        for name in keys if argument == "keys" else getattr(side, argument):
            if name not in side.columns.names:
                raise SchemaError(
                    f"with_lookup: {argument} must name columns of the stream, which are "
                    f"{', '.join(side.columns.names)}, got {name!r}"
                )
    if not side.upsert_key:
        raise ConfigurationError("with_lookup: upsert_key must name at least one column, got none")
    given = side.source.schema
    for column in side.columns:
        at = given.get_field_index(column.name)
        if at < 0 or given.field(at).type != column.type:
            found = "no such column" if at < 0 else types.sql_name(given.field(at).type)
            raise SchemaError(
                f"with_lookup: {name_of(side.source)} must give column {column.name!r} as "
                f"{types.sql_name(column.type)}, as the stream does, got {found}; cast one of them, or "
                "select what the source gives"
            )


def lookup_delta_join(
    left: DataFrame,
    right: DataFrame,
    *,
    on: On,
    how: str = "inner",
    where: Condition | None = None,
    **options: Any,
) -> DataFrame:
    """The join of two streams, by looking each change up on the other side (FLIP-486's own form).

    The result is an upsert stream: ``+U`` replaces the earlier row of its key, ``-D`` deletes by key, and
    there are no other kinds. It must go into a sink with that key, which `upsert_key_of` returns. The sink is
    eventually consistent, because lookups read the newest rows, which may be ahead of the streams. A
    micro-batch has one row for each key. Spark's state holds only rows whose lookup has failed, and a number
    for each shard. After a crash the batch is run again, and may emit newer values than before.

    ``on_error="fail"`` (default): lookups that fail after all retries fail the batch. ``"queue"``: their rows
    wait in the state, and later rows of the same join key wait behind them; they are tried again every ten
    seconds. Spark then runs micro-batches all the time, empty ones too: give the query a processing-time
    trigger. With ``availableNow``, such a query ends only if the session sets
    ``spark.sql.streaming.noDataMicroBatches.enabled`` to ``false``; the next run with new data tries the
    waiting rows again.

    ``changelog="all"`` gives every kind of change instead: ``+I``, ``-U`` with the previous row and ``+U``,
    ``-D`` with the deleted row, nothing for an unchanged row. Aggregates and sinks without a key may follow.
    The last emitted row of each key is kept below ``state_path``, in managed tables, with a folder for each
    query by its id: delete it together with the checkpoint, never alone. A micro-batch that is run again
    gives the same rows.

    For output mode append; stateless operators may follow. Spark refuses a second ``applyInPandasWithState``
    in a query. The number of tasks is ``spark.sql.shuffle.partitions``.

    >>> from deltajoin import with_lookup
    >>> import pyarrow as pa
    >>> from deltajoin.lookup import MemoryLookup
    >>> rate = spark.readStream.format("rate").load()
    >>> source = MemoryLookup(pa.table({"id": [1], "user": [7]}), ["user"])
    >>> orders = with_lookup(
    ...     rate.selectExpr("value AS id", "value % 5 AS user"), source, keys="user", upsert_key="id",
    ...     immutable=["user"],
    ... )
    >>> source = MemoryLookup(pa.table({"user": [7], "name": ["ann"]}), ["user"])
    >>> users = with_lookup(
    ...     rate.selectExpr("value AS user", "string(timestamp) AS name"), source, keys="user",
    ...     upsert_key="user",
    ... )
    >>> lookup_delta_join(orders, users, on="user", how="left").columns
    ['left_id', 'left_user', 'right_user', 'right_name', '_row_kind']

    Args:
        left: a stream as `with_lookup` returned it.
        right: another one.
        on: columns that must be equal: a name that both sides have, or several, or pairs of names.
        how: "inner", "left", "right" or "full".
        where: a further condition of a pair; ``Ref(0, …)`` is the left side, ``Ref(1, …)`` the right one.
        **options: ``cache_enabled``, ``left_cache_size``, ``right_cache_size``, ``cache_max_bytes``,
            ``async_buffer_capacity``, ``async_timeout``, ``on_error``, ``shards``, ``changelog``,
            ``state_path``; they may also be set in the session, as ``spark.deltajoin.cache.enabled``.

    Returns:
        Columns of the left side as ``left_…``, of the right side as ``right_…``, and ``_row_kind``.

    Raises:
        ConfigurationError: a side is not marked, an option is wrong, or the result would be wrong; the
            message names every condition that fails, and its remedy.
    """
    session = left.sparkSession
    settings = JoinSettings.of(options, conf_of(session), "lookup_delta_join")
    join = LatestJoin(side_of(left, "left"), side_of(right, "right"), pairs_of(on), how, where, settings)
    check_join(join)
    if where is not None:
        check_is_condition(where, lambda ref: join.sides[ref.table].columns.field(ref.column).type)
    return join_streams(left, right, join, settings.shards or parallelism(session))


def upsert_key_of(left: DataFrame, right: DataFrame, *, on: On, how: str = "inner") -> tuple[str, ...]:
    """The columns by which a row of `lookup_delta_join` replaces another: the primary key of its sink.

    A side of which a join key has at most one row adds nothing to it, unless its rows are kept without a
    match. In an outer join with keys of both sides, those of a padded row are NULL on one of them.

    Args:
        left: as for `lookup_delta_join`.
        right: as for `lookup_delta_join`.
        on: as for `lookup_delta_join`.
        how: as for `lookup_delta_join`.

    Raises:
        ConfigurationError: a side is not marked.
    """
    return LatestJoin(side_of(left, "left"), side_of(right, "right"), pairs_of(on), how).output_key
