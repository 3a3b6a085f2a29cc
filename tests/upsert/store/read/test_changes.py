"""What a reader of changes is told equals what happened, however it steps and whatever was compacted."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers import changelog, multiset
from tests.upsert.store.replay import Replay, state_of
from upsert.errors import ConfigurationError, SchemaError, SnapshotExpiredError, UntrackedChangesError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store import paths
from upsert.store.metadata import history
from upsert.store.read.shares import KeyShare
from upsert.store.read.snapshot import Snapshot
from upsert.store.table import Table
from upsert.store.version import Version

KEYED = TableSchema.of({"id": pa.int64(), "v": pa.string()}, primary_key=["id"])
MULTISET = TableSchema.of({"id": pa.int64(), "v": pa.string()}).index("id")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", KEYED, {"bucket": "2", "write-only": "true"})


def rows(*lines: str) -> pa.Table:
    return changelog(KEYED.arrow, *lines)


def lines(changes: pa.Table) -> list[str]:
    """The changes as sorted shorthand; the halves of an update stay together, in order."""
    found: list[str] = []
    parts = changes.to_pylist()
    for number, part in enumerate(parts):
        line = " ".join(str(part[name]) for name in (ROW_KIND_COLUMN, *changes.column_names[:-1]))
        if part[ROW_KIND_COLUMN] == "+U":
            assert parts[number - 1][ROW_KIND_COLUMN] == "-U"
            found[-1] += " " + line
        else:
            found.append(line)
    return sorted(found)


# -- single truths


def test_changes_are_net_with_exact_images(table: Table) -> None:
    table.write(rows("+I 1 a", "+I 2 b", "+I 3 c", "+I 4 d"))
    table.write(rows("+U 1 x", "-D 2 NULL", "+I 5 e"))
    table.write(rows("+U 1 y", "+U 3 z", "-D 5 e"))
    table.write(rows("+U 3 c"))
    assert lines(table.changes(1)) == ["-D 2 b", "-U 1 a +U 1 y"]
    assert lines(table.changes(1, 2)) == ["+I 5 e", "-D 2 b", "-U 1 a +U 1 x"]
    assert lines(table.changes(0, 1)) == ["+I 1 a", "+I 2 b", "+I 3 c", "+I 4 d"]
    assert lines(table.changes(2, 2)) == []


def test_write_of_equal_rows_is_no_change(table: Table) -> None:
    table.write(rows("+I 1 a", "+I 2 NULL"))
    table.write(rows("+U 1 a", "+U 2 NULL"))
    assert lines(table.changes(1)) == []


@pytest.mark.parametrize(("old", "new"), [(("x", 1), ("y", 1)), (("x", 1), ("x", 2)), ((None, 1), ("x", 1))])
def test_a_change_of_any_one_column_is_a_change(tmp_path: Path, old: Any, new: Any) -> None:
    columns = {"id": pa.int64(), "name": pa.string(), "n": pa.int64()}
    table = Table.create(tmp_path / "pairs", TableSchema.of(columns, primary_key=["id"]))
    for name, n in (old, new):
        table.write(pa.table({"id": [1], "name": pa.array([name], pa.string()), "n": [n]}))
    rows = table.changes(1, 2).to_pylist()
    assert [(row["_row_kind"], row["name"], row["n"]) for row in rows] == [("-U", *old), ("+U", *new)]


def test_key_that_came_and_went_is_no_change(table: Table) -> None:
    table.write(rows("+I 1 a"))
    table.write(rows("+I 2 b"))
    table.write(rows("-D 2 b", "-D 3 c"))
    assert lines(table.changes(1)) == []


def test_update_of_a_column_that_is_not_read_is_no_change(table: Table) -> None:
    table.write(rows("+I 1 a", "+I 2 b"))
    table.write(rows("+U 1 x", "-D 2 b"))
    assert lines(table.changes(1, columns=["id"])) == ["-D 2"]
    assert lines(table.changes(1, columns=["v"])) == ["-D b", "-U a +U x"]


def test_overwrite_is_a_change_like_any_other(table: Table) -> None:
    table.write(rows("+I 1 a", "+I 2 b", "+I 3 c"))
    table.overwrite(rows("+I 1 a", "+I 2 x", "+I 4 d"))
    assert lines(table.changes(1)) == ["+I 4 d", "-D 3 c", "-U 2 b +U 2 x"]


def test_compaction_expiry_and_cleaning_are_not_seen(table: Table) -> None:
    for number in range(4):
        table.write(rows(f"+U 1 {number}", f"+I 1{number} a"))
    before, version = table.changes(1), Version.complete(table.snapshot().info.data_version)
    table.compact()
    table.clean(older_than_s=0)
    assert multiset(table.changes(1)) == multiset(before)
    assert table.advance(version) == version
    table.expire(keep=1)
    assert table.advance(version) == version
    table.write(rows("+U 1 9"))
    assert lines(table.changes_between(version, table.advance(version))) == ["-U 1 3 +U 1 9"]


def test_row_of_a_table_without_key_comes_as_often_as_it_changed(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", MULTISET)
    table.write(rows("+I 1 a", "+I 1 a", "+I 1 a", "+I 2 NULL"))
    table.write(rows("-D 1 a", "-D 1 a", "-D 2 NULL", "+I 2 NULL", "+I 3 c", "+I 3 c"))
    assert lines(table.changes(0, 1)) == ["+I 1 a", "+I 1 a", "+I 1 a", "+I 2 None"]
    assert lines(table.changes(1)) == ["+I 3 c", "+I 3 c", "-D 1 a", "-D 1 a"]
    table.overwrite(rows("+I 1 a", "+I 1 a"))
    assert lines(table.changes(2)) == ["+I 1 a", "-D 2 None", "-D 3 c", "-D 3 c"]


def test_commit_without_tracking_stops_a_reader_and_is_named(table: Table) -> None:
    table.write(rows("+I 1 a"))
    table.write(rows("+I 2 b"))
    table.commit([table.stage(rows("+I 3 c"), order="rows")], tracked=False)
    reached = table.advance(Version.complete(1))
    assert reached == Version.complete(2), "what came before can still be read"
    with pytest.raises(UntrackedChangesError, match="snapshot 3 was committed with change-tracking = false"):
        table.advance(reached)
    with pytest.raises(UntrackedChangesError, match="snapshot 3"):
        table.changes(1)
    assert len(lines(table.changes(0))) == 3, "a first load shows every row"


def test_reader_whose_base_has_expired_is_told_the_earliest_one(table: Table) -> None:
    for number in range(5):
        table.write(rows(f"+I {number} a"))
    table.expire(keep=2)
    for read in (lambda: table.changes(1), lambda: table.advance(Version.complete(1))):
        with pytest.raises(SnapshotExpiredError, match="the earliest that is left is 4"):
            read()
    assert len(lines(table.changes(0))) == 5


def test_bad_requests_are_refused(table: Table) -> None:
    table.write(rows("+I 1 a"))
    table.write(rows("+I 2 a"))
    with pytest.raises(ConfigurationError, match="must be read forwards"):
        table.changes(2, 1)
    with pytest.raises(SchemaError, match="unknown column 'w'"):
        table.changes(0, columns=["w"])
    with pytest.raises(ConfigurationError, match="one or more different columns"):
        table.changes(0, columns=["id", "id"])
    with pytest.raises(ConfigurationError, match="between 0 and the latest"):
        table.changes(0, 7)


# -- stepping


def test_step_takes_whole_commits_as_far_as_the_limit_allows(table: Table) -> None:
    table.write(rows("+I 0 a"))
    for number in range(1, 6):
        table.write(rows(*(f"+I {10 * number + i} a" for i in range(3))))
    version = Version.complete(1)
    assert table.advance(version, max_rows=7) == Version.complete(3)
    assert table.advance(version, max_rows=3) == Version.complete(2)
    assert table.advance(version) == Version.complete(6)
    assert table.advance(version, until=4) == Version.complete(4)
    assert table.advance(Version.complete(6)) == Version.complete(6)
    assert table.advance(Version.complete(6), until=4) == Version.complete(6)


def test_step_of_a_reader_that_is_far_behind_reads_few_of_the_snapshots_that_follow(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        table.write(rows(f"+I {number} a"))
    Path(table.path, paths.snapshot_file(8)).unlink()
    monkeypatch.setattr(history, "_IDS_TOGETHER", 2)
    table.published = table.published.reread()
    assert table.advance(Version.complete(1), max_rows=3) == Version.complete(4)


def test_overwrite_is_a_step_of_its_own(table: Table) -> None:
    for number in range(1, 6):
        (table.overwrite if number == 3 else table.write)(rows(f"+I {number} a"))
    assert table.advance(Version.complete(1)) == Version.complete(2)
    assert table.advance(Version.complete(2)) == Version.complete(3)
    assert table.advance(Version.complete(3)) == Version.complete(5)


@pytest.mark.parametrize("schema", [KEYED, MULTISET], ids=["keyed", "multiset"])
def test_a_step_goes_over_deletions_by_comparisons(tmp_path: Path, schema: TableSchema) -> None:
    """They add files as writes do; one of all rows takes files away, as an overwrite does."""
    table = Table.create(tmp_path / "d", schema, {"bucket": "2", "write-only": "true"})
    table.write(rows("+I 1 a", "+I 2 a", "+I 7 a"))
    for number in range(3, 7):
        table.write(rows(f"+I {number} a"))
        table.delete([("id", "=", number - 2)])
    end = table.advance(Version.complete(1))
    assert end == Version.complete(9)
    changes = table.changes_between(Version.complete(1), end)
    assert lines(changes) == ["+I 5 a", "+I 6 a", "-D 1 a", "-D 2 a"]
    assert table.advance(Version.complete(1), max_rows=5) == Version.complete(6)
    table.delete([])
    assert table.advance(Version.complete(1)) == end
    table.write(rows("+I 1 a"))
    assert table.advance(end) == Version.complete(10)


def test_large_commit_is_cut_and_the_target_stays_pinned(table: Table) -> None:
    table.write(rows("+I 0 a"))
    table.write(rows(*(f"+I {i} a" for i in range(1, 101))))
    first = table.advance(Version.complete(1), max_rows=30)
    assert (first.base, first.target, first.is_complete) == (1, 2, False)
    table.write(rows("+U 0 b", *(f"-D {i} a" for i in range(1, 51))))
    seen = table.changes_between(Version.complete(1), first)
    steps = 1
    while not first.is_complete:
        following = table.advance(first, max_rows=30)
        assert following.target == 2
        part = table.changes_between(first, following)
        assert part.num_rows <= 30
        seen, first, steps = pa.concat_tables([seen, part]), following, steps + 1
    assert steps == 4
    assert multiset(seen) == multiset(table.changes(1, 2))


def test_step_always_gets_on(table: Table) -> None:
    """A limit below what one step must take takes one key at a time."""
    table.write(rows("+I 1 a", "+I 2 b", "+I 3 c"))
    assert [step.num_rows for step in steps_to_end(table, 1)] == [1, 1, 1]


def test_step_takes_whole_commits_as_far_as_their_bytes_allow(table: Table) -> None:
    """A commit of few wide rows fills the step as one of many narrow rows does."""
    table.write(rows("+I 0 a"))
    table.write(rows(*(f"+I {i} a" for i in range(1, 400))))
    table.write(rows(*(f"+I {i} {'a' * 4000}" for i in range(400, 404))))
    table.write(rows("+I 500 a"))
    assert table.advance(Version.complete(1), max_bytes=100_000) == Version.complete(4)
    assert table.advance(Version.complete(1), max_bytes=12_000) == Version.complete(2)
    assert not table.advance(Version.complete(2), max_bytes=12_000).is_complete


@pytest.mark.parametrize("limits", [{"max_bytes": 3000}, {"max_bytes_of_bucket": 3000}, {"max_bytes": 1}])
def test_steps_by_bytes_are_all_changes_and_none_is_larger(table: Table, limits: dict[str, int]) -> None:
    table.write(rows("+I 0 a"))
    table.write(rows(*(f"+I {i} {'a' * (1 + i % 50)}" for i in range(300))))
    version, seen, sizes = Version.complete(1), list[pa.Table](), list[int]()
    while (following := table.advance(version, **limits)) != version:
        assert table.advance(version, **limits) == following
        parts = [table.changes_between(version, following, buckets=[bucket]) for bucket in range(2)]
        sizes.append(max(part.num_rows for part in parts))
        seen, version = [*seen, *parts], following
        if limits == {"max_bytes": 1} and len(sizes) == 5:
            break
    if limits == {"max_bytes": 1}:
        assert sizes == [1] * 5, "a step always gets on"
        return
    assert multiset(pa.concat_tables(seen)) == multiset(table.changes(1, 2))
    assert len(sizes) >= 3
    assert max(sizes) < 3000 / 25


def test_rows_and_bytes_are_limits_together(table: Table) -> None:
    table.write(rows(*(f"+I {i} {'a' * 100}" for i in range(100))))
    by_rows = table.advance(Version.EMPTY, max_rows=7)
    assert table.advance(Version.EMPTY, max_rows=7, max_bytes=1 << 20) == by_rows
    first = table.advance(Version.EMPTY, max_rows=50, max_bytes=1000)
    assert 0 < table.changes_between(Version.EMPTY, first).num_rows < 12


def test_limit_holds_whatever_its_reciprocal_is_rounded_to(tmp_path: Path) -> None:
    """1 / (1 / 93) is less than 93; of 100 000 rows, one more is hardly a larger part."""
    table = Table.create(tmp_path / "r", KEYED, {"bucket": "1"})
    ids = np.arange(150_000)
    table.write(pa.table({"id": ids, "v": pa.nulls(len(ids), pa.string())}))
    size = table.snapshot().bytes_in_memory
    for most in (93, 99, 186, 99_999, 100_000):
        for limit in ({"max_rows": most}, {"max_bytes_of_bucket": size * most // len(ids)}):
            end = table.advance(Version.EMPTY, **limit)
            assert most - 1 <= table.changes_between(Version.EMPTY, end).num_rows <= most, limit


def test_buckets_of_a_step_are_disjoint_and_complete(table: Table) -> None:
    table.write(rows(*(f"+I {i} a" for i in range(50))))
    end = table.advance(Version.EMPTY)
    parts = [table.changes_between(Version.EMPTY, end, buckets=[bucket]) for bucket in range(2)]
    assert all(part.num_rows for part in parts)
    assert multiset(pa.concat_tables(parts)) == multiset(table.changes(0))


@pytest.mark.parametrize("schema", [KEYED, MULTISET], ids=["keyed", "counted"])
def test_shares_of_the_keys_of_a_step_are_disjoint_and_complete(tmp_path: Path, schema: TableSchema) -> None:
    """With updates and deletions, and within a range of keys."""
    table = Table.create(tmp_path / "s", schema, {"bucket": "2", "write-only": "true"})
    table.write(rows(*(f"+I {i} a" for i in range(50))))
    base = Version.complete(table.snapshot().id)
    table.write(
        rows(*(f"-D {i} a" for i in range(20)), *(f"+I {i} b" for i in range(10, 60) if i >= 50 or i < 20))
    )
    whole = table.advance(base)
    within = table.advance(base, max_rows=12)
    for start, end in ((Version.EMPTY, base), (base, whole), (base, within), (within, whole)):
        parts = [
            table.changes_between(start, end, share=KeyShare(("id",), number, 3, rests_of_three))
            for number in range(3)
        ]
        assert all({id % 3 for id in part["id"].to_pylist()} <= {n} for n, part in enumerate(parts))
        assert lines(pa.concat_tables(parts)) == lines(table.changes_between(start, end))


def rests_of_three(keys: pa.Table) -> Any:
    """What the ids leave; nothing but the ids is read of the others."""
    assert keys.column_names == ["id"]
    return keys["id"].to_numpy() % 3


@pytest.mark.parametrize("seed", range(3))
def test_shares_by_a_column_that_updates_change_have_both_images(tmp_path: Path, seed: int) -> None:
    """Of several files with versions of a key, deletions, keys that come and go, and ranges of keys."""
    print(f"seed {seed}")
    random = Random(seed)
    table = Table.create(tmp_path / "s", KEYED, {"bucket": "2", "write-only": "true"})
    versions = [Version.EMPTY]
    for _ in range(8):
        kinds = random.choices(["+I", "-D"], [3, 1], k=15)
        ids = random.sample(range(40), 15)
        changes = [f"{kind} {id} {random.choice('abcdef')}" for kind, id in zip(kinds, ids, strict=True)]
        table.write(rows(*changes))
        versions.append(Version.complete(table.snapshot().id))
    for _ in range(12):
        start, end = sorted(random.sample(versions, 2), key=lambda version: version.base)
        within = table.advance(start, until=end.base, max_rows=9)
        for last in (end, within):
            whole = lines(table.changes_between(start, last))
            for number in range(3):
                share = KeyShare(("v",), number, 3, thirds, is_of_key=False)
                found = lines(table.changes_between(start, last, share=share))
                assert found == [line for line in whole if number in thirds_of(line)]


def test_new_keys_are_looked_up_once_for_all_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With versions of a key and deletions among them; if one key of a step is known, all are asked twice."""
    table = Table.create(tmp_path / "s", KEYED, {"bucket": "2", "write-only": "true"})
    table.write(rows("+I 0 a", "+I 1 b"))
    asked, match = [], Snapshot.match

    def counted(self: Snapshot, columns: Any, keys: pa.Table, **others: Any) -> Any:
        asked.append(keys.num_rows)
        return match(self, columns, keys, **others)

    monkeypatch.setattr(Snapshot, "match", counted)
    for known, times in ((), 1), (("+I 0 c",), 2):
        start = table.snapshot().id
        ids = range(10 * start, 10 * start + 10)
        table.write(rows(*known, *(f"+I {id} {'abc'[id % 3]}" for id in ids)))
        table.write(rows(f"+I {ids[0]} c", f"-D {ids[1]} b", f"-D {10 * ids[1]} b"))
        step = Version.complete(start), Version.complete(table.snapshot().id)
        asked.clear()
        shares = (KeyShare(("v",), number, 3, thirds, is_of_key=False) for number in range(3))
        found = [line for share in shares for line in lines(table.changes_between(*step, share=share))]
        assert sum(asked) <= times * (len(known) + 12)
        assert set(found) == set(lines(table.changes_between(*step)))


