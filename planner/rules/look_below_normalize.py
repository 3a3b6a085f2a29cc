"""Read no more below `upsert.normalize` than it needs (pure)."""

from __future__ import annotations

from dataclasses import replace

from planner.chain import chain_of, trace
from planner.changelogs import Changelog, Normalized
from planner.nodes import Plan
from planner.rules.leave_out_normalizer import leave_out_normalizer
from planner.rules.narrow_kafka_range import narrow_kafka_range
from planner.rules.put_in_normalizer import put_in_normalizer
from planner.settings import Settings
from planner.sources import KafkaTopic
from planner.trees import transform_up


def look_below_normalize(node: Plan, settings: Settings) -> Plan | None:
    """Apply the rules about topics to what `upsert.normalize` is given; it is like a sink with its key.

    So a topic is not normalized twice, is read only as far as filters want it, and is made whole where
    something between needs that. A normalizer stays if the operator orders rows by a column that a
    delete by key does not have.

        Changelog normalize by (word) […]         Changelog normalize by (word) […]
          Changelog topic words all […]     =>      Changelog topic words upsert […]
    """
    match node:
        case Changelog(origin=Normalized(key, given) as origin):
            own = replace(settings, sink_key=key)
            changed = put_in_normalizer(given, own) or given
            if _orders_deletes(origin):
                changed = leave_out_normalizer(changed, own) or changed
            changed = transform_up(changed, lambda part: narrow_kafka_range(part, own) or part)
            if changed is not given:
                return replace(node, origin=replace(origin, input=changed), ref=None)
    return None


def _orders_deletes(origin: Normalized) -> bool:
    """Whether each column of the order has a value in deletes that carry nothing but their key."""
    given = origin.input
    match chain_of(given).leaf:
        case Changelog(origin=KafkaTopic() as topic):
            traced = (trace(column, given) for column in given.columns if column.name in origin.order)
            names = [None if column is None else column.name for column in traced]
            return bool(names) and topic.set_in_deletes.issuperset(names)
        case _:
            return False
