"""CREATE TABLE AS in an object store: the whole table is seen, or none, whoever stalls or dies where."""

import errno
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.object_store import ObjectStore
from tests.upsert.catalog.create_as.filled import Filled, lives_in
from tests.upsert.store.disk import KILLED, finish, run, start
from upsert import Catalog, failpoints
from upsert.catalog.create_as.create_as import fill_table, replace_table
from upsert.catalog.create_as.object_store import ObjectStoreStages
from upsert.catalog.create_as.stages import Entry
from upsert.catalog.job_hooks import JobStatusHook
from upsert.catalog.warehouse import ObjectStoreWarehouse
from upsert.errors import CorruptTableError, TableExistsError, TableNotFoundError, UpsertError
from upsert.store import Table
from upsert.store.commit.append import LeftoverWarning
from upsert.store.metadata import table_file
from upsert.store.paths import table_folder
from upsert.store.storage import lease, storage_of
from upsert.store.storage.base import UnansweredError
from upsert.store.storage.object_store import ObjectStorage
from upsert.store.upkeep import orphans

SEEN = ("create-as.after-exchange", "create-as.after-done")
QUICK = ("data.after-file", "create-as.before-exchange")
OTHERS = (
    "create-as.after-entry", "create-as.after-table", "commit.after-manifest", "create-as.after-fill",
    "create-as.after-exchange", "create-as.after-done",
)  # fmt: skip
POINTS = (*QUICK, *(pytest.param(point, marks=pytest.mark.long) for point in OTHERS))


@pytest.fixture(params=["s3", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("gcs", "azure"))])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    found: ObjectStore = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def warehouse(store: ObjectStore) -> str:
    return table_folder(store.warehouse)


def stages(warehouse: str) -> ObjectStoreStages:
    return ObjectStoreStages(ObjectStoreWarehouse(warehouse))


def create(warehouse: str, life: int) -> None:
    fill_table(stages(warehouse), Filled(life), None, JobStatusHook())  # type: ignore[arg-type]


def replaced(warehouse: str, life: int) -> None:
    replace_table(stages(warehouse), Filled(life), None, JobStatusHook())  # type: ignore[arg-type]


def left_over(warehouse: str) -> set[str]:
    """Folders beside that of the table, after a sweep that anybody may make."""
    orphans.sweep(f"{warehouse}/t")
    there = {found.name.split("/")[0] for found in storage_of(warehouse).walk(f"{warehouse}/t")}
    return there - table_file.named_folders(table_file.value_in(f"{warehouse}/t")) - {"table.json"}


@pytest.fixture
def everybody_is_dead(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Leases end at once from then on."""
    return lambda: monkeypatch.setattr(lease, "LEASE_S", -60.0)


class Stalled:
    """A thread that does something and stops at a point until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, action: Callable[[], None], point: str) -> None:
        reached, self._go_on = threading.Event(), threading.Event()
        self.failure: BaseException | None = None

        def stall(*_: Any) -> None:
            monkeypatch.delenv(failpoints.ENVIRONMENT_VARIABLE)
            reached.set()
            assert self._go_on.wait(120)

        def act() -> None:
            try:
                action()
            except UpsertError as failure:
                self.failure = failure
            reached.set()

        monkeypatch.setattr(failpoints, "_reached", {})
        monkeypatch.setattr("upsert.failpoints.os.kill", stall)
        monkeypatch.setenv(failpoints.ENVIRONMENT_VARIABLE, point)
        self._thread = threading.Thread(target=act)
        self._thread.start()
        assert reached.wait(120)
        assert self._thread.is_alive(), f"{point} is not met: {self.failure!r}"

    def go_on(self) -> BaseException | None:
        """Until it ends; with what, None for well."""
        self._go_on.set()
        self._thread.join()
        return self.failure


