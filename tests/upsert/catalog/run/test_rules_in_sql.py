"""Lengths, DEFAULT and CHECK in statements, batches and streams, against what Spark itself says."""

import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Running
from upsert.errors import ChangelogError, CheckViolatedError, ConfigurationError, SchemaError
from upsert.managed import micro_batch
from upsert.schema import TableSchema
from upsert.sql.checks import check_of
from upsert.sql.columns import read_check
from upsert.sql.tokens import Cursor
from upsert.store.rows.conform import check_rows

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("n", pa.int32()),
        ("f", pa.float32()),
        ("x", pa.float64()),
        ("dec", pa.decimal128(10, 2)),
        ("t", pa.string()),
        ("d", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("ntz", pa.timestamp("us")),
        ("yes", pa.bool_()),
    ]
)
ROWS = """
    (1, 1Y, 1, 0.1F, 0.1D, 0.10BD, 'ab', DATE '2020-01-01', TIMESTAMP '2020-01-01 00:00:00Z',
        TIMESTAMP_NTZ '2020-01-01 00:00:00', true),
    (2, 127Y, 2147483647, float('NaN'), double('NaN'), 99999999.99BD, '', DATE '1969-12-31',
        TIMESTAMP '1969-12-31 23:59:59.999999Z', TIMESTAMP_NTZ '1969-12-31 00:00:00', false),
    (3, -128Y, -5, -0.0F, double('Infinity'), -1.00BD, 'äö😀', DATE '2024-02-29',
        TIMESTAMP '2024-02-29 12:00:00Z', TIMESTAMP_NTZ '2024-02-29 00:00:00', true),
    (4, null, null, null, null, null, null, null, null, null, null)
"""
CHECKS = """
    n > 1
    1 < n
    small + 1 > 127
    n = small
    n <> 2147483648
    n > 0.5
    -n < 5
    n BETWEEN 0 AND 5
    f > 0.1
    f = 0.1 OR n < 0
    x > 1
    x >= f
    x = 0.1
    x < 1e300
    isnan(x) OR x > 1
    x NOT BETWEEN 0 AND 1
    dec > 0.1
    dec < 100000000
    dec = 0.10
    dec < n
    dec IN (0.1, -1)
    abs(n) = 5
    n * 2L > 3
    t LIKE 'a%'
    t NOT LIKE '%b'
    t > 'a'
    length(t) = 3
    t || 'x' = 'x'
    substring(t, 1, 1) = 'a'
    t IN ('ab', NULL)
    t NOT IN ('ab', '')
    startswith(t, 'a')
    contains(t, 'b')
    endswith(t, '')
    d > '2000-01-01'
    d >= DATE '2020-01-01'
    year(d) = 2020
    month(d) = 2
    day(d) < 30
    at > TIMESTAMP '2020-01-01 00:00:00Z'
    at < '2024-02-29 13:00:00+01:00'
    ntz > '2000-01-01 00:00:00'
    yes
    NOT yes
    yes IS TRUE
    yes IS NOT FALSE
    n IS NULL
    n IS NOT NULL AND n > 0
    n <=> NULL
    CASE WHEN n > 0 THEN yes ELSE small > 0 END
    CASE n WHEN 1 THEN true END
    if(yes, n > 0, x > 0)
    coalesce(n, 0) > 0
    nvl(n, ifnull(n, coalesce(0))) > 0 AND coalesce(n, 0, nvl(n, 1)) > 0
    coalesce(dec, 1.5) > 1
    n > 0 OR t = 'ab' AND NOT yes
    CAST(n AS BIGINT) + 1 > 0
"""


