"""Mirrors of upsert topics on a real broker: what they hold, how they go on, and how they go away."""

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.object_store import ObjectStore
from upsert.catalog.catalog import Catalog
from upsert.errors import ConfigurationError, TableNotFoundError
from upsert.kafka.client.admin import create_topic
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce
from upsert.schema import Index
from upsert.store.storage import storage_of
from upsert.testing import LocalKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.usefixtures("ended_queries")]
NOW = {"availableNow": True}


class Users:
    """A topic of users, as a table of a catalog."""

    def __init__(self, kafka: LocalKafka, catalog: Catalog, columns: str, *, mirror: str = "") -> None:
        self.topic = f"users-{uuid.uuid4().hex[:8]}"
        self.connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        create_topic(self.connection, self.topic, 2, {"cleanup.policy": "compact"})
        catalog.sql(
            f"CREATE TABLE users ({columns}, PRIMARY KEY (id) NOT ENFORCED, INDEX (region)) WITH ("
            f"'connector' = 'upsert-kafka', 'topic' = '{self.topic}', {mirror}"
            f"'properties.bootstrap.servers' = '{kafka.bootstrap_servers}', "
            "'key.format' = 'json', 'value.format' = 'json')"
        )

    def send(self, *records: tuple[int, str | None]) -> None:
        keys = [json.dumps({"id": id}).encode() for id, _ in records]
        values = [region and json.dumps({"id": id, "region": region}).encode() for id, region in records]
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        produce(self.connection, self.topic, [pa.table(columns)])


def rows(catalog: Catalog, columns: Sequence[str] = ("id", "region")) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = catalog.table("users").snapshot().scan(columns).sort_by("id").to_pylist()
    return found


def finished(query: StreamingQuery) -> StreamingQuery:
    query.awaitTermination()
    return query


def test_mirror_holds_the_topic_goes_on_after_a_stop_and_is_dropped_with_its_table(
    spark: SparkSession, catalog: Catalog, kafka: LocalKafka
) -> None:
    columns = "id BIGINT, region STRING, place BIGINT METADATA FROM 'offset' VIRTUAL"
    users = Users(kafka, catalog, columns, mirror="'mirror.bucket' = '2', ")
    with pytest.raises(ConfigurationError, match="or have a mirror, got a table of the connector"):
        catalog.table("users")
    users.send((1, "Berlin"), (2, "Beijing"), (3, "Berlin"), (3, None))
    first = finished(catalog.mirror(spark, "users", NOW))
    mirror = catalog.table("users")
    assert (mirror.name, mirror.options.bucket) == ("users", 2)
    assert mirror.schema.indexes == (Index("INDEX_region", ("region",)),)
    assert rows(catalog) == [{"id": 1, "region": "Berlin"}, {"id": 2, "region": "Beijing"}]
    assert all(row["place"] is not None for row in rows(catalog, ["id", "place"]))

    users.send((1, None), (2, "Hangzhou"), (4, "Berlin"))
    second = catalog.mirror(spark, "users")
    assert catalog.mirror(spark, "users").id == second.id == first.id, "it goes on, and runs once"
    second.processAllAvailable()
    found = mirror.snapshot().lookup(["region"], pa.table({"region": ["Hangzhou", "Berlin"]}))
    assert sorted(found["id"].to_pylist()) == [2, 4]
    with pytest.raises(ConfigurationError, match=r"a query that runs; stop it first, with ALTER TABLE"):
        catalog.sql("DROP TABLE users")
    second.stop()
    catalog.sql("DROP TABLE users")
    assert not Path(mirror.path).exists()
    with pytest.raises(TableNotFoundError):
        catalog.mirror(spark, "users")


@pytest.mark.long
def test_mirror_in_an_object_store_has_its_checkpoint_elsewhere(
    spark: SparkSession, kafka: LocalKafka, s3: ObjectStore, tmp_path: Path
) -> None:
    catalog = Catalog(s3.warehouse)
    users = Users(kafka, catalog, "id BIGINT, region STRING")
    users.send((1, "Berlin"), (2, "Beijing"))
    with pytest.raises(ConfigurationError, match="needs a folder for them, got none"):
        catalog.mirror(spark, "users", NOW)
    finished(catalog.mirror(spark, "users", NOW, tmp_path))
    users.send((1, None))
    catalog.sql(f"SET 'checkpoint.location' = '{tmp_path}'")
    finished(catalog.mirror(spark, "users", NOW))
    assert rows(catalog) == [{"id": 2, "region": "Beijing"}]
    assert len(list(tmp_path.iterdir())) == 1
    catalog.sql("DROP TABLE users")
    assert list(storage_of(catalog.warehouse).walk(catalog.warehouse)) == []


