"""All options of the connectors ``upsert-kafka`` and ``kafka``, and how their texts are parsed (pure).

Names follow Flink's connectors (FLIP-149, FLIP-107 and later ones). One set of options serves the source and
the sink of a table. Options with a prefix are passed on: ``properties.*`` (or Spark's ``kafka.*``) to the
client library, ``key.<format>.*``, ``value.<format>.*`` and ``<format>.*`` to formats. Any name may begin
with ``secret.``: then Spark, which prints options in its plans, prints no value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from upsert import options
from upsert.errors import ConfigurationError
from upsert.formats.base import OF_CHANGES, OF_ROWS
from upsert.options import SECRET_PREFIX, Option
from upsert.store.table_options import SINK_MATERIALIZE

_OFFSETS: Final = re.compile(r"partition:(\d+),offset:(\d+)")


def specific_offsets(value: str) -> dict[int, int]:
    """Offsets by partition, from text like ``partition:0,offset:42;partition:1,offset:300``.

    >>> specific_offsets("partition:0,offset:42;partition:1,offset:300")
    {0: 42, 1: 300}
    """
    matches = [_OFFSETS.fullmatch(part.strip()) for part in value.strip(";").split(";")]
    found = {int(match[1]): int(match[2]) for match in matches if match}
    if len(found) != len(matches):
        raise ValueError(
            "offsets; they should follow the format 'partition:0,offset:42;partition:1,offset:300'"
        )
    return found


def topic_names(value: str) -> tuple[str, ...]:
    """Topic names separated by semicolons or commas.

    >>> topic_names("orders;returns")
    ('orders', 'returns')
    """
    parts = tuple(part.strip() for part in value.replace(",", ";").split(";"))
    if not all(re.fullmatch(r"[A-Za-z0-9._-]{1,249}", part) and part.strip(".") for part in parts):
        raise ValueError("topic names of letters, digits, '.', '_' and '-', separated by ';'")
    if len(set(parts)) != len(parts):
        raise ValueError("distinct topic names")
    return parts


def pattern(value: str) -> str:
    """A regular expression, matched against whole topic names."""
    try:
        re.compile(value)
    except re.error as cause:
        raise ValueError(f"a regular expression ({cause})") from None
    return options.text(value)


def partition_numbers(value: str) -> tuple[int, ...]:
    """Partition numbers separated by commas."""
    parts = value.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise ValueError("partition numbers separated by commas")
    return tuple(sorted({int(part) for part in parts}))


UPSERT: Final = "upsert-kafka"
"""The connector of topics that hold the newest value of each key."""
PLAIN: Final = "kafka"
"""The connector of all other topics; its Spark format is ``kafka-changelog``."""
CONNECTOR_ALIASES: Final = {"ktable": UPSERT}
"""FLIP-149 called ``upsert-kafka`` so."""

PROPERTY_PREFIXES: Final = ("properties.", "kafka.")

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})

_START: Final = "write 'scan.startup.mode', which a topic of the connector 'kafka' has"
_END: Final = "write 'scan.bounded.mode'"
_OF_SPARK: Final = {
    "bootstrap.servers": "write 'properties.bootstrap.servers'",
    "subscribe": "write 'topic'",
    "subscribepattern": "write 'topic-pattern'",
    "assign": "write 'topic' and 'scan.filter.partitions'",
    **dict.fromkeys(("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"), _START),
    **dict.fromkeys(("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"), _END),
}
"""What is written here instead of options of Spark's own Kafka source."""

