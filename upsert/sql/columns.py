"""The columns, keys and indexes between the parentheses of CREATE TABLE (pure).

Connectors read such a list by itself (``parse_columns``), so this lies below them and the catalog.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Final

from sqlglot import exp

from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.schema import Column, ComputedColumn, Index, TableSchema, Watermark
from upsert.sql.dialect import expression_tree, position
from upsert.sql.flink_words import UNITS
from upsert.sql.tokens import Cursor, blanked, names
from upsert.sql.types import read_column_type, read_interval


def columns_of(text: str, start: int, end: int, subject: str) -> tuple[str, ...]:
    """The columns that an expression of one row names, each once.

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


def _delay(cursor: Cursor) -> int:
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
    "COLLATE": "collations are not supported: strings are compared by their bytes",
    "UNIQUE": "a column is not UNIQUE by itself; add UNIQUE INDEX (column)",
    "REFERENCES": "foreign keys are not supported",
}

_CONSTRAINT_REFUSALS: Final = {
    "UNIQUE": "UNIQUE belongs to an index; write UNIQUE INDEX (column, …)",
    "FOREIGN": "foreign keys are not supported",
}


@dataclass(frozen=True)
class WrittenCheck:
    """A CHECK as a statement has it, before it is known what its columns are.

    Attributes:
        name: None where the statement gives it none.
        text: the condition as it is written.
    """

    name: str | None
    text: str
    tree: exp.Expr = field(compare=False, repr=False)


def read_check(cursor: Cursor, name: str | None = None) -> WrittenCheck:
    """Read ``CHECK (condition) [ENFORCED]``."""
    cursor.expect("CHECK")
    cursor.expect("(")
    start = cursor.offset
    text = cursor.raw("a condition", lambda: False)
    tree = expression_tree(
        blanked(cursor.text, start, start + len(text)), f"{cursor.subject}: CHECK ({text})"
    )
    cursor.expect(")")
    if cursor.ahead("NOT", "ENFORCED"):
        raise cursor.refusal("a CHECK is enforced for every row; leave NOT ENFORCED out")
    cursor.skip("ENFORCED")
    return WrittenCheck(name, text, tree)


class Elements:
    """Columns, the primary key, constraints and indexes, gathered one at a time by ``read``.

    A column ends with one of the words ``ends``, beside a comma and a closing bracket.
    """

    def __init__(self, cursor: Cursor, *, ends: tuple[str, ...] = ()) -> None:
        self.columns: list[Column] = []
        self.indexes: list[Index] = []
        self.primary_key: tuple[str, ...] = ()
        self.computed: list[ComputedColumn] = []
        self.watermark: Watermark | None = None
        self.checks: list[WrittenCheck] = []
        self._cursor = cursor
        self._ends = ends

    def read(self) -> None:
        """Read one element."""
        cursor = self._cursor
        self._refuse_constraints()
        if cursor.ahead("CONSTRAINT") and cursor.word(2) == "PRIMARY" and cursor.word(4) == "(":
            cursor.expect("CONSTRAINT")
            cursor.name("the name of a constraint")
            cursor.expect("PRIMARY", "KEY")
            self._table_key()
        elif cursor.ahead("CHECK", "(") or (cursor.ahead("CONSTRAINT") and cursor.word(2) == "CHECK"):
            name = cursor.name("the name of a constraint") if cursor.skip("CONSTRAINT") else None
            self.checks.append(read_check(cursor, name))
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

    def _table_key(self) -> None:
        if not self._cursor.ahead("("):
            raise self._cursor.refusal("expected PRIMARY KEY (column, …) NOT ENFORCED")
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
        name = cursor.name("a column, PRIMARY KEY or INDEX")
        self._refuse_column_features()
        interval = read_interval(cursor)
        type_, length = (types.INTERVAL, None) if interval else read_column_type(cursor)
        column = Column(
            name, type_, length=length, interval=None if interval == types.WHOLE_INTERVAL else interval
        )
        while not (cursor.at_end or any(map(cursor.ahead, (",", ")", *self._ends)))):
            if cursor.skip("NOT", "NULL"):
                column = replace(column, nullable=False)
            elif column.comment is None and cursor.skip("COMMENT"):
                column = replace(column, comment=cursor.string("a comment in quotes"))
            elif column.metadata is None and cursor.skip("METADATA"):
                key = cursor.string("a metadata key in quotes") if cursor.skip("FROM") else name
                column = replace(column, metadata=key, virtual=cursor.skip("VIRTUAL"))
            elif column.default is None and cursor.skip("DEFAULT"):
                column = replace(column, default=read_default(cursor, self._ends))
            elif cursor.ahead("CHECK", "("):
                self.checks.append(read_check(cursor))
            elif cursor.ahead("CONSTRAINT") and cursor.word(2) == "CHECK":
                cursor.expect("CONSTRAINT")
                self.checks.append(read_check(cursor, cursor.name("the name of a constraint")))
            else:
                self._column_key(name)
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
        self.watermark = Watermark(column, _delay(cursor) if cursor.skip("-") else 0)

    def _column_key(self, name: str) -> None:
        cursor = self._cursor
        if cursor.skip("CONSTRAINT"):
            cursor.name("the name of a constraint")
        if not cursor.skip("PRIMARY", "KEY"):
            self._refuse_column_features()
            raise cursor.refusal(
                "expected NOT NULL, METADATA [FROM 'key'] [VIRTUAL], PRIMARY KEY NOT ENFORCED, DEFAULT, "
                "CHECK (…), COMMENT, or the next column"
            )
        self._not_enforced("PRIMARY KEY")
        self._set_key((name,))

    def _refuse_column_features(self) -> None:
        for word, reason in _COLUMN_REFUSALS.items():
            if self._cursor.ahead(word):
                raise self._cursor.refusal(reason)


