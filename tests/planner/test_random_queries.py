"""Random queries as streams, over changes of every kind, against the same queries over snapshots."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

import planner
from planner import PlanError
from planner.join_reports import blurred
from planner.spark.state import agree
from tests.planner.random_histories import CHANGES, drawn, optimized_or_refused, streamed, write
from tests.planner.random_queries import SCHEMAS, queries, queries_with_unions
from tests.planner.spark.state_shapes import state_shapes
from tests.planner.test_queries import Rows, in_one
from upsert.managed import frames
from upsert.rowkind import RowKind
from upsert.store import Table

pytestmark = pytest.mark.spark
QUERIES = 8
"""Queries of one stream: a stream for each would take minutes."""
FEW, SEED = 3, 2
"""Those of the short test."""


def _change(tables: dict[str, Table], rows: dict[str, list[dict[str, Any]]]) -> None:
    """Take some rows away, then write others: those of equal keys are updates."""
    for name, table in tables.items():
        write(table, table.snapshot().scan().to_pylist()[::3], "-D")
        write(table, rows[name], "+I")


def _net_rows(spark: SparkSession, texts: Sequence[str], changes: Sequence[Any], folder: Path) -> int:
    """Compare the queries that are not refused; how many these are."""
    tables = {name: Table.create(folder / name, schema) for name, schema in SCHEMAS.items()}
    _change(tables, changes[0])
    views = {name: frames.read_changes(spark, table.path) for name, table in tables.items()}
    for name, view in views.items():
        view.createOrReplaceTempView(name)
    paths = {name: table.path for name, table in tables.items()}
    found = {text: _optimized(partial(streamed, spark, text, paths)) for text in texts}
    optimized = {text: df for text, df in found.items() if not isinstance(df, str)}
    if not optimized:
        return 0
    is_net = {text for text in optimized if not blurred(planner.explain(streamed(spark, text, paths)).after)}
    net: dict[str, Rows] = {title: Counter() for title in optimized}
    opposites: list[tuple[str, str]] = []

    def take(batch: DataFrame, batch_id: int) -> None:
        signs: dict[tuple[str, str], set[int]] = {}
        for title, row, kind in batch.collect():
            net[title][row] += RowKind(kind).sign
            signs.setdefault((title, row), set()).add(RowKind(kind).sign)
        opposites.extend(key for key, both in signs.items() if len(both) > 1 and key[0] in is_net)
        if batch_id < len(changes) - 1:
            _change(tables, changes[batch_id + 1])

    query = in_one(optimized).writeStream.foreachBatch(take)
    stream = query.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        stream.processAllAvailable()
    finally:
        stream.stop()
    assert not opposites, "a row came with both signs"
    for name, table in tables.items():
        frames.read(spark, table.path).createOrReplaceTempView(name)
    wanted: dict[str, Rows] = {title: Counter() for title in optimized}
    for title, row, _ in in_one({title: spark.sql(title) for title in optimized}).collect():
        wanted[title][row] += 1
    for title in optimized:
        assert {row: found for row, found in net[title].items() if found} == wanted[title], title
    return len(optimized)


def _optimized(query: Callable[[], DataFrame]) -> DataFrame | str:
    """The query as a delta join, or why it can be none."""
    return optimized_or_refused(lambda: planner.optimize(query(), strategy="force", shards=1))


def _check(spark: SparkSession, texts: Sequence[str], changes: Sequence[Any]) -> int:
    with TemporaryDirectory() as folder:
        return _net_rows(spark, texts, changes, Path(folder))


_SETTINGS = settings(
    phases=[Phase.explicit, Phase.generate],  # to shrink an example takes a stream each time
    suppress_health_check=list(HealthCheck),
    deadline=None,
)


def test_net_rows_are_those_of_the_query(spark: SparkSession) -> None:
    texts = st.lists(queries(most_tables=2), min_size=FEW, max_size=FEW)
    case = drawn(st.tuples(texts, st.lists(CHANGES, min_size=2, max_size=2)), seed=SEED)
    assert _check(spark, *case) == FEW, "with this seed none is refused"


@pytest.mark.long
@settings(_SETTINGS, max_examples=15)
@given(
    st.lists(queries(most_tables=6), min_size=QUERIES, max_size=QUERIES),
    st.lists(CHANGES, min_size=3, max_size=3),
)
def test_net_rows_of_many_queries(spark: SparkSession, texts: list[str], changes: list[Any]) -> None:
    _check(spark, texts, changes)


def _check_plan(spark: SparkSession, text: str) -> bool:
    """The query over the views of the tables' changes is refused in words, or has state of one shape.

    True if there is such state.
    """
    df = spark.sql(text)
    try:
        optimized = planner.optimize(df)
    except PlanError as refused:
        if "report it as a bug" in str(refused):
            raise
        return False
    shapes = state_shapes(optimized)
    assert agree(shapes), text
    return any(shapes)


@pytest.fixture
def _views(spark: SparkSession, tmp_path: Path) -> None:
    for name, schema in SCHEMAS.items():
        path = Table.create(tmp_path / name, schema).path
        frames.read_changes(spark, path).createOrReplaceTempView(name)


@pytest.mark.usefixtures("_views")
def test_unions_are_answered_or_refused(spark: SparkSession) -> None:
    texts = drawn(st.lists(queries_with_unions(most_tables=3), min_size=6, max_size=6), seed=12)
    kept = [text for text in texts if _check_plan(spark, text)]
    assert len(kept) >= 3, "with this seed three are answered by state"
    assert sum(" UNION ALL " in text for text in kept) >= 2


@pytest.mark.long
@pytest.mark.usefixtures("_views")
@settings(_SETTINGS, max_examples=300)
@given(queries_with_unions())
def test_many_unions_are_answered_or_refused(spark: SparkSession, text: str) -> None:
    _check_plan(spark, text)
