"""The newest row of each key of one ordered log, as of a position: what the normalizer in a source remembers.

A log is a Kafka partition, or anything else with growing positions. Its images are one managed table, each
batch one commit that says which position it leads to; see ``positions``. So the state as of a position is a
snapshot: cost follows the changed keys, a crash leaves a whole commit or none, and merging goes on in the
background.

Batches are replayed after a crash. The first attempt may have committed its images, and Kafka may have
compacted records away since. A replay therefore starts from the images at its start, emits what its records
give, and then *aligns*: where the images that it ends with are not those that were committed, it emits the
step from the ones to the others. So what was emitted always leads to the committed images, which the next
batch takes back; compaction can only take intermediate rows away. Two attempts at once are the same case.

What is remembered: the newest row of each key that is not deleted, for ever or as long as an ``Expiry`` says,
and the states at the ends of the last batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Self

import numpy as np
import pyarrow as pa

from upsert.changelog.alignment import alignment
from upsert.changelog.line import Keyed
from upsert.changelog.newest import NewestImages
from upsert.changelog.normalizer import normalize_keyed
from upsert.changelog.positions import Positions
from upsert.changelog.rules import Expiry, Rules
from upsert.changelog.spec import KEEP
from upsert.errors import ConfigurationError
from upsert.schema import TableSchema
from upsert.store.layout import Layout
from upsert.store.rows import conform
from upsert.store.snapshot import Snapshot
from upsert.store.table import Table

DROP_EVERY: Final = 1 << 20
"""Positions after which expired images are looked for, among all of them."""

_SEGMENT_ROWS: Final = 500_000
_SEGMENT_BYTES: Final = 64 << 20
"""Records that are normalized at once."""
_HELD_BYTES: Final = 256 << 20
"""Changes that wait for the commit; what is beyond goes out before it."""


class ImageLog:
    """Images of one log. Any process may open it; several attempts at one batch do no harm.

    Used inside a task, once for each batch and log.

    >>> import tempfile
    >>> schema = TableSchema.of({"word": pa.string(), "n": pa.int64()}, primary_key=["word"])
    >>> log = ImageLog.open(tempfile.mkdtemp() + "/words-0", schema, "words-0", beginning=0)
    >>> for first, n in ((0, 1), (1, 2)):
    ...     for changes in log.advance(first, first + 1, pa.table({"word": ["a"], "n": [n]}), compare=["n"]):
    ...         print([tuple(row.values()) for row in changes.to_pylist()])
    [('a', 1, '+I')]
    [('a', 1, '-U'), ('a', 2, '+U')]
    """

    def __init__(
        self, positions: Positions, schema: TableSchema, order_by: tuple[str, ...], drop_every: int
    ) -> None:
        """Of an existing table; use ``ImageLog.open``."""
        self._positions = positions
        self._layout = Layout.of(schema)
        self._order_by = order_by
        self._drop_every = drop_every

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        schema: TableSchema,
        log: str,
        *,
        beginning: int,
        keep: int = KEEP,
        order_by: Sequence[str] = (),
        drop_every: int = DROP_EVERY,
    ) -> Self:
        """The images of a log in a folder of its own, which is made if necessary.

        Args:
            path: the folder; it belongs to this log of this query alone.
            schema: columns of the rows (metadata columns are plain ones here), with a primary key.
            log: name of the log, for example topic and partition.
            beginning: the position, at least 0, at which the query began: there no key has an image.
            keep: batches that can still be replayed.
            order_by: columns that say which row of a key is newer; empty: the order of the log.
            drop_every: positions after which images that are expired are looked for.

        Raises:
            ConfigurationError: the folder holds images of other columns, or a number is out of range.
            SchemaError: the schema has no primary key, or a column has a name that images need.
        """
        if beginning < 0 or keep < 1 or drop_every < 1:
            raise ConfigurationError(
                f"log {log!r}: beginning must be at least 0, keep and drop_every at least 1, got "
                f"{beginning!r}, {keep!r} and {drop_every!r}"
            )
        plain = TableSchema.of(schema.arrow, primary_key=schema.primary_key)
        rules = Rules(schema.primary_key, (), tuple(order_by))
        images = TableSchema.of(rules.image_schema(plain.arrow), primary_key=schema.primary_key)
        # a commit may expire no state that a replay starts from
        retention = {"snapshot.num-retained.min": str(keep + 1)}
        table = Table.create(path, images, retention, if_not_exists=True)
        if table.schema != images:
            raise ConfigurationError(
                f"images of log {log!r} in {table.path!r} must have columns {_text(images)}, got "
                f"{_text(table.schema)}; declare the columns as they were, or start the query with a new "
                "checkpoint"
            )
        # one state more than there are batches to replay: the one at which the first of them starts
        return cls(Positions(table, log, beginning, keep + 1), plain, tuple(order_by), drop_every)

    def advance(
        self,
        start: int,
        end: int,
        records: pa.Table | Iterable[pa.Table],
        *,
        compare: Sequence[str],
        expiry: Expiry | None = None,
    ) -> Iterator[pa.Table]:
        """The changelog of one batch: the schema's columns, then ``_row_kind``.

        Take all of it: the batch is committed on the way, mostly before the first table comes out. If
        anything fails or stops before, nothing was committed, and the batch can be run again.

        Args:
            start: first position of the batch: ``beginning``, or the ``end`` of an earlier batch.
            end: position after the batch, greater than ``start``.
            records: rows in the log's order, the schema's columns in any order and ``_row_kind``: ``+I`` and
                ``+U`` are values, ``-U`` and ``-D`` delete the key, whatever their other columns (NULL is
                allowed). Without ``_row_kind`` all are values. May be empty: ``end`` is remembered anyway.
            compare: columns that make two rows different. Leave offset, timestamp and the like out: then a
                record that an at-least-once producer has sent twice gives nothing.
            expiry: forget images after a time; None: never.

        Returns:
            Tables of changes; those of a key are in order.

        Raises:
            MissingStateError: there are no images for ``start``; the message says what to do.
            SchemaError: records do not fit the schema, or a key is NULL.
            ChangelogError: a kind is none of the four.
        """
        if end <= start:
            raise ConfigurationError(
                f"log {self._positions.log!r}: a batch must end after its start, got {start} to {end}"
            )
        rules = Rules(self._layout.key, tuple(compare), self._order_by, expiry)
        rules.check(self._layout.schema.arrow)
        return self._advance(start, end, self._positions.at(start), records, rules)

    def _advance(
        self,
        start: int,
        end: int,
        base: Snapshot,
        records: pa.Table | Iterable[pa.Table],
        rules: Rules,
    ) -> Iterator[pa.Table]:
        newest = NewestImages.above(base, rules.key)
        held: list[pa.Table] = []
        room = _HELD_BYTES
        for segment in segments(records):
            changes = self._normalize(segment, newest, rules)
            room -= changes.nbytes
            held.append(changes)
            if room < 0:
                yield from held
                held = []
        if rules.expiry is not None and start // self._drop_every != end // self._drop_every:
            newest.drop_expired(rules.expiry)
        if not self._commit(start, end, newest):
            committed = self._positions.changes(base, end)
            held.append(alignment(base, newest, committed, rules, self._layout.stored))
        self._positions.expire()
        yield from (changes for changes in held if changes.num_rows)

    def _normalize(self, segment: pa.Table, newest: NewestImages, rules: Rules) -> pa.Table:
        rows, weights = conform(self._layout, segment, f"log {self._positions.log!r}")
        images, groups = newest.meet(rows)
        is_value = np.ones(rows.num_rows, np.bool_) if weights is None else weights > 0
        changes, changed = normalize_keyed(images, Keyed(rows, is_value, groups), rules)
        newest.put(changed)
        return changes

    def _commit(self, start: int, end: int, newest: NewestImages) -> bool:
        """Commit the batch's images; False if that was done before."""
        return not self._positions.is_recorded(end) and self._positions.record(start, end, newest.changed)

    def settle(self, start: int, end: int, records: pa.Table, *, compare: Sequence[str]) -> pa.Table | None:
        """The changelog of a batch that another attempt would not repeat; None if there has been one.

        As ``advance``, for records that are not the same when a batch is run again: the first attempt settles
        what the batch is, any other asks ``settled``.

        Args:
            start: as for ``advance``.
            end: as for ``advance``.
            records: as for ``advance``.
            compare: as for ``advance``.

        Raises:
            MissingStateError: there are no images for ``start``.
            SchemaError: records do not fit the schema, or a key is NULL.
            ChangelogError: a kind is none of the four.
        """
        rules = Rules(self._layout.key, tuple(compare), self._order_by)
        newest = NewestImages.above(self._positions.at(start), rules.key)
        changes = [self._normalize(segment, newest, rules) for segment in [*segments(records)] or [records]]
        if not self._commit(start, end, newest):
            return None
        self._positions.expire()
        return pa.concat_tables(changes)

    def settled(self, start: int, end: int) -> pa.Table | None:
        """The net changes of a batch that an attempt has committed, with ``_row_kind``; None if none has.

        Raises:
            MissingStateError: one of the two states is no longer there.
        """
        if not self._positions.is_recorded(end):
            return None
        return self._positions.changes(self._positions.at(start), end)

    def take_over(self, images: pa.Table, end: int) -> None:
        """Make images from elsewhere the state at ``end``, as the first batch; again, nothing happens."""
        if not self._positions.is_recorded(end):
            self._positions.record(self._positions.beginning, end, images)


def segments(records: pa.Table | Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The records in tables of a size that is normalized at once; small ones are put together."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in _limited([records] if isinstance(records, pa.Table) else records):
        if waiting and (rows + table.num_rows > _SEGMENT_ROWS or size + table.nbytes > _SEGMENT_BYTES):
            yield pa.concat_tables(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
    if waiting:
        yield pa.concat_tables(waiting)


def _limited(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    for table in tables:
        parts = max(-(-table.num_rows // _SEGMENT_ROWS), -(-table.nbytes // _SEGMENT_BYTES))
        length = -(-table.num_rows // parts) if parts else 0
        for start in range(0, table.num_rows, length or 1):
            yield table.slice(start, length)


def _text(schema: TableSchema) -> str:
    key = f"PRIMARY KEY ({', '.join(schema.primary_key)})"
    return ", ".join([*(f"{column.name} {column.type}" for column in schema.columns), key])
