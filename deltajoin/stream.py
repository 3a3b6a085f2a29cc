"""A delta join as a streaming DataFrame, in the physical form that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from deltajoin.forms.shuffled import shuffled
from deltajoin.forms.stateful import stateful
from deltajoin.options import FIRST_LOADS, FORMAT, PHYSICAL, SourceOptions
from deltajoin.source import register
from deltajoin.spec import DeltaJoinSpec
from deltajoin.tables import JoinedTables
from upsert.errors import ConfigurationError
from upsert.store.consumers import DEFAULT_LEASE_S


def read_join(
    spark: SparkSession,
    spec: DeltaJoinSpec,
    physical: str = "auto",
    *,
    first_load: str = "auto",
    start: Mapping[str, Any] | None = None,
    consumer_id: str | None = None,
    lease_s: float = DEFAULT_LEASE_S,
) -> DataFrame:
    """A stream of the join's net changes: the columns of ``spec.columns``, then ``_row_kind``.

    Every micro-batch moves all tables forward by one step of at most ``max_rows_per_trigger`` changes each,
    from the empty tables on. The checkpoint keeps the versions and nothing else; after a crash the
    same micro-batch is made again, row for row. FLIP-486 describes the join, this one is exact. The query
    holds the snapshots that a restart would read, as a consumer with a lease. One that comes back later may
    find them expired: it then stops with ``SnapshotExpiredError``.

    Example::

        orders = Side("warehouse/orders", ("order_id", "product_id", "amount"), ("product_id",))
        products = Side("warehouse/products", ("id", "name"), ("id",))
        changes = read_join(spark, DeltaJoinSpec.of("inner", orders, products))

    Args:
        spark: the session; the format ``delta-join`` is registered in it.
        spec: what to join.
        physical: where the join runs; the rows are the same. ``fused``: inside the source. ``shuffled``: in
            stateless tasks after a shuffle by join key. ``stateful``: in ``applyInPandasWithState``.
            ``auto``: fused. A checkpoint goes on under another form; to or from ``stateful`` see ``start``.
        first_load: ``batch``: the first micro-batch joins all that is there, in pieces that bound its memory;
            ``micro-batches``: it obeys ``max_rows_per_trigger``; ``auto``: batch where the form is fused
            and one table is in every row of the result.
        start: where a query with a new checkpoint begins: what ``reached`` tells of another one.
        consumer_id: its name as a consumer of the tables; by default a random one that the checkpoint keeps.
        lease_s: how many seconds its snapshots are held after it was last heard of; 0: they are not.

    Raises:
        TableNotFoundError: a table is missing.
        SchemaError: a column is unknown, keys cannot be compared, or a table lacks an index; the message
            names the INDEX to add.
        ConfigurationError: ``physical`` or ``first_load`` is unknown.
    """
    _check("physical", physical, PHYSICAL)
    _check("first_load", first_load, FIRST_LOADS)
    register(spark)
    tables = JoinedTables.open(spec)
    tables.check_lookups()
    is_fused = physical in ("auto", "fused")
    options = SourceOptions(tables.located, is_fused, first_load, start, consumer_id, int(lease_s * 1000))
    source = spark.readStream.format(FORMAT).options(**options.to_options()).load()
    if is_fused:
        return source
    return shuffled(source, tables) if physical == "shuffled" else stateful(source, tables)


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(f"delta join: {name} must be one of {', '.join(known)}, got {value!r}")
