"""Change records, whatever tool writes them and in whatever encoding (pure).

A message is read as a row of an *envelope*: the images of a row before and after, the kind of change,
metadata. Envelopes that make no sense are refused, and the images of the others are laid out as rows of a
changelog: an update gives two rows, ``-U`` and ``+U``. There are two kinds of images: a row before and one
after the change (`before_and_after`), or the row as it is and what of it was different (in JSON alone).

A tool is a `CdcTool`: its names and kinds of change are values, and `EnvelopeReader` is what its envelopes
look like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, Positions, is_null, one_array
from upsert.errors import ConfigurationError
from upsert.formats.base import (
    BadMessage,
    Decoded,
    Encoder,
    Format,
    FormatContext,
    Side,
    check_has_fields,
)
from upsert.formats.metadata_columns import MetadataKey
from upsert.formats.text_values import shown
from upsert.options import Option
from upsert.rowkind import every_kind, signs

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE, NO_ROW = range(5)
"""Kinds of rows; of an envelope that of its first row, so an update is an ``UPDATE_BEFORE``."""

_MAX_MICROS: Final = 2**63 - 1
_MICROS: Final = 1_000_000


class Envelopes:
    """The envelopes that were read from some messages, one of a message at most.

    Their members are ``columns``; ``positions`` are those of their messages; ``bad`` is in any order.
    """

    def __init__(self, read: Decoded, messages: pa.Array) -> None:
        self.messages = messages
        self.columns = {name: one_array(read.rows.column(name)) for name in read.rows.column_names}
        self.positions = np.arange(len(messages)) if read.positions is None else read.positions
        self.is_good = np.ones(len(self.positions), dtype=np.bool_)
        self.bad = [*read.bad]

    def refuse(self, is_bad: Mask, reason: str | Callable[[int], str]) -> None:
        """Count envelopes as bad that are not yet; a reason may depend on the number of the envelope."""
        for row in np.flatnonzero(is_bad & self.is_good).tolist():
            self.refuse_one(row, reason if isinstance(reason, str) else reason(row))

    def refuse_one(self, row: int, reason: str) -> None:
        """Count one envelope as bad if it is not yet."""
        if self.is_good[row]:
            self.bad.append(BadMessage(int(self.positions[row]), reason))
        self.is_good[row] = False

    def times(self, numbers: pa.Array, name: str, per_second: int = 1_000) -> pa.Array:
        """Times of whole numbers since 1970; refuses the envelopes whose time is out of range."""
        # The smallest number of all has no absolute value.
        limit = _MAX_MICROS // (_MICROS // per_second)
        outside = pc.or_(pc.greater(numbers, limit), pc.less(numbers, -limit)).fill_null(False)
        is_bad = outside.to_numpy(zero_copy_only=False)
        unit = "milliseconds" if per_second > 1 else "seconds"
        self.refuse(is_bad, f"field {name!r} is out of range for {unit}")
        kept = pc.if_else(outside, pa.scalar(None, pa.int64()), numbers)
        return pc.multiply(kept, _MICROS // per_second).cast(types.TIMESTAMP)


class ChangedRows(NamedTuple):
    """The rows that the good envelopes give: of each its envelope, ascending, image within it, and kind."""

    envelope: Positions
    within: Positions
    kinds: Positions

    @classmethod
    def of(cls, is_good: Mask, first_kinds: Positions, lengths: Positions | None) -> ChangedRows:
        """All rows; an update has two of each image, of which envelopes have ``lengths``, or one each."""
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


class Images(NamedTuple):
    """How many images each envelope has, None for one; and what gives the columns of changed rows."""

    lengths: Positions | None
    columns: Callable[[ChangedRows], list[pa.Array]]


class EnvelopeReader(Protocol):
    """What the envelopes of a tool look like; one for each task."""

    def read(self, messages: pa.Array) -> Envelopes:
        """The envelopes of some messages."""

    def images(self, envelopes: Envelopes, first_kinds: Positions) -> Images:
        """The images in the envelopes; refuses those that lack one, or changes their kind."""

    def metadata(self, key: str, envelopes: Envelopes) -> pa.Array:
        """The values of a metadata key, one for each envelope."""


def before_and_after(
    envelopes: Envelopes, first_kinds: Positions, remedy: str, *, needs_before: bool
) -> Images:
    """Images in ``before`` and ``after``; ``remedy`` says how a tool comes to write the one before.

    An update without that one is refused, or if it is not needed, is an ``UPDATE_AFTER`` in ``first_kinds``.
    """
    before, after = envelopes.columns["before"], envelopes.columns["after"]
    if not needs_before:
        first_kinds[(first_kinds == UPDATE_BEFORE) & is_null(before)] = UPDATE_AFTER
    is_update = first_kinds == UPDATE_BEFORE
    envelopes.refuse(
        (is_update | (first_kinds == DELETE)) & is_null(before),
        f"field 'before' is NULL in an update or delete; {remedy}",
    )
    envelopes.refuse(
        np.isin(first_kinds, (INSERT, UPDATE_BEFORE, UPDATE_AFTER)) & is_null(after),
        "field 'after' is NULL in an insert or update",
    )

    def columns(rows: ChangedRows) -> list[pa.Array]:
        is_after = (rows.kinds == INSERT) | (rows.kinds == UPDATE_AFTER)
        positions = pa.array(rows.envelope + np.where(is_after, len(before), 0))
        both = zip(before.flatten(), after.flatten(), strict=True)
        return [pa.concat_arrays(images).take(positions) for images in both]

    return Images(None, columns)


@dataclass(frozen=True)
class CdcTool:
    """What a tool that captures changes writes.

    Attributes:
        operation: the member of an envelope that names the kind of change.
        first_kinds: for each of its texts the kind of the first row.
        check: refuses fields and options, as that of a `Format` does.
        splits_key_changes: as of a `Format`.
    """

    name: str
    options: tuple[Option, ...]
    metadata: tuple[MetadataKey, ...]
    operation: str
    first_kinds: Mapping[str, int]
    check: Callable[[FormatContext], None]
    reader: Callable[[FormatContext], EnvelopeReader]
    encoder: Callable[[FormatContext], Encoder]
    splits_key_changes: bool = False


def cdc_format(tool: CdcTool) -> Format:
    """The format of a tool's messages."""
    return Format(
        tool.name,
        tool.options,
        check=partial(_check, tool),
        decoder=partial(_CdcDecoder, tool),
        encoder=tool.encoder,
        metadata=tool.metadata,
        is_insert_only=False,
        splits_key_changes=tool.splits_key_changes,
    )


