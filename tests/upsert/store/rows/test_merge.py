"""Sorted runs merged into one, against dicts."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.store.samples import KEY_VALUES, canonical, canonical_rows, table_of
from upsert.errors import ChangelogError
from upsert.schema import TableSchema
from upsert.store.rows import merge
from upsert.store.rows.conform import conform
from upsert.store.rows.fold import fold
from upsert.store.rows.keys import order_by
from upsert.store.rows.layout import Layout
from upsert.store.rows.merge import gather, merge_runs, present

TYPES = list(KEY_VALUES)


@st.composite
def batches(draw: st.DrawFn):
    """A key of one or two columns of any types, and a few batches of (kind, row)."""
    key_types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=2))
    key = st.tuples(*(st.sampled_from(KEY_VALUES[type_]) for type_ in key_types))
    change = st.tuples(st.sampled_from(["+I", "-D"]), key, st.sampled_from([1, 2]))
    return key_types, draw(st.lists(st.lists(change, max_size=6), min_size=1, max_size=5))


def runs_of(layout: Layout, batches):
    tables = [
        table_of(layout.schema, [(*key, value) for _, key, value in b], [kind for kind, _, _ in b])
        for b in batches
    ]
    return [fold(layout, *conform(layout, table), "rows") for table in tables]


@given(batches())
def test_newest_run_wins_and_deletions_stay_until_the_end(case):
    key_types, batches = case
    names = [f"k{i}" for i in range(len(key_types))]
    schema = TableSchema.of({**dict(zip(names, key_types, strict=True)), "v": pa.int64()}, primary_key=names)
    layout = Layout.of(schema)
    model = {}
    for batch in batches:
        for kind, key, value in batch:
            model[tuple(map(canonical, key))] = value if kind == "+I" else None
    merged = merge_runs(layout, runs_of(layout, batches))
    order = order_by([merged.rows.column(name) for name in layout.key])
    assert order.is_first.all(), "each key once"
    assert (np.diff(order.rows) == 1).all(), "ascending by key"
    assert {row[:-1] for row in canonical_rows(merged.rows)} == set(model)
    left = {row[:-1]: row[-1] for row in canonical_rows(present(layout, merged))}
    assert left == {key: value for key, value in model.items() if value is not None}


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["+I", "-D"]), st.sampled_from([1, 2, None])), max_size=6),
        min_size=1,
    )
)
def test_counts_of_equal_rows_are_added_up(batches):
    layout = Layout.of(TableSchema.of({"a": pa.int64()}))
    runs = [
        fold(
            layout, *conform(layout, table_of(layout.schema, [(v,) for _, v in b], [k for k, _ in b])), "none"
        )
        for b in batches
    ]
    model = Counter()
    for batch in batches:
        for kind, value in batch:
            model[value] += 1 if kind == "+I" else -1
    merged = merge_runs(layout, runs).rows
    assert dict(zip(merged["a"].to_pylist(), merged["_count"].to_pylist(), strict=True)) == {
        value: count for value, count in model.items() if count
    }


def test_count_below_zero_is_an_error_when_read():
    layout = Layout.of(TableSchema.of({"a": pa.int64()}))
    run = fold(layout, *conform(layout, table_of(layout.schema, [(1,), (7,)], ["+I", "-D"])), "none")
    with pytest.raises(ChangelogError, match=r"row \{'a': 7\} .* count of at least 0, got -1"):
        present(layout, run)


@pytest.mark.parametrize("most", [100, 1000])
def test_rows_too_large_for_one_array_are_gathered_in_pieces(monkeypatch, most):
    """Arrow's texts end at 2 GB an array; with these limits a piece has one row, or some of all parts."""
    monkeypatch.setattr(merge, "_MAX_BYTES", most)
    parts = [pa.table({"a": [f"row {i} of part {p}" for i in range(20)]}) for p in range(3)]
    positions = np.random.default_rng(5).permutation(60)[:41]
    found = gather(pa.concat_tables(parts), positions)
    whole = [text for part in parts for text in part["a"].to_pylist()]
    assert found["a"].to_pylist() == [whole[i] for i in positions]
    assert gather(pa.concat_tables(parts), positions[:0]).num_rows == 0
