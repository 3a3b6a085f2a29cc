"""The newest row of each key of one ordered log, as of a position: what the normalizer in a source remembers.

A log is a Kafka partition, or anything else with growing positions. Its images are one managed table. Each
batch is one commit of the writer *log*, with the position that it leads to as its transaction; the store
never forgets a writer's last transaction, so each snapshot says by itself at which position it is, those of
compaction, expiry and clean-up too. So the state as of a position is a snapshot: cost follows the changed
keys, a crash leaves a whole commit or none, and compaction continues in the background.

Batches are replayed after a crash. The first attempt may have committed its images, and Kafka's compaction
may have removed records since: it removes a record once the key has a newer one, which may lie in a later
batch, and a tombstone after a while. A replay therefore starts from the images at its start, emits what its
records give, and then *aligns*: where the images that it ends with are not those that were committed, it
emits the step from the ones to the others. So what was emitted always leads to the committed images, which
the next batch takes back; compaction can only take intermediate rows away. Two attempts at once are the same
case.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Mask
from upsert.changelog.normalizer import (
    Expiry,
    Ints,
    Keyed,
    Rules,
    earlier,
    fold,
    images_of,
    normalize_keyed,
    split_kinds,
    ticks_of,
    with_kinds,
)
from upsert.errors import ConfigurationError, MissingStateError, SchemaError, SnapshotExpiredError
from upsert.rowkind import KIND_FIELD, ROW_KIND_COLUMN, RowKind, signs
from upsert.schema import TableSchema
from upsert.store.alterations import SetComment, differences
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.read.snapshot import Snapshot
from upsert.store.rows.conform import conform
from upsert.store.rows.keys import grouped_by, last_of_each, order_by
from upsert.store.rows.layout import Layout
from upsert.store.table import Table

KEEP: Final = 100
"""Spark's ``spark.sql.streaming.minBatchesToRetain``: so far back a query can be made to start again."""


@dataclass
class NewestImages:
    """Images as of a position within a batch: those that it has changed so far, above those at its start.

    Attributes:
        base: the images at the start of the batch; None if all of them are in ``changed``.
        changed: the newest image of each key that the batch has changed: columns of the images and
            ``_row_kind``, ``-D`` where the key has none any more.
    """

    base: Snapshot | None
    changed: pa.Table
    _key: list[str]

    @classmethod
    def above(cls, base: Snapshot, key: Sequence[str]) -> Self:
        """Those of a snapshot, before any change."""
        fields = [pa.field(field.name, field.type) for field in base.layout.schema.arrow]
        fields.append(KIND_FIELD)
        return cls(base, pa.schema(fields).empty_table(), list(key))

    @classmethod
    def all(cls, images: pa.Table, key: Sequence[str]) -> Self:
        """These, and no others."""
        return cls(None, with_kinds(images, np.ones(images.num_rows, np.bool_)), list(key))

    def meet(self, rows: pa.Table) -> tuple[Keyed, Ints]:
        """The images of the keys of some rows, and a number for the key of each row.

        Keys that this batch has not changed are looked up in the base, once each and all together.
        """
        count = self.changed.num_rows
        keys = pa.concat_tables([_columns(part, self._key) for part in (self.changed, rows)])
        # a key that was changed must be seen to be: its first row is among those
        order = order_by(keys.columns) if count else grouped_by(keys.columns)
        firsts, groups = order.firsts, order.numbers
        is_met = np.zeros(len(firsts), np.bool_)
        is_met[groups[count:]] = True
        is_image = (signs(self.changed.column(ROW_KIND_COLUMN)) > 0) & is_met[groups[:count]]
        images = self.changed.drop_columns([ROW_KIND_COLUMN]).filter(pa.array(is_image))
        numbers = groups[:count][is_image]
        unchanged = np.flatnonzero(firsts >= count)
        if self.base is not None and len(unchanged):
            wanted = keys.take(pa.array(firsts[unchanged]))
            positions, found = self.base.match(self._key, wanted)
            images = pa.concat_tables([images, pa.Table.from_arrays(found.columns, schema=images.schema)])
            numbers = np.concatenate([numbers, unchanged[positions]])
        return images_of(images, numbers), groups[count:]

    def normalize(self, rows: pa.Table, is_value: Mask, rules: Rules) -> pa.Table:
        """The changes that records make; their new images are taken over."""
        found, groups = self.meet(rows)
        changes, images = normalize_keyed(found, Keyed(rows, is_value, groups), rules)
        images = pa.Table.from_arrays(images.columns, schema=self.changed.schema)
        if self.changed.num_rows:
            images = fold(pa.concat_tables([self.changed, images]), self._key)
        self.changed = images
        return changes

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
        keys = rows.filter(pa.array(_is_before(rows, expiry, limit))).select(self._key)
        schema = self.changed.drop_columns([ROW_KIND_COLUMN]).schema
        columns = [
            keys.column(field.name) if field.name in self._key else pa.nulls(keys.num_rows, field.type)
            for field in schema
        ]
        expired = pa.Table.from_arrays(columns, schema=schema)
        deletes = with_kinds(expired, np.zeros(keys.num_rows, np.bool_))
        # what the batch itself says comes last and wins
        self.changed = fold(pa.concat_tables([deletes, self.changed]), self._key)


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


