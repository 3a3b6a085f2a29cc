"""What notebooks show of tables, views and results: whatever a name or a value is, it stays text."""

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
import upsert
from upsert.catalog.results import Done, Live, Materialized, PlanText, Rows, Running
from upsert.schema import Column
from upsert.show import html

EVIL = """</td><script>alert('"1"')</script><img src=x onerror=alert(2)>&amp;"""
TAGS = {"div", "strong", "p", "pre", "table", "thead", "tbody", "tr", "th", "td", "i", "details", "summary"}


class Shown(HTMLParser):
    """The text of a page, once it is known to have no other tags and attributes than ours."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert {name for name, _ in attributes} <= {"class", "style"}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(decl)


@pytest.mark.parametrize(
    "made",
    [
        lambda: html.page(EVIL),
        lambda: html.block(EVIL),
        lambda: html.lines([EVIL], {0}),
        lambda: PlanText.of(EVIL, [EVIL], frozenset({0}))._repr_html_(),
        lambda: html.facts({EVIL: EVIL}),
        lambda: html.grid([EVIL], [[EVIL]], 1),
        lambda: Done(EVIL, EVIL)._repr_html_(),
        lambda: Rows(EVIL, pa.table({EVIL: [EVIL]}))._repr_html_(),
        lambda: Rows(EVIL, pa.table({EVIL: [{EVIL: EVIL}]}))._repr_html_(),
        lambda: Rows(EVIL, pa.table({EVIL: [f"two\n{EVIL}"]}))._repr_html_(),
    ],
)
def test_text_stays_text_wherever_it_comes_from(made: Callable[[], str]) -> None:
    assert EVIL[:60] in Shown(made()).text  # longer cells are cut, before they are escaped


def test_a_cell_is_cut_as_text_and_not_as_html() -> None:
    page = html.grid(["name"], [["&" * 200]], 1)
    assert Shown(page).text == "name" + "&" * (html.MAX_WIDTH - 1) + "…"


def test_a_result_shows_its_first_rows_and_columns_and_says_how_many_are_left() -> None:
    rows = pa.table({f"c{number}": range(25) for number in range(60)})
    page = Rows("SELECT", rows)._repr_html_()
    assert page.count("<tr>") == 1 + html.MAX_ROWS
    assert page.count("<th ") == html.MAX_COLUMNS
    assert "(5 more rows, 10 more columns)" in page
    assert "(no rows, 10 more columns)" in Rows("SELECT", rows.slice(0, 0))._repr_html_()
    twice = pa.table([pa.array([None, "NULL"]), pa.array([1, 2])], ["same", "same"])
    assert Shown(Rows("SELECT", twice)._repr_html_()).text == "SELECTsamesameNULL1NULL2"
    assert Rows("SELECT", twice)._repr_html_().count("<i>NULL</i>") == 1


def test_a_table_shows_its_columns_and_its_newest_snapshot(tmp_path: Path) -> None:
    columns = (Column("id", pa.int64(), nullable=False), Column("<b>", pa.string(), comment=EVIL))
    table = upsert.Table.create(tmp_path / "a<b>", upsert.TableSchema(columns, primary_key=("id",)))
    table.write(pa.table({"id": [1, 2], "<b>": ["x", "y"]}))
    text = Shown(table._repr_html_()).text
    assert text.startswith(f"Table('{tmp_path}/a<b>')snapshot1rowsabout 2primary keyid")
    assert text.endswith(f"idBIGINTNOT NULL<b>STRING{EVIL[:60]}{EVIL[60:]}")


def test_a_table_that_is_gone_says_so_instead_of_failing(tmp_path: Path) -> None:
    table = upsert.Table.create(tmp_path / "<i>", upsert.TableSchema.of({"id": pa.int64()}))
    shutil.rmtree(table.path)
    assert "<i>" in Shown(table._repr_html_()).text


@pytest.mark.spark
def test_views_queries_and_explanations_show_text(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = upsert.Catalog(str(tmp_path), optimize=planner.optimize)
    catalog.sql("CREATE TABLE t (id BIGINT, `<b>` STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("INSERT INTO t VALUES (1, 'x')", spark)
    catalog.sql("CREATE MATERIALIZED VIEW v AS SELECT id, `<b>`, '<script>' AS `<i>` FROM t", spark)
    shown = Shown(catalog.view("v", spark)._repr_html_()).text
    assert "SELECT id, `<b>`, '<script>' AS `<i>` FROM t" in shown
    assert "up to date" in shown
    assert "snapshot of default.t1" in shown

    plan = catalog.sql("EXPLAIN MATERIALIZED VIEW v", spark)
    assert Shown(plan._repr_html_()).text == "EXPLAIN MATERIALIZED VIEW v" + repr(plan)
    (told,) = catalog.sql("EXPLAIN FORMAT JSON MATERIALIZED VIEW v", spark).rows.column(0).to_pylist()
    assert [json.loads(told)["title"], *json.loads(told)["notes"]] == [
        line.strip() for line in repr(plan).splitlines()[:2]
    ]

    catalog.view("v", spark).watch(seconds=0)
    assert re.search(
        r"state up to date; snapshot of default\.t 1\n(.*\n){3}.* <script> *│\n", capsys.readouterr().out
    )

    frame = catalog.sql("SELECT id AS `<script>` FROM t", spark)
    assert Shown(frame._repr_html_()).text.endswith("<script>bigint")
    joined = catalog.read_changes(spark, "t").selectExpr("`<b>` AS `<script>`", "_row_kind")
    assert "<script>" in Shown(planner.explain(joined)._repr_html_()).text

    live = Live("<live>", Materialized(catalog.read_changes(spark, "t"), {}))
    try:
        live.query.processAllAvailable()
        assert Shown(live._repr_html_()).text.endswith("running" + "id<b>1x")
        running = Running("<stream>", live.query, "<checkpoint>")
        assert Shown(running._repr_html_()).text == "<<stream>: running, checkpoint '<checkpoint>'>"
    finally:
        live.query.stop()
