"""Comparisons with literals in a WHERE: what a reader may leave unread, and what DELETE deletes (pure).

A reader may leave out only rows that the query drops anyway, by its own WHERE. So conditions that Spark
evaluates differently from the store are passed over, as are those that may be true of a row that an outer
join pads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
from sqlglot import exp

from upsert import types
from upsert.errors import SchemaError
from upsert.schema import TableSchema
from upsert.sql.dialect import spelled, visible_name

OPERATORS: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}

_MIRRORED: Final = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

_OPPOSITES: Final = {"=": "!=", "<": ">=", ">": "<=", "in": "not in", "is null": "is not null"}
_NEGATED: Final = _OPPOSITES | {other: one for one, other in _OPPOSITES.items()}
_TIMES: Final = (exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPNTZ)


class Comparison(NamedTuple):
    """A column compared with literals, before it is known what table the column is of.

    Attributes:
        operator: one of ``upsert.store.predicate.OPERATORS``.
        values: none for a test for NULL, else one or, for a list, several literals.
        table: the names that stand before the column; none for nothing.
    """

    column: str
    operator: str
    values: tuple[exp.Expr, ...] = ()
    table: tuple[str, ...] = ()


def comparisons(table: exp.Table, select: exp.Select) -> tuple[Comparison, ...]:
    """The comparisons in the WHERE of an understood query that are of this one of its tables.

    Where there are other tables, only those that are never true of NULL: an outer join may pad the table's
    columns with NULLs.
    """
    where, alias = select.args.get("where"), table.args.get("alias")
    if where is None:
        return ()
    if alias is not None and alias.columns:
        return ()  # a name may be that of another column
    if any(around.alias for around in brackets(table)):
        return ()  # outside of them the table's own name may be that of a column
    others = bool(select.args.get("joins") or select.args.get("laterals"))
    source = select.args.get("from_")
    if source is None or (not others and source.this is not table):
        return ()
    is_renamed = table.alias or not isinstance(table.this, exp.Identifier)
    name = [visible_name(table)] if is_renamed else [part.name for part in table.parts]
    return tuple(
        each
        for each in compared(where.this)
        if (ends_with(name, each.table) if each.table else not others)
        and not (others and each.operator == "is null")
    )


def compared(condition: exp.Expr) -> list[Comparison]:
    """The comparisons of columns with literals that must all hold where a condition is true."""
    return [found for part in conjuncts(condition) if (found := _comparison(part)) is not None]


def brackets(table: exp.Table) -> Iterator[exp.Subquery]:
    """The brackets around a table and what is joined to it, which are no query: ``(a JOIN b) AS c``."""
    node = table.parent
    while isinstance(node, exp.Subquery) or (node is not None and not isinstance(node, exp.Query)):
        if isinstance(node, exp.Subquery):
            yield node
        node = node.parent


def ends_with(name: Sequence[str], last: Sequence[str]) -> bool:
    """Whether the last parts of a table's full name are these; before a column they mean that table.

    >>> name = ["main", "default", "orders"]
    >>> ends_with(name, ["DEFAULT", "orders"]), ends_with(name, ["orders", "orders"])
    (True, False)
    """
    return [part.lower() for part in name[-len(last) :]] == [part.lower() for part in last]


def pushed(
    comparisons: Iterable[Comparison], schema: TableSchema, zone: str | None
) -> list[tuple[str, str, Any]]:
    """The comparisons as a ``where`` of the store's: those that it judges as Spark does.

    Times are written in ``zone``, the session's; without one those are passed over that name none.

    >>> import sqlglot
    >>> tree = sqlglot.parse_one("SELECT * FROM t WHERE a = 1 AND b > 'x' AND a = 'y'", dialect="spark")
    >>> schema = TableSchema.of({"a": pa.int32(), "b": pa.string()})
    >>> pushed(comparisons(tree.find(sqlglot.exp.Table), tree), schema, "UTC")
    [('a', '=', 1), ('b', '>', 'x')]
    """
    by_name: dict[str, list[str]] = {}
    for name in schema.names:
        by_name.setdefault(name.lower(), []).append(name)
    found = []
    for comparison in comparisons:
        names = by_name.get(comparison.column.lower(), [])
        if len(names) == 1 and (own := _of_column(comparison, names[0], schema, zone)) is not None:
            found.append(own)
    return found


def alternatives(
    condition: exp.Expr, schema: TableSchema, zone: str | None, subject: str, table: str
) -> list[list[tuple[str, str, Any]]]:
    """A condition as the store's filters take it: one of several lists of comparisons must hold.

    Raises:
        SchemaError: a part of it is no comparison of a column with literals. What has another name before it
            than that of the ``table``, the full one, may be a field of a column.
    """
    found = []
    for part in _normal(condition, subject, negated=False):
        if other := next((c for c in part if c.table and not ends_with(table.split("."), c.table)), None):
            raise SchemaError(
                f"{subject}: {'.'.join((*other.table, other.column))!r} must be a column of table {table!r}; "
                "name the column alone"
            )
        own = pushed(part, schema, zone)
        if len(own) < len(part):
            raise _unfit(next(c for c in part if not pushed([c], schema, zone)), schema, zone, subject)
        found.append(own)
    return found


def _unfit(comparison: Comparison, schema: TableSchema, zone: str | None, subject: str) -> SchemaError:
    """The refusal of a comparison that the store may judge otherwise than Spark."""
    given = comparison.column
    alike = [name for name in schema.names if name.lower() == given.lower()]
    name = alike[0] if len(alike) == 1 else given
    type_ = schema.type_of(name, subject)
    if _may_find_nan(comparison.operator, type_):
        return SchemaError(
            f"{subject}: column {name!r}, of {types.sql_name(type_)}, must be compared by =, IN, < or <=, "
            f"got {comparison.operator!r}: to SQL NaN is the largest number, in files it is none"
        )
    in_zone = " with a zone, as '2020-10-01 08:00:00Z'" if (type_, zone) == (types.TIMESTAMP, None) else ""
    found = ", ".join(spelled(value) for value in comparison.values)
    return SchemaError(
        f"{subject}: the comparison {comparison.operator!r} of column {name!r} needs literals of its type, "
        f"{types.sql_name(type_)}{in_zone}, got {found}"
    )


_MOST_ALTERNATIVES: Final = 100


def _normal(condition: exp.Expr, subject: str, *, negated: bool) -> list[list[Comparison]]:
    """The condition as alternatives of comparisons that must all hold."""
    match condition:
        case exp.Paren(this=inner):
            return _normal(inner, subject, negated=negated)
        case exp.Not(this=inner):
            return _normal(inner, subject, negated=not negated)
        case exp.And() | exp.Or():
            left = _normal(condition.left, subject, negated=negated)
            right = _normal(condition.right, subject, negated=negated)
            if isinstance(condition, exp.Or) != negated:
                return left + right
            if len(left) * len(right) > _MOST_ALTERNATIVES:
                raise SchemaError(f"{subject}: the condition has too many alternatives; delete in steps")
            return [one + other for one in left for other in right]
        case exp.Between():
            low, high = _bounds(condition)
            return _normal(exp.And(this=low, expression=high), subject, negated=negated)
    found = _comparison(condition)
    if found is None:
        raise SchemaError(
            f"{subject}: expected comparisons of columns with literals, joined by AND, OR and NOT, found "
            f"{spelled(condition)!r}; for other conditions select the rows, and give them to table.write "
            "with _row_kind '-D'"
        )
    return [[found._replace(operator=_NEGATED[found.operator]) if negated else found]]


def conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    """The conditions of which all must hold, in their order."""
    match condition:
        case exp.Paren(this=inner):
            yield from conjuncts(inner)
        case exp.And():
            yield from conjuncts(condition.left)
            yield from conjuncts(condition.right)
        case exp.Between():
            yield from _bounds(condition)
        case _:
            yield condition


def _bounds(condition: exp.Between) -> tuple[exp.Expr, exp.Expr]:
    """``a BETWEEN b AND c`` as two comparisons."""
    low, high = (condition.args[end].copy() for end in ("low", "high"))
    return (
        exp.GTE(this=condition.this.copy(), expression=low),
        exp.LTE(this=condition.this.copy(), expression=high),
    )


def _comparison(condition: exp.Expr) -> Comparison | None:
    """A comparison of a column with literals; None for any other condition."""
    match condition:
        case exp.Is(this=exp.Column() as column, expression=exp.Null()):
            return Comparison(column.name, "is null", (), _before(column))
        case exp.Not(this=exp.Is(this=exp.Column() as column, expression=exp.Null())):
            return Comparison(column.name, "is not null", (), _before(column))
        case exp.In(this=exp.Column() as column) if _is_list(condition):
            return Comparison(column.name, "in", tuple(condition.expressions), _before(column))
        case exp.Not(this=exp.In(this=exp.Column() as column) as inner) if _is_list(inner):
            return Comparison(column.name, "not in", tuple(inner.expressions), _before(column))
    if not isinstance(condition, exp.Binary) or (operator := OPERATORS.get(type(condition))) is None:
        return None
    left, right = condition.left, condition.right
    if isinstance(right, exp.Column) and _is_literal(left):
        left, right, operator = right, left, _MIRRORED[operator]
    if isinstance(left, exp.Column) and _is_literal(right):
        return Comparison(left.name, operator, (right,), _before(left))
    return None


def _before(column: exp.Column) -> tuple[str, ...]:
    """What stands before a column: names of its table, or columns of which it is a field."""
    return tuple(part.name for part in column.parts[:-1])


def _is_list(condition: exp.Expr) -> bool:
    return bool(condition.expressions) and all(map(_is_literal, condition.expressions))


def _is_literal(node: exp.Expr) -> bool:
    match node:
        case exp.Literal() | exp.Boolean() | exp.Neg(this=exp.Literal()):
            return True
        case exp.Interval() | exp.Neg(this=exp.Interval()):
            return True
        case exp.Cast(this=exp.Literal()):
            is_time_of_day = node.to.this is exp.DType.TIME and not node.to.expressions
            return is_time_of_day or node.to.this in _TIMES
    return False


def literal_tree(value: object) -> exp.Expr | None:
    """A value as the literal that means the same to Spark and to the store; None where there is none.

    A float is a DOUBLE, so its literal has an exponent; what a time without a zone means is Spark's matter,
    and so are those before 1900, where Java's calendar begins to differ.

    >>> [literal_tree(value).sql() for value in (7, Decimal("7"), Decimal("-1E+3"), -0.5)]
    ['7', '7.', '-1000.', '-0.5e0']
    """
    match value:
        case None:
            return exp.Null()
        case bool():
            return exp.Boolean(this=value)
        case int() if -1 << 63 <= value < 1 << 63:
            return exp.Literal.number(int(value))  # the text of one of an enum is its name
        case float() if math.isfinite(value):
            text = repr(abs(float(value))).replace("e+", "e")
            literal = exp.Literal.number(text if "e" in text else f"{text}e0")
            return exp.Neg(this=literal) if math.copysign(1, value) < 0 else literal
        case Decimal() if value.is_finite():
            text = format(value.copy_abs(), "f")
            literal = exp.Literal.number(text if "." in text else f"{text}.")
            return exp.Neg(this=literal) if value < 0 else literal
        case str():
            return exp.Literal.string(str.__str__(value))  # likewise
        case datetime() if value.tzinfo is not None and 1900 < value.year < 9999:
            text = f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}Z"
            return exp.Cast(
                this=exp.Literal.string(text), to=exp.DataType.build("timestamp", dialect="spark")
            )
        case date() if not isinstance(value, datetime):
            return exp.Cast(this=exp.Literal.string(value.isoformat()), to=exp.DataType.build("date"))
    return None


def _of_column(
    comparison: Comparison, name: str, schema: TableSchema, zone: str | None
) -> tuple[str, str, Any] | None:
    """The comparison for the store; None where it may judge otherwise than Spark."""
    type_ = schema.type_of(name)
    if not comparison.values:
        return name, comparison.operator, None
    if _may_find_nan(comparison.operator, type_):
        return None
    values = [value_in(literal, type_, zone) for literal in comparison.values]
    if any(value is None for value in values):
        return None
    return name, comparison.operator, values if comparison.operator in ("in", "not in") else values[0]


def _may_find_nan(operator: str, type_: pa.DataType) -> bool:
    """Whether a comparison is true of NaN: to Spark it is the largest number, to the store none is."""
    return pa.types.is_floating(type_) and operator not in ("=", "in", "<", "<=")


def value_in(literal: exp.Expr, type_: pa.DataType, zone: str | None) -> Any:
    """The literal as a value of the column's type; None where Spark would cast one of the two."""
    match literal:
        case exp.Boolean():
            return bool(literal.this) if type_ == pa.bool_() else None
        case exp.Neg(this=exp.Literal() | exp.Interval() as inner):
            positive = value_in(inner, type_, zone)
            return negative(positive) if isinstance(positive, int | float | Decimal | timedelta) else None
        case exp.Interval():
            found = interval_literal(literal) if type_ == types.INTERVAL else None
            return found if found is None or abs(found) <= _LONGEST else None
        case exp.Literal(is_string=True):
            return literal.name if type_ == pa.string() else None
        case exp.Literal():
            return _number(literal.name, type_)
        case exp.Cast():
            return _time(literal.this.name, literal.to.this, type_, zone)
    return None