_SHARED: Final = (
    Option("topic", topic_names, "one or more topics, separated by ';'", None),
    Option("topic-pattern", pattern, "regular expression that the whole name of a topic must match", None),
    Option(
        "value.format",
        options.text,
        f"format of values: {', '.join(OF_ROWS)}; for 'kafka' also those of changes: {', '.join(OF_CHANGES)}",
        None,
        aliases=("format",),
    ),
    Option("key.format", options.text, "format of keys", None),
    Option(
        "key.fields-prefix",
        options.text,
        "what the names of key columns begin with; the key format does not see it",
        "",
    ),
    Option(
        "value.fields-include",
        options.one_of("all", "except_key"),
        "ALL: values hold all columns; EXCEPT_KEY: those that are not in the key",
        "all",
    ),
    Option(
        "fields.verify-integrity",
        options.boolean,
        "whether a column that is in key and value must be equal in both",
        False,
    ),
    Option(
        "bad-records",
        options.one_of("fail", "skip", "dead-letter"),
        "if a record cannot be decoded: fail: the query stops; skip: the record is left out and counted; "
        "dead-letter: it is left out, and copied to the topic bad-records.topic",
        "fail",
    ),
    Option("bad-records.topic", topic_names, "the topic of bad-records = dead-letter", None),
    Option(
        "connection.timeout",
        options.duration_ms,
        "how long Kafka may be out of reach before a read or write gives up; the cause is logged after 3 s",
        120_000,
    ),
    Option(
        "mirror.path",
        options.text,
        "folder of the managed table that mirrors the topic",
        None,
        set_by="the catalog",
    ),
    Option(
        "mirror.not-given",
        options.text,
        "options of the query that the mirror does not have, so that it is not read",
        None,
        set_by="the catalog",
    ),
)

_SOURCE: Final = (
    Option(
        "scan.bounded.mode",
        options.one_of("unbounded", "latest-offset", "group-offsets", "timestamp", "specific-offsets"),
        "where a partition ends, looked up when the query starts first; the end is exclusive",
        "unbounded",
    ),
    Option(
        "scan.bounded.specific-offsets",
        specific_offsets,
        "ends by partition, as partition:0,offset:42;partition:1,offset:300; others are not read",
        None,
    ),
    Option("scan.bounded.timestamp-millis", options.integer(0), "end as milliseconds since 1970", None),
    Option(
        "scan.updates-before",
        options.boolean,
        "whether an update that keeps its key has its -U",
        True,
        set_by="writes into tables with a sequence.field",
    ),
    Option(
        "scan.topic-partition-discovery.interval",
        options.duration_ms,
        "how often to look for new topics and partitions; 0: never",
        300_000,
    ),
    Option(
        "max-rows-per-trigger",
        options.positive_int,
        "records that one micro-batch reads at most",
        1_000_000,
        aliases=("maxoffsetspertrigger",),
    ),
    Option(
        "fail-on-data-loss",
        options.boolean,
        "whether to stop when offsets not yet read are gone; false: continue with the earliest that is left",
        True,
        aliases=("failondataloss",),
    ),
    Option("row-kind", options.boolean, "whether rows have the column _row_kind; a stream must", True),
    Option(
        "state.path",
        options.text,
        "folder in which the newest row of each key is remembered, for the changes that need it; driver and "
        "executors share it; default in a catalog: beside the table's definition",
        None,
    ),
    Option(
        "state.ttl",
        options.duration_ms,
        "forget a key when it has had no record for this time, by the timestamps of records; default: never",
        None,
    ),
    Option("state.version", options.integer(0), "of the columns of these rows", 0, set_by="ALTER TABLE"),
)

_SINK: Final = (
    Option(
        "sink.delivery-guarantee",
        options.one_of("none", "at-least-once", "exactly-once"),
        "what a failure may do to records: none: lose them; at-least-once: write them twice; exactly-once: "
        "neither, for readers with isolation.level=read_committed",
        "at-least-once",
        aliases=("sink.semantic",),
    ),
    Option(
        "sink.transactional-id-prefix",
        options.text,
        "begins the transactional ids of exactly-once; unique to the query in its Kafka cluster",
        None,
    ),
    Option(
        "sink.transaction-naming-strategy",
        options.one_of("pooling"),
        "transactional ids are used again by the next micro-batch",
        "pooling",
    ),
    Option(
        "sink.parallelism",
        options.positive_int,
        "tasks that write a micro-batch; default: one for each partition of an upsert-kafka topic, else the "
        "tasks that have the rows",
        None,
    ),
    Option("topic.partitions", options.positive_int, "create a missing topic with so many partitions", None),
    Option(
        "topic.replication-factor",
        options.positive_int,
        "replicas of a topic that is created; default: that of the brokers",
        None,
    ),
    Option(
        "sink.micro-batch",
        options.micro_batch,
        "query and number of the micro-batch that a batch write belongs to",
        None,
        set_by="write_upsert",
    ),
)

