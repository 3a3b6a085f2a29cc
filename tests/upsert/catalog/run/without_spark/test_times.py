"""Days and times in conditions, where clocks are put on and back too: the rows that Spark finds, or none."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from tests.upsert.catalog.run.without_spark.beside_spark import needs_spark, without
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Found
from upsert.errors import SchemaError

pytestmark = pytest.mark.spark

CHANGES = {
    "Europe/Berlin": ("2020-03-29 02:00:00", "2020-10-25 03:00:00", "2040-03-25 02:00:00"),
    "Australia/Lord_Howe": ("2020-10-04 02:00:00", "2020-04-05 02:00:00"),  # by half an hour
    "America/Sao_Paulo": ("2018-11-04 00:00:00", "2018-02-18 00:00:00"),  # at midnight
    "Pacific/Apia": ("2011-12-30 00:00:00", "2011-12-31 00:00:00"),  # without a day
    "Africa/Casablanca": ("2024-03-10 03:00:00", "2024-04-14 02:00:00"),  # its winter is the exception
}
"""Zones, and about when their clocks are changed, as they show it."""

READ_HERE = (
    *("{}.1234567", " {} ", "{}Z", "{}+05:30", "{}-18:00", "{}+05", "{}+0530", "{}+05:30:15"),
    *("2020-06-01", "2020-06-01 08", "2020-06-01T08:00", "0001-01-01 00:00:00Z", "9999-12-31 23:59:59Z"),
)
NOT_READ_HERE = (
    *("20200601", "20200601 08:00:00", "2020-W23-1", "2020W231", "2020-06-01x08:00:00", "2020-06-01 0800"),
    *("2020-06-01 08:00:00,5", "2020-06-01 08:00Z", "2020-06-01 08:00:00+18:30", "2020-06-01t08:00:00"),
    *("2020-6-1 8:0:0", "2020-06-01 08:00:00 UTC", "2020-06-01 24:00:00", "+2020-06-01", "2020", "now", ""),
)


@pytest.fixture(params=CHANGES)
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", before)


def around(zone: str) -> Iterator[datetime]:
    """Times of a clock about when it is changed."""
    for shown in map(datetime.fromisoformat, CHANGES[zone]):
        yield from (shown + timedelta(minutes=minutes) for minutes in (-61, -60, -30, -1, 0, 1, 30, 59, 60))


def made(folder: Path, zone: str, spark: SparkSession) -> Catalog:
    """A catalog with a table of times and days, and the view `plain` of the same rows in Parquet."""
    catalog = Catalog(folder / "warehouse")
    catalog.context.settings = {"spark.sql.session.timeZone": zone}
    catalog.sql("CREATE TABLE t (id INT, at TIMESTAMP, day DATE, PRIMARY KEY (id) NOT ENFORCED)")
    shown = list(dict.fromkeys(around(zone)))
    at = [one.replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC) for one in shown for fold in (0, 1)]
    schema = catalog.table("t").schema.arrow
    rows = [{"id": id, "at": one, "day": one.date()} for id, one in enumerate(sorted(set(at)))]
    catalog.table("t").write(pa.Table.from_pylist(rows, schema))
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows, schema), folder / "rows.parquet")
    spark.read.parquet(str(folder / "rows.parquet")).createOrReplaceTempView("plain")
    return catalog


def ids(catalog: Catalog, condition: str) -> list[int]:
    found = without(catalog, f"SELECT id FROM t WHERE {condition} ORDER BY id")
    assert isinstance(found, Found)
    return list(found.rows["id"].to_pylist())


def test_a_literal_is_the_time_that_spark_reads(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    catalog = made(tmp_path, zone, spark)
    texts = dict.fromkeys(form.format(shown) for form in ("{}", "{}.5") for shown in around(zone))
    texts |= dict.fromkeys(form.format(shown) for form in READ_HERE for shown in CHANGES[zone])
    conditions = [f"at <= TIMESTAMP '{text}'" for text in texts]
    conditions += [f"day <= DATE '{shown.date()}'" for shown in around(zone)]
    conditions += [f"at = TIMESTAMP '{shown}'" for shown in around(zone)]
    lists = (f"sort_array(collect_list(CASE WHEN {one} THEN id END))" for one in conditions)
    expected = list(spark.sql(f"SELECT {', '.join(lists)} FROM plain").first() or ())
    assert len({tuple(one) for one in expected}) > 10
    assert [ids(catalog, condition) for condition in conditions] == expected


def test_a_text_that_spark_may_read_otherwise_is_sparks(spark: SparkSession, tmp_path: Path) -> None:
    catalog = made(tmp_path, "Europe/Berlin", spark)
    for text in NOT_READ_HERE:
        for literal in (f"TIMESTAMP '{text}'", f"DATE '{text}'", f"CAST('{text}' AS TIMESTAMP)", f"'{text}'"):
            column = "day" if literal.startswith("DATE") else "at"
            assert needs_spark(catalog, f"SELECT id FROM t WHERE {column} <= {literal}"), literal
            assert needs_spark(catalog, f"UPDATE t SET day = NULL WHERE {column} <= {literal}"), literal
            assert needs_spark(catalog, f"DELETE FROM t WHERE {column} <= {literal}"), literal
    assert catalog.table("t").snapshot().id == 1


def test_a_text_that_says_no_day_deletes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    catalog = made(tmp_path, "Europe/Berlin", spark)
    for condition in ("day <= DATE '20200601'", "at <= TIMESTAMP '2020-W23-1'"):
        with pytest.raises(SchemaError, match="INVALID_TYPED_LITERAL"):
            catalog.sql(f"DELETE FROM t WHERE {condition}", spark)
    assert catalog.table("t").snapshot().id == 1
