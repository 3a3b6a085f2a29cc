"""The delta join beside Spark's own stream-stream join while both sides grow: `python -m bench.join`.

Prints a table, keeps the figures in `bench/results/join.json` and a plot in `bench/results/join.png`. Each
system runs in processes of its own, one after the other, on the same rows; see `bench.join_systems`.
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

import typer
from rich.console import Console
from rich.table import Table as Grid

from bench.join_systems import SYSTEMS

RESULTS: Final = Path(__file__).parent / "results"
console: Final = Console()


def main(
    rows: Annotated[int, typer.Option(help="rows a side that each step adds")] = 200_000,
    steps: Annotated[int, typer.Option(help="steps, so micro-batches that are timed")] = 8,
    systems: Annotated[str, typer.Option(help="which to run, separated by commas")] = ",".join(SYSTEMS),
    results: Annotated[Path, typer.Option(help="folder for JSON and plot")] = RESULTS,
) -> None:
    """Time micro-batches from first to last while both sides of a join grow."""
    measured = {name: run(name, rows, steps) for name in systems.split(",")}
    report = {"about": about(rows, steps), "systems": measured, "summary": summary(measured)}
    results.mkdir(parents=True, exist_ok=True)
    (results / "join.json").write_text(json.dumps(report, indent=1) + "\n")
    plot(measured, results / "join.png")
    console.print(grid(measured))
    for line in findings(report["summary"]):
        console.print(line)


def run(name: str, rows: int, steps: int) -> dict[str, Any]:
    """One system from an empty folder to its restart."""
    result: dict[str, Any] = {"title": SYSTEMS[name].title, "steps": []}
    with tempfile.TemporaryDirectory(prefix=f"bench-join-{name}-") as folder:
        for what in ("steps", "restart"):
            for values in lines(what, name, folder, str(rows), str(steps)):
                if "step" in values:
                    result["steps"].append(values)
                    console.print(
                        f"{result['title']}: {values['rows']:>9,} rows a side {values['seconds']:7.2f} s"
                    )
                else:
                    result.update(values)
    return result


def lines(*arguments: str) -> Iterator[dict[str, Any]]:
    """What a system reports while it runs; its log is shown if it fails.

    The JVM of a RocksDB query sometimes outlives its driver and keeps the pipe open, so the driver says
    itself that it is done, and whatever it has started is ended with it.
    """
    command = [sys.executable, "-m", "bench.join_systems", *arguments]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                values = json.loads(line) if line.startswith("{") else {}
                if "done" in values:
                    return
                if values:
                    yield values
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        raise SystemExit(f"{' '.join(command)} failed:\n{log.read()[-5000:]}")


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
    """First and last micro-batch of each system, and how the last one compares with the delta join's."""
    found: dict[str, Any] = {}
    for name, result in measured.items():
        first, last = (result["steps"][i]["seconds"] for i in (0, -1))
        found[name] = {"first_seconds": first, "last_seconds": last, "growth": last / first}
        if name != "delta" and "delta" in measured:
            found[name]["times_delta_at_last"] = last / measured["delta"]["steps"][-1]["seconds"]
    return found


def findings(found: dict[str, Any]) -> Iterator[str]:
    """The comparison in sentences."""
    if "delta" in found:
        yield f"The delta join's last micro-batch took {found['delta']['growth']:.2f} times its first."
    for name, values in found.items():
        if "times_delta_at_last" in values:
            yield f"{SYSTEMS[name].title}: {values['times_delta_at_last']:.1f} times as long at the last one."


def grid(measured: dict[str, dict[str, Any]]) -> Grid:
    """The figures as a table."""
    table = Grid("", *(result["title"] for result in measured.values()))
    for steps in zip(*(result["steps"] for result in measured.values()), strict=True):
        table.add_row(f"s at {steps[0]['rows']:,} rows a side", *(f"{step['seconds']:.2f}" for step in steps))
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


def plot(measured: dict[str, dict[str, Any]], path: Path) -> None:
    """Seconds per micro-batch against rows a side, and the size of what is kept between micro-batches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (times, sizes) = pyplot.subplots(1, 2, figsize=(11, 4), width_ratios=(2, 1))
    for result in measured.values():
        x = [step["rows"] / 1e6 for step in result["steps"]]
        times.plot(x, [step["seconds"] for step in result["steps"]], marker="o", label=result["title"])
    times.set(xlabel="million rows a side", ylabel="seconds per micro-batch", ylim=(0, None))
    times.legend()
    titles = [result["title"].replace(", ", ",\n") for result in measured.values()]
    sizes.barh(titles, [result["checkpoint_bytes"] / 1e6 for result in measured.values()])
    sizes.set(xscale="log", xlabel="checkpoint with state, MB")
    sizes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    typer.run(main)
