"""Keys longer than a manifest repeats: its bounds are cut, and what goes by them stays right."""

import os
import random
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.store.upkeep.damage import rewrite_last_delta
from upsert.errors import CorruptTableError
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.files import data_file
from upsert.store.files.writing import written_files
from upsert.store.metadata import history
from upsert.store.rows.keys import MAX_BOUND, lower_bound, upper_bound
from upsert.store.rows.merge import SortedRows, halves, weight

SCHEMA = TableSchema.of({"id": pa.string(), "value": pa.int64()}, primary_key=["id"])


@given(st.binary(max_size=6), st.binary(max_size=6), st.sampled_from([b"", b"a", b"\xff"]))
def test_cut_bounds_bound_the_key_and_keep_the_order(one: bytes, other: bytes, beginning: bytes) -> None:
    keys = [beginning * (MAX_BOUND - 2) + end for end in (one, other)]
    for key in keys:
        assert lower_bound(key) <= key <= upper_bound(key)
        assert len(lower_bound(key)) <= MAX_BOUND
    least, most = sorted(keys)
    assert lower_bound(least) <= lower_bound(most)
    assert upper_bound(least) <= upper_bound(most)


def names(count: int, shared: int) -> list[str]:
    """Keys that are longer than a bound, and begin with as many equal letters."""
    return [f"{'k' * shared}{number:04d}{'z' * MAX_BOUND}" for number in range(count)]


@pytest.mark.parametrize("shared", [0, 2 * MAX_BOUND])
def test_a_table_of_long_keys_is_a_dict(tmp_path: Path, shared: int) -> None:
    """Files of a few rows each that follow each other: written, merged, looked up, and merged again."""
    options = {
        "bucket": "1",
        "write-only": "true",
        "target-file-size": "64 kb",
        "compaction.policy": "leveled",
    }
    table = Table.create(tmp_path / "t", SCHEMA, options)
    keys, expected, chance = names(120, shared), dict[str, int](), random.Random(5)
    for step in range(8):
        some = sorted(chance.sample(keys, 50))
        table.write(pa.table({"id": some, "value": [step] * len(some)}))
        expected |= dict.fromkeys(some, step)
        table.compact()
        rows = table.snapshot().scan()
        assert dict(zip(rows["id"].to_pylist(), rows["value"].to_pylist(), strict=True)) == expected
    assert len(table.snapshot().files.entries) > 1
    found = table.snapshot().lookup(["id"], pa.table({"id": keys}))
    assert found.num_rows == len(expected)
    assert [one for one in table.check(deep=True) if not one.is_information] == []


def test_a_manifest_does_not_repeat_a_long_key(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, {"write-only": "true"})
    info = table.write(pa.table({"id": ["a" * 10**6, "b" * 10**6], "value": [1, 2]})).info
    assert info.delta is not None
    assert os.stat(Path(table.root, info.delta.name)).st_size < 20_000
    assert table.check(deep=True) == ()


@pytest.mark.parametrize(
    "name",
    [
        "table.json",
        "../t/table.json",
        "/etc/hostname",
        f"snapshot/snapshot-{1:020d}",
        "tag/tag-x",
        f"bucket-0/../../u/bucket-0/{0:020d}-{'a' * 32}.arrow",
        f"u/bucket-0/{0:020d}-{'a' * 32}.arrow",
        f"bucket-0/{0:020d}-{'a' * 32}.index.arrow",
        f"manifest/{0:020d}-{'a' * 32}.arrow",
    ],
)
def test_a_manifest_that_names_what_is_no_data_file_deletes_nothing(tmp_path: Path, name: str) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, {"write-only": "true"})
    for value in range(3):
        table.write(pa.table({"id": ["a"], "value": [value]}))
    precious = Path(table.root, name)
    if not precious.exists():
        precious.parent.mkdir(parents=True, exist_ok=True)
        precious.write_text("precious")
    rewrite_last_delta(table, lambda rows: [*rows, {**rows[0], "action": "delete", "file": name}])
    history._shared.clear()  # as in another process
    again = Table.open(table.path)
    assert "manifest_can_be_read" in {one.rule for one in again.check()}
    for upkeep in (lambda: again.expire(keep=1), lambda: again.clean(older_than_s=0)):
        with suppress(CorruptTableError):
            upkeep()
    assert precious.exists()
    with pytest.raises(CorruptTableError, match="name"):
        data_file.remove_data_files(table.root, [name])
    assert precious.exists()


def test_rows_heavier_than_the_limit_get_a_part_each() -> None:
    """The parts are never cut below a row, and the rows of no part are lost or repeated."""
    for sizes in ([1000], [1000, 1], [1, 1000], [1, 1, 1000, 1], [1000] * 3):
        rows = pa.table({"a": range(len(sizes)), "b": ["x" * size for size in sizes]})
        parts = list(halves(SortedRows(rows, None), 100))
        assert [row for part in parts for row in part.rows["a"].to_pylist()] == list(range(len(sizes)))
        assert all(weight(part) <= 100 or part.rows.num_rows == 1 for part in parts)
        assert all(part.rows.num_rows for part in parts)


def test_bounds_of_files_beside_each_other_do_not_meet() -> None:
    rows = pa.table({"id": names(40, 2 * MAX_BOUND), "value": range(40)})
    found = list(
        written_files(lambda _, __, bounds: bounds, ["id"], [SortedRows(rows, None)], target_bytes=20_000)
    )
    assert len(found) > 3
    assert all(one[1] < other[0] for one, other in pairwise(found))
