"""What a SQL text can ask for, as values (pure). They know no parser, so that only SQL loads one.

Names of tables are as they were written: ``name``, ``database.name`` or ``catalog.database.name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from upsert.schema import TableSchema

if TYPE_CHECKING:
    from sqlglot import exp

    from upsert.sql.like import Declared, Like
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
class CreateTableAs:
    """``CREATE TABLE … AS SELECT`` (FLIP-218): what the statement says of the table beside its query.

    Attributes:
        primary_key: columns of the key; () where the statement has none.
        indexes: columns of each index, with whether it is UNIQUE.
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


@dataclass(frozen=True)
class CreateView:
    """``CREATE MATERIALIZED VIEW``; the attributes are those of ``CreateTableAs``."""

    name: str
    query: QueryText
    primary_key: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    indexes: tuple[tuple[str, ...], ...] = ()
    comment: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True)
class ExplainView:
    """``EXPLAIN MATERIALIZED VIEW v``, or ``EXPLAIN CREATE MATERIALIZED VIEW …``: how it is refreshed."""

    view: str | CreateView


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
class DropTable:
    """``DROP TABLE``."""

    name: str
    if_exists: bool = False


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
class CompactTable:
    """``ALTER TABLE t COMPACT [PARTITION (…)]``: synchronous."""

    name: str
    partition: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PublishLog:
    """``ALTER TABLE t PUBLISH LOG [ACCEPT GAP]``: synchronous."""

    name: str
    accept_gap: bool = False


@dataclass(frozen=True)
class ShowCreateTable:
    """``SHOW CREATE TABLE``."""

    name: str


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
    """

    name: str
    query: QueryText
    columns: tuple[str, ...] | None = None
    partition: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    overwrite: bool = False
    dynamic: tuple[str, ...] = ()


@dataclass(frozen=True)
class Delete:
    """``DELETE FROM t [WHERE …]``; without a condition all rows.

    Attributes:
        condition: which rows go; None for all.
        rows: the query of these rows; None where there is no condition.
    """

    name: str
    condition: exp.Expr | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    rows: QueryText | None = None


@dataclass(frozen=True)
class Update:
    """``UPDATE t SET column = expression, … [WHERE …]``.

    Attributes:
        columns: those that get other values.
        rows: the query of the rows as they are, then the values of ``columns`` under ``NEW_VALUE`` names.
    """

    name: str
    columns: tuple[str, ...]
    rows: QueryText
    options: Mapping[str, str] = field(default_factory=dict)


NEW_VALUE: Final = "_new_value_{}"
"""Name of the value of the n-th column of an UPDATE in the query of its rows."""


@dataclass(frozen=True)
class Select:
    """A query."""

    query: QueryText


@dataclass(frozen=True)
class Explain:
    """``EXPLAIN [PLAN FOR] [FORMAT [=] { TEXT | JSON }]`` of a statement with a query: how it is executed."""

    statement: Select | Insert | CreateTableAs
    is_json: bool = False


CHANGES_TABLES: Final = (
    CreateTable,
    CreateTableLike,
    CreateTableAs,
    CreateView,
    AlterView,
    SuspendView,
    DropView,
    DropTable,
    AlterTable,
    RenameTable,
    DropDatabase,
    UseCatalog,
)
"""Statements after which the current catalog has other tables, or other columns of them."""

Statement = (
    CreateTable
    | CreateTableLike
    | CreateTableAs
    | CreateView
    | Explain
    | ExplainView
    | RefreshView
    | AlterView
    | SuspendView
    | DropView
    | ShowViews
    | DropTable
    | AlterTable
    | RenameTable
    | TrackPartitions
    | DropPartition
    | CompactTable
    | PublishLog
    | CreateCatalog
    | DropCatalog
    | UseCatalog
    | ShowCatalogs
    | CreateDatabase
    | DropDatabase
    | UseDatabase
    | ShowDatabases
    | ShowTables
    | ShowCreateTable
    | ShowPartitions
    | DescribeTable
    | SetOption
    | ShowOptions
    | ResetOption
    | Insert
    | Delete
    | Update
    | Select
)
