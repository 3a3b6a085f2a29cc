"""Kafka that cannot be reached: every client says why, and tries again for as long as the option says."""

import gc
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from upsert.errors import ConfigurationError, KafkaUnavailableError, TableNotFoundError
from upsert.kafka.client import admin, failures, producer
from upsert.kafka.client.connection import Connection, library
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.producer import produce
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.client.transactions import produce_once
from upsert.kafka.options import UPSERT
from upsert.kafka.table import KafkaTable
from upsert.kafka.topics import partitions_of
from upsert.schema import TableSchema
from upsert.testing import LocalKafka

PLACE = TopicPartition("t", 0)
ROWS = pa.table({"key": [b"k"], "value": [b"v"]})

CLIENTS: Mapping[str, Callable[[Connection], object]] = {
    "topics": lambda at: admin.topics(at, ["t"]),
    "pattern": lambda at: admin.topics(at, pattern="t"),
    "offsets": lambda at: admin.latest_offsets(at, [PLACE]),
    "group": lambda at: admin.group_markers(at, "g", [PLACE]),
    "produce": lambda at: produce(at, "t", [ROWS]),
    "produce once": lambda at: produce_once(at, "t", [ROWS], transactional_id="i", batch=0, fingerprint=""),
    "read": lambda at: list(read_range(at, PLACE, 0, 1)),
}


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_told", {})


