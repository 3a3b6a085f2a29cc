"""What a process remembers of a table that many queries have written into."""

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.commit.committer import Committer
from upsert.store.metadata.snapshot import SnapshotInfo

SCHEMA = TableSchema.of({"id": pa.int64()}, ["id"])


def test_snapshots_with_many_writers_are_remembered_in_smaller_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a map of its own: with 10 000 writers 4 096 of them took some 5 GB."""
    table = Table.create(tmp_path / "t", SCHEMA, {"write-only": "true"})
    writers = MappingProxyType({f"query-{number}": 7 for number in range(10_000)})
    successor = Committer.successor

    def with_many(self: Committer, *given: Any) -> SnapshotInfo:
        return replace(successor(self, *given), writers=writers)

    with monkeypatch.context() as first:
        first.setattr(Committer, "successor", with_many)
        table.write(pa.table({"id": [0]}))
    for id in range(1, 40):
        table.write(pa.table({"id": [id]}))
    remembered = table.published._infos.values()
    assert 3 <= len(remembered) <= 20
    assert table.published.seen.writers == writers
    assert len(table.history()) == 40
