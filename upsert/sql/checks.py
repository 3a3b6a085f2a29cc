"""The text of a CHECK to a condition that the store evaluates, and the text of a DEFAULT, checked (pure).

A row is checked wherever it is staged, without Spark. So a CHECK may say what `upsert.conditions` evaluates
exactly as Spark does; any other part of it is refused by its text. Literals take the types that Spark gives
them, and values of two types of numbers meet in one that holds both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from decimal import Context, Decimal, InvalidOperation
from itertools import count
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from upsert import types
from upsert.conditions.evaluate import DIGITS, type_of
from upsert.conditions.expressions import Call, Cast, Condition, Const, Field, Ref
from upsert.errors import ConfigurationError, SchemaError
from upsert.schema import Check, Column, TableSchema, plainly
from upsert.sql.columns import WrittenCheck
from upsert.sql.dialect import expression_tree, spelled, too_deep
from upsert.sql.forms import check_condition, check_numbers
from upsert.sql.predicates import OPERATORS, interval_literal, negative
from upsert.sql.tokens import Cursor
from upsert.sql.types import read_type


def with_checks(schema: TableSchema, written: Sequence[WrittenCheck], subject: str) -> TableSchema:
    """The schema with constraints that a statement has; one without a name gets one.

    Raises:
        SchemaError: a part of one cannot be evaluated, or names what is no stored column, or a name is taken.
    """
    checks, taken = [*schema.checks], {check.name.lower() for check in schema.checks}
    numbers = defaultdict[str, Iterator[int]](lambda: count(1))
    for one in written:
        check = check_of(one, schema, subject)
        if one.name is None:
            names = (f"{check.name}_{number}" if number > 1 else check.name for number in numbers[check.name])
            check = replace(check, name=next(name for name in names if name.lower() not in taken))
        checks.append(check)
        taken.add(check.name.lower())
    try:
        return replace(schema, checks=tuple(checks))  # once, for it looks at all of them
    except SchemaError as cause:
        raise SchemaError(f"{subject}: {cause}") from None


def check_of(written: WrittenCheck, schema: TableSchema, subject: str) -> Check:
    """The constraint of a table that a statement has; one without a name is called by its columns."""
    of = f"{subject}: CHECK ({written.text})"

    def stored(node: exp.Column) -> Ref:
        names = [name for name in schema.names if name.lower() == node.name.lower()]
        if node.table or len(names) != 1:
            known = ", ".join(schema.names)
            raise SchemaError(
                f"{of}: unknown column {'.'.join(part.name for part in node.parts)!r}; use a column that is "
                f"stored, as a whole: {known}"
            )
        return Ref(0, names[0])

    check_numbers(written.text, of)
    condition = condition_of(written.tree, stored, lambda ref: schema.type_of(ref.column), of, "checked")
    check_condition(written.text, of)
    found = Check(written.name or "", written.text, condition)
    return found if found.name else replace(found, name="_".join(("CHECK", *found.columns)))


def condition_of(
    tree: exp.Expr,
    column: Callable[[exp.Column], Ref],
    type_of_column: Callable[[Ref], pa.DataType],
    subject: str,
    done: str,
) -> Condition:
    """The condition that an expression is.

    Args:
        tree: the expression.
        column: what a column of it is.
        type_of_column: the type of such a one.
        subject: begins errors.
        done: what rows are by it, "checked" or "joined".

    Raises:
        SchemaError: a part of it cannot be evaluated, or its types do not fit.
    """
    try:
        return _Translation(column, type_of_column, subject, done).value(tree)
    except RecursionError:
        raise too_deep(subject) from None


_COMPARISONS: Final[dict[type[exp.Expr], str]] = {**OPERATORS, exp.NullSafeEQ: "<=>"}
_ARITHMETIC: Final[dict[type[exp.Expr], str]] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
_OF_ONE: Final[dict[type[exp.Expr], str]] = {
    exp.Not: "not",
    exp.Abs: "abs",
    exp.Length: "length",
    exp.IsNan: "isnan",
    exp.Year: "year",
    exp.Month: "month",
    exp.Day: "day",
    exp.DayOfMonth: "day",
}
_OF_TEXT: Final[dict[type[exp.Expr], str]] = {
    exp.Like: "like",
    exp.StartsWith: "startswith",
    exp.EndsWith: "endswith",
    exp.Contains: "contains",
}
_LOOSE: Final = (exp.Not, exp.In, exp.Between, exp.Like)
"""What Spark applies after a comparison."""

_READ: Final = frozenset(
    {"this", "expression", "expressions", "low", "high", "start", "length", "ifs", "default", "true", "false"}
    | {"to", "negate", "safe", "coalesce", "typed", "is_string", "table", "db", "catalog", "unit"}
)
"""The arguments of nodes that are read, or mean nothing; with any other one a node means something else."""

_KNOWN: Final = (
    "comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, IS NULL, CASE, IF, COALESCE, +, -, *, ||, abs, length, "
    "substring, startswith, endswith, contains, isnan, year, month, day"
)


@dataclass(frozen=True)
class _Translation:
    """What expressions over columns of tables mean."""

    column: Callable[[exp.Column], Ref]
    type_of_column: Callable[[Ref], pa.DataType]
    subject: str
    done: str

    def value(self, node: exp.Expr) -> Condition:
        """The condition that an expression is."""
        if any(given for name, given in node.args.items() if name not in _READ):
            raise self._unknown(node)
        found = self._value(node)
        return Call("not", (found,)) if node.args.get("negate") else found

    def _value(self, node: exp.Expr) -> Condition:
        match node:
            case exp.Paren(this=inner):
                return self.value(inner)
            case exp.Column():
                return Field(self.column(node))
            case exp.Interval() | exp.Neg(this=exp.Interval()):
                return self._interval(node)
            case exp.Literal() | exp.Boolean() | exp.Null() | exp.Neg(this=exp.Literal(is_string=False)):
                return literal(node)
            case exp.Cast() | exp.TryCast():
                return self._cast(node)
            case exp.Neg(this=inner):
                return Call("neg", (self.value(inner),))
            case exp.And() | exp.Or():
                op = "and" if isinstance(node, exp.And) else "or"
                return Call(op, tuple(map(self.value, node.flatten())))
            case exp.Is(this=inner, expression=exp.Null()):
                return Call("isnull", (self.value(inner),))
            case exp.Is(this=inner, expression=exp.Boolean() as truth):
                return Call("<=>", (self.value(inner), literal(truth)))
            case exp.Between():
                value, low, high = (self.value(node.args[name]) for name in ("this", "low", "high"))
                return Call("and", (self._alike(">=", (value, low)), self._alike("<=", (value, high))))
            case exp.In(this=inner, expressions=[*options]) if options:
                return self._in(inner, options)
            case exp.DPipe():
                return Call("concat", (self.value(node.left), self.value(node.right)))
            case exp.Concat(expressions=parts):
                return Call("concat", tuple(map(self.value, parts)))
            case exp.Coalesce():
                return self._alike("coalesce", [self.value(one) for one in (node.this, *node.expressions)])
            case exp.Case():
                return self._case(node)
            case exp.If() if node.args.get("false") is not None:
                return self._case(node)
            case exp.Substring() if node.args.get("length") is not None:
                return Call(
                    "substring", tuple(self.value(node.args[name]) for name in ("this", "start", "length"))
                )
        kind = type(node)
        if kind in _COMPARISONS:
            self._check_order(node)
        if kind in _COMPARISONS or kind in _ARITHMETIC:
            op = _COMPARISONS.get(kind) or _ARITHMETIC[kind]
            return self._alike(op, (self.value(node.args["this"]), self.value(node.args["expression"])))
        if kind in _OF_ONE:
            inner = node.this.this if isinstance(node.this, exp.TsOrDsToDate) else node.this
            if inner is None:
                raise self._unknown(node)
            return Call(_OF_ONE[kind], (self.value(inner),))
        if kind in _OF_TEXT:
            return Call(_OF_TEXT[kind], (self.value(node.this), self.value(node.args["expression"])))
        raise self._unknown(node)

    def _check_order(self, node: exp.Expr) -> None:
        """Refuse a comparison whose sides Spark reads as others than sqlglot, where no brackets say which."""
        one, other = node.args["this"], node.args["expression"]
        if isinstance(one, _LOOSE) or isinstance(other, (*_LOOSE, *_COMPARISONS)):
            raise self._refusal(
                f"Spark compares from left to right, and before NOT, IN, BETWEEN and LIKE, in "
                f"{spelled(node)!r}",
                "brackets around each side",
            )

    def _interval(self, node: exp.Interval | exp.Neg) -> Const:
        found = interval_literal(node.this if isinstance(node, exp.Neg) else node)
        if found is None:
            raise self._refusal(
                f"{spelled(node)!r} is no interval that rows are {self.done} by",
                "INTERVAL '1' DAY, HOUR, MINUTE or SECOND, or INTERVAL '1 02:03:04' DAY TO SECOND",
            )
        return Const(-found if isinstance(node, exp.Neg) else found, types.INTERVAL)

    def _unknown(self, node: exp.Expr) -> SchemaError:
        return self._refusal(f"rows are {self.done} without Spark, so not by {spelled(node)!r}", _KNOWN)

    def _refusal(self, why: str, remedy: str) -> SchemaError:
        return SchemaError(f"{self.subject}: {why}; use {remedy}")

    def _type(self, condition: Condition) -> pa.DataType:
        try:
            return type_of(condition, self.type_of_column)
        except ConfigurationError as cause:
            raise SchemaError(f"{self.subject}: {plainly(cause)}") from None

    def _cast(self, node: exp.Cast | exp.TryCast) -> Condition:
        # sqlglot's Spark has no TIME
        dialect = "" if node.to.this is exp.DType.TIME else "spark"
        wanted = read_type(Cursor(node.to.sql(dialect), self.subject))
        if isinstance(node.this, exp.Literal) and node.this.is_string:
            return self._fitted(Const(node.this.name, pa.string()), wanted)
        value = self.value(node.this)
        return self._fitted(value, wanted) if isinstance(value, Const) else Cast(value, wanted)

    def _in(self, inner: exp.Expr, options: Sequence[exp.Expr]) -> Condition:
        value, *others = self._meeting([self.value(inner), *map(self.value, options)])
        if any(not isinstance(other, Const) for other in others):
            raise self._refusal("the list of IN must be literals", "OR for columns")
        return Call("in", (value, *others))

    def _case(self, node: exp.If | exp.Case) -> Condition:
        branches = [node] if isinstance(node, exp.If) else node.args["ifs"]
        given = node.this if isinstance(node, exp.Case) else None
        asked = [self.value(one.this) for one in branches]
        if given is not None:
            asked = [self._alike("=", (self.value(given), one)) for one in asked]
        last = node.args.get("false") if isinstance(node, exp.If) else node.args.get("default")
        values = [self.value(one.args["true"]) for one in branches]
        values = self._meeting([*values, *([] if last is None else [self.value(last)])])
        pairs = [part for pair in zip(asked, values, strict=False) for part in pair]
        return Call("case", (*pairs, *values[len(asked) :]))

    def _alike(self, op: str, values: Sequence[Condition]) -> Condition:
        return Call(op, tuple(self._meeting(values)))

    def _meeting(self, values: Sequence[Condition]) -> list[Condition]:
        """The values in one type, where Spark compares them in one that holds all of them."""
        found = {self._type(value) for value in values if not is_null(value)}
        if not found:
            return list(values)
        common = found.pop()
        for other in found:
            common = self._common(common, other, values)
        return [self._fitted(value, common) for value in values]

    def _common(self, one: pa.DataType, other: pa.DataType, values: Sequence[Condition]) -> pa.DataType:
        is_text = {pa.types.is_string(one), pa.types.is_string(other)} == {True, False}
        if is_text and all(isinstance(v, Const) for v in values if pa.types.is_string(self._type(v))):
            return other if pa.types.is_string(one) else one  # a text that says a day or a time
        if pa.types.is_integer(one) and pa.types.is_integer(other):
            return max(one, other, key=lambda type_: type_.bit_width)
        if _is_number(one) and _is_number(other):
            if pa.types.is_floating(one) or pa.types.is_floating(other):
                return pa.float64()
            (whole, scale), (other_whole, other_scale) = map(digits_of, (one, other))
            most = max(scale, other_scale)
            if max(whole, other_whole) + most <= types.MAX_DECIMAL_PRECISION:
                return pa.decimal128(max(whole, other_whole) + most, most)
        names = " and ".join(sorted((types.sql_name(one), types.sql_name(other))))
        raise self._refusal(f"{names} do not compare", "values of one type")

    def _fitted(self, value: Condition, wanted: pa.DataType) -> Condition:
        """The value in a type that holds it."""
        if not is_null(value) and self._type(value) == wanted:
            return value
        if not isinstance(value, Const):
            return Cast(value, wanted)
        try:
            return Const(converted(value.value, wanted), wanted)
        except (ValueError, ArithmeticError, TypeError) as cause:
            why = f" ({cause})" if str(cause) else ""
            raise self._refusal(
                f"{value.value!r} is no {types.sql_name(wanted)}{why}", "a literal of that type"
            ) from None


def is_null(value: Condition) -> bool:
    """Whether a condition is NULL, which is of any type."""
    return isinstance(value, Const) and value.value is None


def literal(node: exp.Expr) -> Const:
    """A literal in the type that Spark gives it.

    >>> import sqlglot
    >>> literal(sqlglot.parse_one("-2.50", dialect="spark"))
    Const(value=Decimal('-2.50'), type=Decimal128Type(decimal128(3, 2)))
    """
    match node:
        case exp.Null():
            return Const(None, pa.bool_())
        case exp.Boolean():
            return Const(bool(node.this), pa.bool_())
        case exp.Neg(this=exp.Literal(is_string=False) as inner):
            return _numeric(inner.name, is_negative=True)
        case exp.Literal(is_string=True):
            return Const(node.name, pa.string())
    return _numeric(node.name, is_negative=False)


def _numeric(text: str, *, is_negative: bool) -> Const:
    """The sign of a number belongs to it: the least INT and the least BIGINT are no negative values."""
    if text.isdigit():
        whole = -int(text) if is_negative else int(text)
        for type_ in (pa.int32(), pa.int64()):
            if whole in range(-1 << type_.bit_width - 1, 1 << type_.bit_width - 1):
                return Const(whole, type_)
    if "e" in text.lower():
        return Const(-float(text) if is_negative else float(text), pa.float64())
    number = Decimal(text)
    scale = max(0, -int(number.as_tuple().exponent))
    whole = max(1, len(str(abs(int(number)))))
    type_ = pa.decimal128(min(whole + scale, types.MAX_DECIMAL_PRECISION), scale)
    return Const(negative(number) if is_negative else number, type_)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal128(type_))


def digits_of(type_: pa.DataType) -> tuple[int, int]:
    """Digits before and after the point that hold every value of an integer or a decimal."""
    if pa.types.is_integer(type_):
        return DIGITS[type_.bit_width], 0
    return type_.precision - type_.scale, type_.scale


def _exactly(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        found = make(value)
        if found != value:
            raise ValueError
        return found

    return convert


_OF_DECIMALS: Final = Context(prec=types.MAX_DECIMAL_PRECISION, traps=[InvalidOperation])
"""Python's own has fewer digits than a DECIMAL."""


