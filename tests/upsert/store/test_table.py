"""What a table's methods promise: transactions, staged files, kinds of commits, options, errors."""

import copy
import json
import os
import pickle
import shutil
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.helpers import changelog, multiset
from tests.upsert.store.disk import assert_nothing_is_left_over, files_on_disk
from tests.upsert.store.upkeep.damage import rewrite_json, rewrite_snapshot
from upsert.catalog.catalog import Catalog
from upsert.errors import (
    ChangelogError,
    ConfigurationError,
    CorruptTableError,
    SchemaError,
    SnapshotExpiredError,
    TableExistsError,
    TableNotFoundError,
    UntrackedChangesError,
)
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.version import Version

SCHEMA = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"])


def rows(*lines: str) -> pa.Table:
    return changelog(SCHEMA.arrow, *lines)


def names(table: Table) -> dict[int, str]:
    return {row["id"]: row["name"] for row in table.snapshot().scan().to_pylist()}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "users", SCHEMA, {"write-only": "true"})


def forget_everything(table: Table) -> Table:
    """The table as a new process sees it."""
    opened = Table.open(table.path)
    opened.published = table.published.reread()
    return opened


# commits


def test_a_new_table_is_snapshot_0_and_empty(table: Table) -> None:
    assert (table.snapshot().id, table.snapshot().scan().num_rows, table.history()) == (0, 0, ())
    assert table.snapshot().scan().schema.names == ["id", "name"]


def test_ordered_input_the_last_row_of_a_key_wins(table: Table) -> None:
    table.write(rows("+I 1 a", "+U 1 b", "+I 2 c", "-D 2 c", "-D 3 x", "+I 3 y"))
    assert names(table) == {1: "b", 3: "y"}


def test_write_without_kinds_upserts(table: Table) -> None:
    table.write(pa.table({"id": [1, 2, 1], "name": ["a", "b", "c"]}))
    assert names(table) == {1: "c", 2: "b"}


@pytest.mark.parametrize(
    "as_given", [pa.Table.to_pandas, pa.Table.to_reader, duckdb.from_arrow, lambda rows: rows.to_batches()[0]]
)
def test_whatever_has_arrows_stream_is_written_and_looked_up(as_given: Any, table: Table) -> None:
    table.write(as_given(pa.table({"id": [1, 2], "name": ["a", "b"]})))
    assert names(table) == {1: "a", 2: "b"}
    keys = as_given(pa.table({"id": [2, 3]}))
    assert table.snapshot().lookup(["id"], keys).to_pylist() == [{"id": 2, "name": "b"}]
    table.overwrite(as_given(pa.table({"id": [4], "name": ["d"]})))
    assert names(table) == {4: "d"}


def test_filtered_dataframe_of_pandas_is_written_without_the_numbers_of_its_rows(table: Table) -> None:
    frame = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}).to_pandas()
    table.write(frame[frame.id > 1])
    table.write(frame[frame.id < 2].set_index("id"))
    assert names(table) == {1: "a", 2: "b", 3: "c"}
    table.overwrite(frame.sort_values("id", ascending=False).head(1))
    assert names(table) == {3: "c"}


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame([[1, "a", "b"]], columns=["id", "name", "name"]),
        pd.DataFrame({"id": pd.arrays.SparseArray([1]), "name": ["a"]}),
        pd.DataFrame({"id": [1, "b"], "name": ["a", "b"]}),
        pd.DataFrame({"id": [2**70], "name": ["a"]}),
    ],
)
def test_dataframe_of_pandas_that_arrow_does_not_take_is_refused(frame: pd.DataFrame, table: Table) -> None:
    with pytest.raises(SchemaError, match="rows: must be columns that have one type each, got DataFrame: "):
        table.write(frame)


