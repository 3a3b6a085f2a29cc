"""The INNER join of two tables, by itself: the same rows as `deltajoin.semantics` gives, sooner (pure).

When the tables move from A0, B0 to A1, B1,

    A1 ⋈ B1 − A0 ⋈ B0  =  ΔA ⋈ B1  +  A0 ⋈ ΔB

Changes are signed rows, weights multiply, and nothing is counted twice: A's changes meet B at its new
version, B's changes meet A at its *old* one. Deletes on both sides, updates that move a row to another
join key and equal rows in a table without primary key need no rule of their own.

The two terms can cancel only where both sides changed under one join key with opposite signs: an update
there takes a pair away in one term and brings it back in the other. Such *contested* keys go to
`deltajoin.contested`; all others are emitted as they match.

Memory holds the changes, the rows that one lookup brought, and one batch of output, also where a contested
key has many rows in both tables. With 200,000 updates a side against 1.6 million rows each this takes four
fifths of the time of the general way, which makes all rows of contested keys before they cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltajoin import contested
from deltajoin.changes import Changes, Signs, shared_key_codes
from deltajoin.key_chunks import KeyChunks
from deltajoin.pairs import equal_pairs
from deltajoin.row_codes import Ints
from deltajoin.spec import output_name
from deltajoin.tree import Inner, Leaf, Node
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store.hashing import one_array

Match = Callable[[pa.Table], tuple[Ints, pa.Table]]
"""A lookup at a pinned version: distinct keys -> (for each row found, which key it matches; the rows)."""

OUTPUT_ROWS: Final = 16_384
"""Spark is busy with one batch while the next one is made, so the last one should not be long."""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class JoinTypes:
    """Arrow types of a join: those in which each pair of keys is compared, and the output's schema."""

    keys: tuple[pa.DataType, ...]
    output: pa.Schema


def keys_of(tree: Node) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Keys of both tables if the tree is a join of this kind, else None.

    >>> from deltajoin.tree import Ref
    >>> keys_of(Inner((Leaf(1), Leaf(0)), ((Ref(1, "a"), Ref(0, "b")),)))
    (('b',), ('a',))
    """
    match tree:
        case Inner((Leaf(), Leaf()), on, None) if on:
            left, right = (
                tuple(ref.column for pair in on for ref in pair if ref.table == table) for table in (0, 1)
            )
            is_once = len(set(left)) == len(left) and len(set(right)) == len(right)
            return (left, right) if is_once else None
    return None


def output_schema(left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """The output's columns: those that the sides select, prefixed and nullable, and ``_row_kind`` last.

    >>> output_schema(pa.schema({"a": pa.int64()}), pa.schema({"a": pa.int32()})).names
    ['t0_a', 't1_a', '_row_kind']
    """
    fields = [
        pa.field(output_name(number, field.name), field.type)
        for number, schema in enumerate((left, right))
        for field in schema
    ]
    return pa.schema([*fields, pa.field(ROW_KIND_COLUMN, pa.string())])


def inner_join(
    left: Changes,
    right: Changes,
    match_left_old: Match,
    match_right_new: Match,
    types: JoinTypes,
    *,
    output_rows: int = OUTPUT_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Net signed rows of the join for one step of both tables, in batches of bounded size.

    Args:
        left: consolidated changes of A.
        right: consolidated changes of B.
        match_left_old: rows of A0 that match keys of B, with A's selected columns.
        match_right_new: rows of B1 that match keys of A, with B's selected columns.
        types: types of the keys and of the output.
        output_rows: rows of a batch at most.

    Yields:
        Batches of exactly ``types.output``. The kind of a row is that of the changed row that drove it. A
        NULL key matches nothing. Over all batches, no row comes with both signs.
    """
    left_mask, right_mask = _contested(left, right, types)
    for changes, mask, match, is_left in (
        (left, left_mask, match_right_new, True),
        (right, right_mask, match_left_old, False),
    ):
        plain = changes.take(np.flatnonzero(~mask)) if mask.any() else changes
        for driving, found, kinds in _driven(plain, match, types, output_rows):
            yield _batch(types.output, *((driving, found) if is_left else (found, driving)), kinds)
    if left_mask.any():
        a, b = left.take(np.flatnonzero(left_mask)), right.take(np.flatnonzero(right_mask))
        net = contested.net_pairs(a, b, match_left_old, match_right_new, types.keys, output_rows)
        for left_rows, right_rows, kinds in net:
            yield _batch(types.output, left_rows, right_rows, kinds)


def _contested(left: Changes, right: Changes, types: JoinTypes) -> tuple[Mask, Mask]:
    """For each row of both sides, whether its key was changed by both with opposite signs."""
    a, b = left.signs, right.signs
    if not len(a) or not len(b) or (np.all(a == a[0]) and np.all(b == a[0])):
        return np.zeros(len(a), np.bool_), np.zeros(len(b), np.bool_)
    a_codes, b_codes = shared_key_codes(left, right, types.keys)
    count = int(max(a_codes.max(), b_codes.max())) + 1
    a_plus, a_minus = _has_sign(a_codes, a, count)
    b_plus, b_minus = _has_sign(b_codes, b, count)
    is_contested = (a_plus & b_minus) | (a_minus & b_plus)
    return is_contested[a_codes], is_contested[b_codes]


def _has_sign(codes: Ints, sign: Signs, count: int) -> tuple[Mask, Mask]:
    plus, minus = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    plus[codes[sign > 0]] = True
    minus[codes[sign < 0]] = True
    return plus, minus


def _driven(
    changes: Changes, match: Match, types: JoinTypes, output_rows: int
) -> Iterator[tuple[pa.Table, pa.Table, pa.ChunkedArray]]:
    """Changed rows, the rows of the other side that they match, and the kinds of the former."""
    if not changes.rows.num_rows:
        return
    images, kinds = changes.images, changes.kinds
    chunks = KeyChunks(changes.key_codes(types.keys))
    for chunk in chunks:
        which, found = match(changes.key_table(chunk.first))
        chunks.found(found.num_rows)
        found = found.combine_chunks()
        for pairs in equal_pairs(chunk.keys, which, at_most=output_rows):
            driver = pa.array(chunk.positions[pairs.left])
            yield images.take(driver), found.take(pa.array(pairs.right)), kinds.take(driver)


def _batch(
    schema: pa.Schema, left: pa.Table, right: pa.Table, kinds: pa.Array | pa.ChunkedArray
) -> pa.RecordBatch:
    """One batch of output from as many rows of both sides and their kinds."""
    arrays = [one_array(column) for column in (*left.columns, *right.columns, kinds)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
