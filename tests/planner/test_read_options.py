"""Options of a read hold in every plan, or the plan is refused by their names: made from what is declared."""

import json
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import deltajoin
import planner
from deltajoin.lookup import TableLookup
from planner.plan.sources import ManagedTable
from planner.refusals import HELD, PlanError, Rewrite, not_held
from planner.spark.catalyst import Catalyst
from tests.helpers import multiset
from upsert import Catalog
from upsert.errors import UpsertError
from upsert.kafka.client.admin import create_topic
from upsert.kafka.client.connection import Connection
from upsert.kafka.options import OPTIONS as TOPIC_OPTIONS
from upsert.managed.options import READ_OPTIONS, ReadOptions
from upsert.schema import TableSchema
from upsert.spark.java import class_name
from upsert.testing import LocalKafka

WHERE = '[["id", "<", 2]]'
SAMPLES: Mapping[str, Mapping[str, str]] = {
    "scan.mode": {"scan.mode": "latest"},
    "scan.source": {"scan.source": "log"},
    "changelog": {"changelog": "upsert"},
    "state.path": {"state.path": "/state"},
    "scan.snapshot-id": {"scan.mode": "from-snapshot", "scan.snapshot-id": "1"},
    "scan.tag-name": {"scan.mode": "from-snapshot", "scan.tag-name": "noon"},
    "scan.timestamp-millis": {"scan.mode": "from-timestamp", "scan.timestamp-millis": "4102444800000"},
    "scan.pinned": {"scan.pinned": "1@8f14e45f"},
    "max-rows-per-trigger": {"max-rows-per-trigger": "7"},
    "max-memory-per-task": {"max-memory-per-task": "300 mb"},
    "scan.where": {"scan.where": WHERE},
    "scan.untracked": {"scan.untracked": "skip"},
    "scan.used-columns": {"scan.used-columns": "id,v"},
    "row-kind": {"row-kind": "false"},
    "metadata.columns": {"metadata.columns": "bucket"},
    "consumer-id": {"consumer-id": "me"},
    "consumer.lease": {"consumer.lease": "9 d"},
}
"""For each option of a managed table's reader what a query gives that asks for something by it."""


def test_every_option_of_the_reader_is_gone_through() -> None:
    assert SAMPLES.keys() == {one.key for one in READ_OPTIONS} - {"path"}


@pytest.mark.parametrize("rewrite", Rewrite)
@pytest.mark.parametrize("key", SAMPLES)
def test_a_rewrite_follows_an_option_or_is_refused_by_its_name(rewrite: Rewrite, key: str) -> None:
    """An option that nobody has thought of is refused: `HELD` names those that are followed."""
    asked = ReadOptions.parse({"path": "/t", **SAMPLES[key]})
    table = ManagedTable("t", "/t", TableSchema.of({"id": pa.int64()}), asked=asked.asked)
    refused = not_held(table, rewrite)
    if asked.asked <= HELD[rewrite]:
        assert refused is None
    else:
        assert refused is not None
        assert repr(key) in refused.reason
        assert repr(key) in refused.remedy


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    catalog = Catalog(tmp_path_factory.mktemp("warehouse"), optimize=planner.optimize)
    catalog.sql("CREATE TABLE a (id BIGINT, k BIGINT, v BIGINT, PRIMARY KEY (id) NOT ENFORCED, INDEX (k))")
    catalog.sql("CREATE TABLE b (k BIGINT, w BIGINT, PRIMARY KEY (k) NOT ENFORCED)")
    catalog.table("a").write(pa.table({"id": [1, 2, 3, 4], "k": [1, 1, 2, 2], "v": [5, 9, 7, 3]}))
    catalog.table("a").tag("noon")
    catalog.table("b").write(pa.table({"k": [1, 2], "w": [10, 20]}))
    return catalog


Query = Callable[[SparkSession, Catalog, DataFrame], DataFrame]
"""A query over the table `a`, read with some options."""


def joined_with_b(spark: SparkSession, catalog: Catalog, a: DataFrame) -> DataFrame:
    return a.join(catalog.read_changes(spark, "b"), "k").select("id", "v", "w")


def static(spark: SparkSession, catalog: Catalog, a: DataFrame) -> DataFrame:
    return a.join(spark.createDataFrame([(1, 10), (2, 20)], "k BIGINT, w BIGINT"), "k").select("id", "w")


def looked_up_by_key(spark: SparkSession, catalog: Catalog, a: DataFrame) -> DataFrame:
    path = catalog.table("a").path
    newest = a.where("_row_kind <> '-U'") if "_row_kind" in a.columns else a
    one = deltajoin.with_lookup(
        newest, TableLookup.of(path, ["k"]), keys="k", upsert_key="id", immutable=["k"]
    )
    b = catalog.read_changes(spark, "b").where("_row_kind <> '-U'")
    other = deltajoin.with_lookup(
        b, TableLookup.of(catalog.table("b").path, ["k"]), keys="k", upsert_key="k", kinds=["+I", "+U"]
    )
    return one.join(other, "k")


