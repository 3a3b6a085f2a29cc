"""The metrics of a warehouse as instruments of OpenTelemetry, which it reads at each of its collections."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from deltajoin.observe.measures import METRICS, Sample, samples
from deltajoin.observe.observer import Observer, Recent
from upsert.errors import UpsertError, optional_package

if TYPE_CHECKING:
    from opentelemetry.metrics import (
        CallbackOptions,
        MeterProvider,
        ObservableCounter,
        ObservableGauge,
        Observation,
    )

_LOG: Final = logging.getLogger(__name__)

_Samples = dict[str, list[Sample]]


def export_metrics(
    warehouse: str | os.PathLike[str], provider: MeterProvider | None = None
) -> tuple[ObservableCounter | ObservableGauge, ...]:
    """Let OpenTelemetry measure a warehouse: its tables, and the queries that are recorded in it.

    Every instrument is observed: it reads the files of the warehouse whenever the provider collects, and
    needs no Spark. One process that does this is enough for the queries of any number of drivers. They are
    the metrics that ``deltajoin ui`` gives to Prometheus. While the storage does not answer, there are no
    values, and the log has a warning.

    Args:
        warehouse: its folder.
        provider: where the instruments are made, one provider for each warehouse; None: the global one.

    Returns:
        The instruments, gauges and counters. Shutting the provider down ends them.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.

    >>> import tempfile, upsert
    >>> from opentelemetry.sdk.metrics import MeterProvider
    >>> from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    >>> catalog, reader = upsert.Catalog(tempfile.mkdtemp()), InMemoryMetricReader()
    >>> instruments = export_metrics(catalog.warehouse, MeterProvider([reader]))
    >>> _ = catalog.sql("CREATE TABLE t (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    >>> found = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    >>> [point.attributes["table"] for one in found if one.name == "deltajoin.table.rows"
    ...  for point in one.data.data_points]
    ['t']
    """
    with optional_package("opentelemetry-api", "otel", "export_metrics"):
        from opentelemetry import metrics
    found = Recent(partial(_found, Observer(warehouse)))
    meter = (provider or metrics.get_meter_provider()).get_meter("deltajoin")
    made: list[ObservableCounter | ObservableGauge] = []
    for name, metric in METRICS.items():
        create = meter.create_observable_counter if metric.is_counter else meter.create_observable_gauge
        made.append(create(f"deltajoin.{name}", [_callback(found, name)], metric.unit, metric.text))
    return tuple(made)


def _callback(found: Recent[_Samples], name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation

    labels = METRICS[name].labels

    def observed(_: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(sample.value, dict(zip(labels, sample.labels, strict=True)))
            for sample in found.now().get(name, ())
        ]

    return observed


def _found(observer: Observer) -> _Samples:
    """The samples by metric; none where the storage does not answer."""
    found: _Samples = {}
    try:
        for sample in samples(observer.look(time.time_ns() // 1_000_000)):
            found.setdefault(sample.name, []).append(sample)
    except (UpsertError, OSError) as error:
        _LOG.warning("warehouse %r cannot be measured: %s", observer.warehouse, error)
        return {}
    return found
