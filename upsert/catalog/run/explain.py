"""``EXPLAIN``: how a query is executed, without executing it; nothing is read."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, assert_never

from upsert.catalog.results import PlanText, Rows, many
from upsert.catalog.run import merge
from upsert.catalog.run.definitions import managed
from upsert.catalog.run.insert import Target, by_position, is_planned_by_text, with_own_names
from upsert.catalog.run.jobs import needed
from upsert.catalog.run.queries import frame
from upsert.catalog.run.scans import as_read_by, columns_for, zone
from upsert.errors import UpsertError
from upsert.materializer.choice import Sink, mode_of
from upsert.sql import statements as s
from upsert.sql.predicates import pushed
from upsert.sql.query import Reference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from upsert.catalog.context import Context


def explain(context: Context, statement: s.Explain, spark: SparkSession | None) -> Rows:
    """``EXPLAIN``: joins, indexes and state of a streaming query, else Spark's plan; nothing is read.

    A text has a row for each line; JSON is one row.
    """
    session = needed(spark, "EXPLAIN", context.options.forwarded())
    lines, warned = list[str](), frozenset[int]()
    if isinstance(statement.statement, s.StatementSet):
        parts = []
        for one in statement.statement.inserts:
            name = f"INSERT {'OVERWRITE' if one.overwrite else 'INTO'} {one.name}"
            of_one, red, plan = _explained(context, session, one)
            warned |= {number + len(lines) + 1 for number in red}
            lines += [name, *(f"  {line}" for line in of_one)]
            parts.append({"statement": name, **plan})
        values: dict[str, Any] = {"statements": parts}
    else:
        lines, warned, values = _explained(context, session, statement.statement)
    if statement.is_json:
        return PlanText.of("EXPLAIN", [json.dumps(values)])
    return PlanText.of("EXPLAIN", lines, warned)


_Explained = s.Select | s.Insert | s.Merge | s.CreateTableAs


def _explained(
    context: Context, session: SparkSession, statement: _Explained
) -> tuple[list[str], frozenset[int], dict[str, Any]]:
    """How one statement is executed: lines, those of them that are warnings, and the same as JSON values."""
    decided: list[Any] = []  # of queries that are planned by their text
    try:
        df, sink = _planned(context.telling(decided), session, statement)
    except UpsertError:
        if not (decided and decided[-1].refusals):
            raise
        return _in_lines(decided[-1])
    if df.isStreaming:
        return _in_lines(context.explained(df, sink, decided))
    physical = _physical_plan(session, df).splitlines()
    query = statement.rows if isinstance(statement, s.Merge) else statement.query
    references = as_read_by(session, query, query.references)
    reads = [told for one in references if (told := _read_of(context, session, one)) is not None]
    lines = [
        f"reads {one['table']}({', '.join(one['columns'])}), about {many(one['rows'])}"
        f"{', skips files without ' + one['where'] if one['where'] else ''}"
        for one in reads
    ]
    return [*lines, *physical], frozenset(), {"reads": reads, "plan": physical}


def _in_lines(found: Any) -> tuple[list[str], frozenset[int], dict[str, Any]]:
    return str(found).splitlines(), found.warned, found.to_json()


def _read_of(context: Context, session: SparkSession, reference: Reference) -> dict[str, Any] | None:
    """What a batch reads of a managed table, as `scans` asks for it; None for any other."""
    try:
        table = managed(context, reference.name, "EXPLAIN")
    except (UpsertError, ValueError):
        return None  # one with a connector, a plain view, a system table, or one of Spark's
    wanted, schema = reference.columns, table.schema
    columns = columns_for(schema, lambda one: wanted is None or one.lower() in wanted)
    where = " and ".join(
        f"{column} {operator} {value!r}"
        for column, operator, value in pushed(reference.where, schema, zone(session))
    )
    rows = table.snapshot().row_count
    return {"table": reference.name, "columns": list(columns), "where": where, "rows": rows}


def _planned(context: Context, session: SparkSession, statement: _Explained) -> tuple[DataFrame, Sink | None]:
    """What is read, and the table that it goes into."""
    is_streaming = context.options.is_streaming
    match statement:
        case s.Select():
            return frame(context, session, statement.query, is_streaming=is_streaming), None
        case s.Insert():
            statement = with_own_names(context, by_position(context, statement, session), session)
            target = Target.of(context, statement)
            found = frame(context, session, target.query(statement), is_streaming=is_streaming)
            df = target.fitted(found, keeps_kinds=is_planned_by_text(context, session, found))
            return df, target.sink if is_streaming else None
        case s.Merge():
            return merge.planned(context, statement, session), None
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
