"""Conditions against what Spark answers, and what is refused because it could differ."""

import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from deltajoin.expressions import Call, Cast, Condition, Const, Field, Ref
from upsert.conditions.evaluate import mask, type_of
from upsert.errors import ConfigurationError, SchemaError

NAN, INF = float("nan"), float("inf")
INTS: list[Any] = [-(2**63), -1, 0, 1, 2, 2**63 - 1, None]
FLOATS: list[Any] = [-INF, -0.0, 0.0, 1.5, INF, NAN, None]
TEXTS: list[Any] = ["", "a", "ab", "b%c", "é\n😀x", " a ", "Z", None]
LONG_DECIMALS = (
    *("1" * 33 + "25000", "-" + "1" * 33 + "35000", "-" + "7" * 38, "1" + "0" * 37, "-" + "9" * 34, "-5"),
)
"""Spark rounds those of more than 34 digits where it turns their sign."""
COLUMNS: dict[str, pa.Array] = {
    "i": pa.array(INTS, pa.int64()),
    "s": pa.array([1, 2, 3, 100, -100, 0, None], pa.int16()),
    "f": pa.array(FLOATS, pa.float64()),
    "g": pa.array(FLOATS, pa.float32()),
    "t": pa.array(TEXTS[:7], pa.string()),
    "u": pa.array(TEXTS[1:], pa.string()),
    "b": pa.array([True, True, True, False, False, None, None], pa.bool_()),
    "c": pa.array([True, False, None, False, None, None, True], pa.bool_()),
    "d": pa.array([date(1582, 10, 4), date(1969, 12, 31), date(2024, 2, 29), date(1, 1, 1)] + [None] * 3),
    "n": pa.array([Decimal("1.50"), Decimal("-0.01"), None] + [Decimal("3.00")] * 4, pa.decimal128(10, 2)),
    "y": pa.array([b"", b"a", b"\xff", b"a\x00", None, b"b", b"ab"], pa.binary()),
    "z": pa.array([0, 11_248_737, 11_248_738, 2**31 - 1, -12_687_795, -20_000_000, None], pa.int32()).cast(
        pa.date32()
    ),
    "w": pa.array([*map(Decimal, LONG_DECIMALS), None], pa.decimal128(38, 0)),
    "l": pa.array([[1], None, [], [2], [3], [4], None], pa.list_(pa.int64())),
}
ROWS = 7


def field(name: str) -> Condition:
    return Field(Ref(0, name))


def types(ref: Ref) -> pa.DataType:
    return COLUMNS[ref.column].type


def of(op: str, *args: Any) -> Condition:
    """An operator; names are columns, other values constants."""
    return Call(
        op, tuple(arg if isinstance(arg, Field | Const | Cast | Call) else field(arg) for arg in args)
    )


def const(value: Any, type_: pa.DataType) -> Const:
    return Const(value, type_)


def answers(condition: Condition) -> list[bool | None]:
    """The condition's value for each row."""
    assert type_of(condition, types) == pa.bool_()
    true, null = (
        mask(one, lambda ref: COLUMNS[ref.column], ROWS) for one in (condition, Call("isnull", (condition,)))
    )
    return [None if is_null else bool(is_true) for is_true, is_null in zip(true, null, strict=True)]


WIDE, LONG = pa.decimal128(14, 3), pa.decimal128(20, 0)
F, T, N = False, True, None


MORE_THAN_ONE = of(">", of("+", "i", const(0, pa.int64())), const(1, pa.int64()))
"""What an argument says that could fail, so it is asked for only where it must be."""

