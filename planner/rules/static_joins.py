"""Rules on joins with rows that are no changes: static rows, and lookups of a stream in a table (pure).

Where one side never changes, a join is linear in the other: each change makes its matches, with its sign, and
one that takes a row away makes the matches that the row had. Spark reads the static side again in every
micro-batch, so that is right as long as it reads the same rows: this is assumed of files and databases, for
Spark does not say whether they change. A side that is known to change is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from planner.plan.expressions import Column, Expr, are_joinable, conjunction, conjuncts, without_widening
from planner.plan.nodes import (
    Enriched,
    Filter,
    Join,
    LookupRows,
    Output,
    Plan,
    Project,
    Relation,
    TableRows,
    Unary,
    Union,
    VersionRows,
    Wrapper,
)
from planner.plan.sources import index_within
from planner.plan.trees import above, chain_of, equalities, row_kind_of, sources, static_input, trace, walk
from planner.refusals import Refused, first_refusal
from planner.rules.unsupported import expressions_are_repeatable
from planner.settings import Settings

SIDES: Final = {"inner": "inner", "left outer": "left", "right outer": "left"}

NO_ARROW: Final = ("interval", "variant", "void", "geometry", "geography")
"""Parts of the names of types that do not reach Python."""


def enrich_stream(node: Plan, settings: Settings) -> Plan | None:
    """Replace a join of a stream with rows of a managed table by lookups in that table.

    Spark would read the whole table, or topic, in every micro-batch; a topic is looked up in its mirror. Only
    for a stream whose rows are only added, with an index of the table within the
    equated columns; INNER, or with the stream on the preserved side. What lies between the join and the table
    is stacked above the lookup; over a preserved stream that must be columns alone, for a filter there
    decides whether a row has a match.
    """
    if not isinstance(node, Join) or settings.strategy == "none" or node.kind not in SIDES:
        return None
    swapped = node.kind == "right outer" or (node.kind == "inner" and _rows_of(node.left) is not None)
    stream, static = (node.right, node.left) if swapped else (node.left, node.right)
    rows = _rows_of(static)
    if rows is None or not _can_look_up(stream):
        return None
    keys, conditions = equated_columns(node, stream, static)
    rest = [part for part in conjuncts(node.condition) if part not in conditions]
    if index_within(rows.table.schema, {name for _, name in keys}) is None:
        return None
    how = SIDES[node.kind]
    if how == "left" and (rest or not gives_columns_alone(static)):
        return None
    return enriched(node, stream, static, rows, keys, rest)


def enriched(
    join: Join,
    stream: Plan,
    static: Plan,
    rows: TableRows | LookupRows | VersionRows,
    keys: tuple[tuple[Column, str], ...],
    rest: Sequence[Expr],
) -> Plan:
    """The lookups, under what lies between join and table, and what the condition asks beyond the keys."""
    below = chain_of(static)
    plan: Plan = Enriched(stream, rows, below.leaf.columns, keys, SIDES[join.kind])
    for one in below.nodes:
        plan = above(one, plan, stream.columns)
    residual = conjunction(rest)
    plan = plan if residual is None else Filter(plan, residual)
    return Project(plan, tuple(map(Output.of, join.columns)))


def _rows_of(plan: Plan) -> TableRows | None:
    leaf = chain_of(plan).leaf
    return leaf.rows if isinstance(leaf, Relation) else None


def gives_columns_alone(plan: Plan) -> bool:
    """Whether nothing lies between the plan and its leaf but choices of columns."""
    return all(map(_is_columns_alone, chain_of(plan).nodes))


def _is_columns_alone(node: Unary) -> bool:
    return isinstance(node, Wrapper) or (isinstance(node, Project) and node.is_columns_alone)


def _can_look_up(stream: Plan) -> bool:
    """Whether these are rows of a stream that are only added, and can pass through Python as they are."""
    chain = chain_of(stream)
    return (
        isinstance(chain.leaf, Relation)
        and chain.leaf.is_streaming
        and not any(part in column.type for column in stream.columns for part in NO_ARROW)
    )


def equated_columns(
    join: Join, stream: Plan, static: Plan
) -> tuple[tuple[tuple[Column, str], ...], list[Expr]]:
    """Pairs of a column of the stream and one of the table, each of these once; and their conditions."""
    pairs: dict[str, Column] = {}
    conditions: list[Expr] = []
    for condition, *sides in equalities(join):
        one, other = map(without_widening, sides if stream is join.left else reversed(sides))
        found = trace(other, static)
        if not isinstance(one, Column) or found is None or found.name in pairs:
            continue
        if are_joinable(one, found):
            pairs[found.name] = one
            conditions.append(condition)
    return tuple((column, name) for name, column in pairs.items()), conditions


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
    """What each micro-batch computes again must come out as before."""
    static = static_input(join)
    for node in walk(static) if static is not None else ():
        if not isinstance(node, Project | Filter | Wrapper | Relation | Union | Join):
            return Refused(
                f"the static side of the join with the changes of {sources(join)} is computed again in each "
                f"micro-batch, and {node} may give other rows",
                "write its rows into a table, and join that",
            )
        if refused := expressions_are_repeatable(node):
            reason = refused.reason.partition(", so a row")[0]
            return Refused(
                f"{reason}, and the static side of the join with the changes of {sources(join)} is computed "
                "again in each micro-batch",
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
                f"join its changes, catalog.read_changes(spark, {name!r}), in SQL without FOR SYSTEM_TIME AS "
                f"OF, or one snapshot of it, catalog.read(spark, {name!r}, snapshot=…); "
                "deltajoin.lookup_join with upsert_key takes what it holds at the time",
            )
    return None


def static_side_has_no_kind(join: Join) -> Refused | None:
    """`_row_kind` is the name of the kind alone."""
    static = static_input(join)
    if static is None or row_kind_of(static) is None:
        return None
    return Refused(
        f"the static side of the join with the changes of {sources(join)} has a column '_row_kind'",
        "drop it; catalog.read leaves it out",
    )


STATIC_JOIN_CONDITIONS: Final = (
    static_side_has_no_kind,
    static_side_does_not_change,
    static_side_is_not_preserved,
    static_side_gives_the_same_rows,
)


def refuse_static_join(node: Plan, settings: Settings) -> Refused | None:
    """Refuse a join of a changelog with static rows that fails one of `STATIC_JOIN_CONDITIONS`.

    One that fulfils them all stays as it is: Spark joins each change with the static rows. With the strategy
    "force" it is refused as well, for it is no delta join.
    """
    if not isinstance(node, Join) or static_input(node) is None:
        return None
    if refused := first_refusal(STATIC_JOIN_CONDITIONS, node):
        return refused
    if settings.strategy == "force":
        return Refused(
            "strategy is 'force', and this join is one with static rows",
            "keep them in a managed table and join its changes, or leave the strategy at 'auto'",
        )
    return None
