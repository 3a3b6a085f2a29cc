"""Joins of a changelog with rows that never change: right row by row, without any state (pure).

Where one side never changes, a join is linear in the other: each change makes its matches, with its sign, and
one that takes a row away makes the matches that the row had. Spark reads the static side anew in every
micro-batch, so that is right as long as it reads the same rows: this is assumed of files and databases, for
Spark does not say whether they change. A side that is known to change is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from planner.changelogs import Relation
from planner.conditions import Refused, expressions_are_repeatable, sources
from planner.nodes import Filter, Join, Project, Union, Wrapper
from planner.trees import static_input, walk

ASSUMED: Final = (
    "the static side is read anew in each micro-batch and must never change; keep it in a managed table and "
    "join its changes if it does"
)
"""What `explain` says of each such join."""


def static_side_is_not_preserved(join: Join) -> Refused | None:
    """A row of the static side that nothing matches any more would have to come back, which takes a state."""
    is_left = static_input(join) is join.right
    kinds = {"inner", "cross", *(("left outer", "left semi", "left anti") if is_left else ("right outer",))}
    if join.kind in kinds:
        return None
    return Refused(
        f"the join of the changes of {sources(join)} with static rows is {join.kind!r}, which keeps rows of "
        "the static side until they have a match",
        "keep those rows in a managed table and join its changes, catalog.read_changes",
    )


def static_side_gives_the_same_rows(join: Join) -> Refused | None:
    """What is computed in each micro-batch anew must come out as before."""
    static = static_input(join)
    for node in walk(static) if static is not None else ():
        if not isinstance(node, Project | Filter | Wrapper | Relation | Union | Join):
            return Refused(
                f"the static side of the join with the changes of {sources(join)} is computed anew in each "
                f"micro-batch, and {node} may give other rows",
                "write its rows into a table, and join that",
            )
        if refused := expressions_are_repeatable(node):
            reason = refused.reason.partition(", so a row")[0]
            return Refused(
                f"{reason}, and the static side of the join with the changes of {sources(join)} is computed "
                "anew in each micro-batch",
                refused.remedy,
            )
    return None


def static_side_does_not_change(join: Join) -> Refused | None:
    """Rows of a managed table come and go, so a change would not take away the matches that it had made."""
    static = static_input(join)
    for node in walk(static) if static is not None else ():
        if isinstance(node, Relation) and node.rows is not None and node.rows.snapshot is None:
            name = node.rows.table.name
            return Refused(
                f"the static side of the join with the changes of {sources(join)} is the managed table "
                f"{name!r}, whose rows may change",
                f"join its changes, catalog.read_changes(spark, {name!r}), or one snapshot of it, "
                f"catalog.read(spark, {name!r}, snapshot=…); deltajoin.lookup_join with upsert_key takes "
                "what it holds at the time",
            )
    return None


def static_side_has_no_kind(join: Join) -> Refused | None:
    """`_row_kind` is the name of the kind alone."""
    static = static_input(join)
    if static is not None and any(column.is_row_kind for column in static.columns):
        return Refused(
            f"the static side of the join with the changes of {sources(join)} has a column '_row_kind'",
            "drop it; catalog.read leaves it out",
        )
    return None


STATIC_JOIN_CONDITIONS: Final[tuple[Callable[[Join], Refused | None], ...]] = (
    static_side_has_no_kind,
    static_side_does_not_change,
    static_side_is_not_preserved,
    static_side_gives_the_same_rows,
)
