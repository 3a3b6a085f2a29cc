"""Queries of joined tables that need no Spark, beside what Spark gives for the same text."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.upsert.catalog.run.without_spark.beside_spark import UTC_SESSION, kinds, rows_of, same, without
from tests.upsert.catalog.run.without_spark.random_queries import COLUMNS, TABLES
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Frame
from upsert.catalog.run.jobs import SparkNeededError
from upsert.catalog.run.without_spark import joined, settings, source
from upsert.errors import SchemaError

pytestmark = pytest.mark.spark

OTHERS = ("large", "fixed", "pair", "counts")
OF_TYPE = {name: type_ for name, type_ in COLUMNS.items() if name not in OTHERS} | {"short": "CHAR(5)"}


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """A catalog of four tables, of which one is empty."""
    spark.conf.set("spark.sql.timeType.enabled", "true")  # a NULL in place of a TIME is a literal to Spark
    catalog = Catalog(tmp_path_factory.mktemp("shop"))
    catalog.context.settings = UTC_SESSION
    random = Random(8)
    for table, number in TABLES.items():
        listed = ", ".join(f"{name} {type_}" for name, type_ in OF_TYPE.items())
        keys = {"a": ", PRIMARY KEY (id) NOT ENFORCED", "b": ", INDEX (small)"}.get(table, "")
        catalog.sql(f"CREATE TABLE {table} ({listed}, own_{table} INT{keys})")
        given, schema = kinds(random, number), catalog.table(table).schema
        given["id"] = random.sample(range(-number, number), number)
        given[f"own_{table}"] = [random.randrange(3) for _ in range(number)]
        columns = {name: pa.array(given[name], schema.type_of(name)) for name in schema.names}
        catalog.table(table).write(pa.table(columns))
    yield catalog
    spark.conf.unset("spark.sql.timeType.enabled")


def outcome(found: Any) -> tuple[list[str], list[pa.DataType], list[str]]:
    rows = rows_of(found)
    columns = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    return rows.schema.names, rows.schema.types, same([*columns])


def check(catalog: Catalog, text: str, spark: SparkSession, *, is_ordered: bool) -> bool:
    """Whether a query is answered without Spark; then its outcome is Spark's."""
    try:
        found = outcome(without(catalog, text))
    except SparkNeededError:
        return False
    given = catalog.sql(text, spark)
    assert isinstance(given, Frame), text
    names, types, rows = outcome(given)
    assert found[:2] == (names, types), text
    assert found[2] == rows if is_ordered else sorted(found[2]) == sorted(rows), text
    return True