def thirds(keys: pa.Table) -> Any:
    """A number for each text."""
    assert keys.column_names == ["v"]
    return np.array([ord(text or "a") % 3 for text in keys["v"].to_pylist()], np.int64)


def thirds_of(line: str) -> set[int]:
    """The numbers of the images of a change."""
    return {ord(text) % 3 for text in line.split()[2::3]}


def steps_to_end(table: Table, max_rows: int) -> Iterator[pa.Table]:
    version = Version.EMPTY
    while (following := table.advance(version, max_rows=max_rows)) != version:
        yield table.changes_between(version, following)
        version = following


# -- every type, as key and as value

KEY_VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "byte": (pa.int8(), [-128, 0, 127]),
    "short": (pa.int16(), [-1, 1]),
    "integer": (pa.int32(), [-(2**31), 7]),
    "long": (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    "float": (pa.float32(), [-0.0, 1.5, float("nan"), float("inf")]),
    "double": (pa.float64(), [0.0, -1.5, float("nan")]),
    "string": (pa.string(), ["", "é", "a\0b"]),
    "binary": (pa.binary(), [b"", b"\xff\x00"]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us", "UTC"), [datetime(2020, 7, 1, 12, tzinfo=UTC)]),
    "timestamp_ntz": (pa.timestamp("us"), [datetime(1900, 1, 1), datetime(2020, 7, 1)]),
    "decimal": (pa.decimal128(10, 2), [Decimal("-1.50"), Decimal("0.00")]),
    "wide decimal": (pa.decimal128(38, 3), [Decimal("-12345678901234567890123456789012345.678")]),
}
NESTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "array": (pa.list_(pa.int32()), [[], [1, None], None]),
    "map": (pa.map_(pa.string(), pa.float64()), [[("a", 1.0), ("b", None)], []]),
    "struct": (pa.struct({"x": pa.int32(), "y": pa.list_(pa.string())}), [{"x": None, "y": ["q"]}, None]),
}


