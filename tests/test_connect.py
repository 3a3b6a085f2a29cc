"""Tables over Spark Connect, and in a declarative pipeline: clients of a real server, in other processes."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from typing import Any

import pyarrow as pa
import pyspark
import pytest

import upsert
from tests.helpers import REPOSITORY, SESSION_OPTIONS, use_this_python
from upsert.kafka.client.admin import create_topic
from upsert.kafka.client.connection import Connection
from upsert.spark.version import PYSPARK
from upsert.testing import LocalKafka

PAGE = (REPOSITORY / "docs" / "connect.md").read_text(encoding="utf-8")

BY_ROWS = "PlanError: over Spark Connect changes are taken row by row only,"
CARRIED = "PlanError: over Spark Connect the"
A_DAY = (  # Spark 4.2 has no such cast
    'cannot cast "TIME(6)" to "TIMESTAMP"'
    if PYSPARK == "4.2"
    else "PlanError: a cast of a TIME to a TIMESTAMP, which takes the day from the"
)
KINDS = f"{CARRIED} kind of a change must be passed on as it is, under its name,"

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        not find_spec("grpc") or not find_spec("grpc_status"),
        reason="the packages of pyspark[connect] are not installed",
    ),
]


def run(folder: Path, *command: str, **variables: str) -> str:
    """What a command prints, which must succeed, and in which Spark runs as this process does."""
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }
    use_this_python(environment, forked=True)
    environment |= variables
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Results(dict[str, Any]):
    """What each step of the script gives; who asks for one that failed is told why."""

    def __missing__(self, name: str) -> Any:
        pytest.fail(self["failed"].get(name, f"the script has no step {name!r}"), pytrace=False)


def results(folder: Path, *told: str) -> Results:
    """Run the script in a folder."""
    script = str(REPOSITORY / "tests" / "connect_script.py")
    output = run(folder, sys.executable, script, str(folder), *told)
    return Results(json.loads(output.splitlines()[-1]))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results(tmp_path_factory.mktemp("connect"))


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Those of long runs, too."""
    return results(tmp_path_factory.mktemp("connect"), "every-step")


def test_statements_write_rows_and_queries_read_them(found: dict[str, Any]) -> None:
    amounts = {1: 3.5, 2: 4.5, 3: 9.0, 4: 500.5}
    assert {row["id"]: row["amount"] for row in found["written"]} == amounts
    assert found["queried"] == [{"id": 1, "name": "tea"}, {"id": 2, "name": "coffee"}]
    assert found["read"] == [{"id": 4}]


def test_refusals_of_a_query_name_the_place(found: dict[str, Any]) -> None:
    assert "column 'nam' is in no table of the query" in found["misspelt"]
    assert found["misspelt"].endswith("at line 1, column 8")


def test_a_join_in_sql_is_planned_by_its_text(found: dict[str, Any]) -> None:
    sales, big = found["first_join"]
    assert sales == [
        {"id": 1, "name": "TEA", "amount": 7.0},
        {"id": 2, "name": "COFFEE", "amount": 9.0},
        {"id": 3, "name": None, "amount": 18.0},
    ]
    assert big == [{"id": 4, "product_id": 1, "amount": 500.5}]


def test_a_join_in_sql_continues_with_the_changes_of_both_tables(found: dict[str, Any]) -> None:
    assert found["next_join"] == [{"id": 3, "name": "MILK", "amount": 18.0}]


def test_in_and_exists_follow_the_changes_of_both_tables(found: dict[str, Any]) -> None:
    assert found["first_matches"] == [{"product_id": 1, "name": "tea"}, {"product_id": 2, "name": "coffee"}]
    assert found["next_matches"] == [{"product_id": 7, "name": "milk"}]


