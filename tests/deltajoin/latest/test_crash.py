"""Drivers killed in the middle of a micro-batch: after a restart the sink is the join of the tables."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

import upsert
from tests.helpers import multiset, output_of, run_spark_script, spark_script

pytestmark = pytest.mark.spark

SCRIPT = Path(__file__).parent / "join_script.py"


def tables(folder: Path, *, keyed: bool = True) -> upsert.Catalog:
    catalog = upsert.Catalog(str(folder))
    joined = "joined (left_id BIGINT, left_user BIGINT, left_v BIGINT, right_name STRING"
    for columns in (
        "orders (id BIGINT, user BIGINT, v BIGINT, PRIMARY KEY (id) NOT ENFORCED, INDEX (user))",
        "users (user BIGINT, name STRING, PRIMARY KEY (user) NOT ENFORCED)",
        f"{joined}, PRIMARY KEY (left_id) NOT ENFORCED)" if keyed else f"{joined})",
    ):
        catalog.sql(f"CREATE TABLE {columns} WITH ('bucket' = '2')")
    return catalog


def change(catalog: upsert.Catalog, number: int) -> None:
    """60 orders out of 100, some of them deleted; five more users, and new names for those that are there."""
    rng = random.Random(number)
    ids = rng.sample(range(100), 60)
    kinds = ["-D" if number and rng.random() < 0.2 else "+U" for _ in ids]
    orders = {"id": ids, "user": [id_ % 20 for id_ in ids], "v": [number] * len(ids), "_row_kind": kinds}
    catalog.table("orders").write(pa.table(orders))
    users = list(range(5 * (number + 1)))
    catalog.table("users").write(pa.table({"user": users, "name": [f"{user}-{number}" for user in users]}))


def joined(catalog: upsert.Catalog) -> pa.Table:
    users = catalog.table("users").snapshot().scan()
    name_of = dict(zip(users["user"].to_pylist(), users["name"].to_pylist(), strict=True))
    orders = catalog.table("orders").snapshot().scan()
    return orders.append_column("name", pa.array([name_of.get(user) for user in orders["user"].to_pylist()]))


def killed_run(warehouse: Path, checkpoint: Path, point: str, batch: int, *state_path: Path) -> None:
    process = spark_script(SCRIPT, warehouse, checkpoint, point, batch, *state_path)
    output = output_of(process)
    assert process.returncode == -9, output
    assert not (checkpoint / "commits" / str(batch)).exists()


@pytest.mark.long
@pytest.mark.parametrize("points", [["after-publish"], ["staged", "after-publish"]])
def test_killed_within_a_micro_batch(tmp_path: Path, points: list[str]) -> None:
    """Before the sink has committed, and after it has, but before Spark knows."""
    catalog, checkpoint = tables(tmp_path / "warehouse"), tmp_path / "checkpoint"
    for batch, point in enumerate(points, start=1):
        change(catalog, batch - 1)
        killed_run(tmp_path / "warehouse", checkpoint, point, batch)
    change(catalog, len(points))
    run_spark_script(SCRIPT, tmp_path / "warehouse", checkpoint)
    assert multiset(catalog.table("joined").snapshot().scan()) == multiset(joined(catalog))


@pytest.mark.long
@pytest.mark.minutes
@pytest.mark.parametrize("keyed", [True, False], ids=["into a table with a key", "into one without"])
def test_every_kind_of_change_comes_once_though_each_step_of_a_micro_batch_was_killed(
    tmp_path: Path, keyed: bool
) -> None:
    """What is looked up has changed when the micro-batch is run again; a sink without a key counts rows."""
    warehouse, checkpoint, state = (tmp_path / name for name in ("warehouse", "checkpoint", "given"))
    catalog = tables(warehouse, keyed=keyed)
    points = ["looked-up", "before-images", "after-images", "staged", "before-publish", "after-publish"]
    for number, point in enumerate(points):
        change(catalog, number)
        killed_run(warehouse, checkpoint, point, number + 1, state)
    change(catalog, len(points))
    run_spark_script(SCRIPT, warehouse, checkpoint, "", -1, state)
    assert multiset(catalog.table("joined").snapshot().scan()) == multiset(joined(catalog))
    assert joined(catalog).num_rows > 50
