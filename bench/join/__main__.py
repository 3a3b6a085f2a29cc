"""The delta join beside Spark's own stream-stream join while both sides grow: `python -m bench.join`.

Prints a table, keeps the figures in `bench/results/join.json` and a plot in `bench/results/join.png`. Each
system runs in processes of its own, one after the other, on the same rows; see `bench.join.systems`, which
also says how the first micro-batches of a session differ from those of a warm one. First loads and backlogs
are measured there too, latency in `bench.join.latency`. It takes 15 minutes.

From CSV files to joined rows, all in, it is measured beside Pathway, if that is there. Pathway wants packages
of its own: `python -m venv pathway && pathway/bin/pip install pathway`, then `--pathway pathway/bin/python`.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table as Grid

from bench import RESULTS
from bench.join.latency import CHANGES_A_SECOND
from bench.join.systems import SYSTEMS, write_csv
from bench.processes import reported

console: Final = Console()


def check_systems(given: str) -> str:
    """Refuse a name that no system has, before the others have run for minutes."""
    if unknown := [name for name in given.split(",") if name not in SYSTEMS]:
        raise typer.BadParameter(f"must be some of {', '.join(SYSTEMS)}, got {unknown[0]!r}")
    return given


def main(
    rows: Annotated[int, typer.Option(help="rows a side that each step adds")] = 200_000,
    steps: Annotated[int, typer.Option(help="steps, so micro-batches that are timed")] = 8,
    systems: Annotated[
        str, typer.Option(help="which to run, separated by commas", callback=check_systems)
    ] = ",".join(SYSTEMS),
    latency_seconds: Annotated[int, typer.Option(help="how long latency is measured; 0: not at all")] = 40,
    pathway: Annotated[
        Path, typer.Option(help="a Python in which Pathway is installed, for the way from CSV files")
    ] = Path(sys.executable),
    results: Annotated[Path, typer.Option(help="folder for JSON and plot")] = RESULTS,
) -> None:
    """Time micro-batches from first to last while both sides of a join grow; then first loads and latency."""
    measured = {name: run(name, rows, steps) for name in systems.split(",")}
    report: dict[str, Any] = {"about": about(rows, steps), "systems": measured, "summary": summary(measured)}
    report["csv"] = from_csv(pathway, rows, steps)
    if latency_seconds:
        report["latency"] = latency(latency_seconds)
    results.mkdir(parents=True, exist_ok=True)
    (results / "join.json").write_text(json.dumps(report, indent=1) + "\n")
    plot(report, results / "join.png")
    console.print(grid(measured))
    for line in findings(report):
        console.print(line)


def run(name: str, rows: int, steps: int) -> dict[str, Any]:
    """One system from an empty folder to its restart; of the fused join also what it does with a backlog."""
    result: dict[str, Any] = {"title": SYSTEMS[name].title, "steps": []}
    phases = ("steps", "restart", *(["loads"] if name == "fused" else []), "warm")
    with tempfile.TemporaryDirectory(prefix=f"bench-join-{name}-") as folder:
        for what in phases:
            for values in lines("bench.join.systems", what, name, folder, str(rows), str(steps)):
                if "step" in values:
                    result["steps"].append(values)
                    tell(result["title"], f"{values['rows']:>9,} rows a side", values["seconds"])
                elif "warm_step" in values:
                    result.setdefault("warm_steps", []).append(values)
                    tell(result["title"], f"{values['rows']:>9,} rows a side, warm", values["seconds"])
                elif "load" in values:
                    result.setdefault("loads", {})[values["load"]] = values
                    tell(result["title"], values["load"].replace("_", " "), values["seconds"])
                else:
                    result.update(values)
    return result


def tell(title: str, what: str, seconds: float) -> None:
    """One line of progress."""
    console.print(f"{title}: {what} {seconds:7.2f} s")


def from_csv(pathway: Path, rows: int, steps: int) -> dict[str, Any]:
    """From the CSV files of each step to all of its pairs: the delta join, and Pathway where it is there."""
    found: dict[str, Any] = {}
    has_pathway = not subprocess.run(
        [pathway, "-c", "import pathway"], check=False, capture_output=True
    ).returncode
    for name in ("fused", *(["pathway"] if has_pathway else [])):
        with tempfile.TemporaryDirectory(prefix=f"bench-join-csv-{name}-") as folder:
            write_csv(Path(folder), rows, steps)
            if name == "fused":
                said = list(lines("bench.join.systems", "csv", name, folder, str(rows), str(steps)))
            else:
                said = list(lines("bench.join.pathway", folder, str(steps + 1), python=str(pathway)))
        found[name] = {
            "steps": [values for values in said if "step" in values],
            **{key: value for values in said if "step" not in values for key, value in values.items()},
        }
        median = float(np.median([values["seconds"] for values in found[name]["steps"]]))
        found[name]["median_seconds"] = median
        tell(_FROM_CSV[name], "from CSV files, median", median)
    if not has_pathway:
        console.print(f"Pathway is not installed for {pathway}, so its row is left out; see --help.")
    return found


_FROM_CSV: Final = {"fused": "delta join, durable", "pathway": "Pathway, in memory"}


def latency(seconds: int) -> dict[str, Any]:
    """Latency of the fused join at a steady rate of changes."""
    console.print(f"delta join: latency at {CHANGES_A_SECOND:,} changes a second …")
    with tempfile.TemporaryDirectory(prefix="bench-join-latency-") as folder:
        (values,) = lines("bench.join.latency", folder, str(seconds))
    found = values["latencies_ms"]
    p50, p99 = (round(float(np.percentile(found, percent))) for percent in (50, 99))
    return {
        "changes_a_second": CHANGES_A_SECOND,
        "p50_ms": p50,
        "p99_ms": p99,
        "max_ms": max(found),
        **values,
    }


def lines(module: str, *arguments: str, python: str = sys.executable) -> Iterator[dict[str, Any]]:
    """What a measurement reports while it runs; its log is shown if it fails.

    The JVM of a RocksDB query sometimes outlives its driver and keeps the pipe open, so the driver says
    itself that it is done, and whatever it has started is ended with it.
    """
    command = [python, "-m", module, *arguments]
    # an installed package is compiled; a checkout would be again by each process that Spark starts
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, start_new_session=True
        )
        assert process.stdout is not None
        try:
            yield from reported(command, process.stdout, Path(log.name))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def about(rows: int, steps: int) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "rows_a_step_and_side": rows,
        "steps": steps,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "pyarrow": version("pyarrow"),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def summary(measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """First, last and warm micro-batches of each system, and how they compare with the fused join's."""
    found: dict[str, Any] = {}
    for name, result in measured.items():
        first, last = (result["steps"][i]["seconds"] for i in (0, -1))
        warm = float(np.median([step["seconds"] for step in result["warm_steps"]]))
        found[name] = {
            "first_seconds": first,
            "last_seconds": last,
            "growth": last / first,
            "warm_seconds": warm,
        }
    for name, values in found.items():
        if name != "fused" and "fused" in found:
            for when in ("last", "warm"):
                key = f"{when}_seconds"
                values[f"times_fused_at_{when}"] = values[key] / found["fused"][key]
    return found


