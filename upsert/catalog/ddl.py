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

import re
from collections.abc import Sequence
from typing import Final

from upsert.catalog.elements import Elements, names
from upsert.catalog.like import Declared, read_like
from upsert.catalog.query_text import QueryText
from upsert.catalog.statements import CreateTable, CreateTableAs, CreateTableLike
from upsert.catalog.tokens import Cursor, option, unique
from upsert.errors import ConfigurationError, SchemaError
from upsert.schema import TableSchema

_CLAUSE_REFUSALS: Final = {
    "USING": "USING is not supported: use WITH ('connector' = 'name'), or neither for a managed table",
    "LOCATION": "LOCATION is not supported: a table lies in the catalog's folder, under its name",
    "TBLPROPERTIES": "TBLPROPERTIES is not supported: use WITH ('key' = 'value')",
    "OPTIONS": "OPTIONS is not supported: use WITH ('key' = 'value')",
    "PARTITION": "expected PARTITIONED BY (columns)",
    "CLUSTERED": "CLUSTERED BY is not supported: use WITH ('bucket' = 'n', 'bucket-key' = 'columns')",
    "DISTRIBUTED": "DISTRIBUTED BY is not supported: use WITH ('bucket' = 'n', 'bucket-key' = 'columns')",
}


def parse_columns(text: str, primary_key: Sequence[str] = ()) -> TableSchema:
    """The schema that a list of columns says: what stands in a ``CREATE TABLE`` with a connector.

    Args:
        text: as in ``word STRING, n BIGINT, ts TIMESTAMP METADATA FROM 'timestamp' VIRTUAL``; it may hold a
            PRIMARY KEY.
        primary_key: the columns of the key where the text has none.

    Raises:
        SchemaError: the text is no list of columns, or contradicts itself; the message has the place.
        ConfigurationError: the text has a PRIMARY KEY and ``primary_key`` is given too.

    >>> schema = parse_columns("word STRING, n BIGINT, o BIGINT METADATA FROM 'offset' VIRTUAL", ["word"])
    >>> schema.primary_key, [column.name for column in schema.physical], schema.column("o").metadata
    (('word',), ['word', 'n'], 'offset')
    """
    if not text.strip():
        raise SchemaError("columns: expected at least one column, found an empty text")
    cursor = Cursor(text, subject="columns")
    elements = Elements(cursor)
    elements.read()
    while cursor.skip(","):
        elements.read()
    if not cursor.at_end:
        raise cursor.refusal("expected , or the end of the text")
    if elements.indexes:
        raise SchemaError(
            f"columns: only managed tables have an INDEX, got {elements.indexes[0]}; leave it out"
        )
    if elements.computed or elements.watermark:
        raise SchemaError("columns: only CREATE TABLE has computed columns and a WATERMARK; leave them out")
    if elements.primary_key and primary_key:
        raise ConfigurationError(
            f"columns: the primary key is given twice, by PRIMARY KEY ({', '.join(elements.primary_key)}) "
            f"among the columns and as {', '.join(primary_key)!r}; give one"
        )
    key = elements.primary_key or tuple(primary_key)
    try:
        return TableSchema(tuple(elements.columns), key)
    except SchemaError as cause:
        raise SchemaError(f"columns: {cause}") from None


_DECLARATION: Final = re.compile(r"METADATA(?:\s+FROM\s+'((?:[^']|'')*)')?(\s+VIRTUAL)?", re.IGNORECASE)
_ATTEMPT: Final = re.compile(r"METADATA\s+(FROM|VIRTUAL)\b.*", re.DOTALL)


def metadata_from_comment(text: str) -> tuple[str | None, bool] | None:
    """The metadata key and whether the column is VIRTUAL, of a comment that declares a METADATA column.

    Spark's own schemas have no place for FLIP-107's declaration, but their comments reach a source.

    Args:
        text: the comment of a column.

    Returns:
        The key, None where it is the column's name, and whether the column is VIRTUAL; or None for a comment
        that is only a comment.

    Raises:
        SchemaError: the comment begins like a declaration and is none.

    >>> metadata_from_comment("METADATA FROM 'timestamp' VIRTUAL"), metadata_from_comment("when it was")
    (('timestamp', True), None)
    """
    if match := _DECLARATION.fullmatch(text.strip()):
        key = match[1].replace("''", "'") if match[1] is not None else None
        return key, match[2] is not None
    if _ATTEMPT.fullmatch(text.strip()):
        raise SchemaError(f"a column's comment must read METADATA [FROM 'key'] [VIRTUAL], got {text!r}")
    return None


