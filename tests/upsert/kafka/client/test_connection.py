"""Connections: values that travel to tasks, and whose secrets nobody sees."""

import os
import pickle
import subprocess
import sys

import pytest

from upsert.errors import ConfigurationError, KafkaUnavailableError
from upsert.kafka.client.admin import latest_offsets, topics
from upsert.kafka.client.connection import ClientCache, Connection
from upsert.kafka.client.records import TopicPartition
from upsert.options import is_secret

SECURE = Connection(
    {
        "bootstrap.servers": "broker:9092",
        "sasl.username": "me",
        "sasl.password": "pa55word",
        "ssl.key.password": "pa55",
        "ssl.key.pem": "pem-secret",
    }
)


def test_a_connection_is_a_value_that_can_be_sent() -> None:
    copy = pickle.loads(pickle.dumps(SECURE))
    assert copy == SECURE
    assert hash(copy) == hash(SECURE)
    assert copy != Connection({"bootstrap.servers": "broker:9092"})


def test_its_text_shows_no_secret() -> None:
    text = repr(SECURE)
    assert "me" in text
    assert "pa55" not in text
    assert "pem-secret" not in text


def test_a_secret_within_another_leaves_nothing_behind() -> None:
    assert SECURE.masked("rejected pa55word and pa55") == "rejected *** and ***"


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "sasl.jaas.config",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
        "ssl.keystore.key",
        "basic.auth.user.info",
        "debezium-avro-confluent.basic-auth.user-info",
        "avro-confluent.schema-registry.bearer-auth.token",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
    ],
)
def test_secret_properties_are_known_by_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "bootstrap.servers",
        "sasl.username",
        "ssl.ca.location",
        "ssl.key.location",
        "sasl.oauthbearer.token.endpoint.url",
    ],
)
def test_other_properties_are_shown(name: str) -> None:
    assert not is_secret(name)


def test_a_connection_needs_brokers() -> None:
    with pytest.raises(ConfigurationError, match=r"needs the property 'bootstrap\.servers'"):
        Connection({"group.id": "g"})


def test_transactional_ids_are_not_a_property() -> None:
    with pytest.raises(ConfigurationError, match=r"'sink\.transactional-id-prefix'"):
        Connection({"bootstrap.servers": "b:1", "transactional.id": "mine"})


def test_a_property_that_the_library_refuses_is_named_and_its_secrets_are_not() -> None:
    wrong = Connection({**SECURE.properties, "security.protocol": "pa55word"})
    with pytest.raises(ConfigurationError, match=r"\*\*\*.*security\.protocol") as refused:
        topics(wrong, ["t"])
    assert "pa55word" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None


def test_a_broker_that_never_answers_is_named_when_the_patience_ends() -> None:
    nobody = Connection({"bootstrap.servers": "127.0.0.1:1"}, patience_s=0.2)
    with pytest.raises(KafkaUnavailableError, match=r"Kafka at '127\.0\.0\.1:1' should answer within 0\.2 s"):
        latest_offsets(nobody, [TopicPartition("t", 0)])


def test_the_package_works_without_the_client_library_until_it_is_used() -> None:
    program = """if True:
        import sys
        sys.modules["confluent_kafka"] = None
        import upsert, upsert.kafka.client.consumer, upsert.kafka.client.producer
        from upsert.kafka.client.admin import topics
        from upsert.kafka.client.connection import Connection
        topics(Connection({"bootstrap.servers": "b:1"}), ["t"])
    """
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ConfigurationError" in run.stderr
    assert "pip install 'deltajoin[kafka]'" in run.stderr


def test_a_cache_closes_what_was_idle_longest() -> None:
    closed: list[str] = []
    cache = ClientCache[str](2, closed.append)
    for name in ("a", "b", "c"):
        cache.give_back(name, name)
    assert closed == ["a"]
    assert cache.take("b") == "b"
    assert cache.take("b") is None
    cache.give_back("c", "another c")
    assert closed == ["a", "c"]


def test_a_forked_child_never_sees_its_parents_clients() -> None:
    cache = ClientCache[str](2, lambda _: None)
    cache.give_back("key", "client")
    child = os.fork()
    if child == 0:
        os._exit(0 if cache.take("key") is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.take("key") == "client"
