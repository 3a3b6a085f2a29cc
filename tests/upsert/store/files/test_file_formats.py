"""File formats: whatever is written comes back exactly, under the types and ids that it had."""

import contextlib
import datetime as dt
import io
import math
from decimal import Decimal
from itertools import cycle, islice, pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.store.samples import KEY_VALUES
from upsert.store.files.formats import FORMATS, base, format_called, orc
from upsert.store.files.formats.base import Compression, FileFormat
from upsert.types import TIMESTAMP, TIMESTAMP_NTZ, VARIANT

POINT = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("t", TIMESTAMP)])
OUTER = pa.struct([pa.field("inner", POINT), pa.field("d", pa.decimal128(5, 5), nullable=False)])
NESTED: dict[pa.DataType, Any] = {
    POINT: [{"x": 1, "t": None}, {"x": -1, "t": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}],
    OUTER: [
        {"inner": None, "d": Decimal("-0.00001")},
        {"inner": {"x": 7, "t": None}, "d": Decimal("0.99999")},
    ],
    pa.list_(pa.field("element", POINT, nullable=False)): [[], [{"x": 1, "t": None}] * 3],
    pa.list_(pa.float32()): [[], [math.nan, None, -0.0]],
    pa.map_(pa.int32(), pa.field("value", TIMESTAMP_NTZ, nullable=False)): [[], [(1, dt.datetime(1, 1, 1))]],
    pa.map_(pa.string(), pa.list_(pa.date32())): [[("a", [dt.date(9999, 12, 31), None]), ("b", None)]],
    VARIANT: [{"variant_value": b"\x0c\x01", "variant_metadata": b"\x01\0\0"}],
    pa.binary(16): [b"\0" * 16, bytes(range(16))],
}
VALUES = {**KEY_VALUES, **NESTED}
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
ODD_NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)


@st.composite
def batches(draw: st.DrawFn, format_: FileFormat) -> pa.RecordBatch:
    names = NAMES if format_.name == "avro" else NAMES | ODD_NAMES
    fitting = [type_ for type_ in VALUES if format_.refusal(pa.field("a", type_)) is None]
    types = draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=4))
    of_columns = draw(st.lists(names, min_size=len(types), max_size=len(types), unique_by=str.lower))
    count = draw(st.integers(1, 12))
    fields, arrays = [], []
    for number, (name, type_) in enumerate(zip(of_columns, types, strict=True)):
        values = st.lists(st.sampled_from([None, *VALUES[type_]]), min_size=count, max_size=count)
        metadata = {"id": str(number + 1)} if draw(st.booleans()) else None
        fields.append(pa.field(name, type_, metadata=metadata))
        found = pa.array(draw(values), type_)
        arrays.append(taken(found) if draw(st.booleans()) else found)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def taken(values: pa.Array) -> pa.Array:
    """The same values; what is within a NULL is NULL too, also where its field is NOT NULL."""
    places = [number if value.is_valid else None for number, value in enumerate(values)]
    return values.take(pa.array(places, pa.int64()))


def exact(value: Any) -> Any:
    """A value that is equal to another if and only if both are the same, to the sign of a zero."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, dict):
        return {name: exact(item) for name, item in value.items()}
    return [exact(item) for item in value] if isinstance(value, list | tuple) else value


def written(
    format_: FileFormat, rows: pa.RecordBatch, codec: str | None = None, level: int | None = None
) -> pa.Buffer:
    out = io.BytesIO()
    format_.write(out, rows, Compression(codec or format_.codecs[0], level))
    return pa.py_buffer(out.getvalue())


def check_round_trip(format_: FileFormat, rows: pa.RecordBatch, codec: str, part_rows: int) -> int:
    """Each part comes back, and each alone; how many there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "PART_BYTES", 0)
        patch.setattr(base, "_LEAST_ROWS", part_rows)
        patch.setattr(orc, "PART_BYTES", 4)
        patch.setattr(orc, "_BATCH_ROWS", part_rows)
        stored = format_.open(written(format_, rows, codec))
    assert stored.schema.equals(rows.schema, check_metadata=True)
    assert stored.rows == stored.starts[-1] == rows.num_rows
    for number, (start, stop) in enumerate(pairwise(stored.starts)):
        for names in (rows.schema.names, rows.schema.names[::-1][:2], []):
            found = stored.read(number, names)
            assert found.schema.names == names
            assert found.num_rows == stop - start
            expected = rows.slice(start, stop - start).select(names)
            found.validate(full=True)
            assert found.schema.types == expected.schema.types
            assert [exact(c.to_pylist()) for c in found.columns] == [
                exact(c.to_pylist()) for c in expected.columns
            ]
    return len(stored.starts) - 1


