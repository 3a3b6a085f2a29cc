"""Change records in JSON, whatever tool writes them: shared by the CDC formats (pure).

A CDC format reads its messages into rows of an envelope (before, after, kind of change, metadata), refuses
envelopes that make no sense, and lays out the images that remain as rows of a changelog. Written is an image
of each row, between texts that say whether the row was added or removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, Positions
from upsert.errors import ConfigurationError
from upsert.formats.base import BadMessage, Decoded, FormatContext, Side
from upsert.formats.json_values import JsonDialect, check_types
from upsert.formats.json_writer import row_texts
from upsert.formats.text_values import encoded
from upsert.rowkind import every_kind, signs

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = range(4)

_MAX_MILLIS: Final = (2**63 - 1) // 1000


class Envelopes:
    """The envelopes that were read from some messages, one of a message at most.

    Attributes:
        rows: the envelopes.
    """

    def __init__(self, read: Decoded, message_count: int, bad: Sequence[BadMessage] = ()) -> None:
        self.rows = read.rows.combine_chunks()
        self._positions = np.arange(message_count) if read.positions is None else read.positions
        self._bad = [*bad, *read.bad]
        self._is_good = np.ones(len(self._positions), dtype=np.bool_)
        self._message_count = message_count

    def column(self, name: str) -> pa.Array:
        """A column of the envelopes."""
        chunks = self.rows[name]
        return chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()

    def refuse(self, is_bad: Mask, reason: str | Callable[[int], str]) -> None:
        """Count envelopes as bad that are not yet; a reason may depend on the envelope's place."""
        for place in np.flatnonzero(is_bad & self._is_good).tolist():
            self.refuse_one(place, reason if isinstance(reason, str) else reason(place))

    def refuse_one(self, place: int, reason: str) -> None:
        """Count one envelope as bad if it is not yet."""
        if self._is_good[place]:
            self._bad.append(BadMessage(int(self._positions[place]), reason))
        self._is_good[place] = False

    @property
    def bad(self) -> tuple[BadMessage, ...]:
        """The bad messages by ascending position."""
        return tuple(sorted(self._bad, key=lambda message: message.position))

    @property
    def is_good(self) -> Mask:
        """Which envelopes have not been refused."""
        return self._is_good

    @property
    def positions(self) -> Positions:
        """The position of each envelope's message."""
        return self._positions

    def changes(
        self,
        fields: pa.Schema,
        images: Sequence[pa.Array],
        metadata: Sequence[pa.Array],
        envelopes: Positions,
        kinds: Positions,
        *,
        ignore_errors: bool,
    ) -> Decoded:
        """The changes of the good envelopes.

        Args:
            fields: the schema of the images and the metadata.
            images: the columns of the changed rows, in the order of the result.
            metadata: columns of metadata, a value for each envelope.
            envelopes: the place of each changed row's envelope, ascending.
            kinds: the code of each changed row's kind.
            ignore_errors: whether bad messages are not even named.
        """
        where = pa.array(envelopes)
        rows = pa.Table.from_arrays([*images, *(column.take(where) for column in metadata)], schema=fields)
        positions = self._positions[envelopes]
        is_one_each = len(positions) == self._message_count and bool(
            (positions == np.arange(len(positions))).all()
        )
        bad = () if ignore_errors else self.bad
        return Decoded(rows, None if is_one_each else positions, every_kind().take(pa.array(kinds)), bad)


def timestamps(millis: pa.Array) -> tuple[pa.Array, Mask]:
    """Times of milliseconds since 1970, and which of these are out of range.

    >>> timestamps(pa.array([1, None]))[0].cast(pa.int64()).to_pylist()
    [1000, None]
    """
    # The smallest number of all has no absolute value.
    outside = pc.or_(pc.greater(millis, _MAX_MILLIS), pc.less(millis, -_MAX_MILLIS)).fill_null(False)
    kept = pc.if_else(outside, pa.scalar(None, pa.int64()), millis)
    return pc.multiply(kept, 1000).cast(types.TIMESTAMP), outside.to_numpy(zero_copy_only=False)


def with_metadata(fields: pa.Schema, metadata: Sequence[tuple[str, pa.DataType]]) -> pa.Schema:
    """The schema of a decoder's rows: the fields and then the metadata asked for."""
    return pa.schema([*fields, *(pa.field(key, type_) for key, type_ in metadata)])


def is_positive(kinds: pa.Array | None, count: int) -> pa.Array:
    """For each row whether it is now there; rows without kinds are."""
    return pa.array(np.ones(count, np.bool_) if kinds is None else signs(kinds) > 0)


def any_null(column: pa.Array) -> Any:
    """Which values are NULL, as a numpy mask."""
    return column.is_null().to_numpy(zero_copy_only=False)


def check_cdc(name: str, context: FormatContext) -> None:
    """Refuse what no CDC format in JSON can serve.

    Raises:
        ConfigurationError: the format is a key's; only a value can be a change.
        SchemaError: a field's type has no form in JSON.
    """
    if context.side is Side.KEY:
        raise ConfigurationError(
            f"{name}: must be the format of values, got that of keys; a key is no change, use json for it"
        )
    check_types(context.fields)


class Around(NamedTuple):
    """The texts before and after the image of a row."""

    before: str
    after: str


class ChangeEncoder:
    """One row is one change: ``+I`` and ``+U`` put a row there, ``-U`` and ``-D`` take it away."""

    def __init__(self, context: FormatContext, there: Around, gone: Around) -> None:
        self._fields = list(context.fields)
        self._dialect = JsonDialect.of(context.options)
        self._there = there
        self._gone = gone

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:
        """The messages of all rows; rows without kinds are inserts."""
        images = encoded(rows.select([field.name for field in self._fields]), self._texts).cast(pa.string())
        is_there = is_positive(kinds, rows.num_rows)
        before = pc.if_else(is_there, self._there.before, self._gone.before)
        after = pc.if_else(is_there, self._there.after, self._gone.after)
        return pc.binary_join_element_wise(before, images, after, "").cast(pa.binary())

    def _texts(self, batch: pa.RecordBatch) -> pa.Array:
        return row_texts(batch.columns, self._fields, self._dialect, batch.num_rows)
