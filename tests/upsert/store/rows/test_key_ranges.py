"""Inputs larger than memory: cut into ranges of keys, written piece by piece, folded range by range."""

import pickle
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.upsert.store.disk import assert_nothing_is_left_over
from tests.upsert.store.samples import KEY_VALUES, canonical_rows, multiset
from upsert.errors import ChangelogError, SchemaError
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.commit import staging
from upsert.store.commit.staging import pieces_of
from upsert.store.files.data_file import DataFile
from upsert.store.files.writing import write_run
from upsert.store.rows.keys import order_by
from upsert.store.rows.layout import Layout
from upsert.store.rows.merge import SortedRows, gather, halves, key_ranges, merge_runs, weight

LAYOUT = Layout.of(TableSchema.of({"a": pa.int64(), "b": pa.string()}, primary_key=["a"]))


@st.composite
def sorted_inputs(draw: st.DrawFn) -> tuple[Layout, list[SortedRows]]:
    """Rows of one to three inputs by keys of any types, a key as often as it likes also in one input."""
    types = draw(st.lists(st.sampled_from(list(KEY_VALUES)), min_size=1, max_size=2))
    names = [f"k{number}" for number in range(len(types))]
    schema = TableSchema.of({**dict(zip(names, types, strict=True)), "n": pa.int64()}, primary_key=names)
    row = st.tuples(*(st.sampled_from(KEY_VALUES[type_]) for type_ in types))
    inputs = []
    for number in range(draw(st.integers(1, 3))):
        keys = draw(st.lists(row, max_size=20))
        columns = [pa.array([key[i] for key in keys], type_) for i, type_ in enumerate(types)]
        order = order_by(columns).rows
        marks = pa.array(100 * number + np.arange(len(keys)))
        table = gather(pa.table([*columns, marks], names=[*names, "n"]), order)
        kinds = draw(st.none() | st.just(np.arange(len(keys), dtype=np.int8) % 2))
        inputs.append(SortedRows(table, kinds))
    return Layout.of(schema), inputs


