"""What the planner decided about each aggregate over changes (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.aggregates.exact_floats import FIXED_POINTS
from planner.aggregates.sums import is_floating
from planner.plan.expressions import without_ids
from planner.plan.nodes import Aggregate, LookupAggregate, Watermark
from planner.plan.trees import aggregations, sources, walk
from planner.refusals import Refused
from planner.rules.aggregates import replace_aggregate
from planner.trace import Step, Trace


@dataclass(frozen=True)
class AggregateReport:
    """How the query keeps one aggregate up to date.

    Attributes:
        aggregate: the aggregate in words: functions, groups and what it reads.
        form: "signed sums", "lookups" or "refused".
        reason: why it is refused; None if it is not.
        remedy: what to do about the reason.
        notes: what its author should know: how it is written, what it keeps.
    """

    aggregate: str
    form: str
    reason: str | None = None
    remedy: str | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [self.aggregate, f"  form: {self.form}", *(f"  {note}" for note in self.notes)]
        if self.reason is not None:
            lines += [f"  because {self.reason}", f"  remedy: {self.remedy}"]
        return "\n".join(lines)


def aggregate_reports(trace: Trace) -> Iterator[AggregateReport]:
    """A report for each aggregate over changes, inner ones first."""
    for step in trace.steps:
        if step.rule == replace_aggregate.__name__ and isinstance(step.node, Aggregate):
            yield _report(step, step.node)


def _report(step: Step, node: Aggregate) -> AggregateReport:
    match step.result:
        case Refused(reason, remedy):
            return AggregateReport(_in_words(node), "refused", reason, remedy)
        case LookupAggregate() as made:
            return AggregateReport(_in_words(node), "lookups", notes=tuple(_notes_of_lookups(made)))
        case _:
            return AggregateReport(_in_words(node), "signed sums", notes=tuple(_notes(node)))


def _in_words(node: Aggregate) -> str:
    functions = ", ".join(without_ids(function) for function in aggregations(node)) or "DISTINCT"
    groups = ", ".join(without_ids(group.value) for group in node.groups)
    return f"aggregate {functions} by ({groups}) over the changes of {sources(node)}"


def _notes_of_lookups(made: LookupAggregate) -> Iterator[str]:
    keys = ", ".join(made.keys)
    yield (
        f"of each group that changes all rows are looked up in {made.table.name}, by {made.index} for "
        f"({keys}), before and after"
    )
    yield "gives every kind of change and keeps no state, so anything may follow"


def _notes(node: Aggregate) -> Iterator[str]:
    groups = ", ".join(without_ids(group.value) for group in node.groups)
    key = f"the PRIMARY KEY ({groups})" if node.groups else "a PRIMARY KEY of a constant column"
    yield f"written with catalog.write_changes into a table with {key}, in output mode update"
    if node.groups:
        yield "Spark's state has one row for each group, also for those that are gone"
    else:
        yield "the one row stays when no row is left, with counts of 0"
    if any(isinstance(below, Watermark) for below in walk(node.child)):
        yield "the watermark is left out: changes that come late count, and no group is ever forgotten"
    floating = [f for f in aggregations(node) if f.name in ("Sum", "Average") and is_floating(f.types[0])]
    if floating:
        named = ", ".join(map(without_ids, floating))
        numbers = ", ".join(
            sorted({f"{FIXED_POINTS[f.types[0]].count} for {f.types[0].upper()}" for f in floating})
        )
        yield f"{named}: exact, whatever came and went; its state has a number for each limb, {numbers}"