def negative(value: Any) -> Any:
    """A number or an interval with the other sign and all digits: of a Decimal Python's minus keeps 28.

    >>> negative(Decimal("12345678901234567890.1234567890"))
    Decimal('-12345678901234567890.1234567890')
    """
    return value.copy_negate() if isinstance(value, Decimal) else -value


def _number(text: str, type_: pa.DataType) -> int | float | Decimal | None:
    try:
        number = Decimal(text)
    except ArithmeticError:
        return None
    if pa.types.is_decimal(type_):
        return number if _compares_exactly(text, type_) else None
    whole = int(number) if text.removesuffix(".").isdigit() else None
    if pa.types.is_integer(type_):
        return whole if whole is not None and whole < 1 << 63 else None
    if type_ == pa.float32() and whole is not None and whole > _MOST_OF_FLOAT:
        return None  # without its ANSI mode Spark makes a FLOAT of it
    found = float(number) if pa.types.is_floating(type_) else None
    return None if found is None or math.isinf(found) else found  # Spark has no literal for it


_MOST_OF_FLOAT: Final = 1 << 24
"""Each whole number up to this one is a FLOAT."""


def _compares_exactly(text: str, type_: pa.DataType) -> bool:
    """Whether Spark compares a literal with decimals of a type by all of their digits.

    One with an exponent is a DOUBLE. For any other Spark takes a type that holds both, and rounds where that
    would have more digits than there are.
    """
    before, _, behind = text.partition(".")
    if not (before + behind).isdigit() or len(behind) > type_.scale:
        return False
    digits = max(len(before.lstrip("0")) or int(not behind), type_.precision - type_.scale)
    return bool(digits + type_.scale <= types.MAX_DECIMAL_PRECISION)


