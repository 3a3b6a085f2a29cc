"""The options of a managed table's log, ``log.…`` in WITH (…): declared, checked, and as one value (pure).

Follows FLIP-188. ``log.kafka.*`` goes to the Kafka client, but for ``log.kafka.topic``. Options of a log
may be given to a table that has none: a session has them for all of its tables. A log's formats are checked
when the table is made, and get the table's columns as here when it is written and read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from upsert import options
from upsert.errors import ConfigurationError
from upsert.formats.base import Format, FormatContext, Side, format_named
from upsert.options import Option, is_secret
from upsert.schema import Column, TableSchema
from upsert.store.rows.merge_rules import MergeRules

NONE: Final = "none"
KAFKA: Final = "kafka"
TRANSACTIONAL: Final = "transactional"
EVENTUAL: Final = "eventual"
UPSERT: Final = "upsert"
ALL: Final = "all"
TOPIC: Final = "log.kafka.topic"
SERVERS: Final = "log.kafka.bootstrap.servers"
_COMMITTED: Final = "read_committed"

CLIENT_PREFIX: Final = "log.kafka."
"""Begins the options of Kafka's client library; see ``is_of_client``."""


def topic_name(value: str) -> str:
    """The name that a topic may have."""
    signs = value.replace(".", "").replace("_", "").replace("-", "")
    if not signs.isalnum() or not value.isascii() or len(value) > 249:
        raise ValueError("a topic's name of letters, digits, '.', '_' and '-'")
    return value


LOG_OPTIONS: Final = (
    Option(
        "log.system",
        options.one_of(NONE, KAFKA),
        "where the changes of the table go besides its files: none, or a topic of Kafka",
        NONE,
    ),
    Option(SERVERS, options.text, "brokers of the log, as host:port,…", None),
    Option(
        TOPIC,
        topic_name,
        "topic of the log; default: made of the table's name and a random number when it is created",
        None,
    ),
    Option(
        "log.retention",
        options.duration_ms,
        "how long Kafka keeps the changes; default: as the brokers are set up",
        None,
    ),
    Option(
        "log.consistency",
        options.one_of(TRANSACTIONAL, EVENTUAL),
        "transactional: changes are in the log once they are committed; eventual: they are in it earlier, "
        "and in the end the newest one of a key is right; needs a primary key",
        TRANSACTIONAL,
    ),
    Option(
        "log.changelog-mode",
        options.one_of("auto", UPSERT, ALL),
        "upsert: the log has no UPDATE_BEFORE; all: it has; auto: upsert with a primary key, else all",
        "auto",
    ),
    Option("log.key.format", options.text, "format of the log's keys, where there is a primary key", "json"),
    Option("log.format", options.text, "format of the log's values, one of changes", "debezium-json"),
    Option(
        "log.scan",
        options.one_of("full", "latest", "from-timestamp"),
        "where a stream starts that reads the log: full = a snapshot and then its changes; latest; "
        "from-timestamp",
        "full",
    ),
    Option(
        "log.scan.timestamp-mills",
        options.integer(0),
        "the start of log.scan = from-timestamp: milliseconds since 1970",
        None,
    ),
)
"""Every option of a log that has a name of its own."""

OF_ONE_TABLE: Final = (TOPIC, "log.scan", "log.scan.timestamp-mills")
"""Options that a session does not have for all of its tables."""

FIXED: Final[Mapping[str, str]] = {
    "log.system": "system",
    TOPIC: "topic",
    "log.consistency": "consistency",
    "log.changelog-mode": "changelog_mode",
    "log.key.format": "key_format",
    "log.format": "format",
}
"""Options that cannot change in the life of a log, for what lies in the topic was written by them, and the
attributes of ``LogOptions`` that hold them."""


@dataclass(frozen=True)
class LogOptions:
    """The log of one table; what the fields mean is said by ``LOG_OPTIONS``.

    ``topic`` is None until the table is created, ``changelog_mode`` "upsert" or "all", for "auto" has been
    resolved. The client's ``properties`` may hold secrets, and are not in the repr.
    """

    system: str = NONE
    topic: str | None = None
    retention_ms: int | None = None
    consistency: str = TRANSACTIONAL
    changelog_mode: str = ALL
    key_format: str = "json"
    format: str = "debezium-json"
    scan: str = "full"
    scan_timestamp_ms: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @property
    def is_kafka(self) -> bool:
        """Whether the table has a log."""
        return self.system == KAFKA

    @property
    def is_eventual(self) -> bool:
        """Whether changes come into the log before they are committed."""
        return self.is_kafka and self.consistency == EVENTUAL

    @property
    def bootstrap_servers(self) -> str:
        """The brokers, as ``host:port,…``."""
        return self.properties.get("bootstrap.servers", "")


def is_of_client(key: str) -> bool:
    """Whether an option is one of Kafka's client library that ``LOG_OPTIONS`` does not declare."""
    name = key.lower()
    return name.startswith(CLIENT_PREFIX) and name not in (SERVERS, TOPIC)


def file_mode(keys: Iterable[str]) -> int:
    """Permissions of a file with these options: passwords are its owner's alone."""
    return 0o600 if any(is_of_client(key) and is_secret(key) for key in keys) else 0o666


