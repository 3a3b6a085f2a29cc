"""Each rule of a table on the disk: a table that was damaged in one way breaks just that rule."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.upsert.store.disk import KILLED, is_over, run, start
from tests.upsert.store.upkeep.damage import (
    Row,
    newest_file,
    rewrite_data,
    rewrite_json,
    rewrite_last_delta,
    rewrite_snapshot,
    with_values,
)
from upsert.schema import TableSchema
from upsert.store import Table, Version, paths
from upsert.store.checksums import checksum_of
from upsert.store.log.files import LogBeginning
from upsert.store.metadata import folding
from upsert.store.retention import consumers
from upsert.store.upkeep import check

SCHEMA = TableSchema.of({"id": pa.int64(), "value": pa.int64()}, primary_key=["id"])
UNIQUE = SCHEMA.index("value", unique=True)
BAG = TableSchema.of({"id": pa.int64(), "value": pa.int64()})
OPTIONS = {"bucket": "2", "write-only": "true"}
ROWS = 16


def rows(value: int = 0) -> pa.Table:
    return pa.table({"id": range(ROWS), "value": [value + number for number in range(ROWS)]})


def broken(table: Table, *, deep: bool = False) -> set[str]:
    """Names of the rules that are broken, without what is only information."""
    return {found.rule for found in table.check(deep=deep) if not found.is_information}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Seven states of two buckets: merged after the fourth, with a tag and a consumer, the first expired."""
    table = Table.create(tmp_path_factory.mktemp("whole") / "t", SCHEMA, OPTIONS)
    for value in range(4):
        table.write(rows(value))
    table.tag("four")
    table.compact()
    for value in range(5, 8):
        table.write(rows(value))
    table.hold("reader", Version.complete(4))
    table.expire(keep=4)
    table.write(rows(8))
    return table.path


@pytest.fixture
def table(whole: str, tmp_path: Path) -> Table:
    """A copy of it, to be damaged."""
    shutil.copytree(whole, tmp_path / "t")
    return Table.open(tmp_path / "t")


def test_a_table_that_nothing_happened_to_keeps_every_rule(table: Table) -> None:
    assert table.check(deep=True) == ()


def test_so_does_one_without_a_commit_and_one_of_every_kind(tmp_path: Path) -> None:
    assert Table.create(tmp_path / "empty", SCHEMA).check(deep=True) == ()
    for number, schema in enumerate((UNIQUE, BAG)):
        table = Table.create(tmp_path / str(number), schema, OPTIONS)
        table.write(rows())
        table.write(pa.table({"id": [3], "value": [3], "_row_kind": ["-D"]}))
        table.compact()
        table.overwrite(rows(100))
        assert table.check(deep=True) == ()


def garbage(name: Callable[[Table], str]) -> Callable[[Table], None]:
    def write(table: Table) -> None:
        Path(table.path, name(table)).write_bytes(b"garbage")

    return write


def gone(name: Callable[[Table], str]) -> Callable[[Table], None]:
    return lambda table: Path(table.path, name(table)).unlink()


def snapshot(back: int = 0) -> Callable[[Table], str]:
    return lambda table: paths.snapshot_file(table.snapshot().info.id - back)


def last_manifest(table: Table) -> str:
    ref = table.snapshot().info.delta
    assert ref is not None
    return ref.name


def field(name: str, change: Callable[[int], object], back: int = 0) -> Callable[[Table], None]:
    def edit(table: Table) -> None:
        info = table.history()[-1 - back]
        rewrite_snapshot(table, info.id, **{name: change(getattr(info, name))})

    return edit


def added(**fields: object) -> Callable[[Table], None]:
    """Other values in the entry of one file that the last commit added."""
    return lambda table: rewrite_last_delta(table, lambda entries: [{**entries[0], **fields}, *entries[1:]])


def without_a_manifest(table: Table) -> None:
    info = table.snapshot().info
    refs = json.loads(Path(table.path, paths.snapshot_file(info.id)).read_bytes())["manifests"]
    rewrite_snapshot(table, info.id, manifests=[*refs[:-2], refs[-1]])


def a_manifest_of_other_partitions(table: Table) -> None:
    info = table.snapshot().info
    *refs, last = json.loads(Path(table.path, paths.snapshot_file(info.id)).read_bytes())["manifests"]
    named = {**last, "first": ["a"], "last": ["b"], "removed": 0}
    rewrite_snapshot(table, info.id, manifests=[*refs, named])


