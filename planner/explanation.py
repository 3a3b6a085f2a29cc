"""What the planner decided about each join, aggregate and topic of a query and its sink, and why (pure).

As text, as HTML, and as values for programs; of joins `join_reports` makes them. In HTML for notebooks,
whatever a query or a table is called is text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from textwrap import indent
from typing import Any, Final

from planner.join_reports import JoinReport, join_reports
from planner.optimizer import Step, Trace
from planner.plan.expressions import without_ids
from planner.plan.keys import group_keys, unique_keys, upsert_key
from planner.plan.nodes import (
    Aggregate,
    Changelog,
    LookupAggregate,
    Normalized,
    Plan,
    Relation,
    Watermark,
    Wrapper,
)
from planner.plan.sources import KafkaTopic, Mode, RecordRange
from planner.plan.trees import (
    aggregations,
    reads_changes,
    sources,
    transform_up,
    tree,
    walk,
)
from planner.refusals import FOR_A_VIEW, Refused
from planner.rules.aggregates import replace_aggregate
from planner.rules.topics import needs_normalizer, topic_of, unmet_everywhere
from planner.settings import Settings
from planner.signed_sums import FIXED_POINTS, is_floating
from upsert.errors import ConfigurationError
from upsert.materializer.choice import Changes, Sink, choose
from upsert.stream_keys import UniqueKeys


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
        if step.rule != replace_aggregate.__name__ or not isinstance(node := step.node, Aggregate):
            continue
        groups = [without_ids(group.value) for group in node.groups]
        name = aggregate_name([*map(without_ids, aggregations(node.outputs))], groups, sources(node))
        match step.result:
            case Refused(reason, remedy):
                yield AggregateReport(name, "refused", reason, remedy)
            case LookupAggregate(table, keys=keys, index=index):
                yield AggregateReport(name, "lookups", notes=lookup_notes(table.name, index, keys))
            case _:
                yield AggregateReport(name, "signed sums", notes=tuple(_notes(node)))


def aggregate_name(functions: Sequence[str], groups: Sequence[str], of: str) -> str:
    """An aggregate in words.

    >>> aggregate_name(["Count(1)"], ["k"], "'orders'")
    "aggregate Count(1) by (k) over the changes of 'orders'"
    """
    return f"aggregate {', '.join(functions) or 'DISTINCT'} by ({', '.join(groups)}) over the changes of {of}"


def _key_columns(node: Aggregate) -> Iterator[str]:
    """What the result calls its groups; a window of time, which no table can have as key, by its two ends."""
    for group in node.groups:
        if group.window is not None:
            yield from ("window.start", "window.end")
        else:
            named = (output.column.name for output in node.outputs if output.value == group.value)
            yield next(named, without_ids(group.value))


def lookup_notes(table: str, index: str, keys: Sequence[str]) -> tuple[str, ...]:
    """How an aggregate by lookups is computed, and what may follow it."""
    how = (
        f"of each group that changes all rows are looked up in {table}, by {index} for "
        f"({', '.join(keys)}), before and after"
    )
    return how, "gives every kind of change and keeps no state, so anything may follow"


def key_notes(groups: Sequence[str]) -> Iterator[str]:
    """How sums of signs are written, and what is kept of them, by the names of the groups' columns."""
    key = f"the PRIMARY KEY ({', '.join(groups)})" if groups else "a PRIMARY KEY of a constant column"
    yield f"written with catalog.write_changes into a table with {key}, in output mode update"
    if groups:
        yield "Spark's state has one row for each group, also for those that are gone"
    else:
        yield "the one row stays when no row is left, with counts of 0"


def _notes(node: Aggregate) -> Iterator[str]:
    yield from key_notes([*_key_columns(node)])
    if any(isinstance(below, Watermark) for below in walk(node.child)):
        yield "the watermark is left out: changes that come late count, and no group is ever forgotten"
    functions = aggregations(node.outputs)
    floating = [one for one in functions if one.name in ("Sum", "Average") and is_floating(one.types[0])]
    if floating:
        named = ", ".join(map(without_ids, floating))
        types = {f.types[0] for f in floating}
        numbers = ", ".join(sorted(f"{FIXED_POINTS[one].count} for {one.upper()}" for one in types))
        yield f"{named}: exact, whatever came and went; its state has a number for each limb, {numbers}"


