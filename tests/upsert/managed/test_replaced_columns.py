"""Checkpoints of streams whose tables get other columns under the names that the query uses."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from upsert.errors import ConfigurationError, SchemaError
from upsert.managed.options import ReadOptions
from upsert.managed.reader import ChangesReader
from upsert.schema import Column, TableSchema
from upsert.spark.columns import spark_schema
from upsert.store import Table
from upsert.store.alterations import AddColumn, Alteration, DropColumn, RenameColumn, WidenColumn

REPLACED = DropColumn("a"), AddColumn(Column("a", pa.int32()))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    columns = {"id": pa.int64(), "a": pa.int32(), "b": pa.int32()}
    table = Table.create(tmp_path / "t", TableSchema.of(columns, ["id"]))
    write(table, 1)
    return table


def write(table: Table, id: int) -> None:
    row: dict[str, Any] = {"id": id}
    columns = {c.name: pa.array([row.get(c.name, 10 * id)], c.type) for c in table.schema.columns}
    table.write(pa.table(columns))


def reader_of(table: Table, **options: str) -> ChangesReader:
    given = {f"scan.{name.replace('_', '-')}": value for name, value in options.items()}
    asked = ReadOptions.parse({**given, "path": table.path})
    return ChangesReader(asked, spark_schema(Table.open(table.path).schema, row_kind=True))


def logged(reader: ChangesReader) -> dict[str, Any]:
    """The end of its first micro-batch, as Spark gives it back after a restart."""
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def step(reader: ChangesReader, start: dict[str, Any]) -> list[dict[str, Any]]:
    end = reader.latestOffset(start, ReadAllAvailable())
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (REPLACED, "was dropped, got another one of this name; begin with a new checkpoint"),
        (
            (RenameColumn("a", "z"), AddColumn(Column("a", pa.int32()))),
            "is called 'z' now, got another one of this name; use 'z', or begin with a new checkpoint",
        ),
    ],
)
def test_another_column_under_a_name_that_the_query_uses_is_refused(
    table: Table, changes: tuple[Alteration, ...], found: str
) -> None:
    """A sum of the old one would keep its values for ever."""
    start = logged(reader_of(table, used_columns="id,a"))
    table.alter(*changes)
    write(table, 2)
    reader = reader_of(table, used_columns="id,a")
    refusal = f"^table 't': column 'a' must be the one that the checkpoint knows, which {found}"
    for use in (
        lambda: step(reader, start),
        lambda: reader.partitions(start, start),  # a micro-batch that was planned before the restart
    ):
        with pytest.raises(SchemaError, match=refusal):
            use()


def test_other_columns_may_be_replaced_and_used_ones_renamed_and_widened(table: Table) -> None:
    start = logged(reader_of(table, used_columns="id,b"))
    table.alter(*REPLACED, WidenColumn("b", pa.int64()), RenameColumn("b", "c"))
    write(table, 2)
    assert step(reader_of(table, used_columns="id,c"), start) == [
        {"id": 2, "c": 20, "a": 20, "_row_kind": "+I"}
    ]
    # names that two columns have exchanged: the query may say both
    start = logged(reader_of(table))
    table.alter(RenameColumn("a", "x"), RenameColumn("c", "a"), RenameColumn("x", "c"))
    write(table, 3)
    assert len(step(reader_of(table), start)) == 1
    with pytest.raises(SchemaError, match=r"column 'a' must be .* which is called 'c' now"):
        step(reader_of(table, used_columns="id,a"), start)


@pytest.mark.parametrize("used", ["id,amount", "ID", "a.x"])
def test_a_used_column_that_is_not_read_is_refused(table: Table, used: str) -> None:
    """Passed over, it would not be watched."""
    refusal = "must name columns that the stream reads, got .*; columns are id, a, b, _row_kind"
    with pytest.raises(ConfigurationError, match=refusal):
        reader_of(table, used_columns=used)


def test_a_column_that_only_the_filter_names_is_used(table: Table) -> None:
    options = {"used_columns": "id", "where": '[["a", ">", 5]]'}
    start = logged(reader_of(table, **options))
    table.alter(*REPLACED)
    with pytest.raises(SchemaError, match="column 'a' must be"):
        step(reader_of(table, **options), start)


def test_an_offset_of_an_earlier_release_says_nothing_of_columns(table: Table) -> None:
    start = logged(reader_of(table))
    assert start.pop("columns") == {"id": 1, "a": 2, "b": 3}
    table.alter(*REPLACED)
    write(table, 2)
    assert len(step(reader_of(table), start)) == 1


@pytest.mark.parametrize(
    ("owner", "told"),
    [
        ({"aggregate": "max(a) by (b)", "fingerprint": "f"}, "the aggregate 'max(a) by (b)'"),
        ({"join": "t(a) = u(a)", "versions": [{}], "table": None}, "the join 't(a) = u(a)'"),
        ({"logOffset": 3, "table": None}, "another source"),
    ],
)
def test_an_offset_of_another_kind_of_stream_is_refused(
    table: Table, owner: dict[str, Any], told: str
) -> None:
    """The groups of an aggregate are in its sink, where rows of the table would be added to them."""
    offset = {
        name: value for name, value in {**logged(reader_of(table)), **owner}.items() if value is not None
    }
    with pytest.raises(ConfigurationError, match=re.escape(f"the checkpoint belongs to {told}, this is a s")):
        step(reader_of(table), offset)
