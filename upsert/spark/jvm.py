"""The start of the JVM in which Spark runs, and what it writes to the standard error stream."""

from __future__ import annotations

import locale
import logging
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from shutil import rmtree
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import gettempdir, mkdtemp
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, cast

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.accumulators import AccumulatorTCPServer
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from upsert.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark import SparkConf

_OF_EACH_START: Final = (
    b"WARNING: Using incubator modules",
    b"WARNING: package sun.security.action not in java.base",  # from Java 24 on
)
"""What Java says of the modules and packages that Spark asks for; it concerns no user."""
_OF_A_FAILURE: Final = re.compile(rb"Exception in thread|Caused by|\s+at |Error|Invalid |Unrecognized ")
_REASON_FOLLOWS: Final = b"Error occurred during initialization of "
_NO_MODULE: Final = re.compile(r"Module \S+ not found")
"""Spark asks for `jdk.incubator.vector`, which a Java that was made small for another program lacks."""
_CALLS_OF_JAVA: Final = "py4j.clientserver"
"""The log of what functions of Python raise that Java calls, such as those of micro-batches."""
_NO_ANSWER: Final = re.compile(r"An error occurred while calling \S+")
"""What py4j says of a call whose connection has ended."""
_LOOK_S: Final = 0.02
"""Between two looks whether the JVM has started."""
_CLASS: Final = re.compile(r'(?:Exception in thread "main" )?(?:\w+\.)+[\w$]+: ')


