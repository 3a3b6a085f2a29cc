"""A large micro-batch is read once and shuffled, where that is cheaper: with the same rows and checkpoint."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltajoin import DeltaJoinSpec, Side, read_join
from deltajoin.core import costs
from deltajoin.core.costs import SharedTable, StepCost
from deltajoin.spark.source import JoiningReader
from tests.helpers import multiset
from upsert.managed import micro_batch
from upsert.managed.frames import write_changes
from upsert.managed.stepping import SharedStep
from upsert.schema import TableSchema
from upsert.store.table import Table

ORDERS = TableSchema.of({"id": pa.int64(), "product": pa.int64(), "v": pa.int64()}, primary_key=["id"])
PRODUCTS = TableSchema.of({"code": pa.int64(), "price": pa.int64()}, primary_key=["code"])
SINK = TableSchema.of({"id": pa.int64(), "twice": pa.int64(), "price": pa.int64()})


def test_many_tasks_that_would_read_all_changes_are_worth_a_shuffle() -> None:
    """A few tasks are not: the second stage costs more. Nor are tasks that have buckets of their own."""
    own_key, by_key = SharedTable(300_000, 8), SharedTable(300_000, 8, 8, is_cut_by_key=True)
    chosen = [StepCost.of([by_key, own_key], tasks).is_shuffled for tasks in (2, 4, 12, 64)]
    assert chosen == [False, False, False, True]
    assert not any(StepCost.of([by_key, by_key], tasks).is_shuffled for tasks in (2, 8, 64))
    assert not StepCost.of([SharedTable(30_000, 8), SharedTable(30_000, 8)], 2).is_shuffled


def test_changes_that_every_shard_needs_are_not_shuffled() -> None:
    root, others = SharedTable(300_000, 8, is_cut_by_key=True), SharedTable(300_000, 8, is_everywhere=True)
    assert StepCost.of([root, SharedTable(300_000, 8)], 64).is_shuffled
    assert StepCost.of([root, others], 64).shuffled_ms > 2 * StepCost.of([root, root], 64).shuffled_ms


@pytest.mark.spark
def test_both_forms_in_turn_give_what_recomputing_gives(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an expression and a filter above the join; updates move rows between shards."""
    orders = Table.create(tmp_path / "orders", ORDERS.index("product"), {"bucket": "2"})
    products = Table.create(tmp_path / "products", PRODUCTS, {"bucket": "3"})
    sink = Table.create(tmp_path / "sink", SINK)
    left = Side(orders.path, tuple(ORDERS.names), ("product",))
    right = Side(products.path, tuple(PRODUCTS.names), ("code",))
    joined = read_join(spark, DeltaJoinSpec.of("inner", left, right, shards=3))
    rows = joined.where("t0_v > 1").selectExpr("t0_id id", "t0_v * 2 twice", "t1_price price", "_row_kind")
    given: list[bool] = []
    own = JoiningReader.as_batch

    def as_batch(reader: JoiningReader, *step: Any) -> SharedStep | None:
        found = own(reader, *step)
        given.append(found is not None)
        return found

    monkeypatch.setattr(JoiningReader, "as_batch", as_batch)
    monkeypatch.setattr(JoiningReader, "_tasks", lambda *_: 3)
    monkeypatch.setattr(micro_batch, "FEW_ROWS", -1)
    random = Random(7)
    for is_shuffled in (False, True, False):
        monkeypatch.setattr(costs, "STAGE_MS", -1e9 if is_shuffled else 1e9)
        change(random, orders, 12, lambda key: (key, random.randrange(6), random.randrange(4)))
        change(random, products, 6, lambda key: (key, random.randrange(9)))
        writer = write_changes(rows, sink.path).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        prices = dict(multiset(products.snapshot().scan()).elements())
        wanted = (
            (id, 2 * v, prices[product])
            for id, product, v in multiset(orders.snapshot().scan()).elements()
            if v > 1 and product in prices
        )
        assert multiset(sink.snapshot().scan()) == Counter(wanted)
    assert given == [False, True, False]


def change(random: Random, table: Table, keys: int, row: Any) -> None:
    """Upsert or delete about half of the keys."""
    changed = random.sample(range(keys), keys // 2)
    columns = [list(column) for column in zip(*(row(key) for key in changed), strict=True)]
    kinds = [random.choice(("+U", "+U", "-D")) for _ in changed]
    table.write(pa.table([*columns, kinds], names=[*table.schema.names, "_row_kind"]))
