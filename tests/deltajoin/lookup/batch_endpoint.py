"""A batch endpoint for tests: an aiohttp server in a process of its own, told over HTTP how to behave.

``PUT /tables/T?keys=a,b`` takes rows as Arrow IPC, ``POST /lookup/T`` answers as `deltajoin.lookup.http_json`
describes, ``PUT /behaviour`` says how, ``GET /seen`` tells what it was asked since then.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from aiohttp import web

from deltajoin.lookup.keys import comparable
from tests.helpers import REPOSITORY
from upsert.formats.base import FormatContext
from upsert.formats.json import FORMAT
from upsert.formats.text_values import TimestampStandard

JSON = {"timestamp-format.standard": TimestampStandard.ISO, "encode.decimal-as-plain-number": True}


class BatchEndpoint:
    """A running endpoint, and what a test says to it."""

    def __init__(self) -> None:
        self._tables = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.deltajoin.lookup.batch_endpoint"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,  # its end is the end of the server
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.address = f"http://127.0.0.1:{self.port}"

    def serve(self, rows: pa.Table, keys: Sequence[str]) -> str:
        """The URL under which these rows can be looked up by these keys."""
        self._tables += 1
        url = f"{self.address}/lookup/{self._tables}"
        self.change(url, rows, keys)
        return url

    def change(self, url: str, rows: pa.Table, keys: Sequence[str]) -> None:
        """Let other rows be found under a URL."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        table = url.rpartition("/")[2]
        self._send("PUT", f"/tables/{table}?keys={','.join(keys)}", sink.getvalue().to_pybytes())

    def behave(self, **behaviour: Any) -> None:
        """How to answer from now on; see `Run.behaviour`."""
        self._send("PUT", "/behaviour", json.dumps(behaviour).encode())

    def seen(self) -> dict[str, Any]:
        """Requests since the last ``behave``: their number, most at a time, the last one's headers, sizes."""
        found: dict[str, Any] = json.loads(self._send("GET", "/seen"))
        return found

    def _send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.address}{path}", body, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            content: bytes = response.read()
        return content

    def stop(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


class Run:
    """Requests since a test said how they are answered; one that outlives that counts in none that follows.

    Attributes:
        behaviour: ``latency_s``: of each request. ``first``: ``[status, headers, body]`` of the first
            requests, a body of None is the true one. ``cut``: end the connection within the body.
            ``together``: requests that must have been in flight at a time before any is answered.
            ``last``: ``[key, n]``: a request with this key is answered after n others.
    """

    def __init__(self, behaviour: dict[str, Any]) -> None:
        self.behaviour = behaviour
        self.requests = self.answered = self.in_flight = self.most_in_flight = 0
        self.sizes: list[int] = []
        self.asked: list[str] = []
        self.connections: set[Any] = set()
        self.headers: dict[str, str] = {}


class Server:
    """The other side of `BatchEndpoint`."""

    def __init__(self) -> None:
        self.tables: dict[str, tuple[list[str], dict[bytes, list[str]]]] = {}
        self.run = Run({})

    async def put_table(self, request: web.Request) -> web.Response:
        rows = pa.ipc.open_stream(await request.read()).read_all()
        keys = request.query["keys"].split(",")
        columns = {name: comparable(rows[name].combine_chunks()) for name in keys}
        texts = encoded(pa.table(columns))
        of_key: dict[bytes, list[str]] = {}
        usable = [None not in row.values() for row in rows.select(keys).to_pylist()]
        for key, row, is_usable in zip(texts, encoded(rows), usable, strict=True):
            if is_usable:
                of_key.setdefault(canonical(json.loads(key)), []).append(row.decode())
        self.tables[request.match_info["name"]] = (keys, of_key)
        return web.Response()

    async def put_behaviour(self, request: web.Request) -> web.Response:
        self.run = Run(await request.json())
        return web.Response()

    async def get_seen(self, _: web.Request) -> web.Response:
        run = self.run
        return web.json_response(
            {
                "requests": run.requests,
                "most_in_flight": run.most_in_flight,
                "sizes": run.sizes,
                "asked": run.asked,
                "connections": len(run.connections),
                "headers": run.headers,
            }
        )

    async def lookup(self, request: web.Request) -> web.StreamResponse:
        run = self.run
        run.in_flight += 1
        run.requests += 1
        number = run.requests
        run.most_in_flight = max(run.most_in_flight, run.in_flight)
        try:
            return await self.answer(request, run, number)
        finally:
            run.in_flight -= 1

    async def answer(self, request: web.Request, run: Run, number: int) -> web.StreamResponse:
        asked = await request.json()
        keys, of_key = self.tables[request.match_info["name"]]
        assert all(list(key) == keys for key in asked["keys"])
        texts = [canonical(key) for key in asked["keys"]]
        run.sizes.append(len(texts))
        run.asked += [text.decode() for text in texts]
        run.connections.add(request.transport.get_extra_info("peername") if request.transport else None)
        run.headers = dict(request.headers)
        await asyncio.sleep(run.behaviour.get("latency_s", 0))
        while run.most_in_flight < run.behaviour.get("together", 0):
            await asyncio.sleep(0.005)
        last, others = run.behaviour.get("last", (None, 0))
        while last in [text.decode() for text in texts] and run.answered < others:
            await asyncio.sleep(0.005)
        run.answered += 1
        body = f'{{"results":[{",".join("[" + ",".join(of_key.get(text, [])) + "]" for text in texts)}]}}'
        status, headers = 200, {}
        if number <= len(run.behaviour.get("first", ())):
            status, headers, other = run.behaviour["first"][number - 1]
            body = body if other is None else other
        if run.behaviour.get("cut"):
            cut = web.StreamResponse(headers={"Content-Length": str(len(body) + 10)})
            await cut.prepare(request)
            await cut.write(body.encode())
            assert request.transport is not None
            request.transport.close()
            return cut
        return web.Response(status=status, headers=headers, body=body.encode())


def encoded(rows: pa.Table) -> list[bytes]:
    texts: list[bytes] = FORMAT.encoder(FormatContext(rows.schema, JSON)).encode(rows).to_pylist()
    return texts


def canonical(key: Any) -> bytes:
    return json.dumps(key, sort_keys=True).encode()


async def serve() -> None:
    server = Server()
    application = web.Application(client_max_size=1 << 30)
    application.router.add_put("/tables/{name}", server.put_table)
    application.router.add_put("/behaviour", server.put_behaviour)
    application.router.add_get("/seen", server.get_seen)
    application.router.add_post("/lookup/{name}", server.lookup)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve())
