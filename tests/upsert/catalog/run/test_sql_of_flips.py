"""The SQL of the FLIPs as their documents have it, but for names of connectors, places, and their slips."""

import json
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Frame, Live, Result, Running
from upsert.errors import ConfigurationError
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce
from upsert.testing import LocalKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

Run = Callable[[str], Result]


class Flip:
    """A catalog, a broker, and statements as they stand in a document."""

    def __init__(self, spark: SparkSession, kafka: LocalKafka, folder: Path) -> None:
        self.spark, self.kafka = spark, kafka
        self.catalog = Catalog(folder / "warehouse", optimize=planner.optimize)
        self.prefix = uuid.uuid4().hex[:8]
        self.catalog.options["checkpoint.location"] = str(folder / "checkpoints")
        self.catalog.options["execution.trigger"] = "available-now"

    def __call__(self, text: str) -> Result:
        """Carry out a statement; topics get names of their own, ``...`` becomes the broker's address."""
        text = text.replace("'...'", f"'{self.kafka.bootstrap_servers}'")
        result = self.catalog.sql(text.replace("'topic' = '", f"'topic' = '{self.prefix}-"), self.spark)
        if isinstance(result, Running):
            assert result.query is not None
            result.query.awaitTermination()
        return result

    def send(self, topic: str, *values: dict[str, Any]) -> None:
        connection = Connection({"bootstrap.servers": self.kafka.bootstrap_servers})
        records = [json.dumps(value).encode() for value in values]
        produce(connection, f"{self.prefix}-{topic}", [pa.table({"value": pa.array(records, pa.binary())})])

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """The rows of a query in batch mode, sorted."""
        before = dict(self.catalog.options)
        self.catalog.options["execution.runtime-mode"] = "batch"
        try:
            result = self(text)
        finally:
            self.catalog.options.update(before)
        assert isinstance(result, Frame)
        return sorted((tuple(row.values()) for row in result.rows.to_pylist()), key=str)


@pytest.fixture
def flip(spark: SparkSession, kafka: LocalKafka, tmp_path: Path) -> Flip:
    return Flip(spark, kafka, tmp_path)


def dbz(before: tuple[Any, ...] | None, after: tuple[Any, ...] | None) -> dict[str, Any]:
    names = ("user_id", "user_name", "user_level", "region")
    images = [None if row is None else dict(zip(names, row, strict=True)) for row in (before, after)]
    return {"before": images[0], "after": images[1], "op": "d" if not after else "u" if before else "c"}


