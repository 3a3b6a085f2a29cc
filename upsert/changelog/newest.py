"""Images in the middle of a batch: those that it has changed so far, above those at its start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upsert.changelog.line import Ints, Keyed, earlier, ticks_of
from upsert.changelog.normalizer import fold, group_by_key, images_of
from upsert.changelog.rules import Expiry
from upsert.rowkind import ROW_KIND_COLUMN, RowKind, signs
from upsert.store.snapshot import Snapshot


class NewestImages:
    """Images as of a position within a batch.

    Attributes:
        base: the images at the start of the batch.
        changed: the newest image of each key that the batch has changed: columns of the images and
            ``_row_kind``, ``-D`` where the key has none any more.
    """

    def __init__(self, base: Snapshot, key: Sequence[str]) -> None:
        """Of a batch that has changed nothing yet."""
        self.base = base
        self._key = list(key)
        schema = pa.schema([pa.field(field.name, field.type) for field in base.layout.schema.arrow])
        self.changed = schema.append(pa.field(ROW_KIND_COLUMN, pa.string(), nullable=False)).empty_table()

    def meet(self, rows: pa.Table) -> tuple[Keyed, Ints]:
        """The images of the keys of some rows, and a number for the key of each row.

        The keys are looked up once each, thousands at a time.
        """
        count = self.changed.num_rows
        columns = [part.select(self._key) for part in (self.changed, rows)]
        keys = pa.concat_tables([pa.table(part.columns, names=self._key) for part in columns])
        groups = group_by_key(keys, self._key)
        unchanged = np.flatnonzero(groups.firsts >= count)
        positions, found = self.base.match(self._key, keys.take(pa.array(groups.firsts[unchanged])))
        is_there = signs(self.changed.column(ROW_KIND_COLUMN)) > 0
        changed = self.changed.drop_columns([ROW_KIND_COLUMN])
        found = pa.Table.from_arrays(found.columns, schema=changed.schema)
        images = pa.concat_tables([changed.filter(pa.array(is_there)), found])
        numbers = np.concatenate([groups.of[:count][is_there], unchanged[positions]])
        return images_of(images, numbers), groups.of[count:]

    def put(self, images: pa.Table) -> None:
        """Take over new images, as ``normalize`` gives them."""
        images = pa.Table.from_arrays(images.columns, schema=self.changed.schema)
        if self.changed.num_rows:
            images = fold(pa.concat_tables([self.changed, images]), self._key)
        self.changed = images

    def drop_expired(self, expiry: Expiry) -> None:
        """Delete the images that are too old for the newest row of this batch; reads the key of every image.

        No record that is as young as that one could still meet them.
        """
        times, is_known = ticks_of(self.changed.column(expiry.time))
        if not is_known.any():
            return
        rows = self.base.scan([*self._key, expiry.time])
        old, has_time = ticks_of(rows.column(expiry.time))
        limit = earlier(times[is_known].max(), expiry.ticks(rows.schema.field(expiry.time).type))
        is_old = has_time & (old < limit)
        keys = rows.filter(pa.array(is_old)).select(self._key)
        nothing = {
            field.name: pa.nulls(keys.num_rows, field.type)
            for field in self.changed.schema
            if field.name not in (*self._key, ROW_KIND_COLUMN)
        }
        columns = {name: keys.column(name) for name in self._key} | nothing
        columns[ROW_KIND_COLUMN] = pa.array([RowKind.DELETE.value] * keys.num_rows, pa.string())
        expired = pa.table([columns[name] for name in self.changed.column_names], schema=self.changed.schema)
        # what the batch itself says comes last and wins
        self.changed = fold(pa.concat_tables([expired, self.changed]), self._key)
