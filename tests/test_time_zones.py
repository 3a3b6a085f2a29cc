"""Sessions in any time zone: every form, aggregate, sink and format gives what Spark's batch gives there.

The instants are those at which the zones' clocks go forward (an hour is left out) and back (an hour comes
twice), and some from before time zones. What depends on no zone must be the same in all of them.
"""

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql.functions as F
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import deltajoin
import planner
from deltajoin.lookup import TableLookup
from tests.helpers import of_kind
from tests.upsert.formats.registry_double import Double, registry_double
from tests.upsert.kafka.written import records_in
from upsert import Catalog
from upsert.changelog.operator import normalize
from upsert.formats.base import format_named
from upsert.kafka.client.connection import Connection
from upsert.testing import LocalKafka
from upsert.types import TIMESTAMP, TIMESTAMP_NTZ

pytestmark = pytest.mark.spark

ZONES = ("UTC", "Europe/Berlin", "America/St_Johns")
"""One without, one east and one west of Greenwich, that at half an hour."""
HALVES = [datetime(*day, tzinfo=UTC) + timedelta(minutes=30 * half) for day, halves in (
    ((2024, 3, 31), range(1, 5)),  # Berlin's clocks go forward at 01:00
    ((2024, 10, 27), range(5)),  # and back
    ((2024, 3, 10), range(10, 13)),  # St John's at 05:30
    ((2024, 11, 3), range(7, 12)),  # and 04:30
) for half in halves]  # fmt: skip
INSTANTS = [None, datetime(1890, 1, 1, tzinfo=UTC), *HALVES]

A = """CREATE TABLE a (id BIGINT, k INT, at TIMESTAMP, ntz TIMESTAMP_NTZ, day DATE, s STRUCT<at: TIMESTAMP>,
l ARRAY<TIMESTAMP>, m MAP<STRING, TIMESTAMP>, PRIMARY KEY (id) NOT ENFORCED, INDEX (at), INDEX (k))"""
B = "CREATE TABLE b (at TIMESTAMP, k INT, since TIMESTAMP, PRIMARY KEY (at) NOT ENFORCED)"

BEFORE_THREE = "since < TIMESTAMP '2024-10-27 02:30:00'"
JOINS = {
    "fused": f"SELECT id, a.at, s, l, m, since FROM a JOIN b ON a.at = b.at WHERE {BEFORE_THREE}",
    "shuffled": "SELECT id, a.at, s, l, m, b.k FROM a LEFT JOIN b ON a.at = b.at AND a.at <> since",
    "stateful": "SELECT ntz, day, b.at, since FROM a FULL JOIN b ON a.at = b.at",
    "regular": """SELECT id, a.at, hour(a.at) AS h, CAST(a.at AS DATE) AS d, CAST(a.at AS STRING) AS t, s,
        l, m, since, b.at AS b_at FROM a JOIN (SELECT at, k, since FROM b) b ON a.k = b.k""",
}
PHYSICAL = ("fused", "shuffled", "stateful")
LOOKUPS = """SELECT at, max(ntz) AS n, min_by(at, id) AS x, sort_array(collect_set(day)) AS d,
    sort_array(collect_list(at)) AS l, count(DISTINCT at, id) AS c FROM a GROUP BY at"""
SUMS = {
    "g": """SELECT CAST(date_trunc('DAY', at) AS STRING) AS g, count(*) AS c, count(l) AS n FROM a
        WHERE at IS NOT NULL GROUP BY 1""",
    "began": """SELECT window.start AS began, count(*) AS c, sum(k) AS n FROM a WHERE at IS NOT NULL
        GROUP BY window(at, '1 hour')""",
}


@pytest.fixture(params=[ZONES[1], *(pytest.param(zone, marks=pytest.mark.long) for zone in ZONES[::2])])
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    for query in spark.streams.active:
        query.stop()
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql(A)
    catalog.sql(B)
    return catalog


def rows_of_a(ids: range, shift: int) -> pa.Table:
    at = [INSTANTS[(i + shift) % len(INSTANTS)] for i in ids]
    local = [None if one is None else one.replace(tzinfo=None) for one in at]
    return pa.table(
        {
            "id": list(ids),
            "k": pa.array([i % 3 for i in ids], pa.int32()),
            "at": pa.array(at, TIMESTAMP),
            "ntz": pa.array(local, TIMESTAMP_NTZ),
            "day": pa.array([None if one is None else one.date() for one in local], pa.date32()),
            "s": pa.array([{"at": one} for one in at], pa.struct([("at", TIMESTAMP)])),
            "l": pa.array([None if one is None else [one, None] for one in at], pa.list_(TIMESTAMP)),
            "m": pa.array([[("x", one)] for one in at], pa.map_(pa.string(), TIMESTAMP)),
        }
    )