@pytest.mark.long
def test_flip_149(flip: Flip) -> None:
    """A topic of Debezium becomes a compacted one, page views look its users up, and are counted."""
    flip.kafka.create_topic(f"{flip.prefix}-dbz_users")
    flip.kafka.create_topic(f"{flip.prefix}-pageviews")
    bob, alice, moved = (
        (100, "Bob", "gold", "Beijing"),
        (101, "Alice", "gold", "Shanghai"),
        (101, "Alice", "gold", "Hangzhou"),
    )
    greg, richard = (102, "Greg", "gold", "Berlin"), (103, "Richard", "gold", "Berlin")
    flip.send("dbz_users", *(dbz(None, user) for user in (bob, alice, greg, richard)))
    flip.send("dbz_users", dbz(alice, moved), dbz(richard, None))
    flip(
        """
        -- register a kafka source which interpret debezium topic as a changelog stream
        CREATE TABLE dbz_users (
          user_id BIGINT,
          user_name STRING,
          user_level STRING,
          region STRING
        ) WITH (
          'connector' = 'kafka',
          'topic' = 'dbz_users',
          'properties.bootstrap.servers' = '...',
          'format' = 'debezium-json'
        );
        """
    )
    flip("SET execution.runtime-mode=streaming;")
    flip("SET execution.result-mode=changelog;")
    changes = flip("SELECT * FROM dbz_users;")
    assert isinstance(changes, Frame)
    assert changes.df is not None
    assert changes.df.columns == ["user_id", "user_name", "user_level", "region", "_row_kind"]
    with pytest.raises(Exception, match="the topic holds changes, which a batch would take for rows"):
        flip.rows("SELECT * FROM dbz_users")
    flip(
        """
        -- register a ktable sink which will be used for storing latest users information
        CREATE TABLE users (
          user_id BIGINT,
          user_name STRING,
          user_level STRING,
          region STRING,
          PRIMARY KEY (user_id) NOT ENFORCED
        ) WITH (
          'connector' = 'ktable',
          'topic' = 'users',
          'properties.bootstrap.servers' = '...',
          'topic.partitions' = '1',
          'key.format' = 'csv',
          'value.format' = 'avro'
        );
        """
    )
    flip(
        "-- convert the debezium topic into kafka compacted topic\nINSERT INTO users SELECT * FROM dbz_users;"
    )
    users = flip.rows("SELECT user_id, user_name, region FROM users")
    assert users == [(100, "Bob", "Beijing"), (101, "Alice", "Hangzhou"), (102, "Greg", "Berlin")]
    flip("SET execution.result-mode=table;")
    live = flip("SELECT * FROM users;")
    assert isinstance(live, Live)
    assert live.query is not None
    live.query.awaitTermination()
    assert sorted(live.rows.column("user_name").to_pylist()) == ["Alice", "Bob", "Greg"]

    flip(
        """
        CREATE TABLE pageviews (
          user_id BIGINT,
          page_id BIGINT,
          viewtime TIMESTAMP,
          proctime AS PROCTIME()
        ) WITH (
          'connector' = 'kafka',
          'topic' = 'pageviews',
          'properties.bootstrap.servers' = '...',
          'format' = 'json'
        );
        """
    )
    flip(
        """
        CREATE TABLE pageviews_enriched (
          user_id BIGINT,
          page_id BIGINT,
          viewtime TIMESTAMP,
          user_region STRING,
          WATERMARK FOR viewtime AS viewtime - INTERVAL '2' SECOND
        ) WITH (
          'connector' = 'kafka',
          'topic' = 'pageviews_enriched',
          'properties.bootstrap.servers' = '...',
          'topic.partitions' = '1',
          'format' = 'json'
        );
        """
    )
    views = [(100, 10001, 1), (102, 10002, 2), (101, 10002, 4), (102, 10004, 6), (102, 10003, 7), (9, 1, 30)]
    flip.send(
        "pageviews",
        *({"user_id": u, "page_id": p, "viewtime": f"2020-10-01 08:{m:02}:00Z"} for u, p, m in views),
    )
    mirror = flip.catalog.mirror(flip.spark, "users", {"availableNow": True})
    mirror.awaitTermination()
    flip(
        """
        INSERT INTO pageviews_enriched
        SELECT p.user_id, p.page_id, p.viewtime, u.region  -- the document has a star, of eight columns
        FROM pageviews AS p
        LEFT JOIN users FOR SYSTEM_TIME AS OF p.proctime AS u
        ON p.user_id = u.user_id;
        """
    )
    enriched = flip.rows("SELECT user_id, page_id, user_region FROM pageviews_enriched WHERE user_id > 9")
    assert enriched == [
        (100, 10001, "Beijing"),
        (101, 10002, "Hangzhou"),
        (102, 10002, "Berlin"),
        (102, 10003, "Berlin"),
        (102, 10004, "Berlin"),
    ]

    flip(
        """
        CREATE TABLE pageviews_per_region_5min (
          window_start STRING,
          region STRING,
          view_count BIGINT,
          PRIMARY KEY (window_start, region) NOT ENFORCED
        ) WITH (
          'connector' = 'ktable',
          'topic' = 'pageviews_per_region_5min',
          'properties.bootstrap.servers' = '...',
          'topic.partitions' = '1',
          'key.format' = 'csv',
          'value.format' = 'avro'
        );
        """
    )
    flip(
        """
        INSERT INTO pageviews_per_region_5min
        SELECT
          TUMBLE_START(viewtime, INTERVAL '5' MINUTE),
          user_region,  -- the document has region, which that table does not have
          COUNT(*)
        FROM pageviews_enriched
        WHERE user_region IS NOT NULL OR user_id = 9
        GROUP BY user_region, TUMBLE(viewtime, INTERVAL '5' MINUTE);
        """
    )
    counted = flip.rows("SELECT * FROM pageviews_per_region_5min")
    assert counted == [
        ("2020-10-01 08:00:00", "Beijing", 1),
        ("2020-10-01 08:00:00", "Berlin", 1),
        ("2020-10-01 08:00:00", "Hangzhou", 1),
        ("2020-10-01 08:05:00", "Berlin", 2),
    ]


