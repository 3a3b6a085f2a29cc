"""Searches in the sorted hashes of a sidecar."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert.schema import TableSchema
from upsert.store.files.lookup_index import (
    LARGE,
    HashIndex,
    KeyIndex,
    build_index,
    build_sidecar,
    is_sidecar,
    may_hold,
    read_indexes,
    search,
    upper_halves,
)
from upsert.store.rows.hashing import hash_columns
from upsert.store.rows.layout import Layout

# neighbours share a slot, others lie at both ends of the range
near = st.sampled_from([0, 1, 2, 7, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1])
hashes = st.lists(near | st.integers(0, 2**64 - 1), max_size=40)


def index_of(stored):
    order = np.argsort(np.array(stored, np.uint64), kind="stable")
    return HashIndex.of(np.array(stored, np.uint64)[order], order.astype(np.uint32))


def pairs(stored, probes):
    return [(p, r) for p, probe in enumerate(probes) for r, hash_ in enumerate(stored) if hash_ == probe]


@given(hashes.filter(len), hashes)
def test_search_finds_every_row_of_every_probe(stored, probes):
    probes = probes + stored[::3]
    hits = search(index_of(stored), np.array(probes, np.uint64))
    assert sorted(zip(hits.probes.tolist(), hits.rows.tolist(), strict=True)) == pairs(stored, probes)


@given(hashes.filter(len), hashes)
def test_what_a_file_has_is_never_passed_over(stored, probes):
    maybe = may_hold(index_of(stored), np.array([*probes, *stored], np.uint64)).tolist()
    assert maybe == sorted(maybe)
    assert set(maybe) >= {at for at, probe in enumerate([*probes, *stored]) if probe in stored}


@pytest.mark.parametrize("rows", [1, 2, 1000, 70_000])
def test_most_of_what_a_file_does_not_have_is_passed_over_and_all_of_it_is_not_found(rows):
    random = np.random.default_rng(rows)
    stored, others = random.integers(0, 2**64, (2, rows), np.uint64)
    index = index_of(stored)
    assert len(may_hold(index, others)) <= rows * 0.15 + 1
    assert not len(search(index, np.setdiff1d(others, stored)).probes)
    hits = search(index, stored)
    assert hits.probes.tolist() == list(range(rows))
    assert (stored[hits.rows] == stored).all()


def test_a_hash_behind_thousands_of_equal_ones_in_its_slot_is_found():
    stored = [5] * 3000 + [6, 6, 2**64 - 1]
    hits = search(index_of(stored), np.array([6, 4, 7, 2**64 - 1, 5], np.uint64))
    assert hits.probes.tolist() == [0, 0, 3] + [4] * 3000
    assert sorted(hits.rows.tolist()) == list(range(3003))


@given(hashes.filter(len), hashes)
def test_halves_of_hashes_find_the_rows_of_each_probe_and_others_of_the_same_half_alone(stored, probes):
    whole = index_of(stored)
    index = whole.short()
    halves = [one >> 32 for one in stored], [one >> 32 for one in probes + stored]
    hits = search(index, np.array(probes + stored, np.uint64))
    assert sorted(zip(hits.probes.tolist(), hits.rows.tolist(), strict=True)) == pairs(*halves)
    maybe = set(may_hold(index, np.array(probes + stored, np.uint64)).tolist())
    assert maybe >= {at for at, probe in enumerate(probes + stored) if probe in stored}


@pytest.mark.parametrize("keys", [100_000, 3, 1])
@pytest.mark.parametrize("rows", [LARGE - 1, LARGE, 90_000])
def test_short_indexes_lead_to_every_row_and_tell_the_upper_half_of_each_hash(rows, keys):
    random = np.random.default_rng(rows + keys)
    stored = random.choice(random.integers(0, 2**64, keys, np.uint64), rows)
    whole = index_of(stored)
    index = whole.short()
    assert index.hashes.dtype == (np.uint16 if rows >= LARGE else np.uint32)
    assert index.rows_at(slice(None)).tolist() == whole.rows.tolist()
    halves = upper_halves(whole.hashes)
    for start, stop in [(0, rows), (0, 1024), (rows - 5, rows), (77, 77), (40_000, 40_001)]:
        assert index.hashes_between(start, stop).tolist() == halves[start:stop].tolist()
    asked = np.concatenate([stored[: 1 if keys < 50 else 50], random.integers(0, 2**64, 20_000, np.uint64)])
    hits = search(index, asked)
    assert (upper_halves(stored)[hits.rows] >> 16 == upper_halves(asked)[hits.probes] >> 16).all()
    exact = stored[hits.rows] == asked[hits.probes]
    of_whole = search(whole, asked)
    found, expected = (
        sorted(zip(one.tolist(), other.tolist(), strict=True))
        for one, other in ((hits.probes[exact], hits.rows[exact]), of_whole)
    )
    assert found == expected
    assert np.count_nonzero(~exact) < 10
    for hash_ in (*asked[:3], *asked[-3:], np.uint64(0), np.uint64(2**64 - 1)):
        # of hashes within a 65 536th of a slot it is not told which is larger
        assert abs(index.after(np.array([hash_])) - np.searchsorted(halves, hash_ >> 32, "right")) <= 1


@pytest.mark.parametrize("last", [2**24 - 1, 2**24, 2**32 - 1])
def test_short_indexes_of_very_large_files_tell_the_numbers_of_their_last_rows(last):
    stored = np.sort(np.random.default_rng(last).integers(0, 2**64, LARGE, np.uint64))
    rows = np.arange(last - LARGE + 1, last + 1).astype(np.uint32)
    assert HashIndex.of(stored, rows).short().rows_at(slice(None)).tolist() == rows.tolist()


def test_slots_that_begin_far_from_their_number_are_found_too():
    stored = np.sort(
        np.concatenate([np.full(40_000, 2**63, np.uint64), np.arange(5, 40_005, dtype=np.uint64)])
    )
    index = HashIndex.of(stored, np.arange(80_000, dtype=np.uint32))
    assert index.starts.dtype == np.int32
    assert search(index, np.array([7, 2**63], np.uint64)).rows.tolist() == [2, *range(40_000, 80_000)]


@given(hashes)
def test_each_row_is_in_the_part_of_its_hash(stored):
    index = KeyIndex.of(np.array(stored, np.uint64))
    parts = [index.part(number, index.starts).tolist() for number in range(16)]
    assert parts == [[row for row, one in enumerate(stored) if one >> 60 == number] for number in range(16)]
    order = np.argsort(np.array(stored, np.uint64)).astype(np.uint32)
    earlier = KeyIndex(order, index.filled).in_parts(index.starts)
    assert all(map(np.array_equal, earlier, index))


def test_both_zeros_and_all_nans_are_one_key_each():
    quiet, other = (np.array([bits], np.int64).view(np.float64)[0] for bits in (0x7FF8 << 48, 0x7FF9 << 48))
    rows = pa.record_batch({"f": [0.0, -0.0, quiet, other, 1.5]})
    probes = hash_columns([pa.array([-0.0, other, 1.5, 2.5])])
    hits = search(build_index(rows, ["f"]), probes)
    assert hits.probes.tolist() == [0, 0, 1, 1, 2]
    assert [sorted(hits.rows[hits.probes == probe].tolist()) for probe in range(3)] == [[0, 1], [2, 3], [4]]


def test_sidecar_has_an_index_for_the_key_its_prefixes_and_each_secondary_index():
    schema = TableSchema.of({"a": pa.int64(), "b": pa.string(), "c": pa.int64()}, primary_key=["a", "b"])
    layout = Layout.of(schema.index("c").index("b", "c", name="both"))
    rows = pa.record_batch({"a": [1, 1, 2], "b": ["x", "y", "x"], "c": [5, 5, None]}, schema=layout.stored)
    indexes = read_indexes(layout, build_sidecar(layout, rows))
    assert list(indexes) == ["pk", "prefix_1", "index_3", "index_2_3"]
    assert [one.hashes.dtype.itemsize for one in indexes.values()] == [8, 4, 4, 4]
    for index in indexes.values():
        assert (np.diff(index.hashes.astype(object)) >= 0).all()
        assert sorted(index.rows.tolist()) == [0, 1, 2]
        assert all(map(np.array_equal, index, HashIndex.of(index.hashes, index.rows)))


def test_a_sidecar_has_one_byte_for_a_row_of_an_integer_key_and_one_for_its_slot():
    layout = Layout.of(TableSchema.of({"id": pa.int64()}, primary_key=["id"]))
    rows = pa.record_batch({"id": pa.array(range(70_000), pa.int64())}, schema=layout.stored)
    sidecar = build_sidecar(layout, rows)
    assert [sidecar.schema.names, sidecar.schema.types] == [["pk.gap", "pk.filled"], [pa.uint8(), pa.uint8()]]
    assert is_sidecar(layout, sidecar.schema)
    assert not is_sidecar(layout, sidecar.schema.set(0, pa.field("pk.gap", pa.float64())))


def test_what_earlier_releases_cannot_search_has_no_name_that_they_search():
    """Of files older than an ALTER TABLE they asked for ``hash`` alone, and found no rows by halves."""
    schema = TableSchema.of({"a": pa.string(), "b": pa.int64()}, primary_key=["a"]).index("b")
    layout = Layout.of(schema)
    sidecar = build_sidecar(layout, pa.record_batch({"a": ["x"], "b": [1]}, schema=layout.stored))
    of_pk, of_b = (["pk.hash", "pk.row", "pk.shift", "pk.filled"], ["half", "row", "shift", "filled"])
    assert sidecar.schema.names == [*of_pk, *(f"index_2.{part}" for part in of_b)]
    assert is_sidecar(layout, sidecar.schema)
    earlier = sidecar.schema.names[:4] + [f"index_2.{part}" for part in ("hash", "row", "start", "filled")]
    assert not is_sidecar(layout, sidecar.rename_columns(earlier).schema)


def test_a_sidecar_with_whole_row_numbers_beside_halves_of_hashes_is_searched_whatever_its_size():
    """Files were written so before the place of a hash told half of it."""
    layout = Layout.of(TableSchema.of({"a": pa.string(), "b": pa.int64()}, primary_key=["a"]).index("b"))
    values = np.random.default_rng(5).integers(0, 1 << 40, LARGE)
    columns = {"a": pa.array(values).cast(pa.string()), "b": pa.array(values)}
    rows = pa.record_batch(columns, schema=layout.stored)
    whole = build_index(rows, ["b"])
    halves = HashIndex.of(upper_halves(whole.hashes), whole.rows)
    sidecar = build_sidecar(layout, rows)
    parts = zip(("half", "row", "shift", "filled"), halves, strict=False)
    earlier = pa.record_batch(
        {name: sidecar.column(name) for name in sidecar.schema.names if name.startswith("pk.")}
        | {f"index_2.{part}": pa.array(values) for part, values in parts}
    )
    assert is_sidecar(layout, earlier.schema)
    probes = hash_columns([pa.array(values[::97])], len(values[::97]))
    hits = search(read_indexes(layout, earlier)["index_2"], probes)
    assert set(zip(hits.probes.tolist(), hits.rows.tolist(), strict=True)) >= {
        (number, 97 * number) for number in range(len(probes))
    }
