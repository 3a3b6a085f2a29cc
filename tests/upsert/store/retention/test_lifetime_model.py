"""Random lives of a table with tags, leases, clocks, crashes, rival writers and ALTER TABLE.

The rows of each state are remembered in a dict. After every step the table is checked on the disk, and all
that somebody holds is read. A failure prints a script of the life that led to it: run it as it is.
"""

import shutil
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, finish, run, start
from tests.upsert.store.test_table_model import State, rows_in, to_arrow
from upsert.errors import (
    ChangelogError,
    CommitConflictError,
    ConfigurationError,
    SnapshotExpiredError,
    StaleWriterError,
)
from upsert.failpoints import POINTS
from upsert.schema import Index, TableSchema
from upsert.store import Table, Version
from upsert.store.alterations import AddIndex, DropIndex, SetOptions
from upsert.store.commit.committer import Committer, Environment
from upsert.store.retention import consumers
from upsert.store.storage import put_if_absent

# The table's clock runs ahead of that of child processes, which say so when it is more than an hour.
pytestmark = pytest.mark.filterwarnings("ignore:table .* a snapshot must have the time of its commit")

KEYS = st.integers(0, 6)
VALUES = st.sampled_from(["a", "b", None])
CHANGES = st.lists(st.tuples(st.sampled_from(["+I", "+I", "-D"]), KEYS, VALUES), min_size=1, max_size=5)
NAMES = st.sampled_from(["x", "y", "z"])
BACK = st.integers(0, 4)
PAIR = Index("pair", ("id", "value"))
LEASE_S = 300.0
OPTIONS = {
    "bucket": "2",
    "num-sorted-run.compaction-trigger": "3",
    "snapshot.num-retained.min": "2",
    "snapshot.num-retained.max": "7",
    "snapshot.time-retained": "100 s",
    "snapshot.expire.limit": "3",
}

Changes = list[tuple[str, int, str | None]]


