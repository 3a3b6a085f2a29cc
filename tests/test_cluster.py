"""The page on clusters: its command for a standalone cluster, of which a worker is killed half-way."""

import os
import re
import signal
import subprocess
import sysconfig
import time
import venv
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.helpers import REPOSITORY, built_wheel
from tests.object_store import CREDENTIALS, ObjectStore

SCRIPT = REPOSITORY / "tests" / "cluster_script.py"
SPARK_HOME = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"
LOCAL = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


def variables(**more: str) -> dict[str, str]:
    """An environment in which no process finds the checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    own = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    return {**kept, **CREDENTIALS, **own, **more}


@contextmanager
def daemon(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A master or a worker in a session of its own, which its executors are in too."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin/spark-class"), *command],
            env=variables(),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """A worker and its executors, as when a machine dies."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def logged(log: Path, pattern: str) -> str:
    """The first group of what a daemon says, once it does."""
    deadline = time.monotonic() + 300
    while not (found := re.search(pattern, log.read_text())):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return found[1]


def packed_environment(folder: Path) -> None:
    """`environment.tar.gz` and the link of the page; the libraries are those that are installed here."""
    venv.create(folder / "job", with_pip=False)
    packages = folder / "job" / Path(sysconfig.get_path("purelib")).relative_to(sysconfig.get_path("data"))
    with zipfile.ZipFile(built_wheel(folder / "build")) as wheel:
        wheel.extractall(packages)
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    (folder / "environment").symlink_to("job")
    subprocess.run(["tar", "-czf", "environment.tar.gz", "-C", "job", "."], cwd=folder, check=True)


def command_of_the_page(replaced: Mapping[str, str]) -> str:
    page = (REPOSITORY / "docs" / "cluster.md").read_text()
    (command,) = re.findall(r"## A standalone cluster\n\n```sh\n(.*?)```", page, re.DOTALL)
    for written, instead in replaced.items():
        assert command.count(written) == 1, written
        command = command.replace(written, instead)
    return str(command)


@pytest.mark.long
@pytest.mark.minutes
@pytest.mark.spark
def test_a_job_on_a_standalone_cluster_survives_the_death_of_a_worker(
    s3: ObjectStore, tmp_path: Path
) -> None:
    """No process has the checkout on its path, and nothing but the object store is shared."""
    packed_environment(tmp_path)
    with daemon(tmp_path / "master.log", f"{DEPLOY}.master.Master", *LOCAL):
        master = logged(tmp_path / "master.log", r"Starting Spark master at (spark://\S+)")
        works = [tmp_path / "work1", tmp_path / "work2"]
        given = [f"{DEPLOY}.worker.Worker", *LOCAL, "--cores", "1", "--memory", "1g", master, "--work-dir"]
        with (
            daemon(tmp_path / "worker1.log", *given, str(works[0])) as worker,
            daemon(tmp_path / "worker2.log", *given, str(works[1])),
        ):
            logged(tmp_path / "worker1.log", "(Successfully registered)")
            logged(tmp_path / "worker2.log", "(Successfully registered)")
            settings = " ".join(f"--conf {name}={value}" for name, value in SMALL.items())
            command = command_of_the_page(
                {
                    "spark-submit": f"{SPARK_HOME}/bin/spark-submit {settings}",
                    "spark://master:7077": master,
                    "/tmp/upsert-cache": "./cache",  # a folder for each executor, as on machines of their own
                    "job.py": f"{SCRIPT} '{s3.warehouse}' '{tmp_path}/checkpoint' '{tmp_path}/go'",
                }
            )
            job = subprocess.Popen(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=variables(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=(tmp_path / "job.log").open("wb"),
                text=True,
                start_new_session=True,
            )
            assert job.stdout is not None
            try:
                said = []
                for line in job.stdout:
                    said.append(line)
                    if line == "ready\n":
                        kill(worker)
                        (tmp_path / "go").touch()
                assert job.wait() == 0, "".join(said) + (tmp_path / "job.log").read_text()
            finally:
                if job.poll() is None:
                    os.killpg(job.pid, signal.SIGKILL)
    executors = sorted(line.split()[1] for line in said if line.startswith("executor:"))
    assert [any(place.startswith(f"{work}/") for place in executors) for work in works] == [True, True]
    assert all("/environment/lib/" in place for place in executors)
    assert said[-1] == "equal: 997\n"
