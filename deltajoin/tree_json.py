"""The tree of a delta join as JSON values, which may be anybody's when they are read (pure)."""

from __future__ import annotations

from typing import Any

from deltajoin import expressions_json
from deltajoin.expressions import MAX_DEPTH, Condition, Ref
from deltajoin.tree import Inner, Leaf, Node, On, Outer, Where
from upsert.errors import ConfigurationError


def to_json(node: Node) -> dict[str, Any]:
    """JSON values of a tree.

    >>> from deltajoin.expressions import Field
    >>> to_json(Where(Leaf(0), Field(Ref(0, "flag"))))
    {'node': 'where', 'child': {'node': 'leaf', 'table': 0}, 'condition': {'field': [0, 'flag']}}
    """
    match node:
        case Leaf(table):
            return {"node": "leaf", "table": table}
        case Inner(below, on, where):
            below_json = [to_json(child) for child in below]
            return {"node": "inner", "children": below_json, **_match_to_json(on, where)}
        case Outer(kind, left, right, on, where):
            sides = {"left": to_json(left), "right": to_json(right)}
            return {"node": "outer", "kind": kind, **sides, **_match_to_json(on, where)}
        case Where(child, condition):
            return {
                "node": "where",
                "child": to_json(child),
                "condition": expressions_json.to_json(condition),
            }


def from_json(value: Any, depth: int = MAX_DEPTH) -> Node:
    """The tree of its JSON values, which may be anybody's text.

    Raises:
        ConfigurationError: the value is no tree, or its parts do not fit together.
    """
    if not depth:
        raise ConfigurationError(f"a join tree must have at most {MAX_DEPTH} levels, got more")
    match value:
        case {"node": "leaf", "table": table, **rest} if not rest:
            return Leaf(table)
        case {"node": "inner", "children": list(below), "on": on, "where": where, **rest} if not rest:
            nodes_below = tuple(from_json(child, depth - 1) for child in below)
            return Inner(nodes_below, _on_from_json(on), expressions_json.from_json(where))
        case {
            "node": "outer",
            "kind": kind,
            "left": left,
            "right": right,
            "on": on,
            "where": where,
            **rest,
        } if not rest:
            sides = from_json(left, depth - 1), from_json(right, depth - 1)
            return Outer(kind, *sides, _on_from_json(on), expressions_json.from_json(where))
        case {"node": "where", "child": child, "condition": condition, **rest} if not rest:
            parsed = expressions_json.from_json(condition)
            if parsed is not None:
                return Where(from_json(child, depth - 1), parsed)
    raise ConfigurationError(
        f"a join tree must be a leaf, an inner, an outer or a where, got {str(value)[:200]!r}"
    )


def _match_to_json(on: On, where: Condition | None) -> dict[str, Any]:
    pairs = [[[ref.table, ref.column] for ref in pair] for pair in on]
    return {"on": pairs, "where": expressions_json.to_json(where)}


def _on_from_json(value: Any) -> On:
    match value:
        case list():
            return tuple(_pair_from_json(pair) for pair in value)
    raise ConfigurationError(f"join keys must be a list of pairs of columns, got {value!r}")


def _pair_from_json(value: Any) -> tuple[Ref, Ref]:
    match value:
        case [[one_table, one], [other_table, other]]:
            return Ref(one_table, one), Ref(other_table, other)
    raise ConfigurationError(f"a pair of join keys must be [[table, column], [table, column]], got {value!r}")
