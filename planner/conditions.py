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
from planner.nodes import Filter, Generate, Join, Plan, Project, Watermark
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

TIMES: Final = frozenset({"date", "timestamp", "timestamp_ntz"})
"""Types for which Spark reads texts like 'now' and 'yesterday' as a time of the clock."""
_SESSION_FUNCTIONS: Final = frozenset(
    {"CurrentCatalog", "CurrentDatabase", "CurrentPath", "CurrentTimeZone", "CurrentUser", "SparkVersion"}
)
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
            reason, remedy = fault
            return Refused(
                f"{_readable(expr)} {reason}, so a row over the changes of {sources(node)} "
                "could not be taken away as it came",
                remedy,
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


_ELSEWHERE: Final = "compute it when the rows are written, or over a snapshot of the result"


def _unrepeatable(expr: Expr) -> tuple[str, str] | None:
    """Why an expression gives another value some other time, and what to write instead."""
    match expr:
        case Call(name, is_filled_in=True) if name in _SESSION_FUNCTIONS:
            return "is another one in another session", "write its value into the query as a constant"
        case Call(is_filled_in=True):
            return "reads the clock", _ELSEWHERE
        case Cast(Literal(str(text)), type_name) if type_name in TIMES and is_clock_word(text):
            return "reads the clock", _ELSEWHERE
        case Call(name) if name == SUBQUERY:
            return "reads rows that may change", _ELSEWHERE
        case Call(is_deterministic=False):
            return "is not deterministic", _ELSEWHERE
        case Call("AesEncrypt", (_, _, mode, _, vector, _)) if not _is_repeatable_cipher(mode, vector):
            return "draws a vector for each row", "name the mode 'ECB', or give a vector of your own"
    return None


def _is_repeatable_cipher(mode: Expr, vector: Expr) -> bool:
    """Whether a text is always encrypted to the same: without a vector, or with one that the query says."""
    if isinstance(mode, Literal) and str(mode.value).upper() == "ECB":
        return True
    match vector:
        case Cast(Literal(str(text))):
            return bool(text)
        case Call(text, ()):  # a constant of bytes
            return text != "X''"
        case _:
            return False


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
