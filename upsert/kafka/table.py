"""A Kafka topic as a table: columns, where each of them lies in a record, and options, checked (pure).

Follows FLIP-149 (``upsert-kafka``) and FLIP-107 (key, value and metadata columns). Whatever is wrong with the
declaration is refused here, before a query starts; the conditions are those of Flink's connectors. A table is
a value; tasks get it pickled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Self

import pyarrow as pa

from upsert import options as option_parser
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.base import FORMATS, Format, FormatContext, Side, format_named
from upsert.formats.metadata_columns import MetadataColumn, MetadataKey, resolve
from upsert.kafka.client.connection import Connection, check_allowed
from upsert.kafka.client.java_properties import translated
from upsert.kafka.client.records import record_metadata
from upsert.kafka.options import CONNECTOR_ALIASES, ONE_TASK, PLAIN, UPSERT, parse
from upsert.schema import TableSchema
from upsert.types import first_repeated, is_scalar


@dataclass(frozen=True)
class RecordPart:
    """The key or the value of a record: which columns it holds, and in which format.

    Attributes:
        columns: the table's names of the columns, in the order of the format's fields.
        fields: their names and types as the format sees them; a key prefix is gone.
        options: the format's options, by key.
        held: all fields of it, where only some of them are read; else None.
    """

    side: Side
    format_name: str
    columns: tuple[str, ...]
    fields: pa.Schema
    options: Mapping[str, Any]
    held: pa.Schema | None = None

    @property
    def format(self) -> Format:
        """The format itself."""
        return format_named(self.format_name, f"{self.side}.format")

    def context(
        self, topic: str | None, metadata: tuple[str, ...] = (), *, needs_before: bool = True
    ) -> FormatContext:
        """What a decoder or encoder of this part is made from."""
        return FormatContext(
            self.fields, self.options, self.side, topic, metadata, self.held, needs_before=needs_before
        )

    def reading(self, wanted: Collection[str]) -> RecordPart:
        """The part with only these columns read, at least one; itself where its format reads all."""
        kept = [place for place, name in enumerate(self.columns) if name in wanted] or [0]
        if not self.format.reads_some or not self.columns or len(kept) == len(self.columns):
            return self
        columns = tuple(self.columns[place] for place in kept)
        fields = pa.schema([self.fields[place] for place in kept])
        return replace(self, columns=columns, fields=fields, held=self.fields)


@dataclass(frozen=True)
class KafkaTable:
    """One table over Kafka, of either connector.

    Attributes:
        name: the table or the Spark format, for messages.
        connector: ``upsert-kafka`` or ``kafka``.
        schema: all columns, with its metadata columns.
        values: the connector's options by key, see ``upsert.kafka.options``.
        key: the key part, None where records have no key columns.
        value: the value part.
        properties: options of the client library; may hold secrets, so they are not in the repr.
        given: the options as they were written, by which a Spark query declares the table again.

    >>> schema = TableSchema.of({"word": pa.string(), "n": pa.int64()}, primary_key=["word"])
    >>> given = {"topic": "words", "properties.bootstrap.servers": "localhost:9092"}
    >>> formats = {"key.format": "json", "value.format": "json", "value.fields-include": "EXCEPT_KEY"}
    >>> table = KafkaTable.of("upsert-kafka", schema, given | formats)
    >>> table.key.columns, table.value.columns
    (('word',), ('n',))
    """

    name: str
    connector: str
    schema: TableSchema
    values: Mapping[str, Any]
    key: RecordPart | None
    value: RecordPart
    properties: Mapping[str, str]
    given: Mapping[str, str]

    @property
    def connection(self) -> Connection:
        """How its cluster is reached, and for how long that is tried."""
        return Connection(self.properties, self.values["connection.timeout"] / 1000)

    def __repr__(self) -> str:
        where = ";".join(self.topics or ()) or self.values["topic-pattern"]
        return f"KafkaTable({self.name!r}, connector={self.connector!r}, topic={where!r})"

    @classmethod
    def of(
        cls, connector: str, schema: TableSchema, given: Mapping[str, str], name: str | None = None
    ) -> Self:
        """The table that a schema and options mean.

        Args:
            connector: ``upsert-kafka`` (or its older name ``ktable``) or ``kafka``.
            schema: columns with their metadata declarations, and the primary key.
            given: options as they were written, without ``connector``.
            name: of the table, for messages; the connector's if None.

        Raises:
            ConfigurationError: an option is unknown, missing, wrong, or contradicts another one.
            SchemaError: the columns do not fit the connector or its formats.
        """
        connector = CONNECTOR_ALIASES.get(connector, connector)
        return cls.called(connector if name is None else f"table {name!r}", connector, schema, given)

    @classmethod
    def called(cls, of: str, connector: str, schema: TableSchema, given: Mapping[str, str]) -> Self:
        """As ``of``, with all of the words by which messages speak of the table."""
        sorted_out = parse(connector, given, formats=frozenset(FORMATS), of=of)
        values = sorted_out.values
        check_options(connector, schema, values, sorted_out.properties, of)
        key_columns = schema.primary_key if connector == UPSERT else values["key.fields"]
        check_key_columns(schema, key_columns, values, of)
        formats, prefix = sorted_out.formats, values["key.fields-prefix"]
        key = None
        if values["key.format"] is not None:
            key = _record_part(Side.KEY, values["key.format"], schema, key_columns, formats, of, prefix)
        is_left_out = set(key_columns) if values["value.fields-include"] == "except_key" else set()
        columns = tuple(c.name for c in schema.physical if c.name not in is_left_out)
        value = _record_part(Side.VALUE, values["value.format"], schema, columns, formats, of)
        used = {f"value.{value.format_name}.", f"{value.format_name}."}
        used |= {f"key.{key.format_name}."} if key else set()
        for name in formats:
            if not name.startswith(tuple(used)):
                raise ConfigurationError(
                    f"{of}: option {name!r} is for a format that the table does not use; used are "
                    f"{', '.join(sorted(used))}"
                )
        table = cls(of, connector, schema, values, key, value, sorted_out.properties, dict(given))
        table._check()
        return table

    def _check(self) -> None:
        for part in filter(None, (self.key, self.value)):
            if (self.is_upsert or part.side is Side.KEY) and not part.format.is_insert_only:
                hint = "; use the connector 'kafka'" if part.side is Side.VALUE else ""
                raise ConfigurationError(
                    f"{self.name}: option '{part.side}.format' must be a format of rows, got "
                    f"{part.format_name!r}, which is not in insert-only mode{hint}"
                )
            part.format.check(part.context(self.only_topic))
        if self.values.get("cdc-events-duplicate") and self.value.format.is_insert_only:
            raise ConfigurationError(
                f"{self.name}: option 'cdc-events-duplicate' is for formats of changes, got "
                f"{self.value.format_name!r}; leave it out, or use the connector 'upsert-kafka'"
            )
        if self.is_changelog and self.values.get("scan.parallelism") is not None:
            raise ConfigurationError(
                f"{self.name}: option 'scan.parallelism' has no effect for the format "
                f"{self.value.format_name!r}: {ONE_TASK}"
            )
        written = [c.key.key for c in self.metadata(writing=False) if not c.column.virtual]
        if "headers" in written and "header-list" in written:
            raise SchemaError(
                f"{self.name}: 'headers' and 'header-list' are ambiguous together; declare one column VIRTUAL"
            )
        if repeated := first_repeated(written):
            raise SchemaError(
                f"{self.name}: metadata {repeated!r} is ambiguous in two columns; declare one of them VIRTUAL"
            )

    @property
    def topics(self) -> tuple[str, ...] | None:
        """The topics by name; None where a pattern chooses them."""
        found: tuple[str, ...] | None = self.values["topic"]
        return found

    @property
    def only_topic(self) -> str | None:
        """The topic, where there is just one."""
        return self.topics[0] if self.topics is not None and len(self.topics) == 1 else None

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Columns of the primary key; empty where there is none."""
        return self.schema.primary_key

    @property
    def is_upsert(self) -> bool:
        """Whether a record replaces the one before it with its key."""
        return self.connector == UPSERT

    @property
    def is_changelog(self) -> bool:
        """Whether the table is read as changes, with ``_row_kind``: not where records are only appended."""
        return self.is_upsert or not self.value.format.is_insert_only

    @property
    def needs_before(self) -> bool:
        """Whether an update must have its row before; not where its key says which row it replaces."""
        if not self.value.format.splits_key_changes:
            return True  # the row before may have another key
        is_normalized = bool(self.values.get("cdc-events-duplicate"))
        return bool(self.values.get("scan.needs-before", True)) and not is_normalized

    @cached_property
    def offered_metadata(self) -> Mapping[str, MetadataKey]:
        """All metadata keys of the table: its formats', then the record's own."""
        found: dict[str, MetadataKey] = {}
        for part in filter(None, (self.key, self.value)):
            for key in part.format.metadata:
                name = f"{part.side}.{key.key}"
                found[name] = MetadataKey(name, key.type, key.is_writable)
        own = record_metadata(
            topic_is_writable=self.only_topic is None, partition_is_writable=not self.is_upsert
        )
        return found | {key: value for key, value in own.items() if key not in found}

    def metadata(self, *, writing: bool) -> tuple[MetadataColumn, ...]:
        """The metadata columns with their keys, as they can be read, or written: without the VIRTUAL ones."""
        offered, prefix = self.offered_metadata, f"{self.value.format_name}."
        aliases = {prefix + key.removeprefix("value."): key for key in offered if key.startswith("value.")}
        found = resolve(self.schema.columns, offered, aliases, of=self.name, writing=writing)
        if writing and self.only_topic is None and "topic" not in {column.key.key for column in found}:
            raise SchemaError(
                f"{self.name}: writing to several topics needs a column that names the topic of each row; "
                "declare topic STRING METADATA"
            )
        return found


