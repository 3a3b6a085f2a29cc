"""Materialized views of TPC-H's queries beside the queries computed again: `python -m bench.views`.

All eight tables change; each view is refreshed, and Spark and DuckDB compute its query over Parquet files of
the same rows. Prints a table for each scale and share of changed rows, and keeps the figures in
`bench/results/views.json` and a plot in `bench/results/views.png`. At scale 1 it takes an hour.

After that as many rows change at each scale, `--rows`, and the report says how much longer a refresh takes
at the largest scale than at the smallest one: it should follow the changed rows, not the tables.

With `--ways` each query has two more views beside the one that chooses how it is refreshed: one that goes by
changes, and one that reads all rows. So it is seen whether the choice is the faster way. These figures, where
each change is refreshed by three views, are kept apart, in `bench/results/views_ways.json`.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import duckdb
import pyarrow.parquet as pq
import typer
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import track
from rich.table import Table as Grid

import planner
from bench import RESULTS
from bench.processes import cpu_seconds
from bench.session import untuned
from bench.views import tpch
from upsert import Catalog
from upsert.views.view import View

REPEATS: Final = 3
CHOSEN: Final = "refresh"
CHANGES: Final = "by_changes"
ALL_ROWS: Final = "all_rows"
WAYS: Final = {CHANGES: "incremental", ALL_ROWS: "full"}
"""The two ways to refresh, by the option that asks for them."""

TIMES: Final = {"time": "_s", "CPU time": "_cpu_s"}
"""What is measured of each refresh, by the ends of the names of the figures, in seconds."""

TIE: Final = 1.15
"""A way that takes so many times as long as the other one is as fast, as far as can be measured."""

MOST_GROWTH: Final = 1.5
"""So many times as long a refresh may take at the largest scale, with as many changed rows."""

WARM_UP: Final = 0.0002
"""Share of the rows that change before anything is timed: the first refresh plans what all others run."""

console: Final = Console()


def main(
    scales: Annotated[str, typer.Option(help="scales, separated by commas; 1 is a gigabyte")] = "0.1,1",
    shares: Annotated[str, typer.Option(help="shares of changed rows")] = "0.001,0.01,0.1",
    rows: Annotated[int, typer.Option(help="changed rows, as many at each scale; 0 for none")] = 1000,
    queries: Annotated[str, typer.Option(help="numbers of queries; all by default")] = "",
    results: Annotated[Path, typer.Option(help="folder for JSON and plot")] = RESULTS,
    ways: Annotated[bool, typer.Option(help="also time both ways to refresh, beside the chosen one")] = False,
) -> None:
    """Time refreshes after some, more and many changes, and the queries themselves."""
    spark = untuned("views")
    texts = tpch.queries()
    wanted = {number: texts[number] for number in map(int, queries.split(","))} if queries else texts
    about = {"cpus": os.cpu_count(), "spark": spark.version}
    report: dict[str, Any] = {"about": about, "measured": [], "same_rows": []}
    for scale in map(float, scales.split(",")):
        with tempfile.TemporaryDirectory(prefix="bench-views-") as folder:
            found, same = measured(
                spark, Path(folder), scale, [*map(float, shares.split(","))], rows, wanted, ways
            )
            report["measured"] += found
            report["same_rows"] += same
    growths = growth(report["same_rows"])
    if growths:
        console.print(grid_of_growth(growths))
    report["summary"] = [*summary(report["measured"]), *growth_in_words(growths, rows)]
    results.mkdir(parents=True, exist_ok=True)
    name = "views_ways" if ways else "views"
    (results / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    plot(report["measured"], results / f"{name}.png")
    for line in report["summary"]:
        console.print(line)
    spark.stop()


def measured(
    spark: SparkSession,
    folder: Path,
    scale: float,
    shares: list[float],
    same_rows: int,
    queries: dict[int, str],
    ways: bool,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The seconds of each query at one scale: after each share of changes, and after so many changed rows."""
    catalog = Catalog(folder / "warehouse", optimize=planner.optimize)
    tpch.fill(catalog, tpch.generated(scale))
    views: dict[int, dict[str, View]] = {}
    created = {}
    for number, text in track(queries.items(), f"scale {scale:g}: creating views", console=console):
        began = time.perf_counter()
        views[number] = {CHOSEN: catalog.create_view(f"q{number}", text, spark=spark)}
        created[number] = time.perf_counter() - began
        for name, option in WAYS.items() if ways else ():
            options = {"refresh": option}
            views[number][name] = catalog.create_view(
                f"q{number}_{option}", text, options=options, spark=spark
            )
    tpch.change(catalog, WARM_UP, 0)
    for view in [view for of_query in views.values() for view in of_query.values()]:
        view.refresh()
    found = []
    for share in shares:
        refreshed = refreshes(catalog, views, share)
        files = parquet(catalog, folder / "files")
        again = recomputed(spark, files, queries)
        for number in queries:
            row = {"scale": scale, "share": share, "query": number, "create_s": created[number]}
            found.append({**row, **refreshed[number], **again[number]})
        console.print(grid(found[-len(queries) :]))
    if not same_rows:
        return found, []
    share = same_rows / sum(catalog.table(name).snapshot().row_count for name in tpch.KEYS)
    chosen = {number: {CHOSEN: of_query[CHOSEN]} for number, of_query in views.items()}
    refreshed = refreshes(catalog, chosen, share)
    same = [{"scale": scale, "query": number, **refreshed[number]} for number in queries]
    return found, same