_SLACK: Final = 64
"""Snapshots beyond twice the states to keep, before old ones are expired: it costs a commit and a listing."""


def alignment(
    base: Snapshot, own: NewestImages, committed: pa.Table, rules: Rules, schema: pa.Schema
) -> pa.Table:
    """Changes, mostly none, that lead from a replay's images to the committed ones.

    ``base`` are the images at the start of the batch, ``own`` those that the replay ends with, ``committed``
    the consolidated changes of the images by the attempt that has committed, with ``_row_kind``.
    """
    is_after = pc.not_equal(committed.column(ROW_KIND_COLUMN), RowKind.UPDATE_BEFORE.value)
    rows, is_there = split_kinds(committed.filter(is_after))
    count = rows.num_rows
    keys = pa.concat_tables([_columns(part, rules.key) for part in (rows, own.changed)])
    order = order_by(keys.columns)
    firsts, groups = order.firsts, order.numbers
    undone = own.changed.take(pa.array(firsts[firsts >= count] - count))
    before, numbers = NewestImages.above(base, rules.key).meet(undone)
    if rules.order_by:
        _check_not_newer(own.changed, [rows, before.rows], rules)
    if rules.expiry is not None:
        is_touched = np.isin(groups[:count], groups[count:])
        limit = _limit(rows.filter(pa.array(is_there)), rules.expiry)
        # deleted images may have been dropped for their age, with nothing to tell
        is_young = True if limit is None else ~_is_before(rows, rules.expiry, limit)
        kept = is_there | is_touched | is_young
        rows, is_there = rows.filter(pa.array(kept)), is_there[kept]
    is_gone = ~np.isin(numbers, before.groups)
    gone = undone.filter(pa.array(is_gone))
    goals = [
        _with_deletes_as_none(Keyed(rows, is_there, np.arange(rows.num_rows))),
        _with_deletes_as_none(before),
        Keyed(gone, np.zeros(gone.num_rows, np.bool_), numbers[is_gone]),
    ]
    names = schema.names
    aims = pa.concat_tables([_columns(goal.rows, names) for goal in goals])
    images, numbers = own.meet(aims)
    records = Keyed(
        pa.Table.from_arrays(aims.columns, schema=schema),
        np.concatenate([goal.is_value for goal in goals]),
        numbers,
    )
    return normalize_keyed(images, records, Rules(rules.key, tuple(names))).changes


def _columns(rows: pa.Table, names: list[str] | tuple[str, ...]) -> pa.Table:
    """Some columns, all declared nullable, so that tables can be put together."""
    return pa.table(rows.select(list(names)).columns, names=list(names))


def _with_deletes_as_none(images: Keyed) -> Keyed:
    """Images of which those that only remember an order count as none."""
    return images._replace(is_value=images.is_value & images_of(images.rows, images.groups).is_value)


def _check_not_newer(changed: pa.Table, ends: Sequence[pa.Table], rules: Rules) -> None:
    """Refuse a replay that knows newer rows than the images it should end with: later batches lack them."""
    own = changed.filter(pc.equal(changed.column(ROW_KIND_COLUMN), RowKind.UPDATE_AFTER.value))
    columns = (*rules.key, *rules.orders)
    together = pa.concat_tables([_columns(part, columns) for part in (own, *ends)])
    groups = order_by(together.select(rules.key).columns).numbers
    order = order_by([pa.array(groups), *(together.column(name) for name in rules.orders)]).rows
    # of equal order the own row stands first: it must, and one of the others must follow
    group, is_own = groups[order], order < own.num_rows
    is_last = last_of_each(group)
    if (is_own & is_last).any():
        row = own.select(rules.key).slice(int(order[is_own & is_last][0]), 1)
        raise MissingStateError(
            "normalize: a batch that is run again must have no newer rows than at first, got one of key "
            f"{row.to_pylist()[0]!r}; the checkpoint is older than the images: restore both together, or "
            "start the query with a new checkpoint"
        )


