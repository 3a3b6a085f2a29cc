"""A name node and a data node in one small HTTP server within the process, which fail when a test says so."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4

Trouble = Literal[
    "lost answer", "lost request", "standby", "kerberos", "forbidden", "no webhdfs", "cut short", "gateway"
]


class File(NamedTuple):
    content: bytes
    modified_ms: int
    id: int


@dataclass
class ScriptedHdfs:
    """Files by path, and what shall go wrong.

    Attributes:
        endpoint: its HTTP address.
        troubles: what the next requests of an operation meet, in order; the last one stays.
        asked: operations that arrived, with the path.
        users: who asked.
    """

    endpoint: str
    files: dict[str, File] = field(default_factory=dict)
    troubles: dict[str, list[Trouble | None]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    users: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    ids: Iterator[int] = field(default_factory=count)

    def folder(self, *others: str) -> str:
        """A table path that nobody else uses; ``others`` are asked first."""
        return f"hdfs://cluster/{uuid4().hex}/orders?endpoint={','.join((*others, self.endpoint))}"

    def operations(self) -> list[str]:
        return [operation for operation, _ in self.asked]

    def trouble_of(self, operation: str) -> Trouble | None:
        waiting = self.troubles.get(operation, [])
        return waiting.pop(0) if len(waiting) > 1 else waiting[0] if waiting else None

    def claim(self, source: str, target: str) -> None:
        """Rename a folder, with ``renameoptions=NONE``."""
        with self.lock:
            inside = [path for path in self.files if path.startswith(f"{source}/")]
            if not inside:
                raise FileNotFoundError(source)
            if any(path == target or path.startswith(f"{target}/") for path in self.files):
                raise FileExistsError(target)
            for path in inside:
                self.files[target + path.removeprefix(source)] = self.files.pop(path)

    def rename(self, source: str, target: str, overwrites: bool) -> bool:
        with self.lock:
            if source not in self.files:
                if overwrites:
                    raise FileNotFoundError(source)
                return False
            if target in self.files and not overwrites:
                return False
            self.files[target] = self.files.pop(source)
            return True

    def below(self, folder: str) -> dict[str, File | None]:
        """What lies directly in a folder; None for folders."""
        found: dict[str, File | None] = {}
        for path, file in self.files.items():
            if path.startswith(f"{folder}/"):
                name, slash, _ = path[len(folder) + 1 :].partition("/")
                found[name] = None if slash else file
        return found


@contextmanager
def scripted_hdfs() -> Iterator[ScriptedHdfs]:
    """Such a server for the length of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.hdfs = ScriptedHdfs(f"http://127.0.0.1:{server.server_address[1]}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.hdfs  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer()

    do_PUT = do_DELETE = do_GET  # noqa: N815

    def answer(self) -> None:
        hdfs: ScriptedHdfs = self.server.hdfs  # type: ignore[attr-defined]
        parts = urlsplit(self.path)
        path = unquote(parts.path).removeprefix("/webhdfs/v1")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        operation = query["op"] + (" DATA" if "data" in query else "")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with hdfs.lock:
            hdfs.asked.append((operation, path))
            hdfs.users.add(query["user.name"])
            trouble = hdfs.trouble_of(operation)
        if trouble == "lost request":
            self.close_connection = True
        elif trouble == "standby":
            self.refuse(403, "StandbyException", "Operation category READ is not supported")
        elif trouble == "kerberos":
            self.reply(401, b"<html>Authentication required</html>")
        elif trouble == "forbidden":
            self.refuse(403, "AccessControlException", "Permission denied: user=bob")
        elif trouble == "no webhdfs":
            self.reply(404, b"It looks like you are making an HTTP request to a Hadoop IPC port.")
        elif trouble == "lost answer":
            self.reply = lambda *_, **__: None  # type: ignore[method-assign]
            self.carry_out(hdfs, operation, path, query, body)
            self.close_connection = True
        elif trouble == "cut short":
            self.reply(200, hdfs.files[path].content[:1], size=len(hdfs.files[path].content))
            self.close_connection = True
        else:
            if trouble == "gateway":
                query.pop("renameoptions", None)
            self.carry_out(hdfs, operation, path, query, body)

    def carry_out(
        self, hdfs: ScriptedHdfs, operation: str, path: str, query: dict[str, str], body: bytes
    ) -> None:
        if operation in ("CREATE", "OPEN"):
            if operation == "OPEN" and path not in hdfs.files:
                self.refuse(404, "FileNotFoundException", f"File {path} not found.")
                return
            self.reply(307, b"", Location=f"{hdfs.endpoint}{self.path}&data=true")
        elif operation == "CREATE DATA":
            with hdfs.lock:
                assert path not in hdfs.files, "overwrite=false"
                hdfs.files[path] = File(body, int(time.time() * 1000), next(hdfs.ids))
            self.reply(201, b"")
        elif operation == "OPEN DATA":
            self.reply(200, hdfs.files[path].content)
        elif operation == "RENAME":
            self.rename(hdfs, path, query)
        elif operation == "DELETE":
            with hdfs.lock:
                gone = [name for name in hdfs.files if name == path or name.startswith(f"{path}/")]
                is_refused = query["recursive"] == "false" and gone not in ([], [path])
                for name in () if is_refused else gone:
                    del hdfs.files[name]
            if is_refused:
                self.refuse(403, "PathIsNotEmptyDirectoryException", f"`{path} is non empty'")
            else:
                self.reply_json({"boolean": bool(gone)})
        elif operation == "GETFILESTATUS":
            file, below = hdfs.files.get(path), hdfs.below(path)
            if file is None and not below:
                self.refuse(404, "FileNotFoundException", f"File does not exist: {path}")
                return
            self.reply_json({"FileStatus": status("", file)})
        elif operation == "LISTSTATUS":
            with hdfs.lock:
                found = hdfs.below(path)
            if not found:
                self.refuse(404, "FileNotFoundException", f"File {path} does not exist.")
                return
            statuses = [status(name, file) for name, file in sorted(found.items())]
            self.reply_json({"FileStatuses": {"FileStatus": statuses}})

    def rename(self, hdfs: ScriptedHdfs, path: str, query: dict[str, str]) -> None:
        options, target = query.get("renameoptions"), query["destination"]
        try:
            if options == "NONE":
                hdfs.claim(path, target)
            done = options == "NONE" or hdfs.rename(path, target, options == "OVERWRITE")
        except FileNotFoundError:
            self.refuse(404, "FileNotFoundException", f"rename source {path} is not found.")
        except FileExistsError:
            self.refuse(403, "FileAlreadyExistsException", f"rename destination {target} already exists")
        else:
            if options:
                self.reply(200, b"")
            else:
                self.reply_json({"boolean": done})

    def refuse(self, code: int, name: str, message: str) -> None:
        self.reply_json({"RemoteException": {"exception": name, "message": message}}, code)

    def reply_json(self, value: Any, code: int = 200) -> None:
        self.reply(code, json.dumps(value).encode())

    def reply(self, code: int, body: bytes, size: int | None = None, **headers: str) -> None:
        self.send_response_only(code)
        self.send_header("Date", formatdate(usegmt=True))
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if size is None else size))
        self.end_headers()
        self.wfile.write(body)


def status(name: str, file: File | None) -> dict[str, Any]:
    kind = "DIRECTORY" if file is None else "FILE"
    size, modified_ms, number = (0, 0, -1) if file is None else (len(file.content), file.modified_ms, file.id)
    return {
        "pathSuffix": name, "type": kind, "length": size, "modificationTime": modified_ms, "fileId": number,
    }  # fmt: skip