CASES: list[tuple[Condition, list[Any]]] = [
    (of("and", "c", MORE_THAN_ONE), [F, F, F, F, N, N, N]),
    (of("or", "c", MORE_THAN_ONE), [T, F, N, F, T, T, T]),
    (of("and", of("isnull", "i"), "c", MORE_THAN_ONE), [F, F, F, F, F, F, N]),
    (of("=", "f", const(NAN, pa.float64())), [F, F, F, F, F, T, N]),
    (of("=", "f", const(0.0, pa.float64())), [F, T, T, F, F, F, N]),
    (of(">", "f", const(INF, pa.float64())), [F, F, F, F, F, T, N]),
    (of("<", "f", const(NAN, pa.float64())), [T, T, T, T, T, F, N]),
    (of("<=", "f", "f"), [T, T, T, T, T, T, N]),
    (of("<=>", "f", const(None, pa.float64())), [F, F, F, F, F, F, T]),
    (of("<=>", "i", "i"), [T] * 7),
    (of("isnan", "g"), [F, F, F, F, F, T, F]),
    (of("in", "f", const(NAN, pa.float64()), const(-0.0, pa.float64())), [F, T, T, F, F, T, N]),
    (of("in", "i", const(1, pa.int64()), const(None, pa.int64())), [N, N, N, T, N, N, N]),
    (of("in", "s", const(1, pa.int64()), const(2**40, pa.int64())), [T, F, F, F, F, F, N]),
    (of("and", "b", "c"), [T, F, N, F, F, N, N]),
    (of("or", "b", "c"), [T, T, T, F, N, N, T]),
    # after NULL an argument decides, also one that can fail
    (of("and", "c", of(">", of("+", "s", const(1, pa.int16())), const(999, pa.int16()))), [F] * 6 + [N]),
    (of("or", "c", of("<", of("+", "s", const(1, pa.int16())), const(999, pa.int16()))), [T] * 7),
    (of("not", "c"), [F, T, N, T, N, N, F]),
    (of("<", "b", "c"), [F, F, N, F, N, N, N]),
    (of("<", "t", const("b", pa.string())), [T, T, T, F, F, T, T]),
    (of("like", "t", const("%a%", pa.string())), [F, T, T, F, F, T, F]),
    (of("like", "t", const("_\n__", pa.string())), [F, F, F, F, T, F, F]),
    (of("like", "t", const("b\\%c", pa.string())), [F, F, F, T, F, F, F]),
    (of("like", "t", const(".", pa.string())), [F] * 7),
    (of("startswith", "t", const("a", pa.string())), [F, T, T, F, F, F, F]),
    (of("endswith", "t", const("", pa.string())), [T] * 7),
    (of("contains", "u", const("%", pa.string())), [F, F, T, F, F, F, N]),
    (of("contains", "u", const(None, pa.string())), [N] * 7),
    (of("=", of("length", "t"), const(4, pa.int32())), [F, F, F, F, T, F, F]),
    (of("=", of("length", "y"), const(2, pa.int32())), [F, F, F, T, N, F, T]),
    (of("=", of("concat", "t", "u"), const("aab", pa.string())), [F, T, F, F, F, F, N]),
    (
        of("=", of("substring", "t", const(0, pa.int32()), const(1, pa.int32())), "t"),
        [T, T, F, F, F, F, T],
    ),
    (of("=", of("substring", "t", const(3, pa.int32()), const(9, pa.int32())), "u"), [F] * 6 + [N]),
    (of("=", of("year", "d"), const(1582, pa.int32())), [T, F, F, F, N, N, N]),
    (of("=", of("year", "z"), const(32767, pa.int32())), [F, T, F, F, F, F, N]),
    (of("=", of("year", "z"), const(32768, pa.int32())), [F, F, T, F, F, F, N]),
    (of("=", of("year", "z"), const(5_881_580, pa.int32())), [F, F, F, T, F, F, N]),
    (of("<", of("year", "z"), const(-32767, pa.int32())), [F, F, F, F, T, T, N]),
    (
        of("=", of("neg", "w"), const(Decimal("-" + "1" * 33 + "20000"), pa.decimal128(38, 0))),
        [T, F, F, F, F, F, N],
    ),
    (of("=", of("abs", "w"), "w"), [T, F, F, T, F, F, N]),
    (
        of(">", of("abs", "w"), const(Decimal("7" * 38), pa.decimal128(38, 0))),
        [F, F, T, F, F, F, N],
    ),
    (of("=", of("month", "d"), const(2, pa.int32())), [F, F, T, F, N, N, N]),
    (of("=", of("day", "d"), const(31, pa.int32())), [F, T, F, F, N, N, N]),
    (of("=", of("month", "z"), const(7, pa.int32())), [F, F, F, T, F, F, N]),
    (of("=", of("day", "z"), const(11, pa.int32())), [F, F, F, T, F, T, N]),
    (of("=", of("coalesce", "s", const(7, pa.int16())), const(7, pa.int16())), [F] * 6 + [T]),
    (of("=", of("if", "c", "s", const(9, pa.int16())), const(9, pa.int16())), [F, T, T, T, T, T, N]),
    (of("isnull", of("case", "c", "s")), [F, T, T, T, T, T, T]),
    # 100 * 400 is no SMALLINT: a condition that can fail is asked for only where none before it is true
    (
        of(
            "case",
            of("in", "s", const(100, pa.int16()), const(-100, pa.int16())),
            "b",
            of("<", of("*", "s", const(400, pa.int16())), const(0, pa.int16())),
            "c",
            "c",
        ),
        [T, F, N, F, F, N, T],
    ),
    (of("isnull", of("substring", "t", const(None, pa.int32()), const(1, pa.int32()))), [T] * 7),
    (of("=", of("substring", "t", const(None, pa.int32()), const(1, pa.int32())), "t"), [N] * 7),
    (of("isnull", "l"), [F, T, F, F, F, F, T]),
    (of("<", "n", const(Decimal("1.50"), pa.decimal128(10, 2))), [F, T, N, F, F, F, F]),
    (of("=", Cast(field("n"), WIDE), const(Decimal("1.500"), WIDE)), [T, F, N, F, F, F, F]),
    (of("=", Cast(field("g"), pa.float64()), "f"), [T, T, T, T, T, T, N]),
    (of("=", Cast(field("i"), pa.float64()), const(2.0**63, pa.float64())), [F, F, F, F, F, T, N]),
    (of("<", "y", const(b"b", pa.binary())), [T, T, F, T, N, F, T]),
    (of("=", of("+", "n", "n"), const(Decimal("6.00"), pa.decimal128(11, 2))), [F, F, N, T, T, T, T]),
    (
        of("=", of("*", "n", of("neg", "n")), const(Decimal("-0.0001"), pa.decimal128(21, 4))),
        [F, T, N, F, F, F, F],
    ),
    (
        of("<", of("abs", of("-", "n", Cast(field("s"), WIDE))), const(Decimal(2), pa.decimal128(15, 3))),
        [T, F, N, F, F, F, N],
    ),
]


