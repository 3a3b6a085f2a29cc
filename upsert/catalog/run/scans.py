"""Tables of a catalog as DataFrames, as a query wants them: which state, which rows, which columns.

The columns of a managed table come with those that only reads have: METADATA, computed columns, watermark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import TimestampNTZType

from upsert.catalog.system_tables import read as system_rows
from upsert.catalog.system_tables import split
from upsert.errors import SchemaError, TableNotFoundError, UpsertError
from upsert.managed import frames
from upsert.managed.options import METADATA_COLUMNS, SCAN_WHERE, ReadOptions
from upsert.managed.reader import state_named_by
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.spark.connect import is_connect
from upsert.sql.dialect import placed
from upsert.sql.predicates import Comparison, instant, pushed
from upsert.sql.query import AsOf, AsOfKind, ChangesBetween, Reference
from upsert.sql.show_create import declared_names
from upsert.store import Table
from upsert.store.predicate import Where, parse_where, where_to_json
from upsert.store.read.row_metadata import metadata_option
from upsert.store.read.steps import StepSize
from upsert.stream_keys import VERSIONS_MARK
from upsert.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from upsert.catalog.connectors.base import Connector
    from upsert.catalog.context import Context
    from upsert.sql.query import QueryText


class StreamNeededError(SchemaError):
    """A query that no batch can answer; it may be read again as a stream."""


def metadata_options(schema: TableSchema, only: Collection[str] | None = None) -> dict[str, str]:
    """The option with which the format adds a managed table's METADATA columns; empty if there are none.

    ``only`` has the columns that are wanted, of which the watermark's is always one; None: all.
    """
    watermark = None if schema.watermark is None else schema.watermark.column
    keys = {
        column.name: column.metadata
        for column in schema.computed
        if column.metadata is not None and (only is None or column.name in only or column.name == watermark)
    }
    return {METADATA_COLUMNS: json.dumps(keys)} if keys else {}


def with_declared(df: DataFrame, schema: TableSchema, only: Collection[str] | None = None) -> DataFrame:
    """A DataFrame that reads a table, with its computed columns, and its watermark if it is a stream.

    ``only`` has the computed columns to add, of which the watermark's is always one; None: all.
    """
    if not schema.computed and schema.watermark is None:
        return df
    watermark = schema.watermark if df.isStreaming else None
    wanted = {column.name for column in schema.computed if only is None or column.name in only}
    if watermark is not None and watermark.column not in df.columns:
        wanted.add(watermark.column)
    if wanted:
        df = df.selectExpr(*_expressions(df, schema, wanted))
    if watermark is None:
        return df
    if isinstance(df.schema[watermark.column].dataType, TimestampNTZType):
        raise watermark.refusal()
    return df.withWatermark(watermark.column, f"{watermark.delay_ms} milliseconds")


def read_managed(
    spark: SparkSession,
    table: Table,
    snapshot: int | None,
    columns: Sequence[str] | None,
    where: Where | None,
) -> DataFrame:
    """A managed table as ``Catalog.read`` gives it: these columns of these rows, all where None is given."""
    schema = table.schema
    options = metadata_options(schema, columns)
    if where is not None and parse_where(where, schema).alternatives:
        options[SCAN_WHERE] = where_to_json(where)
    if columns is None:
        return with_declared(frames.read(spark, table.path, snapshot, options=options), schema)
    _check_declared(schema, columns, of=f"table {table.name!r}")
    stored = columns_for(schema, columns.__contains__)
    df = frames.read(spark, table.path, snapshot, columns=stored, options=options)
    return with_declared(df, schema, columns).select(*map(quoted, columns))


def _check_declared(schema: TableSchema, columns: Sequence[str], *, of: str) -> None:
    known = declared_names(schema)
    if isinstance(columns, str) or not columns or len(set(columns)) < len(columns):
        raise SchemaError(f"{of}: columns must be one or more different names, got {columns!r}")
    if unknown := [name for name in columns if name not in known]:
        raise SchemaError(f"{of}: unknown column {unknown[0]!r}; columns are {', '.join(known)}")


def _expressions(df: DataFrame, schema: TableSchema, wanted: Collection[str]) -> list[str]:
    # the parser is for the few tables that have such columns
    from upsert.sql.flink_words import spark_expression

    computed = {column.name: column for column in schema.computed if column.name in wanted}
    there = set(df.columns)
    found = [
        f"({spark_expression(computed[name].expression)}) AS {quoted(name)}"
        if name in computed
        else quoted(name)
        for name in declared_names(schema)
        if name in computed or name in there
    ]
    return [*found, ROW_KIND_COLUMN] if ROW_KIND_COLUMN in there else found


def system_frame(spark: SparkSession, table: Table, system: str, state: int | None = None) -> DataFrame:
    """A system table of a managed table as a batch DataFrame, with the rows of this moment."""
    return spark.createDataFrame(system_rows(table, system, state))


def columns_for(schema: TableSchema, is_wanted: Callable[[str], bool]) -> tuple[str, ...]:
    """The stored columns that a read of some columns needs, also of computed ones; at least one."""
    used = {name for column in schema.computed if is_wanted(column.name) for name in column.uses}
    found = tuple(name for name in schema.names if is_wanted(name) or name in used)
    return found or schema.primary_key[:1] or schema.names[:1]


STATES: Final = frozenset(
    {"scan.mode", "log.scan", "scan.snapshot-id", "scan.timestamp-millis", "scan.tag-name"}
)
"""Options that choose a state, beside FOR SYSTEM_TIME and FOR SYSTEM_VERSION."""


CONSISTENCY: Final = "spark.deltajoin.consistency"
"""Option of joins, which is declared above this layer: with ``latest`` they look up what is newest."""


def _looks_up_latest(spark: SparkSession) -> bool:
    """Whether a stream joins a table that is only looked up by its name alone."""
    found = spark.conf.get(CONSISTENCY, None)
    return found is not None and found.lower() == "latest" and not is_connect(spark)


@dataclass(frozen=True)
class Scan:
    """One table of a query, and how the query reads it.

    Attributes:
        reference: where the query names the table.
        is_streaming: whether it reads changes.
        subject: begins every refusal.
        only: the columns that the query may see; None for all.
    """

    reference: Reference
    is_streaming: bool
    subject: str
    only: tuple[str, ...] | None = None

    @property
    def _reads_changes(self) -> bool:
        """Whether the table's changes are read; else the rows of one state."""
        as_of = self.reference.as_of
        return self.is_streaming and (as_of is None or as_of.kind is AsOfKind.ROW)

    def rows(self, context: Context, spark: SparkSession) -> DataFrame:
        """The table as the query wants it; of one with a connector its options hold those of the hint."""
        (name, system), changes = split(self.reference.name), self.reference.changes
        if self.reference.as_of is not None and self.reference.as_of.kind is AsOfKind.ROW:
            return self._versions(context, spark, self.reference.as_of.value)
        if system is not None:
            return self._of_system(context, spark, name, system)
        if (connected := context.connected(name, self.reference.options)) is not None:
            return self._of_connector(spark, connected, context.schema(name))
        if changes is not None:
            return self._between(spark, context.managed(name), changes)
        return self._of_managed(spark, context.managed(name))

    def _versions(self, context: Context, spark: SparkSession, time: str) -> DataFrame:
        """The versions of the table's rows, for a join that asks for those of the time of a row.

        Its last column bears a mark, by which the planner finds the changes below.
        """
        name = self.reference.name
        schema = context.schema(name)
        valid_from = self._valid_from(schema, time)
        of_changes = {c.name for c in schema.columns if c.metadata}
        of_changes |= {c.name for c in schema.computed if c.metadata}
        is_stored = valid_from not in of_changes
        df = with_declared(
            self._all_changes(context, spark, schema, valid_from if is_stored else None), schema
        )
        last = next(name for name in reversed(df.columns) if name != ROW_KIND_COLUMN)
        mark = {
            "name": name,
            "key": list(schema.primary_key),
            "time": time,
            "valid-from": valid_from,
            "has-deletes": not is_stored,
        }
        metadata = {**df.schema[last].metadata, VERSIONS_MARK: json.dumps(mark)}
        marked = F.col(quoted(last)).alias(last, metadata=metadata)
        # over Spark Connect nothing finds the changes below
        kinds = [ROW_KIND_COLUMN] if is_connect(spark) else []
        others = (quoted(one) for one in df.columns if one not in (last, ROW_KIND_COLUMN))
        return df.select(*others, marked, *kinds)

    def _valid_from(self, schema: TableSchema, time: str) -> str:
        """The column that says from when on a row is valid."""
        if not self.is_streaming:
            raise self._stream_needed(
                f"FOR SYSTEM_TIME AS OF the column {time!r}, which is no processing time, is for streams"
            )
        if schema.watermark is None or not schema.primary_key:
            lacks = "a WATERMARK for the column that says from when on a row is valid"
            raise self._refusal(
                f"versions of rows as of {time!r} need {lacks if schema.primary_key else 'a PRIMARY KEY'}; "
                "declare it, or write FOR SYSTEM_TIME AS OF PROCTIME() for the rows of now"
            )
        return schema.watermark.column

    def _all_changes(
        self, context: Context, spark: SparkSession, schema: TableSchema, stored: str | None
    ) -> DataFrame:
        """The changes that make the versions; ``stored`` is the column of their time if rows have it."""
        connected = context.connected(self.reference.name, self.reference.options)
        if connected is not None:
            # the newest of a micro-batch alone would lose the versions before
            each = {"changelog": "upsert", "scan.versions": "true"} if connected.is_upsert else {}
            return connected.read_changes(spark, **each)
        if stored is not None:
            raise self._refusal(
                f"versions of a managed table's rows are those of its commits, and {stored!r} is not "
                "their time; declare at TIMESTAMP METADATA FROM 'commit-timestamp', WATERMARK FOR at AS at"
            )
        options = {**metadata_options(schema), **self.reference.options}
        return frames.read_changes(spark, context.managed(self.reference.name).path, **options)

    def _of_system(self, context: Context, spark: SparkSession, name: str, system: str) -> DataFrame:
        """A system table: its rows of now, also where the query is a stream."""
        as_of, state = self.reference.as_of, None
        if context.connected(name) is not None:
            raise self._refusal("a table with a connector has no system tables; DESCRIBE shows what it is")
        is_processing = as_of is not None and as_of.kind is AsOfKind.PROCESSING
        if self.reference.options or self.reference.changes is not None or is_processing:
            raise self._refusal(
                "a system table is read as it is; leave out OPTIONS, table_changes and processing times"
            )
        table = context.managed(name)
        if as_of is not None:
            state = self._data_version(spark, table, as_of)
        try:
            return system_frame(spark, table, system, state)
        except TableNotFoundError as cause:
            raise TableNotFoundError(placed(f"{self.subject}: {cause}", self.reference.position)) from None

    def _between(self, spark: SparkSession, table: Table, changes: ChangesBetween) -> DataFrame:
        """The consolidated changes between two states, in all columns of the table: fewer would hide some."""
        if self.is_streaming:
            raise self._refusal(
                "table_changes is for batches, a stream reads the changes of the table itself; name the "
                "table alone, or SET 'execution.runtime-mode' = 'batch'"
            )
        if self.reference.options or self.reference.as_of is not None:
            raise self._refusal("table_changes names its states itself; leave out OPTIONS and FOR SYSTEM_…")
        start = self._data_version(spark, table, changes.start)
        end = table.snapshot().info.data_version
        if changes.end is not None:
            end = self._data_version(spark, table, changes.end)
        if start > end:
            raise self._refusal(
                f"changes must be read forwards, got those from snapshot {start} to snapshot {end}; swap them"
            )
        schema = table.schema
        # WHERE filters each half of an update by itself, the store a change as a whole: they agree on a key
        keys = {name.lower() for name in schema.primary_key}
        own = [one for one in self._comparisons if not keys or one.column.lower() in keys]
        where = pushed(own, schema, zone(spark))
        metadata = metadata_options(schema, self._computed(schema))
        options = {**metadata, **({SCAN_WHERE: where_to_json(where)} if where else {})}
        df = frames.changes_between(spark, table.path, start, end, options)
        return with_declared(df, schema, self._computed(schema))

    def _data_version(self, spark: SparkSession, table: Table, state: AsOf) -> int:
        options = ReadOptions.parse({**self._named(spark, state), "path": table.path})
        return state_named_by(options, table)

    def _of_managed(self, spark: SparkSession, table: Table) -> DataFrame:
        path, schema, given = table.path, table.schema, self.reference.options
        metadata = metadata_options(schema, self._computed(schema))
        if metadata and self.is_streaming and not self.reference.is_alone:
            # a -U has those of the commit that takes the row away, so what digests changes would not find it
            raise self._refusal(
                f"column {next(iter(metadata_option(metadata[METADATA_COLUMNS])))!r} holds metadata of a "
                "change, and the change that takes its row away has another one; select and filter it, write "
                "it to a table and join or count there, or name the other columns"
            )
        if self._reads_changes:
            df = frames.read_changes(spark, path, **{**metadata, **self._used(schema), **given})
        else:
            df = frames.read(
                spark, path, columns=self._columns(schema), options=self._of_state(spark, schema)
            )
        return with_declared(df, schema, self._computed(schema))

    def few_rows(self, context: Context, spark: SparkSession, most: StepSize) -> DataFrame | None:
        """The rows of a managed table's state, which this process reads; None where they are more than that.

        The session is a classic one.
        """
        table = context.managed(self.reference.name)
        schema = table.schema
        options = self._of_state(spark, schema)
        df = frames.read_few(spark, table.path, self._columns(schema), options, most)
        return None if df is None else with_declared(df, schema, self._computed(schema))

    def _of_state(self, spark: SparkSession, schema: TableSchema) -> dict[str, str]:
        """The options of a read of one state."""
        metadata = metadata_options(schema, self._computed(schema))
        own = {**self._state(spark), **self._where(spark, schema)}
        return {**metadata, **self.reference.options, **own}

    def _of_connector(self, spark: SparkSession, connected: Connector, schema: TableSchema) -> DataFrame:
        as_of = self.reference.as_of
        is_state = as_of is not None and as_of.kind is not AsOfKind.PROCESSING
        if is_state or self.reference.changes is not None:
            raise self._refusal(
                "a table with a connector has no snapshots; leave out FOR SYSTEM_… and table_changes"
            )
        if connected.is_looked_up and self._reads_changes and _looks_up_latest(spark):
            df = connected.lookup_rows(spark, self._columns(schema))
        elif self._reads_changes:
            df = connected.read_changes(spark)
        else:
            if self.is_streaming and connected.is_upsert:
                connected.mirror_table()  # without one each micro-batch would read the whole topic
            wanted = self._columns(schema)
            df = connected.read_some(spark, wanted) if as_of is None else connected.lookup_rows(spark, wanted)
            if "_row_kind" in df.columns:
                raise self._stream_needed("the topic holds changes, which a batch would take for rows")
        return with_declared(df, schema, self._computed(schema))

    def _state(self, spark: SparkSession) -> dict[str, str]:
        as_of = self.reference.as_of
        if as_of is None or as_of.kind is AsOfKind.PROCESSING:
            return {}
        if given := STATES.intersection(self.reference.options):
            raise self._refusal(
                f"the state is given twice, by FOR SYSTEM_… and {sorted(given)[0]!r}; give one"
            )
        return self._named(spark, as_of)

    def _named(self, spark: SparkSession, as_of: AsOf) -> dict[str, str]:
        """The options that name a state."""
        if as_of.kind is AsOfKind.VERSION:
            name = "scan.snapshot-id" if as_of.is_number else "scan.tag-name"
            return {"scan.mode": "from-snapshot", name: as_of.value}
        try:
            time = instant(as_of.value, zone(spark))
        except ValueError as cause:
            raise self._refusal(f"expected TIMESTAMP 'date time', found {as_of.value!r}: {cause}") from None
        return {"scan.mode": "from-timestamp", "scan.timestamp-millis": str(int(time.timestamp() * 1000))}

    def _where(self, spark: SparkSession, schema: TableSchema) -> dict[str, str]:
        """Rows that the query drops anyway are not read."""
        where = pushed(self._comparisons, schema, zone(spark))
        is_given = SCAN_WHERE in self.reference.options
        return {SCAN_WHERE: where_to_json(where)} if where and not is_given else {}

    @property
    def _comparisons(self) -> Sequence[Comparison]:
        """Those of the query's WHERE; of a column that it may not see they are of another table's."""
        if self.only is None:
            return self.reference.where
        seen = {name.lower() for name in self.only}
        return [one for one in self.reference.where if one.column.lower() in seen]

    def _columns(self, schema: TableSchema) -> tuple[str, ...] | None:
        """The columns that the query may need, at least one of them; None: all."""
        return None if self._may_need_all else columns_for(schema, self._may_need)

    def _used(self, schema: TableSchema) -> dict[str, str]:
        """The columns that a stream may need, for its checkpoint: it reads all."""
        names = self._columns(schema)
        if names is None or any(set(name) & set(",;") or name != name.strip() for name in names):
            return {}  # the option cannot say it
        return {"scan.used-columns": ",".join(names)}

    def _computed(self, schema: TableSchema) -> list[str] | None:
        if self._may_need_all:
            return None
        return [column.name for column in schema.computed if self._may_need(column.name)]

    @property
    def _may_need_all(self) -> bool:
        return self.reference.columns is None and self.only is None

    def _may_need(self, name: str) -> bool:
        mentioned = self.reference.columns
        is_mentioned = mentioned is None or name.lower() in mentioned
        return is_mentioned and (self.only is None or name in self.only)

    def _stream_needed(self, reason: str) -> StreamNeededError:
        return StreamNeededError(str(self._refusal(f"{reason}; SET 'execution.runtime-mode' = 'streaming'")))

    def _refusal(self, why: str) -> SchemaError:
        return SchemaError(
            f"{self.subject}: table {self.reference.name!r} at {self.reference.position}: {why}"
        )