def _record_part(
    side: Side,
    format_name: str | None,
    schema: TableSchema,
    columns: tuple[str, ...],
    given: Mapping[str, str],
    of: str,
    field_prefix: str = "",
) -> RecordPart:
    if format_name is None:
        raise ConfigurationError(
            f"{of}: option '{side}.format' is required; formats are {', '.join(FORMATS)}"
        )
    chosen = format_named(format_name.lower(), f"{of}: option '{side}.format'")
    prefix = f"{side}.{chosen.name}."
    own: dict[str, str] = {}
    for start in (f"{chosen.name}.", prefix) if side is Side.VALUE else (prefix,):
        own |= {key.removeprefix(start): text for key, text in given.items() if key.startswith(start)}
    parsed = option_parser.parse(f"{of}: {prefix}*", chosen.options, own)
    arrow = schema.arrow
    fields = [arrow.field(name).with_name(name.removeprefix(field_prefix)) for name in columns]
    return RecordPart(side, chosen.name, columns, pa.schema(fields), parsed)


SPARK_FORMATS: Final[Mapping[str, str]] = {UPSERT: "upsert-kafka", PLAIN: "kafka-changelog"}
"""Connector -> the Spark format of it."""


def check_options(
    connector: str, schema: TableSchema, values: Mapping[str, Any], properties: Mapping[str, str], of: str
) -> None:
    """Refuse options that contradict each other or the schema."""
    _refuse_first(_missing(values, properties), of)
    check_allowed(translated(properties, of), of)
    if connector == UPSERT:
        _check_upsert(schema, values, of)
    sequence = values.get("sequence.field")
    if sequence is not None and not is_scalar(schema.type_of(sequence, f"{of}: option 'sequence.field'")):
        raise SchemaError(
            f"{of}: option 'sequence.field' must name a column of a scalar type, got {sequence!r}"
        )
    _refuse_first(_contradictions(schema, values, properties), of)


