"""Leave records unread that the query filters out anyway, by partition, offset and time (pure)."""

from __future__ import annotations

from dataclasses import replace

from planner.chain import chain_of
from planner.changelogs import Changelog, Relation
from planner.nodes import Filter, Plan
from planner.ranges import range_of
from planner.settings import Settings
from planner.sources import KafkaTopic, Mode
from planner.trees import transform_up


def narrow_kafka_range(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Hand what a filter says of a record's partition, offset and time to the source, as its options.

    Only what `range_of` finds, in addition to what the query's own options say. The filter
    itself stays. A source with a normalizer is left alone: it must see every change of a key. A query that
    goes on from its checkpoint with a wider filter finds what it left unread, except what lies before
    the offsets at which it began.

        Filter (place#3 >= 100)                        Filter (place#3 >= 100)
          Stream topic clicks rows […]           =>      Stream topic clicks rows where offset >= 100 […]
    """
    if not isinstance(node, Filter):
        return None
    match leaf := chain_of(node).leaf:
        case Changelog(origin=KafkaTopic(mode=Mode.CDC) as topic) | Relation(topic=KafkaTopic() as topic):
            range_ = topic.range & range_of(node, topic)
        case _:
            return None
    if range_ == topic.range or range_.is_empty:
        return None
    narrowed = topic.within(range_)
    source: Plan = (
        replace(leaf, origin=narrowed, ref=None)
        if isinstance(leaf, Changelog)
        else replace(leaf, topic=narrowed, ref=None)
    )
    return transform_up(node, lambda below: source if below is leaf else below)
