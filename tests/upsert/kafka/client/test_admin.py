"""What a cluster has: topics, offsets, settings."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from upsert.errors import ConfigurationError, TableExistsError, TableNotFoundError
from upsert.kafka.client import admin
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.client.transactions import produce_once

pytestmark = pytest.mark.kafka
NewTopic = Callable[..., str]


def rows(count: int, start_ms: int = 1000) -> pa.Table:
    times = pa.array(range(start_ms, start_ms + count), pa.int64())
    return pa.table({"key": [b"k"] * count, "value": [b"v"] * count, "timestamp": times})


def test_topics_by_name_leave_out_what_is_not_there(connection: Connection, new_topic: NewTopic) -> None:
    name = new_topic(3)
    found = admin.topics(connection, [name, "not-there"])
    assert set(found) == {name}
    assert found[name].partitions == 3


def test_topics_by_pattern_match_whole_names(connection: Connection, new_topic: NewTopic) -> None:
    name = new_topic()
    assert set(admin.topics(connection, pattern=f"{name[:-1]}.")) == {name}
    assert admin.topics(connection, pattern=name[:-1]) == {}


def test_a_topic_made_anew_has_another_id(connection: Connection, new_topic: NewTopic) -> None:
    name = new_topic()
    before = admin.existing_topic(connection, name)
    admin.delete_topic(connection, name)
    assert admin.topics(connection, [name]) == {}
    admin.create_topic(connection, name, 1)
    assert admin.existing_topic(connection, name).id not in (None, before.id)


def test_a_topic_cannot_be_created_twice(connection: Connection, new_topic: NewTopic) -> None:
    with pytest.raises(TableExistsError, match="already exists"):
        admin.create_topic(connection, new_topic(), 1)


def test_a_setting_that_kafka_refuses_is_told(connection: Connection) -> None:
    with pytest.raises(ConfigurationError, match=r"cleanup\.policy"):
        admin.create_topic(connection, "refused", 1, {"cleanup.policy": "burn"})


def test_a_missing_partition_is_told(connection: Connection, new_topic: NewTopic) -> None:
    with pytest.raises(TableNotFoundError, match="has only 2"):
        admin.latest_offsets(connection, [TopicPartition(new_topic(2), 2)])


def test_a_missing_topic_is_told_by_name(connection: Connection) -> None:
    with pytest.raises(TableNotFoundError, match="'nowhere'"):
        admin.existing_topic(connection, "nowhere")
    with pytest.raises(TableNotFoundError, match="'nowhere'"):
        admin.latest_offsets(connection, [TopicPartition("nowhere", 0)])
    with pytest.raises(TableNotFoundError, match="nowhere"):
        admin.delete_topic(connection, "nowhere")


def test_offsets_of_both_ends_and_of_a_time(connection: Connection, new_topic: NewTopic) -> None:
    place = TopicPartition(new_topic(), 0)
    assert (
        admin.earliest_offsets(connection, [place]) == admin.latest_offsets(connection, [place]) == {place: 0}
    )
    produce(connection, place.topic, [rows(10)])
    assert admin.earliest_offsets(connection, [place]) == {place: 0}
    assert admin.latest_offsets(connection, [place]) == {place: 10}
    assert admin.offsets_for_time(connection, [place], 1004) == {place: 4}
    assert admin.offsets_for_time(connection, [place], 5000) == {place: 10}
    assert admin.latest_offsets(connection, []) == {}


def test_group_offsets_leave_out_partitions_without_one(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    produce_once(connection, topic, [rows(1)], transactional_id=topic, batch=6, fingerprint="")
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert admin.group_offsets(connection, topic, places) == {places[0]: 7}


def test_cleanup_policies_of_topics(connection: Connection, new_topic: NewTopic) -> None:
    both, plain = new_topic(**{"cleanup.policy": "compact,delete"}), new_topic()
    assert admin.cleanup_policies(connection, [both, plain]) == {
        both: frozenset({"compact", "delete"}),
        plain: frozenset({"delete"}),
    }
