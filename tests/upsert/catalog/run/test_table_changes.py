"""`table_changes(t, from, to)`: the difference of two states, which a dict of rows knows too."""

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from upsert import Catalog, Table
from upsert.errors import ConfigurationError, SchemaError, SnapshotExpiredError, UpsertError

pytestmark = pytest.mark.spark

Change = tuple[Any, ...]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql(
        "CREATE TABLE orders (id BIGINT, part STRING, n INT, twice AS n * 2, made BIGINT METADATA FROM "
        "'snapshot-id', PRIMARY KEY (id, part) NOT ENFORCED) PARTITIONED BY (part) WITH ('bucket' = '2')"
    )
    catalog.sql("CREATE TABLE lines (word STRING, n INT)")
    return catalog


def written(table: Table, dice: random.Random) -> None:
    """Some commit: rows of a few keys, deletions among them, or another thing that a table lives through."""
    if dice.random() < 0.2:
        table.compact()
    elif dice.random() < 0.1:
        table.delete([("part", "=", "b")])
    rows = {(dice.randrange(6), dice.choice("ab")): dice.randrange(4) for _ in range(4)}
    kinds = [dice.choice(["+I", "+I", "-D"]) for _ in rows]
    columns = {"id": [key for key, _ in rows], "part": [part for _, part in rows], "n": list(rows.values())}
    arrays = {"id": pa.int64(), "part": pa.string(), "n": pa.int32()}
    table.write(
        pa.table({**{name: pa.array(columns[name], of) for name, of in arrays.items()}, "_row_kind": kinds})
    )


def difference(before: pa.Table, after: pa.Table) -> Iterator[Change]:
    old, new = ({(r["id"], r["part"]): r["n"] for r in rows.to_pylist()} for rows in (before, after))
    for key in old.keys() | new.keys():
        if key not in old:
            yield (*key, new[key], "+I")
        elif key not in new:
            yield (*key, old[key], "-D")
        elif old[key] != new[key]:
            yield (*key, old[key], "-U")
            yield (*key, new[key], "+U")