def test_raw_changes_of_all_tasks_are_folded_together(table: Table) -> None:
    """The two halves of an update, and of a move to and fro, come from different tasks."""
    table.write(rows("+I 1 a", "+I 2 b"))
    staged = [table.stage_raw(rows("-U 1 a", "+U 2 c", "-D 2 c")), table.stage_raw(rows("+U 1 b", "-U 2 b"))]
    table.commit(staged)
    assert names(table) == {1: "b"}
    assert_nothing_is_left_over(table)


def test_raw_changes_that_leave_two_values_are_an_error_and_commit_nothing(table: Table) -> None:
    staged = [table.stage_raw(rows("+I 1 a")), table.stage_raw(rows("+I 1 b"))]
    with pytest.raises(ChangelogError, match=r"key {'id': 1}"):
        table.commit(staged)
    assert table.snapshot().id == 0
    table.discard(staged)
    assert_nothing_is_left_over(table)


def test_finished_and_raw_files_commit_together(table: Table) -> None:
    staged = [table.stage(rows("+I 1 a"), order="none"), table.stage_raw(rows("+I 2 b"))]
    table.commit(pickle.loads(pickle.dumps(staged)))
    assert names(table) == {1: "a", 2: "b"}


def test_an_overwrite_replaces_everything_also_by_nothing(table: Table) -> None:
    table.write(rows("+I 1 a", "+I 2 b"))
    assert table.overwrite(rows("+I 3 c")).info.kind == "overwrite"
    assert names(table) == {3: "c"}
    table.overwrite(rows().slice(0, 0))
    assert names(table) == {}


def test_nothing_to_commit_publishes_nothing(table: Table) -> None:
    assert table.write(rows()).id == 0
    assert table.overwrite(rows()).id == 0
    assert table.commit([]).id == 0


def test_partitions_are_folders_and_rows_keep_apart(tmp_path: Path) -> None:
    schema = TableSchema.of(
        {"day": pa.string(), "id": pa.int64()}, primary_key=["day", "id"], partitioned_by=["day"]
    )
    table = Table.create(tmp_path / "t", schema, {"bucket": "2"})
    rows = pa.table({"day": ["a/b", "a/b", "..", "c=d"], "id": [1, 2, 1, 1]})
    table.write(rows)
    assert multiset(table.snapshot().scan()) == multiset(rows)
    folders = {name.split("/")[0] for name in files_on_disk(table) if "bucket-" in name}
    assert folders == {"day=a%2Fb", "day=..", "day=c%3Dd"}


# transactions


def test_the_same_transaction_again_is_a_no_op(table: Table) -> None:
    first = table.write(rows("+I 1 a"), writer_id="query", transaction=7)
    for transaction in (7, 3):
        assert table.write(rows("+I 1 b"), writer_id="query", transaction=transaction).id == first.id
    assert names(table) == {1: "a"}
    assert table.write(rows("+I 1 c"), writer_id="other", transaction=7).id == 2


def test_a_transaction_replayed_after_its_snapshot_is_gone_is_a_no_op(table: Table) -> None:
    table.write(rows("+I 1 a"), writer_id="query", transaction=7)
    for number in range(4):
        table.write(rows(f"+I 1 v{number}"))
    table.expire(keep=1)
    with pytest.raises(SnapshotExpiredError):
        table.snapshot(1)
    again = forget_everything(table)
    staged = [again.stage_raw(rows("+I 1 a"))]
    again.commit(staged, writer_id="query", transaction=7)
    assert names(again) == {1: "v3"}


def test_a_transaction_without_rows_is_recorded_and_starts_no_new_state(table: Table) -> None:
    table.write(rows("+I 1 a"))
    info = table.commit([], writer_id="query", transaction=0).info
    assert (info.id, info.data_version, dict(info.writers)) == (2, 1, {"query": 0})
    assert table.changes(1).num_rows == 0


@pytest.mark.parametrize(("writer", "transaction"), [("w", None), (None, 1), ("", 1), ("w", -1)])
def test_writer_and_transaction_come_together(
    table: Table, writer: str | None, transaction: int | None
) -> None:
    with pytest.raises(ConfigurationError, match="both writer_id"):
        table.write(rows("+I 1 a"), writer_id=writer, transaction=transaction)


