"""A real HDFS for `make test-long`: Hadoop's own mini cluster, one name node and one data node.

Its jars come from Maven Central by the Ivy inside pyspark, 106 MB, once. It ends with the process that
started it, also when that is killed.
"""

import getpass
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyspark

from tests.helpers import fetched_once
from upsert.testing import watchdog
from upsert.testing.local_kafka import free_ports, java

HADOOP_VERSION: Final = "3.5.0"
"""That of pyspark."""
START_SECONDS: Final = 180.0
_JARS: Final = {
    ("org.apache.hadoop", "hadoop-client-minicluster"): HADOOP_VERSION,
    ("org.junit.jupiter", "junit-jupiter-api"): "5.13.4",
    ("org.slf4j", "slf4j-simple"): "1.7.36",
}
_JVM: Final = ("-Xmx384m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


@dataclass(frozen=True)
class Hdfs:
    """A running cluster."""

    endpoint: str

    def folder(self, endpoint: str | None = None) -> str:
        """A table path that nobody else uses."""
        return f"hdfs://localhost:8020/tests/{uuid4().hex}/orders?endpoint={endpoint or self.endpoint}"

    @property
    def warehouse(self) -> str:
        """The path of a warehouse that nobody else uses."""
        return f"hdfs://localhost:8020/tests/{uuid4().hex}?endpoint={self.endpoint}"


@contextmanager
def hdfs_cluster() -> Iterator[Hdfs]:
    """A cluster for the length of the block."""
    jars, folder = mini_cluster_jars(), Path(tempfile.mkdtemp(prefix="local-hdfs-"))
    http, rpc = free_ports(2)
    command = [java(), *_JVM, "-cp", f"{jars}/*", "org.apache.hadoop.test.MiniDFSClusterManager", "-format"]
    command += ["-httpport", str(http), "-nnport", str(rpc), "-datanodes", "1"]
    command += ["-writeDetails", str(folder / "details"), "-D", f"hdfs.minidfs.basedir={folder}/data"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", watchdog.__file__, str(folder), *command],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    try:
        _await(process, folder, http)
        yield Hdfs(f"http://127.0.0.1:{http}")
    finally:
        process.communicate(b"kill\n" if process.poll() is None else None)
        shutil.rmtree(folder, ignore_errors=True)


def _await(process: subprocess.Popen[bytes], folder: Path, port: int) -> None:
    """Return when the data node serves too: then the cluster writes its details."""
    deadline = time.monotonic() + START_SECONDS
    while not (folder / "details").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError((folder / "log").read_text(errors="replace")[-2000:])
        time.sleep(0.05)
    # everybody may write to /tests
    query = f"op=MKDIRS&permission=777&user.name={getpass.getuser()}"
    request = urllib.request.Request(f"http://127.0.0.1:{port}/webhdfs/v1/tests?{query}", method="PUT")
    with urllib.request.urlopen(request, timeout=60):
        pass


def mini_cluster_jars() -> Path:
    """The folder of Hadoop's own test clusters; fetched once."""
    return fetched_once(f"hdfs-{HADOOP_VERSION}", lambda part: fetched_jars(part, _JARS))


def fetched_jars(part: Path, versions: Mapping[tuple[str, str], str]) -> Path:
    """A folder below `part` with these artifacts of Maven Central and all that they need."""
    needs = "".join(
        f'<dependency org="{org}" name="{name}" rev="{version}" conf="default->default"/>'
        for (org, name), version in versions.items()
    )
    module = '<info organisation="deltajoin" module="test-cluster"/>'
    (part / "ivy.xml").write_text(
        f'<ivy-module version="2.0">{module}<dependencies>{needs}</dependencies></ivy-module>'
    )
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    command = [java(), "-jar", str(ivy), "-cache", str(part / "cache"), "-ivy", str(part / "ivy.xml")]
    pattern = f"{part}/jars/[artifact]-[revision].[ext]"
    subprocess.run(
        [*command, "-confs", "default", "-retrieve", pattern], check=True, capture_output=True, timeout=600
    )
    return part / "jars"