def test_changes_are_the_difference_of_the_two_states(spark: SparkSession, catalog: Catalog) -> None:
    """Whatever lies between them, filtered by the key or by another column, also from a tag on."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    table = catalog.table("orders")
    for number in range(12):
        written(table, dice)
        if number == 3:
            table.tag("third")
    tagged = table.snapshot("third").id
    table.expire(keep=6)
    newest, oldest = table.snapshot().id, table.history()[0].id
    pairs: dict[str, tuple[int, int]] = {
        f"{oldest}, {newest - 2}": (oldest, newest - 2),
        "'third', NULL": (tagged, newest),
        f"0, {newest - 1}": (0, newest - 1),
    }
    queries, expected = [], Counter[Change]()
    named = "id, part, n, _row_kind, twice"
    for number, (states, (start, end)) in enumerate(pairs.items()):
        own = difference(table.snapshot(start).scan(), table.snapshot(end).scan())
        changes = [(number, *change, 2 * change[2]) for change in own]
        expected.update(changes)
        queries += [f"SELECT {number}, {named} FROM table_changes(orders, {states})"]
        if number == 1:
            text = f"{named} FROM table_changes('default.orders', {states}) c WHERE"
            queries += [f"SELECT 8, {text} n > 1", f"SELECT 9, {text} id < 3 AND part = 'a'"]
            expected.update((8, *change[1:]) for change in changes if change[3] > 1)
            expected.update((9, *change[1:]) for change in changes if change[1] < 3 and change[2] == "a")
    rows = catalog.sql(" UNION ALL ".join(queries), spark).rows
    found = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    assert Counter(found) == expected, f"seed {seed}"


def test_column_that_is_not_selected_still_tells_changes_apart(spark: SparkSession, catalog: Catalog) -> None:
    """A table of changes has each of them, whatever a query takes of it; with the columns of the table."""
    table = catalog.table("orders")
    for n in (1, 2):
        table.write(pa.table({"id": [1], "part": ["a"], "n": pa.array([n], pa.int32())}))
    rows = catalog.sql("SELECT count(*) FROM table_changes(orders, 1)", spark).rows
    assert rows.column(0).to_pylist() == [2]
    rows = catalog.sql("SELECT table_changes.* FROM table_changes(orders, 1, 2)", spark).rows
    assert rows.column_names == ["id", "part", "n", "twice", "made", "_row_kind"]
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        (1, "a", 1, 2, 2, "-U"),
        (1, "a", 2, 4, 2, "+U"),
    ]


def test_states_are_named_by_time_and_joined_with_the_table(spark: SparkSession, catalog: Catalog) -> None:
    """A table without key has insertions and deletions only, as often as a row is there."""
    table = catalog.table("lines")
    table.write(pa.table({"word": ["a", "a", "b"], "n": pa.array([1, 1, 1], pa.int32())}))
    first = datetime.fromtimestamp(table.history()[-1].time_ms / 1000, UTC)
    gone = pa.table({"word": ["a"], "n": pa.array([1], pa.int32()), "_row_kind": ["-D"]})
    while table.write(gone).info.time_ms == first.timestamp() * 1000:  # a clock of milliseconds
        table.write(gone.set_column(2, "_row_kind", pa.array(["+I"])))
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        at = (first + timedelta(hours=5, minutes=30)).strftime("%Y-%m-%d %H:%M:%S.%f")
        text = (
            "SELECT word, c._row_kind, count(*) FROM table_changes(default.lines, TIMESTAMP '{}', {}) c "
            "JOIN lines USING (word) GROUP BY ALL"
        )
        after = catalog.sql(text.format(at, "NULL"), spark).rows
        before = catalog.sql(text.format("1971-01-01 00:00:00", f"TIMESTAMP '{at}'"), spark).rows
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert [tuple(row.values()) for row in after.to_pylist()] == [("a", "-D", 1)]
    assert {tuple(row.values()) for row in before.to_pylist()} == {("a", "+I", 2), ("b", "+I", 1)}


@pytest.mark.parametrize(
    ("read", "error", "message"),
    [
        (
            "table_changes(orders, 4, 3)",
            SchemaError,
            "read forwards, got those from snapshot 4 to snapshot 3",
        ),
        ("table_changes(orders, 1)", SnapshotExpiredError, "snapshot 1 has expired; the earliest"),
        ("table_changes(orders, 4, 9)", ConfigurationError, "between 0 and the latest, 6, got 9"),
        ("table_changes(orders, 'no')", ConfigurationError, "must be a tag 'no'"),
        ("table_changes(orders, '2020-01-01')", ConfigurationError, "a time is written TIMESTAMP '…'"),
        ("table_changes(orders, '1990-01-01 00:00:00')", SnapshotExpiredError, "has expired; the earliest"),
        ("table_changes(orders, TIMESTAMP 'x', 2)", SchemaError, "expected TIMESTAMP 'date time', found 'x'"),
        ("table_changes(orders, DATE '1990-01-01')", SnapshotExpiredError, "has expired; the earliest"),
        ("table_changes(orders, 1.5)", ConfigurationError, "'scan.snapshot-id' must be"),
        ("table_changes(oders, 3)", UpsertError, "did you mean 'orders'"),
        ("table_changes(orders, 3) /*+ OPTIONS('scan.untracked' = 'skip') */", SchemaError, "leave out OPT"),
        ("table_changes(outside, 3)", SchemaError, "is a table of Spark"),
        ("table_changes(numbers, 3)", SchemaError, "a table with a connector has no snapshots"),
    ],
)
def test_state_that_cannot_be_read_is_refused_with_its_reason(
    spark: SparkSession, catalog: Catalog, read: str, error: type[UpsertError], message: str
) -> None:
    table = catalog.table("orders")
    for n in range(5):
        table.write(pa.table({"id": [1], "part": ["a"], "n": pa.array([n], pa.int32())}))
    table.expire(keep=3)
    catalog.sql("CREATE TABLE numbers (id BIGINT) WITH ('connector' = 'parquet', 'path' = '/none')")
    spark.range(1).createOrReplaceTempView("outside")
    with pytest.raises(error) as caught:
        catalog.sql(f"SELECT * FROM {read}", spark)
    assert message in str(caught.value)


def test_changes_that_are_not_tracked_stop_the_read(spark: SparkSession, catalog: Catalog) -> None:
    table = catalog.table("orders")
    for n in range(2):
        row = pa.table({"id": [1], "part": ["a"], "n": pa.array([n], pa.int32())})
        table.write(row, tracked=n == 0)
    with pytest.raises(UpsertError, match="changes must be tracked to be read, snapshot 2"):
        catalog.sql("SELECT * FROM table_changes(orders, 1)", spark).rows  # noqa: B018


def test_stream_and_view_read_the_table_itself(spark: SparkSession, catalog: Catalog) -> None:
    text = "CREATE MATERIALIZED VIEW v AS SELECT id FROM table_changes(orders, 0)"
    with pytest.raises(SchemaError, match=r"leave out FOR SYSTEM_…, OPTIONS and table_changes"):
        catalog.sql(text, spark)
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    with pytest.raises(SchemaError, match="table_changes is for batches"):
        catalog.sql("SELECT * FROM table_changes(orders, 0)", spark)
