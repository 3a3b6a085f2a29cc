"""What a wire format is: rows from messages, messages from rows, a batch at a time (pure).

A format is looked up by its name, asked for its options and its metadata when a table is declared, and
makes decoders and encoders in the tasks of a query from a ``FormatContext``, which is picklable.
Decoders never raise for the content of a message: they name the bad ones, and the source decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pkgutil import resolve_name
from typing import Any, Final, Protocol, Self

import numpy as np
import pyarrow as pa

from upsert.arrays import Positions
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.metadata_columns import MetadataKey
from upsert.options import Option


class Side(StrEnum):
    """Which part of a record a format reads and writes."""

    KEY = "key"
    VALUE = "value"


@dataclass(frozen=True)
class FormatContext:
    """What a decoder or an encoder is made from; frozen and picklable.

    Attributes:
        fields: the columns that the format reads or writes, by the names that it sees.
        declared: those that messages hold, where only some of them are read; else None.
        needs_before: whether an update without its row before is refused, where messages are changes; else
            its row after is all that it gives.
        options: the values of all options of the format, by key.
        side: key or value.
        topic: the topic, None where several are read; a schema registry's subject follows from it.
        metadata: the format's metadata keys (without ``key.`` or ``value.``) that a decoder must give.
    """

    fields: pa.Schema
    options: Mapping[str, Any] = field(default_factory=dict)
    side: Side = Side.VALUE
    topic: str | None = None
    metadata: tuple[str, ...] = ()
    declared: pa.Schema | None = None
    needs_before: bool = True

    @property
    def held(self) -> pa.Schema:
        """The columns that messages hold, whichever of them are read."""
        return self.fields if self.declared is None else self.declared


@dataclass(frozen=True)
class BadMessage:
    """A message that could not be decoded: its position among the given ones, and why in a few words."""

    position: int
    reason: str


@dataclass(frozen=True)
class Decoded:
    """The rows of some messages.

    Attributes:
        rows: the fields in their order and exact types, then one column for each metadata key asked for.
        positions: for each row that of its message, ascending; None: row i is message i, for all rows.
        kinds: the kind of each row, ``+I`` to ``-D``, for formats of changes; None: every row is an insert.
        bad: messages that gave no rows because they could not be read, by ascending position.
    """

    rows: pa.Table
    positions: Positions | None = None
    kinds: pa.Array | None = None
    bad: tuple[BadMessage, ...] = ()

    @classmethod
    def at(
        cls,
        positions: Positions,
        count: int,
        rows: pa.Table,
        bad: Iterable[BadMessage],
        kinds: pa.Array | None = None,
    ) -> Self:
        """Rows of which each one's message among ``count`` is known, and bad messages in any order."""
        is_one_each = len(positions) == count and bool((positions == np.arange(count)).all())
        ordered = sorted(bad, key=lambda message: message.position)
        return cls(rows, None if is_one_each else positions, kinds, tuple(ordered))

    @classmethod
    def of_groups(
        cls,
        groups: Sequence[tuple[Positions, pa.Table]],
        count: int,
        empty: pa.Table,
        bad: Iterable[BadMessage],
    ) -> Self:
        """The same of groups of messages that were read apart: the rows of each, and where they are."""
        rows = pa.concat_tables([empty, *(rows for _, rows in groups)])
        positions = np.concatenate([np.zeros(0, np.int64), *(own for own, _ in groups)])
        if len(groups) > 1:
            order = np.argsort(positions)
            rows, positions = rows.take(pa.array(order)), positions[order]
        return cls.at(positions, count, rows.combine_chunks(), bad)


class Decoder(Protocol):
    """Messages to rows."""

    def decode(self, messages: pa.Array) -> Decoded:
        """The rows of all messages, in their order; NULL is no message, it gives no row and is not bad."""


class Encoder(Protocol):
    """Rows to messages."""

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:
        """One message for each row, as a binary array without NULLs; `SchemaError` for what has no form.

        Only formats of changes look at ``kinds``.
        """


@dataclass(frozen=True)
class Format:
    """One wire format.

    Attributes:
        options: its options, without any prefix.
        check: refuses fields and options that the format cannot serve, before a query starts, by a
            `ConfigurationError` where options contradict each other, and a `SchemaError` where a field's type
            has no form in this format.
        decoder: makes a decoder for one task.
        encoder: makes an encoder for one task.
        metadata: the metadata that messages carry, by keys without a prefix.
        is_insert_only: whether a message is a row, as opposed to a change of a row.
        reads_some: whether a decoder may be asked for some of the columns that messages hold.
        splits_key_changes: whether a change of a row's key comes as a deletion and an insert, each with the
            message key of its row; else one message has both, in the partition of the new key.
        nothing: the message that says that there is no value, None where no message does.
    """

    name: str
    options: Sequence[Option]
    check: Callable[[FormatContext], None]
    decoder: Callable[[FormatContext], Decoder]
    encoder: Callable[[FormatContext], Encoder]
    metadata: tuple[MetadataKey, ...] = ()
    is_insert_only: bool = True
    reads_some: bool = False
    splits_key_changes: bool = False
    nothing: bytes | None = None


def check_has_fields(context: FormatContext, of: str) -> None:
    """Refuse a key or a value without columns, where messages of none give no rows; ``of`` is the format."""
    if not len(context.fields):
        raise SchemaError(
            f"{of}: a {context.side} must be of one column at least, got none; choose the format json, or "
            "'value.fields-include' = 'ALL', by which a value has the key's columns too"
        )


OF_ROWS: Final[Mapping[str, str]] = {
    "json": "upsert.formats.json:FORMAT",
    "csv": "upsert.formats.csv:FORMAT",
    "avro": "upsert.formats.avro:FORMAT",
    "avro-confluent": "upsert.formats.avro_confluent:FORMAT",
    "json-schema-confluent": "upsert.formats.json_schema_confluent:FORMAT",
    "protobuf": "upsert.formats.protobuf.format:FORMAT",
    "protobuf-confluent": "upsert.formats.protobuf.confluent:FORMAT",
    "raw": "upsert.formats.raw:FORMAT",
}
"""Formats whose messages are rows: their module, loaded when a table needs it, and the name in it."""

OF_CHANGES: Final[Mapping[str, str]] = {
    "debezium-json": "upsert.formats.debezium.json:FORMAT",
    "debezium-avro-confluent": "upsert.formats.debezium.avro_confluent:FORMAT",
    "canal-json": "upsert.formats.cdc_json:CANAL",
    "maxwell-json": "upsert.formats.cdc_json:MAXWELL",
    "ogg-json": "upsert.formats.cdc_json:OGG",
}
"""The same of formats whose messages are changes of rows."""

FORMATS: Final[Mapping[str, str]] = dict(sorted({**OF_ROWS, **OF_CHANGES}.items()))
"""All of them, by name."""


def format_named(name: str, of: str) -> Format:
    """The format of this name, asked for by the table or option ``of``.

    >>> format_named("jsonn", "upsert-kafka")
    Traceback (most recent call last):
    ...
    upsert.errors.ConfigurationError: upsert-kafka: unknown format 'jsonn'; formats are avro, ...
    """
    place = FORMATS.get(name)
    if place is None:
        raise ConfigurationError(f"{of}: unknown format {name!r}; formats are {', '.join(FORMATS)}")
    found: Format = resolve_name(place)
    return found
