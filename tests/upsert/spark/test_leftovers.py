"""A session in which queries start and end all the time has no more of anything than after the first ones."""

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.helpers import wait_until
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Materialized
from upsert.spark import leftovers
from upsert.spark.leftovers import remove_leftovers, useless_monitors
from upsert.spark.queries import stop_listening
from upsert.spark.query_writer import QueryWriter

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("ended_queries")]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(tmp_path / "warehouse")
    for name in ("given", "kept"):
        catalog.sql(f"CREATE TABLE {name} (id BIGINT, n BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.table("given").write(pa.table({"id": [1], "n": [1]}))
    return catalog


def copied(spark: SparkSession, catalog: Catalog, tmp_path: Path) -> DataStreamWriter:
    """A writer of one table into another, by the driver, which is called for each micro-batch."""
    changes = catalog.read_changes(spark, "given")
    writer = catalog.write_changes(changes, "kept", sink_materialize="none")
    return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)


def test_ended_queries_leave_no_threads(spark: SparkSession, catalog: Catalog, tmp_path: Path) -> None:
    """Neither those of the JVM that end idle processes, nor those of Python that wait for calls."""
    running = set(leftovers._callers)

    def run(n: int) -> None:
        catalog.table("given").write(pa.table({"id": [n], "n": [n]}))
        copied(spark, catalog, tmp_path).start().awaitTermination()

    def are_gone() -> bool:
        remove_leftovers(spark)  # a thread may live for a moment after its query has ended
        return not useless_monitors(spark) and set(leftovers._callers) <= running

    run(0)
    wait_until(are_gone)
    before = threading.active_count()
    for n in range(1, 3):
        run(n)
    wait_until(are_gone)
    wait_until(lambda: threading.active_count() <= before)
    assert catalog.table("kept").snapshot().scan().num_rows == 3


def test_a_start_removes_what_earlier_queries_have_left(
    spark: SparkSession, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(spark, catalog, tmp_path).start().awaitTermination()
    with monkeypatch.context() as patch:  # of the workers; a source that Spark finds has the driver's
        patch.setattr(spark.sparkContext, "pythonExec", "another")
        left = useless_monitors(spark)
    assert left
    copied(spark, catalog, tmp_path).start().awaitTermination()
    wait_until(lambda: not any(thread.isAlive() for thread in left))


def of_function(spark: SparkSession, catalog: Catalog, _: Path) -> DataStreamWriter:
    return QueryWriter(catalog.read_changes(spark, "given")).foreachBatch(lambda *_: None)


def of_upserts(spark: SparkSession, catalog: Catalog, _: Path) -> DataStreamWriter:
    changes = catalog.read_changes(spark, "given").selectExpr("n AS id", "id AS n", "_row_kind")
    return catalog.write_changes(changes, "kept", sink_materialize="force")


@pytest.mark.parametrize("writer_of", [copied, of_function, of_upserts])
def test_what_is_called_for_micro_batches_does_not_hold_its_writer(
    spark: SparkSession,
    catalog: Catalog,
    tmp_path: Path,
    writer_of: Callable[[SparkSession, Catalog, Path], DataStreamWriter],
) -> None:
    """The writer has an object of the JVM that has the function: neither side would ever be collected."""
    writer = writer_of(spark, catalog, tmp_path).option("checkpointLocation", str(tmp_path / "checkpoint"))
    held = weakref.ref(writer)
    writer.start().stop()
    del writer
    gc.collect()
    assert held() is None


def test_rows_for_people_are_let_go_with_their_query(spark: SparkSession, catalog: Catalog) -> None:
    live = Materialized(catalog.read_changes(spark, "given"), {})
    held = weakref.ref(live)
    live.query.stop()
    del live
    gc.collect()
    assert held() is None


def test_the_function_of_an_ended_query_and_a_listener_that_has_stopped_are_collected(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Thing:
        pass

    def started() -> weakref.ref[Thing]:
        thing = Thing()

        def write(*_: object) -> None:
            assert thing is not None

        (tmp_path / "texts").mkdir()
        (tmp_path / "texts" / "one.txt").write_text("a\n")
        writer = QueryWriter(spark.readStream.text(str(tmp_path / "texts"))).foreachBatch(write)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        return weakref.ref(thing)

    def stopped() -> weakref.ref[StreamingQueryListener]:
        listener = Listener()
        spark.streams.addListener(listener)
        stop_listening(spark, listener)
        return weakref.ref(listener)

    wait_until_collected(spark, started(), stopped())


class Listener(StreamingQueryListener):
    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: QueryProgressEvent) -> None: ...  # noqa: N802

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...  # noqa: N802


def wait_until_collected(spark: SparkSession, *things: weakref.ref[Any]) -> None:
    """Until neither Python nor the JVM has any, whose garbage a finalizer tells Python of."""

    def is_collected() -> bool:
        remove_leftovers(spark)
        spark._jvm.java.lang.System.gc()  # type: ignore[union-attr]
        spark._jvm.java.lang.System.runFinalization()  # type: ignore[union-attr]
        gc.collect()
        return all(thing() is None for thing in things)

    wait_until(is_collected)
