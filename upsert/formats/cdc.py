"""Change records in JSON, whatever tool writes them: what `canal-json` and `debezium-json` share (pure).

A message is read as a row of an *envelope*: the images of a row before and after, the kind of change,
metadata. Envelopes that make no sense are refused, and the images of the others are laid out as rows of a
changelog: an update gives two rows, ``-U`` and ``+U``. A message is written as the image of a row between two
texts, which say whether the row was added or removed.

A tool is a `CdcFormat`: its names, kinds of change and texts are values, and `EnvelopeReader` is what its
envelopes look like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, Positions
from upsert.errors import ConfigurationError
from upsert.formats.base import BadMessage, Decoded, Decoder, Encoder, FormatContext, Side
from upsert.formats.json_values import (
    DECIMAL_AS_PLAIN_NUMBER,
    IGNORE_PARSE_ERRORS,
    MAP_NULL_KEY_LITERAL,
    MAP_NULL_KEY_MODE,
    TIMESTAMP_STANDARD,
    JsonDialect,
    check_types,
)
from upsert.formats.json_writer import row_texts
from upsert.formats.text_values import encoded, shown
from upsert.metadata_columns import MetadataKey
from upsert.options import Option
from upsert.rowkind import every_kind, signs

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE, NO_ROW = range(5)
"""Kinds of rows; of an envelope that of its first row, so an update is an ``UPDATE_BEFORE``."""

_MAX_MILLIS: Final = (2**63 - 1) // 1000


class Envelopes:
    """The envelopes that were read from some messages, one of a message at most.

    Attributes:
        messages: the messages.
        columns: the members of the envelopes by name, a value for each envelope.
        positions: the position of each envelope's message.
        is_good: which envelopes have not been refused.
    """

    def __init__(self, read: Decoded, messages: pa.Array, bad: Sequence[BadMessage] = ()) -> None:
        self.messages = messages
        rows = read.rows.combine_chunks()
        self.columns: dict[str, pa.Array] = {
            name: column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            for name, column in zip(rows.column_names, rows.columns, strict=True)
        }
        self.positions = np.arange(len(messages)) if read.positions is None else read.positions
        self.is_good = np.ones(len(self.positions), dtype=np.bool_)
        self._bad = [*bad, *read.bad]

    def refuse(self, is_bad: Mask, reason: str | Callable[[int], str]) -> None:
        """Count envelopes as bad that are not yet; a reason may depend on the number of the envelope."""
        for row in np.flatnonzero(is_bad & self.is_good).tolist():
            self.refuse_one(row, reason if isinstance(reason, str) else reason(row))

    def refuse_one(self, row: int, reason: str) -> None:
        """Count one envelope as bad if it is not yet."""
        if self.is_good[row]:
            self._bad.append(BadMessage(int(self.positions[row]), reason))
        self.is_good[row] = False

    @property
    def bad(self) -> tuple[BadMessage, ...]:
        """The bad messages by ascending position."""
        return tuple(sorted(self._bad, key=lambda message: message.position))

    def times(self, millis: pa.Array, name: str) -> pa.Array:
        """Times of milliseconds since 1970; refuses the envelopes whose time is out of range."""
        # The smallest number of all has no absolute value.
        outside = pc.or_(pc.greater(millis, _MAX_MILLIS), pc.less(millis, -_MAX_MILLIS)).fill_null(False)
        self.refuse(
            outside.to_numpy(zero_copy_only=False), f"field {name!r} is out of range for milliseconds"
        )
        kept = pc.if_else(outside, pa.scalar(None, pa.int64()), millis)
        return pc.multiply(kept, 1000).cast(types.TIMESTAMP)


class ChangedRows(NamedTuple):
    """The rows that the good envelopes give.

    Attributes:
        envelope: the number of each row's envelope, ascending.
        within: which image of its envelope it is.
        kinds: its kind.
    """

    envelope: Positions
    within: Positions
    kinds: Positions

    @classmethod
    def of(cls, is_good: Mask, first_kinds: Positions, lengths: Positions | None) -> ChangedRows:
        """All rows; an update has two of each image.

        Args:
            is_good: which envelopes give rows at all.
            first_kinds: the kind of each envelope's first row.
            lengths: how many images each envelope has; None for one.
        """
        changed = np.flatnonzero(is_good & (first_kinds != NO_ROW))
        of_image, within = changed, np.zeros(len(changed), np.int64)
        if lengths is not None:
            counts = lengths[changed]
            of_image = np.repeat(changed, counts)
            within = np.arange(len(of_image)) - np.repeat(np.cumsum(counts) - counts, counts)
        is_update = first_kinds[of_image] == UPDATE_BEFORE
        image = np.repeat(np.arange(len(of_image)), np.where(is_update, 2, 1))
        is_second = np.zeros(len(image), dtype=np.bool_)
        is_second[1:] = image[1:] == image[:-1]
        envelope = of_image[image]
        return cls(envelope, within[image], np.where(is_second, UPDATE_AFTER, first_kinds[envelope]))


class Images(Protocol):
    """The images in some envelopes."""

    @property
    def lengths(self) -> Positions | None:
        """How many images each envelope has; None for one."""

    def columns(self, rows: ChangedRows) -> list[pa.Array]:
        """The columns of the changed rows."""


class EnvelopeReader(Protocol):
    """What the envelopes of a tool look like; one for each task."""

    def read(self, messages: pa.Array) -> Envelopes:
        """The envelopes of some messages."""

    def images(self, envelopes: Envelopes, first_kinds: Positions) -> Images:
        """The images in the envelopes; refuses those that lack one."""

    def metadata(self, key: str, envelopes: Envelopes) -> pa.Array:
        """The values of a metadata key, one for each envelope."""


class Around(NamedTuple):
    """The texts before and after the image of a row."""

    before: str
    after: str


@dataclass(frozen=True)
class CdcFormat:
    """A format of changes in JSON.

    Attributes:
        name: the name of the format.
        own_options: the options that other JSON formats do not have.
        metadata: the metadata of a message.
        operation: the member of an envelope that names the kind of change.
        first_kinds: for each of its texts the kind of the first row.
        reader: makes the reader of envelopes.
        added: what is written around a row that is added, with ``+I`` or ``+U``.
        removed: what is written around a row that is removed, with ``-U`` or ``-D``.
        read_only: an option with which messages can only be read, and why.
    """

    name: str
    own_options: tuple[Option, ...]
    metadata: tuple[MetadataKey, ...]
    operation: str
    first_kinds: Mapping[str, int]
    reader: Callable[[FormatContext, JsonDialect], EnvelopeReader]
    added: Around
    removed: Around
    read_only: tuple[str, str] | None = None
    is_insert_only: bool = False

    @property
    def options(self) -> Sequence[Option]:
        """Its own options, then those that the JSON formats share."""
        return (
            *self.own_options,
            IGNORE_PARSE_ERRORS,
            TIMESTAMP_STANDARD,
            MAP_NULL_KEY_MODE,
            MAP_NULL_KEY_LITERAL,
            DECIMAL_AS_PLAIN_NUMBER,
        )

    def check(self, context: FormatContext) -> None:
        """Refuse MAPs whose key is no STRING, and use as the format of a key."""
        if context.side is Side.KEY:
            raise ConfigurationError(
                f"{self.name}: must be the format of values, got that of keys; a key is no change, use json "
                "for it"
            )
        check_types(context.fields)

    def readable_metadata(self, side: Side, options: Mapping[str, Any]) -> Sequence[MetadataKey]:
        """The origin and the times of a change, which only a value has."""
        del options
        return self.metadata if side is Side.VALUE else ()

    def decoder(self, context: FormatContext) -> Decoder:
        """A decoder for one task."""
        return CdcDecoder(self, context)

    def encoder(self, context: FormatContext) -> Encoder:
        """An encoder for one task.

        Raises:
            ConfigurationError: an option is set that is for reading only.
        """
        if self.read_only is not None and context.options.get(self.read_only[0]):
            option, reason = self.read_only
            raise ConfigurationError(
                f"{self.name}: option {option!r} must be false to write, got true; {reason}"
            )
        return CdcEncoder(self, context)


class CdcDecoder:
    """Reads the envelopes as rows, then takes their images apart."""

    def __init__(self, format: CdcFormat, context: FormatContext) -> None:
        self._operation = format.operation
        self._names = pa.array(format.first_kinds)
        self._first_kinds = np.array([*format.first_kinds.values(), NO_ROW])
        self._dialect = JsonDialect.of(context.options)
        self._reader = format.reader(context, self._dialect)
        self._metadata = context.metadata
        type_of = {key.key: key.type for key in format.metadata}
        asked = (pa.field(key, type_of[key]) for key in context.metadata)
        self._schema = pa.schema([*context.fields, *asked])

    def decode(self, messages: pa.Array) -> Decoded:
        """The changes of all messages."""
        envelopes = self._reader.read(messages)
        first_kinds = self._kinds(envelopes)
        images = self._reader.images(envelopes, first_kinds)
        metadata = [self._reader.metadata(key, envelopes) for key in self._metadata]
        rows = ChangedRows.of(envelopes.is_good, first_kinds, images.lengths)
        where = pa.array(rows.envelope)
        table = pa.Table.from_arrays(
            [*images.columns(rows), *(column.take(where) for column in metadata)], schema=self._schema
        )
        positions = envelopes.positions[rows.envelope]
        is_one_each = len(positions) == len(messages) and bool((positions == np.arange(len(positions))).all())
        bad = () if self._dialect.ignore_parse_errors else envelopes.bad
        return Decoded(
            table, None if is_one_each else positions, every_kind().take(pa.array(rows.kinds)), bad
        )

    def _kinds(self, envelopes: Envelopes) -> Positions:
        names = envelopes.columns[self._operation]
        found = pc.index_in(names, value_set=self._names)
        envelopes.refuse(
            any_null(found),
            lambda row: (
                f"field {self._operation!r}: {shown(names[row].as_py())} is none of "
                f"{', '.join(self._names.to_pylist())}"
            ),
        )
        kinds: Positions = self._first_kinds[found.fill_null(len(self._names)).to_numpy()]
        return kinds


class CdcEncoder:
    """One row is one change: ``+I`` and ``+U`` add it, ``-U`` and ``-D`` remove it."""

    def __init__(self, format: CdcFormat, context: FormatContext) -> None:
        self._fields = list(context.fields)
        self._dialect = JsonDialect.of(context.options)
        self._added = format.added
        self._removed = format.removed

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:
        """The messages of all rows; rows without kinds are inserts."""
        images = encoded(rows.select([field.name for field in self._fields]), self._texts).cast(pa.string())
        is_added = pa.array(np.ones(rows.num_rows, np.bool_) if kinds is None else signs(kinds) > 0)
        before = pc.if_else(is_added, self._added.before, self._removed.before)
        after = pc.if_else(is_added, self._added.after, self._removed.after)
        return pc.binary_join_element_wise(before, images, after, "").cast(pa.binary())

    def _texts(self, batch: pa.RecordBatch) -> pa.Array:
        return row_texts(batch.columns, self._fields, self._dialect, batch.num_rows)


def any_null(column: pa.Array) -> Mask:
    """Which values are NULL."""
    found: Mask = column.is_null().to_numpy(zero_copy_only=False)
    return found
