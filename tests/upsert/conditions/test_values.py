"""Values that expressions compute in Arrow, against Python's own numbers: Java's and Spark's, or an error."""

import datetime
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from upsert.conditions.evaluate import type_of, value
from upsert.conditions.expressions import Call, Const, Field, Ref
from upsert.errors import ConfigurationError, SchemaError

Pairs = list[tuple[Any, Any]]


def computed(op: str, *columns: pa.Array, result: pa.DataType | None = None) -> list[Any]:
    """What an operator gives for rows; the type that its result must have is said by a NULL of it."""
    fields = [Field(Ref(0, str(number))) for number in range(len(columns))]
    condition = Call(op, (*fields, *([] if result is None else [Const(None, result)])))
    type_ = type_of(condition, lambda ref: columns[int(ref.column)].type)
    found = value(condition, lambda ref: columns[int(ref.column)], len(columns[0]), {})
    assert found.type == type_
    found.validate(full=True)
    return list(found.to_pylist())


def check(
    op: str,
    wanted: Callable[[Any, Any], Any],
    pairs: Pairs,
    *types: pa.DataType,
    result: pa.DataType | None = None,
) -> None:
    """The operator gives for two columns what is wanted of each row, or fails where that does for one."""
    columns = [pa.array(column, type_) for column, type_ in zip(zip(*pairs, strict=True), types, strict=True)]
    try:
        expected = [None if None in pair else wanted(*pair) for pair in pairs]
    except ArithmeticError:
        with pytest.raises(SchemaError, match="one overflows or is divided by zero"):
            computed(op, *columns, result=result)
    else:
        assert computed(op, *columns, result=result) == expected


# decimals

ALL_DIGITS = Context(prec=200)
WIDE_2 = pa.decimal128(20, 2)


def half_up(exact: Fraction, scale: int) -> Fraction:
    """Rounded to so many digits behind the point, halves away from zero."""
    rounded = (2 * abs(exact) * 10**scale + 1) // 2
    return Fraction(rounded if exact >= 0 else -rounded, 10**scale)


def as_decimal(exact: Fraction, type_: pa.DataType) -> Decimal:
    unscaled = exact * 10**type_.scale
    if abs(unscaled) >= 10**type_.precision:
        raise OverflowError
    return Decimal(int(unscaled)).scaleb(-type_.scale, ALL_DIGITS)


def decimals(type_: pa.DataType) -> st.SearchStrategy[Decimal | None]:
    """Small ones and those with all digits: of both there are halves."""
    most = 10**type_.precision - 1
    unscaled = st.integers(-min(most, 30), min(most, 30)) | st.integers(-most, most)
    return st.none() | unscaled.map(lambda number: Decimal(number).scaleb(-type_.scale, ALL_DIGITS))


@st.composite
def decimal_types(draw: st.DrawFn) -> pa.DataType:
    precision = draw(st.sampled_from([3, 9, 18, 20, 38]) | st.integers(1, 38))
    return pa.decimal128(precision, draw(st.integers(0, min(precision, 12))))


@st.composite
def two_columns(draw: st.DrawFn) -> tuple[Pairs, pa.DataType, pa.DataType]:
    one, other = draw(decimal_types()), draw(decimal_types())
    return draw(st.lists(st.tuples(decimals(one), decimals(other)), min_size=1, max_size=3)), one, other


def pairs_of(precision: int, scale: int, *numbers: tuple[str, str]) -> tuple[Pairs, pa.DataType, pa.DataType]:
    type_ = pa.decimal128(precision, scale)
    return [(Decimal(one), Decimal(other)) for one, other in numbers], type_, type_


@given(two_columns(), decimal_types())
@example(pairs_of(9, 2, ("1.00", "8.00"), ("-1.00", "8.00"), ("1.00", "-3.00"), ("-2.00", "-3.00")), WIDE_2)
@example(pairs_of(9, 2, ("1.00", "0.00")), WIDE_2)
@example(pairs_of(38, 0, ("9" * 38, "7"), ("-" + "9" * 38, "7")), pa.decimal128(38, 6))
@example(pairs_of(38, 0, ("9" * 38, "1")), pa.decimal128(38, 6))
@example(pairs_of(38, 12, ("1", "9" * 26)), pa.decimal128(38, 38))
@example(pairs_of(38, 0, ("5", "1" + "0" * 20)), pa.decimal128(38, 6))
@example(pairs_of(18, 0, ("9" * 18, "1"), ("1", "9" * 18)), pa.decimal128(18, 0))
@example(pairs_of(18, 0, ("1" + "0" * 17, "1")), pa.decimal128(17, 0))
@example(([(None, Decimal("0.5"))], pa.decimal128(38, 0), pa.decimal128(38, 38)), pa.decimal128(38, 6))
def test_quotients_of_decimals_are_rounded_to_the_digits_of_the_type(
    columns: tuple[Pairs, pa.DataType, pa.DataType], result: pa.DataType
) -> None:
    def quotient(one: Decimal, other: Decimal) -> Decimal:
        return as_decimal(half_up(Fraction(one) / Fraction(other), result.scale), result)

    check("/", quotient, *columns, result=result)