_TEXTS_READ: Final = {
    "spark.sql.ansi.doubleQuotedIdentifiers": ('"',),
    "spark.sql.legacy.consecutiveStringLiterals.enabled": ("''", '""'),
    "spark.sql.parser.escapedStringLiterals": ("\\",),
    "spark.sql.parser.quotedRegexColumnNames": ("`",),
}
"""Settings of a session that let it read some signs of a query's text in another way than by default."""


def setting_that_reads_otherwise(spark: SparkSession, text: str) -> str | None:
    """The setting by which a session takes a sign of a text for something else than Spark does by default.

    Then only Spark knows which columns a query reads, and with which texts it compares them. None: it has no
    such sign, or the session reads it as all do.

    >>> setting_that_reads_otherwise(spark, 'SELECT "a", id FROM t')
    """
    return next(
        (
            setting
            for setting, signs in _TEXTS_READ.items()
            if any(sign in text for sign in signs) and spark.conf.get(setting, "false") == "true"
        ),
        None,
    )


def check_read_alike(spark: SparkSession | None, text: str, of: str) -> None:
    """Refuse a part of a statement that is not Spark's to read, if the session would read it otherwise.

    What a table keeps, such as a DEFAULT, is read in all sessions as Spark does by default.
    """
    setting = None if spark is None else setting_that_reads_otherwise(spark, text)
    if setting is not None:
        raise SchemaError(
            f"{of}: {text.strip()!r} must mean the same in all sessions, and means something else in one "
            f"with {setting!r} = 'true'; unset that for the statement, or avoid the characters that it "
            "affects"
        )


