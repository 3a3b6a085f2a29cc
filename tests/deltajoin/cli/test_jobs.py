"""`deltajoin run` within this process: what is checked first, what is told, what a failing query does."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from deltajoin.cli import jobs
from deltajoin.cli.app import app
from deltajoin.cli.command import Output, reason_of
from deltajoin.cli.jobs import JobFailedError, follow, kept
from deltajoin.observe.query_metrics import metrics
from tests.helpers import lent, wait_until
from upsert import Catalog
from upsert.catalog import query_records
from upsert.spark.java import java_of

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
        pytest.param(
            *("INSERT INTO sizes SELECT id, size FROM words", "column 'size' is in no table of the query"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            "INSERT INTO sizes SELECT id FROM words",
            "the query must give 2 columns (id, size), got 1 (id)",
            marks=pytest.mark.long,
        ),
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
    assert error["message"].endswith("; then run the job again, it continues from its checkpoints")
    assert "correct the cause" not in error["message"], "what to do is said, once"
    assert "\n" not in error["message"]
    assert Catalog(warehouse).table("copies").snapshot().scan().num_rows == 3


def test_a_job_is_restarted_as_often_in_a_row_as_is_said() -> None:
    """Runs of (seconds, failure) in turn; what the job does between them, by a clock that the test sets."""
    now, pauses, told = [0.0], list[float](), list[str]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    def played(restarts: int, *runs: tuple[float, Exception | None]) -> int:
        left = iter(runs)
        count = 0
        pauses.clear()
        told.clear()

        def run() -> None:
            nonlocal count
            count += 1
            took, failure = next(left)
            now[0] += took
            if failure is not None:
                raise failure

        kept(run, restarts, told.append, sleep=sleep, monotonic=lambda: now[0])
        return count

    away = JobFailedError("away")
    assert played(0, (5, None)) == 1
    assert played(3, (5, away), (1, away), (1, away), (1, None)) == 4
    assert (pauses, told) == ([1, 2, 4], ["away"] * 3)
    with pytest.raises(JobFailedError):
        played(2, (5, away), (5, away), (5, away), (5, None))
    assert len(pauses) == 2
    assert played(1, (5, away), (601, away), (5, away), (5, None)) == 4, "ten minutes are a recovery"
    assert pauses == [1, 1, 1]
    with pytest.raises(JobFailedError):
        played(0, (601, away), (5, None))
    with pytest.raises(ZeroDivisionError):
        played(5, (1, ZeroDivisionError()), (5, None))


FLAKY = """
    CREATE TABLE log (id BIGINT, word STRING);
    INSERT INTO log VALUES (7, 'constant');
    SET 'pipeline.name' = 'other';
    EXECUTE STATEMENT SET BEGIN
      INSERT INTO sizes SELECT id, length(word) FROM words;
      INSERT INTO copies SELECT id, word FROM words;
    END;
    SET 'pipeline.name' = 'job';
"""


@pytest.mark.long
def test_a_job_that_fails_is_started_again_under_its_own_options(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_FIRST_PAUSE_S", 0.1)
    failed = run(spark, warehouse, FLAKY, "--restarts", "1", "--json")
    events = [json.loads(line) for line in failed.stdout.splitlines() if line.startswith('{"event"')]
    assert [one["event"] for one in events if one["event"] in ("failed", "restarting")] == [
        "failed",
        "restarting",
        "failed",
    ]
    assert {one["query"] for one in events if "query" in one} == {"other: sizes", "other: copies"}
    assert failed.exit_code == 1
    assert "UNIQUE INDEX" in failed.stderr
    assert Catalog(warehouse).table("log").snapshot().scan().num_rows == 1, "the batch is not repeated"
    both = run(spark, warehouse, "", "--restarts", "1", "--keep-going")
    assert "--restarts starts all queries again when one fails, got --keep-going too" in both.stderr


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
    wrong = "INSERT INTO sizes SELECT id, CAST(1 / (id - id) AS INT) FROM words;"
    failed = run(spark, warehouse, wrong, "--trace")
    assert failed.exit_code == 1
    *_, last = failed.stdout.splitlines()
    assert ": failed, [DIVIDE_BY_ZERO] Division by zero. " in last, "before the others are stopped"
    first, *trace = failed.stderr.splitlines()
    assert first.startswith("error: query job: ")
    assert " has failed: [DIVIDE_BY_ZERO] Division by zero. " in first, "what Spark says of the micro-batch"
    assert ".;" not in first
    assert "; correct the cause and run the job again, it continues" in first
    assert any("JobFailedError" in line for line in trace)
    assert any("StreamingQueryException" in line for line in trace)


def test_a_micro_batch_after_a_pause_is_told_with_its_rows(
    spark: SparkSession, warehouse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark tells each look of a query that waits too, under the number of the next micro-batch."""
    catalog = Catalog(warehouse)
    writer = catalog.write_changes(catalog.read_changes(spark, "words"), "copies", sink_materialize="none")
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
    try:
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).queryName("copy").start()
    finally:
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
    query.processAllAvailable()
    wait_until(lambda: query.lastProgress and query.lastProgress["batchId"] == 1)
    catalog.table("words").write(pa.table({"id": [4, 5], "word": ["gin", "ale"]}))
    query.processAllAvailable()
    found = metrics(query, warehouse)
    follow([query], Output(as_json=True), [1])
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["event"], one["micro-batch"], one["rows"]) for one in told] == [
        ("started", None, None),
        ("micro-batch", 0, 3),
        ("micro-batch", 1, 2),
        ("stopped", 1, 2),
    ]
    assert [(batch.id, batch.rows_in) for batch in found.batches] == [(0, 3), (1, 2)]
    assert [lag.commits for lag in found.inputs] == [0]


@pytest.mark.parametrize(
    "told", ["[STREAM_FAILED] Query q terminated with exception:  SQLSTATE: XXKST (no cause message)", ""]
)
def test_an_exception_of_java_without_a_message_is_told_by_its_class_and_its_place(
    told: str, spark: SparkSession
) -> None:
    """Spark's sentence about it ends with a colon. The error is made as ``query.exception()`` does."""
    cause = java_of(spark).java.nio.channels.ClosedChannelException()
    place = r"java\.nio\.channels\.ClosedChannelException at [\w.$/]+\([\w.]+:\d+\)"
    assert re.fullmatch(place, reason_of(StreamingQueryException(told, "a.B.c(B.java:1)", cause)))
    trace = java_of(spark).org.apache.spark.util.Utils.exceptionString(cause)
    assert re.fullmatch(place, query_records.reason(trace)), "in the record of the query too"


def test_what_java_raised_in_a_batch_is_told_in_one_line(spark: SparkSession, warehouse: Path) -> None:
    """It was taken for a defect, with hundreds of lines of traces: a disk that is full, say."""
    wrong = "INSERT INTO copies SELECT id, java_method('java.util.UUID', 'fromString', word) FROM words"
    with lent(spark):
        done = CliRunner().invoke(app, ["sql", "-e", wrong, "-w", str(warehouse)])
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "java.lang.IllegalArgumentException: Invalid UUID string: " in line or "InvocationTarget" in line
