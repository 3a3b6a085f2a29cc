"""The page on Debezium with a real one: its connector, its types, and what a table holds after each phase."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import planner
from tests.helpers import wait_until
from tests.local_postgres import LocalPostgres
from tests.upsert.kafka.debezium_connect import DebeziumConnect
from upsert.catalog.catalog import Catalog
from upsert.testing.local_kafka import LocalKafka

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.long, pytest.mark.minutes]

PAGE = (Path(__file__).parents[3] / "docs" / "debezium.md").read_text()
SHOP = """
CREATE SCHEMA shop;
CREATE TABLE shop.orders (id bigint, line smallint, n numeric(38, 5), price numeric, paid money, weight real,
  share double precision, is_open boolean, word text, data bytea, due date, ordered timestamp(3),
  changed timestamptz, mood integer[], days date[], prices numeric(9, 2)[], info jsonb,
  PRIMARY KEY (id, line));
INSERT INTO shop.orders SELECT i, i % 3, 123456789012345678901234567890123.12345, i * 1.000000001,
  i::text::money, 1.5, 0.1, i % 2 = 0, 'ü"' || i, '\\x00ff', date '0001-01-01' + i,
  timestamp '1969-12-31 23:59:59.999', timestamptz '2020-02-29 12:00:00.123456+02', ARRAY[i, NULL],
  ARRAY[date '9999-12-31'], ARRAY[-0.01, i], '{"a": 1}' FROM generate_series(1, 50) i;
"""
CHANGES = """
UPDATE shop.orders SET n = -n, word = NULL, days = '{}' WHERE id < 10;
UPDATE shop.orders SET line = line + 10 WHERE id BETWEEN 5 AND 20;
DELETE FROM shop.orders WHERE id % 7 = 0;
INSERT INTO shop.orders (id, line) VALUES (100, 1);
"""


@pytest.fixture(scope="module")
def database() -> Iterator[LocalPostgres]:
    server = LocalPostgres()
    server.start()
    server.run("ALTER SYSTEM SET wal_level = logical")
    server.halt()
    server.launch()
    yield server
    server.stop()


def connector(database: LocalPostgres) -> dict[str, str]:
    """That of the page, for this database."""
    found = re.search(r"```properties\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    given = dict(line.split("=", 1) for line in found[1].splitlines())
    own = {"hostname": "127.0.0.1", "port": str(database.port), "password": "pa55w0rd"}
    return given | {f"database.{name}": value for name, value in own.items()}


def columns(database: LocalPostgres, table: str = "shop.orders") -> str:
    """What the page's query prints."""
    found = re.search(r"```sql\n(SELECT string_agg.*?)```", PAGE, re.DOTALL)
    assert found is not None
    ((text,),) = database.fetch(found[1].replace("shop.orders", table))
    return str(text)


def test_the_query_takes_a_type_by_its_whole_name_and_knows_arrays_of_copied_tables(
    database: LocalPostgres,
) -> None:
    database.run(
        "CREATE TYPE time_unit AS ENUM ('s'); CREATE TYPE bit_kind AS ENUM ('b');"
        "CREATE TABLE kinds AS SELECT 's'::time_unit u, '{}'::bit_kind[] k, '{}'::int[] a, "
        "'{}'::numeric(9, 2)[] n, '1 s'::interval(3) i, '10:00'::time(3) t, B'101'::bit varying(5) b"
    )
    assert columns(database, "kinds") == (
        "`u` STRING, `k` ARRAY<STRING>, `a` ARRAY<INT>, `n` ARRAY<DECIMAL(9,2)>, `i` BIGINT, `t` TIME(6), "
        "`b` BINARY"
    )


def test_a_table_equals_that_of_postgresql(
    database: LocalPostgres, kafka: LocalKafka, spark: SparkSession, tmp_path: Path
) -> None:
    database.run(SHOP)
    debezium = DebeziumConnect(tmp_path, kafka.bootstrap_servers, connector(database))
    debezium.start()
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    declared = f"{columns(database)}, PRIMARY KEY (id, line) NOT ENFORCED"
    where = f"'topic' = 'db.shop.orders', 'properties.bootstrap.servers' = '{kafka.bootstrap_servers}'"
    catalog.sql(
        f"CREATE TABLE changes ({declared}) WITH ('connector' = 'kafka', {where}, 'format' = 'debezium-json')"
    )
    catalog.sql(f"CREATE TABLE orders ({declared})")
    kafka.create_topic("db.shop.orders")
    read = ", ".join(
        f"{name}::text AS {name}" if name in ("info", "paid") else name
        for name in re.findall(r"`(\w+)`", declared)
    )

    def expected() -> list[dict[str, Any]]:
        rows = map(dict, database.fetch(f"SELECT {read} FROM shop.orders ORDER BY id, line"))
        return [row | {"paid": None if row["paid"] is None else row["paid"].lstrip("$")} for row in rows]

    def held() -> list[dict[str, Any]]:
        changed = catalog.read_changes(spark, "changes")
        writer = catalog.write_changes(changed, "orders").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        writer.trigger(availableNow=True).start().awaitTermination()
        rows = catalog.table("orders").snapshot().scan().sort_by([("id", "ascending"), ("line", "ascending")])
        return [row | {"paid": None if row["paid"] is None else str(row["paid"])} for row in rows.to_pylist()]

    def has_come() -> bool:
        return held() == expected()

    try:
        wait_until(has_come, seconds=180)
        database.run(CHANGES)
        wait_until(has_come, seconds=180)
        debezium.kill()
        database.run("UPDATE shop.orders SET share = 'Infinity', n = 1 WHERE id > 30")
        debezium.start()
        database.run("DELETE FROM shop.orders WHERE id > 45")
        wait_until(has_come, seconds=180)
    except BaseException:
        print(debezium.log())
        raise
    finally:
        debezium.kill()
