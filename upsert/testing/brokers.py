"""A Kafka broker of our own: a child process with the jars of Kafka on Java, or a Docker container."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from upsert.errors import UpsertError
from upsert.testing.jars import java, kafka_jars

START_SECONDS: Final = 120.0
"""How long a broker may take to listen: 2 s on a quiet machine."""

_HOST: Final = "127.0.0.1"

_PORTS: Final = range(20000, 32000)
"""Below what systems hand out for outgoing connections, which could take the port of a killed broker."""

_CLUSTER: Final = "ZGVsdGFqb2luLWthZmthMQ"

_STARTED: Final = "Kafka Server started"

_JVM: Final = ("-Xmx384m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.showDateTime=true")

_SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1"
"""A second of work is not worth optimizing: it takes a third less without."""

_LOG_LEVELS: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",  # it says when the broker is ready
)

_SETTINGS: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    # One broker is enough, and the fewer partitions of inner topics the sooner their first use is done.
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After a crash the broker is let in again when its old session has ended.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # A compacted topic is cleaned soon after its segment is closed, so that tests can wait for it.
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "1000",
    # Kept whatever the times of its records say: those of tests are often years old.
    "log.retention.ms": "-1",
    "log.segment.delete.delay.ms": "1000",
    # The preallocated buffer of the cleaner is 128 MB by default, of a heap of 384.
    "log.cleaner.dedupe.buffer.size": "16777216",
}


class ProcessBroker:
    """A broker of our own; `start` fetches the jars if need be.

    It ends with the process that started it, even when that is killed: a small watchdog process in between
    sees its standard input end. Ports, data and log stay the same from `start` to `stop`.

    Args:
        settings: entries of ``server.properties`` to add or replace.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._folder: Path | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._port = self._controller_port = 0

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the broker."""
        return f"{_HOST}:{self._port}"

    def start(self) -> None:
        """Start on free ports with an empty data folder, and return when clients are served."""
        jars = kafka_jars()
        self._folder = Path(tempfile.mkdtemp(prefix="local-kafka-"))
        try:
            self._port, self._controller_port = free_ports(2)
            properties = self._write_properties(self._folder)
            self._format(jars, properties)
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the broker and remove its data."""
        self._end()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def kill(self) -> None:
        """End the broker with SIGKILL; its data stays for `restart`."""
        self._end(b"kill\n")

    def restart(self) -> None:
        """Start again with the same data and ports; a broker that still runs is stopped first."""
        self._end()
        self._launch()

    def _write_properties(self, folder: Path) -> Path:
        listeners = f"PLAINTEXT://{_HOST}:{self._port}"
        settings = {
            **_SETTINGS,
            "controller.quorum.voters": f"1@{_HOST}:{self._controller_port}",
            "listeners": f"{listeners},CONTROLLER://{_HOST}:{self._controller_port}",
            "advertised.listeners": listeners,
            "log.dirs": str(folder / "data"),
            **self._settings,
        }
        path = folder / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _format(self, jars: Path, properties: Path) -> None:
        tool = [*_java(jars), _SHORT_LIVED, "kafka.tools.StorageTool"]
        command = [*tool, "format", "-t", _CLUSTER, "-c", str(properties)]
        run = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if run.returncode != 0:
            raise _not_started(f"its data folder could not be prepared: {run.stdout.strip()}")

    def _launch(self) -> None:
        """Run the broker on the prepared folder until its log says that it serves."""
        if self._folder is None:
            raise UpsertError("this Kafka — restart follows start — it was not started, or has been stopped")
        broker = [*_java(kafka_jars()), "kafka.Kafka", str(self._folder / "server.properties")]
        watchdog = str(Path(__file__).with_name("watchdog.py"))
        log = self._folder / "broker.log"
        earlier = log.stat().st_size if log.exists() else 0
        with open(log, "ab") as file:
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", watchdog, str(self._folder), *broker],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        self._await(log, earlier)

    def _await(self, log: Path, earlier: int) -> None:
        assert self._watchdog is not None
        deadline = time.monotonic() + START_SECONDS
        while _STARTED.encode() not in log.read_bytes()[earlier:]:
            ended = self._watchdog.poll() is not None
            if ended or time.monotonic() > deadline:
                self._end()
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
                what = "it ended" if ended else f"it did not serve within {START_SECONDS:.0f} s"
                raise _not_started(f"{what}; the end of its log: {tail}")
            time.sleep(0.05)

    def _end(self, order: bytes = b"stop\n") -> None:
        """End the broker, and with it the watchdog."""
        if self._watchdog is None:
            return
        with suppress(BrokenPipeError):  # it has ended already
            self._watchdog.communicate(order)
        self._watchdog.wait()
        self._watchdog = None


