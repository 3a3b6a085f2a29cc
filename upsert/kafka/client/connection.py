"""How to reach a Kafka cluster: a value that can be sent to tasks, and never shows a secret.

Clients are made where they are used, in the process that uses them. ``confluent_kafka`` is imported when the
first one is made, so that everything else works without it. A process keeps its clients between calls
(`ClientCache`), because making one costs a connection and a few threads.

A table's options may have been written by another person: in its ``table.json``, in a script, in a session's
defaults. librdkafka has properties that load a library, run a shell command, or send the content of any file
to a server. So a client is made only with properties whose names are known to be harmless; another name
needs the consent of the process itself, which ``UPSERT_KAFKA_ALLOWED_PROPERTIES`` gives (decision 0032).
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from cachetools import LRUCache

from upsert.errors import ConfigurationError, optional_package
from upsert.kafka.client.java_properties import translated
from upsert.options import MASK, is_secret

ALLOWED_VARIABLE: Final = "UPSERT_KAFKA_ALLOWED_PROPERTIES"
"""Environment variable: names of properties, separated by commas, that any table may set in this process."""

FILES: Final = frozenset(
    {
        "ssl.ca.location",
        "https.ca.location",
        "ssl.certificate.location",
        "ssl.crl.location",
        "ssl.key.location",
        "ssl.keystore.location",
    }
)
"""Properties that name a file with certificates or a key: it is read, and its content is not sent."""

PLAIN: Final = frozenset(
    """
    acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    auto.commit.enable auto.commit.interval.ms auto.offset.reset batch.num.messages batch.size
    bootstrap.servers broker.address.family broker.address.ttl broker.version.fallback builtin.features
    check.crcs client.dns.lookup client.id client.rack compression.codec compression.level compression.type
    connections.max.idle.ms consume.callback.max.messages coordinator.query.interval.ms debug
    delivery.report.only.error delivery.timeout.ms enable.auto.commit enable.auto.offset.store
    enable.gapless.guarantee enable.idempotence enable.metrics.push enable.partition.eof enable.random.seed
    enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification fetch.error.backoff.ms
    fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.id
    group.instance.id group.protocol group.protocol.type group.remote.assignor heartbeat.interval.ms
    https.ca.pem isolation.level linger.ms log.connection.close log.queue log.thread.name log_level
    max.in.flight max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms
    max.poll.records message.copy.max.bytes message.max.bytes message.send.max.retries message.timeout.ms
    metadata.broker.list metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy partition.assignment.strategy partitioner produce.offset.report
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
    queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages queuing.strategy
    receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms
    request.required.acks request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
    sasl.kerberos.min.time.before.relogin sasl.mechanism sasl.mechanisms sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config
    sasl.oauthbearer.extensions sasl.oauthbearer.grant.type sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.sub.claim.name sasl.password sasl.username security.protocol session.timeout.ms
    share.acknowledgement.mode socket.blocking.max.ms socket.connection.setup.timeout.ms
    socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes
    socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores ssl.ca.pem ssl.certificate.pem
    ssl.cipher.suites ssl.curves.list ssl.endpoint.identification.algorithm ssl.key.password ssl.key.pem
    ssl.keystore.password ssl.sigalgs.list statistics.interval.ms sticky.partitioning.linger.ms
    topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    transaction.timeout.ms transactional.id
    """.split()  # noqa: SIM905 - a hundred quotes and commas would hide a name
)
"""Numbers, words, names, and the content of certificates."""

_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./@:-]*")

CHECKED: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    # librdkafka puts these three into a shell command, also into the one that it has by default
    "sasl.kerberos.keytab": (re.compile(r"/?" + _WORD.pattern), "a path without signs of the shell"),
    "sasl.kerberos.principal": (_WORD, "a principal without signs of the shell"),
    "sasl.kerberos.service.name": (_WORD, "a name without signs of the shell"),
    "sasl.oauthbearer.token.endpoint.url": (re.compile(r"(?i:https?)://\S+"), "an http: or https: address"),
}
"""Properties whose values must have a form; and what that is."""

_LOADS: Final = "loads a library into the process"
_SENDS: Final = "sends the content of a file to a server"
_LOCAL: Final = "writes a local file"

REFUSED: Final[Mapping[str, str]] = {
    "plugin.library.paths": _LOADS,
    "interceptors": _LOADS,
    "ssl.engine.location": _LOADS,
    "ssl.engine.id": _LOADS,
    "ssl.providers": _LOADS,
    "sasl.kerberos.kinit.cmd": "runs a command of the shell",
    "internal.termination.signal": "sends a signal to the process",
    "sasl.oauthbearer.assertion.file": _SENDS,
    "sasl.oauthbearer.assertion.jwt.template.file": _SENDS,
    "sasl.oauthbearer.assertion.private.key.file": "signs with any key that the process can read",
    "sasl.oauthbearer.metadata.authentication.type": "sends the machine's own token to the brokers",
    "offset.store.method": _LOCAL,
    "offset.store.path": _LOCAL,
    "offset.store.sync.interval.ms": _LOCAL,
    "enabled_events": "takes the client's events away from who reads them",
}
"""Properties that only the process may allow, and what each of them does."""

_KNOWN: Final = PLAIN | FILES | CHECKED.keys()


def check_allowed(properties: Mapping[str, str], of: str = "a connection to Kafka") -> None:
    """Refuse properties that a table may not set unless the process allows them.

    Raises:
        ConfigurationError: one is not allowed; its value is not shown.

    >>> check_allowed({"bootstrap.servers": "host:9092", "security.protocol": "SSL"})
    >>> check_allowed({"sasl.kerberos.kinit.cmd": "kinit"})
    Traceback (most recent call last):
        ...
    upsert.errors.ConfigurationError: a connection to Kafka: property 'sasl.kerberos.kinit.cmd' runs a ...
    """
    by_process = {name.strip() for name in os.environ.get(ALLOWED_VARIABLE, "").split(",")}
    for name, value in properties.items():
        if name in by_process or name in PLAIN or name in FILES:
            continue
        if name in CHECKED:
            form, expected = CHECKED[name]
            if not form.fullmatch(value):
                raise ConfigurationError(
                    f"{of}: property {name!r} must be {expected}, got another text; correct it, or let the "
                    f"process allow any with the environment variable {ALLOWED_VARIABLE} = {name!r}"
                )
        elif name in REFUSED:
            raise ConfigurationError(
                f"{of}: property {name!r} {REFUSED[name]}, so a table may not set it; leave it out, or let "
                f"the process allow it with the environment variable {ALLOWED_VARIABLE} = {name!r}"
            )
        else:
            close = get_close_matches(name, sorted(_KNOWN), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigurationError(
                f"{of}: property {name!r} is none of librdkafka that a table may set{hint}; correct its "
                f"name, or let the process allow it with the environment variable {ALLOWED_VARIABLE} = "
                f"{name!r}"
            )


def check_files(properties: Mapping[str, str]) -> None:
    """Refuse what a client would open and is no file: a pipe, for instance, would be waited for for ever."""
    for name in FILES & properties.keys():
        path = properties[name]
        if name.endswith("ca.location") and (path == "probe" or os.path.isdir(path)):
            continue
        if not os.path.isfile(path):
            raise ConfigurationError(
                f"a connection to Kafka: property {name!r} must name a file, got {path!r}; correct the path, "
                "also on the executors"
            )


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
        properties: those of librdkafka (``bootstrap.servers``, ``security.protocol``, …), without a prefix;
            those of Java's client become librdkafka's.
        patience_s: seconds without any answer after which a call fails with `KafkaUnavailableError`.

    Raises:
        ConfigurationError: ``bootstrap.servers`` is missing, or a property is none that a table may set.

    >>> Connection({"bootstrap.servers": "kafka:9092", "sasl.password": "hidden"})
    Connection('kafka:9092', sasl.password=***)
    """

    properties: Mapping[str, str]
    patience_s: float = PATIENCE_SECONDS

    def __post_init__(self) -> None:
        object.__setattr__(self, "properties", translated(self.properties))
        if not self.properties.get("bootstrap.servers", "").strip():
            raise ConfigurationError(
                "a connection to Kafka needs the property 'bootstrap.servers' — none was given — "
                "set it to the brokers, as in 'host1:9092,host2:9092'"
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
    """The module ``confluent_kafka``; ``ConfigurationError`` if it is not installed."""
    with optional_package("confluent-kafka", "kafka", "a Kafka client"):
        import confluent_kafka
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

    A client is taken out while used, so two threads never share one. A forked child starts with an empty
    cache and never touches its parent's clients, whose threads it lacks.
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
