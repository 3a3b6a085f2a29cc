"""SQL text to a statement object (pure).

One statement a text: of two, the second could fail after the first was carried out; `upsert.catalog.script`
splits a file into statements. What follows CREATE TABLE is read in `upsert.catalog.ddl`, queries in
`upsert.catalog.query_text`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from upsert.catalog import alter, namespaces, row_changes
from upsert.catalog.ddl import create_table, query_at, table_name
from upsert.catalog.dialect import too_deep
from upsert.catalog.elements import names
from upsert.catalog.literals import partition, written_partition
from upsert.catalog.namespace_statements import ShowCatalogs, ShowDatabases
from upsert.catalog.statements import (
    DescribeTable,
    DropTable,
    Insert,
    ResetOption,
    Select,
    SetOption,
    ShowCreateTable,
    ShowOptions,
    ShowPartitions,
    Statement,
)
from upsert.catalog.tokens import Cursor
from upsert.errors import SchemaError

_ASSIGNMENT_HEAD: Final = re.compile(
    # possessive: what was read as a comment is not read in another way
    r"(?:\s++|--[^\n]*+\n|/\*(?:[^*]|\*(?!/))*+\*/)*+(SET|RESET)\b\s*+",
    re.IGNORECASE,
)
_ASSIGNMENT: Final = re.compile(
    r"(?:'(?P<quoted>(?:[^']|'')*)'|(?P<key>[\w.\-]+))\s*(?:=\s*(?P<value>'(?:[^']|'')*'|[^'].*)?)?",
    re.DOTALL,
)
_DATABASE_WORDS: Final = ("DATABASE", "SCHEMA")


def parse(text: str) -> Statement:
    """The one statement of a text.

    Raises:
        SchemaError: it is none, or one that the catalog does not carry out; the message has the place.

    >>> statement = parse("CREATE TABLE t (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED, INDEX (v))")
    >>> statement.name, statement.schema.primary_key, str(statement.schema.indexes[0])
    ('t', ('id',), 'INDEX INDEX_v (v)')
    >>> parse("DROP TABLE IF EXISTS t")
    DropTable(name='t', if_exists=True)
    >>> parse("SET table-storage.bucket = 10").key
    'table-storage.bucket'
    """
    if (assignment := _assignment(text)) is not None:
        return assignment
    try:
        return _statement(text)
    except RecursionError:
        raise too_deep("statement") from None


def _statement(text: str) -> Statement:
    cursor = Cursor(text)
    for words, read in _STATEMENTS.items():
        if cursor.ahead(*words):
            cursor.subject = " ".join(words)
            if words not in _READ_BY_THEMSELVES:
                cursor.skip(*words)
            statement = read(cursor)
            if not cursor.at_end:
                raise cursor.refusal("expected the end of the statement")
            return statement
    head = cursor.head(_HEAD_WORDS)
    if not head.replace(" ", "").isalpha():
        raise cursor.refusal(f"expected a statement, one of {', '.join(_NAMES)}")
    raise SchemaError(f"{head} is not supported: statements are {', '.join(_NAMES)}")


def _assignment(text: str) -> Statement | None:
    """``SET …`` and ``RESET …``, whose keys and values need no quotes."""
    match = _ASSIGNMENT_HEAD.match(text)
    if match is None:
        return None
    word = match[1].upper()
    rest = text[match.end() :].rstrip()
    rest = rest.removesuffix(";").rstrip()
    if not rest:
        return ShowOptions() if word == "SET" else ResetOption()
    found = _ASSIGNMENT.fullmatch(rest)
    if found is None:
        raise SchemaError(f"{word}: expected 'key' = 'value', found {_start_of(rest)!r}")
    key = found["key"] or found["quoted"].replace("''", "'")
    if word == "RESET":
        if "=" in rest:
            raise SchemaError(f"RESET: expected a key alone, found {_start_of(rest)!r}")
        return ResetOption(key)
    if found["value"] is None:
        if "=" in rest:
            raise SchemaError(f"SET: expected a value of {key!r}; RESET {key} gives it its default back")
        return ShowOptions(key)
    return SetOption(key, _value(found["value"].strip()))


def _value(text: str) -> str:
    return text[1:-1].replace("''", "'") if text.startswith("'") and len(text) > 1 else text


def _start_of(text: str) -> str:
    """What may be shown of an option: never its value."""
    return text.partition("=")[0][:60].strip()


def _drop_table(cursor: Cursor) -> DropTable:
    if_exists = cursor.skip("IF", "EXISTS")
    return DropTable(table_name(cursor), if_exists)


def _drop_temporary(cursor: Cursor) -> DropTable:
    raise cursor.refusal("a catalog has no temporary tables; use DROP TABLE, or spark.catalog.dropTempView")


def _show_partitions(cursor: Cursor) -> ShowPartitions:
    name = table_name(cursor)
    return ShowPartitions(name, partition(cursor) if cursor.skip("PARTITION") else {})


def _describe(cursor: Cursor) -> DescribeTable:
    is_extended = cursor.skip("DETAIL")
    if cursor.is_name(1):
        cursor.skip("TABLE")
    if cursor.is_name(1):
        is_extended = cursor.skip("EXTENDED") or is_extended
    name = table_name(cursor)
    return DescribeTable(name, is_extended, partition(cursor) if cursor.skip("PARTITION") else None)


def _insert(cursor: Cursor) -> Insert:
    overwrite = cursor.skip("OVERWRITE")
    if not overwrite:
        cursor.expect("INTO")
    options = cursor.hint()
    if cursor.is_name(1):
        cursor.skip("TABLE")
    name = table_name(cursor)
    cursor.subject = f"INSERT {'OVERWRITE' if overwrite else 'INTO'} {name}"
    options |= cursor.hint()
    values, dynamic = written_partition(cursor) if cursor.skip("PARTITION") else ({}, ())
    columns = names(cursor) if _columns_ahead(cursor) else None
    options |= cursor.hint()
    return Insert(name, query_at(cursor), columns, values, options, overwrite, dynamic)


def _columns_ahead(cursor: Cursor) -> bool:
    """``(a, b) SELECT …``; but ``(SELECT …)`` is a query."""
    is_query = cursor.word(1) in ("SELECT", "WITH", "VALUES", "FROM", "TABLE") and cursor.word(2) not in (
        ",",
        ")",
    )
    return cursor.ahead("(") and cursor.is_name(1) and not is_query


def _select(cursor: Cursor) -> Select:
    cursor.subject = "query"
    return Select(query_at(cursor))


_STATEMENTS: Final[Mapping[tuple[str, ...], Callable[[Cursor], Statement]]] = {
    ("CREATE", "OR", "REPLACE", "TABLE"): lambda cursor: create_table(cursor, replaces=True),
    ("CREATE", "TABLE"): create_table,
    ("CREATE", "CATALOG"): namespaces.create_catalog,
    ("DROP", "CATALOG"): namespaces.drop_catalog,
    **{("CREATE", word): namespaces.create_database for word in _DATABASE_WORDS},
    **{("DROP", word): namespaces.drop_database for word in _DATABASE_WORDS},
    ("DROP", "TEMPORARY", "TABLE"): _drop_temporary,
    ("DROP", "TABLE"): _drop_table,
    ("ALTER", "TABLE"): alter.alter_table,
    ("USE",): namespaces.use,
    ("SHOW", "CATALOGS"): lambda _: ShowCatalogs(),
    ("SHOW", "CURRENT", "CATALOG"): lambda _: ShowCatalogs(only_current=True),
    **{("SHOW", f"{word}S"): namespaces.show_databases for word in _DATABASE_WORDS},
    **{("SHOW", "CURRENT", word): lambda _: ShowDatabases(only_current=True) for word in _DATABASE_WORDS},
    ("SHOW", "CREATE", "TABLE"): lambda cursor: ShowCreateTable(table_name(cursor)),
    ("SHOW", "TABLES"): namespaces.show_tables,
    ("SHOW", "PARTITIONS"): _show_partitions,
    ("DESCRIBE",): _describe,
    ("DESC",): _describe,
    ("INSERT",): _insert,
    ("DELETE", "FROM"): row_changes.delete,
    ("UPDATE",): row_changes.update,
    **{(word,): _select for word in ("SELECT", "WITH", "VALUES", "FROM", "TABLE", "(")},
}
"""The first words of each statement, and what reads the rest of it."""

_READ_BY_THEMSELVES: Final = frozenset((word,) for word in ("SELECT", "WITH", "VALUES", "FROM", "TABLE", "("))
_NAMES: Final = (
    "CREATE TABLE",
    "DROP TABLE",
    "ALTER TABLE",
    "CREATE CATALOG",
    "DROP CATALOG",
    "CREATE DATABASE",
    "DROP DATABASE",
    "USE",
    "SHOW",
    "DESCRIBE",
    "INSERT",
    "DELETE FROM",
    "UPDATE",
    "SELECT",
    "SET",
    "RESET",
)
_HEAD_WORDS: Final = frozenset(
    {"OR", "REPLACE", "GLOBAL", "TEMPORARY", "TEMP", "EXTERNAL", "MATERIALIZED", "STREAMING", "CURRENT"}
    | {"TABLE", "VIEW", "DATABASE", "SCHEMA", "CATALOG", "CATALOGS", "FUNCTION", "FUNCTIONS", "INDEX", "INTO"}
)