@pytest.mark.parametrize("point", POINTS)
def test_who_stalls_while_a_table_is_created_is_passed_over_and_fails_cleanly(
    point: str, warehouse: str, monkeypatch: pytest.MonkeyPatch, everybody_is_dead: Callable[[], None]
) -> None:
    first = Stalled(monkeypatch, partial(create, warehouse, 1), point)
    assert lives_in(warehouse) == ({1} if point in SEEN else set())
    with pytest.raises(
        TableExistsError, match="exists already" if point in SEEN else "has shown a sign of life"
    ):
        create(warehouse, 2)
    everybody_is_dead()
    if point not in SEEN:
        create(warehouse, 3)
    assert isinstance(first.go_on(), type(None) if point in SEEN else UpsertError)
    assert lives_in(warehouse) == ({1} if point in SEEN else {3})
    assert left_over(warehouse) == set()


@pytest.mark.parametrize("point", POINTS)
def test_who_stalls_while_a_table_is_replaced_leaves_the_old_one_readable(
    point: str, warehouse: str, monkeypatch: pytest.MonkeyPatch, everybody_is_dead: Callable[[], None]
) -> None:
    create(warehouse, 1)
    second = Stalled(monkeypatch, partial(replaced, warehouse, 2), point)
    assert lives_in(warehouse) == ({2} if point in SEEN else {1})
    if point not in SEEN:
        with pytest.raises(TableExistsError, match="is being created or replaced by process"):
            replaced(warehouse, 3)
    everybody_is_dead()
    replaced(warehouse, 3)
    assert isinstance(second.go_on(), type(None) if point in SEEN else UpsertError)
    assert lives_in(warehouse) == {3}
    assert left_over(warehouse) == set()


def test_of_two_that_create_or_replace_a_table_at_once_one_wins_and_the_other_fails_cleanly(
    warehouse: str,
) -> None:
    failures = list[UpsertError]()

    def act(action: Callable[[str, int], None], life: int) -> None:
        try:
            action(warehouse, life)
        except UpsertError as failure:
            failures.append(failure)

    # replacements may follow each other: then both are well
    for action, lives, fewest in ((create, (1, 2), 1), (replaced, (3, 4), 0)):
        threads = [threading.Thread(target=act, args=(action, life)) for life in lives]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert fewest <= len(failures) <= 1
        assert {type(failure) for failure in failures} <= {TableExistsError}
        assert lives_in(warehouse) in ({lives[0]}, {lives[1]})
        failures.clear()
    assert left_over(warehouse) == set()


