"""What conditions mean for rows: Spark's own answer for the stated operators, or a refusal (pure).

NULL follows three-valued logic, NaN equals NaN and is greater than any number, -0.0 equals 0.0, text is
compared by its bytes. An integer that overflows is an error, as in Spark's ANSI mode; like Spark, AND, OR,
IF, CASE and COALESCE do not look at what earlier arguments decide, so it is one only where Spark has one. The
operators that wrap are those of Spark without ANSI mode. A sum or a product of decimals has all digits that
it may need, so it overflows nowhere.
Whatever depends on a session's time zone, on a locale or on rules by which decimals are rounded is refused
by `type_of`: `deltajoin.spark.tables` asks it for every condition before a join begins, the planner before it
accepts one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import cache, partial, reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Ints, Mask, decimal_words, decimals_of, is_null
from upsert.conditions.expressions import Call, Cast, Condition, Const, Field, Ref, walk
from upsert.errors import ConfigurationError, SchemaError


def regular_expression(pattern: str) -> str:
    r"""What a pattern matches, as a regular expression of the whole text.

    ``%`` matches any characters, ``_`` for one, a backslash takes the meaning of these and its own away.

    >>> regular_expression("a%\\_")
    '(?s)\\Aa.*_\\z'
    """
    return f"(?s)\\A{''.join(_pattern_parts(pattern))}\\z"


def check_pattern(pattern: str) -> None:
    """Refuse a pattern with a backslash where Spark fails too, or too long to compare in linear time."""
    try:
        pc.match_substring_regex(pa.array([""]), regular_expression(pattern))
    except pa.ArrowInvalid as cause:
        raise ConfigurationError(
            f"LIKE pattern {pattern[:40]!r}…: it must be short enough to be compared at once, got "
            f"{len(pattern)} signs; compare with substring or length"
        ) from cause


def _pattern_parts(pattern: str) -> Iterator[str]:
    letters = iter(pattern)
    for letter in letters:
        match letter:
            case "%":
                yield ".*"
            case "_":
                yield "."
            case "\\":
                escaped = next(letters, "")
                if escaped not in ("%", "_", "\\"):
                    raise ConfigurationError(
                        f"LIKE pattern {pattern!r}: a backslash must stand before %, _ or a backslash, "
                        f"got {escaped!r}"
                    )
                yield re.escape(escaped)
            case _:
                yield re.escape(letter)


Types = Callable[[Ref], pa.DataType]

TEXT_WITH_CONSTANTS: Final = ("like", "startswith", "endswith", "contains", "substring")
"""Functions of a text whose other arguments must be constants."""

DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}
"""Digits of a decimal that holds every integer of so many bits, as Spark counts them."""

_FEWEST_DIGITS: Final = {**DIGITS, 64: 19}
"""The same, as few as there may be."""

_MOST_DIGITS: Final = 38
_MOST_EXACT_DIGITS: Final = 76
"""The same of what is computed with all digits before it is rounded."""

MOST_NEGATED_DIGITS: Final = 34
"""Spark rounds a decimal with more digits than these where it turns its sign."""


def type_of(condition: Condition, types_of: Types) -> pa.DataType:
    """The type of a condition's value."""
    match condition:
        case Field(ref):
            return types_of(ref)
        case Const(_, type_):
            return type_
        case Cast(value, type_):
            of = type_of(value, types_of)
            if of != type_ and not _is_widening(of, type_):
                raise ConfigurationError(
                    f"condition {condition}: a cast must lose nothing and depend on no time zone, "
                    f"got {types.sql_name(of)} to {types.sql_name(type_)}; store the column with this type"
                )
            return type_
        case Call(_, args):
            return _type_of_call(condition, [type_of(arg, types_of) for arg in args])


def check_is_condition(condition: Condition, types_of: Types) -> None:
    """Refuse a condition whose type is not BOOLEAN, or that ``type_of`` refuses."""
    if (found := type_of(condition, types_of)) != pa.bool_():
        raise ConfigurationError(
            f"condition {condition}: must be BOOLEAN, is {types.sql_name(found)}; compare it with a value"
        )


