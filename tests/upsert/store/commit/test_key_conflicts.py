"""A commit that was computed from a snapshot goes through if no other has changed rows of its keys since."""

from pathlib import Path

import pyarrow as pa
import pytest

from upsert.errors import CommitConflictError
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.commit.staging import StagedFiles

SCHEMA = TableSchema.of({"id": pa.int64(), "v": pa.string()}, primary_key=["id"])


def rows(*ids: int, v: str = "x") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [v] * len(ids)})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    found = Table.create(tmp_path / "t", SCHEMA, {"bucket": "2", "write-only": "true"})
    found.write(rows(1, 2, 3, 4, 5, 6))
    return found


def test_other_keys_may_change_and_files_may_be_compacted_meanwhile(table: Table) -> None:
    base = table.snapshot().id
    staged = table.stage(rows(2, 3, v="new"), order="none")
    table.write(rows(1, 7, v="other"))
    table.compact()
    table.commit([staged], unchanged_since=base)
    assert sorted(table.snapshot().scan().filter(pa.compute.field("v") == "new")["id"].to_pylist()) == [2, 3]


@pytest.mark.parametrize("change", ["write", "delete", "overwrite"])
def test_change_of_a_key_is_a_conflict_and_nothing_is_committed(table: Table, change: str) -> None:
    base = table.snapshot().id
    staged = table.stage(rows(2, 3, v="new"), order="none")
    if change == "write":
        table.write(rows(3, v="theirs"))
    elif change == "delete":
        table.delete([("id", "=", 2)])
    else:
        table.overwrite(rows(9))
    before = table.snapshot()
    with pytest.raises(CommitConflictError, match=r"snapshot 2, by .* has changed one of them; do it again"):
        table.commit([staged], unchanged_since=base)
    assert table.snapshot().id == before.id


def test_commits_that_have_expired_meanwhile_are_a_conflict(table: Table) -> None:
    base = table.snapshot().id
    staged = table.stage(rows(2, v="new"), order="none")
    for _ in range(3):
        table.write(rows(9))
    table.expire(keep=1)
    with pytest.raises(CommitConflictError, match="snapshot 2, which has expired"):
        table.commit([staged], unchanged_since=base)


def test_tag_of_a_compaction_after_an_expired_commit_does_not_hide_what_that_changed(table: Table) -> None:
    base = table.snapshot().id
    staged = table.stage(rows(2, v="new"), order="none")
    table.write(rows(2, v="theirs"))
    table.compact()
    table.tag("compacted")
    table.write(rows(9))
    table.expire(keep=1)
    with pytest.raises(CommitConflictError, match="snapshot 2, which has expired"):
        table.commit([staged], unchanged_since=base)


def test_without_a_primary_key_equal_rows_are_a_conflict_and_other_ones_not(tmp_path: Path) -> None:
    table = Table.create(
        tmp_path / "t", TableSchema.of({"id": pa.int64(), "v": pa.string()}), {"bucket": "2"}
    )
    table.write(rows(1, 1, 2))
    base = table.snapshot().id

    def replaced(*ids: int) -> list[StagedFiles]:
        kinds = ["-D"] * len(ids) + ["+I"] * len(ids)
        both = pa.concat_tables([rows(*ids), rows(*ids, v="new")]).append_column("_row_kind", [kinds])
        return [table.stage_raw(both)]

    one, other, late = replaced(1, 1), replaced(2), replaced(1, 1)
    table.commit(one, unchanged_since=base)
    table.commit(other, unchanged_since=base)
    table.write(rows(1, 1))
    with pytest.raises(CommitConflictError, match=r"snapshot 2, by .* has changed one of them; do it again"):
        table.commit(late, unchanged_since=base)