@dataclass(frozen=True)
class TopicReport:
    """How the query reads one topic.

    Attributes:
        topic: the topics' names, or the pattern that chooses them.
        mode: what the query gets: "all", "upsert", "cdc", "cdc-normalized" or "rows"; "mirror" where it reads
            the changes of the managed table that mirrors the topic.
        normalizer: "left out", "put in", "kept", or "none" where the user's options ask for none.
        reason: why it was left out, put in or kept; None for "none".
        range: which records are read.
    """

    topic: str
    mode: str
    normalizer: str
    reason: str | None
    range: RecordRange

    def __str__(self) -> str:
        lines = [f"topic {self.topic}: {_MODES[self.mode]}"]
        if self.reason is not None:
            lines.append(f"  normalizer {self.normalizer}: {self.reason}")
        if where := str(self.range):
            lines.append(f"  records read: {where}")
        return "\n".join(lines)


_MODES: Final[Mapping[str, str]] = {
    "mirror": "the changes of its mirror, a managed table that catalog.mirror keeps",
    Mode.ALL: "every change, with UPDATE_BEFORE",
    Mode.UPSERT: "upserts, and deletes by key",
    Mode.CDC: "the changes in its records",
    Mode.CDC_NET: "of each key what the changes in its records leave in a micro-batch",
    Mode.CDC_NORMALIZED: "the changes in its records, made whole by a normalizer",
    Mode.ROWS: "its records as rows",
}


def topic_reports(before: Plan, after: Plan, settings: Settings) -> Iterator[TopicReport]:
    """A report for each topic of a plan, from left to right."""
    left = {number: topic for numbers, topic in _topics(after) for number in numbers}
    for numbers, given in _topics(before):
        read = next((left[number] for number in numbers if number in left), None)
        if read is None:
            yield TopicReport(given.name, "mirror", "none", None, given.range)
        else:
            normalizer, reason = _normalizer(before, given, read, settings)
            yield TopicReport(read.name, read.mode.value, normalizer, reason, read.range)


def _normalizer(
    before: Plan, given: KafkaTopic, read: KafkaTopic, settings: Settings
) -> tuple[str, str | None]:
    if given.mode is Mode.CDC_NORMALIZED:
        return "kept", "the option 'cdc-events-duplicate' asks for it"
    if given.mode is Mode.UPSERT and read.mode is Mode.ALL:
        reasons = (
            reason for leaf, reason in unmet_everywhere(before, settings.sink_key) if leaf.origin == given
        )
        return "put in", next(reasons, None)
    if given.mode is not Mode.ALL:
        return "none", None
    if read.mode is Mode.UPSERT:
        return "left out", f"the sink is keyed by ({', '.join(settings.sink_key or ())})"
    if topic_of(before, Mode.ALL) is None:
        return "kept", "the query is more than projections and filters of this topic"
    return "kept", needs_normalizer(before, given, settings)


def _topics(plan: Plan) -> Iterator[tuple[tuple[int, ...], KafkaTopic]]:
    """Each topic that a plan reads, and the ids of its columns."""
    for node in walk(plan):
        match node:
            case Changelog(origin=KafkaTopic() as topic) | Relation(topic=KafkaTopic() as topic):
                yield tuple(column.id for column in node.columns), topic
            case Changelog(origin=Normalized(input=given)):
                yield from _topics(given)


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
        lines = [f"sink with {key}", f"  form: {self.form}"]
        lines += [f"  the query's rows are told apart by {self.keys}", f"  because {self.reason}"]
        if self.form == "materialized":
            lines.append("  a hidden table keeps all rows of each key, the newest that is left is written")
        return "\n".join(lines)


def sink_report(before: Plan, after: Plan, key: tuple[str, ...], mode: str) -> SinkReport:
    """What becomes of a query in a table with this key and this `sink.materialize`."""
    keys = unique_keys(before)
    upserts = None if group_keys(after) is None else upsert_key(after)
    changes = Changes(reads_changes(before), keys if reads_changes(before) else None, upserts)
    return report_of_sink(changes, key, mode, keys)


