"""Materialized views: after every refresh they hold the rows that DuckDB gives for the query."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.forked_python import forked_program
from tests.helpers import spark_script
from tests.upsert.views.refresh_script import of_the_jvm
from tests.upsert.views.shops import QUERIES, TABLES, change, expected, int32, made, rows_of
from upsert import Catalog
from upsert.errors import (
    ChangelogError,
    CommitConflictError,
    ConfigurationError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
)
from upsert.failpoints import ENVIRONMENT_VARIABLE
from upsert.managed import frames
from upsert.schema import TableSchema
from upsert.spark.settings import copy_of
from upsert.store.metadata.looks import looking_once
from upsert.store.metadata.stands_for import StandsFor
from upsert.store.table import Table
from upsert.views.progress import Versions
from upsert.views.refresh import Refresher, collected_if_few
from upsert.views.view import View

pytestmark = pytest.mark.spark


@pytest.fixture
def catalog(tmp_path: Path, spark: SparkSession) -> Iterator[Catalog]:
    catalog = made(Catalog(tmp_path / "warehouse"))
    yield catalog
    for query in catalog.context.views.values():
        query.stop()


@pytest.mark.parametrize(
    ("names", "seeds"),
    [
        (["rollup", "top", "exists in an or"], range(1)),  # each is computed whole
        pytest.param(list(QUERIES), range(1, 20), marks=[pytest.mark.long, pytest.mark.minutes]),
    ],
    ids=["some", "all"],
)
def test_every_query_has_a_view_that_is_the_query_after_each_refresh(
    catalog: Catalog, spark: SparkSession, names: list[str], seeds: range
) -> None:
    views = {
        name: catalog.create_view(f"v{number}", QUERIES[name], spark=spark)
        for number, name in enumerate(names)
    }
    for seed in seeds:
        for name, view in views.items():
            assert rows_of(catalog, view.name) == expected(catalog, QUERIES[name]), (name, seed)
        change(catalog, seed)
        assert not any(view.is_current for view in views.values())
        for view in views.values():
            view.refresh()
            assert view.is_current
    for name, view in views.items():
        assert rows_of(catalog, view.name) == expected(catalog, QUERIES[name]), name


SCRIPT = Path(__file__).with_name("refresh_script.py")
TOTALS = "SELECT shop, sum(n) AS n FROM sales WHERE shop IS NOT NULL GROUP BY shop"
TOP = f"SELECT shop FROM ({TOTALS}) ORDER BY n DESC, shop LIMIT 1"


def test_a_refresh_commits_what_differs_and_nothing_else(catalog: Catalog, spark: SparkSession) -> None:
    view = catalog.create_view("totals", TOTALS, primary_key=["shop"], spark=spark)
    before = view.table.snapshot()
    row = catalog.table("sales").snapshot().scan().filter(pa.compute.field("shop") == 1).slice(0, 1)
    raised = row.set_column(3, "n", int32([row["n"][0].as_py() + 1]))
    catalog.table("sales").write(raised)
    assert view.refresh()
    after = view.table.snapshot()
    assert after.info.delta_rows == 1
    assert after.info.base_versions == {"default.sales": catalog.table("sales").snapshot().info.data_version}
    assert not view.refresh()
    assert view.table.snapshot().id == after.id
    # a change that the query does not show moves the versions alone
    catalog.table("sales").write(raised.set_column(2, "item", pa.array(["other"])))
    assert view.refresh()
    assert view.table.snapshot().info.data_version == after.info.data_version
    assert view.is_current
    assert before.info.base_versions is not None


def test_a_query_keeps_a_view_and_the_views_on_it(catalog: Catalog, spark: SparkSession) -> None:
    catalog.create_view("totals", TOTALS, primary_key=["shop"], spark=spark)
    top = catalog.create_view("top", "SELECT shop FROM totals ORDER BY n DESC, shop LIMIT 1", spark=spark)
    running = [catalog.view(name, spark).start() for name in ("totals", "top")]
    assert catalog.view("totals", spark).start() is running[0]
    for seed in range(2):
        change(catalog, seed)
        for query in running:
            query.processAllAvailable()
        assert rows_of(catalog, "totals") == expected(catalog, TOTALS)
    assert rows_of(catalog, "top") == expected(catalog, TOP)
    told = [progress["observedMetrics"]["view"] for progress in running[0].recentProgress]
    (own,) = told[-1]["refreshes"]
    assert (own["table"], own["by_changes"], own["seconds"] > 0) == ("totals", False, True)
    assert own["reason"].startswith("the catalog plans nothing")
    assert [(lag["table"], lag["versions"], lag["seconds"]) for lag in told[-1]["lag"]] == [
        ("default.sales", 0, 0.0)
    ]
    running[1].stop()
    assert top.query is None
    change(catalog, 7)
    running[0].processAllAvailable()
    assert top.refresh()  # beside the stopped query, which then goes on from what the view stands for
    again = catalog.view("top", spark).start()
    again.processAllAvailable()
    assert rows_of(catalog, "top") == expected(catalog, TOP)
    for query in (running[0], again):
        query.stop()
    last = catalog.view("totals", spark).start()
    assert [*catalog.context.views.values()] == [last], "what has ended is not kept with its plans"


def test_a_view_of_a_database_that_is_gone_says_so_and_can_be_dropped(
    catalog: Catalog, spark: SparkSession
) -> None:
    for name in ("raw", "desk"):
        catalog.sql(f"CREATE DATABASE {name}")
    catalog.sql("CREATE TABLE raw.t (id INT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("USE desk")
    view = catalog.create_view("default.ids", "SELECT id FROM raw.t", spark=spark)
    catalog.sql("USE `default`")
    catalog.sql("DROP DATABASE desk")  # the query names no table of it
    catalog.sql("INSERT INTO raw.t VALUES (1)")
    assert view.refresh()
    catalog.sql("DROP DATABASE raw CASCADE")
    told = "view 'ids': its query reads table 'raw.t', which was dropped or made again"
    with pytest.raises(TableNotFoundError, match=told):
        catalog.view("ids", spark).refresh()
    (shown,) = catalog.sql("SHOW MATERIALIZED VIEWS").rows.to_pylist()
    assert shown["state"].startswith(f"cannot be refreshed: {told}")
    catalog.sql("DROP MATERIALIZED VIEW ids")
    assert "ids" not in catalog.tables()


def test_statements(catalog: Catalog, spark: SparkSession) -> None:
    def said(text: str) -> str:
        return repr(catalog.sql(text, spark))

    create = f"CREATE MATERIALIZED VIEW totals PRIMARY KEY (shop) COMMENT 'x' AS {TOTALS}"
    assert said(create) == "<CREATE MATERIALIZED VIEW totals: created>"
    with pytest.raises(TableExistsError, match="choose another name, OR REPLACE or IF NOT EXISTS"):
        catalog.sql(create, spark)
    again = create.replace("VIEW", "VIEW IF NOT EXISTS", 1)
    assert said(again).endswith("was there already>")
    other = said(again.replace(TOTALS, f"SELECT * FROM ({TOTALS}) AS t"))
    assert other.endswith("another one; CREATE OR REPLACE MATERIALIZED VIEW takes this one>"), other
    table = "CREATE TABLE IF NOT EXISTS totals (a INT)"
    assert said(table) == "<CREATE TABLE totals: was there already, as a view>"
    assert said(create.replace("CREATE", "CREATE OR REPLACE", 1)).endswith("replaced>")
    assert said("REFRESH MATERIALIZED VIEW totals") == "<REFRESH MATERIALIZED VIEW totals: was up to date>"
    change(catalog, 0)
    shown = catalog.sql("SHOW MATERIALIZED VIEWS LIKE 'tot%'").rows.to_pylist()
    assert shown == [{"view": "totals", "state": "behind", "query": TOTALS}]
    (lag,) = catalog.view("totals").lag.values()
    ((behind, shown_lag),) = catalog.sql("DESCRIBE EXTENDED totals").rows["lag"][0].as_py()
    assert (behind, lag.versions, lag.rows > 10, lag.seconds > 0) == ("default.sales", 3, True, True)
    assert shown_lag.startswith(f"3 versions, {lag.rows} rows, ")
    assert said("REFRESH MATERIALIZED VIEW totals").endswith("refreshed>")
    assert catalog.sql("DESCRIBE EXTENDED totals").rows["lag"][0].as_py() == [(behind, "up to date")]
    (text,) = catalog.sql("SHOW CREATE TABLE totals").rows["create table"].to_pylist()
    (described,) = catalog.sql("DESCRIBE EXTENDED totals", spark).rows.to_pylist()
    assert described["view.query"] == TOTALS
    assert dict(described["base-versions"]) == catalog.view("totals").base_versions
    assert said("DROP MATERIALIZED VIEW totals").endswith("dropped>")
    assert "was not there" in said("DROP MATERIALIZED VIEW IF EXISTS totals")
    assert said(text).endswith("created>")
    assert catalog.sql("SHOW CREATE TABLE totals").rows["create table"].to_pylist() == [text]
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    running = catalog.sql("REFRESH MATERIALIZED VIEW totals", spark)
    change(catalog, 1)
    running.query.processAllAvailable()
    assert rows_of(catalog, "totals") == expected(catalog, TOTALS)
    assert catalog.sql("SHOW MATERIALIZED VIEWS").rows["state"].to_pylist() == ["running"]
    assert said("ALTER MATERIALIZED VIEW totals SUSPEND").endswith("suspended>")
    assert not running.query.isActive
    with pytest.raises(ConfigurationError, match="view 'totals' is suspended; ALTER MATERIALIZED VIEW"):
        catalog.sql("REFRESH MATERIALIZED VIEW totals", spark)
    assert "running" in said("ALTER MATERIALIZED VIEW totals RESUME")
    assert said("DROP MATERIALIZED VIEW totals").endswith("dropped>")
    assert catalog.tables() == ("closed", "sales", "shops")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT id, rand() AS r FROM sales", r"depends on chance \(at line 1, column 42\)"),
        ("SELECT id\n, current_timestamp() AS t FROM sales", r"depends on the clock \(at line 2, column 3\)"),
        (
            "SELECT s.id FROM sales s JOIN shops ON n = 1 WHERE CAST('today' AS DATE) > DATE '2020-01-01'",
            r"depends on the clock \(at line 1, column 82\)",
        ),
        ("SELECT id, current_user() AS u FROM sales", r"depends on the session \(at line 1, column 42\)"),
        (
            "SELECT id FROM sales WHERE n IN (SELECT shop FROM closed WHERE since > rand())",
            r"depends on chance \(at line 1, column 102\)",
        ),
        ("SELECT id FROM sales TABLESAMPLE (10 PERCENT)", r"depends on chance \(at line 1, column 52\)"),
        (
            "SELECT id FROM sales\nWHERE n IN (SELECT n FROM sales TABLESAMPLE (9 PERCENT) REPEATABLE (1))",
            r"depends on chance \(at line 2, column 33\)",
        ),
        ("SELECT 1 AS one", "reads no table"),
        ("SELECT citty FROM shops", "column 'citty' is in no table of the query; did you mean 'city'"),
        ("SELECT * FROM nowhere", r"table 'nowhere' at line 1, column \d+ must be a table of the catalog"),
        ("SELECT * FROM sales FOR SYSTEM_VERSION AS OF 1", "leave out FOR SYSTEM_"),
        ("SELECT * FROM sales /*+ OPTIONS('scan.where' = '[]') */", "leave out .* OPTIONS"),
    ],
)
def test_what_is_no_function_of_tables_is_refused_before_anything_is_made(
    catalog: Catalog, spark: SparkSession, query: str, message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        catalog.sql(f"CREATE MATERIALIZED VIEW v AS {query}", spark)
    assert "v" not in catalog.tables()


def test_a_view_is_of_a_text(catalog: Catalog, spark: SparkSession) -> None:
    df: Any = catalog.read(spark, "sales")
    with pytest.raises(SchemaError, match="view 'v': its query must be SQL text, got DataFrame"):
        catalog.create_view("v", df, spark=spark)


def test_rows_of_one_key_make_no_view_and_leave_one_as_it_is(catalog: Catalog, spark: SparkSession) -> None:
    items = "SELECT item, id FROM sales WHERE item IS NOT NULL"
    with pytest.raises(ChangelogError, match=r"PRIMARY KEY \(item\) must tell the rows of its query apart"):
        catalog.create_view("v", items, primary_key=["item"], spark=spark)
    assert "v" not in catalog.tables()
    since = "SELECT since, shop FROM closed WHERE since = 4"
    view = catalog.create_view("v", since, primary_key=["since"], spark=spark)
    before = rows_of(catalog, "v")
    catalog.table("closed").write(pa.table({"shop": int32([5]), "since": int32([4])}))
    with pytest.raises(ChangelogError, match=r"view 'v': PRIMARY KEY \(since\)"):
        view.refresh()
    assert rows_of(catalog, "v") == before


def test_a_view_that_is_not_created_leaves_its_name_free(catalog: Catalog, spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="'refresh' must be one of"):
        catalog.create_view("v", TOTALS, options={"refresh": "never"}, spark=spark)
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO") as raised:
        catalog.create_view("v", "SELECT 1 DIV (shop - shop) AS part FROM shops", spark=spark)
    assert raised.value.__notes__ == ["while view 'v' was created; nothing has changed"]
    assert catalog.create_view("v", TOTALS, spark=spark).is_current


def test_a_view_is_changed_by_its_query_alone(catalog: Catalog, spark: SparkSession) -> None:
    view = catalog.create_view("totals", TOTALS, primary_key=["shop"], spark=spark)
    for text in (
        "INSERT INTO totals VALUES (1, 1)",
        "INSERT OVERWRITE totals SELECT shop, 1 FROM shops",
        "DELETE FROM totals",
        "UPDATE totals SET n = 1",
        "ALTER TABLE totals ADD COLUMN x INT",
        "TRUNCATE TABLE totals",
        "DROP TABLE totals",
        "DROP VIEW totals",
    ):
        with pytest.raises(ConfigurationError, match="'totals' is a materialized view"):
            catalog.sql(text, spark)
    writes: list[Callable[[], object]] = [
        lambda: view.table.write(pa.table({"shop": int32([1]), "n": [1]})),
        lambda: view.table.delete([("shop", "=", 1)]),
        lambda: frames.write(spark.sql("SELECT 1 AS shop, 1L AS n"), view.table.path),
    ]
    for write in writes:
        with pytest.raises((ConfigurationError, PySparkException), match="'totals' is a materialized view"):
            write()
    with pytest.raises(ConfigurationError, match="is that of a view; write CREATE MATERIALIZED VIEW"):
        catalog.sql("CREATE TABLE t (a INT) WITH ('materialized-view' = '{}')")
    with pytest.raises(ConfigurationError, match="'sales' is a table, and no materialized view"):
        catalog.sql("DROP MATERIALIZED VIEW sales")
    with pytest.raises(ConfigurationError, match="'sales' is a table, and no materialized view"):
        catalog.sql(f"CREATE OR REPLACE MATERIALIZED VIEW sales AS {TOTALS}", spark)
    catalog.sql("CREATE TABLE copy LIKE totals")
    catalog.sql("INSERT INTO copy SELECT * FROM totals", spark)
    assert rows_of(catalog, "copy") == rows_of(catalog, "totals")
    assert view.table.check() == ()


def test_a_view_that_is_suspended_is_refreshed_by_no_process(catalog: Catalog, spark: SparkSession) -> None:
    view = catalog.create_view("totals", TOTALS, primary_key=["shop"], spark=spark)
    Catalog(catalog.warehouse).view("totals").suspend()
    change(catalog, 2)
    for refused in (view.refresh, view.start):
        with pytest.raises(ConfigurationError, match="view 'totals' is suspended"):
            refused()
    view.resume()
    assert view.refresh()


def test_a_base_table_that_is_made_again_is_another(catalog: Catalog, spark: SparkSession) -> None:
    view = catalog.create_view("cities", "SELECT city FROM shops", spark=spark)
    catalog.sql("DROP TABLE shops")
    catalog.sql(TABLES.split(";")[1])
    with pytest.raises(TableNotFoundError, match=r"table 'default\.shops', which was dropped or made again"):
        view.refresh()
    (state,) = catalog.sql("SHOW MATERIALIZED VIEWS").rows.column("state").to_pylist()
    assert state.startswith(
        "cannot be refreshed: view 'cities': its query reads table 'default.shops', which"
    )
    catalog.sql("CREATE OR REPLACE MATERIALIZED VIEW cities AS SELECT city FROM shops", spark)
    assert rows_of(catalog, "cities") == Counter()


def test_a_damaged_view_does_not_hide_the_others(catalog: Catalog, spark: SparkSession) -> None:
    for name in ("one", "two"):
        catalog.create_view(name, "SELECT city FROM shops", spark=spark)
    Path(catalog.table("one").root, "table.json").write_text("{")
    shown = catalog.sql("SHOW MATERIALIZED VIEWS").rows.to_pylist()
    assert [(row["view"], row["state"].partition(":")[0]) for row in shown] == [
        ("one", "damaged"),
        ("two", "up to date"),
    ]


def test_names_and_times_mean_what_they_meant_when_the_view_was_made(
    tmp_path: Path, spark: SparkSession
) -> None:
    catalog = Catalog(tmp_path)
    catalog.sql("CREATE DATABASE d")
    catalog.sql("USE d")
    catalog.sql("CREATE TABLE t (id INT, at TIMESTAMP, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("INSERT INTO t VALUES (1, TIMESTAMP '2024-07-01 23:30:00')", spark)
    query = "SELECT id, CAST(at AS STRING) AS s, CAST(at AS DATE) AS day FROM t"
    view = catalog.create_view("v", query, primary_key=["id"], spark=spark)
    other = Catalog(tmp_path, name="elsewhere")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        other.sql("INSERT INTO d.t VALUES (2, TIMESTAMP '2024-07-02 08:30:00')", spark)
        assert other.view("d.v", spark).refresh()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    first, second = sorted(view.table.snapshot().scan().to_pylist(), key=lambda row: row["id"])
    assert (first["s"], first["day"]) == (second["s"], second["day"])


MEANINGS = (
    ("spark.sql.parser.escapedStringLiterals", "true", r"SELECT id, '\\d' AS x FROM t"),
    ("spark.sql.timestampType", "TIMESTAMP_NTZ", "SELECT id, TIMESTAMP '2024-03-31 02:30:00' AS x FROM t"),
    (
        "spark.sql.legacy.timeParserPolicy",
        "LEGACY",
        "SELECT id, try_to_date('2024-3-1', 'yyyy-MM-dd') AS x FROM t",
    ),
    (
        "spark.sql.jsonGenerator.ignoreNullFields",
        "false",
        "SELECT id, to_json(named_struct('a', nullif(id, id))) AS x FROM t",
    ),
    ("spark.sql.caseSensitive", "true", "SELECT id, A - a AS x FROM (SELECT id, 7 AS a, 9 AS A FROM t)"),
)


def test_a_setting_of_all_sessions_is_not_given_to_that_of_a_view(
    catalog: Catalog, spark: SparkSession
) -> None:
    """Spark lets no session have another value of it, by whatever name it is called."""
    catalog.sql("CREATE TABLE t (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    own = copy_of(spark, {})
    static = "spark.sql.legacy.sessionInitWithConfigDefaults"
    own._jsparkSession.sessionState().conf().setConfString(static, "true")  # as if Spark had begun with it
    view = catalog.create_view("v", "SELECT id FROM t", spark=own)
    catalog.sql("INSERT INTO t VALUES (1)", spark)
    assert catalog.view("v", own).refresh()
    assert view.table.snapshot().scan().column("id").to_pylist() == [1]


@pytest.mark.parametrize("is_given", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_settings_of_who_made_a_view_say_what_its_query_means(
    catalog: Catalog, spark: SparkSession, is_given: bool
) -> None:
    """To who refreshes it, rows would mean something else than those that are there."""
    catalog.sql("CREATE TABLE t (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.table("t").write(pa.table({"id": [1]}))
    for number, (setting, value, query) in enumerate(MEANINGS):
        if setting == "spark.sql.caseSensitive" and not is_given:
            continue  # without it two columns of the query have one name
        own, other = (copy_of(spark, {setting: value} if each is is_given else {}) for each in (True, False))
        view = catalog.create_view(f"v{number}", query, spark=own)
        meant = view.table.snapshot().scan().column("x").to_pylist()
        catalog.table("t").write(pa.table({"id": [number + 2]}))
        assert catalog.view(f"v{number}", other).refresh()
        # not what it means to who refreshes it either, where all rows are computed
        assert view.table.snapshot().scan().column("x").to_pylist() == [*meant, meant[0]], setting


def test_no_table_of_a_view_goes_back(catalog: Catalog, spark: SparkSession) -> None:
    view = catalog.create_view("totals", TOTALS, primary_key=["shop"], spark=spark)
    asked: list[Versions] = []

    def rows_at(session: SparkSession, versions: Versions) -> DataFrame:
        asked.append(versions)
        return session.createDataFrame([], "shop INT, n BIGINT")

    table = view.table
    refresher = Refresher("totals", table.path, table.uuid, spark, lambda one: one, rows_at, {})
    assert not refresher.refresh({"default.sales": 0})
    assert refresher.refresh({"default.sales": 0, "default.other": 3})
    assert asked == [{"default.sales": 1, "default.other": 3}]
    assert view.base_versions == asked[0]


def test_of_two_refreshes_of_one_state_one_is_refused(catalog: Catalog, spark: SparkSession) -> None:
    view = catalog.create_view("totals", TOTALS, primary_key=["shop"], spark=spark)
    state = view.table.snapshot().info.data_version
    change(catalog, 3)
    view.refresh()
    with pytest.raises(CommitConflictError, match="let one process refresh it"):
        view.table.commit([], stands_for=StandsFor({"default.sales": 99}, state))


def test_what_tasks_have_committed_is_seen_at_once_and_rows_are_collected_if_no_more_than_before(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that has looked at a table a moment ago looks again after a commit of Spark's process."""
    monkeypatch.setattr("upsert.store.metadata.looks.LASTS_S", 60.0)
    table = Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64()}, primary_key=["id"]))
    with looking_once():
        state = table.snapshot().info.data_version
        versions = {"base": 1}
        frames.commit(spark.range(3), table.path, StandsFor(versions, state))
        head = table.snapshot()
    assert head.info.base_versions == versions
    assert isinstance(collected_if_few(spark.range(1_000), head), pa.Table)
    assert isinstance(collected_if_few(spark.range(1_001), head), DataFrame)
    monkeypatch.setattr("upsert.views.refresh.FEW_BYTES", 4_000)
    assert isinstance(collected_if_few(spark.range(500), head), pa.Table)
    assert isinstance(collected_if_few(spark.range(501), head), DataFrame)  # of 8 bytes each


