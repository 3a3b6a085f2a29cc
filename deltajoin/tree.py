"""Which tables are joined, and how: the tree of a delta join over numbered tables (pure).

RIGHT joins are LEFT joins with the sides swapped. A maximal region of INNER joins is one `Inner` node, whose
children have no order: which of them is looked up first is decided by indexes and statistics, see
`deltajoin.core.plans`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar, assert_never

from deltajoin.expressions import CONDITION, OPTIONAL_CONDITION, Condition, Ref, conjunction, refs_of
from upsert.codec import OneOf
from upsert.errors import ConfigurationError

__all__ = [
    "KINDS",
    "Inner",
    "Leaf",
    "Node",
    "On",
    "Outer",
    "Ref",
    "Where",
    "children",
    "columns_of",
    "described",
    "flattened",
    "leaves",
    "nodes",
    "null_supplied",
    "visible",
]

KINDS: Final = ("left", "full", "semi", "anti")
"""Kinds of an `Outer`: which rows without a match it keeps, or whether only the left side's come out."""

On = tuple[tuple[Ref, Ref], ...]
"""Pairs of columns that must be equal, and not NULL."""


@dataclass(frozen=True)
class Leaf(OneOf):
    """The rows of one table, as its ``select`` and ``where`` in the spec leave them."""

    table: int

    def __post_init__(self) -> None:
        if not isinstance(self.table, int) or isinstance(self.table, bool) or self.table < 0:
            raise ConfigurationError(f"a leaf's table must be a number from 0, got {self.table!r}")


@dataclass(frozen=True)
class Inner(OneOf):
    """Rows of all children that agree in ``on`` and for which ``where`` is true; order has no meaning."""

    children: tuple[Node, ...]
    on: On
    where: Condition | None = field(default=None, metadata=OPTIONAL_CONDITION)

    def __post_init__(self) -> None:
        object.__setattr__(self, "children", tuple(self.children))
        object.__setattr__(self, "on", _pairs(self.on))
        if len(self.children) < 2:
            raise ConfigurationError(f"an inner join needs two children or more, got {self.children!r}")
        scopes = [visible(child) for child in self.children]
        for pair in self.on:
            one, other = (_scope_of(ref, scopes) for ref in pair)
            if one == other:
                raise ConfigurationError(
                    f"an inner join's keys must be of two children, got {_words(pair)}; make it a condition"
                )
        _check_scope(self.where, frozenset().union(*scopes), "an inner join")
        _check_once(self.children)


@dataclass(frozen=True)
class Outer(OneOf):
    """Rows of ``left`` and ``right`` that match by ``on`` and ``where``, and what the kind makes of the rest.

    ``left``: also left rows without a match, padded with NULLs; ``full``: right ones too; ``semi``: left
    rows that have a match, once; ``anti``: those that have none. ``where`` is the rest of the ON condition.
    """

    kind: str
    left: Node
    right: Node
    on: On
    where: Condition | None = field(default=None, metadata=OPTIONAL_CONDITION)

    def __post_init__(self) -> None:
        object.__setattr__(self, "on", _pairs(self.on))
        if self.kind not in KINDS:
            raise ConfigurationError(f"an outer join's kind must be one of {KINDS}, got {self.kind!r}")
        left, right = visible(self.left), visible(self.right)
        for pair in self.on:
            if pair[0].table not in left or pair[1].table not in right:
                raise ConfigurationError(
                    f"a {self.kind} join's keys must be of its left, then its right side, got {_words(pair)}"
                )
        _check_scope(self.where, left | right, f"a {self.kind} join")
        _check_once((self.left, self.right))


@dataclass(frozen=True)
class Where(OneOf):
    """The child's rows for which the condition is true."""

    child: Node
    condition: Condition = field(metadata=CONDITION)

    def __post_init__(self) -> None:
        _check_scope(self.condition, visible(self.child), "a filter")


Node = Leaf | Inner | Outer | Where


def children(node: Node) -> tuple[Node, ...]:
    """The nodes right below."""
    match node:
        case Leaf():
            return ()
        case Inner(below):
            return below
        case Outer(_, left, right):
            return left, right
        case Where(child):
            return (child,)


def nodes(node: Node) -> Iterator[Node]:
    """The node and all below."""
    yield node
    for child in children(node):
        yield from nodes(child)


def leaves(node: Node) -> tuple[int, ...]:
    """Numbers of all tables below, from left to right.

    >>> leaves(Inner((Leaf(1), Leaf(0)), ((Ref(1, "a"), Ref(0, "b")),)))
    (1, 0)
    """
    return tuple(part.table for part in nodes(node) if isinstance(part, Leaf))


def visible(node: Node) -> frozenset[int]:
    """Tables whose columns the node's rows have: all below but those on the right of semi and anti joins."""
    match node:
        case Leaf(table):
            return frozenset((table,))
        case Outer("semi" | "anti", left, _):
            return visible(left)
        case _:
            return frozenset().union(*map(visible, children(node)))


def null_supplied(node: Node) -> frozenset[int]:
    """Visible tables that may be padded with NULLs in the node's rows."""
    match node:
        case Outer("left", left, right):
            return null_supplied(left) | visible(right)
        case Outer("full"):
            return visible(node)
        case Outer(_, left, _):
            return null_supplied(left)
        case _:
            return frozenset().union(*map(null_supplied, children(node)))


