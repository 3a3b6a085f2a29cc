"""Real streaming queries, as the page sees them."""

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import deltajoin
import planner
from deltajoin.observe.observer import Observer
from deltajoin.ui import pages
from upsert import Catalog
from upsert.catalog.results import Running
from upsert.errors import own_error

pytestmark = pytest.mark.spark


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[Catalog]:
    made = Catalog(tmp_path / "w", optimize=planner.optimize)
    made.sql("CREATE TABLE words (id BIGINT, word STRING, PRIMARY KEY (id) NOT ENFORCED, INDEX (word))")
    made.sql("CREATE TABLE sizes (word STRING, size INT, PRIMARY KEY (word) NOT ENFORCED)")
    made.sql("CREATE TABLE sized (id BIGINT, size INT, PRIMARY KEY (id) NOT ENFORCED, UNIQUE INDEX (size))")
    made.table("words").write(pa.table({"id": [1, 2, 3], "word": ["tea", "milk", "rum"]}))
    made.table("sizes").write(pa.table({"word": ["tea", "milk"], "size": pa.array([3, 4], pa.int32())}))
    for key, value in {
        "execution.runtime-mode": "streaming",
        "execution.trigger": "available-now",
        "pipeline.name": "job",
    }.items():
        made.options[key] = value
    recorder = made.record_queries(spark)
    assert made.record_queries(spark) is recorder
    yield made
    recorder.close()


def run(catalog: Catalog, spark: SparkSession, text: str) -> StreamingQuery:
    result = catalog.sql(text, spark)
    assert isinstance(result, Running)
    while result.query.isActive:
        time.sleep(0.05)
    return result.query


def test_a_join_that_runs_and_fails_when_it_runs_again(catalog: Catalog, spark: SparkSession) -> None:
    join = "INSERT INTO sized SELECT id, size FROM words JOIN sizes USING (word)"
    first_run = run(catalog, spark, join)
    assert first_run.exception() is None
    words = catalog.table("words")
    words.write(pa.table({"id": [4], "word": ["tea"]}))
    failed = run(catalog, spark, join)
    failure = failed.exception()
    assert failure is not None
    catalog.record_queries(spark).close()
    asked(first_run, failed, catalog)

    seen = Observer(catalog.warehouse).look(words.snapshot().info.time_ms + 1_500)
    (query,) = seen.queries
    assert (query.name, query.state, query.writes) == ("job: sized", "failed", ("sized",))
    assert {lag.table: (lag.version, lag.commits, lag.seconds) for lag in query.reads} == {
        "words": ("1", 1, 1.5),
        "sizes": ("1", 0, 0.0),
    }
    first = query.record.batches[0]  # of the run before
    assert query.rows_out[first.id] == 2
    assert first.duration_ms["triggerExecution"] > 0
    assert Path(str(query.record.checkpoint).removeprefix("file:")).is_dir()
    assert query.record.error == str(own_error(failure))
    assert pages.remedy(str(query.record.error)).do
    (join,) = query.record.decisions
    assert not join.is_warning
    assert "form: delta join (fused)" in join.text
    assert "look up t1" in join.text
    assert "job: sized" in pages.snapshot_file(seen)


def asked(first_run: StreamingQuery, failed: StreamingQuery, catalog: Catalog) -> None:
    """What the two queries tell of themselves."""
    done = deltajoin.metrics(first_run, catalog.warehouse)
    assert (done.state, done.error, done.rows_in, dict(done.rows_out)) == ("ended", None, 2, {0: 2})
    assert {lag.table: (lag.commits, lag.rows) for lag in done.inputs} == {"words": (1, 1), "sizes": (0, 0)}
    assert done.writes == ("sized",)
    assert done.took_s["addBatch"] > 0
    assert done.lookups is None
    broken = deltajoin.metrics(failed)
    assert (broken.state, broken.error) == ("failed", str(own_error(failed.exception())))


def test_a_kept_view_with_its_hidden_tables(catalog: Catalog, spark: SparkSession) -> None:
    text = "SELECT word, count(*) AS n FROM words GROUP BY word"
    view = catalog.create_view("counts", text, primary_key=["word"], spark=spark)
    catalog.table("words").write(pa.table({"id": [6], "word": ["tea"]}))
    kept = view.start({"availableNow": True})
    kept.awaitTermination()
    catalog.record_queries(spark).close()
    found = deltajoin.metrics(kept, catalog.warehouse)
    assert (found.state, found.writes) == ("ended", ("counts",))
    assert [(lag.table, lag.rows) for lag in found.inputs] == [("words", 0)]
    seen = Observer(catalog.warehouse).look(time.time_ns() // 1_000_000)
    (query,) = seen.queries
    assert (query.name, query.state, query.writes) == ("view counts", "ended", ("counts",))
    (counts,) = (one for one in seen.tables if one.kind == "view")
    assert counts.view is not None
    assert [(lag.table, lag.commits) for lag in counts.view.lags] == [("words", 0)]
    graph = pages.graph_of(seen, pages.of_server)
    assert graph is not None
    kinds = [node.kind for node in graph.nodes]
    assert kinds.count("hidden") == len(counts.view.hidden)
    assert {"table", "view", "query"} <= set(kinds)
