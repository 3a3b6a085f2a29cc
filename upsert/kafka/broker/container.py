"""One Kafka broker in a Docker container, by testcontainers; imported only where a Docker engine answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

from upsert.errors import UpsertError
from upsert.kafka.broker.process import START_SECONDS, free_ports

PING_SECONDS: Final = 2

_INSIDE: Final = 9093
_STARTED: Final = b"Kafka Server started"
_SETTINGS: Final[Mapping[str, str]] = {
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
        self._settings = {**_SETTINGS, **settings}
        self._container: Any = None

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the broker."""
        return str(self._container.get_bootstrap_server())

    def start(self) -> None:
        """Pull the image if need be, start a container, and return when clients are served."""
        from testcontainers.community.kafka import KafkaContainer

        container = KafkaContainer().with_kraft().with_bind_ports(_INSIDE, free_ports(1)[0])
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
        earlier = container.logs().count(_STARTED)
        container.start()
        deadline = time.monotonic() + START_SECONDS
        while container.logs().count(_STARTED) == earlier:
            if time.monotonic() > deadline:
                tail = container.logs(tail=20).decode(errors="replace")
                raise UpsertError(
                    f"the Kafka container — could not be restarted — the end of its log: {tail}"
                )
            time.sleep(0.1)
