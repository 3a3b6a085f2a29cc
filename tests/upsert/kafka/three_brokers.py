"""Three Kafka brokers as in production: a topic has three replicas, and two of them must have a record."""

import threading
from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, Final, Self

from tests.helpers import wait_until
from upsert.kafka.client.connection import Connection, admin_library
from upsert.testing.local_kafka import _HOST, ProcessBroker, free_ports

NUMBERS: Final = (1, 2, 3)

_SETTINGS: Final[Mapping[str, str]] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.min.isr": "2",
    # who leads changes when a test says so
    "auto.leader.rebalance.enable": "false",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1000",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.cleaner.io.buffer.size": "65536",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
}


class ThreeBrokers:
    """Three brokers for the length of a ``with`` block, each of which takes part in choosing leaders."""

    def __init__(self, settings: Mapping[str, str] = {}) -> None:
        ports = free_ports(6)
        self._ports = dict(zip(NUMBERS, ports[:3], strict=True))
        controllers = dict(zip(NUMBERS, ports[3:], strict=True))
        voters = ",".join(f"{number}@{_HOST}:{port}" for number, port in controllers.items())
        self._brokers: dict[int, ProcessBroker] = {}
        for number, port in self._ports.items():
            listener = f"PLAINTEXT://{_HOST}:{port}"
            own = {
                "node.id": str(number),
                "controller.quorum.voters": voters,
                "listeners": f"{listener},CONTROLLER://{_HOST}:{controllers[number]}",
                "advertised.listeners": listener,
            }
            self._brokers[number] = ProcessBroker({**_SETTINGS, **own, **settings})

    @property
    def bootstrap_servers(self) -> str:
        """All three."""
        return ",".join(f"{_HOST}:{port}" for port in self._ports.values())

    def connection(self, properties: Mapping[str, str] = {}) -> Connection:
        """A connection to all of them."""
        return Connection({"bootstrap.servers": self.bootstrap_servers, **properties})

    def start(self, *numbers: int) -> None:
        """Start some brokers, which wait for each other."""
        threads = [threading.Thread(target=self._brokers[number].start) for number in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def kill(self, number: int) -> None:
        """End a broker with SIGKILL."""
        self._brokers[number].kill()

    def restart(self, number: int) -> None:
        """Start a broker again with its data."""
        self._brokers[number].restart()

    def pause(self, number: int) -> None:
        """Let a broker keep its connections, and answer nothing."""
        self._brokers[number].pause()

    def resume(self, number: int) -> None:
        """Let a broker that was paused go on."""
        self._brokers[number].resume()

    def leader(self, topic: str, partition: int = 0) -> int:
        """Who leads a partition, -1 if none does that a broker knows of."""
        found = self._partition(topic, partition)
        return -1 if found is None else int(found.leader)

    def in_sync(self, topic: str, partition: int = 0) -> list[int]:
        """The brokers that have all records of a partition."""
        found = self._partition(topic, partition)
        return [] if found is None else sorted(found.isrs)

    def _partition(self, topic: str, partition: int) -> Any:
        """What some broker knows of it; it learns of a new topic, or of a change, a moment later."""
        return self.admin.list_topics(topic, timeout=30).topics[topic].partitions.get(partition)

    def create_topic(self, name: str, replicas: list[list[int]], **config: str) -> None:
        """Create a topic whose partitions are on these brokers, the one that leads first."""
        new = admin_library().NewTopic(name, len(replicas), replica_assignment=replicas, config=config)
        self.admin.create_topics([new])[name].result()
        wait_until(lambda: all(self.leader(name, n) == those[0] for n, those in enumerate(replicas)))

    @cached_property
    def admin(self) -> Any:
        """A client that asks any of them."""
        given = {"bootstrap.servers": self.bootstrap_servers, "socket.timeout.ms": 5000, "log_level": 0}
        return admin_library().AdminClient(given)

    def __enter__(self) -> Self:
        try:
            self.start(*NUMBERS)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all, at once: they would wait for each other."""
        for broker in self._brokers.values():
            broker.kill()
            broker.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
