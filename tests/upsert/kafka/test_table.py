"""What the options and columns of a Kafka table must be: each condition fires, and a good table passes."""

import pickle
from collections.abc import Mapping

import pyarrow as pa
import pytest

from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.kafka.options import PLAIN, UPSERT
from upsert.kafka.table import KafkaTable
from upsert.schema import Column, TableSchema

USERS = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"])
PREFIXED = TableSchema.of({"k_id": pa.int64(), "name": pa.string()}, primary_key=["k_id"])
BROKERS = {"properties.bootstrap.servers": "localhost:9092"}
GOOD = {**BROKERS, "topic": "users", "key.format": "json", "value.format": "json"}


def without(options: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in options.items() if name not in names}


def refusal(connector: str, options: Mapping[str, str], schema: TableSchema = USERS) -> str:
    with pytest.raises((ConfigurationError, SchemaError)) as error:
        KafkaTable.of(connector, schema, options, name="users")
    message = str(error.value)
    assert message.startswith("table 'users': ")
    return message


CONDITIONS = {
    "no primary key": (
        GOOD,
        TableSchema.of({"id": pa.int64()}),
        "requires to define a PRIMARY KEY constraint",
    ),
    "changes as keys": (GOOD | {"key.format": "debezium-json"}, USERS, "not in insert-only mode"),
    "changes as values": (GOOD | {"value.format": "canal-json"}, USERS, "not in insert-only mode"),
    "half a buffer": (
        GOOD | {"sink.buffer-flush.max-rows": "10"},
        USERS,
        "must be set to be greater than zero together",
    ),
    "exactly once without a prefix": (
        GOOD | {"sink.delivery-guarantee": "exactly-once"},
        USERS,
        "'sink.transactional-id-prefix' must be specified",
    ),
    "prefix and all fields": (GOOD | {"key.fields-prefix": "k_"}, PREFIXED, "A key prefix is not allowed"),
    "key without its prefix": (
        GOOD | {"key.fields-prefix": "k_", "value.fields-include": "EXCEPT_KEY"},
        USERS,
        "must be prefixed with 'k_'",
    ),
    "no bounding offsets": (
        GOOD | {"scan.bounded.mode": "specific-offsets"},
        USERS,
        "is required in 'specific-offsets' bounded mode",
    ),
    "no bounding time": (
        GOOD | {"scan.bounded.mode": "timestamp"},
        USERS,
        "is required in 'timestamp' bounded mode",
    ),
    "offsets of two topics": (
        GOOD
        | {
            "topic": "a;b",
            "scan.bounded.mode": "specific-offsets",
            "scan.bounded.specific-offsets": "partition:0,offset:1",
        },
        USERS,
        "only supports specific offset for single topic",
    ),
    "offsets in another form": (
        GOOD | {"scan.bounded.mode": "specific-offsets", "scan.bounded.specific-offsets": "0:42"},
        USERS,
        "should follow the format 'partition:0,offset:42;partition:1,offset:300'",
    ),
    "topic and pattern": (GOOD | {"topic-pattern": "u.*"}, USERS, "shouldn't be set together"),
    "no topic": (without(GOOD, "topic"), USERS, "must be set"),
    "a start": (GOOD | {"scan.startup.mode": "latest-offset"}, USERS, "unsupported option"),
    "key fields": (GOOD | {"key.fields": "id"}, USERS, "unsupported option"),
    "a partitioner": (GOOD | {"sink.partitioner": "round-robin"}, USERS, "unsupported option"),
    "an unknown option": (GOOD | {"key.formt": "json"}, USERS, "did you mean 'key.format'?"),
    "an option of Spark's source": (
        GOOD | {"startingOffsets": "earliest"},
        USERS,
        "write 'scan.startup.mode'",
    ),
    "a property without its prefix": (
        without(GOOD, "properties.bootstrap.servers") | {"bootstrap.servers": "b:9092"},
        USERS,
        "write 'properties.bootstrap.servers'",
    ),
    "no brokers": (
        without(GOOD, "properties.bootstrap.servers"),
        USERS,
        "'properties.bootstrap.servers' is required",
    ),
    "no key format": (without(GOOD, "key.format"), USERS, "'key.format' is required"),
    "no value format": (without(GOOD, "value.format"), USERS, "'value.format' is required"),
    "an unknown format": (GOOD | {"value.format": "xml"}, USERS, "unknown format 'xml'; formats are avro,"),
    "an option of an unused format": (
        GOOD | {"csv.null-literal": "-"},
        USERS,
        "a format that the table does not",
    ),
    "a group that is missing": (
        GOOD | {"scan.bounded.mode": "group-offsets"},
        USERS,
        "'group-offsets' needs the option 'properties.group.id'",
    ),
    "an odd start of a group": (
        GOOD
        | {
            "scan.bounded.mode": "group-offsets",
            "properties.group.id": "g",
            "properties.auto.offset.reset": "smallest",
        },
        USERS,
        "'properties.auto.offset.reset' must be earliest, latest or none",
    ),
    "two names of one property": (
        GOOD | {"kafka.bootstrap.servers": "other:9092"},
        USERS,
        "mean the same, and their values differ",
    ),
    "dead letters without a topic": (GOOD | {"bad-records": "dead-letter"}, USERS, "must be given together"),
    "an unknown sequence": (GOOD | {"sequence.field": "version"}, USERS, "unknown column 'version'"),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_upsert_table_is_refused(condition: str) -> None:
    options, schema, expected = CONDITIONS[condition]
    assert expected in refusal(UPSERT, options, schema)


def test_headers_and_header_list_are_ambiguous_when_both_are_written() -> None:
    headers = Column("h", pa.map_(pa.string(), pa.binary()), metadata="headers")
    element = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    entries = Column("l", pa.list_(element), metadata="header-list")
    schema = TableSchema((*USERS.columns, headers, entries), ("id",))
    assert "ambiguous" in refusal(UPSERT, GOOD, schema)
    virtual = Column("l", pa.list_(element), metadata="header-list", virtual=True)
    assert KafkaTable.of(UPSERT, TableSchema((*USERS.columns, headers, virtual), ("id",)), GOOD)


def test_good_tables_of_both_connectors_survive_pickling() -> None:
    tables = [
        KafkaTable.of(UPSERT, USERS, GOOD),
        KafkaTable.of(PLAIN, USERS, {**BROKERS, "topic": "t", "format": "debezium-json"}),
    ]
    assert pickle.loads(pickle.dumps(tables)) == tables


def test_older_names_of_flip_149_mean_the_same() -> None:
    older = KafkaTable.of("ktable", USERS, GOOD | {"sink.semantic": "none"})
    newer = KafkaTable.of(UPSERT, USERS, GOOD | {"sink.delivery-guarantee": "none"})
    assert (older.connector, older.values) == (newer.connector, newer.values)


def test_key_columns_are_in_the_order_of_the_primary_key() -> None:
    schema = TableSchema.of({"a": pa.int64(), "b": pa.string(), "v": pa.int32()}, primary_key=["b", "a"])
    table = KafkaTable.of(UPSERT, schema, GOOD)
    assert table.key is not None
    assert (table.key.fields.names, table.value.columns) == (["b", "a"], ("a", "b", "v"))


def test_key_format_sees_names_without_the_prefix() -> None:
    options = GOOD | {"key.fields-prefix": "k_", "value.fields-include": "EXCEPT_KEY"}
    table = KafkaTable.of(UPSERT, PREFIXED, options)
    assert table.key is not None
    assert (table.key.columns, table.key.fields.names, table.value.columns) == (("k_id",), ["id"], ("name",))


def test_options_of_formats_may_leave_out_the_prefix_of_values() -> None:
    options = GOOD | {"json.ignore-parse-errors": "true", "key.json.fail-on-missing-field": "true"}
    table = KafkaTable.of(UPSERT, USERS, options)
    assert table.key is not None
    assert table.value.options["ignore-parse-errors"]
    assert not table.key.options["ignore-parse-errors"]
    assert table.key.options["fail-on-missing-field"]


def test_topic_is_writable_where_several_are_configured() -> None:
    topic = Column("topic", pa.string(), metadata="topic")
    schema = TableSchema((*USERS.columns, topic), ("id",))
    table = KafkaTable.of(UPSERT, schema, GOOD | {"topic": "a;b"})
    assert [c.key.key for c in table.metadata(writing=True)] == ["topic"]
    with pytest.raises(SchemaError, match="read-only; declare it as METADATA FROM 'topic' VIRTUAL"):
        KafkaTable.of(UPSERT, schema, GOOD).metadata(writing=True)


def test_secrets_are_not_in_the_repr() -> None:
    table = KafkaTable.of(UPSERT, USERS, GOOD | {"properties.sasl.password": "hunter2"})
    assert "hunter2" not in repr(table)


def test_partition_is_writable_only_where_keys_need_not_stay_together() -> None:
    schema = TableSchema(
        (*USERS.columns, Column("p", types.SCALARS["integer"], metadata="partition")), ("id",)
    )
    plain = KafkaTable.of(PLAIN, schema, {**BROKERS, "topic": "t", "format": "json"})
    assert [c.key.key for c in plain.metadata(writing=True)] == ["partition"]
    with pytest.raises(SchemaError, match="read-only"):
        KafkaTable.of(UPSERT, schema, GOOD).metadata(writing=True)


def test_repeated_changes_need_a_format_of_changes() -> None:
    options = {**BROKERS, "topic": "t", "format": "json", "cdc-events-duplicate": "true"}
    assert "is for formats of changes, got 'json'" in refusal(PLAIN, options)


def test_an_update_needs_no_row_before_where_its_key_says_which_row_it_replaces() -> None:
    """Debezium's alone: of GoldenGate only that row says which key the row had."""
    schema = TableSchema.of({"k": pa.string(), "n": pa.int64()}, primary_key=["k"])

    def needs_before(format_: str, **options: str) -> bool:
        given = {"properties.bootstrap.servers": "h:1", "topic": "t", "format": format_} | options
        return KafkaTable.of(PLAIN, schema, given).needs_before

    assert needs_before("debezium-json")
    assert not needs_before("debezium-json", **{"cdc-events-duplicate": "true"})
    assert not needs_before("debezium-json", **{"scan.needs-before": "false"})
    assert needs_before("ogg-json", **{"cdc-events-duplicate": "true"})
