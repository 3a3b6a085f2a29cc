"""A real YARN for `make test-long`: Hadoop's own mini cluster, a resource manager and two node managers.

Its jars are those of the HDFS of the tests, and 10 MB more. It is one JVM, which this process speaks to by
py4j and which ends with this process.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark
from py4j.java_gateway import JavaGateway

from tests.hdfs_cluster import fetched_jars, mini_cluster_jars
from tests.helpers import fetched_once
from upsert.testing.local_kafka import java

_SPARK_JARS: Final = Path(pyspark.__file__).parent / "jars"
_BOUNCY_CASTLE: Final = {("org.bouncycastle", "bcpkix-jdk18on"): "1.81"}
_CONFIGURATION: Final = {
    "fs.defaultFS": "file:///",
    "yarn.nodemanager.disk-health-checker.enable": "false",
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.resourcemanager.scheduler.class": (
        "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
    ),
    "yarn.scheduler.minimum-allocation-mb": "256",
}
_JVM: Final = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


@dataclass(frozen=True)
class Yarn:
    """A running cluster.

    Attributes:
        configuration: the folder that `HADOOP_CONF_DIR` is to name.
        folder: where containers run and leave their logs.
    """

    configuration: Path
    folder: Path

    def output(self) -> str:
        """What all containers have written to standard output."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("**/container_*/stdout")))

    def errors(self) -> str:
        """The end of what each of them has written to standard error."""
        return "\n".join(path.read_text()[-3000:] for path in self.folder.glob("**/container_*/stderr"))

    def kill_an_executor(self) -> None:
        """Kill the process of one container of Spark; the JVM alone, as Python ends with it."""
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and self._is_executor(process):
                os.kill(int(process.name), signal.SIGKILL)
                return
        raise AssertionError("no executor runs")

    def _is_executor(self, process: Path) -> bool:
        try:
            program, *arguments = (process / "cmdline").read_bytes().split(b"\0")
            runs_here = (process / "cwd").readlink().is_relative_to(self.folder)
        except OSError:  # it has ended
            return False
        is_executor = any(each.endswith(b"ExecutorBackend") for each in arguments)
        return runs_here and is_executor and program.endswith(b"java")


@contextmanager
def yarn_cluster(folder: Path) -> Iterator[Yarn]:
    """A cluster for the length of the block."""
    more = fetched_once("bouncycastle-1.81", lambda part: fetched_jars(part, _BOUNCY_CASTLE))
    jars = [f"{mini_cluster_jars()}/*", f"{more}/*", *map(str, _SPARK_JARS.glob("log4j-*.jar"))]
    (py4j,) = _SPARK_JARS.glob("py4j-*.jar")
    configuration = folder / "configuration"
    configuration.mkdir()
    with (folder / "yarn.log").open("w") as log:
        gateway = JavaGateway.launch_gateway(
            jarpath=str(py4j),
            classpath=":".join(jars),
            javaopts=list(_JVM),
            java_path=java(),
            die_on_exit=True,
            cwd=str(folder),
            redirect_stdout=log,
            redirect_stderr=log,
        )
        try:
            hadoop = gateway.jvm.org.apache.hadoop.yarn
            conf = hadoop.conf.YarnConfiguration()
            for name, value in _CONFIGURATION.items():
                conf.set(name, value)
            cluster = hadoop.server.MiniYARNCluster("yarn", 2, 1, 1)
            cluster.init(conf)
            cluster.start()
            assert cluster.waitForNodeManagersToConnect(120_000), (folder / "yarn.log").read_text()
            site = gateway.jvm.java.io.FileOutputStream(str(configuration / "yarn-site.xml"))
            cluster.getConfig().writeXml(site)
            site.close()
            yield Yarn(configuration, folder)
            cluster.stop()
        finally:
            gateway.shutdown()
            gateway.java_process.kill()
            gateway.java_process.wait()
