"""The page on clusters: its command for a standalone cluster, of which a worker is killed half-way."""

import os
import re
import subprocess
import sysconfig
import time
import venv
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bench.cluster.standalone import SPARK_HOME, kill, standalone, variables
from tests.helpers import REPOSITORY, built_wheel
from tests.kubernetes_cluster import kubernetes
from tests.object_store import ObjectStore
from tests.yarn_cluster import yarn_cluster

SCRIPT = REPOSITORY / "tests" / "cluster_script.py"
ON_YARN = {
    "spark.driver.memory": "512m",
    "spark.executor.instances": "2",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
}
ON_KUBERNETES = {
    "spark.driver.memory": "512m",
    "spark.executor.instances": "2",
    "spark.executor.memory": "512m",
    "spark.kubernetes.allocation.batch.delay": "1s",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


def packed_environment(folder: Path) -> None:
    """`environment.tar.gz` and the link of the page; the libraries are those that are installed here."""
    venv.create(folder / "job", with_pip=False)
    packages = folder / "job" / Path(sysconfig.get_path("purelib")).relative_to(sysconfig.get_path("data"))
    with zipfile.ZipFile(built_wheel(folder / "build")) as wheel:
        wheel.extractall(packages)
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    (folder / "environment").symlink_to("job")
    subprocess.run(["tar", "-czf", "environment.tar.gz", "-C", "job", "."], cwd=folder, check=True)


def command_of_the_page(section: str, replaced: Mapping[str, str]) -> str:
    page = (REPOSITORY / "docs" / "cluster.md").read_text(encoding="utf-8")
    of_section = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    (command,) = re.findall(r"```sh\n(.*?)```", of_section, re.DOTALL)
    for written, instead in replaced.items():
        assert command.count(written) == 1, written
        command = command.replace(written, instead)
    return str(command)


@contextmanager
def submitted(folder: Path, command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that submits a job and waits for it, with its output in `job.log`."""
    with (folder / "job.log").open("wb") as log:
        job = subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=variables(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield job
    finally:
        kill(job)


def said_ready(job: subprocess.Popen[bytes], output: Callable[[], str]) -> bool:
    """Wait until the driver of a job says that it is ready; False if the job ends before."""
    while job.poll() is None and "ready\n" not in output():
        time.sleep(0.2)
    return job.poll() is None


@pytest.mark.long
@pytest.mark.minutes
@pytest.mark.spark
def test_a_job_on_a_standalone_cluster_survives_the_death_of_a_worker(
    s3: ObjectStore, tmp_path: Path
) -> None:
    """No process has the checkout on its path, and nothing but the object store is shared."""
    packed_environment(tmp_path)
    with standalone(tmp_path, workers=2) as cluster:
        settings = " ".join(f"--conf {name}={value}" for name, value in SMALL.items())
        command = command_of_the_page(
            "A standalone cluster",
            {
                "spark-submit": f"{SPARK_HOME}/bin/spark-submit {settings}",
                "spark://master:7077": cluster.master,
                "/tmp/upsert-cache": "./cache",  # a folder for each executor, as on machines of their own
                "job.py": f"{SCRIPT} '{s3.warehouse}' '{tmp_path}/checkpoint' '{tmp_path}/go'",
            },
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
                    kill(cluster.workers[0])
                    (tmp_path / "go").touch()
            assert job.wait() == 0, "".join(said) + (tmp_path / "job.log").read_text(encoding="utf-8")
        finally:
            kill(job)
    executors = sorted(line.split()[1] for line in said if line.startswith("executor:"))
    assert [any(place.startswith(f"{work}/") for place in executors) for work in cluster.folders] == [
        True,
        True,
    ]
    assert all("/environment/lib/" in place for place in executors)
    assert said[-1] == "equal: 100997\n"


@pytest.mark.long
@pytest.mark.minutes
@pytest.mark.spark
def test_a_job_on_yarn_survives_the_death_of_an_executor(s3: ObjectStore, tmp_path: Path) -> None:
    """Driver and executors have the packages from the archive alone, in containers."""
    packed_environment(tmp_path)
    with yarn_cluster(tmp_path) as yarn:
        given = {**ON_YARN, "spark.yarn.stagingDir": f"{tmp_path}/staging"}
        settings = " ".join(f"--conf {name}={value}" for name, value in given.items())
        command = command_of_the_page(
            "YARN",
            {
                "spark-submit": f"{SPARK_HOME}/bin/spark-submit {settings}",
                "/etc/hadoop/conf": str(yarn.configuration),
                "memoryOverhead=2g": "memoryOverhead=1g",
                "/tmp/upsert-cache": "./cache",
                "job.py": f"{SCRIPT} '{s3.warehouse}' '{tmp_path}/checkpoint' '{tmp_path}/go'",
            },
        )
        with submitted(tmp_path, command) as job:
            if said_ready(job, yarn.output):
                yarn.kill_an_executor()
            (tmp_path / "go").touch()
            assert job.wait() == 0, (tmp_path / "job.log").read_text(encoding="utf-8")[-3000:] + yarn.errors()
        said = yarn.output().splitlines()
    executors = [line.split()[1] for line in said if line.startswith("executor:")]
    assert len(executors) == 2
    assert all("/container_" in place and "/environment/lib/" in place for place in executors)
    assert said[-1] == "equal: 100997"


@pytest.mark.long
@pytest.mark.minutes
@pytest.mark.spark
def test_a_job_on_kubernetes_survives_the_death_of_an_executor(s3: ObjectStore, tmp_path: Path) -> None:
    """Driver and executors are pods of an image with the packages; each has a cache of its own."""
    packed_environment(tmp_path)
    pods, cache = tmp_path / "pods", tmp_path / "cache"
    pods.mkdir()
    cache.mkdir()
    image = variables(PATH=f"{tmp_path}/job/bin:{os.environ['PATH']}")
    keys = {"id": image.pop("AWS_ACCESS_KEY_ID"), "secret": image.pop("AWS_SECRET_ACCESS_KEY")}
    with kubernetes(pods, {"store": keys}, image) as cluster:
        given = {**ON_KUBERNETES, "spark.kubernetes.driver.master": cluster.address}
        settings = " ".join(f"--conf {name}={value}" for name, value in given.items())
        command = command_of_the_page(
            "Kubernetes",
            {
                "spark-submit": f"{SPARK_HOME}/bin/spark-submit {settings}",
                "https://cluster:6443": cluster.address,
                "driver.volumes.emptyDir.cache.mount.path=/cache": (
                    f"driver.volumes.emptyDir.cache.mount.path={cache}"
                ),
                "executor.volumes.emptyDir.cache.mount.path=/cache": (
                    f"executor.volumes.emptyDir.cache.mount.path={cache}"
                ),
                # tasks get it from the driver, which knows no pod's own folder: each begins in its own
                "UPSERT_CACHE_FOLDER=/cache": "UPSERT_CACHE_FOLDER=cache",
                "/opt/job.py": f"{SCRIPT} '{s3.warehouse}' '{tmp_path}/checkpoint' '{tmp_path}/go'",
            },
        )
        driver = partial(cluster.output, "driver")
        with submitted(tmp_path, command) as job:
            if said_ready(job, driver):
                cluster.kill(cluster.pods("executor")[0])
            while job.poll() is None and len(cluster.pods("executor")) < 3:
                time.sleep(0.2)
            (tmp_path / "go").touch()
            assert job.wait() == 0, (tmp_path / "job.log").read_text(encoding="utf-8")[-3000:] + driver()[
                -3000:
            ]
        said = driver().splitlines()
    assert said[-1] == "equal: 100997", "\n".join(said[-60:])
    executors = [line.split()[1] for line in said if line.startswith("executor:")]
    assert all(place.startswith(f"{tmp_path}/job/lib/") for place in executors)
    assert any((pods / pod / "cache" / "upsert").exists() for pod in cluster.pods("executor"))
