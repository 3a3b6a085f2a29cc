"""A short hash of what a join means, by which a checkpoint knows its own (pure)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

from deltajoin import expressions, expressions_json, filters, tree_json
from deltajoin.expressions import Condition
from deltajoin.joined_table import JoinedTable
from deltajoin.tree import Inner, Leaf, Node, Outer, Where

OFFSET_FORMAT: Final = 1
"""Format of the offsets that Spark keeps; part of the fingerprint, so another format is another join."""


def fingerprint_of(tables: Sequence[JoinedTable], node: Node, present: Sequence[int]) -> str:
    """The hash of a join; see `deltajoin.spec.DeltaJoinSpec.fingerprint`."""
    meaning: dict[str, Any] = {
        "format": OFFSET_FORMAT,
        "select": [sorted(table.select) for table in tables],
        "where": [_sorted_filters(table.where) for table in tables],
    }
    match _canonical(node):
        case {"node": "inner", "children": [{"node": "leaf"}, {"node": "leaf"}], "on": on, "where": []}:
            # In the words of release 0.1, which knew no other join: its checkpoints go on.
            pairs = sorted((one[1], other[1]) for one, other in on)
            meaning |= {"join": "inner", "keys": pairs}
        case canonical:
            meaning |= {"tree": canonical, "present": sorted(present)}
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]


def _canonical(node: Node) -> Any:
    """JSON values of a tree, equal for trees that differ only in the order of what has no order."""
    match node:
        case Leaf():
            return tree_json.to_json(node)
        case Inner(children, on, where):
            below = sorted(map(_canonical, children), key=json.dumps)
            pairs = sorted(sorted([ref.table, ref.column] for ref in pair) for pair in on)
            return {"node": "inner", "children": below, "on": pairs, "where": _conditions(where)}
        case Outer(kind, left, right, on, where):
            sides = [_canonical(left), _canonical(right)]
            pairs = sorted([[ref.table, ref.column] for ref in pair] for pair in on)
            return {"node": kind, "sides": sides, "on": pairs, "where": _conditions(where)}
        case Where(child, condition):
            return {"node": "where", "child": _canonical(child), "where": _conditions(condition)}


def _conditions(where: Condition | None) -> list[str]:
    return sorted(json.dumps(expressions_json.to_json(part)) for part in expressions.conjuncts(where))


def _sorted_filters(where: Sequence[Any] | None) -> list[str]:
    return sorted(
        json.dumps(sorted(json.dumps(part) for part in parts)) for parts in filters.to_json(where) or ()
    )
