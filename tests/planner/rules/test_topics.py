"""Queries over topics of Kafka, as users write them: what is decided before they start, without a broker."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyspark.sql.functions as F
import pytest
from pyspark.sql import DataFrame, SparkSession

import planner
import upsert
from planner import PlanError
from planner.plan.nodes import Changelog
from planner.plan.sources import KafkaTopic
from planner.plan.trees import chain_of, tree
from upsert import Catalog
from upsert.changelog.operator import normalize
from upsert.errors import ConfigurationError

pytestmark = pytest.mark.spark

METADATA = (
    "place BIGINT METADATA FROM 'offset' VIRTUAL, part SMALLINT METADATA FROM 'partition' VIRTUAL, "
    "at TIMESTAMP METADATA FROM 'timestamp' VIRTUAL"
)
BROKERS = {"properties.bootstrap.servers": "localhost:9092", "properties.sasl.password": "secret word"}
Reader = Callable[..., DataFrame]


@pytest.fixture
def words(spark: SparkSession) -> Reader:
    """A reader of an upsert topic; options by keyword, and whether it may remember rows."""
    upsert.register(spark)
    own = {"columns": f"word STRING, n BIGINT, d STRING, {METADATA}", "primary-key": "word", "topic": "words"}
    formats = {"key.format": "json", "value.format": "json", "state.path": "/nowhere"}

    def read(*, remembers: bool = True, **options: str) -> DataFrame:
        given = {**own, **formats, **BROKERS, **options}
        given = given if remembers else {key: given[key] for key in given if key != "state.path"}
        return spark.readStream.format("upsert-kafka").options(**given).load()

    return read


@pytest.fixture
def clicks(spark: SparkSession) -> Reader:
    """A reader of a topic of rows, or of changes with `format="debezium-json"`."""
    upsert.register(spark)
    own = {"columns": f"user BIGINT, url STRING, {METADATA}", "topic": "clicks;taps", "format": "json"}

    def read(named: str | None = None, **options: str) -> DataFrame:
        reader = spark.readStream.format("kafka-changelog").options(**{**own, **BROKERS, **options})
        return (reader if named is None else reader.name(named)).load()

    return read


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def first_line_of_leaf(df: DataFrame, sink_key: tuple[str, ...] | None = None) -> str:
    return tree(planner.explain(df, sink_key=sink_key).after).splitlines()[-1].split(" [")[0].strip()


def test_topic_is_read_as_what_it_is(words: Reader, clicks: Reader) -> None:
    assert first_line_of_leaf(words()) == "Changelog topic words all"
    assert first_line_of_leaf(words(changelog="upsert")) == "Changelog topic words upsert"
    assert first_line_of_leaf(clicks()) == "Stream topic clicks;taps rows"
    assert first_line_of_leaf(clicks(format="debezium-json")) == "Changelog topic clicks;taps cdc"


def test_plan_that_there_is_nothing_to_do_about_comes_back_as_it_was(words: Reader, clicks: Reader) -> None:
    for df in (words(), words(changelog="upsert"), clicks(), clicks().filter("user > 3")):
        assert planner.optimize(df) is df


def test_columns_that_an_aggregate_does_not_use_are_not_read(clicks: Reader) -> None:
    counted = clicks().withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute")).count()
    optimized = planner.optimize(counted)
    assert optimized.dtypes == counted.dtypes
    leaf = tree(planner.explain(optimized).after).splitlines()[-1]
    assert leaf.endswith(" timestamp]")
    assert "url" not in leaf
    assert planner.optimize(optimized) is optimized


def test_normalizer_is_left_out_for_a_sink_with_the_key(words: Reader) -> None:
    df = words().filter("word > 'a'").selectExpr("n + 1 AS m", "word", "place")
    optimized = planner.optimize(df, sink_key=["word"])
    assert optimized.columns == ["m", "word", "place", "_row_kind"]
    assert optimized.dtypes[:3] == df.dtypes
    assert first_line_of_leaf(optimized) == "Changelog topic words upsert"
    assert planner.optimize(optimized, sink_key=["word"]) is optimized
    planner.check_sink(optimized, ["word"])


def test_explain_tells_why_the_normalizer_went_or_stayed(words: Reader) -> None:
    df = words().select("word", "n")
    text = str(planner.explain(df, sink_key=("word",)))
    assert "topic words: upserts, and deletes by key\n" in text
    assert "  normalizer left out: the sink is keyed by (word)\n" in text
    (kept,) = planner.explain(df.filter("n > 3"), sink_key=("word",)).topics
    assert (kept.normalizer, kept.reason) == ("kept", "filter on n")
    (unknown,) = planner.explain(df).topics
    assert unknown.reason == "the key of the sink is not known; give it as sink_key"


def test_an_update_needs_no_row_before_into_a_table_with_its_key(clicks: Reader) -> None:
    """But with a filter on another column: a row that leaves it must go."""
    df = clicks(format="debezium-json", **{"primary-key": "user"})
    for filtered, needed in ((df.filter("user > 3"), False), (df.filter("url > 'a'"), True)):
        leaf = chain_of(planner.explain(filtered, sink_key=["user"]).after).leaf
        assert isinstance(leaf, Changelog)
        assert isinstance(leaf.origin, KafkaTopic)
        assert leaf.origin.mode == "cdc-net"
        assert leaf.origin.options.get("scan.needs-before") == (None if needed else "false")


def test_no_option_is_in_what_explain_prints(words: Reader, clicks: Reader) -> None:
    """They may hold secrets."""
    for df in (words(), clicks().filter("place > 5")):
        found = planner.explain(df, sink_key=("word",))
        assert "secret" not in str(found) + repr(found)


def test_upserts_are_refused_where_they_would_leave_rows_behind(words: Reader) -> None:
    upserts = words(changelog="upsert", remembers=False)
    exploded = upserts.select("word", F.explode(F.split("d", " ")))
    for df in (upserts.filter("n > 3"), upserts.select("n"), exploded, upserts.union(upserts)):
        with pytest.raises(PlanError, match="'words'"):
            planner.optimize(df)
    with pytest.raises(PlanError, match=r"the sink is keyed by \(n\), the topic by \(word\)"):
        planner.optimize(upserts, sink_key=["n"])
    with pytest.raises(PlanError, match="the sink has no primary key"):
        planner.check_sink(upserts)
    planner.check_sink(upserts, ["word"])
    planner.check_sink(words())


def test_normalizer_is_put_in_where_upserts_are_not_enough(words: Reader) -> None:
    upserts = words(changelog="upsert")
    exploded = upserts.select("word", F.explode(F.split("d", " ")))
    for df in (upserts.filter("n > 3"), upserts.select("n"), exploded, upserts.union(upserts)):
        optimized = planner.optimize(df)
        assert first_line_of_leaf(optimized) == "Changelog topic words all"
        assert planner.optimize(optimized) is optimized
        with pytest.raises(PlanError, match="the upserts of 'words' are not enough here"):
            planner.check_sink(df, ["word"])
        planner.check_sink(optimized)
    keyed_otherwise = planner.optimize(upserts, sink_key=["n"])
    assert first_line_of_leaf(keyed_otherwise) == "Changelog topic words all"
    assert keyed_otherwise.dtypes == upserts.dtypes


def test_explain_tells_why_the_normalizer_was_put_in(words: Reader) -> None:
    (topic,) = planner.explain(words(changelog="upsert").filter("n > 3")).topics
    assert (topic.mode, topic.normalizer) == ("all", "put in")
    assert topic.reason is not None
    assert topic.reason.startswith("a filter on n of 'words'")


def test_topic_is_not_joined_but_told_how_to_be(words: Reader, changes: dict[str, DataFrame]) -> None:
    joined = changes["orders"].join(words(), F.expr("note = word"), "left")
    with pytest.raises(
        PlanError, match="reads the topic 'words', and a delta join must look its rows up in a table"
    ):
        planner.optimize(joined)


def test_filters_on_metadata_narrow_what_is_read(clicks: Reader) -> None:
    df = clicks().filter("part IN (0, 2) AND place >= 5 AND at > '2013-01-01 12:00:00.0005' AND user > 1")
    narrowed = "partition in (0, 2) and offset >= 5 and timestamp >= 1357041600001"
    assert first_line_of_leaf(df) == f"Stream topic clicks;taps rows where {narrowed}"
    optimized = planner.optimize(df)
    assert optimized.dtypes == df.dtypes
    assert planner.optimize(optimized) is optimized
    counted = df.withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute")).count()
    assert first_line_of_leaf(planner.optimize(counted)) == first_line_of_leaf(df)
    planner.check_sink(df)


def test_name_of_a_source_stays_its_name(spark: SparkSession, clicks: Reader) -> None:
    """A checkpoint may know the source by it."""
    option = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    spark.conf.set(option, "true")
    try:
        df = clicks(named="taps").filter("place > 5")
        plan = planner.optimize(df)._jdf.queryExecution().analyzed().toString()
    finally:
        spark.conf.unset(option)
    assert 'name="taps"' in plan


def test_range_comes_in_addition_to_the_users_options(clicks: Reader) -> None:
    given = {"scan.filter.offset-from": "7", "scan.filter.partitions": "2,0", "format": "debezium-json"}
    df = clicks(**given).filter("place BETWEEN 5 AND 9")
    (topic,) = planner.explain(df).topics
    assert str(topic.range) == "partition in (0, 2) and offset >= 7 and offset < 10"
    assert first_line_of_leaf(planner.optimize(df)).endswith(str(topic.range))


def test_columns_declared_by_a_schema_are_kept(spark: SparkSession) -> None:
    """Comments are where a schema of Spark has room for METADATA."""
    upsert.register(spark)
    schema = "user BIGINT, place BIGINT COMMENT 'METADATA FROM \\'offset\\' VIRTUAL'"
    reader = spark.readStream.format("kafka-changelog").schema(schema)
    df = reader.options(topic="clicks", format="json", **BROKERS).load().filter("place > 5")
    optimized = planner.optimize(df)
    assert first_line_of_leaf(optimized) == "Stream topic clicks rows where offset >= 6"
    assert optimized.dtypes == df.dtypes


def test_key_of_the_sink_is_names(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="sink_key must be a sequence of column names, got 'word'"):
        planner.optimize(spark.range(3), sink_key="word")


def test_normalize_is_known_by_its_mark_and_its_input_is_looked_at(words: Reader, clicks: Reader) -> None:
    whole = normalize(words(changelog="upsert"), "word", order_by="place")
    stateless = words(changelog="upsert", remembers=False)
    found = planner.explain(whole.filter("n > 3").select("word"), sink_key=["n"])
    assert not found.refusals
    assert found.after.columns[-1].is_row_kind
    assert "Changelog normalize by (word) [" in str(found)
    assert planner.optimize(whole) is whole
    made_whole = planner.optimize(normalize(words(changelog="upsert").filter("n > 3"), "word", "place"))
    assert first_line_of_leaf(made_whole) == "Changelog topic words all"
    of_rows = normalize(clicks(), ["user"], order_by=["part", "place"])
    assert planner.optimize(of_rows.select("url")).columns == ["url", "_row_kind"]
    for wrong, reason in (
        (normalize(stateless, "n", order_by="place"), "the topic's key is (word)"),
        (normalize(stateless.filter("n > 3"), "word", order_by="place"), "a filter on n"),
        (normalize(words().drop("_row_kind"), "word", order_by="place"), "has lost its '_row_kind'"),
        (whole.limit(3), "a limit over the changes of 'normalize'"),
    ):
        with pytest.raises(PlanError) as refused:
            planner.optimize(wrong)
        assert reason in str(refused.value)


def test_what_is_normalized_is_read_no_further_than_needed(words: Reader, clicks: Reader) -> None:
    twice = normalize(words(), "word", order_by="place")
    once = planner.optimize(twice)
    assert first_line_of_leaf(once) == "Changelog topic words upsert"
    assert once.dtypes == twice.dtypes
    assert planner.optimize(once) is once
    planner.check_sink(twice)
    by_value = normalize(words(), "word", order_by="n")
    assert planner.optimize(by_value) is by_value, "a delete by key has no place in that order"
    narrowed = planner.optimize(normalize(clicks().filter("place >= 5"), "user", order_by="place"))
    assert first_line_of_leaf(narrowed) == "Stream topic clicks;taps rows where offset >= 5"


def test_function_of_the_users_over_whole_changes_is_not_taken_for_normalize(words: Reader) -> None:
    """Though it copies the schema, with all that is attached to it."""
    whole = normalize(words(changelog="upsert"), "word", order_by="place")
    with pytest.raises(PlanError, match="mapInArrow over the changes of 'normalize'"):
        planner.optimize(whole.mapInArrow(_same, whole.schema))


def test_catalog_refuses_upserts_for_a_table_with_another_key(words: Reader, tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, optimize=planner.optimize)
    catalog.sql("CREATE TABLE by_number (word STRING, n BIGINT, PRIMARY KEY (n) NOT ENFORCED)")
    catalog.sql("CREATE TABLE log (word STRING, n BIGINT)")
    catalog.sql("CREATE TABLE by_word (word STRING, n BIGINT, PRIMARY KEY (word) NOT ENFORCED)")
    upserts = words(changelog="upsert", remembers=False).select("word", "n")
    for table, reason in (("by_number", "the sink is keyed by (n)"), ("log", "the sink has no primary key")):
        with pytest.raises(PlanError) as refused:
            catalog.write_changes(upserts, table)
        assert reason in str(refused.value)
    catalog.write_changes(upserts, "by_word")
    catalog.write_changes(words(changelog="upsert").select("word", "n"), "by_number")
