"""``MERGE INTO``: what its clauses make of the rows of target and source, in one commit.

Spark joins the tables once, see ``upsert.sql.merge_into``. Of the rows that a clause takes, those of one key
come together, for two rules that are checked before anything is published: at most one row of the source
changes a row of the target, and afterwards each key has one row (docs/decisions/0044).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegralType, StructField, StructType

from upsert.catalog.results import Done, Result, many
from upsert.catalog.run.assignments import assigned, default_of, own_names, spark_type
from upsert.catalog.run.definitions import changeable
from upsert.catalog.run.jobs import configured, needed
from upsert.catalog.run.queries import check_tables, frame
from upsert.catalog.run.row_changes import (
    begins_again,
    check_engine,
    check_once,
    check_stored,
    committed,
    tracked,
)
from upsert.catalog.run.rows_found import FoundRows, MergedRows, Named, few, in_one_task, merged_rows
from upsert.catalog.run.without_spark.clauses import SEVERAL, THERE, TWICE, BrokenRuleError
from upsert.catalog.run.without_spark.merge import merged
from upsert.errors import ChangelogError, ConfigurationError, SchemaError
from upsert.managed import frames
from upsert.managed.options import SCAN_WHERE
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import TableSchema
from upsert.spark.columns import stored_text
from upsert.sql import statements as s
from upsert.sql.merge_into import with_tables
from upsert.sql.show_create import declared_names
from upsert.store.predicate import where_to_json
from upsert.types import quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from upsert.catalog.context import Context
    from upsert.store import Table

_ACTION: Final = ":action"
_ROW: Final = ":row"
_KEPT: Final = ":kept"
_COUNTS: Final = {
    s.MergeAction.UPDATE: ":updated",
    s.MergeAction.DELETE: ":deleted",
    s.MergeAction.INSERT: ":inserted",
}
REMEDIES: Final = {
    SEVERAL: "keep one row of the source for each of the target, or give the clauses conditions",
    TWICE: "keep one row of the source for each key",
    THERE: "compare the primary key in ON",
}


@begins_again
def merge(context: Context, statement: s.Merge, spark: SparkSession | None) -> Result:
    """``MERGE INTO t USING s ON … WHEN …``: in one commit, which change streams show unless tracking is off.

    Raises:
        ChangelogError: several rows of the source change one of the target, or a key would have two rows.
    """
    subject = f"MERGE INTO {statement.name}"
    is_tracked = tracked(statement.options, subject)
    table = _target(context, statement, subject)
    session = configured(spark, context.options.forwarded())
    if session is None:
        check_tables(context, statement.rows)
    counts: Sequence[int] | Observation = ()

    def changed(snapshot: int) -> FoundRows | pa.Table:
        nonlocal counts
        if (here := merged(context, session, statement, table, snapshot)) is not None:
            counts = here.counts
            return here.rows
        found, counts = _by_spark(context, needed(session, subject), statement, table, snapshot)
        return found

    try:
        snapshot, _ = committed(context, statement.name, changed, is_tracked)
    except (BrokenRuleError, PySparkException) as cause:
        # where a task has raised it, it is known by its text alone
        if (why := _violation(str(cause))) is None:
            raise
        raise ChangelogError(f"{subject}: {why}") from cause
    if not isinstance(counts, Sequence):  # over Connect it is of another class
        counts = [counts.get[name] for name in _COUNTS.values()]
    updated, deleted, inserted = counts
    return Done(
        subject,
        f"merged, {snapshot}: {many(updated)} updated, {deleted} deleted, {inserted} inserted",
        updated + deleted + inserted,
    )


def _by_spark(
    context: Context, spark: SparkSession, statement: s.Merge, table: Table, snapshot: int
) -> tuple[FoundRows, Observation]:
    """What Spark makes of the rows of a snapshot, and who tells the numbers of ``_COUNTS`` afterwards."""
    statement = _resolved(context, spark, statement, table.schema)
    rows = merged_rows(context, spark, statement, table, snapshot)
    counted = Observation()
    counts = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _COUNTS.values()]
    changes = (
        _Changes(table, statement, statement.rows.subject).rows(rows, snapshot).observe(counted, *counts)
    )
    return FoundRows(changes.drop(*_COUNTS.values()), rows.are_few), counted


def planned(context: Context, statement: s.Merge, spark: SparkSession) -> DataFrame:
    """What a MERGE would write, for ``EXPLAIN``."""
    subject = f"MERGE INTO {statement.name}"
    table = _target(context, statement, subject)
    statement = _resolved(context, spark, statement, table.schema)
    rows = frame(context, spark, statement.rows, is_streaming=False)
    return (
        _Changes(table, statement, subject)
        .rows(MergedRows(rows), table.snapshot().id)
        .drop(*_COUNTS.values())
    )


def _target(context: Context, statement: s.Merge, subject: str) -> Table:
    table = changeable(context, statement.name, "MERGE")
    check_engine(table, subject)
    if not table.schema.primary_key:
        raise ConfigurationError(
            f"{subject}: the target must have a PRIMARY KEY, by which its rows are told apart, got a table "
            "without one; create it with a key, or use UPDATE, DELETE and INSERT"
        )
    return table


def _resolved(context: Context, spark: SparkSession, statement: s.Merge, schema: TableSchema) -> s.Merge:
    """The statement with columns as the tables have them."""

    def source() -> frozenset[str]:
        query = replace(statement.source, args=statement.rows.args)
        return frozenset(map(str.lower, frame(context, spark, query, is_streaming=False).columns))

    def own(clause: s.MergeClause) -> s.MergeClause:
        if clause.columns is None:
            return clause
        columns = own_names(clause.columns, schema, spark)
        check_once(columns, f"MERGE INTO {statement.name}")
        return replace(clause, columns=columns, defaults=frozenset(own_names(clause.defaults, schema, spark)))

    target = frozenset(map(str.lower, declared_names(schema)))
    return replace(with_tables(statement, target, source), clauses=tuple(map(own, statement.clauses)))


@dataclass(frozen=True)
class _Changes:
    """What a statement makes of the rows of its query."""

    table: Table
    statement: s.Merge
    subject: str

    def rows(self, merged: MergedRows, snapshot: int) -> DataFrame:
        """The changes, at most one for each key, and a column for each number of ``_COUNTS``.

        The target is that of a snapshot.
        """
        joined = merged.joined
        source = joined.schema[s.MERGE_SOURCE].dataType
        assert isinstance(source, StructType)
        changed = self._by_key(self._chosen(joined.coalesce(1) if merged.are_few else joined, source))
        may_meet = not all(self._is_found_by_key(clause, source) for clause in self.statement.clauses)
        if may_meet:
            kept = self._kept(merged, snapshot).withColumn(_KEPT, F.lit(True))
            changed = changed.join(kept, list(self.table.schema.primary_key), "left")
        updates, deletes, inserts = map(F.col, _COUNTS.values())
        kind = self._checked_kind(updates, deletes, inserts, may_meet=may_meet)
        deleted = F.least(deletes, F.lit(1)).alias(_COUNTS[s.MergeAction.DELETE])
        columns = [F.col(f"{_ROW}.{quoted(name)}").alias(name) for name in self.table.schema.names]
        return changed.select(*columns, kind.alias(ROW_KIND_COLUMN), updates, deleted, inserts)

    def _kept(self, merged: MergedRows, snapshot: int) -> DataFrame:
        """The keys of the target that an inserted row may meet."""
        spark, path, key = merged.joined.sparkSession, self.table.path, self.table.schema.primary_key
        named = self._of_inserted(merged.named)
        where = {SCAN_WHERE: where_to_json(named)} if named else {}
        if merged.are_few:
            state = {"scan.mode": "from-snapshot", "scan.snapshot-id": str(snapshot), **where}
            if (kept := frames.read_few(spark, path, key, state, few())) is not None:
                return in_one_task(kept, is_hashed=True)
        return frames.read(spark, path, snapshot, key, where)

    def _chosen(self, joined: DataFrame, source: StructType) -> DataFrame:
        """What the first clause that applies to a row of the query does, and to which row of the target."""
        action, row = F.lit(None).cast("string"), F.lit(None)
        for number, clause in reversed(list(enumerate(self.statement.clauses))):
            applies = F.col(s.CLAUSE.format(number))
            values = F.struct(*self._row(number, clause, joined, source))
            row = F.when(applies, values).otherwise(row)
            action = F.when(applies, F.lit(clause.action.value)).otherwise(action)
        return joined.select(action.alias(_ACTION), row.alias(_ROW)).where(F.col(_ACTION).isNotNull())

    def _by_key(self, chosen: DataFrame) -> DataFrame:
        """For each key how often each action is done to it, and the row that it has afterwards.

        That is the deleted one where it has none.
        """
        counts = [F.count_if(F.col(_ACTION) == one.value).alias(name) for one, name in _COUNTS.items()]
        newest = F.max_by(_ROW, F.col(_ACTION) != s.MergeAction.DELETE.value)
        key = (F.col(f"{_ROW}.{quoted(name)}").alias(name) for name in self.table.schema.primary_key)
        return chosen.groupBy(*key).agg(*counts, newest.alias(_ROW))

    def _checked_kind(self, updates: Column, deletes: Column, inserts: Column, *, may_meet: bool) -> Column:
        """Whether a row is written or deleted; an error where rows of the source are at odds about it.

        ``may_meet`` says that an inserted row may meet one of the target with its key.
        """
        key = self.table.schema.primary_key
        has_key = F.lit(True)  # the store refuses rows without one
        for name in key:
            has_key &= F.col(quoted(name)).isNotNull()
        checks = [
            ((updates > 1) | ((updates > 0) & (deletes > 0)), SEVERAL),
            ((inserts > 1) & has_key, TWICE),
            ((inserts > 0) & (updates > 0), THERE),
        ]
        if may_meet:
            checks.append(((inserts > 0) & (deletes == 0) & F.col(_KEPT), THERE))
        kind = F.when(updates + inserts > 0, RowKind.INSERT.value).otherwise(RowKind.DELETE.value)
        shown = F.to_json(F.struct(*map(quoted, key)))
        for violated, why in reversed(checks):
            refusal = F.raise_error(F.concat(F.lit(why), shown)).cast("string")
            kind = F.when(violated, refusal).otherwise(kind)
        return kind

    def _row(self, number: int, clause: s.MergeClause, joined: DataFrame, source: StructType) -> list[Column]:
        """The columns of the row that a clause writes, or deletes."""
        values = self._values(number, clause, joined.schema, source)
        found = []
        for column in self.table.schema.columns:
            if column.name in clause.defaults:
                new = default_of(column, self.subject)
            elif (value := values.get(column.name)) is not None:
                new = assigned(F.col(value[0]), value[1], column, self.subject)
                if column.length is not None:
                    new = F.expr(stored_text(f"CAST({value[0]} AS STRING)", column))
            elif clause.action is not s.MergeAction.INSERT:
                new = F.col(f"{s.MERGE_TARGET}.{quoted(column.name)}")
            else:
                new = default_of(column, self.subject)
            found.append(new.alias(column.name))
        return found

    def _values(
        self, number: int, clause: s.MergeClause, given: StructType, source: StructType
    ) -> dict[str, tuple[str, DataType]]:
        """The columns that a clause gives values: where these are in the query, and their types."""
        if clause.action is s.MergeAction.DELETE:
            return {}
        schema, equal = self.table.schema, dict(self.statement.equal)
        found = {}
        if clause.columns is None:
            for name in schema.names:
                field = self._field(source, name, clause.action)
                found[name] = f"{quoted(s.MERGE_SOURCE)}.{quoted(field.name)}", field.dataType
        else:
            for place, name in enumerate(clause.columns):
                check_stored(schema, name, self.subject)
                value = s.CLAUSE_VALUE.format(number, place)
                found[name] = quoted(value), given[value].dataType
        if clause.action is s.MergeAction.INSERT:
            return found
        values = _of_source(clause, schema.names)
        for name in schema.primary_key:
            if found.pop(name, None) is not None and equal.get(name.lower(), "") != values[name]:
                raise SchemaError(
                    f"{self.subject}: column {name!r} is one of the PRIMARY KEY, by which the row is found; "
                    "leave it out, or set it to the column of the source that ON says it equals"
                )
        return found

    def _field(self, source: StructType, name: str, action: s.MergeAction) -> StructField:
        """The column of the source for one of the target, which ``*`` finds by its name."""
        known = [field for field in source.fields if field.name != s.IN_SOURCE]
        fields = [field for field in known if field.name.lower() == name.lower()]
        if len(fields) == 1:
            return fields[0]
        raise SchemaError(
            f"{self.subject}: {action} * needs one column {name!r} of the source, got {len(fields)} in "
            f"{', '.join(field.name for field in known)}; name the columns and their values"
        )

    def _is_found_by_key(self, clause: s.MergeClause, source: StructType) -> bool:
        """Whether ON finds every row of the target with the key of a row that the clause inserts.

        It does if it says nothing but that columns of the key equal what they are inserted as.
        """
        if clause.action is not s.MergeAction.INSERT:
            return True
        schema = self.table.schema
        if any(schema.column(name).length is not None for name in schema.primary_key):
            return False  # other texts are stored as the same one
        values = _of_source(clause, schema.names)
        names = {name.lower(): name for name in schema.primary_key}
        return self.statement.is_only_equal and all(
            (name := names.get(target)) is not None
            and values.get(name) == column
            and self._is_stored_as_compared(name, self._field(source, column, clause.action).dataType)
            for target, column in self.statement.equal
        )

    def _is_stored_as_compared(self, name: str, given: DataType) -> bool:
        """Whether each value of a type equals what a column has that gets it."""
        own = spark_type(self.table.schema.column(name))
        # a whole number that does not fit is an error
        return bool(own == given or (isinstance(own, IntegralType) and isinstance(given, IntegralType)))

    def _of_inserted(self, named: Sequence[Named]) -> list[Named]:
        """What is true of each key that is inserted too: its column gets what ON compares it with."""
        schema, equal = self.table.schema, dict(self.statement.equal)
        given = [
            _of_source(clause, schema.names)
            for clause in self.statement.clauses
            if clause.action is s.MergeAction.INSERT
        ]
        return [
            (name, operator, values)
            for name, operator, values in named
            if name in schema.primary_key
            and schema.column(name).length is None
            and all(one.get(name) == equal[name.lower()] for one in given)
        ]


def _of_source(clause: s.MergeClause, names: Sequence[str]) -> dict[str, str | None]:
    """The columns of the source that a clause gives to those of the target, in lower case."""
    if clause.columns is None:
        return {name: name.lower() for name in names}
    return dict(zip(clause.columns, clause.values, strict=True))


def _violation(text: str) -> str | None:
    """Which rule a row has broken, in the text of an error; None for none.

    >>> _violation(f'[RAISED] {TWICE}{{"id":"a}} {{b"}} SQLSTATE: P0001')
    'several rows are inserted with the key {"id":"a} {b"}; nothing was written; keep one row of the ...'
    """
    for why, remedy in REMEDIES.items():
        if (found := re.search(re.escape(why) + r"(?=\{)", text)) is not None:
            _, end = json.JSONDecoder().raw_decode(text, found.end())
            return f"{text[found.start() : end]}; nothing was written; {remedy}"
    return None
