"""UNIQUE INDEX: what it refuses, against a dict, and what a lookup by it saves."""

import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.store.disk import finish, start
from tests.upsert.store.samples import KEY_VALUES, canonical, table_of
from upsert.errors import CorruptTableError, DuplicateKeyError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Index, TableSchema
from upsert.store import Table
from upsert.store.alterations import AddIndex
from upsert.store.commit import constraints
from upsert.store.commit.committer import Committer, Environment
from upsert.store.files import lookup_index
from upsert.store.read import lookup, snapshot
from upsert.store.storage import put_if_absent

USERS = TableSchema.of(
    {"id": pa.int64(), "email": pa.string(), "town": pa.int64()}, primary_key=["id"]
).index("email", unique=True)
LOOSE = {"num-sorted-run.compaction-trigger": "50", "bucket": "2"}


@pytest.fixture
def users(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "users", USERS, LOOSE)


def people(*rows: tuple[Any, ...]) -> pa.Table:
    """Users as (id, email), or with a kind as (kind, id, email)."""
    if rows and len(rows[0]) == 3:
        return table_of(USERS, [(*row[1:], 0) for row in rows], [row[0] for row in rows])
    return table_of(USERS, [(*row, 0) for row in rows])


def emails(table: Table) -> dict[int, str | None]:
    rows = table.snapshot().scan(["id", "email"])
    return dict(zip(rows["id"].to_pylist(), rows["email"].to_pylist(), strict=True))


def duplicated(values: dict[int, Any]) -> bool:
    counts = Counter(canonical(value) for value in values.values() if value is not None)
    return any(count > 1 for count in counts.values())


CHANGES = st.lists(
    st.tuples(st.sampled_from(["+I", "+I", "-D"]), st.integers(0, 5), st.integers(0, 6)), max_size=5
)


@given(
    st.sampled_from(list(KEY_VALUES)),
    st.sampled_from(["1", "3"]),
    st.lists(CHANGES | st.just("compact") | st.just("overwrite"), max_size=8),
    st.sampled_from([2, 1_000]),
)
def test_a_table_takes_exactly_the_writes_that_leave_one_row_a_key(type_, buckets, steps, at_once):
    schema = TableSchema.of({"id": pa.int64(), "x": type_}, primary_key=["id"]).index("x", unique=True)
    choices = [None, *KEY_VALUES[type_]]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraints, "_ROWS_AT_ONCE", at_once)
        table = Table.create(f"{folder}/t", schema, {"bucket": buckets})
        model: dict[int, Any] = {}
        overwrite = False
        for step in steps:
            if isinstance(step, str):
                overwrite = step == "overwrite"
                table.compact()
                continue
            wanted = {} if overwrite else dict(model)
            for kind, key, value in step:
                wanted.pop(key, None)
                if kind == "+I":
                    wanted[key] = choices[value % len(choices)]
            rows = [(key, choices[value % len(choices)]) for _, key, value in step]
            written = table_of(schema, rows, [kind for kind, _, _ in step])
            before = table.snapshot().id
            if duplicated(wanted):
                with pytest.raises(DuplicateKeyError):
                    (table.overwrite if overwrite else table.write)(written)
                assert table.snapshot().id == before
            else:
                (table.overwrite if overwrite else table.write)(written)
                model = wanted
            check(table, model, choices[1:])


def check(table: Table, model: dict[int, Any], values: list[Any]) -> None:
    keys = pa.table({"x": pa.array(values, table.schema.type_of("x"))})
    positions, rows = table.snapshot().match(["x"], keys)
    by_value = {canonical(value): key for key, value in model.items() if value is not None}
    found = sorted(zip(positions.tolist(), rows["id"].to_pylist(), strict=True))
    expected = [(n, by_value[canonical(v)]) for n, v in enumerate(values) if canonical(v) in by_value]
    assert found == expected


