"""Temporal joins by event time: the step alone against a plain loop, then a query of Flink's."""

import json
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import planner
from deltajoin.errors import CheckpointMismatchError
from deltajoin.temporal import DELETED, JoinBucket, Pack, Remembered, TemporalJoin, step
from planner.refusals import PlanError
from upsert import Catalog, types
from upsert.errors import ChangelogError, SchemaError
from upsert.kafka.client.admin import create_topic
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.testing import LocalKafka

LEFT = pa.schema({"id": pa.int64(), "k": pa.int32(), "t": types.TIMESTAMP})
RIGHT = pa.schema({"key": pa.int64(), "v": pa.int64(), "since": types.TIMESTAMP})
KEYS = st.none() | st.integers(0, 2)
TIMES = st.integers(0, 12)
BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(KEYS, TIMES), max_size=4),
        st.lists(st.tuples(st.integers(0, 2), TIMES, st.booleans()), max_size=4),
        st.integers(-2, 4),
    ),
    max_size=6,
)


def expected(
    rows: list[tuple[int, Any, int]], versions: list[tuple[int, int, int, bool]], how: str
) -> list[Any]:
    """Each row with the newest version of its key that is not later; of one time the one that came last."""
    found = []
    for id, key, at in rows:
        newest = None
        for version in versions:
            if version[0] == key and version[2] <= at and (newest is None or version[2] >= newest[2]):
                newest = version
        if newest is not None and not newest[3]:
            found.append((id, newest[1]))
        elif how == "left":
            found.append((id, None))
    return sorted(found)


@given(BATCHES, st.sampled_from(["inner", "left"]))
def test_a_row_meets_the_version_of_its_time_once_all_of_them_have_come(batches, how):
    join = TemporalJoin(LEFT, RIGHT, (("k", "key"),), "t", "since", ("v",), how)
    state = Remembered(LEFT.empty_table(), join.versions.empty_table())
    rows: list[tuple[int, Any, int]] = []
    versions: list[tuple[int, int, int, bool]] = []
    emitted: list[tuple[int, Any]] = []
    watermark = 0
    for arrived, changed, ahead in [*batches, ([], [], 20)]:
        # what comes is not late: its time is after the watermark
        new_rows = [(len(rows) + n, key, watermark + 1 + time) for n, (key, time) in enumerate(arrived)]
        new = [
            (key, len(versions) + n, watermark + 1 + time, gone)
            for n, (key, time, gone) in enumerate(changed)
        ]
        rows += new_rows
        versions += new
        known = Remembered(
            pa.concat_tables([state.waiting, table(LEFT, new_rows)]),
            pa.concat_tables([state.versions, table(join.versions, [(k, v, t, d) for k, v, t, d in new])]),
        )
        watermark = max(watermark, watermark + ahead)
        result, state = step(join, known, watermark)
        emitted += [(row["l0"], row["r0"]) for row in result.to_pylist()]
        due = [row for row in rows if row[2] <= watermark]
        assert sorted(emitted) == expected(due, versions, how), (rows, versions)
        newer = sum(time > watermark for _, _, time, _ in versions)
        assert state.versions.num_rows <= newer + len({key for key, _, _, _ in versions})
    assert state.waiting.num_rows == 0
    assert not any(state.versions.column(DELETED).to_pylist())


