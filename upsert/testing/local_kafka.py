"""`LocalKafka`: a real Apache Kafka for tests, demos and notebooks.

It is a Kafka that runs already, a Docker container, or a child process with the jars of Kafka on Java. The
jars are fetched once from Maven Central, by PySpark's own Ivy, so nothing but Java and pyspark has to be
installed. Their folder in the cache appears under its name complete or not at all: a fetch that is killed
leaves a temporary folder beside it, which the next fetch removes, and two processes never fetch at once.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from upsert.errors import ConfigurationError, UpsertError
from upsert.flock import locked
from upsert.kafka.client import admin
from upsert.kafka.client.connection import Connection

BOOTSTRAP_VARIABLE: Final = "UPSERT_KAFKA_BOOTSTRAP"
"""Environment variable with the address of a Kafka that is already running, as ``host:port,…``."""

KAFKA_VERSION: Final = "4.1.1"

FETCH_SECONDS: Final = 600.0
"""How long the download may take: 43 MB in 46 files, about 40 s over a usual line."""

_MODULE: Final = f"""<ivy-module version="2.0">
  <info organisation="deltajoin" module="local-kafka"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}" conf="default->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->default"/>
  </dependencies>
</ivy-module>
"""
"""What Ivy resolves: the broker, and the smallest binding that lets it write a log."""

_NEEDED: Final = ("kafka_2.13", "kafka-server", "kafka-clients", "scala-library", "slf4j-simple")


def java() -> str:
    """The Java program that Spark would run too: below ``JAVA_HOME`` when that is set, else on ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if not found:
        place = f"below JAVA_HOME ({home!r})" if home else "on PATH"
        raise ConfigurationError(
            f"a local Kafka runs on Java 17 or newer — no java was found {place}; install one, "
            "set JAVA_HOME to it, or name a running Kafka in UPSERT_KAFKA_BOOTSTRAP"
        )
    return found


def cache_folder() -> Path:
    """Where the jars are kept: ``deltajoin/kafka-<version>`` below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "deltajoin" / f"kafka-{KAFKA_VERSION}"


def kafka_jars() -> Path:
    """A folder with all jars of the broker; fetched when no earlier call did, which takes about 40 s."""
    folder = cache_folder()
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            for left_behind in folder.parent.glob(f"{folder.name}.part-*"):
                shutil.rmtree(left_behind)
            with tempfile.TemporaryDirectory(prefix=f"{folder.name}.part-", dir=folder.parent) as part:
                os.rename(_fetch(Path(part)), folder)
    return folder


def _fetch(folder: Path) -> Path:
    """The folder below ``folder`` into which all jars have been downloaded and checked."""
    module, jars = folder / "ivy.xml", folder / "jars"
    module.write_text(_MODULE)
    command = [java(), "-jar", str(_ivy()), "-cache", str(folder / "ivy"), "-ivy", str(module)]
    command += ["-confs", "default", "-retrieve", f"{jars}/[artifact]-[revision].[ext]"]
    try:
        run = _run(command, FETCH_SECONDS)
    except subprocess.TimeoutExpired as late:
        raise _fetch_failed(f"not done after {FETCH_SECONDS:.0f} s") from late
    if run.returncode != 0:
        raise _fetch_failed("\n".join(run.stdout.splitlines()[-15:]))
    _check(jars)
    return jars


def _run(command: list[str], timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """A program that has ended, with all that it said."""
    pipe, nothing, same = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
    return subprocess.run(command, stdin=nothing, stdout=pipe, stderr=same, text=True, timeout=timeout_s)


def _ivy() -> Path:
    """Ivy's jar in the installed pyspark; found without importing it, which would take a second."""
    spec = find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else Path()
    ivy = next(iter(sorted(folder.glob("ivy-*.jar"))), None)
    if ivy is None:
        raise ConfigurationError(
            f"a local Kafka is fetched with the Ivy inside pyspark — no ivy-*.jar lies in {str(folder)!r}; "
            "install pyspark from PyPI, or name a running Kafka in UPSERT_KAFKA_BOOTSTRAP"
        )
    return ivy


def _check(jars: Path) -> None:
    files = sorted(jars.glob("*.jar"))
    for needed in _NEEDED:
        if not any(file.name.startswith(f"{needed}-") for file in files):
            raise _fetch_failed(f"{needed} is not among the {len(files)} jars that came")
    for file in files:
        if not zipfile.is_zipfile(file):
            raise _fetch_failed(f"{file.name} is damaged")


def _fetch_failed(reason: str) -> UpsertError:
    return UpsertError(
        f"the jars of Apache Kafka {KAFKA_VERSION} — could not be fetched from Maven Central — check the "
        f"network, or name a running Kafka in UPSERT_KAFKA_BOOTSTRAP — {reason}"
    )


