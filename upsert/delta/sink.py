"""Changes into a table of Delta Lake: each micro-batch is one MERGE, which counts once.

The rows of a micro-batch are folded to one of each key. The MERGE carries the query's id and the number of
the micro-batch as Delta's ``txnAppId`` and ``txnVersion``, which its commit records: a micro-batch that
comes again, whichever process died when, finds its number there and changes nothing.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType

from upsert.delta.table import CONNECTOR, DeltaTable
from upsert.errors import SchemaError
from upsert.failpoints import reach
from upsert.materializer.choice import Sink
from upsert.materializer.keyed_sink import KeyedSink, as_declared, folded
from upsert.registration import register
from upsert.retry import retried
from upsert.schema import TableSchema
from upsert.spark.batches import from_spark, mapped
from upsert.spark.columns import check_fits, spark_schema
from upsert.spark.task import query_of_micro_batch
from upsert.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINTS: Final = ("delta.before-merge", "delta.after-merge")
"""Points of ``upsert.failpoints`` at which a test can kill the driver."""

_IS_DELETED: Final = "deltajoin_is_deleted"
_TRANSACTION: Final = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
_CONFLICT: Final = "DELTA_CONCURRENT_"
"""How Delta's errors are called where another writer has changed what this one read."""
_PATIENCE_S: Final = 60.0


def sink_of(table: DeltaTable, state: str) -> KeyedSink:
    """The table as a sink of streams; the rows of keys that do not tell rows apart lie in ``state``."""
    sink = Sink(f"table {table.name!r}", table.schema.primary_key, table.materialize)
    write = WriteMicroBatch(table)
    return KeyedSink(sink, table.schema, state, lambda spark: check(spark, table), write)


def check(spark: SparkSession, table: DeltaTable) -> None:
    """Refuse a Delta table that rows of the declared one cannot be merged into.

    Raises:
        ConfigurationError: there is no such table, or the session was not given Delta's SQL.
        SchemaError: a column is missing on one of both sides, or of another type.
    """
    needed = [field.name for field in table.check(spark).fields if not field.nullable]
    if undeclared := [name for name in needed if name not in table.schema.names]:
        raise SchemaError(
            f"{table.shown}: column {undeclared[0]!r} is NOT NULL in the Delta table; declare it, so that "
            "rows have a value for it"
        )
    table.properties(spark)


def write(df: DataFrame, table: DeltaTable) -> None:
    """Merge the rows of a batch DataFrame, or its changes, by their key, in one commit."""
    check_fits(df.schema, table.schema, of=f"table {table.name!r}")
    check(df.sparkSession, table)
    WriteMicroBatch(table).write(df, None)


@dataclass(frozen=True)
class WriteMicroBatch:
    """Merges one micro-batch; Spark calls it in the driver, for the same one again after a failure."""

    table: DeltaTable

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Merge the rows of a micro-batch, unless an earlier call has."""
        query = query_of_micro_batch(rows, f"table {self.table.name!r}: micro-batches of {CONNECTOR!r}")
        self.write(rows, (query, batch))

    def write(self, rows: DataFrame, micro_batch: tuple[str, int] | None) -> None:
        """Merge rows in one commit; of a micro-batch only where it was not merged before."""
        spark, schema = rows.sparkSession, self.table.schema
        register(spark)
        key = [quoted(name) for name in schema.primary_key]
        together = as_declared(rows, schema).repartition(*key).sortWithinPartitions(*key)
        what = spark_schema(schema, row_kind=False).add(_IS_DELETED, BooleanType(), nullable=False)
        view = f"deltajoin_{uuid.uuid4().hex}"
        mapped(together, _Fold(schema, f"table {self.table.name!r}"), what).createOrReplaceTempView(view)
        reach(POINTS[0])
        try:
            with _transaction(spark, micro_batch):
                retried(
                    lambda: spark.sql(self._merge(view)),
                    is_passing=lambda failure: _CONFLICT in str(failure),
                    first_pause_s=0.5,
                    longest_pause_s=5.0,
                    patience_s=_PATIENCE_S,
                    jitter=random.uniform,
                )
        finally:
            spark.catalog.dropTempView(view)
        reach(POINTS[1])

    def _merge(self, view: str) -> str:
        schema = self.table.schema
        on = " AND ".join(f"t.{name} = s.{name}" for name in map(quoted, schema.primary_key))
        names = [quoted(name) for name in schema.names]
        others = [quoted(name) for name in schema.names if name not in schema.primary_key]
        update = f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{one} = s.{one}' for one in others)} "
        return (
            f"MERGE INTO {self.table.in_spark} t USING {view} s ON {on} "
            f"WHEN MATCHED AND s.{_IS_DELETED} THEN DELETE {update if others else ''}"
            f"WHEN NOT MATCHED AND NOT s.{_IS_DELETED} THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{name}' for name in names)})"
        )


@dataclass(frozen=True)
class _Fold:
    """Leaves one row of each key that a task has, and says whether it is deleted."""

    schema: TableSchema
    owner: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for found in folded(self.schema, self.owner, from_spark(batches)):
            rows = found.rows.append_column(_IS_DELETED, pa.array(~found.is_there))
            yield from rows.to_batches()


@contextmanager
def _transaction(spark: SparkSession, micro_batch: tuple[str, int] | None) -> Iterator[None]:
    """Let the commits of a session be that of a micro-batch for a while, which Delta takes once."""
    for name, value in zip(_TRANSACTION, micro_batch or (), strict=False):
        spark.conf.set(name, str(value))
    try:
        yield
    finally:
        for name in _TRANSACTION if micro_batch else ():
            spark.conf.unset(name)
