"""``EXECUTE STATEMENT SET``: its text, and INSERTs that are checked, start and end together."""

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Rows, RunningSet
from upsert.catalog.script import split_statements
from upsert.errors import ConfigurationError, DuplicateKeyError, PartlyExecutedError, SchemaError
from upsert.sql import statements as s
from upsert.sql.parser import parse

SET = "EXECUTE STATEMENT SET BEGIN {} END"


@pytest.mark.parametrize(
    "head", ["EXECUTE STATEMENT SET BEGIN", "begin statement set;", "BEGIN STATEMENT SET"]
)
@pytest.mark.parametrize("end", ["END", "END ;\n"])
def test_both_of_flinks_ways_to_write_a_set_have_the_same_inserts(head: str, end: str) -> None:
    inside = "INSERT INTO a SELECT CASE WHEN b THEN ';' END FROM t; -- one;\n INSERT OVERWRITE b TABLE t;"
    found = parse(f"{head} {inside} {end}")
    assert isinstance(found, s.StatementSet)
    assert [(one.name, one.overwrite) for one in found.inserts] == [("a", False), ("b", True)]
    assert [one.query.text for one in found.inserts] == ["SELECT CASE WHEN b THEN ';' END FROM t", "TABLE t"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SET.format(""), "found 'END' at line 1, column 30"),
        (
            SET.format("INSERT INTO a SELECT 1"),
            "expected INSERT … and a semicolon, .* found 'INSERT' at line 1",
        ),
        (SET.format("INSERT INTO a SELECT 1; SELECT 2;"), "found 'SELECT' at line 1, column 53"),
        (SET.format("INSERT INTO a SELECT 1;;"), "found ';' at line 1, column 52"),
        (SET.format("INSERT INTO a SELECT 1; END"), "expected the end of the statement, found 'END'"),
        ("BEGIN STATEMENT SET;\nINSERT INTO a SELECT 1;", "found the end of the text"),
        (
            SET.format("\n INSERT INTO a SELECT FROM WHERE;"),
            "INSERT INTO a: .* found 'WHERE' at line 2",
        ),
        (SET.format("INSERT a SELECT 1;"), "expected INTO, found 'a' at line 1, column 36"),
        ("EXECUTE IMMEDIATE 'x'", "EXECUTE is not supported: statements are .* EXECUTE STATEMENT SET"),
    ],
)
def test_a_set_that_is_none_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse(text)


def test_a_script_keeps_a_set_whole() -> None:
    parts = [
        "SET a = 1",
        "BEGIN STATEMENT SET; INSERT INTO a SELECT CASE 1 WHEN 1 THEN 2 END; END",
        "SELECT 1",
        "EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; INSERT INTO b SELECT 2; END",
    ]
    assert [one.text.strip() for one in split_statements(" ;\n".join(parts))] == parts
    open_set = f"{parts[1].removesuffix('END')}; SELECT 1"
    assert [one.text for one in split_statements(open_set)] == [open_set]