def refreshes(catalog: Catalog, views: dict[int, dict[str, View]], share: float) -> dict[int, dict[str, Any]]:
    """Median seconds of the refreshes of each view, and the ways that were chosen in each repetition."""
    seconds: dict[int, dict[str, list[float]]] = {
        number: {name + end: [] for name in of_query for end in TIMES.values()}
        for number, of_query in views.items()
    }
    chosen: dict[int, list[bool]] = {number: [] for number in views}
    for seed in range(REPEATS):
        rows = tpch.change(catalog, share, int(share * 1e6) + seed)
        for number, of_query in track(views.items(), f"{rows:,} changed rows", console=console):
            for name, view in of_query.items():
                cpu = cpu_seconds()
                seconds[number][f"{name}_s"].append(timed(view.refresh))
                seconds[number][f"{name}_cpu_s"].append(cpu_seconds() - cpu)
            found = of_query[CHOSEN].refreshes.values()
            chosen[number].append(all(refresh.by_changes for refresh in found))
    return {
        number: {name: statistics.median(found) for name, found in of_query.items()}
        | {"chosen_by_changes": chosen[number]}
        for number, of_query in seconds.items()
    }


def parquet(catalog: Catalog, folder: Path) -> dict[str, str]:
    """The tables' present rows as Parquet files, by table."""
    folder.mkdir(exist_ok=True)
    for name in tpch.KEYS:
        pq.write_table(catalog.table(name).snapshot().scan(), folder / f"{name}.parquet")
    return {name: str(folder / f"{name}.parquet") for name in tpch.KEYS}


def recomputed(
    spark: SparkSession, files: dict[str, str], queries: dict[int, str]
) -> dict[int, dict[str, Any]]:
    """Median seconds in which Spark and DuckDB compute each query."""
    with duckdb.connect(config={"threads": "2"}) as db:
        for name, path in files.items():
            spark.read.parquet(path).createOrReplaceTempView(name)
            db.execute(f"CREATE VIEW {name} AS SELECT * FROM '{path}'")
        found = {}
        for number, text in track(queries.items(), "computing again", console=console):
            sparks = [timed(partial(in_spark, spark, text)) for _ in range(REPEATS)]
            ducks = [timed(partial(in_duckdb, db, text)) for _ in range(REPEATS)]
            found[number] = {"spark_s": statistics.median(sparks), "duckdb_s": statistics.median(ducks)}
        return found


def in_spark(spark: SparkSession, text: str) -> None:
    """Compute a query with Spark."""
    spark.sql(text).toArrow()


def in_duckdb(db: duckdb.DuckDBPyConnection, text: str) -> None:
    """Compute a query with DuckDB."""
    db.execute(text).fetchall()