@pytest.mark.parametrize("name", [format_.name for format_ in FORMATS])
@given(data=st.data())
def test_any_rows_come_back_exactly_from_every_format(name: str, data: st.DataObject) -> None:
    format_ = format_called(name)
    codec = data.draw(st.sampled_from(format_.codecs))
    check_round_trip(format_, data.draw(batches(format_)), codec, data.draw(st.integers(1, 12)))


@pytest.mark.parametrize(
    ("name", "codec"), [(format_.name, codec) for format_ in FORMATS for codec in format_.codecs]
)
def test_every_type_comes_back_exactly_from_every_format_under_every_codec(name: str, codec: str) -> None:
    """From a slice, whose NULLs have NULLs within; a column may be called as the field of another one."""
    format_ = format_called(name)
    fitting = [type_ for type_ in VALUES if format_.refusal(pa.field("a", type_)) is None]
    outer = OUTER if OUTER in fitting else POINT
    within = f"c{'_' if name == 'avro' else '.'}{outer.field(0).name}"
    types = {**{f"c{number}": type_ for number, type_ in enumerate(fitting)}, within: POINT, "c": outer}
    columns = {
        column: taken(pa.array([None, *islice(cycle([*VALUES[type_], None]), 8)], type_))
        for column, type_ in types.items()
    }
    check_round_trip(format_, pa.record_batch(columns).slice(1), codec, 5)


@pytest.mark.parametrize("name", ["parquet", "orc", "avro"])
def test_every_type_comes_back_from_files_of_several_parts(name: str) -> None:
    """Few rows, as the random ones above, are one stripe of ORC, which are cut by bytes."""
    format_, random = format_called(name), Random(1)
    fields = [pa.field(f"c{number}", type_) for number, type_ in enumerate(VALUES)]
    fitting = [field for field in fields if format_.refusal(field) is None]
    columns = [pa.array(random.choices([None, *VALUES[field.type]], k=200), field.type) for field in fitting]
    rows = pa.record_batch(columns, schema=pa.schema(fitting))
    assert check_round_trip(format_, rows, format_.codecs[-1], 64) == 4


@pytest.mark.parametrize("format_", FORMATS, ids=lambda format_: format_.name)
def test_structs_are_null_where_they_were_in_parts_of_many_rows(format_: FileFormat) -> None:
    """ORC's writer takes rows in batches of its own, and slices of structs for whole ones."""
    values = [None if n % 3 == 0 else {"x": n, "t": None} for n in range(20_000)]
    array = pa.array([{"x": -1, "t": None}, *values], POINT).slice(1)
    stored = format_.open(written(format_, pa.record_batch({"s": array})))
    found = pa.concat_batches([stored.read(part, ["s"]) for part in range(len(stored.starts) - 1)])
    assert found.column(0).to_pylist() == values


LINES = pa.struct(
    [
        pa.field("x", pa.string(), nullable=False),
        pa.field("at", POINT, nullable=False),
        pa.field("many", pa.list_(pa.field("element", POINT, nullable=False)), nullable=False),
        pa.field("named", pa.map_(pa.string(), pa.field("value", POINT, nullable=False)), nullable=False),
    ]
)


@pytest.mark.parametrize("wrap", ["struct", "list", "map", "slice"])
@pytest.mark.parametrize("format_", FORMATS, ids=lambda format_: format_.name)
def test_fields_of_structs_that_are_null_may_be_null_whatever_their_type_says(
    format_: FileFormat, wrap: str
) -> None:
    """As Spark gives them."""
    line = {"x": "a", "at": {"x": 1, "t": None}, "many": [{"x": 2, "t": None}], "named": [("k", {"x": 3})]}
    fields = [pa.array([None, line[field.name], None], field.type) for field in LINES]
    structs = pa.StructArray.from_arrays(fields, fields=list(LINES), mask=pa.array([True, False, True]))
    values: pa.Array = structs
    if wrap == "slice":
        values = structs.slice(1)
    elif wrap == "list":
        values = pa.ListArray.from_arrays([0, 1, 3], structs)
    elif wrap == "map":
        values = pa.MapArray.from_arrays([0, 1, 3], ["a", "b", "c"], structs)
    stored = format_.open(written(format_, pa.record_batch({"s": values})))
    found = stored.read(0, ["s"])
    found.validate(full=True)
    assert found.column(0).to_pylist() == values.to_pylist()


@pytest.mark.parametrize("codec", format_called("avro").codecs)
def test_bytes_of_avro_that_changed_are_refused_by_no_other_error_than_of_damage(codec: str) -> None:
    format_ = format_called("avro")
    whole = written(format_, pa.record_batch({"n": range(50), "s": ["ab"] * 50}), codec).to_pybytes()
    for at in range(len(whole)):
        with contextlib.suppress(OSError, ValueError):
            stored = format_.open(pa.py_buffer(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]))
            stored.read(0, stored.schema.names)
