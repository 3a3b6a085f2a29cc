"""Join keys that both sides changed with opposite signs: pairs by their net weight (pure).

For a distinct row a of A and a distinct row b of B under one key, the net weight of the pair is

    ΔA(a)·B1(b) + A0(a)·ΔB(b)

where each factor says how often the row is in the changes, or in the snapshot that they meet. So nothing
is netted after the fact: the weights of a key form an outer product, and only its non-zero part is made into
rows. Pairs of two unchanged rows weigh nothing and are never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltajoin.changes import Changes, shared_key_codes, weights
from deltajoin.key_chunks import KeyChunks
from deltajoin.pairs import equal_pairs
from deltajoin.row_codes import Ints, codes_of_rows, first_of_each
from upsert.rowkind import every_kind

SignedPairs = tuple[pa.Table, pa.Table, pa.Array]
"""As many rows of A and of B, and the kinds of the pairs."""


def net_pairs(
    left: Changes,
    right: Changes,
    match_left_old: Callable[[pa.Table], tuple[Ints, pa.Table]],
    match_right_new: Callable[[pa.Table], tuple[Ints, pa.Table]],
    key_types: Sequence[pa.DataType],
    output_rows: int,
) -> Iterator[SignedPairs]:
    """Pairs of rows whose net weight is not zero, repeated as often as they weigh.

    Args:
        left: consolidated changes of A; each of their keys is also among B's.
        right: consolidated changes of B; each of their keys is also among A's.
        match_left_old: rows of A0 that match keys of B.
        match_right_new: rows of B1 that match keys of A.
        key_types: for each pair of keys, the type in which they are compared.
        output_rows: pairs to yield at once at most.
    """
    left_codes, right_codes = shared_key_codes(left, right, key_types)
    chunks, right_chunks = KeyChunks(left_codes), KeyChunks(right_codes)
    for chunk in chunks:
        low = int(left_codes[chunk.first[0]])
        other = right_chunks.between(low, low + len(chunk.first))
        old_keys, old = match_left_old(right.key_table(other.first))
        new_keys, new = match_right_new(left.key_table(chunk.first))
        chunks.found(max(old.num_rows, new.num_rows))
        a = _weigh(left.take(chunk.positions), chunk.keys, old, old_keys)
        b = _weigh(right.take(other.positions), other.keys, new, new_keys)
        yield from _weighted_pairs(a, b, output_rows)


class _Weighed(NamedTuple):
    """The distinct rows of one side under some keys.

    ``rows.take(first)`` are the rows; ``key`` is the key of each, ``change`` its weight in the changes,
    ``present`` how often it is in the snapshot, ``kind`` the position in ``every_kind()`` of its change.
    """

    rows: pa.Table
    first: Ints
    key: Ints
    change: Ints
    present: Ints
    kind: Ints


def _weigh(changes: Changes, keys: Ints, found: pa.Table, found_keys: Ints) -> _Weighed:
    images = changes.images
    rows = pa.concat_tables([images, found.select(images.column_names)]).combine_chunks()
    codes = codes_of_rows(rows)
    changed, present = codes[: len(keys)], codes[len(keys) :]
    first = first_of_each(codes)
    kind = np.zeros(len(first), np.int64)
    kind[changed] = pc.index_in(changes.kinds, every_kind()).to_numpy()
    return _Weighed(
        rows=rows,
        first=first,
        key=np.concatenate([keys, found_keys])[first],
        change=weights(changed, changes.signs, len(first)),
        present=np.bincount(present, minlength=len(first)),
        kind=kind,
    )


def _weighted_pairs(a: _Weighed, b: _Weighed, output_rows: int) -> Iterator[SignedPairs]:
    changed, unchanged = np.flatnonzero(a.change), np.flatnonzero(a.change == 0)
    everything, changed_right = np.arange(len(b.first)), np.flatnonzero(b.change)
    for some, others in ((changed, everything), (unchanged, changed_right)):
        for pairs in equal_pairs(a.key[some], b.key[others], at_most=output_rows):
            yield from _repeated(a, b, some[pairs.left], others[pairs.right], output_rows)


def _repeated(a: _Weighed, b: _Weighed, i: Ints, j: Ints, output_rows: int) -> Iterator[SignedPairs]:
    """Rows ``i`` of A with rows ``j`` of B, as often as each pair weighs."""
    weight = a.change[i] * b.present[j] + a.present[i] * b.change[j]
    copies = np.repeat(np.arange(len(i)), np.abs(weight))
    for start in range(0, len(copies), output_rows):
        chosen = copies[start : start + output_rows]
        of_a, of_b = i[chosen], j[chosen]
        # Where A's row did not change with the pair's sign, B's did, and drove the pair.
        kinds = np.where(a.change[of_a] * weight[chosen] > 0, a.kind[of_a], b.kind[of_b])
        left, right = a.rows.take(pa.array(a.first[of_a])), b.rows.take(pa.array(b.first[of_b]))
        yield left, right, every_kind().take(pa.array(kinds))
