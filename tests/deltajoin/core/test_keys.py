"""Columns of join keys in the types in which both sides' are compared."""

from typing import Any

import pyarrow as pa
import pytest

from deltajoin.core.keys import common_key_type, key_columns
from upsert.errors import SchemaError


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.int32(), pa.int16(), pa.int32()),
        (pa.string(), pa.string(), pa.string()),
        (pa.list_(pa.int8()), pa.list_(pa.int8()), None),
        (pa.int64(), pa.float64(), None),
        (pa.float64(), pa.int64(), None),
        (pa.float32(), pa.float64(), None),
    ],
)
def test_only_integers_meet_in_a_wider_type(left: Any, right: Any, common: Any) -> None:
    assert common_key_type(left, right) == common


def test_a_key_that_does_not_fit_its_type_is_named() -> None:
    rows = pa.table({"a": pa.array([1, 300], pa.int64()), "b": ["x", "y"]})
    assert key_columns(rows, ["b", "a"], [pa.string(), pa.int16()]) == [
        pa.array(["x", "y"]),
        pa.array([1, 300], pa.int16()),
    ]
    with pytest.raises(SchemaError, match="join key 'a': values must fit into TINYINT"):
        key_columns(rows, ["a"], [pa.int8()])
