"""What clients of librdkafka have in common: they say what they meet, and Ctrl-C always gets through."""

import logging
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

import pytest

from upsert.errors import ConfigurationError
from upsert.kafka.client import failures, librdkafka
from upsert.kafka.client.connection import LOGGER, Connection
from upsert.kafka.client.librdkafka import Client
from upsert.kafka.client.message_consumer import Consumer
from upsert.kafka.client.message_producer import Producer
from upsert.kafka.client.producer import Sender

Properties = Mapping[str, object]


def consumer(properties: Properties, on_error: Callable[[object], None]) -> Client:
    return Consumer({"group.id": "g", **properties}, on_error)


def producer(properties: Properties, on_error: Callable[[object], None]) -> Client:
    return Producer(properties, on_error, lambda *_: None)


CLIENTS = pytest.mark.parametrize("made", [consumer, producer])
NOBODY: Properties = {"bootstrap.servers": "127.0.0.1:1", "reconnect.backoff.max.ms": 100}


def test_a_client_library_without_a_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(librdkafka, "_CALLS", {"of_another_release": (None, ())})
    with pytest.raises(ConfigurationError, match="has no 'rd_kafka_of_another_release'; install"):
        librdkafka.functions.__wrapped__()
    monkeypatch.setattr(librdkafka, "functions", librdkafka.functions.__wrapped__)
    with pytest.raises(ConfigurationError, match=r"^the package confluent-kafka .* from a wheel of PyPI$"):
        Sender(Connection({"bootstrap.servers": "127.0.0.1:1"}), "writing", {})


@CLIENTS
def test_errors_and_lines_of_the_log_are_handed_on(
    made: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    met: list[object] = []
    client = made({**NOBODY, "debug": "broker"}, met.append)
    deadline = time.monotonic() + 60
    with caplog.at_level(logging.DEBUG, LOGGER.name):
        while not (met and caplog.records) and time.monotonic() < deadline:
            client.poll(0.1)
    client.close()
    assert "_TRANSPORT" in repr(met)
    assert f"[deltajoin#{made.__name__}-" in caplog.text or f"[rdkafka#{made.__name__}-" in caplog.text


@CLIENTS
def test_ctrl_c_while_a_client_hands_on_what_it_met_is_raised(made: Callable[..., Client]) -> None:
    """A function of Python that a C library calls would lose it."""
    client = made(NOBODY, lambda _: signal.raise_signal(signal.SIGINT))
    deadline = time.monotonic() + 60

    def poll() -> None:
        while time.monotonic() < deadline:
            client.poll(0.1)

    with pytest.raises(KeyboardInterrupt):
        poll()
    client.close()


def test_ctrl_c_while_the_library_is_loaded_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it is there then, and to ask for the rest would fail in another way."""
    raised = iter([KeyboardInterrupt(), NameError("half of it is there")])

    def interrupted() -> NoReturn:
        raise next(raised)

    monkeypatch.setattr(failures, "library", interrupted)
    with pytest.raises(KeyboardInterrupt):
        failures.made(Connection({"bootstrap.servers": "127.0.0.1:1"}), "writing", interrupted)


@CLIENTS
def test_brokers_are_told_what_software_asks(made: Callable[..., Client]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = made({"bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}"}, lambda _: None)
        told, _ = server.accept()
        with told:
            request = told.recv(1000)
    client.close()
    assert b"confluent-kafka-python" in request
    assert b"-rdkafka-" in request


def test_tokens_are_renewed(caplog: pytest.LogCaptureFixture) -> None:
    """librdkafka does it by itself: a token that it would ask for as an event is nobody's."""
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": True,
        "sasl.oauthbearer.config": "principal=p lifeSeconds=1",
        "debug": "security",
    }
    client = producer({**NOBODY, **login}, lambda _: None)
    deadline = time.monotonic() + 60
    with caplog.at_level(logging.DEBUG, LOGGER.name):
        while caplog.text.count("Creating unsecured token") < 2 and time.monotonic() < deadline:
            client.poll(0.1)
    client.close()
    assert caplog.text.count("Creating unsecured token") >= 2


def test_a_client_that_was_ended_has_no_functions() -> None:
    """In the library they would work on memory that is free."""
    client = producer(NOBODY, lambda _: None)
    client.close()
    with pytest.raises(KeyError):
        client.poll(0)
