"""A contract double of a schema registry: the four REST calls over a dict, and answers gone wrong on demand.

It replies as Apicurio Registry 2.6 and Confluent's registry do; `test_schema_registry.py` puts the same
questions to it and, in `make test-long`, to a real Apicurio Registry.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from threading import Thread
from typing import Any
from urllib.parse import unquote

Reply = tuple[int, Any]


class Double(ThreadingHTTPServer):
    """The server and what it knows."""

    daemon_threads = True
    scheme = "http"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.schemas: list[str] = []
        self.kinds: dict[str, str] = {}
        """The texts of schemas that are not Avro's -> what they are."""
        self.references: dict[str, list[Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[tuple[str, str]] = []
        self.authorizations: list[str | None] = []
        self.replies: list[tuple[int, dict[str, str], bytes]] = []
        """Answers to give instead, one a request; the last one for ever."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that does not trust the server hangs up."""

    def add(self, subject: str, schema: str, kind: str = "AVRO", references: Any = ()) -> int:
        """Register a schema; its id."""
        if references:
            self.references[schema] = list(references)
        if kind != "AVRO":
            self.kinds[schema] = kind
        if schema not in self.schemas:
            self.schemas.append(schema)
        id = self.schemas.index(schema) + 1
        ids = self.subjects.setdefault(subject, [])
        if id not in ids:
            ids.append(id)
        return id

    def answer(self, method: str, path: str, body: Any) -> Reply:
        match method, [unquote(part) for part in path.partition("?")[0].strip("/").split("/")]:
            case "GET", ["schemas", "ids", id] if 1 <= int(id) <= len(self.schemas):
                return 200, self._schema(self.schemas[int(id) - 1])
            case "GET", ["subjects", subject, "versions", version] if subject in self.subjects:
                return 200, self._schema(self.schemas[self.subjects[subject][int(version) - 1] - 1])
            case "GET", ["schemas", "ids", id, "versions"] if 1 <= int(id) <= len(self.schemas):
                found = [
                    {"subject": subject, "version": ids.index(int(id)) + 1}
                    for subject, ids in self.subjects.items()
                    if int(id) in ids
                ]
                return 200, found
            case "GET", ["schemas", "ids", *_]:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case "POST", ["subjects", subject] if body["schema"] in self.schemas:
                id = self.schemas.index(body["schema"]) + 1
                if id in self.subjects.get(subject, []):
                    version = self.subjects[subject].index(id) + 1
                    return 200, {"subject": subject, "id": id, "version": version, "schema": body["schema"]}
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case "POST", ["subjects", _]:
                return 404, {"error_code": 40401, "message": "Subject not found"}
            case "POST", ["subjects", subject, "versions"]:
                kind = body.get("schemaType", "AVRO")
                if kind == "AVRO" and "type" not in body["schema"] and not body["schema"].startswith('"'):
                    return 422, {"error_code": 42201, "message": "Invalid Avro schema"}
                return 200, {"id": self.add(subject, body["schema"], kind, body.get("references", ()))}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _schema(self, text: str) -> dict[str, Any]:
        kind = {"schemaType": self.kinds[text]} if text in self.kinds else {}
        return {"schema": text, "references": self.references.get(text, []), **kind}


class _Handler(BaseHTTPRequestHandler):
    server: Double

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def _handle(self, method: str) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((method, self.path))
        self.server.authorizations.append(self.headers.get("Authorization"))
        headers: dict[str, str] = {}
        if self.server.replies:
            first = len(self.server.replies) > 1
            status, headers, reply = self.server.replies.pop(0) if first else self.server.replies[0]
        else:
            status, value = self.server.answer(method, self.path, json.loads(content) if content else None)
            reply = json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def registry_double(tls: SSLContext | None = None) -> Iterator[Double]:
    """A double that listens for the length of the block; over https with a server's context."""
    server = Double()
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.scheme = "https"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
