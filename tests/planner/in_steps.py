"""Delta joins of optimized queries, stepped through in this process instead of by a stream.

A stream takes a process and some jobs for each of its sources, a hundred times what these small joins cost.
Here the source's own reader makes the same steps, and what Spark does above the join, it does with their rows
as a batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import deltajoin
import planner
from deltajoin import DeltaJoinSpec
from deltajoin.spark.offsets import JoinOffset
from deltajoin.spark.source import JoiningReader, SourceOptions
from deltajoin.spark.tables import JoinedTables, output_type
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.spark.batches import arrow_schema
from upsert.store import Table
from upsert.store.version import Version

Versions = Mapping[str, Version]
"""Where tables are, by their paths."""


def versions_of(tables: Sequence[Table]) -> Versions:
    return {table.path: Version.complete(table.snapshot().info.data_version) for table in tables}


@contextmanager
def joined_in_steps(ends: Sequence[Versions]) -> Iterator[None]:
    """While it lasts, a join that is planned is a batch of what its source gives, up to each of the ends.

    Kinds have the step's number behind them: ``+I 0``.
    """

    def rows(spark: SparkSession, spec: DeltaJoinSpec, *_: Any, **options: Any) -> DataFrame:
        tables = JoinedTables.open(spec)
        schema = output_type(tables)
        reader = JoiningReader(SourceOptions(tables.located, lease_ms=0), schema)
        offsets = [reader.initialOffset()]
        for end in ends:
            reached = tuple(end[table.path] for table in tables.tables)
            offsets.append(JoinOffset(tables.identity, reached).to_json())
        steps = [
            numbered(batch, number)
            for number, (start, end) in enumerate(pairwise(offsets))
            for part in reader.partitions(start, end)
            for batch in reader.read(part)
        ]
        return spark.createDataFrame(pa.Table.from_batches(steps, arrow_schema(schema)), schema)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(deltajoin, "read_join", rows)
        yield


def numbered(batch: pa.RecordBatch, step: int) -> pa.RecordBatch:
    at = batch.schema.names.index(ROW_KIND_COLUMN)
    kinds = pa.array([f"{kind} {step}" for kind in batch.column(at).to_pylist()], pa.string())
    return batch.set_column(at, batch.schema.field(at), kinds)


def step_of(kind: str) -> tuple[RowKind, int]:
    """The kind of a row, and the step that it comes from."""
    own, _, step = kind.partition(" ")
    return RowKind(own), int(step)


def local(spark: SparkSession, table: Table, version: Version | None = None) -> DataFrame:
    """The rows of a table as they are or were, read here: no source, no process."""
    rows = (table.snapshot() if version is None else table.at(version)).scan()
    # Spark drops all that follows a piece without rows, as a bucket gives whose rows were deleted
    return spark.createDataFrame(rows.combine_chunks())


def by_session(df: DataFrame, **options: Any) -> DataFrame:
    """What `planner.optimize` makes of any query: as arguments, options warn where there is no join."""
    given, conf = (
        {f"spark.deltajoin.{key}": str(value) for key, value in options.items()},
        df.sparkSession.conf,
    )
    before = {key: conf.get(key, None) for key in given}
    for key, value in given.items():
        conf.set(key, value)
    try:
        return planner.optimize(df)
    finally:
        for key, value in before.items():
            conf.unset(key) if value is None else conf.set(key, value)
