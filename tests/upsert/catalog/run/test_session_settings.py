"""Statements in sessions with other settings: what is written, and what a table's own texts mean there.

Spark's own tables are the oracle of what goes into a column.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from pyspark.errors import AnalysisException, ArithmeticException
from pyspark.sql import SparkSession

from tests.upsert.catalog.queried import rows
from upsert.catalog.catalog import Catalog
from upsert.errors import SchemaError
from upsert.spark.settings import copy_of

pytestmark = pytest.mark.spark

SEED = int(os.environ.get("SEED", "5"))
"""Of the first eight numbers some fit and some do not, into several types, by each statement."""

SIGNS = (
    "spark.sql.parser.escapedStringLiterals",
    "spark.sql.ansi.doubleQuotedIdentifiers",
    "spark.sql.legacy.consecutiveStringLiterals.enabled",
)
"""Settings by which quotes and backslashes are read otherwise."""


TYPES = {
    **dict.fromkeys(
        ("TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL(5, 2)", "DECIMAL(20, 0)", "DOUBLE"), "{}"
    ),
    "ARRAY<INT>": "array(1, {})",
    "STRUCT<a: STRING, b: INT>": "named_struct('A', 'x', 'B', {})",
    "MAP<STRING, SMALLINT>": "map('k', {})",
}
"""Types, and how a number becomes a value that goes into one."""


def number(random: Random) -> str:
    """A number near a limit of a type, of any type of numbers."""
    limit = random.choice([7, 15, 31, 63])
    size = random.choice([(1 << limit) - 1, 1 << limit, 999, 1000, 3])
    sign = random.choice(["", "-"])
    return random.choice([f"{sign}{size}", f"{sign}{size}.995", f"{sign}{size}e0", f"{sign}{size}e3", "NULL"])


@pytest.fixture
def theirs(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """Spark's own table of all types, and the number of a row."""
    columns = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(TYPES))
    spark.sql(f"CREATE TABLE theirs (id INT, {columns}) USING parquet LOCATION '{tmp_path}/theirs'")
    yield columns
    spark.sql("DROP TABLE theirs")


@pytest.mark.parametrize(
    ("count", "is_ansi"),
    [(8, "false"), *(pytest.param(80, one, marks=pytest.mark.long) for one in ("false", "true"))],
)
def test_a_number_that_does_not_fit_is_an_error_that_names_the_column(
    spark: SparkSession, catalog: Catalog, theirs: str, count: int, is_ansi: str
) -> None:
    """A cast of a session without ANSI would make another number of it, or NULL."""
    random, session = Random(SEED), copy_of(spark, {"spark.sql.ansi.enabled": is_ansi})
    catalog.sql(f"CREATE TABLE t (id INT, {theirs}, PRIMARY KEY (id) NOT ENFORCED)")
    stored: dict[int, str] = {}
    for row in range(count):
        column, (type_, value) = random.choice([*enumerate(TYPES.items())])
        value = value.format(number(random))
        merge = f"MERGE INTO t USING (SELECT {row} AS id) AS s ON t.id = s.id"
        written = [
            f"INSERT INTO t (id, c{column}) VALUES ({row}, {value})",
            f"UPDATE t SET c{column} = {value} WHERE id = {row}",
            f"{merge} WHEN NOT MATCHED THEN INSERT (id, c{column}) VALUES (s.id, {value})",
        ]
        statement = random.choice(written)
        if statement == written[1]:
            catalog.sql(f"INSERT INTO t (id) VALUES ({row})", session)
        try:
            session.sql(f"INSERT INTO theirs (id, c{column}) VALUES ({row}, {value})")
        except (ArithmeticException, AnalysisException):
            verb = statement.partition(" t ")[0]
            refusal = rf"^{verb} t: column 'c{column}' must be .*, which cannot hold [\d.E-]+$"
            with pytest.raises(SchemaError, match=refusal):
                catalog.sql(statement, session)
            catalog.sql(f"DELETE FROM t WHERE id = {row}")
        else:
            catalog.sql(statement, session)
            stored[row] = f"{type_} gets {value}"
    assert 0 < len(stored) < count
    texts = ", ".join(f"CAST(c{column} AS STRING) AS c{column}" for column in range(len(TYPES)))
    wanted = sorted(map(tuple, session.sql(f"SELECT id, {texts} FROM theirs").collect()), key=repr)
    assert rows(catalog, session, f"SELECT id, {texts} FROM t") == wanted, f"seed {SEED}: {stored}"


