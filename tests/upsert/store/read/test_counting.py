"""The exact number of rows, from manifests and lookups of few keys, beside a scan."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from upsert.schema import TableSchema
from upsert.store.read import counting
from upsert.store.table import Table

KEYS: dict[str, tuple[dict[str, pa.DataType], Callable[[int], dict[str, Any]]]] = {
    "integer": ({"id": pa.int64()}, lambda n: {"id": n * 2**40}),
    "text": ({"id": pa.string()}, lambda n: {"id": f"é{n}"}),
    "two": ({"id": pa.int32(), "t": pa.string()}, lambda n: {"id": n % 7, "t": str(n)}),
    "float": ({"id": pa.float64()}, lambda n: {"id": float(n) or -0.0}),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("is_partitioned", [False, True])
def test_rows_are_counted_as_a_scan_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_partitioned: bool
) -> None:
    monkeypatch.setattr(counting, "_LEAST_ROWS_OF_KEY", 1)
    types, key_of = KEYS[kind]
    random, names = Random(kind), [*types, *(["day"] if is_partitioned else [])]
    columns = types | {"day": pa.int32(), "v": pa.int64()}
    schema = TableSchema.of(columns, primary_key=names, partitioned_by=["day"] if is_partitioned else [])
    options = {"bucket": "2", "num-sorted-run.compaction-trigger": "6"}
    table = Table.create(tmp_path / "t", schema, options)
    assert table.snapshot().counted() == 0
    for _ in range(20):
        numbers = random.sample(range(60), random.choice((1, 5, 40)))
        rows = [
            key_of(n) | {"day": n % 3, "v": random.random() * 9, "_row_kind": random.choice(("+I", "-D"))}
            for n in numbers
        ]
        table.write(pa.Table.from_pylist(rows, pa.schema([*columns.items(), ("_row_kind", pa.string())])))
        if random.random() < 0.1:
            table.compact()
        snapshot = table.snapshot()
        assert snapshot.counted() == snapshot.scan().num_rows


def test_where_many_keys_are_in_newer_runs_rows_are_read(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64()}, primary_key=["id"]))
    table.write(pa.table({"id": range(100)}))
    assert table.snapshot().counted() == 100
    table.write(pa.table({"id": range(90, 115)}))
    assert table.snapshot().counted() == 115
    table.write(pa.table({"id": range(200, 220)}))
    assert table.snapshot().counted() is None


def test_a_table_without_a_key_is_read(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64()}))
    table.write(pa.table({"id": [1, 1]}))
    assert table.snapshot().counted() is None