def rows_of_b(shift: int) -> pa.Table:
    at = [one for one in INSTANTS if one is not None]
    since = [INSTANTS[(i + shift) % len(INSTANTS)] for i in range(len(at))]
    k = pa.array([i % 3 for i in range(len(at))], pa.int32())
    return pa.table({"at": pa.array(at, TIMESTAMP), "k": k, "since": pa.array(since, TIMESTAMP)})


def first_load(catalog: Catalog) -> None:
    catalog.table("a").write(rows_of_a(range(18), 0))
    catalog.table("b").write(rows_of_b(0).slice(0, 12))


def change_everything(catalog: Catalog) -> None:
    catalog.table("a").write(rows_of_a(range(10, 22), 3))
    gone = rows_of_a(range(4), 0)
    catalog.table("a").write(of_kind(gone, "-D"))
    catalog.table("b").write(rows_of_b(5).slice(8))


def changes(spark: SparkSession, catalog: Catalog) -> None:
    for name in ("a", "b"):
        catalog.read_changes(spark, name).createOrReplaceTempView(name)


def batch(spark: SparkSession, catalog: Catalog, text: str) -> Counter[str]:
    for name in ("a", "b"):
        catalog.read(spark, name).createOrReplaceTempView(name)
    return Counter(row for (row,) in spark.sql(text).select(as_text()).collect())


def as_text(*names: str) -> Any:
    """A row as JSON, its instants in UTC whatever the session's zone is."""
    columns = [F.col(name) for name in names] or [F.col("*")]
    return F.to_json(F.struct(*columns), {"timeZone": "UTC", "ignoreNullFields": "false"})


def run(writer: DataStreamWriter, folder: Path) -> None:
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()


_seen: dict[tuple[str, str], Counter[str]] = {}


def same_in_all_zones(title: str, zone: str, found: Counter[str]) -> None:
    """What was found is what was found in every other zone."""
    _seen[title, zone] = found
    for other in ZONES:
        assert _seen.get((title, other), found) == found


EVERY_RUN = "regular", "lookups"


@pytest.mark.parametrize(
    "titles",
    [
        EVERY_RUN,
        pytest.param(tuple(title for title in JOINS if title not in EVERY_RUN), marks=pytest.mark.long),
    ],
    ids=["every run", "others"],
)
def test_joins_and_lookups(
    spark: SparkSession, catalog: Catalog, zone: str, titles: tuple[str, ...], tmp_path: Path
) -> None:
    """Several forms in one query, over a first load and a micro-batch of updates and deletes."""
    first_load(catalog)
    changes(spark, catalog)
    texts = {title: text for title, text in {**JOINS, "lookups": LOOKUPS}.items() if title in titles}
    optimized = {
        title: planner.optimize(spark.sql(text), **({"physical": title} if title in PHYSICAL else {}))
        for title, text in texts.items()
    }
    if "regular" in titles:
        assert [join.form for join in planner.explain(spark.sql(JOINS["regular"])).joins] == ["regular"]
    parts = []
    for title, df in optimized.items():
        own = [name for name in df.columns if name != "_row_kind"]
        parts.append(df.select(F.lit(title).alias("title"), as_text(*own).alias("row"), "_row_kind"))
    found: dict[str, Counter[str]] = {title: Counter() for title in optimized}

    def take(rows: DataFrame, _: int) -> None:
        for title, row, kind in rows.collect():
            found[title][row] += 1 if kind[0] == "+" else -1

    writer = reduce(DataFrame.union, parts).writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()
    change_everything(catalog)
    query.processAllAvailable()
    query.stop()
    for title, text in texts.items():
        net = Counter({row: count for row, count in found[title].items() if count})
        wanted = batch(spark, catalog, text)
        assert net == wanted
        assert len(wanted) > 5, "the oracle must have rows, or the test shows nothing"
        if title not in ("fused", "regular"):  # they ask for the hour and the day of the zone
            same_in_all_zones(title, zone, wanted)


@pytest.mark.parametrize("key", ["began", pytest.param("g", marks=pytest.mark.long)])
def test_sums(spark: SparkSession, catalog: Catalog, zone: str, key: str, tmp_path: Path) -> None:
    first_load(catalog)
    changes(spark, catalog)
    df = spark.sql(SUMS[key])
    types = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in df.schema if f.name != "_row_kind")
    catalog.sql(f"CREATE TABLE sums ({types}, PRIMARY KEY ({key}) NOT ENFORCED)")
    run(catalog.write_changes(df, "sums"), tmp_path / "checkpoint")
    change_everything(catalog)
    run(catalog.write_changes(df, "sums"), tmp_path / "checkpoint")
    found = Counter(row for (row,) in catalog.read(spark, "sums").select(as_text()).collect())
    assert found == batch(spark, catalog, SUMS[key])
    if key == "began":
        same_in_all_zones(key, zone, found)


