"""The columns, keys and indexes between the parentheses of CREATE TABLE (pure).

Connectors read such a list by itself (``parse_columns``), so this lies below them and the catalog.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Final

import pyarrow as pa
from sqlglot import exp

from upsert.errors import ConfigurationError, SchemaError
from upsert.schema import Column, ComputedColumn, Index, TableSchema, Watermark
from upsert.sql.dialect import expression_tree, position
from upsert.sql.flink_words import UNITS
from upsert.sql.tokens import Cursor, blanked, names
from upsert.sql.types import read_type


def columns_of(text: str, start: int, end: int, subject: str) -> tuple[str, ...]:
    """The columns that an expression names, each once.

    Raises:
        SchemaError: it is no expression of one row; the message has the position.

    >>> columns_of("price * (1 + vat) - price", 0, 25, "column 'gross'")
    ('price', 'vat')
    """
    white = blanked(text, start, end)
    tree = expression_tree(white, subject)
    whole = next(tree.find_all(exp.Query, exp.AggFunc, exp.Window, exp.Star), None)
    if whole is not None:
        raise SchemaError(
            f"{subject}: a column is computed from its own row, found {whole.sql('spark')!r} at "
            f"{position(text, start)}; compute it in a query"
        )
    found = (column.parts[0].name for column in tree.find_all(exp.Column))
    return tuple(dict.fromkeys(found))


def read_delay(cursor: Cursor) -> int:
    """Read ``INTERVAL 'number' unit``; in milliseconds."""
    cursor.expect("INTERVAL")
    start = cursor.refusal("expected a number of seconds, minutes, hours or days")
    number = cursor.string("a number") if cursor.is_string(0) else str(cursor.number("a number"))
    unit = cursor.name("a unit such as SECOND").upper().removesuffix("S")
    try:
        milliseconds = Decimal(number) * UNITS[unit]
    except (InvalidOperation, KeyError):
        raise start from None
    if milliseconds < 0 or milliseconds != int(milliseconds):
        raise start
    return int(milliseconds)


_COLUMN_REFUSALS: Final = {
    "GENERATED": "GENERATED is not supported; write name AS expression",
    "VIRTUAL": "VIRTUAL belongs to METADATA; write METADATA [FROM 'key'] VIRTUAL",
    "DEFAULT": "DEFAULT values are not supported yet",
    "COLLATE": "collations are not supported: strings are compared by their bytes",
    "UNIQUE": "a column is not UNIQUE by itself; add UNIQUE INDEX (column)",
    "CHECK": "CHECK is not supported: rows are not checked against conditions",
    "REFERENCES": "foreign keys are not supported",
}

_CONSTRAINT_REFUSALS: Final = {
    "UNIQUE": "UNIQUE belongs to an index; write UNIQUE INDEX (column, …)",
    "CHECK": "CHECK is not supported: rows are not checked against conditions",
    "FOREIGN": "foreign keys are not supported",
}


class Elements:
    """Columns, the primary key and indexes, gathered one at a time by ``read``.

    Args:
        cursor: where they are read.
        ends: words that end a column, beside a comma and a closing bracket.
    """

    def __init__(self, cursor: Cursor, *, ends: tuple[str, ...] = ()) -> None:
        self.columns: list[Column] = []
        self.indexes: list[Index] = []
        self.primary_key: tuple[str, ...] = ()
        self.computed: list[ComputedColumn] = []
        self.watermark: Watermark | None = None
        self._cursor = cursor
        self._ends = ends

    def read(self) -> None:
        """Read one element."""
        cursor = self._cursor
        self._refuse_constraints()
        if cursor.ahead("CONSTRAINT") and cursor.word(2) == "PRIMARY" and cursor.word(4) == "(":
            self._constraint()
        elif cursor.skip("PRIMARY", "KEY"):
            self._table_key()
        elif self._index_ahead():
            self._index()
        elif cursor.skip("WATERMARK", "FOR"):
            self._watermark()
        elif cursor.is_name(0) and cursor.word(1) == "AS":
            self._computed_column()
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
        columns = names(self._cursor)
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
        """``[UNIQUE] INDEX (a)`` or ``[UNIQUE] INDEX n (a)``; but ``index DECIMAL(10)`` is a column."""
        cursor = self._cursor
        if cursor.ahead("INDEX", "(") or cursor.ahead("UNIQUE", "INDEX"):
            return True
        return cursor.ahead("INDEX") and cursor.is_name(1) and cursor.word(2) == "(" and cursor.is_name(3)

    def _index(self) -> None:
        cursor = self._cursor
        unique = cursor.skip("UNIQUE")
        cursor.expect("INDEX")
        name = None if cursor.ahead("(") else cursor.name("the name of an index")
        columns = names(cursor)
        index = Index.over(columns, unique=unique)
        self.indexes.append(index if name is None else replace(index, name=name))

    def _column(self) -> None:
        cursor = self._cursor
        column = Column(cursor.name("a column, PRIMARY KEY or INDEX"), self._type())
        while not (cursor.at_end or any(map(cursor.ahead, (",", ")", *self._ends)))):
            if cursor.skip("NOT", "NULL"):
                column = replace(column, nullable=False)
            elif column.comment is None and cursor.skip("COMMENT"):
                column = replace(column, comment=cursor.string("a comment in quotes"))
            elif column.metadata is None and cursor.skip("METADATA"):
                column = self._metadata(column)
            else:
                self._column_key(column.name)
        self.columns.append(column)

    def _computed_column(self) -> None:
        """``name AS expression [COMMENT 'text']``."""
        cursor = self._cursor
        name = cursor.name("the name of a column")
        cursor.expect("AS")
        start = cursor.offset
        text = cursor.raw("an expression", lambda: cursor.ahead("COMMENT") and cursor.is_string(1))
        uses = columns_of(cursor.text, start, start + len(text), f"{cursor.subject}: column {name!r}")
        comment = cursor.string("a comment in quotes") if cursor.skip("COMMENT") else None
        place = len(self.columns) + len(self.computed)
        self.computed.append(ComputedColumn(name, text, uses, place, comment))

    def _watermark(self) -> None:
        """``WATERMARK FOR column AS column [- INTERVAL 'number' unit]``, without its first two words."""
        cursor = self._cursor
        if self.watermark is not None:
            raise cursor.refusal("a table has one WATERMARK")
        column = cursor.name("the name of a column")
        cursor.expect("AS")
        if cursor.name(f"{column}, or {column} - INTERVAL 'number' unit") != column:
            raise SchemaError(
                f"{cursor.subject}: WATERMARK FOR {column} must be {column} or {column} - INTERVAL 'number' "
                "unit, found another column; compute a column, and declare the watermark for it"
            )
        self.watermark = Watermark(column, read_delay(cursor) if cursor.skip("-") else 0)

    def _type(self) -> pa.DataType:
        self._refuse_column_features()
        return read_type(self._cursor)

    def _metadata(self, column: Column) -> Column:
        """``METADATA [FROM 'key'] [VIRTUAL]``: the key is the column's name unless it is given."""
        cursor = self._cursor
        key = cursor.string("a metadata key in quotes") if cursor.skip("FROM") else column.name
        return replace(column, metadata=key, virtual=cursor.skip("VIRTUAL"))

    def _column_key(self, name: str) -> None:
        cursor = self._cursor
        if cursor.skip("CONSTRAINT"):
            cursor.name("the name of a constraint")
        if not cursor.skip("PRIMARY", "KEY"):
            self._refuse_column_features()
            raise cursor.refusal(
                "expected NOT NULL, METADATA [FROM 'key'] [VIRTUAL], PRIMARY KEY NOT ENFORCED, COMMENT, or "
                "the next column"
            )
        self._not_enforced("PRIMARY KEY")
        self._set_key((name,))

    def _refuse_column_features(self) -> None:
        for word, reason in _COLUMN_REFUSALS.items():
            if self._cursor.ahead(word):
                raise self._cursor.refusal(reason)


def parse_columns(text: str, primary_key: Sequence[str] = ()) -> TableSchema:
    """The schema that a list of columns says: what stands in a ``CREATE TABLE`` with a connector.

    Args:
        text: as in ``word STRING, n BIGINT, ts TIMESTAMP METADATA FROM 'timestamp' VIRTUAL``; it may hold a
            PRIMARY KEY.
        primary_key: the columns of the key where the text has none.

    Raises:
        SchemaError: the text is no list of columns, or contradicts itself; the message has the position.
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

    Spark's own schemas cannot hold FLIP-107's declaration, but their comments reach a source.

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