@pytest.mark.spark
def test_a_check_is_broken_by_the_rows_of_which_spark_says_that_it_is_false(
    spark: SparkSession,
) -> None:
    names, checks = ", ".join(COLUMNS.names), [line.strip() for line in CHECKS.strip().splitlines()]
    df = spark.sql(f"SELECT * FROM VALUES {ROWS} AS t({names})")
    broken = df.selectExpr("id", *(f"NOT ({check}) AS c{number}" for number, check in enumerate(checks)))
    said = sorted(broken.toArrow().to_pylist(), key=lambda row: row["id"])
    rows = df.toArrow().select(COLUMNS.names).cast(COLUMNS).sort_by("id")
    found, expected = {}, {}
    for number, text in enumerate(checks):
        schema = TableSchema.of(COLUMNS, primary_key=["id"])
        schema = replace(schema, checks=(check_of(read_check(Cursor(f"CHECK ({text})")), schema, "t"),))
        expected[text] = [row[f"c{number}"] is True for row in said]
        found[text] = [is_broken(schema, rows.slice(place, 1)) for place in range(len(said))]
        assert any(row[f"c{number}"] is False for row in said), f"{text} holds of no row"
    assert found == expected


def is_broken(schema: TableSchema, row: pa.Table) -> bool:
    try:
        check_rows(schema, row, None, "t")
    except CheckViolatedError:
        return True
    return False


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("n IN (1,, 2)", "found ',' at line 1, column 9"),
        ("coalesce(n, ) > 1", "found ')' at line 1, column 13"),
        ("nvl(n, 1, 2) > 1", "found ',' at line 1, column 9"),
        ("ifnull(n) > 1", "found ')' at line 1, column 9"),
        ("n BETWEEN 1 2", "found '2' at line 1, column 13"),
        ("n NOT NULL", "found 'NULL' at line 1, column 7"),
        ("CASE WHEN yes n > 1 END", "found 'n' at line 1, column 15"),
        ("x > 1.5e- 1", "a name needs back quotes, found '1.5e' at line 1, column 5"),
        ("x > 1e", "a name needs back quotes, found '1e' at line 1, column 5"),
        ("x > . 5", "found '.' at line 1, column 5"),
        ("n > 1 :", "found ':' at line 1, column 7"),
    ],
)
def test_a_check_that_spark_does_not_read_is_refused(text: str, found: str) -> None:
    """sqlglot passes over what is missing, and over what is too much."""
    schema = TableSchema.of(COLUMNS, primary_key=["id"])
    with pytest.raises(SchemaError, match=re.escape(found)):
        check_of(read_check(Cursor(f"CHECK ({text})")), schema, "t")


def test_a_default_that_is_no_number_is_refused(catalog: Catalog) -> None:
    with pytest.raises(SchemaError, match="a number has digits behind its E"):
        catalog.sql("CREATE TABLE d (id BIGINT, x DOUBLE DEFAULT 1e, PRIMARY KEY (id) NOT ENFORCED)")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    found = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    found.sql(
        """
        CREATE TABLE t (
            id BIGINT, code CHAR(4) DEFAULT 'it''s', name VARCHAR(5) NOT NULL DEFAULT concat('a', 'b'),
            n INT DEFAULT 7, plain INT, CONSTRAINT few CHECK (n < 100), PRIMARY KEY (id) NOT ENFORCED
        )"""
    )
    return found


def write(catalog: Catalog, *ids: int, plain: int | None = None) -> None:
    """Rows with the defaults."""
    schema = catalog.table("t").schema.arrow
    rows = [{"id": id, "code": "it's", "name": "ab", "n": 7, "plain": plain} for id in ids]
    catalog.table("t").write(pa.Table.from_pylist(rows, schema=schema))


def rows_of(catalog: Catalog) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in catalog.table("t").snapshot().scan().to_pylist())


