"""Properties of Java's Kafka client and of Flink, as librdkafka has them (pure).

Tables that come from Flink, or from a cluster's page of settings, speak to Java's client. What librdkafka has
under another name or in another form is translated; what it cannot do is refused, with what to write instead.
A property that both have stays as it is, and an unknown one too: `connection.check_allowed` judges it.
Nothing is dropped silently but what holds here anyhow. Values of secrets stand in no message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from upsert.errors import ConfigurationError

_RENAMED: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
"""What has another name in librdkafka, and the same values."""

_OF_JAVA: Final = "leave it out: it is about Java's own classes"
_OF_TLS: Final = "leave it out: OpenSSL settles it"
_OF_LOGIN: Final = "leave it out: librdkafka settles when it logs in again"

_REFUSED: Final = {
    "transactional.id": "write 'sink.transactional-id-prefix'",
    "default.api.timeout.ms": "write 'connection.timeout'",
    "max.block.ms": "write 'connection.timeout'",
    "partition.discovery.interval.ms": "write 'scan.topic-partition-discovery.interval'",
    "socket.connection.setup.timeout.max.ms": "write 'properties.socket.connection.setup.timeout.ms'",
    "partitioner.class": "leave it out; for a partition of your own write a METADATA column FROM 'partition'",
    "schema.registry.url": "write 'value.avro-confluent.url', of keys 'key.avro-confluent.url'",
    "interceptor.classes": _OF_JAVA,
    "metric.reporters": _OF_JAVA,
    "auto.include.jmx.reporter": _OF_JAVA,
    "register.consumer.metrics": _OF_JAVA,
    "security.providers": _OF_JAVA,
    "sasl.client.callback.handler.class": _OF_JAVA,
    "sasl.login.class": _OF_JAVA,
    "config.providers": "write the value itself; no program of Java looks it up here",
    "exclude.internal.topics": "leave it out: 'topic-pattern' must match the whole name",
    "ssl.protocol": _OF_TLS,
    "ssl.enabled.protocols": _OF_TLS,
    "ssl.provider": _OF_TLS,
    "ssl.engine.factory.class": _OF_TLS,
    "ssl.keymanager.algorithm": _OF_TLS,
    "ssl.trustmanager.algorithm": _OF_TLS,
    "ssl.secure.random.implementation": _OF_TLS,
    "sasl.login.refresh.window.factor": _OF_LOGIN,
    "sasl.login.refresh.window.jitter": _OF_LOGIN,
    "sasl.login.refresh.min.period.seconds": _OF_LOGIN,
    "sasl.login.refresh.buffer.seconds": _OF_LOGIN,
    "sasl.kerberos.ticket.renew.window.factor": _OF_LOGIN,
    "sasl.kerberos.ticket.renew.jitter": _OF_LOGIN,
}
"""What librdkafka has not, and what to do about it."""

COMMITS: Final = "commit.offsets.on.checkpoint"
"""Flink's property that keeps a stream from committing to its group, if it is false."""

_SERIALIZERS: Final = re.compile(r"(key|value)\.(de)?serializer")
_BYTES: Final = ("ByteArrayDeserializer", "ByteArraySerializer")


class _Login(NamedTuple):
    """A login module of Java: its mechanisms, and of its options which property each one is."""

    mechanisms: tuple[str, ...]
    options: Mapping[str, str]
    needed: tuple[str, ...]
    without_effect: tuple[str, ...] = ()


_PASSWORD: Final = {"username": "sasl.username", "password": "sasl.password"}
_OIDC: Final = "sasl.oauthbearer.client"
_LOGINS: Final = {
    "PlainLoginModule": _Login(("PLAIN",), _PASSWORD, tuple(_PASSWORD)),
    "ScramLoginModule": _Login(("SCRAM-SHA-256", "SCRAM-SHA-512"), _PASSWORD, tuple(_PASSWORD)),
    "OAuthBearerLoginModule": _Login(
        ("OAUTHBEARER",),
        {"clientId": f"{_OIDC}.id", "clientSecret": f"{_OIDC}.secret", "scope": "sasl.oauthbearer.scope"},
        ("clientId", "clientSecret"),
    ),
    "Krb5LoginModule": _Login(
        ("GSSAPI",),
        {
            "keyTab": "sasl.kerberos.keytab",
            "principal": "sasl.kerberos.principal",
            "serviceName": "sasl.kerberos.service.name",
        },
        ("keyTab", "principal"),
        # that a keytab is used, and how, is what librdkafka does anyhow
        ("useKeyTab", "storeKey", "useTicketCache", "doNotPrompt", "refreshKrb5Config"),
    ),
}

