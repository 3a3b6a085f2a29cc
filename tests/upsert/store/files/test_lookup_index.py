"""Searches in the sorted hashes of a sidecar."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert.schema import TableSchema
from upsert.store.files.lookup_index import (
    HashIndex,
    build_index,
    build_sidecar,
    may_hold,
    read_indexes,
    search,
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


def test_both_zeros_and_all_nans_are_one_key_each():
    quiet, other = (np.array([bits], np.int64).view(np.float64)[0] for bits in (0x7FF8 << 48, 0x7FF9 << 48))
    rows = pa.record_batch({"f": [0.0, -0.0, quiet, other, 1.5]})
    probes = hash_columns([pa.array([-0.0, other, 1.5, 2.5])])
    hits = search(build_index(rows, ["f"]), probes)
    assert hits.probes.tolist() == [0, 0, 1, 1, 2]
    assert [sorted(hits.rows[hits.probes == probe].tolist()) for probe in range(3)] == [[0, 1], [2, 3], [4]]


def test_sidecar_has_an_index_for_the_key_its_prefixes_and_each_secondary_index():
    schema = TableSchema.of({"a": pa.int64(), "b": pa.string(), "c": pa.int64()}, primary_key=["a", "b"])
    layout = Layout.of(schema.index("c").index_named("both", ["b", "c"]))
    rows = pa.record_batch({"a": [1, 1, 2], "b": ["x", "y", "x"], "c": [5, 5, None]}, schema=layout.stored)
    indexes = read_indexes(layout, build_sidecar(layout, rows))
    assert list(indexes) == ["pk", "prefix_1", "index_3", "index_2_3"]
    for index in indexes.values():
        assert (np.diff(index.hashes.astype(object)) >= 0).all()
        assert sorted(index.rows.tolist()) == [0, 1, 2]
        assert all(map(np.array_equal, index, HashIndex.of(index.hashes, index.rows)))
