"""Only the columns that a query uses are decoded from topics, and its rows are the same."""

import json
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import planner
from planner import optimizer
from upsert import Catalog
from upsert.kafka.client.admin import create_topic
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce
from upsert.registration import register
from upsert.testing import LocalKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
Row = dict[str, Any]

TYPES = {
    "id": "BIGINT",
    "g": "INT",
    **{f"s{i}": "STRING" for i in range(4)},
    **{f"n{i}": "INT" for i in range(4)},
}


class Wide:
    """A topic of JSON records with many columns, as a table of rows and as one of upserts."""

    def __init__(self, kafka: LocalKafka, catalog: Catalog) -> None:
        self.connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        self.name = f"wide-{uuid.uuid4().hex[:12]}"
        create_topic(self.connection, self.name, 1, {"cleanup.policy": "compact"})
        self.rows: list[Row] = []
        self.newest: dict[int, Row] = {}
        given = {"topic": self.name, "properties.bootstrap.servers": kafka.bootstrap_servers}
        given |= {"value.format": "json", "key.format": "json"}
        for table, connector, key in (
            ("rows", "kafka", ""),
            ("newest", "upsert-kafka", ", PRIMARY KEY (id) NOT ENFORCED"),
        ):
            options = {**given, "connector": connector, **({} if key else {"key.fields": "id"})}
            listed = ", ".join(f"'{name}' = '{text}'" for name, text in options.items())
            columns = ", ".join(f"{name} {type_}" for name, type_ in TYPES.items())
            columns += f", place BIGINT METADATA FROM 'offset' VIRTUAL{key}"
            catalog.sql(f"CREATE TABLE {table} ({columns}) WITH ({listed})")

    def send(self, draw: random.Random, count: int, *, deletes: bool = False, **odd: Any) -> None:
        records = []
        for _ in range(count):
            id = draw.randrange(20)
            if deletes and draw.random() < 0.2:
                self.newest.pop(id, None)
                records.append((id, None))
                continue
            row: Row = {"id": id, "g": draw.randrange(3)}
            row |= {f"s{i}": draw.choice([None, "a", "bb", "größer"]) for i in range(4)}
            row |= {f"n{i}": draw.choice([None, draw.randrange(100)]) for i in range(4)}
            self.rows.append(row | {"place": len(self.rows)})
            self.newest[id] = row
            records.append((id, json.dumps(row | odd)))
        keys = pa.array([json.dumps({"id": id}).encode() for id, _ in records], pa.binary())
        values = pa.array([None if text is None else text.encode() for _, text in records], pa.binary())
        produce(self.connection, self.name, [pa.table({"key": keys, "value": values})])


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    spark.sql("SELECT 1")
    return Catalog(tmp_path / "tables", optimize=planner.optimize)


def streamed(catalog: Catalog, text: str) -> DataFrame:
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    return catalog.sql(text).df


def rows_of(df: DataFrame, checkpoint: Path, mode: str = "append") -> list[tuple[Any, ...]]:
    """All rows that a stream gives until it has read all."""
    name = f"m{uuid.uuid4().hex}"
    writer = df.writeStream.format("memory").queryName(name).outputMode(mode)
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    return in_order(df.sparkSession.table(name))


def in_order(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, df.collect()), key=repr)


def query(draw: random.Random) -> str:
    """A projection, perhaps under a filter and a subquery, of a few of the columns."""
    names = draw.sample([*TYPES, "place"], draw.randrange(1, 4))
    values = [draw.choice([name, f"coalesce({name}, {name})"]) + f" AS c{i}" for i, name in enumerate(names)]
    source = draw.choice(["rows", "rows AS r", "(SELECT * FROM rows WHERE n1 > 10) AS r"])
    where = draw.choice(["", " WHERE n0 > 50", " WHERE s1 = 'a' OR g = 1", " WHERE place % 2 = 0"])
    return f"SELECT {', '.join(values)} FROM {source}{where}"


