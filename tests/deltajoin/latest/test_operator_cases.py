"""Cases of Flink's own operator tests, one event a step: outputs row for row, and what the cache did."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from deltajoin.latest.operator import SideFinder
from deltajoin.latest.spec import LatestJoin, LookupSide
from deltajoin.lookup.batch import Lookups
from deltajoin.lookup.cache import RowCache
from deltajoin.lookup.memory import MemoryLookup
from tests.deltajoin.latest.driver import Driver, Row, World, rows, side


class Cached:
    """A finder with a real cache over a world: it counts what the cache and the source were asked."""

    def __init__(self, world: World, *, is_cached: bool) -> None:
        self.world = world
        of = world.side
        keys = world.join.keys(world.number)
        self.cache = RowCache(of.columns, keys, of.upsert_key) if is_cached else None
        self.hits = self.misses = self.lookups = 0

    def start(self, keys: pa.Table) -> "Cached":
        source = MemoryLookup(self.world.table(), self.world.side.source.keys)
        self.opened = Lookups(source)
        self.finder = SideFinder(self.world.join, self.world.number, self.opened, self.cache)
        self.pending = self.finder.start(keys)
        return self

    def result(self) -> Any:
        found = self.pending.result()
        self.opened.close()
        self.lookups += self.finder.lookup_counts.keys
        return found

    def cancel(self) -> None:
        self.pending.cancel()
        self.opened.close()

    def learn(self, *given: Any) -> None:
        self.finder.learn(*given)
        counts = self.finder.take_cache_counts()
        self.hits += counts.hits
        self.misses += counts.misses


def play(join: LatestJoin, events: Sequence[tuple[str, str]], *, is_cached: bool) -> tuple[list[Row], Any]:
    """Each event changes its table, then passes through the operator; all that was emitted."""
    worlds = World(join, 0), World(join, 1)
    finders = tuple(Cached(world, is_cached=is_cached) for world in worlds)
    driver = Driver(join, finders)
    emitted = []
    for name, line in events:
        number = "LR".index(name)
        batch = rows(worlds[number].side.columns, line)
        for row in batch:
            worlds[number].apply(row)
        emitted += driver.step(*((batch, []) if number == 0 else ([], batch)))
    return sorted(emitted), finders


LEFT = pa.schema({"lv": pa.int64(), "lk1": pa.bool_(), "lk2": pa.string()})
RIGHT = pa.schema({"rk2": pa.string(), "rv": pa.int64(), "rk1": pa.bool_()})

EVENTS = (
    ("L", "+I 100 true Tom"),
    ("L", "+I 101 false Tom"),
    ("L", "+I 1999 false Jim"),
    ("R", "+I Tom 200 true"),
    ("R", "+I Tom 201 false"),
    ("R", "+I Sam 2999 false"),
    ("L", "+U 1000 true Tom"),
    ("R", "+U Tom 2000 true"),
    ("R", "+U Tom 2001 false"),
)
EMITTED = [
    ("+I", 100, True, "Tom", "Tom", 200, True),
    ("+I", 101, False, "Tom", "Tom", 200, True),
    ("+I", 100, True, "Tom", "Tom", 201, False),
    ("+I", 101, False, "Tom", "Tom", 201, False),
    ("+U", 1000, True, "Tom", "Tom", 200, True),
    ("+U", 1000, True, "Tom", "Tom", 201, False),
    ("+U", 1000, True, "Tom", "Tom", 2000, True),
    ("+U", 101, False, "Tom", "Tom", 2000, True),
    ("+U", 1000, True, "Tom", "Tom", 2001, False),
    ("+U", 101, False, "Tom", "Tom", 2001, False),
]


def keyed_join() -> LatestJoin:
    left = side(LEFT, ["lk2"], ["lk1", "lk2"])
    right = side(RIGHT, ["rk2"], ["rk2", "rk1"])
    return LatestJoin(left, right, (("lk2", "rk2"),))


def test_updates_of_two_keyed_tables_with_caches() -> None:
    """The kind of a pair is that of the row that drives it; whatever the looked up row's was."""
    emitted, (left, right) = play(keyed_join(), EVENTS, is_cached=True)
    assert emitted == sorted(EMITTED)
    assert (right.lookups, left.lookups) == (2, 2)
    assert (left.hits + left.misses, left.hits) == (5, 3)
    assert (right.hits + right.misses, right.hits) == (4, 2)


