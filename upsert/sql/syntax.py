"""How each statement is written: its syntax, its meaning and an example (pure).

docs/sql-reference.md is made of this, and so are the words that the prompt completes. `parser` and
`table_statements` read statements without a table of their grammar, so tests hold the two together: every
statement of `statements.Statement` is here, every way to write one that a syntax allows is parsed to its
class, and no word that the parser begins a statement with is missing.

Words in capital letters and signs are written as they are; other words stand for something of the user's, or
are one of `PARTS`; ``[…]`` may be left out; of ``{… | …}`` one is written; ``…`` repeats what is before it.

Why the parser is not made of this: docs/decisions/0078.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from upsert.sql import statements as s


@dataclass(frozen=True)
class Syntax:
    """One statement, or one form of a statement that has several.

    Attributes:
        title: what it is called.
        parsed: what the parser makes of it.
        text: how it is written.
        meaning: what it does, in a sentence.
        example: a statement of this form.
        page: the page, and the heading there, that says more.
    """

    title: str
    parsed: type[object]
    text: str
    meaning: str
    example: str
    page: str


PARTS: Final[Mapping[str, str]] = {
    "columns": "( column [, …] )",
    "options": "WITH ( 'key' = 'value' [, …] )",
    "partition": "PARTITION ( column = value [, …] )",
    "hint": "/*+ OPTIONS ( 'key' = 'value' [, …] ) */",
    "key": "PRIMARY KEY columns NOT ENFORCED",
    "index": "INDEX [ name ] columns",
    "element": (
        "{ name type [ NOT NULL ] [ DEFAULT value ] [ [ CONSTRAINT name ] PRIMARY KEY NOT ENFORCED ]"
        " [ COMMENT 'text' ]\n"
        "| name type METADATA [ FROM 'key' ] [ VIRTUAL ] [ COMMENT 'text' ]\n"
        "| name AS expression [ COMMENT 'text' ]\n"
        "| [ CONSTRAINT name ] key\n"
        "| [ UNIQUE ] index\n"
        "| [ CONSTRAINT name ] CHECK ( condition )\n"
        "| WATERMARK FOR time AS time [ - INTERVAL 'number' unit ] }"
    ),
    "clauses": "[ COMMENT 'text' ] [ PARTITIONED BY columns ] [ options ]",
    "feature": "{ ALL | CONSTRAINTS | INDEXES | PARTITIONS | GENERATED | METADATA | WATERMARKS | OPTIONS }",
    "change": (
        "{ ADD [ COLUMN ] name type [ NOT NULL ] [ DEFAULT value ] [ COMMENT 'text' ] "
        "[ { FIRST | AFTER column } ]\n"
        "| ADD [ COLUMN ] column . field type\n"
        "| ADD name AS expression\n"
        "| ADD name type METADATA [ FROM 'key' ]\n"
        "| ADD [ UNIQUE ] index\n"
        "| { ADD | MODIFY } WATERMARK FOR time AS time [ - INTERVAL 'number' unit ]\n"
        "| ADD [ COLUMNS ] ( name type [, …] )\n"
        "| DROP [ COLUMN ] column [ . field ]\n"
        "| DROP [ COLUMNS ] columns\n"
        "| DROP INDEX name\n"
        "| DROP WATERMARK\n"
        "| DROP CONSTRAINT [ IF EXISTS ] name\n"
        "| RENAME [ COLUMN ] column [ . field ] TO name\n"
        "| ALTER COLUMN column { TYPE type | COMMENT 'text' | SET DEFAULT value | DROP DEFAULT "
        "| { SET | DROP } NOT NULL | FIRST | AFTER column }\n"
        "| ALTER COLUMN column . field TYPE type\n"
        "| MODIFY [ COLUMN ] { column type [ NOT NULL ] [ COMMENT 'text' ] [ { FIRST | AFTER column } ] "
        "| column . field type }\n"
        "| MODIFY ( column type [, …] )\n"
        "| COMMENT 'text'\n"
        "| SET ( 'key' = 'value' [, …] )\n"
        "| RESET ( 'key' [, …] ) }"
    ),
    "matched": "{ UPDATE SET { * | column = expression [, …] } | DELETE }",
    "type": (
        "{ BOOLEAN | TINYINT | SMALLINT | INT | BIGINT | FLOAT | DOUBLE | DECIMAL ( precision , scale )\n"
        "| STRING | VARCHAR ( length ) | CHAR ( length ) | BINARY | DATE\n"
        "| TIME [ ( precision ) ] | TIMESTAMP [ ( precision ) ] [ { WITH LOCAL | WITHOUT } TIME ZONE ]\n"
        "| TIMESTAMP_LTZ [ ( precision ) ] | TIMESTAMP_NTZ\n"
        "| INTERVAL DAY [ TO { HOUR | MINUTE | SECOND } ] | INTERVAL HOUR [ TO { MINUTE | SECOND } ]\n"
        "| INTERVAL MINUTE [ TO SECOND ] | INTERVAL SECOND | VARIANT\n"
        "| ARRAY < type > | MAP < type , type > | STRUCT < field : type [, …] > | ROW ( field type [, …] ) }"
    ),
}
"""What several statements have in common, by the name that stands for it."""

_TABLE: Final = "CREATE TABLE orders (id BIGINT, amount INT, PRIMARY KEY (id) NOT ENFORCED, INDEX (amount))"
_ALL: Final = "sql.md#all-statements"
_VIEWS: Final = "views.md#statements"
_PLAIN: Final = "sql.md#views-and-temporary-tables"
_FUNCTIONS: Final = "sql.md#functions-and-variables"
_NAMES: Final = "sql.md#databases-definitions-partitions"

SYNTAX: Final[tuple[Syntax, ...]] = (
    Syntax(
        "CREATE TABLE",
        s.CreateTable,
        "CREATE TABLE [ IF NOT EXISTS ] table ( element [, …] ) clauses",
        "Makes an empty table with these columns, keys and indexes.",
        _TABLE,
        _NAMES,
    ),
    Syntax(
        "CREATE TABLE of a connector",
        s.CreateTableOver,
        "CREATE TABLE [ IF NOT EXISTS ] table [ ( key ) ] [ COMMENT 'text' ] WITH ( 'connector' = 'name'"
        " [, …] )",
        "Names a table that lies elsewhere and knows its own columns.",
        "CREATE TABLE old WITH ('connector' = 'delta', 'path' = '/data/old')",
        "sql.md#tables-of-other-connectors",
    ),
    Syntax(
        "CREATE TABLE … AS",
        s.CreateTableAs,
        "CREATE { [ OR REPLACE ] TABLE table | TABLE [ IF NOT EXISTS ] table } [ ( key [ , index ] ) ]"
        " clauses AS query",
        "Makes a table of the rows of a query, which appears with all of them or not at all.",
        "CREATE TABLE large (PRIMARY KEY (id) NOT ENFORCED) AS SELECT id, amount FROM orders WHERE"
        " amount > 9",
        "create-table-as.md",
    ),
    Syntax(
        "CREATE TABLE … LIKE",
        s.CreateTableLike,
        "CREATE TABLE [ IF NOT EXISTS ] table [ ( element [, …] ) ] clauses"
        " LIKE table [ ( { INCLUDING | EXCLUDING } feature ) ]",
        "Makes an empty table with the definition of another.",
        "CREATE TABLE copies LIKE orders (EXCLUDING OPTIONS)",
        "sql.md#update-delete-merge-like-rename",
    ),
    Syntax(
        "CREATE TEMPORARY TABLE",
        s.CreateTemporaryTable,
        "CREATE { TEMPORARY | TEMP } TABLE [ IF NOT EXISTS ] table { ( element [, …] ) clauses"
        " | clauses AS query }",
        "Makes a table that goes with the session.",
        "CREATE TEMPORARY TABLE scratch AS SELECT id FROM orders",
        _PLAIN,
    ),
    Syntax(
        "DROP TABLE",
        s.DropTable,
        "DROP [ { TEMPORARY | TEMP } ] TABLE [ IF EXISTS ] table",
        "Deletes a table and its rows; of a table that lies elsewhere, the name.",
        "DROP TABLE IF EXISTS orders",
        _ALL,
    ),
    Syntax(
        "ALTER TABLE",
        s.AlterTable,
        "ALTER TABLE table change",
        "Changes columns, indexes, comment or options in one commit; running streams go on.",
        "ALTER TABLE orders ADD COLUMN note STRING AFTER amount",
        "schema-evolution.md",
    ),
    Syntax(
        "ALTER TABLE … ADD CONSTRAINT",
        s.AddConstraint,
        "ALTER TABLE table ADD CONSTRAINT name CHECK ( condition )",
        "Refuses rows from now on of which the condition is false, once the existing ones are known to"
        " fulfil it.",
        "ALTER TABLE orders ADD CONSTRAINT positive CHECK (amount > 0)",
        "sql.md#lengths-defaults-and-checks",
    ),
    Syntax(
        "ALTER TABLE … RENAME TO",
        s.RenameTable,
        "ALTER TABLE table RENAME TO table",
        "Gives a table another name within its catalog.",
        "ALTER TABLE orders RENAME TO sales",
        "sql.md#update-delete-merge-like-rename",
    ),
    Syntax(
        "ALTER TABLE … PARTITION … SET",
        s.TrackPartitions,
        "ALTER TABLE table partition SET ( 'change-tracking' = 'true' )",
        "Says whether the changes of a partition show in streams.",
        "ALTER TABLE orders PARTITION (day = DATE '2026-01-31') SET ('change-tracking' = 'false')",
        "partitions.md#what-readers-of-changes-see",
    ),
    Syntax(
        "ALTER TABLE … DROP PARTITION",
        s.DropPartition,
        "ALTER TABLE table DROP [ IF EXISTS ] partition",
        "Deletes the rows of the partitions that have these values.",
        "ALTER TABLE orders DROP PARTITION (day = DATE '2026-01-31')",
        "partitions.md#delete-and-drop",
    ),
    Syntax(
        "ALTER TABLE … COMPACT",
        s.CompactTable,
        "ALTER TABLE table { COMPACT [ partition ] | partition COMPACT }",
        "Merges the files of a table, or of one partition, and waits for it.",
        "ALTER TABLE orders COMPACT",
        "compaction.md",
    ),
    Syntax(
        "ALTER TABLE … ROLLBACK TO",
        s.RollBack,
        "ALTER TABLE table ROLLBACK TO { snapshot | 'tag' }",
        "Gives a table the rows of an older snapshot again, in a new snapshot.",
        "ALTER TABLE orders ROLLBACK TO 'month-end'",
        "sql.md#procedures",
    ),
    Syntax(
        "ALTER TABLE … PUBLISH LOG",
        s.PublishLog,
        "ALTER TABLE table PUBLISH LOG [ ACCEPT GAP ]",
        "Sends the commits that the table's log lacks.",
        "ALTER TABLE orders PUBLISH LOG",
        "kafka-log.md#when-something-fails",
    ),
    Syntax(
        "ALTER TABLE … MIRROR",
        s.KeepMirror,
        "ALTER TABLE table { START | STOP } MIRROR",
        "Starts or stops the query that keeps the mirror of a topic, in this session.",
        "ALTER TABLE users START MIRROR",
        "kafka.md#join",
    ),
    Syntax(
        "SHOW TABLES",
        s.ShowTables,
        "SHOW TABLES [ { FROM | IN } database ] [ LIKE 'pattern' ]",
        "Lists tables.",
        "SHOW TABLES LIKE 'ord%'",
        _NAMES,
    ),
    Syntax(
        "SHOW CREATE TABLE",
        s.ShowCreateTable,
        "SHOW CREATE { TABLE table | VIEW view }",
        "Gives the statement that would make a table or a view again, secrets masked.",
        "SHOW CREATE TABLE orders",
        _NAMES,
    ),
    Syntax(
        "SHOW PARTITIONS",
        s.ShowPartitions,
        "SHOW PARTITIONS table [ partition ]",
        "Lists the partitions of a table that have rows, or of these those with the given values.",
        "SHOW PARTITIONS orders",
        "partitions.md",
    ),
    Syntax(
        "DESCRIBE",
        s.DescribeTable,
        "{ DESCRIBE | DESC } [ TABLE ] [ EXTENDED ] table [ partition ]",
        "Lists the columns of a table or a view; EXTENDED says what is stored, and where.",
        "DESCRIBE EXTENDED orders",
        _NAMES,
    ),
    Syntax(
        "INSERT",
        s.Insert,
        "INSERT { { INTO | OVERWRITE } [ TABLE ] table [ hint ] [ PARTITION ( column"
        " [ = value ] [, …] ) ] [ columns | BY NAME ]\n"
        "| INTO [ TABLE ] table [ hint ] [ BY NAME ] REPLACE WHERE condition } query",
        "Writes the rows of a query, in streaming mode its changes for as long as it runs; OVERWRITE"
        " and REPLACE replace rows.",
        "INSERT INTO orders (id, amount) VALUES (1, 5), (2, DEFAULT)",
        "sql.md",
    ),
    Syntax(
        "EXECUTE STATEMENT SET",
        s.StatementSet,
        "{ EXECUTE STATEMENT SET BEGIN | BEGIN STATEMENT SET ; } { INSERT INTO table query ; } … END",
        "Starts several INSERTs, which stop together too.",
        "EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT * FROM t; INSERT INTO b SELECT * FROM t; END",
        "sql.md#statement-sets",
    ),
    Syntax(
        "UPDATE",
        s.Update,
        "UPDATE table [ hint ] [ AS name ] SET column = { expression | DEFAULT } [, …] [ WHERE condition ]",
        "Gives columns of some rows other values, in one commit.",
        "UPDATE orders SET amount = amount + 1 WHERE id = 2",
        "sql.md#update-delete-merge-like-rename",
    ),
    Syntax(
        "DELETE",
        s.Delete,
        "DELETE FROM table [ hint ] [ [ AS name ] WHERE condition ]",
        "Deletes some rows, or all, in one commit.",
        "DELETE FROM orders WHERE amount IS NULL",
        "sql.md#update-delete-merge-like-rename",
    ),
    Syntax(
        "TRUNCATE TABLE",
        s.TruncateTable,
        "TRUNCATE TABLE table [ hint ] [ partition ]",
        "Deletes all rows, or those of the partitions that have these values, in one commit.",
        "TRUNCATE TABLE orders",
        "sql.md#update-delete-merge-like-rename",
    ),
    Syntax(
        "MERGE INTO",
        s.Merge,
        "MERGE INTO table [ hint ] [ AS name ] USING { table | ( query ) } AS source ON condition"
        " { WHEN MATCHED [ AND condition ] THEN matched"
        " | WHEN NOT MATCHED [ BY TARGET ] [ AND condition ] THEN INSERT { *"
        " | ( names ) VALUES ( expressions ) }"
        " | WHEN NOT MATCHED BY SOURCE [ AND condition ] THEN { UPDATE SET column = value [, …]"
        " | DELETE } } …",
        "Updates, deletes and inserts the rows that a source says, in one commit.",
        "MERGE INTO orders o USING news n ON o.id = n.id"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        "sql.md#update-delete-merge-like-rename",
    ),
    Syntax(
        "SELECT",
        s.Select,
        "{ SELECT … | WITH … | VALUES … | FROM … | TABLE table | ( query ) }",
        "Gives the rows of a query, in streaming mode its changes: all of Spark's SQL, over tables of"
        " the catalog.",
        "SELECT id, sum(amount) FROM orders WHERE amount > 0 GROUP BY id",
        _ALL,
    ),
    Syntax(
        "EXPLAIN",
        s.Explain,
        "EXPLAIN [ PLAN FOR ] [ FORMAT [ = ] { TEXT | JSON } ]"
        " { query | INSERT INTO table query | CREATE TABLE table AS query | merge | statement_set }",
        "Says how a statement is executed, and executes nothing.",
        "EXPLAIN FORMAT JSON SELECT id FROM orders",
        _ALL,
    ),
    Syntax(
        "EXPLAIN MATERIALIZED VIEW",
        s.ExplainView,
        "EXPLAIN [ FORMAT [ = ] { TEXT | JSON } ] { MATERIALIZED VIEW view"
        " | CREATE MATERIALIZED VIEW view AS query }",
        "Says what a refresh of a view reads and computes.",
        "EXPLAIN MATERIALIZED VIEW totals",
        "views.md#how-it-is-refreshed",
    ),
    Syntax(
        "CREATE MATERIALIZED VIEW",
        s.CreateView,
        "CREATE { [ OR REPLACE ] MATERIALIZED VIEW view | MATERIALIZED VIEW [ IF NOT EXISTS ] view }"
        " [ { ( key [ , index ] ) | PRIMARY KEY columns } ] clauses AS query",
        "Makes a table of the rows of a query, which refreshes keep up to date.",
        "CREATE MATERIALIZED VIEW totals PRIMARY KEY (id) AS SELECT id, sum(amount) AS sum FROM orders"
        " GROUP BY id",
        "views.md",
    ),
    Syntax(
        "REFRESH MATERIALIZED VIEW",
        s.RefreshView,
        "REFRESH MATERIALIZED VIEW view",
        "Brings a view to the newest versions of its tables; in streaming mode it starts to keep it there.",
        "REFRESH MATERIALIZED VIEW totals",
        "views.md#how-it-is-refreshed",
    ),
    Syntax(
        "ALTER MATERIALIZED VIEW … SUSPEND",
        s.SuspendView,
        "ALTER MATERIALIZED VIEW view { SUSPEND | RESUME }",
        "Lets no process refresh a view, until RESUME.",
        "ALTER MATERIALIZED VIEW totals SUSPEND",
        _VIEWS,
    ),
    Syntax(
        "ALTER MATERIALIZED VIEW",
        s.AlterView,
        "ALTER MATERIALIZED VIEW view { SET ( 'key' = 'value' [, …] ) | RESET ( 'key' [, …] )"
        " | COMMENT 'text' }",
        "Changes options or the comment of a view.",
        "ALTER MATERIALIZED VIEW totals SET ('refresh' = 'full')",
        _VIEWS,
    ),
    Syntax(
        "DROP MATERIALIZED VIEW",
        s.DropView,
        "DROP MATERIALIZED VIEW [ IF EXISTS ] view",
        "Deletes a view with its rows and its hidden tables.",
        "DROP MATERIALIZED VIEW totals",
        _VIEWS,
    ),
    Syntax(
        "SHOW MATERIALIZED VIEWS",
        s.ShowViews,
        "SHOW MATERIALIZED VIEWS [ { FROM | IN } database ] [ LIKE 'pattern' ]",
        "Lists materialized views, whether each is up to date, and their queries.",
        "SHOW MATERIALIZED VIEWS",
        _VIEWS,
    ),
    Syntax(
        "CREATE VIEW",
        s.CreatePlainView,
        "CREATE { [ OR REPLACE ] [ { TEMPORARY | TEMP } ] VIEW view | [ TEMPORARY ] VIEW IF NOT EXISTS view }"
        " [ columns ] [ COMMENT 'text' ] AS query",
        "Names a query, which is evaluated where the view is read.",
        "CREATE OR REPLACE VIEW small AS SELECT * FROM orders WHERE amount < 5",
        _PLAIN,
    ),
    Syntax(
        "DROP VIEW",
        s.DropPlainView,
        "DROP [ { TEMPORARY | TEMP } ] VIEW [ IF EXISTS ] view",
        "Takes the name of a query away.",
        "DROP VIEW IF EXISTS small",
        _PLAIN,
    ),
    Syntax(
        "SHOW VIEWS",
        s.ShowPlainViews,
        "SHOW VIEWS [ { FROM | IN } database ] [ LIKE 'pattern' ]",
        "Lists views without rows of their own.",
        "SHOW VIEWS",
        _PLAIN,
    ),
    Syntax(
        "CALL",
        s.Call,
        "CALL [ sys . ] procedure ( [ name => value [, …] ] )",
        "Does what a procedure is for: tags, rollback, expiry of snapshots and partitions, clean-up, "
        "compaction, check.",
        "CALL create_tag('orders', 'month-end')",
        "sql.md#procedures",
    ),
    Syntax(
        "SHOW PROCEDURES",
        s.ShowProcedures,
        "SHOW PROCEDURES [ LIKE 'pattern' ]",
        "Lists procedures with their arguments.",
        "SHOW PROCEDURES LIKE '%tag%'",
        "sql.md#procedures",
    ),
    Syntax(
        "CREATE FUNCTION",
        s.CreateFunction,
        "CREATE { [ OR REPLACE ] { TEMPORARY [ SYSTEM ] | TEMP } FUNCTION function"
        " | { TEMPORARY [ SYSTEM ] | TEMP } FUNCTION IF NOT EXISTS function }"
        " { ( [ parameter type [, …] ] ) [ RETURNS type ] RETURN expression"
        " | AS 'module.function' LANGUAGE PYTHON"
        " | AS 'class' [ LANGUAGE { JAVA | SCALA } ] [ USING JAR 'file' [, …] ] }",
        "Gives a function to the queries of the Spark session.",
        "CREATE TEMPORARY FUNCTION net(amount INT) RETURNS DOUBLE RETURN amount / 1.19",
        _FUNCTIONS,
    ),
    Syntax(
        "DROP FUNCTION",
        s.DropFunction,
        "DROP { TEMPORARY [ SYSTEM ] | TEMP } FUNCTION [ IF EXISTS ] function",
        "Takes a function from the Spark session.",
        "DROP TEMPORARY FUNCTION IF EXISTS net",
        _FUNCTIONS,
    ),
    Syntax(
        "SHOW FUNCTIONS",
        s.ShowFunctions,
        "SHOW [ { USER | SYSTEM | ALL } ] FUNCTIONS [ LIKE 'pattern' ]",
        "Lists functions; USER leaves Spark's own out.",
        "SHOW USER FUNCTIONS",
        _FUNCTIONS,
    ),
    Syntax(
        "DESCRIBE FUNCTION",
        s.DescribeFunction,
        "{ DESCRIBE | DESC } FUNCTION [ EXTENDED ] function",
        "Says what a function takes and gives.",
        "DESCRIBE FUNCTION upper",
        _FUNCTIONS,
    ),
    Syntax(
        "SHOW JOBS",
        s.ShowJobs,
        "SHOW JOBS",
        "Lists the streaming queries of this session, and those that others have left in the warehouse.",
        "SHOW JOBS",
        "sql.md#jobs",
    ),
    Syntax(
        "DESCRIBE JOB",
        s.DescribeJob,
        "{ DESCRIBE | DESC } JOB 'id'",
        "Says what a streaming query did last; 'id' may also be its name, or the pipeline.name of it.",
        "DESCRIBE JOB 'totals'",
        "sql.md#jobs",
    ),
    Syntax(
        "STOP JOB",
        s.StopJob,
        "STOP JOB 'id'",
        "Stops a streaming query, also by its name; started again, it continues from its checkpoint.",
        "STOP JOB 'totals'",
        "sql.md#jobs",
    ),
    Syntax(
        "CREATE CATALOG",
        s.CreateCatalog,
        "CREATE CATALOG [ IF NOT EXISTS ] catalog options",
        "Names another warehouse, for this session.",
        "CREATE CATALOG archive WITH ('warehouse' = '/data/archive')",
        "sql.md#several-warehouses",
    ),
    Syntax(
        "DROP CATALOG",
        s.DropCatalog,
        "DROP CATALOG [ IF EXISTS ] catalog",
        "Takes the name away; the tables stay.",
        "DROP CATALOG archive",
        "sql.md#several-warehouses",
    ),
    Syntax(
        "USE CATALOG",
        s.UseCatalog,
        "USE CATALOG catalog",
        "Looks names without a catalog up there from now on.",
        "USE CATALOG archive",
        "sql.md#several-warehouses",
    ),
    Syntax(
        "SHOW CATALOGS",
        s.ShowCatalogs,
        "SHOW { CATALOGS | CURRENT CATALOG }",
        "Lists the warehouses that the session knows, or says which one is current.",
        "SHOW CATALOGS",
        "sql.md#several-warehouses",
    ),
    Syntax(
        "CREATE DATABASE",
        s.CreateDatabase,
        "CREATE { DATABASE | SCHEMA } [ IF NOT EXISTS ] [ catalog . ] database",
        "Makes a folder for tables.",
        "CREATE DATABASE IF NOT EXISTS shop",
        _NAMES,
    ),
    Syntax(
        "DROP DATABASE",
        s.DropDatabase,
        "DROP { DATABASE | SCHEMA } [ IF EXISTS ] [ catalog . ] database [ { RESTRICT | CASCADE } ]",
        "Deletes a database, with CASCADE also its tables.",
        "DROP DATABASE shop CASCADE",
        _NAMES,
    ),
    Syntax(
        "USE",
        s.UseDatabase,
        "USE [ DATABASE ] [ catalog . ] database",
        "Looks names without a database up there from now on.",
        "USE shop",
        _NAMES,
    ),
    Syntax(
        "SHOW DATABASES",
        s.ShowDatabases,
        "SHOW { { DATABASES | SCHEMAS } [ { FROM | IN } catalog ] | CURRENT { DATABASE | SCHEMA } }",
        "Lists databases, or says which one is current.",
        "SHOW DATABASES",
        _NAMES,
    ),
    Syntax(
        "SET",
        s.SetOption,
        "SET 'key' = 'value'",
        "Sets an option of the session; spark.… are settings of Spark.",
        "SET 'execution.runtime-mode' = 'streaming'",
        _ALL,
    ),
    Syntax(
        "DECLARE",
        s.ChangeVariable,
        "DECLARE [ OR REPLACE ] [ { VARIABLE | VAR } ] variable [ type ] [ { DEFAULT | = } value ]",
        "Makes a variable of the Spark session, which its queries may name like a column.",
        "DECLARE VARIABLE least INT DEFAULT 5",
        _FUNCTIONS,
    ),
    Syntax(
        "SET VARIABLE",
        s.ChangeVariable,
        "SET { VARIABLE | VAR } variable = expression",
        "Gives a variable another value; queries that run keep the earlier one.",
        "SET VARIABLE least = 7",
        _FUNCTIONS,
    ),
    Syntax(
        "DROP VARIABLE",
        s.ChangeVariable,
        "DROP { TEMPORARY | TEMP } { VARIABLE | VAR } [ IF EXISTS ] variable",
        "Takes a variable from the Spark session.",
        "DROP TEMPORARY VARIABLE least",
        _FUNCTIONS,
    ),
    Syntax(
        "SET without a value",
        s.ShowOptions,
        "SET [ 'key' ]",
        "Lists the options of the session, secrets masked, or one of them.",
        "SET",
        _ALL,
    ),
    Syntax(
        "RESET",
        s.ResetOption,
        "RESET [ 'key' ]",
        "Gives options of the session their defaults again, or one of them.",
        "RESET 'execution.runtime-mode'",
        _ALL,
    ),
)
"""Every statement, by what it is about."""

_CAPITALS: Final = re.compile(r"[A-Z][A-Z_]*(?: [A-Z][A-Z_]*)*")


def words() -> tuple[str, ...]:
    """Words in capital letters, as they follow each other in titles, statements and parts; for completion.

    >>> {"CREATE TABLE", "IF NOT EXISTS", "ADD CONSTRAINT", "TIMESTAMP_NTZ"} <= set(words())
    True
    """
    texts = (*(one.title for one in SYNTAX), *(one.text for one in SYNTAX), *PARTS.values())
    return tuple(sorted({found for text in texts for found in _CAPITALS.findall(text)}))
