"""The daemon that Spark forks Python workers from, with the packages loaded once for all of them.

Spark starts one daemon in each executor, and forks from it a worker for each task that runs at the same
time. Its own daemon loads nothing before the fork. So each worker loads Arrow, pandas and these packages
itself, which takes 0.65 s and 60 MB, and does so again after a minute without tasks. This daemon loads them
before it forks. Spark takes it where ``spark.python.daemon.module`` = ``deltajoin_daemon``, which the command
``deltajoin`` sets for the workers of its own machine; see docs/decisions/0110.

Only a process with one thread can be forked safely, and some libraries start threads when they are loaded.
Where there is a second thread afterwards, or something could not be loaded, this process becomes Spark's own
daemon. Under ``spark.executor.pyspark.memory`` it loads nothing: Spark bounds the addresses of each worker,
and Arrow reserves a gigabyte of them unless there is a bound when it is loaded.

Spark never ends a daemon. A server of Spark Connect starts some nine of them for each session that works
with tables, and they stay when the session has ended. There this one ends when it has had no worker for a
while; see docs/decisions/0114.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

_WORKER: Final = "pyspark.worker"
"""What runs tasks."""
_THREADS: Final = "/proc/self/task"
_ALLOCATOR: Final = "JE_ARROW_MALLOC_CONF"
_BOUND: Final = "PYSPARK_EXECUTOR_MEMORY_MB"
"""What Spark tells workers of ``spark.executor.pyspark.memory``."""
_SESSION: Final = "SPARK_JOB_ARTIFACT_UUID"
"""What Spark tells of whose session the daemon is; in a classic driver it is that of all."""
_ANY: Final = "default"
_IDLE_S: Final = 600
"""Spark ends a worker that had nothing to do for a minute."""


def main(idle_s: int = _IDLE_S) -> None:
    """Load the packages if that leaves this process able to fork, and serve Spark.

    Args:
        idle_s: so many seconds after the last fork, and then as often, the daemon of a session of Spark
            Connect ends if it has no worker.
    """
    # as Spark's daemon does when it serves: Ctrl-C in a terminal is for the driver
    os.setpgid(0, 0)
    runs_tasks = sys.argv[1:] == [_WORKER] and os.path.isdir(_THREADS) and _BOUND not in os.environ
    if runs_tasks and not _is_loaded_with_one_thread():
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    from pyspark.daemon import manager

    if os.environ.get(_SESSION, _ANY) != _ANY:
        _end_without_workers(idle_s)
    manager()


def _is_loaded_with_one_thread() -> bool:
    try:
        _load()
    except Exception:  # whatever it is, Spark tells it where a task needs the module
        return False
    return len(os.listdir(_THREADS)) == 1


def _end_without_workers(idle_s: int) -> None:
    """From now on look after each pause whether this process has a child, and end it if not."""
    daemon = os.getpid()

    def again() -> None:
        if os.getpid() == daemon:  # and not a worker, which inherits what is called here
            signal.alarm(idle_s)

    def look(*_: object) -> None:
        if os.getpid() != daemon:
            return
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # there is none
            os.kill(daemon, signal.SIGTERM)
        else:
            again()

    signal.signal(signal.SIGALRM, look)
    os.register_at_fork(after_in_parent=again)
    again()


def _load() -> None:
    """Load what tasks need, and let workers share it."""
    import gc

    gc.disable()  # nothing that is loaded is given back
    given = os.environ.get(_ALLOCATOR)
    os.environ.setdefault(_ALLOCATOR, "background_thread:false")  # else Arrow starts a thread at once
    from importlib import import_module

    import numpy as np
    import pandas  # noqa: F401 - Arrow loads it when it makes its first array
    import pyarrow as pa

    if given is None:
        del os.environ[_ALLOCATOR]
    pa.array([0])
    for module in ("upsert.managed.tasks", "deltajoin.spark.source", "deltajoin.spark.shuffled", _WORKER):
        import_module(module)
    # each worker's own random numbers: the module random does this by itself
    os.register_at_fork(after_in_child=np.random.seed)
    # the collector of a worker does not write to objects that it shares
    gc.collect()
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    main()