def split(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options without those of the client library, and these without their prefix."""
    others = {key: value for key, value in given.items() if not is_of_client(key)}
    own = {key.lower().removeprefix(CLIENT_PREFIX): text for key, text in given.items() if is_of_client(key)}
    return others, own


def log_options(
    owner: str, values: Mapping[str, Any], client: Mapping[str, str], schema: TableSchema, merge: MergeRules
) -> LogOptions:
    """The log that a table of this schema has.

    ``values`` are converted options, those of ``LOG_OPTIONS`` among them, ``client`` the client's properties.
    """
    if values["log.scan"] == "from-timestamp" and values["log.scan.timestamp-mills"] is None:
        raise ConfigurationError(
            f"{owner}: option 'log.scan' = 'from-timestamp' needs 'log.scan.timestamp-mills', got none; "
            "set it"
        )
    if values["log.system"] == NONE:
        return LogOptions(scan=values["log.scan"], scan_timestamp_ms=values["log.scan.timestamp-mills"])
    servers = values[SERVERS]
    if servers is None:
        raise ConfigurationError(
            f"{owner}: option 'log.system' = 'kafka' needs {SERVERS!r}, got none; set it, or for all "
            f"tables of a session 'table-storage.{SERVERS}'"
        )
    if (level := client.get("isolation.level", _COMMITTED)) != _COMMITTED:
        raise ConfigurationError(
            f"{owner}: option '{CLIENT_PREFIX}isolation.level' must be {_COMMITTED!r}, got {level!r}, which "
            "shows changes that a publisher has taken back and sent again; leave it out"
        )
    mode = values["log.changelog-mode"]
    if mode == "auto":
        mode = UPSERT if schema.primary_key else ALL
    found = LogOptions(
        KAFKA,
        values[TOPIC],
        values["log.retention"],
        values["log.consistency"],
        mode,
        values["log.key.format"].lower(),
        values["log.format"].lower(),
        values["log.scan"],
        values["log.scan.timestamp-mills"],
        {**client, "bootstrap.servers": servers},
    )
    if found.changelog_mode == UPSERT and not schema.primary_key:
        raise ConfigurationError(
            f"{owner}: option 'log.changelog-mode' = 'upsert' needs a PRIMARY KEY, by which a row replaces "
            "the one before it, got none; declare one, or set 'all'"
        )
    _check_eventual(owner, found, schema, merge)
    _check_formats(owner, found, schema)
    return found


def _check_eventual(owner: str, log: LogOptions, schema: TableSchema, merge: MergeRules) -> None:
    """FLIP-188: what is sent before its commit may be sent twice, which only a key can mend."""
    if log.consistency != EVENTUAL:
        return
    if not schema.primary_key:
        raise ConfigurationError(
            f"{owner}: option 'log.consistency' = 'eventual' needs a PRIMARY KEY, by which readers tell a "
            "change that comes again, got none; declare one, or set 'transactional'"
        )
    if log.changelog_mode == ALL:
        raise ConfigurationError(
            f"{owner}: option 'log.changelog-mode' = 'all' needs 'log.consistency' = 'transactional', got "
            "'eventual': what a change replaces is known when it is committed; set 'upsert'"
        )
    if merge.needs_present_rows:
        raise ConfigurationError(
            f"{owner}: option 'log.consistency' = 'eventual' needs a table whose rows replace each other as "
            "they come, got 'merge-engine' or 'sequence.field', which make a row when it is committed; set "
            "'transactional'"
        )


def _check_formats(owner: str, log: LogOptions, schema: TableSchema) -> None:
    value = format_named(log.format, f"{owner}: option 'log.format'")
    if value.is_insert_only:
        raise ConfigurationError(
            f"{owner}: option 'log.format' must be a format of changes, got {log.format!r}, which cannot say "
            "that a row is gone; set 'debezium-json' or 'canal-json'"
        )
    key = format_named(log.key_format, f"{owner}: option 'log.key.format'")
    if not key.is_insert_only:
        raise ConfigurationError(
            f"{owner}: option 'log.key.format' must be a format of rows, got {log.key_format!r}; set 'json'"
        )
    for key_or_value, option in ((key, "log.key.format"), (value, "log.format")):
        if any(own.is_required for own in key_or_value.options):
            raise ConfigurationError(
                f"{owner}: option {option!r} must be a format with defaults for all of its options, got "
                f"{key_or_value.name!r}, whose own a log cannot set; set "
                f"{'json' if key_or_value is key else 'debezium-json'!r}"
            )
    value.check(value_context(schema, log, value))
    if schema.primary_key:
        key.check(key_context(schema, log, key))


def key_context(schema: TableSchema, log: LogOptions, format: Format) -> FormatContext:
    """What the format of keys gets of a table with a primary key."""
    return _context([schema.column(name) for name in schema.primary_key], log, format, Side.KEY)


def value_context(schema: TableSchema, log: LogOptions, format: Format) -> FormatContext:
    """What the format of values gets of a table."""
    return _context(schema.physical, log, format, Side.VALUE)


def _context(columns: Sequence[Column], log: LogOptions, format: Format, side: Side) -> FormatContext:
    fields = pa.schema([pa.field(c.name, c.type, nullable=c.may_be_null) for c in columns])
    values = options.parse(f"log.{side}.{format.name}", format.options, {})
    return FormatContext(fields, values, side, log.topic)
