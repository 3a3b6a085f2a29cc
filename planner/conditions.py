"""Named preconditions: each takes a node and gives the reason why it fails, or None (pure).

`CHANGE_CONDITIONS` concern every node over a changelog, `JOIN_CONDITIONS` joins that are to become
delta joins. They are tried in order, so a later one may rely on the earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from planner.chain import chain_of
from planner.keys import choose_keys, equalities, equated_columns, index_within
from planner.plan import (
    Call,
    Cast,
    Changelog,
    Column,
    DeltaJoin,
    Expr,
    Filter,
    Join,
    Literal,
    ManagedTable,
    Opaque,
    Plan,
    Project,
    Relation,
    Watermark,
    Wrapper,
    conjuncts,
    expressions,
    reads_changes,
    walk,
    walk_expression,
)
from upsert.rowkind import ROW_KIND_COLUMN


@dataclass(frozen=True)
class Refused:
    """Why a plan cannot be right as it is, and what its author can do."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


Condition = Callable[[Plan], Refused | None]
JoinCondition = Callable[[Join], Refused | None]

_ON_A_SNAPSHOT: Final = (
    "write the changes into a managed table with catalog.write_changes "
    "and run this over its snapshot, catalog.read"
)
_OPERATORS: Final = {
    "Aggregate": "an aggregate",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "DISTINCT",
    "Except": "EXCEPT",
    "Expand": "an expansion of rows",
    "Generate": "a generator",
    "GlobalLimit": "a limit",
    "Intersect": "INTERSECT",
    "LocalLimit": "a limit",
    "Offset": "an offset",
    "Sample": "a sample",
    "Sort": "a sort",
    "Union": "a union",
    "Window": "a window function",
}
_CLOCK_FUNCTIONS: Final = {
    "CurrentBatchTimestamp",
    "CurrentDate",
    "CurrentTime",
    "CurrentTimestamp",
    "LocalTimestamp",
    "Now",
}
SUBQUERY: Final = "Subquery"
"""Name of the call that stands for any expression with a plan inside."""
OBSERVATION: Final = "CollectMetrics"
"""Name of the node of `DataFrame.observe`: it passes rows on and counts those of its place."""


# --- every node over a changelog -----------------------------------------------------------------------


def changes_have_their_kind(node: Plan) -> Refused | None:
    """Without `_row_kind` the rows that went away look like rows that came."""
    if isinstance(node, Changelog) and not any(column.is_row_kind for column in node.columns):
        return Refused(
            f"the changes of {node.name!r} are read without {ROW_KIND_COLUMN!r}, "
            "so rows taken away look like new ones",
            "leave out the option 'row-kind' and any schema of your own",
        )
    return None


def operator_digests_changes(node: Plan) -> Refused | None:
    """An operator that is not known to respect the signs of changes may not stand above them."""
    if not isinstance(node, Opaque):
        return None
    known = _OPERATORS.get(node.name)
    what = known or f"the operator {node.name!r}"
    return Refused(
        f"{what} over the changes of {_sources(node)} would count rows taken away as rows", _ON_A_SNAPSHOT
    )


def expressions_are_repeatable(node: Plan) -> Refused | None:
    """A row must be taken away with the values it came with, so each expression must give them again."""
    for expr in (part for whole in expressions(node) for part in walk_expression(whole)):
        if fault := _unrepeatable(expr):
            return Refused(
                f"{_readable(expr)} {fault}, so a row over the changes of {_sources(node)} "
                "could not be taken away as it came",
                "compute it when the rows are written, or over a snapshot of the result",
            )
    return None


def row_kind_is_left_alone(node: Plan) -> Refused | None:
    """`_row_kind` belongs to the changelog, not to the query: it may be passed on or left out."""
    match node:
        case Project():
            for output in node.outputs:
                is_passed_on = isinstance(output.value, Column) and output.value.is_row_kind
                if output.column.is_row_kind and not is_passed_on:
                    return Refused(
                        f"a column of the query is called {ROW_KIND_COLUMN!r}, which is reserved", "rename it"
                    )
                if _uses_row_kind(output.value) and not output.column.is_row_kind:
                    return Refused(
                        f"{ROW_KIND_COLUMN!r} is used to compute column {output.column.name!r}",
                        "leave it out; optimize gives the kind back as the last column",
                    )
        case Join() if any(_uses_row_kind(expr) for expr in expressions(node)):
            return Refused(
                f"{ROW_KIND_COLUMN!r} is among the join columns, as in a NATURAL JOIN of two changelogs",
                f"name the join columns: {_without_row_kind(node)}",
            )
        case Filter() | Watermark() if any(_uses_row_kind(expr) for expr in expressions(node)):
            return Refused(
                f"{ROW_KIND_COLUMN!r} is used in a condition, which would keep half of an update",
                "remove it; optimize carries the kind through",
            )
    return None


