"""What a SQL text can ask for, as values (pure). They know no parser, so that only SQL loads one.

Names of tables are as they were written: ``name``, ``database.name`` or ``catalog.database.name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal

from upsert.schema import TableSchema
from upsert.sql.declared import Declared, Like

if TYPE_CHECKING:
    from sqlglot import exp

    from upsert.sql.columns import WrittenCheck
    from upsert.sql.query import QueryText
    from upsert.store.alterations import Alteration


@dataclass(frozen=True)
class CreateCatalog:
    """``CREATE CATALOG c WITH ('warehouse' = 'folder')``: a name for the session."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False


@dataclass(frozen=True)
class DropCatalog:
    """``DROP CATALOG``; its tables stay."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class UseCatalog:
    """``USE CATALOG``: where names without a catalog are looked for."""

    name: str


@dataclass(frozen=True)
class ShowCatalogs:
    """``SHOW CATALOGS``, or ``SHOW CURRENT CATALOG``."""

    only_current: bool = False


@dataclass(frozen=True)
class CreateDatabase:
    """``CREATE DATABASE``."""

    name: str
    if_not_exists: bool = False


@dataclass(frozen=True)
class DropDatabase:
    """``DROP DATABASE``; only with CASCADE if it has tables."""

    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class UseDatabase:
    """``USE database``: where names without a database are looked for."""

    name: str


@dataclass(frozen=True)
class ShowDatabases:
    """``SHOW DATABASES [FROM catalog]``, or ``SHOW CURRENT DATABASE``."""

    only_current: bool = False
    catalog: str | None = None


@dataclass(frozen=True)
class ShowTables:
    """``SHOW TABLES [FROM database] [LIKE 'pattern']``; in the pattern ``%`` and ``_`` stand for others."""

    database: str | None = None
    like: str | None = None


@dataclass(frozen=True)
class CreateTable:
    """``CREATE TABLE``: the name, what the table looks like, and its options as they were written."""

    name: str
    schema: TableSchema
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False


@dataclass(frozen=True)
class CreateTableLike:
    """``CREATE TABLE … LIKE``: what it takes over, and what it says itself."""

    name: str
    like: Like
    declared: Declared
    if_not_exists: bool = False


@dataclass(frozen=True)
class CreateTableOver:
    """``CREATE TABLE`` of a connector without columns, which are those of what it stands for."""

    name: str
    declared: Declared
    if_not_exists: bool = False


@dataclass(frozen=True)
class _CreateAs:
    """What a statement says of a table beside the query of its rows.

    Attributes:
        primary_key: columns of the key; () where the statement has none.
        indexes: columns of each index.
    """

    name: str
    query: QueryText
    primary_key: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    indexes: tuple[tuple[str, ...], ...] = ()
    comment: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False
    or_replace: bool = False


class CreateTableAs(_CreateAs):
    """``CREATE TABLE … AS SELECT`` (FLIP-218)."""


class CreateView(_CreateAs):
    """``CREATE MATERIALIZED VIEW``."""


@dataclass(frozen=True)
class ExplainView:
    """``EXPLAIN [CREATE] MATERIALIZED VIEW``, with FORMAT as of `Explain`: how it is refreshed."""

    view: str | CreateView
    is_json: bool = False


@dataclass(frozen=True)
class RefreshView:
    """``REFRESH MATERIALIZED VIEW``."""

    name: str


@dataclass(frozen=True)
class AlterView:
    """``ALTER MATERIALIZED VIEW v SET (…)``, ``RESET (…)`` or ``COMMENT '…'``."""

    name: str
    change: Alteration


@dataclass(frozen=True)
class SuspendView:
    """``ALTER MATERIALIZED VIEW v SUSPEND``, or ``RESUME``."""

    name: str
    is_suspended: bool


@dataclass(frozen=True)
class DropView:
    """``DROP MATERIALIZED VIEW``."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class ShowViews:
    """``SHOW MATERIALIZED VIEWS [FROM database] [LIKE 'pattern']``, as ``SHOW TABLES``."""

    database: str | None = None
    like: str | None = None


