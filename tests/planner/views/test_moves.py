"""From which versions a refresh goes to which, and what it holds of its tables meanwhile."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from planner.views.moves import HELD_BEHIND, Move, move_of
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.metadata.stands_for import Costs
from upsert.store.version import Version

SCHEMA = TableSchema.of({"id": pa.int64()}, primary_key=["id"])


@pytest.fixture
def tables(tmp_path: Path) -> list[Table]:
    made = [Table.create(tmp_path / name, SCHEMA, {"write-only": "true"}) for name in ("a", "b")]
    for table in made:
        write(table, 3)
    return made


def write(table: Table, commits: int) -> None:
    for _ in range(commits):
        table.write(pa.table({"id": [table.snapshot().info.data_version]}))


def moved(tables: list[Table], known: dict[int, int], to: tuple[int, ...] = (3, 3), **given: Any) -> Move:
    """The move of what stands for versions of some of the tables, by their numbers."""
    uuids = [table.uuid for table in tables]
    return move_of(
        {table.uuid: table.path for table in tables},
        {uuids[number]: version for number, version in known.items()},
        dict(zip(uuids, to, strict=True)),
        "it",
        Costs(),
        **given,
    )


def held(tables: list[Table]) -> list[Version | None]:
    return [None if (one := table.consumer("it")) is None else one.version for table in tables]


def test_changes_are_held_from_where_they_are_read_until_they_have_been(tables: list[Table]) -> None:
    move = moved(tables, {0: 1, 1: 2})
    assert move.step is not None
    assert move.step.versions == {tables[0].uuid: (1, 3), tables[1].uuid: (2, 3)}
    assert move.is_small
    assert held(tables) == [Version.complete(1), Version.complete(2)]


def test_a_table_that_is_new_lets_all_be_read_and_held_where_the_rows_are_then(tables: list[Table]) -> None:
    move = moved(tables, {0: 1})
    assert (move.step, move.refresh.reason) == (None, "it has had no rows of these tables")
    assert held(tables) == [Version.complete(3)] * 2


def test_a_table_that_stands_still_is_not_followed_when_it_changes(tables: list[Table]) -> None:
    still = frozenset({tables[1].path})
    assert moved(tables, {0: 1, 1: 3}, still=still).step is not None
    move = moved(tables, {0: 1, 1: 2}, still=still)
    said = "a small table has changed that is joined without equality"
    assert (move.step, move.refresh.reason) == (None, said)


def test_changes_that_have_expired_are_not_read(tables: list[Table]) -> None:
    tables[0].expire(keep=1)
    move = moved(tables, {0: 1, 1: 3})
    said = "the changes since the last refresh have expired, or are not tracked"
    assert (move.step, move.refresh.reason) == (None, said)


def test_a_table_of_others_is_read_though_it_cannot_be_held(
    tables: list[Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(table: Table, *given: Any) -> None:
        raise PermissionError(table.path)

    monkeypatch.setattr(Table, "hold", denied)
    assert moved(tables, {0: 1, 1: 1}).step is not None
    assert held(tables) == [None, None]


def test_a_hold_is_written_again_only_when_it_ends_or_no_longer_holds(
    tables: list[Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, *_ = one = tables[:1]
    moved(one, {0: 1}, (3,))
    moved(one, {0: 2}, (3,))
    assert held(one) == [Version.complete(1)], "which holds all that follows"
    (first,) = table.consumers()
    half = (first.renewed_ms + first.until_ms) / 2000
    for now_s, version in ((half - 1, 1), (half + 1, 2)):
        with monkeypatch.context() as later:
            later.setattr("planner.views.moves.time.time", lambda now_s=now_s: now_s)
            moved(one, {0: 2}, (3,))
        assert held(one) == [Version.complete(version)]
    write(table, HELD_BEHIND)
    moved(one, {0: 1 + HELD_BEHIND}, (3 + HELD_BEHIND,))
    assert held(one) == [Version.complete(2)]
    moved(one, {0: 2 + HELD_BEHIND}, (3 + HELD_BEHIND,))
    assert held(one) == [Version.complete(2 + HELD_BEHIND)]
    moved(one, {0: 2}, (3 + HELD_BEHIND,))
    assert held(one) == [Version.complete(2)], "an earlier version is not held by a later one"


def test_a_hold_of_what_a_tag_keeps_holds_nothing_after_it(tables: list[Table]) -> None:
    table, *_ = one = tables[:1]
    table.tag("old", 1)
    table.expire(keep=2)
    table.hold("it", Version.complete(1))
    moved(one, {0: 2}, (3,))
    assert held(one) == [Version.complete(2)]
