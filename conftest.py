"""Fixtures of all tests and doctests: one Spark session and one Kafka a run, and how many random examples."""

import gc
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from tests.forked_python import forked_python
from tests.helpers import JVM_OPTIONS, SESSION_OPTIONS, use_this_python
from tests.local_postgres import LocalPostgres
from tests.object_store import CREDENTIALS, KINDS, ObjectStore, Server
from upsert.catalog.run import queries
from upsert.catalog.run.without_spark.statements import selected_later
from upsert.spark.java import java_of
from upsert.store.files import writing
from upsert.testing import LocalKafka
from upsert.testing.local_kafka import BOOTSTRAP_VARIABLE

# Tests kill processes, and what a process has written outlives it. Only a power failure takes what was not
# synced, and waiting for the disk was most of the time of many tests. A test of what is synced has its own.
os.fsync = lambda _: None

# A shell that starts the tests in its background has them ignore Ctrl-C, and all that they start with them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What a user, or a service that runs the tests, says of colors or proxies is not for what is tested.
for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"

os.environ["SPARK_SUBMIT_OPTS"] = JVM_OPTIONS
os.environ["KAFKA_OPTS"] = "-XX:TieredStopAtLevel=1"  # a broker of tests is not worth optimizing either
os.environ.update(CREDENTIALS)  # before any JVM starts, whose Python workers inherit them

# `.ci/run` judges the commit, so it draws the same few examples every time; a developer's run draws new ones
# and prints how to repeat a failure; `make test-long` draws many, and
# `--hypothesis-profile=seeds` as many as a night allows.
settings.register_profile("default", max_examples=40, deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, max_examples=20)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=500)
settings.register_profile("seeds", parent=settings.get_profile("default"), max_examples=10_000)
settings.register_profile("slice", parent=settings.get_profile("default"), max_examples=100)
settings.load_profile("ci" if os.environ.get("CI") else "default")


SMALL_ROWS = writing.SMALL_ROWS


def by_spark(*_: object) -> Callable[[], None]:
    """In place of ``selected_later``: Spark is needed for the rows of any query that has a DataFrame."""
    return lambda: None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests have small tables: in every second one small files have sidecars, as large ones do.

    Spark computes the rows of all queries in every second one. What a test starts by itself, other than by a
    fork, is as it is for users.
    """
    drawn = crc32(item.nodeid.encode())
    has_sidecars = item.get_closest_marker("sidecars") or drawn & 1
    writing.SMALL_ROWS = 0 if has_sidecars else SMALL_ROWS  # type: ignore[misc]
    is_by_spark = item.get_closest_marker("by_spark") or drawn & 2
    queries.selected_later = by_spark if is_by_spark else selected_later


def pytest_collection_finish() -> None:
    """The tests themselves, half a million objects, stay to the end: no collection need look at them."""
    gc.collect()
    gc.freeze()


collect_ignore = ["tests/connect_script.py"]
"""A script that runs as it is read, in a process of its own; see tests/test_connect.py."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that all Spark tests share: two threads, two shuffle partitions, UTC, no UI."""
    use_this_python(os.environ)
    builder = SparkSession.builder.master("local[2]").appName("tests")
    with tempfile.TemporaryDirectory(prefix="spark-tests-") as scratch:
        for key, value in SESSION_OPTIONS.items():
            builder = builder.config(key, value)
        builder = builder.config("spark.sql.warehouse.dir", str(Path(scratch) / "warehouse"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYSPARK_PYTHON", forked_python())
            # for the data sources that Spark finds by itself
            patch.setenv("PYSPARK_DRIVER_PYTHON", forked_python())
            session = builder.getOrCreate()
        of_sources = session._jvm.java.lang.System.getenv("PYSPARK_DRIVER_PYTHON")  # type: ignore[union-attr]
        assert of_sources == forked_python(), (
            "an earlier test has started the JVM, it should ask for this session"
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        for query in session.streams.active:
            query.stop()
        session.stop()


@pytest.fixture(autouse=True)
def _shared_session_is_active(request: pytest.FixtureRequest) -> None:
    """`createDataFrame` of another session, in a test before, makes that the active one, which Spark asks."""
    if "spark" in request.fixturenames:
        session = SparkSession._activeSession = request.getfixturevalue("spark")
        java_of(session).org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)


@pytest.fixture(autouse=True, scope="module")
def _views_go_with_their_module() -> Iterator[None]:
    """Temporary views of the shared session hide another module's tables of their names: none is left."""
    yield
    if (session := SparkSession._instantiatedSession) is not None:
        session._jsparkSession.sessionState().catalog().clearTempTables()


@pytest.fixture
def ended_queries(spark: SparkSession) -> Iterator[None]:
    """Streaming queries of the shared session that a test leaves are stopped after it."""
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.fixture(scope="session")
def kafka() -> Iterator[LocalKafka]:
    """The broker that all Kafka tests share; a test names its own topics, and never kills this broker."""
    with LocalKafka() as broker:
        yield broker


@pytest.fixture(scope="session")
def s3() -> Iterator[ObjectStore]:
    """The S3 server that all tests of object stores share; each takes a folder of its own in its bucket."""
    with Server("s3") as store:
        yield store


@pytest.fixture(scope="session")
def gcs() -> Iterator[ObjectStore]:
    """The same of Google Cloud Storage."""
    with Server("gcs") as store:
        yield store


@pytest.fixture(scope="session")
def azure() -> Iterator[ObjectStore]:
    """The same of Azure Blob Storage."""
    with Server("azure") as store:
        yield store


@pytest.fixture(scope="session", params=KINDS)
def object_store(request: pytest.FixtureRequest) -> ObjectStore:
    """Each kind of object store: what is asked of one is asked of all."""
    store: ObjectStore = request.getfixturevalue(request.param)
    return store


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    """The PostgreSQL that all tests share; each makes tables of its own."""
    server = LocalPostgres()
    server.start()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _names_of_doctests(
    request: pytest.FixtureRequest, doctest_namespace: dict[str, object]
) -> Iterator[None]:
    """An example in a docstring that speaks of `spark` or `kafka.` finds the session or broker so named.

    One that makes a `LocalKafka` gets the broker that all share, as where a developer has one running.
    """
    # a fixture of all tests that asks for `monkeypatch` would have it undone after all others
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(request.node, pytest.DoctestItem):
            source = "".join(example.source for example in request.node.dtest.examples)
            if "spark" in source:
                doctest_namespace["spark"] = request.getfixturevalue("spark")
            if "kafka.bootstrap_servers" in source:
                doctest_namespace["kafka"] = request.getfixturevalue("kafka")
            if "LocalKafka()" in source:
                patch.setenv(BOOTSTRAP_VARIABLE, request.getfixturevalue("kafka").bootstrap_servers)
        yield