@dataclass(frozen=True)
class CreatePlainView:
    """``CREATE [OR REPLACE] [TEMPORARY] VIEW v [(columns)] [COMMENT 'x'] AS query``: a name for a query.

    Attributes:
        columns: their names; () for those of the query.
    """

    name: str
    query: QueryText
    columns: tuple[str, ...] = ()
    comment: str | None = None
    is_temporary: bool = False
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True)
class DropPlainView:
    """``DROP [TEMPORARY] VIEW``."""

    name: str
    if_exists: bool = False
    must_be_temporary: bool = False


@dataclass(frozen=True)
class ShowPlainViews:
    """``SHOW VIEWS [FROM database] [LIKE 'pattern']``, as ``SHOW TABLES``."""

    database: str | None = None
    like: str | None = None


@dataclass(frozen=True)
class CreateTemporaryTable:
    """``CREATE TEMPORARY TABLE …``: a table that goes with the session."""

    table: CreateTable | CreateTableOver | CreateTableLike | CreateTableAs


@dataclass(frozen=True)
class DropTable:
    """``DROP [TEMPORARY] TABLE``."""

    name: str
    if_exists: bool = False
    must_be_temporary: bool = False


@dataclass(frozen=True)
class AddConstraint:
    """``ALTER TABLE t ADD CONSTRAINT name CHECK (condition)``; the ``check`` has the constraint's name."""

    name: str
    check: WrittenCheck


@dataclass(frozen=True)
class AlterTable:
    """``ALTER TABLE`` of its definition: all changes in one commit."""

    name: str
    changes: tuple[Alteration, ...]


@dataclass(frozen=True)
class RenameTable:
    """``ALTER TABLE t RENAME TO u``; ``u`` without a database stays in that of ``t``."""

    name: str
    new: str


@dataclass(frozen=True)
class TrackPartitions:
    """``ALTER TABLE t PARTITION (…) SET ('change-tracking' = …)`` (FLIP-188)."""

    name: str
    partition: Mapping[str, Any]
    is_tracked: bool


@dataclass(frozen=True)
class DropPartition:
    """``ALTER TABLE t DROP PARTITION (…)``."""

    name: str
    partition: Mapping[str, Any]
    if_exists: bool = False


@dataclass(frozen=True)
class TruncateTable:
    """``TRUNCATE TABLE t [PARTITION (…)]``: all rows, or those of partitions."""

    name: str
    partition: Mapping[str, Any] | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CompactTable:
    """``ALTER TABLE t COMPACT [PARTITION (…)]``: synchronous."""

    name: str
    partition: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class KeepMirror:
    """``ALTER TABLE t START MIRROR``, or ``STOP MIRROR``."""

    name: str
    is_stopped: bool


@dataclass(frozen=True)
class RollBack:
    """``ALTER TABLE t ROLLBACK TO snapshot``: its id, or a tag."""

    name: str
    snapshot: int | str


@dataclass(frozen=True)
class PublishLog:
    """``ALTER TABLE t PUBLISH LOG [ACCEPT GAP]``: synchronous."""

    name: str
    accept_gap: bool = False


@dataclass(frozen=True)
class ShowCreateTable:
    """``SHOW CREATE TABLE``, or ``SHOW CREATE VIEW``, which refuses a table."""

    name: str
    must_be_view: bool = False


@dataclass(frozen=True)
class ShowPartitions:
    """``SHOW PARTITIONS t [PARTITION (…)]``: those that fit the given values."""

    name: str
    partition: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DescribeTable:
    """``DESCRIBE [TABLE] [EXTENDED] t [PARTITION (…)]`` (FLIP-188)."""

    name: str
    is_extended: bool = False
    partition: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class SetOption:
    """``SET 'key' = 'value'``."""

    key: str
    value: str = field(repr=False)


@dataclass(frozen=True)
class ShowOptions:
    """``SET``: the options of the session; with a key only that one."""

    key: str | None = None


@dataclass(frozen=True)
class ResetOption:
    """``RESET ['key']``: one option, or all of them."""

    key: str | None = None


@dataclass(frozen=True)
class Insert:
    """``INSERT INTO`` or ``INSERT OVERWRITE``.

    Attributes:
        columns: those that the query gives, in its order; None: all that can be written.
        partition: columns with the value that every row has.
        overwrite: whether the rows replace the existing ones.
        dynamic: columns of PARTITION without a value, which the rows have.
        by_name: whether the query's columns have the names of those that they go into.
        replaced: the rows of the table that go, of REPLACE WHERE.
    """

    name: str
    query: QueryText
    columns: tuple[str, ...] | None = None
    partition: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    overwrite: bool = False
    dynamic: tuple[str, ...] = ()
    by_name: bool = False
    replaced: Replaced | None = None