def findings(report: dict[str, Any]) -> Iterator[str]:
    """The comparison in sentences."""
    found = report["summary"]
    if "fused" in found:
        yield f"The delta join's last micro-batch took {found['fused']['growth']:.2f} times its first."
    for name, values in found.items():
        if "times_fused_at_last" in values:
            yield (
                f"{SYSTEMS[name].title}: {values['times_fused_at_last']:.1f} times as long at the last one, "
                f"{values['times_fused_at_warm']:.1f} times in a warm session."
            )
    for values in report["systems"].get("fused", {}).get("loads", {}).values():
        yield (
            f"{values['load'].replace('_', ' ').capitalize()} of {values['rows']:,} rows a side: "
            f"{values['seconds']:.1f} s in {values['micro_batches']} micro-batches."
        )
    for name, values in report["csv"].items():
        yield (
            f"From CSV files to joined rows, {_FROM_CSV[name]}: {values['median_seconds']:.2f} s a step, "
            "which is the median."
        )
    if "latency" in report:
        values = report["latency"]
        yield (
            f"Latency from commit to commit at {values['changes_a_second']:,} changes a second: "
            f"p50 {values['p50_ms']} ms, p99 {values['p99_ms']} ms, longest {values['max_ms']} ms."
        )


def grid(measured: dict[str, dict[str, Any]]) -> Grid:
    """The figures as a table."""
    table = Grid("", *(result["title"] for result in measured.values()))
    for steps in zip(*(result["steps"] for result in measured.values()), strict=True):
        table.add_row(f"s at {steps[0]['rows']:,} rows a side", *(f"{step['seconds']:.2f}" for step in steps))
    warm = summary(measured).values()
    table.add_row("s in a warm session, median", *(f"{values['warm_seconds']:.2f}" for values in warm))
    for title, key, unit in (
        ("checkpoint with state, MB", "checkpoint_bytes", 1e6),
        ("  in files", "checkpoint_files", 1),
        ("restart, s", "restart_seconds", 1),
        ("input (tables or files), MB", "input_bytes", 1e6),
    ):
        table.add_row(
            title, *(f"{result[key] / unit:,.2f}".removesuffix(".00") for result in measured.values())
        )
    memory = (result["steps"][-1]["state_memory_bytes"] for result in measured.values())
    table.add_row("state in memory, MB", *(f"{bytes / 1e6:,.0f}" for bytes in memory))
    table.add_row("rows emitted", *(f"{sum(s['emitted'] for s in r['steps']):,}" for r in measured.values()))
    return table


def plot(report: dict[str, Any], path: Path) -> None:
    """Seconds per micro-batch against rows a side, what is kept between micro-batches, and latency."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = report["systems"]
    figure, (times, sizes, waits) = pyplot.subplots(
        1, 3, figsize=(15, 4.4), width_ratios=(2, 1, 2), layout="constrained"
    )
    for result in measured.values():
        x = [step["rows"] / 1e6 for step in result["steps"]]
        times.plot(x, [step["seconds"] for step in result["steps"]], marker="o", label=result["title"])
    times.set(xlabel="million rows a side", ylabel="seconds per micro-batch", ylim=(0, None))
    times.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
    titles = [result["title"].replace(", ", ",\n") for result in measured.values()]
    sizes.barh(titles, [result["checkpoint_bytes"] / 1e6 for result in measured.values()])
    sizes.set(xscale="log", xlabel="checkpoint with state, MB")
    sizes.invert_yaxis()
    if "latency" in report:
        found = sorted(report["latency"]["latencies_ms"])
        waits.plot(found, np.arange(1, len(found) + 1) / len(found) * 100)
        waits.axhline(99, linestyle=":")
        title = f"{report['latency']['changes_a_second']:,} changes a second"
        waits.set(xlabel="ms from a change to its result", ylabel="% of commits", xlim=(0, None), title=title)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    typer.run(main)
