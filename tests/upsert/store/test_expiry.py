"""What expiry keeps, what it says about the rest, and what clean-up takes away."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from tests.upsert.store.disk import assert_nothing_is_left_over, files_on_disk
from upsert.errors import ConfigurationError, SnapshotExpiredError
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.commit import Committer, Surroundings
from upsert.store.orphans import clean

SCHEMA = TableSchema.of({"id": pa.int64(), "value": pa.int64()}, primary_key=["id"])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Five states: in state n the row 1 has the value n. Nothing is compacted by itself."""
    table = Table.create(tmp_path / "table", SCHEMA, {"write-only": "true"})
    for value in range(1, 6):
        table.write(pa.table({"id": [1], "value": [value]}))
    return table


def value_at(table: Table, id: int) -> list[int]:
    values: list[int] = table.snapshot(id).scan()["value"].to_pylist()
    return values


def test_exactly_the_last_states_stay(table: Table) -> None:
    assert table.expire(keep=2) == 3
    assert [value_at(table, id) for id in (4, 5)] == [[4], [5]]
    with pytest.raises(
        SnapshotExpiredError, match=r"snapshot 3 has expired; the earliest that is left is 4 of 20"
    ):
        table.snapshot(3)
    assert_nothing_is_left_over(table)


def test_expiring_twice_is_expiring_once(table: Table) -> None:
    table.expire(keep=2)
    head = table.snapshot().id
    assert (table.expire(keep=2), table.expire(keep=5)) == (0, 0)
    assert table.snapshot().id == head


def test_compaction_is_no_state_and_frees_what_it_merged(table: Table) -> None:
    """One state stays: of its two snapshots the compacted one, with one file."""
    table.compact()
    table.expire(keep=1)
    assert (value_at(table, 5), table.snapshot(5).info.kind) == ([5], "expire")
    assert len([name for name in files_on_disk(table) if "bucket-" in name]) == 2
    assert_nothing_is_left_over(table)


def test_changes_lead_on_from_a_state_that_only_its_compaction_stands_for(table: Table) -> None:
    table.compact()
    table.expire(keep=1)
    table.write(pa.table({"id": [2], "value": [6]}))
    assert table.changes(5).to_pylist() == [{"id": 2, "value": 6, "_row_kind": "+I"}]


def test_the_empty_state_can_always_be_read(table: Table) -> None:
    table.expire(keep=1)
    assert table.snapshot(0).scan().num_rows == 0
    assert table.changes(0).to_pylist() == [{"id": 1, "value": 5, "_row_kind": "+I"}]


def test_a_snapshot_that_expires_while_it_is_read_says_so(table: Table) -> None:
    old = table.snapshot(1)
    table.overwrite(pa.table({"id": [1], "value": [6]}))
    table.expire(keep=1)
    with pytest.raises(SnapshotExpiredError, match="snapshot 1 has expired"):
        old.scan()


def test_expiry_of_an_empty_table_does_nothing(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA)
    assert (table.expire(keep=1), table.snapshot().id) == (0, 0)


def test_missing_files_do_not_stop_an_expiry(table: Table) -> None:
    table.overwrite(pa.table({"id": [1], "value": [6]}))
    (name, *_) = table.published.live(table.snapshot(1).info)
    Path(table.path, name).unlink()
    Path(table.path, f"snapshot/snapshot-{2:020d}").unlink()
    table.expire(keep=1)
    assert value_at(table, 6) == [6]


def test_clean_takes_old_leftovers_and_nothing_else(table: Table) -> None:
    root = Path(table.path)
    leftovers = [
        f"bucket-0/{3:020d}-{'a' * 32}.arrow",
        f"bucket-0/{3:020d}-{'a' * 32}.index.arrow",
        f"manifest/{3:020d}-{'b' * 32}.arrow",
        f"staging/{3:020d}-{'c' * 32}.arrow",
        "snapshot/.snapshot-1-d.tmp",
    ]
    others = ["notes.txt", "bucket-0/readme.arrow", f"bucket-0/{99:020d}-{'a' * 32}.arrow", "other/x.arrow"]
    for name in (*leftovers, *others):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("")
    assert table.clean() == 0
    later = Surroundings(now=lambda: os.stat(root / leftovers[0]).st_mtime + 100_000)
    assert clean(Committer(table.published, later)) == len(leftovers)
    assert all((root / name).exists() for name in others)
    assert value_at(table, 5) == [5]


def test_a_clean_table_is_left_as_it_is(table: Table) -> None:
    head = table.snapshot().id
    assert (table.clean(older_than_s=0), table.snapshot().id) == (0, head)


def test_wrong_arguments_are_refused(table: Table) -> None:
    with pytest.raises(ConfigurationError, match="keep must be at least 1, got 0"):
        table.expire(keep=0)
    with pytest.raises(ConfigurationError, match="older_than_s must be at least 0"):
        table.clean(older_than_s=-1)