@pytest.mark.parametrize("op", ["+", "-", "*"])
@given(two_columns(), decimal_types())
@example(pairs_of(9, 2, ("0.05", "0.10"), ("-0.05", "0.10"), ("1.15", "0.30")), pa.decimal128(9, 1))
@example(pairs_of(30, 12, ("9" * 13, "9" * 13)), pa.decimal128(38, 6))
@example(pairs_of(30, 12, ("1" + "0" * 7, "1" + "0" * 8), ("0", "0")), pa.decimal128(38, 6))
@example(pairs_of(30, 12, ("1" + "0" * 7, "9" * 8)), pa.decimal128(38, 6))
@example(pairs_of(3, 0, ("999", "999")), pa.decimal128(3, 0))
def test_sums_and_products_of_decimals_are_too(
    op: str, columns: tuple[Pairs, pa.DataType, pa.DataType], result: pa.DataType
) -> None:
    calculate = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__}[op]
    _, one, other = columns
    assume(op != "*" or one.precision + other.precision <= 75)  # products of more digits are refused

    def rounded(a: Decimal, b: Decimal) -> Decimal:
        return as_decimal(half_up(calculate(Fraction(a), Fraction(b)), result.scale), result)

    check(f"rounded {op}", rounded, *columns, result=result)


# integers

INTS = {32: pa.int32(), 64: pa.int64()}


def as_java(number: int, bits: int) -> int:
    """The number that is left in so many bits."""
    return (number + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def left(one: int, other: int) -> int:
    """What a division leaves, with the sign of what is divided."""
    found = abs(one) % abs(other)
    return found if one >= 0 else -found


def integers(bits: int) -> st.SearchStrategy[int | None]:
    lowest = -(2 ** (bits - 1))
    ends = st.sampled_from([lowest, lowest + 1, -1, 0, 1, -lowest - 1])
    return st.none() | st.integers(-9, 9) | ends | st.integers(lowest, -lowest - 1)


@pytest.mark.parametrize("bits", INTS)
@given(st.data())
def test_remainders_are_those_of_java(bits: int, data: st.DataObject) -> None:
    pairs = data.draw(st.lists(st.tuples(integers(bits), integers(bits)), min_size=1, max_size=4))
    check("%", left, pairs, INTS[bits], INTS[bits])

    def positive(one: int, other: int) -> int:
        found = left(one, other)
        return left(as_java(found + other, bits), other) if found < 0 else found

    check("pmod", positive, pairs, INTS[bits], INTS[bits])


@pytest.mark.parametrize(("op", "sign"), [("date +", 1), ("date -", -1)])
@given(st.lists(st.tuples(integers(32), integers(32)), min_size=1, max_size=4))
def test_dates_are_moved_by_days(op: str, sign: int, pairs: Pairs) -> None:
    days, by = (pa.array(column, pa.int32()) for column in zip(*pairs, strict=True))
    moved = [None if None in pair else pair[0] + sign * pair[1] for pair in pairs]
    condition = Call(op, (Field(Ref(0, "0")), Field(Ref(0, "1"))))
    columns = {"0": days.cast(pa.date32()), "1": by}

    def found() -> Any:
        return value(condition, lambda ref: columns[ref.column], len(pairs), {})

    if all(day is None or day == as_java(day, 32) for day in moved):
        assert found().equals(pa.array(moved, pa.int32()).cast(pa.date32()))
    else:
        with pytest.raises(SchemaError, match="must fit into DATE, one overflows"):
            found()


def test_days_lie_between_dates() -> None:
    first, last = datetime.date(2024, 2, 28), datetime.date(2024, 3, 1)
    dates = [pa.array([last, first, None, first]), pa.array([first, last, first, first])]
    assert computed("days", *dates) == [2, -2, None, 0]
    ends = [pa.array([2**31 - 1, -(2**31)], pa.int32()).cast(pa.date32()) for _ in range(2)]
    with pytest.raises(SchemaError, match="one overflows"):
        computed("days", ends[0], ends[1].take([1, 0]))


# texts


def test_values_become_texts() -> None:
    assert computed("text", pa.array([-1, None, 2**63 - 1])) == ["-1", None, str(2**63 - 1)]
    assert computed("text", pa.array([True, False, None])) == ["true", "false", None]
    years = [datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)]
    assert computed("text", pa.array(years)) == ["0001-01-01", None, "9999-12-31"]
    assert computed("text", pa.array([None], pa.date32())) == [None]