@pytest.mark.parametrize(
    ("point", "has_its_own_jvm"),
    [
        ("publish.after-link", False),
        pytest.param("view.before-commit", True, marks=pytest.mark.long),
        pytest.param("publish.after-link", True, marks=pytest.mark.long),
        pytest.param("view.after-commit", True, marks=pytest.mark.long),
    ],
)
def test_a_driver_that_is_killed_leaves_a_state_of_the_query(
    catalog: Catalog, spark: SparkSession, point: str, has_its_own_jvm: bool
) -> None:
    view: View = catalog.create_view("totals", TOTALS, primary_key=["shop"], spark=spark)
    before = rows_of(catalog, "totals")
    change(catalog, 5)
    after = expected(catalog, TOTALS)
    if has_its_own_jvm:
        environment = {ENVIRONMENT_VARIABLE: point}
        process = spark_script(SCRIPT, catalog.warehouse, "totals", environment=environment)
        process.communicate()
        assert process.returncode != 0  # the driver was killed, or its Python process that commits
    else:
        command = forked_program("tests.upsert.views.refresh_script", catalog.warehouse, "totals")
        environment = {**os.environ, **of_the_jvm(spark), ENVIRONMENT_VARIABLE: point}
        killed = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert rows_of(catalog, "totals") == (before if point == "view.before-commit" else after)
    Catalog(catalog.warehouse).view("totals", spark).refresh()
    assert rows_of(catalog, "totals") == after
    assert catalog.view("totals").is_current
    assert [found for found in view.table.check() if not found.is_information] == []


@pytest.mark.parametrize("point", ["view.before-commit", "publish.after-link", "view.after-commit"])
def test_a_driver_that_is_killed_leaves_no_view_or_all_of_it(
    catalog: Catalog, spark: SparkSession, point: str
) -> None:
    command = forked_program("tests.upsert.views.refresh_script", catalog.warehouse, "totals", TOTALS)
    environment = {**os.environ, **of_the_jvm(spark), ENVIRONMENT_VARIABLE: point}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert ("totals" in catalog.tables()) == (point == "view.after-commit")
    if "totals" in catalog.tables():
        assert rows_of(catalog, "totals") == expected(catalog, TOTALS)
    change(catalog, 5)
    catalog.create_view("totals", TOTALS, or_replace=True, spark=spark)
    assert rows_of(catalog, "totals") == expected(catalog, TOTALS)
