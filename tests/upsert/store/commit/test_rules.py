"""VARCHAR(n), CHAR(n) and CHECK: which rows a table takes, in which form, and what becomes of it by ALTER."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.upsert.store.disk import assert_nothing_is_left_over
from upsert.conditions.expressions import Call, Const, Field, Ref
from upsert.errors import CheckViolatedError, SchemaError, StaleWriterError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Check, Column, Index, Length, TableSchema
from upsert.store import Table
from upsert.store.alterations import (
    AddCheck,
    AddColumn,
    AddIndex,
    Alteration,
    DropCheck,
    DropColumn,
    DropIndex,
    RenameColumn,
    SetDefault,
    SetNullable,
    WidenColumn,
)
from upsert.store.commit.committer import Committer, Environment
from upsert.store.read.pinned_columns import PinnedColumns
from upsert.store.rows.conform import conform
from upsert.store.rows.layout import Layout
from upsert.store.storage import put_if_absent

FEW = Check("few", "n < 10", Call("<", (Field(Ref(0, "n")), Const(10, pa.int64()))))
SUMMED = {"merge-engine": "aggregation", "fields.n.aggregate-function": "sum"}


def rows(*numbers: tuple[int, int | None], kinds: str = "") -> pa.Table:
    found = pa.table({"id": [id for id, _ in numbers], "n": pa.array([n for _, n in numbers], pa.int64())})
    return found.append_column(ROW_KIND_COLUMN, pa.array(kinds.split())) if kinds else found


def table_with(path: Path, options: dict[str, str] | None = None, *checks: Check) -> Table:
    columns = Column("id", pa.int64()), Column("n", pa.int64())
    return Table.create(path / "t", TableSchema(columns, ("id",), checks=checks), options or {})


def in_table(table: Table) -> dict[int, Any]:
    return {row["id"]: row["n"] for row in table.snapshot().scan().to_pylist()}


def written(text: str | None, length: Length) -> str | None:
    """What Spark's `charTypeWriteSideCheck` and `varcharTypeWriteSideCheck` make of a text."""
    if text is None:
        return None
    kept, rest = text[: length.characters], text[length.characters :]
    if rest.strip(" "):
        raise SchemaError("too long")
    return kept.ljust(length.characters) if length.is_padded else kept


TEXTS = st.lists(st.one_of(st.none(), st.text("aä😀 \t", max_size=6)), max_size=6)
LENGTHS = st.builds(Length, st.integers(1, 4), st.booleans())


@given(TEXTS, LENGTHS)
@example(["ab   ", "a\t  "], Length(2))
@example(["", None, "😀😀"], Length(2, is_padded=True))
def test_texts_are_stored_as_spark_stores_them(texts: list[str | None], length: Length) -> None:
    schema = TableSchema((Column("k", pa.int64()), Column("t", pa.string(), length=length)), ("k",))
    given_rows = pa.table({"k": range(len(texts)), "t": pa.array(texts, pa.string())})
    try:
        wanted = [written(text, length) for text in texts]
    except SchemaError:
        with pytest.raises(SchemaError, match=re.escape(f"column 't' is {length}, got ")):
            conform(Layout.of(schema), given_rows)
    else:
        stored, _ = conform(Layout.of(schema), given_rows)
        assert stored.column("t").to_pylist() == wanted


@pytest.mark.parametrize("key", [("t",), ()])
def test_a_char_identifies_a_row_whatever_blanks_it_comes_with(tmp_path: Path, key: tuple[str, ...]) -> None:
    columns = Column("t", pa.string(), length=Length(3, is_padded=True)), Column("n", pa.int64())
    table = Table.create(tmp_path / "t", TableSchema(columns, key))
    table.write(pa.table({"t": ["a", "b"], "n": [1, 1]}))
    table.write(
        pa.table({"t": ["a    ", "b  ", "too long"], "n": [1] * 3, ROW_KIND_COLUMN: ["-D"] * 3})
        if key
        else pa.table({"t": ["a    ", "b  "], "n": [1, 1], ROW_KIND_COLUMN: ["-D"] * 2})
    )
    assert table.snapshot().row_count == 0


def test_a_row_that_breaks_a_check_leaves_nothing(tmp_path: Path) -> None:
    table = table_with(tmp_path, None, FEW)
    table.write(rows((1, 9), (2, None)))
    message = (
        r"table 't': CONSTRAINT few CHECK \(n < 10\) must not be false of a row, got 2 such, one with id = 4"
    )
    with pytest.raises(
        CheckViolatedError, match=rf"{message}, n = 10; correct the rows, nothing was committed"
    ):
        table.write(rows((3, 1), (4, 10), (5, 11)))
    with pytest.raises(CheckViolatedError):
        table.overwrite(rows((3, 12)))
    with pytest.raises(CheckViolatedError):
        table.stage_raw(rows((3, 12)))
    assert in_table(table) == {1: 9, 2: None}
    assert_nothing_is_left_over(table)
    table.write(rows((1, 99), (2, 3), kinds="-D +U"))  # what is taken away may say anything
    assert in_table(table) == {2: 3}