def converted(value: Any, type_: pa.DataType) -> Any:
    """The value of a literal in another type.

    Raises:
        ValueError: the type does not have it; a `TypeError` or an `ArithmeticError` too.
    """
    if value is None:
        return None
    if isinstance(value, str) and pa.types.is_date(type_):
        return types.day_of(value)
    if isinstance(value, str) and pa.types.is_timestamp(type_):
        moment = types.moment_of(value)
        if (moment.tzinfo is None) != (type_.tz is None):
            raise ValueError("it must say its zone" if type_.tz else "it has a zone")
        return moment if type_.tz is None else moment.astimezone(UTC)
    if isinstance(value, str) and pa.types.is_time(type_):
        return types.times_of(pa.array([value]), type_).cast(pa.time64("us"))[0].as_py()
    if isinstance(value, bool) != pa.types.is_boolean(type_):
        raise ValueError
    if isinstance(value, str) != pa.types.is_string(type_):
        raise ValueError
    if pa.types.is_integer(type_):
        found = _exactly(int)(value)
        pa.scalar(found, type_)
        return found
    if pa.types.is_floating(type_):
        return value if isinstance(value, float) else float(value) + 0.0  # zero has no sign in a DECIMAL
    if pa.types.is_decimal128(type_):
        number = Decimal(str(value))
        found = number.quantize(Decimal(1).scaleb(-type_.scale), context=_OF_DECIMALS)
        return pa.scalar(_exactly(lambda _: found)(number), type_).as_py()
    if not (isinstance(value, str) or pa.types.is_boolean(type_)):
        raise ValueError
    return value


