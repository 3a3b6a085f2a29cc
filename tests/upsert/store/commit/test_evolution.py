"""Random lives of tables whose columns change while rows are written, compacted and read, against a dict."""

import datetime as dt
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.upsert.store.disk import KILLED, run
from upsert import types
from upsert.errors import ConfigurationError, CorruptTableError, SchemaError, StaleWriterError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema
from upsert.store import Table
from upsert.store.alterations import (
    AddColumn,
    AddField,
    Alteration,
    DropColumn,
    MoveColumn,
    RenameColumn,
    ResetOptions,
    SetComment,
    SetNullable,
    SetOptions,
    TrackPartition,
    WidenColumn,
    altered,
)
from upsert.store.commit.committer import Committer, Environment
from upsert.store.files.data_file import forget_open_files
from upsert.store.metadata.definition import Definition
from upsert.store.read.pinned_columns import PinnedColumns
from upsert.store.storage import put_if_absent

FAMILIES: tuple[tuple[pa.DataType, ...], ...] = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.float32(), pa.float64()),
    (pa.decimal128(5, 2), pa.decimal128(10, 4), pa.decimal128(38, 10)),
    (pa.string(),),
    (pa.list_(pa.int64()),),
)
VALUES: Mapping[int, list[Any]] = {
    0: [None, -128, 0, 127],
    1: [None, 0.5, -2.0],
    2: [None, Decimal("-999.99"), Decimal("0.50")],
    3: [None, "", "x"],
    4: [None, [], [1, None]],
}
NAMES = ["a", "b", "c", "d"]


@dataclass
class Model:
    """What the table must hold: columns by a token that no other column has, rows by key or with counts."""

    columns: list[list[Any]]  # [name, token, family, step within the family]
    rows: dict[Any, dict[int, Any]] = field(default_factory=dict)
    tokens: int = 2
    initial: dict[int, Any] = field(default_factory=dict)
    required: set[int] = field(default_factory=set)

    def value(self, row: Mapping[int, Any], token: int) -> Any:
        """What a row has in a column, also one that was written before the column was there."""
        return row.get(token, self.initial.get(token))

    def names(self) -> list[str]:
        return [name for name, *_ in self.columns]

    def drawn_row(self, data: st.DataObject) -> dict[int, Any]:
        return {
            token: data.draw(st.sampled_from(VALUES[family][token in self.required :]))
            for _, token, family, _ in self.columns
        }

    def as_tuple(self, row: Mapping[int, Any]) -> tuple[Any, ...]:
        return tuple(repr(self.value(row, token)) for _, token, *_ in self.columns)

    def arrow(self, keys: list[int], rows: list[dict[int, Any]], kinds: list[str] | None = None) -> pa.Table:
        columns = {"id": pa.array(keys, pa.int64())} if keys else {}
        for name, token, family, step in self.columns:
            columns[name] = pa.array([self.value(row, token) for row in rows], FAMILIES[family][step])
        if kinds is not None:
            columns[ROW_KIND_COLUMN] = pa.array(kinds, pa.string())
        return pa.table(columns)

    def requirement(self, data: st.DataObject, table: Table) -> Alteration | None:
        """Another column that is NOT NULL, if no row has NULL in it, or one less."""
        name, token, *_ = data.draw(st.sampled_from(self.columns))
        if token in self.required:
            self.required.remove(token)
            return SetNullable(name, nullable=True)
        if nulls := sum(self.value(row, token) is None for row in self.rows.values()):
            with pytest.raises(SchemaError, match=f"{name!r} must have no NULL .*, got {nulls} rows"):
                table.alter(SetNullable(name, nullable=False))
            return None
        self.required.add(token)
        return SetNullable(name, nullable=False)

    def altered_by(self, step: str, data: st.DataObject, table: Table) -> Alteration | None:
        return self.requirement(data, table) if step == "require" else self.alteration(data)

    def alteration(self, data: st.DataObject) -> Alteration | None:
        """A change that is possible, made of the model too."""
        kind = data.draw(st.sampled_from(["add", "drop", "rename", "widen", "move"]))
        free = [name for name in NAMES if name not in self.names()]
        if kind == "add" and free:
            name, family = free[0], data.draw(st.integers(0, len(FAMILIES) - 1))
            after = data.draw(st.sampled_from([None, "", *self.names()]))
            place = len(self.columns) if after is None else 1 + self.names().index(after) if after else 0
            self.tokens += 1
            self.columns.insert(place, [name, self.tokens, family, 0])
            column, initial = Column(name, FAMILIES[family][0]), None
            if FAMILIES[family] != (pa.list_(pa.int64()),) and data.draw(st.booleans()):
                initial = pa.scalar(data.draw(st.sampled_from(VALUES[family])), column.type)
                self.initial[self.tokens] = initial.as_py()
            return AddColumn(column, self._after(after), initial)
        if kind == "drop" and len(self.columns) > 2:
            dropped = data.draw(st.sampled_from(self.columns[:]).filter(lambda column: column[1] != 1))
            self.columns.remove(dropped)
            return DropColumn(dropped[0])
        if kind == "move" and self.columns[1:]:
            moved = self.columns.pop(data.draw(st.integers(0, len(self.columns) - 1)))
            after = data.draw(st.sampled_from(["", *self.names()]))
            self.columns.insert(1 + self.names().index(after) if after else 0, moved)
            return MoveColumn(moved[0], self._after(after) or "")
        if kind == "rename" and free:
            column = data.draw(st.sampled_from(self.columns))
            old, column[0] = column[0], free[0]
            return RenameColumn(old, free[0])
        if kind == "widen":
            column = data.draw(st.sampled_from(self.columns))
            if column[3] + 1 < len(FAMILIES[column[2]]):
                column[3] += 1
                return WidenColumn(column[0], FAMILIES[column[2]][column[3]])
        return None

    def _after(self, after: str | None) -> str | None:
        return self.first if after == "" else after

    first: str = ""