@pytest.mark.spark
class TestStatements:
    def test_what_a_statement_leaves_out_is_the_default(self, spark: SparkSession, catalog: Catalog) -> None:
        catalog.sql("INSERT INTO t (id) VALUES (1)", spark)
        catalog.sql("INSERT INTO t (plain, id) SELECT 5, 2", spark)
        catalog.sql(
            "INSERT INTO t VALUES (3, DEFAULT, 'c   ', DEFAULT, DEFAULT), (4, 'DEF', default, 1, 2)", spark
        )
        catalog.sql("INSERT INTO t (n, id, name) VALUES (DEFAULT, 5, 'long        ')", spark)
        catalog.sql("INSERT INTO t (id, code, name, n) VALUES (6, NULL, 'DEF,', NULL)", spark)
        assert rows_of(catalog) == [
            (1, "it's", "ab", 7, None),
            (2, "it's", "ab", 7, 5),
            (3, "it's", "c   ", 7, None),
            (4, "DEF ", "ab", 1, 2),
            (5, "it's", "long ", 7, None),
            (6, None, "DEF,", None, None),
        ]
        catalog.sql("UPDATE t SET n = DEFAULT, plain = DEFAULT, code = name WHERE id IN (4, 6)", spark)
        assert rows_of(catalog)[3::2] == [(4, "ab  ", "ab", 7, None), (6, "DEF,", "DEF,", 7, None)]
        catalog.sql("ALTER TABLE t ALTER COLUMN name DROP DEFAULT")
        catalog.sql("ALTER TABLE t ALTER COLUMN n SET DEFAULT year(DATE '2000-01-01') - 1990")
        with pytest.raises(SchemaError, match="'name' is NOT NULL, and the statement gives it no value"):
            catalog.sql("INSERT INTO t (id) VALUES (7)", spark)
        catalog.sql("INSERT INTO t (id, name) VALUES (7, '')", spark)
        assert rows_of(catalog)[-1] == (7, "it's", "", 10, None)

    def test_an_older_snapshot_has_null_where_a_column_is_not_null_by_now(
        self, spark: SparkSession, catalog: Catalog
    ) -> None:
        write(catalog, 1, 2)
        write(catalog, 1, plain=1)
        with pytest.raises(SchemaError, match=r"column 'plain' .* got 1 rows that have it, one with id = 2"):
            catalog.sql("ALTER TABLE t ALTER COLUMN PLAIN SET NOT NULL")
        catalog.sql("UPDATE t SET plain = 2 WHERE id = 2", spark)
        catalog.sql("ALTER TABLE t ALTER COLUMN PLAIN SET NOT NULL")
        assert "`plain` INT NOT NULL" in str(catalog.sql("SHOW CREATE TABLE t"))
        for version, ids in (("VERSION AS OF 1", [1, 2]), ("VERSION AS OF 2", [2]), ("VERSION AS OF 3", [])):
            found = f"SELECT id FROM t {version} WHERE plain IS NULL ORDER BY id"
            assert [row.id for row in catalog.sql(found, spark).df.collect()] == ids
        with pytest.raises(SchemaError, match="'plain' is NOT NULL, and the statement gives it no value"):
            catalog.sql("INSERT INTO t (id) VALUES (7)", spark)

    def test_merge_inserts_defaults_and_checks_rows(self, spark: SparkSession, catalog: Catalog) -> None:
        write(catalog, 1, 2, plain=2)
        merge = "MERGE INTO t USING (SELECT * FROM VALUES (1L), (3L) AS s(k)) s ON t.id = s.k"
        catalog.sql(
            f"{merge} WHEN MATCHED THEN UPDATE SET n = 8, plain = DEFAULT "
            "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET code = DEFAULT, n = DEFAULT "
            "WHEN NOT MATCHED THEN INSERT (id, n, plain) VALUES (k, DEFAULT, 9)",
            spark,
        )
        expected = [(1, "it's", "ab", 8, None), (2, "it's", "ab", 7, 2), (3, "it's", "ab", 7, 9)]
        assert rows_of(catalog) == expected
        for action in ("UPDATE SET n = 100", "UPDATE SET name = 'abcdef'"):
            with pytest.raises((CheckViolatedError, SchemaError), match=r"few CHECK|VARCHAR\(5\)"):
                catalog.sql(f"{merge} WHEN MATCHED THEN {action}", spark)
        assert rows_of(catalog) == expected

    def test_insert_adds_the_columns_that_it_names(self, spark: SparkSession, catalog: Catalog) -> None:
        merging = "INSERT INTO t /*+ OPTIONS('mergeSchema' = 'true') */"
        catalog.sql(f"{merging} (tag, id, plain, name) SELECT 'x', 1, 5000000000, 'one'", spark)
        catalog.sql(f"{merging} VALUES (2, 'a', DEFAULT, 3, 4, 'y', 0.5)", spark)
        added = [(column.name, column.sql_type) for column in catalog.table("t").schema.columns[4:]]
        assert added[:2] == [("plain", "BIGINT"), ("tag", "STRING")]
        assert added[2][1] == "DECIMAL(1,1)"
        assert rows_of(catalog) == [
            (1, "it's", "one", 7, 5_000_000_000, "x", None),
            (2, "a   ", "ab", 3, 4, "y", Decimal("0.5")),
        ]
        for columns, message in (
            ("(id, n, n2) SELECT 9, 200, 1", "few CHECK"),
            ("(id, ID) SELECT 9, 9", "column 'id' is named twice"),
        ):
            with pytest.raises((CheckViolatedError, SchemaError), match=message):
                catalog.sql(f"{merging} {columns}", spark)
        catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
        catalog.sql("SET 'pipeline.name' = 'merged'")
        with pytest.raises(ConfigurationError, match="'merge-schema' must go with a batch write"):
            catalog.sql(f"{merging} (id, n) SELECT id, n FROM t", spark)

    @pytest.mark.parametrize(
        ("statement", "kind", "message"),
        [
            (
                "INSERT INTO t (id, n) VALUES (9, 1), (8, 100)",
                CheckViolatedError,
                "few CHECK .* id = 8, n = 100",
            ),
            ("UPDATE t SET n = n + 93", CheckViolatedError, "few CHECK .* id = 1, n = 100"),
            (
                "INSERT INTO t (id, name) VALUES (9, 'abcdef')",
                SchemaError,
                r"'name' is VARCHAR\(5\), .* of 6 charac",
            ),
            ("UPDATE t SET code = 'abcde'", SchemaError, r"column 'code' is CHAR\(4\)"),
        ],
    )
    def test_a_row_that_breaks_a_rule_fails_the_statement(
        self, spark: SparkSession, catalog: Catalog, statement: str, kind: type[Exception], message: str
    ) -> None:
        write(catalog, 1)
        with pytest.raises(kind, match=message):
            catalog.sql(statement, spark)
        assert rows_of(catalog) == [(1, "it's", "ab", 7, None)]

    @pytest.mark.parametrize("few", [20_000, pytest.param(-1, marks=pytest.mark.long)])
    def test_a_stream_writes_defaults_and_ends_at_a_row_that_breaks_a_rule(
        self, spark: SparkSession, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, few: int
    ) -> None:
        """In the driver, where the rows are few, and in tasks."""
        monkeypatch.setattr(micro_batch, "FEW_ROWS", few)
        catalog.sql("CREATE TABLE s (id BIGINT, n INT, PRIMARY KEY (id) NOT ENFORCED)")
        catalog.table("s").write(pa.table({"id": [1, 2], "n": pa.array([1, 2], pa.int32())}))
        catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
        catalog.sql("SET 'pipeline.name' = 'copy'")
        running = catalog.sql("INSERT INTO t (id, n) SELECT id, n FROM s", spark)
        assert isinstance(running, Running)
        running.query.processAllAvailable()
        good = [(1, "it's", "ab", 1, None), (2, "it's", "ab", 2, None)]
        assert rows_of(catalog) == good
        catalog.sql("ALTER TABLE t ADD CONSTRAINT more CHECK (n <= 90)")
        catalog.table("s").write(pa.table({"id": [2], "n": pa.array([90], pa.int32())}))
        running.query.processAllAvailable()
        good[1] = (2, "it's", "ab", 90, None)
        catalog.sql("ALTER TABLE t DROP CONSTRAINT more")
        catalog.table("s").write(pa.table({"id": [1, 3], "n": pa.array([5, 100], pa.int32())}))
        with pytest.raises(CheckViolatedError, match=r"few CHECK .* id = 3, n = 100"):
            running.await_termination()
        assert rows_of(catalog) == good
        catalog.table("s").write(pa.table({"id": [3], "n": pa.array([99], pa.int32())}))
        again = catalog.sql("INSERT INTO t (id, n) SELECT id, n FROM s", spark)
        assert isinstance(again, Running)
        with pytest.raises(CheckViolatedError):  # the micro-batch is the one that was logged
            again.await_termination()
        assert rows_of(catalog) == good
        catalog.sql("ALTER TABLE t DROP CONSTRAINT few")
        last = catalog.sql("INSERT INTO t (id, n) SELECT id, n FROM s", spark)
        assert isinstance(last, Running)
        last.query.processAllAvailable()
        last.query.stop()
        assert [row[3] for row in rows_of(catalog)] == [5, 90, 99]

    def test_a_table_from_a_query_has_no_rules_and_a_copy_has_all(
        self, spark: SparkSession, catalog: Catalog
    ) -> None:
        write(catalog, 1)
        catalog.sql("CREATE TABLE u AS SELECT * FROM t", spark)
        assert not catalog.table("u").schema.has_rules
        catalog.sql("CREATE TABLE v LIKE t")
        assert catalog.table("v").schema == catalog.table("t").schema
        catalog.sql("INSERT INTO v SELECT * FROM u", spark)
        catalog.sql("CREATE TABLE w LIKE t (EXCLUDING CONSTRAINTS)")
        assert catalog.table("w").schema.checks == ()

    def test_a_key_with_a_length_is_one_whatever_blanks_it_comes_with(
        self, spark: SparkSession, catalog: Catalog
    ) -> None:
        """Also where Spark gives the rows of a bucket to one task, and where it compares keys."""
        catalog.sql(
            "CREATE TABLE c (code CHAR(4), v VARCHAR(2), n INT, PRIMARY KEY (code, v) NOT ENFORCED) "
            "WITH ('bucket' = '4')"
        )
        catalog.sql("INSERT INTO c SELECT id, 'v', 1 FROM range(40)", spark)
        catalog.sql(
            "INSERT INTO c SELECT id || repeat(' ', id % 5), 'v' || repeat(' ', id % 2), 2 FROM range(40)",
            spark,
        )
        catalog.sql("INSERT INTO c VALUES ('7', 'v', 3), ('7   ', 'v', 4), ('7      ', 'v', 5)", spark)
        found = catalog.table("c").snapshot().scan().to_pylist()
        keys = {(f"{n:<4}", "v " if n % 2 else "v") for n in range(40)} | {
            (f"{n:<4}", "v") for n in range(40)
        }
        assert {(row["code"], row["v"]) for row in found} == keys
        assert [row["n"] for row in found if row["code"] == "7   "] in ([5, 2], [2, 5])
        merge = "MERGE INTO c USING (SELECT '7' AS code, 'v' AS v, 6 AS n) s ON c.code = s.code AND c.v = s.v"
        with pytest.raises(ChangelogError, match="the target has one with the key"):
            catalog.sql(f"{merge} WHEN NOT MATCHED THEN INSERT *", spark)

    @pytest.mark.long
    def test_a_sink_keeps_the_rows_of_a_key_with_a_length_together(
        self, spark: SparkSession, catalog: Catalog
    ) -> None:
        catalog.sql("CREATE TABLE s (id BIGINT, code STRING, n INT, PRIMARY KEY (id) NOT ENFORCED)")
        catalog.sql(
            "CREATE TABLE k (code CHAR(3), n INT, PRIMARY KEY (code) NOT ENFORCED) WITH ('bucket' = '2')"
        )
        catalog.sql("INSERT INTO s VALUES (1, 'a', 1), (2, 'b', 2)", spark)
        catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
        catalog.sql("SET 'pipeline.name' = 'kept'")
        running = catalog.sql("INSERT INTO k SELECT code, n FROM s", spark)
        assert isinstance(running, Running)
        running.query.processAllAvailable()
        source, sink = catalog.table("s"), catalog.table("k")
        source.write(pa.table({"id": [3], "code": ["a   "], "n": pa.array([3], pa.int32())}))
        running.query.processAllAvailable()
        assert sorted(sink.snapshot().scan().column("n").to_pylist()) == [2, 3]
        source.delete([("id", "=", 3)])
        running.query.processAllAvailable()
        running.query.stop()
        assert sorted(map(tuple, (row.values() for row in sink.snapshot().scan().to_pylist()))) == [
            ("a  ", 1),
            ("b  ", 2),
        ]


