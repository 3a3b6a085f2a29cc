"""What the planner decided about each topic of Kafka that a query reads (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from planner.plan.nodes import Changelog, Normalized, Plan, Relation
from planner.plan.sources import KafkaTopic, Mode, RecordRange
from planner.plan.trees import walk
from planner.rules.topics import needs_normalizer, topic_of, unmet_everywhere


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


_MIRROR: Final = "mirror"

_MODES: Final[Mapping[str, str]] = {
    _MIRROR: "the changes of its mirror, a managed table that catalog.mirror keeps",
    Mode.ALL: "every change, with UPDATE_BEFORE",
    Mode.UPSERT: "upserts, and deletes by key",
    Mode.CDC: "the changes in its records",
    Mode.CDC_NORMALIZED: "the changes in its records, made whole by a normalizer",
    Mode.ROWS: "its records as rows",
}


def topic_reports(before: Plan, after: Plan, sink_key: Sequence[str] | None) -> Iterator[TopicReport]:
    """A report for each topic of a plan, from left to right."""
    left = {number: topic for numbers, topic in _topics(after) for number in numbers}
    for numbers, given in _topics(before):
        read = next((left[number] for number in numbers if number in left), None)
        if read is None:
            yield TopicReport(given.name, _MIRROR, "none", None, given.range)
            continue
        normalizer, reason = _normalizer(before, given, read, sink_key)
        yield TopicReport(read.name, read.mode.value, normalizer, reason, read.range)


def _normalizer(
    before: Plan, given: KafkaTopic, read: KafkaTopic, sink_key: Sequence[str] | None
) -> tuple[str, str | None]:
    if given.mode is Mode.CDC_NORMALIZED:
        return "kept", "the option 'cdc-events-duplicate' asks for it"
    if given.mode is Mode.UPSERT and read.mode is Mode.ALL:
        key = None if sink_key is None else tuple(sink_key)
        reasons = (reason for leaf, reason in unmet_everywhere(before, key) if leaf.origin == given)
        return "put in", next(reasons, None)
    if given.mode is not Mode.ALL:
        return "none", None
    if read.mode is Mode.UPSERT:
        return "left out", f"the sink is keyed by ({', '.join(sink_key or ())})"
    if topic_of(before, Mode.ALL) is None:
        return "kept", "the query is more than projections and filters of this topic"
    return "kept", needs_normalizer(before, given, sink_key)


def _topics(plan: Plan) -> Iterator[tuple[tuple[int, ...], KafkaTopic]]:
    """Each topic that a plan reads, and the ids of its columns."""
    for node in walk(plan):
        match node:
            case Changelog(origin=KafkaTopic() as topic) | Relation(topic=KafkaTopic() as topic):
                yield tuple(column.id for column in node.columns), topic
            case Changelog(origin=Normalized(input=given)):
                yield from _topics(given)
