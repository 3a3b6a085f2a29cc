"""DELETE, UPDATE and MERGE of few rows, which the driver reads and commits, do what tasks do of more."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Done
from upsert.catalog.run import row_changes, rows_found
from upsert.managed import frames
from upsert.sql.parser import parse
from upsert.sql.statements import Delete, Merge

pytestmark = pytest.mark.spark

SEED = random.randrange(2**32)

WAYS = ("write_few", "write")
"""Of the commit: by the driver, and by Spark's tasks."""


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets the statements that follow go one of the ways, and none the other; by "any" as they would."""
    own = {way: getattr(frames, way) for way in WAYS}
    without_spark = {name: getattr(row_changes, name) for name in ("updated", "deleted")}

    def refused(*_: Any) -> None:
        raise AssertionError("the other way")

    def take(way: str) -> None:
        for name, made in without_spark.items():
            monkeypatch.setattr(row_changes, name, made if way == "any" else lambda *_: None)
        monkeypatch.setattr(rows_found, "FEW_ROWS", -1 if way == "write" else 1000)
        for one in WAYS:
            monkeypatch.setattr(frames, one, own[one] if way in ("any", one) else refused)

    return take


def rows(catalog: Catalog) -> list[tuple[Any, ...]]:
    found = catalog.table("t").snapshot().scan().select(["id", "n", "v", "p"])
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


CONDITIONS = (
    "id = 3",
    "id IN (2, 5) AND length(v) > 0",
    "n % 2 = 0",
    "n > 3 AND id + n < 12",
    "v LIKE 'a%' OR n IS NULL",
    "coalesce(n, 0) + id > 7",
    "p = 1 AND upper(v) < 'C'",
    "NOT (n > 2 AND v <> 'b')",
    "id > 100",
    "1 = 0 OR n / 2 > 1.4",
)
VALUES = ("n + 1", "NULL", "id * 2", "CASE WHEN v IS NULL THEN 0 ELSE n END", "length(v)")
TEXTS = ("upper(v)", "v || 'x'", "'aa'", "NULL", "coalesce(v, 'none')")


def random_statement(random_: random.Random) -> str:
    """One in words that Spark and DuckDB share."""
    condition = random_.choice(CONDITIONS)
    if random_.random() < 0.3:
        return f"DELETE FROM t WHERE {condition} AND abs(id) >= 0"
    sets = random_.sample([f"n = {random_.choice(VALUES)}", f"v = {random_.choice(TEXTS)}"], 2)
    return f"UPDATE t SET {', '.join(sets[: random_.randint(1, 2)])} WHERE {condition}"


@pytest.mark.parametrize(
    "kind",
    [
        "id INT, n INT, v STRING, p INT, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '4'",
        "id INT, n INT, v STRING, p INT",
        "id INT, n INT, v STRING, p INT, PRIMARY KEY (id, p) NOT ENFORCED) PARTITIONED BY (p",
    ],
)
def test_random_statements_equal_those_of_duckdb(
    spark: SparkSession, tmp_path: Path, take: Callable[[str], None], kind: str
) -> None:
    random_ = random.Random(SEED)
    catalog = Catalog(tmp_path / "w")
    catalog.sql(f"CREATE TABLE t ({kind})")
    catalog.sql("ALTER TABLE t SET ('write-only' = 'true')")  # a compaction has a snapshot of its own
    table = catalog.table("t")
    keys = [*range(1, 11)] if table.schema.primary_key else [*range(1, 8), 1, 2, 2]
    values = {
        "id": keys,
        "n": [random_.choice([None, *range(9)]) for _ in keys],
        "v": [random_.choice([None, "", *"abcde"]) for _ in keys],
        "p": [key % 3 for key in keys],
    }
    types = {"id": pa.int32(), "n": pa.int32(), "v": pa.string(), "p": pa.int32()}
    given = pa.table({name: pa.array(values[name], type_) for name, type_ in types.items()})
    if not table.schema.primary_key:  # two equal rows, which are told apart by nothing
        given = pa.concat_tables([given, given.slice(9)])
    table.write(given)
    duck = duckdb.connect()
    duck.sql("CREATE TABLE t AS FROM given")
    for step in range(8):
        text = random_statement(random_)
        way = random_.choice([*WAYS, "any", "any"])
        about = f"seed {SEED}, step {step}, {way}: {text}"
        before, base = rows(catalog), catalog.table("t").snapshot().id
        counted = duck.execute(text).fetchone()
        wanted = sorted(duck.sql("SELECT id, n, v, p FROM t").fetchall(), key=repr)
        take(way)
        done = catalog.sql(text, spark)
        assert rows(catalog) == wanted, about
        assert isinstance(done, Done)
        # else what is deleted is inserted again, and there is no commit
        if table.schema.primary_key or wanted != before:
            assert (done.affected_rows,) == counted, about
        (told,) = re.findall(r"snapshot (\d+)", done.note)
        assert catalog.table("t").snapshot().id - base == int(told) - base <= 1, about
        changes = catalog.table("t").changes(base).column("_row_kind").to_pylist()
        gained = changes.count("+I") + changes.count("+U")
        assert gained - (len(changes) - gained) == len(wanted) - len(before), about


def _values() -> pa.Table:
    """Rows with the limits of each type that Spark 4.2 has too."""
    decimals = ["-99999999999999999999.999999999999999999", "0.000000000000000001", None]
    doubles = [float("nan"), -0.0, None]
    instants = pa.array([-(2**63), 2**63 - 1, None], pa.int64())
    inner = pa.struct({"at": pa.timestamp("us", tz="UTC"), "words": pa.list_(pa.string())})
    nested = [{"at": None, "words": ["", None, "x"]}, None, {"at": 0, "words": []}]
    maps = pa.map_(pa.string(), pa.timestamp("us", tz="UTC"))
    columns = {
        "id": pa.array([1, 2, 3], pa.int64()),
        "n": pa.array([1, 2, 3], pa.int32()),
        "flag": pa.array([True, False, None]),
        "tiny": pa.array([-128, 127, None], pa.int8()),
        "large": pa.array([-(2**63), 2**63 - 1, None]),
        "short": pa.array([3.4e38, float("-inf"), None], pa.float32()),
        "wide": pa.array(doubles, pa.float64()),
        "exact": pa.array(decimals).cast(pa.decimal128(38, 18)),
        "word": pa.array(["", "ß\u0000😀", None]),
        "code": pa.array(["ab ", "", None]),
        "bytes": pa.array([b"", b"\x00\xff", None]),
        "day": pa.array([-719162, 2932896, None], pa.int32()).cast(pa.date32()),
        "at": instants.cast(pa.timestamp("us", tz="UTC")),
        "local": instants.cast(pa.timestamp("us")),
        "span": instants.cast(pa.duration("us")),
        "nested": pa.array(nested, inner),
        "times": pa.array([[("a", 0), ("b", None)], [], None], maps),
    }
    return pa.table(columns)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_values_that_an_update_leaves_are_the_same_to_the_bit(
    spark: SparkSession, tmp_path: Path, take: Callable[[str], None], way: str, zone: str
) -> None:
    catalog = Catalog(tmp_path / "w")
    catalog.sql(
        "CREATE TABLE t (id BIGINT, n INT, flag BOOLEAN, tiny TINYINT, large BIGINT, short FLOAT, "
        "wide DOUBLE, exact DECIMAL(38, 18), word STRING, code VARCHAR(3), bytes BYTES, day DATE, "
        "at TIMESTAMP_LTZ, local TIMESTAMP_NTZ, span INTERVAL DAY TO SECOND, "
        "nested ROW<at TIMESTAMP_LTZ, words ARRAY<STRING>>, times MAP<STRING, TIMESTAMP_LTZ>, size AS n * 2, "
        "PRIMARY KEY (id) NOT ENFORCED)"
    )
    catalog.table("t").write(_values())
    before = catalog.table("t").snapshot().scan().sort_by("id")
    take(way)
    own = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        catalog.sql("UPDATE t SET n = n + size WHERE id + 0 > 0", spark)
    finally:
        spark.conf.set("spark.sql.session.timeZone", own)
    after = catalog.table("t").snapshot().scan().sort_by("id")
    assert after.column("n").to_pylist() == [3, 6, 9]
    assert as_bits(after.drop_columns(["n"])) == as_bits(before.drop_columns(["n"]))


def test_a_variant_goes_through_tasks(
    spark: SparkSession, tmp_path: Path, take: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark cannot give the JVM one that is NULL."""
    catalog = Catalog(tmp_path / "w")
    catalog.sql("CREATE TABLE t (id INT, n INT, v VARIANT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("INSERT INTO t VALUES (1, 1, parse_json('[1, null]')), (2, 2, NULL)", spark)
    take("write")
    monkeypatch.setattr(rows_found, "FEW_ROWS", 1000)
    catalog.sql("UPDATE t SET n = n + 1 WHERE id + 0 > 0", spark)
    found = catalog.sql("SELECT id, n, to_json(v) AS v FROM t ORDER BY id", spark).rows
    assert found.to_pylist() == [{"id": 1, "n": 2, "v": "[1,null]"}, {"id": 2, "n": 3, "v": None}]


def as_bits(rows: pa.Table) -> list[pa.ChunkedArray]:
    """The columns, in which NaN equals NaN, and 0 is not -0."""
    widths = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
    columns = [column.combine_chunks() for column in rows.columns]
    return [one.view(widths[one.type]) if one.type in widths else one for one in columns]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("UPDATE t SET n = NULL WHERE id + 0 = 2", "column 'n' is NOT NULL, got NULL in row 0"),
        (
            "UPDATE t SET n = id * 3000000000 WHERE id = 2",
            "column 'n' must be INT, which cannot hold 6000000000",
        ),
        ("UPDATE t SET n = -n WHERE id = 2", "CHECK"),
        ("UPDATE t SET v = 'abcd' WHERE id = 2", "VARCHAR(3)"),
        ("UPDATE t SET n = 1 / (n - 20) WHERE id = 2", "DIVIDE_BY_ZERO"),
        ("DELETE FROM t WHERE 1 / (n - 20) > 0", "DIVIDE_BY_ZERO"),
    ],
)
def test_what_a_table_refuses_is_refused_with_the_same_words(
    spark: SparkSession, tmp_path: Path, take: Callable[[str], None], text: str, error: str
) -> None:
    catalog = Catalog(tmp_path / "w")
    catalog.sql(
        "CREATE TABLE t (id BIGINT, n INT NOT NULL, v VARCHAR(3), CONSTRAINT positive CHECK (n > 0), "
        "PRIMARY KEY (id) NOT ENFORCED)"
    )
    catalog.sql("INSERT INTO t VALUES (1, 10, 'a'), (2, 20, 'b')", spark)
    raised = []
    for way in WAYS:
        take(way)
        with pytest.raises(Exception, match=r".") as refusal:
            catalog.sql(text, spark)
        raised.append((type(refusal.value), str(refusal.value).splitlines()[0]))
    assert error in raised[0][1]
    assert raised[0] == raised[1]
    assert catalog.table("t").snapshot().id == 1