@pytest.mark.parametrize(
    "rest",
    [
        "a JOIN b",
        "a CROSS JOIN b",
        "a NATURAL JOIN b",
        "a, b WHERE a.id = b.id",
        "a LEFT INNER JOIN b ON a.id = b.id",
        "a INNER OUTER JOIN b ON a.id = b.id",
        "a OUTER JOIN b ON a.id = b.id",
        "a RIGHT SEMI JOIN b ON a.id = b.id",
        "a JOIN b ON a.id = b.id ON a.id = b.id",
        "a JOIN b ON a.id = b.id USING (id)",
        "a JOIN b USING ()",
        "a JOIN b USING id",
        "a JOIN b USING (id,)",
        "a JOIN b USING (id, id)",
        "a JOIN b USING (own_a)",
        "a JOIN b ON a.id = b.id AND",
        "a JOIN b ON a.id = b.id OR a.small = b.small",
        "a JOIN b ON a.id > b.id",
        "a JOIN b ON a.id <=> b.id",
        "a JOIN b ON a.id = b.id AND a.small = 1",
        "a JOIN b ON a.id = a.whole",
        "a JOIN b ON a.id = b.small",
        "a JOIN b ON a.ratio = b.single",
        "a JOIN b ON a.tags = b.tags",
        "a JOIN b ON a.id = b.id + 1",
        "a JOIN b ON (a.id = b.id",
        "a JOIN b ON id = b.id",
        "a JOIN b ON a.id = b.i$d",
        "a JOIN a ON a.id = a.id",
        "a JOIN (SELECT * FROM b) b ON a.id = b.id",
        "a JOIN LATERAL (SELECT 1) b ON a.id = b.id",
        "(a JOIN b ON a.id = b.id)",
        "a JOIN b JOIN c ON b.id = c.id ON a.id = b.id",
        "a JOIN b TABLESAMPLE (5 ROWS) ON a.id = b.id",
        "a AS left JOIN b ON a.id = b.id",
        "a JOIN b ON a.id = b.id WHERE id = 1",
        "a JOIN b ON a.id = b.id ORDER BY small",
        "a SEMI JOIN b ON a.id = b.id WHERE b.id = 1",
        "a SEMI JOIN b ON a.id = b.id WHERE own_b = 1",
        "a JOIN b USING (id) JOIN c USING (id) JOIN d USING (id) JOIN a AS e USING (id)",
    ],
)
def test_what_else_is_joined_is_sparks(shop: Catalog, rest: str) -> None:
    """Other joins, and those that Spark refuses; some are no query at all."""
    with pytest.raises((SparkNeededError, SchemaError)):
        without(shop, f"SELECT a.small AS n FROM {rest}")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT id, own_a, b.small, a.id, b.id FROM a JOIN b USING (id)",
        "SELECT DISTINCT id FROM a FULL JOIN b USING (id)",
        "SELECT id, a.id AS x, b.id AS y FROM a FULL JOIN b USING (id) WHERE id > 0",
        "SELECT ID FROM a RIGHT JOIN b USING (Id) WHERE a.id IS NULL",
        "SELECT own_a, count(*) AS n FROM a LEFT JOIN b ON (a.id == b.id) GROUP BY own_a HAVING count(*) > 1",
        "SELECT count(*), count(b.id), sum(own_b) FROM a LEFT JOIN b ON a.id = b.id",
        "SELECT count(*) FROM a LEFT ANTI JOIN b ON b.id = a.id AND (b.small = a.small)",
        "SELECT s.snapshot_id, own_a FROM a JOIN a$snapshots s ON a.id = s.snapshot_id",
        "SELECT x.id FROM a FOR SYSTEM_VERSION AS OF 1 AS x JOIN default.b AS y ON x.id = y.id",
    ],
)
def test_other_parts_of_a_query_are_as_for_one_table(spark: SparkSession, shop: Catalog, text: str) -> None:
    assert check(shop, text, spark, is_ordered=False), text


@pytest.fixture
def orders(tmp_path: Path) -> Catalog:
    """A catalog of 1 000 orders of 500 products."""
    catalog = Catalog(tmp_path)
    catalog.context.settings = UTC_SESSION
    catalog.sql(
        "CREATE TABLE orders (id BIGINT, product INT, PRIMARY KEY (id) NOT ENFORCED, INDEX (product)) "
        "WITH ('bucket' = '1')"
    )
    catalog.sql(
        "CREATE TABLE products (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '1')"
    )
    ids = [*range(1000)]
    catalog.table("orders").write(
        pa.table({"id": ids, "product": pa.array([id % 500 for id in ids], "int32")})
    )
    names = [f"product {id}" for id in ids[:500]]
    catalog.table("products").write(pa.table({"id": pa.array(ids[:500], "int32"), "name": names}))
    return catalog