_UPSERT_ONLY: Final = (
    Option(
        "sink.buffer-flush.max-rows",
        options.integer(0),
        "keys whose rows are gathered before they are written, the last row of each; 0: off",
        0,
    ),
    Option("sink.buffer-flush.interval", options.duration_ms, "longest time to gather rows; 0: off", 0),
    Option(
        "sink.row-order",
        options.one_of("arrival", "none"),
        "arrival: of each key the rows of a task come in order; none: they do not",
        "arrival",
        set_by="write_changes",
    ),
    Option(
        "scan.versions",
        options.boolean,
        "whether each record is given, not the newest of a key alone",
        False,
        set_by="joins as of a row's time",
    ),
    Option(
        "sequence.field",
        options.text,
        "column; of several rows of a key in a micro-batch the one with its highest value is written",
        None,
    ),
    SINK_MATERIALIZE,
    Option(
        "changelog",
        options.one_of("all", "upsert"),
        "all: every kind of change, with UPDATE_BEFORE; upsert: +U and -D only, one row a key a micro-batch",
        "all",
    ),
    Option(
        "allow-new-partitions",
        options.boolean,
        "whether partitions may be added to a topic; its keys move then, and their order is lost; a stream "
        "that normalizes stops in any case",
        False,
    ),
)

_PLAIN_ONLY: Final = (
    Option(
        "scan.parallelism",
        options.positive_int,
        "minimum number of tasks that share a micro-batch; only for formats of rows, because changes of a "
        "key must stay in order",
        None,
    ),
    Option("key.fields", options.names, "columns of the key, in this order", ()),
    Option(
        "scan.startup.mode",
        options.one_of("earliest-offset", "latest-offset", "group-offsets", "timestamp", "specific-offsets"),
        "where a query starts that has no checkpoint yet; group-offsets: those of properties.group.id",
        "earliest-offset",
    ),
    Option(
        "scan.startup.specific-offsets",
        specific_offsets,
        "starts by partition, as partition:0,offset:42;partition:1,offset:300",
        None,
    ),
    Option("scan.startup.timestamp-millis", options.integer(0), "start as milliseconds since 1970", None),
    Option("scan.filter.partitions", partition_numbers, "read these partitions only", None),
    Option("scan.filter.offset-from", options.integer(0), "read from this offset of each partition on", None),
    Option("scan.filter.offset-until", options.integer(0), "read up to this offset, exclusive", None),
    Option(
        "scan.filter.timestamp-from",
        options.integer(0),
        "skip the records before the first one of this time (milliseconds since 1970)",
        None,
    ),
    Option(
        "cdc-events-duplicate",
        options.boolean,
        "whether changes may come more than once: then they are normalized, which needs a primary key",
        False,
        aliases=("table.exec.source.cdc-events-duplicate",),
    ),
    Option(
        "scan.net-changes",
        options.boolean,
        "whether of each key only what its changes in a micro-batch leave is given",
        False,
        set_by="writes into tables with the primary key of the topic",
    ),
    Option(
        "scan.needs-before",
        options.boolean,
        "whether an update must have its row before",
        True,
        set_by="writes into tables with the primary key of the topic",
    ),
)

OPTIONS: Final[Mapping[str, tuple[Option, ...]]] = {
    UPSERT: (*_SHARED, *_SOURCE, *_SINK, *_UPSERT_ONLY),
    PLAIN: (*_SHARED, *_SOURCE, *_SINK, *_PLAIN_ONLY),
}
"""Every option of a connector that has no prefix."""

OF_READS: Final = frozenset(option.key for option in _SOURCE) - {"state.path", "state.version"} | {
    *("fields.verify-integrity", "bad-records", "bad-records.topic", "changelog", "allow-new-partitions"),
    *(option.key for option in _PLAIN_ONLY if option.key != "key.fields"),
}
"""Options that mean nothing for a write."""
OF_WRITES: Final = frozenset(option.key for option in _SINK) | {
    *("sink.buffer-flush.max-rows", "sink.buffer-flush.interval", "sink.row-order"),
    *("sequence.field", SINK_MATERIALIZE.key),
}
"""Options that mean nothing for a read."""
_NAMES: Final = {
    name: option.key
    for declared in OPTIONS.values()
    for option in declared
    for name in (option.key, *option.aliases)
}
_KEYWORDS: Final = {name.replace(".", "_").replace("-", "_"): key for name, key in _NAMES.items()}

