"""The columns, keys and indexes between the parentheses of CREATE TABLE, and the types of columns (pure).

Connectors read such a list by itself (``parse_columns``), so this lies below them and the catalog.

A bare ``TIMESTAMP`` is Spark's: an instant, whatever the session's ``spark.sql.timestampType``. A spelling
that only Flink has means what it means there: ``TIMESTAMP(p)`` and ``TIMESTAMP[(p)] WITHOUT TIME ZONE`` are
wall-clock times (``TIMESTAMP_NTZ``), ``TIMESTAMP_LTZ(p)`` and ``TIMESTAMP[(p)] WITH LOCAL TIME ZONE`` are
instants. Every time is stored in microseconds: ``p`` may be 0 to 6, and values are not cut to it.

``TIME(p)`` is a time of day with ``p`` digits of a second, 6 where nothing is said; it is kept with 0, 3, 6
or 9 of them, the next more that there are.

``INTERVAL DAY TO SECOND`` may have other fields in a column, as in ``INTERVAL HOUR TO MINUTE``. Digits of a
field, as Flink has them, are read and mean nothing: days have nine, seconds six digits after the point.

``VARCHAR(n)`` and ``CHAR(n)`` are texts of a column with a length, as in Spark; what is inside of nested
types has none. ``VARBINARY(n)`` is ``BINARY``: as in Flink by default, its length is not enforced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Final

import pyarrow as pa
from sqlglot import exp

from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.schema import MAX_LENGTH, Column, ComputedColumn, Index, Length, TableSchema, Watermark
from upsert.sql.dialect import expression_tree, position
from upsert.sql.flink_words import UNITS
from upsert.sql.tokens import Cursor, blanked, names

_SCALAR_NAMES: Final[dict[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "BYTES": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": types.TIMESTAMP,
    "TIMESTAMP_LTZ": types.TIMESTAMP,
    "TIMESTAMP_NTZ": types.TIMESTAMP_NTZ,
    "VARIANT": types.VARIANT,
}
_TIME_PRECISION: Final = 6
"""Digits of a second of ``TIME``, as in Spark."""
_DECIMAL_NAMES: Final = ("DECIMAL", "DEC", "NUMERIC")
_TEXTS: Final = {"VARCHAR": False, "CHAR": True, "CHARACTER": True}
"""Texts that may have a length -> whether they are filled up with blanks."""

_ZONES: Final = {
    ("WITH", "LOCAL", "TIME", "ZONE"): types.TIMESTAMP,
    ("WITHOUT", "TIME", "ZONE"): types.TIMESTAMP_NTZ,
}

_REMEDIES: Final = {
    "CHAR": "CHAR needs a length, as in CHAR(10)",
    "CHARACTER": "CHARACTER needs a length, as in CHARACTER(10)",
    "TEXT": "use STRING",
    "DATETIME": "use TIMESTAMP_NTZ",
    "MULTISET": "use MAP<element, INT>",
    "INTERVAL": "use INT for months, and make_ym_interval in queries",
}


def read_type(cursor: Cursor) -> pa.DataType:
    """Read a column type.

    >>> read_type(Cursor("ARRAY<DECIMAL(10, 2)>"))
    ListType(list<element: decimal128(10, 2)>)
    """
    if type_ := _scalar(cursor) or _nested(cursor):
        return type_
    for name, remedy in _REMEDIES.items():
        if cursor.ahead(name):
            raise cursor.refusal(f"expected a type that tables can hold ({remedy})")
    nested = (
        "TIME(p)",
        "INTERVAL DAY TO SECOND",
        "DECIMAL(p,s)",
        "VARCHAR(n)",
        "ARRAY<…>",
        "MAP<…>",
        "STRUCT<…>",
        "ROW<…>",
    )
    raise cursor.refusal(f"expected a column type, one of {', '.join((*_SCALAR_NAMES, *nested))}")


def read_column_type(cursor: Cursor) -> tuple[pa.DataType, Length | None]:
    """Read the type of a column, which may be a text with a length.

    >>> read_column_type(Cursor("CHAR(2)"))
    (DataType(string), Length(characters=2, is_padded=True))
    """
    for name, is_padded in _TEXTS.items():
        if cursor.ahead(name, "("):
            cursor.expect(name)
            (characters,) = _parameters(cursor, f"{name}(length)", most=1)
            is_any = characters == MAX_LENGTH and not is_padded
            return pa.string(), None if is_any else Length(characters, is_padded)
    return read_type(cursor), None


def _scalar(cursor: Cursor) -> pa.DataType | None:
    if cursor.ahead("TIMESTAMP") or cursor.ahead("TIMESTAMP_LTZ"):
        return _time(cursor)
    if cursor.ahead("TIME"):
        return _time_of_day(cursor)
    if (fields := _interval(cursor)) is not None:
        if fields != types.WHOLE_INTERVAL:
            raise cursor.refusal(
                "other fields than DAY TO SECOND are of new columns, not of what is inside of ARRAY, MAP "
                "and STRUCT"
            )
        return types.INTERVAL
    for name, type_ in _SCALAR_NAMES.items():
        if cursor.skip(name):
            if cursor.ahead("("):
                raise cursor.refusal(f"type {name} has no parameters")
            return type_
    for name in _TEXTS:
        if cursor.ahead(name, "("):
            raise cursor.refusal(
                "a column has a length, what is inside of ARRAY, MAP and STRUCT has none; use STRING there"
            )
    if cursor.skip("VARCHAR"):
        return pa.string()
    if cursor.skip("VARBINARY"):
        _parameters(cursor, "VARBINARY(length)", most=1)
        return pa.binary()
    if any(cursor.skip(name) for name in _DECIMAL_NAMES):
        return _decimal(cursor)
    return None


def _nested(cursor: Cursor) -> pa.DataType | None:
    if cursor.skip("ARRAY"):
        element = cursor.listed(lambda: read_type(cursor), opened="<", closed=">")
        if len(element) != 1:
            raise cursor.refusal("ARRAY<element> has one type")
        return pa.list_(pa.field("element", element[0]))
    if cursor.skip("MAP"):
        pair = cursor.listed(lambda: read_type(cursor), opened="<", closed=">")
        if len(pair) != 2:
            raise cursor.refusal("MAP<key, value> has two types")
        return pa.map_(pair[0], pa.field("value", pair[1]))
    if cursor.skip("ROW"):
        opened, closed = ("(", ")") if cursor.ahead("(") else ("<", ">")
        return pa.struct(cursor.listed(lambda: _field(cursor), opened=opened, closed=closed))
    if cursor.skip("STRUCT"):
        return pa.struct(cursor.listed(lambda: _field(cursor), opened="<", closed=">"))
    return None


def _parameters(cursor: Cursor, form: str, most: int) -> list[int]:
    """The numbers in parentheses after a type's name; none where there are no parentheses."""
    found = cursor.listed(lambda: cursor.number("a number")) if cursor.ahead("(") else []
    if len(found) > most:
        raise cursor.refusal(f"expected {form}, no more numbers")
    return found