def test_a_clash_with_a_row_that_is_there_names_the_index_the_key_and_both_rows(users: Table):
    users.write(people((1, "ann@x"), (2, "bob@x")))
    with pytest.raises(DuplicateKeyError) as refused:
        users.write(people((3, "cy@x"), (4, "bob@x")))
    assert str(refused.value) == (
        "table 'users': UNIQUE INDEX_email (email) must have one row a key, got {'email': 'bob@x'} in the "
        "rows with primary keys {'id': 2} and {'id': 4}; correct one of them and do it again, nothing was "
        "committed"
    )
    assert emails(users) == {1: "ann@x", 2: "bob@x"}
    assert users.clean(older_than_s=0) == 0, "the refused rows left no file"


def test_two_rows_of_one_write_clash_also_in_different_buckets(users: Table):
    with pytest.raises(DuplicateKeyError, match=r"keys \{'id': [35]\} and \{'id': [35]\}"):
        users.write(people((3, "a"), (4, "b"), (5, "a")))


def test_rows_may_exchange_and_hand_on_their_keys_within_one_write(users: Table):
    users.write(people((1, "a"), (2, "b"), (3, "c")))
    users.write(people((1, "b"), (2, "a")))
    users.write(people(("-D", 3, None), ("+I", 4, "c")))
    assert emails(users) == {1: "b", 2: "a", 4: "c"}


def test_null_is_compared_with_nothing(users: Table):
    users.write(people((1, None), (2, None)))
    users.write(people((3, None)))
    assert emails(users) == {1: None, 2: None, 3: None}


def test_a_key_in_part_null_is_compared_with_nothing(tmp_path: Path):
    schema = TableSchema.of({"id": pa.int64(), "a": pa.int64(), "b": pa.int64()}, primary_key=["id"]).index(
        "a", "b", unique=True
    )
    table = Table.create(tmp_path / "pairs", schema)
    table.write(table_of(schema, [(1, 1, None), (2, 1, None), (3, 1, 1)]))
    with pytest.raises(DuplicateKeyError, match=r"\{'a': 1, 'b': 1\}"):
        table.write(table_of(schema, [(4, 1, 1)]))


def test_raw_rows_of_several_tasks_are_checked_together(users: Table):
    tasks = [users.stage_raw(people((1, "a"))), users.stage_raw(people((2, "a")))]
    with pytest.raises(DuplicateKeyError):
        users.commit(tasks)
    assert users.snapshot().id == 0


def test_the_loser_of_a_race_is_checked_against_the_winner(users: Table):
    """Both see the key free; the second finds the first one's snapshot in the way, and looks again."""
    users.write(people((1, "a")))
    rivals = [people((2, "b"))]

    def publish(path: str, content: bytes) -> bool:
        if rivals:
            Table.open(users.path).write(rivals.pop())
        return put_if_absent(path, content)

    slow = Table.open(users.path)
    slow._committer = Committer(slow.published, Environment(put_if_absent=publish))
    with pytest.raises(DuplicateKeyError, match=r"\{'id': 2\} and \{'id': 3\}"):
        slow.write(people((3, "b")))
    assert emails(users) == {1: "a", 2: "b"}


def test_an_index_that_is_declared_during_a_commit_is_asked_of_its_rows(tmp_path: Path):
    table = Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64(), "n": pa.int64()}, ["id"]))
    indexes = [Index.over(["n"], unique=True)]

    def publish(path: str, content: bytes) -> bool:
        if indexes:
            Table.open(table.path).alter(AddIndex(indexes.pop()))
        return put_if_absent(path, content)

    slow = Table.open(table.path)
    slow._committer = Committer(slow.published, Environment(put_if_absent=publish))
    with pytest.raises(DuplicateKeyError, match=r"\{'id': 1\} and \{'id': 2\}"):
        slow.write(pa.table({"id": [1, 2], "n": [7, 7]}))