@dataclass(frozen=True)
class Replaced:
    """``REPLACE WHERE condition`` of an INSERT.

    Attributes:
        rows: the query of the rows of the table that the condition is true of.
        tested: that of all of its rows, with the condition as the column ``FITS``.
    """

    rows: QueryText
    tested: QueryText


FITS: Final = ":fits"
"""Whether a row that REPLACE WHERE inserts is one of those that it replaces."""


@dataclass(frozen=True)
class StatementSet:
    """``EXECUTE STATEMENT SET BEGIN INSERT …; INSERT …; END``: they start and stop together."""

    inserts: tuple[Insert, ...]


@dataclass(frozen=True)
class Delete:
    """``DELETE FROM t [WHERE …]``; without a condition all rows.

    Attributes:
        condition: which rows go; None for all.
        rows: the query of these rows; None where there is no condition.
        alias: the name of the table in the condition; empty where that is its own.
    """

    name: str
    condition: exp.Expr | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    rows: QueryText | None = None
    alias: str = ""


@dataclass(frozen=True)
class Update:
    """``UPDATE t SET column = expression, … [WHERE …]``.

    Attributes:
        columns: those that get other values.
        rows: the query of the rows as they are, then the values of ``columns`` under ``NEW_VALUE`` names.
        defaults: those of ``columns`` that get their DEFAULT.
    """

    name: str
    columns: tuple[str, ...]
    rows: QueryText
    options: Mapping[str, str] = field(default_factory=dict)
    defaults: frozenset[str] = frozenset()


DEFAULT: Final = "DEFAULT"
"""In place of a value, that of the column's DEFAULT."""

NEW_VALUE: Final = ":new_value_{}"
"""Name of the value of the n-th column of an UPDATE in the query of its rows."""


class MergeRows(StrEnum):
    """Which rows a clause of MERGE is for."""

    MATCHED = "WHEN MATCHED"
    NOT_MATCHED = "WHEN NOT MATCHED"
    NOT_MATCHED_BY_SOURCE = "WHEN NOT MATCHED BY SOURCE"


class MergeAction(StrEnum):
    """What a clause of MERGE does with its rows."""

    UPDATE = "UPDATE"
    DELETE = "DELETE"
    INSERT = "INSERT"


@dataclass(frozen=True)
class MergeClause:
    """``WHEN … THEN …`` of MERGE.

    Attributes:
        columns: those that get values; None for ``*``, all of them from columns of the source.
        values: for each column that of the source, in lower case, which is its value; None for another one.
        defaults: those of ``columns`` that get their DEFAULT.
    """

    rows: MergeRows
    action: MergeAction
    columns: tuple[str, ...] | None = None
    values: tuple[str | None, ...] = ()
    defaults: frozenset[str] = frozenset()


@dataclass(frozen=True)
class BareName:
    """A name without a table in a clause of MERGE that has one row: a column, a function or a variable.

    Attributes:
        name: its first part, in lower case.
        table: what goes before it if it is a column.
        is_word: whether it may be a function without brackets, such as ``current_date``.
    """

    rows: MergeRows
    name: str
    start: int
    end: int
    table: str
    is_word: bool


@dataclass(frozen=True)
class Merge:
    """``MERGE INTO t USING s ON condition WHEN …``.

    Attributes:
        rows: the query of the rows of target and source, see ``upsert.sql.merge_into``.
        source: the query of the rows of the source.
        names: those that mean columns of one of the two tables alone.
        equal: columns of the target with those of the source that ON says they equal, in lower case.
        is_only_equal: whether ON says nothing else.
    """

    name: str
    clauses: tuple[MergeClause, ...]
    rows: QueryText
    source: QueryText
    names: tuple[BareName, ...] = ()
    equal: tuple[tuple[str, str], ...] = ()
    is_only_equal: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