QUERIES: Mapping[str, tuple[Query, Mapping[str, object]]] = {
    "fused": (joined_with_b, {"physical": "fused"}),
    "shuffled": (joined_with_b, {"physical": "shuffled"}),
    "stateful": (joined_with_b, {"physical": "stateful"}),
    "regular": (joined_with_b, {"strategy": "none"}),
    "sums": (lambda _, __, a: a.groupBy("k").agg(F.sum("v").alias("s"), F.count("id").alias("n")), {}),
    "lookups": (lambda _, __, a: a.groupBy("k").agg(F.max("v").alias("m")), {}),
    "static": (static, {}),
    "lookup join": (looked_up_by_key, {}),
    "rows": (lambda _, __, a: a.where("v > 3").select("id", "v"), {}),
}
"""Everything that is made of the changes of a managed table, and with which options of `optimize`."""
ALIKE = ("shuffled", "stateful", "static", "rows")
"""Queries in which options are followed where another one has them followed: `make test-long` has them."""


FEW = ("scan.mode", "scan.where", "scan.source", "changelog")
"""Options of each way to take one: as it is, as another one, by a refusal. The other ones are gone through
for each query in `make test-long`, and without Spark by a test above."""
IN_FEW = ("regular", "lookups", "lookup join")
"""Queries that are planned with these alone."""


def sources(df: DataFrame) -> list[tuple[str, dict[str, str]]]:
    """What the relations of a DataFrame are told."""
    catalyst = Catalyst(df)

    def walk(node: object) -> Iterator[tuple[str, dict[str, str]]]:
        children = catalyst.children(node)
        for child in children:
            yield from walk(child)
        if not children and class_name(node).startswith("StreamingRelation"):
            yield catalyst.source(node)

    return list(walk(catalyst.analyzed(df)))


def told(df: DataFrame) -> str:
    return json.dumps(sources(df), sort_keys=True)


def outcome(plan: Callable[[], DataFrame]) -> DataFrame | UpsertError:
    """The plan, or why it is refused."""
    try:
        return plan()
    except UpsertError as error:
        return error


def names_one_of(found: DataFrame | UpsertError, options: Mapping[str, str]) -> bool:
    return any(word in str(found) for pair in options.items() for word in pair)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        *((name, FEW if name in IN_FEW else (*SAMPLES,)) for name in QUERIES if name not in ALIKE),
        *(pytest.param(name, (*SAMPLES,), marks=pytest.mark.long) for name in (*ALIKE, *IN_FEW)),
    ],
    ids=lambda one: one if isinstance(one, str) else str(len(one)),
)
def test_options_of_a_stream_reach_a_source_or_are_refused_by_name(
    spark: SparkSession, catalog: Catalog, name: str, keys: tuple[str, ...]
) -> None:
    query, settings = QUERIES[name]

    def optimized(options: Mapping[str, str]) -> DataFrame:
        df = query(spark, catalog, catalog.read_changes(spark, "a", **options))
        return planner.optimize(df, **settings)  # type: ignore[arg-type]

    plain = told(optimized({}))
    for key in keys:
        options = SAMPLES[key]
        found = outcome(lambda options=options: optimized(options))
        # metadata that the query does not put out is not asked for, and a join knows which columns it uses
        needs_no_word = key in ("metadata.columns", "scan.used-columns")
        is_held = isinstance(found, DataFrame) and (told(found) != plain or needs_no_word)
        assert is_held or names_one_of(found, options), (key, found)


@pytest.mark.spark
@pytest.mark.parametrize("key", ["scan.where", "scan.snapshot-id", "scan.tag-name", "metadata.columns"])
def test_options_of_rows_that_a_stream_looks_up_hold_or_leave_the_join_to_spark(
    spark: SparkSession, catalog: Catalog, key: str
) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value AS id")
    options = {"row-kind": "false", **SAMPLES[key]}
    rows = spark.read.format("upsert-table").options(**options).load(catalog.table("a").path)
    (report,) = planner.explain(stream.join(rows, "id")).joins
    assert report.form == ("lookup" if SAMPLES[key].keys() <= HELD[Rewrite.ENRICHMENT] else "spark")


