"""A column of texts gives what each text gives, and texts of values give the values back."""

import base64
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.formats.random_columns import FIRST, LAST, SCALARS, plain, values
from tests.upsert.formats.test_json_reader import NUMBERS, STRINGS, TIMES
from upsert import types
from upsert.errors import SchemaError
from upsert.formats import text_values
from upsert.formats.text_values import (
    BadValueError,
    TimestampStandard,
    format_column,
    read_column,
    scalar_reader,
    scalar_texts,
    shown,
)

STANDARDS = st.sampled_from(TimestampStandard)


def read_singly(texts: list[str | None], read: Callable[[str], Any]) -> tuple[list[Any], list[bool]]:
    found: list[Any] = []
    bad = []
    for text in texts:
        value = None
        is_bad = False
        try:
            value = None if text is None else read(text)
        except BadValueError:
            is_bad = True
        found.append(value)
        bad.append(is_bad)
    return found, bad


def compare(texts: list[str | None], type_: pa.DataType, standard: TimestampStandard) -> None:
    singly, bad = read_singly(texts, scalar_reader(type_, standard))
    column, mask = read_column(pa.array(texts, pa.string()), type_, standard)
    column.validate(full=True)
    assert plain(pa.table({"x": column})) == plain(pa.table({"x": pa.array(singly, type_)}))
    assert (bad if any(bad) else None) == (None if mask is None else mask.tolist())


@given(st.lists(st.none() | STRINGS, max_size=8), SCALARS, STANDARDS)
def test_column_of_any_texts_gives_what_each_gives(
    texts: list[str | None], type_: pa.DataType, standard: TimestampStandard
) -> None:
    compare(texts, type_, standard)


@given(st.data(), SCALARS, STANDARDS)
def test_column_of_fitting_texts_gives_what_each_gives(
    data: st.DataObject, type_: pa.DataType, standard: TimestampStandard
) -> None:
    fitting = TIMES if pa.types.is_temporal(type_) else NUMBERS
    compare(data.draw(st.lists(fitting, max_size=5)), type_, standard)


@given(st.data(), SCALARS, STANDARDS, st.booleans())
def test_texts_of_values_give_the_values_back(
    data: st.DataObject, type_: pa.DataType, standard: TimestampStandard, is_plain: bool
) -> None:
    given_values = data.draw(st.lists(values(pa.field("x", type_)), max_size=6))
    column = pa.array(given_values, type_)
    found, bad = read_column(scalar_texts(column, standard, is_plain=is_plain), type_, standard)
    assert bad is None
    assert plain(pa.table({"x": found})) == plain(pa.table({"x": column}))


@pytest.mark.parametrize(
    "text", ["1e-1000000000", "1e-100000000", "1e-77", f"0.{'0' * 500}1", "9" * 5000, "1e99999"]
)
@pytest.mark.parametrize("type_", [pa.decimal128(10, 2), pa.decimal128(38, 38), pa.float32(), pa.int64()])
def test_numbers_that_arrow_cannot_bear_never_reach_it(text: str, type_: pa.DataType) -> None:
    """Arrow's own cast ends the process, or reads memory that is not its own, for some of them."""
    compare([text, f"-{text}", None], type_, TimestampStandard.SQL)


@pytest.mark.parametrize(
    "type_", [pa.float64(), pa.decimal128(9, 2), pa.int32(), pa.binary(), types.TIMESTAMP]
)
@pytest.mark.parametrize("part", ["9", "=", " ", "1.", "-"])
def test_time_to_refuse_a_text_grows_with_its_length_only(type_: pa.DataType, part: str) -> None:
    """A pattern that tries all ways to split the digits would not come back."""
    with pytest.raises(BadValueError):
        scalar_reader(type_, TimestampStandard.SQL)(part * 1_000_000 + "!")


@given(st.lists(st.none() | st.binary(max_size=40), max_size=8))
def test_base64_of_a_column_is_that_of_each_value(given_values: list[bytes | None]) -> None:
    column = pa.array(given_values, pa.binary())
    texts = text_values.base64_texts(column)
    expected = [None if value is None else base64.b64encode(value).decode() for value in given_values]
    assert texts.to_pylist() == expected
    assert text_values.base64_bytes(texts).equals(column)
    assert text_values.base64_texts(column.slice(1)).to_pylist() == expected[1:]


def test_times_are_written_without_trailing_zeros() -> None:
    micros = pa.array([0, 1, 1_500_000, -1, 10_000_000, None], types.TIMESTAMP_NTZ)
    assert format_column(micros, TimestampStandard.SQL).to_pylist() == [
        "1970-01-01 00:00:00",
        "1970-01-01 00:00:00.000001",
        "1970-01-01 00:00:01.5",
        "1969-12-31 23:59:59.999999",
        "1970-01-01 00:00:10",
        None,
    ]


@given(st.lists(st.datetimes(FIRST, LAST), max_size=4), STANDARDS)
def test_times_of_any_year_are_written_with_four_digits(
    given_values: list[Any], standard: TimestampStandard
) -> None:
    texts = format_column(pa.array(given_values, types.TIMESTAMP_NTZ), standard).to_pylist()
    assert [text[:10] for text in texts] == [
        value.strftime("%Y-%m-%d").rjust(10, "0") for value in given_values
    ]


@pytest.mark.parametrize("type_", [types.TIMESTAMP, types.TIMESTAMP_NTZ])
def test_times_beyond_four_digits_are_refused(type_: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="must be within the years 0001 to 9999"):
        format_column(pa.array([2**62], type_), TimestampStandard.SQL)


def test_long_values_are_cut() -> None:
    assert shown("a" * 1000) == "'" + "a" * 78 + "'..."
    assert shown("a") == "'a'"
    assert len(shown("'" + '"' * 1000)) < 90
