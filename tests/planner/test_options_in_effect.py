"""Every option that is accepted does something, is refused or is told by name: made from declarations."""

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import deltajoin
import planner
from deltajoin.lookup import TableLookup
from deltajoin.settings import FLINK_PREFIXES, OPTIONS
from planner.optimizer import optimize_plan
from planner.refusals import PlanError
from planner.settings import OF_EXACT_JOINS, OF_LOOKUP_JOINS, Settings, unused
from tests.helpers import multiset
from tests.planner.plan_text import parse_plan
from tests.planner.test_read_options import told
from upsert import Catalog
from upsert.catalog.results import Running
from upsert.catalog.session import FLINK_OPTIONS, SessionOptions
from upsert.errors import ConfigurationError, UpsertError
from upsert.managed.options import READ_OPTIONS, WRITE_OPTIONS
from upsert.managed.reader import STREAM_ONLY

SETTINGS: Mapping[str, Any] = {
    "strategy": "none",
    "physical": "shuffled",
    "consistency": "latest",
    "first-load": "micro-batches",
    "shards": 7,
    "cache.enabled": False,
    "left.cache-size": 5,
    "right.cache-size": 5,
    "cache.max-bytes": 5,
    "async.buffer-capacity": 5,
    "async.timeout": "5 s",
    "on-error": "queue",
    "changelog": "upsert",
    "state-path": "/state",
}
"""Another value than the default for each option of joins."""


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql("CREATE TABLE a (id BIGINT, k BIGINT, v BIGINT, PRIMARY KEY (id) NOT ENFORCED, INDEX (k))")
    catalog.sql("CREATE TABLE b (k BIGINT, w BIGINT, PRIMARY KEY (k) NOT ENFORCED)")
    return catalog


def joined(spark: SparkSession, catalog: Catalog) -> DataFrame:
    a, b = (catalog.read_changes(spark, name) for name in ("a", "b"))
    return a.join(b, "k").select("id", "v", "w")


