"""From upserts and deletes by key to a full changelog with UPDATE_BEFORE (pure).

FLIP-149's normalizer: the first row of a key is ``+I``, later ones are ``-U`` with the previous image
directly followed by ``+U``, a delete is ``-D`` with all columns of the last image; ``transitions`` has the
table. Rows come in as Arrow and go out as Arrow, all keys at once: previous images and records are brought
into one line, key by key, and what a record meets is what stands before it; see ``line``.

An image is compared by the columns of ``Rules.compare`` only: NULL equals NULL, NaN equals NaN, -0.0 is
not 0.0. A record that equals the image gives nothing and leaves the image as it was, metadata included,
so that the next ``-U`` takes back the very row that was emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.changelog.line import Encounters, Flags, Ints, Keyed, Line, encounters
from upsert.changelog.rules import DELETED_COLUMN, Expiry, Rules
from upsert.changelog.transitions import TRANSITIONS
from upsert.errors import SchemaError
from upsert.rowkind import ROW_KIND_COLUMN, RowKind, every_kind, signs
from upsert.store.hashing import is_null, one_array
from upsert.store.merge import gather
from upsert.store.row_keys import order_by

__all__ = ["Expiry", "KeyGroups", "Normalized", "Rules", "fold", "group_by_key", "normalize"]

Kinds = npt.NDArray[np.int8]

_KIND_FIELD: Final = pa.field(ROW_KIND_COLUMN, pa.string(), nullable=False)
_CODES: Final = {kind: code for code, kind in enumerate(RowKind)}
_IS_POSITIVE: Final = np.array([kind.sign > 0 for kind in RowKind])
_EMITTED: Final = [TRANSITIONS[was, comes] for was in (False, True) for comes in (False, True)]
_LENGTHS: Final = np.array([len(kinds) for kinds in _EMITTED])
_EMITTED_CODES: Final = np.array([[*map(_CODES.__getitem__, k), 0, 0][:2] for k in _EMITTED])
"""Codes of the kinds that are emitted in case 2 * was + comes, filled up with zeros."""


class Normalized(NamedTuple):
    """What a batch of records gives.

    ``changes`` are the rows' columns and ``_row_kind``. ``images`` has the new image of each key that got
    one, in the columns of ``Rules.image_schema`` and ``_row_kind``: ``+U`` replaces the key's image, ``-D``
    removes it.
    """

    changes: pa.Table
    images: pa.Table


class KeyGroups(NamedTuple):
    """A number for the key of each row, dense from 0, and of each key one row."""

    of: Ints
    firsts: Ints


def normalize(records: pa.Table, previous: pa.Table, rules: Rules) -> Normalized:
    """The changelog of some records, and the images to remember.

    Rows of one key come out in their order, ``-U`` directly before its ``+U``; several records of a key give
    all the images in between. What is remembered is one image a key: without ``order_by`` until the key
    is deleted, with it for ever, and with ``expiry`` at least as long as that says.

    Args:
        records: rows with all columns; with ``_row_kind`` a ``-U`` or ``-D`` deletes its key whatever its
            other columns, without it every row is a value.
        previous: the image of each of their keys that has one, and perhaps of others, in the columns of
            ``Rules.image_schema``; no key twice.
        rules: how rows are told apart.

    Raises:
        SchemaError: a key or an order is NULL, or a column is missing or has another type than its image.
        ChangelogError: a kind is none of the four.

    >>> rules = Rules(key=("word",), compare=("n",))
    >>> none = rules.image_schema(pa.schema({"word": pa.string(), "n": pa.int64()})).empty_table()
    >>> changes, images = normalize(pa.table({"word": ["a", "b", "a"], "n": [1, 5, 2]}), none, rules)
    >>> [tuple(row.values()) for row in changes.to_pylist()]
    [('a', 1, '+I'), ('b', 5, '+I'), ('a', 1, '-U'), ('a', 2, '+U')]
    >>> images.to_pydict()
    {'word': ['a', 'b'], 'n': [2, 5], '_row_kind': ['+U', '+U']}
    """
    rules.check(records.schema)
    rows, comes = split_kinds(records)
    check_not_null(rows, rules.key, "key")
    if previous.schema.types != rules.image_schema(rows.schema).types:
        raise SchemaError(
            f"normalize: previous images must have the columns {rules.image_schema(rows.schema)}, got "
            f"{previous.schema}"
        )
    keys = [pa.table(part.select(rules.key).columns, names=list(rules.key)) for part in (previous, rows)]
    groups = group_by_key(pa.concat_tables(keys), rules.key).of
    count = previous.num_rows
    return normalize_keyed(images_of(previous, groups[:count]), Keyed(rows, comes, groups[count:]), rules)


def split_kinds(records: pa.Table) -> tuple[pa.Table, Flags]:
    """The rows without ``_row_kind``, and whether each is a value.

    Raises:
        ChangelogError: a kind is none of the four.
    """
    if ROW_KIND_COLUMN not in records.column_names:
        return records, np.ones(records.num_rows, np.bool_)
    return records.drop_columns([ROW_KIND_COLUMN]), signs(records.column(ROW_KIND_COLUMN)) > 0


def images_of(rows: pa.Table, groups: Ints) -> Keyed:
    """Images as they were remembered, with the numbers of their keys."""
    if DELETED_COLUMN not in rows.column_names:
        return Keyed(rows, np.ones(rows.num_rows, np.bool_), groups)
    is_deleted: Flags = one_array(rows.column(DELETED_COLUMN)).to_numpy(zero_copy_only=False)
    return Keyed(rows, ~is_deleted, groups)


def group_by_key(rows: pa.Table, key: Sequence[str]) -> KeyGroups:
    """Numbers for the keys of the rows, of which none is NULL."""
    order = order_by([rows.column(name) for name in key])
    groups = np.empty(rows.num_rows, np.int64)
    groups[order.rows] = np.cumsum(order.is_first) - 1
    return KeyGroups(groups, order.firsts)


def check_not_null(rows: pa.Table, names: Sequence[str], what: str) -> None:
    """Refuse NULL where it can mean nothing.

    Raises:
        SchemaError: there is one; the message says where.
    """
    for name in names:
        column = rows.column(name)
        if column.null_count:
            row = int(np.argmax(is_null(one_array(column))))
            raise SchemaError(
                f"normalize: {what} column {name!r} must not be NULL, got NULL in row {row} of "
                f"{rows.num_rows}; filter such rows out"
            )


def normalize_keyed(images: Keyed, records: Keyed, rules: Rules) -> Normalized:
    """``normalize`` for rows whose keys have numbers already.

    Raises:
        SchemaError: an order is NULL.
    """
    check_not_null(records.rows, rules.order_by, "order_by")
    # the images' own fields allow NULL, and so does a record that deletes: nullability is the caller's matter
    columns = images.rows.select(records.rows.column_names), records.rows
    schema = columns[1].schema
    rows = pa.concat_tables([pa.Table.from_arrays(part.columns, schema=schema) for part in columns])
    line = Line.of(images, records, rules)
    met = encounters(line, rows, rules.compare)
    changes = _changes(line, met, rows, in_line=bool(rules.order_by))
    if rules.order_by:
        return Normalized(changes, _ordered_images(line, met, rows, records.rows, rules))
    return Normalized(changes, _images(line, met, rows))


def _changes(line: Line, met: Encounters, rows: pa.Table, *, in_line: bool) -> pa.Table:
    """What the changing places emit; in the order of the line, or of the records."""
    places = np.flatnonzero(met.is_change)
    if not in_line:
        places = places[np.argsort(line.rows[places])]
    arriving, before = line.rows[places], met.before[places]
    case = 2 * (before >= 0) + line.is_value[places]
    lengths = _LENGTHS[case]
    starts = np.cumsum(lengths) - lengths
    taken = np.empty(int(lengths.sum()), np.int64)
    kinds = np.empty(len(taken), np.int8)
    for number in range(_EMITTED_CODES.shape[1]):
        emits = np.flatnonzero(lengths > number)
        codes = _EMITTED_CODES[case[emits], number]
        at = starts[emits] + number
        kinds[at] = codes
        taken[at] = np.where(_IS_POSITIVE[codes], arriving[emits], before[emits])
    return _with_codes(gather(rows, taken), kinds)


def _images(line: Line, met: Encounters, rows: pa.Table) -> pa.Table:
    """New images of a log: of each key what its last place left, unless the image did already."""
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

    Args:
        records: as for ``normalize``, the newest row of a key last.
        key: columns that identify a row.

    Raises:
        SchemaError: a key is NULL.
        ChangelogError: a kind is none of the four.

    >>> fold(pa.table({"k": [1, 2, 1], "_row_kind": ["+I", "+U", "-D"]}), ["k"]).to_pydict()
    {'k': [2, 1], '_row_kind': ['+U', '-D']}
    """
    rows, is_value = split_kinds(records)
    check_not_null(rows, key, "key")
    newest = np.sort(order_by([rows.column(name) for name in key]).lasts)
    return with_kinds(gather(rows, newest), is_value[newest])


def with_kinds(rows: pa.Table, is_value: Flags) -> pa.Table:
    """The rows as upserts and deletes: ``_row_kind`` is ``+U`` for a value, else ``-D``."""
    codes = np.where(is_value, _CODES[RowKind.UPDATE_AFTER], _CODES[RowKind.DELETE])
    return _with_codes(rows, codes.astype(np.int8))


def _with_codes(rows: pa.Table, codes: Kinds) -> pa.Table:
    return rows.append_column(_KIND_FIELD, every_kind().take(pa.array(codes)))
