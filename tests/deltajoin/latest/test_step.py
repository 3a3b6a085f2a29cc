"""What a step emits, against a join of the final tables."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from deltajoin.expressions import Call, Field, Ref
from deltajoin.latest.spec import KINDS, LatestJoin, faults_of
from deltajoin.latest.step import Found, TaskRows, fold
from tests.deltajoin.latest.driver import LEFT, ON, RIGHT, Driver, Row, World, changes, rows, side
from upsert.errors import ChangelogError

SHAPES = {
    "many to many": (
        side(LEFT, ["lk"], ["lid"], immutable=("lk",)),
        side(RIGHT, ["rk"], ["rid"], immutable=("rk",)),
    ),
    "many to one": (side(LEFT, ["lk"], ["lid"], immutable=("lk",)), side(RIGHT, ["rk"], ["rk"])),
    "one to many": (side(LEFT, ["lk"], ["lk"]), side(RIGHT, ["rk"], ["rid"], immutable=("rk",))),
    "one to one": (side(LEFT, ["lk"], ["lk"]), side(RIGHT, ["rk"], ["rk"])),
    "key with more": (side(LEFT, ["lk"], ["lid", "lk"]), side(RIGHT, ["rk"], ["rk", "rid"])),
}


def joined(join: LatestJoin, left: World, right: World) -> set[Row]:
    """The join of two tables, as SQL has it."""
    found: set[Row] = set()
    met: set[Row] = set()
    for one in left.rows.values():
        matches = [other for other in right.rows.values() if one[1] is not None and one[1] == other[1]]
        met.update(matches)
        found.update((*one, *other) for other in matches)
        if not matches and join.keeps(0):
            found.add((*one, None, None, None))
    if join.keeps(1):
        found.update((None, None, None, *other) for other in right.rows.values() if other not in met)
    return found


@st.composite
def histories(draw: st.DrawFn) -> tuple[LatestJoin, list[tuple[str, Any]]]:
    """A join that meets the conditions, and what happens: changes of tables, deliveries, failing keys."""
    left, right = draw(st.sampled_from(list(SHAPES.values())))
    kind = draw(st.sampled_from(KINDS))
    deleting = draw(st.sampled_from([None, 0, 1]))
    sides = [left, right]
    if deleting is not None:
        sides[deleting] = side_with_deletes(sides[deleting])
    join = LatestJoin(sides[0], sides[1], ON, kind)
    if faults_of(join):
        join = LatestJoin(left, right, ON, kind)
    events: list[tuple[str, Any]] = []
    living: list[dict[Row, Row]] = [{}, {}]
    fixed: list[dict[Row, Any]] = [{}, {}]
    for version in range(draw(st.integers(0, 25))):
        event = draw(st.sampled_from(["change", "change", "change", "deliver", "deliver left", "fail"]))
        if event == "fail":
            events.append((event, draw(st.tuples(st.sampled_from([0, 1]), st.sampled_from([None, 1, 2])))))
        elif event == "change":
            number = draw(st.sampled_from([0, 1]))
            events.append((event, (number, change(draw, join, number, living, fixed, version))))
        else:
            events.append((event, None))
    return join, events


def side_with_deletes(plain: Any) -> Any:
    return side(
        plain.columns, plain.source.keys, plain.upsert_key, ("+I", "+U", "-D"), immutable=plain.immutable
    )


def change(draw: st.DrawFn, join: LatestJoin, number: int, living: Any, fixed: Any, version: int) -> Row:
    """A change of a table that keeps to what its side declares."""
    of = join.sides[number]
    id_, key = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, None]))
    if of.upsert_key[-1][-1] == "k" or len(of.upsert_key) > 1:
        key = key or 1  # part of the upsert key: not NULL
    row = dict(zip(of.columns.names, (id_, key, f"v{version}"), strict=True))
    identity = tuple(row[name] for name in of.upsert_key)
    key_name = of.columns.names[1]
    if of.immutable:
        row[key_name] = fixed[number].setdefault(identity, key or 1 if of.can_delete else key)
    values = tuple(row.values())
    if of.can_delete and identity in living[number] and draw(st.booleans()):
        gone = living[number].pop(identity)
        bare = tuple(v if n in of.fixed else None for n, v in zip(of.columns.names, gone, strict=True))
        return ("-D", *draw(st.sampled_from([gone, bare])))
    kind = "+U" if identity in living[number] else "+I"
    living[number][identity] = values
    return (kind, *values)


@given(histories())
def test_the_sink_ends_with_the_join_of_the_final_tables(history: tuple[LatestJoin, list[Any]]) -> None:
    """However far the streams lag behind what lookups see, and whatever lookups fail in between."""
    join, events = history
    worlds = (World(join, 0), World(join, 1))
    driver = Driver(join, worlds)
    pending: tuple[list[Row], list[Row]] = ([], [])
    for event, what in events:
        if event == "change":
            number, row = what
            worlds[number].apply(row)
            pending[number].append(row)
        elif event == "fail":
            number, key = what
            worlds[number].failing = set() if key is None else {(key,)}
        else:
            left, right = pending
            driver.step(left, right if event == "deliver" else [])
            left.clear()
            if event == "deliver":
                right.clear()
    for world in worlds:
        world.failing = set()
    driver.step(*pending)
    assert driver.waiting == (None, None)
    assert set(driver.sink.values()) == joined(join, *worlds)


def inner(**more: Any) -> LatestJoin:
    left, right = SHAPES["many to many"]
    return LatestJoin(left, right, ON, **more)


def test_a_pair_of_which_both_rows_changed_is_emitted_once() -> None:
    join = inner()
    driver = Driver(join, (World(join, 0), World(join, 1)))
    found = driver.step(rows(LEFT, "+I 1 7 a"), rows(RIGHT, "+I 9 7 x"))
    assert found == [("+I", 1, 7, "a", 9, 7, "x")]


def test_rows_of_one_key_in_one_batch_are_folded_to_the_newest() -> None:
    join = inner()
    world = World(join, 1)
    world.apply(("+I", 9, 7, "x"))
    driver = Driver(join, (World(join, 0), world))
    found = driver.step(rows(LEFT, "+I 1 7 a", "+U 1 7 b", "+U 1 7 c"))
    assert found == [("+U", 1, 7, "c", 9, 7, "x")]


def test_a_key_that_fails_waits_with_all_its_rows_and_no_other_key_waits() -> None:
    join = inner()
    worlds = (World(join, 0), World(join, 1))
    for row in rows(RIGHT, "+I 8 1 x", "+I 9 2 y"):
        worlds[1].apply(row)
    worlds[1].failing = {(1,)}
    driver = Driver(join, worlds)
    assert driver.step(rows(LEFT, "+I 1 1 a", "+I 2 2 b")) == [("+I", 2, 2, "b", 9, 2, "y")]
    # a later row of the key, of the other side even, stays behind the one that waits
    assert driver.step([], rows(RIGHT, "+U 8 1 xx")) == []
    assert [None if t is None else t.num_rows for t in driver.waiting] == [1, 1]
    worlds[1].failing = set()
    worlds[1].apply(("+U", 8, 1, "xx"))
    assert driver.step() == [("+I", 1, 1, "a", 8, 1, "xx")]
    assert driver.waiting == (None, None)


def test_a_source_that_is_ahead_or_behind_does_not_turn_time_back_where_the_order_is_known() -> None:
    """Looked up v3, then the stream brings v1: the pair of a new left row keeps v3."""
    versioned = pa.schema({"rid": pa.int64(), "rk": pa.int64(), "v": pa.int64()})
    left, _ = SHAPES["many to many"]
    right = side(versioned, ["rk"], ["rid"], immutable=("rk",), order_by=("v",))
    join = LatestJoin(left, right, ON)
    worlds = (World(join, 0), World(join, 1))
    worlds[1].apply(("+U", 9, 7, 3))
    driver = Driver(join, worlds)
    assert driver.step(rows(LEFT, "+I 1 7 a"), [("+I", 9, 7, 1)]) == [("+I", 1, 7, "a", 9, 7, 3)]


def test_a_kind_that_was_not_declared_is_refused() -> None:
    join = inner()
    driver = Driver(join, (World(join, 0), World(join, 1)))
    with pytest.raises(ChangelogError, match=r"left side is declared to carry \+I, \+U, got '-D'"):
        driver.step(rows(LEFT, "-D 1 7 a"))


def test_a_delete_without_its_join_key_is_refused() -> None:
    left, right = SHAPES["many to many"]
    join = LatestJoin(side_with_deletes(left), right, ON)
    driver = Driver(join, (World(join, 0), World(join, 1)))
    with pytest.raises(ChangelogError, match="deletes of the left side must carry the join column"):
        driver.step(rows(LEFT, "-D 1 NULL NULL"))


def test_the_rest_of_the_condition_decides_which_pairs_there_are() -> None:
    condition = Call(">", (Field(Ref(0, "lid")), Field(Ref(1, "rid"))))
    join = inner(kind="left", where=condition)
    driver = Driver(join, (World(join, 0), World(join, 1)))
    found = driver.step(rows(LEFT, "+I 1 7 a", "+I 5 7 b"), rows(RIGHT, "+I 2 7 x", "+I 9 7 y"))
    assert found == [
        ("+I", 1, 7, "a", None, None, None),
        ("+I", 5, 7, "b", 2, 7, "x"),
        ("-D", 5, 7, "b", None, None, None),
    ]


def test_rows_of_one_key_from_two_tasks_need_an_order() -> None:
    join = inner()
    parts = [
        TaskRows(task, 0, changes(join, 0, rows(LEFT, line)))
        for task, line in enumerate(["+U 1 7 a", "+U 1 7 b"])
    ]
    with pytest.raises(ChangelogError, match=r"rows of \{'lid': 1\} of the left side, .* give with_lookup"):
        fold(join.left, "left", None, parts)
    ordered = replace(join.left, order_by=("lv",))
    assert fold(ordered, "left", None, parts).rows.to_pylist() == [
        {"lid": 1, "lk": 7, "lv": "b", "_row_kind": "+U"}
    ]


def test_an_upsert_key_is_not_null() -> None:
    join = inner()
    with pytest.raises(ChangelogError, match="upsert_key column 'lid' of the left side must not be NULL"):
        Driver(join, (World(join, 0), World(join, 1))).step(rows(LEFT, "+I NULL 7 a"))


def test_when_one_side_cannot_be_asked_the_other_one_is_asked_no_more() -> None:
    """Else its requests would go on while the micro-batch is run again."""
    join = LatestJoin(*SHAPES["one to one"], ON)
    cancelled = []

    class Told(World):
        def result(self) -> Found:
            if self.number == 0:
                raise KeyError("a bug")
            return super().result()

        def cancel(self) -> None:
            cancelled.append(self.number)

    with pytest.raises(KeyError, match="a bug"):
        Driver(join, [Told(join, 0), Told(join, 1)]).step(rows(LEFT, "+I 1 7 a"), rows(RIGHT, "+I 1 7 x"))
    assert cancelled == [0, 1]
