"""Fixtures of all tests and doctests: one Spark session a run, and how many examples random tests draw."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from tests.helpers import SESSION_OPTIONS, use_this_python

# A CI run judges the commit, so it draws the same examples every time; a developer's run draws new ones
# and prints how to repeat a failure; `make test-long` draws many.
settings.register_profile("default", max_examples=40, deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=500)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that all Spark tests share: two threads, two shuffle partitions, UTC, no UI."""
    use_this_python(os.environ)
    builder = SparkSession.builder.master("local[2]").appName("tests")
    with tempfile.TemporaryDirectory(prefix="spark-tests-") as scratch:
        for key, value in SESSION_OPTIONS.items():
            builder = builder.config(key, value)
        session = builder.config("spark.sql.warehouse.dir", str(Path(scratch) / "warehouse")).getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        for query in session.streams.active:
            query.stop()
        session.stop()


@pytest.fixture(autouse=True)
def _names_of_doctests(request: pytest.FixtureRequest, doctest_namespace: dict[str, object]) -> None:
    """An example in a docstring that speaks of `spark` finds the session under that name."""
    if isinstance(request.node, pytest.DoctestItem):
        source = "".join(example.source for example in request.node.dtest.examples)
        if "spark" in source:
            doctest_namespace["spark"] = request.getfixturevalue("spark")