def as_read_by(spark: SparkSession, query: QueryText, references: Sequence[Reference]) -> list[Reference]:
    """The tables of a query, with what its text tells of their columns if the session reads it so."""
    if setting_that_reads_otherwise(spark, query.text) is not None:
        return [replace(reference, columns=None, where=()) for reference in references]
    if is_case_sensitive(spark):
        return [replace(reference, where=()) for reference in references]
    return list(references)


def is_case_sensitive(spark: SparkSession) -> bool:
    """Whether the session tells names apart by case: a condition may be of another column or field then."""
    return spark.conf.get("spark.sql.caseSensitive", "false") == "true"


def is_read_otherwise(spark: SparkSession, text: str) -> bool:
    """Whether names or texts in a query may mean others to the session than they do by default."""
    return is_case_sensitive(spark) or setting_that_reads_otherwise(spark, text) is not None


def unstable_column(context: Context, query: QueryText) -> str | None:
    """A column that a streaming query reads and of which a -U or -D has another value than the row had.

    Only what replaces rows by their key can take such changes. None if there is no such column.
    """
    for reference in query.references:
        if reference.as_of is not None:
            continue
        try:
            schema = context.schema(reference.name)
        except UpsertError:
            continue  # a table of Spark's, which checks its name itself
        for column in schema.computed:
            is_read = reference.columns is None or column.name.lower() in reference.columns
            if is_read and column.metadata is not None:
                return column.name
    return None


def zone(spark: SparkSession) -> str:
    """The time zone in which the session writes times."""
    return str(spark.conf.get("spark.sql.session.timeZone"))