def test_groups_are_kept_whose_having_holds(found: dict[str, Any]) -> None:
    """By sums, by lookups of min and DISTINCT, of all rows, and of a union; one that fails it later goes."""
    busy, earliest, of_all, of_both = found["first_groups"]
    assert busy == [{"product_id": 1, "n": "2 of 5"}]
    assert [[*row.values()] for row in earliest] == [[1, 1, 1, 4, "[1,4]"], [7, 3, 0, 3, "[3]"]]
    assert of_all == [{"k": "all", "ids": 7}]
    assert of_both == [{"id": 1, "n": 2}, {"id": 2, "n": 2}, {"id": 4, "n": 2}]
    busy, earliest, of_all, of_both = found["next_groups"]
    assert busy == []
    assert [[*row.values()] for row in earliest] == [
        [p, n, 0, n, f"[{n}]"] for p, n in ((1, 4), (2, 2), (7, 3))
    ]
    assert of_all == [{"k": "all", "ids": 9}]
    assert of_both == [{"id": 2, "n": 2}, {"id": 3, "n": 1}, {"id": 4, "n": 1}]


def test_explain_of_a_dataframe_says_how_it_joins_or_why_it_is_refused(found: dict[str, Any]) -> None:
    rows, joined, refused = (text.splitlines() for text in found["explained_frames"])
    assert rows[:3] == ["the query has no join", "sink with PRIMARY KEY (id)", "  form: as it is"]
    assert joined[:2] == ["join of orders and products", "  form: delta join (fused)"]
    assert "    look up t1 products by (product_id) with PRIMARY KEY, ~1 rows a key" in joined
    assert "refused: over Spark Connect changes are taken row by row only, found 'aggregate'" in refused


def test_explain_says_of_a_stream_what_a_classic_session_says(found: dict[str, Any]) -> None:
    joined, lacking, first, chance, clock, kept, least = (text.splitlines() for text in found["explained"])
    assert joined[:4] == [
        "inner join of orders with products on (orders.product_id = products.product_id)",
        "  form: delta join (fused)",
        "  consistency: snapshot: lookups read the versions that the micro-batch moves between",
        "  tree: inner(t0, t1: t0.product_id = t1.product_id)",
    ]
    assert "    look up t1 products by (product_id) with PRIMARY KEY, ~1 rows a key" in joined
    at = joined.index(
        "aggregate Count(1) by (upper(`products`.name)) over the changes of 'orders', 'products'"
    )
    assert joined[at + 1] == "  form: signed sums"
    assert joined[at + 4 : at + 7] == [
        "sink with PRIMARY KEY (name)",
        "  form: as it is",
        "  the query's rows are told apart by (name)",
    ]
    assert joined[at + 8 : at + 11] == [
        "plan:",
        joined[at + 9],
        "    inner(t0, t1: t0.product_id = t1.product_id)",
    ]
    assert lacking == [
        "left outer join of o with s on (o.amount = s.amount)",
        "  form: refused",
        "  because no index of 'sales' lies within its join columns (amount)",
        "  remedy: ALTER TABLE sales ADD INDEX (amount)",
        "  because no index of 'orders' lies within its join columns (amount)",
        "  remedy: ALTER TABLE orders ADD INDEX (amount)",
        "the plan is left as it is",
    ]
    assert first[1] == "refused: INSERT INTO kinds: over Spark Connect 'FIRST(amount)' cannot be planned"
    at = least.index(
        "aggregate Min(`o`.id), Count(DISTINCT `o`.n), MaxBy(`o`.id, `o`.n), CollectList(`o`.id), "
        "Max(`o`.n) by (`o`.p) over the changes of 'o'"
    )
    assert least[at + 1] == "  form: lookups"
    assert least[at + 2] == (
        "  of each group that changes all rows are looked up in orders, by INDEX_product_id for "
        "(product_id), before and after"
    )
    assert (
        "refused: chosen(`orders`.id) may give another value for the deletion of a row than for" in chance[-3]
    )
    assert "refused: the function 'present', which has current_timestamp(), may give another" in clock[-3]
    at = kept.index("sink with PRIMARY KEY (id)")
    assert kept[at + 1 : at + 3] == ["  form: as it is", "  the query's rows are told apart by (id)"]


def test_a_second_stream_into_a_table_does_not_end_the_first(found: dict[str, Any]) -> None:
    """The server would stop the first one, and give its checkpoint to the second."""
    told, is_running = found["second_stream"]
    assert "table 'copied': a job must have one stream into it, got another one while query" in told
    assert is_running