class Lifetimes(RuleBasedStateMachine):
    """A table with a primary key, on a clock of its own that only goes on when it is told to."""

    primary_key: tuple[str, ...] = ("id",)

    def __init__(self) -> None:
        super().__init__()
        note(f"from {__name__} import *")

    @initialize()
    def create(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lifetimes-"))
        schema = TableSchema.of({"id": pa.int64(), "value": pa.string()}, primary_key=self.primary_key)
        self.clock = time.time() + 3600  # child processes have the real one, which is never ahead
        self.table = Table.create(self.folder / "table", schema.index("value"), OPTIONS)
        self.go_on_with(self.table)
        self.states: dict[int, State] = {0: Counter()}
        self.tags: dict[str, int] = {}
        self.holds: dict[str, tuple[Version, float]] = {}
        self.readers: dict[str, tuple[Version, State]] = {}
        self.transaction = 0
        for key in range(3):
            self.write([("+I", key, "a")])
        self.tag("x", back=1)

    def go_on_with(self, table: Table) -> None:
        self.table = table
        self.table._committer = Committer(self.table.published, Environment(now=lambda: self.clock))

    @property
    def rows(self) -> State:
        return self.states[max(self.states)]

    def after(self, changes: Changes, *, base: State | None = None) -> State | None:
        """The rows after changes in order; None if the table must refuse them."""
        values = dict((self.rows if base is None else base).keys())
        for kind, key, value in changes:
            if kind == "+I":
                values[key] = value
            else:
                values.pop(key, None)
        return Counter(values.items())

    def expect(self, *possible: State) -> None:
        """The table is in one of some states; states on the way there are among them too."""
        for info in self.table.history():
            if info.data_version not in self.states:
                self.states[info.data_version] = rows_in(self.table.snapshot(info.data_version).scan())
                assert self.states[info.data_version] in possible
        assert rows_in(self.table.snapshot().scan()) == self.rows
        assert self.rows in possible
        self.verify()

    def verify(self) -> None:
        """No rule is broken, and whatever is retained, tagged or held can be read."""
        assert [found for found in self.table.check(deep=True) if not found.is_information] == []
        for info in self.table.history():
            assert rows_in(self.table.snapshot(info.id).scan()) == self.states[info.data_version]
        assert {tag.name: tag.snapshot.data_version for tag in self.table.tags()} == self.tags
        for name, state in self.tags.items():
            assert rows_in(self.table.snapshot(name).scan()) == self.states[state]
        for version, until in self.holds.values():
            if until >= self.clock:
                for state in consumers.needed(version):
                    assert rows_in(self.table.snapshot(state).scan()) == self.states[state]

    def state_before(self, back: int) -> int:
        """Data version of a snapshot some way back, which may have expired."""
        known = sorted(self.states)
        return known[max(0, len(known) - 1 - back)]

    # rows

    @rule(changes=CHANGES)
    def write(self, changes: Changes) -> None:
        expected = self.after(changes)
        if expected is None:
            with pytest.raises(ChangelogError):
                self.table.write(to_arrow(changes))
            return
        self.table.write(to_arrow(changes))
        self.expect(expected)

    @rule(changes=CHANGES)
    def overwrite(self, changes: Changes) -> None:
        inserted = [change for change in changes if change[0] == "+I"]
        expected = self.after(inserted, base=Counter())
        assert expected is not None
        self.table.overwrite(to_arrow(inserted))
        self.expect(expected)

    @rule(value=st.sampled_from(["a", "b"]))
    def delete(self, value: str) -> None:
        self.table.delete([("value", "=", value)])
        self.expect(Counter({row: count for row, count in self.rows.items() if row[1] != value}))

    @rule(one=CHANGES, other=CHANGES)
    def two_processes_write(self, one: Changes, other: Changes) -> None:
        """Each its own keys, so that the order does not matter; both expire what their commits make due."""
        parts = [
            [("+I", 10 + number, value) for _, _, value in changes]
            for number, changes in enumerate((one, other))
        ]
        path = self.table.path
        children = [start(lambda part=part: Table.open(path).write(to_arrow(part))) for part in parts]
        assert finish(children) == [0, 0]
        before = self.rows
        possible = [self.after(c, base=before) for c in (*parts, [*parts[0], *parts[1]])]
        self.expect(before, *(state for state in possible if state is not None))
        assert self.rows == possible[-1]

    # upkeep

    @rule()
    def compact(self) -> None:
        self.table.compact()
        self.expect(self.rows)

    @rule(seconds=st.sampled_from([1, 60, 101, 400]))
    def let_time_pass(self, seconds: int) -> None:
        self.clock += seconds

    @rule(keep=st.none() | st.integers(1, 4), older_than_s=st.none() | st.sampled_from([0, 50]))
    def expire(self, keep: int | None, older_than_s: int | None) -> None:
        self.table.expire(keep=keep, older_than_s=older_than_s)
        if not self.holds and keep and older_than_s is None:
            assert len({info.data_version for info in self.table.history()}) <= max(keep, 1)
        assert all(until >= self.clock for until in self.leases_left().values())
        self.expect(self.rows)

    def leases_left(self) -> dict[str, float]:
        return {consumer.name: consumer.until_ms / 1000 + 1 for consumer in self.table.consumers()}

    @rule()
    def clean(self) -> None:
        self.table.clean(older_than_s=0)
        self.expect(self.rows)
        assert_nothing_is_left_over(self.table)

    @rule()
    def restart(self) -> None:
        table = Table.open(self.table.path)
        table.published = table.published.reread()
        self.go_on_with(table)
        self.expect(self.rows)

    # other forms of the same rows

    @rule(buckets=st.integers(1, 4))
    def rescale(self, buckets: int) -> None:
        self.table.alter(SetOptions({"bucket": str(buckets)}))
        self.expect(self.rows)

    @rule()
    def change_indexes(self) -> None:
        is_there = PAIR in self.table.schema.indexes
        self.table.alter(DropIndex(PAIR.name) if is_there else AddIndex(PAIR))
        self.expect(self.rows)

    @rule(back=BACK)
    def roll_back(self, back: int) -> None:
        state = self.state_before(back)
        try:
            self.table.rollback_to(state)
        except SnapshotExpiredError:
            assert not self.is_retained(state)
        else:
            self.expect(self.states[state])

    # who holds what

    @rule(name=NAMES, back=BACK)
    def tag(self, name: str, back: int) -> None:
        state = self.state_before(back)
        try:
            self.table.tag(name, state)
        except SnapshotExpiredError:
            assert not self.is_retained(state)
        except ConfigurationError:
            assert name in self.tags or state == 0
        else:
            self.tags[name] = state
        self.verify()

    def is_retained(self, state: int) -> bool:
        return state in self.tags.values() or any(i.data_version == state for i in self.table.history())

    @rule(name=NAMES)
    def untag(self, name: str) -> None:
        try:
            self.table.delete_tag(name)
        except ConfigurationError:
            needed = {state for version, _ in self.holds.values() for state in consumers.needed(version)}
            assert name not in self.tags or self.tags[name] in needed
        else:
            del self.tags[name]
        self.verify()

    @rule(name=NAMES, back=BACK)
    def hold(self, name: str, back: int) -> None:
        self.hold_version(name, Version.complete(self.state_before(back)))
        self.verify()

    def hold_version(self, name: str, version: Version) -> bool:
        """Whether the hold was given; it must be for what can be read."""
        try:
            consumers.hold(self.table.published, name, version, LEASE_S, self.clock)
        except SnapshotExpiredError:
            assert not all(map(self.is_retained, consumers.needed(version)))
            return False
        self.holds[name] = version, self.clock + LEASE_S - 1
        return True

    @rule(name=NAMES)
    def release(self, name: str) -> None:
        self.table.release(name)
        self.holds.pop(name, None)
        self.verify()

    @rule(name=NAMES, rows=st.integers(1, 4))
    def read_on(self, name: str, rows: int) -> None:
        """A reader goes one step on; only one whose lease is over may have lost its place."""
        version, state = self.readers.get(name, (Version.EMPTY, Counter()))
        try:
            end = self.table.advance(version, max_rows=rows)
            changed = Counter(state)
            for row in self.table.changes_between(version, end).to_pylist():
                changed[row["id"], row["value"]] += 1 if row["_row_kind"][0] == "+" else -1
        except SnapshotExpiredError:
            held, until = self.holds.get(f"reader-{name}", (Version.EMPTY, 0.0))
            assert held != version or until < self.clock
            self.readers.pop(name)
            return
        assert min(changed.values(), default=0) >= 0
        assert rows_in(self.table.at(end).scan()) == +changed
        if self.hold_version(f"reader-{name}", end):
            self.readers[name] = end, +changed
        self.verify()

    # what goes wrong

    @rule(changes=CHANGES, others=st.integers(0, 4), cleans=st.booleans())
    def a_writer_stalls(self, changes: Changes, others: int, cleans: bool) -> None:
        """Between its last look and its publication others commit, expire and clean."""
        before = self.rows
        possible = [before]

        def meanwhile() -> None:
            for number in range(others):
                self.table.write(to_arrow([("+I", 20, "ab"[number % 2])]))
                possible.append(rows_in(self.table.snapshot().scan()))
            self.table.expire(keep=1)
            if cleans:
                self.table.clean(older_than_s=0)

        todo = [meanwhile]

        def put(path: str, content: bytes) -> bool:
            if todo:
                todo.pop()()
            return put_if_absent(path, content)

        slow = Table.open(self.table.path)
        slow.published = slow.published.reread()
        slow._committer = Committer(slow.published, Environment(lambda: self.clock, put_if_absent=put))
        with suppress(StaleWriterError, CommitConflictError, ChangelogError):
            slow.write(to_arrow(changes))
        possible += [end for state in list(possible) if (end := self.after(changes, base=state)) is not None]
        self.expect(*possible)

    @rule(point=st.sampled_from(POINTS), nth=st.integers(1, 2), key=KEYS, value=VALUES, name=NAMES)
    def crash(self, point: str, nth: int, key: int, value: str | None, name: str) -> None:
        """A process dies between a commit and the end of all upkeep; then the commit is replayed."""
        self.transaction += 1
        changes = to_arrow([("+I", key, value)])

        def commit(table: Table) -> None:
            table.commit([table.stage_raw(changes)], writer_id="query", transaction=self.transaction)

        def live() -> None:
            table = Table.open(self.table.path)
            commit(table)
            table.compact()
            table.hold(name, Version.complete(table.snapshot().info.data_version), 2 * 86_400)
            table.expire(keep=2)
            table.clean(older_than_s=0)
            with suppress(ConfigurationError):
                table.delete_tag(name)

        assert run(live, f"{point}:{nth}") in (0, KILLED)
        left = {tag.name for tag in self.table.tags()}
        assert self.tags.keys() - left <= {name}
        self.tags = {tag: state for tag, state in self.tags.items() if tag in left}
        for consumer in self.table.consumers():
            self.holds[consumer.name] = consumer.version, consumer.until_ms / 1000 - 1
        expected = self.after([("+I", key, value)])
        assert expected is not None
        commit(self.table)
        self.expect(self.rows, expected)
        assert self.rows == expected

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


class BagLifetimes(Lifetimes):
    """A table without primary key: rows are counted, and taking away what is not there is refused."""

    primary_key = ()

    def after(self, changes: Changes, *, base: State | None = None) -> State | None:
        counts: State = Counter(self.rows if base is None else base)
        for kind, key, value in changes:
            counts[key, value] += 1 if kind == "+I" else -1
        return None if any(count < 0 for count in counts.values()) else +counts


def lives(machine: type[Lifetimes], examples: int) -> type:
    case = type(f"Test{machine.__name__}{examples}", (machine.TestCase,), {})
    case.settings = settings(max_examples=examples, stateful_step_count=40)
    return pytest.mark.usefixtures("few_manifests")(case)


TestLifetimes = lives(Lifetimes, 3)
TestBagLifetimes = lives(BagLifetimes, 2)
# Lives of one to three seconds of processor time each: ten minutes are the most for one test.
TestManyLifetimes = pytest.mark.minutes(pytest.mark.long(lives(Lifetimes, 200)))
TestManyBagLifetimes = pytest.mark.minutes(pytest.mark.long(lives(BagLifetimes, 120)))
