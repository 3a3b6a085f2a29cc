"""Joins of two streams whose rows can be looked up: ``lookup_delta_join``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from deltajoin.condition_types import check_is_condition
from deltajoin.expressions import Condition
from deltajoin.latest.conditions import check_join
from deltajoin.latest.operator import join_streams
from deltajoin.latest.sides import side_of
from deltajoin.latest.spec import LatestJoin
from deltajoin.settings import JoinSettings

On = str | Sequence[str | tuple[str, str]]


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

    The result is an upsert stream: ``+U`` replaces the row before with its key, ``-D`` deletes by key, and
    there is nothing else. It must go into a sink with that key, which `upsert_key_of` tells; there it comes
    out right in the end, since lookups read what is newest, which may be ahead of what the streams have
    brought. Of each key a micro-batch has one row. Spark's state holds rows whose lookup has failed, and a
    number for each shard, nothing else. After a crash the batch is run again, and may emit newer values than
    before.

    ``on_error="fail"`` (default): lookups that fail after all retries fail the batch. ``"queue"``: their rows
    wait in the state, later rows of the same join key behind them, and are tried again every ten seconds.
    Spark then runs micro-batches for ever, empty ones too: give the query a processing-time trigger. With
    ``availableNow``, such a query ends only where the session sets
    ``spark.sql.streaming.noDataMicroBatches.enabled`` to ``false``; what still waits then is tried by the
    next run that has new data.

    ``changelog="all"`` gives every kind of change instead: ``+I``, ``-U`` with the row before and ``+U``,
    ``-D`` with the row that goes, nothing for a row that is as it was. Aggregates and sinks without a key may
    follow. The row that was given last for each key is kept below ``state_path``, in managed tables, a
    folder for each query by its id: delete it together with the checkpoint, never alone. A micro-batch that
    is run again gives the rows that it gave.

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
        where: what a pair must meet besides; ``Ref(0, …)`` is the left side, ``Ref(1, …)`` the right one.
        **options: ``cache_enabled``, ``left_cache_size``, ``right_cache_size``, ``cache_max_bytes``,
            ``async_buffer_capacity``, ``async_timeout``, ``on_error``, ``shards``, ``changelog``,
            ``state_path``; they may also be set in the session, as ``spark.deltajoin.cache.enabled``.

    Returns:
        Columns of the left side as ``left_…``, of the right side as ``right_…``, and ``_row_kind``.

    Raises:
        ConfigurationError: a side is not marked, an option is wrong, or the result would not come out right;
            the message names every condition that fails, and its remedy.
    """
    session = left.sparkSession
    settings = JoinSettings.of(options, session.conf.getAll, "lookup_delta_join")
    join = LatestJoin(side_of(left, "left"), side_of(right, "right"), _pairs(on), how, where, settings)
    check_join(join)
    if where is not None:
        check_is_condition(where, lambda ref: join.sides[ref.table].columns.field(ref.column).type)
    return join_streams(left, right, join, settings.shards or session.sparkContext.defaultParallelism)


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
    return LatestJoin(side_of(left, "left"), side_of(right, "right"), _pairs(on), how).output_key


def _pairs(on: On) -> tuple[tuple[str, str], ...]:
    names = [on] if isinstance(on, str) else list(on)
    return tuple((name, name) if isinstance(name, str) else (name[0], name[1]) for name in names)
