"""Topics as tables of a catalog, on a real broker: DDL, then the same calls as for managed tables."""

import json
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import planner
from tests.upsert.formats.registry_double import registry_double
from tests.upsert.kafka.written import records_in
from upsert.catalog.catalog import Catalog
from upsert.errors import ConfigurationError, SchemaError
from upsert.kafka.client.connection import Connection
from upsert.testing import LocalKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

USERS = "CREATE TABLE {} (id BIGINT, name STRING, at TIMESTAMP{}, PRIMARY KEY (id) NOT ENFORCED)"
MORNING = datetime.now(UTC).replace(hour=0, minute=0, second=1, microsecond=0)


def with_clause(**options: str) -> str:
    named = {key.replace("__", "-").replace("_", "."): value for key, value in options.items()}
    return "WITH (" + ", ".join(f"'{key}' = '{value}'" for key, value in named.items()) + ")"


def run(writer: DataStreamWriter, checkpoint: Path) -> None:
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def users(*rows: tuple[int, str | None, datetime | None, str]) -> pa.Table:
    names = ["id", "name", "at", "_row_kind"]
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


@pytest.mark.long
def test_managed_table_flows_through_a_topic_into_another_one(
    spark: SparkSession, catalog: Catalog, kafka: LocalKafka, tmp_path: Path
) -> None:
    """With a schema registry, a key format of its own, and a time that is metadata of the records."""
    with registry_double() as registry:
        options = with_clause(
            connector="upsert-kafka",
            topic=f"users-{uuid.uuid4().hex[:8]}",
            topic_partitions="2",
            properties_bootstrap_servers=kafka.bootstrap_servers,
            key_format="raw",
            value_format="avro-confluent",
            value_avro__confluent_url=registry.url,
            value_fields__include="EXCEPT_KEY",
        )
        catalog.sql(USERS.format("source", ""))
        catalog.sql(f"{USERS.format('topic', ' METADATA FROM' + repr('timestamp'))} {options}")
        catalog.sql(USERS.format("copy", ""))

        def flow() -> None:
            for source, sink in (("source", "topic"), ("topic", "copy")):
                changes = catalog.read_changes(spark, source)
                run(catalog.write_changes(changes, sink, sink_materialize="none"), tmp_path / sink)

        def rows(name: str) -> Counter[Any]:
            return Counter(tuple(row) for row in catalog.read(spark, name).collect())

        source = catalog.table("source")
        source.write(users((1, "ann", MORNING, "+I"), (2, "bob", MORNING, "+I"), (3, None, MORNING, "+I")))
        flow()
        assert rows("topic") == rows("copy") == rows("source")
        source.write(users((1, "anna", MORNING, "+U"), (2, None, None, "-D")))
        flow()
        assert rows("topic") == rows("copy") == rows("source")
        assert sum(rows("copy").values()) == 2
        assert len(registry.schemas) == 1
    state = Path(catalog.warehouse) / "topic" / "state"
    assert any(state.iterdir())
    catalog.sql("DROP TABLE topic")
    assert not state.exists()


