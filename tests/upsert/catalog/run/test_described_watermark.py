"""The watermark that DESCRIBE EXTENDED tells: of every rowtime, from the bounds of files, never back."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from upsert import Catalog
from upsert.catalog.results import Rows
from upsert.schema import Column
from upsert.store.alterations import AddColumn
from upsert.store.read.snapshot import Snapshot

HOUR = 3_600_000_000


def described(catalog: Catalog, spark: SparkSession | None = None) -> datetime | None:
    found = catalog.sql("DESCRIBE TABLE EXTENDED t", spark)
    assert isinstance(found, Rows)
    watermark: datetime | None = found.rows.column("watermark")[0].as_py()
    return watermark


def at(hour: int) -> datetime:
    return datetime(1970, 1, 1, hour, tzinfo=UTC)


def test_watermark_comes_from_bounds_and_never_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql(
        "CREATE TABLE t (id INT, ts TIMESTAMP, PRIMARY KEY (id) NOT ENFORCED, "
        "WATERMARK FOR ts AS ts - INTERVAL '1' HOUR)"
    )
    assert described(catalog) is None
    table = catalog.table("t")
    stamps = pa.array([3 * HOUR, 9 * HOUR], pa.timestamp("us", "UTC"))
    table.write(pa.table({"id": [1, 2], "ts": stamps}))

    def scanned(*_: object, **__: object) -> pa.Table:
        raise AssertionError("no data file is to be read")

    monkeypatch.setattr(Snapshot, "scan", scanned)
    assert described(catalog) == at(8)
    monkeypatch.undo()
    table.delete([("id", "=", 2)])
    table.compact()
    table.write(pa.table({"id": [1], "ts": stamps.slice(0, 1)}))
    assert described(catalog) == at(8)
    table.overwrite(pa.table({"id": [4], "ts": pa.array([12 * HOUR], stamps.type)}))
    assert described(catalog) == at(11)
    catalog.sql("ALTER TABLE t ADD COLUMN n BIGINT")
    assert described(catalog) == at(11)


def test_the_watermark_of_another_column_begins_with_the_values_of_that_column(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql(
        "CREATE TABLE t (id INT, late TIMESTAMP_LTZ(6), early TIMESTAMP_LTZ(6), "
        "PRIMARY KEY (id) NOT ENFORCED, WATERMARK FOR late AS late)"
    )
    table = catalog.table("t")
    times = {"late": [12 * HOUR], "early": [3 * HOUR]}
    stamps = {name: pa.array(values, pa.timestamp("us", "UTC")) for name, values in times.items()}
    table.write(pa.table({"id": [1], **stamps}))
    assert described(catalog) == at(12)
    catalog.sql("ALTER TABLE t MODIFY WATERMARK FOR early AS early")
    assert described(catalog) == at(3)
    table.write(pa.table({"id": [2], **stamps}))
    assert described(catalog) == at(3)


def test_the_value_that_a_new_column_has_in_older_rows_is_their_time(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql("CREATE TABLE t (id INT, PRIMARY KEY (id) NOT ENFORCED)")
    table, type_ = catalog.table("t"), pa.timestamp("us", "UTC")
    table.write(pa.table({"id": [1]}))
    table.alter(AddColumn(Column("ts", type_), initial=pa.scalar(9 * HOUR, type_)))
    catalog.sql("ALTER TABLE t ADD WATERMARK FOR ts AS ts - INTERVAL '1' HOUR")
    assert described(catalog) == at(8), "no file has the column"
    table.write(pa.table({"id": [1, 2], "ts": pa.array([3 * HOUR, 2 * HOUR], type_)}))
    assert described(catalog) == at(8)
    table.write(pa.table({"id": [3], "ts": pa.array([12 * HOUR], type_)}))
    assert described(catalog) == at(11)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("stored", "expression", "values"),
    [
        ("ms BIGINT", "timestamp_millis(ms)", [5 * HOUR // 1000, 2 * HOUR // 1000]),
        ("ms BIGINT", "timestamp_micros(ms * 1000)", [5 * HOUR // 1000, 2 * HOUR // 1000]),
        ("ms BIGINT", "timestamp_millis(-ms)", [-5 * HOUR // 1000, -2 * HOUR // 1000]),
        ("day STRING", "CAST(day AS TIMESTAMP)", ["1970-01-01 05:00:00", "1970-01-01 02:00:00"]),
        ("at TIMESTAMP(3)", "CAST(at AS TIMESTAMP)", [5 * HOUR, 2 * HOUR]),
    ],
)
def test_watermark_of_a_computed_rowtime(
    spark: SparkSession, tmp_path: Path, stored: str, expression: str, values: list[int | str]
) -> None:
    """Also where the expression falls when its column grows: then all rows are looked at."""
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql(
        f"CREATE TABLE t (id INT, {stored}, rowtime AS {expression}, PRIMARY KEY (id) NOT ENFORCED, "
        "WATERMARK FOR rowtime AS rowtime - INTERVAL '1' HOUR)"
    )
    table = catalog.table("t")
    name = stored.split()[0]
    assert described(catalog, spark) is None
    table.write(pa.table({"id": [1, 2], name: pa.array(values).cast(table.schema.type_of(name))}))
    assert described(catalog, spark) == at(4)