def removing_what_is_not_there(table: Table) -> None:
    def edit(entries: list[Row]) -> list[Row]:
        stranger = f"bucket-0/{1:020d}-{'a' * 32}.arrow"
        return [*entries, {**entries[0], "action": "delete", "file": stranger}]

    rewrite_last_delta(table, edit)


def adding_what_is_there(table: Table) -> None:
    """An entry of the commit before, with its own place in the order of runs."""
    before = table.history()[-2] if table.history()[-2].delta else table.history()[-3]
    assert before.delta is not None
    path = Path(table.path, before.delta.name)
    again = {**pa.ipc.open_file(path.read_bytes()).read_all().to_pylist()[0], "sequence": before.id}
    rewrite_last_delta(table, lambda entries: [*entries, again])


def fence_above_a_file(table: Table) -> None:
    staged = table.stage(rows(), order="rows")
    table.write(rows(9))
    table.commit([staged])
    for info in table.history()[-2:]:
        rewrite_snapshot(table, info.id, fence=table.history()[-2].id)


def one_bucket_of_two_files(table: Table) -> None:
    rewrite_last_delta(table, lambda entries: [{**entry, "bucket": 0} for entry in entries])


def truncated(table: Table) -> None:
    path = Path(table.path, newest_file(table).file)
    path.write_bytes(path.read_bytes()[:-8])


def tag_of_another_history(table: Table) -> None:
    table.tag("now")
    rewrite_json(table, "tag/tag-now", lambda tag: {**tag, "snapshot": {**tag["snapshot"], "uuid": "f" * 32}})


def tag_with_a_number_for_a_name(table: Table) -> None:
    path = Path(table.path, "tag", "tag-four")
    path.with_name("tag-4").write_bytes(path.read_bytes())


def holding_what_has_expired(table: Table) -> None:
    consumer = consumers.Consumer("late", Version.complete(1), 0, 2**53)
    Path(table.path, "consumer", "consumer-late").write_bytes(consumer.content(table.uuid))


def other_options(table: Table) -> None:
    rewrite_json(table, paths.TABLE_FILE, lambda value: {**value, "options": {**OPTIONS, "comment": "x"}})


def log_that_nobody_can_read(table: Table) -> None:
    LogBeginning("logged").write(table.root, table.uuid)
    garbage(lambda _: paths.log_file("logged"))(table)


DAMAGES: list[tuple[str, Callable[[Table], None]]] = [
    ("snapshot_can_be_read", garbage(snapshot())),
    ("snapshot_can_be_read", garbage(snapshot(2))),
    ("snapshot_can_be_read", gone(snapshot(2))),
    ("parent_is_the_snapshot_before", field("parent", lambda _: "f" * 32)),
    ("numbers_never_fall", field("time_ms", lambda _: 0)),
    ("numbers_never_fall", field("fence", lambda _: 1, back=1)),
    ("snapshot_can_be_read", field("fence", lambda _: 10**6)),
    ("snapshot_can_be_read", field("oldest", lambda _: 10**6)),
    ("table_can_be_read", garbage(lambda _: paths.TABLE_FILE)),
    ("table_can_be_read", other_options),
    ("states_are_counted", field("states", lambda states: states + 1)),
    ("manifest_can_be_read", garbage(last_manifest)),
    ("manifest_can_be_read", gone(last_manifest)),
    ("manifest_can_be_read", gone(lambda table: table.history()[0].manifests[0].name)),
    ("totals_fit_the_files", field("files", lambda files: files + 1)),
    ("totals_fit_the_files", field("rows", lambda rows: rows - 1)),
    ("manifest_is_as_it_is_named", a_manifest_of_other_partitions),
    ("manifests_fit_the_commits", without_a_manifest),
    ("removed_file_is_live", removing_what_is_not_there),
    ("added_file_is_new", adding_what_is_there),
    ("file_was_begun_after_the_fence", fence_above_a_file),
    ("bucket_is_known", added(bucket=7)),
    ("manifest_can_be_read", added(deletes=ROWS + 1)),
    ("manifest_can_be_read", added(rows=0, deletes=0)),
    ("files_of_a_run_are_disjoint", one_bucket_of_two_files),
    ("data_file_is_whole", truncated),
    ("data_file_is_whole", gone(lambda table: newest_file(table).file)),
    ("data_file_is_whole", gone(lambda table: min(table.published.live(table.tags()[0].snapshot)))),
    ("index_file_is_there", gone(lambda table: paths.index_file(newest_file(table).file))),
    ("tag_can_be_read", garbage(lambda _: "tag/tag-four")),
    ("tag_can_be_read", tag_with_a_number_for_a_name),
    ("tag_is_of_this_history", tag_of_another_history),
    ("consumer_can_be_read", garbage(lambda _: "consumer/consumer-reader")),
    ("held_version_can_be_read", holding_what_has_expired),
    ("log_can_be_read", log_that_nobody_can_read),
]