@pytest.mark.parametrize("day", [-719_163, 2_932_897])
def test_dates_of_other_years_are_no_texts(day: int) -> None:
    with pytest.raises(SchemaError, match="years 1 to 9999"):
        computed("text", pa.array([0, day], pa.int32()).cast(pa.date32()))


def test_letters_of_ascii_change_their_case() -> None:
    texts = pa.array(["aZ5{", "", None])
    assert computed("upper", texts) == ["AZ5{", "", None]
    assert computed("lower", texts) == ["az5{", "", None]
    assert computed("lower", pa.array([None, None], pa.string())) == [None, None]
    for op in ("upper", "lower"):
        with pytest.raises(SchemaError, match="must be ASCII"):
            computed(op, pa.array(["a", "é"]))


def test_blanks_alone_are_trimmed() -> None:
    texts = pa.array(["  a b ", "\ta\n", "", "   ", None])
    assert computed("trim", texts) == ["a b", "\ta\n", "", "", None]
    assert computed("ltrim", texts) == ["a b ", "\ta\n", "", "", None]
    assert computed("rtrim", texts) == ["  a b", "\ta\n", "", "", None]


# any values


def test_the_greatest_and_the_least_are_those_of_what_is_known() -> None:
    columns = [pa.array([1, 5, None, None]), pa.array([2, 4, 3, None]), pa.array([0, 6, None, None])]
    assert computed("greatest", *columns) == [2, 6, 3, None]
    assert computed("least", *columns) == [0, 4, 3, None]


def test_floats_are_divided_but_not_by_zero() -> None:
    assert computed("/", pa.array([1.0, None, -3.0]), pa.array([4.0, 1.0, 2.0])) == [0.25, None, -1.5]
    with pytest.raises(SchemaError, match="divided by zero"):
        computed("/", pa.array([1.0]), pa.array([0.0]))


def test_what_must_be_given_is_no_null() -> None:
    assert computed("given", pa.array(["a", ""])) == ["a", ""]
    with pytest.raises(SchemaError, match=r"condition given.* must fit into STRING"):
        computed("given", pa.array(["a", None]))


def test_a_part_that_is_known_is_not_computed_again() -> None:
    part = Call("+", (Field(Ref(0, "a")), Field(Ref(0, "a"))))
    known: dict[int, pa.Array] = {}
    assert value(part, lambda _: pa.array([1, 2]), 2, known).to_pylist() == [2, 4]
    again = Call("*", (part, part))
    assert value(again, lambda _: pa.array([9, 9]), 2, known).to_pylist() == [4, 16]


@pytest.mark.parametrize(
    ("op", "columns", "message"),
    [
        ("%", (pa.int16(), pa.int16()), "INT or BIGINT"),
        ("pmod", (pa.int32(), pa.int64()), "INT or BIGINT"),
        ("date +", (pa.date32(), pa.int64()), "a DATE and an INT"),
        ("date -", (pa.int32(), pa.int32()), "a DATE and an INT"),
        ("days", (pa.date32(), pa.int32()), "values must be DATE"),
        ("text", (pa.float64(),), "an integer, BOOLEAN or DATE"),
        ("upper", (pa.binary(),), "values must be STRING"),
        ("concat", (pa.string(), pa.binary()), "values must be STRING"),
        ("greatest", (pa.int32(), pa.int64()), "all values must have one type"),
        ("least", (pa.float64(), pa.float64()), "integers, decimals, STRING or DATE"),
        ("/", (pa.int32(), pa.int32()), "FLOAT or DOUBLE"),
        ("/", (pa.float64(), pa.float32()), "FLOAT or DOUBLE"),
        ("/", (pa.float64(), pa.float64(), pa.float64()), "values must be decimals"),
        ("/", (pa.decimal128(3, 1), pa.decimal128(3, 1), pa.decimal128(3, 1)), "must be that of a NULL"),
    ],
)
def test_what_is_not_computed_in_arrow_is_refused(
    op: str, columns: tuple[pa.DataType, ...], message: str
) -> None:
    condition = Call(op, tuple(Field(Ref(0, str(number))) for number in range(len(columns))))
    with pytest.raises(ConfigurationError, match=message):
        type_of(condition, lambda ref: columns[int(ref.column)])