def test_an_untracked_commit_is_named_by_who_reads_changes(table: Table) -> None:
    table.write(rows("+I 1 a"))
    table.commit([table.stage(rows("+I 2 b"), order="rows")], tracked=False)
    with pytest.raises(UntrackedChangesError, match="snapshot 2"):
        table.changes(1)


# tables without primary key


def test_counted_tables_keep_equal_rows_apart(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"a": pa.int64()}))
    table.write(pa.table({"a": [1, 1, 2]}))
    table.write(pa.table({"a": [1, 3], "_row_kind": ["-D", "+I"]}))
    assert sorted(table.snapshot().scan()["a"].to_pylist()) == [1, 2, 3]


def test_taking_away_what_is_not_there_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"a": pa.int64()}))
    table.write(pa.table({"a": [1]}))
    for write, taken in ((table.write, [1, 1]), (table.overwrite, [1])):
        with pytest.raises(ChangelogError, match=r"row {'a': 1} .* got -1"):
            write(pa.table({"a": taken, "_row_kind": ["-D"] * len(taken)}))
    assert table.snapshot().id == 1
    assert_nothing_is_left_over(table)


# creating and opening


def test_create_refuses_what_exists_and_if_not_exists_opens_it(table: Table) -> None:
    with pytest.raises(TableExistsError, match="choose another path"):
        Table.create(table.path, SCHEMA)
    assert Table.create(table.path, SCHEMA, if_not_exists=True).uuid == table.uuid
    with pytest.raises(ConfigurationError, match="bukkets"):
        Table.create(table.path, SCHEMA, {"bukkets": "3"}, if_not_exists=True)


def test_a_file_uri_is_a_path(tmp_path: Path) -> None:
    created = Table.create(f"file://{tmp_path}/my%20table", SCHEMA)
    assert created.path == f"{tmp_path}/my table"
    assert Table.open(created.path).uuid == created.uuid


@pytest.mark.parametrize("name", ["a#1", "a?b=1", "a;b", "50%25 + 1 & ü"])
def test_a_file_uri_keeps_every_sign_of_its_path(tmp_path: Path, name: str) -> None:
    """Tables whose names differ behind a # were one."""
    created = Table.create(f"file://{tmp_path}/{name}", SCHEMA)
    assert created.path == f"{tmp_path}/{name.replace('%25', '%')}"
    assert Table.open(f"file:{tmp_path}/{name}").uuid == created.uuid


def test_a_path_may_begin_with_the_user_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It became a folder of the name ~ in the present one."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for path in ("~/users", "file:~/others", Path("~/paths")):
        assert Path(Table.create(path, SCHEMA).path).parent == tmp_path / "home"
    assert os.listdir() == ["home"]


@pytest.mark.parametrize("path", ["oss://bucket/t", "s3://bucket", "viewfs://host/t", "file://host/t"])
def test_other_places_are_refused_by_name(path: str) -> None:
    with pytest.raises(ConfigurationError, match="table path must"):
        Table.create(path, SCHEMA)


def test_a_path_that_arrow_cannot_open_is_refused(tmp_path: Path) -> None:
    """Rows could be written there, and the file was told as damaged when it was read."""
    with pytest.raises(ConfigurationError, match="a path must be text of UTF-8, got"):
        Table.create(os.fsdecode(bytes(tmp_path) + b"/\xff"), SCHEMA)


@pytest.mark.parametrize("path", ["us\0ers", "file:///data/us%00ers"])
def test_a_path_that_no_system_can_have_is_refused(path: str) -> None:
    for use in (Table.open, partial(Table.create, schema=SCHEMA), Catalog):
        with pytest.raises(
            ConfigurationError, match=r"a path must have no NUL character, got '.*us\\x00ers'"
        ):
            use(path)


