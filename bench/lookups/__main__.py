"""Lookups over HTTP, one after the other in theory and together in fact: `python -m bench.lookups`.

A server of its own process takes 5 ms for each request. Ten thousand keys are looked up, with one key in a
request and with a hundred, at several concurrencies, then once more through the cache that the first round
filled. In turn with it a bare loop of aiohttp asks and parses the same. The least that is possible is
requests × the time that the server really took ÷ concurrency. Medians of three are printed and kept in
`bench/results/lookups.json`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from typing import Any, Final

import aiohttp
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table as Grid

from bench import RESULTS
from deltajoin.lookup import HttpLookup, RequestLimits
from deltajoin.lookup.batch import Lookups
from deltajoin.lookup.cache import RowCache

RESULT: Final = RESULTS / "lookups.json"
SCHEMA: Final = pa.schema({"id": pa.int64(), "name": pa.string(), "price": pa.float64()})
KEYS: Final = 10_000
CASES: Final = ((1, 8), (1, 16), (1, 32), (100, 4), (100, 16))
"""Keys in a request, requests at a time."""
COLUMNS: Final = {
    "keys_per_request": ("keys a request", 0),
    "concurrency": ("requests at a time", 0),
    "server_ms": ("the server took ms", 2),
    "least_s": ("least possible s", 3),
    "cold_s": ("s", 3),
    "warm_s": ("s again, from the cache", 3),
    "client_cpu_ms": ("client's CPU ms a request", 3),
    "bare_s": ("bare aiohttp s", 3),
    "bare_cpu_ms": ("its CPU ms", 3),
    "ours_to_bare": ("s ÷ bare", 2),
}

console: Final = Console(width=120)


class Timer:
    """Seconds and processor seconds of this process in a block."""

    def __enter__(self) -> Timer:
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began[0]
        self.cpu_s = time.process_time() - self._began[1]


def measure(url: str, keys_per_request: int, requests: int) -> dict[str, float]:
    """One round of each: ours, ours through the cache, bare."""
    keys = pa.table({"id": np.random.default_rng(7).permutation(KEYS)})
    per_request = 1e3 * keys_per_request / KEYS
    server_took(url)
    cold, warm = ours(url, keys, keys_per_request, requests)
    server_ms = server_took(url)
    with Timer() as bare:
        rows = asyncio.run(ask_bare(url, keys["id"].to_pylist(), keys_per_request, requests))
    assert rows.num_rows == KEYS
    return {
        "server_ms": server_ms,
        "least_s": KEYS / keys_per_request * server_ms / 1e3 / requests,
        "cold_s": cold.seconds,
        "warm_s": warm.seconds,
        "client_cpu_ms": cold.cpu_s * per_request,
        "bare_s": bare.seconds,
        "bare_cpu_ms": bare.cpu_s * per_request,
    }


def ours(url: str, keys: pa.Table, keys_per_request: int, requests: int) -> tuple[Timer, Timer]:
    """The first round, and the one through the cache."""
    limits = RequestLimits(keys_per_request=keys_per_request, requests=requests)
    lookups = Lookups(HttpLookup(url, SCHEMA, ["id"], limits=limits), capacity=KEYS)
    cache = RowCache(SCHEMA, ["id"], ["id"], max_keys=KEYS)
    try:
        with Timer() as cold:
            found, _ = lookups.answer(keys)
        assert found.rows.num_rows == KEYS
        cache.put(keys, found)
        with Timer() as warm:
            cached = cache.get(keys)
        assert len(cached.missing) == 0
    finally:
        lookups.close()
    return cold, warm


async def ask_bare(url: str, ids: list[int], keys_per_request: int, requests: int) -> pa.Table:
    """The same questions and answers, with no retry, no time limit, no check of what comes."""
    rows: list[dict[str, Any]] = []
    starts = iter(range(0, len(ids), keys_per_request))

    async def ask_in_turn() -> None:
        for start in starts:
            asked = [{"id": id_} for id_ in ids[start : start + keys_per_request]]
            body = json.dumps({"columns": SCHEMA.names, "keys": asked})
            async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as reply:
                for found in json.loads(await reply.read())["results"]:
                    rows.extend(found)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=requests)) as session:
        await asyncio.gather(*(ask_in_turn() for _ in range(requests)))
    return pa.Table.from_pylist(rows, SCHEMA)


def server_took(url: str) -> float:
    """Milliseconds that the server took for a request since this was asked last."""
    with urllib.request.urlopen(url, timeout=30) as reply:
        found: dict[str, float] = json.load(reply)
    return found["latency_ms"]


def case(url: str, keys_per_request: int, requests: int) -> dict[str, Any]:
    """The medians of one case."""
    rounds = [measure(url, keys_per_request, requests) for _ in range(3)]
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    ratio = statistics.median(each["cold_s"] / each["bare_s"] for each in rounds)
    return {"keys_per_request": keys_per_request, "concurrency": requests, **medians, "ours_to_bare": ratio}


def run() -> list[dict[str, Any]]:
    """All cases against one server."""
    server = subprocess.Popen(
        [sys.executable, "-m", "bench.lookups.server"],
        stdin=subprocess.PIPE,  # its end is the end of the server
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}/"
    try:
        return [case(url, *given) for given in CASES]
    finally:
        server.communicate()


def grid(results: list[dict[str, Any]]) -> Grid:
    """What is printed."""
    found = Grid(title=f"{KEYS:,} lookups by HTTP, 5 ms a request")
    for title, _ in COLUMNS.values():
        found.add_column(title, justify="right")
    for each in results:
        found.add_row(*(f"{each[name]:.{digits}f}" for name, (_, digits) in COLUMNS.items()))
    return found


def main() -> None:
    """Measure, print and keep."""
    results = run()
    console.print(grid(results))
    RESULT.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
