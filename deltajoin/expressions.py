"""Conditions of a join as values: those of `upsert.conditions`, of which a CHECK constraint is made too."""

from upsert.conditions.expressions import (
    CONDITION,
    MAX_DEPTH,
    OPERATORS,
    OPTIONAL_CONDITION,
    Call,
    Cast,
    Condition,
    Const,
    Field,
    Ref,
    conjunction,
    conjuncts,
    from_json,
    refs_of,
    to_json,
    walk,
)

__all__ = [
    "CONDITION",
    "MAX_DEPTH",
    "OPERATORS",
    "OPTIONAL_CONDITION",
    "Call",
    "Cast",
    "Condition",
    "Const",
    "Field",
    "Ref",
    "conjunction",
    "conjuncts",
    "from_json",
    "refs_of",
    "to_json",
    "walk",
]
