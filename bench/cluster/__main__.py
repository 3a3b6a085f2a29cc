"""A join and upserts on a Spark standalone cluster over an S3 server: `python -m bench.cluster`.

Master, workers, executors and the server are processes of this machine. What is compared is requests and
bytes, which do not depend on it; seconds with more executors than cores only show what is added. Each number
of executors runs with a local cache of each executor's own, as on machines apart; two of them also with one
cache, as on one machine. In each run one executor is killed in the middle of a micro-batch, and in the end
all rows of the result are compared.

Prints a table, keeps the figures in `bench/results/cluster.json`, a plot beside it.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table as Grid

from bench import REPOSITORY, RESULTS
from bench.cluster.job import WORKLOADS, Workload
from bench.cluster.standalone import Cluster, counted_store, driver_says_so, kill, standalone, variables
from bench.processes import reported

console: Final = Console()


def main(
    # a join of fewer changed rows has no tasks whose executor could be killed
    rows: Annotated[
        int, typer.Option(min=100_000, help="rows of a micro-batch; of each table, in the join")
    ] = 200_000,
    steps: Annotated[int, typer.Option(help="micro-batches that are timed")] = 6,
    executors: Annotated[str, typer.Option(help="how many, separated by commas")] = "1,2,4",
    pace_s: Annotated[int, typer.Option(help="seconds between two triggers of the join")] = 12,
    results: Annotated[Path, typer.Option(help="folder for JSON and plot")] = RESULTS,
) -> None:
    """Measure both workloads with each number of executors."""
    runs = [
        measure(name, count, is_shared, rows, steps, pace_s)
        for name in WORKLOADS
        for count in map(int, executors.split(","))
        for is_shared in ((False, True) if count == 2 else (False,))
    ]
    report = {"about": about(rows, steps), "runs": runs}
    results.mkdir(parents=True, exist_ok=True)
    (results / "cluster.json").write_text(json.dumps(report, indent=1) + "\n")
    plot(runs, results / "cluster.png")
    console.print(grid(runs))


def measure(
    name: str, executors: int, is_shared: bool, rows: int, steps: int, pace_s: int = 12
) -> dict[str, Any]:
    """One workload from empty tables to the comparison of its rows, on a cluster of its own."""
    cache = "one cache" if is_shared else "own caches"
    console.print(f"{name}, {executors} executors, {cache} …")
    with tempfile.TemporaryDirectory(prefix="bench-cluster-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        with counted_store(folder) as store, standalone(folder, executors) as cluster:
            given = Workload(
                name=name,
                master=cluster.master,
                executors=executors,
                cache=str(folder / "cache") if is_shared else "cache",
                memory="1g",
                endpoint=store.endpoint,
                warehouse=store.warehouse,
                folder=made,
                rows=rows,
                steps=steps,
                pace_s=pace_s,
            )
            said = list(lines(given, cluster, folder))
    timed = [each for each in said if "seconds" in each]
    (killed,) = (each for each in said if "killed_seconds" in each)
    (checked,) = (each for each in said if "equal" in each)
    median = statistics.median(each["seconds"] for each in timed)
    asked = {
        kind: round(statistics.mean(each["asked"].get(kind, 0) for each in timed))
        for kind in sorted({kind for each in timed for kind in each["asked"]})
    }
    found = {
        "workload": name,
        "executors": executors,
        "caches": cache,
        "rows_per_s": round(rows / median),
        "seconds_median": median,
        "asked_per_batch": asked,
        "batches": timed,
        **killed,
        **checked,
    }
    console.print(f"  {found['rows_per_s']:,} rows/s, killed: {killed['killed_seconds']:.1f} s")
    return found


def lines(given: Workload, cluster: Cluster, folder: Path) -> Iterator[dict[str, Any]]:
    """What a driver reports; when it says so, the first worker's executor is killed."""
    command = [sys.executable, "-m", "bench.cluster.job", json.dumps(asdict(given))]
    driver = folder / "driver"
    driver.mkdir()
    own = {"PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable, **driver_says_so(driver)}
    env = variables(**own, UPSERT_CACHE_FOLDER=given.cache)
    path = folder / "job.log"
    with path.open("wb") as log:
        job = subprocess.Popen(
            command,
            cwd=driver,
            env=env,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    assert job.stdout is not None
    try:
        for values in reported(command, job.stdout, path):
            if "kill" in values:
                cluster.kill_executor(0)
            else:
                yield values
    finally:
        kill(job)


def about(rows: int, steps: int) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "rows_a_micro_batch": rows,
        "micro_batches": steps,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "pyarrow": version("pyarrow"),
        "moto": version("moto"),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def grid(runs: list[dict[str, Any]]) -> Grid:
    """A line for each run."""
    made = Grid(
        "", "executors", "caches", "s", "rows/s", "requests", "MB read", "MB written", "kill, s", "back, s"
    )
    for run in runs:
        made.add_row(
            run["workload"],
            str(run["executors"]),
            run["caches"],
            f"{run['seconds_median']:.2f}",
            f"{run['rows_per_s']:,}",
            *(
                " + ".join(f"{each:,.{digits}f}" for each in share)
                for digits, share in (
                    (0, requests(run)),
                    (1, megabytes(run, "given")),
                    (1, megabytes(run, "taken")),
                )
            ),
            f"{run['killed_seconds']:.1f}",
            f"{run['executor_back_seconds']:.1f}",
        )
    return made


def requests(run: dict[str, Any]) -> tuple[int, int]:
    """Those of executors and of the driver, in a micro-batch."""
    asked = {kind: count for kind, count in run["asked_per_batch"].items() if "bytes" not in kind}
    executors = sum(count for kind, count in asked.items() if kind.startswith("executor"))
    return executors, sum(asked.values()) - executors


def megabytes(run: dict[str, Any], way: str) -> tuple[float, float]:
    """What executors and the driver read from the store (``given``) or write there (``taken``)."""
    asked = run["asked_per_batch"]
    executors, driver = (asked.get(f"{who} bytes {way}", 0) / 1e6 for who in ("executor", "driver"))
    return executors, driver


def plot(runs: list[dict[str, Any]], path: Path) -> None:
    """Rows a second, requests and bytes of a micro-batch by the number of executors."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for name in dict.fromkeys(run["workload"] for run in runs):
        own = [run for run in runs if run["workload"] == name and run["caches"] == "own caches"]
        x = [run["executors"] for run in own]
        axes[0].plot(x, [run["rows_per_s"] for run in own], marker="o", label=name)
        axes[1].plot(x, [sum(requests(run)) for run in own], marker="o", label=name)
        axes[2].plot(x, [sum(megabytes(run, "given")) for run in own], marker="o", label=name)
    for axis in axes:
        axis.set_xticks(sorted({run["executors"] for run in runs}))
    for axis, label in zip(axes, ("rows a second", "requests", "MB read from the store"), strict=True):
        axis.set(xlabel="executors of one core", ylabel=label, ylim=(0, None))
    lines = axes[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    typer.run(main)