def _refuse_first(reasons: Iterator[str], of: str) -> None:
    if (reason := next(reasons, None)) is not None:
        raise ConfigurationError(f"{of}: {reason}")


def _missing(values: Mapping[str, Any], properties: Mapping[str, str]) -> Iterator[str]:
    if values["topic"] is None and values["topic-pattern"] is None:
        yield "one of the options 'topic' and 'topic-pattern' must be set"
    if values["topic"] is not None and values["topic-pattern"] is not None:
        yield "options 'topic' and 'topic-pattern' shouldn't be set together; give one"
    if "bootstrap.servers" not in properties:
        yield "option 'properties.bootstrap.servers' is required: the Kafka brokers"


def _contradictions(
    schema: TableSchema, values: Mapping[str, Any], properties: Mapping[str, str]
) -> Iterator[str]:
    yield from _of_modes(values)
    modes = (values["scan.bounded.mode"], values.get("scan.startup.mode"))
    if "group-offsets" in modes and "group.id" not in properties:
        yield "'group-offsets' needs the option 'properties.group.id'"
    reset = properties.get("auto.offset.reset", "none")
    if "group-offsets" in modes and reset not in ("earliest", "latest", "none"):
        yield (
            "option 'properties.auto.offset.reset' must be earliest, latest or none, which is where a group "
            f"without offsets starts, got {reset!r}"
        )
    rows, interval = values.get("sink.buffer-flush.max-rows", 0), values.get("sink.buffer-flush.interval", 0)
    if (rows > 0) != (interval > 0):
        yield (
            "options 'sink.buffer-flush.max-rows' and 'sink.buffer-flush.interval' must be set to be greater "
            f"than zero together, got {rows} and {interval} ms"
        )
    is_once = values["sink.delivery-guarantee"] == "exactly-once"
    if is_once and values["sink.transactional-id-prefix"] is None:
        yield (
            "option 'sink.transactional-id-prefix' must be specified for 'exactly-once'; no other query that "
            "writes to these brokers may have it"
        )
    if is_once and values["topic"] is None:
        yield (
            "'exactly-once' needs the option 'topic', for the first topic keeps the number of the last "
            f"micro-batch; got 'topic-pattern' = {values['topic-pattern']!r}"
        )
    copies = values["bad-records.topic"]
    if (values["bad-records"] == "dead-letter") != (copies is not None):
        yield "options 'bad-records' = 'dead-letter' and 'bad-records.topic' must be given together"
    if copies is not None and (len(copies) != 1 or copies[0] in (values["topic"] or ())):
        yield (
            "option 'bad-records.topic' must be one topic that the table does not read itself, got "
            f"{';'.join(copies)!r}"
        )
    if values.get("cdc-events-duplicate") and not schema.primary_key:
        yield "option 'cdc-events-duplicate' needs a PRIMARY KEY, by which repeated changes are known"