def _time(text: str, kind: Any, type_: pa.DataType, zone: str | None) -> date | datetime | time | None:
    try:
        if kind is exp.DType.TIME:
            return _time_of_day(text) if pa.types.is_time(type_) else None
        if kind is exp.DType.DATE:
            return types.day_of(text) if type_ == pa.date32() else None
        if type_ != types.TIMESTAMP or kind is exp.DType.TIMESTAMPNTZ or _zones_may_differ(text, zone):
            return None
        return instant(text, zone)
    except ValueError:
        return None


def _time_of_day(text: str) -> time | None:
    """The time that a text says; None where it has nanoseconds, which Python's times lack."""
    moment: time = types.times_of(pa.array([text]), pa.time64("us"))[0].as_py()
    return moment


def instant(text: str, zone: str | None) -> datetime:
    """The time that a text says, in UTC; of the session's zone unless it names another one.

    Raises:
        ValueError: the text is no time that Python has, or names no zone where none is given.

    >>> instant("2020-10-01 08:00:00", "Europe/Berlin")
    datetime.datetime(2020, 10, 1, 6, 0, tzinfo=datetime.timezone.utc)
    """
    try:
        return _in_zone(text, zone).astimezone(UTC)
    except OverflowError as cause:
        raise ValueError(f"{text!r} is not within the years 1 to 9999 of UTC") from cause