def together(ask: Callable[[str], None]) -> None:
    """Do something with each kind of client at the same time: it is waiting that takes long."""
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        asked = {client: pool.submit(ask, client) for client in CLIENTS}
    failed = {client: failure for client, one in asked.items() if (failure := one.exception()) is not None}
    if failed:
        raise ExceptionGroup(f"clients: {', '.join(failed)}", [*failed.values()])  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("address", "cause"),
    [
        # nothing listens on the first ports of a machine
        ("127.0.0.1:{}", "Connection refused"),
        # a server would be asked for no name with an empty part: that may take long
        pytest.param("no-such-host-{}..invalid:9092", "Failed to resolve", marks=pytest.mark.long),
    ],
)
def test_the_cause_is_in_the_log_and_in_the_error(
    address: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    servers = {client: address.format(number) for number, client in enumerate(CLIENTS, 1)}

    def ask(client: str) -> None:
        # the library gives records up by itself then, and half of the time has gone when the cause is told
        patience_s = 4.0 if client == "produce" else 0.6
        told = rf"within {patience_s:g} s, and did not; last: .*{cause}"
        with pytest.raises(KafkaUnavailableError, match=told):
            CLIENTS[client](Connection({"bootstrap.servers": servers[client]}, patience_s=patience_s))

    with caplog.at_level(logging.WARNING, "upsert.kafka"):
        together(ask)
    said = [record.getMessage() for record in caplog.records if "cannot be reached" in record.getMessage()]
    for client, at in servers.items():
        (told,) = [one for one in said if f"Kafka at {at!r} cannot be reached: " in one]
        assert cause in told, client
    assert len(said) == len(servers)


@pytest.fixture(scope="module")
def own_broker() -> Iterator[LocalKafka]:
    with LocalKafka(own=True) as broker:
        at = Connection({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topic(at, "t", 1)
        produce(at, "t", [ROWS])
        yield broker
        broker.pause()  # it can be stopped all the same


@pytest.mark.kafka
def test_a_broker_that_hangs_is_no_end_of_a_partition_and_is_told_of(
    own_broker: LocalKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """It keeps its connections, so the library has no error to report, and gives offsets that are none."""
    # what is told of an address is told once a minute, and so is each client's
    servers = {
        client: ",".join([own_broker.bootstrap_servers] * count) for count, client in enumerate(CLIENTS, 1)
    }
    # a producer needs half a second for its id alone
    patience_s = {client: 2 if client == "produce once" else 1 for client in CLIENTS}

    def connection(client: str) -> Connection:
        known = {"bootstrap.servers": servers[client], "client.id": client}
        return Connection(known, patience_s=patience_s[client])

    def get_through(client: str) -> None:
        while True:
            with suppress(KafkaUnavailableError):  # a slow machine takes longer for the first answer
                CLIENTS[client](connection(client))
                break

    def hang(client: str) -> None:
        expected = f"should answer within {patience_s[client]} s, and did not"
        with pytest.raises(KafkaUnavailableError, match=expected):
            CLIENTS[client](connection(client))

    together(get_through)
    own_broker.pause()
    try:
        with caplog.at_level(logging.WARNING, "upsert.kafka"):
            together(hang)
    finally:
        own_broker.resume()
    said = [record.getMessage() for record in caplog.records]
    causes = "has not answered yet", "cannot be reached: "
    for client, at in servers.items():
        assert any(f"Kafka at {at!r} {cause}" in one for one in said for cause in causes), client


class Confirming:
    """A client whose broker confirms a record every two seconds, by the client's own clock."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.now = 0.0

    def flush(self, _: float) -> None:
        self.now += 2.0
        self.waiting -= 1

    def poll(self, _: float) -> None:
        """It has nothing to tell."""

    def monotonic(self) -> float:
        return self.now


def test_a_broker_that_confirms_slowly_is_not_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a task has written may take minutes; silence counts from the last record that was confirmed."""
    sender = producer.Sender(Connection({"bootstrap.servers": "127.0.0.1:1"}), "writing to t", {})
    sender.discard()
    sender.client = slow = Confirming(waiting=60)  # type: ignore[assignment]
    for module in (producer, failures):
        monkeypatch.setattr(module, "time", slow)
    with caplog.at_level(logging.WARNING, "upsert.kafka"):
        sender.flush()
    assert (slow.now, slow.now > failures.TELL_SECONDS) == (120.0, True)
    assert [record.getMessage() for record in caplog.records if record.name == "upsert.kafka"] == []


def test_a_try_has_no_client_but_its_own() -> None:
    """Each has threads and sockets; a process that waits for Kafka collects no circles of objects."""
    clients: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def ask(client: Any, _: float) -> Any:
        clients.append(weakref.ref(client))
        alive.append(sum(one() is not None for one in clients))
        if len(alive) == 3:
            raise ConfigurationError("enough")
        return client.describe_topics(library().TopicCollection(["t"]), request_timeout=0.1)

    gc.disable()
    try:
        with pytest.raises(ConfigurationError, match="enough"):
            admin.answers(Connection({"bootstrap.servers": "127.0.0.1:1"}), "t", ask)
    finally:
        gc.enable()
    assert alive == [1, 1, 1]


def test_a_request_that_ends_with_an_error_of_ours_leaves_no_client() -> None:
    """As where a partition is missing, which is asked for again while brokers may not have learnt of it."""
    clients: list[weakref.ref[Any]] = []

    def ask(client: Any, _: float) -> Any:
        clients.append(weakref.ref(client))
        return client.describe_topics(library().TopicCollection(["t"]), request_timeout=0.1)

    def refuse(_: Any) -> None:
        raise TableNotFoundError("t is missing")

    gc.disable()
    try:
        for _ in range(2):
            with pytest.raises(TableNotFoundError, match="t is missing"):
                admin.answers(Connection({"bootstrap.servers": "127.0.0.1:1"}), "t", ask, on_failure=refuse)
            assert [client() for client in clients] == [None] * len(clients)
    finally:
        gc.enable()


def test_the_option_says_how_long_it_is_tried() -> None:
    given = {"topic": "t", "properties.bootstrap.servers": "127.0.0.1:1", "connection.timeout": "400 ms"}
    schema = TableSchema.of({"id": pa.int64()}, primary_key=["id"])
    table = KafkaTable.of(UPSERT, schema, {**given, "key.format": "json", "format": "json"})
    with pytest.raises(KafkaUnavailableError, match=r"within 0\.4 s.*Connection refused"):
        partitions_of(table)


@pytest.fixture(scope="module")
def secured() -> Iterator[str]:
    """The address of a broker that asks for a password."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    users = 'username="admin" password="right" user_admin="right"'
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": f"{module} required {users};",
    }
    with LocalKafka(own=True, settings=settings) as broker:
        yield broker.bootstrap_servers


def login(servers: str, password: str) -> dict[str, str]:
    return {
        "bootstrap.servers": servers,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": password,
    }


@pytest.mark.kafka
def test_a_wrong_password_is_said_at_once(secured: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after the patience, which is longer than this test may take: trying again does not help."""
    monkeypatch.setattr(admin, "BLOCKING_SECONDS", 1.0)
    wrong = Connection(login(secured, "wr0ng"), patience_s=600)

    def ask(client: str) -> None:
        with pytest.raises(
            ConfigurationError, match="correct the user, the password or the rights"
        ) as refused:
            CLIENTS[client](wrong)
        assert "wr0ng" not in str(refused.value)

    together(ask)
    assert admin.topics(Connection(login(secured, "right")), ["t"]) == {}


@pytest.mark.kafka
def test_a_login_of_java_is_understood(secured: str) -> None:
    module = "org.apache.flink.kafka.shaded.org.apache.kafka.common.security.plain.PlainLoginModule"
    given = {
        "bootstrap.servers": secured,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{module} required username="admin" password="right";',
    }
    assert admin.topics(Connection(given), ["t"]) == {}


@pytest.mark.kafka
def test_a_broker_without_tls_is_told(kafka: LocalKafka) -> None:
    secure = {"bootstrap.servers": kafka.bootstrap_servers, "security.protocol": "ssl"}
    with pytest.raises(KafkaUnavailableError, match="SSL connection closed by peer"):
        admin.topics(Connection(secure, patience_s=1), ["t"])
