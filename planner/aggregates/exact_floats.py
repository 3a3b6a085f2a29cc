"""Sums of floating-point numbers that no rounding enters, in Spark SQL (pure).

Every finite DOUBLE is a whole multiple of 2^-1074, so a sum of them is a whole number of such units, of 2098
bits and some more. It is kept in limbs of 32 bits, each a sum of BIGINTs of its own: a value of 53 bits
touches three neighbours at most, adds to them whole numbers below 2^33, and takes away the very same when it
goes. So the limbs are a function of the present values, whatever came and went before, and in whatever
order. A FLOAT is a multiple of 2^-149, for which nine limbs suffice.

The total is within one unit in the last place of the exact sum of the values, whatever their sizes; a sum of
Spark's batch rounds with each value. An exact sum beyond the range of DOUBLE is an infinity. A group may hold
2^30 values; with more, a limb may overflow, which is an error in ANSI mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

_BITS: Final = 32

_HALF_BITS: Final = _BITS // 2


@dataclass(frozen=True)
class Parts:
    """What the limbs take from a row: names of columns.

    Attributes:
        top: number of the highest limb that the value touches; NULL where it is left out.
        pieces: what it adds to that limb and to the two below.
    """

    top: str
    pieces: tuple[str, str, str]


@dataclass(frozen=True)
class FixedPoint:
    """Whole multiples of a power of two, in limbs of 32 bits.

    Attributes:
        digits: the multiples are those of 2^-digits, an even number.
        count: how many limbs there are.
    """

    digits: int
    count: int

    def parts(self, signed: str, condition: str | None, part: Callable[[str], str]) -> Parts:
        """What a row adds to the limbs; nothing where the value is NULL or not finite.

        The logarithm may be wrong by a little, and so may choose the limb beside: its piece has a bit more
        or one less then. All that follows is exact: powers of two, and differences of neighbours.

        Args:
            signed: the value, negative where it is taken away.
            condition: which rows count; None for all.
            part: gives a value of each row a name.
        """
        value = part(signed)
        counts = " AND ".join(filter(None, (condition, _finite(value))))
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

        Args:
            limbs: names of the sums of ``limbs``.
            derived: gives a value of each group a name.
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


def _finite(value: str) -> str:
    """The condition that a number is one; NULL for NULL."""
    return f"abs({value}) < double('Infinity')"


def _added(digit: str) -> str:
    """The sum so far and a digit, in units of the digit's limb."""
    return f"a.sum * pow(2D, {_BITS} * (a.unit - a.limb)) + {digit}"