@pytest.mark.sidecars
@pytest.mark.parametrize(("rule", "damage"), DAMAGES)
def test_a_damage_is_named_by_its_rule(table: Table, rule: str, damage: Callable[[Table], None]) -> None:
    damage(table)
    assert broken(table) == {rule}


def garbage_of_the_same_size(table: Table) -> None:
    path = Path(table.path, newest_file(table).file)
    path.write_bytes(b"?" * len(path.read_bytes()))


def garbage_that_nobody_has_a_checksum_of(table: Table) -> None:
    garbage_of_the_same_size(table)
    file = newest_file(table).file
    rewrite_last_delta(
        table, lambda rows: [{**row, "checksum": 0} if row["file"] == file else row for row in rows]
    )


def two_rows_exchanged(table: Table) -> None:
    count = newest_file(table).rows
    rewrite_data(table, lambda rows: rows.take([0, 2, 1, *range(3, count)]))


def a_value_beyond_the_bounds(table: Table) -> None:
    rewrite_data(table, with_values("value", [10**6] * newest_file(table).rows))


def an_index_of_other_rows(table: Table) -> None:
    _edit_index(table, "pk.gap", lambda gaps: [*gaps[1:], gaps[0]])


def an_index_that_passes_rows_over(table: Table) -> None:
    _edit_index(table, "pk.filled", lambda bits: [0] * len(bits))


def _edit_index(table: Table, column: str, edit: Callable[[list[int]], list[int]]) -> None:
    path = Path(table.path, paths.index_file(newest_file(table).file))
    index = pa.ipc.open_file(path.read_bytes()).read_all()
    at = index.column_names.index(column)
    values = pa.array(edit(index[column].to_pylist()), index.field(at).type)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, index.schema) as writer:
        writer.write_table(index.set_column(at, index.field(at), values).combine_chunks())
    file, checksum = newest_file(table).file, checksum_of(path.read_bytes())
    rewrite_last_delta(
        table,
        lambda rows: [{**row, "index_checksum": checksum} if row["file"] == file else row for row in rows],
    )


def buckets_exchanged(table: Table) -> None:
    rewrite_last_delta(table, lambda entries: [{**entry, "bucket": 1 - entry["bucket"]} for entry in entries])


@pytest.mark.sidecars
@pytest.mark.parametrize(
    ("rule", "damage"),
    [
        ("data_can_be_read", garbage_that_nobody_has_a_checksum_of),
        ("bytes_have_their_checksum", garbage_of_the_same_size),
        ("bytes_have_their_checksum", added(checksum=1)),
        ("keys_ascend", two_rows_exchanged),
        ("entry_fits_the_rows", a_value_beyond_the_bounds),
        ("entry_fits_the_rows", added(first_key=b"")),
        ("index_fits_the_rows", an_index_of_other_rows),
        ("index_fits_the_rows", an_index_that_passes_rows_over),
        ("rows_lie_in_their_bucket", buckets_exchanged),
    ],
)
def test_damaged_data_is_named_by_its_rule(table: Table, rule: str, damage: Callable[[Table], None]) -> None:
    damage(table)
    assert broken(table, deep=True) == {rule}


def one_bucket(path: Path, schema: TableSchema) -> Table:
    table = Table.create(path, schema, {"write-only": "true"})
    table.write(rows())
    return table


def test_a_row_that_is_not_what_its_identity_says_is_named(tmp_path: Path) -> None:
    table = one_bucket(tmp_path / "t", BAG)
    values = rewritten_values(table)
    rewrite_data(table, with_values("value", values))
    assert broken(table, deep=True) == {"identity_is_that_of_the_row"}


def rewritten_values(table: Table) -> list[int]:
    """The values of the newest file, where one that is neither the least nor the greatest occurs twice."""
    path = Path(table.path, newest_file(table).file)
    values: list[int] = pa.ipc.open_file(path.read_bytes()).read_all()["value"].to_pylist()
    first, second = [at for at, value in enumerate(values) if 0 < value < ROWS - 1][:2]
    values[second] = values[first]
    return values


