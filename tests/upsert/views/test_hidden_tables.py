"""Hidden tables that a view no longer needs go, unless a refresh may read them; a kill leaves no half."""

import shutil
import subprocess
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from tests.forked_python import forked_program
from tests.object_store import ObjectStore
from upsert import Table
from upsert.catalog.connectors.definition import Definition, define
from upsert.failpoints import ENVIRONMENT_VARIABLE
from upsert.schema import TableSchema
from upsert.store.storage import storage_of
from upsert.store.version import Version
from upsert.views import hidden_tables
from upsert.views.hidden_tables import HIDDEN_TABLES, POINTS, drop_unused, reading, release, uuids_of

SCHEMA = TableSchema.of({"n": pa.int64()})


@pytest.fixture(params=["disk", "s3"])
def view(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """A view's table with three hidden ones."""
    if request.param == "disk":
        return made(str(tmp_path / "view"))
    store: ObjectStore = request.getfixturevalue("s3")
    return made(store.folder())


def made(path: str) -> Table:
    view = table(path)
    for name in ("aaaa", "aaaa-rows-1", "bbbb-partitions"):
        table(folder_of(view, name)).write(pa.table({"n": [1]}))
    return view


def table(path: str) -> Table:
    return Table.create(path, SCHEMA, {"bucket": "1"}, if_not_exists=True)


def folder_of(view: Table, name: str) -> str:
    return f"{view.root}/{HIDDEN_TABLES}/{name}"


def names(view: Table) -> list[str]:
    return sorted(hidden_tables.hidden_tables(view.root))


def drop(view: Table, *needed: str) -> bool:
    return drop_unused(view.root, view.uuid, needed, ())


def test_what_cannot_be_released_keeps_nothing_else_from_it(tmp_path: Path) -> None:
    """The view is gone by then: an error would leave what else it has, and say that it is there."""
    damaged, connector, base = (table(str(tmp_path / name)) for name in ("damaged", "connector", "base"))
    base.hold("view-one", Version.complete(0))
    Path(damaged.root, "table.json").write_text("{")
    shutil.rmtree(connector.root)
    define(connector.root, Definition("datagen", SCHEMA, {}))
    release([damaged.root, connector.root, base.root], "view-one".__eq__)
    assert base.consumers() == ()


def test_what_is_needed_stays_and_keeps_what_it_holds(view: Table, tmp_path: Path) -> None:
    base = table(str(tmp_path / "base"))
    base.write(pa.table({"n": [1]}))
    held = [f"view-{view.uuid}{end}" for end in ("", "-aaaa", "-bbbb-partitions")]
    for consumer in (*held, "view-other-bbbb"):
        base.hold(consumer, Version.complete(1))
    table(folder_of(view, "aaaa")).hold(held[2], Version.complete(1))
    assert drop_unused(view.root, view.uuid, ["aaaa", "aaaa-rows-1"], [base.path, str(tmp_path / "gone")])
    assert names(view) == ["aaaa", "aaaa-rows-1"]
    assert [one.name for one in base.consumers()] == sorted([*held[:2], "view-other-bbbb"])
    assert table(folder_of(view, "aaaa")).consumers() == ()
    again = table(folder_of(view, "bbbb-partitions"))  # another one of the same name has none of its rows
    again.write(pa.table({"n": [7]}))
    assert again.snapshot().scan().to_pydict() == {"n": [7]}
    assert uuids_of(view.root, ["bbbb-partitions", "gone"]) == {"bbbb-partitions": again.uuid}
    assert drop(view)
    assert not list(storage_of(view.root).walk(f"{view.root}/{HIDDEN_TABLES}"))


def test_nothing_goes_while_a_refresh_runs(view: Table) -> None:
    with reading(view.root):
        with reading(view.root):  # another one
            assert not drop(view, "aaaa")
        assert not drop(view, "aaaa")
        assert len(names(view)) == 3
        assert drop(view, *names(view))  # nothing is to be dropped
    assert drop(view, "aaaa")
    assert names(view) == ["aaaa"]


def test_a_file_that_a_system_makes_beside_them_is_in_the_way_of_no_refresh(tmp_path: Path) -> None:
    """Each one ended with a NotADirectoryError after its commit."""
    view = made(str(tmp_path / "view"))
    Path(folder_of(view, ".DS_Store")).touch()
    assert drop(view, "aaaa")
    assert names(view) == ["aaaa"]


def test_of_two_processes_that_drop_at_once_one_does(view: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[bool] = []

    def reach(point: str) -> None:
        if point == POINTS[0]:
            monkeypatch.setattr(hidden_tables, "reach", lambda _: None)
            others.append(drop(view))

    monkeypatch.setattr(hidden_tables, "reach", reach)
    assert drop(view, "aaaa")
    assert others == [False]
    assert names(view) == ["aaaa"]


def test_a_refresh_begins_when_what_is_being_dropped_is_gone(
    view: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def begin() -> None:
        with reading(view.root, sleep=lambda _: None):
            seen.append(names(view))

    refresh = Thread(target=begin)

    def reach(point: str) -> None:
        if point == POINTS[0]:
            refresh.start()

    monkeypatch.setattr(hidden_tables, "reach", reach)
    assert drop(view)
    refresh.join(timeout=60)
    assert seen == [[]]


def test_a_refresh_that_has_died_is_passed_over(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    view = made(s3.folder())
    dead: Any = reading(view.root)
    dead.__enter__()
    assert not drop(view)
    monkeypatch.setattr(hidden_tables, "LEASE_S", -1)
    assert drop(view)
    assert names(view) == []
    with pytest.raises(StopIteration):
        next(dead.gen)


def test_a_refresh_waits_for_who_drops_tables_unless_that_has_died(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = made(s3.folder())
    dead: Any = hidden_tables._alone(view.root)
    assert dead.__enter__()
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        assert not waited
        waited.append(seconds)
        monkeypatch.setattr(hidden_tables, "LEASE_S", -1)

    with reading(view.root, sleep=sleep):
        assert waited
    with pytest.raises(StopIteration):
        next(dead.gen)


KILLED = "import sys; from upsert.views.hidden_tables import drop_unused; drop_unused(*sys.argv[1:3], (), ())"


BEFORE, WITHIN, AFTER = POINTS


@pytest.mark.parametrize(
    "point", [WITHIN, *(pytest.param(one, marks=pytest.mark.long) for one in (BEFORE, f"{WITHIN}:2", AFTER))]
)
def test_a_kill_leaves_a_table_or_none(tmp_path: Path, point: str) -> None:
    view = made(str(tmp_path / "view"))
    environment = {ENVIRONMENT_VARIABLE: point}
    command = forked_program("-c", KILLED, view.root, view.uuid)
    assert subprocess.run(command, env=environment, check=False).returncode == -9
    left = names(view)
    assert len(left) == {BEFORE: 3, WITHIN: 2, f"{WITHIN}:2": 1, AFTER: 0}[point]
    for name in left:
        assert table(folder_of(view, name)).check(deep=True) == ()
    assert drop(view, *left[:1])
    assert names(view) == left[:1]
    assert [path.name for path in Path(view.root, HIDDEN_TABLES).iterdir()] == left[:1]