def test_a_view_names_a_query_over_topics_of_changes(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    """The usual pipeline of Flink: topics of Debezium, a view that joins them, and a table of its rows."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    topics = {name: f"{name}-{uuid.uuid4().hex[:8]}" for name in ("sales", "shops")}
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def change(table: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        record = {"before": before, "after": after, "op": "d" if after is None else "u" if before else "c"}
        producer.produce(topics[table], json.dumps(record))

    for name, columns in (("sales", "id INT, shop INT"), ("shops", "id INT, city STRING")):
        kafka.create_topic(topics[name])
        options = with_clause(
            connector="kafka",
            topic=topics[name],
            properties_bootstrap_servers=kafka.bootstrap_servers,
            format="debezium-json",
        )
        catalog.sql(f"CREATE TABLE {name} ({columns}, PRIMARY KEY (id) NOT ENFORCED) {options}")
    catalog.sql("CREATE TABLE cities (id INT, city STRING, PRIMARY KEY (id) NOT ENFORCED)")
    for id in (1, 2, 3):
        change("sales", None, {"id": id, "shop": id % 2})
    change("shops", None, {"id": 0, "city": "Ulm"})
    change("shops", None, {"id": 1, "city": "Bonn"})
    change("sales", {"id": 3, "shop": 1}, None)
    change("shops", {"id": 0, "city": "Ulm"}, {"id": 0, "city": "Köln"})
    producer.flush()

    view = "CREATE VIEW named AS SELECT s.id, t.city FROM sales s JOIN shops t ON s.shop = t.id"
    with pytest.raises(
        SchemaError, match=r"which a batch would take for rows; SET 'execution\.runtime-mode'"
    ):
        catalog.sql(view, spark)
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    catalog.sql("SET 'execution.trigger' = 'available-now'")
    catalog.sql(f"SET 'checkpoint.location' = '{tmp_path}/checkpoints'")
    catalog.sql(view, spark)
    assert catalog.sql("DESCRIBE named").rows.column("name").to_pylist() == ["id", "city"]
    catalog.sql("CREATE TEMPORARY VIEW shown AS SELECT id, upper(city) AS city FROM named", spark)
    with pytest.raises(SchemaError, match="column 'nix' is in no table of the query"):
        catalog.sql("CREATE VIEW other AS SELECT nix FROM sales", spark)
    catalog.sql("INSERT INTO cities SELECT id, city FROM shown", spark).query.awaitTermination()
    rows = catalog.table("cities").snapshot().scan().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "city": "BONN"}, {"id": 2, "city": "KÖLN"}]


def test_metadata_is_written_and_read_at_any_place(
    spark: SparkSession, catalog: Catalog, kafka: LocalKafka, tmp_path: Path
) -> None:
    """Flink's case MD01: NULL headers come back as an empty map."""
    topic = f"md01-{uuid.uuid4().hex[:8]}"
    options = with_clause(
        connector="kafka",
        topic=topic,
        topic_partitions="1",
        properties_bootstrap_servers=kafka.bootstrap_servers,
        value_format="avro",
    )
    written = (
        "physical_1 STRING, physical_2 INT, {time}{h}, headers MAP<STRING, BYTES>{h}, physical_3 BOOLEAN"
    )
    catalog.sql(f"CREATE TABLE given ({written.format(time='`timestamp` TIMESTAMP', h='')})")
    catalog.sql(
        f"""
        CREATE TABLE md01 (
            physical_1 STRING,
            physical_2 INT,
            `timestamp-type` STRING METADATA VIRTUAL,
            `timestamp` TIMESTAMP(3) WITH LOCAL TIME ZONE METADATA,
            `leader-epoch` INT METADATA VIRTUAL,
            `headers` MAP<STRING, BYTES> METADATA,
            `partition` INT METADATA VIRTUAL,
            `topic` STRING METADATA VIRTUAL,
            physical_3 BOOLEAN
        ) {options}
        """
    )
    headers = [("k1", b"\xc0\xff\xee"), ("k2", b"\xba\xbe\x01")]
    today = datetime.now(UTC).replace(microsecond=123_000)  # a broker deletes what is older than a week
    at = [today, today - timedelta(days=1)]
    values = [["data 1", "data 2"], [1, 2], at, [headers, None], [True, False]]
    catalog.table("given").write(pa.table(values, schema=catalog.table("given").schema.arrow))
    run(catalog.write_changes(catalog.read_changes(spark, "given"), "md01"), tmp_path / "checkpoint")
    found = [tuple(row) for row in catalog.read(spark, "md01").orderBy("physical_1").collect()]
    plain = [moment.replace(tzinfo=None) for moment in at]
    assert [(*row[:2], row[2], row[3].replace(tzinfo=None), *row[4:]) for row in found] == [
        ("data 1", 1, "CreateTime", plain[0], 0, dict(headers), 0, topic, True),
        ("data 2", 2, "CreateTime", plain[1], 0, {}, 0, topic, False),
    ]


def test_a_job_continues_with_a_renamed_topic_and_begins_again_with_another_one(
    spark: SparkSession, tmp_path: Path, kafka: LocalKafka
) -> None:
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)

    def declare(topic: str) -> str:
        options = with_clause(
            connector="upsert-kafka",
            topic=topic,
            topic_partitions="1",
            properties_bootstrap_servers=kafka.bootstrap_servers,
            key_format="json",
            value_format="json",
        )
        catalog.sql(f"{USERS.format('topic', '')} {options}")
        return topic

    def keys(topic: str, count: int) -> list[int]:
        connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        return sorted(json.loads(record["key"])["id"] for record in records_in(connection, topic, count))

    def run_job(name: str) -> str:
        job = catalog.sql(f"INSERT INTO {name} SELECT id, name, at FROM source", spark)
        job.query.awaitTermination()
        return str(job.checkpoint)

    catalog.sql(USERS.format("source", ""))
    for option in ("'execution.runtime-mode' = 'streaming'", "'execution.trigger' = 'available-now'"):
        catalog.sql(f"SET {option}")
    catalog.sql("SET 'pipeline.name' = 'job'")
    first = declare(f"users-{uuid.uuid4().hex[:8]}")
    catalog.table("source").write(users((1, "Ann", MORNING, "+I")))
    begun = run_job("topic")
    catalog.sql("ALTER TABLE topic RENAME TO people")
    catalog.table("source").write(users((2, "Bob", MORNING, "+I")))
    assert run_job("people") == begun
    assert keys(first, 2) == [1, 2]
    catalog.sql("DROP TABLE people")
    second = declare(f"users-{uuid.uuid4().hex[:8]}")
    assert run_job("topic") != begun
    assert keys(second, 2) == [1, 2]
    Path(begun).rename(Path(begun).with_name("default.topic"))  # as earlier releases called it
    catalog.sql("DROP TABLE topic")
    third = declare(f"users-{uuid.uuid4().hex[:8]}")
    catalog.table("source").write(users((3, "Cid", MORNING, "+I")))
    assert Path(run_job("topic")).name == "default.topic"
    assert keys(third, 1) == [3], "as far as it had come"


