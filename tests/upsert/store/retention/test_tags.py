"""Tagged snapshots: readable whatever expires around them, given back when the tag goes."""

from pathlib import Path
from time import time

import pyarrow as pa
import pytest

from tests.upsert.store.commit.races import beside_an_expiry
from tests.upsert.store.disk import assert_nothing_is_left_over
from upsert.errors import ConfigurationError, CorruptTableError, SnapshotExpiredError, UntrackedChangesError
from upsert.schema import TableSchema
from upsert.store import Table, Version
from upsert.store.metadata import history
from upsert.store.metadata.snapshot import refs_of
from upsert.store.retention import consumers

SCHEMA = TableSchema.of({"id": pa.int64(), "value": pa.int64()}, primary_key=["id"]).index("value")
Values = dict[int, int]


def rows(values: Values) -> pa.Table:
    return pa.table({"id": list(values.keys()), "value": list(values.values())})


def values_at(table: Table, id: int | str | None = None) -> Values:
    return {row["id"]: row["value"] for row in table.snapshot(id).scan().to_pylist()}


def applied(state: Values, changes: pa.Table) -> Values:
    state = dict(state)
    for row in changes.to_pylist():
        if row["_row_kind"] in ("-U", "-D"):
            assert state.pop(row["id"]) == row["value"]
        else:
            assert row["id"] not in state
            state[row["id"]] = row["value"]
    return state


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Eight states, the third one tagged, all but the last two expired; buckets are compacted on the way."""
    table = Table.create(tmp_path / "t", SCHEMA, {"bucket": "2", "num-sorted-run.compaction-trigger": "3"})
    for number in range(1, 9):
        table.write(rows({number: number, number % 3: 10 * number}))
        if number == 3:
            table.tag("third")
    table.write(pa.table({"id": [1], "value": [None], "_row_kind": ["-D"]}, schema=CHANGES))
    table.expire(keep=2)
    return table


CHANGES = pa.schema([("id", pa.int64()), ("value", pa.int64()), ("_row_kind", pa.string())])
THIRD = {0: 30, 1: 10, 2: 20, 3: 3}


def test_a_tagged_snapshot_is_read_and_looked_up_after_its_neighbours_have_expired(table: Table) -> None:
    (tag,) = table.tags()
    assert tag.snapshot.id < table.history()[0].id
    assert values_at(table, "third") == values_at(table, tag.snapshot.id) == THIRD
    found = table.snapshot("third").lookup(["value"], pa.table({"value": [30, 80]}))
    assert found["id"].to_pylist() == [0]
    with pytest.raises(SnapshotExpiredError, match="the earliest that is left is"):
        table.snapshot(tag.snapshot.id - 1)
    assert_nothing_is_left_over(table)
    assert table.check(deep=True) == ()


def test_changes_lead_from_a_tag_to_what_is_left(table: Table) -> None:
    (tag,) = table.tags()
    for until in (None, table.history()[0].id):
        assert applied(THIRD, table.changes(tag.snapshot.id, until)) == values_at(table, until)


def test_a_reader_steps_on_from_a_tag_in_small_steps(table: Table) -> None:
    (tag,) = table.tags()
    state, version = THIRD, Version.complete(tag.snapshot.data_version)
    steps = 0
    while (end := table.advance(version, max_rows=2)) != version:
        state = applied(state, table.changes_between(version, end))
        assert {r["id"]: r["value"] for r in table.at(end).scan().to_pylist()} == state
        version, steps = end, steps + 1
    assert state == values_at(table)
    assert steps > 2


def test_a_commit_that_does_not_show_is_noticed_although_it_has_expired(table: Table) -> None:
    table.tag("before")
    staged = [table.stage(rows({50: 50}), order="rows")]
    table.commit(staged, tracked=False)
    table.write(rows({51: 51}))
    table.expire(keep=1)
    before = table.tags()[-1].snapshot
    with pytest.raises(UntrackedChangesError, match=f"snapshot {before.id + 1} was committed"):
        table.changes(before.id)
    with pytest.raises(UntrackedChangesError):
        table.advance(Version.complete(before.data_version))


def test_a_tag_keeps_no_file_that_was_begun_before_it_and_committed_after_it(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, {"bucket": "1", "write-only": "true"})
    table.write(rows({1: 10}))
    staged = [table.stage(rows({2: 20}), order="rows")]
    table.write(rows({1: 11}))
    table.tag("between")
    table.commit(staged)
    table.compact()
    table.expire(keep=1)
    assert_nothing_is_left_over(table)
    assert values_at(table, "between") == {1: 11}


@pytest.mark.usefixtures("few_manifests")
def test_deleting_a_tag_gives_back_what_only_it_needed(table: Table) -> None:
    (tag,) = table.tags()
    table.tag("again", "third")
    table.delete_tag("third")
    assert values_at(table, "again") == THIRD
    table.delete_tag("again")
    with pytest.raises(SnapshotExpiredError):
        table.snapshot(tag.snapshot.id)
    assert_nothing_is_left_over(table)
    assert table.check(deep=True) == ()


@pytest.mark.usefixtures("few_manifests")
def test_a_tag_whose_snapshot_cannot_be_read_can_be_deleted(table: Table) -> None:
    (tag,) = table.tags()
    kept = {ref.name for info in table.history() for ref in refs_of(info)}
    lost = next(ref.name for ref in refs_of(tag.snapshot) if ref.name not in kept)
    Path(table.root, lost).unlink()
    history._shared.clear()  # as in another process
    table = Table.open(table.path)
    with pytest.raises(CorruptTableError, match=Path(lost).name):
        values_at(table, "third")
    table.delete_tag("third")
    assert table.tags() == ()
    assert table.clean(older_than_s=0) > 0
    assert_nothing_is_left_over(table)


def test_a_tag_of_a_retained_snapshot_is_only_a_name(table: Table) -> None:
    table.tag("now")
    before = values_at(table)
    table.delete_tag("now")
    assert values_at(table) == before
    assert_nothing_is_left_over(table)


def test_a_clean_up_spares_what_a_tag_needs(table: Table) -> None:
    assert table.clean(older_than_s=0) == 0
    assert values_at(table, "third") == THIRD


def test_a_name_is_used_once(table: Table) -> None:
    with pytest.raises(ConfigurationError, match="must not be in use, got 'third'"):
        table.tag("third")
    table.delete_tag("third")
    table.tag("third")


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "7", "é", "x" * 101, "a b"])
def test_a_name_that_is_no_name_is_refused(table: Table, name: str) -> None:
    with pytest.raises(ConfigurationError, match="a name must be of 1 to 100 letters"):
        table.tag(name)


def test_what_cannot_be_tagged_is_refused_by_name(table: Table, tmp_path: Path) -> None:
    with pytest.raises(SnapshotExpiredError, match="snapshot 1 has expired"):
        table.tag("first", 1)
    with pytest.raises(ConfigurationError, match="must be between 0 and the latest"):
        table.tag("later", 999)
    with pytest.raises(ConfigurationError, match="there must be a tag 'none', tags are: third"):
        table.snapshot("none")
    with pytest.raises(ConfigurationError, match="there must be a tag 'none'"):
        table.delete_tag("none")
    with pytest.raises(ConfigurationError, match="there must be a snapshot to tag"):
        Table.create(tmp_path / "empty", SCHEMA).tag("empty")


def test_a_tag_that_a_consumer_reads_on_from_is_not_deleted_until_its_lease_is_over(table: Table) -> None:
    (tag,) = table.tags()
    version = Version.complete(tag.snapshot.data_version)
    table.hold("reader", version)
    with pytest.raises(ConfigurationError, match="'reader' reads on from"):
        table.delete_tag("third")
    assert values_at(table, "third") == THIRD
    consumers.hold(table.published, "reader", version, lease_s=1.0, now_s=time() - 9)
    table.delete_tag("third")


def test_one_of_two_tags_that_a_consumer_reads_on_from_is_deleted(table: Table) -> None:
    (tag,) = table.tags()
    table.tag("again", "third")
    table.hold("reader", Version.complete(tag.snapshot.data_version))
    table.delete_tag("third")
    assert values_at(table, tag.snapshot.id) == THIRD
    with pytest.raises(ConfigurationError, match="'reader' reads on from"):
        table.delete_tag("again")


def test_so_it_is_where_the_consumer_names_a_compaction_of_the_tagged_rows(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, {"bucket": "1", "write-only": "true"})
    table.write(rows({1: 10}))
    table.write(rows({1: 11}))
    table.tag("rows")
    table.compact()
    table.tag("compacted")
    table.write(rows({1: 12}))
    table.expire(keep=1)
    table.hold("reader", Version.complete(3))
    with pytest.raises(ConfigurationError, match="'reader' reads on from"):
        table.delete_tag("compacted")
    table.delete_tag("rows")
    assert values_at(table, 3) == {1: 11}
    assert table.check(deep=True) == ()


def test_a_tag_of_rows_that_are_kept_without_it_is_deleted_though_a_consumer_reads_on_from_them(
    tmp_path: Path,
) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, {"bucket": "1", "write-only": "true"})
    table.write(rows({1: 10}))
    table.write(rows({1: 11}))
    table.tag("rows")
    table.hold("reader", Version.complete(2))
    table.compact()
    table.expire(keep=1)
    table.delete_tag("rows")
    assert values_at(table, table.consumer("reader").version.target) == {1: 11}
    assert table.check(deep=True) == ()


def test_a_damaged_tag_stops_expiry_and_clean_up_before_they_delete_anything(table: Table) -> None:
    Path(table.path, "tag", "tag-third").write_text("{}")
    for number in range(20, 23):
        table.write(rows({number: number}))
    for upkeep in (lambda: table.expire(keep=1), lambda: table.clean(older_than_s=0)):
        with pytest.raises(CorruptTableError, match="tag-third"):
            upkeep()


def test_a_race_of_tag_and_expiry_ends_in_a_tag_that_reads_or_an_error(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, {"write-only": "true"})
    outcomes = set()
    for number in range(1, 31):
        snapshot = table.write(rows({1: number}))
        table.write(rows({2: number}))
        with beside_an_expiry(table):
            try:
                table.tag(f"t{number}", snapshot.id)
                outcomes.add("tagged")
            except SnapshotExpiredError:
                outcomes.add("expired")
    for tag in table.tags():
        assert values_at(table, tag.name)[1] == int(tag.name[1:])
    assert_nothing_is_left_over(table)
    assert outcomes <= {"tagged", "expired"}


def test_what_a_tag_keeps_of_an_expired_commit_is_not_discarded_with_what_was_staged_for_it(
    tmp_path: Path,
) -> None:
    """A writer that stalled does not know that its commit was published, tagged and expired meanwhile."""
    table = Table.create(tmp_path / "t", SCHEMA, {"bucket": "1", "write-only": "true"})
    staged = [table.stage(rows({1: 10, 2: 20}), order="rows")]
    table.commit(staged)
    table.tag("kept")
    table.write(rows({1: 11}))
    table.compact()
    table.expire(keep=1)
    table.discard(staged)
    assert table.check(deep=True) == ()
    assert values_at(table, "kept") == {1: 10, 2: 20}