def test_a_query_that_fails_leaves_nothing_and_the_name_is_free(warehouse: str) -> None:
    class Broken(Filled):
        def fill(self, folder: str, rows: Any) -> None:
            super().fill(folder, rows)
            raise ValueError("too large")

    for act in (fill_table, replace_table):
        with pytest.raises(ValueError, match="too large"):
            act(stages(warehouse), Broken(1), None, JobStatusHook())  # type: ignore[arg-type]
        assert lives_in(warehouse) == (set() if act is fill_table else {2})
        assert left_over(warehouse) == set()
        if act is fill_table:
            Catalog(warehouse).sql("CREATE TABLE t (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
            replaced(warehouse, 2)


def test_a_table_that_is_dropped_while_its_successor_is_filled_is_gone(warehouse: str) -> None:
    create(warehouse, 1)

    class Dropped(Filled):
        def fill(self, folder: str, rows: Any) -> None:
            Catalog(warehouse).sql("DROP TABLE t")
            super().fill(folder, rows)

    with pytest.raises(TableNotFoundError, match="it was dropped or replaced"):
        replace_table(stages(warehouse), Dropped(2), None, JobStatusHook())  # type: ignore[arg-type]
    assert lives_in(warehouse) == set()
    assert left_over(warehouse) == set()


def test_a_stream_is_seen_from_its_first_commit_and_goes_on_after_a_crash(
    warehouse: str, everybody_is_dead: Callable[[], None]
) -> None:
    entry = Entry("process 1 elsewhere", "streaming", "checkpoints/t")
    dead = stages(warehouse).begin("t", entry, Filled(1).create)
    dead.show_after_commit()
    assert lives_in(warehouse) == set()
    Filled(1).fill(dead.folder, None)
    everybody_is_dead()
    # its process died before it told anybody
    with pytest.raises(TableExistsError, match="exists already"):
        create(warehouse, 2)
    assert lives_in(warehouse) == {1}
    assert stages(warehouse).resume("t", "another") is None
    again = stages(warehouse).resume("t", "checkpoints/t")
    assert again is not None
    Filled(1).fill(again.folder, None)
    again.discard()  # it was stopped
    assert lives_in(warehouse) == {1}
    assert Table.open(f"{warehouse}/t").snapshot().id == 2
    found = stages(warehouse).entry("t")
    assert found is not None
    assert (found.checkpoint, found.is_done) == ("checkpoints/t", False)


def test_what_replaces_a_streams_table_and_fails_leaves_it_to_the_stream(warehouse: str) -> None:
    stage = stages(warehouse).begin("t", Entry("process 1", "streaming", "checkpoints/t"), Filled(1).create)
    Filled(1).fill(stage.folder, None)
    stage.show_after_commit()
    with pytest.raises(TableExistsError, match="created or replaced by process 1, which"):
        replaced(warehouse, 2)
    stage.let_go()
    with pytest.raises(ValueError, match="too large"), stages(warehouse).successor("t"):
        raise ValueError("too large")
    again = stages(warehouse).resume("t", "checkpoints/t")
    assert again is not None
    again.done(forget=False)
    replaced(warehouse, 2)
    assert lives_in(warehouse) == {2}
    assert stages(warehouse).entry("t") is None
    with pytest.raises(TableNotFoundError):
        Table.open(again.folder)


def test_a_table_is_replaced_also_where_the_one_before_cannot_be_deleted(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(warehouse, 1)

    def refused(*_: object) -> None:
        raise UnansweredError(errno.EIO, "the object store must answer", f"{warehouse}/t")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "delete_folder", refused)
        with pytest.warns(LeftoverWarning, match="could not be deleted: .* must answer"):
            replaced(warehouse, 2)
    assert lives_in(warehouse) == {2}
    assert left_over(warehouse) == set()


def test_nothing_is_deleted_under_a_name_of_which_nobody_knows_what_it_stands_for(warehouse: str) -> None:
    create(warehouse, 1)
    storage, path = storage_of(warehouse), f"{warehouse}/t"
    before = {found.name for found in storage.walk(path)}
    for content in (b"{", b'{"format": 1, "stage": {"folder": "../../u"}}'):
        storage.replace(f"{path}/table.json", content)
        with pytest.raises(CorruptTableError):
            orphans.sweep(path)
        with pytest.raises(CorruptTableError):
            create(warehouse, 2)
    assert {found.name for found in storage.walk(path)} == before


def test_what_a_dropped_table_has_left_goes_when_the_present_one_is_cleaned(warehouse: str) -> None:
    create(warehouse, 1)
    storage_of(warehouse).write(f"{warehouse}/t/{'0' * 32}/bucket-0/rows.arrow", b"")
    assert Table.open(f"{warehouse}/t").clean() == 1
    assert {"t"} == set(Catalog(warehouse).tables())
    assert lives_in(warehouse) == {1}
    assert left_over(warehouse) == set()


def duration(warehouse: str) -> float:
    """How long a process takes to create a table now, in seconds."""
    began = time.monotonic()
    assert run(partial(create, warehouse, 0)) == 0
    return time.monotonic() - began


def sweep(warehouse: str, seed: int, longest_s: float) -> None:
    """One life of a warehouse: creations and replacements that are killed at any moment, then a look."""
    random_ = random.Random(seed)
    before: set[int] = set()
    for life in range(1, 5):
        child = start(partial(replaced if before else create, warehouse, life))
        time.sleep(random_.uniform(0.1, 1.2) * longest_s)
        os.kill(child, signal.SIGKILL)
        assert finish([child])[0] in (0, KILLED)
        now = lives_in(warehouse)
        assert now in (before, {life}), f"seed {seed}, life {life}: {before} became {now}"
        before = now
    (replaced if before else create)(warehouse, 9)
    assert lives_in(warehouse) == {9}
    assert left_over(warehouse) == set()


@pytest.mark.long
@pytest.mark.minutes
def test_killed_at_any_moment_many_times(store: ObjectStore, everybody_is_dead: Callable[[], None]) -> None:
    everybody_is_dead()
    for seed in range(50):
        sweep(table_folder(store.warehouse), seed, duration(table_folder(store.warehouse)))
