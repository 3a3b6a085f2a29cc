"""Optimized queries against Spark's own join of the tables' snapshots: plans, columns and rows."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.sql.functions as F
import pytest
from pyspark.sql import DataFrame, SparkSession

import planner
from planner.plan.trees import tree
from tests.helpers import of_kind
from tests.planner.in_steps import by_session, joined_in_steps, local, step_of, versions_of
from tests.planner.shapes import ALIKE, SCHEMAS, SHAPES, VIEWS, Shape
from upsert.managed import frames
from upsert.rowkind import RowKind
from upsert.store import Table

pytestmark = pytest.mark.spark
Rows = Counter[str]
SHAPES_OF_A_STREAM = 8
"""Each has a source of its own, which takes a process: more at a time are more than a small machine bears."""
TITLES = [title for title in SHAPES if title not in ALIKE]
PLANS = Path(__file__).parent / "plans_of_queries.txt"


@dataclass
class Warehouse:
    spark: SparkSession
    tables: dict[str, Table]

    def changes(self) -> dict[str, DataFrame]:
        """The tables' changes, also as temp views of their names."""
        return self.views({name: frames.read_changes(self.spark, t.path) for name, t in self.tables.items()})

    def snapshots(self) -> dict[str, DataFrame]:
        return self.views({name: local(self.spark, table) for name, table in self.tables.items()})

    def views(self, found: dict[str, DataFrame]) -> dict[str, DataFrame]:
        for name, df in found.items():
            df.createOrReplaceTempView(name)
        self.spark.sql(VIEWS)
        return found


