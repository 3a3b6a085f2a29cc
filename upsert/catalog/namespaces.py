"""Statements about catalogs and databases to statement objects (pure).

These are::

    CREATE CATALOG [IF NOT EXISTS] c WITH ('warehouse' = 'folder') | DROP CATALOG [IF EXISTS] c
    USE CATALOG c | USE [DATABASE] [c.]db
    CREATE DATABASE [IF NOT EXISTS] [c.]db | DROP DATABASE [IF EXISTS] [c.]db [RESTRICT | CASCADE]
    SHOW CATALOGS | SHOW CURRENT CATALOG | SHOW DATABASES [{ FROM | IN } c] | SHOW CURRENT DATABASE
    SHOW TABLES [{ FROM | IN } [c.]db] [LIKE 'pattern']

Every function reads what follows the words of its statement.
"""

from __future__ import annotations

from upsert.catalog.namespace_statements import (
    CreateCatalog,
    CreateDatabase,
    DropCatalog,
    DropDatabase,
    ShowDatabases,
    ShowTables,
    UseCatalog,
    UseDatabase,
)
from upsert.catalog.tokens import Cursor, option, unique


def create_catalog(cursor: Cursor) -> CreateCatalog:
    """``CREATE CATALOG``."""
    if_not_exists = cursor.skip("IF", "NOT", "EXISTS")
    name = _catalog(cursor)
    cursor.subject = f"CREATE CATALOG {name}"
    cursor.expect("WITH")
    return CreateCatalog(name, unique(cursor, cursor.listed(lambda: option(cursor))), if_not_exists)


def drop_catalog(cursor: Cursor) -> DropCatalog:
    """``DROP CATALOG``."""
    if_exists = cursor.skip("IF", "EXISTS")
    return DropCatalog(_catalog(cursor), if_exists)


def create_database(cursor: Cursor) -> CreateDatabase:
    """``CREATE DATABASE``."""
    if_not_exists = cursor.skip("IF", "NOT", "EXISTS")
    return CreateDatabase(_database(cursor), if_not_exists)


def drop_database(cursor: Cursor) -> DropDatabase:
    """``DROP DATABASE``."""
    if_exists = cursor.skip("IF", "EXISTS")
    name = _database(cursor)
    cascade = cursor.skip("CASCADE")
    if not cascade:
        cursor.skip("RESTRICT")
    return DropDatabase(name, if_exists, cascade)


def use(cursor: Cursor) -> UseCatalog | UseDatabase:
    """``USE``."""
    if cursor.is_name(1):
        if cursor.skip("CATALOG"):
            return UseCatalog(_catalog(cursor))
        cursor.skip("DATABASE")
    return UseDatabase(_database(cursor))


def show_databases(cursor: Cursor) -> ShowDatabases:
    """``SHOW DATABASES``."""
    has_catalog = cursor.skip("FROM") or cursor.skip("IN")
    return ShowDatabases(catalog=_catalog(cursor) if has_catalog else None)


def show_tables(cursor: Cursor) -> ShowTables:
    """``SHOW TABLES``."""
    has_database = cursor.skip("FROM") or cursor.skip("IN")
    database = _database(cursor) if has_database else None
    like = cursor.string("a pattern in quotes") if cursor.skip("LIKE") else None
    return ShowTables(database, like)


def _catalog(cursor: Cursor) -> str:
    return cursor.name("the name of a catalog")


def _database(cursor: Cursor) -> str:
    first = cursor.name("the name of a database")
    return f"{first}.{cursor.name('the name of a database')}" if cursor.skip(".") else first
