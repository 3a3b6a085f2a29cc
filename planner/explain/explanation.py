"""What the planner did with a query, and with the table that it is written into, and why (pure).

As text, as HTML, and as values for programs. In HTML for notebooks, whatever a query or a table is called is
text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Final

from planner.explain.decisions import (
    AggregateReport,
    JoinReport,
    TopicReport,
    aggregate_reports,
    join_reports,
    topic_reports,
)
from planner.plan.nodes import Plan
from planner.plan.trees import reads_changes, tree
from planner.plan.uniqueness import unique_keys
from planner.plan.upsert_keys import group_keys, upsert_key
from planner.refusals import FOR_A_VIEW, Refused
from planner.settings import Settings
from planner.trace import Step, Trace
from upsert.errors import ConfigurationError
from upsert.materializer.choice import Changes, Sink, choose
from upsert.stream_keys import UniqueKeys


@dataclass(frozen=True)
class SinkReport:
    """How the query is written into a table.

    Attributes:
        key: the table's primary key; () for none.
        keys: the unique keys of the query's rows, as far as they are known.
        form: "as it is", "materialized" or "refused".
        reason: why.
    """

    key: tuple[str, ...]
    keys: UniqueKeys
    form: str
    reason: str

    def __str__(self) -> str:
        key = f"PRIMARY KEY ({', '.join(self.key)})" if self.key else "no PRIMARY KEY"
        lines = [
            f"sink with {key}",
            f"  form: {self.form}",
            f"  the query's rows are told apart by {self.keys}",
            f"  because {self.reason}",
        ]
        if self.form == "materialized":
            lines.append("  a hidden table keeps all rows of each key, the newest that is left is written")
        return "\n".join(lines)


def sink_report(before: Plan, after: Plan, key: tuple[str, ...], mode: str) -> SinkReport:
    """What becomes of a query in a table with this key and this `sink.materialize`."""
    keys = unique_keys(before)
    upserts = None if group_keys(after) is None else upsert_key(after)
    changes = Changes(reads_changes(before), keys if reads_changes(before) else None, upserts)
    try:
        choice = choose(Sink("sink", key, mode), changes)
    except ConfigurationError as cause:
        return SinkReport(key, keys, "refused", str(cause))
    return SinkReport(key, keys, "materialized" if choice.is_materialized else "as it is", choice.reason)


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
        is_for_a_view: whether a materialized view can hold the query that is refused.
    """

    joins: tuple[JoinReport, ...]
    refusals: tuple[Refused, ...]
    before: Plan
    after: Plan
    steps: tuple[Step, ...]
    topics: tuple[TopicReport, ...] = ()
    aggregates: tuple[AggregateReport, ...] = ()
    sink: SinkReport | None = None
    is_for_a_view: bool = False

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def to_json(self) -> dict[str, Any]:
        """The same as values of JSON: what became of each join, aggregate and topic, and the plan as text."""
        sink = self.sink
        return {
            "joins": [_join_to_json(report) for report in self.joins],
            "aggregates": [asdict(report) for report in self.aggregates],
            "topics": [
                {"topic": one.topic, "mode": one.mode, "normalizer": one.normalizer, "reason": one.reason}
                for one in self.topics
            ],
            "sink": None if sink is None else {"key": sink.key, "form": sink.form, "reason": sink.reason},
            "refusals": [asdict(refused) for refused in self.refusals],
            "is_for_a_view": self.is_for_a_view,
            "plan": tree(self.after).splitlines(),
        }

    def _repr_html_(self) -> str:
        """The same for notebooks, with the plan before and after; all text is escaped."""
        reports = [*map(str, self.joins), *map(str, self.aggregates), *map(str, self.topics)]
        rest = [] if self.sink is None else [str(self.sink)]
        rest += [f"remedy: {FOR_A_VIEW}"] if self.is_for_a_view else []
        return page(
            [*(reports or ["the query has no join"]), *rest],
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
        if self.is_for_a_view:
            yield f"remedy: {FOR_A_VIEW}"
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


def _join_to_json(report: JoinReport) -> dict[str, Any]:
    lookups = report.estimated_lookups
    return {
        "join": report.join,
        "form": report.form,
        "tree": report.tree,
        "tables": [asdict(table) for table in report.tables],
        "paths": [str(path) for path in report.paths],
        "consistency": report.consistency,
        "estimated_lookups": None if lookups is None else str(lookups),
        "refusals": [asdict(refused) for refused in report.refusals],
        "hints": report.hints,
    }


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
        reports,
        trace.refusals,
        trace.before,
        trace.after,
        trace.steps,
        topics,
        aggregates,
        sink,
        trace.is_for_a_view,
    )


_STYLE: Final = "text-align:left;white-space:pre-wrap;margin:0.3em 0;padding:0.5em;border-left:3px solid"

_GOOD, _BAD, _PLAN = "#2a7", "#c33", "#888"


def page(reports: Sequence[str], refusals: Sequence[tuple[str, str]], before: str, after: str | None) -> str:
    """Reports, refusals and plans, one below the other; `after` is None if the rules left the plan as it is.

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