def orders(ids: range, shift: int) -> pa.Table:
    start = datetime(2013, 1, 1, tzinfo=UTC)
    return pa.table(
        {
            "order_id": list(ids),
            "product_id": [None if i % 11 == 0 else (i * 7 + shift) % 13 for i in ids],
            "amount": [float(i % 9) for i in ids],
            "note": [None if i % 5 == 0 else f"note {i % 3} {shift}" for i in ids],
            "parent": [(i + shift) // 2 for i in ids],
            "at": [start + timedelta(seconds=i) for i in ids],
        }
    )


def products(ids: range, shift: int) -> pa.Table:
    return pa.table(
        {
            "product_id": pa.array(list(ids), pa.int32()),
            "name": ["pqr"[i % 3] * (1 + (i + shift) % 2) for i in ids],
            "price": [i / 2 + shift for i in ids],
            "shop": [("north", "south", "east", None)[(i + shift) % 4] for i in ids],
        }
    )


def shelves(shops: tuple[str, ...], ids: range, shift: int) -> pa.Table:
    pairs = [(shop, i) for shop in shops for i in ids]
    return pa.table(
        {
            "shop": [shop for shop, _ in pairs],
            "product": [i for _, i in pairs],
            "count": pa.array([(i + shift) % 4 for _, i in pairs], pa.int16()),
        }
    )


def deletes(table: Table, column: str, values: list[Any]) -> pa.Table:
    rows = table.snapshot().lookup([column], pa.table({column: values}))
    return of_kind(rows, "-D")


def new_warehouse(spark: SparkSession, folder: Path) -> Warehouse:
    tables = {
        name: Table.create(folder / name, schema, {"bucket": "2" if name == "products" else "1"})
        for name, schema in SCHEMAS.items()
    }
    tables["orders"].write(orders(range(60), 0))
    tables["products"].write(products(range(10), 0))
    tables["shelves"].write(shelves(("north", "south"), range(12), 0))
    return Warehouse(spark, tables)


def change_everything(tables: dict[str, Table]) -> None:
    """Updates, of join keys too, inserts and deletes in every table."""
    tables["orders"].write(orders(range(50, 70), 5))
    tables["orders"].write(deletes(tables["orders"], "order_id", [1, 2, 8, 30]))
    tables["products"].write(products(range(7, 13), 1))
    tables["products"].write(deletes(tables["products"], "product_id", [0, 4]))
    tables["shelves"].write(shelves(("south", "east"), range(5), 3))
    tables["shelves"].write(deletes(tables["shelves"], "shop", ["east"]))


def in_one(shapes: Mapping[str, DataFrame]) -> DataFrame:
    """All queries as one, with rows of title, row as JSON, and kind: a stream for each would take minutes."""
    parts = []
    for title, df in shapes.items():
        own = [name for name in df.columns if name != "_row_kind"]
        plain = df.toDF(*(f"c{i}" if i < len(own) else name for i, name in enumerate(df.columns)))
        row = F.to_json(F.struct(*plain.columns[: len(own)]), {"ignoreNullFields": "false"})
        kind = F.col("_row_kind") if "_row_kind" in df.columns else F.lit("+I")
        parts.append(plain.select(F.lit(title).alias("title"), row.alias("row"), kind.alias("kind")))
    return reduce(DataFrame.union, parts)


def batched(titles: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    yield from (titles[start : start + size] for start in range(0, len(titles), size))


Types = dict[str, list[tuple[str, str]]]


def results_in_steps(shapes: Mapping[str, Shape], warehouse: Warehouse) -> dict[str, tuple[Rows, Rows]]:
    """Results of queries without a stream, as `results_of` has them."""
    ends = [versions_of([*warehouse.tables.values()])]
    change_everything(warehouse.tables)
    ends.append(versions_of([*warehouse.tables.values()]))
    changes = warehouse.changes()
    with joined_in_steps(ends):
        optimized = {
            title: by_session(shape(warehouse.spark, changes), strategy="force", shards=1)
            for title, shape in shapes.items()
        }
    found: dict[str, tuple[Rows, Rows]] = {title: (Counter(), Counter()) for title in shapes}
    for title, row, kind in in_one(optimized).collect():
        found[title][0][row] += step_of(kind)[0].sign
    types = {title: df.dtypes for title, df in optimized.items()}
    return with_wanted(found, shapes, warehouse, types)


def with_wanted(
    found: dict[str, tuple[Rows, Rows]], shapes: Mapping[str, Shape], warehouse: Warehouse, types: Types
) -> dict[str, tuple[Rows, Rows]]:
    """Adds the rows of a batch; its columns and the kind must be those that were found, too."""
    snapshots = warehouse.snapshots()
    queries = {title: shape(warehouse.spark, snapshots) for title, shape in shapes.items()}
    assert types == {title: [*df.dtypes, ("_row_kind", "string")] for title, df in queries.items()}
    expected = in_one(queries)
    for title, row, _ in expected.collect():
        found[title][1][row] += 1
    return found


def results_of(
    shapes: Mapping[str, Shape], warehouse: Warehouse, folder: Path, strategy: str = "auto"
) -> dict[str, tuple[Rows, Rows]]:
    """Net rows of optimized queries after a first load and a round of changes; rows of the same in batch."""
    changes = warehouse.changes()
    optimized = {
        title: by_session(shape(warehouse.spark, changes), strategy=strategy, shards=1)
        for title, shape in shapes.items()
    }
    for title, df in optimized.items():
        assert planner.optimize(df) is df, title
        planner.check_sink(df)
    types = {title: df.dtypes for title, df in optimized.items()}
    found: dict[str, tuple[Rows, Rows]] = {title: (Counter(), Counter()) for title in shapes}

    def take(batch: DataFrame, batch_id: int) -> None:
        for title, row, kind in batch.collect():
            found[title][0][row] += RowKind(kind).sign
        if batch_id == 0:  # the first load is through; all changes are one more batch
            change_everything(warehouse.tables)

    writer = in_one(optimized).writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(folder)).start()
    query.processAllAvailable()
    query.stop()
    return with_wanted(found, shapes, warehouse, types)


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return new_warehouse(spark, tmp_path_factory.mktemp("warehouse"))


@pytest.fixture(scope="module")
def results(warehouse: Warehouse) -> dict[str, tuple[Rows, Rows]]:
    return results_in_steps({title: SHAPES[title] for title in TITLES}, warehouse)


def check(net: Rows, wanted: Rows) -> None:
    """What the query has put out in both rounds adds up to the join of the tables as they are now."""
    assert {row: count for row, count in net.items() if count} == wanted
    assert len(wanted) > 1, "the oracle must have rows, or the test shows nothing"


@pytest.mark.parametrize("title", TITLES)
def test_rows_and_columns_are_those_of_a_batch_join(
    title: str, results: dict[str, tuple[Rows, Rows]]
) -> None:
    check(*results[title])


@pytest.mark.long
def test_rows_of_all_shapes_as_streams(spark: SparkSession, tmp_path: Path) -> None:
    for number, some in enumerate(batched([*SHAPES], SHAPES_OF_A_STREAM)):
        warehouse = new_warehouse(spark, tmp_path / f"warehouse-{number}")
        shapes = {title: SHAPES[title] for title in some}
        folder = tmp_path / f"checkpoint-{number}"
        for net, wanted in results_of(shapes, warehouse, folder, "force").values():
            check(net, wanted)


def renumbered(plan: str) -> str:
    """The plan with expression ids counted from 1 in the order of appearance, and no path."""
    numbers: dict[str, str] = {}
    return re.sub(r"#-?\d+", lambda match: numbers.setdefault(match[0], f"#{len(numbers) + 1}"), plan)


def test_plans_are_as_recorded(warehouse: Warehouse) -> None:
    changes = warehouse.changes()
    found = {title: planner.explain(shape(warehouse.spark, changes)) for title, shape in SHAPES.items()}
    text = "\n".join(f"# title: {title}\n{renumbered(tree(found[title].after))}\n" for title in found)
    if os.environ.get("REWRITE_PLANS"):
        PLANS.write_text(text, encoding="utf-8")
    assert text == PLANS.read_text(encoding="utf-8")
