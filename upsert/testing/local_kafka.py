"""`LocalKafka`: a real Apache Kafka for tests, demos and notebooks."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Protocol, Self

from upsert.errors import ConfigurationError, UpsertError
from upsert.kafka.client import admin
from upsert.kafka.client.connection import Connection
from upsert.testing.brokers import ContainerBroker, ProcessBroker, docker_answers

BOOTSTRAP_VARIABLE: Final = "UPSERT_KAFKA_BOOTSTRAP"
"""Environment variable with the address of a Kafka that is already running, as ``host:port,…``."""


class Broker(Protocol):
    """What each way of running a broker offers."""

    @property
    def bootstrap_servers(self) -> str: ...  # noqa: D102

    def start(self) -> None: ...  # noqa: D102
    def stop(self) -> None: ...  # noqa: D102
    def kill(self) -> None: ...  # noqa: D102
    def restart(self) -> None: ...  # noqa: D102


class RunningBroker:
    """A Kafka that someone else runs: it can be used, but neither ended nor started."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def start(self) -> None:
        """Do nothing: it runs."""

    def stop(self) -> None:
        """Do nothing: it goes on running."""

    def kill(self) -> None:
        """Refuse."""
        raise self._not_ours()

    def restart(self) -> None:
        """Refuse."""
        raise self._not_ours()

    def _not_ours(self) -> ConfigurationError:
        return ConfigurationError(
            f"the Kafka at {self.bootstrap_servers!r} — only a broker started here can be killed or "
            f"restarted — it comes from {BOOTSTRAP_VARIABLE}; use LocalKafka(own=True)"
        )


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
        self._broker: Broker | None = None

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
            broker = self._choose()
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

    def _choose(self) -> Broker:
        running = os.environ.get(BOOTSTRAP_VARIABLE)
        if running and not self._own:
            return RunningBroker(running)
        return ContainerBroker(self._settings) if docker_answers() else ProcessBroker(self._settings)

    def _started(self) -> Broker:
        if self._broker is None:
            raise UpsertError("this Kafka — must run — it was not started, or has been stopped; call start()")
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