def create_table(cursor: Cursor, *, replaces: bool = False) -> CreateTable | CreateTableAs | CreateTableLike:
    """Read what follows ``CREATE TABLE`` or, where it ``replaces`` one, ``CREATE OR REPLACE TABLE``.

    Raises:
        SchemaError: it is no such statement, or contradicts itself; the message has the place.
    """
    if_not_exists = cursor.skip("IF", "NOT", "EXISTS")
    name = table_name(cursor)
    cursor.subject = f"table {name!r}"
    for word, reason in _CLAUSE_REFUSALS.items():
        if cursor.ahead(word):
            raise cursor.refusal(reason)
    elements = Elements(cursor)
    if cursor.ahead("("):
        cursor.listed(elements.read)
    clauses = _Clauses(cursor)
    clauses.read()
    if cursor.skip("AS"):
        return _create_as(cursor, name, elements, clauses, if_not_exists, replaces)
    if not replaces and cursor.skip("LIKE"):
        return CreateTableLike(
            name, read_like(cursor, table_name(cursor)), _declared(elements, clauses), if_not_exists
        )
    if replaces:
        raise cursor.refusal("expected AS and a query: only CREATE OR REPLACE TABLE … AS SELECT is supported")
    if not elements.columns and not elements.computed:
        raise cursor.refusal("expected ( and the table's columns, or AS and a query")
    try:
        schema = TableSchema(
            tuple(elements.columns),
            elements.primary_key,
            tuple(elements.indexes),
            clauses.partitioned_by or (),
            clauses.comment,
            tuple(elements.computed),
            elements.watermark,
        )
    except SchemaError as cause:
        raise SchemaError(f"table {name!r}: {cause}") from None
    return CreateTable(name, schema, clauses.options or {}, if_not_exists)


def _declared(elements: Elements, clauses: _Clauses) -> Declared:
    return Declared(
        tuple(elements.columns),
        elements.primary_key,
        tuple(elements.indexes),
        clauses.partitioned_by or (),
        clauses.comment,
        tuple(elements.computed),
        elements.watermark,
        clauses.options or {},
    )


def _create_as(
    cursor: Cursor, name: str, elements: Elements, clauses: _Clauses, if_not_exists: bool, replaces: bool
) -> CreateTableAs:
    """``… AS SELECT``: the columns are those of the query, so the parentheses may hold keys and indexes."""
    if elements.columns or elements.computed or elements.watermark:
        raise SchemaError(
            f"{cursor.subject}: CREATE TABLE … AS SELECT takes its columns from the query, so between the "
            "parentheses may be PRIMARY KEY and INDEX only; name and cast columns in the query"
        )
    if unique_index := next((index for index in elements.indexes if index.unique), None):
        raise SchemaError(
            f"{cursor.subject}: CREATE TABLE … AS SELECT has no {unique_index}; leave out UNIQUE"
        )
    return CreateTableAs(
        name,
        query_at(cursor),
        elements.primary_key,
        clauses.partitioned_by or (),
        tuple(index.columns for index in elements.indexes),
        clauses.comment,
        clauses.options or {},
        if_not_exists,
        replaces,
    )


def query_at(cursor: Cursor) -> QueryText:
    """Read the query that the rest of the statement is.

    Raises:
        SchemaError: it is none.
    """
    if cursor.at_end:
        raise cursor.refusal("expected a query")
    return QueryText.of(cursor.text, *cursor.rest(), cursor.subject)


def table_name(cursor: Cursor) -> str:
    """Read ``[[catalog.]database.]name``; the parts are joined by dots, which none of them has."""
    parts = [_part_of_name(cursor, "the name of a table")]
    while len(parts) < 3 and cursor.skip("."):
        parts.append(_part_of_name(cursor, "a name after the dot"))
    return ".".join(parts)


def _part_of_name(cursor: Cursor, what: str) -> str:
    before = cursor.refusal("a name must be 1 to 128 letters, digits and _, the first no digit")
    part = cursor.name(what)
    if "." in part:
        raise before
    return part


class _Clauses:
    """What follows the parentheses, each at most once, in any order."""

    def __init__(self, cursor: Cursor) -> None:
        self.comment: str | None = None
        self.partitioned_by: tuple[str, ...] | None = None
        self.options: dict[str, str] | None = None
        self._cursor = cursor

    def read(self) -> None:
        cursor = self._cursor
        while not cursor.at_end:
            if self.comment is None and cursor.skip("COMMENT"):
                self.comment = cursor.string("a comment in quotes")
            elif self.partitioned_by is None and cursor.skip("PARTITIONED", "BY"):
                self.partitioned_by = names(cursor)
            elif cursor.ahead("AS") or cursor.ahead("LIKE"):
                return
            elif self.options is None and cursor.skip("WITH"):
                self.options = unique(cursor, cursor.listed(lambda: option(cursor)))
            else:
                self._refuse_clause()

    def _refuse_clause(self) -> None:
        for word, reason in _CLAUSE_REFUSALS.items():
            if self._cursor.ahead(word):
                raise self._cursor.refusal(reason)
        raise self._cursor.refusal("expected COMMENT, PARTITIONED BY or WITH, each at most once")
