"""What the planner did with a query and why: as text, as HTML, and as values for programs (pure).

In HTML for notebooks, whatever a query or a table is called is text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from planner.explain.aggregates import AggregateReport, aggregate_reports
from planner.explain.joins import JoinReport, join_reports
from planner.explain.sinks import SinkReport
from planner.explain.topics import TopicReport, topic_reports
from planner.plan.nodes import Plan
from planner.plan.trees import tree
from planner.refusals import Refused
from planner.settings import Settings
from planner.trace import Step, Trace


@dataclass(frozen=True)
class Explanation:
    """The answer of `explain`: `str()` is the text, a notebook shows HTML, the rest is for programs.

    Attributes:
        joins: one report for each delta join, or other join, in the order of the plan.
        refusals: why the query cannot run, empty if `optimize` accepts it.
        before: the plan as the query has it.
        after: the plan as `optimize` gives it back.
        steps: every rule that fired.
        topics: one report for each topic of Kafka, in the order of the plan.
        aggregates: one report for each aggregate over changes, inner ones first.
        sink: how the result is written; None if the sink is not known.
    """

    joins: tuple[JoinReport, ...]
    refusals: tuple[Refused, ...]
    before: Plan
    after: Plan
    steps: tuple[Step, ...]
    topics: tuple[TopicReport, ...] = ()
    aggregates: tuple[AggregateReport, ...] = ()
    sink: SinkReport | None = None

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        """The same for notebooks, with the plan before and after; all text is escaped."""
        reports = [*map(str, self.joins), *map(str, self.aggregates), *map(str, self.topics)]
        sink = [] if self.sink is None else [str(self.sink)]
        return page(
            [*(reports or ["the query has no join"]), *sink],
            [(refused.reason, refused.remedy) for refused in self._other_refusals()],
            tree(self.before),
            None if self.before is self.after else tree(self.after),
        )

    def _lines(self) -> Iterator[str]:
        if not self.joins:
            yield "the query has no join"
        yield from map(str, self.joins)
        yield from map(str, self.aggregates)
        yield from map(str, self.topics)
        if self.sink is not None:
            yield str(self.sink)
        for refused in self._other_refusals():
            yield f"refused: {refused.reason}\n  remedy: {refused.remedy}"
        if self.before is self.after:
            yield "the plan is left as it is"
            return
        for step in self.steps:
            outcome = "refused" if isinstance(step.result, Refused) else "rewritten"
            yield f"{step.rule}: {outcome} {step.node}"
        yield tree(self.after)

    def _other_refusals(self) -> Iterator[Refused]:
        """Those that do not concern one of the joins or aggregates."""
        of_joins = {refused for report in self.joins for refused in report.refusals}
        of_aggregates = {report.reason for report in self.aggregates}
        others = (refused for refused in self.refusals if refused not in of_joins)
        return (refused for refused in others if refused.reason not in of_aggregates)


def explanation_of(
    trace: Trace,
    settings: Settings | None = None,
    sink_key: Sequence[str] | None = None,
    sink: SinkReport | None = None,
) -> Explanation:
    """What a trace says about the query, each of its joins and each of its topics, and of its sink."""
    reports = tuple(join_reports(trace, settings or Settings()))
    topics = tuple(topic_reports(trace.before, trace.after, sink_key))
    aggregates = tuple(aggregate_reports(trace))
    return Explanation(
        reports, trace.refusals, trace.before, trace.after, trace.steps, topics, aggregates, sink
    )


_STYLE: Final = "text-align:left;white-space:pre-wrap;margin:0.3em 0;padding:0.5em;border-left:3px solid"

_GOOD, _BAD, _PLAN = "#2a7", "#c33", "#888"


def page(reports: Sequence[str], refusals: Sequence[tuple[str, str]], before: str, after: str | None) -> str:
    """Reports, refusals and plans, one below the other.

    Args:
        reports: on joins and topics.
        refusals: reason and remedy of each that is in no report.
        before: the plan of the query.
        after: the plan after the rules; None if they left it as it is.

    >>> page(["join of <a>"], [], "Relation a", None).count("&lt;a&gt;")
    1
    """
    parts = [_block(report, _BAD if "form: refused" in report else _GOOD) for report in reports]
    parts += [_block(f"refused: {reason}\n  remedy: {remedy}", _BAD) for reason, remedy in refusals]
    parts.append(_folded("plan before", before))
    parts.append("<p>the plan is left as it is</p>" if after is None else _folded("plan after", after))
    return f'<div class="deltajoin-explanation">{"".join(parts)}</div>'


def _block(text: str, colour: str) -> str:
    return f'<pre style="{_STYLE} {colour}">{escape(text)}</pre>'


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{_block(text, _PLAN)}</details>"
