"""How to reach a Kafka cluster: a value that can be sent to tasks, and never shows a secret.

Clients are made where they are used, in the process that uses them. ``confluent_kafka`` is imported when the
first one is made, so that everything else works without it. A process keeps its clients between calls
(`ClientCache`), because making one costs a connection and a few threads. A client is taken out while it is
used, so two threads never share one. It belongs to the process that made it: a forked child starts with an
empty cache and never touches its parent's clients, whose threads it lacks.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from cachetools import LRUCache

from upsert.errors import ConfigurationError
from upsert.kafka.client.properties import check_allowed, check_files
from upsert.secret import MASK, is_secret

PATIENCE_SECONDS: Final = 120.0
"""How long Kafka may be away before a read or write gives up."""

LOGGER: Final = logging.getLogger("upsert.kafka.client")
"""Where the client library's own messages go; silent until the application sets logging up."""


LOGGER.addHandler(logging.NullHandler())


# Left out: properties that are for another kind of client, as one set serves all kinds; and each of some
# thirty tries a second to reach a broker that is away, as our own error tells of the last one.
LOGGER.addFilter(lambda record: not record.getMessage().startswith(("CONFWARN", "FAIL")))


@dataclass(frozen=True, repr=False)
class Connection:
    """The address of a Kafka cluster, and the properties of its client library.

    Args:
        properties: those of librdkafka (``bootstrap.servers``, ``security.protocol``, …), without a prefix.
        patience_s: seconds without any answer after which a call fails with `KafkaUnavailableError`.

    Raises:
        ConfigurationError: ``bootstrap.servers`` is missing, or a property is none that a table may set.

    >>> Connection({"bootstrap.servers": "kafka:9092", "sasl.password": "hidden"})
    Connection('kafka:9092', sasl.password=***)
    """

    properties: Mapping[str, str]
    patience_s: float = field(default=PATIENCE_SECONDS)

    def __post_init__(self) -> None:
        object.__setattr__(self, "properties", dict(self.properties))
        if not self.properties.get("bootstrap.servers", "").strip():
            raise ConfigurationError(
                "a connection to Kafka needs the property 'bootstrap.servers' — none was given — "
                "set it to the brokers, as in 'host1:9092,host2:9092'"
            )
        if "transactional.id" in self.properties:
            raise ConfigurationError(
                "a connection to Kafka has no property 'transactional.id' of its own — found "
                f"{self.properties['transactional.id']!r} — set 'sink.transactional-id-prefix'"
            )
        check_allowed(self.properties)

    @property
    def bootstrap_servers(self) -> str:
        """The brokers to ask first, as ``host:port,…``."""
        return self.properties["bootstrap.servers"]

    @property
    def isolation_level(self) -> str:
        """``read_committed`` unless the properties say otherwise."""
        return self.properties.get("isolation.level", "read_committed")

    @cached_property
    def _secrets(self) -> tuple[str, ...]:
        """Values to hide, longest first: one may contain another."""
        values = {value for name, value in self.properties.items() if is_secret(name) and value}
        return tuple(sorted(values, key=len, reverse=True))

    def masked(self, text: str) -> str:
        """The text without the values of secret properties.

        >>> Connection({"bootstrap.servers": "b:1", "sasl.password": "pa55"}).masked("wrong: pa55")
        'wrong: ***'
        """
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def __hash__(self) -> int:
        return hash((tuple(sorted(self.properties.items())), self.patience_s))

    def __repr__(self) -> str:
        shown = [repr(self.bootstrap_servers)]
        for name, value in sorted(self.properties.items()):
            if name != "bootstrap.servers":
                shown.append(f"{name}={MASK if is_secret(name) else repr(value)}")
        return f"Connection({', '.join(shown)})"


def library() -> Any:
    """The module ``confluent_kafka``.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import confluent_kafka
    except ImportError as missing:
        raise ConfigurationError(
            f"Kafka is reached through confluent-kafka — it cannot be imported ({missing}) — "
            "install it with: pip install 'deltajoin[kafka]'"
        ) from missing
    return confluent_kafka


def admin_library() -> Any:
    """The module ``confluent_kafka.admin``; errors as `library`."""
    library()
    import confluent_kafka.admin

    return confluent_kafka.admin


_DEFAULTS: Final = {
    "client.id": "deltajoin",
    # A broker that comes back is noticed soon.
    "reconnect.backoff.ms": 200,
    "reconnect.backoff.max.ms": 1000,
    "socket.keepalive.enable": True,
    # A name that has just been created is known soon.
    "topic.metadata.refresh.fast.interval.ms": 50,
    "topic.metadata.propagation.max.ms": 10_000,
}


def client_properties(
    connection: Connection, defaults: Mapping[str, Any] = {}, fixed: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """What a client is made with: our defaults, then the user's properties, then what we rely on."""
    check_files(connection.properties)
    return {**_DEFAULTS, **defaults, **connection.properties, **fixed}


C = TypeVar("C")

_caches: WeakSet[ClientCache[object]] = WeakSet()

_of_parent: list[object] = []
"""What a forked child got from its parent; giving it up would wait for threads that the child lacks."""


class ClientCache(Generic[C]):
    """At most ``size`` idle clients; the one that was idle longest is closed to make room.

    Args:
        size: how many to keep.
        close: how to end one.
    """

    def __init__(self, size: int, close: Callable[[C], None]) -> None:
        self._size = size
        self._close = close
        self._idle: LRUCache[Hashable, C] = LRUCache(size)
        self._lock = threading.Lock()
        _caches.add(self)  # type: ignore[arg-type]

    def take(self, key: Hashable) -> C | None:
        """The idle client of this key, now the caller's own; None when there is none."""
        with self._lock:
            return self._idle.pop(key, None)

    def give_back(self, key: Hashable, client: C) -> None:
        """Keep a client that is in good order for the next call with this key."""
        with self._lock:
            leaving = [self._idle.pop(key)] if key in self._idle else []
            if len(self._idle) >= self._size:
                leaving.append(self._idle.popitem()[1])
            self._idle[key] = client
        for client in leaving:
            self._close(client)

    def clear(self) -> None:
        """Close all idle clients."""
        with self._lock:
            leaving = list(self._idle.values())
            self._idle.clear()
        for client in leaving:
            self._close(client)

    def _forget(self) -> None:
        _of_parent.append(self._idle)
        self._idle = LRUCache(self._size)
        self._lock = threading.Lock()  # another thread of the parent may have held it


def _forget_all() -> None:
    for cache in list(_caches):
        cache._forget()


os.register_at_fork(after_in_child=_forget_all)
