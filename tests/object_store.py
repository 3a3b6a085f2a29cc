"""An S3 server on this machine that honours conditional puts, and a proxy that loses its answers."""

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import pytest

CREDENTIALS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "anybody",
    "AWS_SECRET_ACCESS_KEY": "who asks",
    "AWS_EC2_METADATA_DISABLED": "true",
}
BUCKET = "tests"


@dataclass(frozen=True)
class ObjectStore:
    """A running server with one bucket."""

    endpoint: str

    def folder(self, endpoint: str | None = None) -> str:
        """A table path that nobody else uses."""
        return f"s3://{BUCKET}/{uuid4().hex}/orders?endpoint={endpoint or self.endpoint}&region=us-east-1"

    def make_bucket(self, name: str) -> None:
        """Make another bucket; nothing if it is there."""
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=60):
            pass

    @property
    def warehouse(self) -> str:
        """The path of a warehouse that nobody else uses."""
        return f"s3://{BUCKET}/{uuid4().hex}?endpoint={self.endpoint}&region=us-east-1"


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many requests of each kind this process sends from here on, by their names at S3."""
    from botocore.client import BaseClient

    asked: Counter[str] = Counter()
    send = BaseClient._make_api_call

    def noted(self: Any, operation: str, arguments: Any) -> Any:
        asked[operation] += 1
        return send(self, operation, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", noted)
    return asked


class Server:
    """The process; its port is free when it starts."""

    def __enter__(self) -> ObjectStore:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(port)],
            env={**os.environ, **CREDENTIALS},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        endpoint = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        store = ObjectStore(endpoint)
        while not self._answers(store):
            assert self._process.poll() is None, "the S3 server has ended"
            assert time.monotonic() < deadline, "the S3 server does not answer"
            time.sleep(0.05)
        return store

    def _answers(self, store: ObjectStore) -> bool:
        try:
            store.make_bucket(BUCKET)
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()


def serve(port: int) -> None:
    """Be the server. Moto looks for an object and puts it in two steps, which threads mix up; S3 never."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    application, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def answer(environ: Any, start_response: Any) -> Any:
        with one_at_a_time:
            return application(environ, start_response)

    run_simple("127.0.0.1", port, answer, threaded=True)


class LossyProxy:
    """Passes requests on to a server; of chosen ones it keeps the answer to itself and hangs up.

    Attributes:
        lose: the next request whose first line contains this loses its answer.
        lost: first lines of those that did.
        refuse: requests whose first line contains this are answered with ``status``, as many as ``times``.
        cut: of the next answer whose request's first line contains this, half of the content is sent.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lose: str | None = None
        self.lost: list[str] = []
        self.refuse: str | None = None
        self.status, self.times = 503, 0
        self.cut: str | None = None

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            while head := _head(client):
                line = head.split(b"\r\n")[0].decode()
                content = _body(client, head)
                if self.refuse is not None and self.refuse in line and self.times:
                    self.times -= 1
                    client.sendall(b"HTTP/1.1 %d refused\r\nContent-Length: 0\r\n\r\n" % self.status)
                    continue
                server.sendall(head + content)
                while (answer := _head(server)).startswith(b"HTTP/1.1 100"):
                    pass  # the client has been told so already
                found = b"" if line.startswith("HEAD") else _body(server, answer)
                if self.cut is not None and self.cut in line and found:
                    self.cut = None
                    client.sendall(answer + found[: len(found) // 2])
                    return
                answer += found
                if self.lose is not None and self.lose in line:
                    self.lose = None
                    self.lost.append(line)
                    return
                client.sendall(answer)


def _head(connection: socket.socket) -> bytes:
    """All up to the empty line; nothing if the other side has hung up."""
    found = b""
    while not found.endswith(b"\r\n\r\n"):
        if not (one := connection.recv(1)):
            return b""
        found += one
    return found


def _body(connection: socket.socket, head: bytes) -> bytes:
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    if b"100-continue" in fields.get(b"expect", b""):
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    size, body = int(fields.get(b"content-length", b"0")), b""
    while len(body) < size and (part := connection.recv(size - len(body))):
        body += part
    return body


if __name__ == "__main__":
    serve(int(sys.argv[1]))
