"""What Java's properties become for librdkafka, and what is refused with what to write instead."""

import subprocess
from pathlib import Path
from shutil import which

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert.errors import ConfigurationError, KafkaUnavailableError
from upsert.kafka.client.admin import topics
from upsert.kafka.client.connection import PLAIN, Connection, check_allowed
from upsert.kafka.client.java_properties import translated
from upsert.kafka.options import PLAIN as KAFKA
from upsert.kafka.table import KafkaTable
from upsert.schema import TableSchema
from upsert.testing import LocalKafka

OF_KAFKA = "org.apache.kafka.common.security"
OF_FLINK = f"org.apache.flink.kafka.shaded.{OF_KAFKA}"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
USER = {"sasl.username": "me", "sasl.password": "pa55"}
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"

Properties = dict[str, str]

MEANT: dict[str, tuple[Properties, Properties]] = {
    "PLAIN": (
        {
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{OF_KAFKA}.plain.PlainLoginModule required username="me" password="pa55";',
        },
        {"sasl.mechanism": "PLAIN", **USER},
    ),
    "PLAIN by Flink's shaded class, in single quotes and lines": (
        {
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f"{OF_FLINK}.plain.PlainLoginModule required\nusername='me' password=pa55;\n",
        },
        {"sasl.mechanism": "PLAIN", **USER},
    ),
    "SCRAM with odd signs in the password": (
        {
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": (
                f"{OF_KAFKA}.scram.ScramLoginModule required "
                r'username = "me" password="a\"b\\c;d = \'e\' ü";'
            ),
        },
        {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "me", "sasl.password": "a\"b\\c;d = 'e' ü"},
    ),
    "a line that says what is said already": (
        {
            **USER,
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": 'PlainLoginModule required username="me" password="pa55";',
        },
        {**USER, "sasl.mechanism": "PLAIN"},
    ),
    "Kerberos": (
        {
            "sasl.jaas.config": (
                f"{KERBEROS} required useKeyTab=true storeKey=true "
                'keyTab="/etc/me.keytab" principal="me@REALM";'
            ),
            "sasl.kerberos.service.name": "kafka",
        },
        {
            "sasl.kerberos.service.name": "kafka",
            "sasl.kerberos.keytab": "/etc/me.keytab",
            "sasl.kerberos.principal": "me@REALM",
        },
    ),
    "OAuth": (
        {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": f"{OF_KAFKA}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": "https://sso/token",
            "sasl.jaas.config": (
                f"{OF_KAFKA}.oauthbearer.OAuthBearerLoginModule required "
                'clientId="me" clientSecret="pa55" scope="kafka";'
            ),
        },
        {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": "https://sso/token",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "pa55",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.method": "oidc",
        },
    ),
    "PEM files": (
        {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
            "ssl.keystore.type": "pem",
            "ssl.keystore.location": "/me.pem",
            "ssl.key.password": "pa55",
        },
        {
            "ssl.key.password": "pa55",
            "ssl.ca.location": "/ca.pem",
            "ssl.certificate.location": "/me.pem",
            "ssl.key.location": "/me.pem",
        },
    ),
    "PEM texts": (
        {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": PEM + PEM,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": PEM,
            "ssl.keystore.key": "key",
        },
        {"ssl.ca.pem": PEM + PEM, "ssl.certificate.pem": PEM, "ssl.key.pem": "key"},
    ),
    "a PKCS12 keystore": (
        {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/me.p12", "ssl.keystore.password": "x"},
        {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "x"},
    ),
    "no check of the host's name": (
        {"ssl.endpoint.identification.algorithm": ""},
        {"ssl.endpoint.identification.algorithm": "none"},
    ),
    "deserializers of bytes": (
        {
            "key.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
            "value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
        },
        {},
    ),
    "sizes and times": (
        {
            "buffer.memory": "33554433",
            "fetch.max.wait.ms": "5",
            "max.request.size": "7",
            "send.buffer.bytes": "-1",
            "receive.buffer.bytes": "65536",
        },
        {
            "queue.buffering.max.kbytes": "32769",
            "fetch.wait.max.ms": "5",
            "message.max.bytes": "7",
            "socket.send.buffer.bytes": "0",
            "socket.receive.buffer.bytes": "65536",
        },
    ),
    "a group without offsets": ({"auto.offset.reset": "none"}, {"auto.offset.reset": "error"}),
    "commits of Flink": ({"commit.offsets.on.checkpoint": "False", "group.id": "g"}, {"group.id": "g"}),
    "what both have": (
        {
            "isolation.level": "read_uncommitted",
            "client.id": "me",
            "acks": "all",
            "security.protocol": "SASL_SSL",
        },
        {
            "isolation.level": "read_uncommitted",
            "client.id": "me",
            "acks": "all",
            "security.protocol": "SASL_SSL",
        },
    ),
}


