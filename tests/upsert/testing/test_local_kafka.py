"""A broker for tests: which kind is taken, and that it ends when it should."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import REPOSITORY, wait_until
from upsert.errors import ConfigurationError, KafkaUnavailableError, UpsertError
from upsert.kafka.client.admin import topics
from upsert.kafka.client.connection import Connection
from upsert.testing import local_kafka
from upsert.testing.local_kafka import BOOTSTRAP_VARIABLE, LocalKafka, ProcessBroker

pytestmark = pytest.mark.kafka


def accepts_connections(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (ConnectionRefusedError, ConnectionResetError):  # reset: it ends just now
        return False
    return True


def test_an_address_in_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "elsewhere:9092")
    with LocalKafka() as broker:
        assert broker.bootstrap_servers == "elsewhere:9092"
        with pytest.raises(ConfigurationError, match="only a broker started here can be killed"):
            broker.kill()


def test_a_broker_that_was_not_started_has_no_address() -> None:
    with pytest.raises(UpsertError, match=r"call start\(\)"):
        _ = LocalKafka().bootstrap_servers


@pytest.mark.long
def test_a_killed_broker_comes_back_at_the_same_address() -> None:
    with LocalKafka(own=True) as broker:
        address = broker.bootstrap_servers
        assert accepts_connections(address)
        broker.kill()
        assert not accepts_connections(address)
        broker.restart()
        assert broker.bootstrap_servers == address
        assert accepts_connections(address)
    assert not accepts_connections(address)


@pytest.mark.long  # each try of `test_unreachable.py` pauses and resumes its broker, and stops a paused one
def test_a_broker_that_was_paused_answers_when_it_is_resumed_and_can_be_stopped() -> None:
    with LocalKafka(own=True) as broker:
        connection = Connection({"bootstrap.servers": broker.bootstrap_servers}, patience_s=1)
        broker.pause()
        with pytest.raises(KafkaUnavailableError):
            topics(connection, pattern="t")
        broker.resume()
        broker.create_topic("t")
        broker.pause()


def test_a_broker_ends_with_its_parent_even_when_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    environment.pop(BOOTSTRAP_VARIABLE, None)
    command = [sys.executable, "-m", "upsert.testing"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        address = parent.stdout.readline().strip()
        assert accepts_connections(address)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not accepts_connections(address))
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_a_broker_that_cannot_start_shows_the_end_of_its_log() -> None:
    with pytest.raises(UpsertError, match=r"could not be started — (?s:.)*num\.network\.threads"):
        ProcessBroker({"num.network.threads": "-1"}).start()


def test_no_java_is_told_with_a_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="no java was found below JAVA_HOME"):
        local_kafka.java()


def test_a_fetch_that_fails_leaves_no_folder_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(local_kafka, "_MODULE", "not what ivy reads")
    with pytest.raises(UpsertError, match="could not be fetched from Maven Central"):
        local_kafka.kafka_jars()
    assert [path.name for path in (tmp_path / "deltajoin").iterdir()] == [
        f"kafka-{local_kafka.KAFKA_VERSION}.lock"
    ]


def test_jars_that_are_missing_or_damaged_are_not_taken(tmp_path: Path) -> None:
    with pytest.raises(UpsertError, match=r"kafka_2\.13 is not among the 0 jars"):
        local_kafka._check(tmp_path)
    for name in local_kafka._NEEDED:
        (tmp_path / f"{name}-1.jar").write_bytes(b"half a download")
    with pytest.raises(UpsertError, match="is damaged"):
        local_kafka._check(tmp_path)
