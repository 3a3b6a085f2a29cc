"""Named preconditions: each takes a node and gives the reason why it fails, or None (pure).

These concern every node over a changelog; `planner/operator_conditions.py` has those of single operators,
`planner/join_conditions.py` those of joins. They are tried in order, so a later one may rely on the earlier
ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from planner.aggregate_nodes import LookupAggregate
from planner.changelogs import Changelog
from planner.delta_join import DeltaJoin
from planner.expressions import Call, Cast, Column, Expr, Literal, walk_expression
from planner.keys import equalities
from planner.plan import Filter, Generate, Join, Plan, Project, Watermark
from planner.trees import expressions, walk
from upsert.rowkind import ROW_KIND_COLUMN


@dataclass(frozen=True)
class Refused:
    """Why a plan cannot be right as it is, and what its author can do."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


Condition = Callable[[Plan], Refused | None]

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


def changes_have_their_kind(node: Plan) -> Refused | None:
    """Without `_row_kind` the rows that went away look like rows that came."""
    if isinstance(node, Changelog) and not any(column.is_row_kind for column in node.columns):
        return Refused(
            f"the changes of {node.name!r} are read without {ROW_KIND_COLUMN!r}, "
            "so rows taken away look like new ones",
            "leave out the option 'row-kind' and any schema of your own",
        )
    return None


def expressions_are_repeatable(node: Plan) -> Refused | None:
    """A row must be taken away with the values it came with, so each expression must give them again."""
    for expr in (part for whole in expressions(node) for part in walk_expression(whole)):
        if fault := _unrepeatable(expr):
            return Refused(
                f"{_readable(expr)} {fault}, so a row over the changes of {sources(node)} "
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
        case Generate(generator=generator) if _uses_row_kind(generator):
            return Refused(
                f"{ROW_KIND_COLUMN!r} is used by the generator {generator}",
                "leave it out; optimize gives the kind back as the last column",
            )
        case Filter() | Watermark() if any(_uses_row_kind(expr) for expr in expressions(node)):
            return Refused(
                f"{ROW_KIND_COLUMN!r} is used in a condition, which would keep half of an update",
                "remove it; optimize carries the kind through",
            )
    return None


CHANGE_CONDITIONS: Final[tuple[Condition, ...]] = (
    changes_have_their_kind,
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


def sources(node: Plan) -> str:
    """Names of the changelogs that a plan reads, for messages."""
    names: dict[str, None] = {}
    for leaf in walk(node):
        match leaf:
            case Changelog():
                names[repr(leaf.name)] = None
            case LookupAggregate():
                names[repr(leaf.table.name)] = None
            case DeltaJoin():
                names |= dict.fromkeys(repr(one.table.name) for one in leaf.tables)
    return " and ".join(names)
