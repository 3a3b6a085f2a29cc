"""``CREATE TEMPORARY TABLE``: whose it is, when it goes, and that its name is that of no other table."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from tests.upsert.store import disk
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Running
from upsert.catalog.temporary import FOLDER
from upsert.errors import ConfigurationError, SchemaError, TableExistsError, TableNotFoundError, UpsertError

T = "CREATE TEMPORARY TABLE t (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)"


def sessions(warehouse: Path) -> list[str]:
    return os.listdir(warehouse / FOLDER)


def test_a_temporary_table_goes_with_its_session(tmp_path: Path) -> None:
    catalog, other = Catalog(tmp_path), Catalog(tmp_path)
    for one in (catalog, other):
        assert "CREATE TABLE t: created" in repr(one.sql(T))
    catalog.table("t").write(pa.table({"id": [1]}))
    assert [one.table("t").snapshot().scan().num_rows for one in (catalog, other)] == [1, 0]
    assert (catalog.tables(), catalog.sql("SHOW TABLES").rows.column(0).to_pylist()) == ((), ["t"])
    assert len(sessions(tmp_path)) == 2
    del catalog
    gc.collect()
    assert len(sessions(tmp_path)) == 1
    assert other.sql("DESCRIBE t").rows.num_rows == 1
    assert "dropped" in repr(other.sql("DROP TEMP TABLE t"))
    with pytest.raises(TableNotFoundError, match="table 't' does not exist"):
        other.sql("DESCRIBE t")


def test_a_job_into_a_temporary_table_of_a_connector_continues_in_the_next_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What the table stands for is there after the session, with the rows that it has received."""
    orders, sent = tmp_path / "orders", tmp_path / "sent"
    orders.mkdir()
    checkpoints = set()
    for id in (1, 2):
        (orders / f"{id}.json").write_text(f'{{"id": {id}}}')
        catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
        for text in (
            "SET 'pipeline.name' = 'job'",
            "SET 'execution.runtime-mode' = 'streaming'",
            "SET 'execution.trigger' = 'available-now'",
            f"CREATE TEMPORARY TABLE orders (id INT) WITH ('connector' = 'json', 'path' = '{orders}')",
            f"CREATE TEMPORARY TABLE sent (id INT) WITH ('connector' = 'json', 'path' = '{sent}')",
        ):
            catalog.sql(text)
        job = catalog.sql("INSERT INTO sent SELECT id FROM orders", spark)
        assert isinstance(job, Running)
        job.query.awaitTermination()
        checkpoints.add(job.checkpoint)
        del catalog
    assert len(checkpoints) == 1
    assert sorted(row.id for row in spark.read.json(str(sent)).collect()) == [1, 2]


def test_what_a_killed_session_has_left_is_deleted_by_the_next_one(tmp_path: Path) -> None:
    def killed() -> None:
        catalog = Catalog(tmp_path)
        catalog.sql(T)
        os.kill(os.getpid(), signal.SIGKILL)

    assert disk.run(killed) == disk.KILLED
    program = f"from upsert import Catalog; c = Catalog({str(tmp_path)!r}); c.sql({T!r})"
    (left,) = sessions(tmp_path)
    ended = subprocess.run([sys.executable, "-c", program], timeout=120, check=True)
    assert ended.returncode == 0
    assert sessions(tmp_path) == [], "its own goes at the end, and the one that was left at the beginning"
    assert left not in sessions(tmp_path)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "CREATE TEMPORARY TABLE kept (a INT)",
            TableExistsError,
            "has a table of this name, which it would hide",
        ),
        ("CREATE TEMPORARY TABLE t (a INT)", TableExistsError, "exists already"),
        (
            "CREATE TABLE t (a INT)",
            TableExistsError,
            "'t' exists already; choose another name, or CREATE",
        ),
        ("CREATE TEMPORARY TABLE u", SchemaError, "expected .* and the table's columns"),
        ("CREATE TEMPORARY TABLE u (a INT, a INT)", SchemaError, "a"),
        ("CREATE OR REPLACE TEMPORARY TABLE u (a INT)", SchemaError, "is not supported"),
        ("ALTER TABLE t RENAME TO u", ConfigurationError, "a temporary table keeps its name"),
        ("ALTER TABLE kept RENAME TO t", ConfigurationError, "a temporary table keeps its name"),
        (
            "DROP TEMPORARY TABLE kept",
            TableNotFoundError,
            "there is no temporary table 'kept'; write DROP TABLE",
        ),
        (
            "CREATE VIEW v AS SELECT * FROM t",
            SchemaError,
            "'t' at line 1, column 32 is temporary, and only this",
        ),
    ],
)
def test_a_name_is_that_of_one_table(
    text: str, error: type[UpsertError], message: str, tmp_path: Path
) -> None:
    catalog = Catalog(tmp_path)
    catalog.sql("CREATE TABLE kept (a INT)")
    catalog.sql(T)
    with pytest.raises(error, match=message):
        catalog.sql(text)
    assert catalog.sql("SHOW TABLES").rows.column(0).to_pylist() == ["kept", "t"]
    assert "was not there" in repr(catalog.sql("DROP TEMPORARY TABLE IF EXISTS u"))


def test_a_name_that_another_process_has_taken_is_refused_rather_than_hidden(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.sql("CREATE DATABASE d")
    catalog.sql(T.replace(" t ", " d.t "))
    catalog.sql("CREATE TABLE t (a INT)")  # in another database
    Catalog(tmp_path).sql("CREATE TABLE d.t (a INT)")
    for text in ("DESCRIBE d.t", "DROP TABLE d.t", "INSERT INTO d.t VALUES (1)"):
        with pytest.raises(ConfigurationError, match=r"'d.t' is a temporary table of this session, and also"):
            catalog.sql(text)
    catalog.sql("DROP TEMPORARY TABLE d.t")
    assert catalog.sql("DESCRIBE d.t").rows.column("name").to_pylist() == ["a"]


@pytest.mark.spark
def test_queries_read_and_write_it_as_any_other_table(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, optimize=planner.optimize)

    def rows(text: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in catalog.sql(text, spark).rows.to_pylist()]

    catalog.sql("CREATE TABLE kept (id BIGINT, n INT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.table("kept").write(pa.table({"id": [1, 2], "n": pa.array([5, 6], pa.int32())}))
    for text in (
        "CREATE TEMPORARY TABLE few (PRIMARY KEY (id) NOT ENFORCED) AS SELECT * FROM kept WHERE n > :n",
        "CREATE TEMPORARY TABLE same LIKE kept",
    ):
        catalog.sql(text, spark, args={"n": 5} if ":n" in text else None)
    catalog.sql("INSERT INTO few VALUES (7, 7)", spark)
    assert rows("SELECT * FROM few ORDER BY id") == [(2, 6), (7, 7)]
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    catalog.sql("SET 'pipeline.name' = 'p'")
    running = catalog.sql(
        "INSERT INTO same SELECT few.id, kept.n FROM few JOIN kept ON few.id = kept.id", spark
    )
    running.query.processAllAvailable()
    running.query.stop()
    catalog.sql("RESET")
    assert rows("SELECT * FROM same") == [(2, 6)]
    with pytest.raises(
        SchemaError, match="'few' at line 1, column 48 is temporary, and only this session has it"
    ):
        catalog.sql("CREATE MATERIALIZED VIEW v AS SELECT id FROM   few", spark)
