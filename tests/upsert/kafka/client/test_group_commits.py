"""Offsets of a stream in a consumer group: what is committed when, and what happens where it cannot be."""

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from upsert.kafka.client import admin
from upsert.kafka.client.admin import GroupCommits, group_offsets
from upsert.kafka.client.connection import Connection, library
from upsert.kafka.client.records import TopicPartition

pytestmark = pytest.mark.kafka
NewTopic = Callable[..., str]


@pytest.fixture
def group(connection: Connection, new_topic: NewTopic) -> str:
    """One that the broker knows: for its first one it makes a topic, longer than a commit is waited for."""
    name = f"group-{uuid.uuid4().hex[:12]}"
    assert group_offsets(connection, name, [TopicPartition(new_topic(), 0)]) == {}
    return name


@contextmanager
def member_of(connection: Connection, group: str, topic: str) -> Iterator[None]:
    """Somebody who has joined the group."""
    consumer = library().Consumer(
        {"bootstrap.servers": connection.bootstrap_servers, "group.id": group, "enable.auto.commit": False}
    )
    joined: list[object] = []
    consumer.subscribe([topic], on_assign=lambda _, partitions: joined.extend(partitions))
    deadline = time.monotonic() + 60
    while not joined:
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    try:
        yield
    finally:
        consumer.close()


def test_group_has_the_newest_offsets_of_all_partitions(
    connection: Connection, new_topic: NewTopic, group: str
) -> None:
    topic = new_topic(partitions=2)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    commits = GroupCommits(connection, group, "words")
    assert commits.commit({})
    assert group_offsets(connection, group, [one, two]) == {}
    for offsets in ({one: 5}, {one: 5, two: 0}, {one: 4, two: 9}):
        assert commits.commit(offsets)
        assert group_offsets(connection, group, [one, two]) == offsets


def test_offsets_that_have_not_changed_are_committed_again_after_an_hour(
    connection: Connection, new_topic: NewTopic, group: str
) -> None:
    """A group that is idle for a week is forgotten by the brokers, though its query runs."""
    place = TopicPartition(new_topic(), 0)
    clock = [0.0]
    commits = GroupCommits(connection, group, "words", now=lambda: clock[0])
    assert commits.commit({place: 5})
    other = GroupCommits(connection, group, "words")
    assert other.commit({place: 1})
    clock[0] = 3_599
    assert commits.commit({place: 5})
    assert group_offsets(connection, group, [place]) == {place: 1}
    clock[0] = 3_601
    assert commits.commit({place: 5})
    assert group_offsets(connection, group, [place]) == {place: 5}


def test_commit_into_a_group_that_others_have_joined_is_logged_and_tried_again(
    connection: Connection, new_topic: NewTopic, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    place = TopicPartition(topic, 0)
    clock = [0.0]
    commits = GroupCommits(connection, group, "words", now=lambda: clock[0])
    with caplog.at_level(logging.WARNING, "upsert.kafka"), member_of(connection, group, topic):
        assert not commits.commit({place: 5})
        assert not commits.commit({place: 5})
    (record,) = (one for one in caplog.records if one.name == "upsert.kafka")  # and what the library says
    assert record.getMessage().startswith(
        f"words: its offsets should be committed to the consumer group {group!r}"
    )
    assert "unknown member" in record.getMessage().lower()
    clock[0] = 11
    assert commits.commit({place: 5})
    assert group_offsets(connection, group, [place]) == {place: 5}


def test_brokers_that_are_away_are_not_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_WAIT_SECONDS", 0.3)
    nobody = Connection({"bootstrap.servers": "localhost:1"}, patience_s=30)
    with caplog.at_level(logging.WARNING, "upsert.kafka"):
        assert not GroupCommits(nobody, "g", "words").commit({TopicPartition("t", 0): 5})
    assert "the group's broker did not answer within 0.3 s" in caplog.text