@pytest.mark.parametrize(("type_", "values"), KEY_VALUES.values(), ids=KEY_VALUES)
def test_every_type_as_key(tmp_path: Path, type_: pa.DataType, values: list[Any]) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"k": type_, "v": pa.int64()}, primary_key=["k"]))
    for number in (1, 2):
        keys = pa.array(values, type_)
        table.write(pa.table({"k": keys, "v": pa.array([number] * len(values), pa.int64())}))
    assert Counter(table.changes(1).column(ROW_KIND_COLUMN).to_pylist()) == dict.fromkeys(
        ["+U", "-U"], len(values)
    )
    replay = Replay(Counter())
    for step in steps_to_end(table, 1):
        replay.apply(step, is_keyed=True)
    assert replay.state == state_of(table.snapshot().scan())


@pytest.mark.parametrize(("type_", "values"), (KEY_VALUES | NESTED).values(), ids=KEY_VALUES | NESTED)
def test_every_type_as_value(tmp_path: Path, type_: pa.DataType, values: list[Any]) -> None:
    """Equal images of any type, NaN and NULL included, are no change."""
    table = Table.create(tmp_path / "t", TableSchema.of({"k": pa.int64(), "v": type_}, primary_key=["k"]))
    column = pa.array([*values, None], type_)
    keys = pa.array(range(len(column)), pa.int64())
    table.write(pa.table({"k": keys, "v": column}))
    table.write(pa.table({"k": keys, "v": column}))
    assert table.changes(1).num_rows == 0
    table.write(pa.table({"k": keys, "v": pa.nulls(len(column), type_)}))
    assert table.changes(2).num_rows == 2 * (len(column) - column.null_count)
    assert state_of(table.changes(0, 2).drop_columns([ROW_KIND_COLUMN])) == state_of(table.snapshot(2).scan())