def test_the_end_of_a_query_is_recorded(found: dict[str, Any]) -> None:
    """Its listener stays, also after answers of the server with what was counted in Python."""
    assert found["recorded"] == ["ended"]


def test_a_query_and_the_jobs_are_shown_when_the_session_has_been_stopped(found: dict[str, Any]) -> None:
    shown, jobs = found["after_the_end"]
    assert shown.startswith("<INSERT INTO copied: stopped, checkpoint")
    assert set(jobs) == {"ended"}


def test_a_warning_of_a_key_names_what_finds_out_there(found: dict[str, Any]) -> None:
    """Not the planner, which the catalog has."""
    (told,) = found["unproven_key"]
    assert "over Spark Connect only an INSERT INTO of catalog.sql finds out, or say" in told


@pytest.mark.long
def test_each_kind_of_join_in_a_stream_is_its_batch_query(every: dict[str, Any]) -> None:
    streams, batches = every["kinds_of_joins"]
    assert streams == batches
    assert len(batches) == 9
    assert all(rows for rows in batches.values())


def test_rows_are_merged_by_spark_and_counted(found: dict[str, Any]) -> None:
    assert found["merged_by_spark"] == [2, [{"id": 1, "n": 2}, {"id": 2, "n": 2}]]


@pytest.mark.long
def test_rows_are_merged(every: dict[str, Any]) -> None:
    amounts = {2: 0.0, 3: 9.0, 4: 500.5}
    assert {row["id"]: row["amount"] for row in every["merged"]} == amounts


def test_a_view_is_refreshed_from_all_rows(found: dict[str, Any]) -> None:
    """In the time zone of the session that created it, and from the plain view that its query reads."""
    first, then, queried = found["viewed"]
    assert [row["product_id"] for row in first] == [1, 2]
    assert then == queried
    assert [row["product_id"] for row in then] == [2, 5]
    name = "REFRESH MATERIALIZED VIEW dear"
    assert found["refresh"] == [f"<{name}: refreshed>", f"<{name}: was up to date>"]
    assert found["reason"] == "over Spark Connect there is no plan to keep"
    assert [(row["view"], row["state"]) for row in found["state"]] == [("dear", "up to date")]


LOOKED_UP = [(1, 4.0, "EURO"), (2, 6.0, None), (3, None, "FRANKEN")]


def test_rows_are_looked_up_in_a_web_service_and_in_a_table(found: dict[str, Any]) -> None:
    assert [tuple(row.values()) for row in found["looked_up"]] == LOOKED_UP


def test_explain_says_of_each_lookup_where_rows_are_found(found: dict[str, Any]) -> None:
    lines = found["explained_lookups"].splitlines()
    assert lines[:2] == ["left outer join of a with w on (a.cur = w.cur)", "  form: lookup"]
    assert "each row looks the table 'web' up (http) when it is processed" in lines[2]
    assert lines[3:5] == ["left outer join of a with n on (a.cur = n.cur)", "  form: lookup"]


@pytest.mark.long
def test_rows_are_looked_up_in_a_batch(every: dict[str, Any]) -> None:
    assert [tuple(row.values()) for row in every["looked_up_in_a_batch"]] == LOOKED_UP


@pytest.mark.long
def test_rows_find_the_versions_of_their_times(every: dict[str, Any]) -> None:
    """Those of commits; a row before the first one, and a currency without rates, have none."""
    rates = {row["id"]: row["rate"] for row in every["versions"]}
    assert rates == {**dict.fromkeys(range(1, 5)), 10: None, 11: 1.0, 12: 2.0, 13: 3.0, 14: None}


