"""Views that are refreshed by what has changed: they hold what DuckDB gives, and nothing else is computed."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import planner
from deltajoin.cli.command import reason_of
from planner.views.inputs import Planning
from planner.views.partition_table import touched_by
from planner.views.rows_table import FROM_HIDDEN
from tests.in_duckdb import duckdb_with
from tests.planner.views.conftest import SetWay
from tests.upsert.views.shops import QUERIES, change, counted, expected, int32, made, rows_of
from upsert import Catalog, Table
from upsert.catalog.create_as.local import LocalStage
from upsert.catalog.results import Frame
from upsert.errors import ChangelogError, ConfigurationError, SchemaError
from upsert.managed import frames
from upsert.store.metadata.stands_for import Costs, Refresh
from upsert.views.difference import difference
from upsert.views.hidden_tables import HIDDEN_TABLES, reading
from upsert.views.refresh import Refresher
from upsert.views.view import View

pytestmark = pytest.mark.spark


def some_or_all(queries: Mapping[str, str], some: list[str], seeds: range) -> pytest.MarkDecorator:
    """A test of some queries for one seed, and a long one of all of them for several."""
    every = pytest.param(list(queries), seeds, marks=[pytest.mark.long, pytest.mark.minutes])
    return pytest.mark.parametrize(("names", "seeds"), [(some, range(1, 2)), every], ids=["some", "all"])


STAGED = {
    "sums of a join": """SELECT city, sum(n) AS n, avg(n) AS mean, sum(price) AS s, count(price) AS p
        FROM sales JOIN shops USING (shop) GROUP BY city""",
    "all rows": "SELECT count(*) AS c, sum(n) * 2 AS twice FROM sales",
    "no group is left": "SELECT item, price, count(*) AS c FROM sales WHERE n > 9 GROUP BY item, price",
    "outer join": """SELECT s.item, count(c.since) AS c, sum(c.since) AS since FROM sales s
        LEFT JOIN closed c ON s.shop = c.shop GROUP BY s.item""",
    "having, top": """SELECT shop, sum(n) AS n FROM sales GROUP BY shop HAVING count(*) > 1
        ORDER BY n DESC, shop LIMIT 3""",
    "distinct": "SELECT DISTINCT item, n > 4 AS many FROM sales",
    "distinct beside sums": """SELECT count(DISTINCT item) AS i, sum(price) AS s, floor(avg(price)) AS mean,
        count(*) FILTER (WHERE n > 4) AS many, sum(n) + count(DISTINCT item) AS n FROM sales""",
    "an aggregate of aggregates": """SELECT c, count(*) AS shops FROM
        (SELECT shop, count(*) AS c FROM sales GROUP BY shop) GROUP BY c""",
    "distinct groups": """SELECT DISTINCT shop, c FROM
        (SELECT shop, count(*) AS c FROM sales GROUP BY shop HAVING count(*) > 1)""",
    "twice": """WITH t AS (SELECT shop, sum(n) AS n FROM sales GROUP BY shop)
        SELECT a.shop, b.shop AS less FROM t a JOIN t b ON a.n > b.n""",
    "beside rows": """SELECT s.id FROM sales s JOIN (SELECT item, avg(n) AS mean FROM sales GROUP BY item) m
        ON s.item = m.item AND s.n > m.mean""",
    "correlated": "SELECT id FROM sales s WHERE n > (SELECT avg(n) FROM sales x WHERE x.shop = s.shop)",
    "in groups": """SELECT id FROM sales WHERE shop IN
        (SELECT shop FROM sales GROUP BY shop HAVING sum(n) > 20)""",
    "a subquery in a subquery": """SELECT city FROM shops WHERE shop IN (SELECT shop FROM closed c
        WHERE since < (SELECT sum(n) FROM sales s WHERE s.shop = c.shop))""",
    "exists below sums": """SELECT item, count(*) AS c FROM sales s
        WHERE EXISTS (SELECT 1 FROM closed c WHERE c.shop = s.shop AND c.since < s.n) GROUP BY item""",
    "union": """SELECT shop, sum(n) AS n FROM
        (SELECT shop, n FROM sales UNION ALL SELECT shop, since FROM closed) GROUP BY shop""",
    "filtered": """SELECT item, count(*) FILTER (WHERE n > 4) AS many, bool_and(n > 0) AS every FROM sales
        WHERE item LIKE '%i%' GROUP BY item""",
}

CHANGED = {
    "rows": "SELECT id, n * price AS worth FROM sales WHERE n > 1 ORDER BY id",
    "join": "SELECT id, city, since FROM sales JOIN shops USING (shop) LEFT JOIN closed USING (shop)",
    "no key, in order": """SELECT item, city FROM (SELECT * FROM sales ORDER BY n) JOIN shops USING (shop)
        ORDER BY price, id""",
    "union": "SELECT shop, 1 AS one FROM sales UNION ALL SELECT shop, 2 FROM closed",
    "semi": "SELECT id, n FROM sales LEFT SEMI JOIN closed USING (shop)",
    "exists": """SELECT id, n FROM sales s
        WHERE n > 1 AND EXISTS (SELECT 1 FROM closed c WHERE c.shop = s.shop)""",
    "not exists": "SELECT id FROM sales s WHERE NOT EXISTS (SELECT 1 FROM closed c WHERE c.shop = s.shop)",
    "in": "SELECT id, item FROM sales WHERE shop IN (SELECT shop FROM shops WHERE city = 'Ulm')",
    "full": "SELECT s.id, c.shop FROM sales s FULL JOIN closed c ON s.shop = c.shop AND s.n > c.since",
}
"""Queries with nothing to keep."""

DUCKDB = {"semi": "SELECT id, n FROM sales SEMI JOIN closed USING (shop)"}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return made(Catalog(tmp_path / "warehouse", optimize=planner.optimize))


FEW = (
    "planner.views.inputs",
    "planner.views.moves",
    "planner.views.partition_table",
    "upsert.views.refresh",
)


@pytest.fixture(params=["driver", pytest.param("tasks", marks=pytest.mark.long)])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where changes are computed: in the driver, as few are, or by tasks of Spark."""
    for module in FEW:
        monkeypatch.setattr(f"{module}.FEW_ROWS", 50_000 if request.param == "driver" else -1)
    return str(request.param)


def refresh_and_compare(
    catalog: Catalog, views: Mapping[str, View], queries: Mapping[str, str], seeds: range
) -> None:
    """Each view holds what its query gives after each change."""
    for seed in seeds:
        change(catalog, seed)
        for name, view in views.items():
            view.refresh()
            assert rows_of(catalog, view.name) == expected(catalog, queries[name]), (name, seed)


def stages(view: Table) -> list[Table]:
    folder = Path(view.root, HIDDEN_TABLES)
    return [Table.open(path) for path in sorted(folder.iterdir())] if folder.exists() else []


def moves_of(table: Table) -> list[bool]:
    """Of each commit of a hidden table after the first one, whether changes alone were computed for it."""
    moved = [info for info in table.history() if info.changes_rows][1:]
    return [
        info.kind == "append"
        and info.refresh is not None
        and info.refresh.by_changes
        and info.refresh.reason != FROM_HIDDEN
        for info in moved
    ]


def assert_only_appended(views: Mapping[str, View], *named: str) -> None:
    """Each view has hidden tables with such names, and none of them was ever computed again."""
    for name, view in views.items():
        tables = [table for table in stages(view.table) if any(kind in table.path for kind in named)]
        assert tables, name
        for table in tables:
            moves = moves_of(table)
            assert moves, f"{name}: its rows must have changed, or the test shows nothing"
            assert all(moves), name


@some_or_all(STAGED, ["sums of a join", "distinct beside sums"], range(2, 5))
@pytest.mark.usefixtures("where")
def test_aggregates_are_kept_in_stages(
    catalog: Catalog, spark: SparkSession, names: list[str], seeds: range
) -> None:
    views = {name: catalog.create_view(f"v{n}", STAGED[name], spark=spark) for n, name in enumerate(names)}
    refresh_and_compare(catalog, views, STAGED, seeds)
    for name, view in views.items():
        assert len(stages(view.table)) == 1, name
        (stage,) = stages(view.table)
        kinds = [info.kind for info in stage.history() if info.changes_rows]
        assert len(kinds) > 1, f"{name}: its sums must have changed, or the test shows nothing"
        assert set(kinds) == {"append"}, name


@pytest.mark.long
def test_a_branch_that_a_constant_rules_out_is_not_kept(catalog: Catalog, spark: SparkSession) -> None:
    """A WITH of rows of two kinds, each used for one of them, has one stage for each use."""
    query = """WITH t AS (
            SELECT shop, 'sold' AS kind, sum(n) AS n FROM sales GROUP BY shop
            UNION ALL SELECT shop, 'closed', sum(since) FROM closed GROUP BY shop)
        SELECT a.shop, a.n, b.n AS since FROM t a JOIN t b ON a.shop = b.shop
        WHERE a.kind = 'sold' AND b.kind = 'closed'"""
    view = catalog.create_view("v", query, spark=spark)
    change(catalog, 1)
    assert view.refresh()
    assert rows_of(catalog, "v") == expected(catalog, query)
    assert len(stages(view.table)) == 2