def columns_of(node: Node) -> frozenset[Ref]:
    """All columns that keys and conditions use."""
    used: set[Ref] = set()
    for part in nodes(node):
        match part:
            case Inner(_, on, where) | Outer(_, _, _, on, where):
                used.update(ref for pair in on for ref in pair)
                used |= refs_of(where)
            case Where(_, condition):
                used |= refs_of(condition)
            case Leaf():
                pass
            case _:
                assert_never(part)
    return frozenset(used)


def _pairs(on: Iterable[Sequence[Ref]]) -> On:
    return tuple((one, other) for one, other in on)


def _scope_of(ref: Ref, scopes: Sequence[frozenset[int]]) -> int:
    for number, scope in enumerate(scopes):
        if ref.table in scope:
            return number
    raise ConfigurationError(f"an inner join must use columns of its children, got {ref}")


def _check_scope(condition: Condition | None, scope: frozenset[int], what: str) -> None:
    for ref in sorted(refs_of(condition)):
        if ref.table not in scope:
            raise ConfigurationError(f"{what} must use columns of its children, got {ref}")


def _check_once(below: Iterable[Node]) -> None:
    seen: set[int] = set()
    for child in below:
        own = set(leaves(child))
        if len(own) != len(leaves(child)) or seen & own:
            raise ConfigurationError(
                f"a table number must occur once in a join tree, got {sorted(own)} again"
            )
        seen |= own


def _words(pair: tuple[Ref, Ref]) -> str:
    return " = ".join(map(str, pair))


def described(node: Node, names: Mapping[int, str]) -> str:
    """The tree in one line, for errors and checkpoints.

    >>> on = ((Ref(0, "product"), Ref(1, "id")),)
    >>> described(Outer("left", Leaf(0), Leaf(1), on), {0: "orders", 1: "products"})
    'orders(product) left products(id)'
    """
    match node:
        case Leaf(table):
            return names[table]
        case Inner((Leaf(a), Leaf(b)), on, None):
            return _two(a, b, "=", on, names)
        case Outer(kind, Leaf(a), Leaf(b), on, None):
            return _two(a, b, kind, on, names)
        case Inner(below, on, where):
            inside = ", ".join(described(child, names) for child in below)
            return f"inner({inside}{_tail(on, where, names)})"
        case Outer(kind, left, right, on, where):
            inside = f"{described(left, names)}, {described(right, names)}"
            return f"{kind}({inside}{_tail(on, where, names)})"
        case Where(child, condition):
            return f"where({described(child, names)}: {condition})"


def _two(a: int, b: int, word: str, on: On, names: Mapping[int, str]) -> str:
    of_a, of_b = (", ".join(r.column for pair in on for r in pair if r.table == table) for table in (a, b))
    return f"{names[a]}({of_a}) {word} {names[b]}({of_b})"


def _tail(on: On, where: Condition | None, names: Mapping[int, str]) -> str:
    keys = [" = ".join(f"{names[ref.table]}.{ref.column}" for ref in pair) for pair in on]
    parts = keys + ([] if where is None else [str(where)])
    return f": {' and '.join(parts)}" if parts else ""


def flattened(node: Node) -> Node:
    """The same tree with each region of INNER joins as one node, filters of its children in its condition.

    >>> on = ((Ref(0, "a"), Ref(1, "a")),), ((Ref(1, "b"), Ref(2, "b")),)
    >>> flattened(Inner((Inner((Leaf(0), Leaf(1)), on[0]), Leaf(2)), on[1])).children
    (Leaf(table=0), Leaf(table=1), Leaf(table=2))
    """
    match node:
        case Leaf():
            return node
        case Outer(kind, left, right, on, where):
            return Outer(kind, flattened(left), flattened(right), on, where)
        case Where(child, condition):
            match flattened(child):
                case Inner(below, on, where):
                    return Inner(below, on, conjunction(where, condition))
                case Where(inner, first):
                    return Where(inner, conjunction(first, condition) or condition)
                case other:
                    return Where(other, condition)
        case Inner(below, on, where):
            return _region(tuple(map(flattened, below)), on, where)


def _region(below: tuple[Node, ...], on: On, where: Condition | None) -> Inner:
    parts: list[Node] = []
    for child in below:
        match child:
            case Inner(inside, pairs, condition):
                parts += inside
                on, where = (*on, *pairs), conjunction(where, condition)
            case Where(inner, condition):
                parts.append(inner)
                where = conjunction(where, condition)
            case _:
                parts.append(child)
    return Inner(tuple(parts), on, where)


_T = TypeVar("_T", bound=Hashable)


def equivalence_classes(pairs: Iterable[tuple[_T, _T]]) -> tuple[tuple[_T, ...], ...]:
    """Groups of values that are equal, given pairs of equal ones; in order of first mention.

    >>> equivalence_classes([("a", "b"), ("x", "y"), ("c", "b")])
    (('a', 'b', 'c'), ('x', 'y'))
    """
    group: dict[_T, list[_T]] = {}
    for one, other in pairs:
        mine, theirs = group.setdefault(one, [one]), group.setdefault(other, [other])
        if mine is not theirs:
            mine.extend(theirs)
            group.update(dict.fromkeys(theirs, mine))
    mentioned = {value: number for number, value in enumerate(group)}
    found = {id(members): members for members in group.values()}
    return tuple(tuple(sorted(members, key=mentioned.__getitem__)) for members in found.values())