def test_the_snippet_of_the_page_prints_what_it_says(found: dict[str, Any]) -> None:
    (printed,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert found["page"] == printed


@pytest.mark.long
def test_a_sink_keeps_the_rows_that_its_key_does_not_tell_apart(every: dict[str, Any]) -> None:
    """Of a join and of a union, also when a row is taken away after a restart."""
    newest, both, is_the_other, later = every["kept_rows"]
    assert newest == [[1, True], [2, False]]
    assert both == [{"what": "l", "n": both[0]["n"]}, {"what": "r(", "n": both[1]["n"]}]
    assert both[0]["n"] in (1, 2)
    assert both[1]["n"] in (1, 2)
    assert is_the_other
    assert later == [{"what": "l", "n": later[0]["n"]}, {"what": "r(", "n": 1}]


@pytest.mark.long
def test_an_aggregate_over_the_changes_of_a_join_is_kept(every: dict[str, Any]) -> None:
    first, gone, then = every["totals"]
    assert first == [{"p": 1, "n": 2, "ids": 3, "half": 1.5}, {"p": 2, "n": 1, "ids": 3, "half": 1.5}]
    assert then == [{"p": 1, "n": 1, "ids": 3 - gone, "half": 1.5 - gone / 2}]


@pytest.mark.long
def test_averages_and_distinct_rows_are_kept(every: dict[str, Any]) -> None:
    gone = every["totals"][1]
    first, then = every["means"]
    assert first == [[{"p": 1, "mean": 0.75}, {"p": 2, "mean": 1.5}], [{"p": 1}, {"p": 2}]]
    assert then == [[{"p": 1, "mean": 1.5 - gone / 2}], [{"p": 1}]]


@pytest.mark.long
def test_changes_and_aggregates_go_into_postgresql(every: dict[str, Any]) -> None:
    first, then = every["in_postgresql"]
    assert first == [[[1, 1], [2, 1], [3, 2]], [[1, 2], [2, 1]]]
    assert then == [[[2, 1]], [[1, 1]]]


@pytest.mark.long
def test_a_join_by_its_spec_is_read(every: dict[str, Any]) -> None:
    names = {2: "coffee", 3: "milk", 4: "coffee", 5: "cake"}
    assert {row["id"]: row["name"] for row in every["joined_by_spec"]} == names


@pytest.mark.long
def test_plain_spark_sql_sees_exposed_tables(every: dict[str, Any]) -> None:
    assert every["exposed"] == [[{"id": 9, "product_id": 9, "amount": 9.0}], False]


def test_queries_of_dataframes_that_take_each_change_for_itself_may_be_written(found: dict[str, Any]) -> None:
    assert len(found["by_rows"]) == 10, found["by_rows"]


def test_times_of_day_are_computed_with(found: dict[str, Any]) -> None:
    assert found["hours"] == [{"id": 1, "n": 9}]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (
            "a join of DataFrames",
            "PlanError: over Spark Connect changes are taken row by row only, found 'join'",
        ),
        (
            "a view of an aggregate",
            f"{CARRIED} stream of the view 'rows_of_it' cannot be planned",
        ),
        (
            "an aggregate of a view",
            f"{CARRIED} stream of the view 'rows_of_it' cannot be planned",
        ),
        (
            "an aggregate in select",
            f"{BY_ROWS} found 'max(…)', of which Spark says UNSUPPORTED_EXPR",
        ),
        ("a window", f"{BY_ROWS} found 'window'"),
        ("filled values", f"{BY_ROWS} found 'fill_na'"),
        ("a function of chance", "PlanError: chosen(id) AS id may give another value for the deletion"),
        ("a called function", "PlanError: chosen(…) may give another value for the deletion"),
        ("a function in SQL", "the function 'thrown', which has rand(), may give another value"),
        ("rows by chance", "PlanError: stack(2, id, chosen(id)) AS id may give another value for the"),
        ("rows of its own column by chance", "PlanError: explode(…) may give another value for the deletion"),
        ("a time of the clock", "PlanError: the text 'today', which may be a time, may give another value"),
        ("a constant of the clock", "PlanError: the text 'now', which may be a time, may give another value"),
        ("a subquery in a text", "PlanError: a subquery may give another value for the deletion"),
        ("a drawn vector", "PlanError: aes_encrypt() may give another value for the deletion"),
        ("a drawn vector in a call", "PlanError: aes_encrypt() may give another value for the deletion"),
        ("kinds in a filter", f"{KINDS} found \"_row_kind <> '-D'\"; select"),
        ("all columns in one", f"{BY_ROWS} found 'struct(…)', of which Spark says INVALID_USAGE_OF_STAR"),
        ("all columns in a text", f"{BY_ROWS} found 'to_json(struct(*)) AS id', of which Spark says INVALID"),
        ("kinds in a column", f"{KINDS} found 'length(…)'; select"),
        ("kinds in a text", f"{KINDS} found 'length(_Row_Kind) AS id'; select"),
        ("other kinds", f"{KINDS} found 'literal'; select"),
        ("renamed kinds", f"{KINDS} found a new name; select"),
        ("kinds elsewhere", f"{KINDS} found a new name; select"),
        ("a text of the clock", "PlanError: the text 'today', which may be a time, may give another value"),
        ("a text of chance", "PlanError: chosen(`orders`.id) may give another value for the deletion"),
        ("a column called as kinds are", "SchemaError: INSERT INTO kinds: a column of the query is called"),
        ("lost kinds", "PlanError: over Spark Connect a stream of changes must have the column '_row_kind'"),
        ("a day of the clock", A_DAY),
        ("a day of the clock by itself", A_DAY),
        ("chance", "PlanError: rand() may give another value for the deletion"),
        ("a view of the clock", "its query depends on now() (at line 1, column 42)"),
        ("a view of a variable", "its query depends on the variable 'system.session.least' of this session"),
        ("a view by changes", "'refresh' = 'incremental': needs a classic Spark session"),
        ("a view of two rows", "ChangelogError: view 'v': PRIMARY KEY (one) must tell the rows"),
        ("a view that is kept", "a query that keeps it up to date: needs a classic Spark session"),
        ("a join with a plain view", "a join with 'e', which is no managed table read as it is, cannot be"),
        ("a lookup for changes", "PlanError: INSERT INTO found: over Spark Connect"),
        ("a lookup by no key", "the join with 'w': column 'rate' is DOUBLE, and equated with BIGINT"),
        ("a right join", "the join with 'w': 'right' would need all rows of the table; write an INNER"),
        ("all that is looked up", "its rows are only looked up by key"),
        ("two versions", "more than one join by event time cannot be planned"),
        ("a union", "over Spark Connect a query that is UNION cannot be planned"),
        ("a union with rows that stay", "a UNION ALL of changes and of rows that are only added"),
        ("a subquery", "'(SELECT product_id FROM products)' cannot be planned"),
        ("no checkpoint", "needs a checkpoint, which says of which query they are, got none"),
        ("an aggregate", "'FIRST(id)' cannot be planned; keep it as a materialized view"),
        (
            "groups without an index",
            "no PRIMARY KEY prefix or INDEX of 'orders' lies within (amount), cannot",
        ),
        ("the greatest computed value", "id + 1 is computed, and only stored columns are looked up"),
        ("groups by a computed value", "`orders`.product_id + 1 is computed, and only stored columns"),
        ("the greatest of a function", "in an aggregate by lookups: rows are counted without Spark"),
        ("the greatest of a join", "but 'o' is not the only table, managed and read as it is, cannot be"),
        ("the greatest of all", "but all rows would be one group, cannot be planned; group by a column"),
        ("groups of later rows", "read with scan.mode = 'latest', would delete rows that it never counted"),
        (
            "groups of a condition",
            "a WHERE over the groups of 'query 1' cannot be planned; write it as HAVING",
        ),
        ("groups by chance", "PlanError: chosen("),
        ("a condition of a function", "rows are joined without Spark, so not by 'UPPER(p.name)'; use compar"),
        ("an inequality", "whose ON must compare columns of both sides by =,"),
        ("an unknown column", "column 'o.nope' is in no table of the query; there are o.id, o.product_id"),
        (
            "two tables of one name",
            "a query of two tables called 'orders' cannot be planned; give one of them",
        ),
        ("a column of two tables", "column 'product_id' is in several tables, write that of one"),
    ],
)
def test_what_needs_a_classic_session_is_refused_by_name(what: str, why: str, found: dict[str, Any]) -> None:
    assert why in found[what]


