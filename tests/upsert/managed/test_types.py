"""Columns of TIME, intervals and VARIANT: a table gives what Spark's own table of the same rows gives."""

import datetime as dt
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

import planner
from upsert import types
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Materialized, as_text
from upsert.errors import CheckViolatedError, ConfigurationError, SchemaError
from upsert.registration import register
from upsert.spark.batches import collected, table_for_spark
from upsert.spark.formats import FORMAT
from upsert.store.table import Table

pytestmark = pytest.mark.spark

SEED = random.randrange(2**32)
ROWS = 60


@dataclass(frozen=True)
class OfType:
    """A type of columns, and what is done with its values.

    Attributes:
        arrow: the type in which values are given to ``Table.write``.
        values: numbers of its unit: limits and others.
        literals: some of its values in SQL, to filter by.
        step: what its values are multiples of.
    """

    sql: str
    arrow: pa.DataType
    values: Sequence[int]
    literals: Sequence[str]
    step: int = 1

    def array(self, numbers: Sequence[int | None]) -> pa.Array:
        width = pa.int32() if self.arrow.bit_width == 32 else pa.int64()
        return pa.array(numbers, width).cast(self.arrow)

    def drawn(self, rng: random.Random) -> int | None:
        least, most = (end // self.step for end in (self.values[0], self.values[-1]))
        return rng.choice([None, *self.values, rng.randrange(least, most + 1) * self.step])


DAY = 86_400
HOUR = 3_600 * 10**6
COMPARES_PRECISIONS = not pyspark.__version__.startswith("4.2")
"""Spark 4.2 has TIME up to microseconds, and compares times of one precision only."""

ALL_TYPES: Mapping[str, OfType] = {
    "t0": OfType("TIME(0)", pa.time32("s"), [0, 36_000, DAY - 1], ["TIME '10:00'"]),
    "t3": OfType("TIME(3)", pa.time32("ms"), [0, 36_000_001, DAY * 1000 - 1], ["TIME '10:00:00.001'"]),
    "t6": OfType(
        "TIME",
        pa.time64("us"),
        [0, 36_000_000_001, DAY * 10**6 - 1],
        ["TIME '10:00:00.000001'", "TIME '23:59:59'"],
    ),
    "t9": OfType(
        "TIME(9)",
        pa.time64("ns"),
        [0, 36_000_000_000_001, 36_000_000_000_999, 36_000_000_001_000, DAY * 10**9 - 1],
        ["TIME '10:00:00.000000001'", "TIME '10:00:00.000000999'", "TIME '10:00:00.000001'"],
    ),
    "days": OfType(
        "INTERVAL DAY TO SECOND",
        pa.duration("us"),
        [-(2**63), -1, 0, 1, DAY * 10**6, 2**63 - 1],
        ["INTERVAL '1' DAY", "-INTERVAL '0.000001' SECOND", "INTERVAL '-1 02:00:00.5' DAY TO SECOND"],
    ),
    "hours": OfType(
        "INTERVAL HOUR",
        pa.duration("us"),
        [-1_000_000 * HOUR, 0, HOUR, 1_000_000 * HOUR],
        ["INTERVAL '1' HOUR", "INTERVAL '1' MINUTE"],
        step=HOUR,
    ),
}

TYPES = {name: of for name, of in ALL_TYPES.items() if name != "t9" or COMPARES_PRECISIONS}


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with TIME, which Spark 4.3 has behind an option."""
    register(spark)
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.timeType.enabled")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "warehouse", optimize=planner.optimize)


def test_a_session_without_times_is_told_how_it_gets_them(catalog: Catalog, spark: SparkSession) -> None:
    catalog.sql("CREATE TABLE trains (id INT, at TIME, PRIMARY KEY (id) NOT ENFORCED)")
    with pytest.raises(ConfigurationError, match=r"conf\.set\('spark\.sql\.timeType\.enabled', 'true'\)"):
        catalog.sql("INSERT INTO trains (id) SELECT 1", spark)


def drawn_rows(rng: random.Random, ids: Sequence[int]) -> pa.Table:
    columns = {name: of.array([of.drawn(rng) for _ in ids]) for name, of in TYPES.items()}
    return pa.table({"id": pa.array(ids, pa.int64()), **columns})


def by_id(rows: pa.Table) -> dict[int, tuple[int | None, ...]]:
    """The rows as numbers of their types' units."""
    numbers = [
        column.cast(types.in_spark(column.type)).cast(pa.int64()).to_pylist() for column in rows.columns
    ]
    return {row[0]: row[1:] for row in zip(*numbers, strict=True)}


def as_spark_has(session: SparkSession, rows: pa.Table) -> DataFrame:
    casts = (f"CAST({name} AS {of.sql}) AS {name}" for name, of in TYPES.items())
    return session.createDataFrame(table_for_spark(rows)).selectExpr("id", *casts)


def shown(rows: DataFrame) -> list[tuple[Any, ...]]:
    """The rows, their values as Spark writes them."""
    rows = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    texts = (f"CAST({name} AS STRING)" for name in rows.columns)
    return [tuple(row) for row in rows.selectExpr(*texts).collect()]


def created(catalog: Catalog, name: str, with_: str = "WITH ('bucket' = '2')") -> Table:
    columns = ", ".join(f"{column} {of.sql}" for column, of in TYPES.items())
    catalog.sql(f"CREATE TABLE {name} (id BIGINT, {columns}, PRIMARY KEY (id) NOT ENFORCED) {with_}")
    return catalog.table(name)


@pytest.mark.parametrize("file_format", ["arrow", "parquet", "orc", "avro"])
def test_a_table_gives_what_spark_s_own_table_gives(
    catalog: Catalog, session: SparkSession, tmp_path: Path, file_format: str
) -> None:
    """Random rows, written as Arrow and by Spark, some keys again: the same rows, filtered and in order."""
    print("seed", SEED)
    rng = random.Random(SEED)
    table = created(catalog, "t", f"WITH ('bucket' = '2', 'file.format' = '{file_format}')")
    model: dict[int, tuple[int | None, ...]] = {}
    for part in range(3):
        rows = drawn_rows(rng, rng.sample(range(ROWS), ROWS // 2))
        if part % 2:
            as_spark_has(session, rows).write.format(FORMAT).option("path", table.path).mode("append").save()
        else:
            table.write(rows)
        model |= by_id(rows)
    assert by_id(table.snapshot().scan()) == model
    if file_format != "arrow":
        return
    catalog.sql("SELECT * FROM t", session).df.write.parquet(str(tmp_path / "own"))
    session.read.parquet(str(tmp_path / "own")).createOrReplaceTempView("own")
    assert by_id(session.table("own").toArrow()) == model
    for name in rng.sample([name for name in TYPES if COMPARES_PRECISIONS or name not in ("t0", "t3")], 3):
        where = f"{name} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {rng.choice(TYPES[name].literals)}"
        query = f"SELECT {name}, count(*), min(id) FROM %s WHERE {where} GROUP BY {name} ORDER BY {name}"
        own = shown(session.sql(query % "own"))
        assert shown(catalog.sql(query % "t", session).df) == own, query


@pytest.mark.parametrize("key", TYPES)
def test_values_are_keys_by_which_rows_are_replaced_looked_up_and_told_apart(
    catalog: Catalog, session: SparkSession, key: str
) -> None:
    """Spark and the store agree on the bucket of a key, and on what is one key."""
    of = TYPES[key]
    columns = f"k {of.sql}, v BIGINT, PRIMARY KEY (k) NOT ENFORCED, INDEX (v)"
    catalog.sql(f"CREATE TABLE keyed ({columns}) WITH ('bucket' = '4')")
    table = catalog.table("keyed")
    numbers = list(range(len(of.values)))
    rows = pa.table({"k": of.array(of.values), "v": pa.array(numbers, pa.int64())})
    table.write(rows)
    doubled = f"SELECT CAST(k AS {of.sql}) AS k, v + 100 AS v FROM {{rows}}"
    again = session.sql(doubled, rows=session.createDataFrame(table_for_spark(rows)))
    again.write.format(FORMAT).option("path", table.path).mode("append").save()
    found = table.snapshot().scan().sort_by("v")
    assert found.column("v").to_pylist() == [number + 100 for number in numbers]
    assert found.column("k").combine_chunks().equals(of.array(of.values))
    looked_up = table.snapshot().lookup(["k"], rows.select(["k"]))
    assert sorted(looked_up.column("v").to_pylist()) == [number + 100 for number in numbers]


def test_a_stream_of_changes_carries_them_into_another_table(
    catalog: Catalog, session: SparkSession, tmp_path: Path
) -> None:
    """An update shows with both values; a row that is written as it was shows not at all."""
    rng = random.Random(SEED)
    print("seed", SEED)
    source, sink = created(catalog, "source"), created(catalog, "sink")

    def follow() -> None:
        changes = session.readStream.format(FORMAT).option("path", source.path).load()
        writer = catalog.write_changes(changes, "sink")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()

    rows = drawn_rows(rng, range(ROWS))
    for some in (rows, rows.slice(0, 5), drawn_rows(rng, range(0, ROWS, 3))):
        source.write(some)
        follow()
        assert by_id(sink.snapshot().scan()) == by_id(source.snapshot().scan())


def test_a_live_result_has_nanoseconds_and_years_that_python_has_not(
    catalog: Catalog, session: SparkSession
) -> None:
    precision = 9 if COMPARES_PRECISIONS else 6
    catalog.sql(
        f"""CREATE TABLE far (id INT, at TIMESTAMP, days ARRAY<DATE>, t TIME({precision}),
            PRIMARY KEY (id) NOT ENFORCED)"""
    )
    table = catalog.table("far")
    rows = pa.table(
        [[1, 2], [2**63 - 1, -(2**63)], [[3_000_000], None], [1, None]], schema=table.schema.arrow
    )
    table.write(rows)
    live = Materialized(catalog.read_changes(session, "far"), {"availableNow": True})
    live.query.awaitTermination()
    assert collected(live.rows()).sort_by("id").cast(rows.schema).equals(rows)
    assert "+10183-09-21" in as_text(live.rows())


def test_an_interval_with_parts_that_its_column_lacks_is_refused(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE t (id INT, d INTERVAL DAY TO MINUTE)")
    rows = pa.table({"id": pa.array([1, 2], pa.int32()), "d": pa.array([60_000_000, 1], pa.duration("us"))})
    with pytest.raises(
        SchemaError, match=r"'d' is INTERVAL DAY TO MINUTE, got 1 .* of 1 microseconds in row 1"
    ):
        catalog.table("t").write(rows)


def test_types_are_shown_as_they_were_declared(catalog: Catalog) -> None:
    """Also in a table that is made of the query's columns, and in a column that is added."""
    catalog.sql("CREATE TABLE t (a TIME(2), b INTERVAL DAY, c INTERVAL MINUTE TO SECOND, d ARRAY<TIME>)")
    catalog.sql("ALTER TABLE t ADD COLUMN e INTERVAL HOUR")
    text = str(catalog.sql("SHOW CREATE TABLE t"))
    for column in ("`a` TIME(3)", "`b` INTERVAL DAY,", "`c` INTERVAL MINUTE TO SECOND", "`d` ARRAY<TIME(6)>"):
        assert column in text
    assert "`e` INTERVAL HOUR" in text
    catalog.sql("DROP TABLE t")
    catalog.sql(text)
    assert str(catalog.sql("SHOW CREATE TABLE t")) == text


def test_checks_and_defaults_take_literals(catalog: Catalog, session: SparkSession) -> None:
    catalog.sql("""
        CREATE TABLE t (
            id INT, at TIME DEFAULT TIME '10:00' CHECK (at >= TIME '09:30'),
            took INTERVAL HOUR TO SECOND DEFAULT INTERVAL '90' MINUTE CHECK (took < INTERVAL '1' DAY))""")
    catalog.sql("INSERT INTO t (id) VALUES (1)", session)
    for values in ("(2, TIME '09:29:59.999999', NULL)", "(3, NULL, INTERVAL '24' HOUR)"):
        with pytest.raises(CheckViolatedError):
            catalog.sql(f"INSERT INTO t VALUES {values}", session)
    catalog.sql("INSERT INTO t VALUES (4, NULL, -INTERVAL '24' HOUR)", session)
    catalog.sql(
        "UPDATE t SET took = took + INTERVAL '1' MINUTE, at = TIME '23:59' WHERE took > INTERVAL '1' HOUR",
        session,
    )
    catalog.sql("DELETE FROM t WHERE took = INTERVAL '-1 00:00:00' DAY TO SECOND")
    found = catalog.table("t").snapshot().scan().to_pylist()
    assert found == [{"id": 1, "at": dt.time(23, 59), "took": dt.timedelta(minutes=91)}]


def test_an_interval_is_no_partition_and_like_a_variant_it_has_no_form_in_records(catalog: Catalog) -> None:
    with pytest.raises(SchemaError, match="PARTITIONED BY: column 'd' is an interval; make it a BIGINT"):
        catalog.sql("CREATE TABLE t (d INTERVAL DAY) PARTITIONED BY (d)")
    options = "'connector' = 'kafka', 'topic' = 't', 'properties.bootstrap.servers' = 'localhost:1'"
    for format_, type_ in product(("json", "csv", "avro"), ("INTERVAL DAY TO SECOND", "VARIANT")):
        with pytest.raises(SchemaError, match=type_):
            catalog.sql(f"CREATE TABLE k (a INT, d {type_}) WITH ({options}, 'format' = '{format_}')")


@pytest.mark.skipif(COMPARES_PRECISIONS, reason="later versions than Spark 4.2 have TIME(9)")
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT id, t, rank() OVER (ORDER BY id) FROM nanos",
        "INSERT INTO nanos VALUES (1, TIME '10:00')",
        "UPDATE nanos SET t = TIME '10:00' WHERE hash(id) > 0",
        "CREATE MATERIALIZED VIEW w AS SELECT t, count(*) AS n FROM nanos GROUP BY t",
    ],
)
def test_a_type_that_spark_lacks_is_told_by_statements(
    catalog: Catalog, session: SparkSession, statement: str
) -> None:
    catalog.sql("CREATE TABLE nanos (id INT, t TIME(9), PRIMARY KEY (id) NOT ENFORCED)")
    with pytest.raises(SchemaError, match=r"column 't': a TIME in Spark 4.2 has at most 6 digits"):
        catalog.sql(statement, session)


@pytest.mark.skipif(COMPARES_PRECISIONS, reason="later versions than Spark 4.2 have TIME(9)")
def test_other_columns_are_read_beside_a_type_that_spark_lacks(
    catalog: Catalog, session: SparkSession
) -> None:
    catalog.sql("CREATE TABLE nanos (id INT, t TIME(9), PRIMARY KEY (id) NOT ENFORCED)")
    rows = pa.table({"id": pa.array([7], pa.int32()), "t": pa.array([1], pa.time64("ns"))})
    catalog.table("nanos").write(rows)
    assert shown(catalog.sql("SELECT id, hash(id) > 0 FROM nanos", session).df) == [("7", "true")]


@pytest.mark.long
@pytest.mark.skipif(not COMPARES_PRECISIONS, reason="Spark 4.2 has no TIME(9)")
def test_joins_and_views_keep_the_types(catalog: Catalog, session: SparkSession) -> None:
    """A delta join finds rows by TIME and by an interval, and gives both on as they are."""
    catalog.sql(
        "CREATE TABLE l (id INT, k TIME(0), i INTERVAL HOUR, PRIMARY KEY (id) NOT ENFORCED, INDEX (k))"
    )
    catalog.sql(
        "CREATE TABLE r (k TIME(0), n TIME(9), d INTERVAL DAY TO SECOND, PRIMARY KEY (k) NOT ENFORCED)"
    )
    query = "SELECT l.id, l.k, l.i, r.n, r.d, r.d + l.i AS s FROM l JOIN r ON l.k = r.k"
    catalog.sql(f"CREATE MATERIALIZED VIEW j AS {query}", session)
    catalog.sql(
        "CREATE MATERIALIZED VIEW g AS SELECT k, max(i) AS i, count(*) AS n FROM l GROUP BY k", session
    )
    steps = [
        "INSERT INTO l VALUES (1, TIME '10:00', INTERVAL '1' HOUR), (2, TIME '11:00', INTERVAL '-2' HOUR)",
        "INSERT INTO r VALUES (TIME '10:00', TIME '10:00:00.000000001', INTERVAL '1' SECOND)",
        "INSERT INTO r VALUES (TIME '11:00', NULL, NULL)",
        "UPDATE l SET i = INTERVAL '3' HOUR WHERE id = 1",
    ]
    for step in steps:
        catalog.sql(step, session)
        catalog.sql("REFRESH MATERIALIZED VIEW j", session)
        catalog.sql("REFRESH MATERIALIZED VIEW g", session)
    assert shown(catalog.sql("SELECT * FROM j ORDER BY id", session).df) == shown(
        catalog.sql(f"{query} ORDER BY id", session).df
    )
    groups = "SELECT k, max(i), count(*) FROM l GROUP BY k ORDER BY k"
    assert shown(catalog.sql("SELECT * FROM g ORDER BY k", session).df) == shown(
        catalog.sql(groups, session).df
    )
    assert [column.sql_type for column in catalog.table("j").schema.columns][1:5] == [
        "TIME(0)",
        "INTERVAL HOUR",
        "TIME(9)",
        "INTERVAL DAY TO SECOND",
    ]


JSON = ['{"a": 1}', '{"a": 2, "b": [true, null]}', "null", "1.50", '"text"', None]


def in_json(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(
        (tuple(row) for row in rows.selectExpr("id", "to_json(v)", "to_json(s.w)").collect()), key=str
    )


@pytest.mark.parametrize("file_format", ["arrow", "parquet", "avro"])
def test_variants_are_kept_updated_and_streamed(
    catalog: Catalog, session: SparkSession, tmp_path: Path, file_format: str
) -> None:
    """Written by SQL, by Spark and as Arrow from Spark; a row that is written as it was is no change."""
    columns = "id INT, v VARIANT, s STRUCT<w: VARIANT>, PRIMARY KEY (id) NOT ENFORCED"
    for name in ("t", "sink"):
        catalog.sql(f"CREATE TABLE {name} ({columns}) WITH ('file.format' = '{file_format}')")
    table = catalog.table("t")
    given = session.createDataFrame(list(enumerate(JSON)), "id INT, j STRING")
    rows = given.selectExpr("id", "parse_json(j) AS v", "named_struct('w', parse_json(j)) AS s")
    expected = [
        (id_, json and json.replace(" ", "").replace("1.50", "1.5"), json) for id_, json in enumerate(JSON)
    ]
    expected = [(id_, v, v) for id_, v, _ in expected]
    rows.write.format(FORMAT).option("path", table.path).mode("append").save()
    read = session.read.format(FORMAT).option("path", table.path)
    assert in_json(read.load()) == sorted(expected, key=str)
    if file_format != "arrow":
        return
    changes = session.readStream.format(FORMAT).option("path", table.path).load()
    writer = catalog.write_changes(changes, "sink").option("checkpointLocation", str(tmp_path / "checkpoint"))
    table.write(collected(read.load().where("id < 2").toArrow()))
    catalog.sql("INSERT INTO t VALUES (9, parse_json('[1]'), NULL), (10, NULL, NULL)", session)
    catalog.sql("UPDATE t SET v = parse_json('7') WHERE variant_get(v, '$.a', 'int') = 2", session)
    catalog.sql("DELETE FROM t WHERE id = 10")
    expected[1] = (1, "7", expected[1][2])
    expected.append((9, "[1]", None))
    writer.trigger(availableNow=True).start().awaitTermination()
    for values in ("(11, NULL, named_struct('w', parse_json('3')))", "(12, parse_json('5'), NULL)"):
        catalog.sql(f"INSERT INTO t VALUES {values}", session)
        writer.trigger(availableNow=True).start().awaitTermination()
    expected += [(11, None, "3"), (12, "5", None)]
    rows = catalog.sql("SELECT * FROM t ORDER BY id", session).rows
    assert rows.column("v").is_null().to_pylist() == [v is None for _, v, _ in sorted(expected)]
    table.write(rows)
    for name in ("t", "sink"):
        assert in_json(catalog.sql(f"SELECT * FROM {name}", session).df) == sorted(expected, key=str)
    found = session.read.format(FORMAT).option("path", table.path).load()
    assert found.schema["v"].dataType.simpleString() == "variant"
    assert found.selectExpr("variant_get(v, '$.a', 'int') AS a").where("a = 1").count() == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            "id INT, v VARIANT, PRIMARY KEY (v) NOT ENFORCED",
            "PRIMARY KEY: column 'v' must be of a scalar type",
        ),
        (
            "id INT, v VARIANT, PRIMARY KEY (id) NOT ENFORCED, INDEX (v)",
            "column 'v' must be of a scalar type",
        ),
        ("id INT, v VARIANT) PARTITIONED BY (v", "PARTITIONED BY: column 'v' must be of a scalar type"),
        ("id INT, v VARIANT) WITH ('bucket-key' = 'v', 'bucket' = '2'", "'bucket-key'.*'v'.* VARIANT"),
        ("id INT, v VARIANT CHECK (v = 1)", "CHECK"),
        ("id INT, v MAP<VARIANT, INT>", "column 'v': a key of a MAP must be comparable, got VARIANT"),
    ],
)
def test_a_variant_is_a_value_only(catalog: Catalog, columns: str, message: str) -> None:
    with pytest.raises((SchemaError, ConfigurationError), match=message):
        catalog.sql(f"CREATE TABLE t ({columns})")


@pytest.mark.long
def test_a_materialized_view_has_no_variant(catalog: Catalog, session: SparkSession) -> None:
    catalog.sql("CREATE TABLE t (id INT, v VARIANT, PRIMARY KEY (id) NOT ENFORCED)")
    with pytest.raises(SchemaError, match="column 'v' is VARIANT, which Spark does not compare"):
        catalog.sql("CREATE MATERIALIZED VIEW m AS SELECT * FROM t", session)
    catalog.sql("CREATE MATERIALIZED VIEW m AS SELECT id, variant_get(v, '$.a', 'int') AS a FROM t", session)
    catalog.sql("INSERT INTO t VALUES (1, parse_json('{\"a\": 5}'))", session)
    catalog.sql("REFRESH MATERIALIZED VIEW m", session)
    assert shown(catalog.sql("SELECT * FROM m", session).df) == [("1", "5")]