def test_where_rows_are_combined_the_check_is_of_what_becomes_of_them(tmp_path: Path) -> None:
    table = table_with(tmp_path, SUMMED, FEW)
    table.write(rows((1, 15), (1, -6)))
    with pytest.raises(CheckViolatedError, match="one with id = 1, n = 10"):
        table.write(rows((1, 1), (2, 1)))
    assert in_table(table) == {1: 9}
    assert_nothing_is_left_over(table)


def test_an_overflow_in_a_check_names_it(tmp_path: Path) -> None:
    twice = Call("+", (Field(Ref(0, "n")), Field(Ref(0, "n"))))
    check = Check("sum", "n + n > 0", Call(">", (twice, Const(0, pa.int64()))))
    with pytest.raises(SchemaError, match=r"CONSTRAINT sum CHECK \(n \+ n > 0\): .*\(n \+ n\).* overflows"):
        table_with(tmp_path, None, check).write(rows((1, 1 << 62)))


def test_existing_rows_are_checked_where_a_check_is_added(tmp_path: Path) -> None:
    table = table_with(tmp_path)
    table.write(rows((1, 10), (2, 1)))
    with pytest.raises(CheckViolatedError, match=r"ALTER TABLE: CONSTRAINT few .* one with id = 1, n = 10"):
        table.alter(AddCheck(FEW))
    table.write(rows((1, 9)))  # the older row is in a file, and no row of the table
    table.alter(AddCheck(FEW))
    with pytest.raises(CheckViolatedError):
        table.write(rows((3, 10)))
    table.alter(DropCheck("FEW"))
    table.write(rows((3, 10)))
    with pytest.raises(CheckViolatedError):
        table.alter(AddCheck(FEW))
    assert in_table(table) == {1: 9, 2: 1, 3: 10}


REQUIRED, NULLABLE = SetNullable("n", nullable=False), SetNullable("n", nullable=True)
UNIQUE = Index.over(["n"], unique=True)


@pytest.mark.parametrize("options", [{}, SUMMED])
@pytest.mark.parametrize(
    ("added", "gone", "n", "reason"),
    [
        (AddCheck(FEW), DropCheck("few"), 100, r"CONSTRAINT few CHECK .* was added meanwhile"),
        (REQUIRED, NULLABLE, None, "column 'n' has become NOT NULL meanwhile"),
    ],
)
def test_rows_that_were_staged_before_a_check_are_not_committed(
    tmp_path: Path, options: dict[str, str], added: Alteration, gone: Alteration, n: int | None, reason: str
) -> None:
    table = table_with(tmp_path, options)
    staged = [table.stage_raw(rows((1, n)))], [table.stage(rows((2, n)), order="rows")]
    table.alter(added)
    for one in staged:
        with pytest.raises(StaleWriterError, match=reason):
            table.commit(one)
    table.alter(gone)
    table.commit([table.stage(rows((2, n)), order="rows")])
    assert in_table(table) == {2: n}


def test_a_column_is_not_null_from_a_snapshot_on(tmp_path: Path) -> None:
    table = table_with(tmp_path)
    table.write(rows((1, None), (2, None), (3, 3)))
    with pytest.raises(
        SchemaError,
        match="table 't': ALTER TABLE: column 'n' must have no NULL to become NOT NULL, got 2 rows that have "
        "it, one with id = 1; UPDATE or DELETE them first, nothing was changed",
    ):
        table.alter(REQUIRED)
    table.write(rows((1, 1), (2, 2), kinds="+U -D"))  # NULLs are in a file, and in no row of the table
    table.alter(REQUIRED)
    assert str(Table.open(table.path).schema.column("n")) == "n BIGINT NOT NULL"
    for refused in (lambda: table.write(rows((4, None))), lambda: table.rollback_to(1)):
        with pytest.raises(SchemaError, match="column 'n' is NOT NULL, got"):
            refused()
    table.write(rows((3, None), kinds="-D"))
    older = table.snapshot(1).scan()
    assert older.column("n").to_pylist() == [None, None, 3]
    assert older.schema.field("n").nullable  # by which Spark would leave IS NULL out
    new = Table.create(tmp_path / "new", table.schema)
    new.alter(NULLABLE, REQUIRED)
    assert not new.schema.arrow.field("n").nullable  # it has no older rows
    table.alter(NULLABLE)
    table.write(rows((4, None)))
    assert in_table(table) == {1: 1, 4: None}