def table(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.Table.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


JOINED = TemporalJoin(LEFT, RIGHT, (("k", "key"),), "t", "since", ("v",), "left", has_deletes=False)


@pytest.mark.parametrize(
    ("side", "rows", "error", "said"),
    [
        (0, {"id": [1], "k": [1], "t": [None]}, SchemaError, "column 't' .* must not be NULL"),
        (0, {"id": [1], "k": [1], "t": [1 << 60]}, SchemaError, "column 't' must be before the year 2262"),
        (1, {"key": [1], "v": [1], "since": [5], ROW_KIND_COLUMN: ["-D"]}, ChangelogError, "a time of its"),
    ],
)
def test_rows_without_a_time_of_their_own_are_refused(
    side: int, rows: dict[str, Any], error: type[Exception], said: str
) -> None:
    schema = LEFT if side == 0 else RIGHT.append(pa.field(ROW_KIND_COLUMN, pa.string()))
    batches = pa.table({name: pa.array(rows[name], schema.field(name).type) for name in rows}).to_batches()
    with pytest.raises(error, match=said):
        list(Pack(JOINED, side)(batches))


class StateOfAnotherJoin:
    """What Spark hands over of a bucket."""

    exists = True
    get = (replace(JOINED, how="inner").label, b"", b"")

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802
        return 0


def test_a_query_must_go_on_with_the_join_of_its_checkpoint() -> None:
    with pytest.raises(CheckpointMismatchError, match="must continue with the join of its checkpoint"):
        list(JoinBucket(JOINED)((0,), [], StateOfAnotherJoin()))  # type: ignore[arg-type]


@pytest.mark.spark
@pytest.mark.kafka
def test_orders_meet_the_prices_of_their_time(spark: SparkSession, kafka: LocalKafka, tmp_path: Path) -> None:
    """Flink's ``testTemporalJoin`` of upsert-kafka, through a restart: a price ends with its tombstone."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
    topics = {name: f"{name}-{uuid.uuid4().hex[:8]}" for name in ("orders", "products")}
    for name, topic in topics.items():
        create_topic(connection, topic, 2, {"cleanup.policy": "compact" if name == "products" else "delete"})
    where = f"'properties.bootstrap.servers' = '{kafka.bootstrap_servers}', 'value.format' = 'json'"
    catalog.sql(
        "CREATE TABLE orders (order_id STRING, product_id STRING, order_time TIMESTAMP, "
        "WATERMARK FOR order_time AS order_time - INTERVAL '1' SECOND) "
        f"WITH ('connector' = 'kafka', 'topic' = '{topics['orders']}', {where})"
    )
    catalog.sql(
        "CREATE TABLE products (product_id STRING, name STRING, price DOUBLE, "
        "update_time TIMESTAMP METADATA FROM 'timestamp' VIRTUAL, WATERMARK FOR update_time AS update_time, "
        "PRIMARY KEY (product_id) NOT ENFORCED) WITH ('connector' = 'upsert-kafka', "
        f"'topic' = '{topics['products']}', 'key.format' = 'json', {where})"
    )
    catalog.sql("CREATE TABLE priced (order_id STRING, name STRING, price DOUBLE, at TIMESTAMP)")
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    catalog.sql("SET 'execution.trigger' = 'available-now'")
    catalog.sql(f"SET 'checkpoint.location' = '{tmp_path}/checkpoints'")

    def at(hour: int, minute: int = 0) -> datetime:
        return datetime(2020, 10, 1, hour, minute, tzinfo=UTC)

    def order(*orders: tuple[str, str | None, datetime]) -> None:
        values = [
            json.dumps({"order_id": id, "product_id": product, "order_time": f"{time:%Y-%m-%d %H:%M:%SZ}"})
            for id, product, time in orders
        ]
        produce(connection, topics["orders"], [pa.table({"value": [value.encode() for value in values]})])

    def product(*products: tuple[str, str | None, float, datetime]) -> None:
        keys = [json.dumps({"product_id": id}).encode() for id, *_ in products]
        values = [
            name and json.dumps({"product_id": id, "name": name, "price": price}).encode()
            for id, name, price, _ in products
        ]
        times = [int(time.timestamp() * 1000) for *_, time in products]
        columns = {"key": keys, "value": pa.array(values, pa.binary()), "timestamp": times}
        produce(connection, topics["products"], [pa.table(columns)])

    def priced() -> list[tuple[Any, ...]]:
        statement = (
            "INSERT INTO priced SELECT o.order_id, p.name, p.price, p.update_time FROM orders AS o LEFT JOIN "
            "products FOR SYSTEM_TIME AS OF o.order_time AS p ON o.product_id = p.product_id"
        )
        catalog.sql(statement, spark).await_termination()  # type: ignore[attr-defined]
        rows = catalog.table("priced").snapshot().scan().to_pylist()
        return sorted(tuple(row.values()) for row in rows)

    product(("p1", "scooter", 11.11, at(0, 1)), ("p2", "basketball", 23.11, at(0, 2)))
    order(("o1", "p1", at(0, 1)), ("o3", "p1", at(12)), ("o2", "p2", at(0, 3)), ("o0", "p1", at(0)))
    product(("p1", "scooter", 12.99, at(12)))
    order(("o4", "p2", at(12)))
    first = [
        ("o0", None, None, None),
        ("o1", "scooter", 11.11, at(0, 1)),
        ("o2", "basketball", 23.11, at(0, 2)),
    ]
    assert priced() == first
    # a record of another partition may come later, as long as the watermark has not passed it
    product(("p2", "basketball", 19.99, at(12)), ("p1", None, 0, at(18)), ("p3", "bike", 99.0, at(23)))
    order(("o5", "p1", at(18)), ("o6", None, at(18)), ("o7", "p3", at(22)), ("o8", "p3", at(23)))
    expected = [
        *first,
        ("o3", "scooter", 12.99, at(12)),
        ("o4", "basketball", 19.99, at(12)),
        ("o5", None, None, None),
        ("o6", None, None, None),
        ("o7", None, None, None),
    ]
    assert priced() == expected


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql(
        "CREATE TABLE orders (id BIGINT, cur STRING, t TIMESTAMP, WATERMARK FOR t AS t) "
        f"WITH ('connector' = 'parquet', 'path' = '{tmp_path}/orders')"
    )
    catalog.sql(
        "CREATE TABLE rates (cur STRING, rate DOUBLE, at TIMESTAMP METADATA FROM 'commit-timestamp' VIRTUAL, "
        "WATERMARK FOR at AS at, PRIMARY KEY (cur) NOT ENFORCED)"
    )
    catalog.sql("CREATE TABLE stored (cur STRING, rate DOUBLE, at TIMESTAMP, PRIMARY KEY (cur) NOT ENFORCED)")
    catalog.sql("CREATE TABLE priced (id BIGINT, rate DOUBLE)")
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    catalog.sql("SET 'execution.trigger' = 'available-now'")
    catalog.sql(f"SET 'checkpoint.location' = '{tmp_path}/checkpoints'")
    return catalog


JOIN = "SELECT o.id, r.rate FROM orders AS o {} rates FOR SYSTEM_TIME AS OF o.t AS r ON {}"


@pytest.mark.long
@pytest.mark.spark
def test_versions_of_a_managed_table_are_those_of_its_commits(spark: SparkSession, catalog: Catalog) -> None:
    """A query begins with the versions that there are; one that it has seen ends with a later commit."""
    table, times = catalog.table("rates"), list[int]()

    def commit(cur: str, rate: float | None, kind: str) -> None:
        rates = pa.array([rate], pa.float64())
        times.append(table.write(pa.table({"cur": [cur], "rate": rates, "_row_kind": [kind]})).info.time_ms)
        while int(time.time() * 1000) <= times[-1] + 2:
            pass  # times of commits are milliseconds

    def priced(*orders: tuple[int, str, int]) -> list[tuple[Any, ...]]:
        rows = spark.createDataFrame(orders, "id BIGINT, cur STRING, ms BIGINT")
        rows = rows.selectExpr("id", "cur", "timestamp_millis(ms) AS t").coalesce(1)
        rows.write.mode("append").parquet(catalog.connected("orders").options["path"])  # type: ignore[union-attr]
        statement = f"INSERT INTO priced {JOIN.format('LEFT JOIN', 'o.cur = r.cur')}"
        catalog.sql(statement, spark).await_termination()  # type: ignore[attr-defined]
        return sorted(tuple(row.values()) for row in catalog.table("priced").snapshot().scan().to_pylist())

    commit("eur", 1.0, "+I")
    assert priced((0, "eur", times[0] - 1)) == [(0, None)]
    commit("eur", 2.0, "+U")
    commit("eur", None, "-D")
    commit("usd", 9.0, "+I")
    orders = [(n, "eur", ms + 1) for n, ms in enumerate(times, 1)]
    # the last one is after the watermark
    assert priced(*orders, (9, "usd", times[0])) == [(0, None), (1, 1.0), (2, 2.0), (3, None), (9, None)]


@pytest.mark.spark
def test_versions_that_cannot_be_known_are_refused(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    spark.createDataFrame([], "id BIGINT, cur STRING, t TIMESTAMP").write.parquet(f"{tmp_path}/orders")
    catalog.sql("ALTER TABLE stored ADD WATERMARK FOR at AS at")
    join = JOIN.format("JOIN", "o.cur = r.cur")
    refusals: list[tuple[str, type[Exception], str]] = [
        (JOIN.format("RIGHT JOIN", "o.cur = r.cur"), PlanError, "write an INNER join, or a LEFT join"),
        (JOIN.format("JOIN", "o.id = r.rate"), PlanError, r"those of its PRIMARY KEY \(cur\)"),
        ("SELECT rate FROM rates FOR SYSTEM_TIME AS OF t", PlanError, "for a join with the stream that has"),
        (
            join.replace("o.t", "o.id"),
            PlanError,
            "as of 'id', which must be one column",
        ),
        (
            join.replace(" rates", " stored"),
            SchemaError,
            "'commit-timestamp'",
        ),
        (join.replace(" rates", " priced"), SchemaError, "a PRIMARY KEY"),
        ("SET 'execution.runtime-mode' = 'batch'", SchemaError, "is for streams"),
    ]
    for text, error, said in refusals:
        if text.startswith("SET"):
            catalog.sql(text)
            text = join
        with pytest.raises(error, match=said):
            catalog.sql(text, spark)