@pytest.mark.parametrize("name", MEANT)
def test_property_of_java_becomes_what_librdkafka_has(name: str) -> None:
    given, expected = MEANT[name]
    found = translated(given)
    assert found == expected
    check_allowed(found)
    assert translated(found) == found


REFUSED: dict[str, tuple[Properties, str]] = {
    "a JKS truststore": (
        {"ssl.truststore.location": "/ca.jks", "ssl.truststore.password": "pa55"},
        (
            "'ssl.truststore.type' must be PEM, got JKS, the default; write the certificates with: keytool "
            "-list -rfc -keystore /ca.jks > ca.pem, and 'properties.ssl.ca.location' = 'ca.pem'"
        ),
    ),
    "a PKCS12 truststore": (
        {"ssl.truststore.location": "/ca.p12", "ssl.truststore.type": "PKCS12"},
        "must be PEM, got PKCS12",
    ),
    "a password of a PEM truststore": (
        {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca", "ssl.truststore.password": "pa55"},
        "'ssl.truststore.password' must not be set for type PEM",
    ),
    "a JKS keystore": (
        {"ssl.keystore.location": "/me.jks", "ssl.keystore.password": "pa55"},
        (
            "'ssl.keystore.type' must be PKCS12 or PEM, got JKS; convert it with: keytool -importkeystore "
            "-srckeystore /me.jks -destkeystore keystore.p12 -deststoretype PKCS12, and write"
        ),
    ),
    "a password of a PEM keystore": (
        {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/me", "ssl.keystore.password": "pa55"},
        "the key's is 'properties.ssl.key.password'",
    ),
    "a chain of certificates as text": (
        {"ssl.keystore.certificate.chain": PEM + PEM},
        "write them to a file, and 'properties.ssl.certificate.location'",
    ),
    "a line that is none": (
        {"sasl.mechanism": "PLAIN", "sasl.jaas.config": 'PlainLoginModule required username="pa55'},
        "must be one line like '…PlainLoginModule required",
    ),
    "a line without its end": (
        {"sasl.mechanism": "PLAIN", "sasl.jaas.config": 'PlainLoginModule required username="pa55"'},
        "must be one line like",
    ),
    "two modules": (
        {
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": 'PlainLoginModule required username="pa55"; ScramLoginModule required;',
        },
        "must be one line like",
    ),
    "a module of another cloud": (
        {
            "sasl.mechanism": "AWS_MSK_IAM",
            "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        },
        "'software.amazon.msk.auth.iam.IAMLoginModule', which only Java's client can run",
    ),
    "no mechanism": (
        {"sasl.jaas.config": 'PlainLoginModule required username="me" password="pa55";'},
        (
            "'sasl.mechanism' must be PLAIN, as 'sasl.jaas.config' says, got GSSAPI; write "
            "'properties.sasl.mechanism'"
        ),
    ),
    "no password": (
        {"sasl.mechanism": "PLAIN", "sasl.jaas.config": 'PlainLoginModule required username="pa55";'},
        "must have the options username, password of its module, got no 'password'",
    ),
    "an option that librdkafka has not": (
        {
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": 'ScramLoginModule required username="me" password="pa55" tokenauth="true";',
        },
        "got 'tokenauth', which librdkafka does not have",
    ),
    "two users": (
        {
            "sasl.mechanism": "PLAIN",
            "sasl.username": "you",
            "sasl.jaas.config": 'PlainLoginModule required username="me" password="pa55";',
        },
        "'sasl.username' means 'sasl.username' of librdkafka, which another property sets otherwise",
    ),
    "a callback of the user's": (
        {"sasl.login.callback.handler.class": "com.example.Handler"},
        "must be Kafka's OAuthBearerLoginCallbackHandler, got 'com.example.Handler'",
    ),
    "a deserializer of texts": (
        {"value.deserializer": "org.apache.kafka.common.serialization.StringDeserializer"},
        "'value.deserializer' must be left out, .*; what the bytes mean is said by 'value.format'",
    ),
    "an assignor": (
        {"partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor"},
        "Spark assigns the partitions",
    ),
    "a size that is none": (
        {"buffer.memory": "32 MB"},
        "'buffer.memory' must be a number of bytes, got '32 MB'",
    ),
    "commits that are neither on nor off": (
        {"commit.offsets.on.checkpoint": "sometimes"},
        "must be true or false, got 'sometimes'",
    ),
    "Flink's discovery": (
        {"partition.discovery.interval.ms": "5"},
        "write 'scan.topic-partition-discovery.interval'",
    ),
    "a registry": ({"schema.registry.url": "http://r"}, "write 'value.avro-confluent.url'"),
    "a transactional id": ({"transactional.id": "t"}, "write 'sink.transactional-id-prefix'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_property_that_librdkafka_lacks_is_refused_when_a_table_is_made(name: str) -> None:
    properties, message = REFUSED[name]
    schema = TableSchema.of({"id": pa.int64()}, primary_key=["id"])
    given = {"topic": "t", "properties.bootstrap.servers": "127.0.0.1:1", "format": "json"}
    given |= {f"properties.{key}": value for key, value in properties.items()}
    with pytest.raises(ConfigurationError) as refused:
        KafkaTable.of(KAFKA, schema, given, "mine")
    assert str(refused.value).startswith("table 'mine': property ")
    assert "pa55" not in str(refused.value)
    with pytest.raises(ConfigurationError, match=message.replace("(", r"\(")):
        Connection({"bootstrap.servers": "127.0.0.1:1", **properties})


@given(st.text(min_size=1), st.text(min_size=1), st.sampled_from("\"'"))
def test_any_user_and_password_come_out_of_the_line(user: str, password: str, quote: str) -> None:
    def quoted(text: str) -> str:
        return quote + text.replace("\\", "\\\\").replace(quote, f"\\{quote}") + quote

    line = f"PlainLoginModule required username={quoted(user)} password={quoted(password)};"
    found = translated({"sasl.mechanism": "PLAIN", "sasl.jaas.config": line})
    assert found == {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": password}


@given(st.text(max_size=30))
def test_any_other_text_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"'sasl\.jaas\.config' must be one line"):
        translated({"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{text} s3cret"})


def test_what_librdkafka_has_stays_as_it_is() -> None:
    kept = PLAIN - {"transactional.id", "auto.offset.reset"}
    assert translated(dict.fromkeys(kept, "1")) == dict.fromkeys(kept, "1")


@pytest.mark.kafka
def test_broker_that_asks_for_a_certificate_takes_each_form_of_a_keystore(tmp_path: Path) -> None:
    """One certificate, signed by itself, is everybody's: that of the broker, of the client, and trusted."""
    if (openssl := which("openssl")) is None:
        pytest.skip("makes a certificate with openssl, which is not installed")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=tmp_path, check=True, capture_output=True)

    named = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    made = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    run("req", *made, *named, "-keyout", "plain.key", "-out", "ca.pem")
    run("pkcs8", "-topk8", "-in", "plain.key", "-out", "secret.key", "-passout", "pass:pa55")
    run(
        "pkcs12", "-export", "-in", "ca.pem", "-inkey", "plain.key", "-out", "me.p12", "-passout", "pass:pa55"
    )
    certificate, key = ((tmp_path / name).read_text() for name in ("ca.pem", "secret.key"))
    (tmp_path / "me.pem").write_text(key + certificate)
    (tmp_path / "broker.pem").write_text((tmp_path / "plain.key").read_text() + certificate)
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(tmp_path / "ca.pem")}
    of_broker = {
        "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT",
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "broker.pem"),
    }
    forms = [
        {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(tmp_path / "me.pem")},
        {"ssl.keystore.type": "PEM", "ssl.keystore.key": key, "ssl.keystore.certificate.chain": certificate},
        {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": str(tmp_path / "me.p12")},
    ]
    passwords = [
        {"ssl.key.password": "pa55"},
        {"ssl.key.password": "pa55"},
        {"ssl.keystore.password": "pa55"},
    ]
    with LocalKafka(own=True, settings={**of_broker, **trust}) as broker:
        where = {"bootstrap.servers": broker.bootstrap_servers, "security.protocol": "SSL", **trust}
        for form, password in zip(forms, passwords, strict=True):
            assert topics(Connection({**where, **form, **password}), ["t"]) == {}
        with pytest.raises(KafkaUnavailableError, match="certificate"):
            topics(Connection(where, patience_s=1), ["t"])
