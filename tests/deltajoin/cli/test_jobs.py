"""`deltajoin run` within this process: what is checked first, what is told, what a failing query does."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from deltajoin.cli.app import app
from tests.helpers import lent
from upsert import Catalog

pytestmark = pytest.mark.spark

SETTINGS = """
    SET 'execution.runtime-mode' = 'streaming';
    SET 'execution.trigger' = 'available-now';
    SET 'pipeline.name' = 'job';
"""


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """Words, of which two have the same length; a table that takes one word of a length only."""
    catalog = Catalog(tmp_path / "w")
    catalog.sql("CREATE TABLE words (id BIGINT, word STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("CREATE TABLE copies (id BIGINT, word STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql(
        "CREATE TABLE sizes (id BIGINT, size INT, PRIMARY KEY (id) NOT ENFORCED, UNIQUE INDEX (size))"
    )
    catalog.table("words").write(pa.table({"id": [1, 2, 3], "word": ["tea", "milk", "rum"]}))
    return tmp_path / "w"


def run(spark: SparkSession, warehouse: Path, statements: str, *options: str) -> Result:
    job = warehouse.parent / "job.sql"
    job.write_text(SETTINGS + statements)
    with lent(spark):
        return CliRunner().invoke(app, ["run", str(job), "-w", str(warehouse), *options])


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("INSERT INTO sizes SELEC id FROM words", "line 6"),
        ("INSERT INTO sizes SELECT id, size FROM words", "column 'size' is in no table of the query"),
        ("INSERT INTO sizes SELECT id FROM words", "the query must give 2 columns (id, size), got 1 (id)"),
        ("INSERT INTO sizes SELECT id, CAST(id AS INT) FROM words LIMIT 1", "a limit over the changes"),
        ("INSERT INTO nowhere SELECT id FROM words", "table 'nowhere' does not exist"),
    ],
)
def test_no_query_starts_before_all_statements_are_known_to_be_possible(
    last: str, message: str, spark: SparkSession, warehouse: Path
) -> None:
    done = run(spark, warehouse, f"INSERT INTO copies SELECT id, word FROM words;\n{last}")
    assert done.exit_code == (4 if "nowhere" in last else 1)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (warehouse / ".jobs").exists()
    assert Catalog(warehouse).table("copies").snapshot().scan().num_rows == 0


BOTH = """
    INSERT INTO sizes SELECT id, length(word) FROM words;
    INSERT INTO copies SELECT id, word FROM words;
"""


@pytest.mark.long
def test_one_query_that_fails_is_told_in_a_line_while_the_others_go_on(
    spark: SparkSession, warehouse: Path
) -> None:
    done = run(spark, warehouse, BOTH, "--keep-going", "--json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    of = {name: [one for one in told if one["query"].endswith(name)] for name in ("sizes", "copies")}
    assert [one["event"] for one in of["copies"]] == ["started", "micro-batch", "ended"]
    assert of["copies"][1]["rows"] == 3
    assert [one["event"] for one in of["sizes"]] == ["started", "failed"]
    assert "UNIQUE INDEX" in of["sizes"][1]["message"]
    assert done.exit_code == 1
    (error,) = (json.loads(line) for line in done.stderr.splitlines())
    assert error["error"] == "JobFailedError"
    assert of["sizes"][1]["message"] in error["message"]
    assert "\n" not in error["message"]
    assert Catalog(warehouse).table("copies").snapshot().scan().num_rows == 3


def test_a_log_has_a_line_a_micro_batch_and_the_trace_comes_on_request(
    spark: SparkSession, warehouse: Path
) -> None:
    copied = "INSERT INTO copies SELECT id, word FROM words WHERE id < :end;"
    done = run(spark, warehouse, copied, "--param", "end=9")
    assert done.exit_code == 0, done.stderr
    lines = [line.split(" ", 2)[2] for line in done.stdout.splitlines() if "query job" in line]
    assert [line.partition(", ")[0].rpartition(": ")[2] for line in lines] == [
        "started",
        "micro-batch 0",
        "ended",
    ]
    assert ", 3 rows, " in lines[1]
    failed = run(spark, warehouse, "INSERT INTO sizes SELECT id, length(word) FROM words;", "--trace")
    assert failed.exit_code == 1
    first, *trace = failed.stderr.splitlines()
    assert first.startswith("error: query job: ")
    assert "UNIQUE INDEX" in first
    assert any("JobFailedError" in line for line in trace)
