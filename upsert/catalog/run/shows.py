"""Statements that show: tables, databases, partitions, definitions, options, and how a query is executed."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.catalog.results import PlanText, Result, Rows
from upsert.catalog.run import merge
from upsert.catalog.run.definitions import fitting_partitions, given_options, managed
from upsert.catalog.run.jobs import active, needed
from upsert.catalog.run.queries import frame
from upsert.catalog.run.row_changes import Target
from upsert.catalog.run.scans import columns_for, zone
from upsert.catalog.session import OPTIONS
from upsert.catalog.system_tables import known, split
from upsert.errors import ConfigurationError, TableNotFoundError, UpsertError
from upsert.materializer.choice import Sink, mode_of
from upsert.schema import ComputedColumn, TableSchema
from upsert.sql import statements as s
from upsert.sql.predicates import pushed
from upsert.sql.query import Reference
from upsert.sql.show_create import create_text, declared_names, masked, plain_view_text, view_text
from upsert.store import Table
from upsert.store.metadata.file_entry import newest, source_of, value_of
from upsert.store.table_options import MATERIALIZED_VIEW
from upsert.views.progress import lag_behind, refreshes_of
from upsert.views.view import ViewDefinition, definition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from upsert.catalog.context import Context


_MAP: Final = pa.map_(pa.string(), pa.string())

_PARTITION: Final = {
    "file.path": pa.string(),
    "change-tracking": pa.bool_(),
    "last-modified": types.TIMESTAMP,
    "compacted": pa.bool_(),
    "num-files": pa.int32(),
}

_TABLE: Final = {
    "name": pa.string(),
    "log.system": pa.string(),
    "log.kafka.bootstrap.servers": _MAP,
    "log.retention": pa.string(),
    "file.path": pa.string(),
    "log.kafka.topic": pa.string(),
    "watermark": types.TIMESTAMP,
    "file.format": pa.string(),
    "bucket": pa.int32(),
    **{name: type_ for name, type_ in _PARTITION.items() if name != "file.path"},
}

_VIEW: Final = {
    "view.query": pa.string(),
    "view.suspended": pa.bool_(),
    "view.refresh": pa.string(),
    "base-versions": pa.map_(pa.string(), pa.int64()),
    "lag": _MAP,
    "refreshes": _MAP,
}

_COLUMN: Final = {
    **dict.fromkeys(("name", "type", "null", "key", "extras", "watermark", "comment"), pa.string()),
    "null": pa.bool_(),
}

_ASCENDING: Final = re.compile(
    r"(?i)(?:TO_TIMESTAMP(?:_LTZ|_NTZ)?|TIMESTAMP_(?:MILLIS|MICROS|SECONDS))\(\s*`?\w+`?\s*(?:,\s*\d\s*)?\)"
    r"|CAST\(\s*`?\w+`?\s+AS\s+TIMESTAMP\w*\s*(?:\(\d\))?\s*\)"
)
"""Expressions of one column that are the later the larger its value is."""

_SERVERS: Final = "properties.bootstrap.servers"


def texts(name: str, values: Iterable[str]) -> pa.Table:
    """One column of texts."""
    return pa.table({name: pa.array(list(values), pa.string())})


def _partition_details(table: Table, chosen: Mapping[str, Any], what: str) -> Rows:
    """A row about each partition that has the chosen values."""
    known = table.schema.partitioned_by
    if unknown := [name for name in chosen if name not in known]:
        raise ConfigurationError(
            f"table {table.name!r}: PARTITION names {unknown[0]!r}; partition columns are "
            f"{', '.join(known) or 'none'}"
        )
    rows = [
        {
            "partition": info.name,
            "file.path": info.path,
            "change-tracking": info.change_tracking,
            "last-modified": _time(info.last_modified_ms),
            "compacted": info.is_compacted,
            "num-files": info.files,
        }
        for info in fitting_partitions(table, chosen)
    ]
    return Rows.listed(what, {"partition": pa.string(), **_PARTITION}, rows)


def _watermark(table: Table, spark: SparkSession | None) -> datetime | None:
    """The watermark of the rows so far: the newest time in them, less the delay.

    By the bounds of the files and what commits have kept of them, so that it never goes back. A computed
    rowtime is evaluated for the newest value of its column where it ascends with it, else for all rows.
    Without a session it is not known.
    """
    schema, watermark = table.schema, table.schema.watermark
    if watermark is None:
        return None
    snapshot, source = table.snapshot(), source_of(schema)
    number = newest(schema, snapshot.files.entries, snapshot.info.watermark)
    computed = next((column for column in schema.computed if column.name == watermark.column), None)
    found: datetime | None = None
    if computed is None:
        if source is not None and number is not None:
            found = value_of(source, number).cast(types.TIMESTAMP).as_py()
    elif spark is not None and computed.metadata is None:
        ascends = _ASCENDING.fullmatch(computed.expression.strip()) is not None
        if source is not None and number is not None and ascends:
            rows = pa.table({source.name: pa.array([value_of(source, number).as_py()], source.type)})
        else:
            rows = snapshot.scan(computed.uses)
        found = _newest_computed(spark, rows, computed)
    return None if found is None else found - timedelta(milliseconds=watermark.delay_ms)


def _newest_computed(spark: SparkSession, rows: pa.Table, computed: ComputedColumn) -> datetime | None:
    from upsert.sql.flink_words import spark_expression

    expression = f"unix_micros(CAST(max({spark_expression(computed.expression)}) AS TIMESTAMP)) AS newest"
    (row,) = spark.createDataFrame(rows).selectExpr(expression).toArrow().to_pylist()
    micros = row["newest"]
    return None if micros is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _log(table: Table) -> dict[str, Any]:
    """FLIP-188's columns about a table's log."""
    log = table.options.log
    if not log.is_kafka:
        return {"log.system": log.system}
    return {
        "log.system": log.system,
        "log.kafka.bootstrap.servers": _servers(log.bootstrap_servers),
        "log.retention": None if log.retention_ms is None else f"{log.retention_ms} ms",
        "log.kafka.topic": log.topic,
    }


def _servers(text: str | None) -> list[tuple[str, str]] | None:
    return None if text is None else [("bootstrap.servers", text)]


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def show_databases(context: Context, statement: s.ShowDatabases) -> Result:
    """``SHOW DATABASES``: one column, ``database``."""
    databases = context.databases
    if statement.catalog is not None:
        databases, _own = context.catalogs.database(f"{statement.catalog}.default")
    names = [databases.current] if statement.only_current else databases.names()
    return Rows("SHOW DATABASES", texts("database", names))


def show_catalogs(context: Context, statement: s.ShowCatalogs) -> Result:
    """``SHOW CATALOGS``: one column, ``catalog``."""
    names = [context.databases.catalog] if statement.only_current else context.catalogs.names()
    return Rows("SHOW CATALOGS", texts("catalog", names))


def show_tables(context: Context, statement: s.ShowTables) -> Result:
    """``SHOW TABLES``: one column, ``table``."""
    databases, own = context.databases, context.databases.current
    if statement.database is not None:
        databases, own = context.catalogs.database(statement.database)
    before = f"{databases.catalog}.{own}."
    temporary = (name.removeprefix(before) for name in context.temporary_views if name.startswith(before))
    names = sorted({*context.tables(statement.database), *databases.temporary.names(own), *temporary})
    return Rows("SHOW TABLES", texts("table", matching(names, statement.like)))


def matching(names: Sequence[str], like: str | None) -> Sequence[str]:
    """The names that a pattern of LIKE matches; all if it is None."""
    if like is None:
        return names
    parts = (".*" if sign == "%" else "." if sign == "_" else re.escape(sign) for sign in like)
    # Arrow's regular expressions take a time that grows with the name, whatever the pattern
    pattern = f"(?s)\\A{''.join(parts)}\\z"
    found = pc.match_substring_regex(pa.array(names, pa.string()), pattern).to_pylist()
    return tuple(name for name, matches in zip(names, found, strict=True) if matches)


def show_create_table(context: Context, statement: s.ShowCreateTable) -> Result:
    """``SHOW CREATE TABLE`` and ``SHOW CREATE VIEW``: one row with the text, secrets masked."""
    table_ref = context.databases.resolve(statement.name)
    if (plain := context.plain_view(statement.name)) is not None:
        text = plain_view_text(
            table_ref.shown, plain.schema, plain.text.query, is_temporary=plain.is_temporary
        )
        return Rows(f"SHOW CREATE VIEW {table_ref.shown}", texts("create view", [text]))
    if statement.must_be_view:
        table_ref.existing()
        raise ConfigurationError(f"{table_ref.shown!r} is no view; write SHOW CREATE TABLE")
    options, schema = given_options(table_ref.existing()), context.schema(statement.name)
    if (view := options.pop(MATERIALIZED_VIEW.key, None)) is not None:
        shown = view_text(table_ref.shown, schema, options, ViewDefinition.from_option(view).query)
    else:
        shown = create_text(table_ref.shown, schema, options)
    return Rows(f"SHOW CREATE TABLE {table_ref.shown}", texts("create table", [shown]))


def show_partitions(context: Context, statement: s.ShowPartitions) -> Result:
    """``SHOW PARTITIONS``: one row for each, with FLIP-188's columns."""
    table = managed(context, statement.name, "SHOW PARTITIONS")
    if not table.schema.partitioned_by:
        raise ConfigurationError(
            f"table {statement.name!r}: SHOW PARTITIONS needs PARTITIONED BY, which it has not"
        )
    return _partition_details(table, statement.partition, f"SHOW PARTITIONS {statement.name}")