MERGE_TARGET: Final = ":target"
MERGE_SOURCE: Final = ":source"
IN_TARGET: Final = ":in_target"
IN_SOURCE: Final = ":in_source"
CLAUSE: Final = ":clause_{}"
CLAUSE_VALUE: Final = ":clause_{}_{}"
"""Names of columns in the query of a MERGE: both rows, which of them are there, the clauses, their values.

Those of tables do not begin so: one that was called ``_merge_0`` would be taken for the first clause.
"""


@dataclass(frozen=True)
class Select:
    """A query."""

    query: QueryText


@dataclass(frozen=True)
class Explain:
    """``EXPLAIN [PLAN FOR] [FORMAT [=] { TEXT | JSON }]`` of a statement with a query: how it is executed."""

    statement: Select | Insert | Merge | CreateTableAs | StatementSet
    is_json: bool = False


@dataclass(frozen=True)
class Argument:
    """An argument of a procedure; ``name`` is None where its place says which one it is."""

    name: str | None
    value: Any


@dataclass(frozen=True)
class Call:
    """``CALL procedure(value, …, name => value, …)``."""

    procedure: str
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True)
class ShowProcedures:
    """``SHOW PROCEDURES [LIKE 'pattern']``."""

    like: str | None = None


@dataclass(frozen=True)
class CreateFunction:
    """``CREATE [OR REPLACE] TEMPORARY FUNCTION [IF NOT EXISTS] name …``, of the Spark session.

    Attributes:
        body: what follows the name, as Spark reads it; ``module.function`` if Python has it.
    """

    name: str
    body: str
    is_python: bool = False
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True)
class DropFunction:
    """``DROP TEMPORARY FUNCTION [IF EXISTS] name``."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class ShowFunctions:
    """``SHOW [USER | SYSTEM | ALL] FUNCTIONS [LIKE 'pattern']``."""

    kind: Literal["USER", "SYSTEM", "ALL"] = "ALL"
    like: str | None = None


@dataclass(frozen=True)
class DescribeFunction:
    """``DESCRIBE FUNCTION [EXTENDED] name``."""

    name: str
    is_extended: bool = False


@dataclass(frozen=True)
class ChangeVariable:
    """``DECLARE``, ``SET VARIABLE`` or ``DROP TEMPORARY VARIABLE``, of the Spark session.

    Attributes:
        what: the first of these words.
        text: the statement, as Spark reads it.
    """

    what: str
    text: str


@dataclass(frozen=True)
class ShowJobs:
    """``SHOW JOBS``: the streaming queries of this process, and those that the warehouse knows of."""


@dataclass(frozen=True)
class DescribeJob:
    """``DESCRIBE JOB 'id'``, or its name: what SHOW JOBS says of it, and what it did last."""

    id: str


@dataclass(frozen=True)
class StopJob:
    """``STOP JOB 'id'``."""

    id: str


CatalogStatement = CreateCatalog | DropCatalog | UseCatalog | ShowCatalogs
DatabaseStatement = CreateDatabase | DropDatabase | UseDatabase | ShowDatabases | ShowTables | ShowViews
TableStatement = (
    CreateTable
    | CreateTableOver
    | CreateTableLike
    | CreateTableAs
    | CreateTemporaryTable
    | DropTable
    | AlterTable
    | AddConstraint
    | RenameTable
    | KeepMirror
)
PartitionStatement = TrackPartitions | DropPartition | TruncateTable | CompactTable | RollBack | PublishLog
Description = ShowCreateTable | ShowPartitions | DescribeTable | Explain
ProcedureStatement = Call | ShowProcedures
FunctionStatement = CreateFunction | DropFunction | ShowFunctions | DescribeFunction
JobStatement = ShowJobs | DescribeJob | StopJob
ViewStatement = CreateView | ExplainView | RefreshView | AlterView | SuspendView | DropView
PlainViewStatement = CreatePlainView | DropPlainView | ShowPlainViews
SessionStatement = SetOption | ShowOptions | ResetOption | ChangeVariable
RowStatement = Insert | StatementSet | Delete | Update | Merge | Select
OtherTables = TableStatement | ViewStatement | DropDatabase | UseCatalog
"""After these the current catalog may have other tables, or other columns of them."""

Statement = (
    CatalogStatement
    | DatabaseStatement
    | TableStatement
    | PartitionStatement
    | Description
    | ProcedureStatement
    | FunctionStatement
    | JobStatement
    | ViewStatement
    | PlainViewStatement
    | SessionStatement
    | RowStatement
)