@pytest.mark.parametrize(("buckets", "way"), [(1, "write"), (16, "write_few")])
def test_few_rows_of_many_buckets_are_merged_by_the_driver(
    spark: SparkSession,
    tmp_path: Path,
    take: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    buckets: int,
    way: str,
) -> None:
    """A task reads a single bucket sooner than the driver knows the source."""
    catalog = Catalog(tmp_path / "w")
    catalog.sql(
        f"CREATE TABLE t (id INT, n INT, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '{buckets}')"
    )
    numbers = pa.array([*range(100)], pa.int32())
    catalog.table("t").write(pa.table({"id": numbers, "n": numbers}))
    assert len(catalog.table("t").snapshot().files.buckets()) == buckets
    take(way)
    monkeypatch.setattr(rows_found, "FEW_ROWS", 1000)
    source = "(SELECT id, -id AS n FROM VALUES (7), (99), (150) AS v(id))"
    note = catalog.sql(
        f"MERGE INTO t USING {source} s ON t.id = s.id WHEN MATCHED AND t.id > 50 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        spark,
    ).note
    assert note == "merged, snapshot 2: 1 row updated, 1 deleted, 1 inserted"
    found = {row["id"]: row["n"] for row in catalog.table("t").snapshot().scan().to_pylist()}
    assert found == {**{id: id for id in range(99)}, 7: -7, 150: -150}
    catalog.sql("DELETE FROM t WHERE id IN (SELECT n + 1 FROM t WHERE n BETWEEN 10 AND 12)", spark)
    assert len(found) - catalog.table("t").snapshot().scan().num_rows == 3


