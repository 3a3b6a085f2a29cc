"""Statements that need no Spark, beside what Spark gives for the same text."""

import re
from datetime import datetime, time
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.upsert.catalog.run.without_spark.beside_spark import (
    KINDS,
    ORDERED,
    UTC_SESSION,
    assert_refused_alike,
    by_spark,
    kinds,
    needs_spark,
    plain_rows,
    rows_of,
    same,
    without,
)
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Done, Found, Frame
from upsert.catalog.run import queries, row_changes
from upsert.catalog.run.without_spark import settings, shown, statements
from upsert.errors import SchemaError, UpsertError
from upsert.spark import batches
from upsert.store.metadata import looks

pytestmark = pytest.mark.spark

HOWS = ("", "DESC", "NULLS LAST", "DESC NULLS FIRST")


PREDICATES = (
    "id = 3",
    "id IN (1, 2, -3, NULL)",
    "NOT id IN (1, 2)",
    "id BETWEEN -5 AND 5",
    "whole = 2147483647 OR whole IS NULL",
    "small > tiny",
    "tiny + small > 0",
    "ratio > 1.5",
    "ratio >= 3",
    "ratio != 0",
    "NOT (ratio < 1)",
    "single = 1.5",
    "isnan(ratio)",
    "price > 1.25",
    "price <= -1",
    "large > 1",
    "name = 'tea'",
    "name LIKE 'a%'",
    "name >= 'b' AND NOT flag",
    "name IN ('', 'B')",
    "name <=> NULL",
    "length(name) = 1",
    "short = 'a'",
    "flag",
    "flag IS NOT TRUE",
    "day > DATE '1990-01-01'",
    "day = '2020-02-29'",
    "year(day) = 2020",
    "at >= TIMESTAMP '2020-01-01 00:00:00'",
    "at < TIMESTAMP '2020-01-02 01:00:00Z' AND whole = 1",
    "clock > TIME '00:30:00'",
    "span > INTERVAL '5' SECOND",
    "abs(small) > 3 AND (flag OR name = 'b')",
    "CASE WHEN flag THEN small ELSE tiny END > 1",
    "coalesce(whole, 7) = 7",
    "raw IS NULL",
    "kinds.id > 0 AND kinds.name = 'b'",
)


@pytest.mark.usefixtures("plain")
def test_selects_have_sparks_rows(spark: SparkSession, filled: Catalog) -> None:
    """Each predicate with several lists of columns: the same names, types and rows."""
    lists = (
        "*",
        "ID, name AS n, Ratio",
        "kinds.*, id",
        "count(*)",
        "COUNT(*) AS c",
        "day, at, local, clock, span",
    )
    for number, predicate in enumerate(PREDICATES):
        text = f"SELECT {lists[number % len(lists)]} FROM kinds WHERE {predicate}"
        expected, found = plain_rows(spark, text), rows_of(without(filled, text))
        assert found.schema.names == expected.schema.names, text
        assert found.schema.types == expected.schema.types, text
        assert sorted(same(found.to_pylist())) == sorted(same(expected.to_pylist())), text


@pytest.mark.usefixtures("plain")
def test_conditions_of_several_parts(spark: SparkSession, filled: Catalog) -> None:
    random = Random(11)
    for _ in range(10):
        parts = [f"{random.choice(['', 'NOT '])}({one})" for one in random.sample(PREDICATES, 3)]
        text = f"SELECT id FROM kinds WHERE ({parts[0]} AND {parts[1]}) OR {parts[2]}"
        expected, found = plain_rows(spark, text), without(filled, text)
        assert isinstance(found, Found), text
        assert sorted(found.rows["id"].to_pylist()) == sorted(expected["id"].to_pylist()), text