def run_pipeline(folder: Path) -> None:
    """Run the pipeline of a folder by Spark's own command."""
    command = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    run(folder, str(command), "run", *(f"--conf={key}={value}" for key, value in SESSION_OPTIONS.items()))


@pytest.mark.long
def test_a_pipeline_reads_and_writes_tables(tmp_path: Path) -> None:
    """The project of the page, run twice by Spark's own command, with changes between."""
    spec, definitions = (
        re.search(rf"{before}\n```{language}\n(.*?)```", PAGE, re.DOTALL)[1].replace(
            "/data/shop", str(tmp_path)
        )
        for before, language in ((r"`spark-pipeline.yml`:\n", "yaml"), ("snippet: pipeline -->", "python"))
    )
    (tmp_path / "spark-pipeline.yml").write_text(spec, encoding="utf-8")
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "shop.py").write_text(definitions, encoding="utf-8")
    catalog = upsert.Catalog(tmp_path / "warehouse")
    catalog.sql(
        "CREATE TABLE orders (id INT, item INT, amount DOUBLE, PRIMARY KEY (id) NOT ENFORCED, INDEX (item))"
    )
    catalog.sql("CREATE TABLE items (item INT, name STRING, PRIMARY KEY (item) NOT ENFORCED)")
    orders, items = catalog.table("orders"), catalog.table("items")
    orders.write(pa.table({"id": [1, 2, 3], "item": [7, 8, 7], "amount": [1.0, 200.0, 300.0]}))
    items.write(pa.table({"item": [7, 8], "name": ["tea", "coffee"]}))

    def found(name: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in catalog.table(name).snapshot().scan().to_pylist())

    run_pipeline(tmp_path)
    assert found("large") == [(2, 8, 200.0), (3, 7, 300.0)]
    assert found("sales") == [(1, "tea", 1.0), (2, "coffee", 200.0), (3, "tea", 300.0)]
    rmtree(tmp_path / "spark-warehouse")  # the names of Spark's own tables were in memory, and are gone
    items.write(pa.table({"item": [7], "name": ["black tea"]}))
    orders.delete([("id", "=", 2)])
    run_pipeline(tmp_path)
    assert found("large") == [(3, 7, 300.0)]
    assert found("sales") == [(1, "black tea", 1.0), (3, "black tea", 300.0)]