def describe_table(context: Context, statement: s.DescribeTable, spark: SparkSession | None) -> Result:
    """``DESCRIBE``: a row for each column; with EXTENDED FLIP-188's row of the table, or partitions.

    The row of a materialized view has its query, and the versions that it stands for, beside those.
    """
    name, system = split(statement.name)
    table_ref = context.databases.resolve(name)
    what = f"DESCRIBE {table_ref.shown}"
    if system is not None:
        columns = known(system, managed(context, name, f"DESCRIBE {statement.name}").name).columns
        rows = ({"name": one, "type": types.sql_name(of), "null": True} for one, of in columns.items())
        return Rows.listed(f"{what}${system}", _COLUMN, rows)
    if statement.partition is not None:
        chosen = managed(context, statement.name, "DESCRIBE … PARTITION")
        return _partition_details(chosen, statement.partition, what)
    if not statement.is_extended:
        schema = context.schema(statement.name)
        return Rows.listed(what, _COLUMN, (_column_row(schema, name) for name in declared_names(schema)))
    if (plain := context.plain_view(statement.name)) is not None:
        row: dict[str, Any] = {"name": table_ref.qualified, "view.query": plain.text.query}
        return Rows.listed(what, {name: _TABLE.get(name) or _VIEW[name] for name in row}, [row])
    options = given_options(table_ref.existing())
    if "connector" in options:
        row = {
            "name": table_ref.qualified,
            "log.system": options["connector"],
            "log.kafka.topic": options.get("topic"),
            "log.kafka.bootstrap.servers": _servers(options.get(_SERVERS)),
        }
        return Rows.listed(what, _TABLE, [row])
    table = Table.open(table_ref.existing())
    partitions = table.partitions()
    newest_ms = max((info.last_modified_ms for info in partitions), default=None)
    row = {
        "name": table_ref.qualified,
        **_log(table),
        "file.path": table.path,
        "file.format": table.options.file_form.format,
        "bucket": table.options.bucket,
        "last-modified": None if newest_ms is None else _time(newest_ms),
        "compacted": all(info.is_compacted for info in partitions),
        "num-files": sum(info.files for info in partitions),
        "change-tracking": table.options.change_tracking,
        "watermark": _watermark(table, active(spark)),
    }
    if (view := definition_of(table)) is None:
        return Rows.listed(what, _TABLE, [row])
    versions = table.snapshot().info.base_versions or {}
    refreshes = refreshes_of(table_ref.shown, table, view.tables)
    catalog, _, _ = table_ref.qualified.partition(".")
    row |= {
        "view.query": view.query,
        "view.suspended": view.is_suspended,
        "view.refresh": table.options.refresh,
        "base-versions": list(versions.items()),
        "lag": [
            (base, _lag(context, f"{catalog}.{base}", base_uuid, versions.get(base, 0)))
            for base, base_uuid in view.tables.items()
        ],
        "refreshes": [(part, str(one)) for part, one in refreshes.items()],
    }
    return Rows.listed(what, _TABLE | _VIEW, [row])


