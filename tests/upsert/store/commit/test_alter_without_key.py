"""ALTER TABLE of a table without primary key writes rows anew: bucket by bucket, in pieces."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.upsert.store.disk import assert_nothing_is_left_over
from upsert.schema import Column, TableSchema
from upsert.store import Table
from upsert.store.alterations import AddColumn, DropColumn, SetOptions
from upsert.store.commit import rewrite
from upsert.store.rows import merge
from upsert.store.rows.merge import SortedRows

SCHEMA = TableSchema.of({"a": pa.int64(), "b": pa.int64()})


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_rows_of_a_commit_become_one_run_in_each_bucket_and_are_held_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, {"bucket": "4", "write-only": "true"})
    table.alter(SetOptions({"file.format": format}))
    for start in (0, 100):
        ids = np.arange(start, start + 200)
        table.write(pa.table({"a": ids, "b": ids % 7}))
    held: list[int] = []
    merged = merge.merge_runs

    def watched(layout: object, runs: list[SortedRows]) -> SortedRows:
        held.append(sum(run.rows.num_rows for run in runs))
        return merged(layout, runs)

    monkeypatch.setattr(rewrite, "merge_runs", watched)
    monkeypatch.setattr(rewrite, "PIECE_BYTES", 1000)
    table.alter(AddColumn(Column("c", pa.string())))
    assert max(held) < 60
    table.alter(DropColumn("a"))
    expected = sorted([*(np.arange(200) % 7).tolist(), *(np.arange(100, 300) % 7).tolist()])
    assert sorted(table.snapshot().scan()["b"].to_pylist()) == expected
    assert all(len(runs) <= 2 for runs in table.snapshot().files.groups.values())
    assert [found for found in table.check(deep=True) if not found.is_information] == []
    table.expire(keep=1)
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)