def _check_upsert(schema: TableSchema, values: Mapping[str, Any], of: str) -> None:
    if not schema.primary_key:
        raise SchemaError(
            f"{of}: the connector 'upsert-kafka' requires to define a PRIMARY KEY constraint; "
            "it becomes the key of the records"
        )
    if values["key.format"] is None:
        raise ConfigurationError(f"{of}: option 'key.format' is required: the format of the primary key")
    if values["changelog"] != "upsert":
        return
    for column in schema.columns:
        is_of_value = column.metadata is None or ("." in column.metadata and column.metadata[:4] != "key.")
        if is_of_value and not column.nullable and column.name not in schema.primary_key:
            raise SchemaError(
                f"{of}: column {column.name!r} must not be NOT NULL with 'changelog' = 'upsert', whose "
                "deletions have only the columns of the key; leave out NOT NULL, or say 'changelog' = 'all'"
            )


def _of_modes(values: Mapping[str, Any]) -> Iterator[str]:
    for kind in ("bounded", "startup"):
        mode_option = f"scan.{kind}.mode"
        mode = values.get(mode_option)
        for needing, needed in (("timestamp", "timestamp-millis"), ("specific-offsets", "specific-offsets")):
            option = f"scan.{kind}.{needed}"
            given = values.get(option)
            if mode == needing and given is None:
                yield f"option {option!r} is required in {mode!r} {kind} mode"
            if mode != needing and given is not None:
                yield f"option {option!r} needs {mode_option!r} = {needing!r}, got {mode!r}"
        if mode == "specific-offsets" and (values["topic"] is None or len(values["topic"]) != 1):
            yield (
                f"{mode_option!r} only supports specific offset for single topic, got "
                f"{values['topic'] or values['topic-pattern']!r}"
            )


def check_key_columns(
    schema: TableSchema, columns: Sequence[str], values: Mapping[str, Any], of: str
) -> None:
    """Refuse key columns that are unknown, metadata, or at odds with the options of the key."""
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
