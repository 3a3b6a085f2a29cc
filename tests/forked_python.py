"""The Python processes of Spark, forked from one that has imported what they need.

Spark starts an interpreter for each source of each streaming query, and workers that know nothing but
PySpark. Each imports Arrow, NumPy and the format before it does anything: half a second of processor time,
some hundred times in a run of all tests. Spark takes `launcher` for Python; whatever else it starts is run
by the interpreter. So are processes that tests start, but for those of `forked_program`.

The process that forks is `python -m tests.forked_python SOCKET`. The launcher, which Spark waits for and may
kill, hands its arguments, its environment and its standard streams over; the forked process ends with it.
"""

import atexit
import gc
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path

import pyspark

SOURCE, DAEMON = "pyspark.sql.streaming.python_streaming_source_runner", "pyspark.daemon"
OF_CONNECT = "pyspark.sql.connect.streaming.worker."
"""The modules that a server of Spark Connect runs for foreachBatch and for listeners of queries."""
PYSPARK = str(Path(pyspark.__file__).parent)
"""Spark puts its zip and a jar from below it on the path, whose directories each process would read."""
IMPORTED = (
    "encodings.idna",
    "pandas",
    "pyspark.sql.worker.plan_data_source_read",
    "upsert.managed.datasource",
    "upsert.kafka.source",
    "upsert.views.steps",
    "deltajoin.spark.source",
    "deltajoin.aggregate.source",
)

ASK = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
arguments = [argument.encode() for argument in sys.argv[2:]]
pairs = [name + b"=" + value for name, value in os.environb.items()]
given = b"\\0".join([b"%d" % len(arguments), *arguments, *pairs])
socket.send_fds(server, [len(given).to_bytes(8, "big")], [0, 1, 2])
server.sendall(given)
end = server.recv(1)
if not end:
    os.kill(os.getpid(), 9)  # as that process was
os._exit(end[0])
"""


@cache
def forked_python() -> str:
    """The path of a launcher that ends with this process."""
    until_end = ExitStack()
    atexit.register(until_end.close)
    folder = until_end.enter_context(tempfile.TemporaryDirectory(prefix="forked-python-"))
    return until_end.enter_context(launcher(Path(folder)))


def forked_program(*arguments: object) -> list[str]:
    """A command that runs a module, or with ``-c`` a text, in a process that is forked; it is killed alike.

    For one that a test kills by a failpoint: who kills the command itself ends the process by SIGTERM.
    """
    return [forked_python(), "--forked", *map(str, arguments)]


@contextmanager
def launcher(folder: Path) -> Iterator[str]:
    """The path of a program that Spark may start in place of this interpreter."""
    address, ask, program = folder / "forks", folder / "ask.py", folder / "python"
    ask.write_text(ASK)
    program.write_text(
        f'#!/bin/sh\nask="{ask}" address="{address}" python="{sys.executable}"\ncase "$1 $2" in\n'
        f'"-m {SOURCE}" | "-m {DAEMON}" | "-m {OF_CONNECT}"* | "--forked "*) shift\n'
        'exec "$python" -IS "$ask" "$address" "$@" ;;\n'
        '*) exec "$python" "$@" ;;\nesac\n'
    )
    program.chmod(0o755)
    command = [sys.executable, "-m", __name__, str(address)]
    variables = {**os.environ, "PYTHONHASHSEED": "0"}  # as Spark has it in all of its Python processes
    with subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == b"ready\n"
            yield str(program)
        finally:
            server.stdin.close()


def serve(address: str) -> None:
    """Fork for each launcher that asks, until standard input ends."""
    for name in IMPORTED:
        import_module(name)
    with suppress(ImportError):  # where the packages of Spark Connect are not installed, nothing asks for it
        import_module(f"{OF_CONNECT}foreach_batch_worker")
    gc.freeze()  # Spark collects garbage after each task, which looks at all that is imported
    os.fsync = lambda _: None  # as in the tests' own process, see conftest.py
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the launcher waits for what is forked, not this process
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listener.accept()
            with connection:
                if not os.fork():
                    listener.close()
                    _become(connection)


def _become(connection: socket.socket) -> None:
    """Run a module, or a text, as the launcher would have done; does not return."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        size, streams, _, _ = socket.recv_fds(connection, 8, 3)
        given = connection.makefile("rb").read(int.from_bytes(size, "big"))
        for number, handed in enumerate(streams):
            os.dup2(handed, number)
            os.close(handed)
        os.environb.clear()
        count, *texts = given.split(b"\0")
        os.environb.update(pair.split(b"=", 1) for pair in texts[int(count) :])
        sys.argv = [text.decode() for text in texts[: int(count)]]
        paths = (path for path in os.environ.get("PYTHONPATH", "").split(":") if path not in sys.path)
        sys.path[:0] = [path for path in paths if not Path(path).is_relative_to(PYSPARK)]
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        if sys.argv[0] == "-c":
            exec(compile(sys.argv.pop(1), "-c", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # Spark's daemon has closed them
                stream.flush()
        with suppress(OSError):
            connection.send(bytes([code & 0xFF]))
        os._exit(code)


def _end_with(connection: socket.socket) -> None:
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    serve(sys.argv[1])