def report_of_sink(
    changes: Changes, key: tuple[str, ...], mode: str, keys: UniqueKeys | None = None
) -> SinkReport:
    """What becomes of rows in a table with this key; ``keys`` are theirs, where they are no changes."""
    if keys is None:
        upserts = None if changes.upserts is None else UniqueKeys((changes.upserts.keys,))
        keys = upserts or changes.keys or UniqueKeys()
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
        return "\n".join(text for text, _ in self._parts())

    __repr__ = __str__  # what a prompt of Python shows is for people too

    @property
    def warned(self) -> frozenset[int]:
        """Which lines of the text tell of a join whose state grows, or of a refusal: they are shown red."""
        flags = [is_bad for text, is_bad in self._parts() for _ in text.splitlines()]
        return frozenset(number for number, is_bad in enumerate(flags) if is_bad)

    @property
    def decisions(self) -> tuple[tuple[str, bool], ...]:
        """What was decided, without the plan: texts, and whether each is shown red; () for nothing."""
        return tuple(self._decisions()) if self.joins or self.aggregates or self.topics else ()

    def to_json(self) -> dict[str, Any]:
        """The same as values of JSON: what became of each join, aggregate and topic, and the plan as text."""
        sink = self.sink
        return {
            "joins": [report.to_json() for report in self.joins],
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
        parts = [_block(text, _BAD if is_bad else _GOOD) for text, is_bad in self._decisions()]
        parts.append(_folded("plan before", tree(self.before)))
        is_same = self.before is self.after
        parts.append(
            "<p>the plan is left as it is</p>" if is_same else _folded("plan after", tree(self.after))
        )
        return f'<div class="deltajoin-explanation tex2jax_ignore mathjax_ignore">{"".join(parts)}</div>'

    def _decisions(self) -> Iterator[tuple[str, bool]]:
        """What was decided, as texts, and whether each is to be shown as a warning."""
        others = [*map(str, self.aggregates), *map(str, self.topics)]
        if not self.joins:
            yield ("the query is refused", True) if self.refusals else (_NO_JOIN, False)
        yield from ((str(join), join.grows or join.form == "refused") for join in self.joins)
        others += [] if self.sink is None else [str(self.sink)]
        yield from ((text, "form: refused" in text) for text in others)
        yield from ((text, True) for text in self._other_refusals())
        if self.is_for_a_view:
            yield f"remedy: {FOR_A_VIEW}", True

    def _parts(self) -> Iterator[tuple[str, bool]]:
        yield from self._decisions()
        if self.before is self.after:
            yield "the plan is left as it is", False
        elif not self.refusals:
            yield f"plan:\n{indent(tree(transform_up(self.after, _without_name)), '  ')}", False

    def _other_refusals(self) -> Iterator[str]:
        """Those that do not concern one of the joins or aggregates."""
        of_joins = {refused for report in self.joins for refused in report.refusals}
        of_aggregates = {report.reason for report in self.aggregates}
        for refused in self.refusals:
            if refused not in of_joins and refused.reason not in of_aggregates:
                yield f"refused: {refused.reason}\n  remedy: {refused.remedy}"


_NAMING: Final = ("PipeOperator", "SubqueryAlias", "View")


def _without_name(node: Plan) -> Plan:
    """What a name of a table, a subquery or a view stands for."""
    return node.child if isinstance(node, Wrapper) and node.name in _NAMING else node


_NO_JOIN: Final = "the query has no join"
_STYLE: Final = "text-align:left;white-space:pre-wrap;margin:0.3em 0;padding:0.5em;border-left:3px solid"
_GOOD, _BAD, _PLAN = "#2a7", "#c33", "#888"


def _block(text: str, colour: str) -> str:
    warning = f';color:{colour}" class="deltajoin-warning' if colour == _BAD else ""
    return f'<pre style="{_STYLE} {colour}{warning}">{escape(text)}</pre>'


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>{_block(text, _PLAN)}</details>"


def explanation_of(trace: Trace, settings: Settings, sink: SinkReport | None = None) -> Explanation:
    """What a trace says about the query, each of its joins and each of its topics, and of its sink."""
    is_materialized = sink is not None and sink.form == "materialized"
    joins = tuple(join_reports(trace, settings, is_materialized=is_materialized))
    aggregates = tuple(aggregate_reports(trace))
    topics = tuple(topic_reports(trace.before, trace.after, settings))
    of_plan = trace.refusals, trace.before, trace.after, trace.steps
    return Explanation(joins, *of_plan, topics, aggregates, sink, trace.is_for_a_view)
