"""DDL text to statement objects (pure).

Follows the DDL of FLIP-188 (managed tables), FLIP-486 (``INDEX``) and FLIP-107 (``METADATA``)::

    CREATE TABLE [IF NOT EXISTS] name (
        { column type [NOT NULL] [METADATA [FROM 'key'] [VIRTUAL]]
          [[CONSTRAINT n] PRIMARY KEY NOT ENFORCED] [COMMENT 'text']
        | [CONSTRAINT n] PRIMARY KEY (column, …) NOT ENFORCED
        | [UNIQUE] INDEX [n] (column, …) } [, …]
    ) [COMMENT 'text'] [PARTITIONED BY (column, …)] [WITH ('key' = 'value', …)]

    DROP TABLE [IF EXISTS] name

One statement a text: of two, the second could fail after the first was carried out. No word is
reserved: ``index INT`` is a column, ``INDEX (a)`` is an index. The name of a constraint is not kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from upsert.catalog.elements import Elements, names
from upsert.catalog.statements import CreateTable, DropTable, Statement
from upsert.catalog.tokens import Cursor
from upsert.errors import ConfigurationError, SchemaError
from upsert.schema import TableSchema

_HEAD_WORDS: Final = frozenset(
    {"OR", "REPLACE", "GLOBAL", "TEMPORARY", "TEMP", "EXTERNAL", "MATERIALIZED", "STREAMING", "EXTENDED"}
    | {"TABLE", "VIEW", "DATABASE", "SCHEMA", "CATALOG", "FUNCTION", "INDEX", "INTO", "OVERWRITE"}
)
_CLAUSE_REFUSALS: Final = {
    "AS": "CREATE TABLE … AS SELECT is not supported yet",
    "LIKE": "CREATE TABLE … LIKE is not supported yet",
    "USING": "USING is not supported: use WITH ('connector' = 'name'), or neither for a managed table",
    "LOCATION": "LOCATION is not supported: a table lies in the catalog's folder, under its name",
    "TBLPROPERTIES": "TBLPROPERTIES is not supported: use WITH ('key' = 'value')",
    "OPTIONS": "OPTIONS is not supported: use WITH ('key' = 'value')",
    "PARTITION": "expected PARTITIONED BY (columns)",
    "CLUSTERED": "CLUSTERED BY is not supported: use WITH ('bucket' = 'n', 'bucket-key' = 'columns')",
    "DISTRIBUTED": "DISTRIBUTED BY is not supported: use WITH ('bucket' = 'n', 'bucket-key' = 'columns')",
}


def parse(text: str) -> Statement:
    """The one statement of a text.

    Raises:
        SchemaError: it is none, or one that the catalog does not carry out; the message has the place.

    >>> statement = parse("CREATE TABLE t (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED, INDEX (v))")
    >>> statement.name, statement.schema.primary_key, str(statement.schema.indexes[0])
    ('t', ('id',), 'INDEX INDEX_v (v)')
    >>> parse("DROP TABLE IF EXISTS t")
    DropTable(name='t', if_exists=True)
    """
    cursor = Cursor(text)
    if cursor.skip("CREATE", "TABLE"):
        return _create_table(cursor)
    if cursor.skip("DROP", "TABLE"):
        return _drop_table(cursor)
    name = cursor.head(_HEAD_WORDS)
    if not name.isupper():
        raise cursor.refusal("expected CREATE TABLE or DROP TABLE")
    raise SchemaError(f"{name} is not supported yet: the catalog carries out CREATE TABLE and DROP TABLE")


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


def _drop_table(cursor: Cursor) -> DropTable:
    cursor.subject = "DROP TABLE"
    if_exists = cursor.skip("IF", "EXISTS")
    name = _table_name(cursor)
    if not cursor.at_end:
        raise cursor.refusal("expected nothing after the name")
    return DropTable(name, if_exists)


def _create_table(cursor: Cursor) -> CreateTable:
    cursor.subject = "CREATE TABLE"
    if_not_exists = cursor.skip("IF", "NOT", "EXISTS")
    name = _table_name(cursor)
    cursor.subject = f"table {name!r}"
    for word, reason in _CLAUSE_REFUSALS.items():
        if cursor.ahead(word):
            raise cursor.refusal(reason)
    elements = Elements(cursor)
    cursor.listed(elements.read)
    clauses = _Clauses(cursor)
    clauses.read()
    try:
        schema = TableSchema(
            tuple(elements.columns),
            elements.primary_key,
            tuple(elements.indexes),
            clauses.partitioned_by or (),
            clauses.comment,
        )
    except SchemaError as cause:
        raise SchemaError(f"table {name!r}: {cause}") from None
    return CreateTable(name, schema, clauses.options or {}, if_not_exists)


def _table_name(cursor: Cursor) -> str:
    name = cursor.name("the name of a table")
    if cursor.ahead("."):
        raise cursor.refusal(f"a catalog has no databases; expected one name, {name!r} was read")
    return name


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
            elif self.options is None and cursor.skip("WITH"):
                self.options = self._unique(cursor.listed(self._option))
            else:
                self._refuse_clause()

    def _option(self) -> tuple[str, str]:
        key = self._cursor.string("the key of an option in quotes")
        self._cursor.expect("=")
        return key, self._cursor.string(f"the value of option {key!r} in quotes")

    def _unique(self, options: list[tuple[str, str]]) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, value in options:
            if key in found:
                raise SchemaError(f"{self._cursor.subject}: option {key!r} is given twice")
            found[key] = value
        return found

    def _refuse_clause(self) -> None:
        for word, reason in _CLAUSE_REFUSALS.items():
            if self._cursor.ahead(word):
                raise self._cursor.refusal(reason)
        raise self._cursor.refusal("expected COMMENT, PARTITIONED BY or WITH, each at most once")
