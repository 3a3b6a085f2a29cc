"""A hidden table stands for versions of the tables that its rows are of, and goes forward only."""

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


def test_a_hidden_table_is_found_where_it_was_and_brought_forward_only(tmp_path: Path) -> None:
    bases = [Table.create(tmp_path / name, SCHEMA) for name in ("a", "b")]
    read = tuple((ManagedTable(one.name, one.path, SCHEMA, bucket_key=("id",)), 1) for one in bases)
    nothing: Any = None
    hidden = RowsTable(
        planning=nothing,
        path=str(tmp_path / "hidden"),
        schema=TableSchema.of({"n": pa.int64()}),
        columns=(),
        tables=read,
        kept=nothing,
        moved="",
    )
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