def _lag(context: Context, table: str, table_uuid: str, known: int) -> str:
    """How far a view is behind a table, in words; also if that was dropped, or made again."""
    try:
        return str(lag_behind(Table.open(context.databases.resolve(table).path, table_uuid), known))
    except TableNotFoundError:
        return "dropped, or made again"


def _column_row(schema: TableSchema, name: str) -> dict[str, Any]:
    watermark = schema.watermark
    delay = watermark.delay_ms if watermark is not None and watermark.column == name else None
    shown = None if delay is None else f"{name} - {delay} ms" if delay else name
    computed = next((column for column in schema.computed if column.name == name), None)
    if computed is not None:
        row: dict[str, Any] = {"name": name, "null": True, "watermark": shown, "comment": computed.comment}
        if computed.type is None:
            return {**row, "extras": f"AS {computed.expression}"}
        row |= {"type": types.sql_name(computed.type)}
        return row | {"extras": f"METADATA FROM {computed.metadata!r} VIRTUAL"}
    column = schema.column(name)
    keys = ["PRI"] if name in schema.primary_key else []
    keys += [index.name for index in schema.indexes if name in index.columns]
    said = ["PARTITIONED BY"] if name in schema.partitioned_by else []
    said += [] if column.default is None else [f"DEFAULT {column.default}"]
    extras = ", ".join((*said, *(str(check) for check in schema.checks if name in check.columns))) or None
    if column.metadata is not None:
        extras = f"METADATA FROM {column.metadata!r}{' VIRTUAL' if column.virtual else ''}"
    return {
        "name": name,
        "type": column.sql_type,
        "null": column.nullable,
        "key": ", ".join(keys) or None,
        "extras": extras,
        "watermark": shown,
        "comment": column.comment,
    }


