"""A column that is added with a value for the existing rows; random lives are in `test_evolution`."""

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from upsert import types
from upsert.conditions.expressions import Call, Const, Field, Ref
from upsert.errors import CheckViolatedError, CorruptTableError, SchemaError
from upsert.schema import Check, Column, Index, Length, TableSchema
from upsert.store import Table
from upsert.store.alterations import (
    AddCheck,
    AddColumn,
    AddIndex,
    DropColumn,
    RenameColumn,
    SetDefault,
    SetOptions,
    WidenColumn,
)
from upsert.store.checksums import FORMAT_OF_INITIAL_VALUES

IDS = TableSchema.of({"id": pa.int64()}, ["id"])
IN_UTC = dt.UTC

SCALARS: list[tuple[pa.DataType, object]] = [
    (pa.bool_(), False),
    (pa.int8(), -128),
    (pa.int64(), -(2**63)),
    (pa.float32(), 0.1),
    (pa.float64(), -0.0),
    (pa.float64(), math.inf),
    (pa.float64(), math.nan),
    (pa.decimal128(38, 18), Decimal("-12345678901234567890.123456789012345678")),
    (pa.string(), "\0é😀'"),
    (pa.binary(), b"\x00\xff"),
    (pa.date32(), dt.date(1, 1, 1)),
    (types.TIMESTAMP, dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, IN_UTC)),
    (types.TIMESTAMP_NTZ, dt.datetime(1, 1, 1)),
    (pa.time64("us"), dt.time(23, 59, 59, 999_999)),
    (pa.time32("s"), dt.time(1, 2, 3)),
    (pa.duration("us"), dt.timedelta(days=-1, microseconds=1)),
    (pa.int32(), None),
]


