"""Tables in other file formats: the same answers as in mapped Arrow, and files that others can read."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from cachetools import LRUCache

from tests.helpers import of_kind
from tests.upsert.store.samples import canonical_rows
from upsert.errors import ConfigurationError, CorruptTableError, SchemaError
from upsert.schema import Column, TableSchema
from upsert.store import Table
from upsert.store.alterations import AddColumn, RenameColumn, SetOptions, WidenColumn
from upsert.store.files import data_file
from upsert.store.files.data_file import DataFile, forget_open_files
from upsert.store.files.formats import FORMATS, base
from upsert.store.files.formats.base import Compression, FileForm
from upsert.store.kept import Kept

NAMES = [format_.name for format_ in FORMATS]
SCHEMA = TableSchema.of(
    {"hub": pa.string(), "id": pa.int32(), "at": pa.timestamp("us", tz="UTC"), "price": pa.decimal128(10, 2)},
    primary_key=["id"],
).index("hub")
OPTIONS = {"write-only": "true"}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files of a few hundred rows in several parts."""
    monkeypatch.setattr(base, "PART_BYTES", 2048)
    monkeypatch.setattr(base, "_LEAST_ROWS", 8)
    forget_open_files()
    yield
    forget_open_files()


def rows(start: int, stop: int, price: int = 0) -> pa.Table:
    ids = np.arange(start, stop)
    return pa.table(
        {
            "hub": [None if n % 7 == 0 else f"hub {n % 5}" for n in ids.tolist()],
            "id": pa.array(ids, pa.int32()),
            "at": pa.array(ids * 1_000_003 - 50_000_000, pa.timestamp("us", tz="UTC")),
            "price": pa.array([Decimal(n) for n in (ids + price).tolist()], pa.decimal128(10, 2)),
        }
    )


def live(table: Table) -> Table:
    """Inserts, updates and deletions in three runs."""
    table.write(rows(0, 400))
    table.write(rows(100, 200, price=1000))
    gone = of_kind(rows(150, 160), "-D")
    table.write(pa.concat_tables([gone, of_kind(rows(500, 520), "+I")]))
    return table


def ordered(found: pa.Table) -> list[Any]:
    return sorted(canonical_rows(found), key=repr)


def answers(table: Table) -> list[Any]:
    """What a table says to every kind of question."""
    snapshot = table.snapshot()
    found = [
        snapshot.scan(),
        snapshot.scan(["id"], [("id", ">", 390)]),
        snapshot.scan([]),
        snapshot.lookup(["id"], pa.table({"id": pa.array([3, 155, 199, 510, 9999], pa.int32())})),
        snapshot.lookup(["hub"], pa.table({"hub": ["hub 1", None]}), select=["id", "price"]),
        table.changes(0, 1),
        table.changes(1, 3),
        table.changes(0, 3),
    ]
    return [(one.num_rows, ordered(one)) for one in found]


@pytest.mark.parametrize("name", NAMES)
def test_table_answers_as_in_mapped_arrow(tmp_path: Path, name: str) -> None:
    expected = answers(live(Table.create(tmp_path / "a", SCHEMA, OPTIONS)))
    table = live(Table.create(tmp_path / "b", SCHEMA, {**OPTIONS, "file.format": name}))
    assert {Path(entry.file).suffix for entry in table.snapshot().files.entries} == {f".{name}"}
    assert answers(table) == expected
    table.compact()
    assert len(table.snapshot().files.entries) == 1
    assert answers(table)[:5] == expected[:5]
    assert [finding for finding in table.check(deep=True) if not finding.is_information] == []


def test_files_of_several_formats_are_one_table(tmp_path: Path) -> None:
    """A format belongs to a file: ALTER TABLE changes that of the next ones, and compaction that of all."""
    table = Table.create(tmp_path / "t", SCHEMA, OPTIONS)
    for number, name in enumerate(NAMES):
        table.alter(SetOptions({"file.format": name}))
        table.write(rows(number * 100, number * 100 + 150, price=number))
    table.alter(SetOptions({"file.format": "arrow", "file.compression": "zstd"}))
    assert {Path(e.file).suffix for e in table.snapshot().files.entries} == {f".{name}" for name in NAMES}
    expected = ordered(table.snapshot().scan())
    assert len(expected) == 450
    table.compact()
    assert {Path(e.file).suffix for e in table.snapshot().files.entries} == {".arrow"}
    assert ordered(table.snapshot().scan()) == expected


@pytest.mark.parametrize("name", NAMES)
def test_columns_are_found_by_their_ids_in_files_of_an_older_definition(tmp_path: Path, name: str) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, {**OPTIONS, "file.format": name})
    table.write(rows(0, 40))
    table.alter(
        RenameColumn("hub", "place"),
        AddColumn(Column("hub", pa.int64())),
        WidenColumn("price", pa.decimal128(20, 4)),
    )
    found = table.snapshot().lookup(["id"], pa.table({"id": pa.array([8], pa.int32())}))
    assert found.select(["place", "hub", "price"]).to_pylist() == [
        {"place": "hub 3", "hub": None, "price": Decimal(8)}
    ]
    assert table.snapshot().scan(["place"]).num_rows == 40


def test_table_without_primary_key_counts_rows_in_every_format(tmp_path: Path) -> None:
    for name in NAMES:
        bag = TableSchema.of({"id": pa.int32(), "nested": pa.list_(pa.float64())})
        table = Table.create(tmp_path / name, bag, {**OPTIONS, "file.format": name})
        given = pa.table(
            {"id": pa.array([1, 1, 2], pa.int32()), "nested": [[-0.0, None], [-0.0, None], None]}
        )
        table.write(given)
        table.write(given.slice(0, 1))
        table.compact()
        assert ordered(table.snapshot().scan()) == ordered(pa.concat_tables([given, given.slice(0, 1)]))


