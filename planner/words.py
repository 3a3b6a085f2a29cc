"""Joins and expressions in the words of messages (pure)."""

from __future__ import annotations

import re

from planner.chain import chain_of
from planner.changelogs import Changelog, Relation
from planner.expressions import Expr
from planner.nodes import Join, Opaque, Plan
from planner.trees import walk


def join_in_words(join: Join) -> str:
    """A join by its kind, its inputs and its condition."""
    left, right = (_name_of(plan) for plan in (join.left, join.right))
    condition = "" if join.condition is None else f" on {join.condition}"
    return f"{join.kind} join of {left} with {right}{condition}"


def without_ids(expr: Expr) -> str:
    """An expression with its columns by their names alone.

    >>> from planner.expressions import Call, Column
    >>> without_ids(Call("Upper", (Column(-3, "name", "string"),)))
    'Upper(name)'
    """
    return re.sub(r"#-?\d+", "", str(expr))


def _name_of(plan: Plan) -> str:
    match leaf := chain_of(plan).leaf:
        case Changelog(name) | Relation(name) | Opaque(name):
            return name
        case Join():
            names = (part.name for part in walk(leaf) if isinstance(part, Changelog | Relation))
            return " and ".join(names)
        case _:
            return "a join"
