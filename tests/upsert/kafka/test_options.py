"""Every option of the Kafka connectors with a value that is taken and one that is refused."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from upsert.errors import ConfigurationError, SchemaError
from upsert.kafka.options import OF_READS, OF_WRITES, OPTIONS, PLAIN, UPSERT, check_in_use
from upsert.kafka.table import KafkaTable
from upsert.schema import TableSchema

WORDS = TableSchema.of({"word": pa.string(), "n": pa.int64()}, primary_key=["word"])
BASE: dict[str, dict[str, str]] = {
    UPSERT: {"key.format": "json", "value.format": "json"},
    PLAIN: {"key.format": "json", "value.format": "json", "key.fields": "word"},
}
WHERE = {"topic": "t", "properties.bootstrap.servers": "localhost:9092", "properties.group.id": "g"}


@dataclass(frozen=True)
class Try:
    """What is written, what it means, what is refused and with which words; other options that it needs."""

    good: str
    value: Any
    bad: str
    message: str
    needs: dict[str, str] = field(default_factory=dict)


BOOLEAN = ("maybe", "must be true or false")
NUMBER = ("-1", "must be an integer of at least 0")
POSITIVE = ("0", "must be a positive integer")
DURATION = ("soon", "must be a duration like")
OFFSETS = ("0:42", "should follow the format 'partition:0,offset:42;partition:1,offset:300'")

TRIES: dict[str, Try] = {
    "topic": Try("a;b", ("a", "b"), "a;;b", "must be topic names"),
    "topic-pattern": Try("t.*", "t.*", "t(", "must be a regular expression", {"topic": ""}),
    "value.format": Try("avro", "avro", "xml", "unknown format 'xml'"),
    "key.format": Try("raw", "raw", "yaml", "unknown format 'yaml'"),
    "key.fields-prefix": Try(
        "w", "w", "k_", "must be prefixed with 'k_'", {"value.fields-include": "EXCEPT_KEY"}
    ),
    "value.fields-include": Try("EXCEPT_KEY", "except_key", "SOME", "must be one of all, except_key"),
    "fields.verify-integrity": Try("true", True, *BOOLEAN),
    "connection.timeout": Try("5 s", 5_000, "soon", "must be a duration"),
    "bad-records": Try("skip", "skip", "ignore", "must be one of fail, skip, dead-letter"),
    "bad-records.topic": Try(
        "letters",
        ("letters",),
        "t",
        "must be one topic that the table does not read",
        {"bad-records": "dead-letter"},
    ),
    "scan.bounded.mode": Try("latest-offset", "latest-offset", "today", "must be one of unbounded, "),
    "scan.bounded.specific-offsets": Try(
        "partition:0,offset:42;partition:1,offset:300",
        {0: 42, 1: 300},
        *OFFSETS,
        {"scan.bounded.mode": "specific-offsets"},
    ),
    "scan.bounded.timestamp-millis": Try("0", 0, *NUMBER, {"scan.bounded.mode": "timestamp"}),
    "scan.topic-partition-discovery.interval": Try("10 s", 10_000, *DURATION),
    "scan.parallelism": Try("4", 4, *POSITIVE),
    "max-rows-per-trigger": Try("4", 4, *POSITIVE),
    "fail-on-data-loss": Try("false", False, *BOOLEAN),
    "row-kind": Try("false", False, *BOOLEAN),
    "state.path": Try("/state", "/state", "", "must be a non-empty text"),
    "state.version": Try("2", 2, *NUMBER),
    "scan.versions": Try("true", True, *BOOLEAN),
    "scan.updates-before": Try("false", False, *BOOLEAN),
    "mirror.path": Try("/mirror", "/mirror", "", "must be a non-empty text"),
    "mirror.not-given": Try("bad-records", "bad-records", "", "must be a non-empty text"),
    "state.ttl": Try("1 d", 86_400_000, *DURATION),
    "sink.materialize": Try("force", "force", "perhaps", "must be one of auto, force, none"),
    "sink.delivery-guarantee": Try(
        "none", "none", "perhaps-once", "must be one of none, at-least-once, exactly-once"
    ),
    "sink.transactional-id-prefix": Try(
        "p", "p", "", "must be a non-empty text", {"sink.delivery-guarantee": "exactly-once"}
    ),
    "sink.transaction-naming-strategy": Try("pooling", "pooling", "INCREMENTING", "must be one of pooling"),
    "sink.parallelism": Try("2", 2, *POSITIVE),
    "topic.partitions": Try("2", 2, *POSITIVE),
    "topic.replication-factor": Try("3", 3, *POSITIVE),
    "sink.micro-batch": Try("id:7", ("id", 7), "7", "must be the id of a query and the number"),
    "sink.buffer-flush.max-rows": Try("10", 10, *NUMBER, {"sink.buffer-flush.interval": "1 s"}),
    "sink.buffer-flush.interval": Try("1 s", 1_000, *DURATION, {"sink.buffer-flush.max-rows": "10"}),
    "sink.row-order": Try("none", "none", "random", "must be one of arrival, none"),
    "sequence.field": Try("n", "n", "version", "unknown column 'version'"),
    "changelog": Try("upsert", "upsert", "+I", "must be one of all, upsert"),
    "allow-new-partitions": Try("true", True, *BOOLEAN),
    "key.fields": Try("word,n", ("word", "n"), "wurd", "unknown column 'wurd'"),
    "scan.startup.mode": Try("latest-offset", "latest-offset", "noon", "must be one of earliest-offset, "),
    "scan.startup.specific-offsets": Try(
        "partition:0,offset:42", {0: 42}, *OFFSETS, {"scan.startup.mode": "specific-offsets"}
    ),
    "scan.startup.timestamp-millis": Try("5", 5, *NUMBER, {"scan.startup.mode": "timestamp"}),
    "scan.filter.partitions": Try("2,0", (0, 2), "two", "must be partition numbers"),
    "scan.filter.offset-from": Try("5", 5, *NUMBER),
    "scan.filter.offset-until": Try("5", 5, *NUMBER),
    "scan.filter.timestamp-from": Try("5", 5, *NUMBER),
    "cdc-events-duplicate": Try("true", True, *BOOLEAN, {"value.format": "debezium-json"}),
    "scan.needs-before": Try("false", False, *BOOLEAN, {"value.format": "debezium-json"}),
    "scan.net-changes": Try("true", True, *BOOLEAN, {"value.format": "debezium-json"}),
}
CASES = [(connector, option.key) for connector, declared in OPTIONS.items() for option in declared]


def table(connector: str, name: str, text: str) -> KafkaTable:
    others = {key: value for key, value in WHERE.items() if key != "properties.group.id"}
    given = {**others, **BASE[connector], **TRIES[name].needs, name: text}
    if TRIES[name].needs.get("topic") == "":
        del given["topic"]
    return KafkaTable.of(connector, WORDS, given, name="words")


def test_every_option_is_tried() -> None:
    assert set(TRIES) == {option.key for declared in OPTIONS.values() for option in declared}


@pytest.mark.parametrize(("connector", "name"), CASES)
def test_a_good_value_is_taken(connector: str, name: str) -> None:
    assert table(connector, name, TRIES[name].good).values[name] == TRIES[name].value


@pytest.mark.parametrize(("connector", "name"), CASES)
def test_a_bad_value_is_refused(connector: str, name: str) -> None:
    with pytest.raises((ConfigurationError, SchemaError)) as error:
        table(connector, name, TRIES[name].bad)
    assert str(error.value).startswith("table 'words': ")
    assert TRIES[name].message in str(error.value)


@pytest.mark.parametrize("name", ["topic", "value.json.ignore-parse-errors"])
def test_an_option_in_two_cases_is_refused(name: str) -> None:
    given = {**WHERE, **BASE[UPSERT], name: "true"}
    assert KafkaTable.of(UPSERT, WORDS, given | {name.upper(): "true"}).name
    with pytest.raises(ConfigurationError, match=f"option '{name}' must be given once"):
        KafkaTable.of(UPSERT, WORDS, given | {name.upper(): "false"})


@pytest.mark.parametrize("text", [str(2**63), "9" * 5000])
def test_a_number_that_no_client_takes_is_refused(text: str) -> None:
    assert table(PLAIN, "scan.startup.timestamp-millis", str(2**63 - 1)).name
    with pytest.raises(ConfigurationError, match=f"must be an integer of at most {2**63 - 1}"):
        table(PLAIN, "scan.startup.timestamp-millis", text)


@pytest.mark.parametrize(
    "name",
    ["scan.startup.mode", "scan.filter.partitions", "key.fields", "sink.partitioner", "scan.parallelism"],
)
def test_upsert_topics_refuse_what_belongs_to_others(name: str) -> None:
    given = {**WHERE, **BASE[UPSERT], name: "x"}
    with pytest.raises(ConfigurationError, match="unsupported option"):
        KafkaTable.of(UPSERT, WORDS, given)


OF_BOTH = {
    *("topic", "topic-pattern", "value.format", "key.format", "key.fields", "key.fields-prefix"),
    *("value.fields-include", "connection.timeout", "state.path"),
}
OF_THE_CATALOG = {"mirror.path", "mirror.not-given", "state.version", "scan.versions"}
"""Those that the catalog sets itself."""


@pytest.mark.parametrize(("connector", "name"), CASES)
def test_an_option_of_a_query_is_of_its_direction(connector: str, name: str) -> None:
    """An option that nothing of the query would look at is refused by name."""
    assert (name in OF_READS) + (name in OF_WRITES) + (name in OF_BOTH | OF_THE_CATALOG) == 1
    (declared,) = (option for option in OPTIONS[connector] if option.key == name)
    for writes, others in ((False, OF_WRITES), (True, OF_READS)):
        keyword = name.replace(".", "_").replace("-", "_")
        for written in (name, f"secret.{name}".upper(), keyword, *declared.aliases):
            if name not in others:
                check_in_use([written], writes=writes, of="table 't'")
                continue
            said = f"table 't': option '{name}' is for {'reads' if writes else 'writes'}, got it for a "
            with pytest.raises(ConfigurationError, match=said):
                check_in_use(["topic", "json.x", written], writes=writes, of="table 't'")