def timed(work: Callable[[], object]) -> float:
    """How many seconds something takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def grid(rows: list[dict[str, Any]]) -> Grid:
    """One scale and share as a table."""
    made = Grid(title=f"scale {rows[0]['scale']:g}, {rows[0]['share']:.1%} of the rows changed")
    for name in ("query", "refresh s", "Spark s", "DuckDB s", "Spark ÷ refresh"):
        made.add_column(name, justify="right")
    for row in rows:
        times = row["spark_s"] / row["refresh_s"]
        seconds = (f"{row[name]:.2f}" for name in ("refresh_s", "spark_s", "duckdb_s"))
        made.add_row(str(row["query"]), *seconds, f"{times:.1f}")
    return made


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """What the figures say, a sentence each."""
    found = []
    for scale, share in sorted({(row["scale"], row["share"]) for row in rows}):
        times = [
            row["spark_s"] / row["refresh_s"]
            for row in rows
            if (row["scale"], row["share"]) == (scale, share)
        ]
        of_ten, of_one = (sum(time >= least for time in times) for least in (10, 1))
        found.append(
            f"scale {scale:g}, {share:.1%} changed: a refresh takes {statistics.median(times):.1f} times "
            f"less than Spark's query (median); 10 times less for {of_ten} of {len(times)}, less for {of_one}"
        )
    compared = [row for row in rows if f"{CHANGES}_s" in row]
    choices = [(row, way) for row in compared for way in row["chosen_by_changes"]]
    for what, end in TIMES.items():
        if right := [is_right(row, way, end) for row, way in choices]:
            found.append(f"the way of less {what} was chosen for {sum(right)} of {len(right)} refreshes")
    return found


def growth(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each query how many times as long a refresh takes at the largest scale as at the smallest one.

    >>> row = {"query": 1, "scale": 0.1, "refresh_s": 0.2, "refresh_cpu_s": 0.3}
    >>> growth([row, {**row, "scale": 1.0, "refresh_s": 0.25}])
    [{'query': 1, 'from_s': 0.2, 'to_s': 0.25, 'time': 1.25, 'CPU time': 1.0}]
    >>> growth([row])
    []
    """
    scales = sorted({row["scale"] for row in rows})
    if len(scales) < 2:
        return []
    at = {(row["scale"], row["query"]): row for row in rows}
    found = []
    for query in sorted({row["query"] for row in rows}):
        small, large = (at[scale, query] for scale in (scales[0], scales[-1]))
        ends = {what: CHOSEN + end for what, end in TIMES.items()}
        times = {what: large[name] / max(small[name], 0.001) for what, name in ends.items()}
        seconds = {"from_s": small[f"{CHOSEN}_s"], "to_s": large[f"{CHOSEN}_s"]}
        found.append({"query": query, **seconds, **times})
    return found


def grid_of_growth(rows: list[dict[str, Any]]) -> Grid:
    """`growth` as a table."""
    made = Grid(title="as many changed rows at the smallest and the largest scale")
    for name in ("query", "smallest s", "largest s", *(f"× {what}" for what in TIMES)):
        made.add_column(name, justify="right")
    for row in rows:
        figures = (f"{row[name]:.2f}" for name in ("from_s", "to_s", *TIMES))
        made.add_row(str(row["query"]), *figures)
    return made


def growth_in_words(rows: list[dict[str, Any]], changed: int) -> list[str]:
    """What `growth` says, a sentence for each of the times."""
    found = []
    for what in TIMES if rows else ():
        times = [row[what] for row in rows]
        found.append(
            f"{changed:,} changed rows: a refresh takes {statistics.median(times):.1f} times the {what} at "
            f"the largest scale as at the smallest one (median); less than {MOST_GROWTH:g} times for "
            f"{sum(time < MOST_GROWTH for time in times)} of {len(times)}"
        )
    return found


def is_right(row: dict[str, Any], by_changes: bool, end: str) -> bool:
    """Whether a refresh has taken the way that takes less, or as much within `TIE`."""
    taken, other = (row[CHANGES + end], row[ALL_ROWS + end])[:: 1 if by_changes else -1]
    return bool(taken <= TIE * other)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """How much less a refresh takes than Spark's query, by query, for each scale and share."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    scales = sorted({row["scale"] for row in rows})
    figure, axes = pyplot.subplots(
        len(scales), 1, figsize=(12, 3.5 * len(scales)), squeeze=False, layout="constrained"
    )
    for scale, (axis,) in zip(scales, axes, strict=True):
        for share in sorted({row["share"] for row in rows}):
            own = [row for row in rows if (row["scale"], row["share"]) == (scale, share)]
            times = [row["spark_s"] / row["refresh_s"] for row in own]
            numbers = [str(row["query"]) for row in own]
            axis.plot(numbers, times, marker="o", linestyle="none", label=f"{share:.1%} changed")
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set(
            yscale="log", title=f"scale {scale:g}", ylabel="Spark's query ÷ refresh", xlabel="TPC-H query"
        )
        axis.yaxis.set_major_formatter("{x:g}×")
    points = axes[-1][0].get_legend_handles_labels()
    figure.legend(*points, loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    typer.run(main)