def shown(rows: pa.Table, names: list[str]) -> Counter[tuple[Any, ...]]:
    """Rows as texts of their values, in which a decimal has no scale and a float no width."""
    return Counter(tuple(repr(_plain(row[name])) for name in names) for row in rows.to_pylist())


def _plain(value: Any) -> Any:
    return value.normalize() if isinstance(value, Decimal) else value


def expected(model: Model, with_key: bool) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for key, row in model.rows.items():
        values = tuple(repr(_plain(model.value(row, token))) for _, token, *_ in model.columns)
        found[((repr(key),) if with_key else ()) + values] += 1
    return found


def check_changes(table: Table, since: int, names: list[str]) -> None:
    """The older rows, read with the present columns, become the present ones by the changes."""
    before, now = shown(table.snapshot(since).scan(), names), shown(table.snapshot().scan(), names)
    for row in table.changes(since).to_pylist():
        before[tuple(repr(_plain(row[name])) for name in names)] += (
            1 if row[ROW_KIND_COLUMN][0] == "+" else -1
        )
    assert +before == now
    assert min(before.values(), default=0) >= 0


@settings(max_examples=max(10, settings.default.max_examples // 4))
@given(st.data(), st.sampled_from(["1", "3"]))
def test_rows_of_a_keyed_table_are_those_of_the_dict_whatever_became_of_its_columns(data, buckets) -> None:
    model = Model([["a", 1, 0, 0], ["b", 2, 3, 0]], first="id")
    schema = TableSchema.of({"id": pa.int64(), "a": pa.int8(), "b": pa.string()}, primary_key=["id"]).index(
        "a"
    )
    with TemporaryDirectory() as folder:
        writer = Table.create(
            folder + "/t", schema, {"bucket": buckets, "num-sorted-run.compaction-trigger": "4"}
        )
        reader = Table.open(writer.path)
        for _ in range(data.draw(st.integers(2, 9))):
            step = data.draw(
                st.sampled_from(["write", "alter", "alter", "require", "stale", "stale raw", "compact"])
            )
            keys = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True))
            if step in ("write", "stale", "stale raw"):
                rows = [model.drawn_row(data) for _ in keys]
                kinds = [data.draw(st.sampled_from(["+U", "+U", "-D"])) for _ in keys]
                arrow = model.arrow(keys, rows, kinds)
                staged = writer.stage_raw(arrow) if step == "stale raw" else writer.stage(arrow, order="rows")
                if step != "write" and (change := model.alteration(data)):
                    reader.alter(change)
                writer.commit([staged])
                for key, row, kind in zip(keys, rows, kinds, strict=True):
                    model.rows.pop(key, None)
                    if kind != "-D":
                        model.rows[key] = row
            elif step in ("alter", "require") and (change := model.altered_by(step, data, writer)):
                writer.alter(change)
            elif step == "compact":
                writer.compact()
            names = ["id", *model.names()]
            assert shown(reader.snapshot().scan(), names) == expected(model, with_key=True)
            assert list(reader.schema.names) == names
        forget_open_files()
        check_lookups(reader, model)
        check_changes(reader, data.draw(st.integers(0, reader.snapshot().id)), names)
        assert reader.check(deep=True) == ()
        writer.compact()
        assert shown(Table.open(writer.path).snapshot().scan(), names) == expected(model, with_key=True)


