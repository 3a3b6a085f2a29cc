"""Random lives of a partitioned table against a dict: writes, overwrites, deletes, drops, upkeep, crashes."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, run
from upsert.failpoints import POINTS
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.predicate import parse_where
from upsert.store.rows.partitions import Overwrite, specified
from upsert.store.version import Version

HUBS = ["a/b", "😀", "-0.0"]
NUMBERS = [0.0, -1.5]
COLUMNS = {"hub": pa.string(), "number": pa.float64(), "id": pa.int64(), "value": pa.string()}
OPTIONS = {"bucket": "2", "num-sorted-run.compaction-trigger": "3"}

Row = tuple[str | None, float | None, int, str | None]
State = Counter[Row]

IDS = st.integers(0, 4)
VALUES = st.sampled_from(["x", "y", None])
PREDICATES = st.one_of(
    st.tuples(st.just("hub"), st.sampled_from(["=", "!="]), st.sampled_from(HUBS)),
    st.tuples(st.just("number"), st.sampled_from(["<", "="]), st.sampled_from([-0.0, -1.5])),
    st.tuples(st.just("hub"), st.sampled_from(["is null", "is not null"]), st.none()),
    st.tuples(st.just("id"), st.sampled_from([">", "="]), IDS),
    st.tuples(st.just("value"), st.just("="), st.sampled_from(["x", "y"])),
)
WHERES = st.lists(st.lists(PREDICATES, min_size=1, max_size=2), min_size=1, max_size=2)


def to_arrow(rows: list[Row], kinds: list[str] | None = None) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
    table = pa.table({n: pa.array(v, t) for (n, t), v in zip(COLUMNS.items(), columns, strict=True)})
    return table if kinds is None else table.append_column(ROW_KIND_COLUMN, pa.array(kinds, pa.string()))


def rows_in(table: pa.Table) -> State:
    return Counter(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True))


class PartitionLife(RuleBasedStateMachine):
    """A table with a primary key; ``states`` maps each data version to the rows that it holds."""

    primary_key: tuple[str, ...] = ("hub", "number", "id")
    options: ClassVar[dict[str, str]] = OPTIONS
    hubs: st.SearchStrategy[Any] = st.sampled_from(HUBS)
    numbers: st.SearchStrategy[Any] = st.sampled_from(NUMBERS)

    @initialize()
    def create(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="partition-life-"))
        self.schema = TableSchema.of(COLUMNS, self.primary_key, partitioned_by=["hub", "number"])
        self.table = Table.create(self.folder / "table", self.schema.index("value"), self.options)
        self.states: dict[int, State] = {0: Counter()}
        self.transaction = 0

    @property
    def rows(self) -> State:
        return self.states[max(self.states)]

    def drawn_rows(self, data: st.DataObject) -> list[Row]:
        return data.draw(st.lists(st.tuples(self.hubs, self.numbers, IDS, VALUES), max_size=5))

    def drawn_spec(self, data: st.DataObject) -> dict[str, Any]:
        spec = {"hub": data.draw(self.hubs), "number": data.draw(self.numbers)}
        return {name: spec[name] for name in data.draw(st.sets(st.sampled_from(["hub", "number"])))}

    def with_rows(self, state: State, rows: list[Row]) -> State:
        values = {row[:3]: row[3] for row in state} | {row[:3]: row[3] for row in rows}
        return Counter((*key, value) for key, value in values.items())

    def without(self, is_gone: Callable[[Row], bool]) -> State:
        return Counter({row: count for row, count in self.rows.items() if not is_gone(row)})

    def remember(self, expected: State) -> None:
        info = self.table.snapshot().info
        if info.data_version != max(self.states):
            self.states[info.data_version] = expected
        assert rows_in(self.table.snapshot().scan()) == expected == self.rows

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        rows = self.drawn_rows(data)
        self.table.write(to_arrow(rows))
        self.remember(self.with_rows(self.rows, rows))

    @rule(data=st.data(), dynamic=st.booleans())
    def overwrite(self, data: st.DataObject, dynamic: bool) -> None:
        spec = self.drawn_spec(data)
        rows = [row for row in self.drawn_rows(data) if is_in(row, spec)]
        self.table.overwrite(to_arrow(rows), partition=spec, dynamic=dynamic)
        self.remember(self.with_rows(self.overwritten(spec, rows, dynamic), rows))

    def overwritten(self, spec: dict[str, Any], rows: list[Row], dynamic: bool) -> State:
        written = {row[:2] for row in rows}
        return self.without(lambda row: is_in(row, spec) and (not dynamic or row[:2] in written))

    @rule(where=WHERES)
    def delete(self, where: list[Any]) -> None:
        gone = rows_in(parse_where(where, self.schema).apply(self.table.snapshot().scan()))
        self.table.delete(where)
        self.remember(self.without(gone.__contains__))

    @rule(data=st.data())
    def drop_partition(self, data: st.DataObject) -> None:
        if spec := self.drawn_spec(data):
            self.table.drop_partition(spec)
            self.remember(self.without(lambda row: is_in(row, spec)))

    @rule(keep=st.integers(1, 4))
    def expire_and_clean(self, keep: int) -> None:
        self.table.expire(keep=keep)
        self.table.clean(older_than_s=0)
        assert_nothing_is_left_over(self.table)

    @rule()
    def compact(self) -> None:
        self.table.compact()

    @rule()
    def open_with_nothing_remembered(self) -> None:
        self.table = Table.open(self.table.path)
        self.table.published = self.table.published.reread()

    @rule(point=st.sampled_from(POINTS), nth=st.integers(1, 3), where=WHERES, data=st.data())
    def crash(self, point: str, nth: int, where: list[Any], data: st.DataObject) -> None:
        """A process dies while it overwrites, deletes, compacts or cleans; then it does it again."""
        self.transaction += 1
        spec, rows = self.drawn_spec(data), self.drawn_rows(data)
        rows = [row for row in rows if is_in(row, spec)]
        table = self.table

        def live() -> None:
            staged = [table.stage_raw(to_arrow(first_of_each_key(rows)))]
            replaced = Overwrite(specified(table.schema, spec, of="test"))
            table.commit(staged, writer_id="query", transaction=self.transaction, overwrite=replaced)
            table.delete(where)
            table.compact()
            table.clean(older_than_s=0)

        assert run(live, f"{point}:{nth}") in (0, KILLED)
        overwritten = self.with_rows(self.overwritten(spec, rows, False), first_of_each_key(rows))
        gone = rows_in(parse_where(where, self.schema).apply(to_arrow(list(overwritten))))
        deleted = Counter({row: n for row, n in overwritten.items() if row not in gone})
        was_committed = table.snapshot().info.writers.get("query", 0) == self.transaction
        found = rows_in(table.snapshot().scan())
        assert found in ((overwritten, deleted) if was_committed else (self.rows,))
        table.expire(keep=1)
        self.states = {table.snapshot().info.data_version: found}
        live()
        self.states = {0: Counter(), table.snapshot().info.data_version: deleted}
        table.expire(keep=1)
        self.remember(deleted)

    @rule(data=st.data())
    def changes_lead_from_state_to_state(self, data: st.DataObject) -> None:
        since, until = sorted(data.draw(st.tuples(*[st.sampled_from(self.readable())] * 2)))
        changed = Counter(self.states[since])
        apply_to(changed, self.table.changes(since, until))
        assert changed == self.states[until]

    @rule(data=st.data(), max_rows=st.integers(1, 4))
    def a_reader_that_steps_sees_exact_states(self, data: st.DataObject, max_rows: int) -> None:
        """Step by step, cut between keys of several partitions, its rows are those of its version's view."""
        version = Version.complete(data.draw(st.sampled_from(self.readable())))
        mirror = Counter(self.states[version.base])
        while (following := self.table.advance(version, max_rows=max_rows)) != version:
            apply_to(mirror, self.table.changes_between(version, following))
            version = following
            view = self.table.at(version)
            assert rows_in(view.scan()) == mirror
            found = view.lookup(["value", "hub"], pa.table({"value": ["x"] * 3, "hub": HUBS}))
            wanted = {row: n for row, n in mirror.items() if row[3] == "x" and row[0] is not None}
            assert rows_in(found) == wanted
            names = ["value", "hub"]
            assert Counter(map(tuple, zip(*view.scan(names).to_pydict().values(), strict=True))) == Counter(
                (row[3], row[0]) for row in mirror.elements()
            )
        assert mirror == self.rows

    def readable(self) -> list[int]:
        oldest = self.table.history()[0].data_version if self.table.history() else 0
        return [0, *(version for version in sorted(self.states) if version >= max(oldest, 1))]

    @invariant()
    def filtered_scans_and_lookups_find_the_rows(self) -> None:
        snapshot = self.table.snapshot()
        for where in (
            [("hub", "=", "a/b")],
            [("number", "=", -0.0), ("id", ">", 1)],
            [("hub", "is null", None)],
        ):
            wanted = parse_where(where, self.schema).apply(to_arrow(list(self.rows.elements())))
            assert rows_in(snapshot.scan(where=where)) == rows_in(wanted)
        found = snapshot.lookup(["value", "number"], pa.table({"value": ["x", "y"], "number": [-0.0, 7.5]}))
        assert rows_in(found) == Counter({r: n for r, n in self.rows.items() if r[3] == "x" and r[1] == 0})

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


