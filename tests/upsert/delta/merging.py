"""Changes merged into real Delta tables: what these hold, also when micro-batches come again.

`test_delta.py` runs this in a process of its own, with the Spark that Delta Lake has a release for.
"""

import threading
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import planner
from tests.upsert.delta.following import multiset
from upsert import Catalog
from upsert.errors import ChangelogError, ConfigurationError, SchemaError, own_error


class Shop:
    """Sales in a managed table, and a Delta table of results."""

    def __init__(self, spark: SparkSession, folder: Path, columns: str, key: str) -> None:
        self.spark, self.path, self.folder = spark, str(folder / "results"), folder
        self.name = f"delta.`{self.path}`"
        spark.sql(f"CREATE TABLE {self.name} ({columns}) USING delta")
        self.catalog = Catalog(folder / "warehouse", optimize=planner.optimize)
        self.catalog.sql(
            "CREATE TABLE sales (id BIGINT, part STRING, cust BIGINT, amount DOUBLE, "
            "PRIMARY KEY (id, part) NOT ENFORCED)"
        )
        options = f"'connector' = 'delta', 'path' = '{self.path}'"
        self.catalog.sql(f"CREATE TABLE results (PRIMARY KEY ({key}) NOT ENFORCED) WITH ({options})", spark)
        self.catalog.sql(f"SET 'checkpoint.location' = '{folder / 'checkpoints'}'")

    def follow(self, statement: str) -> None:
        self.catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
        running: Any = self.catalog.sql(statement, self.spark)
        try:
            running.query.processAllAvailable()
        finally:
            running.query.stop()
            self.catalog.sql("SET 'execution.runtime-mode' = 'batch'")

    def version(self) -> int:
        return int(self.spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT 1").collect()[0].version)

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.spark.read.format("delta").load(self.path).toArrow().to_pylist()
        return sorted(found, key=repr)

    def forget_last(self) -> None:
        """Let the checkpoint not know that its last micro-batch is done."""
        (commits,) = self.folder.glob("checkpoints/**/commits")
        last = max(
            (path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
        )
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def shop(delta: SparkSession, tmp_path: Path) -> Shop:
    return Shop(delta, tmp_path, "id BIGINT, part STRING, cust BIGINT, amount DOUBLE", "id, part")


ALL = "INSERT INTO results SELECT id, part, cust, amount FROM sales"


def merge_random_changes(shop: Shop, seed: int, rounds: int) -> None:
    random = Random(seed)
    model: dict[tuple[int, str], tuple[int | None, float | None]] = {}
    for number in range(rounds):
        changes: list[tuple[Any, ...]] = []
        for _ in range(random.randrange(1, 12)):
            key = (random.randrange(8), random.choice(["", "a`b", "c"]))
            if key in model and random.random() < 0.4:
                changes.append((*key, *model.pop(key), "-D"))
            else:
                model[key] = (
                    random.choice([None, 1, 2]),
                    random.choice([None, 0.5, float("inf"), random.random()]),
                )
                changes.append((*key, *model[key], "+U"))
        names = ["id", "part", "cust", "amount", "_row_kind"]
        types = [pa.int64(), pa.string(), pa.int64(), pa.float64(), pa.string()]
        columns = zip(*changes, strict=True)
        shop.catalog.table("sales").write(
            pa.table({n: pa.array(c, t) for n, c, t in zip(names, columns, types, strict=True)})
        )
        shop.follow(ALL)
        if random.random() < 0.5:
            before = shop.version()
            shop.forget_last()
            shop.follow(ALL)
            assert shop.version() == before, f"seed {seed}, round {number}"
        found = {(row["id"], row["part"]): (row["cust"], row["amount"]) for row in shop.rows()}
        assert found == model, f"seed {seed}, round {number}"
        assert len(shop.rows()) == len(model)


def test_random_changes_are_merged_once(shop: Shop) -> None:
    merge_random_changes(shop, 7, 3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_long_random_changes_are_merged_once(shop: Shop, seed: int) -> None:
    merge_random_changes(shop, seed, 25)


@pytest.mark.long
def test_a_merge_waits_for_writers_in_between(shop: Shop) -> None:
    """Delta refuses a commit over rows that another one has changed; it is made again."""
    sales = shop.catalog.table("sales")
    sales.write(pa.table({"id": [1, 2], "part": ["a", "a"], "cust": [1, 2], "amount": [0.0, 0.0]}))
    shop.follow(ALL)

    def touch() -> None:
        for number in range(8):
            shop.spark.sql(f"INSERT INTO {shop.name} VALUES ({number}, 'other', 0, 0)")

    other = threading.Thread(target=touch)
    other.start()
    for amount in range(1, 5):
        sales.write(pa.table({"id": [1], "part": ["a"], "cust": [1], "amount": [float(amount)]}))
        shop.follow(ALL)
    other.join()
    assert len([row for row in shop.rows() if row["part"] == "other"]) == 8
    assert [row["amount"] for row in shop.rows() if row["part"] == "a"] == [4.0, 0.0]


@pytest.mark.long
def test_rows_that_the_key_does_not_tell_apart_are_kept_aside(delta: SparkSession, tmp_path: Path) -> None:
    shop = Shop(delta, tmp_path, "cust BIGINT, id BIGINT", "cust")
    sales = shop.catalog.table("sales")
    sales.write(
        pa.table({"id": [10, 11, 12], "part": ["", "", ""], "cust": [1, 1, 2], "amount": [1.0, 2.0, 3.0]})
    )
    statement = "INSERT INTO results SELECT cust, id FROM sales"
    shop.follow(statement)
    assert shop.rows() == [{"cust": 1, "id": 11}, {"cust": 2, "id": 12}]
    gone = {"id": [11, 12], "part": ["", ""], "cust": [1, 2], "amount": [2.0, 3.0], "_row_kind": ["-D", "-D"]}
    sales.write(pa.table(gone))
    shop.follow(statement)
    assert shop.rows() == [{"cust": 1, "id": 10}]


@pytest.mark.long
def test_an_aggregate_and_a_batch_are_merged_and_the_table_is_followed(
    delta: SparkSession, tmp_path: Path
) -> None:
    """What this project writes it can follow; columns that are not declared stay."""
    shop = Shop(delta, tmp_path, "cust BIGINT, n BIGINT", "cust")
    delta.sql(f"ALTER TABLE {shop.name} ADD COLUMN note STRING")
    shop.catalog.table("sales").write(
        pa.table({"id": [1, 2, 3], "part": ["", "", ""], "cust": [1, 1, 2], "amount": [1.0, 2.0, 3.0]})
    )
    statement = "INSERT INTO results SELECT cust, count(*) AS n FROM sales GROUP BY cust"
    shop.follow(statement)
    delta.sql(f"UPDATE {shop.name} SET note = 'kept'")
    gone = {"id": [3, 1], "part": ["", ""], "cust": [2, 1], "amount": [3.0, 1.0], "_row_kind": ["-D", "-D"]}
    shop.catalog.table("sales").write(pa.table(gone))
    shop.follow(statement)
    assert shop.rows() == [{"cust": 1, "n": 1, "note": "kept"}]
    shop.catalog.sql("INSERT INTO results VALUES (1, 7), (3, 8), (3, 9)", delta)
    assert [(row["cust"], row["n"]) for row in shop.rows()] == [(1, 7), (3, 9)]
    shop.catalog.mirror(delta, "results", {"availableNow": True}).awaitTermination()
    batch: Any = shop.catalog.sql("SELECT * FROM results", delta)
    assert multiset(shop.catalog.table("results").snapshot().scan()) == multiset(batch.df.toArrow())
    shop.catalog.sql("DROP TABLE results")
    assert len(shop.rows()) == 2


def test_two_values_of_a_key_are_refused_and_nothing_is_merged(delta: SparkSession, tmp_path: Path) -> None:
    shop = Shop(delta, tmp_path, "cust BIGINT, id BIGINT", "cust")
    shop.catalog.sql("DROP TABLE results")
    shop.catalog.sql(
        "CREATE TABLE results (PRIMARY KEY (cust) NOT ENFORCED) WITH ('connector' = 'delta', "
        f"'path' = '{shop.path}', 'sink.materialize' = 'none')",
        delta,
    )
    shop.catalog.table("sales").write(
        pa.table({"id": [1, 2], "part": ["", ""], "cust": [1, 1], "amount": [1.0, 2.0]})
    )
    with pytest.raises(StreamingQueryException) as failed:
        shop.follow("INSERT INTO results SELECT cust, id FROM sales")
    own = own_error(failed.value)
    assert isinstance(own, ChangelogError), failed.value
    assert "table 'results'" in str(own)
    assert shop.rows() == []


def test_a_column_that_rows_must_have_is_named(delta: SparkSession, tmp_path: Path) -> None:
    shop = Shop(delta, tmp_path, "id BIGINT, part STRING, must BIGINT NOT NULL", "id, part")
    shop.catalog.sql("DROP TABLE results")
    shop.catalog.sql(
        "CREATE TABLE results (id BIGINT, part STRING, PRIMARY KEY (id, part) NOT ENFORCED) "
        f"WITH ('connector' = 'delta', 'path' = '{shop.path}')",
        delta,
    )
    with pytest.raises(SchemaError, match=r"'results'.*column 'must' is NOT NULL in the Delta table"):
        shop.follow("INSERT INTO results SELECT id, part FROM sales")


@pytest.mark.long
def test_a_table_from_a_query_needs_an_empty_one(shop: Shop, delta: SparkSession) -> None:
    shop.catalog.sql("DROP TABLE results")
    statement = (
        "CREATE TABLE results (PRIMARY KEY (id, part) NOT ENFORCED) WITH ('connector' = 'delta', "
        f"'path' = '{shop.path}') AS SELECT 1L AS id, 'x' AS part, 2L AS cust, 3.0D AS amount"
    )
    shop.catalog.sql(statement, delta)
    assert shop.rows() == [{"id": 1, "part": "x", "cust": 2, "amount": 3.0}]
    shop.catalog.sql("DROP TABLE results")
    with pytest.raises(ConfigurationError, match="needs an empty table, got one with rows"):
        shop.catalog.sql(statement, delta)
