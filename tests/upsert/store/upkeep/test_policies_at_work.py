"""Tables under each compaction policy, with files and levels so small that a short life has all of them."""

import random
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import of_kind
from tests.upsert.store.disk import assert_nothing_is_left_over
from upsert.errors import CommitConflictError
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.commit.change import second_run_of_level
from upsert.store.upkeep import compaction

SCHEMA = TableSchema.of({"id": pa.string(), "value": pa.int64()}, primary_key=["id"])
POLICIES: Mapping[str, Mapping[str, str]] = {
    "universal": {"num-sorted-run.compaction-trigger": "3", "target-file-size": "3 kb"},
    "leveled": {
        "compaction.policy": "leveled",
        "level0_file_num_compaction_trigger": "2",
        "max_bytes_for_level_base": "5 kb",
        "max_bytes_for_level_multiplier": "2",
        "target-file-size": "3 kb",
    },
}


def key(number: int) -> str:
    """Of any length, with a long beginning in common."""
    return f"https://example.com/{number:04d}" + "x" * (number % 3)


def upserts(ids: range, value: int = 0) -> pa.Table:
    return pa.table({"id": [key(n) for n in ids], "value": pa.array([value] * len(ids), pa.int64())})


def names(table: Table) -> set[str]:
    return set(table.published.live(table.snapshot().info))


@settings(max_examples=max(5, settings().max_examples // 8))
@pytest.mark.parametrize("policy", POLICIES)
@given(seed=st.integers(0, 2**32))
def test_a_table_is_the_dict_of_its_writes(
    policy: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Stretches of keys, written and deleted: what is merged, moved or left alone, no row comes or goes."""
    chance = random.Random(seed)
    table = Table.create(tmp_path_factory.mktemp("t") / "t", SCHEMA, POLICIES[policy])
    model: dict[str, int] = {}
    for number in range(chance.randint(4, 14)):
        start, length = chance.randrange(1000), chance.choice([1, 10, 100])
        ids = range(start, start + length)
        if chance.random() < 0.3:
            table.write(of_kind(upserts(ids), "-D"))
            model = {id: value for id, value in model.items() if id not in {key(n) for n in ids}}
        else:
            table.write(upserts(ids, number))
            model |= {key(n): number for n in ids}
        if chance.random() < 0.1:
            table.compact()
    check(table, model)
    table.compact()
    check(table, model)
    groups = table.snapshot().files.groups
    assert all(len(runs) == 1 for runs in groups.values())
    assert sum(entry.deletes for entry in table.snapshot().files.entries) == 0
    table.expire(keep=1)
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)


def check(table: Table, model: Mapping[str, int]) -> None:
    snapshot = table.snapshot()
    rows = snapshot.scan()
    assert dict(zip(rows["id"].to_pylist(), rows["value"].to_pylist(), strict=True)) == model
    wanted = pa.table({"id": [*list(model)[:20], "none"]})
    assert snapshot.lookup(["id"], wanted).num_rows == wanted.num_rows - 1
    live = table.published.live(snapshot.info)
    for name, entry in live.items():
        others = [one for other, one in live.items() if other != name]
        assert second_run_of_level(others, [entry], []) is None


@pytest.mark.parametrize("policy", POLICIES)
def test_growing_keys_are_never_written_twice(policy: str, tmp_path: Path) -> None:
    """Files of good size that overlap none change their level, as an entry in a manifest."""
    table = Table.create(tmp_path / "t", SCHEMA, POLICIES[policy])
    for number in range(8):
        table.write(upserts(range(100 * number, 100 * number + 100)))
    written = {entry.file for info in table.history() for entry in table.published.delta(info).added}
    assert written == names(table)
    assert {info.kind for info in table.history()} == {"append", "compact"}
    assert any(entry.level > 1 for entry in table.snapshot().files.entries)
    assert table.snapshot().scan().num_rows == 800
    assert table.compact() is not None
    assert written == names(table)
    table.expire(keep=1)
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)


def test_under_leveled_a_commit_rewrites_only_what_it_overlaps(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, POLICIES["leveled"])
    for number in range(8):
        table.write(upserts(range(100 * number, 100 * number + 100)))
    before = names(table)
    for value in (1, 2):
        table.write(upserts(range(320, 330), value))
    assert len(before & names(table)) >= 7
    assert sorted(set(table.snapshot().scan()["value"].to_pylist())) == [0, 2]


def test_partitions_and_buckets_are_compacted_alone(tmp_path: Path) -> None:
    schema = TableSchema.of(
        {"day": pa.date32(), "id": pa.int64()}, primary_key=["day", "id"], partitioned_by=["day"]
    )
    table = Table.create(tmp_path / "t", schema, {"bucket": "2", "write-only": "true"})
    for _ in range(2):
        days = pa.array([1, 2] * 20, pa.int32()).cast(pa.date32())
        table.write(pa.table({"day": days, "id": range(40)}))

    def runs() -> list[int]:
        groups = table.snapshot().files.groups
        return [len(groups[place]) for place in sorted(groups)]

    table.compact(partition={"day": "1970-01-02"}, buckets=[1])
    assert runs() == [2, 1, 2, 2]
    table.compact(buckets=[0])
    assert runs() == [1, 1, 1, 2]
    assert table.compact(partition={"day": "1970-01-02"}) is None
    table.compact()
    assert runs() == [1, 1, 1, 1]


def test_a_compaction_that_came_too_late_names_who_was_faster(tmp_path: Path) -> None:
    """W2 and W3 of FLIP-188: what is to be removed must be there; the other bucket's merge is published."""
    schema = TableSchema.of(
        {"day": pa.int32(), "id": pa.int64()}, primary_key=["day", "id"], partitioned_by=["day"]
    )
    table = Table.create(tmp_path / "t", schema, {"write-only": "true"})
    rows = pa.table({"day": pa.array([1, 2], pa.int32()), "id": [1, 2]})
    for _ in range(2):
        table.write(rows)
    merges = compaction.full(table.snapshot().files, table.options)
    written = [
        [e for group in merge.groups for e in compaction.write(table.path, table.layout, 2, merge, group)]
        for merge in merges
    ]
    table.overwrite(rows.slice(0, 1), partition={"day": 1})
    with pytest.raises(CommitConflictError, match=r"this compact, begun at snapshot 2.*snapshot 3 \(overwr"):
        compaction.publish(table._committer, merges, written, yields=False)
    assert [info.kind for info in table.history()][2:] == ["overwrite", "compact"]
    assert table.snapshot().scan().num_rows == 2
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)