def check_lookups(table: Table, model: Model) -> None:
    """By the key and by the index, whose column may have been renamed and widened."""
    snapshot, names = table.snapshot(), ["id", *model.names()]
    every = expected(model, with_key=True)
    assert shown(snapshot.lookup(["id"], pa.table({"id": list(range(8))})), names) == every
    name, token, family, step = next(column for column in model.columns if column[1] == 1)
    keys = pa.table({name: pa.array([-128, 127, 5], FAMILIES[family][step])})
    wanted = [key for key, row in model.rows.items() if model.value(row, token) in (-128, 127)]
    assert sorted(snapshot.lookup([name], keys)["id"].to_pylist()) == sorted(wanted)
    scanned = snapshot.scan(["id"], where=[(name, ">", 0)])["id"].to_pylist()
    assert sorted(scanned) == sorted(
        key for key, row in model.rows.items() if (model.value(row, token) or 0) > 0
    )


@settings(max_examples=max(10, settings.default.max_examples // 4))
@given(st.data(), st.sampled_from([{}, {"bucket": "3"}, {"bucket": "2", "bucket-key": "a"}]))
def test_rows_of_a_table_without_key_are_those_of_the_list(data, options) -> None:
    model = Model([["a", 1, 0, 0], ["b", 2, 3, 0]])
    model.first = ""
    with TemporaryDirectory() as folder:
        table = Table.create(folder + "/t", TableSchema.of({"a": pa.int8(), "b": pa.string()}), options)
        for number in range(data.draw(st.integers(2, 7))):
            step = data.draw(st.sampled_from(["write", "delete", "alter", "require", "compact"]))
            if step == "write":
                rows = [model.drawn_row(data) for _ in range(data.draw(st.integers(1, 4)))]
                table.write(model.arrow([], rows))
                model.rows |= {(number, place): row for place, row in enumerate(rows)}
            elif step == "delete" and model.rows:
                key = data.draw(st.sampled_from(sorted(model.rows)))
                table.write(model.arrow([], [model.rows.pop(key)], ["-D"]))
            elif step == "alter":
                before = [column[:] for column in model.columns]
                if change := model.alteration(data):
                    try:
                        table.alter(change)
                    except SchemaError:
                        assert options.get("bucket-key")
                        model.columns = before
            elif step == "require" and (change := model.requirement(data, table)):
                table.alter(change)
            elif step == "compact":
                table.compact()
            assert shown(table.snapshot().scan(), model.names()) == expected(model, with_key=False)
        check_changes(table, data.draw(st.integers(0, table.snapshot().id)), model.names())
        assert table.check(deep=True) == ()


USERS = TableSchema.of({"id": pa.int64(), "age": pa.int32(), "name": pa.string()}, primary_key=["id"])


@pytest.fixture
def users(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "users", USERS)
    table.write(pa.table({"id": [1], "age": pa.array([30], pa.int32()), "name": ["ann"]}))
    return table


def test_a_column_added_under_a_dropped_one_s_name_is_another_column(users: Table) -> None:
    users.alter(DropColumn("age"), AddColumn(Column("age", pa.int32())))
    assert users.snapshot().scan().to_pylist() == [{"id": 1, "name": "ann", "age": None}]
    assert users.snapshot().scan(where=[("age", "=", 30)]).num_rows == 0


def test_a_restored_table_is_read_by_its_own_definition_of_a_number(
    tmp_path: Path,
) -> None:
    schema = TableSchema.of({name: pa.int64() for name in ("id", "a", "b")}, ["id"])
    table = Table.create(tmp_path / "t", schema, {"write-only": "true"})
    for n in (1, 2):
        table.write(pa.table({"id": [1], "a": [n], "b": [-n]}))
    shutil.copytree(table.path, tmp_path / "copy")
    found = []
    for name in ("a", "b"):
        table.alter(RenameColumn(name, "x"))
        found.append(
            [*table.snapshot().scan(["x"])["x"].to_pylist(), *table.changes(1, 2, ["x"])["x"].to_pylist()]
        )
        shutil.rmtree(table.path)
        shutil.copytree(tmp_path / "copy", table.path)
    assert found == [[2, 1, 2], [-2, -1, -2]]


def test_an_older_snapshot_has_the_present_columns(users: Table) -> None:
    users.alter(RenameColumn("name", "title"))
    users.write(pa.table({"id": [1], "age": [31], "title": ["bob"]}))
    assert users.snapshot(1).scan().to_pylist() == [{"id": 1, "age": 30, "title": "ann"}]


def test_comments_and_options_make_versions_that_change_no_rows(users: Table) -> None:
    users.alter(SetComment("age", "in years"), SetComment(None, "people"), SetOptions({"write-only": "true"}))
    assert (users.schema.column("age").comment, users.schema.comment) == ("in years", "people")
    assert users.options.write_only
    assert users.definition.given == {"write-only": "true"}
    users.alter(ResetOptions(("write-only", "bucket")))
    assert not users.options.write_only
    latest = users.snapshot().info
    assert (latest.kind, latest.data_version, latest.definition) == ("alter", 1, 2)
    users.alter(SetComment("age", "in years"))
    assert users.snapshot().id == latest.id, "nothing has changed"


def test_a_partition_s_tracking_is_part_of_the_definition(tmp_path: Path) -> None:
    schema = TableSchema(
        (Column("day", pa.date32()), Column("n", pa.int64())), ("day", "n"), partitioned_by=("day",)
    )
    table = Table.create(tmp_path / "days", schema)
    table.alter(TrackPartition({"day": dt.date(2026, 1, 1)}, is_tracked=False))
    assert Table.open(table.path).definition.untracked == {(("day", "2026-01-01"),)}
    table.alter(TrackPartition({"day": "2026-01-01"}, is_tracked=True))
    assert not table.definition.untracked
    with pytest.raises(ConfigurationError, match=r"must name each of \(day\), got nothing"):
        table.alter(TrackPartition({}, is_tracked=False))


REFUSED: list[tuple[Alteration, str]] = [
    (DropColumn("id"), "DROP COLUMN 'id': PRIMARY KEY needs it"),
    (DropColumn("age"), "DROP COLUMN 'age': index 'INDEX_age' needs it"),
    (DropColumn("seq"), "DROP COLUMN 'seq': option 'sequence.field' needs it"),
    (DropColumn("nobody"), "unknown column 'nobody'"),
    (RenameColumn("age", "name"), "there is a column 'name'"),
    (RenameColumn("day", "date"), "PARTITIONED BY names it"),
    (AddColumn(Column("age", pa.int8())), "there is a column of this name"),
    (AddColumn(Column("Age", pa.int8())), "columns 'age' and 'Age' differ in case alone"),
    (RenameColumn("age", "NAME"), "columns 'NAME' and 'name' differ in case alone"),
    (AddColumn(Column("x", pa.int8(), nullable=False)), "column 'x' is NOT NULL, and present rows"),
    (AddColumn(Column("x", pa.int8()), after="nobody"), "unknown column 'nobody'"),
    (AddColumn(Column("_kind", pa.int8())), "'_kind' is used inside"),
    (MoveColumn("age", "age"), "column 'age' must come after another one; name that"),
    (MoveColumn("age", "nobody"), "unknown column 'nobody'"),
    (MoveColumn("nobody", ""), "unknown column 'nobody'"),
    (
        AddField(("name", "x"), pa.int8()),
        "ADD COLUMN name.x: column 'name': only a STRUCT has fields, got STRING",
    ),
    (AddField(("nobody", "x"), pa.int8()), "unknown column 'nobody'"),
    (AddField(("at", "LAT"), pa.int8()), "there is a field 'LAT' among lat; choose another name"),
    (AddField(("at", "lon", "x"), pa.int8()), "STRUCT<lat: INT> has no part 'lon'"),
    (AddField(("at", "lat", "x"), pa.int8()), "column 'at': 'lat': only a STRUCT has fields, got INT"),
    (AddField(("at", "lon"), pa.month_day_nano_interval()), "Spark has no type that equals"),
    (WidenColumn("at", pa.struct([("lat", pa.int64())])), "got STRUCT<lat: BIGINT>; add another column"),
    (WidenColumn("id", pa.int64()), "must stay INT: PRIMARY KEY places rows by it"),
    (WidenColumn("age", pa.int8()), "got TINYINT; add another column"),
    (WidenColumn("age", pa.float64()), "got DOUBLE; add another column"),
    (WidenColumn("day", types.TIMESTAMP_NTZ), "of type DATE can become .* got TIMESTAMP_NTZ"),
    (SetOptions({"bucket": "0"}), "option 'bucket' must be a positive integer, got '0'"),
    (SetOptions({"bucket": "1000001"}), "option 'bucket' must be at most 1000000, got 1000001"),
    (SetOptions({"bucket-key": "id"}), "option 'bucket-key' cannot change"),
    (SetOptions({"merge-engine": "partial-update"}), "option 'merge-engine' cannot change"),
    (SetOptions({"sequence.field": "age"}), "option 'sequence.field' cannot change"),
    (ResetOptions(("sequence.field",)), "option 'sequence.field' cannot change"),
    (ResetOptions(("bukcet",)), "unknown option 'bukcet'"),
    (SetOptions({"bukcet": "4"}), "did you mean 'bucket'"),
]


@pytest.mark.parametrize(("change", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_cannot_change_is_refused_by_name(tmp_path: Path, change: Alteration, reason: str) -> None:
    columns = {
        "day": pa.date32(),
        "id": pa.int32(),
        "age": pa.int32(),
        "name": pa.string(),
        "seq": pa.int64(),
        "at": pa.struct([("lat", pa.int32())]),
    }
    schema = TableSchema.of(columns, ["day", "id"], ["day"]).index("age")
    table = Table.create(tmp_path / "t", schema, {"sequence.field": "seq"})
    rows = {"day": [None], "id": [1], "age": [1], "name": ["a"], "seq": [1], "at": [{"lat": 1}]}
    table.write(pa.table({**rows, "day": [dt.date(2026, 1, 1)]}))
    with pytest.raises((SchemaError, ConfigurationError), match=reason):
        table.alter(SetComment("age", "half of it"), change)
    assert table.definition.version == 0
    assert table.snapshot().id == 1


def test_a_table_of_an_earlier_release_with_names_that_differ_in_case_can_be_altered() -> None:
    """It could be created then; from now on each alteration keeps its names, or makes them different."""
    old = Definition(0, TableSchema.of({"id": pa.int64(), "ID": pa.int64()}, ["id"]))
    assert altered(old, [SetComment("ID", "another one")]).version == 1
    assert altered(old, [RenameColumn("ID", "id2")]).schema.names == ("id", "id2")
    with pytest.raises(SchemaError, match="columns 'id' and 'ID' differ in case alone"):
        altered(old, [AddColumn(Column("n", pa.int64()))])


def test_a_not_null_column_goes_into_an_empty_table_and_rows_staged_before_it_do_not(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "users", USERS)
    rows = pa.table({"id": [1], "age": [30], "name": ["ann"]})
    staged = [table.stage(rows, order="rows")], [table.stage_raw(rows)]
    table.alter(AddColumn(Column("since", pa.int64(), nullable=False)))
    for one in staged:
        with pytest.raises(StaleWriterError, match="column 'since', which was added meanwhile, is NOT NULL"):
            table.commit(one)
    assert table.snapshot().row_count == 0


POINT = pa.struct([pa.field("x", pa.int32(), nullable=False)])
NESTED: Mapping[str, tuple[pa.DataType, tuple[str, ...], list[Any], list[Any]]] = {
    "struct": (POINT, ("p", "y"), [{"x": 1}, None], [{"x": 1, "y": None}, None]),
    "array": (
        pa.list_(POINT),
        ("p", "element", "y"),
        [[{"x": 1}, None], None],
        [[{"x": 1, "y": None}, None], None],
    ),
    "map": (
        pa.map_(pa.string(), POINT),
        ("p", "value", "y"),
        [[("a", {"x": 1})], []],
        [[("a", {"x": 1, "y": None})], []],
    ),
    "deep": (
        pa.struct([pa.field("s", pa.list_(POINT)), pa.field("t", pa.string())]),
        ("p", "s", "element", "y"),
        [{"s": [{"x": 1}], "t": "a"}, {"s": None, "t": None}],
        [{"s": [{"x": 1, "y": None}], "t": "a"}, {"s": None, "t": None}],
    ),
}


@pytest.mark.parametrize("form", ["arrow", "parquet"])
@pytest.mark.parametrize("key", [("id",), ()])
@pytest.mark.parametrize("kind", NESTED)
def test_existing_rows_have_null_in_a_field_that_is_added(
    tmp_path: Path, kind: str, key: tuple[str, ...], form: str
) -> None:
    type_, path, before, after = NESTED[kind]
    schema = TableSchema.of({"id": pa.int64(), "p": type_}, key)
    table = Table.create(tmp_path / "t", schema, {"file.format": form})
    old = pa.table({"id": [1, 2], "p": pa.array(before, type_)})
    pinned = PinnedColumns.named(table.schema, ["id", "p"], "query")
    first = table.write(old)
    staged = table.stage_raw(pa.table({"id": [3], "p": pa.array(before[:1], type_)}))
    table.alter(AddField(path, pa.string()))
    if key:
        table.commit([staged])
    else:  # their identity is another one now
        with pytest.raises(StaleWriterError):
            table.commit([staged])
        table.write(pa.table({"id": [3], "p": pa.array(after[:1], table.schema.type_of("p"))}))
    expected = [{"id": n, "p": value} for n, value in enumerate((*after, after[0]), 1)]
    for found in (table.snapshot(), Table.open(table.path).snapshot()):
        assert found.scan().sort_by("id").to_pylist() == expected
    assert table.snapshot(first.id).scan().sort_by("id").to_pylist() == expected[:2]
    read = pinned.read(table, lambda names: table.snapshot().scan(list(names)))
    assert read.sort_by("id").slice(0, 2).to_pylist() == old.to_pylist()
    table.compact()
    new = pa.array(after, table.schema.type_of("p"))
    table.write(pa.table({"id": [1, 2], "p": new, ROW_KIND_COLUMN: ["-D", "-D"]}))
    assert table.snapshot().scan().to_pylist() == expected[2:]
    assert [found for found in table.check(deep=True) if not found.is_information] == []


def test_whole_rows_staged_before_their_columns_changed_are_written_again(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"a": pa.int64()}))
    staged = table.stage(pa.table({"a": [1]}), order="rows")
    table.alter(RenameColumn("a", "x"))
    table.commit([staged])
    staged = table.stage(pa.table({"x": [2]}), order="rows")
    table.alter(AddColumn(Column("b", pa.int64())))
    with pytest.raises(StaleWriterError, match="rows without PRIMARY KEY are told apart"):
        table.commit([staged])
    assert table.snapshot().scan().to_pylist() == [{"x": 1, "b": None}]


def test_a_deletion_of_a_whole_row_staged_before_its_columns_changed_is_written_again(tmp_path: Path) -> None:
    """It is not that there are too few such rows: under the new columns they are other ones."""
    table = Table.create(tmp_path / "t", TableSchema.of({"a": pa.int64()}))
    table.write(pa.table({"a": [1]}))
    staged = table.stage(pa.table({"a": [1], ROW_KIND_COLUMN: ["-D"]}), order="rows")
    table.alter(AddColumn(Column("b", pa.int64())))
    with pytest.raises(StaleWriterError, match="rows without PRIMARY KEY are told apart"):
        table.commit([staged])
    assert table.snapshot().scan().to_pylist() == [{"a": 1, "b": None}]


def test_of_two_that_alter_at_once_the_second_builds_on_the_first(users: Table) -> None:
    rivals = [AddColumn(Column("first", pa.int8()))]

    def publish(path: str, content: bytes) -> bool:
        if rivals:
            Table.open(users.path).alter(rivals.pop())
        return put_if_absent(path, content)

    slow = Table.open(users.path)
    slow._committer = Committer(slow.published, Environment(put_if_absent=publish))
    slow.alter(AddColumn(Column("second", pa.int8())))
    assert slow.schema.names == ("id", "age", "name", "first", "second")
    assert [column.id for column in slow.schema.columns] == [1, 2, 3, 4, 5]
    assert slow.definition.version > Table.open(users.path).published.info(2).definition


@pytest.mark.parametrize("upkeep", ["compact", "clean"])
def test_whole_rows_are_in_the_new_form_though_their_files_are_others_by_then(
    tmp_path: Path, upkeep: str
) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"a": pa.int64()}), {"write-only": "true"})
    for value in (1, 1, 2):
        table.write(pa.table({"a": [value]}))
    rivals: list[Callable[[Table], object]] = [
        Table.compact if upkeep == "compact" else partial(Table.clean, older_than_s=0)
    ]

    def publish(path: str, content: bytes) -> bool:
        if rivals:
            rivals.pop()(Table.open(table.path))
        return put_if_absent(path, content)

    slow = Table.open(table.path)
    slow._committer = Committer(slow.published, Environment(put_if_absent=publish))
    slow.alter(AddColumn(Column("b", pa.int8())))
    assert sorted(row["a"] for row in table.snapshot().scan().to_pylist()) == [1, 1, 2]
    assert [found for found in table.check(deep=True) if not found.is_information] == []


