"""Tables and their files in each kind of object store."""

import errno
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest

from tests.object_store import LossyProxy, ObjectStore, counted
from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, finish, run, start
from tests.upsert.store.storage.contract import (
    SCHEMA,
    WRITERS,
    assert_a_table_lives_there,
    assert_one_of_eight_writers_of_a_name_wins,
    ids_of,
    rows,
)
from upsert.errors import (
    CommitConflictError,
    ConfigurationError,
    StorageError,
    TableNotFoundError,
    UnknownOutcomeError,
)
from upsert.schema import Column
from upsert.store import Table, paths
from upsert.store.alterations import AddColumn
from upsert.store.checksums import content_of
from upsert.store.files import writing
from upsert.store.files.data_file import forget_open_files
from upsert.store.retention import consumers, lock
from upsert.store.storage import base, lease, put_if_absent, storage_of, swapping
from upsert.store.storage import object_store as semantics
from upsert.store.storage.base import Versioned
from upsert.store.storage.cache import BYTES_VARIABLE, FOLDER_VARIABLE
from upsert.store.storage.lease import Lease
from upsert.store.storage.object_store import ABSENT, ObjectStorage
from upsert.store.upkeep import background
from upsert.store.upkeep.query_state import forget_queries
from upsert.store.version import Version


def flipped(content: bytes) -> bytes:
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.fixture
def table(object_store: ObjectStore) -> Table:
    return Table.create(object_store.folder(), SCHEMA, {"write-only": "true"})


@pytest.fixture
def any_table(s3: ObjectStore) -> Table:
    """For what is the same in all stores: it is of the tables, not of where they are."""
    return Table.create(s3.folder(), SCHEMA, {"write-only": "true"})


@pytest.fixture
def lossy(object_store: ObjectStore) -> Iterator[LossyProxy]:
    with LossyProxy(object_store.endpoint) as proxy:
        yield proxy


def test_of_eight_writers_of_one_name_one_wins(object_store: ObjectStore) -> None:
    assert_one_of_eight_writers_of_a_name_wins(object_store.folder(), races=3)


def test_what_a_query_keeps_is_forgotten_by_its_age(table: Table) -> None:
    folder, ids = f"{table.root}/{paths.KEPT_ROWS_FOLDER}", [str(UUID(int=n)) for n in range(2)]
    tables = [Table.create(f"{folder}/{id}/0/1-a", SCHEMA) for id in ids]
    for table in tables:
        table.write(rows(1))
    assert forget_queries(folder, time.time() - 3_600, ()) == []
    assert forget_queries(folder, time.time() + 3_600, {ids[1]}) == [ids[0]]
    assert storage_of(folder).names(folder) == [ids[1]]
    assert forget_queries(f"{folder}/none", time.time(), ()) == []


def test_a_write_is_seven_requests_and_a_lookup_three(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "SMALL_ROWS", 100)
    table = Table.create(object_store.folder(), SCHEMA, {"num-sorted-run.compaction-trigger": "4"})
    for number in range(3):
        table.write(rows(number))
    asked = counted(monkeypatch)
    with monkeypatch.context() as at_once:
        at_once.setattr(background, "_compact", lambda *_: None)
        table.write(rows(3))
    assert asked == {"read": 4, "put": 3}, "rows, manifest, snapshot"
    asked.clear()
    assert table.snapshot().lookup(["id"], pa.table({"id": [3]})).num_rows == 1
    assert asked == {"read": 3}
    asked.clear()
    table.write(rows(4))
    assert table.snapshot().info.kind == "compact"
    assert asked == {"read": 9, "put": 6}, "with a compaction, and a look at it"
    asked.clear()
    table.hold("reader", Version.complete(5))
    assert asked == {"list": 3, "read": 3, "put": 3}
    asked.clear()
    table.hold("reader", Version.complete(5))
    assert asked == {"list": 2, "read": 3, "put": 3, "delete": 1}