LOWEST, HIGHEST = const(-(2**63), pa.int64()), const(2**63 - 1, pa.int64())
WRAPPING: list[tuple[Condition, list[Any]]] = [
    (of("=", of("wrapping +", "i", const(1, pa.int64())), LOWEST), [False] * 5 + [True, None]),
    (of("=", of("wrapping -", "i", const(1, pa.int64())), HIGHEST), [True] + [False] * 5 + [None]),
    (
        of("=", of("wrapping *", "i", const(2, pa.int64())), const(-2, pa.int64())),
        [False, True] + [False] * 3 + [True, None],
    ),
    (of("=", of("wrapping neg", "i"), "i"), [True, False, True, False, False, False, None]),
    (of("<", of("wrapping abs", "i"), const(0, pa.int64())), [True] + [False] * 5 + [None]),
    (
        of(">", of("wrapping +", "f", "f"), const(1.0, pa.float64())),
        [False, False, False, True, True, True, None],
    ),
    (
        of("=", of("wrapping *", "s", const(1000, pa.int16())), const(-31072, pa.int16())),
        [False] * 3 + [True] + [False] * 2 + [None],
    ),
]
"""Arithmetic as Spark does it without ANSI mode."""


@pytest.mark.parametrize(("condition", "expected"), [*CASES, *WRAPPING])
def test_a_condition_has_the_value_that_spark_gives_it(condition: Condition, expected: list[Any]) -> None:
    assert answers(condition) == expected


ONE = const(1, pa.int64())


@pytest.mark.parametrize(
    "condition",
    [
        of("<", of("+", "i", ONE), "i"),
        of("<", of("-", "i", ONE), "i"),
        of("<", of("*", "i", const(2, pa.int64())), "i"),
        of("<", of("neg", "i"), "i"),
        of("<", of("abs", "i"), "i"),
        of("or", of("isnull", "i"), of("<", of("+", "i", ONE), "i")),
    ],
)
def test_an_overflow_is_an_error(condition: Condition) -> None:
    with pytest.raises(SchemaError, match="must fit into BIGINT, one overflows"):
        answers(condition)


@pytest.mark.parametrize("op", ["neg", "abs"])
def test_a_decimal_that_is_rounded_to_too_many_digits_is_an_error(op: str) -> None:
    values = pa.array([Decimal("-" + "9" * 38)], pa.decimal128(38, 0))
    with pytest.raises(SchemaError, match="one overflows"):
        mask(of("<", of(op, "w"), "w"), lambda _: values, 1)


@pytest.mark.parametrize(
    "condition",
    [
        of("=", of("length", "t"), const(1, pa.int32())),
        of("like", "t", const("_", pa.string())),
        of("=", of("substring", "t", const(1, pa.int32()), const(1, pa.int32())), "t"),
    ],
)
def test_text_that_is_no_utf_8_has_no_letters(condition: Condition) -> None:
    texts = pa.array([b"a\xc3", b"b", None], pa.binary()).view(pa.string())
    with pytest.raises(SchemaError, match="must be valid UTF-8"):
        mask(condition, lambda _: texts, 3)
    assert mask(condition, lambda _: texts[1:], 2).tolist() == [True, False]