class MultisetLife(PartitionLife):
    """A table without primary key: partitions may be NULL, rows are counted."""

    primary_key = ()
    options: ClassVar[dict[str, str]] = {**OPTIONS, "bucket-key": "id"}
    hubs = st.sampled_from([*HUBS, None])
    numbers = st.sampled_from([*NUMBERS, None])

    def with_rows(self, state: State, rows: list[Row]) -> State:
        return state + Counter(rows)


def is_in(row: Row, spec: dict[str, Any]) -> bool:
    return all(row[list(COLUMNS).index(name)] == value for name, value in spec.items())


def first_of_each_key(rows: list[Row]) -> list[Row]:
    return list({row[:3]: row for row in reversed(rows)}.values())


def apply_to(state: State, changes: pa.Table) -> None:
    """Play signed rows onto a state, which they must fit."""
    for row, kind in zip(
        zip(*(changes[n].to_pylist() for n in COLUMNS), strict=True),
        changes[ROW_KIND_COLUMN].to_pylist(),
        strict=True,
    ):
        state[row] += 1 if kind[0] == "+" else -1
    for row in [row for row, count in state.items() if not count]:
        del state[row]


FEW = settings(max_examples=max(4, settings().max_examples // 8), stateful_step_count=20)

TestPartitionLife = PartitionLife.TestCase
TestPartitionLife.settings = FEW
TestMultisetLife = MultisetLife.TestCase
TestMultisetLife.settings = FEW