def test_a_path_within_a_deleted_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigurationError, match="the present folder, which must exist, got 'users' in one"):
        Table.create("users", SCHEMA)


def test_another_process_gets_a_table_and_a_snapshot_as_they_are(table: Table) -> None:
    """None of them could be pickled."""
    snapshot = table.write(rows("+I 1 a", "+I 2 b"))
    told = (table.history(), table.partitions(), table.definition)
    sent = pickle.dumps((table, snapshot, table.pinned(), table.as_logged(), told))
    table.write(rows("+U 1 c", "-D 2 b"))
    again, older, pinned, logged, sent_told = pickle.loads(sent)
    assert (pinned, logged.rows.snapshot().id, sent_told) == (table.pinned(), 2, told)
    assert names(again) == {1: "c"}
    assert older.scan().sort_by("id").to_pydict() == {"id": [1, 2], "name": ["a", "b"]}
    again.write(rows("+I 3 d"))
    assert names(table) == names(copy.deepcopy(table)) == {1: "c", 3: "d"}
    shutil.rmtree(table.path)
    Table.create(table.path, SCHEMA)
    for one in (table, snapshot, pinned, logged):
        with pytest.raises(TableNotFoundError, match="was replaced by another one"):
            pickle.loads(pickle.dumps(one))


def test_no_path_is_not_the_present_folder() -> None:
    with pytest.raises(ConfigurationError, match="a path must name a folder, got ''"):
        Table.create("", SCHEMA)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckets": "2"}, "did you mean 'bucket'"),
        ({"Changelog-producer": "input"}, "'Changelog-producer'; leave it out: the changes of every commit"),
        ({"bucket": "0"}, "must be a positive integer, got '0'"),
        ({"bucket": "2147483648"}, "'bucket' must be at most 1000000, got 2147483648"),
        ({"bucket-key": "name"}, r"must name primary key columns \(id\), got 'name'"),
        ({"change-tracking": "maybe"}, "must be true or false"),
        ({"num-sorted-run.compaction-trigger": "1"}, "at least 2"),
    ],
)
def test_wrong_options_write_nothing(options: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Table.create(tmp_path / "t", SCHEMA, options)
    assert not (tmp_path / "t").exists()


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("")
    with pytest.raises(ConfigurationError, match="must be a folder"):
        Table.create(tmp_path / "t", SCHEMA)


def test_no_hard_links_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: str, target: str, **folders: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", link)
    with pytest.raises(ConfigurationError, match="file system with hard links"):
        Table.create(tmp_path / "t", SCHEMA)
    assert list((tmp_path / "t").rglob("*.*")) == []


def test_a_table_made_anew_at_the_same_path_is_another_one(table: Table, tmp_path: Path) -> None:
    table.write(rows("+I 1 a"))
    staged = table.stage(rows("+I 2 b"), order="rows")
    Path(table.path).rename(tmp_path / "old")
    anew = Table.create(table.path, SCHEMA)
    assert (anew.snapshot().id, names(anew)) == (0, {})
    with pytest.raises(ConfigurationError, match="dropped and created again"):
        anew.commit([staged])


# bad input: nothing is written


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            pa.table({"id": pa.array([None], pa.int64()), "name": ["a"]}),
            "PRIMARY KEY column 'id' must not be NULL",
        ),
        (pa.table({"id": ["1"], "name": ["a"]}), "'id' must be BIGINT, got Arrow type string"),
        (pa.table({"id": [1]}), "lacks name"),
        (pa.table({"id": [1], "name": ["a"], "age": [1]}), "unknown age"),
    ],
)
def test_rows_that_do_not_fit_write_nothing(table: Table, bad: pa.Table, message: str) -> None:
    before = files_on_disk(table)
    for attempt in (table.write, table.stage_raw):
        with pytest.raises(SchemaError, match=message):
            attempt(bad)
    assert files_on_disk(table) == before


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match=r"no table lies at .*nowhere"):
        Table.open(tmp_path / "nowhere")


