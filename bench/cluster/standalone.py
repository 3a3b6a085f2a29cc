"""A Spark standalone cluster and an S3 server that counts, as processes of this machine.

Each worker is a machine of the cluster: it has one core, one executor at a time, and a working folder in
which its executors find the local cache, unless all are to share one. The server, which is
``python -m bench.cluster.standalone PORT``, is moto: it answers one request at a time, in memory.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark

from tests.object_store import BUCKET, CREDENTIALS, ObjectStore, serve

SPARK_HOME: Final = Path(pyspark.__file__).parent
_DEPLOY: Final = "org.apache.spark.deploy"
_LOCAL: Final = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
_COUNTS: Final = "/-/counts"
_START_S: Final = 300.0


def variables(**more: str) -> dict[str, str]:
    """An environment in which no process finds the checkout, unless it is told."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    own = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    return {**kept, **CREDENTIALS, **own, **more}


@contextmanager
def daemon(log: Path, *command: str, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, in which its children are too."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=env, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[Any]) -> None:
    """A process and its children, as when a machine dies."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def logged(log: Path, pattern: str) -> str:
    """The first group of what a daemon says, once it does."""
    deadline = time.monotonic() + _START_S
    while not (found := re.search(pattern, log.read_text())):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return found[1]


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    Attributes:
        master: its address.
        workers: their processes; the executors are children of them.
        folders: where each worker's executors work.
    """

    master: str
    workers: tuple[subprocess.Popen[bytes], ...]
    folders: tuple[Path, ...]

    def executors(self, worker: int) -> list[int]:
        """The ids of the processes that are executors of a worker: none while one starts."""
        children = Path(f"/proc/{self.workers[worker].pid}/task").glob("*/children")
        ids = (int(id) for text in (path.read_text() for path in children) for id in text.split())
        return [
            id for id in ids if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{id}/cmdline").read_bytes()
        ]

    def kill_executor(self, worker: int) -> None:
        """Kill the executor of a worker, which starts another one; its Python processes end with it."""
        for id in self.executors(worker):
            os.kill(id, signal.SIGKILL)


@contextmanager
def standalone(folder: Path, workers: int, memory: str = "1g") -> Iterator[Cluster]:
    """A master and workers with one core each, for the length of the block."""
    spark_class = str(SPARK_HOME / "bin/spark-class")
    with ExitStack() as stack:
        log = folder / "master.log"
        stack.enter_context(daemon(log, spark_class, f"{_DEPLOY}.master.Master", *_LOCAL, env=variables()))
        master = logged(log, r"Starting Spark master at (spark://\S+)")
        given = [spark_class, f"{_DEPLOY}.worker.Worker", *_LOCAL, "--cores", "1", "--memory", memory, master]
        folders = tuple(folder / f"work{number}" for number in range(1, workers + 1))
        logs = [folder / f"worker{number}.log" for number in range(1, workers + 1)]
        started = [
            stack.enter_context(daemon(log, *given, "--work-dir", str(work), env=variables()))
            for log, work in zip(logs, folders, strict=True)
        ]
        for log in logs:
            logged(log, "(Successfully registered)")
        yield Cluster(master, tuple(started), folders)


@dataclass(frozen=True)
class CountedStore:
    """A running S3 server that counts what each kind of process asks of it."""

    endpoint: str

    @property
    def warehouse(self) -> str:
        """The path of a warehouse that nobody else uses."""
        return ObjectStore("s3", self.endpoint).warehouse

    def counts(self) -> Counter[str]:
        """So far, by ``driver`` or ``executor``: gets, puts, lists, deletes, bytes given and taken."""
        with urllib.request.urlopen(self.endpoint + _COUNTS, timeout=60) as answer:
            return Counter(json.load(answer))


@contextmanager
def counted_store(folder: Path) -> Iterator[CountedStore]:
    """A server for the length of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "bench.cluster.standalone", str(port)]
    with daemon(folder / "store.log", *command, env={**os.environ, **CREDENTIALS}) as process:
        store = ObjectStore("s3", f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + _START_S
        while True:
            try:
                store.make_bucket(BUCKET)
                break
            except OSError as cause:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit((folder / "store.log").read_text()) from cause
                time.sleep(0.05)
        yield CountedStore(store.endpoint)


def driver_says_so(folder: Path) -> dict[str, str]:
    """Variables by which the processes of a driver that begins in this folder say that they are its.

    Python processes beside the driver get ``spark.executorEnv`` too: what tells them apart is where they are,
    so the id is in a file that is only there.
    """
    (folder / "aws").write_text("[default]\nsdk_ua_app_id = driver\n")
    return {"AWS_CONFIG_FILE": "aws"}


Application = Callable[[Mapping[str, Any], Callable[..., Any]], Iterable[bytes]]


def counted(application: Application) -> Application:
    """A server that counts by who asks: the driver's processes say an app id, see ``driver_says_so``."""
    counts: Counter[str] = Counter()
    lock = threading.Lock()

    def answer(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == _COUNTS:
            start_response("200 OK", [("Content-Type", "application/json")])
            with lock:
                return [json.dumps(counts).encode()]
        found = re.search(r"app/(\w+)", environ.get("HTTP_USER_AGENT", ""))
        asking = found[1] if found else "executor"
        method = environ["REQUEST_METHOD"]
        is_list = method == "GET" and "prefix=" in environ.get("QUERY_STRING", "")
        kind = {"GET": "gets", "HEAD": "gets", "DELETE": "deletes", "POST": "deletes"}.get(method, "puts")
        content = list(application(environ, start_response))
        with lock:
            counts[f"{asking} {'lists' if is_list else kind}"] += 1
            counts[f"{asking} bytes given"] += sum(map(len, content)) if method == "GET" else 0
            counts[f"{asking} bytes taken"] += int(environ.get("CONTENT_LENGTH") or 0)
        return content

    return answer


if __name__ == "__main__":
    serve(int(sys.argv[1]), counted)
