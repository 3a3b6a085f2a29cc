"""From upserts and deletions by key to a full changelog with UPDATE_BEFORE (pure).

An upsert stream says of a key only what holds from now on: a value, or nothing. A changelog says which row
went, which row came. Between the two lies the row that the key has now, its *image*, if it has one. What is
said follows from two laws:

1. The signs of what is emitted are *row after* − *row before*: an earlier row is retracted once, the present
   row is emitted once. Summed over any stretch of the log this telescopes, so at every moment a key has no
   row or one, whatever a consumer does with kinds.
2. A kind says whether the other sign comes with it: ``-U`` and ``+U`` are a pair, in this order (a sink that
   applies rows in turn must not see two rows of a key), ``+I`` and ``-D`` stand alone.

A negative row carries the image before, with all its columns (its metadata too, as FLIP-149's normalizer), a
positive one the row that arrived. A delete without a row before says nothing; nor does a value that equals
the image. Then the image stays as it was, metadata included, so that the next ``-U`` retracts the very row
that was emitted. Images are compared by the columns of ``Rules.compare`` only: NULL equals NULL, NaN equals
NaN, -0.0 is not 0.0.

Images and records of many keys are brought into one *line*, key after key, each key's image first, then its
records, oldest first: every question about a record and its predecessor is an array shifted by one. Without
``order_by`` the order is that of the rows. With it the highest value of these columns is the newest, wherever
it stands, rows of equal order as they come; a record that is older than its key's image is *late* and not in
the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert import types
from upsert.arrays import Mask, is_null, one_array, stable_order
from upsert.errors import ConfigurationError, SchemaError
from upsert.rowkind import DELETE, ROW_KIND_COLUMN, SIGNS, UPDATE_AFTER, RowKind, signs, with_row_kind
from upsert.store.rows.hashing import fixed_width
from upsert.store.rows.keys import order_by
from upsert.store.rows.merge import gather, same_rows

DELETED_COLUMN: Final = "_is_deleted"
"""Of the images of ordered rows: whether the key is deleted, so that only its order is remembered."""

_LONGEST: Final = (1 << 63) - 1


@dataclass(frozen=True)
class Expiry:
    """How long an image counts: it is absent for a record that is more than ``ttl_ms`` younger.

    As in Flink, a record that equals its image then gives ``-U`` and ``+U``, and makes it younger. An image
    that counts as absent is not taken back: the next record is ``+I``. ``time`` is a column of the rows:
    TIMESTAMP, or BIGINT milliseconds; a row without a time never expires.
    """

    time: str
    ttl_ms: int

    def __post_init__(self) -> None:
        if self.ttl_ms < 1:
            raise ConfigurationError(f"normalize: ttl must be at least 1 ms, got {self.ttl_ms!r}")

    def ticks(self, time: pa.DataType) -> int:
        """``ttl_ms`` in the unit of a time column; what is longer than all times lies apart is as long."""
        return min(self.ttl_ms * (1000 if pa.types.is_timestamp(time) else 1), _LONGEST)


@dataclass(frozen=True)
class Rules:
    """What the normalizer has to know about rows.

    Attributes:
        key: columns that identify a row, of scalar types, never NULL; there must be one.
        compare: columns in which two rows of a key differ; rows that agree in them are duplicates.
        order_by: columns whose highest value is the newest, never NULL; empty: the order of the rows.
        expiry: when an image counts as absent; None: never.
    """

    key: tuple[str, ...]
    compare: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    expiry: Expiry | None = None

    def __post_init__(self) -> None:
        if not self.key:
            raise SchemaError("normalize: key must name at least one column, got none")

    @property
    def orders(self) -> tuple[str, ...]:
        """Columns of an image that hold the order of the newest row of its key, swallowed ones included."""
        return tuple(f"_order_{number}" for number in range(len(self.order_by)))

    @property
    def remembered(self) -> tuple[str, ...]:
        """Columns that an image has beside those of the row."""
        return (*self.orders, DELETED_COLUMN) if self.order_by else ()

    @property
    def kept_of_deleted(self) -> tuple[str, ...]:
        """Columns of the row that the image of a deleted key still has; the others are NULL."""
        return self.key if self.expiry is None else tuple(dict.fromkeys((*self.key, self.expiry.time)))

    def image_schema(self, rows: pa.Schema) -> pa.Schema:
        """Columns of the images of such rows, without ``_row_kind``; all may be NULL."""
        self.check(rows)
        fields = [pa.field(field.name, field.type) for field in rows if field.name != ROW_KIND_COLUMN]
        if self.order_by:
            pairs = zip(self.orders, self.order_by, strict=True)
            fields += [pa.field(order, rows.field(name).type) for order, name in pairs]
            fields.append(pa.field(DELETED_COLUMN, pa.bool_()))
        return pa.schema(fields)

    def check(self, rows: pa.Schema) -> None:
        """Refuse rows without such columns, or with types that cannot serve, or a name that images need."""
        for what, names in (("key", self.key), ("order_by", self.order_by), ("compare", self.compare)):
            for name in names:
                if name not in rows.names or name == ROW_KIND_COLUMN:
                    known = ", ".join(known for known in rows.names if known != ROW_KIND_COLUMN)
                    raise SchemaError(f"normalize: {what} has unknown column {name!r}; columns are {known}")
                if what != "compare" and not types.is_scalar(rows.field(name).type):
                    raise SchemaError(
                        f"normalize: {what} column {name!r} must be of a scalar type, got "
                        f"{types.sql_name(rows.field(name).type)}"
                    )
        for name in self.remembered:
            if name in rows.names:
                raise SchemaError(f"normalize: column name {name!r} is used in its state; rename the column")
        if self.expiry is not None:
            name = self.expiry.time
            found = rows.field(name).type if name in rows.names else None
            if found is None or not (pa.types.is_timestamp(found) or pa.types.is_int64(found)):
                what = "no such column" if found is None else types.sql_name(found)
                raise SchemaError(
                    f"normalize: the time column of a ttl, {name!r}, must be TIMESTAMP or BIGINT "
                    f"milliseconds, got {what}"
                )


TRANSITIONS: Final[Mapping[tuple[bool, bool], tuple[RowKind, ...]]] = MappingProxyType(
    {
        (False, False): (),
        (False, True): (RowKind.INSERT,),
        (True, False): (RowKind.DELETE,),
        (True, True): (RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER),
    }
)
"""(row before?, value arrives?) -> kinds of the rows to emit, in this order."""

Ints = npt.NDArray[np.int64]


class Keyed(NamedTuple):
    """Rows, whether each is a value (else its key is deleted), and a number for the key of each."""

    rows: pa.Table
    is_value: Mask
    groups: Ints


@dataclass(frozen=True)
class Line:
    """Images, numbered from 0, and records, numbered after them.

    Attributes:
        rows: number of the image or record at each position of the line.
        is_first: whether a key begins there.
        is_value: whether the key has a row after this position.
        is_record: whether it is a record, rather than an image.
        is_expired: whether what stands before it counts as absent.
        refreshes: whether a record that equals the image replaces it.
    """

    rows: Ints
    is_first: Mask
    is_value: Mask
    is_record: Mask
    is_expired: Mask
    refreshes: bool

    @classmethod
    def of(cls, images: Keyed, records: Keyed, rules: Rules) -> Line:
        """The line of images and records; the images have the columns that ``rules`` remember."""
        groups = np.concatenate([images.groups, records.groups])
        if rules.order_by:
            rows = _by_order(images, records, groups, rules)
        else:
            rows = stable_order(groups)
        group = groups[rows]
        is_first = np.ones(len(rows), np.bool_)
        is_first[1:] = group[1:] != group[:-1]
        return cls(
            rows,
            is_first,
            np.concatenate([images.is_value, records.is_value])[rows],
            rows >= len(images.groups),
            _is_expired(images, records, rows, rules.expiry),
            rules.expiry is not None,
        )

    @property
    def lasts(self) -> Ints:
        """Of each key its last position."""
        ends = np.ones(len(self.rows), np.bool_)
        ends[:-1] = self.is_first[1:]
        return np.flatnonzero(ends)


class Encounters(NamedTuple):
    """What each position of a line meets, and what it leaves behind.

    Attributes:
        before: number of the row that the key had until then, -1 for none.
        heads: the position whose row the key has from then on (or that deleted it).
        is_change: whether it is a record that changes anything.
    """

    before: Ints
    heads: Ints
    is_change: Mask


def encounters(line: Line, rows: pa.Table, compare: Sequence[str]) -> Encounters:
    """What every record meets.

    A stretch of equal values, or of deletes, is headed by its first position: the others change nothing.
    ``rows`` are images and records, by their numbers in the line.
    """
    follows = ~line.is_first
    was = np.zeros(len(line.rows), np.bool_)
    was[1:] = line.is_value[:-1]
    is_same = follows & ~line.is_value & ~was
    was &= follows & ~line.is_expired
    if not line.refreshes:
        both = np.flatnonzero(was & line.is_value)
        same = same_rows(rows.select(compare), line.rows[both - 1], rows, line.rows[both])
        is_same[both[same]] = True
    heads = np.maximum.accumulate(np.where(is_same, 0, np.arange(len(line.rows))))
    before = np.full(len(line.rows), -1, np.int64)
    meeting = np.flatnonzero(was)
    before[meeting] = line.rows[heads[meeting - 1]]
    return Encounters(before, heads, ~is_same & line.is_record & (line.is_value | was))


def _by_order(images: Keyed, records: Keyed, groups: Ints, rules: Rules) -> Ints:
    """Row numbers by key and order, without late records."""
    orders = [
        pa.chunked_array([*images.rows.column(kept).chunks, *records.rows.column(name).chunks])
        for kept, name in zip(rules.orders, rules.order_by, strict=True)
    ]
    rows = order_by([pa.array(groups), *orders]).rows
    # the sort is stable and images come first, so a record of the image's own order stands behind it
    is_image = np.flatnonzero(rows < len(images.groups))
    of_key = np.full(int(groups.max(initial=-1)) + 1, -1, np.int64)
    of_key[groups[rows[is_image]]] = is_image
    found: Ints = rows[np.arange(len(rows)) >= of_key[groups[rows]]]
    return found


def _is_expired(images: Keyed, records: Keyed, rows: Ints, expiry: Expiry | None) -> Mask:
    """Where the position before is more than ``ttl_ms`` older."""
    expired = np.zeros(len(rows), np.bool_)
    if expiry is None:
        return expired
    columns = [ticks_of(part.rows.column(expiry.time)) for part in (images, records)]
    ticks = np.concatenate([found for found, _ in columns])[rows]
    is_known = np.concatenate([known for _, known in columns])[rows]
    ttl = expiry.ticks(records.rows.schema.field(expiry.time).type)
    expired[1:] = is_known[1:] & is_known[:-1] & (ticks[:-1] < earlier(ticks[1:], ttl))
    return expired


def ticks_of(times: pa.ChunkedArray) -> tuple[Ints, Mask]:
    """Times as integers of the column's own unit, and whether each is known."""
    column = one_array(times)
    return fixed_width(column), ~is_null(column)


