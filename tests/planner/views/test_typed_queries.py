"""Views of random queries over odd values hold what Spark gives, whatever happens to their tables."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

import planner
from tests.planner.views.test_kept import FEW
from tests.planner.views.typed_queries import VALUES, Queries, change, counted, expected, made, oracle
from upsert import Catalog

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("seeds", "shallow", "few"),
    [
        (range(1), 0, 50_000),
        pytest.param(range(100, 160), 0, 50_000, marks=[pytest.mark.long, pytest.mark.minutes]),
        pytest.param(range(200, 230), 5_000, 50_000, marks=[pytest.mark.long, pytest.mark.minutes]),
        pytest.param(range(300, 310), 0, -1, marks=[pytest.mark.long, pytest.mark.minutes]),
    ],
    ids=["some", "deep", "shallow", "in tasks"],
)
def test_views_of_random_queries_hold_what_spark_gives(
    tmp_path: Path,
    spark: SparkSession,
    seeds: Sequence[int],
    shallow: int,
    few: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rows in ("SHALLOW_ROWS", "WHOLE_ROWS", "ORDERED_ROWS"):
        monkeypatch.setattr(f"planner.views.keep.{rows}", shallow)
    for module in FEW:
        monkeypatch.setattr(f"{module}.FEW_ROWS", few)
    own = oracle(spark)
    for seed in seeds:
        catalog = made(Catalog(tmp_path / f"warehouse-{seed}", optimize=planner.optimize))
        random_ = Random(seed)
        types = random_.choice(list(VALUES)), random_.choice(list(VALUES))
        text = Queries(random_).query(*types, random_.choice((1, 2, 3)))
        view = catalog.create_view("v", text, spark=spark)
        said = "as it was created"
        for step in range(5):
            found = counted(view.table.snapshot().scan())
            assert found == expected(catalog, own, text), f"seed {seed}, step {step}, {said}: {text}"
            if step < 4:
                said = change(catalog, random_)
                view.refresh()
