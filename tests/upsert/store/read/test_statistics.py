"""Counts of rows and keys that are asked from the indexes alone."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import of_kind
from upsert.errors import SchemaError
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.files.lookup_index import LARGE
from upsert.store.read import statistics
from upsert.store.read.statistics import distinct_hashes

ORDERS = TableSchema.of(
    {"id": pa.int64(), "product": pa.int64(), "day": pa.int64(), "note": pa.string()},
    primary_key=["id", "day"],
).index("product")
LOOSE = {"num-sorted-run.compaction-trigger": "50"}


def orders(first: int, rows: int, products: int) -> pa.Table:
    ids = np.arange(first, first + rows)
    return pa.table(
        {"id": ids, "product": ids % products, "day": ids * 0, "note": pa.nulls(rows, pa.string())}
    )


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=30), max_size=4))
def test_few_hashes_are_counted_exactly(arrays):
    hashes = [np.sort(np.array(one, np.uint64)) for one in arrays]
    assert distinct_hashes(hashes) == len({value for one in arrays for value in one})


@pytest.mark.parametrize("keys", [1, 10, 3000, 100_000])
def test_many_hashes_in_several_arrays_are_counted_within_a_tenth(keys):
    values = np.random.default_rng(7).integers(0, 2**64 - 1, keys, np.uint64)
    arrays = [np.sort(np.random.default_rng(seed).choice(values, 40_000)) for seed in range(4)]
    truth = len(np.unique(np.concatenate(arrays)))
    assert distinct_hashes(arrays) == pytest.approx(truth, rel=0.1)


def test_a_key_in_several_runs_counts_once(tmp_path: Path):
    table = Table.create(tmp_path / "orders", ORDERS, {"bucket": "2", **LOOSE})
    for step in range(5):
        table.write(orders(step * 1000, 1000, products=100))
    snapshot = table.snapshot()
    assert snapshot.rows_per_key(["product"]) == pytest.approx(50, rel=0.1)
    assert snapshot.rows_per_key(["id", "day"]) == 1
    assert snapshot.rows_per_key(["id"]) == pytest.approx(1, rel=0.1)
    assert snapshot.row_count == pytest.approx(5000, rel=0.1)


def test_keys_of_large_files_are_counted_by_the_halves_of_hashes_that_follow_from_their_places(
    tmp_path: Path,
):
    table = Table.create(tmp_path / "orders", ORDERS, LOOSE)
    table.write(orders(0, LARGE + 5000, products=10_000))
    table.write(orders(LARGE, LARGE, products=10_000))
    table.write(orders(0, 2000, products=10_000))
    assert table.snapshot().rows_per_key(["product"]) == pytest.approx(2 * LARGE / 10_000, rel=0.1)
    assert not table.check(deep=True)


def test_old_versions_and_deleted_rows_do_not_count(tmp_path: Path):
    table = Table.create(tmp_path / "orders", ORDERS, LOOSE)
    rows = orders(0, 4000, products=100)
    table.write(rows)
    table.write(rows)
    gone = rows.slice(0, 3000)
    table.write(of_kind(gone, "-D"))
    assert table.snapshot().row_count == pytest.approx(1000, abs=400)
    assert table.snapshot().rows_per_key(["product"]) == pytest.approx(10, rel=0.5)
    table.compact()
    assert table.snapshot().row_count == 1000


def test_a_few_rows_beside_many_are_not_looked_at(tmp_path: Path):
    table = Table.create(tmp_path / "orders", ORDERS, LOOSE)
    table.write(orders(0, 4000, products=100))
    for step in range(4):
        table.write(orders(step * 10, 10, products=100))
    snapshot = table.snapshot()
    assert len(snapshot.files.entries) > 1
    found = statistics.row_count(snapshot.layout, snapshot.files, lambda _: pytest.fail("a file was opened"))
    assert found == pytest.approx(4000, rel=0.01)


def test_rows_of_a_snapshot_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = Table.create(tmp_path / "orders", ORDERS, LOOSE)
    table.write(orders(0, 10, products=5))
    assert table.snapshot().row_count == 10
    monkeypatch.setattr(statistics, "row_count", lambda *_: pytest.fail("counted again"))
    assert Table.open(table.path).snapshot(1).row_count == 10
    monkeypatch.undo()
    table.write(orders(10, 10, products=5))
    assert [table.snapshot(id).row_count for id in (1, 2)] == [10, 20]


def test_null_is_no_key(tmp_path: Path):
    table = Table.create(tmp_path / "orders", ORDERS)
    rows = orders(0, 100, products=10)
    nulls = pa.array([None] * 90 + list(range(10)), pa.int64())
    table.write(rows.set_column(1, "product", nulls))
    assert table.snapshot().rows_per_key(["product"]) == 1


def test_an_empty_table_has_no_rows_for_a_key(tmp_path: Path):
    snapshot = Table.create(tmp_path / "orders", ORDERS).snapshot()
    assert (snapshot.row_count, snapshot.rows_per_key(["product"]), snapshot.rows_per_key(["id"])) == (
        0,
        0,
        0,
    )


def test_rows_of_a_multiset_count_as_often_as_they_are_there(tmp_path: Path):
    schema = TableSchema.of({"word": pa.string(), "page": pa.int64()}).index("word")
    table = Table.create(tmp_path / "words", schema, LOOSE)
    for _ in range(3):
        table.write(pa.table({"word": ["a", "a", "b", None], "page": [1, 1, 2, 3]}))
    snapshot = table.snapshot()
    assert snapshot.row_count == 12
    assert snapshot.rows_per_key(["word"]) == pytest.approx(4.5, rel=0.3)


def test_columns_without_an_index_are_refused_with_the_index_to_add(tmp_path: Path):
    snapshot = Table.create(tmp_path / "orders", ORDERS).snapshot()
    with pytest.raises(SchemaError, match=r"create it with INDEX \(note\)"):
        snapshot.rows_per_key(["note"])
