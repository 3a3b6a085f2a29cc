"""What release 0.1 wrote is read, and its streams continue from their checkpoints; see fixtures."""

import json
import re
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.fixtures.streams import (
    QUERIES,
    SINKS,
    content,
    opened,
    run_all,
    write_customers,
    write_events,
    write_orders,
)
from upsert import Catalog
from upsert.kafka.planning import Offset
from upsert.log.offset import LogOffset

WRITTEN = Path(__file__).parent / "fixtures" / "release_0_1"
ROWS = json.loads((WRITTEN / "rows.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files, at another path than that at which they were written."""
    return Path(shutil.copytree(WRITTEN, tmp_path_factory.mktemp("release") / "moved"))


@pytest.fixture(scope="module")
def catalog(folder: Path) -> Catalog:
    return opened(folder)


@pytest.fixture(scope="module")
def continued(spark: SparkSession, folder: Path, catalog: Catalog) -> Catalog:
    """The catalog after more writes, and after each stream has read these and what it had left unread."""
    write_orders(catalog, (2, 9, 41, "d"), (7, 1, 700, "a"))
    write_orders(catalog, (5, None, 0, None), kind="-D")
    write_customers(catalog, c1="Anna", c9=None)
    write_events(catalog, (4, 41, 5), (1, 9, 2), (5, 50, 1))
    run_all(spark, catalog, folder)
    return catalog


@pytest.mark.parametrize("table", sorted(ROWS))
def test_tables_hold_the_same_rows(folder: Path, table: str) -> None:
    assert content(opened(folder), table) == ROWS[table]


def test_earlier_snapshots_and_tags_are_read(folder: Path) -> None:
    orders = opened(folder).table("orders")
    assert orders.snapshot("first").row_count == orders.snapshot(1).row_count == 4
    changes = orders.changes(1, 2)
    assert sorted(changes.column("_row_kind").to_pylist()) == ["+I", "+U", "-U"]


def test_the_catalog_knows_its_tables(folder: Path) -> None:
    catalog = opened(folder)
    assert set(catalog.tables()) == {*SINKS, "orders", "customers", "events", "days", "totals", "topic"}
    assert catalog.tables("other") == ("notes",)


@pytest.mark.spark
@pytest.mark.parametrize("name", sorted(QUERIES))
def test_streams_go_on_to_what_a_batch_gives(spark: SparkSession, continued: Catalog, name: str) -> None:
    for table in ("orders", "customers"):
        continued.read(spark, table).createOrReplaceTempView(f"{table}_rows")
    text = QUERIES[name].format(orders="orders_rows", customers="customers_rows")
    in_batch = spark.sql(text).toArrow().to_pylist()
    assert content(continued, name) == sorted(map(repr, in_batch))


@pytest.mark.spark
@pytest.mark.parametrize("name", ["latest_in_state", "latest_in_tables"])
def test_normalize_goes_on_with_the_images_that_it_remembers(continued: Catalog, name: str) -> None:
    newest = {row[0]: row[1] for row in ((1, 11), (2, 21), (3, 30), (4, 41), (5, 50))}
    rows = continued.table(name).snapshot().scan().to_pylist()
    assert {row["id"]: row["n"] for row in rows} == newest


@pytest.mark.spark
def test_a_materialized_sink_goes_on_with_the_rows_that_it_keeps(continued: Catalog) -> None:
    """Note 'c' has no order any more; of the two orders that came for 'a' the higher customer counts."""
    rows = continued.table("named").snapshot().scan().to_pylist()
    assert {row["note"]: row["customer_id"] for row in rows} == {"a": 2, "b": 9, "d": 9}


def test_the_offset_of_a_log_stays_as_it_was_written() -> None:
    version = '"version": {"base": 4, "cursor": null, "target": 4}'
    place = '"stream": "9c0e", "topic": "orders-1a2b", "whole": true, "topic_id": "tid"'
    text = f'{{"table": "8f14e45f", {version}, "log": {{"at": {{"0": 12, "1": 7}}, {place}}}}}'
    assert json.dumps(LogOffset.from_json(json.loads(text), "a table").to_json()) == text


def test_the_offset_of_topics_stays_as_it_was_written() -> None:
    entry = '{"begin": {"0": 0, "1": 3}, "id": "x7", "partitions": {"0": 42, "1": 3}, "until": {"1": 9}}'
    text = f'{{"stream": "s1", "topics": {{"words": {entry}}}}}'
    assert json.dumps(Offset.from_json(json.loads(text), "upsert-kafka").to_json()) == text


def test_no_file_names_the_folder_in_which_it_was_written() -> None:
    texts = [path.read_bytes() for path in WRITTEN.rglob("*") if path.is_file()]
    assert not [text for text in texts if re.search(rb"file:/|/tmp/|/home/", text)]