def test_whole_rows_that_come_while_their_columns_change_are_in_the_new_form(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"a": pa.int64(), "b": pa.int64()}), {"bucket": "2"})
    table.write(pa.table({"a": [1, 1], "b": [1, 2]}))
    rivals = [pa.table({"a": [1, 2], "b": [3, 3]})]

    def publish(path: str, content: bytes) -> bool:
        if rivals:
            Table.open(table.path).write(rivals.pop())
        return put_if_absent(path, content)

    slow = Table.open(table.path)
    slow._committer = Committer(slow.published, Environment(put_if_absent=publish))
    slow.alter(DropColumn("b"))
    table.write(pa.table({"a": [1, 1, 1], ROW_KIND_COLUMN: ["-D"] * 3}))
    assert table.snapshot().scan().to_pylist() == [{"a": 2}]


@pytest.mark.parametrize("point", ["alter.after-definition", "publish.before-link:2", "publish.after-link:2"])
def test_a_crash_leaves_the_old_definition_or_the_new_one(users: Table, point: str) -> None:
    change = AddColumn(Column("city", pa.string()))
    assert run(lambda: users.alter(change), point) == KILLED
    table = Table.open(users.path)
    assert table.schema.names in (("id", "age", "name"), ("id", "age", "name", "city"))
    if "city" not in table.schema.names:
        table.alter(change)
    table.write(pa.table({"id": [2], "age": [1], "name": ["bob"], "city": ["york"]}))
    assert {row["city"] for row in table.snapshot().scan().to_pylist()} == {None, "york"}


def test_a_damaged_or_missing_definition_is_named(users: Table) -> None:
    users.alter(AddColumn(Column("city", pa.string())))
    (file,) = Path(users.path, "definition").iterdir()
    content = file.read_text()
    for damaged in (
        "{}",
        content.replace('"version": 1', '"version": 2'),
        content.replace("long", "lang"),
        "",
    ):
        file.write_text(damaged)
        users.published._definitions.pop(1, None)
        with pytest.raises(CorruptTableError, match=r"definition-0+1"):
            users.published.definition_at(1)
    file.unlink()
    with pytest.raises(CorruptTableError, match="is missing"):
        users.published.definition_at(1)
