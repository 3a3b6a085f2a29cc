"""What a streaming query of this session does and costs, of every form: from its own progress.

The pages and the metrics of a warehouse tell of queries that were recorded there; this asks one query, which
need not be recorded. Where a warehouse is named, its files tell how far the query is behind.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.streaming.query import StreamingQuery

from deltajoin.latest.metrics import LookupMetrics, lookups_of
from deltajoin.observe.measures import TableLookups, phases_of, table_lookups
from deltajoin.observe.observer import Observer
from deltajoin.observe.overview import Lag
from upsert.catalog.query_records import MicroBatch, QueryRecord, is_micro_batch, reason, this_driver
from upsert.spark.queries import checkpoint_of_query


@dataclass(frozen=True)
class QueryMetrics:
    """The figures of a query's micro-batches that Spark remembers.

    Attributes:
        id: of the query, the same after a restart.
        name: given by the user; None for none.
        state: ``running``, ``ended`` or ``failed``.
        error: why it has failed, with what to do about it; None if it has not.
        batches: the micro-batches, oldest first: rows in and out, times by phase, the versions of tables
            that each input has reached, rows and bytes of Spark's state.
        rows_out: rows that they wrote, by the number of the micro-batch, as far as that is known: for tables
            in the given warehouse, and for sinks that report it.
        inputs: how far it is behind each table that it reads; () without a warehouse.
        writes: names of the tables that it writes; () without a warehouse.
        lookups: what lookups of latest mode cost; None if it has none. Those of exact joins and of
            ``lookup_join`` are ``table_lookups``.
    """

    id: str
    name: str | None
    state: str
    error: str | None
    batches: tuple[MicroBatch, ...]
    rows_out: Mapping[int, int]
    inputs: tuple[Lag, ...]
    writes: tuple[str, ...]
    lookups: LookupMetrics | None

    @property
    def rows_in(self) -> int:
        """Rows that all these micro-batches read."""
        return sum(batch.rows_in for batch in self.batches)

    @property
    def table_lookups(self) -> list[TableLookups]:
        """What joins looked up in these micro-batches.

        Tables of exact joins have the numbers that EXPLAIN gives them, those of ``lookup_join`` their names
        after ``lookup``. [] over Spark Connect, and for micro-batches of another process.
        """
        found = Counter[str]()
        for batch in self.batches:
            found.update(batch.lookups or {})
        return table_lookups(found)

    @property
    def took_s(self) -> dict[str, float]:
        """Seconds of each of Spark's phases in all these micro-batches, and of the rest as ``other``."""
        found: dict[str, int] = {}
        for batch in self.batches:
            for phase, milliseconds in phases_of(batch).items():
                found[phase] = found.get(phase, 0) + milliseconds
        return {phase: milliseconds / 1000 for phase, milliseconds in found.items()}


def metrics(query: StreamingQuery, warehouse: str | os.PathLike[str] | None = None) -> QueryMetrics:
    """The figures of a streaming query of any form: a join, a view, a sink, lookups, Spark's own operators.

    Spark remembers the progress of the last 100 micro-batches
    (``spark.sql.streaming.numRecentProgressUpdates``); all figures are of these.

    Args:
        query: a query that runs, or has run, in this process.
        warehouse: folder of the tables that it reads and writes. With it the result also has how far the
            query is behind each of them, and how many rows it wrote; their files are read for that.

    >>> import tempfile, upsert, planner, pyarrow as pa
    >>> catalog = upsert.Catalog(tempfile.mkdtemp(), optimize=planner.optimize)
    >>> for name in ("words", "copy"):
    ...     _ = catalog.sql(f"CREATE TABLE {name} (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    >>> _ = catalog.table("words").write(pa.table({"id": [1, 2]}))
    >>> writer = catalog.write_changes(catalog.read_changes(spark, "words"), "copy")
    >>> query = writer.option("checkpointLocation", tempfile.mkdtemp()).trigger(availableNow=True).start()
    >>> _ = query.awaitTermination()
    >>> found = metrics(query, catalog.warehouse)
    >>> found.state, found.rows_in, dict(found.rows_out), [lag.rows for lag in found.inputs], found.writes
    ('ended', 2, {0: 2}, [0], ('copy',))
    """
    progress = query.recentProgress
    told = [json.loads(one.json) for one in progress]
    looks = tuple(map(MicroBatch.of_progress, told))  # those of a query that waits say where it is
    batches = tuple(map(MicroBatch.of_progress, filter(is_micro_batch, told)))
    failure = query.exception()
    record = QueryRecord(
        str(query.id),
        str(query.runId),
        query.name,
        this_driver(),
        "running" if query.isActive else "ended" if failure is None else "failed",
        0,
        time.time_ns() // 1_000_000,
        checkpoint_of_query(query),
        batches=looks,
        error=None if failure is None else reason(str(failure)),
    )
    rows_out: Mapping[int, int] = {one.id: one.rows_out for one in batches if one.rows_out is not None}
    inputs: tuple[Lag, ...] = ()
    writes: tuple[str, ...] = ()
    if warehouse is not None:
        seen = Observer(warehouse).look_at(record)
        rows_out, inputs, writes = seen.rows_out, seen.reads, seen.writes
    return QueryMetrics(
        record.id,
        record.name,
        record.state,
        record.error,
        batches,
        rows_out,
        inputs,
        writes,
        lookups_of(progress),
    )
