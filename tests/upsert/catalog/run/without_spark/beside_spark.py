"""What a statement gives without Spark and what Spark gives for the same text, and a table of all types."""

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Found, Frame, Result
from upsert.catalog.run import insert, row_changes
from upsert.catalog.run.jobs import SparkNeededError
from upsert.errors import UpsertError
from upsert.sql.parameters import Args

KINDS = (
    "CREATE TABLE kinds (id BIGINT, small SMALLINT, tiny TINYINT, whole INT, flag BOOLEAN, ratio DOUBLE, "
    "single FLOAT, price DECIMAL(10, 2), large DECIMAL(38, 10), name STRING, short VARCHAR(5), raw BINARY, "
    "day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, clock TIME(6), span INTERVAL DAY TO SECOND, "
    "tags ARRAY<STRING>, times ARRAY<TIMESTAMP>, pair STRUCT<a: INT, b: STRING>, counts MAP<STRING, INT>, "
    "PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '3')"
)
ORDERED = (
    *("id", "small", "tiny", "whole", "flag", "ratio", "single", "price", "large"),
    *("name", "short", "raw", "day", "at", "local", "clock", "span"),
)

PLAIN = "plain_kinds"
"""The view of the rows of the table of all types, which Spark holds itself."""

UTC_SESSION = {"spark.sql.session.timeZone": "UTC"}
"""Of the tests' session."""


def without(catalog: Catalog, text: str, args: Args | None = None) -> Result:
    """What a statement gives in a thread that has no session."""
    found: list[Result | BaseException] = []

    def execute() -> None:
        try:
            found.append(catalog.sql(text, args=args))
        except BaseException as error:
            found.append(error)

    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("SPARK_SUBMIT_OPTS", raising=False)  # the tests have settings of SQL in it
        patched.setattr(SparkSession, "getActiveSession", classmethod(lambda _: None))
        thread = Thread(target=execute)
        thread.start()
        thread.join()
    (result,) = found
    if isinstance(result, BaseException):
        raise result
    return result


def by_spark(catalog: Catalog, text: str, spark: SparkSession) -> Result:
    """What a statement gives that Spark computes, though it need not."""
    with pytest.MonkeyPatch.context() as patched:
        ways = (row_changes, "updated"), (row_changes, "deleted"), (insert, "listed"), (insert, "copied")
        for module, name in ways:
            patched.setattr(module, name, lambda *_: None)
        return catalog.sql(text, spark)


def view_of(catalog: Catalog, table: str, spark: SparkSession, name: str) -> None:
    """Let a view of Spark's have the rows of a table, which it reads without a task: the cheapest oracle."""
    frame = catalog.sql(f"SELECT * FROM {table}", spark)
    assert isinstance(frame, Frame)
    spark.createDataFrame(frame.rows, frame.df.schema).createOrReplaceTempView(name)


def plain_rows(spark: SparkSession, text: str) -> pa.Table:
    """What Spark gives for a query of the table of all types, from the view of its rows."""
    return spark.sql(re.sub(r"\bkinds\b", PLAIN, text, flags=re.IGNORECASE)).toArrow()


def needs_spark(catalog: Catalog, text: str) -> bool:
    try:
        without(catalog, text)
    except SparkNeededError:
        return True
    return False


def kinds(random: Random, count: int) -> dict[str, list[Any]]:
    """Columns of the table, with NULLs and the values at which readers differ."""

    def some(make: Callable[[], Any]) -> list[Any]:
        return [None if random.random() < 0.2 else make() for _ in range(count)]

    zero = datetime(2020, 1, 1, tzinfo=UTC)
    floats = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -2.25, 3.0]
    texts = ["", "a", "B", "b", "tea", "Tea", "é", "😀", "z\0", "a%", " a"]
    return {
        "id": random.sample(range(-50, 50), count),
        "small": some(lambda: random.randrange(-9, 9)),
        "tiny": some(lambda: random.randrange(-9, 9)),
        "whole": some(lambda: random.choice([0, 1, -1, 2**31 - 1, -(2**31)])),
        "flag": some(lambda: random.random() < 0.5),
        "ratio": some(lambda: random.choice(floats)),
        "single": some(lambda: random.choice(floats)),
        "price": some(lambda: Decimal(random.randrange(-500, 500)) / 100),
        "large": some(
            lambda: Decimal(random.choice(["1.5", "-1.5", "1234567890123456789012345678.0000000001"]))
        ),
        "name": some(lambda: random.choice(texts)),
        "short": some(lambda: random.choice(["a", "abcde", "", "b"])),
        "raw": some(lambda: random.choice([b"", b"\0", b"\xff", b"a"])),
        "day": some(
            lambda: random.choice([date(1, 1, 1), date(1970, 1, 1), date(2020, 2, 29), date(9999, 12, 31)])
        ),
        "at": some(
            lambda: zero + timedelta(hours=random.randrange(-99, 99), microseconds=random.randrange(3))
        ),
        "local": some(lambda: datetime(2020, 1, 1) + timedelta(hours=random.randrange(-9, 9))),
        "clock": some(lambda: (datetime(2020, 1, 1) + timedelta(minutes=random.randrange(99))).time()),
        "span": some(lambda: timedelta(seconds=random.randrange(-99, 99))),
        "tags": some(lambda: random.choice([[], ["a", None], ["b"]])),
        "times": some(lambda: random.choice([[], [zero], [None]])),
        "pair": some(lambda: {"a": random.randrange(3), "b": None}),
        "counts": some(lambda: random.choice([[], [("a", 1)], [("b", None)]])),
    }


def same(values: list[Any]) -> list[str]:
    """Rows as texts, by which NaN and -0.0 differ from other values."""
    return [repr(value) for value in values]


def rows_of(result: Result) -> pa.Table:
    assert isinstance(result, Found | Frame)
    return result.rows


def assert_refused_alike(catalog: Catalog, text: str, spark: SparkSession) -> None:
    """The same error; which names Spark lists, and in which order, is its choice."""
    with pytest.raises(UpsertError) as expected:
        catalog.sql(text, spark)
    with pytest.raises(type(expected.value)) as found:
        without(catalog, text)
    listed = re.compile("there are [^?]*?(?= at line)")
    assert listed.sub("", str(found.value)) == listed.sub("", str(expected.value))