START_SECONDS: Final = 120.0
"""How long a broker may take to listen: 2 s on a quiet machine."""

_HOST: Final = "127.0.0.1"

_PORTS: Final = range(20000, 32000)
"""Below what systems hand out for outgoing connections, which could take the port of a killed broker."""

_CLUSTER: Final = "ZGVsdGFqb2luLWthZmthMQ"
_STARTED: Final = b"Kafka Server started"
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
            self._format(jars, self._folder)
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

    def pause(self) -> None:
        """Stop the broker with SIGSTOP: its connections stay, and it answers nothing."""
        self._order(b"pause\n")

    def resume(self) -> None:
        """Let a broker that was paused go on."""
        self._order(b"resume\n")

    def _format(self, jars: Path, folder: Path) -> None:
        listeners = f"PLAINTEXT://{_HOST}:{self._port}"
        settings = {
            **_SETTINGS,
            "controller.quorum.voters": f"1@{_HOST}:{self._controller_port}",
            "listeners": f"{listeners},CONTROLLER://{_HOST}:{self._controller_port}",
            "advertised.listeners": listeners,
            "log.dirs": str(folder / "data"),
            **self._settings,
        }
        properties = folder / "server.properties"
        properties.write_text(_properties(settings))
        tool = [*_java(jars), _SHORT_LIVED, "kafka.tools.StorageTool"]
        run = _run([*tool, "format", "-t", _CLUSTER, "-c", str(properties)])
        if run.returncode != 0:
            raise _not_started(f"its data folder could not be prepared: {run.stdout.strip()}")

    def _launch(self) -> None:
        """Run the broker on the prepared folder until its log says that it serves."""
        if self._folder is None:
            raise UpsertError("this Kafka: restart follows start, it was not started, or has been stopped")
        broker = [*_java(kafka_jars()), "kafka.Kafka", str(self._folder / "server.properties")]
        watchdog = str(Path(__file__).with_name("watchdog.py"))
        log = self._folder / "broker.log"
        earlier = log.stat().st_size if log.exists() else 0
        with open(log, "ab") as file:
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", watchdog, str(self._folder), *broker],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        deadline = time.monotonic() + START_SECONDS
        while _STARTED not in log.read_bytes()[earlier:]:
            ended = self._watchdog.poll() is not None
            if ended or time.monotonic() > deadline:
                self._end()
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
                what = "it ended" if ended else f"it did not serve within {START_SECONDS:.0f} s"
                raise _not_started(f"{what}; the end of its log: {tail}")
            time.sleep(0.05)

    def _order(self, order: bytes) -> None:
        if self._watchdog is None:
            raise UpsertError("this Kafka: only a broker that runs can be paused, and it does not")
        assert self._watchdog.stdin is not None
        assert self._watchdog.stdout is not None
        self._watchdog.stdin.write(order)
        self._watchdog.stdin.flush()
        self._watchdog.stdout.readline()

    def _end(self, order: bytes = b"stop\n") -> None:
        if self._watchdog is None:
            return
        with suppress(BrokenPipeError):  # it has ended already
            self._watchdog.communicate(order)
        self._watchdog.wait()
        self._watchdog = None


def _java(jars: Path) -> list[str]:
    """The broker's JVM; `KAFKA_OPTS` adds options to it, as it does to Kafka's own start scripts."""
    return [java(), *_JVM, *_LOG_LEVELS, *shlex.split(os.environ.get("KAFKA_OPTS", "")), "-cp", f"{jars}/*"]


def _properties(settings: Mapping[str, object]) -> str:
    r"""Settings as the lines of a file of Java's, which reads its bytes as Latin-1 and ``\`` as an escape.

    >>> _properties({"log.dirs": "/tmp/é", "num.partitions": 3})
    'log.dirs=/tmp/\\u00e9\nnum.partitions=3\n'
    """
    return "".join(f"{key}={json.dumps(str(value))[1:-1]}\n" for key, value in settings.items())


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

_OF_CONTAINERS: Final = (
    "auto.create.", "offsets.topic.num.", "transaction.", "log.cleaner.backoff.", "log.retention.ms",
)  # fmt: skip
"""How the names of settings begin that a container does not have by itself."""


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
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        own = {name: value for name, value in _SETTINGS.items() if name.startswith(_OF_CONTAINERS)}
        self._settings = {**own, **settings}
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

    def pause(self) -> None:
        """Let the broker keep its connections, and answer nothing."""
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        """Let a broker that was paused go on."""
        self._container.get_wrapped_container().unpause()

    def restart(self) -> None:
        """Start again with the same data and port; a broker that still runs is stopped first."""
        container = self._container.get_wrapped_container()
        container.stop()
        earlier = container.logs().count(_STARTED)
        container.start()
        deadline = time.monotonic() + START_SECONDS
        while container.logs().count(_STARTED) == earlier:
            if time.monotonic() > deadline:
                tail = container.logs(tail=20).decode(errors="replace")
                told = f"the end of its log: {tail}"
                raise UpsertError(f"the Kafka container could not be restarted: {told}")
            time.sleep(0.1)


