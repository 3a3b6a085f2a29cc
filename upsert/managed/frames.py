"""Managed tables as DataFrames: what ``Catalog`` gives its users.

Where a table has many buckets, ``write_changes`` does what a Python sink cannot ask Spark for: it brings all
rows of a key to one task, the task that writes their bucket. For a few buckets the shuffle would take longer
than the commit takes to fold what the tasks have kept bucket by bucket.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from upsert.errors import ConfigurationError
from upsert.managed.datasource import TableStepSource, UpsertTableSource
from upsert.managed.micro_batch import FOLDED_BUCKETS, step_writer
from upsert.managed.options import METADATA_COLUMNS, READ_OPTIONS, SCAN_WHERE, ReadOptions, WriteOptions
from upsert.managed.reader import RowMetadata, read_size
from upsert.managed.stepping import STEP, Step
from upsert.managed.tasks import folded_by_tasks, staged_by_tasks
from upsert.managed.writer import SESSION_MODE, BatchWriter, hidden_table, is_dynamic, sink_of
from upsert.materializer.choice import Changes, choose
from upsert.materializer.micro_batch import Materialize, WriteBatch, by_bucket, micro_batch_writer
from upsert.registration import accepted, register
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.spark.batches import arrow_of, collected
from upsert.spark.columns import bucket_expression, check_fits, merge_schema, spark_schema
from upsert.spark.connect import is_connect
from upsert.spark.filtered_read import FilteredRead
from upsert.spark.formats import FORMAT
from upsert.spark.planned_batch import ReadForArrow
from upsert.spark.query_writer import query_writer
from upsert.spark.reads import load_batch, load_few, load_stream
from upsert.store.metadata import table_file
from upsert.store.metadata.looks import looks
from upsert.store.metadata.snapshot import refs_of
from upsert.store.metadata.stands_for import StandsFor
from upsert.store.predicate import Where, where_to_json
from upsert.store.read.row_metadata import metadata_option
from upsert.store.read.snapshot import Snapshot
from upsert.store.read.steps import StepSize
from upsert.store.rows.merge_rules import DEDUPLICATE
from upsert.store.rows.partitions import Overwrite
from upsert.store.storage.local import synced_together
from upsert.store.table import Table
from upsert.store.table_options import SINK_MATERIALIZE
from upsert.stream_keys import UpsertKey

_KEYWORDS: Final = {
    name.replace(".", "_").replace("-", "_"): name
    for option in READ_OPTIONS
    for name in (option.key, *option.aliases)
    if name != "path"
}

_STATES: Final = frozenset({"scan.mode", "log.scan", "scan.pinned"})
"""Options by which a read says itself which state it is of."""

_PLANNED_NOW: Final = 10_000
"""Entries of manifests that are looked through in some ten milliseconds."""

_FILTERED: Final = 200_000
"""Of fewer rows it takes longer to see what a filter leaves out than to read them."""

_FOLDED_TASKS: Final = 8
"""An aggregate or a join with state has as many tasks as a shuffle: each would start to write in Python."""


def read_changes(spark: SparkSession, path: str, **options: object) -> DataFrame:
    """A table's changes as a streaming DataFrame, ``_row_kind`` last.

    Args:
        spark: the session; the format is registered in it.
        path: the table's folder.
        **options: those of the format, as keywords: ``scan_mode="latest"``, ``max_rows_per_trigger=10_000``.
    """
    register(spark)
    table = Table.open(path)
    given = {_KEYWORDS.get(keyword, keyword): str(value) for keyword, value in options.items()}
    given["path"] = table.path
    return load_stream(spark, UpsertTableSource, given, reader_lasts=not table.options.log.is_kafka)


def _prepare(spark: SparkSession, *, reads_by_format: bool) -> None:
    """Let a session read or write a batch, by the format, as Spark Connect always does, or by functions."""
    if reads_by_format or is_connect(spark):
        register(spark)
    else:
        accepted(spark)


def changes_between(
    spark: SparkSession,
    path: str,
    start: int,
    end: int,
    options: Mapping[str, str] = {},
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """The consolidated changes of a table between two data versions as a batch DataFrame, ``_row_kind`` last.

    Args:
        spark: the session.
        path: the table's folder.
        start: 0 for the empty table.
        end: a later one, or the same.
        options: more of the format's.
        columns: those to compare and to give; all if None.
    """
    _prepare(spark, reads_by_format=False)
    table = Table.open(path)
    step = {STEP.key: Step({table.uuid: (start, end)}).to_option()}
    asked = None
    if columns is not None:
        own = {field.name: field for field in spark_schema(table.schema, row_kind=True)}
        asked = StructType([own[name] for name in (*columns, ROW_KIND_COLUMN)])
    given = {**options, **step, "scan.source": "files", "path": table.path}
    return load_batch(spark, TableStepSource, given, asked)


def read(
    spark: SparkSession,
    path: str,
    snapshot: int | None = None,
    columns: Sequence[str] | None = None,
    options: Mapping[str, str] = {},
) -> DataFrame:
    """The rows of a table as a batch DataFrame, without ``_row_kind``: those of one state, whenever it runs.

    Args:
        spark: the session.
        path: the table's folder.
        snapshot: id of the snapshot to read; if None, and ``options`` name no state, the latest one now.
        columns: those to read, in this order; all if None. Those of ``metadata.columns`` follow.
        options: more of the format's options.
    """
    table = Table.open(path)
    given = {"row-kind": "false", **options, "path": table.path}
    if snapshot is not None:
        given |= {"scan.mode": "from-snapshot", "scan.snapshot-id": str(snapshot)}
    elif _STATES.isdisjoint(map(str.lower, options)):
        snapshot = table.snapshot().id
        given["scan.pinned"] = f"{snapshot}@{table.uuid}"
    else:
        snapshot = ReadOptions.parse(given).snapshot_id
    asked = None if columns is None else _asked(table, columns, options)
    state = None if snapshot is None else table.snapshot(snapshot)
    is_planned_now = state is not None and _has_few_files(state)
    _prepare(spark, reads_by_format=not is_planned_now)

    def load(more: Mapping[str, str] = {}) -> DataFrame:
        return load_batch(spark, UpsertTableSource, {**given, **more}, asked, is_planned_now=is_planned_now)

    rows = 0 if state is None else state.info.rows
    if rows < _FILTERED or is_connect(spark) or SCAN_WHERE in map(str.lower, options):
        return load()
    uuid, known = table.uuid, table.definition

    def again(where: Where) -> DataFrame | None:
        found = Table.open(path)
        is_as_known = (found.uuid, found.definition.version) == (uuid, known.version)
        return load({SCAN_WHERE: where_to_json(where)}) if is_as_known else None

    return FilteredRead(load(), known.schema.names, again)


def read_few(
    spark: SparkSession,
    path: str,
    columns: Sequence[str] | None,
    options: Mapping[str, str],
    most: StepSize,
) -> DataFrame | None:
    """As `read`, of a state that the options name, by this process; None for more than so much: `load_few`.

    It takes no session of Spark Connect, whose process need not have the table's files.
    """
    _prepare(spark, reads_by_format=False)
    table = Table.open(path)
    given = {"row-kind": "false", **options, "path": table.path}
    size = read_size(given)
    if size.rows > most.rows or size.bytes > most.bytes:
        return None
    asked = None if columns is None else _asked(table, columns, options)
    return load_few(spark, UpsertTableSource, given, asked, most)


def _asked(table: Table, columns: Sequence[str], options: Mapping[str, str]) -> StructType:
    """Some columns of a table, and those that ``metadata.columns`` adds."""
    own = {field.name: field for field in spark_schema(table.schema, row_kind=False)}
    keys = metadata_option(options[METADATA_COLUMNS]) if METADATA_COLUMNS in options else {}
    added = RowMetadata.asked(keys, table.schema, None, f"table {table.name!r}")
    return added.added_to(StructType([own[name] for name in columns]))


def _has_few_files(snapshot: Snapshot) -> bool:
    """Whether it is soon known which files a read needs, also where the read never runs."""
    return sum(ref.entries for ref in refs_of(snapshot.info)) <= _PLANNED_NOW


def write(
    df: DataFrame, path: str, options: Mapping[str, str] = {}, *, overwrite: bool = False
) -> Snapshot | None:
    """Commit all rows of a batch DataFrame to a table, at one moment; with ``_row_kind`` they are changes.

    Returns:
        What ``Table.write`` returns; None over Spark Connect, whose server has committed.

    Raises:
        ConfigurationError: the DataFrame is a stream.
        SchemaError: its columns do not fit the table.
        ChangelogError: two rows have one key.
    """
    table, asked = _asked_to_write(df, path, options, overwrite)
    _prepare(df.sparkSession, reads_by_format=False)
    expression, definition = bucket_expression(table), table.definition
    buckets = definition.options.bucket
    given = by_bucket(df, buckets, expression)
    own = {} if expression is None else {"bucketed": str(buckets), "definition": str(definition.version)}
    if is_connect(df):
        writer = given.write.format(FORMAT).option("path", table.path).options(**own)
        # Spark makes the writer when rows have been brought to their tasks
        writer.options(**options).mode("overwrite" if overwrite else "append").save()
        return None
    if own:
        asked = replace(asked, bucketed=buckets, definition=definition.version)
    return _write_by_tasks(given, table, asked, overwrite)


def write_list(
    df: DataFrame, path: str, options: Mapping[str, str] = {}, *, overwrite: bool = False
) -> Snapshot:
    """As `write`, of the few rows of a list, in their order: of a key the last one counts.

    Spark computes them, and this process commits them. It takes no session of Spark Connect, whose process
    need not have the table's files.
    """
    table, asked = _asked_to_write(df, path, options, overwrite)
    writer = BatchWriter(asked, df.schema, overwrite)
    return writer.commit_here(arrow_of(df), "rows") or _as_it_is(table)


def write_few(df: DataFrame, path: str, options: Mapping[str, str] = {}) -> Snapshot:
    """As `write`, of few rows, which Spark computes, and this process commits; see `write_list`.

    Raises:
        ChangelogError: two rows have one key.
    """
    table, asked = _asked_to_write(df, path, options, overwrite=False)
    writer = BatchWriter(asked, df.schema, overwrite=False)
    return writer.commit_here(arrow_of(df), "none") or _as_it_is(table)


def write_rows(rows: pa.Table, path: str, options: Mapping[str, str] = {}) -> Snapshot:
    """As `write`, of rows in this process, with all columns of the table; no session is needed."""
    table = Table.open(path)
    asked = WriteOptions.parse({**options, "path": table.path})
    given = spark_schema(table.schema, row_kind=ROW_KIND_COLUMN in rows.column_names)
    writer = BatchWriter(asked, given, overwrite=False)
    return writer.commit_here(rows, "none") or _as_it_is(table)


def _as_it_is(table: Table) -> Snapshot:
    """What a write of no rows returns."""
    snapshot = table.snapshot()
    snapshot.committed_rows = 0
    return snapshot


def _asked_to_write(
    df: DataFrame, path: str, options: Mapping[str, str], overwrite: bool
) -> tuple[Table, WriteOptions]:
    """The table that rows fit, and what is asked of the write."""
    if df.isStreaming:
        raise ConfigurationError("write needs a batch DataFrame, got a streaming one; use write_changes")
    table = Table.open(path)
    asked = WriteOptions.parse({**options, "path": table.path})
    if overwrite and is_dynamic(asked, table.schema, df.sparkSession.conf.get(SESSION_MODE, "static")):
        asked = replace(asked, overwrite_mode="dynamic")  # also where no task tells of the session
    if asked.merge_schema:
        merge_schema(table, df.schema)
    check_fits(df.schema, table.schema, of=f"table {table.name!r}")
    return table, asked


def _write_by_tasks(df: DataFrame, table: Table, options: WriteOptions, overwrite: bool) -> Snapshot:
    """As Spark's writer, without the processes that it makes and commits a write in; tasks may fold too."""
    writer = BatchWriter(options, df.schema, overwrite)
    staged = staged_by_tasks(df, writer).staged
    with table.discarded_if_failed(staged):
        folded = folded_by_tasks(df.sparkSession, table, staged)
        with table.discarded_if_failed(folded):
            done = writer.publish(folded, *(options.micro_batch or (None, None)))
    return done or _as_it_is(table)


