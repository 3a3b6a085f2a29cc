"""The rows of one write, folded to one row per key, against models made of dicts."""

from collections import Counter, defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.store.samples import canonical_rows, table_of
from upsert.errors import ChangelogError
from upsert.schema import TableSchema
from upsert.store.rows.conform import conform
from upsert.store.rows.fold import Order, fold
from upsert.store.rows.layout import Layout
from upsert.store.rows.merge import SortedRows

COLUMNS = {"a": pa.int32(), "b": pa.string(), "v": pa.float64()}
KEYS = {"one integer": ("a",), "a text": ("b",), "both": ("a", "b")}
row = st.tuples(
    st.sampled_from([1, 2]), st.sampled_from(["", "x"]), st.sampled_from([None, 0.0, -0.0, float("nan"), 2.0])
)
changes = st.lists(st.tuples(st.sampled_from(["+I", "-U", "+U", "-D"]), row), max_size=10)


def layout_of(*key: str) -> Layout:
    return Layout.of(TableSchema.of(COLUMNS, primary_key=key))


def folded(layout: Layout, changes, order: Order) -> SortedRows:
    table = table_of(layout.schema, [values for _, values in changes], [kind for kind, _ in changes])
    return fold(layout, *conform(layout, table), order)


def as_dict(layout: Layout, run: SortedRows):
    """Key -> row, or None for a deletion."""
    places = [layout.schema.names.index(name) for name in layout.key]
    kinds = [0] * run.rows.num_rows if run.kinds is None else run.kinds.tolist()
    rows = canonical_rows(run.rows)
    keys = [tuple(r[i] for i in places) for r in rows]
    assert keys == sorted(set(keys)), "keys must ascend, each once"
    return {key: None if kind else r for key, r, kind in zip(keys, rows, kinds, strict=True)}


def canonical_changes(layout: Layout, changes):
    table = table_of(layout.schema, [values for _, values in changes])
    places = [layout.schema.names.index(name) for name in layout.schema.primary_key]
    for (kind, _), values in zip(changes, canonical_rows(table), strict=True):
        yield 1 if kind[0] == "+" else -1, tuple(values[i] for i in places), values


@pytest.mark.parametrize("key", KEYS.values(), ids=list(KEYS))
@given(changes=changes)
def test_ordered_rows_fold_to_the_last_one_of_each_key(key, changes):
    layout = layout_of(*key)
    model = {}
    for sign, of, values in canonical_changes(layout, changes):
        model[of] = values if sign > 0 else None
    assert as_dict(layout, folded(layout, changes, "rows")) == model


@pytest.mark.parametrize("key", KEYS.values(), ids=list(KEYS))
@given(changes=changes)
def test_unordered_rows_cancel_and_what_is_left_must_agree(key, changes):
    layout = layout_of(*key)
    sums = defaultdict(Counter)
    found = {}
    for (sign, of, values), (_, row) in zip(canonical_changes(layout, changes), changes, strict=True):
        others = [v for v, name in zip(row, layout.schema.names, strict=True) if name not in key]
        found[repr((of, others))] = values
        sums[of][repr((of, others))] += sign  # as a key -0.0 is 0.0, as a value it is not
    model = {}
    for of, weights in sums.items():
        values = [found[v] for v, weight in weights.items() if weight > 0]
        if len(values) > 1:
            with pytest.raises(ChangelogError, match="must leave one value per key"):
                folded(layout, changes, "none")
            return
        if values:
            model[of] = values[0]
        elif any(weights.values()):
            model[of] = None
    assert as_dict(layout, folded(layout, changes, "none")) == model


@given(changes=changes)
def test_rows_without_key_fold_to_the_sum_of_their_signs(changes):
    layout = layout_of()
    sums = Counter()
    for sign, _, values in canonical_changes(layout, changes):
        sums[values] += sign
    run = folded(layout, changes, "none")
    rows = canonical_rows(run.rows.select(list(layout.schema.names)))
    counts = dict(zip(rows, run.rows["_count"].to_pylist(), strict=True))
    assert counts == {values: weight for values, weight in sums.items() if weight}
    assert run.rows["_row_hash"].to_pylist() == sorted(run.rows["_row_hash"].to_pylist())


def test_two_values_of_one_key_without_order_are_an_error_that_names_the_key():
    layout = layout_of("a", "b")
    with pytest.raises(ChangelogError, match=r"key \{'a': 1, 'b': 'x'\}: .* got 2 different ones"):
        folded(layout, [("+I", (2, "", 1.0)), ("+I", (1, "x", 1.0)), ("+U", (1, "x", 2.0))], "none")


def test_update_halves_from_two_tasks_fold_to_the_new_value():
    """The kinds of an update may arrive in any order; only their signs count."""
    layout = layout_of("a")
    changes = [("+U", (1, "", 2.0)), ("-U", (1, "", 1.0)), ("-D", (2, "", 1.0))]
    for order in (changes, changes[::-1]):
        assert as_dict(layout, folded(layout, order, "none")) == {(1,): (1, "", 2.0), (2,): None}


def test_rows_without_kinds_are_upserts():
    layout = layout_of("a")
    rows = table_of(layout.schema, [(1, "", 1.0), (1, "", 2.0)])
    run = fold(layout, *conform(layout, rows), "rows")
    assert run.kinds is None
    assert run.rows["v"].to_pylist() == [2.0]
    with pytest.raises(ChangelogError, match=r"key \{'a': 1\}: .* got 2 different ones"):
        fold(layout, *conform(layout, rows), "none")
    again = fold(layout, *conform(layout, rows.take(pa.array([1, 1, 1]))), "none")
    assert (again.rows["v"].to_pylist(), again.kinds) == ([2.0], None)
    empty = fold(layout, *conform(layout, rows.slice(0, 0)), "none")
    assert (empty.rows.num_rows, empty.kinds) == (0, None)