def outcome(plan: Callable[[], DataFrame]) -> tuple[str | None, str]:
    """What the sources of a plan are told, None if it is refused; and what was said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found: str | None = told(plan())
            said = ""
        except UpsertError as error:
            found, said = None, str(error)
    return found, " ".join([said, *(str(one.message) for one in caught)])


def test_every_option_of_joins_is_tried() -> None:
    assert SETTINGS.keys() == {option.key for option in OPTIONS}
    assert SETTINGS.keys() >= OF_LOOKUP_JOINS | OF_EXACT_JOINS


@pytest.mark.spark
@pytest.mark.parametrize("where", ["call", "session"])
def test_an_option_of_joins_changes_an_exact_join_or_is_named(
    spark: SparkSession, catalog: Catalog, where: str
) -> None:
    df = joined(spark, catalog)
    plain, said = outcome(lambda: planner.optimize(df))
    assert not said.strip()
    # which name an option has in a session follows from its key, so three will do there
    for key, value in [*SETTINGS.items()][: None if where == "call" else 3]:
        if where == "call":
            arguments = {key.replace(".", "_").replace("-", "_"): value}
            found, said = outcome(lambda arguments=arguments: planner.optimize(df, **arguments))  # type: ignore[misc]
        else:
            name, text = f"spark.deltajoin.{key}", str(value).lower()
            spark.conf.set(name, text)
            try:
                found, said = outcome(lambda: planner.optimize(df))
            finally:
                spark.conf.unset(name)
        does_something = found is not None and found != plain
        assert does_something or key in said, (key, said)
        assert not (does_something and said.strip()), (key, said)


@pytest.mark.spark
def test_an_option_of_joins_is_named_where_there_is_none(spark: SparkSession, catalog: Catalog) -> None:
    """What holds for all queries of a session is no mistake in one of them."""
    rows = catalog.read_changes(spark, "a").select("id", "v")
    for key, value in SETTINGS.items():
        arguments = {key.replace(".", "_").replace("-", "_"): value}
        for call in (planner.optimize, planner.explain):
            if key == "strategy":
                call(rows, **arguments)
            else:
                with pytest.warns(UserWarning, match=f"^{call.__name__}: option '{key}' is of .*joins"):
                    call(rows, **arguments)
        spark.conf.set(f"spark.deltajoin.{key}", str(value).lower())
        try:
            planner.optimize(rows)
        finally:
            spark.conf.unset(f"spark.deltajoin.{key}")


@pytest.mark.spark
def test_shards_are_those_of_aggregates_by_lookups_too(spark: SparkSession, catalog: Catalog) -> None:
    a = catalog.read_changes(spark, "a")
    planner.optimize(a.groupBy("k").agg({"v": "max"}), shards=3)
    with pytest.warns(UserWarning, match="'physical' is of joins and the query has none; leave it out"):
        planner.optimize(a.groupBy("k").agg({"v": "max"}), physical="fused")


SINK = "table.exec.sink.upsert-materialize"


@pytest.mark.spark
@pytest.mark.long
def test_flinks_option_materializes_what_does_not_say_otherwise(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    """A table's own option and a statement's count more; a table without a key keeps every row anyway."""
    catalog.table("a").write(pa.table({"id": [1], "k": [1], "v": [5]}))
    columns = "k BIGINT, v BIGINT"
    for name, with_ in (("plain", ""), ("own", "WITH ('sink.materialize' = 'none')"), ("hinted", "")):
        catalog.sql(f"CREATE TABLE {name} ({columns}, PRIMARY KEY (k) NOT ENFORCED) {with_}")
    catalog.sql(f"CREATE TABLE bag ({columns})")
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    catalog.sql("SET 'execution.trigger' = 'available-now'")
    catalog.sql(f"SET 'checkpoint.location' = '{tmp_path}'")
    catalog.sql(f"SET '{SINK}' = 'FORCE'")
    hints = {"plain": "", "own": "", "hinted": "/*+ OPTIONS('sink.materialize' = 'none') */", "bag": ""}
    for name, hint in hints.items():
        running = catalog.sql(f"INSERT INTO {name} {hint} SELECT id, v FROM a", spark)
        assert isinstance(running, Running)
        running.query.awaitTermination()
        assert multiset(catalog.table(name).snapshot().scan()) == {(1, 5): 1}
    kept = [name for name in hints if (Path(catalog.table(name).path) / "materialized").exists()]
    assert kept == ["plain"]


def test_flinks_option_is_checked_and_not_given_to_spark() -> None:
    options = SessionOptions()
    with pytest.raises(ConfigurationError, match=f"'{SINK}' must be one of auto, force, none, got 'ON'"):
        options[SINK] = "ON"
    options[SINK.upper()] = "NONE"
    assert dict(options) == {SINK: "NONE"}
    assert options.forwarded() == {}
    assert options.with_materialize({"a": "b"}, {"Sink.Materialize": "auto"}) == {"a": "b"}
    options.reset(SINK)
    assert options.with_materialize({}, {}) == {}


@pytest.mark.spark
def test_latest_says_calls_that_it_takes(spark: SparkSession, catalog: Catalog) -> None:
    """The remedy, word by word, is a query that works."""
    with pytest.raises(PlanError) as refused:
        planner.optimize(joined(spark, catalog), consistency="latest")
    (said,) = refused.value.refusals
    calls = said.remedy.removeprefix("if they do not, join ").partition("; or leave")[0].split(" and ")
    known = {"deltajoin": deltajoin, "TableLookup": TableLookup, "catalog": catalog, "spark": spark}
    one, other = (eval(call, dict(known)) for call in calls)
    (report,) = planner.explain(one.join(other, "k"), consistency="latest").joins
    assert "refused" not in report.form
    assert planner.optimize(one.join(other, "k"), consistency="latest").columns[-1] == "_row_kind"


@pytest.mark.spark
@pytest.mark.long
def test_rows_that_updates_replace_are_left_out_of_a_stream_with_lookups(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    """The first update would have stopped the query."""
    a, b = (catalog.read_changes(spark, name) for name in ("a", "b"))
    paths = {name: catalog.table(name).path for name in ("a", "b")}
    one = deltajoin.with_lookup(
        a, TableLookup.of(paths["a"], ["k"]), keys="k", upsert_key="id", immutable=["k"]
    )
    other = deltajoin.with_lookup(
        b, TableLookup.of(paths["b"], ["k"]), keys="k", upsert_key="k", kinds=["+I", "+U"]
    )
    catalog.sql("CREATE TABLE s (id BIGINT, v BIGINT, w BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.table("a").write(pa.table({"id": [1, 2], "k": [1, 2], "v": [5, 6]}))
    catalog.table("b").write(pa.table({"k": [1, 2], "w": [10, 20]}))
    writer = catalog.write_changes(one.join(other, "k").select("id", "v", "w"), "s")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    query.processAllAvailable()
    catalog.table("a").write(pa.table({"id": [1], "k": [1], "v": [7]}))
    catalog.table("b").write(pa.table({"k": [2], "w": [21]}))
    query.processAllAvailable()
    query.stop()
    assert multiset(catalog.table("s").snapshot().scan()) == {(1, 7, 10): 1, (2, 6, 21): 1}


def test_options_of_streams_with_lookups_are_named_where_a_table_is_looked_up_for_changes() -> None:
    """It has its own cache, gives upserts, and fails where a lookup fails."""
    before = parse_plan("Join inner ON ((cur#91 = region#62) AND (id#61 = day#92))\n  <members>\n  <rates>")
    after = optimize_plan(before, Settings(consistency="latest")).after
    silent = {
        "cache.enabled",
        "left.cache-size",
        "right.cache-size",
        "cache.max-bytes",
        "changelog",
        "on-error",
    }
    silent |= {"state-path", "first-load"}
    for key, value in SETTINGS.items():
        session = {f"spark.deltajoin.{key}": str(value).lower()}
        arguments = {key.replace(".", "_").replace("-", "_"): value}
        for given in ((arguments, {}), ({}, session)):
            said = list(unused(before, after, *given, "optimize"))
            assert len(said) == (key in silent), (key, said)
            assert all(key in one for one in said)


def test_options_of_flink_are_those_that_are_declared() -> None:
    aliases = {alias for option in OPTIONS for alias in option.aliases}
    assert set(FLINK_OPTIONS) == aliases
    assert all(alias.startswith(("table.exec.", "table.optimizer.")) for alias in aliases)
    assert all(prefix.startswith(("table.exec.", "table.optimizer.")) for prefix in FLINK_PREFIXES)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("table.exec.sink.not-null-enforcer", "enforcer' is not supported; leave out such rows in the query"),
        ("table.optimizer.multi-join.enabled", "enabled' is not supported; leave it out: plans are Spark's"),
        ("table.exec.mini-batch.enabled", "mini-batch.enabled' is not supported; SET 'execution.trigger'"),
        ("table.exec.state.ttl", "delta joins keep no state"),
        ("table.exec.state.ttls", "unknown option 'table.exec.state.ttls'"),
        ("table.optimizer.join-order-enabled", "unknown option"),
        ("table.exec.delta-join.cache-enable1", "did you mean 'table.exec.delta-join.cache-enable"),
        ("table.exec.source.cdc-events-duplicate", "give 'cdc-events-duplicate' in WITH"),
    ],
)
def test_options_of_flink_that_mean_nothing_here_are_refused(key: str, said: str) -> None:
    options = SessionOptions()
    with pytest.raises(ConfigurationError, match=said):
        options[key] = "true"
    assert not options
    for known in FLINK_OPTIONS:
        options[known] = "1"
    assert len(options.forwarded()) == len(FLINK_OPTIONS)


BATCH: Mapping[str, str] = {
    "max-rows-per-trigger": "7",
    "max-memory-per-task": "300 mb",
    "scan.untracked": "skip",
    "scan.used-columns": "id",
    "consumer.lease": "1 s",
}


@pytest.mark.spark
def test_options_of_streams_are_refused_for_a_batch(spark: SparkSession, catalog: Catalog) -> None:
    assert BATCH.keys() == STREAM_ONLY <= {option.key for option in READ_OPTIONS}
    path = catalog.table("a").path
    for key, value in BATCH.items():
        with pytest.raises(Exception, match=f"option '{key}' must go with a stream"):
            spark.read.format("upsert-table").option(key, value).load(path).collect()


WRITES: Mapping[str, str] = {
    "partition": '{"k": 1}',
    "partition-overwrite-mode": "dynamic",
    "change-tracking": "false",
    "unchanged-since": "0",
    "sink.materialize": "none",
    "merge-schema": "true",
}
OF_THE_CATALOG = {"path", "bucketed", "micro-batch", "definition", "stands-for"}
"""What `catalog.write_changes` sets itself."""


@pytest.mark.spark
@pytest.mark.parametrize("query", ["SELECT k, sum(v) AS v FROM a GROUP BY k", "SELECT id, v FROM a"])
def test_options_of_a_streaming_insert_hold_or_are_refused(
    spark: SparkSession, catalog: Catalog, tmp_path: Path, query: str
) -> None:
    """An aggregate is written batch by batch, by another writer of Spark's than other streams."""
    assert WRITES.keys() | OF_THE_CATALOG == {option.key for option in WRITE_OPTIONS}
    catalog.table("a").write(pa.table({"id": [1], "k": [1], "v": [5]}))
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    catalog.sql(f"SET 'checkpoint.location' = '{tmp_path}'")
    catalog.sql("CREATE TABLE s (k BIGINT, v BIGINT, PRIMARY KEY (k) NOT ENFORCED)")

    def insert(options: Mapping[str, str]) -> None:
        text = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
        running = catalog.sql(f"INSERT INTO s /*+ OPTIONS({text}) */ {query}", spark)
        assert isinstance(running, Running)
        assert running.query is not None
        try:
            running.query.processAllAvailable()
        finally:
            running.query.stop()

    with pytest.raises(ConfigurationError, match="unknown option 'nonsense'"):
        insert({"nonsense": "1"})
    with pytest.raises(ConfigurationError, match="'partition-overwrite-mode' must go with a batch"):
        insert({"partition-overwrite-mode": "dynamic"})
    with pytest.raises(ConfigurationError, match="'merge-schema' must go with a batch"):
        insert({"merge-schema": "true"})
    with pytest.raises(Exception, match="partition"):
        insert({"partition": json.dumps({"k": 1})})
    assert catalog.table("s").snapshot().id == 0
    insert({"change-tracking": "false"})
    assert not catalog.table("s").snapshot().info.tracked