def test_of_a_list_of_rows_the_last_of_each_key_is_in_the_topic(
    spark: SparkSession, catalog: Catalog, kafka: LocalKafka
) -> None:
    """A list has an order, which the tasks that share its rows would not know."""
    columns = "(id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)"
    for name, more in (("plain", {}), ("ordered", {"sequence_field": "name"})):
        topic = f"{name}-{uuid.uuid4().hex[:8]}"
        options = with_clause(
            connector="upsert-kafka",
            topic=topic,
            topic_partitions="2",
            properties_bootstrap_servers=kafka.bootstrap_servers,
            key_format="json",
            value_format="json",
            **more,
        )
        catalog.sql(f"CREATE TABLE {name} {columns} {options}")
        rows = [(id, letter) for letter in "cab" for id in (1, 2, 3)] + [(4, "d")]
        catalog.sql(f"INSERT INTO {name} VALUES {', '.join(map(repr, rows))}", spark)
        last = "b" if name == "plain" else "c"
        found = sorted(tuple(row) for row in catalog.read(spark, name).collect())
        assert found == [(1, last), (2, last), (3, last), (4, "d")]
        connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        assert len(records_in(connection, topic, 4)) == 4
        catalog.sql(f"INSERT INTO {name} VALUES (1, 'x'), (1, NULL), (1, 'y')", spark)
        assert tuple(catalog.read(spark, name).where("id = 1").first() or ()) == (1, "y")


def test_options_in_hints_are_of_the_direction(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    catalog = Catalog(tmp_path / "warehouse", optimize=lambda df: df)
    columns = "(id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)"
    options = with_clause(
        connector="upsert-kafka",
        topic=f"hinted-{uuid.uuid4().hex[:8]}",
        topic_partitions="1",
        properties_bootstrap_servers=kafka.bootstrap_servers,
        key_format="json",
        value_format="json",
        sink_parallelism="2",
    )
    catalog.sql(f"CREATE TABLE t {columns} {options}")
    catalog.sql("CREATE TABLE rows (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    of_reads = "/*+ OPTIONS('sink.parallelism' = '1') */"
    of_writes = "/*+ OPTIONS('MaxOffsetsPerTrigger' = '1') */"
    not_for_reads = r"'sink.parallelism' is for writes, got it for a read; .* INSERT INTO, or in WITH"
    not_for_writes = r"'max-rows-per-trigger' is for reads, got it for a write; .* SELECT, or in WITH"
    for mode in ("batch", "streaming"):
        catalog.sql(f"SET 'execution.runtime-mode' = '{mode}'")
        catalog.sql(f"SET 'checkpoint.location' = '{tmp_path}'")
        with pytest.raises(ConfigurationError, match=not_for_reads):
            catalog.sql(f"SELECT * FROM t {of_reads}", spark)
        with pytest.raises(ConfigurationError, match=not_for_writes):
            catalog.sql(f"INSERT INTO t {of_writes} SELECT id, name FROM rows", spark)
    with pytest.raises(ConfigurationError, match=not_for_reads):
        catalog.read_changes(spark, "t", sink_parallelism=1)
    catalog.sql("SET 'execution.runtime-mode' = 'batch'")
    catalog.sql("INSERT INTO t /*+ OPTIONS('sink.parallelism' = '1') */ VALUES (1, 'a')", spark)
    assert [tuple(row) for row in catalog.read(spark, "t").collect()] == [(1, "a")]
