"""Views whose tables were altered: they go on, or are refused at once with what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from upsert import Catalog
from upsert.errors import SchemaError

pytestmark = pytest.mark.spark

REMEDY = "CREATE OR REPLACE MATERIALIZED VIEW takes the present ones"

Run = Callable[[str], object]


def write(catalog: Catalog, name: str, row: dict[str, Any]) -> None:
    table = catalog.table(name)
    table.write(pa.Table.from_pylist([row], schema=table.schema.arrow))


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "warehouse", optimize=planner.optimize)


@pytest.fixture
def run(catalog: Catalog, spark: SparkSession) -> Run:
    def run(text: str) -> object:
        return catalog.sql(text, spark)

    key = "PRIMARY KEY (id) NOT ENFORCED"
    run(f"CREATE TABLE t (id INT, a INT, b INT, f FLOAT, s STRUCT<x: INT, y: INT>, {key})")
    run(f"CREATE TABLE l (id INT, at ARRAY<STRUCT<x: INT, y: INT>>, {key})")
    run(f"CREATE TABLE u (id INT, b INT, {key})")
    write(catalog, "t", {"id": 1, "a": 10, "b": 100, "f": 1.5, "s": {"x": 1, "y": 2}})
    write(catalog, "u", {"id": 1, "b": 7})
    return run


def rows(catalog: Catalog, spark: SparkSession, text: str) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in catalog.sql(text, spark).df.collect()), key=repr)


def refreshed(run: Run, view: str) -> str:
    return repr(run(f"REFRESH MATERIALIZED VIEW {view}"))


def test_what_a_view_reads_and_is_gone_refuses_it_before_any_row_has_changed(
    catalog: Catalog, run: Run
) -> None:
    found = {
        "SELECT id, a FROM t": "column 'a'",
        "SELECT * FROM t": "column 'a'",
        "SELECT count(*) AS n FROM (SELECT DISTINCT id, t.* FROM t)": "column 'a'",
        "SELECT id FROM t WHERE s.x > 0": "field 's.x'",
        "SELECT id, s FROM t": "field 's.x'",
    }
    for number, query in enumerate(found):
        run(f"CREATE MATERIALIZED VIEW v{number} AS {query}")
    run("ALTER TABLE t RENAME COLUMN a TO c")
    run("ALTER TABLE t DROP COLUMN s.x")
    for number, what in enumerate(found.values()):
        refusal = f"view 'v{number}': {what} of table 't' must be .*, got none; {REMEDY}"
        with pytest.raises(SchemaError, match=f"^{refusal}$"):
            refreshed(run, f"v{number}")
    states = catalog.sql("SHOW MATERIALIZED VIEWS").rows["state"].to_pylist()
    assert len(states) == len(found)
    assert all(state.startswith("cannot be refreshed: view") and state.endswith(REMEDY) for state in states)


def test_a_view_goes_on_where_it_does_not_read_what_was_replaced(
    catalog: Catalog, spark: SparkSession, run: Run
) -> None:
    queries = [
        "SELECT id, a FROM t",
        "SELECT s.y AS y, count(*) AS n FROM t GROUP BY s.y",
        "SELECT t.id, u.b, t.s.y AS y FROM t JOIN u USING (id)",
        "WITH q AS (SELECT *, -a AS c FROM t) SELECT id, c FROM q",
    ]
    for number, query in enumerate(queries):
        run(f"CREATE MATERIALIZED VIEW v{number} AS {query}")
    for alter in ("DROP COLUMN b", "ADD COLUMN b STRING", "DROP COLUMN s.x", "ADD COLUMN s.x INT"):
        run(f"ALTER TABLE t {alter}")
    assert refreshed(run, "v0").endswith("up to date>")
    write(catalog, "t", {"id": 2, "b": "b", "s": {"y": 5, "x": 6}})
    write(catalog, "u", {"id": 2, "b": 8})
    for number, query in enumerate(queries):
        assert refreshed(run, f"v{number}").endswith("refreshed>"), query
        assert rows(catalog, spark, f"SELECT * FROM v{number}") == rows(catalog, spark, query)
    later = "SELECT s.x AS x, count(*) AS n FROM t GROUP BY s.x"
    run(f"CREATE OR REPLACE MATERIALIZED VIEW v1 AS {later}")
    assert rows(catalog, spark, "SELECT * FROM v1") == [(6, 1), (None, 1)] == rows(catalog, spark, later)


def test_a_type_that_the_view_cannot_hold_is_told_with_the_remedy(
    catalog: Catalog, spark: SparkSession, run: Run
) -> None:
    queries = {
        "SELECT id, s FROM t": r"column 's' must be STRUCT<x: INT,y: INT>, got STRUCT<x: INT,y: INT,z: INT>",
        "SELECT f, id FROM t": "column 'f' must be FLOAT, got DOUBLE",
    }
    for number, query in enumerate(queries):
        run(f"CREATE MATERIALIZED VIEW v{number} AS {query}")
    run("ALTER TABLE t ADD COLUMN s.z INT")
    run("ALTER TABLE t ALTER COLUMN f TYPE DOUBLE")
    write(catalog, "t", {"id": 2})
    for number, (query, found) in enumerate(queries.items()):
        refusal = f"view 'v{number}': {found}, as a table that it reads has been altered; {REMEDY}"
        with pytest.raises(SchemaError, match=f"^{refusal}$"):
            refreshed(run, f"v{number}")
        run(f"CREATE OR REPLACE MATERIALIZED VIEW v{number} AS {query}")
        assert rows(catalog, spark, f"SELECT id FROM v{number}") == [(1,), (2,)]


def test_a_view_that_reads_fields_of_elements_goes_on_until_one_of_these_is_gone(
    catalog: Catalog, run: Run
) -> None:
    write(catalog, "l", {"id": 1, "at": [{"x": 1, "y": 2}]})
    run("CREATE MATERIALIZED VIEW v AS SELECT id, e.x AS x FROM l LATERAL VIEW explode(at) t AS e")
    run("ALTER TABLE l RENAME COLUMN at.element.y TO w")
    write(catalog, "l", {"id": 2, "at": [{"x": 3, "w": 4}]})
    assert refreshed(run, "v").endswith("refreshed>")
    run("ALTER TABLE l DROP COLUMN at.element.x")
    run("DELETE FROM l WHERE id = 1")
    with pytest.raises(
        SchemaError, match=f"^view 'v': .*; a table that it reads has been altered: {REMEDY}$"
    ):
        refreshed(run, "v")


def test_a_name_of_another_table_is_no_condition_on_a_column_that_came_later(
    catalog: Catalog, spark: SparkSession, run: Run
) -> None:
    write(catalog, "t", {"id": 2, "a": 10, "b": 100, "f": 1.5, "s": None})
    inner = "SELECT 1 FROM u WHERE a = 10 AND u.id = t.id"
    run(f"CREATE MATERIALIZED VIEW v AS SELECT id FROM t WHERE EXISTS ({inner})")
    run("ALTER TABLE u ADD COLUMN a INT")
    write(catalog, "u", {"id": 2, "b": 8, "a": 99})
    refreshed(run, "v")
    assert rows(catalog, spark, "SELECT id FROM v") == [(1,), (2,)]


def test_a_column_that_may_be_null_by_now_is_so_in_all_that_a_view_keeps(
    catalog: Catalog, spark: SparkSession, run: Run
) -> None:
    run("CREATE TABLE n (id INT, g INT NOT NULL, PRIMARY KEY (id) NOT ENFORCED)")
    write(catalog, "n", {"id": 1, "g": 7})
    run("CREATE MATERIALIZED VIEW sums AS SELECT coalesce(g, -1) AS g, count(*) AS c FROM n GROUP BY g")
    run("CREATE MATERIALIZED VIEW shown AS SELECT id, g FROM n")
    for number, change in enumerate(("DROP", "SET", "DROP")):
        run(f"ALTER TABLE n ALTER COLUMN g {change} NOT NULL")
        write(catalog, "n", {"id": 2, "g": number})
        for view in ("sums", "shown"):
            refreshed(run, view)
    assert rows(catalog, spark, "SELECT * FROM sums") == [(2, 1), (7, 1)]
    write(catalog, "n", {"id": 2, "g": None})
    refreshed(run, "sums")
    assert rows(catalog, spark, "SELECT * FROM sums") == [(-1, 1), (7, 1)]
    with pytest.raises(SchemaError, match="'shown': column 'g' is NOT NULL, got NULL in row"):
        refreshed(run, "shown")
    run("CREATE OR REPLACE MATERIALIZED VIEW shown AS SELECT id, g FROM n")
    assert rows(catalog, spark, "SELECT * FROM shown") == [(1, 7), (2, None)]