CHANGE_CONDITIONS: Final[tuple[Condition, ...]] = (
    changes_have_their_kind,
    operator_digests_changes,
    row_kind_is_left_alone,
    expressions_are_repeatable,
)


def _unrepeatable(expr: Expr) -> str | None:
    match expr:
        case Call(name) if name in _CLOCK_FUNCTIONS:
            return "reads the clock"
        case Cast(Literal(str(text)), "date" | "timestamp" | "timestamp_ntz") if is_clock_word(text):
            return "reads the clock"
        case Call(name) if name == SUBQUERY:
            return "reads rows that may change"
        case Call(is_deterministic=False):
            return "is not deterministic"
    return None


def is_clock_word(value: object) -> bool:
    """Whether a constant means another time at each reading once it is cast: 'now', 'today' and the like."""
    return isinstance(value, str) and value.strip().lower().startswith(
        ("now", "today", "tomorrow", "yesterday")
    )


def _readable(expr: Expr) -> str:
    return f"{expr.name}(…)" if isinstance(expr, Call) else str(expr)


def _uses_row_kind(expr: Expr) -> bool:
    return any(isinstance(part, Column) and part.is_row_kind for part in walk_expression(expr))


def _without_row_kind(join: Join) -> str:
    names = [
        part.name
        for condition, left, _ in equalities(join)
        if not _uses_row_kind(condition)
        for part in walk_expression(left)
        if isinstance(part, Column)
    ]
    return f"JOIN … USING ({', '.join(names)})" if names else "JOIN … ON …"


def _sources(node: Plan) -> str:
    names: dict[str, None] = {}
    for leaf in walk(node):
        match leaf:
            case Changelog():
                names[repr(leaf.name)] = None
            case DeltaJoin():
                names |= {repr(leaf.left.table.name): None, repr(leaf.right.table.name): None}
    return " and ".join(names)


# --- joins -----------------------------------------------------------------------------------------------


def join_is_inner(join: Join) -> Refused | None:
    """Only an inner join is bilinear: a change of one side changes nothing but its own matches."""
    if join.kind in ("inner", "cross"):
        return None
    return Refused(
        f"the join over the changes of {_sources(join)} is {join.kind!r}, a delta join must be 'inner'",
        "make it an inner join, or run it over snapshots of the tables, catalog.read",
    )


def inputs_are_changelogs(join: Join) -> Refused | None:
    """Both inputs must read the changes of one managed table each, through projections and filters alone."""
    for side, plan in (("left", join.left), ("right", join.right)):
        leaf = chain_of(plan).leaf
        if not reads_changes(plan):
            is_stream = any(isinstance(node, Relation) and node.is_streaming for node in walk(plan))
            return Refused(
                f"the {side} input reads no changelog; it is "
                + ("a stream of rows" if is_stream else "a static DataFrame"),
                "keep its rows in a managed table and join the changes of that, catalog.read_changes",
            )
        if any(isinstance(node, Wrapper) and node.name == OBSERVATION for node in chain_of(plan).nodes):
            return Refused(
                f"the {side} input is observed, and a delta join puts its rows out joined",
                "call observe on the joined DataFrame",
            )
        match leaf:
            case Changelog(table=ManagedTable()):
                continue
            case Changelog() | Join() | DeltaJoin():
                return Refused(
                    f"the {side} input is itself a join",
                    "write that join into a managed table with catalog.write_changes and join its changes",
                )
            case Opaque(name):
                what = _OPERATORS.get(name, f"the operator {name!r}")
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
    lacking = [
        (table.name, ", ".join(dict.fromkeys(columns)))
        for table, columns in (
            (left, [pair.left.name for pair in pairs]),
            (right, [pair.right.name for pair in pairs]),
        )
        if index_within(table.schema, set(columns)) is None
    ]
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
    join_is_inner,
    inputs_are_changelogs,
    inputs_are_read_in_full,
    join_equates_columns,
    indexes_lie_within_join_columns,
)


def tables_of(join: Join) -> tuple[ManagedTable, ManagedTable]:
    """The tables of a join that fulfils `inputs_are_changelogs`."""
    match chain_of(join.left).leaf, chain_of(join.right).leaf:
        case Changelog(table=ManagedTable() as left), Changelog(table=ManagedTable() as right):
            return left, right
    raise AssertionError("the inputs of the join were not checked to be changelogs of managed tables")


def first_refusal(node: Plan) -> Refused | None:
    """The first condition on nodes over a changelog that this one fails; None where it reads no changes."""
    if not reads_changes(node):
        return None
    return next((refused for condition in CHANGE_CONDITIONS if (refused := condition(node))), None)
