"""What the planner decided about each topic of Kafka that a query reads (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.plan import Changelog, Normalized, Plan, Relation
from planner.sources import KafkaTopic, Mode, RecordRange
from planner.trees import walk
from planner.upsert_conditions import needs_normalizer, topic_of


@dataclass(frozen=True)
class TopicReport:
    """How the query reads one topic.

    Attributes:
        topic: the topics' names, or the pattern that chooses them.
        mode: what the query gets: "all", "upsert", "cdc", "cdc-normalized" or "rows".
        normalizer: "left out", "kept", or "none" where the user's options ask for none.
        reason: why it was left out or kept; None for "none".
        range: which records are read.
    """

    topic: str
    mode: str
    normalizer: str
    reason: str | None
    range: RecordRange

    def __str__(self) -> str:
        lines = [f"topic {self.topic}: {_MODES[Mode(self.mode)]}"]
        if self.reason is not None:
            lines.append(f"  normalizer {self.normalizer}: {self.reason}")
        if where := str(self.range):
            lines.append(f"  records read: {where}")
        return "\n".join(lines)


_MODES = {
    Mode.ALL: "every change, with UPDATE_BEFORE",
    Mode.UPSERT: "upserts, and deletes by key",
    Mode.CDC: "the changes in its records",
    Mode.CDC_NORMALIZED: "the changes in its records, made whole by a normalizer",
    Mode.ROWS: "its records as rows",
}


def topic_reports(before: Plan, after: Plan, sink_key: Sequence[str] | None) -> Iterator[TopicReport]:
    """A report for each topic of a plan, from left to right."""
    leaves = zip(_topics(before), _topics(after), strict=True)
    for given, read in leaves:
        normalizer, reason = _normalizer(before, given, read, sink_key)
        yield TopicReport(read.name, read.mode.value, normalizer, reason, read.range)


def _normalizer(
    before: Plan, given: KafkaTopic, read: KafkaTopic, sink_key: Sequence[str] | None
) -> tuple[str, str | None]:
    if given.mode is Mode.CDC_NORMALIZED:
        return "kept", "the option 'cdc-events-duplicate' asks for it"
    if given.mode is not Mode.ALL:
        return "none", None
    if read.mode is Mode.UPSERT:
        return "left out", f"the sink is keyed by ({', '.join(sink_key or ())})"
    if topic_of(before, Mode.ALL) is None:
        return "kept", "the query is more than projections and filters of this topic"
    return "kept", needs_normalizer(before, given, sink_key)


def _topics(plan: Plan) -> Iterator[KafkaTopic]:
    for node in walk(plan):
        match node:
            case Changelog(origin=KafkaTopic() as topic) | Relation(topic=KafkaTopic() as topic):
                yield topic
            case Changelog(origin=Normalized(input=given)):
                yield from _topics(given)