def _time(cursor: Cursor) -> pa.DataType:
    is_instant = cursor.skip("TIMESTAMP_LTZ")
    if not is_instant:
        cursor.expect("TIMESTAMP")
    precision = _parameters(cursor, "TIMESTAMP(precision)", most=1)
    if precision and precision[0] > 6:
        raise cursor.refusal(
            f"a precision of {precision[0]} cannot be stored: times have microseconds; use 6"
        )
    for words, type_ in _ZONES.items():
        if not is_instant and cursor.skip(*words):
            return type_
    if cursor.ahead("WITH", "TIME", "ZONE"):
        raise cursor.refusal("a time with its own zone cannot be stored; use TIMESTAMP WITH LOCAL TIME ZONE")
    return types.TIMESTAMP_NTZ if precision and not is_instant else types.TIMESTAMP


def _time_of_day(cursor: Cursor) -> pa.DataType:
    cursor.expect("TIME")
    precision, *_ = _parameters(cursor, "TIME(precision)", most=1) or (_TIME_PRECISION,)
    if precision > types.MAX_TIME_PRECISION:
        raise cursor.refusal(f"TIME(precision) needs precision ≤ {types.MAX_TIME_PRECISION}")
    if cursor.ahead("WITH", "TIME", "ZONE") or cursor.ahead("WITH", "LOCAL", "TIME", "ZONE"):
        raise cursor.refusal("a time of day has no zone; use TIME, or TIMESTAMP WITH LOCAL TIME ZONE")
    cursor.skip("WITHOUT", "TIME", "ZONE")
    return types.time_of(precision)


def _interval(cursor: Cursor) -> str | None:
    """Read ``INTERVAL first [TO last]`` of days and their parts; None, and nothing is read, for all else."""
    fields = [field for field in types.INTERVALS if " " not in field]
    if not (cursor.ahead("INTERVAL") and cursor.word(1).lower() in fields):
        return None
    cursor.expect("INTERVAL")
    found = [cursor.name("the first field of an interval").lower()]
    _parameters(cursor, "INTERVAL DAY(digits)", most=1)
    if cursor.skip("TO"):
        start = cursor.refusal(f"expected a field after {found[0].upper()}, of DAY, HOUR, MINUTE and SECOND")
        found.append(cursor.name("the last field of an interval").lower())
        _parameters(cursor, "INTERVAL DAY TO SECOND(digits)", most=1)
        if " to ".join(found) not in types.INTERVALS:
            raise start
    return " to ".join(found)


def _decimal(cursor: Cursor) -> pa.DataType:
    precision, *rest = _parameters(cursor, "DECIMAL(precision, scale)", most=2) or (10,)
    scale = rest[0] if rest else 0
    if not 1 <= precision <= types.MAX_DECIMAL_PRECISION or scale > precision:
        limit = types.MAX_DECIMAL_PRECISION
        raise cursor.refusal(f"DECIMAL(precision, scale) needs 1 ≤ precision ≤ {limit} and scale ≤ precision")
    return pa.decimal128(precision, scale)


def _field(cursor: Cursor) -> pa.Field:
    name = cursor.name("the name of a struct field")
    cursor.skip(":")
    type_ = read_type(cursor)
    nullable = not cursor.skip("NOT", "NULL")
    if cursor.ahead("COMMENT"):
        raise cursor.refusal("comments of struct fields are not kept; comment the column")
    return pa.field(name, type_, nullable=nullable)


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
        interval = _interval(cursor)
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
