"""Aggregates over changes as sums of signs, in Spark SQL (pure).

`+I` and `+U` weigh +1, `-U` and `-D` weigh -1. A sum over rows that come and go is the sum of their signed
values, a count the sum of their signs; both only ever add to what was there, which is what Spark's own
streaming aggregation keeps. Everything else is made of such sums: the average is a sum by a count, and
whether a sum is NULL is a count, too.

Sums of integers are exact: those of BIGINT are kept as decimals, since a sum of signed values may leave the
type's range half-way, though its result does not. Sums of FLOAT and DOUBLE are exact, too: rounding would
stay in the sum when the values that caused it are long gone. NaN and the infinities are counted apart, for
they would never leave a sum again.

Every finite DOUBLE is a whole multiple of 2^-1074, so a sum of them is a whole number of such units, of 2098
bits and some more. It is kept in limbs of 32 bits, each a sum of BIGINTs of its own: a value of 53 bits
touches three neighbours at most, adds to them whole numbers below 2^33, and takes away the very same when it
goes. So the limbs are a function of the present values, whatever came and went before, and in whatever
order. A FLOAT is a multiple of 2^-149, for which nine limbs suffice. The total is within one unit in the last
place of the exact sum, whatever the sizes; a sum of Spark's batch rounds with each value. An exact sum beyond
the range of DOUBLE is an infinity. A group may hold 2^30 values; with more, a limb may overflow, which is an
error in ANSI mode.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from planner.plan.expressions import Literal
from planner.plan.nodes import Measure
from upsert.conditions.evaluate import MOST_NEGATED_DIGITS
from upsert.rowkind import ROW_KIND_COLUMN

_BITS: Final = 32
_HALF_BITS: Final = _BITS // 2


@dataclass(frozen=True)
class Parts:
    """What the limbs take from a row, as names of columns.

    `top` is the number of the highest limb that the value touches, NULL where it is left out; `pieces` are
    what it adds to that limb and to the two below.
    """

    top: str
    pieces: tuple[str, str, str]


@dataclass(frozen=True)
class FixedPoint:
    """Whole multiples of 2^-digits, an even number, in `count` limbs of 32 bits."""

    digits: int
    count: int

    def parts(self, signed: str, condition: str | None, part: Callable[[str], str]) -> Parts:
        """What a row adds to the limbs; nothing where the value is NULL or not finite.

        The logarithm may be wrong by a little, and so may choose the limb beside: its piece has a bit more
        or one less then. All that follows is exact: powers of two, and differences of neighbours. `part`
        gives a value of each row a name.
        """
        value = part(signed)
        counts = " AND ".join(filter(None, (condition, f"abs({value}) < double('Infinity')")))
        limb = f"cast(floor((log2(abs({value})) + {self.digits}) / {_BITS}) AS INT)"
        top = part(f"CASE WHEN {counts} THEN greatest(0, {limb}) END")
        # twice the root of the power, which itself may be none of DOUBLE
        root = part(f"pow(2D, {self.digits // 2} - {_HALF_BITS} * {top})")
        scaled = part(f"CASE WHEN {top} IS NOT NULL THEN {value} * {root} * {root} END")
        first = part(f"cast({scaled} AS BIGINT)")
        rest = part(f"({scaled} - {first}) * {2**_BITS}D")
        second = part(f"cast({rest} AS BIGINT)")
        third = part(f"cast(({rest} - {second}) * {2**_BITS}D AS BIGINT)")
        return Parts(top, (first, second, third))

    def limbs(self, parts: Parts) -> list[str]:
        """The sums that are kept, the lowest limb first.

        >>> FixedPoint(2, 1).limbs(Parts("t", ("a", "b", "c")))
        ['sum(CASE t WHEN 0 THEN a WHEN 1 THEN b ELSE c END) FILTER (WHERE t BETWEEN 0 AND 2)']
        """
        first, second, third = parts.pieces
        return [
            f"sum(CASE {parts.top} WHEN {limb} THEN {first} WHEN {limb + 1} THEN {second} ELSE {third} END) "
            f"FILTER (WHERE {parts.top} BETWEEN {limb} AND {limb + 2})"
            for limb in range(self.count)
        ]

    def total(self, limbs: Sequence[str], derived: Callable[[str], str]) -> str:
        """The sum as a DOUBLE, of the limbs' names; only those from the first to the last that is not 0.

        Carries go upwards, so that each limb keeps a digit of -2^31 to 2^31 and no digit can cancel what is
        below it. Then digits are added up from the lowest, each time in units of the digit's own limb.
        `derived` gives a value of each group a name.
        """
        given = derived(f"array({', '.join(f'coalesce({name}, 0L)' for name in limbs)})")
        used = derived(f"transform({given}, x -> x <> 0)")
        lowest = derived(f"cast(array_position({used}, true) AS INT)")
        highest = derived(f"cast({len(limbs) + 1} - array_position(reverse({used}), true) AS INT)")
        carry = f"shiftright(x + a.carry + {2 ** (_BITS - 1)}L, {_BITS})"
        digit = f"(x + a.carry - shiftleft({carry}, {_BITS}))"
        step = (
            f"named_struct('carry', {carry}, "
            f"'sum', CASE WHEN {digit} = 0 THEN a.sum ELSE {_added(digit)} END, "
            f"'unit', CASE WHEN {digit} = 0 THEN a.unit ELSE a.limb END, 'limb', a.limb + 1)"
        )
        end = (
            f"CASE WHEN a.carry = 0 THEN {self._in_units('a.sum', 'a.unit')} "
            f"ELSE {self._in_units(_added('a.carry'), 'a.limb')} END"
        )
        some = f"slice({given}, {lowest}, {highest} - {lowest} + 1)"
        return (
            f"CASE WHEN {lowest} = 0 THEN 0D ELSE aggregate({some}, "
            f"named_struct('carry', 0L, 'sum', 0D, 'unit', {lowest} - 1, 'limb', {lowest} - 1), "
            f"(a, x) -> {step}, a -> {end}) END"
        )

    def _in_units(self, value: str, limb: str) -> str:
        root = f"pow(2D, {_HALF_BITS} * {limb} - {self.digits // 2})"
        return f"({value}) * {root} * {root}"


FIXED_POINTS: Final = {"float": FixedPoint(150, 9), "double": FixedPoint(1074, 66)}
"""By the type that is summed."""


def _added(digit: str) -> str:
    """The sum so far and a digit, in units of the digit's limb."""
    return f"a.sum * pow(2D, {_BITS} * (a.unit - a.limb)) + {digit}"


