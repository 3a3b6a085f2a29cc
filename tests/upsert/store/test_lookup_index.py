"""Searches in the sorted hashes of a sidecar."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from upsert.schema import TableSchema
from upsert.store.layout import Layout
from upsert.store.lookup_index import HashIndex, build_sidecar, read_indexes, search

hashes = st.lists(st.sampled_from([0, 1, 2, 7, 2**63, 2**64 - 1]), max_size=20)


@given(hashes, hashes)
def test_search_finds_every_row_of_every_probe(stored, probes):
    order = np.argsort(np.array(stored, np.uint64), kind="stable")
    index = HashIndex(np.array(stored, np.uint64)[order], order.astype(np.uint32))
    hits = search(index, np.array(probes, np.uint64))
    found = sorted(zip(hits.probes.tolist(), hits.rows.tolist(), strict=True))
    expected = [(p, r) for p, probe in enumerate(probes) for r, hash_ in enumerate(stored) if hash_ == probe]
    assert found == expected


def test_sidecar_has_an_index_for_the_key_its_prefixes_and_each_secondary_index():
    schema = TableSchema.of({"a": pa.int64(), "b": pa.string(), "c": pa.int64()}, primary_key=["a", "b"])
    layout = Layout.of(schema.index("c").index_named("both", ["b", "c"]))
    rows = pa.record_batch({"a": [1, 1, 2], "b": ["x", "y", "x"], "c": [5, 5, None]}, schema=layout.stored)
    indexes = read_indexes(layout, build_sidecar(layout, rows))
    assert list(indexes) == ["pk", "prefix_1", "index_INDEX_c", "index_both"]
    for index in indexes.values():
        assert (np.diff(index.hashes.astype(object)) >= 0).all()
        assert sorted(index.rows.tolist()) == [0, 1, 2]
