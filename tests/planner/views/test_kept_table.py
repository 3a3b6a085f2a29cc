"""A hidden table stands for versions of the tables that its rows are of, and goes forward only."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from planner.plan.sources import ManagedTable
from planner.views.rows_table import RowsTable
from upsert.errors import CommitConflictError
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.metadata.stands_for import Costs, Refresh
from upsert.views.refresh import Computed

SCHEMA = TableSchema.of({"id": pa.int64()}, primary_key=["id"])


NOTHING: Any = None


def made(path: Path, commits: int) -> Table:
    table = Table.create(path, SCHEMA)
    for id in range(commits):
        table.write(pa.table({"id": [id]}))
    return table


def hidden_table(path: Path, *bases: Table) -> RowsTable:
    return RowsTable(
        planning=NOTHING,
        path=str(path),
        schema=TableSchema.of({"n": pa.int64()}),
        columns=(),
        tables=tuple((ManagedTable(one.name, one.path, SCHEMA, bucket_key=("id",)), 1) for one in bases),
        kept=NOTHING,
        moved="",
    )


def test_a_hidden_table_is_found_where_it_was_and_brought_forward_only(tmp_path: Path) -> None:
    bases = [made(tmp_path / name, commits=3) for name in ("a", "b")]
    hidden = hidden_table(tmp_path / "hidden", *bases)
    asked: list[Mapping[str, int]] = []

    def rows(known: Mapping[str, int], costs: Costs) -> Computed:
        asked.append(known)
        added = pa.table({"n": [len(asked)], "_row_kind": ["+I"]})
        return Computed(added, Refresh.now(True, "", 1, 1, costs), are_all=False)

    def at(a: int, b: int) -> Mapping[str, int]:
        return {bases[0].uuid: a, bases[1].uuid: b}

    found = [hidden.brought({**at(*versions), "another": 9}, rows) for versions in ((1, 1), (2, 1), (2, 3))]
    assert asked == [{}, at(1, 1), at(2, 1)]
    assert found == [1, 2, 3]
    for versions, version in zip(((1, 1), (2, 1), (2, 3)), found, strict=True):
        assert hidden.brought(at(*versions), rows) == hidden.known_at(at(*versions)) == version
    assert len(asked) == 3, "what stands for these versions is there"
    assert hidden.known_at(at(1, 3)) is None
    assert hidden.known_at({bases[0].uuid: 2}) is None
    for versions in ((1, 3), (3, 2)):
        with pytest.raises(CommitConflictError, match="another process has refreshed the view; refresh it"):
            hidden.brought(at(*versions), rows)
    assert sorted(hidden.opened().snapshot().scan()["n"].to_pylist()) == [1, 2, 3]


def test_what_a_hidden_table_has_of_commits_that_are_gone_is_computed_again(tmp_path: Path) -> None:
    """A refresh of the view had failed after it, so the view itself knew nothing of these commits."""
    base = made(tmp_path / "a", commits=1)
    shutil.copytree(base.path, tmp_path / "copy")
    hidden = hidden_table(tmp_path / "hidden", base)
    asked: list[Mapping[str, int]] = []

    def rows(known: Mapping[str, int], costs: Costs) -> Computed:
        asked.append(known)
        return Computed(pa.table({"n": [len(asked)]}), Refresh.now(False, "", 1, 1, costs), are_all=True)

    first = hidden.brought({base.uuid: 1}, rows)
    base.write(pa.table({"id": [8]}))
    hidden.brought({base.uuid: 2}, rows)
    shutil.rmtree(base.path)
    shutil.copytree(tmp_path / "copy", base.path)
    assert hidden.known_at({base.uuid: 1}) == first
    Table.open(base.path).write(pa.table({"id": [9]}))
    assert hidden.known_at({base.uuid: 2}) is None
    assert hidden.brought({base.uuid: 2}, rows) == 3
    assert asked == [{}, {base.uuid: 1}, {}]
    assert hidden.opened().snapshot().scan()["n"].to_pylist() == [3]