@pytest.mark.long
def test_joins_with_lookups(spark: SparkSession, catalog: Catalog, zone: str, tmp_path: Path) -> None:
    """Of FLIP-486's own operator, and of the dimension join."""
    first_load(catalog)
    catalog.sql("CREATE TABLE pairs (id BIGINT, at TIMESTAMP, s STRUCT<at: TIMESTAMP>, since TIMESTAMP, "
                "PRIMARY KEY (id) NOT ENFORCED)")  # fmt: skip
    catalog.sql("CREATE TABLE found LIKE pairs")
    plain = {name: catalog.read_changes(spark, name).where("_row_kind <> '-U'") for name in ("a", "b")}
    plain["a"] = plain["a"].where("at IS NOT NULL")
    sides = {
        name: deltajoin.with_lookup(
            df, TableLookup.of(catalog.table(name).path, ["at"]), keys="at", upsert_key=key, **more
        )
        for (name, df), key, more in zip(
            plain.items(), ("id", "at"), ({"immutable": ["at"]}, {"kinds": ["+I", "+U"]}), strict=True
        )
    }
    latest = deltajoin.lookup_delta_join(sides["a"], sides["b"], on="at", how="left")
    latest = latest.selectExpr(
        "left_id AS id", "left_at AS at", "left_s AS s", "right_since AS since", "_row_kind"
    )
    stream = catalog.read_changes(spark, "a").where("at IS NOT NULL")
    dimension = deltajoin.lookup_join(
        stream.select("id", "at", "s", "_row_kind"), catalog.table("b"), on="at", how="left",
        select=["since"], upsert_key=["id"],
    )  # fmt: skip
    for number in range(2):
        for name, df in (("pairs", latest), ("found", dimension)):
            run(catalog.write_changes(df, name), tmp_path / f"checkpoint-{name}")
        wanted = batch(spark, catalog, "SELECT id, a.at, s, since FROM a LEFT JOIN b ON a.at = b.at "
                       "WHERE a.at IS NOT NULL")  # fmt: skip
        for name in ("pairs", "found"):
            found = catalog.read(spark, name).select(as_text())
            assert Counter(row for (row,) in found.collect()) == wanted
        same_in_all_zones(f"lookups {number}", zone, wanted)
        catalog.table("a").write(rows_of_a(range(18, 22), 0))
        gone = rows_of_a(range(4), 0)
        catalog.table("a").write(of_kind(gone, "-D"))


@pytest.mark.long
def test_the_normalizer(spark: SparkSession, catalog: Catalog, zone: str, tmp_path: Path) -> None:
    """Keys and orders that are instants, and rows with instants inside."""
    catalog.sql("CREATE TABLE newest (at TIMESTAMP, id BIGINT, l ARRAY<TIMESTAMP>, s STRUCT<at: TIMESTAMP>)")
    folder = tmp_path / "rows"
    folder.mkdir()
    for step in range(2):
        rows = rows_of_a(range(18 * step, 18 * step + 18), 0).select(["at", "id", "l", "s"])
        pq.write_table(rows, folder / f"{step}.parquet")
        stream = spark.readStream.schema(spark.read.parquet(str(folder)).schema).parquet(str(folder))
        df = normalize(stream.where("at IS NOT NULL"), "at", "id", buckets=2)
        run(catalog.write_changes(df, "newest"), tmp_path / "checkpoint")
    found = Counter(row for (row,) in catalog.read(spark, "newest").select(as_text()).collect())
    spark.read.parquet(str(folder)).where("at IS NOT NULL").createOrReplaceTempView("rows")
    wanted = spark.sql(
        "SELECT at, max(id) AS id, array(at, NULL) AS l, struct(at) AS s FROM rows GROUP BY at"
    )
    assert found == Counter(row for (row,) in wanted.select(as_text()).collect())
    same_in_all_zones("normalize", zone, found)


NAMES = ("id", "at", "ntz", "day", "s", "l")
COLUMNS = "id BIGINT, at TIMESTAMP, ntz TIMESTAMP_NTZ, day DATE, s STRUCT<at: TIMESTAMP>, l ARRAY<TIMESTAMP>"
FLAT = "id BIGINT, at TIMESTAMP, ntz TIMESTAMP_NTZ, day DATE"
FILES = {
    **{f"managed_{name}": (COLUMNS, {"file.format": name}) for name in ("arrow", "parquet", "orc", "avro")},
    **{f"spark_{name}": (COLUMNS, {"connector": name}) for name in ("parquet", "orc", "json")},
    "spark_csv": (FLAT, {"connector": "csv"}),
}


def options(given: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in given.items())