def test_flip_107(flip: Flip) -> None:
    """A time of the record is read and written as a column; a column of the list that is left out is NULL."""
    # the time of a record is old, so that a broker would delete it soon
    flip.kafka.create_topic(f"{flip.prefix}-events", config={"retention.ms": "-1"})
    flip(
        """
        CREATE TABLE kafka_table (
          id BIGINT,
          name STRING,
          event_time TIMESTAMP(3) WITH LOCAL TIME ZONE METADATA FROM 'timestamp',
          headers MAP<STRING, BYTES> METADATA,
          offset BIGINT METADATA VIRTUAL
        ) WITH (
          'connector' = 'kafka', 'topic' = 'events', 'properties.bootstrap.servers' = '...', 'format' = 'json'
        )
        """
    )
    flip("INSERT INTO kafka_table VALUES (1, 'ABC', TIMESTAMP '2020-10-01 08:00:00', MAP('a', X'62'))")
    flip("INSERT INTO kafka_table (id, name) VALUES (2, 'DEF')")
    first, second = flip.rows("SELECT id, name, offset, map_keys(headers), event_time FROM kafka_table")
    assert first[:4] == (1, "ABC", 0, ["a"])
    assert isinstance(first[4], datetime)
    assert first[4].timestamp() == datetime.fromisoformat("2020-10-01T08:00:00+00:00").timestamp()
    assert second[:3] == (2, "DEF", 1)


def test_flip_188_and_218(flip: Flip) -> None:
    """Managed tables: snapshots and changes of one table, partitions, and a table of a query."""
    flip("SET table-storage.bucket = 2;")
    flip(
        """
        CREATE TABLE IF NOT EXISTS main.default.test (
          id BIGINT, name STRING COMMENT 'of a person', age INT, twice AS age * 2 COMMENT 'x', day STRING,
          CONSTRAINT pk PRIMARY KEY (id, day) NOT ENFORCED
        ) COMMENT 'people' PARTITIONED BY (day) WITH ('change-tracking' = 'true')
        """
    )
    flip("INSERT INTO main.default.test PARTITION (day = 'mon') (id, name, age) SELECT 10, 'Ann', 3")
    flip("INSERT INTO test /*+ OPTIONS('change-tracking' = 'false') */ VALUES (20, 'Bob', 4, 'tue')")
    flip("CREATE TABLE ctas_hudi AS SELECT id, name, age FROM main.default.test WHERE mod(id, 10) = 0;")
    assert flip.rows("SELECT * FROM ctas_hudi") == [(10, "Ann", 3), (20, "Bob", 4)]
    flip("SET 'execution.runtime-mode' = 'streaming';")
    changes = flip("SELECT id, twice FROM test")
    assert isinstance(changes, Frame)
    assert changes.df is not None
    assert changes.df.columns == ["id", "twice", "_row_kind"]
    with pytest.raises(ConfigurationError, match="a stream cannot overwrite"):
        flip("INSERT OVERWRITE test SELECT id, name, age, 'mon' FROM test")
    flip("SET 'execution.runtime-mode' = 'batch';")
    assert flip.rows("SELECT id, twice, day FROM test WHERE day = 'tue'") == [(20, 8, "tue")]
    flip("INSERT OVERWRITE test PARTITION (day = 'tue') VALUES (30, 'Cid', 5)")
    assert flip.rows("SELECT id FROM test") == [(10,), (30,)]
    flip("ALTER TABLE test COMPACT")
    assert "day=tue" in repr(flip("DESCRIBE TABLE EXTENDED main.default.test PARTITION (day = 'tue')"))
    flip("DROP TABLE IF EXISTS main.default.test")
