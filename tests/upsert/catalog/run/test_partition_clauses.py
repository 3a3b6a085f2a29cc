"""PARTITION (…) in statements: names and values are checked in all of them, before anything is written."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from upsert import Catalog
from upsert.catalog.results import Rows
from upsert.errors import ConfigurationError, SchemaError, UntrackedChangesError, UpsertError

VISITS = (
    "CREATE TABLE visits (day DATE, hub STRING, id INT, n INT, PRIMARY KEY (day, hub, id) NOT ENFORCED) "
    "PARTITIONED BY (day, hub)"
)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql(VISITS)
    days = pa.array(["2020-01-01", "2020-01-01", "2020-01-02"]).cast(pa.date32())
    rows = {"day": days, "hub": ["a", "b", "a"], "id": [1, 1, 1], "n": [1, 2, 3]}
    catalog.table("visits").write(pa.table(rows))
    return catalog


def stored(catalog: Catalog) -> list[tuple[Any, ...]]:
    found = catalog.table("visits").snapshot().scan().to_pylist()
    return sorted((str(row["day"])[-2:], row["hub"], row["id"], row["n"]) for row in found)


CLAUSES = (
    "SHOW PARTITIONS visits PARTITION {}",
    "DESCRIBE visits PARTITION {}",
    "ALTER TABLE visits DROP PARTITION {}",
    "ALTER TABLE visits DROP IF EXISTS PARTITION {}",
    "TRUNCATE TABLE visits PARTITION {}",
    "ALTER TABLE visits COMPACT PARTITION {}",
    "ALTER TABLE visits PARTITION {} COMPACT",
    "ALTER TABLE visits PARTITION {} SET ('change-tracking' = 'false')",
    "INSERT INTO visits PARTITION {} SELECT 5, 5",
    "INSERT OVERWRITE visits PARTITION {} SELECT 5, 5",
)
"""Every statement with a clause PARTITION."""


@pytest.mark.spark
@pytest.mark.parametrize("clause", CLAUSES)
@pytest.mark.parametrize(
    ("partition", "names"),
    [
        ("(nonsense = 1)", "nonsense"),
        ("(day = DATE '2020-01-01', hub = 'a', id = 1)", "'id'|hub, id"),
        ("(day = 'never', hub = 'a')", "'day'"),
        ("(day = DATE '2020-01-01', hub = 'a', hub = 'b')", "'hub' twice"),
    ],
)
def test_a_name_or_value_that_fits_no_partition_column_is_refused(
    spark: SparkSession, catalog: Catalog, clause: str, partition: str, names: str
) -> None:
    before = stored(catalog)
    with pytest.raises((SchemaError, ConfigurationError), match=names):
        catalog.sql(clause.format(partition), spark)
    assert stored(catalog) == before
    assert catalog.table("visits").snapshot().id == 1


@pytest.mark.spark
@pytest.mark.parametrize(
    ("clause", "left"),
    [
        ("(nonsense)", "PARTITION names 'nonsense'; partition columns are day, hub"),
        ("(day, day)", "names column 'day' twice"),
        ("(day = DATE '2020-01-01', day)", "names column 'day' twice"),
        ("(id)", "PARTITION names 'id'"),
    ],
)
@pytest.mark.parametrize("words", ["INTO", "OVERWRITE"])
def test_a_name_without_a_value_must_be_a_partition_column(
    spark: SparkSession, catalog: Catalog, words: str, clause: str, left: str
) -> None:
    before = stored(catalog)
    with pytest.raises(SchemaError, match=left):
        catalog.sql(f"INSERT {words} visits PARTITION {clause} SELECT * FROM visits", spark)
    with pytest.raises(SchemaError, match="'hub' without a value, and the query does not give it"):
        catalog.sql(
            f"INSERT {words} visits PARTITION (hub) (day, id, n) SELECT DATE '2020-01-01', 1, 1", spark
        )
    assert stored(catalog) == before


@pytest.mark.spark
def test_a_name_without_a_value_overwrites_the_partitions_that_have_rows(
    spark: SparkSession, catalog: Catalog
) -> None:
    """As in Hive, Flink and Spark: a dynamic partition."""
    catalog.sql("INSERT OVERWRITE visits PARTITION (day, hub) SELECT DATE '2020-01-02', 'a', 9, 9", spark)
    assert stored(catalog) == [("01", "a", 1, 1), ("01", "b", 1, 2), ("02", "a", 9, 9)]
    catalog.sql("INSERT OVERWRITE visits PARTITION (day = DATE '2020-01-01', hub) SELECT 'b', 8, 8", spark)
    assert stored(catalog) == [("01", "a", 1, 1), ("01", "b", 8, 8), ("02", "a", 9, 9)]
    catalog.sql("INSERT INTO visits PARTITION (hub) SELECT DATE '2020-01-03', 'c', 7, 7", spark)
    assert len(stored(catalog)) == 4
    static = "/*+ OPTIONS('partition-overwrite-mode' = 'static') */"
    catalog.sql(
        f"INSERT OVERWRITE visits {static} PARTITION (day = DATE '2020-01-01', hub) SELECT 'b', 6, 6", spark
    )
    assert stored(catalog)[:1] == [("01", "b", 6, 6)]
    catalog.sql("INSERT OVERWRITE visits PARTITION (day = DATE '2020-01-01') SELECT 'c', 5, 5", spark)
    assert stored(catalog)[:2] == [("01", "c", 5, 5), ("02", "a", 9, 9)]


def test_a_partition_that_is_not_there_is_dropped_only_if_it_exists(catalog: Catalog) -> None:
    partition = "PARTITION (day = '2020-02-01')"
    with pytest.raises(
        ConfigurationError, match=r"must be a partition day=2020-02-01, there is none; .*IF EX"
    ):
        catalog.sql(f"ALTER TABLE visits DROP {partition}")
    assert "there was no such partition" in repr(
        catalog.sql(f"ALTER TABLE visits DROP IF EXISTS {partition}")
    )
    assert catalog.table("visits").snapshot().id == 1
    for words in ("DROP PARTITION", "DROP IF EXISTS PARTITION"):
        with pytest.raises(UpsertError):
            catalog.sql(f"ALTER TABLE visits {words} (hub = 3)")
    done = catalog.sql("ALTER TABLE visits DROP IF EXISTS PARTITION (day = '2020-01-01')")
    assert "dropped" in repr(done)
    assert stored(catalog) == [("02", "a", 1, 3)]


def test_truncate_takes_partitions_or_all_rows_and_readers_of_changes_see_each_row_go(
    catalog: Catalog,
) -> None:
    with pytest.raises(
        ConfigurationError, match=r"must be a partition hub=c, there is none; see SHOW PARTITIONS visits$"
    ):
        catalog.sql("TRUNCATE TABLE visits PARTITION (hub = 'c')")
    assert "truncated, snapshot 2" in repr(catalog.sql("TRUNCATE TABLE visits PARTITION (hub = 'a')"))
    assert stored(catalog) == [("01", "b", 1, 2)]
    assert (
        str(catalog.sql("TRUNCATE TABLE visits")) == "<TRUNCATE TABLE visits: truncated, snapshot 3: 1 row>"
    )
    assert stored(catalog) == []
    gone = catalog.table("visits").changes(1).sort_by("n").to_pylist()
    assert [(row["_row_kind"], row["n"]) for row in gone] == [("-D", 1), ("-D", 2), ("-D", 3)]
    catalog.sql("TRUNCATE TABLE visits")
    assert catalog.table("visits").snapshot().id == 3, "without rows there is nothing to commit"


@pytest.mark.parametrize("text", ["{} PARTITION (hub = 'a')", "PARTITION (hub = 'a') {}", "{}"])
def test_truncate_takes_the_option_of_a_hint_as_delete_does(catalog: Catalog, text: str) -> None:
    hint = "/*+ OPTIONS('{}' = '{}') */"
    with pytest.raises(ConfigurationError, match="TRUNCATE TABLE visits: the one option is"):
        catalog.sql(f"TRUNCATE TABLE visits {text}".format(hint.format("change-trackin", "false")))
    catalog.sql(f"TRUNCATE TABLE visits {text}".format(hint.format("change-tracking", "false")))
    with pytest.raises(UntrackedChangesError, match="snapshot 2 was committed with change-tracking = false"):
        catalog.table("visits").changes(1)


def test_values_that_are_texts_are_read_as_the_columns_type_in_every_clause(catalog: Catalog) -> None:
    shown = catalog.sql("SHOW PARTITIONS visits PARTITION (day = '2020-01-01')")
    described = catalog.sql("DESCRIBE visits PARTITION (day = DATE '2020-01-01', hub = 'a')")
    assert isinstance(shown, Rows)
    assert isinstance(described, Rows)
    assert shown.rows.column("partition").to_pylist() == ["day=2020-01-01/hub=a", "day=2020-01-01/hub=b"]
    assert described.rows.column("partition").to_pylist() == ["day=2020-01-01/hub=a"]
    catalog.sql(
        "ALTER TABLE visits PARTITION (day = '2020-01-01', hub = 'a') SET ('change-tracking' = 'false')"
    )
    shown = catalog.sql("SHOW PARTITIONS visits PARTITION (hub = 'a')")
    assert isinstance(shown, Rows)
    assert shown.rows.column("change-tracking").to_pylist() == [False, True]
