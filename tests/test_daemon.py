"""Workers that are forked from a process that has loaded the packages, see ``deltajoin_daemon``."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers import run_spark_script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Spark's own daemon runs")

ASK = """
import json
from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession


def told(batches):
    import os
    import sys

    loaded = {"upsert.managed.tasks", "deltajoin.spark.source", "pandas"} <= sys.modules.keys()

    import numpy as np
    import pyarrow as pa

    BarrierTaskContext.get().barrier()  # the tasks run at the same time, so in processes of their own
    for _ in batches:
        pass
    yield pa.record_batch({
        "loaded": [loaded],
        "random": [np.random.random()],
        "allocator": [os.environ.get("JE_ARROW_MALLOC_CONF")],
    })


spark = SparkSession.builder.config("spark.python.daemon.module", "deltajoin_daemon").getOrCreate()
types = "loaded BOOLEAN, random DOUBLE, allocator STRING"
rows = spark.range(0, 2, 1, 2).mapInArrow(told, types, barrier=True).collect()
print(json.dumps([row.asDict() for row in rows]))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.spark
def test_workers_begin_with_the_packages_and_have_random_numbers_of_their_own(tmp_path: Path) -> None:
    script = tmp_path / "ask.py"
    script.write_text(ASK, encoding="utf-8")
    one, other = json.loads(run_spark_script(script, forked=False).splitlines()[-1])
    assert one["loaded"]
    assert other["loaded"]
    assert one["random"] != other["random"]
    assert one["allocator"] is None  # what a task starts has Arrow's own setting


BOUNDED = """
from pyspark.sql import SparkSession


def with_much(batches):
    held = bytearray(32 << 20)
    yield from batches


builder = SparkSession.builder.config("spark.python.daemon.module", "deltajoin_daemon")
spark = builder.config("spark.executor.pyspark.memory", "1g").getOrCreate()
print(spark.range(0, 2, 1, 2).mapInArrow(with_much, "id BIGINT").count())
spark.stop()
"""


@pytest.mark.long
@pytest.mark.spark
def test_workers_whose_memory_is_bounded_have_all_of_it(tmp_path: Path) -> None:
    """The bound is of addresses, also of those that Arrow has reserved and never uses."""
    script = tmp_path / "bounded.py"
    script.write_text(BOUNDED, encoding="utf-8")
    assert run_spark_script(script, forked=False).splitlines()[-1] == "2"


@contextmanager
def _daemon(worker: str, **variables: str) -> Iterator[Path]:
    """What Linux tells of a daemon that can be connected to; it ends when its input does."""
    command = [sys.executable, "-m", "deltajoin_daemon", worker]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}  # Spark says so for tasks of one core
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        try:
            assert int.from_bytes(daemon.stdout.read(4), "big") > 0
            yield Path(f"/proc/{daemon.pid}")
        finally:
            daemon.stdin.close()


def test_a_daemon_that_has_loaded_the_packages_has_one_thread_and_a_group_of_its_own() -> None:
    with _daemon("pyspark.worker") as daemon:
        assert [each.name for each in (daemon / "task").iterdir()] == [daemon.name]
        assert "libarrow" in (daemon / "maps").read_text()
        assert os.getpgid(int(daemon.name)) == int(daemon.name)


def test_where_loading_starts_a_thread_sparks_own_daemon_forks() -> None:
    with _daemon("pyspark.worker", JE_ARROW_MALLOC_CONF="background_thread:true") as daemon:
        assert b"pyspark.daemon" in (daemon / "cmdline").read_bytes()
        assert "libarrow" not in (daemon / "maps").read_text()


@pytest.mark.parametrize("error", ["ImportError", "ValueError", "AttributeError"])
def test_where_a_package_cannot_be_loaded_sparks_own_daemon_forks(tmp_path: Path, error: str) -> None:
    # a ValueError is NumPy's, where a package was built for another version of it
    (tmp_path / "xxhash.py").write_text(f"raise {error}('broken')", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with _daemon("pyspark.worker", PYTHONPATH=path) as daemon:
        assert b"pyspark.daemon" in (daemon / "cmdline").read_bytes()


def test_a_daemon_of_processes_that_run_no_tasks_loads_nothing() -> None:
    with _daemon("pyspark.sql.worker.plan_data_source_read") as daemon:
        assert "libarrow" not in (daemon / "maps").read_text()


LOOKING_EACH_SECOND = "import deltajoin_daemon; deltajoin_daemon.main(idle_s=1)"


@contextmanager
def _of_session(session: str) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], socket.socket]]]:
    """The daemon of a session, and what lets it fork a worker, which ends with the connection to it."""
    command = [sys.executable, "-c", LOOKING_EACH_SECOND, "pyspark.sql.worker.create_data_source"]
    environment = {**os.environ, "SPARK_JOB_ARTIFACT_UUID": session}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        port = int.from_bytes(daemon.stdout.read(4), "big")

        def worker() -> socket.socket:
            connection = socket.create_connection(("127.0.0.1", port))
            assert int.from_bytes(connection.recv(4), "big") > 0  # its process
            return connection

        try:
            yield daemon, worker
        finally:
            daemon.stdin.close()


def test_the_daemon_of_a_session_of_spark_connect_ends_when_it_has_no_worker() -> None:
    """Each session has daemons of its own there, which Spark never ends."""
    with _of_session("5ac5e5ef-6f0b-4a4c-8a0e-6f4a1f9a7b1c") as (daemon, worker):
        with worker():
            os.kill(daemon.pid, signal.SIGALRM)
            worker().close()  # it has looked, and forks on
        assert daemon.wait(60) == 1  # as where Spark ends it


def test_the_daemon_of_a_classic_driver_does_not_look() -> None:
    with _of_session("default") as (daemon, worker):
        worker().close()
        (caught,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{daemon.pid}/status").read_text())
        assert not int(caught, 16) >> (signal.SIGALRM - 1) & 1