SIGNED: Final = ("Average", "BoolAnd", "BoolOr", "Count", "CountIf", "Sum")
"""Aggregate functions that signed sums can answer, as Catalyst calls them."""

_NARROW: Final = ("tinyint", "smallint", "int")

_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")

_KEPT_SCALE: Final = 6
"""So many digits behind the point has a difference of decimals at least, however many are before it."""

_CAME: Final = f"{ROW_KIND_COLUMN} IN ('+I', '+U')"
_SIGN: Final = f"CASE WHEN {_CAME} THEN 1L ELSE -1L END"


@dataclass
class Sums:
    """The sums that a query keeps by group, each once: names by their Spark SQL.

    `parts` are values that sums take from a row, `derived` those that results take from a group's sums; one
    may use those before it.
    """

    names: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    derived: dict[str, str] = field(default_factory=dict)

    def part(self, sql: str) -> str:
        """Name of the column that holds a value of each row."""
        return self.parts.setdefault(sql, f"part_{len(self.parts)}")

    def derive(self, sql: str) -> str:
        """Name of the column that holds a value of each group."""
        return self.derived.setdefault(sql, f"derived_{len(self.derived)}")

    def keep(self, sql: str) -> str:
        """Name of the column that holds a sum."""
        return self.names.setdefault(sql, f"sum_{len(self.names)}")

    def count(self, *conditions: str | None) -> str:
        """The number of rows for which all conditions are true."""
        return f"coalesce({self.counted(*conditions)}, 0L)"

    def counted(self, *conditions: str | None) -> str:
        """Name of the column that holds it."""
        return self.keep(f"sum({_SIGN}){_where(*conditions)}")


@dataclass(frozen=True)
class Result:
    """What a measure is made of by group: Spark SQL over the sums; of an average its sum and its count."""

    value: str
    count: str | None = None


def is_floating(type_name: str) -> bool:
    """Whether values of a type may be NaN or infinite."""
    return type_name in FIXED_POINTS


def is_summable(type_name: str) -> bool:
    """Whether signed values of a type can be added up."""
    return type_name in (*_NARROW, "bigint", *FIXED_POINTS) or type_name.startswith("decimal")


