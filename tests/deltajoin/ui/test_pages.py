"""Pages as a browser reads them: what is on them, and that no name becomes markup."""

import json
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest

from deltajoin.observe.observer import Observer
from deltajoin.observe.overview import HiddenTable, Lag, Overview, QueryInfo, TableInfo, ViewInfo, lag_of
from deltajoin.ui import pages
from tests.deltajoin.ui import shop
from tests.object_store import ObjectStore
from upsert import Catalog
from upsert.catalog import query_records
from upsert.catalog.connectors.definition import PlainView, define
from upsert.catalog.query_records import Decision, Input, MicroBatch, QueryRecord, Totals
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.alterations import DropColumn
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.version import Version
from upsert.views.view import Base, ViewDefinition, ViewText

VOID = {"meta", "br", "img", "link", "input"}
HOSTILE = "\"'><script>alert(1)</script><b onload=x>&amp;{{7*7}}${7}\u202e\x00</title></style>"


class Page(HTMLParser):
    """A document's tags, texts and attributes; every tag must be closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def attributes(self, name: str) -> list[str]:
        return [str(attrs[name]) for _, attrs in self.tags if name in attrs]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def overview(tmp_path_factory: pytest.TempPathFactory) -> Overview:
    catalog, now = shop.make(tmp_path_factory.mktemp("shop"))
    return Observer(catalog.warehouse).look(now)


def all_pages(overview: Overview) -> Iterator[str]:
    yield pages.tables_page(overview)
    yield pages.pipelines_page(overview)
    yield from (pages.table_page(overview, table) for table in overview.tables)
    yield from (pages.query_page(overview, query) for query in overview.queries)
    yield pages.missing_page(overview, HOSTILE)
    yield pages.snapshot_file(overview)


def test_queries_are_seen_with_what_they_read_write_and_lack(overview: Overview) -> None:
    sales, copy, dead = overview.queries
    at = {lag.table: (lag.version, lag.commits, lag.seconds) for lag in sales.reads}
    assert at == {"orders": ("2", 1, 4.0), "products": ("1", 0, 0.0)}
    assert (sales.state, sales.writes, sales.rows_out) == ("running", ("reports.sales",), {0: 2, 1: 1})
    assert (copy.state, copy.reads[0].table, copy.rows_behind) == ("failed", None, None)
    assert (dead.state, dead.name) == ("silent", "query cccccccc")


def test_a_table_is_seen_with_files_tags_consumers_and_growth(overview: Overview) -> None:
    orders, products, sales = overview.tables
    assert (orders.rows, orders.file_count, orders.levels[0].level) == (30, 6, 0)
    assert [(one.id, one.rows, one.changed) for one in orders.snapshots] == [
        (1, 10, 10),
        (2, 20, 10),
        (3, 30, 10),
    ]
    assert (dict(orders.tags), [one.name for one in orders.consumers]) == ({"monday": 1}, ["nightly"])
    assert orders.indexes == ("INDEX_product (product)",)
    assert (products.rows, sales.name) == (3, "reports.sales")


def test_pages_say_it(overview: Overview) -> None:
    assert "reports.sales" in Page(pages.tables_page(overview)).text
    pipelines = Page(pages.pipelines_page(overview)).text
    assert "table 'copies': column 'b' is gone; add it" in pipelines
    running = Page(pages.query_page(overview, overview.queries[0]))
    assert "form: delta join (fused)" in running.text
    assert [attrs.get("class") for tag, attrs in running.tags if tag == "pre"] == [None, "error"]
    failed = Page(pages.query_page(overview, overview.queries[1])).text
    assert "column 'b' is gone What to do: add it" in failed
    assert "may have been killed" in Page(pages.query_page(overview, overview.queries[2])).text
    table = Page(pages.table_page(overview, overview.tables[0])).text
    assert "monday: snapshot 1" in table
    assert "nightly" in table


def test_every_link_of_the_file_leads_to_a_place_in_it(overview: Overview) -> None:
    page = Page(pages.snapshot_file(overview))
    places = set(page.attributes("id"))
    links = [link for link in page.attributes("href") if link != "url(#arrow)"]
    assert {link.removeprefix("#") for link in links} <= places
    assert len(places) == 1 + 2 + len(overview.tables) + len(overview.queries)  # 1: the arrow's head


def test_nothing_is_loaded_from_elsewhere(overview: Overview) -> None:
    for text in all_pages(overview):
        page = Page(text)
        assert page.attributes("src") == []
        assert all(link.startswith(("/", "#")) for link in page.attributes("href"))
        assert "http" not in text.replace("http-equiv", "")
    assert "<script" not in pages.snapshot_file(overview)


def hostile() -> Overview:
    """Every text that comes from outside is hostile."""
    at = Version(1, 3, (0, 9))
    batch = MicroBatch(1, 10**30, 1, None, {HOSTILE: 5, "addBatch": 3}, (Input(HOSTILE, 1, {HOSTILE: at}),))
    other = replace(batch, id=2, inputs=(Input(HOSTILE, 1, {}),), lookups={HOSTILE: 1}, state_rows=3)
    record = QueryRecord(
        HOSTILE,
        HOSTILE,
        HOSTILE,
        HOSTILE,
        "running",
        0,
        0,
        HOSTILE,
        HOSTILE,
        (batch, other),
        HOSTILE,
        -1,
        totals=Totals(2, 2, 8, {HOSTILE: 1}),
        decisions=(Decision(HOSTILE, True),),
    )
    lag = Lag(HOSTILE, HOSTILE, HOSTILE, 1, 5, 2.0)
    lost = Lag(None, HOSTILE, HOSTILE, None, None, None)
    hidden = HiddenTable(HOSTILE, HOSTILE, 1, (HOSTILE, "b"))
    view = ViewInfo(HOSTILE, True, (lag,), (hidden,), {HOSTILE: HOSTILE})
    table = TableInfo(
        HOSTILE,
        HOSTILE,
        HOSTILE,
        indexes=(HOSTILE,),
        options={HOSTILE: HOSTILE},
        tags={HOSTILE: 1},
        create=HOSTILE,
        view=view,
    )
    broken = TableInfo("broken", "table", error=HOSTILE)
    queries = (
        QueryInfo(record, "running", (lag, lost), (HOSTILE,), (HOSTILE,)),
        QueryInfo(replace(record, state="failed"), "failed", (lag,), (), ()),
    )
    return Overview(HOSTILE, 5, (table, broken), queries, (HOSTILE,))


def test_no_text_becomes_markup() -> None:
    overview = hostile()
    sample = pages.Sample((HOSTILE,), ((HOSTILE,), (b"<b>",), (None,)))
    texts = [*all_pages(overview), pages.table_page(overview, overview.tables[0], sample)]
    for text in texts:
        page = Page(text)
        assert [tag for tag, _ in page.tags].count("script") <= 1
        assert "b" not in {tag for tag, attrs in page.tags if attrs}
        assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
        assert "alert(1)" in page.text
        assert "49" not in page.text.replace("1949", "")
        assert "<script>alert" not in text


def test_json_says_what_pages_show(overview: Overview) -> None:
    found = json.loads(pages.as_json(overview))
    assert found["queries"][0]["reads"][0]["commits"] == 1
    assert found["queries"][1]["record"]["error"].endswith("add it")
    assert found["tables"][0]["snapshots"][-1]["rows"] == 30
    json.loads(pages.as_json(hostile()))


def test_a_view_that_cannot_be_refreshed_says_why_and_what_to_do(tmp_path: Path) -> None:
    schema = TableSchema.of({"id": pa.int64(), "a": pa.int64()}, ["id"])
    table = Table.create(tmp_path / "t", schema)
    base = Base("t", "default.t", table.uuid, ("id", "a"), ("1", "2"))
    view = ViewDefinition("SELECT id, a FROM t", "main", "default", "UTC", True, (base,))
    Table.create(tmp_path / "v", schema, {"materialized-view": view.to_option()})
    assert "Cannot be refreshed" not in pages.snapshot_file(Observer(tmp_path).look(0))
    table.alter(DropColumn("a"))
    page = pages.snapshot_file(Observer(tmp_path).look(0))
    assert (
        "column &#39;a&#39; of table &#39;t&#39; must be the one that the view was created with, got none</p>"
        in page
    )
    assert "<b>What to do:</b> CREATE OR REPLACE MATERIALIZED VIEW takes the present ones" in page


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    missing = str(tmp_path / "elsewhere")
    assert f"&#39;{missing}&#39; is no folder; name the warehouse with -w" in pages.snapshot_file(
        Observer(missing).look(0)
    )
    assert Observer(tmp_path).look(0).problems == ()


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.sql(
        "CREATE TABLE events (id BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'upsert-kafka', "
        "'topic' = 't', 'properties.bootstrap.servers' = 'h:1', 'properties.sasl.password' = 'pa55', "
        "'key.format' = 'json', 'value.format' = 'json')"
    )
    catalog.sql(
        "CREATE TABLE bills (id BIGINT) WITH ('connector' = 'jdbc', 'url' = 'jdbc:x://me:pa55@host/db', "
        "'dbtable' = 'bills')"
    )
    query = "SELECT 'https://me:pa55@host' AS at, id FROM t WHERE token = 'pa55'"
    text, schema = (
        ViewText("default.rates", query, "default", ("id",), ("id",)),
        TableSchema.of({"id": pa.int64()}, ["id"]),
    )
    define(str(tmp_path / "rates"), PlainView(text, "main", schema).definition)
    view = ViewDefinition(query, "main", "default", "UTC", True, ())
    Table.create(tmp_path / "totals", schema, {"materialized-view": view.to_option()})
    seen = Observer(tmp_path).look(0)
    assert [(one.name, one.kind, one.error) for one in seen.tables] == [
        ("bills", "jdbc", None),
        ("events", "upsert-kafka", None),
        ("rates", "view", None),
        ("totals", "view", None),
    ]
    masked = "SELECT 'https://***@host' AS at, id FROM t WHERE token = ***"
    assert [one.create.endswith(masked) for one in seen.tables] == [False, False, True, True]
    assert [one.view.query for one in seen.tables if one.view is not None] == [masked]
    assert "pa55" not in pages.as_json(seen) + pages.snapshot_file(seen)
    assert "***" in pages.snapshot_file(seen)


def test_a_warehouse_in_an_object_store_is_seen(s3: ObjectStore) -> None:
    catalog, now = shop.make(s3.warehouse)
    seen = Observer(catalog.warehouse).look(now)
    assert [one.name for one in seen.tables] == ["orders", "products", "reports.sales"]
    assert [(one.name, one.state) for one in seen.queries][:2] == [("sales", "running"), ("copy", "failed")]
    query_records.forget_oldest(catalog.warehouse, keep=1)
    assert len(Observer(catalog.warehouse).look(now).queries) == 1


def test_a_damaged_table_says_so_and_hides_no_other(tmp_path: Path) -> None:
    _, now = shop.make(tmp_path / "w")
    newest = max((tmp_path / "w/orders/snapshot").glob("snapshot-*"))
    newest.write_bytes(b"{}")
    (tmp_path / "w").rename(tmp_path / "moved")  # this process remembers the whole file
    seen = Observer(tmp_path / "moved").look(now)
    by_name = {one.name: one for one in seen.tables}
    assert by_name["products"].rows == 3
    assert "snapshot" in str(by_name["orders"].error)
    assert str(by_name["orders"].error) in Page(pages.tables_page(seen)).text


def commit(id: int, states: int, *, changes: bool = True) -> SnapshotInfo:
    version = id if changes else id - 1
    return SnapshotInfo(
        id, f"u{id}", None, "append", time_ms=id * 1_000, data_version=version, tracked=True, states=states
    )


@pytest.mark.parametrize(
    ("at", "history", "commits", "seconds"),
    [
        (Version.complete(4), [commit(3, 3), commit(4, 4)], 0, 0.0),
        (Version.complete(3), [commit(3, 3), commit(4, 4)], 1, 6.0),
        (Version.complete(3), [commit(3, 3), commit(4, 3, changes=False), commit(5, 4)], 1, 5.0),
        (Version(0, 3, (0, 1)), [commit(1, 1), commit(2, 2), commit(3, 3)], 3, 9.0),
        (Version.EMPTY, [commit(6, 6), commit(7, 7)], 7, None),
        (Version.complete(2), [commit(6, 6), commit(7, 7)], None, None),
    ],
)
def test_lag_counts_commits_that_changed_rows(
    at: Version, history: list[SnapshotInfo], commits: int | None, seconds: float | None
) -> None:
    lag = lag_of("u", "t", at, history, 10_000)
    assert (lag.commits, lag.seconds) == (commits, seconds)


def test_bars_are_as_high_as_micro_batches_took() -> None:
    batches = [
        MicroBatch(n, 0, 0, None, {"addBatch": ms // 2, "triggerExecution": ms}, ())
        for n, ms in ((1, 100), (2, 400))
    ]
    bars = pages.bars_of(batches)
    assert bars is not None
    heights = [sum(part.height for part in bar.parts) for bar in bars.bars]
    assert heights[1] == pytest.approx(4 * heights[0], abs=0.1)
    assert pages.bars_of([]) is None


def test_a_circle_of_queries_is_drawn() -> None:
    at = pages.layers(["a", "q", "b", "r"], [("a", "q"), ("q", "b"), ("b", "r"), ("r", "a")])
    assert at == {"a": 0, "q": 1, "b": 2, "r": 3}


def test_a_plain_view_is_shown_by_its_statement(tmp_path: Path) -> None:
    text = ViewText("default.v", "SELECT 1 AS one", "default", ("one",), ("one",))
    define(str(tmp_path / "v"), PlainView(text, "main", TableSchema.of({"one": pa.int32()})).definition)
    seen = Observer(tmp_path).look(0)
    assert [(one.name, one.kind, one.error) for one in seen.tables] == [("v", "view", None)]
    assert seen.tables[0].create == "CREATE VIEW `v` (\n  `one`\n)\nAS SELECT 1 AS one"
    assert "SELECT 1 AS one" in pages.snapshot_file(seen)