def test_tasks_compute_what_the_driver_does(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in FEW:
        monkeypatch.setattr(f"{module}.FEW_ROWS", -1)
    query = STAGED["sums of a join"]
    view = catalog.create_view("v", query, spark=spark)
    change(catalog, 1)
    assert view.refresh()
    assert rows_of(catalog, "v") == expected(catalog, query)
    (stage,) = stages(view.table)
    assert [info.kind for info in stage.history() if info.changes_rows] == ["append", "append"]


@some_or_all(CHANGED, ["join", "no key, in order"], range(2, 5))
@pytest.mark.usefixtures("where")
def test_rows_of_joins_are_changed_alone(
    catalog: Catalog, spark: SparkSession, names: list[str], seeds: range
) -> None:
    views = {name: catalog.create_view(f"v{n}", CHANGED[name], spark=spark) for n, name in enumerate(names)}
    for seed in seeds:
        change(catalog, seed)
        for name, view in views.items():
            view.refresh()
            (way,) = view.refreshes.values()
            assert way.by_changes, (name, way.reason)
            query = DUCKDB.get(name, CHANGED[name])
            assert rows_of(catalog, view.name) == expected(catalog, query), (name, seed)


def test_tables_of_the_same_columns_are_not_taken_for_each_other(
    catalog: Catalog, spark: SparkSession
) -> None:
    for number, name in enumerate("ab"):
        catalog.sql(f"CREATE TABLE {name} (id INT, n INT, PRIMARY KEY (id) NOT ENFORCED)")
        catalog.sql(f"INSERT INTO {name} VALUES (1, {number})")
    query = "SELECT 'a' AS t, id, n FROM a UNION ALL SELECT 'b' AS t, id, n FROM b"
    view = catalog.create_view("v", query, spark=spark)
    catalog.sql("INSERT INTO a VALUES (2, 3)")
    catalog.sql("INSERT INTO b VALUES (1, 4)")
    assert view.refresh()
    rows = view.table.snapshot().scan().to_pylist()
    assert sorted(map(tuple, map(dict.values, rows))) == [("a", 1, 0), ("a", 2, 3), ("b", 1, 4)]


def test_small_tables_that_a_third_one_links_are_followed(catalog: Catalog, spark: SparkSession) -> None:
    query = """SELECT id, city, since FROM shops a, closed b, sales s
        WHERE a.shop = s.shop AND b.shop = s.shop"""  # shops and closed are joined first, without equality
    view = catalog.create_view("v", query, spark=spark)
    catalog.table("shops").write(pa.table({"shop": int32([2, 4]), "city": ["Bonn", "Kiel"]}))
    catalog.table("closed").write(pa.table({"shop": int32([4, 1]), "since": int32([7, 8])}))
    view.refresh()
    assert view.refreshes["v"].by_changes
    assert rows_of(catalog, "v") == expected(catalog, query)


def test_a_key_that_is_proven_is_kept_through_moves(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "SELECT id, n, city FROM sales JOIN shops USING (shop) WHERE n > 0"
    view = catalog.create_view("v", query, primary_key=["id"], spark=spark)
    monkeypatch.setattr("upsert.views.refresh.difference", None)
    for seed in range(1, 3):
        change(catalog, seed)
        assert view.refresh()
        assert rows_of(catalog, "v") == expected(catalog, query), seed


DEEP = {
    "an aggregate of aggregates": STAGED["an aggregate of aggregates"],
    "beside rows": STAGED["beside rows"],
    "correlated": STAGED["correlated"],
    "a group twice": """SELECT c, count(*) AS shops FROM
        (SELECT shop, shop AS again, count(*) AS c FROM sales GROUP BY shop, shop) GROUP BY c""",
    "in groups": STAGED["in groups"],
    "a subquery in a subquery": STAGED["a subquery in a subquery"],
    "three deep": """SELECT c, count(*) AS times, sum(n) AS n FROM
        (SELECT item, count(*) AS c, sum(s) AS n FROM
            (SELECT item, shop, sum(n) AS s FROM sales GROUP BY item, shop HAVING sum(n) > 1) GROUP BY item)
        GROUP BY c""",
    "guarded": """SELECT rest, count(*) AS times FROM
        (SELECT item, shop, 100 % (sum(n) - 1) AS rest FROM sales GROUP BY item, shop
            HAVING sum(n) > 1)
        GROUP BY rest""",
    "two sides": """SELECT a.shop, a.n, b.c FROM (SELECT shop, sum(n) AS n FROM sales GROUP BY shop) a
        LEFT JOIN (SELECT shop, count(*) AS c FROM closed GROUP BY shop) b ON a.shop = b.shop""",
}
"""Queries over aggregates, which are tables if there are many groups."""


@some_or_all(DEEP, ["correlated"], range(2, 6))
@pytest.mark.usefixtures("where")
def test_aggregates_of_many_groups_are_tables_of_their_own(
    catalog: Catalog,
    spark: SparkSession,
    names: list[str],
    seeds: range,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rows in ("SHALLOW_ROWS", "WHOLE_ROWS"):
        monkeypatch.setattr(f"planner.views.keep.{rows}", 0)
    views = {name: catalog.create_view(f"v{n}", DEEP[name], spark=spark) for n, name in enumerate(names)}
    refresh_and_compare(catalog, views, DEEP, seeds)
    assert_only_appended(views, "-rows-")


def test_a_new_view_has_the_hidden_tables_that_its_refreshes_read(
    catalog: Catalog, spark: SparkSession, go_by_changes: SetWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.keep.SHALLOW_ROWS", 2)
    query = DEEP["guarded"]
    view = catalog.create_view("v", query, spark=spark)
    hidden = {table.name for table in stages(view.table)}
    assert any("-rows-" in name for name in hidden)
    change(catalog, 1)
    assert view.refresh()
    assert {table.name for table in stages(view.table)} == hidden
    assert [refresh.by_changes for refresh in view.refreshes.values()] == [True] * (1 + len(hidden))
    assert rows_of(catalog, "v") == expected(catalog, query)


@pytest.mark.long
def test_a_table_that_hovers_around_a_size_is_planned_once(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = catalog.create_view("v", "SELECT shop, sum(since) AS s FROM closed GROUP BY shop", spark=spark)
    planned: list[int] = []
    plan = Refresher._planned

    def counting(refresher: Refresher, *of: Any) -> Any:
        planned.append(catalog.table("closed").snapshot().row_count)
        return plan(refresher, *of)

    monkeypatch.setattr(Refresher, "_planned", counting)
    closed = catalog.table("closed")
    row = pa.table({"shop": int32([7]), "since": int32([1])})
    for kind in ("+I", "-D", "+I", "-D", "+I"):  # 3 and 4 rows
        closed.write(row.append_column("_row_kind", pa.array([kind])))
        assert view.refresh()
    assert planned == [4]
    for _ in range(12):
        closed.write(row)
        assert view.refresh()
    assert planned == [4, 9]


@pytest.mark.long
def test_a_hidden_table_stays_until_half_of_the_rows_are_left_for_which_it_is_made(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = {
        "-partitions": PARTED["newest"],
        "-rows-": DEEP["an aggregate of aggregates"],
        "-top-": "SELECT id, n FROM sales ORDER BY id DESC LIMIT 3",
        "-input": JOINED["not exists, beside a value"],
    }

    def planned_for(rows: int, groups: int) -> None:
        monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", rows)
        monkeypatch.setattr("planner.views.keep.SHALLOW_ROWS", groups)

    def hidden() -> list[str]:
        found = {kind: stages(catalog.table(f"v{n}")) for n, kind in enumerate(queries)}
        return [kind for kind, tables in found.items() if any(kind in table.name for table in tables)]

    def refreshed(seed: int) -> list[str]:
        """By another process, which plans on its own."""
        change(catalog, seed)
        another = Catalog(catalog.warehouse, optimize=planner.optimize)
        for n, query in enumerate(queries.values()):
            assert another.view(f"v{n}", spark).refresh()
            assert rows_of(catalog, f"v{n}") == expected(catalog, query), query
        return hidden()

    planned_for(15, 4)  # of 20 rows and 5 groups
    for n, query in enumerate(queries.values()):
        catalog.create_view(f"v{n}", query, spark=spark)
    assert hidden() == list(queries)
    planned_for(30, 8)
    catalog.create_view("new", queries["-partitions"], spark=spark)
    assert stages(catalog.table("new")) == []
    assert refreshed(1) == list(queries)
    planned_for(100, 100)
    assert refreshed(2) == []


def test_changes_that_cannot_be_computed_are_no_longer_tried(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = {"v0": TOTALS, "v1": CHANGED["rows"]}
    views = {name: catalog.create_view(name, query, spark=spark) for name, query in queries.items()}
    computed, failed = Planning.computed, list[str]()

    def refresh(costs: Costs, changed: int, rows: int, **_: object) -> Refresh:
        return Refresh.now(costs.untried >= 0, "a test says so", changed, rows, costs)

    def failing(planning: Planning, template: Any, move: Any) -> Any:
        if move.step is not None:
            failed.append(planning.view.folder)
            raise MemoryError
        return computed(planning, template, move)

    monkeypatch.setattr(Costs, "refresh", refresh)
    monkeypatch.setattr(Costs, "is_trial", lambda costs, *_: costs.untried >= 0)
    monkeypatch.setattr(Planning, "computed", failing)
    refresh_and_compare(catalog, views, queries, range(1, 3))
    assert len(failed) == 2
    assert {one.by_changes for one in views["v1"].refreshes.values()} == {False}


STARS = {
    "SELECT * FROM closed": "SELECT shop, since FROM closed",
    "SELECT * FROM c UNION ALL SELECT shop, 1 FROM shops": (
        "SELECT shop, since FROM closed WHERE shop < 9 UNION ALL SELECT shop, 1 FROM shops"
    ),
    "SELECT * FROM sales NATURAL JOIN shops": (
        "SELECT shop, id, item, sales.n, price, city FROM sales JOIN shops USING (shop)"
    ),
}
MORE_STARS = {
    "SELECT * FROM closed": "SELECT shop, since FROM closed",
    "SELECT DISTINCT * FROM closed": "SELECT DISTINCT shop, since FROM closed",
    "SELECT * FROM closed EXCEPT ALL SELECT shop, n FROM sales": (
        "SELECT shop, since FROM closed EXCEPT ALL SELECT shop, n FROM sales"
    ),
}
"""Queries, and what they mean of the columns that the tables have when the view is created."""


@pytest.mark.parametrize(
    "queries", [STARS, pytest.param(MORE_STARS, marks=pytest.mark.long)], ids=["some", "more"]
)
def test_a_view_goes_on_with_the_columns_that_its_tables_had(
    catalog: Catalog, spark: SparkSession, queries: Mapping[str, str]
) -> None:
    catalog.sql("CREATE VIEW c AS SELECT * FROM closed WHERE shop < 9", spark)
    views = [catalog.create_view(f"v{n}", query, spark=spark) for n, query in enumerate(queries)]
    catalog.sql("ALTER TABLE closed ADD COLUMN more STRING AFTER shop")
    catalog.sql("ALTER TABLE shops ADD COLUMN n INT")
    catalog.sql("INSERT INTO closed VALUES (2, 'x', 7), (2, 'y', 7), (5, NULL, 1)", spark)
    catalog.sql("INSERT INTO shops VALUES (4, 'Bonn', 1), (1, NULL, 5)", spark)
    catalog.sql("DELETE FROM sales WHERE id = 3", spark)
    for view, query in zip(views, queries.values(), strict=True):
        assert view.refresh()
        assert rows_of(catalog, view.name) == expected(catalog, query), query
    catalog.sql("ALTER TABLE closed DROP COLUMN since")
    catalog.sql("INSERT INTO closed VALUES (1, 'z')", spark)
    with pytest.raises(SchemaError, match="'since' of table 'closed' must be the one that the view was"):
        views[0].refresh()


def test_a_column_that_has_the_name_of_another_is_not_taken_for_it(
    catalog: Catalog, spark: SparkSession
) -> None:
    view = catalog.create_view("v", "SELECT id, item FROM sales", spark=spark)
    for statement in ("DROP COLUMN item", "ADD COLUMN item STRING"):
        catalog.sql(f"ALTER TABLE sales {statement}")
    for statement in ("REFRESH MATERIALIZED VIEW v", "DELETE FROM sales WHERE id = 3"):
        assert not view.is_current
        with pytest.raises(SchemaError, match="column 'item' of table 'sales' must be the one that the view"):
            view.refresh()
        with suppress(SchemaError):
            catalog.sql(statement, spark)


@pytest.mark.parametrize(
    ("type_", "value", "read", "inner"),
    [
        ("STRUCT<x: INT, y: INT>", "named_struct('x', 3, 'y', 4)", "at.x", "at"),
        pytest.param(
            *(
                "ARRAY<STRUCT<x: INT, y: INT>>",
                "array(named_struct('x', 3, 'y', 4))",
                "at[0].x",
                "at.element",
            ),
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_field_that_has_the_name_of_another_is_not_taken_for_it(
    catalog: Catalog, spark: SparkSession, type_: str, value: str, read: str, inner: str
) -> None:
    catalog.sql(f"CREATE TABLE t (id INT, at {type_}, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql(f"INSERT INTO t VALUES (1, {value})", spark)
    view = catalog.create_view("v", f"SELECT id, {read} AS part FROM t", spark=spark)
    catalog.sql(f"ALTER TABLE t ADD COLUMN {inner}.z INT")
    catalog.sql(f"ALTER TABLE t RENAME COLUMN {inner}.y TO w")
    catalog.sql("INSERT INTO t SELECT 2, at FROM t", spark)
    assert view.refresh()  # other fields than those that it reads come and go
    assert view.table.snapshot().scan()["part"].to_pylist() == [3, 3]
    for statement in (f"DROP COLUMN {inner}.x", f"RENAME COLUMN {inner}.w TO x"):
        catalog.sql(f"ALTER TABLE t {statement}")
    with pytest.raises(SchemaError, match=rf"field '{inner}\.x' of table 't' must be the one that the view"):
        view.refresh()


@pytest.mark.long
def test_a_small_side_stays_one_up_to_twice_the_rows(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = "FROM sales s JOIN closed c ON s.n < c.since"
    queries = {
        "sums": f"SELECT id, count(*) AS c {joined} GROUP BY id",
    }
    sales = catalog.table("sales")

    def by_changes(limit: int) -> set[bool]:
        """By another process, which plans on its own, after a change of the large side."""
        monkeypatch.setattr("planner.views.stages.SMALL_SIDE_ROWS", limit)
        rows = sales.snapshot().scan(where=[("id", "<", 4)])
        more = pc.add(rows["n"], pa.scalar(1, pa.int32()))
        sales.write(rows.set_column(rows.column_names.index("n"), "n", more))
        another = Catalog(catalog.warehouse, optimize=planner.optimize)
        found = set()
        for name, query in queries.items():
            view = another.view(name, spark)
            explained = view.explain()
            assert view.refresh()
            assert rows_of(catalog, name) == expected(catalog, query), name
            found.add("by changes" in explained)
        return found

    rows = catalog.table("closed").snapshot().row_count
    for name, query in queries.items():
        catalog.create_view(name, query, spark=spark)
    assert by_changes(rows - 1) == {True}
    assert by_changes(rows // 2 - 1) == {False}
    assert by_changes(rows - 1) == {False}


@pytest.mark.long
def test_a_hidden_table_of_which_all_rows_are_computed_gets_what_differs(
    catalog: Catalog, spark: SparkSession, go_by_changes: SetWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.keep.SHALLOW_ROWS", 0)
    name = "an aggregate of aggregates"
    view = catalog.create_view("v", DEEP[name], spark=spark)
    views = {name: view}
    refresh_and_compare(catalog, views, DEEP, range(1, 2))
    go_by_changes(False)
    refresh_and_compare(catalog, views, DEEP, range(2, 3))
    tables = [table for table in stages(view.table) if "-rows-" in table.path]
    assert tables
    for table in tables:
        assert not moves_of(table)[-1]
        assert {info.kind for info in table.history() if info.changes_rows} == {"append"}


PARTED = {
    "newest": """SELECT shop, id, n FROM
        (SELECT *, row_number() OVER (PARTITION BY shop ORDER BY id DESC) AS p FROM sales) WHERE p = 1""",
    "rank and sums": """SELECT id, rank() OVER (PARTITION BY item, shop ORDER BY n, id) AS place,
        sum(n) OVER (PARTITION BY item) AS total FROM sales""",
    "step": "SELECT id, n - lag(n) OVER (PARTITION BY shop ORDER BY id) AS more FROM sales WHERE n > 1",
    "by an expression": "SELECT n % 3 AS rest, min(price) AS low, max(id) AS high FROM sales GROUP BY n % 3",
    "sums beside": """SELECT item, max(n) AS high, sum(n) AS n, count(DISTINCT shop) AS shops FROM sales
        GROUP BY item""",
    "of a join": """SELECT city, min(n) AS low, max(since) AS late FROM sales JOIN shops USING (shop)
        LEFT JOIN closed USING (shop) GROUP BY city""",
    "joined": """SELECT s.id, s.n FROM sales s JOIN (SELECT shop, max(n) AS n FROM sales GROUP BY shop) m
        ON s.shop = m.shop AND s.n = m.n""",
    "over sums": """SELECT shop, s, rank() OVER (PARTITION BY s ORDER BY shop) AS place FROM
        (SELECT shop, sum(n) AS s FROM sales GROUP BY shop)""",
    "beside a window of all": """SELECT id, sum(n) OVER (PARTITION BY shop) AS s, count(*) OVER () AS c
        FROM sales""",
    "a group twice": "SELECT item, max(n) AS m FROM sales GROUP BY item, item",
    "two PARTITION BYs": """SELECT id, max(place) OVER (PARTITION BY item) AS last FROM
        (SELECT id, item, row_number() OVER (PARTITION BY shop ORDER BY id) AS place FROM sales)""",
}
"""Queries that are computed partition by partition."""


WITH_HIDDEN = {
    "v0": PARTED["newest"],
    "v1": DEEP["an aggregate of aggregates"],
    "v2": "SELECT id, n FROM sales ORDER BY id DESC LIMIT 3",
    "v3": "SELECT s.id, c.shop FROM sales s LEFT JOIN closed c ON s.n = c.since",
    "v4": "SELECT shop, count(*) AS c FROM (SELECT * FROM sales) q GROUP BY shop",
}
"""A query for each kind of hidden table."""


@pytest.mark.parametrize(
    "names", [["v3", "v4"], pytest.param([*WITH_HIDDEN], marks=pytest.mark.long)], ids=["some", "all"]
)
def test_hidden_tables_go_on_when_a_table_gets_a_column_or_an_index(
    catalog: Catalog, spark: SparkSession, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows in ("SHALLOW_ROWS", "WHOLE_ROWS", "ORDERED_ROWS"):
        monkeypatch.setattr(f"planner.views.keep.{rows}", 0)
    queries = {name: WITH_HIDDEN[name] for name in names}
    for name, query in queries.items():
        catalog.create_view(name, query, spark=spark)
    before = {name: {table.uuid for table in stages(catalog.table(name))} for name in queries}
    catalog.sql("ALTER TABLE sales ADD COLUMN more INT AFTER shop")
    catalog.sql("ALTER TABLE sales ADD INDEX (item)")
    catalog.sql("ALTER TABLE closed ADD COLUMN more INT")
    sales = catalog.table("sales")
    rows = sales.snapshot().scan(where=[("id", "<", 5)]).drop_columns(["more"])
    sales.write(rows.append_column("more", rows["id"]))
    another = Catalog(catalog.warehouse, optimize=planner.optimize)
    for name, query in queries.items():
        assert another.view(name, spark).refresh()
        assert rows_of(catalog, name) == expected(catalog, query), name
        assert before[name], name
        assert {table.uuid for table in stages(catalog.table(name))} == before[name], name


@some_or_all(PARTED, ["of a join", "joined"], range(2, 6))
@pytest.mark.usefixtures("where")
def test_partitions_with_changed_rows_are_computed_again(
    catalog: Catalog,
    spark: SparkSession,
    names: list[str],
    seeds: range,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", 0)
    monkeypatch.setattr("planner.views.keep.SHALLOW_ROWS", 0)
    views = {name: catalog.create_view(f"v{n}", PARTED[name], spark=spark) for n, name in enumerate(names)}
    refresh_and_compare(catalog, views, PARTED, seeds)
    assert_only_appended(views, "-partitions")


JOINED = {
    "top": """SELECT s.id, city, since FROM sales s JOIN shops USING (shop) LEFT JOIN closed c USING (shop)
        ORDER BY s.id DESC, since NULLS LAST LIMIT 3""",
    "not exists, beside a value": """SELECT item, count(*) AS c, sum(n) AS n FROM sales s
        WHERE n >= (SELECT avg(n) FROM sales) AND NOT EXISTS (SELECT 1 FROM closed c WHERE c.shop = s.shop)
        GROUP BY item""",
    "newest of all": """SELECT max(s.id) AS id, min(since) AS since FROM sales s JOIN closed c
        ON s.shop = c.shop AND s.n > c.since""",
    "no index": """SELECT count(DISTINCT item) AS i, sum(price) AS p, sum(since) AS since
        FROM sales s JOIN closed c ON s.n = c.since""",
    "union": """SELECT id, n FROM (
        SELECT id, row_number() OVER (ORDER BY id) AS n FROM sales
        UNION ALL SELECT s.id, since FROM shops JOIN sales s USING (shop) JOIN closed USING (shop))""",
    "top of partitions": """SELECT city, best FROM shops JOIN
        (SELECT shop, max(n) AS best FROM sales GROUP BY shop) USING (shop)
        ORDER BY best DESC NULLS LAST, city NULLS LAST, shop LIMIT 2""",
}
"""Queries over all rows of joins."""


@some_or_all(JOINED, ["top"], range(2, 8))
@pytest.mark.usefixtures("where")
def test_rows_of_joins_are_kept_for_what_needs_all_of_them(
    catalog: Catalog,
    spark: SparkSession,
    names: list[str],
    seeds: range,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", 0)
    views = {name: catalog.create_view(f"v{n}", JOINED[name], spark=spark) for n, name in enumerate(names)}
    refresh_and_compare(catalog, views, JOINED, seeds)
    assert_only_appended(views, "-input", "-top-")


def test_tables_join_by_what_makes_them_equal_in_whatever_order_a_query_names_them(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark looks for such an order too, but through no projection, and a plan of a view has some."""
    made, template = [], Planning.template
    monkeypatch.setattr(
        Planning, "template", lambda self, *of: made.append(found := template(self, *of)) or found
    )
    query = """SELECT city, since, s.id FROM shops x, closed c, sales s
        WHERE s.shop = x.shop AND s.n = c.since"""
    catalog.create_view("v", query, spark=spark)
    plans = "".join(str(one.over([read.leaf for read in one.inputs])) for one in made)
    assert re.findall(r"Join Inner.*\(", plans)
    assert not re.findall(r"Join (?:Cross|Inner)$", plans, re.MULTILINE)
    assert rows_of(catalog, "v") == expected(catalog, query)


OVER_A_ROW = {
    "having": """SELECT item, max(n) AS m FROM sales GROUP BY item
        HAVING max(n) > (SELECT n FROM sales WHERE id = 5)""",
    "beside": "SELECT item, max(id) - (SELECT n FROM sales WHERE id = 5) AS m FROM sales GROUP BY item",
    "qualify": """SELECT id, n FROM sales QUALIFY row_number() OVER (PARTITION BY shop ORDER BY id)
        <= (SELECT n FROM sales WHERE id = 5)""",
    "window": """SELECT id, sum(n * (SELECT n FROM sales WHERE id = 5)) OVER (PARTITION BY shop) AS s
        FROM sales""",
    "over groups": """SELECT c, count(*) AS shops FROM (SELECT shop, count(*) AS c FROM sales GROUP BY shop)
        WHERE c > (SELECT n FROM sales WHERE id = 5) GROUP BY c""",
    "guard": """SELECT item, shop, 100 % (sum(n) - 1) AS rest FROM sales GROUP BY item, shop
        HAVING sum(n) > 1 + (SELECT n FROM sales WHERE id = 5) % 1""",
    "top": "SELECT id FROM sales ORDER BY abs(id - (SELECT n FROM sales WHERE id = 5)), id LIMIT 3",
    "joined": """SELECT s.id, c.shop FROM sales s JOIN closed c ON s.n = c.since
        WHERE s.id > (SELECT n FROM sales WHERE id = 5)""",
}
"""Queries with a value of a row that is no aggregate."""


def test_a_value_of_a_row_is_joined_and_more_rows_are_an_error(catalog: Catalog, spark: SparkSession) -> None:
    """As a subquery it was planned in each refresh, with all joins beside it computed from all rows."""
    catalog.sql("CREATE TABLE least (id INT, n INT, PRIMARY KEY (id) NOT ENFORCED)")
    query = "SELECT id FROM sales WHERE n >= {}"
    view = catalog.create_view("v", query.format("(SELECT n FROM least)"), spark=spark)
    assert "Join inner" in view.explain()
    assert not rows_of(catalog, "v")
    catalog.sql("INSERT INTO least VALUES (1, 2)")
    assert view.refresh()
    assert rows_of(catalog, "v") == expected(catalog, query.format(2))
    catalog.sql("INSERT INTO least VALUES (2, 3)")
    with pytest.raises(PySparkException, match="must give one row, got more"):
        view.refresh()
    catalog.sql("DELETE FROM least WHERE id = 1")
    assert view.refresh()
    assert rows_of(catalog, "v") == expected(catalog, query.format(3))


def test_a_value_of_a_type_that_has_no_order_stays_a_subquery(catalog: Catalog, spark: SparkSession) -> None:
    """MAX would give the one that there is, and Spark has none of this type."""
    point = "SELECT st_geomfromwkb(X'0101000000000000000000F03F0000000000000040') FROM shops WHERE shop = 1"
    query = f"SELECT shop, length(st_asbinary(({point}))) AS n FROM shops"
    catalog.create_view("v", query, spark=spark)
    assert rows_of(catalog, "v") == expected(catalog, "SELECT shop, 21 AS n FROM shops")


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (["top", "joined", "guard"], (9,)),
        pytest.param([*OVER_A_ROW], (1, 9, 0), marks=pytest.mark.long),
    ],
    ids=["some", "all"],
)
def test_a_value_of_another_row_is_that_of_the_present_one(
    catalog: Catalog,
    spark: SparkSession,
    names: list[str],
    values: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rows in ("SHALLOW_ROWS", "WHOLE_ROWS", "ORDERED_ROWS"):
        monkeypatch.setattr(f"planner.views.keep.{rows}", 0)
    monkeypatch.setattr("planner.views.top_rows.LEAST_KEPT", 6)
    monkeypatch.setattr("planner.views.top_rows.MORE", 2)
    views = {
        name: catalog.create_view(f"v{n}", OVER_A_ROW[name], spark=spark) for n, name in enumerate(names)
    }
    sales = catalog.table("sales")
    row = sales.snapshot().scan(where=[("id", "=", 5)])
    for n in values:
        sales.write(row.set_column(row.column_names.index("n"), "n", int32([n])))
        for name, view in views.items():
            view.refresh()
            assert rows_of(catalog, view.name) == expected(catalog, OVER_A_ROW[name]), (name, n)


LATERAL = {
    "best, by what is not shown": """SELECT shop, (SELECT id FROM sales s WHERE s.shop = x.shop
        ORDER BY price DESC NULLS LAST, id LIMIT 1) AS best FROM shops x""",
    "two, by what is not shown": """SELECT x.shop, y.id FROM shops x, LATERAL
        (SELECT id FROM sales s WHERE s.shop = x.shop ORDER BY price DESC NULLS LAST, id LIMIT 2) y""",
    "two of one": """SELECT x.id, y.k, y.v FROM sales x, LATERAL
        (SELECT 'shop' AS k, x.shop AS v UNION ALL SELECT 'n', x.n) y""",
    "one twice": "SELECT x.id, y.v FROM sales x, LATERAL (SELECT x.n AS v UNION ALL SELECT x.n) y",
}


@pytest.mark.parametrize(
    ("names", "seeds"),
    [
        (["best, by what is not shown"], range(1)),
        pytest.param([*LATERAL], range(2), marks=pytest.mark.long),
    ],
    ids=["some", "all"],
)
def test_subqueries_see_the_row_beside_them(
    catalog: Catalog, spark: SparkSession, names: list[str], seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", 0)
    views = {name: catalog.create_view(f"v{n}", LATERAL[name], spark=spark) for n, name in enumerate(names)}
    refresh_and_compare(catalog, views, LATERAL, seeds)


@pytest.mark.long
def test_many_touched_partitions_are_found_by_tasks(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", 0)
    monkeypatch.setattr("planner.views.partition_table.MOST_TOLD", 1)
    found: list[bool] = []

    def finding(*of: Any, is_small: bool) -> Any:
        touched = touched_by(*of, is_small=is_small)
        found.append(isinstance(touched, DataFrame))
        return touched

    monkeypatch.setattr("planner.views.partition_table.touched_by", finding)
    queries = {"newest": PARTED["newest"]}
    views = {
        name: catalog.create_view(f"v{n}", query, spark=spark)
        for n, (name, query) in enumerate(queries.items())
    }
    refresh_and_compare(catalog, views, queries, range(1, 3))
    assert_only_appended(views, "-partitions")
    assert any(found)
    assert not spark._jsc.getPersistentRDDs()


@pytest.mark.parametrize("told", [100_000, pytest.param(0, marks=pytest.mark.long)])
@pytest.mark.usefixtures("where")
def test_a_partition_is_looked_up_in_the_query_s_table_if_that_has_an_index(
    catalog: Catalog, spark: SparkSession, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", 0)
    monkeypatch.setattr("planner.views.partition_table.MOST_TOLD", told)
    catalog.sql("CREATE TABLE t (a INT, b INT, v INT, unread INT, PRIMARY KEY (a, b) NOT ENFORCED)")
    catalog.sql("INSERT INTO t VALUES (1, 1, 10, 0), (1, 2, 30, 0), (2, 1, 5, 0), (3, 1, 7, 0)", spark)
    query = "SELECT a, max(v) AS high, min(b) AS low FROM t WHERE v > 6 GROUP BY a"
    view = catalog.create_view("v", query, primary_key=["a"], spark=spark)
    assert "the rows of a group are looked up in t\n" in view.explain()
    catalog.sql("INSERT INTO t VALUES (1, 2, 1, 0), (2, 2, 8, 0), (3, 1, 0, 0)", spark)
    assert view.refresh()
    catalog.sql("UPDATE t SET unread = 1")  # touches no partition
    assert view.refresh()
    assert sorted(view.table.snapshot().scan().to_pylist(), key=str) == [
        {"a": 1, "high": 10, "low": 1},
        {"a": 2, "high": 8, "low": 2},
    ]
    (kept,) = stages(view.table)
    assert [info.kind for info in kept.history() if info.changes_rows] == ["append"] * 2


def test_equal_keys_of_partitions_are_one_and_null_is_a_key(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", 0)
    catalog.sql("CREATE TABLE t (id INT, d DOUBLE, s STRING, PRIMARY KEY (id) NOT ENFORCED)")
    table, nan = catalog.table("t"), float("nan")

    def put(*rows: tuple[int, float | None, str | None]) -> None:
        ids, numbers, texts = zip(*rows, strict=True)
        table.write(pa.table({"id": int32(list(ids)), "d": pa.array(numbers, pa.float64()), "s": texts}))

    put((1, -0.0, None), (2, 0.0, None), (3, nan, "x"), (4, nan, "x"), (5, None, None))
    query = "SELECT max(id) AS high, min(id) AS low FROM t GROUP BY d, s"
    view = catalog.create_view("v", query, spark=spark)
    for changed, found in (
        (lambda: put((6, 0.0, None)), [(3, 4), (5, 5), (1, 6)]),
        (lambda: table.delete([("id", "in", [1, 3])]), [(4, 4), (5, 5), (2, 6)]),
        (lambda: put((7, None, None), (8, nan, "x")), [(2, 6), (4, 8), (5, 7)]),
    ):
        changed()
        assert view.refresh()
        got = view.table.snapshot().scan().to_pylist()
        assert sorted((row["low"], row["high"]) for row in got) == sorted(found), found


COLLATED = {
    "groups": """SELECT lower(CAST(c AS STRING)) AS c, high, n FROM (SELECT item COLLATE UTF8_LCASE AS c,
        max(n) AS high, count(*) AS n FROM sales GROUP BY item COLLATE UTF8_LCASE)""",
    "sums": "SELECT sum(n) AS n, count(*) AS c FROM sales GROUP BY item COLLATE UTF8_LCASE, shop",
    "windows": """SELECT id, row_number() OVER (PARTITION BY item COLLATE UNICODE_CI ORDER BY id) AS p
        FROM sales""",
    "joins": """SELECT s.id, c.shop FROM sales s JOIN sales t ON s.item COLLATE UTF8_LCASE = t.item
        LEFT JOIN closed c ON c.since = t.n""",
}


@pytest.mark.parametrize(
    "names", [["groups"], pytest.param(["sums", "windows", "joins"], marks=pytest.mark.long)]
)
def test_texts_that_a_collation_calls_equal_are_one_group_and_one_key(
    catalog: Catalog, spark: SparkSession, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", 0)
    views = {name: catalog.create_view(f"v{n}", COLLATED[name], spark=spark) for n, name in enumerate(names)}
    for name in {"groups", "sums"}.intersection(names):
        assert "those with changed rows are computed again, all others stay" in views[name].explain(), name
    sales = catalog.table("sales")
    thirds = [row for row in sales.snapshot().scan().to_pylist() if row["id"] % 3 == 0]
    for rows in (
        [{**row, "item": "É" if row["id"] % 2 else "PEAR"} for row in thirds],
        # of those that are equal to these some stay as they are
        [
            {"id": id, "shop": 1, "item": item, "n": 9 * id}
            for id, item in ((3, "FIG"), (91, "é"), (92, "Pear"))
        ],
    ):
        sales.write(pa.Table.from_pylist(rows, sales.schema.arrow))
        for name, view in views.items():
            assert view.refresh()
            found = catalog.sql(COLLATED[name], spark)
            assert isinstance(found, Frame)
            assert rows_of(catalog, view.name) == counted(found.df.toArrow()), name


@pytest.mark.parametrize(
    ("column", "type_"),
    [
        ("named_struct('i', item COLLATE UNICODE_CI)", "struct<i:string>"),
        pytest.param("item COLLATE UTF8_LCASE", "STRING", marks=pytest.mark.long),
        pytest.param("array(item COLLATE UTF8_LCASE)", "array<string>", marks=pytest.mark.long),
    ],
)
def test_a_view_that_shows_a_text_with_a_collation_is_refused_with_the_remedy(
    catalog: Catalog, spark: SparkSession, column: str, type_: str
) -> None:
    remedy = re.escape(f"; write CAST(i AS {type_}) in the query")
    with pytest.raises(
        SchemaError, match=f"column 'i' must be of a type .* COLLATE U.* by their bytes{remedy}"
    ):
        catalog.create_view("v", f"SELECT id, {column} AS i FROM sales", spark=spark)
    query = f"SELECT id, CAST(i AS {type_}) AS i FROM (SELECT id, {column} AS i FROM sales)"
    catalog.create_view("v", query, spark=spark)
    found = catalog.sql(query, spark)
    assert isinstance(found, Frame)
    assert rows_of(catalog, "v") == counted(found.df.toArrow())


@pytest.mark.long
@pytest.mark.parametrize(("by", "is_kept"), [(", g", True), ("", False)])
def test_rows_join_sessions_and_part_them(
    catalog: Catalog, spark: SparkSession, by: str, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", 0)
    catalog.sql("CREATE TABLE t (id INT, g STRING, at TIMESTAMP_NTZ, PRIMARY KEY (id) NOT ENFORCED)")
    at = "TIMESTAMP_NTZ '2024-01-01 00:00:00' + make_dt_interval(0, 0, at)"
    insert = f"INSERT INTO t SELECT id, g, {at} FROM VALUES"
    catalog.sql(f"{insert} (1, 'a', 0), (2, 'a', 20), (3, 'b', 5), (4, NULL, 5) v(id, g, at)", spark)
    sessions = f"session_window(at, '10 minutes'){by}"
    query = f"SELECT session_window.start AS s{by}, count(*) AS c FROM t GROUP BY {sessions}"
    view = catalog.create_view("v", query, spark=spark)
    assert ("by groups" in view.explain()) is is_kept
    for change_ in (f"{insert} (5, 'a', 10), (6, NULL, 9) v(id, g, at)", "DELETE FROM t WHERE id IN (3, 5)"):
        catalog.sql(change_, spark)
        assert view.refresh()
        found = catalog.sql(query, spark)
        assert isinstance(found, Frame)
        assert rows_of(catalog, "v") == counted(found.df.toArrow()), change_


def test_a_join_without_an_index_keeps_the_rows_it_looks_up(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", 0)
    query = "SELECT s.id, c.shop FROM sales s LEFT JOIN closed c ON s.n = c.since"
    before = sorted(Path(catalog.warehouse).rglob("*"))
    plan_of(catalog, f"EXPLAIN CREATE MATERIALIZED VIEW v AS {query}", spark)
    plan_of(catalog, f"EXPLAIN CREATE MATERIALIZED VIEW v AS {PARTED['newest']}", spark)
    assert sorted(Path(catalog.warehouse).rglob("*")) == before  # nothing is made
    view = catalog.create_view("v", query, spark=spark)
    assert "-input (INDEX (column_" in view.explain()
    monkeypatch.setattr("upsert.views.refresh.difference", None)  # nothing may be compared
    monkeypatch.setattr("upsert.views.refresh.signed_rows", None)
    change(catalog, 1)
    assert view.refresh()
    assert rows_of(catalog, "v") == expected(catalog, query)


@pytest.mark.long
def test_hidden_tables_go_with_the_first_refresh_that_needs_others(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", 0)
    query = "SELECT c.shop, max(n) AS high FROM sales s JOIN closed c ON s.n = c.since GROUP BY c.shop"
    view = catalog.create_view("v", query, spark=spark)
    before = {Path(table.path).name for table in stages(view.table)}
    assert len(before) == 4  # both sides of the join, its rows, and what groups give

    def refreshed(other: View) -> None:
        change(catalog, len(stages(view.table)))
        assert other.refresh()
        assert rows_of(catalog, "v") == expected(catalog, query)

    refreshed(view)
    assert {Path(table.path).name for table in stages(view.table)} == before
    old = Catalog(catalog.warehouse, optimize=planner.optimize)  # as another process
    refreshed(old.view("v", spark))
    catalog.sql("ALTER TABLE closed ADD INDEX (since)")
    catalog.sql("ALTER TABLE sales ADD INDEX (n)")
    with reading(view.table.root):  # as a refresh of another process that reads them
        refreshed(view)
        assert len(stages(view.table)) == 6
    refreshed(view)
    after = {Path(table.path).name for table in stages(view.table)}
    assert len(after) == 2
    assert not after & before
    refreshed(old.view("v", spark))  # which knew the old ones
    held = {consumer.name for name in ("sales", "closed") for consumer in catalog.table(name).consumers()}
    hidden = {consumer.name for table in stages(view.table) for consumer in table.consumers()}
    assert not any(name[:16] in "".join(held | hidden) for name in before)
    catalog.sql("ALTER MATERIALIZED VIEW v SET ('refresh' = 'full')")
    refreshed(view)
    assert stages(view.table) == []


@pytest.mark.parametrize("few", [50_000, -1], ids=["driver", "tasks"])
def test_two_rows_of_a_key_that_is_not_proven_end_a_refresh_by_changes(
    catalog: Catalog, spark: SparkSession, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes that tasks compute are not compared with the view's rows: all of these are."""
    for module in FEW:
        monkeypatch.setattr(f"{module}.FEW_ROWS", few)
    catalog.sql("CREATE TABLE t (id INT, k INT, v INT, PRIMARY KEY (id) NOT ENFORCED)")
    table = catalog.table("t")

    def put(*rows: tuple[int, int, int]) -> None:
        table.write(pa.table([int32(list(column)) for column in zip(*rows, strict=True)], ["id", "k", "v"]))

    put((1, 1, 10), (2, 2, 20))
    view = catalog.create_view("v", "SELECT k, v FROM t", primary_key=["k"], spark=spark)
    put((1, 2, 30), (2, 1, 40))  # the keys change places
    assert view.refresh()
    assert view.table.snapshot().scan().sort_by("k").to_pydict() == {"k": [1, 2], "v": [40, 30]}
    put((3, 2, 50))
    with pytest.raises(ChangelogError, match="must tell the rows of its query apart"):
        view.refresh()
    assert view.table.snapshot().row_count == 2
    table.delete([("id", "=", 1)])
    assert view.refresh()
    assert view.table.snapshot().scan().sort_by("k").to_pydict() == {"k": [1, 2], "v": [40, 50]}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=[pytest.mark.long, pytest.mark.minutes])])
def test_a_kill_between_the_commits_of_a_deep_view_loses_nothing(
    catalog: Catalog, spark: SparkSession, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.keep.SHALLOW_ROWS", 0)
    query = DEEP["an aggregate of aggregates"]
    view = catalog.create_view("v", query, spark=spark)
    change(catalog, seed)
    view.refresh()
    commit, count = frames.commit, 0

    def failing(*given: Any, **named: Any) -> None:
        nonlocal count
        count += 1
        if count == last:
            raise KeyboardInterrupt
        commit(*given, **named)

    for last in range(1, 6):  # sums, their results, sums of these, their results or the view
        change(catalog, seed + last)
        count = 0
        with monkeypatch.context() as killed:
            killed.setattr(frames, "commit", failing)
            with suppress(KeyboardInterrupt):
                view.refresh()
        change(catalog, seed + 10 + last)
        view.refresh()
        assert rows_of(catalog, "v") == expected(catalog, query), last
    assert count >= 3


@pytest.mark.long
@pytest.mark.minutes
@pytest.mark.usefixtures("where")
def test_every_other_query_is_exact_too(catalog: Catalog, spark: SparkSession) -> None:
    views = {name: catalog.create_view(f"v{n}", QUERIES[name], spark=spark) for n, name in enumerate(QUERIES)}
    for seed in range(3):
        change(catalog, seed)
        for name, view in views.items():
            view.refresh()
            assert rows_of(catalog, view.name) == expected(catalog, QUERIES[name]), (name, seed)


@pytest.mark.long
def test_what_an_expression_is_given_beside_its_columns_makes_another_stage(
    catalog: Catalog, spark: SparkSession
) -> None:
    """Which field of a struct it takes, in which order its function has variables, if none is a row."""
    catalog.sql(
        "CREATE TABLE t (id INT, s STRUCT<a: INT, b: INT>, l ARRAY<INT>, PRIMARY KEY (id) NOT ENFORCED)"
    )
    table = catalog.table("t")

    def put(id: int, a: int, b: int, numbers: list[int]) -> None:
        rows = [{"id": id, "s": {"a": a, "b": b}, "l": numbers}]
        table.write(pa.Table.from_pylist(rows, table.schema.arrow))

    put(1, 1, 10, [5, 3])
    folded = "SELECT sum(aggregate(l, 0, (x, y) -> {})) AS n FROM t"
    exploded = "SELECT count(*) AS n FROM t LATERAL VIEW {} explode(l) e AS x"
    parts = {
        "a": "SELECT sum(s.a) AS n, sum(s.b) AS m FROM t",
        "b": "SELECT sum(s.b) AS n FROM t",
        "c": folded.format("x - y"),
        "d": folded.format("y - x"),
        "e": exploded.format(""),
        "f": exploded.format("OUTER"),
    }
    tables = " CROSS JOIN ".join(f"({query}) {name}" for name, query in parts.items())
    columns = ", ".join(f"{name}.n AS {name}" for name in parts)
    view = catalog.create_view("v", f"SELECT {columns}, a.m FROM {tables}", spark=spark)
    put(2, 2, 20, [])
    assert view.refresh()
    assert len(stages(view.table)) == len(parts)
    assert view.table.snapshot().scan().to_pylist() == [
        {"a": 3, "b": 30, "c": -8, "d": -2, "e": 2, "f": 3, "m": 30}
    ]


@pytest.mark.long
def test_sums_by_a_struct_are_found_by_no_index(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.keep.SHALLOW_ROWS", 0)
    catalog.sql("CREATE TABLE t (id INT, p STRUCT<x: INT>, n INT, PRIMARY KEY (id) NOT ENFORCED)")
    one, other = "named_struct('x', 1)", "named_struct('x', 2)"
    catalog.sql(f"INSERT INTO t VALUES (1, {one}, 5), (2, {one}, 6), (3, {other}, 7), (4, NULL, 8)", spark)
    query = "SELECT id, (SELECT sum(y.n) FROM t y WHERE y.p = t.p AND y.n = t.n) AS s FROM t"
    views = [
        catalog.create_view("v0", query, spark=spark),
        catalog.create_view("v1", query.replace(" AND y.n = t.n", ""), spark=spark),
    ]
    catalog.sql(f"INSERT INTO t VALUES (2, {other}, 7)", spark)
    found = []
    for view in views:
        assert view.refresh()
        found.append(dict(zip(*view.table.snapshot().scan().to_pydict().values(), strict=True)))
    assert found == [{1: 5, 2: 14, 3: 14, 4: None}] * 2


def test_sums_of_long_decimals_lose_no_digit(catalog: Catalog, spark: SparkSession) -> None:
    """Spark's minus rounds a decimal to 34 digits."""
    catalog.sql("CREATE TABLE t (id INT, e DECIMAL(38, 2), f DECIMAL(38, 10), PRIMARY KEY (id) NOT ENFORCED)")
    long = "123456789012345678901234567890123456.78, -1234567890123456789012345678.9012345678"
    catalog.sql(f"INSERT INTO t VALUES (1, {long}), (2, 1.25, 0.0000000001), (3, NULL, NULL)", spark)
    view = catalog.create_view("v", "SELECT sum(e) AS e, sum(f) AS f FROM t", spark=spark)
    catalog.sql("DELETE FROM t WHERE id = 1", spark)
    assert view.refresh()
    assert view.table.snapshot().scan().to_pylist() == [{"e": Decimal("1.25"), "f": Decimal("1E-10")}]


TOTALS = "SELECT shop, sum(n) AS n, count(*) AS c FROM sales GROUP BY shop"


def kinds(view: View) -> list[str]:
    (stage,) = stages(view.table)
    return [info.kind for info in stage.history() if info.changes_rows]


def test_what_cannot_be_read_as_changes_is_computed_again(
    catalog: Catalog, spark: SparkSession, go_by_changes: SetWay
) -> None:
    view = catalog.create_view("totals", TOTALS, spark=spark)
    change(catalog, 1)
    sales = catalog.table("sales")
    sales.overwrite(sales.snapshot().scan().slice(3), tracked=False)
    assert view.refresh()
    assert kinds(view) == ["append", "overwrite"]
    for consumer in sales.consumers():  # as after the end of its lease
        sales.release(consumer.name)
    change(catalog, 2)
    sales.expire(keep=1)
    assert view.refresh()
    assert kinds(view) == ["append", "overwrite", "overwrite"]
    go_by_changes(False)
    change(catalog, 3)
    assert view.refresh()
    assert kinds(view)[-1] == "overwrite"
    assert rows_of(catalog, "totals") == expected(catalog, TOTALS)


@pytest.mark.parametrize("shallow", [5_000, 0])
def test_a_group_without_rows_is_in_no_result(
    catalog: Catalog, spark: SparkSession, shallow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays among the sums with a count of 0, until all of these are computed again: then it is gone."""
    for rows in ("SHALLOW_ROWS", "WHOLE_ROWS"):
        monkeypatch.setattr(f"planner.views.keep.{rows}", shallow)
    query = STAGED["an aggregate of aggregates"]
    view, sales = catalog.create_view("v", query, spark=spark), catalog.table("sales")
    first, second, *_ = sales.snapshot().scan()["shop"].drop_null().unique().to_pylist()
    sales.delete([("shop", "=", first)])
    for is_last in (False, True):
        assert view.refresh()
        assert rows_of(catalog, "v") == expected(catalog, query), is_last
        left = sales.snapshot().scan()
        sales.overwrite(left.filter(pc.not_equal(left["shop"], second)), tracked=False)
    ways = [one.snapshot().info.refresh for one in stages(view.table) if "-rows-" in one.name]
    assert any(way is not None and way.by_changes for way in ways) is (not shallow)


def test_an_overwrite_is_read_as_the_changes_that_it_makes(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = [TOTALS, CHANGED["full"]]
    views = [catalog.create_view(f"v{n}", query, spark=spark) for n, query in enumerate(queries)]
    monkeypatch.setattr("upsert.views.refresh.difference", None)
    sales = catalog.table("sales")
    for seed in range(1, 3):
        change(catalog, seed)
        sales.overwrite(sales.snapshot().scan().slice(2))
        change(catalog, seed + 10)
        for view, query in zip(views, queries, strict=True):
            assert view.refresh()
            assert rows_of(catalog, view.name) == expected(catalog, query), (seed, query)
    assert kinds(views[0]) == ["append"] * 3


def test_a_view_holds_what_its_next_refresh_reads_until_it_is_dropped(
    catalog: Catalog, spark: SparkSession
) -> None:
    sales = catalog.table("sales")
    view = catalog.create_view("totals", TOTALS, spark=spark)
    rows = catalog.create_view("rows", CHANGED["rows"], spark=spark)
    for seed in range(2):
        change(catalog, seed)
        sales.expire(keep=1)
        assert view.refresh()
        assert rows.refresh()
    assert kinds(view) == ["append"] * 3
    assert len(sales.consumers()) == 2
    catalog.sql("DROP MATERIALIZED VIEW rows", spark)
    assert len(sales.consumers()) == 1
    catalog.create_view("totals", CHANGED["rows"], or_replace=True, spark=spark)
    held = [f"view-{catalog.table('totals').uuid}"]
    assert [consumer.name for consumer in sales.consumers()] == held
    shares = "SELECT shop, CAST(1 / (n - n) AS INT) AS share"
    by_zero = f"{shares} FROM (SELECT shop, count(*) AS n FROM sales GROUP BY shop)"
    for name in ("other", "totals"):
        with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
            catalog.create_view(name, by_zero, or_replace=name == "totals", spark=spark)
        assert [consumer.name for consumer in sales.consumers()] == held, "none of a view that is not there"


def test_a_view_that_stops_after_its_first_refresh_holds_what_it_reads_if_it_is_there(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: str) -> None:
        raise KeyboardInterrupt

    query = catalog.create_view("totals", TOTALS, spark=spark).start()
    for name, step in {"totals": "local.exchange", "rows": "create_as.reach"}.items():
        with monkeypatch.context() as patch:
            patch.setattr(f"upsert.catalog.create_as.{step}", stop)
            with pytest.raises(KeyboardInterrupt):
                catalog.create_view(name, CHANGED["rows"], or_replace=True, spark=spark)
    held = {consumer.name[: len("view-") + 32] for consumer in catalog.table("sales").consumers()}
    assert held == {f"view-{catalog.table(name).uuid}" for name in ("totals", "rows")}
    change(catalog, 3)
    query.processAllAvailable()
    assert rows_of(catalog, "totals") == expected(catalog, TOTALS)
    query.stop()


def test_a_view_whose_creation_is_killed_holds_nothing_after_the_next_statement_for_its_name(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held what its tables had changed for three days."""
    sales, statement = catalog.table("sales"), f"CREATE MATERIALIZED VIEW totals AS {TOTALS}"
    for following in ("DROP MATERIALIZED VIEW IF EXISTS totals", statement):
        with monkeypatch.context() as killed:
            killed.setattr(frames, "commit", raising(KeyboardInterrupt()))
            killed.setattr(LocalStage, "discard", LocalStage.let_go)
            killed.setattr("upsert.catalog.run.views._release", lambda *_: None)
            with pytest.raises(KeyboardInterrupt):
                catalog.sql(statement, spark)
        assert len(sales.consumers()) == 1
        catalog.sql(following, spark)
        views = [catalog.table(name).uuid for name in catalog.tables() if name == "totals"]
        assert [one.name.split("-")[1] for one in sales.consumers()] == views


def test_a_view_leaves_nothing_that_is_dropped_with_its_database(
    catalog: Catalog, spark: SparkSession
) -> None:
    catalog.sql("CREATE DATABASE more")
    view = catalog.create_view("more.totals", TOTALS.replace("sales", "`default`.sales"), spark=spark)
    query = view.start()
    query.processAllAvailable()
    assert len(catalog.table("sales").consumers()) == 1
    assert Path(view.checkpoint).exists()
    catalog.sql("DROP DATABASE more CASCADE")
    assert not query.isActive
    assert catalog.table("sales").consumers() == ()
    assert not Path(view.checkpoint).exists()


def test_a_view_that_is_replaced_is_kept_no_longer_as_it_was(catalog: Catalog, spark: SparkSession) -> None:
    before = catalog.create_view("totals", TOTALS, spark=spark)
    query = before.start()
    query.processAllAvailable()
    catalog.create_view("totals", CHANGED["rows"], or_replace=True, spark=spark)
    assert not query.isActive
    assert not Path(before.checkpoint).exists()
    after = catalog.view("totals", spark).start()
    change(catalog, 3)
    after.processAllAvailable()
    assert rows_of(catalog, "totals") == expected(catalog, CHANGED["rows"])
    after.stop()


@pytest.mark.long
def test_a_view_whose_changes_expired_while_refreshes_ended_behind_its_hidden_table_is_computed_again(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both hold a table by one name: the hidden table, many steps ahead, keeps less than the view reads."""
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", 0)
    query = "SELECT a.id, b.id AS other, b.n FROM sales a JOIN sales b ON a.id = b.n"
    view, sales = catalog.create_view("v", query, spark=spark), catalog.table("sales")
    (hidden,) = stages(view.table)

    def ended(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for seed, point in enumerate(
        [*["upsert.views.refresh.reach"] * 4, "planner.views.kept_table.KeptTable._commit"]
    ):
        change(catalog, seed)  # three commits to sales
        with monkeypatch.context() as patch:
            patch.setattr(point, ended)
            with pytest.raises(KeyboardInterrupt):
                view.refresh()
    known = view.base_versions["default.sales"]
    assert hidden.snapshot().info.base_versions == {sales.uuid: known + 13}
    sales.expire(keep=1)
    assert sales.published.latest().oldest == known + 13
    found = []
    for seed in range(5, 7):
        change(catalog, seed)
        assert view.refresh()
        found.append([view.refreshes[name].by_changes for name in ("v", hidden.name)])
        assert rows_of(catalog, "v") == expected(catalog, query)
    assert found == [[False, True], [True, True]]


@pytest.mark.long
def test_a_hold_is_written_again_when_it_is_ten_snapshots_behind(
    catalog: Catalog, spark: SparkSession
) -> None:
    sales = catalog.table("sales")
    view = catalog.create_view("totals", TOTALS, spark=spark)
    held = []
    for seed in range(5):
        known = view.base_versions["default.sales"]
        change(catalog, seed)  # three commits to sales
        assert view.refresh()
        held.append(sales.consumers()[0].version.target)
        assert 0 <= known - held[-1] < 10
    assert len(set(held)) == 2
    assert kinds(view) == ["append"] * 6


def test_a_view_says_which_way_it_was_refreshed_and_why(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("planner.views.keep.SHALLOW_ROWS", 0)
    view = catalog.create_view("joined", CHANGED["join"], spark=spark)
    assert not view.refreshes["joined"].by_changes
    catalog.table("sales").write(catalog.table("sales").snapshot().scan().slice(0, 1))
    assert view.refresh()
    first = view.refreshes["joined"]
    assert (first.by_changes, first.changed) == (True, 1)
    assert first.reason == f"1 of {first.rows} rows have changed"
    view.table.compact()
    assert view.refreshes["joined"].took_ms == first.took_ms
    deep = catalog.create_view("deep", STAGED["in groups"], spark=spark)
    for _ in range(2):  # its groups become a table with the first one
        catalog.table("sales").write(catalog.table("sales").snapshot().scan().slice(0, 1))
        assert deep.refresh()
    (row,) = catalog.sql("DESCRIBE EXTENDED deep", spark).rows["refreshes"].to_pylist()
    assert len(row) == len(stages(deep.table)) + 1
    assert all("rows have changed" in reason for _, reason in row), row
    catalog.sql("ALTER MATERIALIZED VIEW deep SET ('refresh' = 'full')")
    change(catalog, 2)
    assert deep.refresh()
    assert list(deep.refreshes) == ["deep"]  # the hidden tables stay where they were
    assert deep.refreshes["deep"].reason == "option 'refresh' = 'full' says so"


def test_the_option_refresh_says_how(catalog: Catalog, spark: SparkSession) -> None:
    full = catalog.create_view("full", TOTALS, options={"refresh": "full"}, spark=spark)
    change(catalog, 1)
    assert full.refresh()
    assert stages(full.table) == []
    must = {"refresh": "incremental"}
    kept = catalog.create_view("kept", TOTALS, options=must, spark=spark)
    assert kept.refresh() is False
    catalog.create_view("first", "SELECT id FROM sales ORDER BY id LIMIT 3", options=must, spark=spark)
    assert rows_of(catalog, "full") == rows_of(catalog, "kept") == expected(catalog, TOTALS)
    refused = {
        "SELECT max(n) AS n, min(n) AS m FROM sales": "is no sum",
        "SELECT id, rank() OVER (ORDER BY id) AS r FROM sales": "a window function",
        "SELECT id FROM sales LIMIT 3": "a limit",
    }
    for query, reason in refused.items():
        with pytest.raises(ConfigurationError, match=f"(?is)'refresh' = 'incremental' needs.*{reason}"):
            catalog.create_view("other", query, options=must, spark=spark)
    assert "other" not in catalog.tables()
    with pytest.raises(ConfigurationError, match="make it as Catalog"):
        Catalog(catalog.warehouse).create_view("other", TOTALS, options=must, spark=spark)
    with pytest.raises(ConfigurationError, match="option 'refresh' is that of a view"):
        catalog.sql("CREATE TABLE t (a INT) WITH ('refresh' = 'full')")


FILTERED = {
    "in": "SELECT id FROM a WHERE k IN (SELECT k FROM b WHERE v > 2)",
    "outer": "SELECT a.id, b.v FROM a LEFT JOIN (SELECT k, v FROM b WHERE v BETWEEN 3 AND 8) b ON a.k = b.k",
    "sums": "SELECT b.v, count(*) AS n FROM a JOIN b ON a.k = b.k WHERE b.v > 2 GROUP BY b.v",
    "newest": "SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v) AS nth FROM b WHERE v > 2",
    "union": """SELECT a.id, x.v FROM a JOIN (SELECT k, v FROM b WHERE v > 2 UNION ALL SELECT id, k FROM a) x
        ON a.k = x.k""",
    "renamed": "SELECT a.id, v FROM a JOIN (SELECT k AS found, v FROM b WHERE v > 2) b ON a.k = found",
    "value": """WITH x AS (SELECT b.k, count(*) AS n FROM b JOIN b c ON b.k = c.v GROUP BY b.k)
        SELECT a.id, n FROM x JOIN a ON x.k = a.k WHERE a.k > 0 AND a.k >= (SELECT k FROM a WHERE id = 1)""",
}
"""Queries that read some rows of tables without an index for it."""


def in_duckdb(catalog: Catalog, query: str) -> Counter[str]:
    with duckdb_with({name: catalog.table(name).snapshot().scan() for name in "ab"}) as db:
        return counted(db.sql(query).to_arrow_table())


@pytest.mark.parametrize(
    "names",
    [
        ("union",),
        pytest.param(("value", "renamed", "in", "outer", "sums", "newest"), marks=pytest.mark.long),
    ],
)
def test_rows_that_a_filter_leaves_out_of_a_hidden_table_change(
    spark: SparkSession, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """They are none of its rows, so their changes are none of it either."""
    catalog = Catalog(tmp_path, optimize=planner.optimize)
    catalog.sql("CREATE TABLE a (id INT, k INT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("CREATE TABLE b (k INT, v INT)")
    catalog.table("a").write(pa.table({"id": int32([1, 2, 3]), "k": int32([0, 3, 0])}))
    catalog.table("b").write(pa.table({"k": int32([0, 3, 0, 0]), "v": int32([1, 2, 3, 9])}))
    views = [
        catalog.create_view(name, FILTERED[name], options={"refresh": "incremental"}, spark=spark)
        for name in names
    ]
    a, b = catalog.table("a"), catalog.table("b")

    def inserted() -> None:
        b.write(pa.table({"k": int32([3, 3, 0]), "v": int32([1, 7, 0])}))
        a.write(pa.table({"id": int32([3]), "k": int32([3])}))

    for changed in (
        lambda: b.delete([("v", "=", 1)]),
        inserted,
        lambda: b.overwrite(pa.table({"k": int32([0, 3]), "v": int32([5, 1])})),
        lambda: b.delete([("v", ">", 0)]),
    ):
        changed()
        for view, name in zip(views, names, strict=True):
            view.refresh()
            assert rows_of(catalog, view.name) == in_duckdb(catalog, FILTERED[name]), (name, b.history()[-1])


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


def test_a_stage_that_is_ahead_of_its_view_is_read_where_the_view_goes(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = catalog.create_view("totals", TOTALS, spark=spark)
    change(catalog, 1)
    with monkeypatch.context() as killed:  # as if the driver was, between both commits
        killed.setattr(Refresher, "_changes", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            view.refresh()
    assert kinds(view) == ["append"] * 2
    assert not view.is_current
    assert view.refresh()
    assert kinds(view) == ["append"] * 2
    assert view.table.clean(older_than_s=0) == 0  # a stage is no orphan of the view's table
    assert view.table.check(deep=True) == ()
    change(catalog, 2)
    assert view.refresh()
    assert kinds(view) == ["append"] * 3
    assert rows_of(catalog, "totals") == expected(catalog, TOTALS)


def plan_of(catalog: Catalog, statement: str, spark: SparkSession) -> str:
    rows = catalog.sql(statement, spark).rows
    return "\n".join(rows.column("plan").to_pylist())


def test_explain_says_what_a_refresh_reads(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explained(query: str, options: str = "") -> str:
        return plan_of(catalog, f"EXPLAIN CREATE MATERIALIZED VIEW v {options} AS {query}", spark)

    assert explained(CHANGED["semi"]).startswith(
        "the view\n   by changes: those of its rows follow from a step of closed and sales\n     "
    )
    text = explained(TOTALS)
    assert text.startswith(
        "the view\n│  all rows of what is below are read, and what is computed is compared: there are no "
    )
    assert (
        " (PRIMARY KEY (group_0, is_null_0)), at most 20 groups\n      by changes: its sums are moved" in text
    )
    assert "moved by a step of sales\n        SignedAggregate by" in text
    assert "there are no more than 50,000 of them, for MAX of all rows\n" in explained(
        "SELECT max(n) AS n FROM sales"
    )
    assert "option 'refresh' = 'full' says so" in explained(TOTALS, "WITH ('refresh' = 'full')")
    before = sorted(Path(catalog.warehouse).rglob("*"))
    with monkeypatch.context() as large:
        large.setattr("planner.views.keep.WHOLE_ROWS", 0)
        large.setattr("planner.views.keep.SHALLOW_ROWS", 0)
        text = explained(PARTED["joined"])
        assert text.startswith("the view\n│  by changes: those of its rows follow from a step of ")
        assert "-input (INDEX (partition)), at most 20 rows\n" in text
        assert "by groups: those with changed rows are computed again, all others stay" in text
        deep = explained(DEEP["an aggregate of aggregates"])
        assert [deep.count(f"─ {what} ") for what in ("stage", "table")] == [2, 2]
    assert sorted(Path(catalog.warehouse).rglob("*")) == before
    monkeypatch.setattr("planner.views.keep.SHALLOW_ROWS", 0)
    view = catalog.create_view("v", DEEP["an aggregate of aggregates"], spark=spark)
    change(catalog, 1)
    assert view.refresh()  # by now it is known how many groups there are
    text = plan_of(catalog, "EXPLAIN MATERIALIZED VIEW v", spark)
    assert view.explain() == text
    assert [text.count(f"─ {what} ") for what in ("stage", "table")] == [2, 2]
    assert all(Path(table.path).name in text for table in stages(view.table))
    assert " (PRIMARY KEY (key_0, is_null_0)), 5 rows\n" in text
    assert "there are no more than 50,000 of them\n" in explained(DEEP["beside rows"])  # no index is worth it
    catalog.create_view("w", TOTALS, options={"refresh": "full"}, spark=spark)
    assert "'refresh' = 'full'" in catalog.view("w", spark).explain()
    assert "optimize=planner.optimize" in Catalog(catalog.warehouse).view("v", spark).explain()


def test_a_refresh_leaves_the_session_of_its_caller_active(catalog: Catalog, spark: SparkSession) -> None:
    view = catalog.create_view("v", CHANGED["semi"], spark=spark)
    change(catalog, 1)
    spark.createDataFrame([], "a INT")  # which makes it the active one
    assert view.refresh()
    assert SparkSession.getActiveSession() is spark
    assert spark._jvm.org.apache.spark.sql.classic.SparkSession.active().equals(spark._jsparkSession)


TYPED = """CREATE TABLE typed (id INT, b BOOLEAN, d DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, bin BINARY,
    dec DECIMAL(38, 10), f FLOAT, dbl DOUBLE, arr ARRAY<INT>, st STRUCT<a: INT, b: STRING>,
    m MAP<STRING, INT>, PRIMARY KEY (id) NOT ENFORCED)"""

VALUES = (
    """(1, true, DATE '2024-10-27', TIMESTAMP '2024-10-27 02:30:00', TIMESTAMP_NTZ '2024-03-31 02:30:00',
        X'00ff', 1234567890123456789012345678.0123456789, CAST('NaN' AS FLOAT), -0.0D, array(1, NULL),
        named_struct('a', 1, 'b', '🍐'), map('k', CAST(NULL AS INT)))""",
    "(2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    """(3, false, DATE '1582-10-04', TIMESTAMP '1500-01-01 00:00:00', TIMESTAMP_NTZ '9999-12-31 23:59:59',
        X'', -0.0000000001, 0.0F, CAST('Infinity' AS DOUBLE), CAST(array() AS ARRAY<INT>),
        named_struct('a', CAST(NULL AS INT), 'b', ''), CAST(map() AS MAP<STRING, INT>))""",
)


@pytest.mark.usefixtures("where")
def test_values_of_every_type_are_kept_in_any_time_zone(catalog: Catalog, spark: SparkSession) -> None:
    catalog.sql(TYPED)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        query = "SELECT * FROM typed WHERE id > 0"
        rows = catalog.create_view("copied", query, primary_key=["id"], spark=spark)
        groups = "SELECT b, d, ts, ntz, bin, dec, count(*) AS c FROM typed GROUP BY b, d, ts, ntz, bin, dec"
        counted = catalog.create_view("grouped", groups, spark=spark)
        for values in (VALUES[:1], VALUES[1:]):
            catalog.sql(f"INSERT INTO typed VALUES {', '.join(values)}", spark)
            assert rows.refresh()
            assert counted.refresh()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    wanted = catalog.table("typed").snapshot().scan()
    assert repr(rows.table.snapshot().scan().sort_by("id").to_pylist()) == repr(
        wanted.sort_by("id").to_pylist()
    )
    columns = ["b", "d", "ts", "ntz", "bin", "dec"]
    found = counted.table.snapshot().scan()
    assert Counter(map(repr, found.select(columns).to_pylist())) == Counter(
        map(repr, wanted.select(columns).to_pylist())
    )
    assert found.column("c").to_pylist() == [1, 1, 1]


@pytest.mark.usefixtures("where")
def test_an_expression_that_fails_is_told_and_changes_nothing(catalog: Catalog, spark: SparkSession) -> None:
    sales = catalog.table("sales")
    sales.delete([("n", "=", 0)])
    view = catalog.create_view("v", "SELECT id, 90 / n AS part FROM sales", primary_key=["id"], spark=spark)
    total = catalog.create_view("w", "SELECT sum(90 DIV n) AS parts FROM sales", spark=spark)
    before = rows_of(catalog, "v"), rows_of(catalog, "w")
    sales.write(pa.Table.from_pylist([{"id": 77, "n": 0}], sales.schema.arrow))
    for failing in (view, total):
        with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO") as raised:
            failing.refresh()
        names = [*(table.name for table in stages(failing.table)), failing.name]
        assert [re.search("'(.*?)'", note)[1] for note in raised.value.__notes__] == names
        assert f"view {failing.name!r} was refreshed" in reason_of(raised.value)
    assert (rows_of(catalog, "v"), rows_of(catalog, "w")) == before
    sales.write(pa.Table.from_pylist([{"id": 77, "n": 2}], sales.schema.arrow))
    assert view.refresh()
    assert total.refresh()
    assert rows_of(catalog, "w") == expected(catalog, "SELECT sum(90 // n) AS parts FROM sales")


@pytest.mark.long
@pytest.mark.parametrize("few", [50_000, 6])
def test_few_rows_that_tasks_compute_are_compared_in_the_driver(
    catalog: Catalog, spark: SparkSession, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.inputs.FEW_ROWS", -1)
    query, options = "SELECT since, count(*) AS c FROM closed GROUP BY since", {"refresh": "full"}
    view = catalog.create_view("v", query, primary_key=["since"], options=options, spark=spark)
    compared: list[int] = []

    def differing(*of: Any) -> Any:
        compared.append(1)
        return difference(*of)

    monkeypatch.setattr("upsert.views.refresh.difference", differing)
    monkeypatch.setattr("upsert.views.refresh.FEW_ROWS", few)
    monkeypatch.setattr("upsert.views.refresh.FEWEST_ROWS", min(few, 1_000))
    before = view.table.snapshot().id
    catalog.table("closed").write(pa.table({"shop": int32([7] * 5), "since": int32([4, 5, 6, 7, 8])}))
    assert view.refresh()
    assert rows_of(catalog, "v") == expected(catalog, query)
    changed = view.table.changes(before, view.table.snapshot().id)
    assert Counter(changed["_row_kind"].to_pylist()) == {"+I": 4, "-U": 1, "+U": 1}
    assert compared == ([] if few > 6 else [1])  # seven groups, of three before


def test_options_of_a_view_are_altered(catalog: Catalog, spark: SparkSession) -> None:
    catalog.create_view("v", TOTALS, spark=spark)
    done = catalog.sql(
        "ALTER MATERIALIZED VIEW v SET ('refresh' = 'full', 'snapshot.num-retained.min' = '3')"
    )
    assert str(done) == "<ALTER MATERIALIZED VIEW v: altered>"
    assert catalog.table("v").options.refresh == "full"
    assert "'refresh' = 'full'" in catalog.view("v", spark).explain()
    catalog.sql("ALTER MATERIALIZED VIEW v RESET ('refresh')")
    catalog.sql("ALTER MATERIALIZED VIEW v COMMENT 'sums'")
    assert catalog.table("v").options.refresh == "auto"
    change(catalog, 1)
    assert catalog.view("v", spark).refresh()
    assert rows_of(catalog, "v") == expected(catalog, TOTALS)
    for change_ in ("SET ('materialized-view' = '{}')", "RESET ('Materialized-View')"):
        with pytest.raises(ConfigurationError, match="CREATE OR REPLACE MATERIALIZED VIEW"):
            catalog.sql(f"ALTER MATERIALIZED VIEW v {change_}")
    with pytest.raises(ConfigurationError, match="'sales' is a table, and no materialized view"):
        catalog.sql("ALTER MATERIALIZED VIEW sales SET ('refresh' = 'full')")
    with pytest.raises(ConfigurationError, match="'refresh' must be one of auto, incremental, full"):
        catalog.sql("ALTER MATERIALIZED VIEW v SET ('refresh' = 'never')")