@pytest.mark.parametrize(("op", "scale"), [("rounded *", 6), ("rounded +", 38), ("rounded -", 38)])
def test_arithmetic_with_more_digits_than_can_be_computed_is_refused(op: str, scale: int) -> None:
    of_types = {"x": pa.decimal128(38, 0), "y": pa.decimal128(38, scale)}
    condition = of(op, "x", "y", const(None, pa.decimal128(38, 6)))
    with pytest.raises(ConfigurationError, match="at most 76"):
        type_of(condition, lambda ref: of_types[ref.column])


def test_a_pattern_that_is_too_long_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="got 100000 signs"):
        type_of(of("like", "t", const("_" * 100_000, pa.string())), types)
    assert type_of(of("like", "t", const("%a" * 1000, pa.string())), types) == pa.bool_()


def test_an_overflow_that_spark_would_not_look_at_is_none() -> None:
    is_small = of("<", "i", const(1000, pa.int64()))
    added = of(">", of("+", "i", ONE), ONE)
    assert answers(of("and", is_small, added)) == [F, F, F, T, T, F, N]
    assert answers(of("or", of("not", is_small), added)) == [F, F, F, T, T, T, N]
    chosen = of("if", is_small, of("+", "i", ONE), const(0, pa.int64()))
    assert answers(of("=", chosen, const(0, pa.int64()))) == [F, T, F, F, F, T, T]
    first = of("coalesce", "s", Cast(field("s"), pa.int16()))
    assert answers(of("=", first, "s")) == [T, T, T, T, T, T, N]


def test_a_day_that_no_timestamp_has_is_an_error_where_it_is_asked_for() -> None:
    at, epoch = Cast(field("z"), pa.timestamp("us")), const(datetime(1970, 1, 1), pa.timestamp("us"))
    is_late = of(">", at, epoch)
    with pytest.raises(SchemaError, match="days must be of the years that a TIMESTAMP_NTZ has, got another"):
        answers(is_late)
    is_known = of("<", of("year", "z"), const(200_000, pa.int32()))
    assert answers(of("and", is_known, is_late)) == [F, T, T, F, F, F, N]


def test_floats_are_added_as_java_does() -> None:
    total = of("+", "f", const(0.1, pa.float64()))
    assert answers(of("=", total, const(1.5 + 0.1, pa.float64()))) == [F, F, F, T, F, F, N]
    assert math.isnan(INF - INF)
    assert answers(of("isnan", of("-", "f", "f"))) == [T, F, F, F, T, T, F]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (of("=", "i", "f"), "values must have one type, or be integers, got BIGINT, DOUBLE"),
        (of("=", "l", "l"), "scalar types"),
        (of("in", "i", "s"), "the list must be constants"),
        (of("and", "b", "i"), "values must be BOOLEAN"),
        (of("*", Cast(field("i"), LONG), Cast(field("i"), LONG)), "at most 38 digits"),
        (of("+", "i", "s"), "of one type"),
        (of("+", "n", "i"), "of one type"),
        (of("year", "t"), "must be a DATE: times depend on a time zone"),
        (of("like", "t", "u"), "must be constants"),
        (of("like", "t", const("a\\b", pa.string())), "a backslash must stand before"),
        (of("like", "t", const("a\\", pa.string())), "a backslash must stand before"),
        (of("substring", "t", const(-1, pa.int32()), ONE), "must be numbers from 0"),
        (of("length", "i"), "must be STRING or BINARY"),
        (of("isnan", "i"), "must be FLOAT or DOUBLE"),
        (of("if", "i", "i", "i"), "conditions of if must be BOOLEAN"),
        (of("case", "b", "i", "b", "f"), "one type"),
        (of("coalesce", "i", "f"), "one type"),
        (of("isnull", Cast(field("t"), pa.int64())), "must lose nothing.*got STRING to BIGINT"),
        (of("isnull", Cast(field("i"), pa.int32())), "must lose nothing.*got BIGINT to INT"),
        (of("isnull", Cast(field("i"), pa.decimal128(18, 0))), "must lose nothing"),
        (of("isnull", Cast(field("d"), pa.timestamp("us", tz="UTC"))), "depend on no time zone"),
    ],
)
def test_what_could_differ_from_spark_is_refused(condition: Condition, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        type_of(condition, types)
