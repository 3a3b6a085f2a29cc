"""Rows to change records: an image of each row, between texts that say whether it came or went (pure)."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from upsert.formats.base import FormatContext
from upsert.formats.cdc_json import is_positive
from upsert.formats.json_dialect import JsonDialect
from upsert.formats.json_text import row_texts
from upsert.formats.scalar_texts import encoded


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
