"""Statements about materialized views (pure).

After Flink's materialized tables and the views of Databricks and RisingWave::

    CREATE [OR REPLACE] MATERIALIZED VIEW [IF NOT EXISTS] name [([PRIMARY KEY …] [, INDEX …])]
    [PRIMARY KEY (column, …)] [COMMENT 'text'] [PARTITIONED BY (column, …)]
    [WITH ('key' = 'value', …)] AS query

    EXPLAIN { MATERIALIZED VIEW name | CREATE MATERIALIZED VIEW … }
    REFRESH MATERIALIZED VIEW name | DROP MATERIALIZED VIEW [IF EXISTS] name
    ALTER MATERIALIZED VIEW name { SUSPEND | RESUME }
    ALTER MATERIALIZED VIEW name { SET ('key' = 'value', …) | RESET ('key', …) | COMMENT 'text' }
    SHOW MATERIALIZED VIEWS [{ FROM | IN } [c.]db] [LIKE 'pattern']
"""

from __future__ import annotations

from upsert.errors import SchemaError
from upsert.sql.alter_table import reset_options, set_options
from upsert.sql.columns import Elements
from upsert.sql.create_table import clauses
from upsert.sql.query import query_at
from upsert.sql.statements import AlterView, CreateView, DropView, ExplainView, RefreshView, SuspendView
from upsert.sql.tokens import Cursor, names, table_name
from upsert.store.alterations import SetComment


def create_view(cursor: Cursor, *, replaces: bool = False) -> CreateView:
    """Read what follows ``CREATE [OR REPLACE] MATERIALIZED VIEW``.

    Raises:
        SchemaError: it is no such statement, or contradicts itself; the message has the position.
    """
    if_not_exists = cursor.skip("IF", "NOT", "EXISTS")
    name = table_name(cursor)
    cursor.subject = f"view {name!r}"
    elements = Elements(cursor)
    if cursor.ahead("("):
        cursor.listed(elements.read)
    if elements.columns or elements.computed or elements.watermark:
        raise SchemaError(
            f"{cursor.subject}: a view takes its columns from its query, so between the parentheses may be "
            "PRIMARY KEY and INDEX only; name and cast columns in the query"
        )
    if unique_index := next((index for index in elements.indexes if index.unique), None):
        raise SchemaError(f"{cursor.subject}: a view has no {unique_index}; leave out UNIQUE")
    key = elements.primary_key
    if not key and cursor.skip("PRIMARY", "KEY"):
        key = names(cursor)
        cursor.skip("NOT", "ENFORCED")
    comment, partitioned_by, options = clauses(cursor)
    if not cursor.skip("AS"):
        raise cursor.refusal("expected AS and a query")
    return CreateView(
        name,
        query_at(cursor),
        key,
        partitioned_by,
        tuple(index.columns for index in elements.indexes),
        comment,
        options,
        if_not_exists,
        replaces,
    )


def explain_view(cursor: Cursor) -> ExplainView:
    """Read what follows ``EXPLAIN MATERIALIZED VIEW``."""
    return ExplainView(table_name(cursor))


def drop_view(cursor: Cursor) -> DropView:
    """Read what follows ``DROP MATERIALIZED VIEW``."""
    if_exists = cursor.skip("IF", "EXISTS")
    return DropView(table_name(cursor), if_exists)


def refresh_view(cursor: Cursor) -> RefreshView:
    """Read what follows ``REFRESH MATERIALIZED VIEW``."""
    return RefreshView(table_name(cursor))


def alter_view(cursor: Cursor) -> SuspendView | AlterView:
    """Read what follows ``ALTER MATERIALIZED VIEW``."""
    name = table_name(cursor)
    cursor.subject = f"ALTER MATERIALIZED VIEW {name}"
    if cursor.skip("SUSPEND"):
        return SuspendView(name, is_suspended=True)
    if cursor.skip("RESUME"):
        return SuspendView(name, is_suspended=False)
    if cursor.skip("SET"):
        return AlterView(name, set_options(cursor))
    if cursor.skip("RESET"):
        return AlterView(name, reset_options(cursor))
    if cursor.skip("COMMENT"):
        return AlterView(name, SetComment(None, cursor.string("a comment in quotes")))
    raise cursor.refusal("expected SUSPEND, RESUME, SET, RESET or COMMENT")
