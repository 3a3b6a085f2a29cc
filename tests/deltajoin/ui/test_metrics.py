"""Metrics as Prometheus reads them, and a dashboard that asks for these alone."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deltajoin.ui import server
from deltajoin.ui.overview import Observer
from tests.deltajoin.ui import shop
from tests.deltajoin.ui.test_pages import HOSTILE, hostile
from tests.helpers import REPOSITORY

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    catalog, now = shop.make(tmp_path_factory.mktemp("shop"))
    return samples(server.metrics_of(Observer(catalog.warehouse).look(now)).decode())


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
    assert of(found, "deltajoin_query_lag_seconds", query="sales") == {"orders": 4, "products": 0}
    assert of(found, "deltajoin_query_lag_commits", query="sales") == {"orders": 1, "products": 0}
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


def test_hostile_names_stay_labels() -> None:
    text = server.metrics_of(hostile()).decode()
    labels = {value for _, key_values in samples(text) for _, value in key_values}
    assert HOSTILE in labels


def test_the_dashboard_and_the_page_name_metrics_that_there_are(found: Samples) -> None:
    known = {name for name, _ in found}
    board = json.loads((REPOSITORY / "docs/grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    for text in (*asked, Path(REPOSITORY / "docs/ui.md").read_text()):
        assert set(re.findall(r"deltajoin_(?:query|table)_\w+", text)) <= known
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