DROP_EVERY: Final = 1 << 20
"""Positions after which expired images are looked for, among all of them."""

_SEGMENT_ROWS: Final = 500_000
_SEGMENT_BYTES: Final = 64 << 20
"""Records that are normalized at once."""

_RUNS: Final = 16
"""Sorted runs of the images before they are merged.

Each batch adds a run, and its keys are looked up in all of them. But each run has few of the keys, and the
bits of its index pass the others over. With batches of a fifth of the keys, lookups in up to 16 runs take
0.1 µs a record more than in up to 5, and merging takes 2.3 µs less.
"""

_HELD_BYTES: Final = 256 << 20
"""Changes that wait for the commit; what is beyond goes out before it."""


@dataclass(frozen=True)
class ImageLog:
    """Images of one log. Any process may open it; several attempts at one batch do no harm.

    Used inside a task, once for each batch and log.
    """

    _table: Table
    _log: str
    _layout: Layout
    _beginning: int
    _keep: int
    _order_by: tuple[str, ...]
    _drop_every: int

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
        version: int = 0,
    ) -> Self:
        """The images of a log in a folder of its own, which is made if necessary.

        ``log`` is its name, for example topic and partition. At the position ``beginning``, where the query
        began, no key has an image. ``keep`` batches can still be replayed; ``order_by`` says which row of a
        key is newer, () the order of the log; expired images are looked for every ``drop_every`` positions.

        Images of an older version of the columns get those of this one: what is added is NULL in them, as it
        was in what has been emitted of them. A batch that is replayed under the newer version leads there.
        An attempt of an older ``version``, which says how often the columns were changed, is refused.
        """
        if beginning < 0 or keep < 1 or drop_every < 1:
            raise ConfigurationError(
                f"log {log!r}: beginning must be at least 0, keep and drop_every at least 1, got "
                f"{beginning!r}, {keep!r} and {drop_every!r}"
            )
        plain = TableSchema.of(schema.arrow, primary_key=schema.primary_key)
        rules = Rules(schema.primary_key, (), tuple(order_by))
        images = TableSchema.of(rules.image_schema(plain.arrow), primary_key=schema.primary_key)
        if version:
            images = replace(images, comment=f"{_VERSION}{version}")
        options = {
            # a commit may expire no state that a replay starts from
            "snapshot.num-retained.min": str(keep + 1),
            "num-sorted-run.compaction-trigger": str(_RUNS),
        }
        table = Table.create(path, images, options, if_not_exists=True)
        if table.schema != images and _version_of(table) < version:
            table = _brought_to(table, images)
        if table.schema != images:
            raise ConfigurationError(
                f"images of log {log!r} in {table.path!r} must have columns {_text(images)}, got "
                f"{_text(table.schema)}; declare the columns as they were, or start the query with a new "
                "checkpoint"
            )
        # one state more than there are batches to replay: the one at which the first of them starts
        order = tuple(order_by)
        return cls(table, log, Layout.of(plain), beginning, keep + 1, order, drop_every)

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
        """
        if end <= start:
            raise ConfigurationError(
                f"log {self._log!r}: a batch must end after its start, got {start} to {end}"
            )
        rules = Rules(self._layout.key, tuple(compare), self._order_by, expiry)
        rules.check(self._layout.schema.arrow)
        return self._advance(start, end, self._at(start), records, rules)

    def _advance(
        self, start: int, end: int, base: Snapshot, records: pa.Table | Iterable[pa.Table], rules: Rules
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
        if self._is_recorded(end) or not self._record(start, end, newest.changed):
            committed = self._changes(base, end)
            held.append(alignment(base, newest, committed, rules, self._layout.stored))
        self._expire()
        yield from (changes for changes in held if changes.num_rows)

    def _normalize(self, segment: pa.Table, newest: NewestImages, rules: Rules) -> pa.Table:
        rows, weights = conform(self._layout, segment, f"log {self._log!r}")
        is_value = np.ones(rows.num_rows, np.bool_) if weights is None else weights > 0
        return newest.normalize(rows, is_value, rules)

    def settle(self, start: int, end: int, records: pa.Table, *, compare: Sequence[str]) -> pa.Table | None:
        """The changelog of a batch that another attempt would not repeat; None if there has been one.

        As ``advance``, for records that are not the same when a batch is run again: the first attempt settles
        what the batch is, any other asks ``settled``.
        """
        rules = Rules(self._layout.key, tuple(compare), self._order_by)
        newest = NewestImages.above(self._at(start), rules.key)
        changes = [self._normalize(segment, newest, rules) for segment in [*segments(records)] or [records]]
        if self._is_recorded(end) or not self._record(start, end, newest.changed):
            return None
        self._expire()
        return pa.concat_tables(changes)

    def settled(self, start: int, end: int) -> pa.Table | None:
        """The consolidated changes of a batch that was committed, with ``_row_kind``; None if none was."""
        if not self._is_recorded(end):
            return None
        return self._changes(self._at(start), end)

    def take_over(self, images: pa.Table, end: int) -> None:
        """Make images from elsewhere the state at ``end``, as the first batch; again, nothing happens."""
        if not self._is_recorded(end):
            self._record(self._beginning, end, images)

    def _at(self, position: int) -> Snapshot:
        """The images as of a position: the newest snapshot there, which has the fewest files."""
        if position == self._beginning:
            return self._table.snapshot(0)
        published = self._table.published
        found: SnapshotInfo | None = None
        with suppress(SnapshotExpiredError):  # expired meanwhile, and with it whatever is older
            states = published.backwards(published.latest())
            found = next((info for info in states if self._reached(info) <= position), None)
        if found is not None and self._reached(found) == position:
            return self._table.snapshot(found.id)
        reached = self._reached(published.latest())
        raise MissingStateError(
            f"images of log {self._log!r} in {self._table.path!r}: a state at position {position} must be "
            f"there, got states up to {reached} of which the newest {self._keep} are kept; restore the "
            "folder together with the checkpoint it belongs to, or start the query with a new checkpoint"
        )

    def _is_recorded(self, position: int) -> bool:
        return self._reached(self._table.published.latest()) >= position

    def _record(self, start: int, end: int, images: pa.Table) -> bool:
        """Commit images, with ``_row_kind``, as the state at ``end``; False if that was done before."""
        reached = self._reached(self._table.published.latest())
        if start != reached < end:
            raise MissingStateError(
                f"images of log {self._log!r} in {self._table.path!r}: a batch from {start} to {end} must "
                f"find them at {start}, got {reached}; the checkpoint is older than the images: restore both "
                "together, or start the query with a new checkpoint"
            )
        staged = [self._table.stage(images, order="rows")]
        with self._table.discarded_if_failed(staged):
            done = self._table.commit(staged, writer_id=self._log, transaction=end)
        # whether it was published for these files: without any, by the step that it makes
        published, own = self._table.published, {entry.file for one in staged for entry in one.files}
        is_own = own == {entry.file for entry in published.delta(done.info).added}
        is_own = is_own and start == self._reached(published.info(done.info.id - 1))
        if not is_own:
            self._table.discard(staged)
        return is_own

    def _changes(self, base: Snapshot, end: int) -> pa.Table:
        """The consolidated changes of the images between a state and the one at ``end``."""
        return self._table.changes(base.id, self._at(end).id)

    def _expire(self) -> None:
        """Give up states that no replay needs, once there are many; also what crashed attempts have left."""
        head = self._table.published.latest()
        if head.id - head.oldest > 2 * self._keep + _SLACK:
            self._table.expire(keep=self._keep)
            self._table.clean()

    def _reached(self, info: SnapshotInfo) -> int:
        return info.writers.get(self._log, self._beginning)


_VERSION: Final = "columns of version "


def _version_of(table: Table) -> int:
    """The version of the columns of images, as the comment of their table says."""
    return int((table.schema.comment or f"{_VERSION}0").removeprefix(_VERSION))


def _brought_to(table: Table, images: TableSchema) -> Table:
    """The table with the columns of a newer version; as it is where that cannot be."""
    # another attempt may do the same at this moment, and then one of them finds the columns there
    with suppress(SchemaError):
        table.alter(*differences(table.schema, images), SetComment(None, images.comment))
    return Table.open(table.path)


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