def test_updates_of_two_keyed_tables_without_caches() -> None:
    emitted, (left, right) = play(keyed_join(), EVENTS, is_cached=False)
    assert emitted == sorted(EMITTED)
    assert (right.lookups, left.lookups) == (4, 5)


LOG = pa.schema({"a0": pa.int64(), "a1": pa.float64(), "a2": pa.string()})
OTHER_LOG = pa.schema({"b0": pa.int64(), "b1": pa.float64(), "b2": pa.string()})


class LogWorld(World):
    """A table without a key: what is written stays."""

    log: list[Row]

    def apply(self, change: Row) -> None:
        self.rows[len(self.rows),] = change[1:]


def log(columns: pa.Schema, key: str, id_: str, order: str) -> LookupSide:
    return side(columns, [key], [id_], ("+I",), order_by=(order,))


@pytest.mark.parametrize("is_cached", [True, False])
def test_rows_of_a_log_that_the_sink_does_not_tell_apart_are_the_newest(is_cached: bool) -> None:
    """Two rows a side with one key of the result: the last pair wins, as the order says."""
    join = LatestJoin(log(LOG, "a1", "a0", "a2"), log(OTHER_LOG, "b1", "b0", "b2"), (("a1", "b1"),))
    worlds = LogWorld(join, 0), LogWorld(join, 1)
    driver = Driver(join, [Cached(world, is_cached=is_cached) for world in worlds])
    left = rows(LOG, "+I 1 1.0 2021", "+I 1 1.0 2022", "+I 3 3.0 2023")
    right = rows(OTHER_LOG, "+I 1 1.0 2021", "+I 1 1.0 2024", "+I 99 99.0 2099")
    for number, row in [
        (0, left[0]),
        (1, right[0]),
        (0, left[1]),
        (1, right[1]),
        (0, left[2]),
        (1, right[2]),
    ]:
        worlds[number].apply(row)
        driver.step(*(([row], []) if number == 0 else ([], [row])))
    assert [*driver.sink.values()] == [(1, 1.0, "2022", 1, 1.0, "2024")]


def test_keys_with_null_never_match_and_cost_no_lookup() -> None:
    join = LatestJoin(log(LOG, "a1", "a0", "a2"), log(OTHER_LOG, "b1", "b0", "b2"), (("a1", "b1"),), "left")
    worlds = LogWorld(join, 0), LogWorld(join, 1)
    finders = [Cached(world, is_cached=True) for world in worlds]
    worlds[1].apply(("+I", 5, None, "x"))
    found = Driver(join, finders).step(rows(LOG, "+I 1 NULL 2021"))
    assert found == [("+I", 1, None, "2021", None, None, None)]
    assert finders[1].lookups == 0


def test_a_checkpoint_in_the_middle_changes_nothing_but_what_the_cache_knows() -> None:
    """The second run finds what the first one has seen by looking it up."""
    join = keyed_join()
    worlds = World(join, 0), World(join, 1)
    emitted: list[Row] = []
    waiting = (None, None)
    for run in (EVENTS[:4], EVENTS[4:]):
        driver = Driver(join, [Cached(world, is_cached=True) for world in worlds])
        driver.waiting = waiting
        for name, line in run:
            number = "LR".index(name)
            batch = rows(worlds[number].side.columns, line)
            for row in batch:
                worlds[number].apply(row)
            emitted += driver.step(*((batch, []) if number == 0 else ([], batch)))
        waiting = driver.waiting
    assert sorted(emitted) == sorted(EMITTED)
