"""Partitions: names and values, what is opened and what is not, and what replaces or drops them."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.store.samples import KEY_VALUES
from upsert import types
from upsert.errors import SchemaError
from upsert.schema import Column, Length, TableSchema
from upsert.store.predicate import parse_where, remaining
from upsert.store.rows.conform import conform
from upsert.store.rows.layout import Layout
from upsert.store.rows.partitions import partition_codes, partition_values, specified, split
from upsert.types import INTERVAL

DAYS = TableSchema.of(
    {
        "day": pa.date32(),
        "hub": pa.string(),
        "at": types.TIMESTAMP,
        "price": pa.decimal128(38, 18),
        "n": pa.int32(),
    },
    partitioned_by=["day", "hub", "at", "price"],
)


# names and values


@pytest.mark.parametrize("type_", [one for one in KEY_VALUES if one != INTERVAL], ids=str)
def test_text_of_a_partition_value_reads_back(type_: pa.DataType) -> None:
    values = pa.array([*KEY_VALUES[type_], None], type_)
    codes, texts = partition_codes(values)
    assert len(set(texts)) == len(texts), "no two values have one text"
    back = partition_values([texts[code] for code in codes], type_)
    assert partition_codes(back)[1] == texts


@pytest.mark.parametrize("type_", [types.TIMESTAMP, types.TIMESTAMP_NTZ], ids=str)
def test_a_time_behind_the_year_9999_has_no_partition(type_: pa.DataType) -> None:
    """Arrow writes some of them as times that are 65 536 years earlier."""
    rows = pa.table({"at": pa.array([2_069_699_385_600_000_000]).cast(type_), "n": [1]})
    layout = Layout.of(TableSchema.of({"at": type_, "n": pa.int64()}, partitioned_by=["at"]))
    with pytest.raises(SchemaError, match="partition column 'at' must hold values between the years"):
        list(split(layout, rows, None))


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        (pa.date32(), "2013-01-01", "2013-01-01"),
        (pa.date32(), dt.date(2013, 1, 1), "2013-01-01"),
        (pa.int32(), "7", "7"),
        (pa.decimal128(10, 2), "1.5", "1.50"),
        (pa.decimal128(10, 2), Decimal("1.50"), "1.50"),
        (pa.float64(), -0.0, "0"),
        (pa.float32(), Decimal("-1.5"), "-1.5"),
        (pa.float32(), 16_777_217, "16777216"),
        (pa.string(), "a/b=😀", "a/b=😀"),
        (pa.string(), None, None),
        (pa.bool_(), "true", "true"),
        (types.TIMESTAMP, "2013-01-01 08:00:00Z", "2013-01-01 08:00:00.000000Z"),
        (pa.time32("s"), "10:00", "10:00:00"),
        (pa.time64("us"), dt.time(10, 0, 0, 5), "10:00:00.000005"),
    ],
)
def test_a_specification_takes_values_and_their_texts(type_: pa.DataType, value: Any, text: str) -> None:
    schema = TableSchema.of({"p": type_, "n": pa.int32()}, partitioned_by=["p"])
    assert specified(schema, {"p": value}, of="t") == (("p", text),)


def test_a_specified_text_is_without_blanks_beyond_its_length_as_rows_are_stored() -> None:
    column = Column("p", pa.string(), length=Length(5))
    schema = TableSchema((column, Column("n", pa.int32())), partitioned_by=("p",))
    stored, _ = conform(Layout.of(schema), pa.table({"p": ["abcde   "], "n": [1]}))
    assert specified(schema, {"p": "abcde   "}, of="t") == (("p", stored.column("p")[0].as_py()),)
    assert specified(schema, {"p": "abcde x"}, of="t") == (("p", "abcde x"),)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"n": 1}, r"must be given by partition columns \(day, hub, at, price\), got 'n'"),
        ({"day": "yesterday"}, "'day' must be given a value of DATE, got 'yesterday'"),
        ({"day": dt.datetime(2013, 1, 1, 5)}, "'day' must be given a value of DATE, got datetime"),
        ({"hub": 1}, "'hub' must be given a value of STRING, got 1"),
        (
            {"at": "2013-01-01"},
            "value of TIMESTAMP with its zone, as '2013-01-31 08:00:00Z', got '2013-01-01'",
        ),
        ({"price": "341000000000000000000"}, r"'price' must be given a value of DECIMAL\(38,18\), got '341"),
        ({"price": 341 * 10**18}, r"'price' must be given a value of DECIMAL\(38,18\), got 341"),
        ({"price": "cheap"}, "'price' must be given a value of DECIMAL"),
        ({"price": "1e-77"}, "'price' must be given a value of DECIMAL"),
        ({"price": Decimal("1e-999999999")}, "'price' must be given a value of DECIMAL"),
        ({"price": "1e999999999"}, "'price' must be given a value of DECIMAL"),
        ("day=1", "must be given as columns and values, got 'day=1'"),
    ],
)
def test_a_wrong_specification_is_one_clear_error(spec: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        specified(DAYS, spec, of="t")


PREDICATES = st.one_of(
    st.tuples(st.just("p"), st.sampled_from(["=", "!=", "<", ">=", "in", "not in"]), st.integers(0, 3)),
    st.tuples(st.just("p"), st.sampled_from(["is null", "is not null"]), st.none()),
    st.tuples(st.just("n"), st.sampled_from(["=", "<", ">"]), st.integers(0, 3)),
)


@given(st.lists(st.lists(PREDICATES, min_size=1, max_size=3), min_size=1, max_size=3))
def test_what_remains_of_a_filter_is_true_of_the_same_rows(where: list[list[Any]]) -> None:
    """Partition by partition, against the filter asked of every row."""
    where = [[(c, o, [v] if "in" in o.split() else v) for c, o, v in each] for each in where]
    schema = TableSchema.of({"p": pa.int32(), "n": pa.int32()}, partitioned_by=["p"])
    rows = pa.table({"p": pa.array([p for p in (0, 1, 2, None) for _ in range(4)], pa.int32())})
    rows = rows.append_column("n", pa.array([0, 1, 2, 3] * 4, pa.int32()))
    wanted = parse_where(where, schema)
    partitions = [(("p", text),) for text in ("0", "1", "2", None)]
    left = remaining(wanted, partitions, schema)
    for number, partition in enumerate(partitions):
        own = rows.slice(4 * number, 4)
        kept = left[partition].apply(own) if partition in left else own.slice(0, 0)
        assert kept.equals(wanted.apply(own))
