"""Random lives of a table against a dict: commits, compactions, expiry, clean-up, new processes, crashes."""

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, run
from upsert.errors import ChangelogError, SnapshotExpiredError
from upsert.failpoints import POINTS
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.alterations import SetOptions

KEYS = st.integers(0, 9)
VALUES = st.sampled_from(["a", "b", None])
CHANGES = st.lists(st.tuples(st.sampled_from(["+I", "-D"]), KEYS, VALUES), max_size=6)
OPTIONS = {"bucket": "2", "num-sorted-run.compaction-trigger": "3", "target-file-size": "1 kb"}
FORMATS = st.sampled_from(["arrow", "arrow", "parquet", "orc", "avro"])

Row = tuple[int, str | None]
Change = tuple[str, int, str | None]
State = Counter[Row]


def to_arrow(changes: list[Change]) -> pa.Table:
    kinds, keys, values = zip(*changes, strict=True) if changes else ((), (), ())
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "value": pa.array(values, pa.string()),
            "_row_kind": pa.array(kinds, pa.string()),
        }
    )


def rows_in(rows: pa.Table) -> State:
    return Counter(zip(rows["id"].to_pylist(), rows["value"].to_pylist(), strict=True))


class TableLife(RuleBasedStateMachine):
    """A table with a primary key; ``states`` maps each snapshot that changed rows to the rows it holds."""

    primary_key: tuple[str, ...] = ("id",)

    @initialize(format=FORMATS)
    def create(self, format: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="table-life-"))
        schema = TableSchema.of({"id": pa.int64(), "value": pa.string()}, primary_key=self.primary_key)
        self.table = Table.create(
            self.folder / "table", schema.index("value"), {**OPTIONS, "file.format": format}
        )
        self.states: dict[int, State] = {0: Counter()}
        self.transaction = 0

    @property
    def rows(self) -> State:
        return self.states[max(self.states)]

    def after(self, changes: list[Change], *, overwrite: bool = False) -> State | None:
        """The rows after changes in order; None if the table must refuse them."""
        values = {} if overwrite else dict(self.rows.keys())
        for kind, key, value in changes:
            if kind == "+I":
                values[key] = value
            else:
                values.pop(key, None)
        return Counter(values.items())

    def remember(self, expected: State) -> None:
        info = self.table.snapshot().info
        if info.data_version != max(self.states):
            self.states[info.data_version] = expected
        assert rows_in(self.table.snapshot().scan()) == expected == self.rows

    @rule(changes=CHANGES, overwrite=st.booleans())
    def write(self, changes: list[Change], overwrite: bool) -> None:
        expected = self.after(changes, overwrite=overwrite)
        write = self.table.overwrite if overwrite else self.table.write
        if expected is None:
            with pytest.raises(ChangelogError):
                write(to_arrow(changes))
            return
        done = write(to_arrow(changes))
        assert done.committed_rows == len(changes)
        self.remember(expected)

    @rule(below=KEYS, value=st.none() | st.sampled_from(["a", "b"]))
    def delete(self, below: int, value: str | None) -> None:
        where: list[tuple[str, str, object]] = [("id", "<", below)]
        where += [] if value is None else [("value", "=", value)]
        expected = Counter(
            {row: n for row, n in self.rows.items() if row[0] >= below or value not in (None, row[1])}
        )
        done = self.table.delete(where)
        assert done.committed_rows == self.rows.total() - expected.total()
        self.remember(expected)

    @rule(key=KEYS, value=VALUES, repeats=st.integers(1, 3))
    def commit_a_transaction_and_replay_it(self, key: int, value: str | None, repeats: int) -> None:
        self.transaction += 1
        expected = self.after([("+I", key, value)])
        assert expected is not None
        for repeat in range(repeats):
            staged = [self.table.stage_raw(to_arrow([("+I", key, value)]))]
            done = self.table.commit(staged, writer_id="query", transaction=self.transaction)
            assert done.committed_rows == (repeat == 0)
        self.remember(expected)

    @rule(changes=CHANGES)
    def stage_and_forget(self, changes: list[Change]) -> None:
        self.table.stage(to_arrow(changes), order="rows")

    @rule(format=FORMATS)
    def go_on_in_another_format(self, format: str) -> None:
        self.table.alter(SetOptions({"file.format": format}))

    @rule(buckets=st.integers(1, 5))
    def go_on_with_other_buckets(self, buckets: int) -> None:
        self.table.alter(SetOptions({"bucket": str(buckets)}))
        self.remember(self.rows)

    @rule()
    def compact(self) -> None:
        self.table.compact()

    @rule(keep=st.integers(1, 4))
    def expire(self, keep: int) -> None:
        self.table.expire(keep=keep)
        kept = {info.data_version for info in self.table.history()}
        assert len(kept) <= keep or not self.table.snapshot().info.oldest

    @rule()
    def clean(self) -> None:
        self.table.clean(older_than_s=0)
        assert_nothing_is_left_over(self.table)

    @rule()
    def open_with_nothing_remembered(self) -> None:
        self.table = Table.open(self.table.path)
        self.table.published = self.table.published.reread()
        assert rows_in(self.table.snapshot().scan()) == self.rows

    @rule(point=st.sampled_from(POINTS), nth=st.integers(1, 2), key=KEYS, value=VALUES)
    def crash(self, point: str, nth: int, key: int, value: str | None) -> None:
        """A process dies between a commit and the end of a clean-up; then the commit is replayed."""
        self.transaction += 1
        changes = to_arrow([("+I", key, value)])

        def live() -> None:
            table = Table.open(self.table.path)
            staged = [table.stage_raw(changes)]
            table.commit(staged, writer_id="query", transaction=self.transaction)
            table.compact()
            table.expire(keep=2)
            table.clean(older_than_s=0)

        assert run(live, f"{point}:{nth}") in (0, KILLED)
        expected = self.after([("+I", key, value)])
        assert expected is not None
        was_committed = self.table.snapshot().info.writers.get("query", 0) == self.transaction
        assert rows_in(self.table.snapshot().scan()) == (expected if was_committed else self.rows)
        self.table.commit([self.table.stage_raw(changes)], writer_id="query", transaction=self.transaction)
        self.remember(expected)

    @rule(data=st.data())
    def read_an_old_state(self, data: st.DataObject) -> None:
        """Every retained state still holds its rows, whatever was compacted; an expired one says so."""
        version = data.draw(st.sampled_from(sorted(self.states)))
        oldest = self.table.history()[0].data_version if self.table.history() else 0
        if version == 0 or version >= oldest:
            assert rows_in(self.table.snapshot(version).scan()) == self.states[version]
        else:
            with pytest.raises(SnapshotExpiredError):
                self.table.snapshot(version)

    @rule(data=st.data())
    def changes_lead_from_state_to_state(self, data: st.DataObject) -> None:
        oldest = self.table.history()[0].data_version if self.table.history() else 0
        retained = [0, *(version for version in sorted(self.states) if version >= max(oldest, 1))]
        since, until = sorted(data.draw(st.tuples(st.sampled_from(retained), st.sampled_from(retained))))
        changed = Counter(self.states[since])
        for row in self.table.changes(since, until).to_pylist():
            changed[row["id"], row["value"]] += 1 if row["_row_kind"][0] == "+" else -1
        assert {row: count for row, count in changed.items() if count} == dict(self.states[until])

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        oldest = self.table.history()[0].data_version if self.table.history() else 0
        retained = [0, *(version for version in sorted(self.states) if version >= max(oldest, 1))]
        version = data.draw(st.sampled_from(retained))
        done = self.table.rollback_to(version)
        assert rows_in(done.scan()) == self.states[version]
        self.remember(self.states[version])

    @invariant()
    def lookups_find_the_rows(self) -> None:
        snapshot = self.table.snapshot()
        found = snapshot.lookup(["value"], pa.table({"value": ["a", "b"]}))
        assert rows_in(found) == Counter({row: n for row, n in self.rows.items() if row[1] is not None})

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


class MultisetLife(TableLife):
    """A table without primary key: rows are counted, and taking away what is not there is refused."""

    primary_key = ()

    def after(self, changes: list[Change], *, overwrite: bool = False) -> State | None:
        counts: State = Counter() if overwrite else Counter(self.rows)
        for kind, key, value in changes:
            counts[key, value] += 1 if kind == "+I" else -1
        return None if any(count < 0 for count in counts.values()) else +counts


FEW = settings(max_examples=max(4, settings().max_examples // 8), stateful_step_count=20)

TestTableLife = pytest.mark.usefixtures("few_manifests")(TableLife.TestCase)
TestTableLife.settings = FEW
TestMultisetLife = pytest.mark.usefixtures("few_manifests")(MultisetLife.TestCase)
TestMultisetLife.settings = FEW