def result_of(measure: Measure, sums: Sums) -> Result:
    """The result of a measure; what it needs is added to the sums.

    >>> from planner.plan.expressions import Aggregation, Column
    >>> amount, sums = Column(-1, "value_0", "int"), Sums()
    >>> result_of(Measure(Aggregation("Count", (amount,), ("int",)), (amount,)), sums)
    Result(value='coalesce(sum_0, 0L)', count=None)
    >>> list(sums.names)[0].partition(" FILTER ")[2]
    '(WHERE value_0 IS NOT NULL)'
    """
    condition = None if measure.condition is None else measure.condition.name
    names = [column.name for column in measure.values]
    detail = dict(measure.function.detail)
    match measure.function.name:
        case "Count":
            known = zip(names, measure.function.values, strict=True)
            given = [name for name, value in known if not isinstance(value, Literal) or value.value is None]
            return Result(sums.count(condition, *(f"{name} IS NOT NULL" for name in given)))
        case "CountIf":
            return Result(sums.count(condition, names[0]))
        case "BoolAnd" | "BoolOr" as name:
            return Result(_truth(name, names[0], condition, sums))
        case "Sum":
            wide = measure.function.types[0] == "bigint"
            total = _total(names[0], measure.function.types[0], condition, sums)
            cast = "try_cast" if detail.get("evalContext", "").count("TRY") else "cast"
            return Result(f"{cast}({total} AS BIGINT)" if wide else total)
        case "Average":
            type_ = measure.function.types[0]
            total = _total(names[0], type_, condition, sums)
            total = total if type_.startswith("decimal") else f"cast({total} AS DOUBLE)"
            return Result(total, sums.count(condition, f"{names[0]} IS NOT NULL"))
        case other:
            raise AssertionError(f"the conditions of signed sums promise {SIGNED}, got {other}")


def kind_of(sums: Sums, *, has_groups: bool) -> str:
    """The kind of a group's new row; all rows together are one group that stays when it is empty."""
    rows = sums.count()
    negative = (
        "raise_error('an aggregate was told to take away more rows of a group than there were; read its "
        "input from the beginning, in a new checkpoint')"
    )
    whens = f"{rows} > 0 THEN '+U' WHEN {rows} = 0 THEN '-D'" if has_groups else f"{rows} >= 0 THEN '+U'"
    return f"CASE WHEN {whens} ELSE {negative} END"


def _total(name: str, type_: str, condition: str | None, sums: Sums) -> str:
    """The sum of a column; NULL where it has no value."""
    number = sums.count(condition, f"{name} IS NOT NULL")
    if is_floating(type_):
        return _floating_total(name, type_, condition, number, sums)
    value = f"cast({name} AS DECIMAL(19, 0))" if type_ == "bigint" else name
    value = f"cast({name} AS BIGINT)" if type_ in _NARROW else value
    total = sums.keep(f"sum({_signed(value, _negative(value, type_))}){_where(condition)}")
    return f"CASE WHEN {number} > 0 THEN {total} END"


def _floating_total(name: str, type_: str, condition: str | None, number: str, sums: Sums) -> str:
    value, fixed = f"cast({name} AS DOUBLE)", FIXED_POINTS[type_]
    plus, minus, nan = (f"{value} = double('{text}')" for text in ("Infinity", "-Infinity", "NaN"))
    parts = fixed.parts(_signed(value, f"-({value})"), condition, sums.part)
    total = fixed.total([sums.keep(sql) for sql in fixed.limbs(parts)], sums.derive)
    nans, pluses, minuses = (sums.count(condition, odd) for odd in (nan, plus, minus))
    return (
        f"CASE WHEN {number} = 0 THEN NULL "
        f"WHEN {nans} > 0 OR ({pluses} > 0 AND {minuses} > 0) THEN double('NaN') "
        f"WHEN {pluses} > 0 THEN double('Infinity') WHEN {minuses} > 0 THEN double('-Infinity') "
        f"ELSE {total} END"
    )


def _truth(name: str, column: str, condition: str | None, sums: Sums) -> str:
    known = sums.count(condition, f"{column} IS NOT NULL")
    found = sums.count(condition, f"NOT {column}" if name == "BoolAnd" else column)
    verdict = f"{found} = 0" if name == "BoolAnd" else f"{found} > 0"
    return f"CASE WHEN {known} > 0 THEN {verdict} END"


def _signed(value: str, negative: str) -> str:
    return f"CASE WHEN {_CAME} THEN {value} ELSE {negative} END"


def _negative(value: str, type_: str) -> str:
    """The value with its sign turned, all of its digits: Spark's own minus rounds more than 34 of a decimal.

    >>> _negative("value_0", "decimal(34,2)"), _negative("value_0", "decimal(38,2)")
    ('-(value_0)', 'cast(0 - value_0 AS decimal(38,2))')
    """
    found = _DECIMAL.fullmatch(type_)
    if found is None or int(found[1]) <= MOST_NEGATED_DIGITS:
        return f"-({value})"
    if int(found[2]) <= _KEPT_SCALE:
        return f"cast(0 - {value} AS {type_})"
    text = f"cast({value} AS STRING)"
    turned = f"CASE WHEN {value} < 0 THEN substring({text}, 2) ELSE concat('-', {text}) END"
    return f"cast({turned} AS {type_})"


def _where(*conditions: str | None) -> str:
    given = [condition for condition in conditions if condition is not None]
    return f" FILTER (WHERE {' AND '.join(given)})" if given else ""
