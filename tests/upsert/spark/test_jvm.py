"""What is told of the end of the JVM."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import StreamRequestHandler
from threading import Event, Thread
from types import SimpleNamespace
from typing import cast

import pytest
from py4j.java_gateway import GatewayClient, GatewayParameters
from py4j.protocol import Py4JError, get_return_value
from pyspark import SparkContext
from pyspark.accumulators import AccumulatorTCPServer

from upsert.spark.jvm import is_no_lost_call, stop_without_a_wait


@contextmanager
def deaf() -> Iterator[int]:
    """The port of a server that closes each connection without an answer, as a JVM that ends."""

    def answer() -> None:
        while (connection := server.accept()[0]).recv(64).strip() != b"end":
            connection.close()
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        thread = Thread(target=answer)
        thread.start()
        yield port
        with socket.create_connection(("127.0.0.1", port)) as last:
            last.sendall(b"end")
        thread.join()


@pytest.mark.parametrize(("is_quiet", "told"), [(False, ["Exception while sending command."]), (True, [])])
def test_a_call_that_the_jvm_does_not_answer_leaves_no_trace(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_quiet: bool, told: list[str]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "filters", [is_no_lost_call] if is_quiet else [])  # a session may have left it
    with deaf() as port:
        client = GatewayClient(gateway_parameters=GatewayParameters(port=port))
        assert client.send_command("c\n") == "x", "py4j's word for an error"
    root.warning("of something else")
    assert [one.getMessage() for one in caplog.records] == [*told, "of something else"]


def test_nor_does_one_that_a_micro_batch_makes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it is an error of the call, which says nothing of the connection."""
    log = logging.getLogger("py4j.clientserver")
    monkeypatch.setattr(log, "filters", [is_no_lost_call])
    monkeypatch.setattr(logging.getLogger(), "filters", [is_no_lost_call])
    with deaf() as port:
        client = GatewayClient(gateway_parameters=GatewayParameters(port=port))
        answer = client.send_command("c\n")
    for answered in (answer, "xsno such method"):
        try:
            get_return_value(answered, client, "o1", "save")
        except Py4JError:
            log.exception("in a function")
    (told,) = caplog.records
    assert told.exc_info is not None
    assert "Trace:\nno such method" in str(told.exc_info[1])


def test_a_context_is_stopped_without_a_wait_for_the_server_of_its_accumulators() -> None:
    """It ends by itself, as soon as it has served who is connected."""
    serves, goes_on = Event(), Event()

    class Serving(StreamRequestHandler):
        def handle(self) -> None:
            serves.set()
            goes_on.wait()

    server = AccumulatorTCPServer(("localhost", 0), Serving, "token")
    thread = Thread(target=server.serve_forever)
    thread.start()
    stop_without_a_wait(cast("SparkContext", SimpleNamespace(_accumulatorServer=server)))
    with socket.create_connection(server.server_address[:2]):
        serves.wait()
        server.shutdown()
        assert thread.is_alive()
        goes_on.set()
    thread.join()