def _type_of_call(call: Call, args: list[pa.DataType]) -> pa.DataType:
    need = partial(_need, call, args)
    if call.op not in ("isnull", "isnotnull"):
        need(all(map(types.is_scalar, args)), "values must be of scalar types")
    match call.op.removeprefix("wrapping "):
        case "=" | "<=>" | "!=" | "<" | "<=" | ">" | ">=" | "in" as op:
            are_integers = all(map(pa.types.is_integer, args))
            need(are_integers or len(set(args)) == 1, "values must have one type, or be integers")
            if op == "in":
                need(all(isinstance(arg, Const) for arg in call.args[1:]), "the list must be constants")
        case "and" | "or" | "not":
            need(all(map(pa.types.is_boolean, args)), "values must be BOOLEAN")
        case "isnan":
            need(pa.types.is_floating(args[0]), "the value must be FLOAT or DOUBLE")
        case "+" | "-" | "*" as op if all(map(pa.types.is_decimal, args)):
            found = _type_of_decimals(op, *args)
            need(found is not None, f"the result must have at most {_MOST_DIGITS} digits")
            return found
        case "neg" | "abs" if pa.types.is_decimal(args[0]):
            return args[0]
        case "+" | "-" | "*" | "neg" | "abs":
            are_numbers = pa.types.is_integer(args[0]) or pa.types.is_floating(args[0])
            need(
                are_numbers and len(set(args)) == 1,
                "values must be decimals, or integers, FLOAT or DOUBLE of one type",
            )
            return args[0]
        case "given":
            return args[0]
        case "/" if len(args) == 2:
            need(pa.types.is_floating(args[0]) and args[0] == args[1], "values must be FLOAT or DOUBLE")
            return args[0]
        case "/" | "rounded +" | "rounded -" | "rounded *":
            need(all(map(pa.types.is_decimal, args)), "values must be decimals")
            need(call.args[2] == Const(None, args[2]), "the result's type must be that of a NULL")
            digits = 0 if call.op == "/" else _all_digits(call.op.removeprefix("rounded "), *args[:2])[0]
            need(digits <= _MOST_EXACT_DIGITS, f"all digits of it must be at most {_MOST_EXACT_DIGITS}")
            return args[2]
        case "if" | "case" as op:
            pairs = len(args) // 2
            values = args[1::2] + args[2 * pairs :]
            need(all(map(pa.types.is_boolean, args[: 2 * pairs : 2])), f"conditions of {op} must be BOOLEAN")
            need(len(set(values)) == 1, "all values must have one type")
            return values[0]
        case "coalesce":
            need(len(set(args)) == 1, "all values must have one type")
            return args[0]
        case "year" | "month" | "day":
            need(pa.types.is_date(args[0]), "the value must be a DATE: times depend on a time zone")
            return pa.int32()
        case "length":
            is_text = pa.types.is_string(args[0]) or pa.types.is_binary(args[0])
            need(is_text, "the value must be STRING or BINARY")
            return pa.int32()
        case "concat" | "upper" | "lower" | "trim" | "ltrim" | "rtrim":
            need(all(map(pa.types.is_string, args)), "values must be STRING")
            return pa.string()
        case "text":
            has_letters = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date)
            need(
                any(is_one(args[0]) for is_one in has_letters),
                "the value must be an integer, BOOLEAN or DATE",
            )
            return pa.string()
        case "%" | "pmod":
            need(args[0] == args[1] and args[0] in (pa.int32(), pa.int64()), "values must be INT or BIGINT")
            return args[0]
        case "greatest" | "least":
            compared = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_string, pa.types.is_date)
            need(len(set(args)) == 1, "all values must have one type")
            need(
                any(is_one(args[0]) for is_one in compared),
                "values must be integers, decimals, STRING or DATE",
            )
            return args[0]
        case "date +" | "date -":
            need(pa.types.is_date(args[0]) and args[1] == pa.int32(), "values must be a DATE and an INT")
            return args[0]
        case "days":
            need(all(map(pa.types.is_date, args)), "values must be DATE")
            return pa.int32()
        case op if op in TEXT_WITH_CONSTANTS:
            return _text_with_constants(call, args)
    return pa.bool_()