def _in_zone(text: str, zone: str | None) -> datetime:
    found = types.moment_of(text)
    return found.replace(tzinfo=_zone(zone)) if found.tzinfo is None else found


def _zones_may_differ(text: str, zone: str | None) -> bool:
    """Whether Spark may take the time for another one."""
    found = _in_zone(text, zone)
    return isinstance(found.tzinfo, ZoneInfo) and found.year < _ZONES_AGREE_FROM


_ZONES_AGREE_FROM: Final = 2000
"""Java and Python have tables of zones of their own, which differ in earlier years.

In Europe/Amsterdam and a hundred others that is so before 1970, in some of no place, as EET, until 1996.
"""


_LONGEST: Final = timedelta(microseconds=(1 << 63) - 1)
"""Arrow takes none of Python's that is longer, so not the first interval of all."""

_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{1,2}))?(?::?([0-9]{2}))?")


def _zone(name: str | None) -> tzinfo:
    """The zone of a name that a session may have, as ``Europe/Berlin``, ``+02:00`` or ``UTC+2``."""
    if name is None:
        raise ValueError("no zone is given")
    if (offset := _OFFSET.fullmatch(name)) is not None:
        sign, *parts = offset.groups(default="0")
        hours, minutes, seconds = map(int, parts)
        span = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return timezone(-span if sign == "-" else span)
    try:
        return UTC if name in ("Z", "UTC", "GMT", "Etc/UTC") else ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError) as cause:  # such as Java's PST
        raise ValueError(f"zone {name!r} is not known") from cause


