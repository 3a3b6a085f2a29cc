"""Lookups over HTTP, one after the other in theory and together in fact: `python -m bench.lookups`.

An aiohttp server of its own process takes 5 ms for each request. Ten thousand keys are looked up, with one
key in a request and with a hundred, at several concurrencies, then once more through the cache that the first
round filled. The least that is possible is requests × 5 ms ÷ concurrency. Medians of three are printed and
kept in `bench/results/lookups.json`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import typer
from aiohttp import web
from rich.console import Console
from rich.table import Table as Grid

from deltajoin.lookup import HttpLookup, RequestLimits
from deltajoin.lookup.batch import Lookups
from deltajoin.lookup.cache import RowCache

RESULTS: Final = Path(__file__).parent / "results" / "lookups.json"
SCHEMA: Final = pa.schema({"id": pa.int64(), "name": pa.string(), "price": pa.float64()})
LATENCY_S: Final = 0.005
KEYS: Final = 10_000
CASES: Final = ((1, 8), (1, 16), (1, 32), (100, 4), (100, 16))
"""Keys in a request, requests at a time."""


async def answer(request: web.Request) -> web.Response:
    """A row for each key, after 5 ms."""
    keys = [key["id"] for key in (await request.json())["keys"]]
    await asyncio.sleep(LATENCY_S)
    return web.json_response({"results": [[{"id": n, "name": f"item {n}", "price": n / 4}] for n in keys]})


async def serve() -> None:
    """Listen on a free port, which is printed, until standard input ends."""
    application = web.Application()
    application.router.add_post("/", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def measure(url: str, keys_per_request: int, requests: int) -> dict[str, float]:
    """Seconds of the first round and of the one through the cache."""
    limits = RequestLimits(keys_per_request=keys_per_request, requests=requests)
    lookups = Lookups(HttpLookup(url, SCHEMA, ["id"], limits=limits), capacity=KEYS)
    cache = RowCache(SCHEMA, ["id"], ["id"], max_keys=KEYS)
    keys = pa.table({"id": np.random.default_rng(7).permutation(KEYS)})
    try:
        began = time.perf_counter()
        found, _ = lookups.answer(keys)
        cold = time.perf_counter() - began
        assert found.rows.num_rows == KEYS
        cache.put(keys, found)
        began = time.perf_counter()
        cached = cache.get(keys)
        warm = time.perf_counter() - began
        assert len(cached.missing) == 0
    finally:
        lookups.close()
    return {"cold_s": cold, "warm_s": warm}


def run() -> list[dict[str, Any]]:
    """All cases against one server."""
    server = subprocess.Popen(
        [sys.executable, "-m", "bench.lookups", "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}/"
    try:
        return [case(url, *given) for given in CASES]
    finally:
        server.communicate()


def case(url: str, keys_per_request: int, requests: int) -> dict[str, Any]:
    """The medians of one case, beside the least time that is possible."""
    rounds = [measure(url, keys_per_request, requests) for _ in range(3)]
    return {
        "keys_per_request": keys_per_request,
        "concurrency": requests,
        "ideal_s": KEYS / keys_per_request * LATENCY_S / requests,
        **{name: statistics.median(each[name] for each in rounds) for name in rounds[0]},
    }


def main(serve_only: bool = typer.Option(False, "--serve", hidden=True)) -> None:
    """Measure, print and keep."""
    if serve_only:
        asyncio.run(serve())
        return
    results = run()
    grid = Grid(title=f"{KEYS:,} lookups by HTTP, 5 ms a request")
    for name in ("keys a request", "concurrency", "least possible s", "s", "s again, from the cache"):
        grid.add_column(name, justify="right")
    for each in results:
        grid.add_row(
            f"{each['keys_per_request']}",
            f"{each['concurrency']}",
            f"{each['ideal_s']:.3f}",
            f"{each['cold_s']:.3f}",
            f"{each['warm_s']:.3f}",
        )
    Console().print(grid)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
