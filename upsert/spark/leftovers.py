"""What Spark and py4j leave of each streaming query that has ended, and its removal when another one starts.

A source in Python has a process of its own, and what starts it gets a thread of the JVM that ends idle
processes: `PythonWorkerFactory` with its `MonitorThread`. The process ends with the query, the thread never,
though it has nothing to do where no process is kept for others. It holds the session of its query with all
that was planned there.

The thread of a query that calls a function in Python has a connection for that, at whose other end a thread
of Python waits for calls. py4j keeps the connections of threads that have ended.

Who starts a query each minute would have 1,440 more of both a day. See docs/decisions/0112.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from py4j.clientserver import ClientServer
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError

from upsert.spark.java import java_of, object_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MONITOR: Final = "Idle Worker Monitor for "
_FACTORY: Final = "org$apache$spark$api$python$PythonWorkerFactory$MonitorThread$$$outer"

_callers: Final[dict[int, Any]] = {}
"""Threads of the JVM that have called a function in Python, by the port of their connection."""
_this_thread: Final = threading.local()


def remove_leftovers(spark: SparkSession) -> None:
    """End the threads and connections that ended queries of this process have left, one call at a time.

    They stay in a Spark that has other names for them: no query may fail for that.

    >>> remove_leftovers(spark)
    """
    with suppress(Py4JError, TypeError):  # what is no class is a package, which cannot be called
        for monitor in useless_monitors(spark):
            monitor.setUncaughtExceptionHandler(_silence(spark))  # it ends with an InterruptedException
            monitor.interrupt()
        ended = [port for port, caller in [*_callers.items()] if not caller.isAlive()]
        if ended:
            _close(spark, ended)


def note_caller(spark: SparkSession) -> None:
    """Say in a function that the JVM has called which thread of the JVM it is, so that its end is noticed."""
    gateway = _gateway(spark)
    if hasattr(_this_thread, "is_noted") or not isinstance(gateway, ClientServer):
        return
    _this_thread.is_noted = True
    connection = gateway._gateway_client.get_thread_connection()
    _callers[connection.socket.getpeername()[1]] = java_of(spark).java.lang.Thread.currentThread()


def useless_monitors(spark: SparkSession) -> list[Any]:
    """The threads that end idle processes where none is ever kept; also those of queries that run."""
    java = java_of(spark)
    # sources that Spark finds by itself run the driver's Python, which may be another one than the workers'
    of_sources = object_of(java.org.apache.spark.api.python, "PythonUtils").defaultPythonExec()
    found: list[Any] = []
    for program in {spark.sparkContext.pythonExec, of_sources}:
        named = java.org.apache.commons.lang3.ThreadUtils.findThreadsByName(f"{_MONITOR}{program}")
        found += named.toArray()
    return [one for one in found if not getattr(one, _FACTORY)().useDaemonEnabled()]


def _silence(spark: SparkSession) -> Any:
    """A handler of exceptions that does nothing."""
    java, gateway = java_of(spark).java.lang, _gateway(spark)
    types = gateway.new_array(gateway.jvm.java.lang.Class, 2)
    types[0], types[1] = java.Class.forName("java.lang.Thread"), java.Class.forName("java.lang.Throwable")
    nothing = java.invoke.MethodHandles.empty(java.invoke.MethodType.methodType(java.Void.TYPE, types))
    handler = java.Class.forName("java.lang.Thread$UncaughtExceptionHandler")
    return java.invoke.MethodHandleProxies.asInterfaceInstance(handler, nothing)


def _close(spark: SparkSession, ports: list[int]) -> None:
    """Close the connections to Python of these ports, whose threads have ended."""
    client = JavaObject("GATEWAY_SERVER", _gateway(spark)._gateway_client).getCallbackClient()
    lock, connections = (_field(spark, client, name) for name in ("lock", "connections"))
    lock.lock()
    try:
        idle = [*connections.toArray()]
        left = [one for one in idle if one.getSocket().getLocalPort() in ports]
        for one in left:
            connections.remove(one)
    finally:
        lock.unlock()
    for one in left:
        one.shutdown()
    for port in ports:
        _callers.pop(port, None)


def _gateway(spark: SparkSession) -> Any:
    return spark.sparkContext._gateway


def _field(spark: SparkSession, client: Any, name: str) -> Any:
    found = java_of(spark).java.lang.Class.forName("py4j.CallbackClient").getDeclaredField(name)
    found.setAccessible(True)
    return found.get(client)
