"""Reports of a clinic as views, over tables that nobody made for them: they hold what DuckDB gives."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import planner
from tests.in_duckdb import duckdb_with
from tests.planner.random_histories import write
from tests.planner.views.reports import DUCKDB, QUERIES, SIZES, change, made
from tests.planner.views.test_kept import FEW
from tests.upsert.views.shops import counted, rows_of
from upsert import Catalog

pytestmark = pytest.mark.spark


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setattr("planner.views.keep.SHALLOW_ROWS", 0)
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", 0)
    monkeypatch.setattr("planner.views.keep.ORDERED_ROWS", 0)
    return made(Catalog(tmp_path / "warehouse", optimize=planner.optimize))


def expected(catalog: Catalog, name: str) -> Counter[str]:
    with duckdb_with({table: catalog.table(table).snapshot().scan() for table in SIZES}) as db:
        return counted(db.sql(DUCKDB.get(name, QUERIES[name])).to_arrow_table())


@pytest.mark.parametrize(
    ("names", "few", "steps"),
    [
        (["grouping sets"], 50_000, 1),
        pytest.param(["tumble"], 50_000, 1, marks=pytest.mark.long),
        pytest.param(list(QUERIES), 50_000, 3, marks=[pytest.mark.long, pytest.mark.minutes]),
        pytest.param(list(QUERIES), -1, 3, marks=[pytest.mark.long, pytest.mark.minutes]),
    ],
    ids=["one", "another", "all", "all in tasks"],
)
def test_reports_hold_what_duckdb_gives_and_read_no_table_whole(
    catalog: Catalog,
    spark: SparkSession,
    names: list[str],
    few: int,
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in FEW:
        monkeypatch.setattr(f"{module}.FEW_ROWS", few)
    views = {
        name: catalog.create_view(f"v{number}", QUERIES[name], spark=spark)
        for number, name in enumerate(names)
    }
    for name, view in views.items():
        assert "all rows of its tables are read" not in view.explain(), name
    for seed in range(1, steps + 1):
        change(catalog, seed)
        for name, view in views.items():
            view.refresh()
            assert rows_of(catalog, view.name) == expected(catalog, name), (name, seed)


def test_a_small_table_that_is_joined_without_equality_is_not_followed(
    catalog: Catalog, spark: SparkSession
) -> None:
    view = catalog.create_view("v", QUERIES["no band"], spark=spark)
    assert (
        "by changes: those of its rows follow from a step of exam; from all rows if tariff" in view.explain()
    )
    changed = {"exam": 7, "stay": None, "kind": "ct", "taken": None, "score": 4}
    write(catalog.table("exam"), [changed], "+U")
    view.refresh()
    assert view.refreshes["v"].by_changes
    assert rows_of(catalog, "v") == expected(catalog, "no band")
    write(catalog.table("tariff"), [{"low": 0, "high": 1, "label": "new"}], "+U")
    write(catalog.table("exam"), [changed], "-D")
    view.refresh()
    assert view.refreshes["v"].reason == "a small table has changed that is joined without equality"
    assert rows_of(catalog, "v") == expected(catalog, "no band")