@given(
    st.sampled_from(list(KEY_VALUES)),
    st.sampled_from(["1", "3"]),
    st.lists(CHANGES | st.just("compact"), max_size=5),
    st.sampled_from([2, 1_000]),
)
def test_an_index_is_unique_exactly_when_existing_rows_have_one_row_a_key(type_, buckets, steps, at_once):
    schema = TableSchema.of({"id": pa.int64(), "x": type_}, primary_key=["id"])
    choices = [None, *KEY_VALUES[type_]]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraints, "_ROWS_AT_ONCE", at_once)
        table = Table.create(f"{folder}/t", schema, {"bucket": buckets})
        model: dict[int, Any] = {}
        for step in steps:
            if isinstance(step, str):
                table.compact()
                continue
            for kind, key, value in step:
                model.pop(key, None)
                if kind == "+I":
                    model[key] = choices[value % len(choices)]
            rows = [(key, choices[value % len(choices)]) for _, key, value in step]
            table.write(table_of(schema, rows, [kind for kind, _, _ in step]))
        before = table.snapshot()
        if duplicated(model):
            with pytest.raises(DuplicateKeyError, match="table 't': ALTER TABLE: UNIQUE INDEX_x"):
                table.alter(AddIndex(Index.over(["x"], unique=True)))
            assert table.snapshot().info == before.info
        else:
            table.alter(AddIndex(Index.over(["x"], unique=True)))
            check(table, model, choices[1:])
            assert [index.is_late for index in table.schema.indexes] == [before.id > 0]


PLAIN = TableSchema.of({"id": pa.int64(), "email": pa.string(), "town": pa.int64()}, primary_key=["id"])


def test_an_index_becomes_unique_beside_writers(tmp_path: Path):
    """Rows that come meanwhile are checked by it, and those that were staged before by their commit."""
    table = Table.create(tmp_path / "users", PLAIN)
    rivals = [people((2, "b"), (3, "b")), people((1, "a"), (2, "b"))]

    def publish(path: str, content: bytes) -> bool:
        if rivals:
            Table.open(table.path).write(rivals.pop())
        return put_if_absent(path, content)

    staged = [table.stage(people((4, "c"), (5, "c")), order="rows")], [table.stage_raw(people((6, "b")))]
    slow = Table.open(table.path)
    slow._committer = Committer(slow.published, Environment(put_if_absent=publish))
    with pytest.raises(DuplicateKeyError, match=r"\{'email': 'b'\} .* \{'id': 2\} and \{'id': 3\}"):
        slow.alter(AddIndex(Index.over(["email"], unique=True)))
    table.delete([("id", "=", 3)])
    rivals.append(people((7, "d")))
    slow.alter(AddIndex(Index.over(["email"], unique=True)))
    for one in staged:
        with pytest.raises(DuplicateKeyError):
            table.commit(one)
    with pytest.raises(DuplicateKeyError):
        table.rollback_to(2)
    assert emails(table) == {1: "a", 2: "b", 7: "d"}
    assert [table.snapshot(n).has_one_row(["email"]) for n in (2, table.snapshot().id)] == [False, True]


def test_rows_that_come_while_a_first_index_is_added_may_have_had_one_key(tmp_path: Path):
    table = Table.create(tmp_path / "users", PLAIN)
    rivals = [people((1, "a"))]

    def publish(path: str, content: bytes) -> bool:
        if rivals:
            Table.open(table.path).write(rivals.pop())
        return put_if_absent(path, content)

    table._committer = Committer(table.published, Environment(put_if_absent=publish))
    table.alter(AddIndex(Index.over(["email"], unique=True)))
    assert [index.is_late for index in Table.open(table.path).schema.indexes] == [True]


def claim(path: str, process: int) -> None:
    table = Table.open(path)
    for number in range(12):
        try:
            table.write(people((100 * process + number, f"name-{number}")))
        except DuplicateKeyError:
            continue