@pytest.mark.usefixtures("plain")
def test_orders_are_sparks(spark: SparkSession, filled: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each type in one of the four ways; after each piece of rows the first ones are kept."""
    monkeypatch.setattr(shown, "_AT_ONCE", 1)
    for number, column in enumerate(ORDERED):
        text = f"SELECT {column} AS c, id FROM kinds ORDER BY c {HOWS[number % 4]}, 2 LIMIT 25 OFFSET 1"
        expected, found = plain_rows(spark, text), rows_of(without(filled, text))
        assert same(found.to_pylist()) == same(expected.to_pylist()), text


@pytest.mark.parametrize(
    "text",
    [
        "SELECT id,, name FROM kinds",
        "SELECT , id FROM kinds",
        "SELECT id AS , name AS n FROM kinds",
        "SELECT id AS 'x' FROM kinds",
        'SELECT id AS "x" FROM kinds',
        "SELECT id AS süß FROM kinds",
        "SELECT id, name DIV FROM kinds",
        "SELECT id:, name FROM kinds",
        "SELECT name @ MOD ? FROM kinds",
        "SELECT id FROM .kinds",
        "SELECT id FROM kinds * AS k",
        "SELECT id FROM kinds AS left WHERE id = 1",
        "SELECT id FROM kinds LIMIT 5, 2",
        "SELECT id FROM kinds OFFSET 1 ROWS",
        "SELECT id FROM kinds LIMIT 5 PERCENT",
        "SELECT id FROM kinds WHERE ratio >= 1.5e- ! 1",
        "SELECT id FROM kinds WHERE id IN (1,,2)",
        "SELECT id FROM kinds WHERE id IN (, 2)",
        "SELECT id FROM kinds WHERE id BETWEEN 1 2",
        "SELECT id FROM kinds WHERE id NOT NULL",
        "SELECT id FROM kinds WHERE id : = 1",
        "SELECT * FROM kinds LIMIT 1 ORDER BY id",
        "SELECT * FROM kinds ORDER BY id WHERE id = 1",
        "SELECT * FROM kinds WHERE id IN (1,)",
        "SELECT id FROM kinds ORDER BY 2",
        "SELECT id, name AS id FROM kinds ORDER BY id",
        "SELECT user FROM kinds",
        "SELECT current_path FROM kinds",
        "SELECT kinds.nix FROM kinds",
        "SELECT other.id FROM kinds",
        "SELECT id + 1 FROM kinds",
        "SELECT id FROM kinds TABLESAMPLE (5 ROWS)",
        "SELECT id FROM kinds WHERE name = 'a\\tb'",
        "SELECT id FROM kinds WHERE name = 3",
        "SELECT id FROM kinds WHERE id IN (SELECT 1)",
        "SELECT id FROM kinds WHERE rand() < 2",
        "SELECT id FROM kinds WHERE whole",
        "SELECT id FROM kinds ORDER BY tags",
        "SELECT * EXCEPT (id) FROM kinds",
        "SELECT * FROM parquet.`/data/x`",
        "SELECT id FROM kinds AS x(a)",
        "SELECT pair.a FROM kinds",
        "SELECT 1",
        "(SELECT id FROM kinds)",
        "FROM kinds |> WHERE id = 1 |> LIMIT 1",
        "SELECT * FROM kinds /*+ OPTIONS('scan.mode' = 'latest') */",
        "SELECT id FROM kinds LIMIT -1",
        "SELECT id FROM kinds ORDER BY id LIMIT 2147483647 OFFSET 1",
        "SELECT id FROM kinds WHERE whole + whole > 3",
        "SELECT id FROM kinds WHERE id < 9223372036854775808",
        "SELECT tiny > -9223372036854775808.5 AS x FROM kinds",
        "SELECT id FROM kinds WHERE NULL",
        "SELECT id FROM kinds WHERE (coalesce(NULL, NULL))",
        "SELECT id FROM kinds WHERE if(flag, NULL, NULL)",
        "SELECT id FROM kinds WHERE CASE WHEN flag THEN NULL END",
        "SELECT id FROM kinds WHERE CASE WHEN NULL THEN flag END",
        "SELECT id FROM kinds WHERE flag NOT BETWEEN FALSE AND TRUE <=> flag",
        "SELECT id FROM kinds WHERE flag <=> flag NOT IN (TRUE)",
        "SELECT id FROM kinds WHERE flag <=> flag < flag",
    ],
)
def test_what_else_is_asked_is_sparks(filled: Catalog, text: str) -> None:
    """Other queries, and those that Spark refuses."""
    assert needs_spark(filled, text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT nix FROM kinds",
        "SELECT id,\n  nmae FROM kinds ORDER BY id",
        "SELECT id FROM kinds WHERE id = 1 AND prise > 2",
        "SELECT id FROM kinds ORDER BY nix",
        "SELECT * FROM kinds$nix",
        "SELECT * FROM kinds$snapshots WHERE nix = 1",
        "SELECT * FROM nix",
        "SELECT * FROM kinds a JOIN db.kind b ON a.id = b.id",
        "SELECT nix FROM kinds a JOIN kinds b ON a.id = b.id",
        "SELECT a.id FROM kinds a JOIN kinds b ON a.id = b.id WHERE\n nmae = 'b'",
        "SELECT a.id FROM kinds a JOIN kinds b ON a.id = idd",
        "INSERT INTO kinds (id) SELECT id FROM kinsd",
    ],
)
def test_what_cannot_be_is_refused_as_with_spark(spark: SparkSession, filled: Catalog, text: str) -> None:
    assert_refused_alike(filled, text, spark)


def test_states_and_system_tables(spark: SparkSession, filled: Catalog) -> None:
    filled.table("kinds").tag("first", 1)
    for text in (
        "SELECT count(*) FROM kinds FOR SYSTEM_VERSION AS OF 1",
        "SELECT count(*) FROM kinds FOR SYSTEM_VERSION AS OF 'first'",
        "SELECT snapshot_id, commit_kind FROM kinds$snapshots ORDER BY 1 DESC",
        "SELECT * FROM kinds$snapshots",
        "SELECT commit_kind, count(*), max(snapshot_id) FROM kinds$snapshots GROUP BY 1",
        "SELECT * FROM kinds$schemas",
        "SELECT count(*) FROM kinds$files WHERE level = 0",
    ):
        assert not needs_spark(filled, text), text
        expected, found = rows_of(filled.sql(text, spark)), rows_of(without(filled, text))
        assert found.schema.names == expected.schema.names, text
        assert found.schema.types == expected.schema.types, text
        assert sorted(same(found.to_pylist())) == sorted(same(expected.to_pylist())), text


def test_settings_that_change_how_sql_is_read_need_spark(
    filled: Catalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "SELECT count(*) AS n FROM kinds WHERE at >= TIMESTAMP '2020-01-01 00:00:00'"

    def since(zone: str) -> int:
        at = filled.table("kinds").snapshot().scan(["at"])["at"].to_pylist()
        return sum(one is not None and one >= datetime(2020, 1, 1, tzinfo=ZoneInfo(zone)) for one in at)

    assert len(set(map(since, ("Europe/Berlin", "Asia/Tokyo", "America/New_York")))) == 3
    monkeypatch.setattr(filled.context, "settings", {})
    monkeypatch.setenv("TZ", "Europe/Berlin")
    assert rows_of(without(filled, text)).to_pylist() == [{"n": since("Europe/Berlin")}]
    monkeypatch.setattr(filled.context, "settings", {"spark.sql.caseSensitive": "true"})
    assert needs_spark(filled, text)
    monkeypatch.setattr(
        filled.context, "settings", {"spark.master": "local", "spark.sql.session.timeZone": "Asia/Tokyo"}
    )
    assert rows_of(without(filled, text)).to_pylist() == [{"n": since("Asia/Tokyo")}]
    monkeypatch.setattr(filled.context, "settings", {"spark.sql.session.timeZone": "GMT+25"})
    assert needs_spark(filled, text)
    monkeypatch.setattr(filled.context, "settings", {})
    filled.sql("SET 'spark.sql.ansi.enabled' = 'false'")
    assert needs_spark(filled, text)
    filled.sql("RESET 'spark.sql.ansi.enabled'")
    monkeypatch.setenv("SPARK_ANSI_SQL_MODE", "false")
    assert needs_spark(filled, text)
    monkeypatch.delenv("SPARK_ANSI_SQL_MODE")
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.ansi.enabled false\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert needs_spark(filled, text)
    (tmp_path / "spark-defaults.conf").write_text("spark.master local\n")
    assert not needs_spark(filled, text)
    monkeypatch.setenv("TZ", "America/New_York")
    assert rows_of(without(filled, text)).to_pylist() == [{"n": since("America/New_York")}]
    monkeypatch.setenv("TZ", "EST5EDT,M3.2.0,M11.1.0")
    assert needs_spark(filled, text)
    assert not needs_spark(filled, "SELECT at FROM kinds")


def test_who_only_shows_rows_needs_no_job_for_them(
    spark: SparkSession, filled: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "SELECT * FROM kinds WHERE name = 'tea' ORDER BY id"
    expected = filled.sql(text, spark)
    assert isinstance(expected, Frame)
    monkeypatch.setattr(filled.context, "gives_rows", True)
    found = filled.sql(text, spark)
    assert isinstance(found, Found)
    assert found.rows.schema.types == expected.rows.schema.types
    assert same(found.rows.to_pylist()) == same(expected.rows.to_pylist())
    assert isinstance(filled.sql("SELECT upper(name) FROM kinds", spark), Frame)
    with pytest.raises(SchemaError, match="did you mean 'name'"):
        filled.sql("SELECT nmae FROM kinds", spark)
    spark.sql("DECLARE OR REPLACE VARIABLE here INT DEFAULT 7")
    assert filled.sql("SELECT here FROM kinds LIMIT 1", spark).rows.column(0).to_pylist() == [7]
    monkeypatch.setattr(filled.context, "gives_rows", False)
    assert isinstance(filled.sql(text, spark), Frame)


@pytest.fixture
def without_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a DataFrame are found without Spark, as they are for users."""
    monkeypatch.setattr(queries, "selected_later", statements.selected_later)


@pytest.fixture
def teas(tmp_path: Path) -> Catalog:
    """A catalog with an empty table."""
    catalog = Catalog(tmp_path)
    catalog.sql("CREATE TABLE teas (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    return catalog


@pytest.mark.usefixtures("without_jobs")
def test_the_rows_of_a_dataframe_need_no_job_and_are_of_its_state(
    spark: SparkSession, teas: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    teas.sql("INSERT INTO teas VALUES (1, 'mint'), (2, 'sage')")
    texts = (
        "SELECT * FROM teas WHERE id = 2",
        "SELECT count(*) FROM teas",
        "SELECT upper(name) FROM teas WHERE id = 1",
        "SELECT data_version FROM teas$snapshots",
    )
    frames = [teas.sql(text, spark) for text in texts]
    teas.sql("UPDATE teas SET name = 'rose'")
    assert all(isinstance(frame, Frame) for frame in frames)
    expected = [frame.df.toArrow() for frame in frames]

    def is_asked(df: DataFrame) -> pa.Table:
        raise AssertionError(f"{df} was computed by Spark")

    assert [frames[number].rows for number in (2, 3)] == expected[2:]
    monkeypatch.setattr(batches, "arrow_of", is_asked)
    assert [frames[number].rows for number in (0, 1)] == expected[:2]
    for number in (2, 3):
        with pytest.raises(AssertionError, match="computed by Spark"):
            _ = frames[number].rows


@pytest.mark.usefixtures("without_jobs")
def test_the_rows_of_a_dataframe_have_the_types_of_sparks(
    spark: SparkSession, filled: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = filled.sql("SELECT * FROM kinds WHERE id > 0", spark)
    expected = frame.df.toArrow().schema
    monkeypatch.setattr(batches, "arrow_of", lambda _: None)
    assert frame.rows.schema == expected
    assert not expected.field("id").nullable


@pytest.mark.usefixtures("without_jobs")
def test_the_rows_of_a_dataframe_are_of_its_state_though_spark_took_long_to_make_it(
    spark: SparkSession, teas: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    teas.sql("INSERT INTO teas VALUES (1, 'mint'), (2, 'sage')")
    own = queries.frame

    def made(*given: Any, **more: Any) -> DataFrame:
        df = own(*given, **more)
        monkeypatch.setattr(looks, "LASTS_S", 0.0)
        without(teas, "INSERT INTO teas VALUES (3, 'rose')")
        return df

    monkeypatch.setattr(queries, "frame", made)
    frame = teas.sql("SELECT id FROM teas", spark)
    assert frame.rows.num_rows == frame.df.count() == 2


@pytest.mark.usefixtures("without_jobs")
def test_the_rows_of_a_dataframe_have_its_columns_though_the_table_was_altered_just_then(
    spark: SparkSession, teas: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    teas.sql("INSERT INTO teas VALUES (1, 'mint')")
    own = queries.frame

    def altered(*given: Any, **more: Any) -> DataFrame:
        monkeypatch.setattr(looks, "LASTS_S", 0.0)
        without(teas, "ALTER TABLE teas ADD COLUMN price INT")
        return own(*given, **more)

    monkeypatch.setattr(queries, "frame", altered)
    rows = teas.sql("SELECT * FROM teas", spark).rows
    assert rows.to_pylist() == [{"id": 1, "name": "mint", "price": None}]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.groupByAliases", "false"),
        ("spark.sql.execution.arrow.useLargeVarTypes", "true"),
    ],
)
@pytest.mark.usefixtures("without_jobs")
def test_a_session_that_reads_sql_otherwise_computes_the_rows_of_its_dataframes(
    spark: SparkSession, filled: Catalog, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    before = spark.conf.get(key)
    spark.conf.set(key, value)
    try:
        frame = filled.sql("SELECT id FROM kinds", spark)
    finally:
        spark.conf.set(key, str(before))
    monkeypatch.setattr(batches, "arrow_of", lambda _: "by Spark")
    assert frame.rows == "by Spark"


def test_many_rows_are_sparks_and_fewer_where_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(tmp_path)
    catalog.sql("CREATE TABLE notes (id INT, note STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.table("notes").write(pa.table({"id": pa.array(range(1000), pa.int32()), "note": ["once"] * 1000}))
    monkeypatch.setattr(settings, "_MOST_READ", 30_000)  # the table takes 12 000
    twenty = ", ".join(["note"] * 20)
    assert needs_spark(catalog, f"SELECT concat({twenty}) AS long FROM notes")
    assert needs_spark(catalog, f"SELECT concat({twenty}) AS long FROM notes ORDER BY id")
    for text in ("SELECT * FROM notes", f"SELECT concat({twenty}) AS long FROM notes LIMIT 3"):
        assert not needs_spark(catalog, text)
    monkeypatch.setattr(settings, "_MOST_READ", 4_000)  # its numbers
    assert not needs_spark(catalog, "SELECT max(id) FROM notes")
    assert needs_spark(catalog, "SELECT max(note) FROM notes")
    monkeypatch.setattr(settings, "_MOST_READ", 30_000)
    monkeypatch.setattr(statements, "MOST_BYTES", 1000)
    for text in ("SELECT * FROM notes", "SELECT count(*) FROM notes WHERE note = 'once'"):
        assert not needs_spark(catalog, text)
    assert needs_spark(catalog, "UPDATE notes SET note = 'new' WHERE note = 'once'")
    assert not needs_spark(catalog, "UPDATE notes SET note = 'new' WHERE id < 3")


def test_all_rows_of_a_table_are_not_copied(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.sql(
        "CREATE TABLE notes (id INT, note STRING, PRIMARY KEY (id) NOT ENFORCED) "
        "WITH ('file.compression' = 'none')"
    )
    ids = pa.array(range(100_000), pa.int32())
    catalog.table("notes").write(pa.table({"id": ids, "note": ["once"] * len(ids)}))
    before = pa.total_allocated_bytes()
    found = rows_of(without(catalog, "SELECT note AS said, id FROM notes"))
    assert pa.total_allocated_bytes() - before < found.nbytes / 2  # they are views of the file
    assert found.column_names == ["said", "id"]
    assert found.column("id").combine_chunks() == ids


def test_more_rows_of_a_session_are_read_here_where_its_tasks_are(
    spark: SparkSession, filled: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(spark.conf.get("spark.master")).startswith("local")
    monkeypatch.setattr(queries, "selected_later", statements.selected_later)
    monkeypatch.setattr(batches, "arrow_of", lambda _: "by Spark")
    monkeypatch.setattr(settings, "_MOST_READ_BESIDE_EXECUTORS", 1)
    assert filled.sql("SELECT id FROM kinds", spark).rows != "by Spark"
    monkeypatch.setattr(settings, "_MOST_READ", 1)
    assert filled.sql("SELECT id FROM kinds", spark).rows == "by Spark"


def test_many_first_rows_are_sparks(filled: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "_AT_ONCE", 1)
    monkeypatch.setattr(shown, "MOST_BYTES", 100)
    assert not needs_spark(filled, "SELECT id FROM kinds ORDER BY id LIMIT 3 OFFSET 2")
    assert needs_spark(filled, "SELECT id FROM kinds ORDER BY id LIMIT 3 OFFSET 20")
    monkeypatch.setattr(settings, "_MOST_READ", 100)
    assert needs_spark(filled, "SELECT count(*) FROM kinds")
    assert not needs_spark(filled, "SELECT id FROM kinds LIMIT 3")


TARGET = (
    "CREATE TABLE target (id BIGINT, whole INT, ratio DOUBLE, single FLOAT, price DECIMAL(6, 2), "
    "large DECIMAL(38, 10), name STRING, short VARCHAR(3), fixed CHAR(4), flag BOOLEAN, day DATE, "
    "at TIMESTAMP, n INT DEFAULT 7, s STRING NOT NULL DEFAULT 'x', d DECIMAL(4, 1) DEFAULT 1.5, "
    "PRIMARY KEY (id) NOT ENFORCED)"
)
LISTS = (
    ("id", "(1), (2), (1)"),
    ("id, whole", "(1, -2147483648), (2, NULL), (3, 2147483647)"),
    ("id, ratio", "(1, 1), (2, 2.5), (3, -1e3), (4, 0.1)"),
    ("id, single", "(1, 9999999), (2, -3)"),
    ("id, ratio, single", "(1, -0, -0), (2, -0.0, 0), (3, -0e0, NULL)"),
    ("id, price", "(1, 1.25), (2, -3), (3, NULL)"),
    ("id, large", "(1, 1234567890123456.1), (2, 0.0000000001)"),
    ("id, name, short, fixed", "(1, 'it''s', 'abc', 'a'), (2, \"q\", '', NULL)"),
    ("id, flag, day", "(1, TRUE, DATE '2020-02-29'), (2, false, NULL)"),
    ("id, at", "(1, TIMESTAMP '2020-10-01 08:00:00'), (2, TIMESTAMP '2020-10-01 08:00:00.5+02:00')"),
    ("id, n, s, d", "(1, DEFAULT, DEFAULT, DEFAULT), (2, 3, 'y', 2.5)"),
    ("ID, N", "(1, (5))"),
)
NOT_HERE = (
    ("id, whole", "(1, 2.5)"),
    ("id, whole", "(1, '2')"),
    ("id, whole", "(1, 2147483648)"),
    ("id, whole", "(1, 1 + 1)"),
    ("id, ratio", "(1, 1e400)"),
    ("id, single", "(1, 0.1)"),
    ("id, price", "(1, 1.255)"),
    ("id, price", "(1, 12345.0)"),
    ("id, name", "(1, 2)"),
    ("id, name", "(1, 'a\\n')"),
    ("id, name", "(1, 'a' 'b')"),
    ("id, day", "(1, '2020-01-01')"),
    ("id, day", "(1, DATE '20200101')"),
    ("id, at", "(1, current_timestamp())"),
    ("id, s", "(1, NULL)"),
    ("id, name", "(1), (2)"),
    ("id", "(1, 2)"),
    ("id", "(1),"),
    ("name", "('a')"),
    ("id, at", "(1, CAST('2020-01-01 00:00:00Z' AS INT))"),
    ("id, at", "(1, INT '2020-01-01 00:00:00Z')"),
    ("id, at", "(1, TIMESTAMPTZ '2020-01-01 00:00:00Z')"),
    ("id, at", "(1, DATETIME '2020-01-01 00:00:00Z')"),
    ("id, day", "(1, CAST('2020-01-01' AS TIMESTAMP))"),
    ("id, ratio", "(1, . 5)"),
    ("id, ratio", "(1, . 1.5)"),
)


def test_lists_are_written_as_spark_writes_them(spark: SparkSession, tmp_path: Path) -> None:
    ours, theirs = Catalog(tmp_path / "ours"), Catalog(tmp_path / "theirs")
    ours.context.settings = UTC_SESSION
    for columns, values in LISTS:
        found, notes = [], list[str]()
        for catalog in (ours, theirs):
            catalog.sql("DROP TABLE IF EXISTS target")
            catalog.sql(TARGET)
            text = f"INSERT INTO target ({columns}) VALUES {values}"
            result = without(catalog, text) if catalog is ours else by_spark(catalog, text, spark)
            assert isinstance(result, Done)
            notes.append(result.note)
            assert re.fullmatch("written, snapshot 1: (1 row|[2-9] rows)", result.note)
            found.append(
                same(sorted(catalog.table("target").snapshot().scan().to_pylist(), key=lambda row: row["id"]))
            )
        assert found[0] == found[1], (columns, values)
        assert notes[0] == notes[1], (columns, values)


TYPES = dict(re.findall(r"(\w+) ([A-Z_]+(?:\([\d, ]+\)| DAY TO SECOND)?)(?=,)", KINDS))
"""Those of the columns of the table of all types, as they are declared."""


def random_copy(random: Random) -> tuple[list[str], str]:
    """The columns of a target, and a query that gives all but the last one."""
    chosen = [name for name in random.sample(ORDERED, random.randrange(1, 4)) if name != "short"] or ["id"]
    columns = [f"c{number} {TYPES[name]}" for number, name in enumerate(chosen)]
    where = random.choice(["", " WHERE id > 0", " WHERE small < 3 OR name IS NULL", " WHERE id > 99"])
    if random.random() < 0.3:
        counted = f"SELECT {', '.join(chosen)}, count(*) FROM kinds{where} GROUP BY {', '.join(chosen)}"
        return [*columns, "n BIGINT", "last INT DEFAULT 7"], counted
    limit = random.choice(["", "", f" ORDER BY id {random.choice(HOWS)} LIMIT 3"])
    return [*columns, "last INT DEFAULT 7"], f"SELECT {', '.join(chosen)} FROM kinds{where}{limit}"


def test_rows_of_a_query_are_written_as_spark_writes_them(spark: SparkSession, filled: Catalog) -> None:
    random, found = Random(5), list[Any]()
    for columns, text in (random_copy(random) for _ in range(15)):
        found.clear()
        for execute in (without, lambda catalog, text: by_spark(catalog, text, spark)):
            filled.sql("DROP TABLE IF EXISTS target")
            filled.sql(f"CREATE TABLE target ({', '.join(columns)})")
            names = ", ".join(column.partition(" ")[0] for column in columns[:-1])
            done = execute(filled, f"INSERT INTO target ({names}) {text}")
            rows = filled.table("target").snapshot().scan().to_pylist()
            found.append((done.note, sorted(map(repr, same(rows)))))
        assert found[0] == found[1], (columns, text)


def test_rows_of_a_query_that_are_converted_or_refused_are_sparks(
    spark: SparkSession, filled: Catalog
) -> None:
    filled.sql("CREATE TABLE copy (id BIGINT, name STRING NOT NULL, PRIMARY KEY (id) NOT ENFORCED)")
    for text in (
        "SELECT whole, name FROM kinds WHERE id > 0",  # INT into BIGINT
        "SELECT id, short FROM kinds",  # NULL into NOT NULL
        "SELECT id FROM kinds",
        "SELECT id, upper(name) FROM kinds",
        "SELECT id, name FROM kinds UNION ALL SELECT id, name FROM kinds",
    ):
        assert needs_spark(filled, f"INSERT INTO copy {text}"), text
    assert needs_spark(filled, "INSERT OVERWRITE copy SELECT id, name FROM kinds WHERE name = 'a'")
    filled.sql("CREATE TABLE fine (clock TIME(6))")
    filled.sql("CREATE TABLE coarse (clock TIME(3))")
    filled.table("fine").write(pa.table({"clock": pa.array([time(1, 2, 3, 456789)])}))
    assert needs_spark(filled, "INSERT INTO coarse SELECT clock FROM fine")  # which cuts the microseconds
    with pytest.raises(SchemaError, match="column 'nix' is in no table of the query"):
        without(filled, "INSERT INTO copy SELECT id, nix FROM kinds")
    filled.sql("CREATE TABLE twice (id BIGINT, name STRING)")
    without(filled, "INSERT INTO twice VALUES (1, 'a'), (1, 'b')")
    for execute in (without, lambda catalog, text: by_spark(catalog, text, spark)):
        with pytest.raises(UpsertError, match=r"table 'copy': key \{'id': 1\}: rows without an order"):
            execute(filled, "INSERT INTO copy SELECT id, name FROM twice")
    assert filled.table("copy").snapshot().id == 0
    without(filled, "INSERT INTO copy SELECT id, name FROM twice WHERE name = 'b'")
    without(filled, "INSERT INTO copy SELECT id, name FROM copy")
    assert filled.table("copy").snapshot().scan().to_pylist() == [{"id": 1, "name": "b"}]


def test_other_lists_are_sparks(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql(TARGET)
    for columns, values in NOT_HERE:
        assert needs_spark(catalog, f"INSERT INTO target ({columns}) VALUES {values}"), (columns, values)
    assert needs_spark(catalog, "INSERT INTO target (id) + VALUES (1)")
    assert needs_spark(catalog, "INSERT INTO target (id) SELECT 1")
    assert needs_spark(catalog, "INSERT OVERWRITE target (id) VALUES (1)")
    assert needs_spark(catalog, "INSERT INTO target /*+ OPTIONS('mergeSchema' = 'true') */ (id) VALUES (1)")
    assert catalog.table("target").snapshot().scan().num_rows == 0


def test_a_list_that_breaks_a_rule_writes_nothing(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql(TARGET)
    with pytest.raises(SchemaError, match="short"):
        without(catalog, "INSERT INTO target (id, short) VALUES (1, 'abc'), (2, 'abcd')")
    assert catalog.table("target").snapshot().scan().num_rows == 0


UPDATES = (
    "kinds SET small = small + tiny, name = name || 'x' WHERE id > -20",
    "kinds SET name = 'a' 'b' WHERE id = 3",
    "kinds SET ratio = ratio * 1.5, flag = NOT flag WHERE day IS NOT NULL",
    "kinds SET whole = CASE WHEN flag THEN whole ELSE -1 END, price = NULL WHERE name LIKE '%e%' OR flag",
    "kinds SET tags = NULL, name = coalesce(short, name), day = DATE '2020-01-01' WHERE length(name) = 3",
    "kinds SET whole = 5 WHERE id = 3",
    "kinds SET ratio = -0.0, single = -0 WHERE id < 0",
    "kinds SET ratio = CASE WHEN flag THEN ratio ELSE -0.0 END",
    "kinds SET NAME = 'tea', Flag = TRUE, raw = NULL WHERE id IN (1, 2, -3, 4)",
    "kinds SET day = DATE '2020-02-29', price = -1.25 WHERE whole = 1 OR whole IS NULL",
    "kinds AS k SET k.single = 3, small = -7 WHERE k.name = 'tea' AND NOT k.flag",
    "kinds SET short = 'abc' WHERE kinds.name > 'a'",
    "kinds SET at = TIMESTAMP '2020-01-01 08:00:00Z', ratio = 1e3 WHERE tiny BETWEEN -3 AND 3",
    "kinds SET whole = 0 WHERE small + tiny > 0",
    "kinds SET whole = 1 WHERE id = 1000",
    "kinds SET tiny = NULL, pair = NULL",
    "target SET n = DEFAULT, s = DEFAULT, d = DEFAULT, whole = 4 WHERE id = 2",
    "target SET short = 'a', fixed = 'b', large = 0.0000000001",
    "counted SET s = 'z' WHERE v = 1",
    "counted SET v = 3",
)


DELETIONS = (
    "kinds WHERE small + tiny > 9",
    "kinds AS k WHERE k.name LIKE 'a%' AND k.id > 0",
    "counted WHERE length(s) = 1 AND v > 1",
    "kinds WHERE CASE WHEN flag THEN id > 0 ELSE whole = 1 END",
)


def test_updates_and_deletions_make_sparks_rows(spark: SparkSession, tmp_path: Path) -> None:
    names = ("without", "by spark")
    catalogs = [Catalog(tmp_path / name) for name in names]
    for catalog in catalogs:
        catalog.context.settings = UTC_SESSION
        catalog.sql(KINDS)
        catalog.sql(TARGET)
        catalog.sql("CREATE TABLE counted (v INT, s STRING)")
        catalog.table("counted").write(pa.table({"v": [1, 1, 2], "s": ["a", "a", "b"]}))
        without(catalog, "INSERT INTO target (id, n, s, d) VALUES (1, 1, 'a', 2.5), (2, 2, 'b', 3.5)")
        table = catalog.table("kinds")
        columns = kinds(Random(7), 30)
        table.write(pa.table({name: pa.array(columns[name], table.schema.type_of(name)) for name in columns}))
    for text in (*(f"UPDATE {one}" for one in UPDATES), *(f"DELETE FROM {one}" for one in DELETIONS)):
        rows = []
        for name, catalog in zip(names, catalogs, strict=True):
            result = without(catalog, text) if name == "without" else by_spark(catalog, text, spark)
            found = catalog.table(
                text.removeprefix("DELETE FROM ").removeprefix("UPDATE ").split()[0]
            ).snapshot()
            told = sorted(same(found.scan().to_pylist())), found.id, str(result)
            rows.append(told)
        assert rows[0] == rows[1], text


def test_without_ansi_an_int_and_a_float_meet_as_sparks(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql("CREATE TABLE t (id INT, f FLOAT, w INT, n INT, PRIMARY KEY (id) NOT ENFORCED)")
    table = catalog.table("t")
    rows = [{"id": 1, "f": float(1 << 24), "w": (1 << 24) + 1, "n": 0}]
    table.write(pa.Table.from_pylist(rows, table.schema.arrow))
    for is_ansi, found in (("true", 0), ("false", 1)):
        spark.conf.set("spark.sql.ansi.enabled", is_ansi)
        try:
            catalog.sql("UPDATE t SET n = 1 WHERE f = w", spark)
        finally:
            spark.conf.unset("spark.sql.ansi.enabled")
        assert catalog.table("t").snapshot().scan()["n"].to_pylist() == [found]


def test_other_updates_are_sparks(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql(TARGET)
    others = ("d = d + 1", "name = upper('a')", "s = NULL", "name = 'a\\n'", "n = 1, d = n")
    of_other_types = ("n = 2.5", "whole = '2'", "ratio = 1e400", "day = '2020-01-01'", "whole = 2147483648")
    for change in (*others, *of_other_types):
        assert needs_spark(catalog, f"UPDATE target SET {change}"), change
    assert needs_spark(catalog, "UPDATE target SET n = 1 WHERE id IN (SELECT 1)")
    assert needs_spark(catalog, "UPDATE target SET n = 1 WHERE rand() > 0.5")
    assert needs_spark(catalog, "UPDATE target SET n = 1 WHERE n BETWEEN 1 2")
    assert needs_spark(catalog, "UPDATE target SET n = CASE WHEN n > 1 n END")


def test_an_update_by_literals_sees_what_others_commit_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql("CREATE TABLE t (id INT, v INT, s STRING, PRIMARY KEY (id) NOT ENFORCED)")
    table, own, found = catalog.table("t"), statements.updated, list[pa.Table | None]()
    table.write(pa.table({"id": [1, 2], "v": [1, 1], "s": ["a", "a"]}))

    def meanwhile(*given: Any) -> pa.Table | None:
        found.append(own(*given))
        if len(found) == 1:
            table.write(pa.table({"id": [1], "v": [2], "s": ["b"]}))
        return found[-1]

    monkeypatch.setattr(row_changes, "updated", meanwhile)
    without(catalog, "UPDATE t SET v = 9 WHERE v < 5")
    assert len(found) == 2
    rows = [{"id": 1, "v": 9, "s": "b"}, {"id": 2, "v": 9, "s": "a"}]
    assert catalog.table("t").snapshot().scan().sort_by("id").to_pylist() == rows


def test_a_constant_that_is_an_error_is_sparks_where_there_is_no_row(tmp_path: Path) -> None:
    """Spark computes it once, before it reads any."""
    catalog = Catalog(tmp_path)
    catalog.context.settings = UTC_SESSION
    catalog.sql("CREATE TABLE empty (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    assert not needs_spark(catalog, "SELECT 1 + month(DATE '1970-01-01') AS x FROM empty WHERE 1 + 1 > id")
    for part in ("2147483647 + month(DATE '1970-01-01')", "2147483647 + 1", "id + (2147483647 + 1)"):
        assert needs_spark(catalog, f"SELECT {part} AS x FROM empty")
        assert needs_spark(catalog, f"SELECT id FROM empty WHERE {part} > id")
