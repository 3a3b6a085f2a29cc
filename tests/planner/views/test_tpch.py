"""TPC-H's queries as views, while all eight tables change: after each refresh they hold what DuckDB gives."""

import math
import random
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from bench.views import tpch
from tests.helpers import spark_script
from tests.in_duckdb import duckdb_with
from tests.upsert.store.disk import KILLED
from upsert import Catalog

pytestmark = pytest.mark.spark

QUERIES = tpch.queries()


def expected(catalog: Catalog, number: int) -> list[list[Any]]:
    with duckdb_with({name: catalog.table(name).snapshot().scan() for name in tpch.KEYS}) as db:
        return in_order(db.sql(QUERIES[number]).to_arrow_table())


def in_order(rows: pa.Table) -> list[list[Any]]:
    """Rows with numbers last to decide: engines give quotients in other types, and round them."""
    columns = [[float(v) if isinstance(v, Decimal) else v for v in one.to_pylist()] for one in rows.columns]
    found = [list(row) for row in zip(*columns, strict=True)]
    return sorted(found, key=lambda row: (repr([v for v in row if not isinstance(v, float)]), repr(row)))


def is_close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-4)
    return bool(one == other)


def assert_views_hold(catalog: Catalog, numbers: list[int]) -> None:
    for number in numbers:
        found, wanted = in_order(catalog.table(f"q{number}").snapshot().scan()), expected(catalog, number)
        assert len(found) == len(wanted), number
        for row, other in zip(found, wanted, strict=True):
            assert all(map(is_close, row, other)), (number, row, other)


def made(folder: Path, scale: float) -> Catalog:
    catalog = Catalog(folder / "warehouse", optimize=planner.optimize)
    tpch.fill(catalog, tpch.generated(scale))
    return catalog


@pytest.mark.parametrize(
    ("numbers", "shallow"),
    [
        ([22], 5000),
        pytest.param([3], 5000, marks=pytest.mark.long),
        pytest.param([18], 10, marks=pytest.mark.long),
        pytest.param(list(QUERIES), 5000, marks=[pytest.mark.long, pytest.mark.minutes]),
        pytest.param(list(QUERIES), 0, marks=[pytest.mark.long, pytest.mark.minutes]),
    ],
    ids=["some", "another", "deep", "all", "all deep"],
)
def test_views_hold_what_duckdb_gives(
    tmp_path: Path, spark: SparkSession, numbers: list[int], shallow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.keep.SHALLOW_ROWS", shallow)
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", shallow)
    monkeypatch.setattr("planner.views.keep.ORDERED_ROWS", shallow)
    catalog = made(tmp_path, 0.01)
    views = [catalog.create_view(f"q{number}", QUERIES[number], spark=spark) for number in numbers]
    for seed, share in enumerate((0.001, 0.02)):
        tpch.change(catalog, share, seed)
        for view in views:
            assert view.refresh()
        assert_views_hold(catalog, numbers)


@pytest.mark.long
@pytest.mark.minutes
def test_refreshes_that_are_killed_lose_nothing(tmp_path: Path, spark: SparkSession) -> None:
    catalog, numbers, random_ = made(tmp_path, 0.1), list(QUERIES), random.Random(5)
    views = [catalog.create_view(f"q{number}", QUERIES[number], spark=spark) for number in numbers]
    for seed in range(4):
        tpch.change(catalog, 0.002, seed)
        names = (f"q{number}" for number in random_.sample(numbers, len(numbers)))
        process = spark_script(Path(__file__).with_name("refresh_script.py"), catalog.warehouse, *names)
        assert process.stdout is not None
        ended = (line for line in process.stdout if line.startswith("refreshed"))
        for _ in range(random_.randrange(len(numbers))):
            next(ended)
        time.sleep(random_.random())
        process.kill()
        process.communicate()
        assert process.returncode == KILLED
        for view in views:
            view.refresh()
        assert_views_hold(catalog, numbers)