def test_duckdb_finds_the_rows_of_a_parquet_file(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, {**OPTIONS, "file.format": "parquet"})
    live(table)
    table.compact()
    (entry,) = table.snapshot().files.entries
    with duckdb.connect() as connection:
        found = connection.execute(
            'SELECT hub, id, epoch_us("at"), price FROM read_parquet(?)',
            [str(tmp_path / "t" / entry.file)],
        ).fetchall()
    scanned = table.snapshot().scan()
    expected = scanned.set_column(2, "at", scanned["at"].cast(pa.int64()))
    assert sorted(found, key=repr) == sorted(zip(*expected.to_pydict().values(), strict=True), key=repr)


def test_lookup_decodes_what_its_rows_lie_in_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, {**OPTIONS, "file.format": "parquet"})
    table.write(rows(0, 4000))
    decoded: list[int] = []
    original = data_file.FileColumns._decoded

    def counted(self: Any, number: int, names: Any, count: int) -> pa.RecordBatch:
        decoded.append(number)
        return original(self, number, names, count)

    monkeypatch.setattr(data_file.FileColumns, "_decoded", counted)
    (entry,) = table.snapshot().files.entries
    file = DataFile.open(table.path, table.layout, entry)
    for _ in range(2):
        assert file.take(["price"], np.array([7, 8, 3000])).num_rows == 3
    assert len(decoded) == 2


def test_decoded_columns_stay_within_their_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = LRUCache(10_000, data_file._size)
    monkeypatch.setattr(data_file, "_DECODED", Kept(lambda: cache, is_inherited=True))
    table = Table.create(tmp_path / "t", SCHEMA, {**OPTIONS, "file.format": "parquet"})
    table.write(rows(0, 3000))
    keys = pa.table({"id": pa.array(range(0, 3000, 10), pa.int32())})
    for _ in range(2):
        assert table.snapshot().lookup(["id"], keys).num_rows == 300
    assert 0 < cache.currsize <= 10_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"file.format": "csv"}, "must be one of arrow, parquet, orc, avro, got 'csv'"),
        (
            {"file.format": "orc", "file.compression": "gzip"},
            "of format 'orc' must be one of zstd, snappy, lz4",
        ),
        ({"file.compression": "snappy"}, "must be one of narrow, none, lz4, zstd, got 'snappy'"),
        (
            {"file.compression.zstd-level": "3"},
            "must go with zstd in arrow or parquet, got 'narrow' in 'arrow'",
        ),
        (
            {"file.compression": "zstd", "file.compression.zstd-level": "23"},
            "must be an integer from 1 to 22",
        ),
    ],
)
def test_wrong_option_is_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Table.create(tmp_path / "t", SCHEMA, options)
    assert not (tmp_path / "t").exists()


POINT = pa.struct([("x", pa.int64())])


@pytest.mark.parametrize(
    ("name", "column", "type_", "reason"),
    [
        (
            "parquet",
            "s",
            pa.struct([]),
            "Parquet has no struct without fields; give it a field, or use arrow",
        ),
        ("orc", "s", pa.list_(pa.struct([("p", POINT)])), "mixes up a struct within a struct"),
        ("avro", "a b", pa.int64(), "a name in Avro has letters, digits and _ only, got 'a b'; rename it"),
        ("avro", "s", pa.struct([("x-y", pa.int64())]), "got 'x-y'"),
    ],
)
def test_column_without_a_place_in_a_format_is_refused_by_name_and_type(
    tmp_path: Path, name: str, column: str, type_: pa.DataType, reason: str
) -> None:
    schema = TableSchema.of({"id": pa.int64(), column: type_}, primary_key=["id"])
    with pytest.raises(SchemaError, match=f"column '{column}' of type .*{reason}"):
        Table.create(tmp_path / "t", schema, {"file.format": name})
    table = Table.create(tmp_path / "t", schema)
    with pytest.raises(SchemaError, match=reason):
        table.alter(SetOptions({"file.format": name}))


def test_column_that_the_format_cannot_store_is_not_added(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, {"file.format": "avro"})
    with pytest.raises(SchemaError, match="rename it, or use arrow"):
        table.alter(RenameColumn("hub", "the hub"))


def test_missing_package_is_named_and_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, {**OPTIONS, "file.format": "avro"})
    table.write(rows(0, 10))
    forget_open_files()
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(
        ConfigurationError, match=r"needs the package 'fastavro'.*pip install 'deltajoin\[avro\]'"
    ):
        table.snapshot().scan()


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize("at", [0.2, 0.5, 0.9, 0.999])
def test_damage_is_found_and_names_the_file(tmp_path: Path, name: str, at: float) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, {**OPTIONS, "file.format": name})
    table.write(rows(0, 400))
    (entry,) = table.snapshot().files.entries
    path = Path(table.path, entry.file)
    content = bytearray(path.read_bytes())
    start = int(len(content) * at)
    content[start : start + 40] = b"\xff" * len(content[start : start + 40])
    path.write_bytes(content)
    forget_open_files()
    with suppress(CorruptTableError):  # but nothing else, where the bytes are no value of a column
        table.snapshot().scan()
    findings = {found.rule: found.subject for found in table.check(deep=True)}
    assert findings["bytes_have_their_checksum"] == entry.file


def test_form_is_a_plain_value() -> None:
    assert FileForm() == FileForm("arrow", Compression("none"))