def earlier(ticks: Ints | np.int64, by: int) -> Ints:
    """``ticks - by``, without wrapping round at the lowest integer.

    >>> earlier(np.array([2, 1 - 2**63]), 5).tolist() == [-3, -(2**63)]
    True
    """
    lowest = np.iinfo(np.int64).min
    return np.where(ticks < lowest + by, lowest, ticks - by)


_EMITTED: Final = [TRANSITIONS[was, comes] for was in (False, True) for comes in (False, True)]
_LENGTHS: Final = np.array([len(kinds) for kinds in _EMITTED])

_EMITTED_CODES: Final = np.array([[*map(list(RowKind).index, k), 0, 0][:2] for k in _EMITTED])
"""Codes of the kinds that are emitted in case 2 * was + comes, filled up with zeros."""


class Normalized(NamedTuple):
    """What a batch of records gives.

    ``changes`` are the rows' columns and ``_row_kind``. ``images`` has the new image of each key that got
    one, in the columns of ``Rules.image_schema`` and ``_row_kind``: ``+U`` replaces the key's image, ``-D``
    removes it.
    """

    changes: pa.Table
    images: pa.Table


def split_kinds(records: pa.Table) -> tuple[pa.Table, Mask]:
    """The rows without ``_row_kind``, and whether each is a value."""
    if ROW_KIND_COLUMN not in records.column_names:
        return records, np.ones(records.num_rows, np.bool_)
    return records.drop_columns([ROW_KIND_COLUMN]), signs(records.column(ROW_KIND_COLUMN)) > 0