def commit(rows: DataFrame | pa.Table, path: str, stands_for: StandsFor, *, overwrite: bool = False) -> None:
    """Commit what a table is as a view from then on: rows or changes, written by Spark's tasks or here.

    Rows are a batch DataFrame, or few of them, as Spark collects them. If the table is no longer in the state
    that they were computed from, that is a `CommitConflictError`.
    """
    if not isinstance(rows, pa.Table):
        write(rows, path, {"stands-for": json.dumps(stands_for.to_json())}, overwrite=overwrite)
        if (seen := looks()) is not None:
            seen.forget()  # over Spark Connect another process has committed
        return
    table = Table.open(path)
    replaced = Overwrite() if overwrite else None
    with synced_together():
        staged = []
        if rows.num_rows:
            staged = [table.stage(collected(rows), order="none", is_committed_here=True)]
        with table.discarded_if_failed(staged):
            table.commit(staged, overwrite=replaced, stands_for=stands_for)
    table_file.show_stream(path)


def write_changes(
    df: DataFrame,
    path: str,
    options: Mapping[str, str] = {},
    in_arrow: ReadForArrow | None = None,
) -> DataStreamWriter:
    """A writer of a streaming DataFrame's rows, a changelog or not, into a table.

    The upserts of an aggregate are written in output mode update, as often as a group changes. Changes that
    the table's key does not tell apart go through a hidden table, see ``upsert.materializer``. The caller
    adds at least ``option("checkpointLocation", …)`` and starts it. ``in_arrow`` finds out what Arrow can
    compute of a micro-batch in place of Spark.

    Raises:
        ConfigurationError: the DataFrame is no stream, or an aggregate by another key than the table's; or
            ``sink.materialize`` cannot be what it is; or an option is unknown, or means nothing for a stream.
        SchemaError: its columns do not fit the table.
    """
    if not df.isStreaming:
        raise ConfigurationError(
            "write_changes needs a streaming DataFrame, got a batch one; use df.write.format('upsert-table')"
        )
    table = Table.open(path)
    check_fits(df.schema, table.schema, of=f"table {table.name!r}")
    asked = WriteOptions.parse({**options, "path": table.path})
    asked.check_for_a_stream()
    register(df.sparkSession)
    schema, began = df.schema.jsonValue(), table.definition.version
    others = {key: text for key, text in options.items() if key.lower() != SINK_MATERIALIZE.key}
    write = WriteBatch(table.path, table.uuid, table.options.bucket, began, others)
    if choose(sink_of(table, asked.materialize), Changes.of_schema(schema)).is_materialized:
        return micro_batch_writer(df, Materialize(hidden_table(table), write.write, write))
    if (key := UpsertKey.of_schema(schema)) is not None:
        key.check_is_key(table.schema.primary_key, of=f"table {table.name!r}")
        if not key.is_append:
            if (engine := table.options.merge.engine) != DEDUPLICATE:
                raise ConfigurationError(
                    f"table {table.name!r}: an aggregate in update mode must go into a table with "
                    f"'merge-engine' = {DEDUPLICATE!r}, for it gives each group's whole result again, got "
                    f"{engine!r}; create one"
                )
            return micro_batch_writer(df, write).outputMode("update")
    tasks = int(str(df.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    bucket_of = partial(_bucket_for_tasks, tasks)
    expression = bucket_of(table)
    sink = {**others, "path": table.path, "definition": str(began), "sink.materialize": "none"}
    if expression is not None:
        sink["bucketed"] = str(table.options.bucket)
    if not is_connect(df):
        writer = step_writer(df, table, sink, bucket_of, in_arrow)
        if writer is not None:
            return writer
    grouped = by_bucket(df, table.options.bucket, expression)
    return query_writer(grouped).format(FORMAT).options(**sink)


def _bucket_for_tasks(tasks: int, table: Table) -> str | None:
    """Spark SQL for the bucket of a row; None where the few files of so many tasks are folded instead."""
    is_folded = table.options.bucket <= FOLDED_BUCKETS and tasks <= _FOLDED_TASKS
    return None if is_folded else bucket_expression(table)
