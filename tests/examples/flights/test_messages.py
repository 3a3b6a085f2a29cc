"""What one process writes, another reads: whole messages only, each once."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.flights.messages import (
    Loaded,
    Message,
    QueryBatch,
    QueryStarted,
    Receiver,
    Sender,
    Wrote,
    decode,
    encode,
)

MESSAGES: list[Message] = [
    Loaded(4, 400),
    Wrote(1, "2013-01-01T10:00:00+00:00", 10, 2, 5, 6),
    QueryStarted("join", "one\ntwo ⋈ three"),
    QueryBatch("join", 3, 0.25, 10, 0, 0, 2),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_its_line(message: Message) -> None:
    assert "\n" not in encode(message)
    assert decode(encode(message)) == message


def test_messages_are_received_once_and_in_order(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path / "reports")
    assert receiver.receive() == []
    sender = Sender(tmp_path / "reports")
    for message in MESSAGES[:2]:
        sender.send(message)
    assert receiver.receive() == MESSAGES[:2]
    for message in MESSAGES[2:]:
        sender.send(message)
    assert receiver.receive() == MESSAGES[2:]
    assert receiver.receive() == []


def test_half_a_line_waits_for_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    line = encode(MESSAGES[2]) + "\n"
    receiver = Receiver(path)
    path.write_text(line[:-5], encoding="utf-8")
    assert receiver.receive() == []
    path.write_text(line, encoding="utf-8")
    assert receiver.receive() == [MESSAGES[2]]