def images_of(rows: pa.Table, groups: Ints) -> Keyed:
    """Images as they were remembered, with the numbers of their keys."""
    if DELETED_COLUMN not in rows.column_names:
        return Keyed(rows, np.ones(rows.num_rows, np.bool_), groups)
    is_deleted: Mask = one_array(rows.column(DELETED_COLUMN)).to_numpy(zero_copy_only=False)
    return Keyed(rows, ~is_deleted, groups)


def check_not_null(rows: pa.Table, names: Sequence[str], what: str) -> None:
    """Refuse NULL where it can mean nothing."""
    for name in names:
        column = rows.column(name)
        if column.null_count:
            row = int(np.argmax(is_null(one_array(column))))
            raise SchemaError(
                f"normalize: {what} column {name!r} must not be NULL, got NULL in row {row} of "
                f"{rows.num_rows}; filter such rows out"
            )


def normalize_keyed(images: Keyed, records: Keyed, rules: Rules) -> Normalized:
    """The changelog of some records, and the images to remember.

    Rows of one key come out in their order, ``-U`` directly before its ``+U``; several records of a key give
    all the images in between. What is remembered is one image a key: without ``order_by`` until the key
    is deleted, with it for ever, and with ``expiry`` at least as long as that says.

    ``images`` are those of the records' keys that have one, and perhaps of others, no key twice, in the
    columns of ``Rules.image_schema``. Keys are not NULL; nor may an order be.
    """
    check_not_null(records.rows, rules.order_by, "order_by")
    # the images' own fields allow NULL, and so does a record that deletes: nullability is the caller's matter
    columns = images.rows.select(records.rows.column_names), records.rows
    schema = columns[1].schema
    rows = pa.concat_tables([pa.Table.from_arrays(part.columns, schema=schema) for part in columns])
    rows = rows.combine_chunks()  # once, for all that is taken of them
    line = Line.of(images, records, rules)
    # rows that meet have one key
    met = encounters(line, rows, [name for name in rules.compare if name not in rules.key])
    changes = _changes(line, met, rows, in_line=bool(rules.order_by))
    if rules.order_by:
        return Normalized(changes, _ordered_images(line, met, rows, records.rows, rules))
    return Normalized(changes, _images(line, met, rows))