def test_a_time_is_updated_in_a_session_whose_timestamps_have_no_zone(
    spark: SparkSession, catalog: Catalog
) -> None:
    session = copy_of(
        spark, {"spark.sql.timestampType": "TIMESTAMP_NTZ", "spark.sql.session.timeZone": "Asia/Tokyo"}
    )
    catalog.sql("CREATE TABLE t (id INT, at TIMESTAMP, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("INSERT INTO t (id) VALUES (1)", session)
    catalog.sql("UPDATE t SET at = TIMESTAMP '2020-01-01 09:00:00'", session)
    assert rows(catalog, spark, "SELECT id, CAST(at AS STRING) FROM t") == [(1, "2020-01-01 00:00:00")]


TEXTS = (
    (r"'a\nb'", "a\nb"),
    (r"'a\\nb'", r"a\nb"),
    ("'it''s'", "it's"),
    ('"x"', "x"),
    ('"say ""so"""', 'say "so"'),
    (r"""concat('\'', 'x' "y")""", "'xy"),
    (r"r'a\d'", r"a\d"),
    (r"'\u0041%\\_'", r"A%\_"),
)


@pytest.mark.parametrize(
    "settings", [SIGNS, *(pytest.param([sign], marks=pytest.mark.long) for sign in SIGNS)], ids=str
)
def test_what_a_table_keeps_means_the_same_in_each_session(
    spark: SparkSession, catalog: Catalog, settings: Sequence[str]
) -> None:
    """A DEFAULT is written, and a column computed, as in the session in which the table was created."""
    defaults = ", ".join(f"d{number} STRING DEFAULT {text}" for number, (text, _) in enumerate(TEXTS))
    computed = ", ".join(f"c{number} AS {text}" for number, (text, _) in enumerate(TEXTS))
    catalog.sql(f"CREATE TABLE t (id INT, {defaults}, {computed}, PRIMARY KEY (id) NOT ENFORCED)", spark)
    other = copy_of(spark, {"spark.sql.ansi.enabled": "true", **dict.fromkeys(settings, "true")})
    catalog.sql("INSERT INTO t (id) VALUES (0)", other)
    catalog.sql(f"INSERT INTO t VALUES (1{', DEFAULT' * len(TEXTS)}), (2{', NULL' * len(TEXTS)})", other)
    catalog.sql(
        f"UPDATE t SET {', '.join(f'd{number} = DEFAULT' for number in range(len(TEXTS)))} WHERE id = 2",
        other,
    )
    merge = "MERGE INTO t USING (SELECT 3 AS id) s ON t.id = s.id"
    catalog.sql(f"{merge} WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)", other)
    meant = [text for _, text in TEXTS]
    assert rows(catalog, spark, "SELECT * FROM t") == [(number, *meant, *meant) for number in range(4)]
    assert rows(catalog, other, "SELECT * FROM t") == [(number, *meant, *meant) for number in range(4)]


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("spark.sql.parser.escapedStringLiterals", r"'a\nb'"),
        ("spark.sql.ansi.doubleQuotedIdentifiers", '"name"'),
        ("spark.sql.legacy.consecutiveStringLiterals.enabled", "'it''s'"),
    ],
)
def test_a_text_that_only_the_session_reads_so_is_not_kept(
    spark: SparkSession, catalog: Catalog, setting: str, text: str
) -> None:
    """It would be another one for all who use the table."""
    session = copy_of(spark, {"spark.sql.ansi.enabled": "true", setting: "true"})
    create = "CREATE TABLE {} (id INT, name STRING{}, PRIMARY KEY (id) NOT ENFORCED)"
    catalog.sql(create.format("t", ""), session)
    statements = [
        create.format("u", f" DEFAULT {text}"),
        create.format("u", f", CHECK (name <> {text})"),
        create.format("u", f", other AS concat(name, {text})"),
        f"CREATE TABLE u (CHECK (name <> {text})) LIKE t",
        f"ALTER TABLE t ALTER COLUMN name SET DEFAULT {text}",
        f"ALTER TABLE t ADD CONSTRAINT c CHECK (name <> {text})",
        f"ALTER TABLE t ADD other AS concat(name, {text})",
        f"INSERT INTO t PARTITION (name = {text}) SELECT 1",
    ]
    for statement in statements:
        with pytest.raises(SchemaError, match=f"must mean the same in all sessions, .* '{setting}' = 'true'"):
            catalog.sql(statement, session)
    assert catalog.tables() == ("t",)
    catalog.sql(create.format("v", f" DEFAULT {text}"), spark)
    catalog.sql("CREATE TABLE u LIKE v", session)


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("DELETE FROM t WHERE at = TIMESTAMP '2020-10-01 08:00:00'", {1: 8}),
        ("UPDATE t SET n = 3 WHERE at = TIMESTAMP '2020-10-01 08:00:00'", {1: 8, 3: 23}),
        ("UPDATE t SET at = TIMESTAMP '2020-10-01 08:00:00' WHERE n = 1", {1: 23, 2: 23}),
    ],
)
def test_a_setting_of_the_catalog_holds_for_the_first_statement_after_it(
    spark: SparkSession, catalog: Catalog, statement: str, left: dict[int, int]
) -> None:
    catalog.sql("CREATE TABLE t (n INT, at TIMESTAMP)")
    times = "TIMESTAMP '2020-10-01 08:00:00Z'", "TIMESTAMP '2020-09-30 23:00:00Z'"
    catalog.sql(f"INSERT INTO t VALUES (1, {times[0]}), (2, {times[1]})", spark)
    catalog.sql("SET 'spark.sql.session.timeZone' = 'Asia/Tokyo'")
    catalog.sql(statement, copy_of(spark, {}))
    found = catalog.table("t").snapshot().scan().to_pylist()
    assert {row["n"]: row["at"].hour for row in found} == left
