"""What became of each join of a query, in words and as values (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.conditions import Refused
from planner.delta_join import DeltaJoin, tree_in_words
from planner.optimizer import Step, Trace
from planner.plan import Join
from planner.rules.replace_join import replace_join
from planner.settings import Settings
from planner.trees import reads_changes, walk
from planner.words import join_in_words


@dataclass(frozen=True)
class Lookups:
    """How many rows a micro-batch looks up at most in each table: one for each row that changed elsewhere.

    Attributes:
        by_change: rows of each table's latest commit; None if unknown.
        limit: what no batch exceeds for any table, the first load included.
    """

    by_change: tuple[int | None, ...]
    limit: int


@dataclass(frozen=True)
class JoinReport:
    """What became of one join of the query, or of several that became one delta join.

    Attributes:
        join: the join in words: tables and condition.
        form: physical form of a delta join; "spark" where Spark joins; "refused".
        tree: how the delta join's tables are joined, by their numbers; None if it is none.
        tables: its tables by number, with the columns and rows that are read.
        refusals: why it is no delta join, and what to do about it; empty if it is one.
        consistency: which versions lookups read; None if it is no delta join.
    """

    join: str
    form: str
    tree: str | None = None
    tables: tuple[str, ...] = ()
    refusals: tuple[Refused, ...] = ()
    consistency: str | None = None

    @property
    def reason(self) -> str | None:
        """The first reason why it is no delta join."""
        return self.refusals[0].reason if self.refusals else None

    @property
    def remedy(self) -> str | None:
        """What to do about the first reason."""
        return self.refusals[0].remedy if self.refusals else None

    def __str__(self) -> str:
        lines = [self.join]
        if self.refusals:
            lines.append(f"  form: {self.form}")
            for refused in self.refusals:
                lines += [f"  because {refused.reason}", f"  remedy: {refused.remedy}"]
        else:
            lines += [
                f"  form: delta join ({self.form})",
                f"  tree: {self.tree}",
                *(f"  t{number}: {table}" for number, table in enumerate(self.tables)),
            ]
        return "\n".join(lines)


def join_reports(trace: Trace, settings: Settings) -> Iterator[JoinReport]:
    """One report for each delta join and each join that is none, in the order of the plan."""
    final = {node.row_kind: node for node in walk(trace.after) if isinstance(node, DeltaJoin)}
    steps = [step for step in trace.steps if step.rule == replace_join.__name__]
    handled = set()
    for node, of_node in _by_node(steps):
        if not isinstance(node, Join):
            continue
        name = join_in_words(node)
        handled.add(name)
        refusals = tuple(step.result for step in of_node if isinstance(step.result, Refused))
        if refusals:
            yield JoinReport(name, "refused", refusals=refusals)
        else:
            results = (step.result for step in of_node if not isinstance(step.result, Refused))
            parts = (part for result in results for part in walk(result))
            made = next(part for part in parts if isinstance(part, DeltaJoin))
            yield _rewritten(name, final[made.row_kind], settings)
    for node in walk(trace.after):
        if isinstance(node, Join) and not reads_changes(node) and join_in_words(node) not in handled:
            yield _left_to_spark(node)


def _by_node(steps: list[Step]) -> Iterator[tuple[object, list[Step]]]:
    found: dict[int, list[Step]] = {}
    for step in steps:
        found.setdefault(id(step.node), []).append(step)
    yield from ((of_node[0].node, of_node) for of_node in found.values())


def _rewritten(name: str, made: DeltaJoin, settings: Settings) -> JoinReport:
    tables = tuple(map(str, made.tables))
    return JoinReport(name, settings.physical, tree_in_words(made.tree), tables)


def _left_to_spark(join: Join) -> JoinReport:
    reason = "it reads no changes of managed tables, so Spark's own join is right"
    remedy = "none needed; keep the inputs in managed tables and join their changes for a delta join"
    return JoinReport(join_in_words(join), "spark", refusals=(Refused(reason, remedy),))
