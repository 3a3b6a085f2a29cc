"""Named preconditions of a delta join: each takes a join and gives the reason why it fails, or None (pure).

They are tried in order, so a later one may rely on the earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from planner.chain import chain_of
from planner.changelogs import Changelog, Normalized, Relation
from planner.conditions import OBSERVATION, Refused, changes_have_their_kind, sources
from planner.delta_join import DeltaJoin
from planner.held_options import Rewrite, not_held, read_apart
from planner.join_tree import KINDS
from planner.nodes import Distinct, Join, Opaque, Plan, RegularJoin, Wrapper
from planner.operator_conditions import OPERATORS
from planner.sources import KafkaTopic, ManagedTable
from planner.trees import joins_changes, reads_changes, walk

JoinCondition = Callable[[Join], Refused | None]


def joins_of(join: Join) -> Iterator[Join]:
    """The join, and those that lie right below it, with nothing but projections and filters between."""
    for plan in (join.left, join.right):
        leaf = chain_of(plan).leaf
        if isinstance(leaf, Join) and joins_changes(leaf):
            yield from joins_of(leaf)
    yield join


def join_is_of_a_known_kind(join: Join) -> Refused | None:
    """What a delta join can do: INNER, LEFT, RIGHT, FULL, SEMI and ANTI."""
    if join.kind in KINDS:
        return None
    return Refused(
        f"the join over the changes of {sources(join)} is {join.kind!r}, a delta join must be one of "
        f"{', '.join(KINDS)}",
        "write it as one of these, or run it over snapshots of the tables, catalog.read",
    )


def inputs_have_their_kind(join: Join) -> Refused | None:
    """A row of a table without `_row_kind` may be one that went."""
    leaves = (chain_of(plan).leaf for plan in (join.left, join.right))
    return next((refused for leaf in leaves if (refused := changes_have_their_kind(leaf))), None)


def inputs_can_be_looked_up(join: Join) -> Refused | None:
    """The rows of the other side are found in a table; a topic is a log, and knows no row by its key."""
    for side, plan in (("left", join.left), ("right", join.right)):
        remedy = "write it into a managed table with catalog.write_changes and join the changes of that table"
        match chain_of(plan).leaf:
            case Changelog(origin=KafkaTopic(apart=str()) as topic):
                what, remedy = read_apart(topic)
            case Changelog(name, origin=KafkaTopic(table=table)):
                what = f"reads the topic {name!r}"
                if table is not None:
                    remedy = f"mirror the topic in a managed table: start catalog.mirror(spark, {table!r})"
            case Changelog(origin=Normalized()):
                what = "is made by upsert.normalize"
            case _:
                continue
        return Refused(
            f"the {side} input of the join {what}, and a delta join must look its rows up in a table",
            remedy,
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
            case Join() if joins_changes(leaf):
                continue
            case Changelog(origin=None) | DeltaJoin():
                return Refused(
                    f"the {side} input was optimized by itself",
                    "join first and optimize the whole query: planner.optimize(df)",
                )
            case Opaque(name):
                what = OPERATORS.get(name, f"the operator {name!r}")
                return Refused(
                    f"between the {side} input and its table lies {what}, only projections and filters may",
                    "apply it in another query and join the managed table which that one writes",
                )
            case _:
                return Refused(
                    f"between the {side} input and its table lies {_operator_in_words(leaf)}, only "
                    "projections and filters may",
                    "apply it in another query and join the managed table which that one writes",
                )
    return None


def _operator_in_words(node: Plan) -> str:
    match node:
        case Join():
            return "a join with static rows"
        case RegularJoin():
            return "Spark's own join"
        case Distinct():
            return "DISTINCT"
        case _:
            name = type(node).__name__
            return OPERATORS.get(name, f"the operator {name!r}")


def inputs_are_read_in_full(join: Join) -> Refused | None:
    """A lookup sees all rows of a table, so each of them must have been a change as well."""
    for leaf in (chain_of(plan).leaf for plan in (join.left, join.right)):
        match leaf:
            case Changelog(origin=ManagedTable(name, scan_mode=mode)) if mode != "full":
                return Refused(
                    f"table {name!r} is read with scan.mode {mode!r}, a join needs 'full'",
                    "leave out the option 'scan.mode'",
                )
            case Changelog(origin=ManagedTable() as table):
                if refused := not_held(table, Rewrite.DELTA_JOIN):
                    return refused
    return None


JOIN_CONDITIONS: Final[tuple[JoinCondition, ...]] = (
    inputs_have_their_kind,
    inputs_can_be_looked_up,
    join_is_of_a_known_kind,
    inputs_are_changelogs,
    inputs_are_read_in_full,
)


def _rows_in_words(plan: Plan) -> str:
    topics = [node.topic.name for node in walk(plan) if isinstance(node, Relation) and node.topic is not None]
    return f"a stream of the rows of {', '.join(map(repr, topics))}" if topics else "a stream of rows"
