"""Changes of random histories, against a dict: between any two versions, and by any way of stepping."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.upsert.store.replay import Replay, State, state_of
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store.alterations import SetOptions
from upsert.store.read import changes as _changes
from upsert.store.table import Table
from upsert.store.version import Version

KEYED = TableSchema.of({"id": pa.int64(), "v": pa.string()}, primary_key=["id"])
MULTISET = TableSchema.of({"id": pa.int64(), "v": pa.string()}).index("id")
PARTITIONED = TableSchema.of({"id": pa.int64(), "v": pa.string()}, ["id"], partitioned_by=["id"])

Change = tuple[str, int, str | None]

KEYS = st.integers(0, 9)
VALUES = st.sampled_from(["a", "b", None])
COMMIT = st.tuples(
    st.sampled_from(["write"] * 4 + ["delete"] * 2 + ["overwrite", "compact", "clean", "rescale"]),
    st.lists(st.tuples(st.sampled_from(["+I", "+U", "-D"]), KEYS, VALUES), max_size=8),
)


def run(table: Table, commits: list[tuple[str, list[Change]]]) -> dict[int, State]:
    """Do the commits on the table and on a dict; the state at each data version."""
    states: dict[int, State] = {0: Counter()}
    current: State = Counter()
    for action, changes in commits:
        if action == "compact":
            table.compact()
        elif action == "clean":
            table.clean(older_than_s=0)
        elif action == "rescale":
            rescale(table, changes)
        elif action == "delete":
            current = current.copy()
            delete(table, current, changes)
        else:
            is_overwrite = action == "overwrite"
            current = Counter() if is_overwrite else current.copy()
            allowed = [c for c in changes if apply(current, c, is_keyed=bool(table.schema.primary_key))]
            (table.overwrite if is_overwrite else table.write)(as_table(allowed))
        states[table.snapshot().info.data_version] = +current
    return states


def rescale(table: Table, drawn: list[Change]) -> None:
    """Another number of buckets, from 1 to 9."""
    table.alter(SetOptions({"bucket": str(1 + len(drawn))}))


def delete(table: Table, state: State, drawn: list[Change]) -> None:
    """DELETE by comparisons of the drawn keys and values; where none are drawn, of all rows."""
    kind, key, value = drawn[0] if drawn else ("+I", -1, None)
    is_of_value = kind != "+I" and value is not None
    conditions: list[tuple[str, str, object]] = [("id", ">", key)] if drawn else []
    table.delete([*conditions, ("v", "=", value)] if is_of_value else conditions)
    for row in [*state]:
        if row[0] > key and (row[1] == value or not is_of_value):
            del state[row]


def apply(state: State, change: Change, *, is_keyed: bool) -> bool:
    """Whether the change is one that the table takes; a multiset refuses to lose what it does not have."""
    kind, key, value = change
    if is_keyed:
        for row in [row for row in state if row[0] == key]:
            del state[row]
    elif kind == "-D" and not state[key, value]:
        return False
    if kind == "-D":
        state[key, value] -= not is_keyed
    else:
        state[key, value] += 1
    if not state[key, value]:
        del state[key, value]
    return True


def as_table(changes: list[Change]) -> pa.Table:
    kinds, ids, values = zip(*changes, strict=True) if changes else ((), (), ())
    columns = {"id": pa.array(ids, pa.int64()), "v": pa.array(values, pa.string())}
    return pa.table({**columns, ROW_KIND_COLUMN: pa.array(kinds, pa.string())})


def signed(changes: pa.Table) -> State:
    net: State = Counter()
    for part in changes.to_pylist():
        sign = 1 if part.pop(ROW_KIND_COLUMN)[0] == "+" else -1
        net[tuple(part.values())] += sign
    return Counter({row: count for row, count in net.items() if count})


def difference(new: State, old: State) -> State:
    return Counter({row: new[row] - old[row] for row in new | old if new[row] != old[row]})


HISTORY = st.lists(COMMIT, max_size=8)
BUCKETS = st.sampled_from([1, 3])
MAX_ROWS = st.none() | st.integers(1, 12)
A_PIECE = st.sampled_from([_changes.PIECE_BYTES, 100, 1])
FEWER = settings(max_examples=max(8, settings().max_examples // 5))


@pytest.mark.parametrize("schema", [KEYED, MULTISET], ids=["keyed", "multiset"])
@given(commits=HISTORY, buckets=BUCKETS, max_rows=MAX_ROWS, piece=A_PIECE)
def test_random_history(
    schema: TableSchema,
    commits: list[tuple[str, list[Change]]],
    buckets: int,
    max_rows: int | None,
    piece: int,
) -> None:
    """Changes between any two versions are the model's difference, and any way of stepping rebuilds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_changes, "PIECE_BYTES", piece)
        check_history(schema, commits, buckets, max_rows)


