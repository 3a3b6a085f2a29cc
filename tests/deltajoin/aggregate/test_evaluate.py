"""Results of aggregate functions against plain Python, over random columns."""

import math
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltajoin.aggregate.evaluate import computed
from deltajoin.aggregate.spec import Measure
from deltajoin.expressions import Call, Const, Field, Ref
from tests.helpers import sort_key
from upsert.errors import SchemaError
from upsert.store.rows.measures import result_type

MONEY = pa.decimal128(12, 2)
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "n": (pa.int64(), st.integers(-(2**40), 2**40)),
    "i": (pa.int32(), st.integers(-5, 5)),
    "x": (pa.float64(), st.sampled_from([0.25, -1.5, 3.0, math.nan, math.inf, -math.inf])),
    "d": (MONEY, st.integers(-(10**11), 10**11).map(lambda whole: Decimal(f"{whole}E-2"))),
    "s": (pa.string(), st.sampled_from(["", "a", "ab", "é", "\U0001f600", "Z"])),
    "b": (pa.bool_(), st.booleans()),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Table, np.ndarray[Any, Any]]:
    count = draw(st.integers(0, 12))
    drawn = {
        name: pa.array(draw(st.lists(st.none() | values, min_size=count, max_size=count)), type_)
        for name, (type_, values) in COLUMNS.items()
    }
    groups = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    return pa.table(drawn), np.array(groups, dtype=np.int64)


def expected(measure: Measure, rows: list[tuple[Any, ...]]) -> Any:
    rows = [row for row in rows if None not in (row[1:] if measure.function.endswith("_by") else row)]
    if measure.is_distinct:
        rows = list({tuple(map(sort_key, row)): row for row in rows}.values())
    values = [row[0] for row in rows] if measure.columns else []
    match measure.function:
        case "count":
            return len(rows)
        case "min" | "max" as name:
            return {"min": min, "max": max}[name](values, key=sort_key, default=None)
        case "collect_list":
            return sorted(values, key=sort_key)
        case "collect_set":
            return sorted({sort_key(value): value for value in values}.values(), key=sort_key)
        case "min_by" | "max_by" as name:
            best = {"min_by": min, "max_by": max}[name]((sort_key(row[1]) for row in rows), default=None)
            return {row[0] for row in rows if sort_key(row[1]) == best}
    if not values:
        return None
    if isinstance(values[0], float):
        total = math.nan if {math.inf, -math.inf} <= set(values) else sum(values)
        return total / len(values) if measure.function == "avg" else total
    exact = sum(map(Fraction, values))
    if measure.function == "sum":
        return int(exact) if isinstance(values[0], int) else Decimal(int(exact * 100)).scaleb(-2)
    if isinstance(values[0], int):
        return float(exact) / len(values)
    quotient = Decimal(int(exact * 100)) / (100 * len(values))
    return quotient.quantize(Decimal("1E-6"), ROUND_HALF_UP)


MEASURES = [
    Measure("count", ()),
    Measure("count", ("s",)),
    Measure("count", ("s", "x"), is_distinct=True),
    *(
        Measure(name, (column,))
        for name in ("min", "max", "collect_list", "collect_set")
        for column in COLUMNS
    ),
    *(Measure(name, (column,)) for name in ("sum", "avg") for column in "nixd"),
    Measure("sum", ("i",), is_distinct=True),
    Measure("min_by", ("s", "x")),
    Measure("max_by", ("n", "s")),
]


def canonical(value: Any) -> Any:
    if isinstance(value, list):
        return [canonical(one) for one in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


@given(columns())
def test_results_are_those_of_plain_python(given: tuple[pa.Table, np.ndarray[Any, Any]]) -> None:
    table, groups = given
    for measure in MEASURES:
        found = computed(measure, table, groups, 4)
        found.validate(full=True)
        assert found.type == result_type(
            measure.function, [table.schema.field(c).type for c in measure.columns]
        )
        rows = list(zip(*(table.column(c).to_pylist() for c in measure.columns), strict=True))
        rows = rows if measure.columns else [()] * table.num_rows
        for group, value in enumerate(found.to_pylist()):
            wanted = expected(measure, [row for row, own in zip(rows, groups, strict=True) if own == group])
            if measure.function.endswith("_by"):
                assert value in wanted or (not wanted and value is None), measure
            else:
                assert canonical(value) == canonical(wanted), measure


def test_filter_leaves_rows_out() -> None:
    small = Call("<", (Field(Ref(0, "n")), Const(3, pa.int64())))
    rows = pa.table({"n": [1, 5, None, 2]})
    found = computed(Measure("count", (), where=small), rows, np.array([0, 0, 0, 1]), 2)
    assert found.to_pylist() == [1, 1]


def test_sum_that_leaves_its_type_is_an_error() -> None:
    """As in Spark's ANSI mode."""
    rows = pa.table({"n": [2**63 - 1, 1]})
    with pytest.raises(SchemaError, match="must fit into BIGINT, got 9223372036854775808"):
        computed(Measure("sum", ("n",)), rows, np.array([0, 0]), 1)


def test_sum_that_leaves_its_type_half_way_is_right() -> None:
    rows = pa.table({"n": [2**63 - 1, 1, -2]})
    assert computed(Measure("sum", ("n",)), rows, np.array([0, 0, 0]), 1).to_pylist() == [2**63 - 2]


def test_large_decimals_lose_no_digit() -> None:
    largest = Decimal(10**38 - 1)
    rows = pa.table({"d": pa.array([largest], pa.decimal128(38, 0))})
    assert computed(Measure("sum", ("d",)), rows, np.array([0]), 1).to_pylist() == [largest]


def test_text_has_no_sum() -> None:
    with pytest.raises(SchemaError, match="sum of STRING is no number"):
        result_type("sum", [pa.string()])
