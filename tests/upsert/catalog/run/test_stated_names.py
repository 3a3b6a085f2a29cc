"""Names of columns in definitions, whose case does not count: a statement does what it does in exact case."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from upsert import Catalog
from upsert.errors import SchemaError, UpsertError

COLUMNS = "id INT, day STRING, n INT, ts TIMESTAMP"
KEY = "PRIMARY KEY ({id}, {day}) NOT ENFORCED"
TABLE = (
    f"CREATE TABLE t ({COLUMNS}, s STRUCT<a: INT, l: ARRAY<STRUCT<b: INT>>>, m AS id + 1, {KEY}) "
    "PARTITIONED BY (day)"
)

_OF_TOPIC = (
    "WITH ('connector' = 'kafka', 'topic' = 'none', 'properties.bootstrap.servers' = 'localhost:1', "
    "'value.format' = 'json', 'key.format' = 'json', 'key.fields' = '{day};{id}')"
)

CREATED = (
    (f"{KEY}, INDEX ({{n}}), UNIQUE INDEX own ({{n}}, {{id}})", "PARTITIONED BY ({day})"),
    ("WATERMARK FOR {ts} AS {TS} - INTERVAL '1' SECOND", _OF_TOPIC),
    (f"{KEY}, m AS {{n}} * 2, CHECK ({{n}} > 0)", "WITH ('bucket' = '2', 'bucket-key' = '{id}')"),
    (KEY, "WITH ('sequence.field' = '{ts}, {n}')"),
    (KEY, "WITH ('merge-engine' = 'partial-update', 'fields.{n}.sequence-group' = '{ts}')"),
    (KEY, "WITH ('merge-engine' = 'aggregation', 'fields.{n}.aggregate-function' = 'sum')"),
    (KEY, "PARTITIONED BY ({day}) WITH ('partition.timestamp-pattern' = '${day}')"),
)
"""What is declared beside columns, and behind them."""

LIKE = "CREATE TABLE t (m AS {n} * 2, PRIMARY KEY ({N}) NOT ENFORCED) LIKE source (EXCLUDING CONSTRAINTS)"

ALTERED = (
    *("DROP COLUMN {n}", "DROP COLUMNS ({m}, {n})", "RENAME COLUMN {n} TO other", "RENAME COLUMN {n} TO N"),
    *("ALTER COLUMN {n} TYPE BIGINT", "ALTER COLUMN {n} COMMENT 'text'", "ALTER COLUMN {n} SET DEFAULT 7"),
    *("ALTER COLUMN {n} FIRST", "ALTER COLUMN {n} AFTER {id}", "ALTER COLUMN {m} COMMENT 'text'"),
    *(
        "MODIFY COLUMN {n} BIGINT COMMENT 'text' AFTER {id}",
        "MODIFY {n} BIGINT",
        "ADD COLUMN x INT AFTER {n}",
    ),
    *("ADD (x INT, y INT AFTER {x})", "ADD INDEX ({n}, {ts})", "ADD INDEX own ({n})", "ADD x AS {n} * 2"),
    *("ADD WATERMARK FOR {ts} AS {TS}", "ADD CONSTRAINT positive CHECK ({n} > 0)"),
    *("ADD COLUMN {s}.x INT", "DROP COLUMN {s}.{a}", "RENAME COLUMN {s}.{l}.{element}.{b} TO x"),
    *("ALTER COLUMN {s}.{a} TYPE BIGINT", "SET ('partition.timestamp-pattern' = '${day}')"),
)

PARTITIONS = (
    *("ALTER TABLE t DROP PARTITION ({day} = 'a')", "ALTER TABLE t DROP IF EXISTS PARTITION ({day} = 'a')"),
    *("TRUNCATE TABLE t PARTITION ({day} = 'a')", "ALTER TABLE t PARTITION ({day} = 'a') COMPACT"),
    *("ALTER TABLE t COMPACT PARTITION ({day} = 'a')", "SHOW PARTITIONS t PARTITION ({day} = 'a')"),
    *("ALTER TABLE t PARTITION ({day} = 'a') SET ('change-tracking' = 'false')",),
    "DESCRIBE t PARTITION ({day} = 'a')",
)

NAMES = ("id", "day", "n", "ts", "m", "s", "a", "l", "element", "b", "x")


def written(text: str, as_named: Callable[[str], str]) -> str:
    """The text of a statement with the names of columns in some way: exactly, or in capitals."""
    names = {name: as_named(name) for name in NAMES}
    return text.format(**names, TS=names["ts"].swapcase() if as_named is str.upper else "ts", N=names["n"])


def outcome(folder: Path, statements: Sequence[str]) -> list[Any]:
    """What is to be seen of table t after some statements, and what the last one shows."""
    catalog = Catalog(folder, optimize=planner.optimize)
    *before, last = statements
    for statement in before:
        catalog.sql(statement)
    if before and "source" not in before[0]:
        rows = {"id": [1, 2], "day": ["a", "b"]}
        table = catalog.table("t")
        nulls = {c.name: pa.nulls(2, c.type) for c in table.schema.columns if c.name not in rows}
        table.write(pa.table({**rows, **nulls}).select(table.schema.names).cast(table.schema.arrow))
    done = catalog.sql(last)
    ((shown,),) = (row.values() for row in rows_of(catalog.sql("SHOW CREATE TABLE t")))
    found: list[Any] = [shown.replace("N * 2", "n * 2").replace("N > 0", "n > 0")]  # they are kept as written
    if last.startswith(("SHOW", "DESCRIBE")):
        found += [[{**row, "last-modified": 0, "file.path": ""} for row in rows_of(done)]]
    if "connector" not in last:
        found += [catalog.table("t").snapshot().scan().to_pylist()]
        found += [[(p.name, p.change_tracking, p.files) for p in catalog.table("t").partitions()]]
    return found


def rows_of(shown: Any) -> list[dict[str, Any]]:
    return list(shown.rows.to_pylist())


CASES = [
    *([f"CREATE TABLE t ({COLUMNS}, {beside}) {behind}"] for beside, behind in CREATED),
    [f"CREATE TABLE source ({COLUMNS}, {KEY})", LIKE],
    *([TABLE, f"ALTER TABLE t {text}"] for text in ALTERED),
    *([TABLE, text] for text in PARTITIONS),
]


@pytest.mark.parametrize("statements", CASES, ids=[case[-1] for case in CASES])
def test_case_does_not_count(tmp_path: Path, statements: Sequence[str]) -> None:
    *before, last = statements
    exact = [*(written(text, str) for text in before)]
    expected = outcome(tmp_path / "exact", [*exact, written(last, str)])
    assert outcome(tmp_path / "other", [*exact, written(last, str.upper)]) == expected


@pytest.mark.spark
@pytest.mark.parametrize(
    "head",
    [
        "CREATE TABLE v (PRIMARY KEY ({id}) NOT ENFORCED, INDEX ({n})) WITH ('bucket-key' = '{id}')",
        "CREATE TABLE v (PRIMARY KEY ({id}, {n}) NOT ENFORCED) PARTITIONED BY ({n})",
        "CREATE MATERIALIZED VIEW v (PRIMARY KEY ({id}, {n}) NOT ENFORCED, INDEX ({n})) PARTITIONED BY ({n})",
    ],
)
def test_case_does_not_count_beside_a_query(tmp_path: Path, spark: SparkSession, head: str) -> None:
    catalog = Catalog(tmp_path, optimize=planner.optimize)
    catalog.sql("CREATE TABLE t (id INT, n INT, m AS N * 2, PRIMARY KEY (ID) NOT ENFORCED)")
    catalog.table("t").write(pa.table({"id": [1], "n": [2]}).cast(catalog.table("t").schema.arrow))
    assert rows_of(catalog.sql("SELECT m FROM t", spark)) == [{"m": 4}]
    found = []
    for as_named in (str, str.upper):
        catalog.sql(f"{written(head, as_named)} AS SELECT id, n FROM t", spark)
        found.append((rows_of(catalog.sql("SHOW CREATE TABLE v")), catalog.table("v").snapshot().scan()))
        catalog.sql("DROP MATERIALIZED VIEW v" if "VIEW" in head else "DROP TABLE v")
    assert found[0] == found[1]


@pytest.mark.spark
def test_case_counts_in_a_session_that_tells_names_apart_by_it(tmp_path: Path, spark: SparkSession) -> None:
    catalog = Catalog(tmp_path)
    catalog.sql(written(TABLE, str))
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        for text in ("ALTER TABLE t DROP COLUMN N", "ALTER TABLE t DROP PARTITION (DAY = 'a')"):
            with pytest.raises(UpsertError, match=r"'N'|'DAY'"):
                catalog.sql(text, spark)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    catalog.sql("ALTER TABLE t DROP COLUMNS (M, N)", spark)


def test_a_column_is_named_once_whatever_its_case(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    for clause in ("PRIMARY KEY (id, ID) NOT ENFORCED", "INDEX (n, N)"):
        with pytest.raises(SchemaError, match=r"names column '(id|n)' twice"):
            catalog.sql(f"CREATE TABLE t ({COLUMNS}, {clause})")
    catalog.sql(written(TABLE, str))
    with pytest.raises(SchemaError, match="names column 'day' twice"):
        catalog.sql("SHOW PARTITIONS t PARTITION (day = 'a', DAY = 'b')")
