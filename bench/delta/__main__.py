"""The managed table beside Delta Lake on the same upserts: ``python -m bench.delta``.

200 000 upserts a micro-batch go into a table of 2 million rows; then the changes are read back three times,
the table is scanned, beside Parquet files with the same rows, and looked up in. Delta Lake does MERGE in
``foreachBatch``, with deletion vectors and change feed. It has no release for Spark 4.3, with which the
managed table runs, so it gets an environment with the newest Spark that it supports, made once in the cache
folder (about 450 MB). It takes 8 minutes, and 3 more the first time. Figures go to
``bench/results/delta.json``, a plot to ``delta.png``.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import typer
from rich.console import Console
from rich.table import Table as Grid

from bench import REPOSITORY, RESULTS
from bench.delta.worker import timed
from upsert.store.table import Table

DELTA: Final = "4.4.0"
SPARK_OF_DELTA: Final = "4.2.0"
"""The newest release of each that go together."""
PACKAGE: Final = f"io.delta:delta-spark_4.2_2.13:{DELTA}"

WORKER: Final = Path(__file__).parent / "worker.py"
FIGURES: Final = {
    "upserts_a_s": "upserts a second",
    "changes_a_s": "changes read back a second, first time",
    "changes_again_a_s": "changes read back a second, later",
    "bytes_written_a_byte_changed": "bytes written a byte changed",
    "folder_mb": "folder, MB",
    "scan_s": "full scan by Spark, s",
    "filtered_scan_s": "filtered scan by Spark, s",
    "lookup_s": "lookup of 10 000 keys, s",
}
console: Final = Console()


def main(
    rows: Annotated[int, typer.Option(help="rows of the table before the stream")] = 2_000_000,
    batch: Annotated[int, typer.Option(help="upserts a micro-batch")] = 200_000,
    batches: Annotated[int, typer.Option(help="micro-batches that are timed, after three others")] = 10,
    results: Annotated[Path, typer.Option(help="folder for JSON and plot")] = RESULTS,
) -> None:
    """Run both systems, one after the other, and compare."""
    interpreter = delta_python()
    report: dict[str, Any] = {"about": about(rows, batch, batches)}
    with tempfile.TemporaryDirectory(prefix="bench-delta-") as folder:
        for name, python in (("ours", sys.executable), ("delta", str(interpreter))):
            console.print(f"{name} …")
            report[name] = run(name, python, folder, rows, batch, batches)
        report["plain"] = plain_scans(Path(folder))
    ours, delta = report["ours"], report["delta"]
    report["parquet"] = parquet = ours.pop("parquet_scans")
    report["ratio"] = {name: round(ours[name] / delta[name], 2) for name in FIGURES}
    report["ratio_to_parquet"] = {name: round(ours[name] / parquet[name], 2) for name in parquet}
    results.mkdir(parents=True, exist_ok=True)
    (results / "delta.json").write_text(json.dumps(report, indent=1) + "\n")
    plot(report, results / "delta.png")
    console.print(grid(report))


def about(rows: int, batch: int, batches: int) -> dict[str, Any]:
    """What was measured, on what."""
    return {
        "rows": rows,
        "batch": batch,
        "batches": batches,
        "delta": DELTA,
        "cpus": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def delta_python() -> Path:
    """The interpreter of an environment with Delta Lake and the Spark that it needs, made once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deltajoin"
    folder = cache / f"bench-delta-{DELTA}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        console.print(f"installing Delta Lake {DELTA} and Spark {SPARK_OF_DELTA} into {folder} …")
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        packages = [f"delta-spark=={DELTA}", f"pyspark=={SPARK_OF_DELTA}"]
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
        subprocess.run(install, check=True)
        (folder / "complete").touch()
    return python


def run(name: str, python: str, folder: str, rows: int, batch: int, batches: int) -> dict[str, Any]:
    """What the worker of a system prints last."""
    environment = {**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    environment |= {"DELTA_PACKAGE": PACKAGE, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(REPOSITORY)}
    for variable in ("SPARK_HOME", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(variable, None)
    command = [python, str(WORKER), name, folder, str(rows), str(batch), str(batches)]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    console.print(f"  {found['upserts_a_s']:,} upserts a second")
    return found


def plain_scans(folder: Path) -> dict[str, float]:
    """Scans without Spark: of the managed table, and by pyarrow of a Parquet file with the same rows."""
    snapshot = Table.open(folder / "ours").snapshot()
    file = folder / "rows.parquet"
    pq.write_table(snapshot.scan(), file)
    condition = (pc.field("customer") == 77) & (pc.field("id") > 1000)
    where = [("customer", "=", 77), ("id", ">", 1000)]
    ours, parquet = timed(snapshot.scan, lambda: ds.dataset(file).to_table())
    filtered, parquet_filtered = timed(
        lambda: snapshot.scan(where=where), lambda: ds.dataset(file).to_table(filter=condition)
    )
    return {
        "scan_s": ours,
        "filtered_scan_s": filtered,
        "parquet_scan_s": parquet,
        "parquet_filtered_scan_s": parquet_filtered,
    }


def grid(report: dict[str, Any]) -> Grid:
    """The figures as a table for people."""
    about = report["about"]
    title = f"{about['batch']:,} upserts a micro-batch into {about['rows']:,} rows, {about['cpus']} cores"
    found = Grid(title=title)
    delta = f"Delta Lake {DELTA}, Spark {report['delta']['spark']}"
    for heading in ("", f"managed table, Spark {report['ours']['spark']}", delta, "ratio"):
        found.add_column(heading, justify="right" if heading else "left")
    for name, text in FIGURES.items():
        values = [f"{report[system][name]:,}" for system in ("ours", "delta")]
        found.add_row(text, *values, f"{report['ratio'][name]}")
    found.add_row("filtered scan by Spark, the filter named, s", f"{report['ours']['named_filter_scan_s']:,}")
    for name, value in report["parquet"].items():
        ratio = f"{report['ratio_to_parquet'][name]} of Parquet"
        found.add_row(f"Parquet files: {FIGURES[name]}", f"{value:,}", "", ratio)
    for name, value in report["plain"].items():
        found.add_row(f"without Spark: {name.replace('_', ' ').removesuffix(' s')}, s", f"{value:,}", "", "")
    return found


def plot(report: dict[str, Any], path: Path) -> None:
    """Seconds of each micro-batch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    for name, label in (("ours", "managed table"), ("delta", "Delta Lake MERGE")):
        seconds = report[name]["batch_seconds"]
        axes.plot(range(1, len(seconds) + 1), seconds, marker="o", label=label)
    axes.set_xlabel("micro-batch")
    axes.set_ylabel("seconds")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    typer.run(main)
