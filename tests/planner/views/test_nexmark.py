"""Nexmark's queries as views over tables with updates: after each refresh they hold what DuckDB gives."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import planner
from tests.in_duckdb import duckdb_with
from tests.planner.views.nexmark import QUERIES, change, made
from tests.planner.views.test_kept import FEW
from tests.upsert.views.shops import counted, rows_of
from upsert import Catalog

pytestmark = pytest.mark.spark


def expected(catalog: Catalog, query: str) -> Counter[str]:
    names = ("person", "auction", "bid", "side")
    with duckdb_with({name: catalog.table(name).snapshot().scan() for name in names}) as db:
        return counted(db.sql(query).to_arrow_table())


@pytest.mark.parametrize(
    ("numbers", "few"),
    [
        ([8], 50_000),
        pytest.param(list(QUERIES), 50_000, marks=[pytest.mark.long, pytest.mark.minutes]),
        pytest.param(list(QUERIES), -1, marks=[pytest.mark.long, pytest.mark.minutes]),
    ],
    ids=["some", "all", "all in tasks"],
)
def test_views_hold_what_duckdb_gives(
    tmp_path: Path, spark: SparkSession, numbers: list[int], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.keep.SHALLOW_ROWS", 10)
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", 10)
    monkeypatch.setattr("planner.views.keep.ORDERED_ROWS", 10)
    for module in FEW:
        monkeypatch.setattr(f"{module}.FEW_ROWS", few)
    catalog = made(Catalog(tmp_path / "warehouse", optimize=planner.optimize))
    views = {number: catalog.create_view(f"q{number}", QUERIES[number], spark=spark) for number in numbers}
    for seed in range(1, 4):
        change(catalog, seed)
        for number, view in views.items():
            view.refresh()
            assert rows_of(catalog, f"q{number}") == expected(catalog, QUERIES[number]), (number, seed)