@pytest.fixture(params=["key", "no key"])
def ids(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    schema = IDS if request.param == "key" else TableSchema.of({"id": pa.int64()})
    table = Table.create(tmp_path / "t", schema)
    table.write(pa.table({"id": [1, 2]}))
    return table


def add(table: Table, type_: pa.DataType, value: object, name: str = "c") -> None:
    table.alter(AddColumn(Column(name, type_), initial=pa.scalar(value, type_)))


@pytest.mark.parametrize(("type_", "value"), SCALARS, ids=[f"{t} {v!r}" for t, v in SCALARS])
def test_older_rows_have_a_value_of_any_scalar_type_and_later_ones_their_own(
    ids: Table, type_: pa.DataType, value: object
) -> None:
    add(ids, type_, value)
    ids.write(pa.table({"id": [3], "c": pa.array([None], type_)}))
    wanted = pa.array([value, value, None], type_)
    if not ids.schema.primary_key and value == 0 and pa.types.is_floating(type_):
        wanted = pa.array([0.0, 0.0, None], type_)  # zeros are one value where whole rows are the key
    for table in (ids, Table.open(ids.path)):
        found = table.snapshot().scan().sort_by("id").column("c").combine_chunks()
        assert repr(found.to_pylist()) == repr(wanted.to_pylist())
    ids.compact()
    found = ids.snapshot().scan().sort_by("id").column("c").combine_chunks()
    assert repr(found.to_pylist()) == repr(wanted.to_pylist())
    assert ids.check(deep=True) == ()


def test_the_column_may_be_not_null_and_rows_staged_before_it_have_the_value_too(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", IDS)
    table.write(pa.table({"id": [1]}))
    staged = [table.stage(pa.table({"id": [2]}), order="rows")], [table.stage_raw(pa.table({"id": [3]}))]
    table.alter(AddColumn(Column("n", pa.int64(), nullable=False), initial=pa.scalar(7)))
    for one in staged:
        table.commit(one)
    assert table.snapshot().scan().sort_by("id").to_pylist() == [{"id": id, "n": 7} for id in (1, 2, 3)]
    with pytest.raises(SchemaError, match="column 'n' is NOT NULL"):
        table.write(pa.table({"id": [4], "n": pa.array([None], pa.int64())}))


def test_the_value_is_that_of_then_whatever_becomes_of_the_default(ids: Table) -> None:
    ids.alter(AddColumn(Column("n", pa.int32(), default="5"), initial=pa.scalar(5)))
    ids.alter(SetDefault("n", None), RenameColumn("n", "m"), WidenColumn("m", pa.int64()))
    assert ids.snapshot().scan().column("m").to_pylist() == [5, 5]
    ids.alter(DropColumn("m"), AddColumn(Column("m", pa.int32())))
    assert ids.snapshot().scan().column("m").to_pylist() == [None, None]


def test_a_wider_type_makes_the_same_of_it_as_of_stored_values(tmp_path: Path) -> None:
    """0.1 of a FLOAT is another DOUBLE than 0.1: no compaction may change what is read."""
    found = []
    for name in ("stored", "not stored"):
        table = Table.create(tmp_path / name, IDS)
        table.write(pa.table({"id": [1]}))
        add(table, pa.float32(), 0.1, "f")
        add(table, pa.decimal128(5, 2), Decimal("1.50"), "d")
        if name == "stored":
            table.write(table.snapshot().scan())
        table.alter(WidenColumn("f", pa.float64()), WidenColumn("d", pa.decimal128(38, 4)))
        found.append(table.snapshot().scan().to_pylist())
    assert found[0] == found[1]
    assert found[0][0]["f"] != 0.1
    assert repr(found[0][0]["d"]) == "Decimal('1.5000')"


def test_changes_images_indexes_and_filters_have_the_value(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", IDS)
    table.write(pa.table({"id": range(100)}))
    before = table.snapshot().id
    table.alter(AddColumn(Column("n", pa.int64()), initial=pa.scalar(7)), AddIndex(Index.over(["n"])))
    altered = table.snapshot().id
    assert table.changes(altered - 1).num_rows == 0, "no row changes by it"
    table.write(pa.table({"id": [1, 2], "n": [8, 7], "_row_kind": ["+U", "-D"]}))
    changes = sorted(map(str, table.changes(before).to_pylist()))
    assert changes == sorted(
        map(
            str,
            [
                {"id": 1, "n": 7, "_row_kind": "-U"},
                {"id": 1, "n": 8, "_row_kind": "+U"},
                {"id": 2, "n": 7, "_row_kind": "-D"},
            ],
        )
    )
    snapshot = table.snapshot()
    assert snapshot.lookup(["n"], pa.table({"n": [7]})).num_rows == 98
    assert snapshot.scan(["id"], where=[("n", "=", 7)]).num_rows == 98
    assert snapshot.scan(["id"], where=[("n", "!=", 7)]).to_pylist() == [{"id": 1}]
    assert table.snapshot(before).scan().column("n").to_pylist() == [7] * 100


def test_a_check_is_asked_of_it(ids: Table) -> None:
    positive = Check("positive", "n > 0", Call(">", (Field(Ref(0, "n")), Const(0, pa.int64()))))
    add(ids, pa.int64(), 0, "n")
    with pytest.raises(CheckViolatedError, match=r"CONSTRAINT positive .* got 2 such"):
        ids.alter(AddCheck(positive))
    add(ids, pa.int64(), 1, "m")
    ids.alter(AddCheck(Check("of_m", "m > 0", Call(">", (Field(Ref(0, "m")), Const(0, pa.int64()))))))


REFUSED: list[tuple[Column, object, str]] = [
    (Column("c", pa.int8()), pa.scalar(300), "column 'c' .* TINYINT"),
    (Column("c", pa.int64()), pa.scalar("x"), "column 'c'.* BIGINT"),
    (
        Column("c", pa.string(), length=Length(2)),
        pa.scalar("abc"),
        r"'c' is VARCHAR\(2\), got 1 longer",
    ),
    (Column("c", pa.int64(), nullable=False), pa.scalar(None, pa.int64()), "'c' is NOT NULL, got NULL; give"),
    (Column("c", pa.int64()), 5, r"must be a pyarrow.Scalar, got 5; write pa.scalar\(…\)"),
    (Column("c", pa.list_(pa.int64())), pa.scalar([1]), "ARRAY<BIGINT> cannot be .* UPDATE the rows"),
    (
        Column("c", pa.date32()),
        pa.scalar(-800_000, pa.date32()),
        r"DATE cannot be -0?221-09-04; add .* UPDATE",
    ),
    (
        Column("c", types.TIMESTAMP),
        pa.scalar(-(10**17), types.TIMESTAMP),
        r"TIMESTAMP cannot be -1199-02-15 14:13:20.* UPDATE the rows",
    ),
    (Column("c", pa.time64("ns")), pa.scalar(1, pa.time64("ns")), r"TIME\(9\) cannot be .* UPDATE the rows"),
]


@pytest.mark.parametrize(("column", "value", "reason"), REFUSED, ids=[reason for *_, reason in REFUSED])
def test_a_value_that_the_column_cannot_have_is_refused(
    ids: Table, column: Column, value: pa.Scalar, reason: str
) -> None:
    with pytest.raises(SchemaError, match=f"'t': ALTER TABLE: ADD COLUMN: value of existing rows.*{reason}"):
        ids.alter(AddColumn(column, initial=value))
    assert ids.schema.names == ("id",)


@pytest.mark.parametrize("engine", ["partial-update", "aggregation"])
@pytest.mark.parametrize("default", [None, "1"])
def test_where_several_rows_become_one_no_value_can_be_given(
    tmp_path: Path, engine: str, default: str | None
) -> None:
    table = Table.create(tmp_path / "t", IDS, {"merge-engine": engine})
    table.alter(AddColumn(Column("m", pa.int64(), default=default)))
    table.write(pa.table({"id": [1], "m": [1]}))
    with pytest.raises(
        SchemaError, match=r"to column 'o', .* insert it for each key, and then ALTER COLUMN o SET"
    ):
        table.alter(AddColumn(Column("o", pa.int64(), default=default), initial=pa.scalar(1)))


def test_first_row_and_sequences_keep_their_rows(tmp_path: Path) -> None:
    schema = TableSchema.of({"id": pa.int64(), "seq": pa.int64()}, ["id"])
    for name, options in (("f", {"merge-engine": "first-row"}), ("s", {"sequence.field": "seq"})):
        table = Table.create(tmp_path / name, schema, options)
        table.write(pa.table({"id": [1, 2], "seq": [5, 5]}))
        add(table, pa.string(), "old")
        table.write(pa.table({"id": [1, 2, 3], "seq": [4, 4, 4], "c": ["new"] * 3}))
        assert table.snapshot().scan().sort_by("id").column("c").to_pylist() == ["old", "old", "new"]


def test_earlier_releases_refuse_the_definition_and_a_damaged_value_is_told(ids: Table) -> None:
    add(ids, pa.int64(), 7)
    (path,) = (Path(ids.path) / "definition").iterdir()
    value = json.loads(path.read_text())
    assert value["format"] == FORMAT_OF_INITIAL_VALUES
    assert value["schema"]["columns"][-1]["initial"] == {"const": 7, "type": "long"}
    with pytest.raises(CorruptTableError):
        TableSchema.from_json(
            {**value["schema"], "columns": [{**value["schema"]["columns"][-1], "initial": {"const": "x"}}]}
        )


def test_a_table_made_of_the_schema_has_no_older_rows(ids: Table, tmp_path: Path) -> None:
    add(ids, pa.int64(), 7)
    copy = Table.create(tmp_path / "copy", ids.schema)
    assert [column.initial for column in copy.schema.columns] == [None, None]


@pytest.mark.parametrize("buckets", ["1", "3"])
def test_another_number_of_buckets_keeps_the_values(tmp_path: Path, buckets: str) -> None:
    table = Table.create(tmp_path / "t", IDS, {"bucket": "2"})
    table.write(pa.table({"id": range(10)}))
    table.alter(AddColumn(Column("n", pa.int64()), initial=pa.scalar(7)), SetOptions({"bucket": buckets}))
    assert table.snapshot().scan().column("n").to_pylist() == [7] * 10
    assert [one for one in table.check(deep=True) if not one.is_information] == []