@pytest.mark.parametrize(
    ("on", "is_hinted"),
    [("t.id = s.id AND t.n > 3", True), ("t.id = s.id OR t.n = 7", False), ("t.id > s.id", False)],
)
def test_spark_is_given_no_hint_that_it_warns_of(
    spark: SparkSession, tmp_path: Path, on: str, is_hinted: bool
) -> None:
    """That to join few rows by their hashes needs values that are compared by ``=``."""
    catalog = Catalog(tmp_path / "w")
    catalog.sql("CREATE TABLE t (id INT, n INT, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '16')")
    numbers = pa.array([*range(100)], pa.int32())
    catalog.table("t").write(pa.table({"id": numbers, "n": numbers}))
    merge = parse(f"MERGE INTO t USING (SELECT 5 AS id) s ON {on} WHEN MATCHED THEN DELETE")
    assert isinstance(merge, Merge)
    merged = rows_found.merged_rows(catalog.context, spark, merge, catalog.table("t"), 1)
    assert merged.are_few
    assert ("shuffle_hash" in merged.joined._jdf.queryExecution().analyzed().toString()) == is_hinted
    delete = parse("DELETE FROM t WHERE id IN (SELECT n FROM t WHERE n > 20 AND n < 31)")
    assert isinstance(delete, Delete)
    assert delete.rows is not None
    found = rows_found.rows_found(catalog.context, spark, "t", delete.rows, catalog.table("t"), 1)
    assert found.are_few
    assert "shuffle_hash" not in found.rows._jdf.queryExecution().analyzed().toString()
    assert found.rows.count() == 10