def test_rows_are_looked_up_by_the_keys_of_the_other_side(
    orders: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_MOST_READ", 200)  # so only what is looked up is read here
    both = "FROM orders o {} JOIN products p ON o.product = p.id WHERE {}"
    wanted = [{"id": 7, "name": "product 7"}, {"id": 507, "name": "product 7"}]
    for how, where, most in (
        ("", "o.id = 7", 1),
        ("LEFT", "o.id = 7", 1),
        ("", "p.id = 7", 2),
        ("RIGHT", "p.id = 7", 2),
        ("FULL", "p.id = 7 AND o.id > 0", None),
        ("LEFT", "p.id = 7", None),
        ("", "p.name = 'product 7'", None),
    ):
        text = f"SELECT o.id, p.name {both.format(how, where)} ORDER BY o.id"
        if most is None:
            with pytest.raises(SparkNeededError):
                without(orders, text)
        else:
            assert rows_of(without(orders, text)).to_pylist() == wanted[:most], text


def test_joined_rows_are_counted_while_they_are_made(
    orders: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "SELECT count(*) FROM orders a JOIN orders b USING (product) JOIN orders c USING (product)"
    monkeypatch.setattr(joined, "_AT_ONCE", 100)
    assert rows_of(without(orders, text)).to_pylist() == [{"count(1)": 4000}]
    monkeypatch.setattr(settings, "_MOST_READ", 30_000)  # the files have fewer bytes, 4 000 rows more
    with pytest.raises(SparkNeededError):
        without(orders, text)


def test_joined_rows_of_a_bit_count_as_much_as_others(
    orders: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.sql("CREATE TABLE marks (flag BOOLEAN, product INT)")
    products = pa.array([number % 100 for number in range(1000)], pa.int32())
    orders.table("marks").write(pa.table({"flag": pa.repeat(True, 1000), "product": products}))
    monkeypatch.setattr(settings, "_MOST_READ", 30_000)  # each of 1 000 rows meets ten
    text = "SELECT count(*) FROM marks a {} JOIN marks b ON a.product = b.product"
    assert rows_of(without(orders, text.format("SEMI"))).to_pylist() == [{"count(1)": 1000}]
    with pytest.raises(SparkNeededError):
        without(orders, text.format(""))


def test_a_side_of_many_bytes_is_sparks(orders: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "SELECT count(*) FROM orders o JOIN products p ON o.product = p.id"
    monkeypatch.setattr(joined, "MOST_BYTES", 2500)  # the keys of the products have 2 000
    assert rows_of(without(orders, text)).to_pylist() == [{"count(1)": 1000}]
    monkeypatch.setattr(joined, "MOST_BYTES", 1500)
    with pytest.raises(SparkNeededError):
        without(orders, text)


def test_a_table_that_is_read_twice_is_read_in_one_state(
    orders: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def then_written(*args: Any) -> source.Source:
        found = stored(*args)
        orders.table("orders").write(pa.table({"id": [next(ids)], "product": pa.array([7], "int32")}))
        return found

    stored, ids = source.stored, count(5000)
    monkeypatch.setattr(source, "stored", then_written)
    text = "SELECT count(*) FROM orders a RIGHT JOIN orders b ON a.id = b.id WHERE a.id IS NULL"
    assert rows_of(without(orders, text)).to_pylist() == [{"count(1)": 0}]


def test_a_table_that_is_read_again_with_options_is_read_by_spark(orders: Catalog) -> None:
    text = "SELECT count(*) FROM orders a JOIN orders {} b ON a.id = b.id"
    assert rows_of(without(orders, text.format("FOR SYSTEM_VERSION AS OF 1"))).num_rows == 1
    with pytest.raises(SparkNeededError):
        without(
            orders, text.format("/*+ OPTIONS('scan.mode' = 'from-snapshot', 'scan.snapshot-id' = '1') */")
        )


def test_a_copy_of_joined_rows_needs_no_spark(orders: Catalog) -> None:
    orders.sql("CREATE TABLE named (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    text = "SELECT o.id, name FROM orders o JOIN products p ON o.product = p.id WHERE product = 7"
    without(orders, f"INSERT INTO named {text}")
    assert sorted(orders.table("named").snapshot().scan().to_pydict()["id"]) == [7, 507]


def test_a_long_text_that_meets_many_rows_is_not_copied_for_all_of_them_at_once(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql("CREATE TABLE products (id INT, about STRING, words ARRAY<STRING>)")
    catalog.sql("CREATE TABLE orders (number INT, id INT)")
    text, ids = "x" * 20_000, pa.array([1], pa.int32())
    catalog.table("products").write(pa.table({"id": ids, "about": [text], "words": [[text, text]]}))
    many = pa.array(range(200_000), pa.int32())  # with a text each they are more than Arrow's 2 GB
    catalog.table("orders").write(pa.table({"number": many, "id": ids.take(pa.array([0] * len(many)))}))
    for column, wanted in {"about": text, "words": [text, text]}.items():
        query = f"SELECT {column} FROM orders o JOIN products p ON o.id = p.id"
        assert rows_of(without(catalog, f"{query} LIMIT 2")).column(0).to_pylist() == [wanted] * 2
        with pytest.raises(SparkNeededError):
            without(catalog, query)