THROUGH_A_TOPIC = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

import upsert

spark = SparkSession.active()
catalog = upsert.Catalog({warehouse!r})
topic = {{
    "topic": {topic!r},
    "columns": "id BIGINT, n BIGINT, PRIMARY KEY (id) NOT ENFORCED",
    "properties.bootstrap.servers": {servers!r},
    "key.format": "json",
    "value.format": "json",
    "state.path": {state!r},
}}
given = catalog.read_changes(spark, "given")
records = spark.readStream.format("upsert-kafka").options(**topic).load()
dp.create_sink("topic", "upsert-kafka", topic)
dp.create_sink("taken", "upsert-table", {{"path": catalog.table("taken").path}})
dp.append_flow(target="topic", name="into")(lambda: given)
dp.append_flow(target="taken", name="out_of")(lambda: records)
"""


@pytest.mark.kafka
@pytest.mark.long
def test_a_pipeline_writes_a_topic_and_reads_it(tmp_path: Path, kafka: LocalKafka) -> None:
    name = f"through-{tmp_path.name}"
    create_topic(
        Connection({"bootstrap.servers": kafka.bootstrap_servers}), name, 1, {"cleanup.policy": "compact"}
    )
    catalog = upsert.Catalog(tmp_path / "warehouse")
    for table in ("given", "taken"):
        catalog.sql(f"CREATE TABLE {table} (id BIGINT, n BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.table("given").write(pa.table({"id": [1, 2], "n": [10, 20]}))
    storage = (
        f"name: topic\nstorage: file://{tmp_path}/storage\nlibraries: [{{glob: {{include: flows/**}}}}]\n"
    )
    (tmp_path / "spark-pipeline.yml").write_text(storage, encoding="utf-8")
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "flows.py").write_text(
        THROUGH_A_TOPIC.format(
            warehouse=str(tmp_path / "warehouse"),
            topic=name,
            servers=kafka.bootstrap_servers,
            state=str(tmp_path / "state"),
        ),
        encoding="utf-8",
    )
    run_pipeline(tmp_path)  # its flows run beside each other: the second run reads what the first one wrote
    run_pipeline(tmp_path)
    assert catalog.table("taken").snapshot().scan().to_pylist() == [{"id": 1, "n": 10}, {"id": 2, "n": 20}]
