"""`Table.rollback_to`: an older snapshot's rows again, whoever writes meanwhile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.upsert.store.disk import assert_nothing_is_left_over
from upsert.errors import (
    CheckViolatedError,
    CommitConflictError,
    ConfigurationError,
    SnapshotExpiredError,
    UntrackedChangesError,
    UpsertError,
)
from upsert.schema import Column, TableSchema
from upsert.sql.checks import check_of
from upsert.sql.columns import read_check
from upsert.sql.tokens import Cursor
from upsert.store import Table
from upsert.store.alterations import AddCheck, AddColumn, DropCheck

SCHEMA = TableSchema.of({"id": pa.int64(), "n": pa.int64()}, primary_key=["id"])


def rows(**of_id: int) -> pa.Table:
    """``rows(_1=5)``: the row with id 1 has n = 5."""
    return pa.table({"id": [int(name[1:]) for name in of_id], "n": [*of_id.values()]})


def found(table: Table) -> dict[int, int]:
    return {row["id"]: row["n"] for row in table.snapshot().scan().to_pylist()}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "table", SCHEMA, {"bucket": "2", "write-only": "true"})
    table.write(rows(_1=1, _2=2, _3=3))
    table.write(rows(_1=10, _4=4))
    table.delete([("id", "=", 2)])
    return table


def test_readers_of_changes_see_each_row_change_back(table: Table) -> None:
    """And the snapshots in between stay, so that what was rolled back can be had again."""
    done = table.rollback_to(1)
    assert (done.id, found(table)) == (4, {1: 1, 2: 2, 3: 3})
    changes = {(row["id"], row["n"], row["_row_kind"]) for row in table.changes(3, 4).to_pylist()}
    assert changes == {(1, 10, "-U"), (1, 1, "+U"), (2, 2, "+I"), (4, 4, "-D")}
    assert table.rollback_to(3).id == 5
    assert found(table) == {1: 10, 3: 3, 4: 4}
    assert table.rollback_to(5).id == 5


def test_tag_is_rolled_back_to_after_its_snapshot_has_expired(table: Table) -> None:
    table.tag("first", 1)
    table.expire(keep=1)
    with pytest.raises(SnapshotExpiredError, match="snapshot 2 has expired"):
        table.rollback_to(2)
    table.rollback_to("first")
    assert found(table) == {1: 1, 2: 2, 3: 3}


def test_old_rows_have_the_columns_of_now(table: Table) -> None:
    table.alter(AddColumn(Column("note", pa.string())))
    table.rollback_to(1)
    assert table.snapshot().scan().sort_by("id").to_pylist()[0] == {"id": 1, "n": 1, "note": None}


def interrupted(table: Table, write: Callable[[int], object]) -> Table:
    """The table, in which ``write`` commits between the look at the rows and the commit of each attempt."""
    stage, attempts = table.stage, iter(range(100))

    def staged(given: Any, **terms: Any) -> Any:
        done = stage(given, **terms)
        write(next(attempts))
        return done

    table.stage = staged  # type: ignore[method-assign]
    return table


@pytest.mark.parametrize("id", [1, 7], ids=["a row that is taken back", "another row"])
def test_what_others_commit_meanwhile_is_taken_back_too(table: Table, id: int) -> None:
    other = Table.open(table.path)
    interrupted(table, lambda attempt: attempt or other.write(rows(**{f"_{id}": 99})))
    table.rollback_to(1)
    assert found(table) == {1: 1, 2: 2, 3: 3}


def test_table_that_others_never_leave_alone_is_not_rolled_back(table: Table) -> None:
    other = Table.open(table.path)
    interrupted(table, lambda attempt: other.write(rows(_1=100 + attempt)))
    with pytest.raises(CommitConflictError, match=r"other writers changed some 10 times; stop those"):
        table.rollback_to(1)


@pytest.mark.parametrize(
    ("to", "error", "message"),
    [
        (9, ConfigurationError, "between 0 and the latest, 3, got 9"),
        ("no", ConfigurationError, "must be a tag 'no'"),
        (1, UntrackedChangesError, "snapshot 4 was committed with change-tracking = false"),
    ],
)
def test_snapshot_that_cannot_be_gone_back_to_is_refused(
    table: Table, to: int | str, error: type[UpsertError], message: str
) -> None:
    if to == 1:
        table.write(rows(_1=0), tracked=False)
    before = found(table)
    with pytest.raises(error) as caught:
        table.rollback_to(to)
    assert message in str(caught.value)
    assert found(table) == before


def test_rows_that_break_a_later_check_are_not_rolled_back_to(table: Table) -> None:
    """The old rows are written like any others, so a CHECK that came since then holds for them too."""
    table.write(rows(_2=20))
    table.delete([("n", "<", 4)])
    check = check_of(read_check(Cursor("CHECK (n >= 4)"), "few"), table.schema, "t")
    table.alter(AddCheck(check))
    before = table.snapshot()
    with pytest.raises(CheckViolatedError, match="few CHECK"):
        table.rollback_to(1)
    assert (table.snapshot().id, found(table)) == (before.id, {1: 10, 2: 20, 4: 4})
    table.alter(DropCheck("few"))
    table.rollback_to(1)
    assert found(table) == {1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize("wrong", ["_1", "_2", "_3", "_4"])
def test_what_was_written_of_other_buckets_is_deleted_when_a_row_is_refused(
    wrong: str, tmp_path: Path
) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, {"bucket": "2", "write-only": "true"})
    table.write(rows(**{"_1": 5, "_2": 5, "_3": 5, "_4": 5} | {wrong: 1}))
    table.write(rows(_1=6, _2=6, _3=6, _4=6))
    check = check_of(read_check(Cursor("CHECK (n >= 4)"), "few"), table.schema, "t")
    table.alter(AddCheck(check))
    with pytest.raises(CheckViolatedError):
        table.rollback_to(1)
    assert_nothing_is_left_over(table)


def test_rows_that_are_made_of_several_are_refused(tmp_path: Path) -> None:
    table = Table.create(
        tmp_path / "sums", SCHEMA, {"merge-engine": "aggregation", "fields.n.aggregate-function": "sum"}
    )
    table.write(rows(_1=1))
    with pytest.raises(
        ConfigurationError, match="rollback_to needs a table in which the last row of a key counts"
    ):
        table.rollback_to(0)