_VALUE: Final = r'"(?:[^"\\]|\\.)*+"|\'(?:[^\'\\]|\\.)*+\'|[^\s;"\']++'
_LINE: Final = re.compile(
    rf"\s*(?P<module>[\w.$]++)\s++(?:required|requisite|sufficient|optional)"
    rf"(?P<options>(?:\s++[\w.]++\s*=\s*(?:{_VALUE}))*+)\s*;\s*",
    re.IGNORECASE,
)
_OPTION: Final = re.compile(rf"([\w.]++)\s*=\s*({_VALUE})")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class _RefusedError(Exception):
    """A property that cannot be translated, and what is said of it after its name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"property {name!r} {reason}")


def translated(properties: Mapping[str, str], of: str = "a connection to Kafka") -> dict[str, str]:
    """Properties as librdkafka has them; those that it has already are as they were.

    Args:
        properties: names and values, without a prefix.
        of: what has the properties, for messages.

    Raises:
        ConfigurationError: librdkafka has nothing for one of them, or two of them say different things.

    >>> line = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="x";'
    >>> translated({"sasl.mechanism": "PLAIN", "sasl.jaas.config": line})
    {'sasl.mechanism': 'PLAIN', 'sasl.username': 'me', 'sasl.password': 'x'}
    >>> translated({"max.block.ms": "5"})
    Traceback (most recent call last):
    upsert.errors.ConfigurationError: a connection to Kafka: property 'max.block.ms' is one of Java's ...
    """
    left, found = dict(properties), _Found()
    try:
        for translate in (_truststore, _keystore, _login, _numbers, _words, _classes):
            translate(left, found)
        for name, value in left.items():
            if (instead := _REFUSED.get(name)) is not None:
                raise _RefusedError(
                    name, f"is one of Java's client, which librdkafka does not have; {instead}"
                )
            found.add(_RENAMED.get(name, name), value, name)
    except _RefusedError as cause:
        raise ConfigurationError(f"{of}: {cause}") from None
    return {name: found[name] for name in sorted(found, key=lambda name: name not in properties)}


class _Found(dict[str, str]):
    """What has been translated."""

    def add(self, name: str, value: str, given: str) -> None:
        """Set a property of librdkafka, which another one of the given may not set otherwise."""
        if self.setdefault(name, value) != value:
            raise _RefusedError(
                given,
                f"means {name!r} of librdkafka, which another property sets otherwise; give one of them",
            )


def _truststore(left: dict[str, str], found: _Found) -> None:
    path, kind = left.pop("ssl.truststore.location", None), left.pop("ssl.truststore.type", None)
    password = left.pop("ssl.truststore.password", None)
    if path is None and kind is None and password is None:
        return
    if (kind or "JKS").upper() != "PEM":
        raise _RefusedError(
            "ssl.truststore.type",
            f"must be PEM, got {kind or 'JKS, the default'}; write the certificates with: keytool -list -rfc "
            f"-keystore {path or 'truststore.jks'} > ca.pem, and 'properties.ssl.ca.location' = 'ca.pem' in "
            "the place of 'properties.ssl.truststore.*'",
        )
    if password is not None:
        raise _RefusedError("ssl.truststore.password", "must not be set for type PEM; leave it out")
    if path is not None:
        found.add("ssl.ca.location", path, "ssl.truststore.location")


def _keystore(left: dict[str, str], found: _Found) -> None:
    kind, path = left.pop("ssl.keystore.type", None), left.get("ssl.keystore.location")
    if (chain := left.pop("ssl.keystore.certificate.chain", None)) is not None:
        if chain.count("-----BEGIN CERTIFICATE-----") > 1:
            raise _RefusedError(
                "ssl.keystore.certificate.chain",
                "must be one certificate, got several; write them to a file, and "
                "'properties.ssl.certificate.location'",
            )
        found.add("ssl.certificate.pem", chain, "ssl.keystore.certificate.chain")
    is_jks = path is not None and path.lower().endswith(".jks")
    match (kind or ("JKS" if is_jks else "PKCS12")).upper():
        case "PKCS12":
            pass  # librdkafka's own ssl.keystore.location
        case "PEM":
            if left.pop("ssl.keystore.password", None) is not None:
                raise _RefusedError(
                    "ssl.keystore.password",
                    "must not be set for type PEM; the key's is 'properties.ssl.key.password'",
                )
            if path is not None:
                del left["ssl.keystore.location"]
                found.add("ssl.certificate.location", path, "ssl.keystore.location")
                found.add("ssl.key.location", path, "ssl.keystore.location")
        case other:
            raise _RefusedError(
                "ssl.keystore.type",
                f"must be PKCS12 or PEM, got {other}; convert it with: keytool -importkeystore -srckeystore "
                f"{path or 'keystore.jks'} -destkeystore keystore.p12 -deststoretype PKCS12, and write "
                "'properties.ssl.keystore.location' = 'keystore.p12'",
            )


def _login(left: dict[str, str], found: _Found) -> None:
    handler = left.pop("sasl.login.callback.handler.class", None)
    if handler is not None and handler.rpartition(".")[2] != "OAuthBearerLoginCallbackHandler":
        raise _RefusedError(
            "sasl.login.callback.handler.class",
            f"must be Kafka's OAuthBearerLoginCallbackHandler, got {handler!r}; librdkafka runs no Java",
        )
    if (line := left.pop("sasl.jaas.config", None)) is None:
        return
    if (match := _LINE.fullmatch(line)) is None:
        raise _RefusedError(
            "sasl.jaas.config",
            'must be one line like \'…PlainLoginModule required username="me" password="…";\', got another '
            "text, which is not shown; correct it, or write 'properties.sasl.username' and '….sasl.password'",
        )
    module = _LOGINS.get(match["module"].rpartition(".")[2])
    if module is None:
        raise _RefusedError(
            "sasl.jaas.config",
            f"must name one of {', '.join(_LOGINS)}, got {match['module']!r}, which only Java's client can "
            "run; choose another 'properties.sasl.mechanism'",
        )
    mechanism = left.get("sasl.mechanism", left.get("sasl.mechanisms", "GSSAPI")).upper()
    if mechanism not in module.mechanisms:
        raise _RefusedError(
            "sasl.mechanism",
            f"must be {' or '.join(module.mechanisms)}, as 'sasl.jaas.config' says, got {mechanism}; write "
            "'properties.sasl.mechanism'",
        )
    given = {name: _unquoted(value) for name, value in _OPTION.findall(match["options"])}
    missing = [name for name in module.needed if not given.get(name)]
    odd = given.keys() - module.options.keys() - set(module.without_effect)
    if missing or odd:
        problem = f"no {missing[0]!r}" if missing else f"{min(odd)!r}, which librdkafka does not have"
        raise _RefusedError(
            "sasl.jaas.config",
            f"must have the options {', '.join(module.options)} of its module, got {problem}; correct it",
        )
    for name, property_ in module.options.items():
        if name in given:
            found.add(property_, given[name], "sasl.jaas.config")
    if "OAUTHBEARER" in module.mechanisms:
        found.add("sasl.oauthbearer.method", "oidc", "sasl.jaas.config")


def _unquoted(value: str) -> str:
    return _ESCAPED.sub(r"\1", value[1:-1]) if value[0] in "\"'" else value


def _numbers(left: dict[str, str], found: _Found) -> None:
    if (memory := left.pop("buffer.memory", None)) is not None:
        if not memory.isascii() or not memory.isdigit():
            raise _RefusedError("buffer.memory", f"must be a number of bytes, got {memory!r}")
        found.add("queue.buffering.max.kbytes", str(max(1, -(-int(memory) // 1024))), "buffer.memory")
    for name in ("send.buffer.bytes", "receive.buffer.bytes"):
        if left.get(name) == "-1":  # as the system has it
            left[name] = "0"


def _words(left: dict[str, str], _: _Found) -> None:
    if left.get("auto.offset.reset", "").lower() == "none":
        left["auto.offset.reset"] = "error"
    if left.get("ssl.endpoint.identification.algorithm") == "":
        left["ssl.endpoint.identification.algorithm"] = "none"
    if (commits := left.pop(COMMITS, "true").lower()) not in ("true", "false"):
        raise _RefusedError(COMMITS, f"must be true or false, got {commits!r}")


def _classes(left: dict[str, str], _: _Found) -> None:
    for name in [name for name in left if _SERIALIZERS.fullmatch(name)]:
        if (given := left.pop(name)).rpartition(".")[2] not in _BYTES:
            side = name.partition(".")[0]
            raise _RefusedError(
                name, f"must be left out, got {given!r}; what the bytes mean is said by '{side}.format'"
            )
    if "." in left.get("partition.assignment.strategy", ""):
        raise _RefusedError(
            "partition.assignment.strategy",
            "is a class of Java's client; leave it out: Spark assigns the partitions, and no group is joined",
        )