def test_of_eight_that_replace_what_they_have_seen_one_wins(object_store: ObjectStore) -> None:
    path, start_together, won = (
        f"{paths.table_folder(object_store.folder())}/name",
        threading.Barrier(WRITERS),
        list[bytes](),
    )
    put_if_absent(path, b"first")
    storage = swapping(path)
    seen = storage.versioned(path)
    assert seen is not None

    def swap(writer: int) -> None:
        start_together.wait()
        if storage.swap(path, b"writer %d" % writer, seen):
            won.append(b"writer %d" % writer)

    threads = [threading.Thread(target=swap, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [storage.read(path)]
    storage.delete(path)
    assert not storage.swap(path, b"late", seen)
    assert storage.versioned(path) is None


def test_to_try_a_server_out_is_one_put_that_leaves_nothing(
    object_store: ObjectStore, lossy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever moment the process is killed at: nobody would delete what it left beside a table's name."""
    folder = paths.table_folder(object_store.folder(lossy.endpoint))
    storage = ObjectStorage(storage_of(folder)._client)  # type: ignore[attr-defined]
    storage.put_if_absent(f"{folder}/name", b"first")
    seen = storage.versioned(f"{folder}/name")
    assert seen is not None
    asked = counted(monkeypatch)
    assert storage.swap(f"{folder}/name", b"second", seen)
    assert asked == {"put": 2}
    assert storage.names(folder) == ["name"]
    again = ObjectStorage(storage_of(folder)._client)  # type: ignore[attr-defined]
    lossy.lose = "PUT"
    assert not again.swap(f"{folder}/name", b"third", seen)
    assert len(lossy.lost) == 1


def test_a_replacement_whose_answer_is_lost_counts_once(
    object_store: ObjectStore, lossy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{paths.table_folder(object_store.folder(lossy.endpoint))}/name"
    storage = swapping(path)
    assert storage.put_if_absent(path, b"0")
    for content in (b"1", b"2"):
        seen = storage.versioned(path)
        assert seen is not None
        assert storage.swap(path, content, seen)
        lossy.lose = "PUT"
    assert len(lossy.lost) == 1
    # ours may have been there before that of another
    monkeypatch.setattr(storage, "_versioned_if_any", lambda _: Versioned(b"another", "5"))
    seen, lossy.lose = storage.versioned(path), "PUT"
    assert seen is not None
    with pytest.raises(UnknownOutcomeError, match="another process has replaced it since"):
        storage.swap(path, b"3", seen)


def test_a_server_that_heeds_no_condition_is_found_out(object_store: ObjectStore) -> None:
    class Ignorant:
        """The client of a store, but for some conditions."""

        def __init__(self, client: Any, heeded: tuple[str | None, ...]) -> None:
            self._client, self._heeded = client, heeded

        def __getattr__(self, name: str) -> Any:
            return getattr(self._client, name)

        def put(self, path: str, content: bytes, seen: str | None = None) -> None:
            self._client.put(path, content, seen if seen in self._heeded else None)

    folder = paths.table_folder(object_store.folder())
    client = storage_of(folder)._client  # type: ignore[attr-defined]
    storage = ObjectStorage(Ignorant(client, (ABSENT,)))
    storage.put_if_absent(f"{folder}/name", b"first")
    seen = storage.versioned(f"{folder}/name")
    assert seen is not None
    with pytest.raises(ConfigurationError, match="got one that overwrites; CREATE TABLE and INSERT INTO it"):
        storage.swap(f"{folder}/name", b"second", seen)
    with pytest.raises(ConfigurationError, match="got one that overwrites, where commits would be lost"):
        ObjectStorage(Ignorant(client, ())).prepare(folder)
    assert storage.names(folder) == ["name"]


def test_a_table_lives_as_it_does_on_a_disk(object_store: ObjectStore) -> None:
    assert_a_table_lives_there(object_store.folder)


def test_processes_that_commit_at_once_lose_nothing_also_when_forked_from_one_that_uses_the_client(
    table: Table,
) -> None:
    table.write(rows(100))
    children = [start(partial(commit_many, table.path, process)) for process in range(3)]
    assert finish(children) == [0, 0, 0]
    assert ids_of(table) == [0, 1, 2, 100]
    assert [info.id for info in table.history()] == [1, 2, 3, 4]


def commit_many(path: str, process: int) -> None:
    table = Table.open(path)
    table.write(rows(process), writer_id=f"writer-{process}", transaction=1)


def test_a_writer_that_is_killed_before_the_put_leaves_nothing_that_counts(table: Table) -> None:
    assert run(lambda: void(table.write(rows(1))), "publish.before-link") == KILLED
    assert table.snapshot().id == 0
    table.write(rows(2))
    table.clean(older_than_s=0)
    assert ids_of(table) == [2]
    assert_nothing_is_left_over(table)


def test_a_writer_that_is_killed_after_the_put_has_committed(table: Table) -> None:
    assert run(lambda: void(table.write(rows(1))), "publish.after-link") == KILLED
    assert ids_of(table) == [1]


def void(_: object) -> None:
    """For a call whose result nobody wants."""


def test_a_commit_whose_answer_is_lost_counts_once(object_store: ObjectStore, lossy: LossyProxy) -> None:
    table = Table.create(object_store.folder(lossy.endpoint), SCHEMA, {"write-only": "true"})
    lossy.lose = paths.snapshot_file(1)
    assert table.write(rows(1)).id == 1
    assert len(lossy.lost) == 1
    assert [info.id for info in Table.open(table.path).history()] == [1]


def test_a_commit_whose_lost_answer_was_a_refusal_goes_on_behind_the_winner(
    object_store: ObjectStore, lossy: LossyProxy
) -> None:
    table = Table.create(object_store.folder(lossy.endpoint), SCHEMA, {"write-only": "true"})
    path = f"{table.root}/{paths.snapshot_file(1)}"
    assert put_if_absent(path, b"another")
    lossy.lose = paths.snapshot_file(1)
    assert not put_if_absent(path, b"own")
    assert len(lossy.lost) == 1


def test_a_reading_whose_answer_is_lost_is_asked_again(object_store: ObjectStore, lossy: LossyProxy) -> None:
    table = Table.create(object_store.folder(lossy.endpoint), SCHEMA, {"write-only": "true"})
    lossy.lose = paths.TABLE_FILE
    assert Table.open(table.path).uuid == table.uuid
    assert len(lossy.lost) == 1


def test_nothing_is_deleted_while_nobody_knows_whether_a_commit_happened(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put arrives at the server after the writer has given up."""
    table = Table.create(s3.folder(), SCHEMA, {"write-only": "true"})
    late: list[tuple[str, bytes]] = []

    def never_answered(self: object, path: str, content: bytes, mode: int = 0) -> bool:
        late.append((path, content))
        raise UnknownOutcomeError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr("upsert.store.storage.object_store.ObjectStorage.put_if_absent", never_answered)
        with pytest.raises(UnknownOutcomeError):
            table.write(rows(1))
    assert put_if_absent(*late[-1])
    forget_open_files()
    assert ids_of(Table.open(table.path)) == [1]


def test_a_server_that_is_gone_is_an_error_that_says_so(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = object_store.folder("http://127.0.0.1:9")
    monkeypatch.setattr(base, "_TRIES", 2)
    with pytest.raises(UnknownOutcomeError, match="must say whether it has the object"):
        put_if_absent(paths.table_folder(gone) + "/table.json", b"{}")


def test_a_missing_bucket_is_named(object_store: ObjectStore) -> None:
    path = object_store.folder(bucket="no-tests")
    with pytest.raises(ConfigurationError, match="there must be a bucket of this name"):
        Table.create(path, SCHEMA)


def test_a_large_file_is_sent_in_parts(
    table: Table, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr(semantics, "PART_BYTES", 5 << 20)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("cache")))
    content, storage = bytes(range(256)) * (6 << 12), storage_of(table.root)
    path = f"{table.root}/large"
    with storage.new_file(path) as local, open(local, "wb") as file:
        file.write(content)
    assert storage.read(path) == content
    assert storage.mapped(path, lambda local: open(local, "rb").read()) == content  # noqa: SIM115
    failing = f"{table.root}/failing"
    with pytest.raises(RuntimeError), storage.new_file(failing):
        raise RuntimeError
    assert not storage.exists(failing)


def test_a_large_file_is_whole_whichever_answer_is_lost(
    object_store: ObjectStore, lossy: LossyProxy, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(semantics, "PART_BYTES", 5 << 20)
    path = f"{paths.table_folder(object_store.folder(lossy.endpoint))}/large"
    content = bytes(range(256)) * (21 << 10)  # of two parts
    for number in range(1, 99):
        lossy.lose, lossy.later = "PUT", number
        with storage_of(path).new_file(f"{path}-{number}") as local:
            Path(local).write_bytes(content)
        assert storage_of(path).read(f"{path}-{number}") == content
        if len(lossy.lost) < number:
            break
    assert len(lossy.lost) == {"s3": 4, "gcs": 1, "azure": 3}[object_store.kind]


def test_a_cache_that_holds_almost_nothing_slows_reading_and_changes_nothing_else(
    any_table: Table, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv(BYTES_VARIABLE, "1")
    for number in range(3):
        any_table.write(rows(number))
    forget_open_files()
    assert ids_of(any_table) == [0, 1, 2]


@pytest.fixture
def cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    return folder


UNANSWERED = 503, StorageError, "got 503; check the server and the network, then try again"
REFUSED = 403, ConfigurationError, "must allow what is asked, got 403; correct the credentials"


def test_a_store_that_refuses_or_fails_has_damaged_nothing(
    object_store: ObjectStore, lossy: LossyProxy, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_TRIES", 1)
    folder = object_store.folder()
    direct = Table.create(folder, SCHEMA, {"write-only": "true"})
    direct.write(rows(1))
    direct.tag("kept")
    direct.alter(AddColumn(Column("note", pa.string())))
    path = folder.replace(object_store.endpoint, lossy.endpoint)

    def said() -> tuple[list[int], list[int]]:
        forget_open_files()
        shutil.rmtree(cache_folder / "files", ignore_errors=True)
        found = Table.open(path)
        found.published = found.published.reread()
        return ids_of(found), [tag.snapshot.id for tag in found.tags()]

    assert said() == ([1], [1])
    table = Table.open(path)
    for asked, (status, kind, message) in (
        ("/table.json", REFUSED),
        ("/snapshot/", UNANSWERED),
        ("/manifest/", REFUSED),
        ("/definition/", UNANSWERED),
        ("/tag", REFUSED),
        ("/bucket-", UNANSWERED),
    ):
        lossy.refuse, lossy.status, lossy.times = asked, status, 1_000_000
        with pytest.raises(StorageError, match=message) as told:
            said()
        assert isinstance(told.value, kind)
        assert asked in str(told.value.filename)
        wrong = [one for one in table.check(deep=True) if not one.is_information]
        assert {one.rule for one in wrong} == {"file_is_given"}, asked
    lossy.refuse = None
    assert said() == ([1], [1])
    assert table.check(deep=True) == ()


@pytest.mark.usefixtures("cache_folder")
def test_what_fails_once_is_asked_for_again(object_store: ObjectStore, lossy: LossyProxy) -> None:
    table = Table.create(object_store.folder(lossy.endpoint), SCHEMA)
    path = f"{table.root}/rows"
    storage = storage_of(path)
    storage.write(path, b"all rows")
    lossy.refuse, lossy.times = "/rows", 1
    assert storage.read(path) == b"all rows"
    assert lossy.times == 0
    for read in (storage.read, lambda name: storage.mapped(name, lambda copy: Path(copy).read_bytes())):
        lossy.cut = "/rows"
        assert read(path) == b"all rows"
        assert lossy.cut is None


@pytest.mark.sidecars
@pytest.mark.parametrize("format_", ["arrow", "parquet", "orc", "avro"])
def test_a_copy_that_the_disk_has_damaged_is_fetched_once_more(
    s3: ObjectStore, cache_folder: Path, format_: str
) -> None:
    table = Table.create(s3.folder(), SCHEMA.index("name"), {"file.format": format_})
    table.write(rows(1, 2, 3))
    copies = list((cache_folder / "files").iterdir())
    assert len(copies) == 2  # of the rows and of their indexes
    names = pa.table({"name": ["a"]})
    looks: list[tuple[Callable[[bytes], bytes], Callable[[], object]]] = [
        (flipped, lambda: ids_of(table)),
        (lambda found: found[: len(found) // 2], lambda: len(table.snapshot().lookup(["name"], names))),
        (lambda _: b"", lambda: table.check(deep=True)),
    ]
    found = []
    for damaged, look in looks:
        whole = {path: path.read_bytes() for path in copies}
        for path, content in whole.items():
            path.unlink()  # what is mapped stays as it is
            path.write_bytes(damaged(content))
        forget_open_files()
        found.append(look())
        assert {path: path.read_bytes() for path in copies} == whole
    assert found == [[1, 2, 3], 3, ()]


def test_more_names_than_a_page_are_all_found(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = storage_of(table.root)
    many = [*"01234", *"abc"]
    for name in many[:5]:
        storage.write(f"{table.root}/many/{name}", b"")
    for name in many[5:]:
        storage.write(f"{table.root}/many/{name}/of it", b"1")
    monkeypatch.setattr(semantics, "_PAGE", 2)
    assert sorted(storage.names(f"{table.root}/many")) == many
    found = {found.name: found.stat() for found in storage.walk(f"{table.root}/many")}
    assert found.keys() == {*many[:5], *(f"{name}/of it" for name in many[5:])}
    assert [stat and stat.size for stat in found.values()] == [0] * 5 + [1] * 3
    storage.delete_folder(f"{table.root}/many")
    assert storage.names(f"{table.root}/many") == []


def test_a_table_that_was_dropped_shares_no_file_with_its_successor(s3: ObjectStore) -> None:
    """A writer of the dropped one that has just looked publishes into the void."""
    table = Table.create(s3.folder(), SCHEMA, {"write-only": "true"})
    head = f"{table.root}/{paths.snapshot_file(1)}"
    storage_of(table.path).delete(f"{table.path}/{paths.TABLE_FILE}")
    successor = Table.create(table.path, SCHEMA)
    assert put_if_absent(head, b"from a writer that stalled")
    assert successor.snapshot().id == 0
    with pytest.raises(TableNotFoundError, match="was replaced by another one"):
        table.write(rows(1))


class TestLifetime:
    """Who decides how long snapshots live does so one at a time, and who stalled is stopped."""

    def test_a_living_holder_is_waited_for(self, any_table: Table) -> None:
        any_table.write(rows(1))
        with (
            lock.lifetime_lock(any_table.published),
            pytest.raises(CommitConflictError, match="must become free"),
            lock.lifetime_lock(any_table.published, give_up_after_s=0),
        ):
            pass
        assert any_table.hold("reader", Version.complete(1), 60).name == "reader"

    def test_an_expiry_that_stalled_cannot_publish_its_boundary_over_a_new_hold(
        self, any_table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(3):
            any_table.write(rows(number))
        monkeypatch.setattr(lease, "LEASE_S", 0.0)
        other, read_all = Table.open(any_table.path), consumers.read_all
        stalls = [True]

        def read_and_stall(root: str, uuid: str) -> tuple[consumers.Consumer, ...]:
            found = read_all(root, uuid)
            if stalls.pop():
                stalls.append(False)
                other.hold("reader", Version.complete(1), 60)
            return found

        monkeypatch.setattr(consumers, "read_all", read_and_stall)
        with pytest.raises(CommitConflictError, match="this process stalled"):
            any_table.expire(keep=1)
        assert [info.id for info in any_table.history()] == [1, 2, 3, 4]
        assert any_table.snapshot(1).scan().num_rows == 1

    def test_a_tag_that_came_too_late_is_taken_back(
        self, any_table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        any_table.write(rows(1))
        monkeypatch.setattr(Lease, "is_held", False)
        with pytest.raises(CommitConflictError, match="this process stalled"):
            any_table.tag("late")
        assert any_table.tags() == ()

    def test_what_was_done_under_a_lock_is_done_though_it_cannot_be_released(
        self, any_table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(2):
            any_table.write(rows(number))

        def refused(_: Lease) -> None:
            raise base.RefusedError(errno.EACCES, "the server must allow what is asked", any_table.path)

        monkeypatch.setattr(Lease, "release", refused)
        monkeypatch.setattr(lease, "LEASE_S", 0.0)
        assert any_table.tag("kept").snapshot.id == 2
        assert any_table.hold("reader", Version.complete(2), 60).name == "reader"
        assert any_table.expire(keep=1) > 0

    def test_a_killed_holder_is_passed_over(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(2):
            table.write(rows(number))
        assert run(lambda: void(table.expire(keep=1)), "expire.after-publish") == KILLED
        assert Lease.take(storage_of(table.root), f"{table.root}/{paths.LIFETIME_LOCK}") is None
        monkeypatch.setattr(lease, "LEASE_S", 0.0)
        assert table.expire(keep=1) > 0
        assert ids_of(table) == [0, 1]


def test_a_name_from_a_file_stays_within_the_table(any_table: Table) -> None:
    any_table.write(rows(1))
    secret = f"{any_table.path}/{uuid4().hex}"
    storage_of(secret).write(secret, b"another's")
    content = storage_of(any_table.path).read(f"{any_table.path}/{paths.TABLE_FILE}")
    value = {name: said for name, said in json.loads(content).items() if name != "checksum"}
    damaged = content_of({**value, "files": ".."}, paths.TABLE_FILE)
    storage_of(any_table.path).replace(f"{any_table.path}/{paths.TABLE_FILE}", damaged)
    with pytest.raises(Exception, match="must stay within"):
        Table.open(any_table.path)