def test_a_dropped_table_is_named(table: Table, tmp_path: Path) -> None:
    Path(table.path).rename(tmp_path / "gone")
    for use in (table.snapshot, table.compact):
        with pytest.raises(TableNotFoundError, match="was it dropped"):
            use()


def test_a_table_made_anew_is_not_taken_for_the_old_one(table: Table, tmp_path: Path) -> None:
    snapshot = table.write(rows("+I 1 a"))
    Path(table.path).rename(tmp_path / "gone")
    other = Table.create(table.path, SCHEMA)
    before = files_on_disk(other)
    for use in (snapshot.scan, table.snapshot, lambda: table.write(rows("+I 2 b"))):
        with pytest.raises(TableNotFoundError, match="was replaced by another one"):
            use()
    assert files_on_disk(other) == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda table: table.delete(None), r"delete must be told which rows, got None; write \[\] for all"),
        (lambda table: table.delete("id = 1"), r"got 'id = 1'; write \[\('id', '>', 7\)\], for example"),
        (lambda table: table.snapshot().scan(where=pc.field("id") > 1), r"got <pyarrow.compute.Expression"),
        (lambda table: table.snapshot().scan("name"), r"columns must be a list .*'name'; write \['name'\]"),
        (lambda table: table.snapshot(datetime(2026, 1, 1)), r"must be given by its id, .* got datetime"),
        (lambda table: table.changes("v1"), r"must be given by its id, .* got 'v1'; history\(\) has the ids"),
        (lambda table: table.changes(0, 1.5), r"must be given by its id, .* got 1.5"),
        (lambda table: table.tag("v1", 1.5), r"must be given by its id, .* got 1.5"),
        (
            lambda table: table.delete_tag("v1"),
            r"must be a tag 'v1', tags are: none; choose one of them$",
        ),
        (lambda table: table.commit([], unchanged_since="x"), r"must be given by its id, .* got 'x'"),
        (lambda table: table.expire(keep="2"), r"keep must be a whole number, at least 1, got '2'"),
        (lambda table: table.expire(older_than_s="2"), r"at least 0 and finite, got '2'; give seconds"),
        (lambda table: table.hold("c", 3), r"must be a Version, got 3; write Version.complete\(id\)"),
        (lambda table: table.hold("c", Version.complete(1), "1 h"), r"1000 years, got '1 h'; a tag keeps"),
        (lambda table: table.write(pa.chunked_array([[1]])), r"rows: must be columns .* got ChunkedArray"),
        (
            lambda table: table.snapshot().lookup(["id"], pd.DataFrame({"id": [1, "x"]})),
            r"columns that have one type each, got DataFrame: .*column id",
        ),
        (lambda table: table.alter("ADD COLUMN x INT"), r"got 'ADD COLUMN x INT'; .* with catalog.sql"),
        (
            lambda table: Table.create(table.path, {"id": pa.int64()}),
            r"got dict; make one with",
        ),
        (
            lambda table: Table.create(table.path, SCHEMA, {"bucket": 4}),
            r"option 'bucket' must be given as a text, got 4; write '4'",
        ),
    ],
)
def test_what_is_given_in_a_wrong_form_is_told_with_the_right_one(
    call: Callable[[Table], object], message: str, table: Table
) -> None:
    table.write(rows("+I 1 a"))
    with pytest.raises((SchemaError, ConfigurationError), match=message):
        call(table)
    assert names(table) == {1: "a"}


def test_a_snapshot_and_a_tag_are_shown_in_a_line(table: Table) -> None:
    table.write(rows("+I 1 a"))
    table.tag("v1")
    assert len(repr(table.history()[0])) < 200
    assert "manifest" not in repr(table.tags())


def test_ids_that_are_no_snapshots_are_refused(table: Table) -> None:
    table.write(rows("+I 1 a"))
    for id in (-1, 2):
        with pytest.raises(ConfigurationError, match="between 0 and the latest, 1"):
            table.snapshot(id)


