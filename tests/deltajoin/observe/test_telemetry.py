"""Metrics as OpenTelemetry's own SDK collects them, and by which names its collectors pass them on."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Metric, Sum

import deltajoin
from deltajoin.observe import observer
from deltajoin.observe.measures import METRICS, samples
from deltajoin.observe.observer import Observer
from tests.deltajoin.ui import shop
from upsert.errors import StorageError


def collected(reader: InMemoryMetricReader) -> dict[str, Metric]:
    data = reader.get_metrics_data()
    scopes = [] if data is None else [scope for one in data.resource_metrics for scope in one.scope_metrics]
    return {metric.name: metric for scope in scopes for metric in scope.metrics}


def values(metric: Metric) -> dict[Mapping[str, Any], float]:
    assert isinstance(metric.data, Gauge | Sum)
    return {tuple((point.attributes or {}).values()): point.value for point in metric.data.data_points}  # type: ignore[misc]


def test_the_sdk_collects_what_the_files_say_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "LOOK_EVERY_S", 0.0)
    catalog, _ = shop.make(tmp_path)
    reader = InMemoryMetricReader()
    instruments = deltajoin.export_metrics(catalog.warehouse, MeterProvider([reader]))
    assert len(instruments) == len(METRICS)

    found = collected(reader)
    now = Observer(catalog.warehouse).look(0)
    of_time = ("query.lag", "query.state")
    expected = {name for name, *_ in samples(now)}
    assert {name.removeprefix("deltajoin.") for name in found} == expected
    for name, labels, value in samples(now):
        if name not in of_time:
            assert values(found[f"deltajoin.{name}"])[labels] == value  # type: ignore[index]
    rows, commits = found["deltajoin.table.rows"], found["deltajoin.table.commits"]
    assert (rows.unit, rows.description) == ("{row}", METRICS["table.rows"].text)
    assert isinstance(rows.data, Gauge)
    assert isinstance(commits.data, Sum)
    assert commits.data.is_monotonic

    catalog.table("products").delete([])
    after = values(collected(reader)["deltajoin.table.commits"])
    assert after[("products", "table")] == 2  # type: ignore[index]


def test_one_collection_looks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "LOOK_EVERY_S", 3600.0)
    catalog, _ = shop.make(tmp_path)
    looks = []
    look = Observer.look
    monkeypatch.setattr(Observer, "look", lambda self, now: looks.append(now) or look(self, now))
    reader = InMemoryMetricReader()
    deltajoin.export_metrics(catalog.warehouse, MeterProvider([reader]))
    collected(reader)
    assert len(looks) == 1


def test_a_storage_that_does_not_answer_gives_no_values_and_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Observer, now_ms: int) -> None:
        raise StorageError("the storage must answer, got 503")

    monkeypatch.setattr(observer, "LOOK_EVERY_S", 3600.0)
    monkeypatch.setattr(Observer, "look", fail)
    reader = InMemoryMetricReader()
    deltajoin.export_metrics(tmp_path, MeterProvider([reader]))
    with caplog.at_level(logging.WARNING):
        assert collected(reader) == {}
    assert [record.message for record in caplog.records] == [
        f"warehouse {str(tmp_path)!r} cannot be measured: the storage must answer, got 503"
    ]
