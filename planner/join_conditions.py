"""Named preconditions of a delta join: each takes a join and gives the reason why it fails, or None (pure).

They are tried in order, so a later one may rely on the earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from planner.chain import chain_of
from planner.conditions import OBSERVATION, OPERATORS, Refused, sources
from planner.expressions import Call, conjuncts
from planner.keys import choose_keys, equalities, equated_columns, index_within
from planner.plan import Changelog, DeltaJoin, Join, Normalized, Opaque, Plan, Relation, Wrapper
from planner.sources import KafkaTopic, ManagedTable
from planner.trees import reads_changes, walk

JoinCondition = Callable[[Join], Refused | None]


def join_is_inner(join: Join) -> Refused | None:
    """Only an inner join is bilinear: a change of one side changes nothing but its own matches."""
    if join.kind in ("inner", "cross"):
        return None
    return Refused(
        f"the join over the changes of {sources(join)} is {join.kind!r}, a delta join must be 'inner'",
        "make it an inner join, or run it over snapshots of the tables, catalog.read",
    )


def inputs_can_be_looked_up(join: Join) -> Refused | None:
    """The rows of the other side are found in a table; a topic is a log, and knows no row by its key."""
    for side, plan in (("left", join.left), ("right", join.right)):
        match chain_of(plan).leaf:
            case Changelog(name, origin=KafkaTopic()):
                what = f"reads the topic {name!r}"
            case Changelog(origin=Normalized()):
                what = "is made by upsert.normalize"
            case _:
                continue
        return Refused(
            f"the {side} input of the join {what}, and a delta join must look its rows up in a table",
            "write it into a managed table with catalog.write_changes and join the changes of that table",
        )
    return None


def inputs_are_changelogs(join: Join) -> Refused | None:
    """Both inputs must read the changes of one managed table each, through projections and filters alone."""
    for side, plan in (("left", join.left), ("right", join.right)):
        leaf = chain_of(plan).leaf
        if not reads_changes(plan):
            is_stream = any(isinstance(node, Relation) and node.is_streaming for node in walk(plan))
            return Refused(
                f"the {side} input reads no changelog; it is "
                + (_rows_in_words(plan) if is_stream else "a static DataFrame"),
                "keep its rows in a managed table and join the changes of that, catalog.read_changes",
            )
        if any(isinstance(node, Wrapper) and node.name == OBSERVATION for node in chain_of(plan).nodes):
            return Refused(
                f"the {side} input is observed, and a delta join puts its rows out joined",
                "call observe on the joined DataFrame",
            )
        match leaf:
            case Changelog(origin=ManagedTable()):
                continue
            case Changelog() | Join() | DeltaJoin():
                return Refused(
                    f"the {side} input is itself a join",
                    "write that join into a managed table with catalog.write_changes and join its changes",
                )
            case Opaque(name):
                what = OPERATORS.get(name, f"the operator {name!r}")
                return Refused(
                    f"between the {side} input and its table lies {what}, only projections and filters may",
                    "apply it in another query and join the managed table which that one writes",
                )
    return None


def inputs_are_read_in_full(join: Join) -> Refused | None:
    """A lookup sees all rows of a table, so each of them must have been a change as well."""
    for table in tables_of(join):
        if table.scan_mode != "full":
            return Refused(
                f"table {table.name!r} is read with scan.mode {table.scan_mode!r}, a join needs 'full'",
                "leave out the option 'scan.mode'",
            )
    return None


def join_equates_columns(join: Join) -> Refused | None:
    """Something must be looked up by: a column of each table."""
    if equated_columns(join):
        return None
    for condition, _, _ in equalities(join):
        return Refused(
            f"no equality between plain columns of both tables, {condition} compares computed values",
            "add the computed value as a column of the table, with an INDEX",
        )
    if any(isinstance(part, Call) and part.name == "EqualNullSafe" for part in conjuncts(join.condition)):
        return Refused("no equality between columns of both tables; <=> also matches NULL", "join on =")
    left, right = tables_of(join)
    return Refused(
        f"no equality between a column of {left.name!r} and one of {right.name!r}",
        "join on equal columns; any other condition may come in addition",
    )


def indexes_lie_within_join_columns(join: Join) -> Refused | None:
    """Each side is looked up by the columns that the join equates, so an index may need no others."""
    pairs = equated_columns(join)
    left, right = tables_of(join)
    if choose_keys(pairs, left, right) is not None:
        return None
    joined = ", ".join(f"{left.name}.{p.left.name} = {right.name}.{p.right.name}" for p in pairs)
    lacking = {  # once for a table joined with itself
        (table.name, ", ".join(dict.fromkeys(columns))): None
        for table, columns in (
            (left, [pair.left.name for pair in pairs]),
            (right, [pair.right.name for pair in pairs]),
        )
        if index_within(table.schema, set(columns)) is None
    }
    if not lacking:
        return Refused(
            f"no one-to-one choice among {joined} has an index of both {left.name!r} and {right.name!r}",
            "add an INDEX, or drop the equality that repeats a column",
        )
    return Refused(
        f"no index of {' nor of '.join(repr(name) for name, _ in lacking)} lies within the join columns "
        f"{joined}",
        "add " + " and ".join(f"INDEX ({columns}) to {name}" for name, columns in lacking),
    )


JOIN_CONDITIONS: Final[tuple[JoinCondition, ...]] = (
    inputs_can_be_looked_up,
    join_is_inner,
    inputs_are_changelogs,
    inputs_are_read_in_full,
    join_equates_columns,
    indexes_lie_within_join_columns,
)


def _rows_in_words(plan: Plan) -> str:
    topics = [node.topic.name for node in walk(plan) if isinstance(node, Relation) and node.topic is not None]
    return f"a stream of the rows of {', '.join(map(repr, topics))}" if topics else "a stream of rows"


def tables_of(join: Join) -> tuple[ManagedTable, ManagedTable]:
    """The tables of a join that fulfils `inputs_are_changelogs`."""
    match chain_of(join.left).leaf, chain_of(join.right).leaf:
        case Changelog(origin=ManagedTable() as left), Changelog(origin=ManagedTable() as right):
            return left, right
    raise AssertionError("the inputs of the join were not checked to be changelogs of managed tables")
