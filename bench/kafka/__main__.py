"""Kafka source, normalizer and sink beside a plain confluent-kafka loop: `python -m bench.kafka`.

A broker runs on the same machine. Values are JSON objects of about 100 bytes, topics have two partitions,
Spark has two threads. Everything is repeated; the medians are printed and kept in `bench/results/kafka.json`,
as records a second and as a share of the loop of the same run, and as a plot in `bench/results/kafka.png`.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.console import Console
from rich.table import Table as Grid

import planner
import upsert
from bench import RESULTS
from bench.kafka import loops
from bench.session import batch_seconds, for_sinks
from upsert.testing import LocalKafka

PARTITIONS: Final = 2
BATCH: Final = 1_000_000
"""Records of a micro-batch: what a source reads at most unless told otherwise."""
NORMALIZED: Final = 200_000
"""Records of a micro-batch that is normalized."""
console: Final = Console()


@dataclass(frozen=True)
class Bench:
    """What every measurement needs."""

    spark: SparkSession
    catalog: upsert.Catalog
    bootstrap: str
    folder: Path
    numbers: Iterator[int]

    def table(self, topic: str, *, connector: str = "upsert-kafka", columns: str = "", **options: str) -> str:
        """A new table over a topic; its name."""
        name = f"t{next(self.numbers)}"
        columns = (
            columns or "id BIGINT, name STRING, amount DOUBLE, note STRING, PRIMARY KEY (id) NOT ENFORCED"
        )
        given = {
            "connector": connector,
            "topic": topic,
            "properties.bootstrap.servers": self.bootstrap,
            "max-rows-per-trigger": str(BATCH),
            "topic.partitions": str(PARTITIONS),
            **{key.replace("__", ".").replace("_", "-"): value for key, value in options.items()},
        }
        text = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
        self.catalog.sql(f"CREATE TABLE {name} ({columns}) WITH ({text})")
        return name

    def rates(self, writer: DataStreamWriter, *, batch: int = BATCH, skip: int = 1) -> list[float]:
        """Input rows a second of each full micro-batch but the first ones, of a query that ends by itself."""
        checkpoint = self.folder / f"checkpoint-{next(self.numbers)}"
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        progress: list[dict[str, Any]] = [json.loads(each.json) for each in query.recentProgress]
        seconds = [p["durationMs"]["triggerExecution"] / 1000 for p in progress if _rows_read(p) >= batch]
        return [batch / each for each in seconds[skip:]]


def _rows_read(progress: dict[str, Any]) -> int:
    """Records that a micro-batch read, by its offsets: the normalizer gives more rows than it reads."""

    def places(offset: Any) -> int:
        parsed = json.loads(offset) if isinstance(offset, str) else offset
        topics = parsed["topics"].values() if parsed else []
        return sum(place for topic in topics for place in topic["partitions"].values())

    source = progress["sources"][0]
    return places(source["endOffset"]) - places(source["startOffset"])


def records(ids: np.ndarray[Any, Any]) -> tuple[list[bytes], list[bytes]]:
    """Keys and values of about 100 bytes."""
    keys = [b'{"id":%d}' % number for number in ids]
    values = [
        b'{"id":%d,"name":"customer %08d","amount":%d.25,"note":"seen at %d, paid by card"}'
        % (number, number, place % 10_000, place)
        for place, number in enumerate(ids)
    ]
    return keys, values


def updates(keys: int, changes: int) -> np.ndarray[Any, Any]:
    """Each key once, then changes of keys all over the place."""
    return np.concatenate([np.arange(keys), np.random.default_rng(1).integers(0, keys, changes)])


JSON_KEY_VALUE: Final = {"key__format": "json", "value__format": "json"}


def noop(df: DataFrame) -> DataStreamWriter:
    """A sink that takes everything and keeps nothing."""
    return df.writeStream.format("noop")


def source_raw(bench: Bench, topic: str) -> list[float]:
    """Records as they are: key, value, offset."""
    name = bench.table(
        topic,
        connector="kafka",
        columns="k BINARY, v BINARY, place BIGINT METADATA FROM 'offset' VIRTUAL",
        key__format="raw",
        key__fields="k",
        value__format="raw",
        value__fields_include="EXCEPT_KEY",
    )
    return bench.rates(noop(bench.catalog.read_changes(bench.spark, name)))


def source_json(bench: Bench, topic: str) -> list[float]:
    """Values decoded from JSON into four columns."""
    columns = "id BIGINT, name STRING, amount DOUBLE, note STRING"
    name = bench.table(topic, connector="kafka", columns=columns, value__format="json")
    return bench.rates(noop(bench.catalog.read_changes(bench.spark, name)))


def normalizer(keys: int) -> Callable[[Bench, str], list[float]]:
    """The full changelog of a topic, once all its keys are known."""

    def measure(bench: Bench, topic: str) -> list[float]:
        name = bench.table(topic, **JSON_KEY_VALUE, max_rows_per_trigger=str(NORMALIZED))
        changes = noop(bench.catalog.read_changes(bench.spark, name))
        return bench.rates(changes, batch=NORMALIZED, skip=max(1, keys // NORMALIZED))

    return measure


def operator(bench: Bench, topic: str) -> list[float]:
    """`upsert.normalize` over an append-only stream of the same records, with 50 000 keys."""
    columns = (
        "id BIGINT, name STRING, amount DOUBLE, note STRING, place BIGINT METADATA FROM 'offset' VIRTUAL"
    )
    limit = str(NORMALIZED)
    name = bench.table(
        topic, connector="kafka", columns=columns, value__format="json", max_rows_per_trigger=limit
    )
    rows = bench.catalog.read_changes(bench.spark, name)
    return bench.rates(noop(upsert.normalize(rows, key=["id"], order_by="place")), batch=NORMALIZED)


def sink(guarantee: str) -> Callable[[Bench, str], list[float]]:
    """Rows of Spark's `rate-micro-batch` encoded as JSON and written to a new topic."""

    def measure(bench: Bench, _: str) -> list[float]:
        prefix = {"sink__transactional_id_prefix": "bench"} if guarantee == "exactly-once" else {}
        name = f"out-{next(bench.numbers)}"
        target = bench.table(name, **JSON_KEY_VALUE, sink__delivery_guarantee=guarantee, **prefix)
        source = bench.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH)
        rows = source.option("numPartitions", PARTITIONS).load()
        rows = rows.selectExpr(
            "value AS id",
            "concat('customer ', lpad(CAST(value AS STRING), 8, '0')) AS name",
            "pmod(value, 10000) + 0.25D AS amount",
            "concat('seen at ', CAST(value AS STRING), ', paid by card') AS note",
        )
        checkpoint = bench.folder / f"checkpoint-{next(bench.numbers)}"
        writer = bench.catalog.write_changes(rows, target)
        seconds = batch_seconds(writer, str(checkpoint), rows=BATCH, warm_up=1, batches=4)
        return [BATCH / each for each in seconds]

    return measure