@pytest.mark.parametrize(
    ("head", "is_json"),
    [("", False), ("PLAN FOR", False), ("FORMAT JSON", True), ("format = text", False)],
)
def test_explain_of_a_set_has_the_set(head: str, is_json: bool) -> None:
    text = f"EXPLAIN {head} {SET.format('INSERT INTO a SELECT 1; INSERT INTO b SELECT 2;')}"
    found = parse(text)
    assert isinstance(found, s.Explain)
    assert isinstance(found.statement, s.StatementSet)
    assert ([one.name for one in found.statement.inserts], found.is_json) == (["a", "b"], is_json)
    assert [one.text.strip() for one in split_statements(f"{text}; SELECT 1")] == [text, "SELECT 1"]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """Words, two tables of copies, and one that takes one word of a length only."""
    catalog = Catalog(tmp_path / "w", optimize=planner.optimize)
    for name in ("words", "copies", "more"):
        catalog.sql(f"CREATE TABLE {name} (id BIGINT, word STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("CREATE TABLE sizes (id BIGINT, n INT, PRIMARY KEY (id) NOT ENFORCED, UNIQUE INDEX (n))")
    catalog.table("words").write(pa.table({"id": [1, 2], "word": ["tea", "milk"]}))
    return catalog


@pytest.fixture
def streaming(catalog: Catalog, ended_queries: None) -> Catalog:
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    catalog.sql("SET 'pipeline.name' = 'set'")
    return catalog


def rows(catalog: Catalog, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in catalog.table(name).snapshot().scan().to_pylist())


COPIES = "INSERT INTO copies SELECT * FROM words;"
SIZES = "INSERT INTO sizes SELECT id, length(word) FROM words;"
MORE = "INSERT INTO more SELECT * FROM words;"


@pytest.mark.spark
def test_all_of_a_batch_read_what_was_there_before_the_first_one_wrote(
    spark: SparkSession, catalog: Catalog
) -> None:
    swap = SET.format("INSERT INTO words VALUES (3, :word); INSERT INTO copies SELECT * FROM words;")
    done = catalog.sql(swap, spark, args={"word": "rum"})
    assert isinstance(done, Rows)
    assert done.rows.to_pylist() == [
        {"statement": "INSERT INTO words", "result": "written, snapshot 2: 1 row"},
        {"statement": "INSERT INTO copies", "result": "written, snapshot 1: 2 rows"},
    ]
    assert rows(catalog, "words") == [(1, "tea"), (2, "milk"), (3, "rum")]
    assert rows(catalog, "copies") == [(1, "tea"), (2, "milk")]


@pytest.mark.spark
def test_a_batch_that_fails_says_what_is_committed(spark: SparkSession, catalog: Catalog) -> None:
    with pytest.raises(SchemaError, match="must give 2 columns"):
        catalog.sql(SET.format(COPIES + "INSERT INTO sizes SELECT id FROM words;"), spark)
    assert rows(catalog, "copies") == []
    catalog.table("words").write(pa.table({"id": [3], "word": ["rum"]}))
    with pytest.raises(DuplicateKeyError):
        catalog.sql(SET.format(SIZES + COPIES), spark)
    assert rows(catalog, "copies") == []
    message = (
        "INSERT INTO sizes has failed after INSERT INTO copies, which are committed and stay: .*UNIQUE INDEX"
    )
    with pytest.raises(PartlyExecutedError, match=message):
        catalog.sql(SET.format(COPIES + SIZES + MORE), spark)
    assert (len(rows(catalog, "copies")), rows(catalog, "sizes"), rows(catalog, "more")) == (3, [], [])


@pytest.mark.spark
def test_streams_of_a_set_start_together_and_stop_with_the_one_that_fails(
    spark: SparkSession, streaming: Catalog
) -> None:
    running = streaming.sql(SET.format(COPIES + SIZES), spark)
    assert isinstance(running, RunningSet)
    assert not running.await_termination(0)
    for run in running.runs:
        run.query.processAllAvailable()
    assert (rows(streaming, "copies"), rows(streaming, "sizes")) == (
        [(1, "tea"), (2, "milk")],
        [(1, 3), (2, 4)],
    )
    running.runs[0].query.stop()
    deadline = time.monotonic() + 60
    while running.runs[1].query.isActive and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running.runs[1].query.isActive, "one that is stopped stops the set"
    again = streaming.sql(SET.format(COPIES + SIZES), spark)
    assert [run.checkpoint for run in again.runs] == [run.checkpoint for run in running.runs]
    streaming.table("words").write(pa.table({"id": [3], "word": ["rum"]}))
    with pytest.raises(DuplicateKeyError, match="UNIQUE INDEX"):
        again.await_termination(60)
    assert not any(run.query.isActive for run in again.runs)


@pytest.mark.spark
@pytest.mark.long
def test_one_that_has_come_to_its_end_leaves_the_others_to_theirs(
    spark: SparkSession, streaming: Catalog
) -> None:
    streaming.sql("SET 'execution.trigger' = 'available-now'")
    running = streaming.sql(SET.format(COPIES + "INSERT INTO words VALUES (3, 'rum');" + MORE), spark)
    assert len(running.runs) == 2
    assert running.await_termination(120)
    assert len(rows(streaming, "copies")) in (2, 3)
    assert rows(streaming, "more") == rows(streaming, "words") == [(1, "tea"), (2, "milk"), (3, "rum")]


@pytest.mark.spark
def test_nothing_starts_before_all_streams_are_known_to_be_possible(
    spark: SparkSession, streaming: Catalog
) -> None:
    for inside, error, message in (
        (COPIES + "INSERT INTO sizes SELECT id FROM words;", SchemaError, "must give 2 columns"),
        (
            COPIES + COPIES,
            ConfigurationError,
            "each table must get one stream, got several for 'main.default.co",
        ),
        (COPIES + "INSERT OVERWRITE more SELECT * FROM words;", ConfigurationError, "cannot overwrite"),
        (COPIES + "INSERT INTO more VALUES (?, '');", SchemaError, r"parameters must have names, got \?"),
    ):
        with pytest.raises(error, match=message):
            streaming.sql(SET.format(inside), spark)
    with pytest.raises(ConfigurationError, match=r"got :word; parameters are none"):
        streaming.sql(SET.format(COPIES), spark, args={"word": 1})
    assert not spark.streams.active
    assert not (Path(streaming.warehouse) / ".jobs").exists()


@pytest.mark.spark
@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_explain_of_a_set_is_that_of_each_of_its_inserts(
    spark: SparkSession, catalog: Catalog, mode: str
) -> None:
    catalog.sql(f"SET 'execution.runtime-mode' = '{mode}'")
    inserts = ["INSERT INTO copies SELECT * FROM words", "INSERT INTO more SELECT * FROM words WHERE id > 1"]
    whole = SET.format("".join(f"{one};" for one in inserts))
    alone = [catalog.sql(f"EXPLAIN FORMAT JSON {one}", spark) for one in inserts]
    together = catalog.sql(f"EXPLAIN FORMAT JSON {whole}", spark)
    found = json.loads(plan(together)[0])["statements"]
    assert [one.pop("statement") for one in found] == ["INSERT INTO copies", "INSERT INTO more"]
    assert [sorted(one) for one in found] == [sorted(json.loads(plan(one)[0])) for one in alone]
    lines = plan(catalog.sql(f"EXPLAIN {whole}", spark))
    assert [line for line in lines if not line.startswith(" ")] == ["INSERT INTO copies", "INSERT INTO more"]
    assert catalog.table("copies").snapshot().row_count == 0


def plan(result: Any) -> list[str]:
    assert isinstance(result, Rows)
    return result.rows.column("plan").to_pylist()