def test_a_promise_that_is_made_again_in_one_statement_is_as_late_as_before(tmp_path: Path) -> None:
    table = table_with(tmp_path)
    table.write(rows((1, None), (2, 7), (3, 7)))
    table.delete([])
    table.alter(REQUIRED, AddIndex(UNIQUE))
    table.alter(NULLABLE, REQUIRED, DropIndex(UNIQUE.name), AddIndex(UNIQUE))
    table.alter(AddIndex(Index("same", ("n",), unique=True)))
    assert table.schema.column("n").may_be_null
    assert [index.is_late for index in table.schema.indexes] == [True, True]


def test_where_rows_are_combined_the_result_is_not_null(tmp_path: Path) -> None:
    table = table_with(tmp_path, SUMMED)
    table.write(rows((1, None), (2, None)))
    table.write(rows((1, 5)))
    with pytest.raises(SchemaError, match="got 1 rows that have it, one with id = 2"):
        table.alter(REQUIRED)
    table.write(rows((2, 1)))
    table.alter(REQUIRED)
    table.write(rows((1, None)))
    with pytest.raises(SchemaError, match="'n' is NOT NULL, got 1 keys for which no row gives it a value"):
        table.write(rows((3, None)))
    assert in_table(table) == {1: 5, 2: 1}


def test_a_query_that_began_with_a_not_null_column_finds_no_null_in_it(tmp_path: Path) -> None:
    columns = Column("id", pa.int64()), Column("n", pa.int64(), nullable=False)
    table = Table.create(tmp_path / "t", TableSchema(columns, ("id",)))
    pinned = PinnedColumns.named(table.schema, ("n",), "query")
    table.alter(NULLABLE)
    table.write(rows((1, 1)))
    read = partial(pinned.read, table, lambda names: table.snapshot().scan(names))
    assert read().to_pylist() == [{"n": 1}]
    table.write(rows((1, None)))
    with pytest.raises(SchemaError, match="'n' was NOT NULL when the query began, and now holds NULL"):
        read()


@pytest.mark.parametrize(
    ("change", "n", "reason"),
    [(AddCheck(FEW), 100, "one with id = 1, n = 100"), (REQUIRED, None, "got 1 rows .* one with id = 1")],
)
def test_a_writer_that_comes_first_is_checked_by_the_alteration(
    tmp_path: Path, change: Alteration, n: int | None, reason: str
) -> None:
    table = table_with(tmp_path)
    rivals = [rows((1, n))]

    def publish(path: str, content: bytes) -> bool:
        if rivals:
            Table.open(table.path).write(rivals.pop())
        return put_if_absent(path, content)

    slow = Table.open(table.path)
    slow._committer = Committer(slow.published, Environment(put_if_absent=publish))
    with pytest.raises((CheckViolatedError, SchemaError), match=reason):
        slow.alter(change)
    assert Table.open(table.path).schema == table.schema


NAME = Column("name", pa.string(), length=Length(5))
REFUSED: list[tuple[Alteration, str]] = [
    (DropColumn("n"), "CONSTRAINT few CHECK .* names it; DROP CONSTRAINT few first"),
    (RenameColumn("n", "m"), "RENAME COLUMN 'n': CONSTRAINT few"),
    (WidenColumn("n", pa.decimal128(20, 0)), "wider integer"),
    (WidenColumn("small", pa.int64()), "'small': CONSTRAINT least CHECK"),
    (
        WidenColumn("name", pa.string(), Length(4)),
        r"of type VARCHAR\(5\) can become STRING or .* got VARCHAR\(4\)",
    ),
    (WidenColumn("name", pa.string(), Length(9, is_padded=True)), r"got CHAR\(9\)"),
    (WidenColumn("text", pa.string(), Length(9)), r"of type STRING can become .* got VARCHAR\(9\)"),
    (AddCheck(FEW), "constraint 'few' is declared twice"),
    (AddCheck(Check("n", "n", Field(Ref(0, "n")))), r"CHECK \(n\): condition n: must be BOOLEAN, is BIGINT"),
    (AddCheck(Check("x", "x", Field(Ref(0, "x")))), "unknown column 'x'"),
    (DropCheck("many"), "unknown constraint 'many'; constraints are few, least"),
    (
        AddColumn(Column("d", pa.int64(), default="1")),
        "'d' has a DEFAULT, .* and then ALTER COLUMN d SET DEFAULT",
    ),
    (SetDefault("d", "1"), "unknown column 'd'"),
    (SetNullable("d", nullable=False), "unknown column 'd'"),
    (
        SetNullable("id", nullable=True),
        "column 'id' is of the PRIMARY KEY, which is never",
    ),
]


