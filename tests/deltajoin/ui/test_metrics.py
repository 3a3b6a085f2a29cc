"""Metrics as Prometheus reads them, a dashboard that asks for these alone, and a page that names them all."""

import json
import re
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deltajoin.observe.measures import METRICS, prometheus_name, samples
from deltajoin.observe.observer import Observer
from deltajoin.observe.overview import Overview
from deltajoin.ui import pages, server
from tests.deltajoin.ui import shop
from tests.deltajoin.ui.test_pages import HOSTILE, Page, hostile
from tests.helpers import REPOSITORY
from upsert.catalog import query_records
from upsert.catalog.query_records import Input

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Samples:
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


@pytest.fixture(scope="module")
def overview(tmp_path_factory: pytest.TempPathFactory) -> Overview:
    catalog, now = shop.make(tmp_path_factory.mktemp("shop"))
    return Observer(catalog.warehouse).look(now)


@pytest.fixture(scope="module")
def found(overview: Overview) -> Samples:
    return parsed(server.metrics_of(overview).decode())


def of(found: Samples, name: str, **labels: str) -> dict[str, float]:
    """Values of a metric with these labels, by their other ones."""
    return {
        ", ".join(value for key, value in key_values if key not in labels and key != "query_id"): value
        for (metric, key_values), value in found.items()
        if metric == name and labels.items() <= dict(key_values).items()
    }


def test_tables_and_queries_are_measured(found: Samples) -> None:
    assert of(found, "deltajoin_table_rows", kind="table") == {
        "orders": 30,
        "products": 3,
        "reports.sales": 3,
    }
    assert of(found, "deltajoin_table_files", table="orders", kind="table") == {"0": 6}
    assert of(found, "deltajoin_table_commits_total", kind="table") == {
        "orders": 3,
        "products": 1,
        "reports.sales": 2,
    }
    assert of(found, "deltajoin_query_lag_seconds", query="sales") == {"orders": 4, "products": 0}
    assert of(found, "deltajoin_query_lag_commits", query="sales") == {"orders": 1, "products": 0}
    assert of(found, "deltajoin_query_lag_rows", query="sales") == {"orders": 10, "products": 0}
    assert of(found, "deltajoin_query_batch_output_rows") == {"sales": 1}
    assert sum(of(found, "deltajoin_query_batch_duration_seconds", query="sales").values()) == pytest.approx(
        0.45
    )
    states = of(found, "deltajoin_query_state")
    assert {key for key, value in states.items() if value} == {
        "sales, running",
        "copy, failed",
        "query cccccccc, silent",
    }


def test_of_a_topic_it_is_known_how_many_records_are_left(overview: Overview) -> None:
    sales, copy, _ = overview.queries
    batch = copy.record.batches[0]
    both = replace(batch, inputs=(*batch.inputs, Input("Python data source", 3, {}, {"clicks": 7})))
    query_records.write(overview.warehouse, replace(copy.record, batches=(both,)))
    seen = Observer(overview.warehouse).look(overview.now_ms)
    found = parsed(server.metrics_of(seen).decode())
    assert of(found, "deltajoin_query_lag_rows", query="copy") == {"topic clicks": 7}
    page = Page(pages.query_page(seen, seen.queries[1])).text
    assert "topic clicks – 7 –" in page
    assert "Python data source" not in page
    joined = replace(seen.queries[1], reads=sales.reads)
    assert (joined.rows_behind, joined.seconds_behind) == (17, None)
    assert replace(joined, topics={"clicks": 0}).seconds_behind == 4.0


def test_what_only_grows_is_counted_from_the_first_micro_batch_on(found: Samples) -> None:
    assert of(found, "deltajoin_query_batches_total", query="sales") == {"": 2}
    assert of(found, "deltajoin_query_input_rows_total", query="sales") == {"": 21}
    assert of(found, "deltajoin_query_duration_seconds_total", query="sales") == {"": 0.75}


def test_lookups_and_caches_are_measured_of_queries_that_have_some(found: Samples) -> None:
    assert of(found, "deltajoin_query_lookup_keys_total") == {"sales, left": 0, "sales, right": 4}
    assert of(found, "deltajoin_query_lookup_duration_seconds_total", side="right") == {"sales": 0.05}
    assert of(found, "deltajoin_query_cache_hits_total", side="right") == {"sales": 6}
    assert of(found, "deltajoin_query_cache_size_bytes", side="right") == {"sales": 900}
    assert of(found, "deltajoin_query_lookup_waiting", side="left") == {"sales": 1}
    assert of(found, "deltajoin_query_state_store_rows", query="sales") == {"": 7}


def test_prometheus_gets_every_sample(overview: Overview, found: Samples) -> None:
    given = {
        (prometheus_name(name), tuple(sorted(zip(METRICS[name].labels, labels, strict=True)))): value
        for name, labels, value in samples(overview)
    }
    assert found == given


def test_hostile_names_stay_labels() -> None:
    text = server.metrics_of(hostile()).decode()
    labels = {value for _, key_values in parsed(text) for _, value in key_values}
    assert HOSTILE in labels


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    known = set(map(prometheus_name, METRICS))
    board = json.loads((REPOSITORY / "docs/grafana.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert set(re.findall(r"deltajoin_\w+", " ".join(asked))) <= known
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = [tuple(panel["gridPos"][name] for name in "xywh") for panel in board["panels"]]
    covered = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(covered) == len(set(covered))


def test_the_page_names_all_of_them_and_no_other() -> None:
    told = (REPOSITORY / "docs/ui.md").read_text(encoding="utf-8")
    assert set(re.findall(r"deltajoin_\w+", told)) == set(map(prometheus_name, METRICS))
    advice = (REPOSITORY / "docs/operate.md").read_text(encoding="utf-8")
    modules = {"deltajoin_daemon"}
    assert set(re.findall(r"deltajoin_\w+", advice)) <= {*map(prometheus_name, METRICS), *modules}
