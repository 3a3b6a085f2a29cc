"""`deltajoin view` as a user types it; what starts Spark has the session of the tests, or its own process."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import planner
from tests.deltajoin.cli.terminal import SILENT_S
from tests.deltajoin.cli.test_sql import FLAGS, run, run_here, started
from tests.helpers import lent
from upsert import Catalog
from upsert.catalog.script import split_statements

pytestmark = pytest.mark.spark

FRUIT = """
    CREATE TABLE fruit (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED);
    CREATE MATERIALIZED VIEW names PRIMARY KEY (name) AS SELECT name, count(*) AS n FROM fruit GROUP BY name;
    INSERT INTO fruit VALUES (1, 'fig'), (2, 'fig'), (3, 'kiwi')
"""


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> str:
    """One with a view that is behind its table."""
    catalog = Catalog(tmp_path, optimize=planner.optimize)
    for statement in split_statements(FRUIT):
        catalog.sql(statement.text, spark)
    return str(tmp_path)


def rows(*arguments: str) -> list[dict[str, object]]:
    code, out, errors = run_here(*arguments, "--json")
    assert code == 0, errors
    return [json.loads(line) for line in out.splitlines()]


def test_a_view_is_listed_refreshed_suspended_and_dropped(spark: SparkSession, warehouse: str) -> None:
    (view,) = rows("view", "list", "-w", warehouse)
    assert (view["view"], view["state"]) == ("names", "behind")
    with lent(spark):
        code, out, errors = run_here("view", "refresh", "names", "-w", warehouse)
    assert (code, out) == (0, "REFRESH MATERIALIZED VIEW names: refreshed\n"), errors
    assert rows("head", "names", "-w", warehouse) == [{"name": "fig", "n": 2}, {"name": "kiwi", "n": 1}]
    (described,) = rows("view", "describe", "names", "-w", warehouse)
    assert described["base-versions"] == [["default.fruit", 1]]
    assert described["lag"] == [["default.fruit", "up to date"]]
    code, _, errors = run_here("view", "describe", "fruit", "-w", warehouse)
    assert (code, "'fruit' is a table, and no materialized view" in errors) == (1, True)
    assert run_here("view", "suspend", "names", "-w", warehouse)[0] == 0
    (view,) = rows("view", "list", "-w", warehouse)
    assert view["state"] == "suspended"
    no_spark = ("--conf", "spark.driver.memory=1x")
    code, _, errors = run("view", "refresh", "names", "-w", warehouse, *no_spark)
    assert (code, "RESUME lets it be refreshed again" in errors) == (1, True)
    code, _, errors = run_here("view", "refresh", "names; DROP TABLE fruit", "-w", warehouse)
    assert (code, "expected one statement at a time" in errors) == (1, True)
    assert run_here("view", "resume", "names", "-w", warehouse)[0] == 0
    assert run_here("view", "drop", "names", "-w", warehouse)[0] == 0
    assert rows("view", "list", "-w", warehouse) == []


@pytest.mark.long
def test_a_view_is_kept_until_an_interrupt(warehouse: str) -> None:
    process = started("view", "refresh", "names", "--keep", "-w", warehouse, *FLAGS, "--json")
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event.get("event") == "micro-batch":
            assert event["rows"] == 3
            assert event["refresh"].startswith("by changes: ")
            process.send_signal(2)
    assert process.wait(SILENT_S) == 0
    assert rows("head", "names", "-w", warehouse) == [{"name": "fig", "n": 2}, {"name": "kiwi", "n": 1}]


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        pytest.param("DELETE FROM fruit WHERE length(name) = 3", ["kiwi"], marks=pytest.mark.long),
        pytest.param(
            "UPDATE fruit SET name = 'pear' WHERE id = 3", ["fig", "fig", "pear"], marks=pytest.mark.long
        ),
        pytest.param("EXPLAIN MATERIALIZED VIEW names", ["fig", "fig", "kiwi"], marks=pytest.mark.long),
    ],
)
def test_a_statement_starts_spark_if_it_needs_it(statement: str, left: list[str], warehouse: str) -> None:
    code, _, errors = run("sql", "-w", warehouse, *FLAGS, "-e", statement)
    assert code == 0, errors
    assert [row["name"] for row in rows("head", "fruit", "-w", warehouse)] == left