def _type_of_decimals(op: str, one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of a sum, a difference or a product with all of its digits; None if these are too many."""
    digits, scale = _all_digits(op, one, other)
    return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else None


def _all_digits(op: str, one: pa.DataType, other: pa.DataType) -> tuple[int, int]:
    """How many digits a sum, a difference or a product has at most, and how many behind the point."""
    if op == "*":
        return one.precision + other.precision + 1, one.scale + other.scale
    scale = max(one.scale, other.scale)
    return max(one.precision - one.scale, other.precision - other.scale) + scale + 1, scale


def _text_with_constants(call: Call, args: list[pa.DataType]) -> pa.DataType:
    need = partial(_need, call, args)
    texts = args[:1] if call.op == "substring" else args
    need(all(map(pa.types.is_string, texts)), "values must be STRING")
    constants = [arg.value for arg in call.args[1:] if isinstance(arg, Const)]
    need(len(constants) == len(args) - 1, "arguments after the first must be constants")
    if call.op == "substring":
        are_numbers = all(n is None or (type(n) is int and n >= 0) for n in constants)
        need(are_numbers, "position and length must be numbers from 0")
        return pa.string()
    if call.op == "like" and constants[0] is not None:
        check_pattern(constants[0])
    return pa.bool_()


def _is_widening(of: pa.DataType, to: pa.DataType) -> bool:
    if pa.types.is_integer(of) and pa.types.is_decimal(to):
        return bool(to.precision - to.scale >= _FEWEST_DIGITS[of.bit_width])
    is_fractional = pa.types.is_integer(of) and pa.types.is_floating(to)
    is_midnight = pa.types.is_date(of) and to == types.TIMESTAMP_NTZ
    return bool(is_fractional or is_midnight or types.widens(of, to))


def _need(call: Call, args: Sequence[pa.DataType], is_met: bool, rule: str) -> None:
    if not is_met:
        found = ", ".join(map(types.sql_name, args))
        raise ConfigurationError(f"condition {call}: {rule}, got {found}; write the condition otherwise")


CAN_FAIL: Final = frozenset(
    {"+", "-", "*", "neg", "abs", "/", "rounded +", "rounded -", "rounded *", "given"}
    | {"%", "pmod", "date +", "date -", "days", "upper", "lower", "text"}
)
"""Operators that overflow, or of which a value of an argument is an error."""


def mask(condition: Condition, column: Callable[[Ref], pa.Array], rows: int) -> Mask:
    """For each row whether the condition, one that ``type_of`` accepts, is true; NULL is not."""
    return as_mask(_Rows(column, rows, {}).value(condition))


def as_mask(values: pa.Array) -> Mask:
    """For each value whether it is true; NULL is not."""
    known = pc.fill_null(values, False) if values.null_count else values
    found: Mask = known.to_numpy(zero_copy_only=False)
    return found


def value(
    condition: Condition, column: Callable[[Ref], pa.Array], rows: int, known: dict[int, pa.Array]
) -> pa.Array:
    """For each row the value of a condition, one that ``type_of`` accepts, of any type.

    ``known`` has the values of parts by their ``id``, for other conditions on the same rows that share them.
    """
    return _Rows(column, rows, known).value(condition)


@dataclass(frozen=True)
class _Rows:
    """The rows for which a part of a condition is asked: all, or those at some positions."""

    column: Callable[[Ref], pa.Array]
    count: int
    known: dict[int, pa.Array]

    def value(self, condition: Condition) -> pa.Array:
        if isinstance(condition, Field):
            return self.column(condition.ref)
        if (found := self.known.get(id(condition))) is None:
            found = self.known[id(condition)] = self.computed(condition)
        return found

    def computed(self, condition: Condition) -> pa.Array:
        match condition:
            case Field(ref):
                return self.column(ref)
            case Const(value, type_):
                return pa.repeat(pa.scalar(value, type_), self.count)
            case Cast(inner, type_):
                return self.as_type(inner, type_)
            case Call(op, args):
                return self.called(op, args)

    def as_type(self, inner: Condition, type_: pa.DataType) -> pa.Array:
        try:
            return cast(self.value(inner), type_)
        except pa.ArrowInvalid as cause:
            name = types.sql_name(type_)
            raise SchemaError(
                f"condition {Cast(inner, type_)}: days must be of the years that a {name} has, got another "
                f"({cause}); correct the rows"
            ) from cause

    def called(self, op: str, args: Sequence[Condition]) -> pa.Array:
        if op in ("and", "or"):
            return self.connected(op, args)
        if op in ("if", "case"):
            return self.chosen(args)
        if op == "coalesce":
            return self.first_valid(args)
        if op == "in":
            return _is_in(self.value(args[0]), args[1:])
        values = [self.value(arg) for arg in args]
        if op in TEXT_WITH_CONSTANTS:
            constants = [arg.value if isinstance(arg, Const) else None for arg in args[1:]]
            return _with_constants(op, values[0], constants)
        try:
            return _FUNCTIONS[op](*values)
        except pa.ArrowInvalid as cause:
            type_ = types.sql_name(values[0].type)
            raise SchemaError(
                f"condition {Call(op, tuple(args))}: results must fit into {type_}, one overflows or is "
                "divided by zero; correct the rows, or cast to a wider type in the query"
            ) from cause

    def connected(self, op: str, args: Sequence[Condition]) -> pa.Array:
        """AND, OR: an argument is asked for only where the ones before do not decide."""
        connect, decides = (pc.and_kleene, False) if op == "and" else (pc.or_kleene, True)
        result = self.value(args[0])
        for arg in args[1:]:
            if _can_fail(arg):
                is_open = pc.fill_null(pc.not_equal(result, decides), True)
                value = self._where(is_open, arg)
            else:
                value = self.value(arg)
            result = connect(result, value)
        return result

    def chosen(self, args: Sequence[Condition]) -> pa.Array:
        """IF, CASE: the value of the first condition that is true, else the last value or NULL."""
        open_, result = pa.repeat(pa.scalar(True), self.count), None
        for condition, value in zip(args[::2], args[1::2], strict=False):
            is_true = pc.and_(open_, pc.fill_null(self._where(open_, condition), False))
            chosen = self._where(is_true, value)
            before = pa.nulls(self.count, chosen.type) if result is None else result
            result = pc.if_else(is_true, chosen, before)
            open_ = pc.and_(open_, pc.invert(is_true))
        assert result is not None
        return pc.if_else(open_, self._where(open_, args[-1]), result) if len(args) % 2 else result

    def first_valid(self, args: Sequence[Condition]) -> pa.Array:
        result = self.value(args[0])
        for arg in args[1:]:
            is_open = pc.is_null(result)
            result = pc.if_else(is_open, self._where(is_open, arg), result)
        return result

    def _where(self, rows: pa.Array, condition: Condition) -> pa.Array:
        """The value of a condition for some rows; NULL for the others where it might fail for them."""
        if not _can_fail(condition):
            return self.value(condition)
        at = pc.indices_nonzero(rows)
        column = cache(lambda ref: self.column(ref).take(at))
        some = _Rows(column, len(at), {}).value(condition)
        back = np.full(self.count, -1)
        back[at.to_numpy()] = np.arange(len(at))
        return some.take(pa.array(back, mask=back < 0))


def _can_fail(condition: Condition) -> bool:
    return any(
        part.op in CAN_FAIL if isinstance(part, Call) else part.type == types.TIMESTAMP_NTZ
        for part in walk(condition)
        if isinstance(part, Call | Cast)
    )


def cast(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Values in a type that ``type_of`` accepts for them."""
    if values.type == type_:
        return values
    if pa.types.is_integer(values.type) and pa.types.is_floating(type_):
        # As Java does it: to the nearest number that the type has, where Arrow would refuse.
        return values.cast(type_, safe=False)
    return values.cast(type_)


def _equal(a: pa.Array, b: pa.Array) -> pa.Array:
    if pa.types.is_floating(a.type):
        return pc.or_(pc.equal(a, b), pc.and_(pc.is_nan(a), pc.is_nan(b)))
    return pc.equal(a, b)


def _less(a: pa.Array, b: pa.Array) -> pa.Array:
    if pa.types.is_floating(a.type):
        return pc.or_(pc.less(a, b), pc.and_(pc.invert(pc.is_nan(a)), pc.is_nan(b)))
    if pa.types.is_boolean(a.type):
        return pc.less(a.cast(pa.int8()), b.cast(pa.int8()))
    return pc.less(a, b)


def _is_same(a: pa.Array, b: pa.Array) -> pa.Array:
    return pc.or_(pc.fill_null(_equal(a, b), False), pc.and_(pc.is_null(a), pc.is_null(b)))


def _is_in(values: pa.Array, constants: Sequence[Condition]) -> pa.Array:
    """True, or NULL where a NULL among them might be the one."""
    given = [constant.value for constant in constants if isinstance(constant, Const)]
    wanted = [value for value in given if value is not None]
    if pa.types.is_floating(values.type):
        masks = [_equal(values, pa.repeat(pa.scalar(value, values.type), len(values))) for value in wanted]
        found = reduce(pc.or_, masks, pc.and_(pc.is_valid(values), False))
    else:
        common = values.type
        if pa.types.is_integer(common):
            given_types = [constant.type for constant in constants if isinstance(constant, Const)]
            common = max([common, *given_types], key=lambda type_: type_.bit_width)
        found = pc.is_in(values.cast(common), value_set=pa.array(wanted, common))
    may_be = pc.is_valid(values) if len(wanted) == len(given) else found
    return pc.if_else(may_be, found, pa.scalar(None, pa.bool_()))


def _turned(calculate: Callable[[pa.Array], pa.Array], values: pa.Array) -> pa.Array:
    """Negative or absolute values: Spark rounds decimals whose sign it turns, halves to even ones."""
    found = calculate(values)
    if not pa.types.is_decimal(found.type) or found.type.precision <= MOST_NEGATED_DIGITS:
        return found
    most = pc.max(pc.abs(found)).as_py()
    if most is None or most < Decimal(10) ** (MOST_NEGATED_DIGITS - found.type.scale):
        return found
    rounded = Context(MOST_NEGATED_DIGITS, ROUND_HALF_EVEN).plus
    is_turned = pc.not_equal(found, values).to_pylist()
    pairs = zip(found.to_pylist(), is_turned, strict=True)
    return pa.array([rounded(each) if turned else each for each, turned in pairs], found.type)


_DAYS_OF_ARROW: Final = 11_000_000
"""Days from 1970 of which Arrow knows year, month and day: its own years end at 32767."""


def _part_of_date(
    of_arrow: Callable[[pa.Array], pa.Array], of_numpy: Callable[[Any], Ints], days: pa.Array
) -> pa.Array:
    ends = pc.min_max(days.cast(pa.int32())).as_py()
    if all(end is None or abs(end) < _DAYS_OF_ARROW for end in ends.values()):
        return of_arrow(days).cast(pa.int32())
    parts = of_numpy(days.cast(pa.int32()).fill_null(0).to_numpy().astype("M8[D]"))
    return pa.array(parts, pa.int32(), mask=is_null(days))


def _remainder(one: pa.Array, other: pa.Array) -> pa.Array:
    """What a division of integers leaves, as Java has it."""
    return _left(np.fmod, one, other)


def _positive_remainder(one: pa.Array, other: pa.Array) -> pa.Array:
    """The same, not negative where it is divided by more than 0."""

    def left(a: Ints, b: Ints) -> Ints:
        found: Ints = np.fmod(a, b)
        return np.where(found < 0, np.fmod(found + b, b), found)

    return _left(left, one, other)


def _left(calculate: Callable[[Any, Any], Any], one: pa.Array, other: pa.Array) -> pa.Array:
    is_missing = is_null(one) | is_null(other)
    a, b = (each.fill_null(1).to_numpy() for each in (one, other))
    if (b[~is_missing] == 0).any():
        raise pa.ArrowInvalid("divided by zero")
    return pa.array(calculate(a, np.where(is_missing, 1, b).astype(b.dtype)), one.type, mask=is_missing)


def _moved(calculate: Callable[[pa.Array, pa.Array], pa.Array], days: pa.Array, by: pa.Array) -> pa.Array:
    return calculate(days.cast(pa.int32()), by).cast(pa.date32())


def _days(last: pa.Array, first: pa.Array) -> pa.Array:
    return pc.subtract_checked(last.cast(pa.int32()), first.cast(pa.int32()))


def _in_other_case(calculate: Callable[[pa.Array], pa.Array], texts: pa.Array) -> pa.Array:
    """Texts of ASCII: of other letters each library has its own table."""
    if len(texts) > texts.null_count and not pc.all(pc.string_is_ascii(texts)).as_py():
        raise SchemaError("text: must be ASCII where its case is changed here, got other letters")
    return calculate(texts)


_SHOWN_DAYS: Final = -719_162, 2_932_896
"""The first day of the year 1 and the last one of 9999: of others the year has a sign."""


def _text(values: pa.Array) -> pa.Array:
    if pa.types.is_date(values.type) and len(values) > values.null_count:
        first, last = pc.min_max(values.cast(pa.int32())).as_py().values()
        if first < _SHOWN_DAYS[0] or last > _SHOWN_DAYS[1]:
            raise SchemaError(
                "date: must be of the years 1 to 9999 where it becomes a text here, got another"
            )
    return values.cast(pa.string())


def _given(values: pa.Array) -> pa.Array:
    if values.null_count:
        raise pa.ArrowInvalid("NULL")
    return values


def _rounded_to(
    calculate: Callable[[pa.Array, pa.Array], pa.Array], one: pa.Array, other: pa.Array, nothing: pa.Array
) -> pa.Array:
    """A sum, a difference or a product in the type of a NULL, to whose digits Spark rounds it."""
    type_ = nothing.type
    exact = calculate(
        *(each.cast(pa.decimal256(each.type.precision, each.type.scale)) for each in (one, other))
    )
    if exact.type.scale > type_.scale:
        # Spark cuts a product off behind 39 digits first: a result of 38 is the same without that
        exact = pc.round(exact, type_.scale, "half_towards_infinity")
    return exact.cast(type_)


def _divided(one: pa.Array, other: pa.Array, nothing: pa.Array) -> pa.Array:
    """Decimals divided as Spark does it: rounded once, halves away from zero."""
    type_ = nothing.type
    is_missing = pc.or_(pc.is_null(one), pc.is_null(other)).to_numpy(zero_copy_only=False)
    above, below = _unscaled(one, is_missing, 0), _unscaled(other, is_missing, 1)
    if (below == 0).any():
        raise pa.ArrowInvalid("divided by zero")
    power = type_.scale - one.type.scale + other.type.scale
    if (words := _divided_words(above, below, power, type_)) is not None:
        return decimals_of(words, words >> 63, type_, is_missing)
    pairs = zip(above.tolist(), below.tolist(), strict=True)
    whole = [_divided_exactly(a, b, power) for a, b in pairs]
    if max(map(abs, whole), default=0) >= 10**type_.precision:
        raise pa.ArrowInvalid("too many digits")
    low = np.array([value & _WORD for value in whole], np.uint64).view(np.int64)
    return decimals_of(low, np.array([value >> 64 for value in whole], np.int64), type_, is_missing)


_WORD: Final = (1 << 64) - 1


def _unscaled(array: pa.Array, is_missing: Mask, missing: int) -> npt.NDArray[Any]:
    """Decimals without their point, a number for missing ones; Python's integers where they are large."""
    low, high = decimal_words(array)
    if (high == low >> 63)[~is_missing].all():
        return np.where(is_missing, missing, low)
    return np.where(is_missing, missing, (high.astype(object) << 64) + low.view(np.uint64).astype(object))


def _divided_words(one: Any, other: Any, power: int, type_: pa.DataType) -> Ints | None:
    """The quotient where all of it fits into words."""
    if not 0 <= power <= 18 or one.dtype == object or other.dtype == object or type_.precision > 38:
        return None
    most = max(int(one.max(initial=0)), -int(one.min(initial=0)))
    if 2 * most * 10**power >= 1 << 63:
        return None
    halves = 2 * np.abs(one) * 10**power // np.abs(other)
    rounded = (halves + 1) // 2
    if (rounded >= 10 ** min(type_.precision, 18)).any():
        return None
    found: Ints = np.where((one < 0) == (other < 0), rounded, -rounded)
    return found


def _divided_exactly(one: int, other: int, power: int) -> int:
    above, below = abs(one) * 10 ** max(0, power), abs(other) * 10 ** max(0, -power)
    found: int = (2 * above + below) // (2 * below)
    return found if (one < 0) == (other < 0) else -found


def _length(values: pa.Array) -> pa.Array:
    if pa.types.is_binary(values.type):
        return pc.binary_length(values).cast(pa.int32())
    return pc.utf8_length(_valid(values)).cast(pa.int32())


def _valid(texts: pa.Array) -> pa.Array:
    """Texts, of which what is no valid UTF-8 has other letters to Spark than to Arrow."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as cause:
        raise SchemaError(
            f"text: must be valid UTF-8 where its letters count, got other bytes ({cause}); correct the rows"
        ) from cause
    return texts


def _with_constants(op: str, texts: pa.Array, constants: Sequence[Any]) -> pa.Array:
    """Functions of a text whose other arguments are constants."""
    if None in constants:
        return pa.nulls(len(texts), pa.string() if op == "substring" else pa.bool_())
    match op, constants:
        case "like", [pattern]:
            return pc.match_substring_regex(_valid(texts), regular_expression(pattern))
        case "startswith", [text]:
            return pc.starts_with(texts, text)
        case "endswith", [text]:
            return pc.ends_with(texts, text)
        case "contains", [text]:
            return pc.match_substring(texts, text)
        case _, [position, length]:
            start = max(position - 1, 0)
            return pc.utf8_slice_codeunits(_valid(texts), start, start + length)
    raise AssertionError(op)


_FUNCTIONS: Final[dict[str, Callable[..., pa.Array]]] = {
    "=": _equal,
    "<=>": _is_same,
    "!=": lambda a, b: pc.invert(_equal(a, b)),
    "<": _less,
    "<=": lambda a, b: pc.invert(_less(b, a)),
    ">": lambda a, b: _less(b, a),
    ">=": lambda a, b: pc.invert(_less(a, b)),
    "not": pc.invert,
    "isnull": pc.is_null,
    "isnotnull": pc.is_valid,
    "isnan": lambda a: pc.fill_null(pc.is_nan(a), False),
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
    "/": lambda one, other, *nothing: (_divided if nothing else pc.divide_checked)(one, other, *nothing),
    "rounded +": partial(_rounded_to, pc.add),
    "rounded -": partial(_rounded_to, pc.subtract),
    "rounded *": partial(_rounded_to, pc.multiply),
    "given": _given,
    "neg": partial(_turned, pc.negate_checked),
    "abs": partial(_turned, pc.abs_checked),
    "wrapping +": pc.add,
    "wrapping -": pc.subtract,
    "wrapping *": pc.multiply,
    "wrapping neg": partial(_turned, pc.negate),
    "wrapping abs": partial(_turned, pc.abs),
    "%": _remainder,
    "pmod": _positive_remainder,
    "date +": partial(_moved, pc.add_checked),
    "date -": partial(_moved, pc.subtract_checked),
    "days": _days,
    "greatest": pc.max_element_wise,
    "least": pc.min_element_wise,
    "upper": partial(_in_other_case, pc.ascii_upper),
    "lower": partial(_in_other_case, pc.ascii_lower),
    "trim": lambda texts: pc.utf8_trim(_valid(texts), " "),
    "ltrim": lambda texts: pc.utf8_ltrim(_valid(texts), " "),
    "rtrim": lambda texts: pc.utf8_rtrim(_valid(texts), " "),
    "text": _text,
    "length": _length,
    "concat": lambda *texts: pc.binary_join_element_wise(*texts, "", null_handling="emit_null"),
    "year": partial(_part_of_date, pc.year, lambda days: days.astype("M8[Y]").astype(np.int64) + 1970),
    "month": partial(_part_of_date, pc.month, lambda days: days.astype("M8[M]").astype(np.int64) % 12 + 1),
    "day": partial(_part_of_date, pc.day, lambda days: (days - days.astype("M8[M]")).astype(np.int64) + 1),
}