def test_random_queries_give_the_same_rows(
    spark: SparkSession, kafka: LocalKafka, catalog: Catalog, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    draw = random.Random(seed)
    wide = Wide(kafka, catalog)
    wide.send(draw, 60)
    types = ", ".join(f"{name} {type_}" for name, type_ in (TYPES | {"place": "BIGINT"}).items())
    spark.createDataFrame([tuple(row.values()) for row in wide.rows], types).createOrReplaceTempView("rows")
    for number in range(2):
        text = query(draw)
        expected = in_order(spark.sql(text))
        assert rows_of(streamed(catalog, text), tmp_path / str(number)) == expected, text
        catalog.sql("SET 'execution.runtime-mode' = 'batch'")
        assert in_order(catalog.sql(text).df) == expected, text
    spark.catalog.dropTempView("rows")


def test_what_is_not_used_is_not_decoded(
    spark: SparkSession, kafka: LocalKafka, catalog: Catalog, tmp_path: Path
) -> None:
    wide = Wide(kafka, catalog)
    wide.send(random.Random(1), 3, n3="no number")
    ids = sorted([(row["id"],) for row in wide.rows], key=repr)
    assert rows_of(streamed(catalog, "SELECT id FROM rows"), tmp_path / "id") == ids
    counted = streamed(catalog, "SELECT count(*) FROM rows")
    assert rows_of(counted, tmp_path / "count", "complete") == [(3,)]
    catalog.sql("SET 'execution.runtime-mode' = 'batch'")
    assert in_order(catalog.sql("SELECT id FROM rows").df) == ids
    with pytest.raises(StreamingQueryException, match="n3"):
        rows_of(streamed(catalog, "SELECT id, n3 FROM rows"), tmp_path / "n3")


def test_upserts_with_few_columns_leave_the_same_table(
    kafka: LocalKafka, catalog: Catalog, tmp_path: Path
) -> None:
    draw = random.Random(2)
    wide = Wide(kafka, catalog)
    catalog.sql("CREATE TABLE few (id BIGINT, label STRING, PRIMARY KEY (id) NOT ENFORCED)")
    for _ in range(2):
        wide.send(draw, 40, deletes=True, n3="no number")
        df = streamed(catalog, "SELECT id, upper(s2) AS label FROM newest")
        writer = catalog.write_changes(df, "few").option("checkpointLocation", str(tmp_path / "few"))
        writer.trigger(availableNow=True).start().awaitTermination()
        found = catalog.table("few").snapshot().scan().sort_by("id").to_pylist()
        assert found == [
            {"id": id, "label": row["s2"] and row["s2"].upper()} for id, row in sorted(wide.newest.items())
        ]


def grouped(rows: list[Row]) -> list[tuple[Any, ...]]:
    chosen = [row for row in rows if row["n0"] is not None and row["n0"] > 10]
    found = []
    for g in {row["g"] for row in chosen}:
        own = [row for row in chosen if row["g"] == g]
        texts = [row["s1"] for row in own if row["s1"] is not None]
        found.append((g, sum(row["n1"] is not None for row in own), max(texts, default=None)))
    return sorted(found, key=repr)


def distinct(rows: list[Row]) -> list[tuple[Any, ...]]:
    return sorted({(row["g"], row["n2"]) for row in rows}, key=repr)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT g, count(n1) AS n, max(s1) AS s FROM rows WHERE n0 > 10 GROUP BY g", grouped),
        pytest.param("SELECT DISTINCT g, n2 FROM rows", distinct, marks=pytest.mark.long),
    ],
)
def test_state_of_an_earlier_checkpoint_goes_on(
    kafka: LocalKafka,
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    expected: Callable[[list[Row]], list[tuple[Any, ...]]],
) -> None:
    """It was written by a query that read all columns."""
    draw = random.Random(3)
    wide = Wide(kafka, catalog)
    wide.send(draw, 30)
    others = tuple((walk, rule) for walk, rule in optimizer.RULES if rule.__name__ != "read_used_columns")
    with monkeypatch.context() as patch:
        patch.setattr(optimizer, "RULES", others)
        df = streamed(catalog, text)
    assert rows_of(df, tmp_path / "state", "complete") == expected(wide.rows)
    wide.send(draw, 30, n3="no number")
    assert rows_of(streamed(catalog, text), tmp_path / "state", "complete") == expected(wide.rows)


def test_columns_that_only_a_schema_declares_are_all_of_the_topic(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    """A CSV record has them by position: what is read of it does not say what it holds."""
    connection, name = Connection({"bootstrap.servers": kafka.bootstrap_servers}), f"csv-{uuid.uuid4().hex}"
    create_topic(connection, name, 1)
    values = pa.array([b"1,x,10", b"2,y,20"], pa.binary())
    produce(connection, name, [pa.table({"key": pa.nulls(2, pa.binary()), "value": values})])
    register(spark)
    reader = spark.readStream.format("kafka-changelog").schema("a INT, b STRING, c INT")
    given = {"topic": name, "properties.bootstrap.servers": kafka.bootstrap_servers, "value.format": "csv"}
    df = planner.optimize(reader.options(**given).load().select("c", "b"))
    assert rows_of(df, tmp_path / "c") == [(10, "x"), (20, "y")]


def test_what_distributes_or_observes_rows_uses_columns(
    kafka: LocalKafka, catalog: Catalog, tmp_path: Path
) -> None:
    wide = Wide(kafka, catalog)
    wide.send(random.Random(4), 10)
    rows = streamed(catalog, "SELECT * FROM rows")
    seen = rows.repartition(2, "s1").observe("seen", F.max("n1").alias("most")).select("id")
    found = rows_of(planner.optimize(seen), tmp_path / "seen")
    assert found == sorted(((row["id"],) for row in wide.rows), key=repr)
