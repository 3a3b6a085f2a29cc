"""``CREATE TABLE`` to a statement object (pure).

Follows the DDL of FLIP-188 (managed tables), FLIP-486 (``INDEX``), FLIP-107 (``METADATA``) and FLIP-218::

    CREATE TABLE [IF NOT EXISTS] name (
        { column type [NOT NULL] [METADATA [FROM 'key'] [VIRTUAL]]
          [[CONSTRAINT n] PRIMARY KEY NOT ENFORCED] [COMMENT 'text']
        | column AS expression [COMMENT 'text']
        | WATERMARK FOR column AS { column | column - INTERVAL 'number' unit }
        | [CONSTRAINT n] PRIMARY KEY (column, …) NOT ENFORCED
        | [UNIQUE] INDEX [n] (column, …) } [, …]
    ) [COMMENT 'text'] [PARTITIONED BY (column, …)] [WITH ('key' = 'value', …)]

    CREATE [OR REPLACE] TABLE [IF NOT EXISTS] name [([PRIMARY KEY …] [, INDEX …])]
    [COMMENT 'text'] [PARTITIONED BY (column, …)] [WITH ('key' = 'value', …)] AS query

    CREATE TABLE [IF NOT EXISTS] name [(as above)] [clauses as above] LIKE name [(features)]

No word is reserved: ``index INT`` is a column, ``INDEX (a)`` is an index. The name of a constraint is not
kept.
"""

from __future__ import annotations

from typing import Final

from upsert.errors import SchemaError
from upsert.sql.columns import Elements
from upsert.sql.like import Declared, read_like
from upsert.sql.query import query_at
from upsert.sql.statements import CreateTable, CreateTableAs, CreateTableLike
from upsert.sql.tokens import Cursor, names, option, table_name, unique

_CLAUSE_REFUSALS: Final = {
    "USING": "USING is not supported: use WITH ('connector' = 'name'), or neither for a managed table",
    "LOCATION": "LOCATION is not supported: a table lies in the catalog's folder, under its name",
    "TBLPROPERTIES": "TBLPROPERTIES is not supported: use WITH ('key' = 'value')",
    "OPTIONS": "OPTIONS is not supported: use WITH ('key' = 'value')",
    "PARTITION": "expected PARTITIONED BY (columns)",
    "CLUSTERED": "CLUSTERED BY is not supported: use WITH ('bucket' = 'n', 'bucket-key' = 'columns')",
    "DISTRIBUTED": "DISTRIBUTED BY is not supported: use WITH ('bucket' = 'n', 'bucket-key' = 'columns')",
}


def create_table(cursor: Cursor, *, replaces: bool = False) -> CreateTable | CreateTableAs | CreateTableLike:
    """Read what follows ``CREATE TABLE`` or, where it ``replaces`` one, ``CREATE OR REPLACE TABLE``.

    Raises:
        SchemaError: it is no such statement, or contradicts itself; the message has the position.
    """
    if_not_exists = cursor.skip("IF", "NOT", "EXISTS")
    name = table_name(cursor)
    cursor.subject = f"table {name!r}"
    _refuse_clauses(cursor)
    elements = Elements(cursor)
    if cursor.ahead("("):
        cursor.listed(elements.read)
    comment, partitioned_by, options = clauses(cursor)
    declared = Declared(
        tuple(elements.columns),
        elements.primary_key,
        tuple(elements.indexes),
        partitioned_by,
        comment,
        tuple(elements.computed),
        elements.watermark,
        options,
    )
    if cursor.skip("AS"):
        return _create_as(cursor, name, declared, if_not_exists, replaces)
    if not replaces and cursor.skip("LIKE"):
        return CreateTableLike(name, read_like(cursor, table_name(cursor)), declared, if_not_exists)
    if replaces:
        raise cursor.refusal("expected AS and a query: only CREATE OR REPLACE TABLE … AS SELECT is supported")
    if not declared.columns and not declared.computed:
        raise cursor.refusal("expected ( and the table's columns, or AS and a query")
    return CreateTable(name, declared.schema(cursor.subject), options, if_not_exists)


def _create_as(
    cursor: Cursor, name: str, declared: Declared, if_not_exists: bool, replaces: bool
) -> CreateTableAs:
    """``… AS SELECT``: the columns are those of the query, so the parentheses may hold keys and indexes."""
    if declared.columns or declared.computed or declared.watermark:
        raise SchemaError(
            f"{cursor.subject}: CREATE TABLE … AS SELECT takes its columns from the query, so between the "
            "parentheses may be PRIMARY KEY and INDEX only; name and cast columns in the query"
        )
    if unique_index := next((index for index in declared.indexes if index.unique), None):
        raise SchemaError(
            f"{cursor.subject}: CREATE TABLE … AS SELECT has no {unique_index}; leave out UNIQUE"
        )
    return CreateTableAs(
        name,
        query_at(cursor),
        declared.primary_key,
        declared.partitioned_by,
        tuple(index.columns for index in declared.indexes),
        declared.comment,
        declared.options,
        if_not_exists,
        replaces,
    )


def clauses(cursor: Cursor) -> tuple[str | None, tuple[str, ...], dict[str, str]]:
    """What follows the parentheses, each at most once, in any order: comment, partition columns, options."""
    comment: str | None = None
    partitioned_by: tuple[str, ...] | None = None
    options: dict[str, str] | None = None
    while not (cursor.at_end or cursor.ahead("AS") or cursor.ahead("LIKE")):
        if comment is None and cursor.skip("COMMENT"):
            comment = cursor.string("a comment in quotes")
        elif partitioned_by is None and cursor.skip("PARTITIONED", "BY"):
            partitioned_by = names(cursor)
        elif options is None and cursor.skip("WITH"):
            options = unique(cursor, cursor.listed(lambda: option(cursor)))
        else:
            _refuse_clauses(cursor)
            raise cursor.refusal("expected COMMENT, PARTITIONED BY or WITH, each at most once")
    return comment, partitioned_by or (), options or {}


def _refuse_clauses(cursor: Cursor) -> None:
    for word, reason in _CLAUSE_REFUSALS.items():
        if cursor.ahead(word):
            raise cursor.refusal(reason)