@given(sorted_inputs(), st.integers(1, 400))
def test_ranges_ascend_keep_the_rows_of_a_key_together_and_lose_none(case: Any, max_bytes: int) -> None:
    layout, inputs = case
    ranges = list(key_ranges(layout, inputs, max_bytes))
    assert all(run.rows.num_rows for within in ranges for run in within)
    joined = [pa.concat_tables([run.rows for run in within]) for within in ranges]
    rows_of = [order_by([rows.column(name) for name in layout.key]) for rows in joined]
    firsts = [gather(rows, order.firsts) for rows, order in zip(joined, rows_of, strict=True)]
    if firsts:  # keys of all ranges one after the other: ascending, none twice
        keys = pa.concat_tables(firsts)
        order = order_by([keys.column(name) for name in layout.key])
        assert order.rows.tolist() == list(range(keys.num_rows))
        assert order.is_first.all()
    for within, order in zip(ranges, rows_of, strict=True):
        assert sum(map(weight, within)) <= max_bytes or len(order.firsts) == 1
    found = [run.rows["n"].to_pylist() for within in ranges for run in within]
    assert Counter(n for ns in found for n in ns) == Counter(
        n for run in inputs for n in run.rows["n"].to_pylist()
    )
    for ns in found:  # of one input, in its order
        assert len({n // 100 for n in ns}) == 1


def test_a_row_heavier_than_the_limit_is_a_part_of_its_own() -> None:
    rows = pa.table({"a": [1, 2, 3], "b": ["x" * 1000, "y", "z" * 1000]})
    parts = list(halves(SortedRows(rows, None), 100))
    assert [part.rows["a"].to_pylist() for part in parts] == [[1], [2], [3]]
    assert list(halves(SortedRows(rows.slice(0, 0), None), 100)) == []
    assert len(list(halves(SortedRows(rows, None), 10_000))) == 1


@given(sorted_inputs(), st.integers(1, 400))
def test_merging_range_by_range_is_merging(case: Any, max_bytes: int) -> None:
    layout, inputs = case
    runs = [merge_runs(layout, [run, run]) for run in inputs]  # each key once
    whole = merge_runs(layout, runs)
    parts = [merge_runs(layout, within) for within in key_ranges(layout, runs, max_bytes)]
    assert canonical_rows(
        pa.concat_tables([whole.rows.slice(0, 0), *(p.rows for p in parts)])
    ) == canonical_rows(whole.rows)
    kinds = [np.zeros(p.rows.num_rows, np.int8) if p.kinds is None else p.kinds for p in parts]
    expected = np.zeros(whole.rows.num_rows, np.int8) if whole.kinds is None else whole.kinds
    assert np.concatenate([np.zeros(0, np.int8), *kinds]).tolist() == expected.tolist()


def test_long_texts_count_by_their_bytes() -> None:
    """One row of 10 kB among short ones gets a range of its own."""
    rows = pa.table({"a": range(5), "b": ["x", "x", "y" * 10_000, "x", "x"]})
    ranges = list(key_ranges(LAYOUT, [SortedRows(rows, None)], 200))
    assert [run.rows["a"].to_pylist() for (run,) in ranges] == [[0, 1], [2], [3, 4]]


def test_large_run_is_cut_into_files_that_follow_each_other(tmp_path: Path) -> None:
    rows = pa.table({"a": np.arange(10), "b": ["x"] * 10})
    run = SortedRows(rows, np.array([0] * 9 + [1], np.int8))
    where: dict[str, Any] = {"bucket_id": ((), 0), "level": 1, "base": 0}
    entries = write_run(tmp_path, LAYOUT, [run], **where, target_bytes=32 * 4)
    tables = [DataFile.open(tmp_path, LAYOUT, entry).table for entry in entries]
    assert max(table.num_rows for table in tables) <= 4
    assert pa.concat_tables(tables).to_pydict() == rows.to_pydict()
    assert [entry.deletes for entry in entries] == [0] * (len(entries) - 1) + [1]
    assert all(one.last_key < other.first_key for one, other in pairwise(entries))
    assert write_run(tmp_path, LAYOUT, [SortedRows(rows.slice(0, 0), None)], **where) == []


@pytest.mark.sidecars
def test_small_pieces_share_a_file_and_are_written_before_the_next_is_asked_for(tmp_path: Path) -> None:
    where: dict[str, Any] = {"bucket_id": ((), 0), "level": 1, "base": 0}
    asked: list[int] = []

    def pieces() -> Any:
        for number in range(6):
            asked.append(len(list(tmp_path.rglob("*.index.arrow"))))
            yield SortedRows(pa.table({"a": [2 * number, 2 * number + 1], "b": ["x", "y"]}), None)

    entries = write_run(tmp_path, LAYOUT, pieces(), **where, target_bytes=32 * 4)
    assert [entry.rows for entry in entries] == [4, 4, 4]
    assert asked == [0, 0, 0, 1, 1, 2]


def test_a_stream_of_batches_is_taken_in_pieces() -> None:
    rows = pa.table({"a": range(20)})
    reader = rows.to_reader(max_chunksize=3)
    pieces = list(pieces_of(reader, max_bytes=32 * 7))
    assert [piece.num_rows for piece in pieces] == [6, 6, 6, 2]
    assert pa.concat_tables(pieces).equals(rows)
    assert [piece.num_rows for piece in pieces_of(rows.slice(0, 0).to_reader())] == [0]
    assert [piece.num_rows for piece in pieces_of(rows.slice(0, 0))] == [0]
    assert list(halves(SortedRows(rows.slice(0, 0), None), 1)) == []


SCHEMAS = {
    "keyed": TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"]),
    "counted": TableSchema.of({"id": pa.int64(), "name": pa.string()}),
}
CHANGES = st.lists(
    st.tuples(st.sampled_from(["+I", "-D"]), st.integers(0, 6), st.sampled_from(["a", "b", None])),
    max_size=12,
)


def arrow(changes: list[tuple[str, int, str | None]]) -> pa.Table:
    kinds, ids, names = zip(*changes, strict=True) if changes else ((), (), ())
    columns = [pa.array(kinds, pa.string()), pa.array(ids, pa.int64()), pa.array(names, pa.string())]
    return pa.table(columns, names=["_row_kind", "id", "name"])


@settings(max_examples=max(10, settings().max_examples // 4))
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
@given(commits=st.lists(CHANGES, max_size=2), is_raw=st.booleans(), buckets=st.sampled_from([1, 2]))
def test_a_table_written_in_pieces_is_the_table_written_at_once(
    schema: TableSchema,
    commits: list[list[tuple[str, int, str | None]]],
    is_raw: bool,
    buckets: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Pieces of three rows against a table in memory: the same rows or the same refusal."""
    folder = tmp_path_factory.mktemp("tables")
    options = {"bucket": str(buckets), "write-only": "true"}
    whole = Table.create(folder / "whole", schema, options)
    pieces = Table.create(folder / "pieces", schema, options)

    def write(table: Table, rows: pa.Table | pa.RecordBatchReader) -> str:
        try:
            table.commit([table.stage_raw(rows)]) if is_raw else table.write(rows)
        except ChangelogError:
            return "refused"
        return "written"

    for changes in commits:
        expected = write(whole, arrow(changes))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(staging, "PIECE_BYTES", 32 * 3)
            rows = arrow(changes)
            assert write(pieces, rows.to_reader(2) if len(changes) % 2 else rows) == expected
    assert multiset(pieces.snapshot().scan()) == multiset(whole.snapshot().scan())
    pieces.clean(older_than_s=0)
    assert_nothing_is_left_over(pieces)


def test_rows_that_do_not_fit_leave_nothing_whichever_piece_they_are_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PIECE_BYTES", 32 * 3)
    table = Table.create(tmp_path / "t", SCHEMAS["keyed"])
    rows = pa.table({"id": [1, 2, 3, 4, 5, None], "name": ["a"] * 6})
    for attempt in (table.write, table.stage_raw):
        with pytest.raises(SchemaError, match="PRIMARY KEY column 'id' must not be NULL"):
            attempt(rows)
    assert_nothing_is_left_over(table)


def test_what_was_staged_raw_can_be_sent_to_the_committer(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMAS["keyed"])
    staged = table.stage_raw(pa.table({"id": [2, 1], "name": ["b", "a"]}))
    assert pickle.loads(pickle.dumps(staged)) == staged
    assert (staged.rows, table.commit([staged]).scan()["id"].to_pylist()) == (2, [1, 2])