class RunningBroker:
    """A Kafka that someone else runs: it can be used, but neither ended nor started."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def start(self) -> None:
        """Do nothing: it runs."""

    def stop(self) -> None:
        """Do nothing: it goes on running."""

    def kill(self) -> None:
        """Refuse, as `restart`, `pause` and `resume` do."""
        raise ConfigurationError(
            f"the Kafka at {self.bootstrap_servers!r} — only a broker started here can be killed, paused or "
            f"restarted — it comes from {BOOTSTRAP_VARIABLE}; use LocalKafka(own=True)"
        )

    restart = pause = resume = kill


class LocalKafka:
    """A real Kafka broker for the length of a ``with`` block.

    The first of these that is available is taken when it starts: the Kafka at ``UPSERT_KAFKA_BOOTSTRAP``; a
    container, when testcontainers is installed and a Docker engine answers; Apache Kafka's own jars, fetched
    once into ``~/.cache/deltajoin`` (43 MB, about 40 s) and run as a child process with 384 MB of heap, 2 s
    to start; ``KAFKA_OPTS`` adds options of its JVM. It ends with the process that started it, also when that
    is killed, and takes its data along.

    Topics are not created by use (``auto.create.topics.enable`` is off); compacted ones are cleaned soon.

    Args:
        own: start a broker of its own even when ``UPSERT_KAFKA_BOOTSTRAP`` is set; for tests that kill it.
        settings: entries of ``server.properties`` to add or replace; a running Kafka keeps its own.

    Example:
        >>> with LocalKafka() as broker:
        ...     broker.create_topic("orders-of-the-example")
        ...     broker.bootstrap_servers
        '...:...'
    """

    def __init__(self, *, own: bool = False, settings: Mapping[str, str] = {}) -> None:
        self._own = own
        self._settings = dict(settings)
        self._broker: ProcessBroker | ContainerBroker | RunningBroker | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Its address, for the option ``properties.bootstrap.servers``."""
        return self._started().bootstrap_servers

    def start(self) -> Self:
        """Start, and return when clients are served; nothing to do when it runs already.

        Raises:
            ConfigurationError: there is no Java.
            UpsertError: the jars could not be fetched, or the broker did not start; says what was logged.
        """
        if self._broker is None:
            broker: ProcessBroker | ContainerBroker | RunningBroker
            running = os.environ.get(BOOTSTRAP_VARIABLE)
            if running and not self._own:
                broker = RunningBroker(running)
            else:
                broker = (ContainerBroker if docker_answers() else ProcessBroker)(self._settings)
            broker.start()
            self._broker = broker
        return self

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] = {}) -> None:
        """Create a topic, and return when it can be written to.

        Args:
            name: of the new topic.
            partitions: how many.
            config: settings of the topic, such as ``{"cleanup.policy": "compact"}``.

        Raises:
            TableExistsError: it exists already.
            ConfigurationError: Kafka refuses a setting.
        """
        connection = Connection({"bootstrap.servers": self.bootstrap_servers})
        admin.create_topic(connection, name, partitions, config)

    def stop(self) -> None:
        """End the broker and remove its data; a Kafka that someone else runs is left alone."""
        if self._broker is not None:
            self._broker.stop()
            self._broker = None

    def kill(self) -> None:
        """End the broker with SIGKILL, as a crash would; `restart` brings it back."""
        self._started().kill()

    def restart(self) -> None:
        """Start again with the same address and data; a broker that still runs is stopped first."""
        self._started().restart()

    def pause(self) -> None:
        """Let the broker keep its connections, and answer nothing, as on a machine that hangs."""
        self._started().pause()

    def resume(self) -> None:
        """Let a broker that was paused go on."""
        self._started().resume()

    def _started(self) -> ProcessBroker | ContainerBroker | RunningBroker:
        if self._broker is None:
            raise UpsertError("this Kafka must run, it was not started, or has been stopped; call start()")
        return self._broker

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def main() -> None:
    """Run a broker until Ctrl-C; its address is the only line on standard output."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with LocalKafka() as kafka:
            print(kafka.bootstrap_servers, flush=True)
            print("Kafka is running; Ctrl-C ends it", file=sys.stderr, flush=True)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        print("Kafka has ended", file=sys.stderr)