@FEWER
@given(commits=HISTORY, buckets=BUCKETS, max_rows=MAX_ROWS)
def test_random_history_of_a_partitioned_table(
    commits: list[tuple[str, list[Change]]], buckets: int, max_rows: int | None
) -> None:
    """A partition for each key: one bucket number in many folders."""
    check_history(PARTITIONED, commits, buckets, max_rows)


def check_history(
    schema: TableSchema, commits: list[tuple[str, list[Change]]], buckets: int, max_rows: int | None
) -> None:
    with TemporaryDirectory() as folder:
        table = Table.create(Path(folder) / "t", schema, {"bucket": str(buckets)})
        states = run(table, commits)
        for since in states:
            for until in states:
                if since <= until:
                    found = table.changes(since, until)
                    assert signed(found) == difference(states[until], states[since])
                    assert found.num_rows == sum(map(abs, signed(found).values())), "nothing is said twice"
        check_stepping(table, states, max_rows)


def check_stepping(table: Table, states: dict[int, State], max_rows: int | None) -> None:
    """Walk from nothing to the end; at each version the view is what has been read so far."""
    replay, version = Replay(Counter()), Version.EMPTY
    while (following := table.advance(version, max_rows=max_rows)) != version:
        replay.apply(table.changes_between(version, following), bool(table.schema.primary_key))
        version = following
        view = table.at(version)
        assert state_of(view.scan()) == replay.state
        keys = pa.table({"id": pa.array(range(10), pa.int64())})
        assert state_of(view.lookup(["id"], keys)) == replay.state
        positions, matched = view.match(["id"], keys, select=["v", "id"], where=[("v", "=", "a")])
        assert matched.column("id").to_pylist() == positions.tolist()
        assert state_of(matched.select(["id", "v"])) == {r: n for r, n in replay.state.items() if r[1] == "a"}
    assert version == Version.complete(max(states))
    assert replay.state == states[max(states)]


@given(commits=st.lists(COMMIT, min_size=1, max_size=6), max_rows=MAX_ROWS, pause=st.integers(0, 6))
def test_reader_that_follows_while_the_table_changes(
    commits: list[tuple[str, list[Change]]], max_rows: int | None, pause: int
) -> None:
    """A pinned target outlives the commits and compactions after it."""
    with TemporaryDirectory() as folder:
        table = Table.create(Path(folder) / "t", KEYED, {"bucket": "2"})
        replay, version = Replay(Counter()), Version.EMPTY
        states = run(table, commits[:pause])
        for commit in [*commits[pause:], ("write", [])]:
            version = step_once(table, replay, version, max_rows)
            states |= after(table, commit, states)
        while (following := step_once(table, replay, version, max_rows)) != version:
            version = following
        assert replay.state == states[max(states)]


def step_once(table: Table, replay: Replay, version: Version, max_rows: int | None) -> Version:
    following = table.advance(version, max_rows=max_rows)
    replay.apply(table.changes_between(version, following), is_keyed=True)
    assert state_of(table.at(following).scan()) == replay.state
    return following


def after(table: Table, commit: tuple[str, list[Change]], states: dict[int, State]) -> dict[int, State]:
    current = states[max(states)].copy()
    action, changes = commit
    if action == "compact":
        table.compact()
        return {}
    if action == "clean":
        table.clean(older_than_s=0)
        return {}
    if action == "rescale":
        rescale(table, changes)
        return {}
    if action == "delete":
        delete(table, current, changes)
        return {table.snapshot().info.data_version: +current}
    if action == "overwrite":
        current = Counter()
    for change in changes:
        apply(current, change, is_keyed=True)
    (table.overwrite if action == "overwrite" else table.write)(as_table(changes))
    return {table.snapshot().info.data_version: +current}