def _check(tool: CdcTool, context: FormatContext) -> None:
    if context.side is Side.KEY:
        raise ConfigurationError(
            f"{tool.name}: must be the format of values, got that of keys; a key is no change, use "
            f"{'avro-confluent' if 'avro' in tool.name else 'json'} for it"
        )
    check_has_fields(context, tool.name)
    tool.check(context)


class _CdcDecoder:
    """Reads the envelopes as rows, then takes their images apart."""

    def __init__(self, tool: CdcTool, context: FormatContext) -> None:
        self._operation = tool.operation
        self._names = pa.array(tool.first_kinds)
        self._first_kinds = np.array([*tool.first_kinds.values(), NO_ROW])
        self._reader = tool.reader(context)
        self._passes_bad_over = bool(context.options.get("ignore-parse-errors", False))
        self._metadata = context.metadata
        type_of = {key.key: key.type for key in tool.metadata}
        asked = (pa.field(key, type_of[key]) for key in context.metadata)
        self._schema = pa.schema([*context.fields, *asked])

    def decode(self, messages: pa.Array) -> Decoded:
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
        bad = () if self._passes_bad_over else envelopes.bad
        return Decoded.at(positions, len(messages), table, bad, every_kind().take(pa.array(rows.kinds)))

    def _kinds(self, envelopes: Envelopes) -> Positions:
        names = envelopes.columns[self._operation]
        found = pc.index_in(names, value_set=self._names)
        envelopes.refuse(
            is_null(found),
            lambda row: (
                f"field {self._operation!r}: {shown(names[row].as_py())} is none of "
                f"{', '.join(self._names.to_pylist())}"
            ),
        )
        kinds: Positions = self._first_kinds[found.fill_null(len(self._names)).to_numpy()]
        return kinds


def adds(kinds: pa.Array | None, count: int) -> Mask:
    """Which rows are added, as opposed to removed; all where there are no kinds."""
    return np.ones(count, np.bool_) if kinds is None else signs(kinds) > 0