def main(
    repeats: Annotated[int, typer.Option(help="how often everything is measured")] = 3,
    changes: Annotated[int, typer.Option(help="changes after each key is known")] = 2_000_000,
    results: Annotated[Path, typer.Option(help="folder for JSON and plot")] = RESULTS,
) -> None:
    """Measure, print and keep the figures."""
    with LocalKafka() as kafka, tempfile.TemporaryDirectory(prefix="bench-kafka-") as folder:
        spark = for_sinks("kafka")
        catalog = upsert.Catalog(Path(folder) / "warehouse", optimize=planner.optimize)
        bench = Bench(spark, catalog, kafka.bootstrap_servers, Path(folder), count())
        figures = measured(bench, repeats, changes)
        spark.stop()
    results.mkdir(parents=True, exist_ok=True)
    (results / "kafka.json").write_text(json.dumps(figures, indent=1) + "\n")
    plot(figures, results / "kafka.png")
    console.print(grid(figures))


def measured(bench: Bench, repeats: int, changes: int) -> dict[str, Any]:
    """All figures, by what was measured."""
    many, few = updates(1_000_000, changes), updates(50_000, changes)
    topics = {"many": many, "few": few}
    loop_rates: dict[str, list[float]] = {
        "loop: produce": [],
        "loop: consume": [],
        "loop, untuned: produce": [],
        "loop, untuned: consume": [],
    }
    for name, ids in topics.items():
        for loop, topic, settings in (
            ("loop: produce", name, loops.SENDING),
            ("loop, untuned: produce", f"untuned-{name}", {}),
        ):
            loops.create_topic(bench.bootstrap, topic, PARTITIONS)
            loop_rates[loop].append(loops.produce(bench.bootstrap, topic, *records(ids), settings))
    systems: dict[str, tuple[str, Callable[[Bench, str], list[float]]]] = {
        "source: raw": ("many", source_raw),
        "source: JSON": ("many", source_json),
        "normalizer in the source, 1 M keys": ("many", normalizer(1_000_000)),
        "normalizer in the source, 50 k keys": ("few", normalizer(50_000)),
        "normalize(), 50 k keys": ("few", operator),
        "sink: at-least-once": ("many", sink("at-least-once")),
        "sink: exactly-once": ("many", sink("exactly-once")),
    }
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(repeats):
        consume = (bench.bootstrap, "many", PARTITIONS, len(many))
        loop_rates["loop: consume"].append(loops.consume(*consume, loops.FETCHING))
        untuned = {"auto.offset.reset": "earliest"}
        loop_rates["loop, untuned: consume"].append(loops.consume(*consume, untuned))
        for name, (topic, measure) in systems.items():
            rates[name].append(statistics.median(measure(bench, topic)))
            console.print(f"{name}: {rates[name][-1]:,.0f} records/s")
    medians = {name: statistics.median(each) for name, each in (loop_rates | rates).items()}
    return {
        "about": {
            "changes": changes,
            "repeats": repeats,
            "batch": BATCH,
            "batch_normalized": NORMALIZED,
            "load": os.getloadavg()[0],
        },
        "records_per_s": {name: round(value) for name, value in medians.items()},
        "all": {name: [round(v) for v in each] for name, each in (loop_rates | rates).items()},
    }


def share_of_loop(name: str, rates: dict[str, float]) -> float:
    """Records a second as a share of the loop that does the same."""
    return rates[name] / rates["loop: produce" if name.startswith("sink") else "loop: consume"]


def grid(figures: dict[str, Any]) -> Grid:
    """The figures as a table."""
    table = Grid("", "records/s", "share of the loop")
    rates = figures["records_per_s"]
    for name, value in rates.items():
        table.add_row(name, f"{value:,}", f"{share_of_loop(name, rates):.2f}")
    return table


def plot(figures: dict[str, Any], path: Path) -> None:
    """Records a second as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rates = figures["records_per_s"]
    figure, axes = pyplot.subplots(figsize=(9, 4))
    colors = ["lightgray" if name.startswith("loop") else "tab:blue" for name in rates]
    axes.barh(list(rates), [value / 1000 for value in rates.values()], color=colors)
    axes.set(xlabel="thousand records a second, 100-byte JSON values, 2 cores, broker included")
    axes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    typer.run(main)
