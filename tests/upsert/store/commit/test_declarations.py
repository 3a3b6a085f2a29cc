"""What a table declares of its columns changes while rows are there: indexes, computed columns and so on."""

from pathlib import Path

import pyarrow as pa
import pytest

from upsert.errors import ConfigurationError, DuplicateKeyError, SchemaError
from upsert.schema import Column, ComputedColumn, Index, TableSchema, Watermark
from upsert.store import Table
from upsert.store.alterations import (
    AddComputed,
    AddIndex,
    AddWatermark,
    Alteration,
    DropColumn,
    DropIndex,
    DropWatermark,
    ModifyWatermark,
    RenameColumn,
    SetComment,
    SetOptions,
    altered,
)
from upsert.store.files.data_file import forget_open_files
from upsert.store.metadata import table_file
from upsert.store.metadata.definition import Definition
from upsert.types import TIMESTAMP

HUBS = TableSchema.of({"id": pa.int64(), "hub": pa.string(), "n": pa.int64()}, primary_key=["id"])
VISITS = Definition(0, TableSchema.of({"id": pa.int64(), "at": TIMESTAMP}, primary_key=["id"]))


def test_added_index_finds_rows_of_every_file_and_a_dropped_one_serves_none(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", HUBS.index("n", name="by"), {"write-only": "true"})
    table.write(pa.table({"id": [1, 2], "hub": ["JFK", "EWR"], "n": [7, 8]}))
    # the same name over other columns: what the first file's sidecar has under it must not be believed
    table.alter(DropIndex("by"), AddIndex(Index("by", ("hub",))))
    table.write(pa.table({"id": [3], "hub": ["JFK"], "n": [7]}))
    for _ in range(2):
        found = table.snapshot().lookup(["hub"], pa.table({"hub": ["JFK"]}))
        assert sorted(found["id"].to_pylist()) == [1, 3]
        forget_open_files()
    with pytest.raises(SchemaError, match="needs an index within these columns"):
        table.snapshot().lookup(["n"], pa.table({"n": [7]}))
    table.compact()
    assert table.snapshot().lookup(["hub"], pa.table({"hub": ["EWR"]}))["id"].to_pylist() == [2]
    assert table.check(deep=True) == ()


def test_two_indexes_of_the_same_columns_are_one_for_lookups(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", HUBS.index("hub"))
    table.write(pa.table({"id": [1], "hub": ["JFK"], "n": [7]}))
    table.alter(AddIndex(Index("again", ("hub",))))
    table.write(pa.table({"id": [2], "hub": ["JFK"], "n": [7]}))
    assert table.snapshot().lookup(["hub"], pa.table({"hub": ["JFK"]})).num_rows == 2


def test_a_unique_index_follows_its_columns_and_is_checked_of_others(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", HUBS)
    table.alter(AddIndex(Index.over(["n"], unique=True)))
    table.write(pa.table({"id": [1, 2], "hub": ["JFK", "JFK"], "n": [1, 2]}))
    table.alter(RenameColumn("n", "m"))
    with pytest.raises(DuplicateKeyError, match=r"ALTER TABLE: UNIQUE two \(hub\) must have one row a key"):
        table.alter(AddIndex(Index("two", ("hub",), unique=True)))
    with pytest.raises(DuplicateKeyError, match=r"ALTER TABLE: UNIQUE two \(m\) must have one row a key"):
        table.alter(RenameColumn("m", "n"), RenameColumn("hub", "m"), AddIndex(Index("two", ("m",), True)))
    assert not any(index.is_late for index in table.schema.indexes)
    with pytest.raises(SchemaError, match="DROP INDEX: unknown index 'x'; indexes are INDEX_n"):
        table.alter(DropIndex("x"))


def test_an_index_may_be_called_as_messages_call_the_primary_key(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", HUBS.index("hub", name="PRIMARY KEY"))
    table.write(pa.table({"id": [1, 2], "hub": ["JFK", "EWR"], "n": [7, 8]}))
    found = table.snapshot().match_few(["hub"], pa.table({"hub": ["JFK"]}), most=1)
    assert found is not None
    assert found["id"].to_pylist() == [1]


def test_computed_columns_watermark_and_comments_come_change_and_go() -> None:
    version = Column("version", pa.int64(), metadata="snapshot-id")
    made = altered(
        VISITS,
        [
            AddComputed(ComputedColumn("double", "id * 2", ("id",), 0)),
            AddComputed(version),
            AddWatermark(Watermark("at", 5)),
            SetComment("double", "twice"),
        ],
    ).schema
    assert [(c.name, c.place, c.metadata, c.comment) for c in made.computed] == [
        ("double", 2, None, "twice"),
        ("version", 3, "snapshot-id", None),
    ]
    changed = altered(Definition(1, made), [DropColumn("double"), ModifyWatermark(Watermark("at", 7))]).schema
    assert [(c.name, c.place) for c in changed.computed] == [("version", 2)]
    assert changed.watermark == Watermark("at", 7)
    assert altered(Definition(2, changed), [DropWatermark()]).schema.watermark is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (AddComputed(Column("o", pa.int64(), metadata="offset")), "unknown metadata key 'offset'"),
        (AddComputed(ComputedColumn("at", "1", (), 0)), "column 'at' is declared twice"),
        (AddIndex(Index.over(["nix"])), "unknown column 'nix'"),
        (AddWatermark(Watermark("id")), "column 'id' must be a TIMESTAMP"),
        (ModifyWatermark(Watermark("at")), "MODIFY WATERMARK: there is none; write ADD WATERMARK"),
        (DropWatermark(), "DROP WATERMARK: there is none"),
        (SetComment("nix", "x"), "unknown column 'nix'"),
    ],
)
def test_what_is_not_there_or_does_not_fit_is_refused(change: Alteration, message: str) -> None:
    with pytest.raises(SchemaError) as error:
        altered(VISITS, [change])
    assert "ALTER TABLE" in str(error.value)
    assert message in str(error.value)


def test_a_sink_without_a_key_is_not_forced_to_keep_the_rows_of_each_key(tmp_path: Path) -> None:
    """Where it is declared, not when a query is started; a table that says so already can be opened."""
    schema, force = TableSchema.of({"id": pa.int64()}), {"sink.materialize": "force"}
    needs = "option 'sink.materialize' = 'force' needs a PRIMARY KEY"
    with pytest.raises(ConfigurationError, match=needs):
        Table.create(tmp_path / "none", schema, force)
    assert not (tmp_path / "none").exists()
    table = Table.create(tmp_path / "later", schema)
    with pytest.raises(ConfigurationError, match=f"ALTER TABLE: {needs}"):
        table.alter(SetOptions(force))
    keyed = Table.create(tmp_path / "keyed", TableSchema.of({"id": pa.int64()}, ["id"]), force)
    assert keyed.options.materialize == "force"
    table_file.create(str(tmp_path / "older"), schema, force)
    older = Table.open(tmp_path / "older")
    older.alter(SetComment(None, "of an earlier release"))
    assert older.options.materialize == "force"
