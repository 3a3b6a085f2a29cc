"""Mirrors of real Delta tables: what they hold after every kind of change, and what ends them.

`test_delta.py` runs this in a process of its own, with the Spark that Delta Lake has a release for.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import planner
from tests.helpers import REPOSITORY, run_in_session, snippet
from upsert import Catalog
from upsert.errors import ChangelogError, ConfigurationError, SchemaError, SnapshotExpiredError, own_error
from upsert.schema import Index

NOW = {"availableNow": True}


class Orders:
    """A Delta table of orders, and the table of a catalog that follows it."""

    def __init__(self, spark: SparkSession, folder: Path, properties: str = "'a' = 'b'") -> None:
        self.spark, self.folder, self.path = spark, folder, str(folder / "orders")
        self.name = f"delta.`{self.path}`"
        self.create(properties)
        self.catalog = Catalog(folder / "warehouse", optimize=planner.optimize)
        self.catalog.sql(
            "CREATE TABLE orders (PRIMARY KEY (id) NOT ENFORCED, INDEX (customer)) "
            f"WITH ('connector' = 'delta', 'path' = '{self.path}', 'mirror.bucket' = '2')",
            spark,
        )

    def create(self, properties: str = "'a' = 'b'") -> None:
        self.run(
            "CREATE TABLE {t} (id BIGINT, customer STRING, amount DECIMAL(10, 2), at TIMESTAMP, "
            f"tags ARRAY<STRING>) USING delta TBLPROPERTIES ({properties})"
        )

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.spark.sql(statement.format(t=self.name))

    def insert(self, *ids: int) -> None:
        rows = ", ".join(
            f"({id}, 'c{id % 3}', {id}.50, TIMESTAMP '2024-02-29 12:00:00', array('t', NULL))" for id in ids
        )
        self.run(f"INSERT INTO {{t}} VALUES {rows}")

    def follow(self) -> None:
        self.catalog.mirror(self.spark, "orders", NOW).awaitTermination()

    def there(self) -> Counter[str]:
        return multiset(self.spark.read.format("delta").load(self.path).toArrow())

    def held(self) -> Counter[str]:
        return multiset(self.catalog.table("orders").snapshot().scan())

    def commits(self) -> Path:
        """The folder in which the checkpoint of the mirror says which micro-batches are done."""
        (found,) = (self.folder / "warehouse" / "orders").glob("mirror/checkpoint-*/commits")
        return found


def multiset(rows: pa.Table) -> Counter[str]:
    return Counter(repr(row) for row in rows.to_pylist())


@pytest.fixture
def orders(delta: SparkSession, tmp_path: Path) -> Orders:
    return Orders(delta, tmp_path)


@pytest.fixture(scope="module")
def unchanged(delta: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Orders:
    """One for tests of what is refused."""
    return Orders(delta, tmp_path_factory.mktemp("unchanged"))


MERGE = (
    "MERGE INTO {t} t USING (SELECT * FROM VALUES (1, 'new'), (9, 'nine'), (3, 'gone') AS v (id, c)) s "
    "ON t.id = s.id "
    "WHEN MATCHED AND c = 'gone' THEN DELETE WHEN MATCHED THEN UPDATE SET customer = c "
    "WHEN NOT MATCHED THEN INSERT (id, customer) VALUES (s.id, c)"
)
CHANGES = (
    "UPDATE {t} SET amount = amount + 1 WHERE id < 3",
    "DELETE FROM {t} WHERE id = 2",
    MERGE,
    "OPTIMIZE {t}",
    "UPDATE {t} SET amount = amount",
    "INSERT OVERWRITE {t} SELECT id, 'over', amount, at, tags FROM {t} WHERE id > 1",
    "ALTER TABLE {t} SET TBLPROPERTIES ('x' = 'y')",
    "RESTORE TABLE {t} TO VERSION AS OF 2",
    "DELETE FROM {t}",
)


def test_a_mirror_follows_every_kind_of_change_and_can_be_looked_up(orders: Orders) -> None:
    orders.insert(1, 2, 3, 4)
    orders.follow()
    mirror = orders.catalog.table("orders")
    assert (mirror.schema.primary_key, mirror.options.bucket) == (("id",), 2)
    assert mirror.schema.indexes == (Index("INDEX_customer", ("customer",)),)
    found = mirror.snapshot().lookup(["customer"], pa.table({"customer": ["c1"]}))
    assert sorted(found["id"].to_pylist()) == [1, 4]
    for changes in (CHANGES[:3], CHANGES[3:8], CHANGES[8:]):
        orders.run(*changes)
        orders.follow()
        assert orders.held() == orders.there(), changes
    assert not orders.held()
    orders.catalog.sql("ALTER TABLE orders DROP INDEX INDEX_customer")
    assert orders.catalog.table("orders").schema.indexes == ()
    orders.insert(5)
    orders.follow()
    assert orders.held() == orders.there()


@pytest.mark.long
def test_many_versions_are_one_micro_batch_and_leave_their_net_changes(orders: Orders) -> None:
    orders.insert(1, 2, 3)
    orders.follow()
    before = orders.catalog.table("orders").snapshot().id
    orders.run(*CHANGES[:3], *CHANGES[5:6])
    orders.insert(2)
    orders.run(
        "UPDATE {t} SET customer = 'twice' WHERE id = 2", "UPDATE {t} SET customer = 'again' WHERE id = 2"
    )
    orders.follow()
    assert orders.held() == orders.there()
    assert orders.catalog.table("orders").snapshot().id == before + 1


def test_a_micro_batch_that_comes_again_counts_once(orders: Orders) -> None:
    """Spark repeats a micro-batch of which its checkpoint does not say that it is done."""
    orders.insert(1, 2, 3)
    orders.follow()
    for change in ("UPDATE {t} SET amount = 0", "DELETE FROM {t} WHERE id = 1"):
        last = max(
            (path for path in orders.commits().iterdir() if path.name.isdigit()),
            key=lambda p: int(p.name),
        )
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
        before = orders.catalog.table("orders").snapshot().id
        orders.follow()
        assert orders.catalog.table("orders").snapshot().id == before
        orders.run(change)
        orders.follow()
        assert orders.held() == orders.there()


MERGE_RANGE = (
    "MERGE INTO {{t}} t USING (SELECT id, id % 3 AS k FROM range({}, {})) s ON t.id = s.id "
    "WHEN MATCHED AND k = 0 THEN DELETE WHEN MATCHED AND k = 1 THEN UPDATE SET customer = 'merged' "
    "WHEN NOT MATCHED THEN INSERT (id, customer, amount) VALUES (s.id, 'in', 1)"
)


def history(orders: Orders, random: Random, steps: int) -> Iterator[str]:
    """Random changes; the key stays unique, which Delta does not see to."""
    for _ in range(steps):
        ids = [row.id for row in orders.spark.read.format("delta").load(orders.path).select("id").collect()]
        fresh = [id for id in range(40) if id not in ids][: random.randrange(1, 5)] or [max(ids) + 1]
        a, b = random.randrange(40), random.randrange(1, 6)
        version = orders.spark.sql(f"DESCRIBE HISTORY {orders.name} LIMIT 1").collect()[0].version
        yield random.choice((
            f"INSERT INTO {{t}} SELECT explode(array({', '.join(map(str, fresh))})), 'new', {b}, NULL, NULL",
            f"UPDATE {{t}} SET amount = {b}, tags = array('{a}') WHERE id % {b} = 0",
            f"UPDATE {{t}} SET at = current_timestamp(), customer = NULL WHERE id = {a}",
            f"UPDATE {{t}} SET id = {max([*ids, 100]) + 1} WHERE id = {a}",
            f"DELETE FROM {{t}} WHERE id % {b + 1} = 0",
            MERGE_RANGE.format(a, a + b),
            f"INSERT OVERWRITE {{t}} SELECT id, customer, {b}, at, tags FROM {{t}} WHERE id % {b + 1} > 0",
            f"RESTORE TABLE {{t}} TO VERSION AS OF {random.randrange(1, version + 1)}",
            "OPTIMIZE {t}",
        ))  # fmt: skip


def follow_random_changes(spark: SparkSession, folder: Path, seed: int, rounds: int) -> None:
    random = Random(seed)
    vectors = random.choice(["true", "false"])
    orders = Orders(spark, folder, f"'delta.enableDeletionVectors' = '{vectors}'")
    orders.insert(*range(10))
    for number in range(rounds):
        for change in history(orders, random, random.randrange(1, 4)):
            orders.run(change)
        orders.follow()
        assert orders.held() == orders.there(), f"seed {seed}, round {number}"


@pytest.mark.long
def test_random_changes_are_followed(delta: SparkSession, tmp_path: Path) -> None:
    follow_random_changes(delta, tmp_path, int(os.environ.get("SEED", "7")), 4)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_long_random_changes_are_followed(delta: SparkSession, tmp_path: Path, seed: int) -> None:
    follow_random_changes(delta, tmp_path, seed, 25)


# what is read of it


def test_a_mirror_is_joined_while_both_sides_change(orders: Orders, delta: SparkSession) -> None:
    """As any managed table: a delta join, without state."""
    catalog = orders.catalog
    orders.insert(1, 2, 3)
    catalog.sql("CREATE TABLE customers (customer STRING, city STRING, PRIMARY KEY (customer) NOT ENFORCED)")
    catalog.sql("INSERT INTO customers VALUES ('c0', 'Ulm'), ('c1', 'Jena')", delta)
    catalog.sql(
        "CREATE TABLE placed (id BIGINT, amount DECIMAL(10, 2), city STRING, PRIMARY KEY (id) NOT ENFORCED)"
    )
    query = "SELECT id, amount, city FROM orders JOIN customers USING (customer)"
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    catalog.sql(f"SET 'checkpoint.location' = '{orders.folder / 'checkpoints'}'")
    with pytest.raises(
        ConfigurationError, match=r"'orders'.* got one without; write ALTER TABLE .* START MIRROR"
    ):
        catalog.sql(f"INSERT INTO placed {query}", delta)
    orders.follow()
    assert "delta join" in str(catalog.sql(f"EXPLAIN INSERT INTO placed {query}", delta)).lower()
    for change in (None, CHANGES[2]):
        if change is not None:
            orders.run(change)
            catalog.table("customers").write(
                pa.table({"customer": ["c1", "new"], "city": [change[:3], "Rom"]})
            )
        orders.follow()
        running: Any = catalog.sql(f"INSERT INTO placed {query}", delta)
        running.query.processAllAvailable()
        running.query.stop()
        catalog.sql("SET 'execution.runtime-mode' = 'batch'")
        batch: Any = catalog.sql(query, delta)
        assert multiset(catalog.table("placed").snapshot().scan()) == multiset(batch.df.toArrow()), change
        catalog.sql("SET 'execution.runtime-mode' = 'streaming'")


# what ends it


@pytest.mark.long
def test_a_table_without_a_feed_is_refused_and_can_get_one(delta: SparkSession, tmp_path: Path) -> None:
    orders = Orders(delta, tmp_path, "'delta.enableChangeDataFeed' = 'false'")
    orders.insert(1)
    with pytest.raises(
        ConfigurationError, match=r"must keep a change data feed.*SET TBLPROPERTIES"
    ) as refused:
        orders.follow()
    orders.run(
        str(refused.value).partition("write ")[2].partition(", and then")[0].replace(orders.name, "{t}")
    )
    orders.insert(2)
    orders.follow()
    assert orders.held() == orders.there()


def ended(orders: Orders, breaking: Callable[[], None]) -> Exception:
    """How a mirror ends that has followed before."""
    orders.insert(1, 2, 3)
    orders.follow()
    breaking()
    with pytest.raises(
        (StreamingQueryException, ConfigurationError, SchemaError, SnapshotExpiredError)
    ) as failed:
        orders.follow()
    return failed.value


@pytest.mark.long
def test_a_changed_column_ends_the_mirror(orders: Orders) -> None:
    def renamed() -> None:
        orders.run(
            "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
            "ALTER TABLE {t} RENAME COLUMN customer TO client",
        )

    error = ended(orders, renamed)
    assert isinstance(error, SchemaError)
    assert "column 'customer' must be in the Delta table" in str(error)


@pytest.mark.long
def test_an_added_column_ends_the_query_once(orders: Orders) -> None:
    orders.insert(1)
    query = orders.catalog.mirror(orders.spark, "orders")
    query.processAllAvailable()
    orders.run("ALTER TABLE {t} ADD COLUMN more STRING", "UPDATE {t} SET more = 'x', amount = 7")
    with pytest.raises(StreamingQueryException) as failed:
        query.processAllAvailable()
    assert isinstance(own_error(failed.value), SchemaError), str(failed.value)
    orders.follow()
    assert [row["amount"] for row in orders.catalog.table("orders").snapshot().scan().to_pylist()] == [7]


@pytest.mark.long
def test_two_rows_of_a_key_end_the_mirror_or_are_kept_aside(orders: Orders) -> None:
    orders.insert(1, 2)
    orders.run("INSERT INTO {t} SELECT id, 'second', amount, at, tags FROM {t} WHERE id = 1")
    with pytest.raises(StreamingQueryException) as failed:
        orders.follow()
    assert isinstance(own_error(failed.value), ChangelogError), str(failed.value)
    orders.catalog.sql("DROP TABLE orders")
    orders.catalog.sql(
        "CREATE TABLE orders (id BIGINT, customer STRING, PRIMARY KEY (id) NOT ENFORCED) WITH "
        f"('connector' = 'delta', 'path' = '{orders.path}', 'mirror.sink.materialize' = 'force')",
        orders.spark,
    )
    for shown in ("second", "c1"):
        orders.follow()
        rows = orders.catalog.table("orders").snapshot().scan().to_pylist()
        assert {row["id"]: row["customer"] for row in rows} == {1: shown, 2: "c2"}
        orders.run("DELETE FROM {t} WHERE customer = 'second'")


@pytest.mark.long
def test_a_feed_that_was_off_for_a_while_ends_the_mirror(orders: Orders) -> None:
    def off_and_on() -> None:
        for value in ("false", "true"):
            orders.run(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = '{value}')")
            orders.insert(7 if value == "true" else 8)

    error = ended(orders, off_and_on)
    own = own_error(error)
    assert isinstance(own, SnapshotExpiredError), str(error)
    assert "DROP TABLE" in str(own)


@pytest.mark.long
def test_vacuumed_changes_end_the_mirror(orders: Orders, delta: SparkSession) -> None:
    def vacuumed() -> None:
        orders.run("UPDATE {t} SET amount = 9", "UPDATE {t} SET amount = 10")
        delta.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        orders.run("VACUUM {t} RETAIN 0 HOURS")

    error = ended(orders, vacuumed)
    own = own_error(error)
    assert isinstance(own, SnapshotExpiredError), str(error)
    assert "DROP TABLE" in str(own)


@pytest.mark.long
def test_a_log_that_has_expired_ends_the_mirror(orders: Orders) -> None:
    def expired() -> None:
        orders.run("UPDATE {t} SET amount = 9")
        log = Path(orders.path) / "_delta_log"
        delta_log = orders.spark._jvm.org.apache.spark.sql.delta.DeltaLog
        delta_log.forTable(orders.spark._jsparkSession, orders.path).checkpoint()
        version = orders.spark.sql(f"DESCRIBE HISTORY {orders.name} LIMIT 1").collect()[0].version
        for number in range(version):
            for path in log.glob(f"*{number:020}*"):
                path.unlink()
        delta_log.clearCache()

    error = ended(orders, expired)
    own = own_error(error)
    assert isinstance(own, SnapshotExpiredError), str(error)
    assert "DROP TABLE" in str(own)


@pytest.mark.long
def test_another_table_at_the_path_ends_the_mirror(orders: Orders) -> None:
    def replaced() -> None:
        shutil.rmtree(orders.path)
        orders.create()
        orders.insert(5)

    error = ended(orders, replaced)
    assert isinstance(own_error(error), SnapshotExpiredError), str(error)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id BIGINT, amount DOUBLE, PRIMARY KEY (id) NOT ENFORCED", "'amount' must be DECIMAL.*got DOUBLE"),
        ("id BIGINT, Amount DOUBLE, PRIMARY KEY (id) NOT ENFORCED", "'Amount' must be in the Delta table"),
        ("PRIMARY KEY (order_id) NOT ENFORCED", "unknown column 'order_id'; columns are id"),
        ("PRIMARY KEY (id) NOT ENFORCED, UNIQUE INDEX (customer)", "must not be UNIQUE"),
        ("INDEX (customer)", "has no INDEX"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_when_it_is_created(
    unchanged: Orders, delta: SparkSession, columns: str, message: str
) -> None:
    with pytest.raises((ConfigurationError, SchemaError), match=f"(?s)table 'other'.*{message}"):
        unchanged.catalog.sql(
            f"CREATE TABLE other ({columns}) WITH ('connector' = 'delta', 'path' = '{unchanged.path}')", delta
        )
    assert unchanged.catalog.tables() == ("orders",)


def test_a_folder_without_a_table_is_told(delta: SparkSession, tmp_path: Path) -> None:
    statement = (
        "CREATE TABLE t ({}PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'delta', 'path' = '{}/no')"
    )
    for columns in ("", "id BIGINT, "):
        with pytest.raises(ConfigurationError, match="must be a Delta table, Spark finds none"):
            Catalog(tmp_path).sql(statement.format(columns, tmp_path), delta)


def test_the_snippets_of_the_page_print_what_it_says(delta: SparkSession, tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "delta.md").read_text()
    python, printed = (
        "".join(re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)) for language in ("python", "text")
    )
    output = run_in_session(snippet(python.replace("/tmp/shop", str(tmp_path)), tmp_path), tmp_path, delta)
    assert output.split() == printed.split()


def test_the_words_of_another_system_are_known(delta: SparkSession) -> None:
    from upsert.delta.table import changes_of_feed
    from upsert.schema import TableSchema

    words = [
        "INSERT",
        "UPDATE_BEFORE",
        "UPDATE_AFTER",
        "DELETE",
        "insert",
        "update_preimage",
        "update_postimage",
    ]
    feed = delta.createDataFrame(
        [(7, word, number) for number, word in enumerate(words)],
        "id INT, _change_type STRING, _commit_version INT",
    )
    found = changes_of_feed(feed, TableSchema.of({"id": pa.int32()}))
    assert [tuple(row) for row in found.collect()] == [
        (7, kind) for kind in ("+I", "-U", "+U", "-D", "+I", "-U", "+U")
    ]
