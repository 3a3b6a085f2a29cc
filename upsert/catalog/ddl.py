"""DDL text to statement objects (pure).

Follows the DDL of FLIP-188 (managed tables) and FLIP-486 (``INDEX``)::

    CREATE TABLE [IF NOT EXISTS] name (
        { column type [NOT NULL] [[CONSTRAINT n] PRIMARY KEY NOT ENFORCED] [COMMENT 'text']
        | [CONSTRAINT n] PRIMARY KEY (column, …) NOT ENFORCED
        | INDEX [n] (column, …) } [, …]
    ) [COMMENT 'text'] [PARTITIONED BY (column, …)] [WITH ('key' = 'value', …)]

    DROP TABLE [IF EXISTS] name

One statement a text: of two, the second could fail after the first was carried out. No word is
reserved: ``index INT`` is a column, ``INDEX (a)`` is an index. The name of a constraint is not kept.
"""

from __future__ import annotations

from typing import Final

from upsert.catalog.statements import CreateTable, DropTable, Statement
from upsert.catalog.tokens import Cursor
from upsert.catalog.type_names import read_type
from upsert.errors import SchemaError
from upsert.schema import Column, Index, TableSchema

_HEAD_WORDS: Final = frozenset(
    {"OR", "REPLACE", "GLOBAL", "TEMPORARY", "TEMP", "EXTERNAL", "MATERIALIZED", "STREAMING", "EXTENDED"}
    | {"TABLE", "VIEW", "DATABASE", "SCHEMA", "CATALOG", "FUNCTION", "INDEX", "INTO", "OVERWRITE"}
)
_COLUMN_REFUSALS: Final = {
    "AS": "computed columns are not supported yet",
    "GENERATED": "computed columns are not supported yet",
    "METADATA": "METADATA columns are not supported yet",
    "DEFAULT": "DEFAULT values are not supported yet",
    "COLLATE": "collations are not supported: strings are compared by their bytes",
    "UNIQUE": "UNIQUE is not supported: only a PRIMARY KEY identifies rows",
    "CHECK": "CHECK is not supported: rows are not checked against conditions",
    "REFERENCES": "foreign keys are not supported",
}
_CONSTRAINT_REFUSALS: Final = {
    "UNIQUE": "UNIQUE is not supported: only a PRIMARY KEY identifies rows",
    "CHECK": "CHECK is not supported: rows are not checked against conditions",
    "FOREIGN": "foreign keys are not supported",
}
_CLAUSE_REFUSALS: Final = {
    "AS": "CREATE TABLE … AS SELECT is not supported yet",
    "LIKE": "CREATE TABLE … LIKE is not supported yet",
    "USING": "USING is not supported: every table of the catalog is a managed table",
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
    elements = _Elements(cursor)
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


class _Elements:
    """What stands between the parentheses: columns, the primary key, indexes."""

    def __init__(self, cursor: Cursor) -> None:
        self.columns: list[Column] = []
        self.indexes: list[Index] = []
        self.primary_key: tuple[str, ...] = ()
        self._cursor = cursor

    def read(self) -> None:
        cursor = self._cursor
        self._refuse_constraints()
        if cursor.ahead("CONSTRAINT") and cursor.word(2) == "PRIMARY" and cursor.word(4) == "(":
            self._constraint()
        elif cursor.skip("PRIMARY", "KEY"):
            self._table_key()
        elif self._index_ahead():
            self._index()
        elif cursor.ahead("WATERMARK", "FOR"):
            raise cursor.refusal("WATERMARK is not supported yet; use withWatermark() on the DataFrame")
        else:
            self._column()

    def _refuse_constraints(self) -> None:
        cursor = self._cursor
        is_named = cursor.ahead("CONSTRAINT")
        word, next_word = cursor.word(2 if is_named else 0), cursor.word(3 if is_named else 1)
        if word in _CONSTRAINT_REFUSALS and next_word in ("(", "KEY"):
            raise cursor.refusal(_CONSTRAINT_REFUSALS[word])

    def _constraint(self) -> None:
        cursor = self._cursor
        cursor.expect("CONSTRAINT")
        cursor.name("the name of a constraint")
        cursor.expect("PRIMARY", "KEY")
        self._table_key()

    def _table_key(self) -> None:
        columns = _names(self._cursor)
        self._not_enforced(f"PRIMARY KEY ({', '.join(columns)})")
        self._set_key(columns)

    def _not_enforced(self, what: str) -> None:
        if not self._cursor.skip("NOT", "ENFORCED"):
            raise self._cursor.refusal(
                "a primary key is not checked: a row replaces the one with its key; "
                f"expected {what} NOT ENFORCED"
            )

    def _set_key(self, columns: tuple[str, ...]) -> None:
        if self.primary_key:
            raise SchemaError(
                f"{self._cursor.subject}: PRIMARY KEY is declared twice; "
                f"for a key of several columns write PRIMARY KEY (column, …) NOT ENFORCED"
            )
        self.primary_key = columns

    def _index_ahead(self) -> bool:
        """``INDEX (a)`` or ``INDEX n (a)``; but ``index DECIMAL(10)`` is a column."""
        cursor = self._cursor
        if cursor.ahead("INDEX", "("):
            return True
        return cursor.ahead("INDEX") and cursor.is_name(1) and cursor.word(2) == "(" and cursor.is_name(3)

    def _index(self) -> None:
        cursor = self._cursor
        cursor.expect("INDEX")
        name = None if cursor.ahead("(") else cursor.name("the name of an index")
        columns = _names(cursor)
        self.indexes.append(Index(name or "_".join(("INDEX", *columns)), columns))

    def _column(self) -> None:
        cursor = self._cursor
        name = cursor.name("a column, PRIMARY KEY or INDEX")
        self._refuse_column_features()
        type_ = read_type(cursor)
        nullable, comment = True, None
        while not cursor.ahead(",") and not cursor.ahead(")"):
            if cursor.skip("NOT", "NULL"):
                nullable = False
            elif comment is None and cursor.skip("COMMENT"):
                comment = cursor.string("a comment in quotes")
            else:
                self._column_key(name)
        self.columns.append(Column(name, type_, nullable, comment))

    def _column_key(self, name: str) -> None:
        cursor = self._cursor
        if cursor.skip("CONSTRAINT"):
            cursor.name("the name of a constraint")
        if not cursor.skip("PRIMARY", "KEY"):
            self._refuse_column_features()
            raise cursor.refusal("expected NOT NULL, PRIMARY KEY NOT ENFORCED, COMMENT, or the next column")
        self._not_enforced("PRIMARY KEY")
        self._set_key((name,))

    def _refuse_column_features(self) -> None:
        for word, reason in _COLUMN_REFUSALS.items():
            if self._cursor.ahead(word):
                raise self._cursor.refusal(reason)


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
                self.partitioned_by = _names(cursor)
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


def _names(cursor: Cursor) -> tuple[str, ...]:
    return tuple(cursor.listed(lambda: cursor.name("the name of a column")))