def _changes(line: Line, met: Encounters, rows: pa.Table, *, in_line: bool) -> pa.Table:
    """What the changing positions emit; in the order of the line, or of the records."""
    positions = np.flatnonzero(met.is_change)
    if not in_line:
        # in the order of their rows, without a sort: where each row is in the line
        place = np.full(len(rows), -1, np.int64)
        place[line.rows[positions]] = positions
        positions = place[place >= 0]
    arriving, before = line.rows[positions], met.before[positions]
    case = 2 * (before >= 0) + line.is_value[positions]
    lengths = _LENGTHS[case]
    starts = np.cumsum(lengths) - lengths
    taken = np.empty(int(lengths.sum()), np.int64)
    kinds = np.empty(len(taken), np.int8)
    for number in range(_EMITTED_CODES.shape[1]):
        emits = np.flatnonzero(lengths > number)
        codes = _EMITTED_CODES[case[emits], number]
        at = starts[emits] + number
        kinds[at] = codes
        taken[at] = np.where(SIGNS[codes] > 0, arriving[emits], before[emits])
    return with_row_kind(gather(rows, taken), kinds)


def _images(line: Line, met: Encounters, rows: pa.Table) -> pa.Table:
    """New images of a log: of each key what its last position left, unless the image did already."""
    lasts = line.lasts
    heads = met.heads[lasts]
    had_image = ~line.is_record[np.flatnonzero(line.is_first)]
    is_value = line.is_value[heads]
    kept = line.is_record[heads] & (is_value | had_image)
    return with_kinds(gather(rows, line.rows[heads[kept]]), is_value[kept])


