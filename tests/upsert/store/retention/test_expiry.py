"""What expiry keeps, what it says about the rest, and what clean-up takes away."""

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, files_on_disk, run
from upsert.errors import ConfigurationError, CorruptTableError, SnapshotExpiredError
from upsert.schema import TableSchema
from upsert.store import Table, Version, paths
from upsert.store.commit.change import Change
from upsert.store.commit.committer import Committer, Environment
from upsert.store.metadata import history
from upsert.store.retention.expiry import ExpiryWarning
from upsert.store.upkeep import query_state
from upsert.store.upkeep.orphans import clean

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


@pytest.mark.parametrize("point", ["expire.after-publish", "expire.after-snapshot:2"])
def test_an_expiry_of_very_many_snapshots_does_not_list_them(
    table: Table, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one that was killed has left is found by the next one, without a look at the folder."""
    monkeypatch.setattr(history, "_MOST_LISTED", 0)
    assert run(lambda: table.expire(keep=2), point) == KILLED
    table.write(pa.table({"id": [1], "value": [6]}))
    with monkeypatch.context() as patched:
        patched.setattr(history.History, "listed_ids", lambda _: pytest.fail("the folder was listed"))
        table.expire(keep=1)
    assert table.published.listed_ids() == [7, 8]
    assert value_at(table, 7) == [6]
    assert_nothing_is_left_over(table)


def test_one_commit_with_a_clock_far_ahead_does_not_stop_expiry_by_age(tmp_path: Path) -> None:
    """What comes after it has its time too: the times of the files say what is old."""
    table = Table.create(tmp_path / "t", SCHEMA, {"write-only": "true", "snapshot.time-retained": "1000 d"})
    ahead = Environment(now=lambda: time.time() + 3650 * 86_400)
    Committer(table.published, ahead).commit(lambda _: Change("append", transaction=("writer", 1)))
    for value in range(1, 5):
        table.write(pa.table({"id": [1], "value": [value]}))
    assert min(info.time_ms for info in table.history()) > (time.time() + 3000 * 86_400) * 1000
    for id in (1, 2, 3):  # an hour old
        os.utime(Path(table.path, paths.snapshot_file(id)), (time.time() - 3600,) * 2)
    with pytest.warns(ExpiryWarning, match="ahead of the clock here"):
        assert table.expire(older_than_s=600) == 2
    assert [info.id for info in table.history()] == [3, 4, 5, 6]


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
        "definition/.definition-1-d.tmp",
    ]
    others = ["notes.txt", "bucket-0/readme.arrow", f"bucket-0/{99:020d}-{'a' * 32}.arrow", "other/x.arrow"]
    for name in (*leftovers, *others):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("")
    assert table.clean() == 0
    later = Environment(now=lambda: os.stat(root / leftovers[0]).st_mtime + 100_000)
    assert clean(Committer(table.published, later)) == len(leftovers)
    assert all((root / name).exists() for name in others)
    assert value_at(table, 5) == [5]


@pytest.mark.sidecars
@pytest.mark.parametrize("folder", ["stages", "materialized"])
def test_clean_goes_into_the_hidden_tables_of_a_table(table: Table, folder: str) -> None:
    """Nothing else can be told of them: no list has them, and their queries die between two commits, too."""
    options = {"write-only": "true"}
    hidden = Table.create(Path(table.path, folder, "of-a-query"), SCHEMA, options)
    row = pa.table({"id": [1], "value": [1]})
    assert run(lambda: hidden.write(row), "publish.before-link") == KILLED
    hidden.write(row)
    assert table.clean() == 0
    # rows, their index, the manifest, and the snapshot without a name
    assert table.clean(older_than_s=0) == 4
    assert_nothing_is_left_over(hidden)
    assert hidden.snapshot().scan().num_rows == 1


def test_clean_leaves_a_hidden_table_alone_that_is_being_dropped(table: Table) -> None:
    """It said that a manifest is missing and must be restored from a copy, until the view was refreshed."""
    hidden = Table.create(Path(table.path, "stages", "of-a-view"), SCHEMA)
    hidden.write(pa.table({"id": [1], "value": [1]}))
    stages = Path(table.path, "stages")
    assert (
        run(lambda: query_state.drop_folder(str(stages), "of-a-view", "view.within-drop"), "view.within-drop")
        == KILLED
    )
    [dropped] = stages.iterdir()
    shutil.rmtree(dropped / "manifest")  # so far it came
    assert table.clean(older_than_s=0) == 0
    assert (dropped / "table.json").exists()


def test_a_clean_table_is_left_as_it_is(table: Table) -> None:
    head = table.snapshot().id
    assert (table.clean(older_than_s=0), table.snapshot().id) == (0, head)


def test_wrong_arguments_are_refused(table: Table) -> None:
    with pytest.raises(ConfigurationError, match="keep must be a whole number, at least 1, got 0"):
        table.expire(keep=0)
    for age in (-1, float("nan"), float("inf")):
        with pytest.raises(ConfigurationError, match="older_than_s must be at least 0 and finite"):
            table.clean(older_than_s=age)


# by itself, after commits


def life_of(path: Path, options: dict[str, str], times: list[float]) -> Table:
    """A table with one commit at each of the times, in seconds."""
    table = Table.create(path, SCHEMA, {"num-sorted-run.compaction-trigger": "100", **options})
    clock = [0.0]
    table._committer = Committer(table.published, Environment(now=lambda: clock[0]))
    for value, clock[0] in enumerate(times, start=1):
        table.write(pa.table({"id": [1], "value": [value]}))
    return table


def test_the_state_at_a_time_is_found_by_reading_few_snapshots(tmp_path: Path) -> None:
    table = life_of(tmp_path / "t", {"write-only": "true"}, [float(at // 2) for at in range(32)])
    times = [-1, 0, 999, 1000, 7500, 15_000, 99_000]
    expected = [0, 2, 2, 4, 16, 32, 32]
    assert [table.published.at_time(at).id for at in times] == expected
    Path(table.path, paths.snapshot_file(11)).unlink()
    assert [table.published.reread().at_time(at).id for at in times] == expected
    table = life_of(tmp_path / "u", {"write-only": "true"}, [1.0, 2.0, 3.0])
    table.expire(keep=2)
    assert [table.published.at_time(at).id for at in (2000, 2999)] == [2, 2]
    with pytest.raises(SnapshotExpiredError, match="state at 1999 ms has expired"):
        table.published.at_time(1999)


def states_of(table: Table) -> list[int]:
    return sorted({value for info in table.history() for value in value_at(table, info.id)})


def test_commits_expire_what_is_old_but_never_the_newest_ten(tmp_path: Path) -> None:
    table = life_of(tmp_path / "t", {}, [hour * 3600.0 for hour in range(30)])
    assert states_of(table) == list(range(21, 31))
    assert_nothing_is_left_over(table)


def test_by_default_nothing_goes_within_an_hour(tmp_path: Path) -> None:
    table = life_of(tmp_path / "t", {}, [minute * 60.0 for minute in range(60)])
    assert states_of(table) == list(range(1, 61))


def test_a_busy_table_moves_its_boundary_once_for_many_commits(tmp_path: Path) -> None:
    options = {"snapshot.time-retained": "60 s", "snapshot.expire.limit": "20"}
    table = life_of(tmp_path / "t", options, [float(second) for second in range(200)])
    kinds = [info.kind for info in table.history()]
    assert 60 <= kinds.count("append") <= 90
    assert kinds.count("expire") <= 200 / 6
    assert_nothing_is_left_over(table)


def test_a_number_of_states_is_kept_to_at_once(tmp_path: Path) -> None:
    options = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "3"}
    table = life_of(tmp_path / "t", options, [0.0] * 12)
    assert states_of(table) == [10, 11, 12]
    assert_nothing_is_left_over(table)


def test_a_tag_and_a_consumer_hold_what_would_expire_by_itself(tmp_path: Path) -> None:
    options = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "2"}
    table = life_of(tmp_path / "t", options, [0.0] * 4)
    table.tag("four")
    held = table.snapshot().info.data_version
    for value in range(5, 9):
        table.write(pa.table({"id": [1], "value": [value]}))
    table.hold("reader", Version.complete(table.snapshot().info.data_version))
    for value in range(9, 13):
        table.write(pa.table({"id": [1], "value": [value]}))
    assert states_of(table) == [8, 9, 10, 11, 12]
    assert value_at(table, held) == table.snapshot("four").scan()["value"].to_pylist() == [4]
    assert table.check(deep=True) == ()


def test_who_only_writes_expires_nothing(tmp_path: Path) -> None:
    options = {"write-only": "true", "snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"}
    table = life_of(tmp_path / "t", options, [0.0] * 5)
    assert states_of(table) == [1, 2, 3, 4, 5]
    table.compact()
    assert states_of(table) == [5]


def test_an_expiry_that_fails_does_not_fail_the_commit(tmp_path: Path) -> None:
    options = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"}
    table = life_of(tmp_path / "t", options, [0.0])
    (Path(table.path) / "consumer").mkdir()
    (Path(table.path) / "consumer" / "consumer-x").write_text("?")
    with pytest.warns(ExpiryWarning, match="could not be expired"):
        table.write(pa.table({"id": [1], "value": [2]}))
    assert value_at(table, table.snapshot().id) == [2]


def test_expire_by_age_by_number_and_by_the_table_s_options(table: Table) -> None:
    assert table.expire() == 0
    assert table.expire(older_than_s=3600) == 0
    assert table.expire(keep=3, older_than_s=0) == 2
    assert states_of(table) == [3, 4, 5]
    table.expire(older_than_s=0)
    assert states_of(table) == [5]
    for age in (-1, float("inf"), float("nan")):
        with pytest.raises(ConfigurationError, match="older_than_s must be at least 0 and finite"):
            table.expire(older_than_s=age)


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"num-retained.max' must be at least .* 10, got 3"):
        Table.create(tmp_path / "t", SCHEMA, {"snapshot.num-retained.max": "3"})


def test_many_expiries_at_once_are_one(table: Table) -> None:
    for value in range(6, 30):
        table.write(pa.table({"id": [1], "value": [value]}))
    with ThreadPoolExecutor(11) as pool:
        given_up = sum(pool.map(lambda keep: table.expire(keep=keep), range(3, 14)))
    assert given_up == table.snapshot().info.oldest - 1
    assert states_of(table) == [27, 28, 29]
    assert_nothing_is_left_over(table)


def test_a_clean_up_that_misses_something_deletes_nothing(table: Table) -> None:
    """A snapshot, a manifest or a tag that should be there is not: then nobody knows what is needed."""
    waste = Path(table.path, f"bucket-0/{1:020d}-{'a' * 32}.arrow")
    waste.write_text("")
    table.tag("first", 1)
    for name in (paths.snapshot_file(3), table.snapshot(4).info.manifests[0].name):
        path = Path(table.path, name)
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(CorruptTableError):
            clean(Committer(table.published.reread()), older_than_s=0)
        path.write_bytes(content)
    assert waste.exists()
    assert clean(Committer(table.published.reread()), older_than_s=0) == 1