_UNIT_SECONDS: Final = {"DAY": 86_400, "HOUR": 3_600, "MINUTE": 60, "SECOND": 1}
_NUMBER: Final = re.compile(r"\s*([+-]?[0-9]{1,14})(\.[0-9]{1,6})?\s*")
_SPAN: Final = re.compile(
    r"\s*([+-]?)([0-9]{1,9}) ([01]?[0-9]|2[0-3]):([0-5]?[0-9]):([0-5]?[0-9](?:\.[0-9]{1,6})?)\s*"
)


def interval_literal(node: exp.Interval) -> timedelta | None:
    """What ``INTERVAL '1' DAY`` or ``INTERVAL '1 02:03:04.5' DAY TO SECOND`` is; None for other intervals.

    >>> import sqlglot
    >>> interval_literal(sqlglot.parse_one("INTERVAL '-1 00:00:01.5' DAY TO SECOND", dialect="spark"))
    datetime.timedelta(days=-2, seconds=86398, microseconds=500000)
    >>> interval_literal(sqlglot.parse_one("INTERVAL '1-2' YEAR TO MONTH", dialect="spark"))
    """
    value, unit = node.this, node.args.get("unit")
    if not isinstance(value, exp.Literal):
        return None
    if isinstance(unit, exp.IntervalSpan):
        is_whole = (unit.this.name.upper(), unit.expression.name.upper()) == ("DAY", "SECOND")
        found = _SPAN.fullmatch(value.name) if is_whole else None
        if found is None:
            return None
        sign, days, hours, minutes, seconds = found.groups()
        micros = int(Decimal(seconds) * 1_000_000)
        size = timedelta(days=int(days), hours=int(hours), minutes=int(minutes), microseconds=micros)
        return -size if sign == "-" else size
    each = None if unit is None else _UNIT_SECONDS.get(unit.name.upper().removesuffix("S"))
    number = _NUMBER.fullmatch(value.name)
    if each is None or number is None or (number[2] and each > 1):
        return None
    try:
        return timedelta(microseconds=int(Decimal(value.name.strip()) * each * 1_000_000))
    except OverflowError:
        return None