def _ordered_images(line: Line, met: Encounters, rows: pa.Table, records: pa.Table, rules: Rules) -> pa.Table:
    """New images of ordered rows: each key's row, or that it has none, and the order of its newest record."""
    lasts = line.lasts
    lasts = lasts[line.is_record[lasts]]
    newest, is_value = line.rows[lasts], line.is_value[lasts]
    found = gather(rows, line.rows[met.heads[lasts]])
    if not is_value.all():
        found = found.take(pa.array(np.arange(len(lasts)), mask=~is_value))
        for name in rules.kept_of_deleted:
            column = gather(rows.select([name]), newest).column(name)
            found = found.set_column(found.column_names.index(name), found.schema.field(name), column)
    orders = gather(records.select(rules.order_by), newest - (len(rows) - len(records)))
    columns = [*found.columns, *orders.columns, pa.array(~is_value)]
    images = pa.Table.from_arrays(columns, schema=rules.image_schema(rows.schema))
    return with_kinds(images, np.ones(len(lasts), np.bool_))


def fold(records: pa.Table, key: Sequence[str]) -> pa.Table:
    """The newest row of each key, ``+U`` or ``-D``, in the order of these rows: ``changelog = upsert``.

    Nothing is remembered. Only a sink keyed by ``key``, or ``normalize``, knows what to do with the result.

    >>> fold(pa.table({"k": [1, 2, 1], "_row_kind": ["+I", "+U", "-D"]}), ["k"]).to_pydict()
    {'k': [2, 1], '_row_kind': ['+U', '-D']}
    """
    rows, is_value = split_kinds(records)
    check_not_null(rows, key, "key")
    newest = np.sort(order_by([rows.column(name) for name in key]).lasts)
    return with_kinds(gather(rows, newest), is_value[newest])


def net(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """What the changes of each key, as they come, leave: at most one row that goes and one that comes.

    The row that goes is the one that the first change takes away, the row that comes the one that the last
    change adds. A key that the first change adds and the last one takes away is deleted, for it may have been
    there: what is in between is not looked at, so it does not matter whether these changes agree, or come
    twice. Where the row that goes is the one that comes, it only comes.

    >>> kinds = ["+I", "+I", "-U", "+U", "+I", "-D", "-D"]
    >>> rows = {"k": [1, 1, 1, 1, 2, 2, 3], "n": [5, 5, 5, 6, 7, None, 8], "_row_kind": kinds}
    >>> net(pa.table(rows), ["k"]).to_pydict()
    {'k': [1, 2, 3], 'n': [6, None, 8], '_row_kind': ['+U', '-D', '-D']}
    """
    check_not_null(changes, key, "key")
    order = order_by([changes.column(name) for name in key])
    comes = signs(changes.column(ROW_KIND_COLUMN)) > 0
    firsts, lasts = order.firsts, order.lasts
    goes_first = ~comes[firsts]
    both = np.flatnonzero(goes_first & comes[lasts])
    data = changes.drop_columns([ROW_KIND_COLUMN])
    # a sink would let these cancel, and keep another row that it may have
    goes_first[both[same_rows(data, firsts[both], data, lasts[both])]] = False
    is_left = np.zeros(changes.num_rows, np.bool_)
    is_left[firsts[goes_first]] = True
    is_left[lasts[comes[lasts] | ~goes_first]] = True
    return gather(changes, np.flatnonzero(is_left))


_CHUNK_ROWS: Final = 65_536


def folded(
    changes: Iterable[pa.Table],
    key: Sequence[str],
    by: Callable[[pa.Table, Sequence[str]], pa.Table] = fold,
) -> Iterator[pa.Table]:
    """``fold``, or ``net``, of many tables together; at most twice the result is kept, and a chunk."""
    kept: list[pa.Table] = []
    newest = 0
    for rows in changes:
        kept.append(rows)
        if sum(map(len, kept)) > 2 * newest + 8 * _CHUNK_ROWS:
            kept = [by(pa.concat_tables(kept), key)]
            newest = len(kept[0])
    if kept:
        yield by(pa.concat_tables(kept), key)


def with_kinds(rows: pa.Table, is_value: Mask) -> pa.Table:
    """The rows as upserts and deletes: ``_row_kind`` is ``+U`` for a value, else ``-D``."""
    return with_row_kind(rows, np.where(is_value, UPDATE_AFTER, DELETE))
