"""How the work of one step is cut into shards that need nothing of each other (pure).

Three cases. (a) All joins of the tree are by one key: a row's shard is the hash of that key, in every table.
(b) Else some table may be in every output row, once, as the left table of a star is: the join is linear
in it, so its rows are cut by a hash of their own, and the shard sees no others of them; the other tables'
changes go to every shard. (c) Else one shard has all.

Where not all columns come out, equal rows may only cancel if they are made in one shard. So (a) wants the key
to follow from what comes out, and (b) hashes columns that do. The split follows from the spec and the schemas
alone, so that all tasks of a micro-batch, and of its replay, agree on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final

import numpy as np
import pyarrow as pa

from deltajoin.core.deltas import Match
from deltajoin.core.keys import common_type, key_columns
from deltajoin.expressions import Ref
from deltajoin.tree import (
    Inner,
    Leaf,
    Node,
    On,
    Outer,
    Where,
    equivalence_classes,
    leaves,
    nodes,
    null_supplied,
    visible,
)
from upsert import types
from upsert.arrays import Ints
from upsert.store.rows.hashing import bucket_of, hash_columns

TASK_ROWS: Final = 50_000
"""Changed rows that are worth a task of their own: it costs about as long as it takes to join them."""


def agreeing(tasks: int, buckets: int, shards: int) -> int:
    """A number of tasks near the wanted one, of so many shards at most, of which each needs few buckets.

    It is a multiple or a divisor of the number of buckets: then no bucket is read by more tasks than it must.
    Where that would be half of the wanted tasks or fewer, as with five buckets and four shards, they do not
    agree.

    >>> [agreeing(tasks, 8, 64) for tasks in (1, 3, 8, 12, 64)]
    [1, 4, 8, 16, 64]
    >>> agreeing(12, 8, 12), agreeing(4, 5, 4), agreeing(2, 5, 4)
    (8, 4, 2)
    """
    agree = [n for n in range(1, shards + 1) if n % buckets == 0 or buckets % n == 0]
    most = agree[-1] if 2 * agree[-1] > tasks else tasks
    return next((n for n in agree if n >= tasks), most)


@dataclass(frozen=True)
class Bucketing:
    """The bucket key of a table, and the types of its columns."""

    key: tuple[str, ...]
    types: tuple[pa.DataType, ...]


@dataclass(frozen=True)
class Split:
    """How rows of each table are cut: by the hash of these columns in these types.

    None where each shard has all rows of the table; ``is_by_key`` where all are cut, by the key of all joins.
    """

    columns: tuple[tuple[str, ...] | None, ...]
    types: tuple[tuple[pa.DataType, ...] | None, ...]
    is_by_key: bool

    def count(self, shards: int) -> int:
        """How many shards have work, of so many."""
        return 1 if all(columns is None for columns in self.columns) else shards

    def keeps_shards(self, table: int, primary_key: Sequence[str]) -> bool:
        """Whether all images of a row are in one shard; without a primary key a row has one image only."""
        columns = self.columns[table]
        return columns is not None and (not primary_key or set(columns) <= set(primary_key))

    def shard_of(self, table: int, rows: pa.Table, shards: int) -> Ints | None:
        """Shard of each row of a table; None where they belong to every shard that has work."""
        columns, as_types = self.columns[table], self.types[table]
        if columns is None or as_types is None:
            return None
        return bucket_of(hash_columns(key_columns(rows, columns, as_types), rows.num_rows), shards)

    def groups(self, table: int, bucketed: Bucketing, buckets: int, shards: int) -> int:
        """In how many groups so many buckets fall, of each of which a shard needs one; 1 for all in one.

        Where shard and bucket follow from one hash, bucket b and shard s have common keys only if b ≡ s
        modulo the greatest common divisor of their numbers.
        """
        columns, as_types = self.columns[table], self.types[table]
        is_one_hash = bucketed.key == columns and bucketed.types == as_types
        return gcd(buckets, shards) if is_one_hash else 1

    def of_shard(self, table: int, rows: pa.Table, shard: int, shards: int) -> pa.Table:
        """The rows of a table that one of so many shards needs."""
        if shard >= self.count(shards):
            return rows.slice(0, 0)
        numbers = None if shards == 1 else self.shard_of(table, rows, shards)
        if numbers is None or (is_own := numbers == shard).all():
            return rows
        return rows.filter(pa.array(is_own))

    def cut_lookup(self, table: int, match: Match, shard: int, shards: int) -> Match:
        """A lookup as one of so many shards sees the table: a key of all joins has brought its rows along."""
        columns = self.columns[table]
        if columns is None or self.is_by_key or shards == 1:
            return match
        own = columns

        def cut(by: Sequence[str], keys: pa.Table, select: Sequence[str]) -> tuple[Ints, pa.Table]:
            positions, rows = match(by, keys, tuple(dict.fromkeys((*select, *own))))
            of_shard = np.flatnonzero(self.shard_of(table, rows, shards) == shard)
            return positions[of_shard], rows.select(list(select)).take(pa.array(of_shard))

        return cut


@dataclass(frozen=True)
class ShardNumbers:
    """Gives the shard of each row of a table that a split cuts into so many."""

    split: Split
    table: int
    shards: int

    def __call__(self, rows: pa.Table) -> Ints:
        """Of rows that have the columns that are hashed."""
        found = self.split.shard_of(self.table, rows, self.shards)
        assert found is not None
        return found


def split_of(
    tree: Node,
    type_of: Callable[[Ref], pa.DataType],
    identities: Sequence[Sequence[str]],
    known: frozenset[Ref] | None = None,
) -> Split:
    """How the work of a tree is cut.

    ``identities`` are for each table columns that tell its rows apart. ``known`` are columns that follow from
    what comes out of a row, in which rows are consolidated; None where they need not be, or where all columns
    come out.
    """
    count = len(leaves(tree))
    keys = [key for key in shared_keys(tree) if known is None or _is_known(key, tree, known)]
    if keys:
        columns = tuple(tuple(key[table] for key in keys) for table in range(count))
        common = tuple(common_type([type_of(Ref(t, column)) for t, column in key.items()]) for key in keys)
        return Split(columns, (common,) * count, is_by_key=True)
    cut: list[tuple[str, ...] | None] = [None] * count
    as_types: list[tuple[pa.DataType, ...] | None] = [None] * count
    if (root := _root(tree, type_of, identities, known)) is not None:
        table, own = root
        cut[table], as_types[table] = own, tuple(type_of(Ref(table, name)) for name in own)
    return Split(tuple(cut), tuple(as_types), is_by_key=False)


def _is_known(key: Mapping[int, str], tree: Node, known: frozenset[Ref]) -> bool:
    """Whether the value of a key follows from what comes out of any row with it."""
    padded, shown = null_supplied(tree), visible(tree)
    found = {table for table, column in key.items() if table in shown and Ref(table, column) in known}
    return bool(found - padded) or found == shown


def _root(
    tree: Node,
    type_of: Callable[[Ref], pa.DataType],
    identities: Sequence[Sequence[str]],
    known: frozenset[Ref] | None,
) -> tuple[int, tuple[str, ...]] | None:
    """A table whose rows may be cut, and what to hash: columns that tell its rows apart, if they come out."""
    found = []
    for table in roots(tree):
        whole = own = tuple(identities[table])
        if known is not None and not {Ref(table, name) for name in own} <= known:
            own = tuple(sorted(ref.column for ref in known if ref.table == table))
        if own := tuple(name for name in own if types.is_scalar(type_of(Ref(table, name)))):
            found.append((own != whole, -_degree(tree, table), table, own))
    if not found:
        return None
    *_, table, own = min(found)
    return table, own


def shared_keys(tree: Node) -> tuple[dict[int, str], ...]:
    """Keys by which all joins of the tree join: for each a column of every table; together they are one key.

    Rows of different keys then never meet, whatever the joins' kinds.

    >>> on = ((Ref(0, "k"), Ref(1, "k")), (Ref(0, "a"), Ref(1, "b")))
    >>> shared_keys(Inner((Leaf(0), Leaf(1)), on))
    ({0: 'k', 1: 'k'}, {0: 'a', 1: 'b'})
    """
    joins = [node for node in nodes(tree) if isinstance(node, Inner | Outer)]
    pairs = [pair for join in joins for pair in join.on]
    keys = []
    for members in equivalence_classes(pairs):
        key = {ref.table: ref.column for ref in members}
        is_whole = len(members) == len(key) == len(leaves(tree))
        if is_whole and all(_joins_by(join, frozenset(members)) for join in joins):
            keys.append(key)
    return tuple(keys)


def _joins_by(join: Inner | Outer, members: frozenset[Ref]) -> bool:
    on = [pair for pair in join.on if members.issuperset(pair)]
    if isinstance(join, Outer):
        return bool(on)
    child_of = {table: number for number, child in enumerate(join.children) for table in visible(child)}
    linked = equivalence_classes((child_of[one.table], child_of[other.table]) for one, other in on)
    return len(linked) == 1 and len(linked[0]) == len(join.children)


def roots(tree: Node) -> frozenset[int]:
    """Tables that every output row has a part of, and whose rows by themselves bring output rows.

    For such a table the join is linear: what it gives for some of the table's rows and what it gives for the
    rest add up to the whole.
    """
    match tree:
        case Leaf(table):
            return frozenset((table,))
        case Where(child):
            return roots(child)
        case Inner(children):
            return frozenset().union(*map(roots, children))
        case Outer("full"):
            return frozenset()
        case Outer(_, left):
            return roots(left)


def needed_keys(tree: Node, table: int) -> tuple[str, ...]:
    """Columns of a table in which a NULL means that the row takes no part at all."""
    needed: dict[str, None] = {}
    for node in nodes(tree):
        match node:
            case Inner(children, on) if any(_is_leaf(child, table) for child in children):
                needed |= dict.fromkeys(_columns(on, table))
            case Outer(kind, left, right, on):
                is_needed = (kind != "full" and _is_leaf(right, table)) or (
                    kind == "semi" and _is_leaf(left, table)
                )
                needed |= dict.fromkeys(_columns(on, table) if is_needed else ())
    return tuple(needed)


def _is_leaf(node: Node, table: int) -> bool:
    match node:
        case Leaf(number):
            return number == table
        case Where(child):
            return _is_leaf(child, table)
        case _:
            return False


def _columns(on: On, table: int) -> list[str]:
    return [ref.column for pair in on for ref in pair if ref.table == table]


def _degree(tree: Node, table: int) -> int:
    """How many pairs of join keys the table is in."""
    joins = (node.on for node in nodes(tree) if isinstance(node, Inner | Outer))
    return sum(len(_columns(on, table)) for on in joins)
