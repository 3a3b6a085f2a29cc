"""The least and the greatest of groups, of each type; sums near the ends of their types."""

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from upsert.errors import SchemaError
from upsert.store.rows.measures import measured

ENDS: list[tuple[pa.DataType, Any, Any]] = [
    (pa.bool_(), False, True),
    *((type_, -5, 100) for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    (pa.int64(), -(1 << 63), (1 << 63) - 1),
    *((type_, float("-inf"), float("inf")) for type_ in (pa.float32(), pa.float64())),
    (pa.float64(), -0.0, 0.0),
    (pa.decimal128(5, 2), Decimal("-1.25"), Decimal("1.00")),
    (pa.decimal128(38, 0), Decimal("-" + "9" * 38), Decimal("9" * 38)),
    (pa.string(), "B", "é"),
    (pa.binary(), b"\x01", b"\xff"),
    (pa.date32(), date(1, 1, 1), date(9999, 12, 31)),
    (pa.timestamp("us"), datetime(1, 1, 1), datetime(2020, 1, 1)),
    *((pa.time32(unit), time(1), time(23)) for unit in ("s", "ms")),
    *((pa.time64(unit), time(1), time(23)) for unit in ("us", "ns")),
    (pa.duration("us"), timedelta(-1), timedelta(2)),
]


@pytest.mark.parametrize(("type_", "least", "greatest"), ENDS, ids=lambda value: str(value)[:20])
def test_the_ends_of_groups_are_found_in_each_type(type_: pa.DataType, least: Any, greatest: Any) -> None:
    values, groups = pa.array([greatest, None, least, None], type_), np.array([0, 0, 0, 2])
    for function, end in (("min", least), ("max", greatest)):
        found = measured(function, [values], groups, 4)
        found.validate(full=True)
        assert found.type == type_
        assert repr(found.to_pylist()) == repr([end, None, None, None])


@pytest.mark.parametrize("type_", [pa.int64(), pa.decimal128(28, 0), pa.decimal128(18, 0)])
def test_sums_lose_no_digit_whether_they_fit_a_word_or_not(type_: pa.DataType) -> None:
    """In one group and in several."""
    most = (1 << 62) if type_ != pa.decimal128(18, 0) else 10**18 - 1
    values = [most, -1, -most, 7, most, most - 1, -most, 5]
    for groups in (np.zeros(8, np.int64), np.array([0, 0, 0, 0, 1, 1, 1, 1])):
        of_groups = [values] if not groups.any() else [values[:4], values[4:]]
        found = measured("sum", [pa.array(values, type_)], groups, len(of_groups))
        assert [int(one) for one in found.to_pylist()] == list(map(sum, of_groups))


def test_a_sum_beyond_its_type_is_an_error() -> None:
    with pytest.raises(SchemaError, match="must fit into BIGINT"):
        measured("sum", [pa.array([1 << 62, 1 << 62])], np.zeros(2, np.int64), 1)
