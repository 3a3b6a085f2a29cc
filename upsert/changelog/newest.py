"""Images in the middle of a batch: those that it has changed so far, above those at its start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import pyarrow as pa

from upsert.arrays import Mask
from upsert.changelog.normalizer import (
    Ints,
    Keyed,
    earlier,
    fold,
    group_by_key,
    images_of,
    ticks_of,
    with_kinds,
)
from upsert.changelog.rules import Expiry
from upsert.rowkind import ROW_KIND_COLUMN, signs
from upsert.store.read.snapshot import Snapshot


class NewestImages:
    """Images as of a position within a batch.

    Attributes:
        base: the images at the start of the batch; None if all of them are in ``changed``.
        changed: the newest image of each key that the batch has changed: columns of the images and
            ``_row_kind``, ``-D`` where the key has none any more.
    """

    def __init__(self, base: Snapshot | None, changed: pa.Table, key: Sequence[str]) -> None:
        """Of images that are as they should be; use ``above`` or ``all``."""
        self.base = base
        self.changed = changed
        self._key = list(key)

    @classmethod
    def above(cls, base: Snapshot, key: Sequence[str]) -> Self:
        """Those of a snapshot, before any change."""
        fields = [pa.field(field.name, field.type) for field in base.layout.schema.arrow]
        fields.append(pa.field(ROW_KIND_COLUMN, pa.string(), nullable=False))
        return cls(base, pa.schema(fields).empty_table(), key)

    @classmethod
    def all(cls, images: pa.Table, key: Sequence[str]) -> Self:
        """These, and no others."""
        return cls(None, with_kinds(images, np.ones(images.num_rows, np.bool_)), key)

    def meet(self, rows: pa.Table) -> tuple[Keyed, Ints]:
        """The images of the keys of some rows, and a number for the key of each row.

        Keys that this batch has not changed are looked up in the base, once each and all together.
        """
        count = self.changed.num_rows
        columns = [part.select(self._key) for part in (self.changed, rows)]
        keys = pa.concat_tables([pa.table(part.columns, names=self._key) for part in columns])
        groups = group_by_key(keys, self._key)
        is_met = np.zeros(len(groups.firsts), np.bool_)
        is_met[groups.of[count:]] = True
        is_image = (signs(self.changed.column(ROW_KIND_COLUMN)) > 0) & is_met[groups.of[:count]]
        images = self.changed.drop_columns([ROW_KIND_COLUMN]).filter(pa.array(is_image))
        numbers = groups.of[:count][is_image]
        unchanged = np.flatnonzero(groups.firsts >= count)
        if self.base is not None and len(unchanged):
            wanted = keys.take(pa.array(groups.firsts[unchanged]))
            positions, found = self.base.match(self._key, wanted)
            images = pa.concat_tables([images, pa.Table.from_arrays(found.columns, schema=images.schema)])
            numbers = np.concatenate([numbers, unchanged[positions]])
        return images_of(images, numbers), groups.of[count:]

    def put(self, images: pa.Table) -> None:
        """Take over new images, as ``normalize`` gives them."""
        images = pa.Table.from_arrays(images.columns, schema=self.changed.schema)
        if self.changed.num_rows:
            images = fold(pa.concat_tables([self.changed, images]), self._key)
        self.changed = images

    def drop_expired(self, expiry: Expiry) -> None:
        """Forget images that are too old for the newest row; reads the key of every image.

        No record that is as young as that one could still meet them.
        """
        limit = _limit(self.changed, expiry)
        if limit is None:
            return
        if self.base is None:
            self.changed = self.changed.filter(pa.array(~_is_before(self.changed, expiry, limit)))
            return
        rows = self.base.scan([*self._key, expiry.time])
        expired = rows.filter(pa.array(_is_before(rows, expiry, limit))).select(self._key)
        # what the batch itself says comes last and wins
        self.changed = fold(pa.concat_tables([self._deletes(expired), self.changed]), self._key)

    def _deletes(self, keys: pa.Table) -> pa.Table:
        columns = [
            keys.column(field.name) if field.name in self._key else pa.nulls(keys.num_rows, field.type)
            for field in self.changed.drop_columns([ROW_KIND_COLUMN]).schema
        ]
        rows = pa.Table.from_arrays(columns, schema=self.changed.drop_columns([ROW_KIND_COLUMN]).schema)
        return with_kinds(rows, np.zeros(keys.num_rows, np.bool_))


def _limit(rows: pa.Table, expiry: Expiry) -> Ints | None:
    """The least time that counts beside the newest row; None if no row has a time."""
    ticks, is_known = ticks_of(rows.column(expiry.time))
    if not is_known.any():
        return None
    return earlier(ticks[is_known].max(), expiry.ticks(rows.schema.field(expiry.time).type))


def _is_before(rows: pa.Table, expiry: Expiry, limit: Ints) -> Mask:
    ticks, is_known = ticks_of(rows.column(expiry.time))
    found: Mask = is_known & (ticks < limit)
    return found