def show_options(context: Context, statement: s.ShowOptions) -> Result:
    """``SET``: the options that are set and those that have a default, secrets masked; or one of them."""
    key = statement.key
    shown: Mapping[str, str | None] = {
        option.key: None if option.default in (None, {}) else str(option.default).lower()
        for option in OPTIONS
    }
    shown = {**shown, **masked(dict(context.options))}
    if key is not None:
        shown = {name: value for name, value in shown.items() if name == key.lower() or name == key}
        if not shown:
            raise ConfigurationError(f"SET: option {key!r} is not set, or unknown; SET lists those that are")
    rows = ({"key": name, "value": shown[name]} for name in sorted(shown))
    return Rows.listed("SET", {"key": pa.string(), "value": pa.string()}, rows)


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
    df, sink = _planned(context, session, statement)
    if df.isStreaming:
        found = context.explained(df, sink)
        return str(found).splitlines(), found.warned, found.to_json()
    plan = _physical_plan(session, df).splitlines()
    query = statement.rows if isinstance(statement, s.Merge) else statement.query
    reads = [told for one in query.references if (told := _read_of(context, session, one)) is not None]
    lines = [
        f"reads {one['table']}({', '.join(one['columns'])}), about {one['rows']} rows"
        f"{', skips files without ' + one['where'] if one['where'] else ''}"
        for one in reads
    ]
    return [*lines, *plan], frozenset(), {"reads": reads, "plan": plan}


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
            target = Target.of(context, statement)
            df = target.fitted(frame(context, session, target.query(statement), is_streaming=is_streaming))
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