def written_and_read(spark: SparkSession, catalog: Catalog, name: str) -> Counter[str]:
    """What a table holds that was given all rows of `a`, which is what `a` holds."""
    columns = [column for column in NAMES if column in catalog.schema(name).names]
    catalog.sql(f"INSERT INTO {name} SELECT {', '.join(columns)} FROM a", spark)
    found = Counter(row for (row,) in catalog.read(spark, name).select(as_text(*columns)).collect())
    assert found == batch(spark, catalog, f"SELECT {', '.join(columns)} FROM a")
    return found


@pytest.mark.long
def test_files(spark: SparkSession, catalog: Catalog, zone: str, tmp_path: Path) -> None:
    first_load(catalog)
    for name, (columns, given) in FILES.items():
        where = {"path": str(tmp_path / name)} if "connector" in given else {}
        catalog.sql(f"CREATE TABLE {name} ({columns}) WITH ({options(given | where)})")
        same_in_all_zones(name, zone, written_and_read(spark, catalog, name))


FORMATS = {
    "json": (COLUMNS, {}),
    "json-schema-confluent": (COLUMNS, {}),
    "json in ISO 8601": (COLUMNS, {"timestamp-format.standard": "ISO-8601"}),
    "csv": (FLAT, {}),
    "avro": (COLUMNS, {"timestamp_mapping.legacy": "false"}),
    "avro-confluent": (COLUMNS, {}),
    "debezium-json": (COLUMNS, {}),
    "debezium-avro-confluent": (COLUMNS, {}),
    "canal-json": (COLUMNS, {}),
    "maxwell-json": (COLUMNS, {}),
    "ogg-json": (COLUMNS, {}),
}


@pytest.fixture
def registry() -> Iterator[Double]:
    with registry_double() as server:
        yield server


@pytest.mark.kafka
@pytest.mark.long
@pytest.mark.parametrize("connector", ["kafka", "upsert-kafka"])
def test_topics(
    spark: SparkSession, catalog: Catalog, kafka: LocalKafka, registry: Double, zone: str, connector: str
) -> None:
    """Every format, whose records are the same bytes in all zones."""
    first_load(catalog)
    servers = {"properties.bootstrap.servers": kafka.bootstrap_servers}
    connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
    for number, (title, (columns, of_format)) in enumerate(FORMATS.items()):
        name, topic = title.split()[0], f"zones-{uuid.uuid4().hex[:8]}"
        given = {"connector": connector, "topic": topic, "topic.partitions": "1", **servers}
        given |= {"value.format": name, **{f"value.{name}.{k}": v for k, v in of_format.items()}}
        if name.endswith("-confluent"):
            given[f"value.{name}.url"] = registry.url
        key = ""
        if connector == "upsert-kafka":
            if not format_named(name, "test").is_insert_only:
                continue
            given |= {"key.format": "json"}
            key = ", PRIMARY KEY (id) NOT ENFORCED"
        catalog.sql(f"CREATE TABLE t{number} ({columns}{key}) WITH ({options(given)})")
        found = written_and_read(spark, catalog, f"t{number}")
        same_in_all_zones(f"{connector} {title}", zone, found)
        records = records_in(connection, topic, sum(found.values()))
        same_in_all_zones(
            f"{connector} {title} in bytes",
            zone,
            Counter(repr((one["key"], one["value"])) for one in records),
        )


def test_statements(spark: SparkSession, catalog: Catalog, zone: str) -> None:
    """Times in the texts of statements are those of the session, as Spark reads them."""
    first_load(catalog)
    for text in ("2024-03-31 02:30:00", "2024-10-27 02:30:00", "2024-10-27 02:30:00+01:00"):
        condition = f"at > TIMESTAMP '{text}'"
        wanted = batch(spark, catalog, f"SELECT id, at FROM a WHERE {condition}")
        result = catalog.sql(f"SELECT id, at FROM a WHERE {condition}", spark).df.select(as_text())
        assert Counter(row for (row,) in result.collect()) == wanted
    left = batch(spark, catalog, f"SELECT id, at FROM a WHERE NOT ({condition}) OR at IS NULL")
    catalog.sql(f"DELETE FROM a WHERE {condition}", spark)
    assert batch(spark, catalog, "SELECT id, at FROM a") == left
    assert left
    catalog.sql(
        "INSERT INTO b VALUES (TIMESTAMP '2024-10-27 02:30:00', 7, TIMESTAMP '2024-03-31 02:30:00')", spark
    )
    literals = "SELECT TIMESTAMP '2024-10-27 02:30:00' AS at, TIMESTAMP '2024-03-31 02:30:00' AS since"
    assert batch(spark, catalog, "SELECT at, since FROM b WHERE k = 7") == batch(spark, catalog, literals)