@pytest.mark.spark
def test_metadata_that_a_join_puts_out_are_refused_by_name(spark: SparkSession, catalog: Catalog) -> None:
    a = catalog.read_changes(spark, "a", metadata_columns="bucket")
    joined = a.join(catalog.read_changes(spark, "b"), "k").select("id", "bucket")
    with pytest.raises(PlanError, match=r"outputs 'bucket', which the option 'metadata\.columns' adds to"):
        planner.optimize(joined)


RESULTS = {
    "fused": "SELECT id, v, w FROM a JOIN b USING (k)",
    "regular": "SELECT id, v, w FROM a JOIN b USING (k)",
    "sums": "SELECT k, sum(v) AS s, count(id) AS n FROM a GROUP BY k",
    "lookups": "SELECT k, max(v) AS m FROM a GROUP BY k",
}
KEYS = {"fused": "id", "regular": "id", "sums": "k", "lookups": "k"}


@pytest.mark.spark
@pytest.mark.parametrize(
    "name", [n if n == "fused" else pytest.param(n, marks=pytest.mark.long) for n in RESULTS]
)
def test_rows_that_are_not_asked_for_are_in_no_result(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Rows come into the filter, leave it and are deleted; a batch over the filtered rows is the oracle."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql("CREATE TABLE a (id BIGINT, k BIGINT, v BIGINT, PRIMARY KEY (id) NOT ENFORCED, INDEX (k))")
    catalog.sql("CREATE TABLE b (k BIGINT, w BIGINT, PRIMARY KEY (k) NOT ENFORCED)")
    query, settings = QUERIES[name]
    where = '[[["v", "<", 6]], [["id", "=", 4]]]'
    df = planner.optimize(
        query(spark, catalog, catalog.read_changes(spark, "a", scan_where=where)), **settings
    )  # type: ignore[arg-type]
    columns = ", ".join(f"{f.name} BIGINT" for f in df.schema if f.name != "_row_kind")
    catalog.sql(f"CREATE TABLE s ({columns}, PRIMARY KEY ({KEYS[name]}) NOT ENFORCED)")
    written = catalog.write_changes(df, "s").option("checkpointLocation", str(tmp_path / "checkpoint"))
    steps = [
        ({"id": [1, 2, 3, 4], "k": [1, 1, 2, 2], "v": [5, 9, 7, 8]}, {"k": [1, 2], "w": [10, 20]}),
        ({"id": [1, 2, 3, 5], "k": [1, 1, 1, 2], "v": [8, 2, 3, 1]}, {"k": [1], "w": [11]}),
        ({"id": [2, 5], "k": [1, 2], "v": [2, 9], "_row_kind": ["-D", "+U"]}, {"k": [2], "w": [22]}),
    ]
    running = written.start()
    for a, b in steps:
        catalog.table("a").write(pa.table(a))
        catalog.table("b").write(pa.table(b))
        running.processAllAvailable()
        catalog.read(spark, "a").where("v < 6 OR id = 4").createOrReplaceTempView("a")
        catalog.read(spark, "b").createOrReplaceTempView("b")
        expected = multiset(spark.sql(RESULTS[name]).toArrow())
        assert multiset(catalog.table("s").snapshot().scan()) == expected
    running.stop()


TOPIC: Mapping[str, Mapping[str, str]] = {
    "bad-records": {"bad-records": "skip"},
    "bad-records.topic": {"bad-records": "dead-letter", "bad-records.topic": "bad"},
    "scan.bounded.mode": {"scan.bounded.mode": "latest-offset"},
    "scan.bounded.specific-offsets": {
        "scan.bounded.mode": "specific-offsets",
        "scan.bounded.specific-offsets": "partition:0,offset:4",
    },
    "scan.bounded.timestamp-millis": {
        "scan.bounded.mode": "timestamp",
        "scan.bounded.timestamp-millis": "4102444800000",
    },
    "scan.topic-partition-discovery.interval": {"scan.topic-partition-discovery.interval": "7 s"},
    "scan.parallelism": {"scan.parallelism": "3"},
    "connection.timeout": {"connection.timeout": "9 s"},
    "max-rows-per-trigger": {"max-rows-per-trigger": "7"},
    "fail-on-data-loss": {"fail-on-data-loss": "false"},
    "row-kind": {"row-kind": "false"},
    "state.path": {"state.path": "/elsewhere"},
    "state.ttl": {"state.ttl": "9 h"},
    "allow-new-partitions": {"allow-new-partitions": "true"},
    "changelog": {"changelog": "upsert"},
    "scan.startup.mode": {"scan.startup.mode": "latest-offset"},
    "scan.startup.specific-offsets": {
        "scan.startup.mode": "specific-offsets",
        "scan.startup.specific-offsets": "partition:0,offset:4",
    },
    "scan.startup.timestamp-millis": {
        "scan.startup.mode": "timestamp",
        "scan.startup.timestamp-millis": "4102444800000",
    },
    "scan.filter.partitions": {"scan.filter.partitions": "1"},
    "scan.filter.offset-from": {"scan.filter.offset-from": "3"},
    "scan.filter.offset-until": {"scan.filter.offset-until": "8"},
    "scan.filter.timestamp-from": {"scan.filter.timestamp-from": "5"},
    "cdc-events-duplicate": {"cdc-events-duplicate": "true"},
}
"""For each option of a topic that says how it is read what a query gives."""
DECLARED = {
    *("topic", "topic-pattern", "value.format", "key.format", "key.fields-prefix", "value.fields-include"),
    *("fields.verify-integrity", "key.fields", "mirror.path", "mirror.not-given", "state.version"),
    *("scan.versions", "scan.net-changes", "scan.needs-before", "scan.updates-before"),
}
"""Options that say what the topic is, not how a query reads it."""
WRITTEN = ("sink.", "topic.", "sequence.field")


def test_every_option_of_topics_is_gone_through() -> None:
    declared = {one.key for options in TOPIC_OPTIONS.values() for one in options}
    assert TOPIC.keys() == {key for key in declared - DECLARED if not key.startswith(WRITTEN)}


FORGETS = {"left out": {"state.path", "state.ttl", "changelog"}, "put in": {"changelog"}}
"""Options of what the planner takes away or puts in by itself, and `explain` says so: the normalizer."""


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.parametrize(
    "name",
    [
        "left out",
        *(pytest.param(n, marks=pytest.mark.long) for n in ("range", "put in", "regular", "mirror", "sums")),
    ],
)
def test_options_of_a_topic_reach_a_source_or_are_refused_by_name(
    spark: SparkSession, catalog: Catalog, kafka: LocalKafka, name: str
) -> None:
    topic = f"read-options-{uuid.uuid4().hex[:8]}"
    connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
    create_topic(connection, topic, 1, {"cleanup.policy": "compact"})
    is_upsert = name in ("left out", "put in", "regular", "mirror")
    servers = f"'properties.bootstrap.servers' = '{kafka.bootstrap_servers}'"
    brokers = f"'topic' = '{topic}', {servers}, 'value.format' = "
    if is_upsert:
        columns = "k BIGINT, w BIGINT, PRIMARY KEY (k) NOT ENFORCED, INDEX (w)"
        options = f"'connector' = 'upsert-kafka', 'key.format' = 'json', {brokers}'json'"
    else:
        columns = "k BIGINT, w BIGINT, at BIGINT METADATA FROM 'offset' VIRTUAL, PRIMARY KEY (k) NOT ENFORCED"
        form = "debezium-json" if name == "sums" else "json"
        columns = columns if name == "sums" else columns.replace(", PRIMARY KEY (k) NOT ENFORCED", "")
        options = f"'connector' = 'kafka', {brokers}'{form}'"
    catalog.sql(f"CREATE TABLE {name.replace(' ', '_')} ({columns}) WITH ({options})")
    table = name.replace(" ", "_")
    if name == "mirror":
        catalog.mirror(spark, table, {"availableNow": True}).awaitTermination()

    def optimized(options: Mapping[str, str]) -> DataFrame:
        default = {"changelog": "upsert"} if name == "put in" else {}
        c = catalog.read_changes(spark, table, **{**default, **options})
        match name:
            case "left out":
                return planner.optimize(c, sink_key=["k"])
            case "put in":
                return planner.optimize(c.where("w > 3"))
            case "regular":
                return planner.optimize(catalog.read_changes(spark, "b").join(c, "k").drop("_row_kind"))
            case "mirror":
                return planner.optimize(
                    catalog.read_changes(spark, "b").select("k", "_row_kind").join(c, "k"), strategy="force"
                )
            case "range":
                return planner.optimize(c.where("at >= 4 AND at < 9"))
            case _:
                return planner.optimize(c.groupBy("k").agg(F.sum("w").alias("s")))

    plain = told(optimized({}))
    declared = {one.key for one in TOPIC_OPTIONS["upsert-kafka" if is_upsert else "kafka"]}
    for key in TOPIC.keys() & declared - FORGETS.get(name, set()):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = outcome(lambda options=TOPIC[key]: optimized(options))  # type: ignore[misc]
        assert all(repr(key) in str(one.message) for one in warned), (key, warned)
        # a range of records is read within the one that the filter says
        is_within = name == "range" and key in ("scan.filter.offset-from", "scan.filter.offset-until")
        is_mirrored = name == "mirror" and key == "changelog"
        is_held = isinstance(found, DataFrame) and (told(found) != plain or is_within or is_mirrored)
        assert is_held or warned or names_one_of(found, TOPIC[key]), (key, found)
