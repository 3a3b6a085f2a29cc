"""The other end of `bench.lookups`: an endpoint in a process of its own that takes its time, and no more.

It speaks just enough HTTP, so that the processor of a small machine is left to the client, and answers 5 ms
after a request has come. An ordinary event loop rounds such a time up to whole milliseconds; this one waits
with ``select``, which does not. What it really took is asked with ``GET`` and counts from then on.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

LATENCY_S: Final = 0.005
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@dataclass
class Taken:
    """What the requests took since that was asked last: their number, seconds, and processor time."""

    requests: int = 0
    seconds: float = 0.0
    cpu_from_s: float = 0.0

    def take(self) -> dict[str, float]:
        """The means of a request, in milliseconds; counts begin again."""
        of_each = 1e3 / max(self.requests, 1)
        cpu_s = time.process_time() - self.cpu_from_s
        found = {"latency_ms": self.seconds * of_each, "cpu_ms": cpu_s * of_each}
        self.requests, self.seconds, self.cpu_from_s = 0, 0.0, time.process_time()
        return found


class Connection(asyncio.Protocol):
    """One connection of a client, which sends a request when the one before has been answered."""

    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        """Answers go here."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer once the request is whole."""
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or len(body) < _length(head):
            return
        self._received = b""
        if head.startswith(b"GET"):
            self._send(self._taken.take())
            return
        began = time.monotonic()
        asyncio.get_running_loop().call_at(began + LATENCY_S, self._answer, body, began)

    def _answer(self, body: bytes, began: float) -> None:
        keys = [key["id"] for key in json.loads(body)["keys"]]
        self._send({"results": [[{"id": n, "name": f"item {n}", "price": n / 4}] for n in keys]})
        self._taken.requests += 1
        self._taken.seconds += time.monotonic() - began

    def _send(self, value: Any) -> None:
        text = json.dumps(value).encode()
        self._transport.write(_HEAD % len(text) + text)


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


async def serve() -> None:
    """Listen on a free port, which is printed, until standard input ends."""
    taken, loop, ended = Taken(), asyncio.get_running_loop(), asyncio.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    async with await loop.create_server(lambda: Connection(taken), "127.0.0.1", 0) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        threading.Thread(target=wait_for_the_end, daemon=True).start()
        await ended.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(serve())
