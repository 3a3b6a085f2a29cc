"""Make the upserts of a topic whole where something must know which rows they replace (pure)."""

from __future__ import annotations

from dataclasses import replace

from planner.changelogs import Changelog
from planner.nodes import Plan
from planner.settings import Settings
from planner.sources import KafkaTopic
from planner.trees import transform_up
from planner.unmet_upserts import unmet_upserts


def put_in_normalizer(node: Plan, settings: Settings) -> Plan | None:
    """Read a topic with `changelog = all` instead of `upsert` below what needs every kind of change.

    Such are filters on other columns than the key, joins, unions, aggregates and a sink with another key; see
    `unmet_upserts`. Only where the topic's options name a `state.path`: the normalizer must keep the
    newest row of each key somewhere. Where they do not, the query is refused for the same reason.

        Filter (n#2 > 3)                               Filter (n#2 > 3)
          Changelog topic words upsert […]       =>      Changelog topic words all […]
    """
    unmet = [leaf for leaf, _ in unmet_upserts(node, settings.sink_key)]

    def made_whole(part: Plan) -> Plan:
        match part:
            case Changelog(origin=KafkaTopic() as topic) if any(part is leaf for leaf in unmet):
                return replace(part, origin=topic.as_changes(), ref=None) if topic.has_state_path else part
        return part

    plan = transform_up(node, made_whole)
    return None if plan is node else plan