def read_default(cursor: Cursor, ends: Sequence[str] = ()) -> str:
    """Read the expression after DEFAULT: up to what else may be said of a column."""
    others = (("NOT", "NULL"), ("PRIMARY", "KEY"), ("CHECK", "("))
    words = ("CONSTRAINT", "METADATA", "DEFAULT", *ends)

    def is_next() -> bool:
        comes_comment = cursor.ahead("COMMENT") and cursor.is_string(1)
        return comes_comment or cursor.word(0) in words or any(cursor.ahead(*pair) for pair in others)

    return cursor.raw("an expression", is_next)


def of_connector(schema: TableSchema, checks: Sequence[WrittenCheck], subject: str) -> TableSchema:
    """A schema of a table whose rows another system writes too: a VARCHAR has no length there, as in Flink.

    Raises:
        SchemaError: it has what nothing would enforce: CHAR(n), DEFAULT or CHECK.
    """
    for column in schema.columns:
        found = column.length if column.length is not None and column.length.is_padded else None
        if found is not None or column.default is not None:
            what, remedy = (found, "STRING") if found else ("DEFAULT", "the value in INSERT")
            raise SchemaError(
                f"{subject}: column {column.name!r} has {what}, which needs a managed table; use {remedy}"
            )
    if texts := [*(check.text for check in checks), *(check.text for check in schema.checks)]:
        raise SchemaError(
            f"{subject}: CHECK ({texts[0]}) needs a managed table, for into this one others write too; leave "
            "it out"
        )
    return replace(schema, columns=tuple(replace(column, length=None) for column in schema.columns))


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
        schema = TableSchema(tuple(elements.columns), key)
    except SchemaError as cause:
        raise SchemaError(f"columns: {cause}") from None
    return of_connector(schema, elements.checks, "columns")


_DECLARATION: Final = re.compile(r"METADATA(?:\s+FROM\s+'((?:[^']|'')*)')?(\s+VIRTUAL)?", re.IGNORECASE)
_ATTEMPT: Final = re.compile(r"METADATA\s+(FROM|VIRTUAL)\b.*", re.DOTALL)


def metadata_from_comment(text: str) -> tuple[str | None, bool] | None:
    """The metadata key and whether the column is VIRTUAL, of a comment that declares a METADATA column.

    Spark's own schemas cannot hold FLIP-107's declaration, but their comments reach a source. The key is None
    where it is the column's name; all is None for a comment that is only a comment.

    Raises:
        SchemaError: the comment begins like a declaration and is none.

    >>> metadata_from_comment("METADATA FROM 'timestamp' VIRTUAL"), metadata_from_comment("when it was")
    (('timestamp', True), None)
    """
    if match := _DECLARATION.fullmatch(text.strip()):
        return match[1] and match[1].replace("''", "'"), match[2] is not None
    if _ATTEMPT.fullmatch(text.strip()):
        raise SchemaError(f"a column's comment must read METADATA [FROM 'key'] [VIRTUAL], got {text!r}")
    return None