def test_a_count_below_zero_is_named(tmp_path: Path) -> None:
    table = one_bucket(tmp_path / "t", BAG)
    rewrite_data(table, with_values("_count", [1] * (ROWS - 1) + [-1]))
    assert broken(table, deep=True) == {"no_count_is_negative"}


def test_a_unique_key_that_is_there_twice_is_named(tmp_path: Path) -> None:
    table = one_bucket(tmp_path / "t", UNIQUE)
    rewrite_data(table, with_values("value", rewritten_values(table)))
    assert broken(table, deep=True) == {"unique_index_has_one_row_a_key"}
    (found,) = table.check(deep=True)
    assert "UNIQUE" in found.found
    assert "{'value': 1}" in str(found)


def test_waste_is_information(table: Table) -> None:
    root = Path(table.path)
    for name in (f"bucket-0/{1:020d}-{'a' * 32}.arrow", "snapshot/.snapshot-1-d.tmp", paths.snapshot_file(1)):
        (root / name).write_bytes((root / snapshot()(table)).read_bytes() if "snapshot-0" in name else b"")
    of_another_id = {"id": 1, "oldest": 1, "fence": 0, "data_version": 1, "states": 1}
    rewrite_snapshot(table, 1, **of_another_id, last_untracked=0, manifests=[], delta=None)
    late = consumers.Consumer("late", Version.complete(1), 0, 0)
    (root / "consumer" / "consumer-late").write_bytes(late.content(table.uuid))
    found = table.check()
    assert all(violation.is_information for violation in found)
    assert [violation.rule for violation in found] == [
        "file_is_needed",
        "expired_snapshot_is_gone",
        "temporary_file_is_gone",
        "lease_goes_on",
    ]


def test_every_rule_has_a_damage() -> None:
    tested = {rule for rule, _ in DAMAGES}
    assert tested == {rule.__name__ for rule in check.RULES}
    assert len({rule.__name__ for rule in check.DATA_RULES}) == 9


def test_what_a_process_remembers_is_not_believed(table: Table) -> None:
    table.snapshot().scan()
    Path(table.path, newest_file(table).file).unlink()
    assert broken(table) == {"data_file_is_whole"}


def test_a_table_in_use_is_checked_without_a_false_alarm(table: Table) -> None:
    """Another process commits, compacts and expires all the time; a fold of manifests now and then."""

    def live() -> None:
        own = Table.open(table.path)
        for value in range(40):
            own.write(rows(value))
            if value % 5 == 4:
                own.compact()
                own.expire(keep=1)

    table.release("reader")
    monkey = pytest.MonkeyPatch()
    monkey.setattr(folding, "MAX_MANIFESTS", 4)
    monkey.setattr(folding, "_FEWEST_TO_FOLD", 2)
    child = start(live)
    monkey.undo()
    while not is_over(child):
        assert broken(table) == set()
    assert broken(table, deep=True) == set()


def test_checks_beside_a_writer_that_tags_and_expires_give_no_false_alarm(
    table: Table, tmp_path: Path
) -> None:
    """A tag keeps files that expire around it and go with it, while others are looked at."""
    checked_enough = tmp_path / "checked-enough"

    def live() -> None:
        own = Table.open(table.path)
        for value in itertools.takewhile(lambda _: not checked_enough.exists(), itertools.count()):
            own.write(rows(value))
            own.tag(f"tag-{value}")
            own.hold("reader", Version.complete(own.snapshot().id))
            if value % 3 == 2:
                own.compact()
                own.expire(keep=1)
                own.delete_tag(f"tag-{value - 2}")
                own.delete_tag(f"tag-{value - 1}")

    table.release("reader")
    begin = table.snapshot().id
    child, checks = start(live), 0
    try:
        while not is_over(child):
            assert [one for one in table.check(deep=checks % 4 == 3) if not one.is_information] == []
            checks += 1
            if checks >= 8 and table.snapshot().id > begin + 50:
                checked_enough.touch()
    finally:
        checked_enough.touch()
    assert table.check(deep=True) == ()


def test_a_crash_leaves_waste_and_breaks_no_rule(table: Table) -> None:
    def live() -> None:
        own = Table.open(table.path)
        own.write(rows(50))
        own.compact()
        own.expire(keep=1)

    table.release("reader")
    assert run(live, "expire.after-publish") == KILLED
    assert {found.is_information for found in table.check(deep=True)} == {True}