@pytest.mark.parametrize("at_once", [3, 1_000])
def test_many_rows_are_checked_in_shares(users: Table, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(constraints, "_ROWS_AT_ONCE", at_once)
    users.write(people(*((n, f"{n}@x") for n in range(20)), (20, None), (21, None)))
    users.write(people(*((n, f"{19 - n}@x") for n in range(20))))
    assert emails(users)[3] == "16@x"
    with pytest.raises(DuplicateKeyError, match="'7@x'"):
        users.write(people(*((n, f"{n}@x") for n in range(30, 40)), (50, "7@x")))
    with pytest.raises(DuplicateKeyError, match="'33@x'"):
        users.write(people(*((n, f"{n}@x") for n in range(30, 40)), (50, "33@x")))


def test_of_processes_that_claim_the_same_keys_each_key_has_one_winner(tmp_path: Path):
    table = Table.create(tmp_path / "users", USERS)
    assert finish([start(partial(claim, table.path, process)) for process in range(4)]) == [0] * 4
    assert sorted(emails(table).values()) == sorted(f"name-{number}" for number in range(12))


def test_a_lookup_asks_no_older_run_for_a_key_that_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    users = Table.create(tmp_path / "users", USERS, LOOSE | {"bucket": "1"})
    for first in range(0, 40, 10):
        users.write(people(*((n, f"e{n}") for n in range(first, first + 10))))
    search, asked = lookup_index.search, []
    monkeypatch.setattr(lookup, "search", lambda index, keys: asked.append(len(keys)) or search(index, keys))
    keys = pa.table({"email": [f"e{n}" for n in range(40)]})
    assert users.snapshot().lookup(["email"], keys).num_rows == 40
    assert asked == [40, 30, 20, 10]


def test_a_unique_index_is_chosen_before_one_of_more_columns_and_finds_one_row_a_key(tmp_path: Path):
    schema = USERS.index("email", "town")
    table = Table.create(tmp_path / "users", schema)
    snapshot = table.write(people((1, "a"), (2, "b")))
    assert snapshot.index_for(["town", "email"]) == "UNIQUE INDEX_email"
    assert snapshot.rows_per_key(["email"]) == 1


def test_rows_of_before_an_index_was_unique_are_all_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing has compared the rows that older snapshots have."""
    monkeypatch.setattr(snapshot, "_ROWS_OF_KEY", 1)
    table = Table.create(tmp_path / "users", PLAIN, LOOSE | {"bucket": "1"})
    pinned = [table.write(people((number, "a"))).id for number in (1, 2)][1]
    table.delete([])
    table.alter(AddIndex(Index.over(["email"], unique=True)))
    before = Table.open(table.path).snapshot(pinned)
    assert before.lookup(["email"], pa.table({"email": ["a"]})).num_rows == 2
    assert before.scan(where=[("email", "=", "a")]).num_rows == 2


def test_a_table_that_is_opened_again_still_refuses_duplicates(users: Table):
    users.write(people((1, "a")))
    again = Table.open(users.path)
    assert again.schema.indexes == (Index("INDEX_email", ("email",), unique=True),)
    with pytest.raises(DuplicateKeyError):
        again.write(people((2, "a")))


def test_a_schema_of_an_index_that_is_neither_unique_nor_not_cannot_be_read():
    value = USERS.to_json()
    value["indexes"][0]["unique"] = "yes"
    with pytest.raises(CorruptTableError, match=r"Index\.unique is"):
        TableSchema.from_json(value)


def test_a_table_without_primary_key_has_no_unique_index():
    with pytest.raises(SchemaError, match="needs a PRIMARY KEY"):
        TableSchema.of({"a": pa.int64()}).index("a", unique=True)


def test_an_index_that_contains_the_primary_key_costs_no_check(tmp_path: Path):
    schema = TableSchema.of({"a": pa.int64(), "b": pa.int64()}, primary_key=["a"]).index(
        "b", "a", unique=True
    )
    table = Table.create(tmp_path / "t", schema)
    table.write(pa.table({"a": np.arange(9), "b": np.zeros(9, np.int64)}))
    table.write(pa.table({"a": np.arange(9), "b": np.zeros(9, np.int64), ROW_KIND_COLUMN: ["+U"] * 9}))
    assert table.snapshot().scan().num_rows == 9
