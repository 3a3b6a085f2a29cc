"""What the options and columns of a Kafka table must be together, each condition with its reason (pure).

The conditions are those of Flink's ``upsert-kafka`` and ``kafka`` connectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from upsert.errors import ConfigurationError, SchemaError
from upsert.kafka.client.properties import check_allowed
from upsert.kafka.options import UPSERT
from upsert.schema import TableSchema
from upsert.types import is_scalar

_NEEDED_BY_MODE = {
    "scan.bounded.mode": {
        "timestamp": "scan.bounded.timestamp-millis",
        "specific-offsets": "scan.bounded.specific-offsets",
    },
    "scan.startup.mode": {
        "timestamp": "scan.startup.timestamp-millis",
        "specific-offsets": "scan.startup.specific-offsets",
    },
}


def check_options(
    connector: str, schema: TableSchema, values: Mapping[str, Any], properties: Mapping[str, str], of: str
) -> None:
    """Refuse options that contradict each other or the schema.

    Raises:
        ConfigurationError: with the first condition that fails.
        SchemaError: the connector needs a primary key.
    """
    _check_topics(values, of)
    if "bootstrap.servers" not in properties:
        raise ConfigurationError(
            f"{of}: option 'properties.bootstrap.servers' is required: the Kafka brokers"
        )
    check_allowed(properties, of)
    if connector == UPSERT:
        _check_upsert(schema, values, of)
    _check_modes(values, of)
    _check_group(values, properties, of)
    _check_sink(values, of)
    _check_columns_named(schema, values, of)
    if (values["bad-records"] == "dead-letter") != (values["bad-records.topic"] is not None):
        raise ConfigurationError(
            f"{of}: options 'bad-records' = 'dead-letter' and 'bad-records.topic' must be given together"
        )
    copies = values["bad-records.topic"]
    if copies is not None and (len(copies) != 1 or copies[0] in (values["topic"] or ())):
        raise ConfigurationError(
            f"{of}: option 'bad-records.topic' must be one topic that the table does not read itself, got "
            f"{';'.join(copies)!r}"
        )
    if values.get("cdc-events-duplicate") and not schema.primary_key:
        raise ConfigurationError(
            f"{of}: option 'cdc-events-duplicate' needs a PRIMARY KEY, by which repeated changes are known"
        )


def _check_topics(values: Mapping[str, Any], of: str) -> None:
    if values["topic"] is None and values["topic-pattern"] is None:
        raise ConfigurationError(f"{of}: one of the options 'topic' and 'topic-pattern' must be set")
    if values["topic"] is not None and values["topic-pattern"] is not None:
        raise ConfigurationError(
            f"{of}: options 'topic' and 'topic-pattern' shouldn't be set together; give one"
        )


def _check_upsert(schema: TableSchema, values: Mapping[str, Any], of: str) -> None:
    if not schema.primary_key:
        raise SchemaError(
            f"{of}: the connector 'upsert-kafka' requires to define a PRIMARY KEY constraint; "
            "it becomes the key of the records"
        )
    if values["key.format"] is None:
        raise ConfigurationError(f"{of}: option 'key.format' is required: the format of the primary key")
    if values["changelog"] == "upsert":
        _check_nullable(schema, of)


def _check_nullable(schema: TableSchema, of: str) -> None:
    for column in schema.columns:
        is_of_value = column.metadata is None or ("." in column.metadata and column.metadata[:4] != "key.")
        if is_of_value and not column.nullable and column.name not in schema.primary_key:
            raise SchemaError(
                f"{of}: column {column.name!r} must not be NOT NULL with 'changelog' = 'upsert', whose "
                "deletions have only the columns of the key; leave out NOT NULL, or say 'changelog' = 'all'"
            )


def _check_modes(values: Mapping[str, Any], of: str) -> None:
    for mode_option, needed in _NEEDED_BY_MODE.items():
        mode = values.get(mode_option)
        kind = mode_option.split(".")[1]
        for needing, option in needed.items():
            given = values.get(option)
            if mode == needing and given is None:
                raise ConfigurationError(f"{of}: option {option!r} is required in {mode!r} {kind} mode")
            if mode != needing and given is not None:
                raise ConfigurationError(
                    f"{of}: option {option!r} needs {mode_option!r} = {needing!r}, got {mode!r}"
                )
        if mode == "specific-offsets" and (values["topic"] is None or len(values["topic"]) != 1):
            raise ConfigurationError(
                f"{of}: {mode_option!r} only supports specific offset for single topic, got "
                f"{values['topic'] or values['topic-pattern']!r}"
            )


def _check_group(values: Mapping[str, Any], properties: Mapping[str, str], of: str) -> None:
    modes = (values["scan.bounded.mode"], values.get("scan.startup.mode"))
    if "group-offsets" in modes and "group.id" not in properties:
        raise ConfigurationError(f"{of}: 'group-offsets' needs the option 'properties.group.id'")
    if "group-offsets" not in modes and "group.id" in properties:
        raise ConfigurationError(
            f"{of}: option 'properties.group.id' is only for 'group-offsets': the offsets of a query are in "
            "its checkpoint; leave it out"
        )


def _check_sink(values: Mapping[str, Any], of: str) -> None:
    rows, interval = values.get("sink.buffer-flush.max-rows", 0), values.get("sink.buffer-flush.interval", 0)
    if (rows > 0) != (interval > 0):
        raise ConfigurationError(
            f"{of}: options 'sink.buffer-flush.max-rows' and 'sink.buffer-flush.interval' must be set to be "
            f"greater than zero together, got {rows} and {interval} ms"
        )
    guarantee, prefix = values["sink.delivery-guarantee"], values["sink.transactional-id-prefix"]
    if guarantee == "exactly-once" and prefix is None:
        raise ConfigurationError(
            f"{of}: option 'sink.transactional-id-prefix' must be specified for 'exactly-once'; no other "
            "query that writes to these brokers may have it"
        )
    if guarantee == "exactly-once" and values["topic"] is None:
        raise ConfigurationError(
            f"{of}: 'exactly-once' needs the option 'topic', for the first topic keeps the number of the "
            f"last micro-batch; got 'topic-pattern' = {values['topic-pattern']!r}"
        )


def _check_columns_named(schema: TableSchema, values: Mapping[str, Any], of: str) -> None:
    sequence = values.get("sequence.field")
    if sequence is not None and not is_scalar(schema.type_of(sequence, f"{of}: option 'sequence.field'")):
        raise SchemaError(
            f"{of}: option 'sequence.field' must name a column of a scalar type, got {sequence!r}"
        )


def check_key_columns(
    schema: TableSchema, columns: Sequence[str], values: Mapping[str, Any], of: str
) -> None:
    """Refuse key columns that are unknown, metadata, or at odds with the options of the key.

    Raises:
        ConfigurationError: ``key.format``, ``key.fields`` and ``key.fields-prefix`` do not fit together.
        SchemaError: there is no such column.
    """
    if bool(columns) != (values["key.format"] is not None):
        raise ConfigurationError(f"{of}: options 'key.format' and 'key.fields' must be given together")
    for name in columns:
        schema.type_of(name, f"{of}: option 'key.fields'")
        if schema.column(name).metadata is not None:
            raise ConfigurationError(f"{of}: option 'key.fields' must name physical columns, got {name!r}")
    prefix = values["key.fields-prefix"]
    if not prefix:
        return
    if values["value.fields-include"] != "except_key":
        raise ConfigurationError(
            f"{of}: A key prefix is not allowed when 'value.fields-include' is 'ALL', for no column could be "
            "in both then; set it to 'EXCEPT_KEY'"
        )
    if unprefixed := [name for name in columns if not name.startswith(prefix) or name == prefix]:
        raise ConfigurationError(
            f"{of}: all key columns must be prefixed with {prefix!r} as 'key.fields-prefix' says, got "
            f"{', '.join(unprefixed)}"
        )
