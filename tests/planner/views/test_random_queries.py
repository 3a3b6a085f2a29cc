"""Views of random queries, of any depth, hold what DuckDB gives, whichever way they are refreshed."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

import planner
from tests.planner.views.random_queries import query
from tests.planner.views.test_kept import FEW
from tests.upsert.views.shops import change, expected, made, rows_of
from upsert import Catalog

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("seeds", "shallow", "few", "steps"),
    [
        ((8_111,), 0, 50_000, 1),
        pytest.param((2,), 0, 50_000, 1, marks=pytest.mark.long),
        pytest.param(range(100, 130), 5_000, 50_000, 3, marks=pytest.mark.long),
        pytest.param(range(200, 230), 0, 50_000, 3, marks=pytest.mark.long),
        pytest.param(range(300, 310), 0, -1, 3, marks=pytest.mark.long),
        pytest.param(range(1_000, 1_500), 0, 50_000, 3, marks=[pytest.mark.long, pytest.mark.minutes]),
    ],
    ids=["one", "another", "shallow", "deep", "in tasks", "many"],
)
def test_views_of_random_queries_hold_what_duckdb_gives(
    tmp_path: Path,
    spark: SparkSession,
    seeds: Sequence[int],
    shallow: int,
    few: int,
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("planner.views.keep.SHALLOW_ROWS", shallow)
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", shallow)
    monkeypatch.setattr("planner.views.keep.ORDERED_ROWS", shallow)
    for module in FEW:
        monkeypatch.setattr(f"{module}.FEW_ROWS", few)
    catalog = made(Catalog(tmp_path / "warehouse", optimize=planner.optimize))
    for seed in seeds:
        random_ = Random(seed)
        text = query(random_, random_.choice((2, 3, 4)))
        view = catalog.create_view("v", text, or_replace=True, spark=spark)
        for step in range(steps):
            assert rows_of(catalog, "v") == expected(catalog, text), f"seed {seed}, step {step}: {text}"
            change(catalog, seed % 100 + step)
            view.refresh()
        assert rows_of(catalog, "v") == expected(catalog, text), f"seed {seed}, at last: {text}"