class _Messages:
    """Passes the lines of a process on; those of a failure wait until it is known whether it has started."""

    def __init__(self) -> None:
        self._begin, self.end = os.pipe()
        self._waiting: list[bytes] = []
        self._has_started = False
        self._thread = Thread(target=self._read, name="messages of the JVM", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with open(self._begin, "rb") as lines:
            for line in lines:
                if line.startswith(_OF_EACH_START):
                    continue
                is_reason = bool(self._waiting) and self._waiting[-1].startswith(_REASON_FOLLOWS)
                if not self._has_started and (is_reason or _OF_A_FAILURE.match(line)):
                    self._waiting.append(line)
                else:
                    _write(line)

    def pass_on(self) -> None:
        self._has_started = True
        for line in self._waiting:
            _write(line)

    def failure(self) -> str:
        """What a process that has ended says first of its failure."""
        self._thread.join()
        reasons = (line for line in self._waiting if not line.startswith(_REASON_FOLLOWS))
        first = next(reasons, b"no message")
        return _CLASS.sub("", first.decode(errors="replace").strip(), count=1)


class StartingJvm:
    """The JVM of this process while it starts, which takes some seconds; its messages are passed on.

    Java has no setting for its warnings, and where messages go can be said only where a process is started.
    """

    def __init__(self, conf: SparkConf) -> None:
        """Start it with some settings, as PySpark does."""
        given = [part for key, value in conf.getAll() for part in ("--conf", f"{key}={value}")]
        own = _submit_arguments()
        self._messages = _Messages()
        self._folder = _temporary_folder()
        self._told = os.path.join(self._folder, "connection")
        try:
            self._process = Popen(
                [os.path.join(_find_spark_home(), "bin", "spark-submit"), *given, *own],
                stdin=PIPE,  # where this process ends it has an end
                stdout=self._messages.end,  # else who reads what this process prints would wait for its end
                stderr=self._messages.end,
                env={**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": self._told},
                preexec_fn=_ignore_interrupts,
            )
        except OSError:
            os.rmdir(self._folder)
            raise
        finally:
            os.close(self._messages.end)

    def connect(self, go_on: Callable[[], object]) -> None:
        """Wait until it has started, and make it PySpark's.

        What ``go_on`` raises, which is called meanwhile, ends the wait; the JVM goes on to start.

        Raises:
            ConfigurationError: it ended, mostly because of a setting.
        """
        while self._process.poll() is None and not os.path.isfile(self._told):
            go_on()
            time.sleep(_LOOK_S)
        try:
            with open(self._told, "rb") as told:
                port, length = (int.from_bytes(told.read(4)) for _ in "12")
                secret = told.read(length).decode()
        except FileNotFoundError as cause:
            reason = self._messages.failure()
            other = "set JAVA_HOME to a Java that has it, or " if _NO_MODULE.match(reason) else ""
            raise ConfigurationError(
                f"Spark's JVM must start, it ended with {reason!r}; {other}correct the settings that you "
                "give, or those of PYSPARK_SUBMIT_ARGS and spark-defaults.conf"
            ) from cause
        finally:
            rmtree(self._folder, ignore_errors=True)
        self._messages.pass_on()
        with _environment({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        gateway.proc = self._process
        SparkContext._ensure_initialized(gateway=gateway)

    def end(self) -> None:
        """End it at once; for one that nothing has connected to.

        It has loaded too few classes to keep them, as one does that ends by itself.
        """
        self._process.kill()
        self._process.communicate()
        rmtree(self._folder, ignore_errors=True)


def begun_jvm(conf: SparkConf) -> StartingJvm | None:
    """The JVM of this process, which starts now; None if there is one, or another process has started it."""
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return None
    return StartingJvm(conf)


def _submit_arguments() -> list[str]:
    """What the user says of the start of the JVM, as a shell reads it."""
    text = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    try:
        return shlex.split(text)
    except ValueError as cause:
        raise ConfigurationError(
            f"PYSPARK_SUBMIT_ARGS must be options as in a shell, got {text!r}, with a quote that is not "
            "closed; close it"
        ) from cause


def initialize_beside(name: str) -> None:
    """Let a thread of the JVM initialize a class, if it has it; other threads wait where they need it."""
    SparkContext._ensure_initialized()  # to the JVM of `spark-submit` nothing has connected so far

    def initialize() -> None:
        with suppress(Py4JError):
            cast("Any", SparkContext._jvm).java.lang.Class.forName(name)

    Thread(target=initialize, daemon=True).start()


def _temporary_folder() -> str:
    """A folder in which the JVM tells that it has started; one that it cannot name would stay empty."""
    encoding = "utf-8" if sys.platform == "darwin" else locale.getencoding()
    if not can_name(found := gettempdir(), encoding):
        raise ConfigurationError(
            f"the folder of temporary files {found!r}: must have a name that Java can have in the locale, "
            f"whose letters are {encoding!r}; set LC_ALL to C.UTF-8, or TMPDIR to another folder"
        )
    return mkdtemp()


def can_name(path: str, encoding: str) -> bool:
    """Whether a JVM can have a path; for letters that the encoding of its locale lacks it has a ``?``.

    >>> can_name("/data/tea", "ANSI_X3.4-1968"), can_name("/data/thé", "ANSI_X3.4-1968")
    (True, False)
    """
    try:
        return path.isascii() or bool(path.encode(encoding))
    except UnicodeEncodeError:
        return False
    except LookupError:  # an encoding that Java alone has
        return True


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for this process alone


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """Let the environment of this process have some more variables for a while."""
    os.environ.update(more)
    try:
        yield
    finally:
        for name in more:
            del os.environ[name]


def ends(patience_s: float = 5.0) -> bool:
    """Whether the JVM that this process has started has ended, or does so within some seconds.

    It answers no call from the moment on when a signal has reached it.
    """
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(patience_s)
    except TimeoutExpired:
        return False
    return True


@contextmanager
def unless_it_ends() -> Iterator[None]:
    """Around what has no effect any more where the JVM has ended, such as stopping its queries."""
    try:
        yield
    except Exception:
        if not ends():
            raise


def quiet_when_it_ends(context: SparkContext) -> None:
    """Let the end of the JVM be told by what needs it alone.

    PySpark's server for accumulators prints a trace of Python for a connection that the JVM has left, and
    py4j one for a call without an answer, which fails as well.
    """
    for name in (None, _CALLS_OF_JAVA):
        logging.getLogger(name).addFilter(is_no_lost_call)
    server = context._accumulatorServer
    told = server.handle_error

    def tell(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            told(request, client_address)

    server.handle_error = tell  # type: ignore[method-assign]


def stop_without_a_wait(context: SparkContext) -> None:
    """Let `SparkContext.stop` not wait for PySpark's server for accumulators, for a process that ends then.

    The server looks once a second whether it is to end, and has nothing to do that the JVM waits for. One
    that has a file for its socket deletes it when it ends.
    """
    server = context._accumulatorServer
    if not isinstance(server, AccumulatorTCPServer):
        return
    end = server.shutdown
    server.shutdown = lambda: Thread(target=end, daemon=True).start()  # type: ignore[method-assign]


def is_no_lost_call(record: logging.LogRecord) -> bool:
    """Whether a record of a log is about more than a call that the JVM did not answer; a filter of py4j's."""
    failure = None if record.exc_info is None else record.exc_info[1]
    # in a micro-batch it is an error of the call, without what Java says
    is_empty = type(failure) is Py4JError and _NO_ANSWER.fullmatch(str(failure)) is not None
    return not (is_empty or isinstance(failure, Py4JNetworkError))


def _write(line: bytes) -> None:
    with suppress(OSError):  # no reader is left
        os.write(2, line)