# damaged files


def path_of(table: Table, kind: str) -> Path:
    found = {
        "table": "table.json",
        "snapshot": f"snapshot/snapshot-{1:020d}",
        "manifest": table.snapshot().info.manifests[0].name,
        "data": next(iter(table.published.live(table.snapshot().info))),
    }
    found["index"] = found["data"].removesuffix(".arrow") + ".index.arrow"
    return Path(table.path, found[kind])


def read_all(path: str) -> None:
    opened = Table.open(path)
    opened.published = opened.published.reread()
    opened.snapshot().lookup(["id"], pa.table({"id": [1]}))


@pytest.mark.sidecars
@pytest.mark.parametrize("kind", ["table", "snapshot", "manifest", "data", "index"])
@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_a_damaged_file_is_named(table: Table, kind: str, damage: str) -> None:
    table.write(rows("+I 1 a"))
    path = path_of(table, kind)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"garbage" * 20)
    with pytest.raises(CorruptTableError, match=path.name):
        read_all(table.path)


def test_damaged_files_can_be_deleted_whole_and_their_rows_are_not_counted(table: Table) -> None:
    table.write(rows("+I 1 a", "+I 2 b"))
    path_of(table, "data").write_bytes(b"garbage" * 20)
    done = Table.open(table.path).delete([])
    assert (done.committed_rows, done.scan().num_rows) == (None, 0)


@pytest.mark.sidecars
@pytest.mark.parametrize("kind", ["manifest", "data", "index"])
def test_a_missing_file_is_named(table: Table, kind: str) -> None:
    table.write(rows("+I 1 a"))
    path = path_of(table, kind)
    path.unlink()
    with pytest.raises(CorruptTableError, match=f"{path.name}.* is missing"):
        read_all(table.path)


def test_a_missing_snapshot_in_the_middle_is_named(table: Table) -> None:
    for number in range(3):
        table.write(rows(f"+I {number} a"))
    Path(table.path, f"snapshot/snapshot-{2:020d}").unlink()
    with pytest.raises(CorruptTableError, match=f"snapshot-{2:020d}' is missing"):
        forget_everything(table).snapshot(2)


@pytest.mark.parametrize("kind", ["table", "snapshot"])
def test_another_format_version_is_named_with_what_to_do(table: Table, kind: str) -> None:
    table.write(rows("+I 1 a"))
    path = path_of(table, kind)
    rewrite_json(table, os.path.relpath(path, table.path), lambda value: {**value, "format": 99})
    with pytest.raises(
        CorruptTableError, match=r"reads format versions 1, 2, .*, got 99; open the table with the release"
    ):
        read_all(table.path)


@pytest.mark.parametrize("name", ["../other.arrow", "/etc/passwd", "manifest/../../x", ""])
def test_names_in_files_do_not_lead_out_of_the_folder(table: Table, name: str) -> None:
    table.write(rows("+I 1 a"))
    path = path_of(table, "snapshot")
    refs = json.loads(path.read_text())["manifests"]
    rewrite_snapshot(table, 1, manifests=[{**refs[0], "name": name}])
    with pytest.raises(CorruptTableError, match="is no name of a manifest"):
        read_all(table.path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "merge"),
        ("oldest", -1),
        ("tracked", 1),
        ("writers", {"w": "1"}),
        ("log_offsets", {"0": -1}),
        ("log_offsets", {"x": 1}),
        ("id", 2),
        ("manifests", [{}]),
    ],
)
def test_a_snapshot_with_a_wrong_field_is_refused(table: Table, field: str, value: object) -> None:
    table.write(rows("+I 1 a"))
    path = path_of(table, "snapshot")
    rewrite_snapshot(table, 1, **{field: value})
    with pytest.raises(CorruptTableError, match=path.name):
        read_all(table.path)