@pytest.mark.parametrize(("change", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_would_break_a_rule_is_refused(tmp_path: Path, change: Alteration, reason: str) -> None:
    least = Check("least", "small > 0", Call(">", (Field(Ref(0, "small")), Const(0, pa.int32()))))
    columns = (
        Column("id", pa.int64()),
        Column("n", pa.int64()),
        Column("small", pa.int32()),
        NAME,
        Column("text", pa.string()),
    )
    table = Table.create(tmp_path / "t", TableSchema(columns, ("id",), checks=(FEW, least)))
    table.write(pa.table({"id": [1], "n": [1], "small": [1], "name": ["a"], "text": ["b"]}))
    with pytest.raises(SchemaError, match=reason):
        table.alter(change)
    assert table.definition.version == 0


def test_a_refused_change_leaves_nothing_by_which_the_next_one_is_read(tmp_path: Path) -> None:
    """Existing rows are checked in the form of a version that is given again."""
    table = table_with(tmp_path)
    table.write(rows((1, 99)))
    with pytest.raises(CheckViolatedError):
        table.alter(AddCheck(FEW))
    table.alter(AddColumn(Column("note", pa.string())))
    assert table.snapshot().scan().to_pylist() == [{"id": 1, "n": 99, "note": None}]


SWAPPED = RenameColumn("n", "old"), RenameColumn("m", "n")


def test_a_constraint_is_asked_again_where_its_column_is_another_one(tmp_path: Path) -> None:
    columns = Column("id", pa.int64()), Column("n", pa.int64()), Column("m", pa.int64())
    table = Table.create(tmp_path / "t", TableSchema(columns, ("id",), checks=(FEW,)))
    violating = pa.table({"id": [1], "n": [1], "m": [99]})
    staged = table.stage(violating, order="rows")
    for change in (DropCheck("few"), *SWAPPED, AddCheck(FEW)):
        table.alter(change)
    with pytest.raises(StaleWriterError, match=r"few .* was added meanwhile"):
        table.commit([staged])
    table.alter(DropCheck("few"), RenameColumn("n", "m"), RenameColumn("old", "n"), AddCheck(FEW))
    table.write(violating)
    with pytest.raises(CheckViolatedError, match="n = 99"):
        table.alter(DropCheck("few"), *SWAPPED, AddCheck(FEW))


def test_rows_are_checked_again_where_another_process_has_renamed_their_columns(tmp_path: Path) -> None:
    columns = Column("id", pa.int64()), Column("n", pa.int64()), Column("m", pa.int64())
    table = Table.create(tmp_path / "t", TableSchema(columns, ("id",)))
    table.write(pa.table({"id": [1], "n": [1], "m": [99]}))
    renames = [SWAPPED]

    def publish(path: str, content: bytes) -> bool:
        if renames:
            Table.open(table.path).alter(*renames.pop())
        return put_if_absent(path, content)

    table._committer = Committer(table.published, Environment(put_if_absent=publish))
    with pytest.raises(CheckViolatedError, match="n = 99"):
        table.alter(AddCheck(FEW))


def test_a_longer_text_fits_after_alter(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema((NAME,), ("name",)))
    staged = table.stage(pa.table({"name": ["anna  "]}), order="rows")
    table.alter(WidenColumn("name", pa.string(), Length(8)))
    table.commit([staged])
    table.write(pa.table({"name": ["12345678"]}))
    table.alter(WidenColumn("name", pa.string()))
    table.write(pa.table({"name": ["123456789"]}))
    assert sorted(table.snapshot().scan().column("name").to_pylist()) == ["12345678", "123456789", "anna "]
    assert list(table.check()) == []


@pytest.mark.parametrize(
    ("change", "format", "of_copy"),
    [
        (AddCheck(FEW), 2, 2),
        (SetDefault("n", "1"), 2, 2),
        (AddColumn(NAME), 2, 2),
        (REQUIRED, 5, 1),
        (AddIndex(UNIQUE), 5, 1),
    ],
)
def test_releases_that_know_no_rules_refuse_a_table_that_has_some(
    tmp_path: Path, change: Alteration, format: int, of_copy: int
) -> None:
    """Such a release takes format 1 alone, whatever else a file says."""
    table = table_with(tmp_path)
    table.write(rows((1, 1)))
    table.delete([])
    table.alter(change)
    (later,) = Path(table.path, "definition").iterdir()
    files = Path(table.path, "table.json"), later
    assert [json.loads(file.read_text())["format"] for file in files] == [1, format]
    schema = Table.open(table.path).schema
    assert schema == table.schema
    copy = Table.create(tmp_path / "copy", schema)
    assert json.loads(Path(copy.path, "table.json").read_text())["format"] == of_copy
    assert Table.open(copy.path).schema == schema.without_older_rows()
    assert list(table.check()) == []
