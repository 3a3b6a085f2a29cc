"""Which properties of librdkafka a table may set: those that run no code and send no file anywhere.

A table's options may have been written by another person: in its ``table.json``, in a script, in a session's
defaults. librdkafka has properties that load a library, run a shell command, or send the content of any file
to a server. So what a client is made with passes a list of names that are known to be harmless; another name
needs the consent of the process itself, which ``UPSERT_KAFKA_ALLOWED_PROPERTIES`` gives (decision 0032).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from upsert.errors import ConfigurationError

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

    Args:
        properties: names, as librdkafka has them, and values.
        of: the table, for messages.

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
    """Refuse what a client would open and is no file: a pipe, for instance, would be waited for for ever.

    Raises:
        ConfigurationError: a property of ``FILES`` does not name a file.
    """
    for name in FILES & properties.keys():
        path = properties[name]
        if name.endswith("ca.location") and (path == "probe" or os.path.isdir(path)):
            continue
        if not os.path.isfile(path):
            raise ConfigurationError(
                f"a connection to Kafka: property {name!r} must name a file, got {path!r}; correct the path, "
                "also on the executors"
            )