def test_a_column_with_a_default_is_added_to_rows_as_spark_adds_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's own tables keep the value of the moment in which the column came too."""
    catalog = Catalog(tmp_path / "w")
    columns = [
        "code CHAR(4) DEFAULT 'it''s'",
        "name VARCHAR(5) DEFAULT concat('a', 'b')",
        "small TINYINT DEFAULT 1 + 2",
        "dec DECIMAL(38, 10) DEFAULT 1.5",
        "f FLOAT DEFAULT 0.1",
        "at TIMESTAMP DEFAULT TIMESTAMP '2020-01-01 12:00:00'",
        "d DATE DEFAULT DATE '0001-01-01'",
        "yes BOOLEAN DEFAULT true",
        "missing STRING DEFAULT NULL",
    ]
    spark.sql("CREATE TABLE spark_own (id INT) USING parquet")
    try:
        catalog.sql("CREATE TABLE own (id INT, PRIMARY KEY (id) NOT ENFORCED)")
        runs = {"spark_own": spark.sql, "own": lambda text: catalog.sql(text, spark)}
        for of, run in runs.items():
            run(f"INSERT INTO {of} VALUES (1), (2)")
            for column in columns:
                run(f"ALTER TABLE {of} ADD COLUMN {column}")
            run(f"INSERT INTO {of} (id) VALUES (3)")
            run(f"ALTER TABLE {of} ALTER COLUMN small SET DEFAULT 9")
            run(f"INSERT INTO {of} (id) VALUES (4)")
        wanted = spark.table("spark_own").orderBy("id").collect()
        assert catalog.read(spark, "own").orderBy("id").collect() == wanted
        assert [row.small for row in wanted] == [3, 3, 3, 9]
    finally:
        spark.sql("DROP TABLE spark_own")


def test_a_not_null_column_with_the_time_of_its_statement_is_added_to_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    catalog = Catalog(tmp_path / "w")
    catalog.sql("CREATE TABLE t (id INT)")
    catalog.sql("INSERT INTO t VALUES (1), (1)", spark)
    catalog.sql("ALTER TABLE t ADD COLUMN since TIMESTAMP NOT NULL DEFAULT current_timestamp()", spark)
    (first,) = {row["since"] for row in catalog.table("t").snapshot().scan().to_pylist()}
    catalog.sql("INSERT INTO t (id) VALUES (2)", spark)
    later = catalog.table("t").snapshot().scan(where=[("id", "=", 2)]).to_pylist()[0]["since"]
    assert first < later
    with pytest.raises(SchemaError, match="column 'n' is NOT NULL, got NULL; give another value"):
        catalog.sql("ALTER TABLE t ADD COLUMN n INT NOT NULL DEFAULT CAST(NULL AS INT)", spark)
    with pytest.raises(SchemaError, match="'a' has a DEFAULT, and present rows would have NULL"):
        catalog.sql("ALTER TABLE t ADD COLUMN a ARRAY<INT> DEFAULT array(1)", spark)