ONE_TASK: Final = (
    "one task reads each partition of a topic of changes, for the order of its keys; give the topic more "
    "partitions, or leave it out"
)
_ALWAYS_EARLIEST: Final = (
    "unsupported option, an upsert topic is always read from the earliest offset: a later start would miss "
    "the keys that deletions are about; use the connector 'kafka' to start elsewhere"
)

_REFUSED: Final[Mapping[str, Mapping[str, str]]] = {
    UPSERT: {
        "scan.startup.": _ALWAYS_EARLIEST,
        "scan.filter.": _ALWAYS_EARLIEST,
        "key.fields": "unsupported option, the key of an upsert topic is the PRIMARY KEY",
        "sink.partitioner": "unsupported option, a key belongs to the partition of its hash",
        "cdc-events-duplicate": "unsupported option, an upsert topic holds no changes",
        "scan.parallelism": f"unsupported option, {ONE_TASK}",
    },
    PLAIN: {
        "sink.partitioner": "unsupported option; write a METADATA column FROM 'partition' instead",
        "changelog": "unsupported option, only 'upsert-kafka' has it",
    },
}


@dataclass(frozen=True)
class Given:
    """A table's options: the connector's, converted; the client's properties; those of formats as written."""

    values: Mapping[str, Any]
    properties: Mapping[str, str]
    formats: Mapping[str, str]


def parse(connector: str, given: Mapping[str, str], *, formats: frozenset[str], of: str) -> Given:
    """All options of a table of this connector, converted; those of ``formats`` begin with their name."""
    own: dict[str, str] = {}
    properties: dict[str, str] = {}
    of_formats: dict[str, str] = {}
    for name, value in given.items():
        key = name.lower().removeprefix(SECRET_PREFIX)
        prefix = next((p for p in PROPERTY_PREFIXES if key.startswith(p)), None)
        if key in _SPARKS_OWN:
            continue
        if prefix is not None:
            property_ = key.removeprefix(prefix)
            if properties.setdefault(property_, value) != value:
                raise ConfigurationError(
                    f"{of}: 'properties.{property_}' and 'kafka.{property_}' mean the same, and their values "
                    "differ; give one"
                )
        elif key.removeprefix("key.").removeprefix("value.").split(".")[0] in formats and "." in key:
            _set(of_formats, key, value, of)
        else:
            for refused, reason in _REFUSED[connector].items():
                if key == refused or (refused.endswith(".") and key.startswith(refused)):
                    raise ConfigurationError(f"{of}: {key!r}: {reason}")
            _set(own, key, value, of)
    return Given(options.parse(of, OPTIONS[connector], own, _OF_SPARK), properties, of_formats)


def _set(found: dict[str, str], key: str, value: str, of: str) -> None:
    if found.setdefault(key, value) != value:
        raise ConfigurationError(
            f"{of}: option {key!r} must be given once, in whichever case, got two values; give one"
        )


def key_of(name: str) -> str:
    """The key of an option that a query gives, which may be written as a keyword; other names as they are.

    >>> key_of("maxOffsetsPerTrigger"), key_of("scan_parallelism"), key_of("json.ignore-parse-errors")
    ('max-rows-per-trigger', 'scan.parallelism', 'json.ignore-parse-errors')
    """
    written = name.lower()
    return _NAMES.get(written) or _KEYWORDS.get(written, written)


def check_in_use(names: Iterable[str], *, writes: bool, of: str) -> None:
    """Refuse options of one query, in a hint or as arguments, that are about the other direction.

    Those of a table serve its readers and its writers, and are never asked here.

    Raises:
        ConfigurationError: a read has an option of writes, or a write one of reads.

    >>> check_in_use(["Sink.Parallelism"], writes=False, of="table 't'")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    upsert.errors.ConfigurationError: table 't': option 'sink.parallelism' is for writes, got ...
    """
    here, others, place = (
        ("a write", "reads", "of a SELECT") if writes else ("a read", "writes", "of INSERT INTO")
    )
    for key in (key_of(name.lower().removeprefix(SECRET_PREFIX)) for name in names):
        if key in (OF_READS if writes else OF_WRITES):
            raise ConfigurationError(
                f"{of}: option {key!r} is for {others}, got it for {here}; give it after the table {place}, "
                "or in WITH (…) of the table"
            )