_BY_CHANCE: Final = (exp.Rand, exp.Randn, exp.Uuid)
_NAMES_BY_CHANCE: Final = frozenset(
    {"random", "randstr", "shuffle", "uniform", "monotonically_increasing_id", "spark_partition_id"}
    | {"input_file_name", "input_file_block_start", "input_file_block_length"}
)
_CONSTANTS: Final = frozenset({"localtimestamp", "current_user", "session_user", "user"})


def check_default(column: Column, subject: str) -> None:
    """Refuse a DEFAULT that is of a row, of other rows or of chance, or a literal of another type.

    Raises:
        SchemaError: it is one of these.
    """
    if column.default is None:
        return
    of = f"{subject}: column {column.name!r}: DEFAULT {column.default}"
    tree = expression_tree(column.default, of)
    check_numbers(column.default, of)
    for node in tree.walk():
        is_column = isinstance(node, exp.Column) and node.name.lower() not in _CONSTANTS
        if is_column or isinstance(node, exp.Query | exp.AggFunc | exp.Window | exp.Star):
            raise SchemaError(
                f"{of} must be one value for all rows of a statement, found {spelled(node)!r}; write a "
                "literal or an expression of literals"
            )
        if isinstance(node, _BY_CHANCE) or (
            isinstance(node, exp.Anonymous) and node.name.lower() in _NAMES_BY_CHANCE
        ):
            raise SchemaError(
                f"{of} must be deterministic, found {spelled(node)!r}; give the value in the statement"
            )
    node = tree.unnest()
    is_literal = isinstance(node, exp.Literal | exp.Boolean | exp.Null)
    if not (is_literal or (isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal))):
        return  # Spark casts it, when a statement needs it
    found = literal(node)
    if found.value is None:
        if not column.nullable:
            raise SchemaError(f"{of} must be a value, for the column is NOT NULL; leave it out")
        return
    try:
        value = converted(found.value, column.type)
    except (ValueError, ArithmeticError, TypeError, pa.ArrowException):
        if column.type == types.TIMESTAMP and isinstance(found.value, str):
            return  # in the zone of the session
        raise SchemaError(f"{of} must be a value of {column.sql_type}; write one") from None
    if (length := column.length) is not None and value[length.characters :].strip(" "):
        raise SchemaError(f"{of} must fit into {length}; write a shorter text")
