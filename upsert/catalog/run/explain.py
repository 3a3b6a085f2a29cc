"""``EXPLAIN``: how a query is executed, and why; nothing is read, written or started."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Final, assert_never

import pyarrow as pa

from upsert.catalog.results import Rows
from upsert.catalog.run.inserts import target_of
from upsert.catalog.run.jobs import needed
from upsert.catalog.run.queries import frame
from upsert.materializer.choice import Sink, mode_of
from upsert.sql import statements as s

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from upsert.catalog.context import Context

_WHAT: Final = "EXPLAIN"


def explain(context: Context, statement: s.Explain, spark: SparkSession | None) -> Rows:
    """How a statement is executed: its joins, indexes and state in streaming mode, else Spark's plan.

    A text has a row for each line; JSON is one row.

    Raises:
        SchemaError: Spark cannot make a plan of the query; the message has the position.
        ConfigurationError: the query is a stream, and the catalog cannot plan any.
    """
    session = needed(spark, _WHAT, context.options.forwarded())
    df, sink = _planned(context, session, statement.statement)
    if df.isStreaming:
        found = context.explained(df, sink)
        lines, values = str(found).splitlines(), found.to_json()
    else:
        lines = _physical_plan(session, df).splitlines()
        values = {"plan": lines}
    shown = [json.dumps(values)] if statement.is_json else lines
    return Rows(_WHAT, pa.table({"plan": pa.array(shown, pa.string())}))


def _planned(
    context: Context, session: SparkSession, statement: s.Select | s.Insert | s.CreateTableAs
) -> tuple[DataFrame, Sink | None]:
    """What is read, and the table that it goes into."""
    is_streaming = context.options.is_streaming
    match statement:
        case s.Select():
            return frame(context, session, statement.query, is_streaming=is_streaming), None
        case s.Insert():
            target = target_of(context, statement)
            df = target.fitted(frame(context, session, statement.query, is_streaming=is_streaming))
            return df, target.sink if is_streaming else None
        case s.CreateTableAs():
            df = frame(context, session, statement.query, is_streaming=is_streaming)
            options = context.options.with_materialize(statement.options, {})
            mode = mode_of(options, f"CREATE TABLE {statement.name}") or "auto"
            return df, Sink(statement.name, statement.primary_key, mode)
    assert_never(statement)


def _physical_plan(spark: SparkSession, df: DataFrame) -> str:
    view = f"upsert_{uuid.uuid4().hex}"
    df.createOrReplaceTempView(view)
    try:
        (row,) = spark.sql(f"EXPLAIN FORMATTED SELECT * FROM {view}").collect()
        return str(row[0]).strip()
    finally:
        spark.catalog.dropTempView(view)