def _java(jars: Path) -> list[str]:
    """The broker's JVM; `KAFKA_OPTS` adds options to it, as it does to Kafka's own start scripts."""
    return [java(), *_JVM, *_LOG_LEVELS, *shlex.split(os.environ.get("KAFKA_OPTS", "")), "-cp", f"{jars}/*"]


def _not_started(reason: str) -> UpsertError:
    return UpsertError(f"the local Kafka — could not be started — {reason}")


def free_ports(count: int) -> list[int]:
    """Different free ports, drawn at random so that several runs seldom collide."""
    free: list[int] = []
    for port in random.sample(_PORTS, 1000):
        with socket.socket() as probe:
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue  # taken; the next one may be free
            free.append(port)
        if len(free) == count:
            return free
    raise _not_started(f"no free port between {_PORTS.start} and {_PORTS.stop} on {_HOST}")


PING_SECONDS: Final = 2

_CONTAINER_PORT: Final = 9093

_CONTAINER_STARTED: Final = b"Kafka Server started"

_CONTAINER_SETTINGS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.cleaner.backoff.ms": "200",
    "log.retention.ms": "-1",
}


def docker_answers() -> bool:
    """Whether testcontainers is installed and a Docker engine, not just its client program, replies."""
    if find_spec("testcontainers") is None:
        return False
    import docker

    try:
        client = docker.from_env(timeout=PING_SECONDS)
    except docker.errors.DockerException:
        return False
    try:
        return bool(client.ping())
    except (docker.errors.DockerException, OSError):
        return False
    finally:
        client.close()


class ContainerBroker:
    """A broker in a container; its port and data stay the same from `start` to `stop`.

    Testcontainers removes the container when the process that started it is gone.

    Args:
        settings: entries of ``server.properties`` to add or replace.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = {**_CONTAINER_SETTINGS, **settings}
        self._container: Any = None

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the broker."""
        return str(self._container.get_bootstrap_server())

    def start(self) -> None:
        """Pull the image if need be, start a container, and return when clients are served."""
        from testcontainers.community.kafka import KafkaContainer

        container = KafkaContainer().with_kraft().with_bind_ports(_CONTAINER_PORT, free_ports(1)[0])
        for key, value in self._settings.items():
            container.with_env(f"KAFKA_{key.upper().replace('.', '_')}", value)
        self._container = container.start(timeout=int(START_SECONDS))

    def stop(self) -> None:
        """Remove the container and its data."""
        if self._container is not None:
            self._container.stop()
            self._container = None

    def kill(self) -> None:
        """End the broker with SIGKILL; its data stays for `restart`."""
        self._container.get_wrapped_container().kill()

    def restart(self) -> None:
        """Start again with the same data and port; a broker that still runs is stopped first."""
        container = self._container.get_wrapped_container()
        container.stop()
        earlier = container.logs().count(_CONTAINER_STARTED)
        container.start()
        deadline = time.monotonic() + START_SECONDS
        while container.logs().count(_CONTAINER_STARTED) == earlier:
            if time.monotonic() > deadline:
                tail = container.logs(tail=20).decode(errors="replace")
                raise UpsertError(
                    f"the Kafka container — could not be restarted — the end of its log: {tail}"
                )
            time.sleep(0.1)
