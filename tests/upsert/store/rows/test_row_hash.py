"""The 128-bit identity of whole rows."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.store.samples import canonical
from upsert.store.rows.hashing import row_hashes

STRUCT = pa.struct([("x", pa.float64()), ("y", pa.string())])
TYPES = [
    pa.int32(),
    pa.float64(),
    pa.string(),
    pa.decimal128(38, 2),
    pa.list_(pa.string()),
    pa.list_(pa.list_(pa.int64())),
    pa.map_(pa.string(), pa.float64()),
    STRUCT,
]
texts = st.sampled_from(["", "a", "\0", "a\0", "ab"])
floats = st.sampled_from([0.0, -0.0, float("nan"), 1.0])
values = st.tuples(
    st.none() | st.sampled_from([0, 1]),
    st.none() | floats,
    st.none() | texts,
    st.none() | st.sampled_from([0, 1]),
    st.none() | st.lists(st.none() | texts, max_size=2),
    st.none() | st.lists(st.none() | st.lists(st.none() | st.sampled_from([0, 1]), max_size=2), max_size=2),
    st.none() | st.dictionaries(texts, st.none() | floats, max_size=2).map(lambda d: list(d.items())),
    st.none() | st.fixed_dictionaries({"x": st.none() | floats, "y": st.none() | texts}),
)


def identity(row):
    """The row as Python compares it, map entries in one order."""
    plain = list(row)
    if plain[6] is not None:
        plain[6] = [tuple(sorted((key, canonical(value)) for key, value in plain[6]))]
    return tuple(repr(canonical(value)) for value in plain)


@given(st.lists(values, max_size=30))
def test_rows_have_equal_hashes_exactly_if_they_are_equal(rows):
    """NULL, empty and missing parts of nested values are all told apart; the order of map entries is not."""
    columns = [pa.array([row[i] for row in rows], type_) for i, type_ in enumerate(TYPES)]
    hashes = row_hashes(columns, len(rows)).to_pylist()
    by_row = {}
    for row, found in zip(rows, hashes, strict=True):
        assert by_row.setdefault(identity(row), found) == found
    assert len(set(by_row.values())) == len(by_row)


@given(st.lists(values, min_size=4, max_size=10))
def test_hashes_of_a_slice_are_the_slice_of_the_hashes(rows):
    columns = [pa.array([row[i] for row in rows], type_) for i, type_ in enumerate(TYPES)]
    whole = row_hashes(columns, len(rows))
    part = row_hashes([column.slice(1, 2) for column in columns], 2)
    assert part.to_pylist() == whole[1:3].to_pylist()


def test_a_value_moved_to_another_column_changes_the_hash():
    """Spark's hash leaves NULLs out, so it could not tell these rows apart."""
    one, other = pa.array([1, None]), pa.array([None, 1])
    assert len(set(row_hashes([one, other], 2).to_pylist())) == 2


def test_values_hidden_below_a_null_do_not_count():
    """Arrow keeps child values of a NULL list or struct; they are no part of the row."""
    offsets, child = pa.array([0, 1, 2], pa.int32()), pa.array([7, 8])
    hidden = pa.ListArray.from_arrays(offsets, child, mask=pa.array([True, True]))
    assert len(set(row_hashes([hidden], 2).to_pylist())) == 1
    struct = pa.StructArray.from_arrays([child], names=["x"], mask=pa.array([True, True]))
    assert len(set(row_hashes([struct], 2).to_pylist())) == 1