def test_columns_that_are_not_null_are_mirrored_by_their_images(
    spark: SparkSession, catalog: Catalog, kafka: LocalKafka
) -> None:
    """A deletion by key alone would have a NULL there."""
    users = Users(kafka, catalog, "id BIGINT, region STRING NOT NULL")
    users.send((1, "Berlin"), (2, "Beijing"))
    finished(catalog.mirror(spark, "users", NOW))
    users.send((1, None), (2, "Hangzhou"))
    finished(catalog.mirror(spark, "users", NOW))
    assert rows(catalog) == [{"id": 2, "region": "Hangzhou"}]


def test_only_topics_with_keys_have_a_mirror(spark: SparkSession, catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE here (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql(
        "CREATE TABLE log (id BIGINT) WITH ('connector' = 'kafka', 'topic' = 'log', "
        "'properties.bootstrap.servers' = 'localhost:1', 'value.format' = 'json')"
    )
    with pytest.raises(ConfigurationError, match="got a managed one, which can be looked up itself"):
        catalog.mirror(spark, "here")
    with pytest.raises(
        ConfigurationError, match=r"a mirror needs 'upsert-kafka', or .* got 'json' and the key \(\); write"
    ):
        catalog.mirror(spark, "log")
    with pytest.raises(
        ConfigurationError, match=r"a mirror needs 'upsert-kafka', or .* got 'json' and the key \(\); write"
    ):
        catalog.table("log")


def test_a_stream_and_the_mirror_go_on_with_altered_columns(
    spark: SparkSession, kafka: LocalKafka, catalog: Catalog, tmp_path: Path
) -> None:
    """The copy has no key, so a ``-U`` that were not the row that was emitted would fail there."""
    users = Users(kafka, catalog, "id BIGINT, region STRING")
    catalog.sql("CREATE TABLE copy (id BIGINT, region STRING)")

    def send(*records: tuple[int, str, int | None]) -> None:
        keys = [json.dumps({"id": id}).encode() for id, *_ in records]
        values = [json.dumps({"id": id, "region": r, "level": level}).encode() for id, r, level in records]
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        produce(users.connection, users.topic, [pa.table(columns)])

    def follow() -> list[tuple[Any, ...]]:
        writer = catalog.write_changes(catalog.read_changes(spark, "users"), "copy")
        finished(writer.option("checkpointLocation", str(tmp_path / "c")).trigger(**NOW).start())
        return sorted(tuple(row.values()) for row in catalog.table("copy").snapshot().scan().to_pylist())

    send((1, "Berlin", 5), (2, "Beijing", 6))
    assert follow() == [(1, "Berlin"), (2, "Beijing")]
    (tmp_path / "ids").mkdir()
    catalog.sql(f"CREATE TABLE ids (id BIGINT) WITH ('connector' = 'parquet', 'path' = '{tmp_path}/ids')")
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    with pytest.raises(ConfigurationError, match=r"without one; write ALTER TABLE … START MIRROR"):
        catalog.sql("SELECT * FROM ids JOIN users FOR SYSTEM_TIME AS OF PROCTIME() USING (id)", spark)
    running: Any = catalog.sql("ALTER TABLE users START MIRROR", spark)
    running.query.processAllAvailable()
    with pytest.raises(ConfigurationError, match="stop it first, with ALTER TABLE users STOP MIRROR"):
        catalog.sql("ALTER TABLE users ADD COLUMN level INT")
    assert str(catalog.sql("ALTER TABLE users STOP MIRROR")) == "<ALTER TABLE users STOP MIRROR: stopped>"
    for table in ("users", "copy"):
        catalog.sql(f"ALTER TABLE {table} ADD COLUMN level INT")
    send((1, "Rome", 7), (3, "Paris", None))
    expected = [(1, "Rome", 7), (2, "Beijing", None), (3, "Paris", None)]
    assert follow() == expected
    catalog.sql("SET 'execution.trigger' = 'available-now'")
    finished(catalog.sql("ALTER TABLE users START MIRROR", spark).query)  # type: ignore[attr-defined]
    assert [tuple(row.values()) for row in rows(catalog, ["id", "region", "level"])] == expected
    for table, change in (("users", "DROP INDEX INDEX_region"), ("users", ""), ("copy", "")):
        catalog.sql(f"ALTER TABLE {table} {change or 'DROP COLUMN region'}")
    send((2, "Rome", 9), (3, "Rome", 8))
    assert follow() == [(1, 7), (2, 9), (3, 8)]
