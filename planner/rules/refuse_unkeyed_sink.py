"""Stop upserts from going where they replace nothing (pure)."""

from __future__ import annotations

from planner.conditions import Refused
from planner.nodes import Plan
from planner.settings import Settings
from planner.sources import Mode
from planner.upsert_conditions import sink_is_keyed_alike, topic_of


def refuse_unkeyed_sink(node: Plan, settings: Settings) -> Refused | None:
    """Refuse to write a topic that is read with `changelog = upsert` into a sink without the topic's key.

    A sink with another key, or with none, would keep the row that an update replaced: no `-U` takes it away.
    A sink that is not known (`sink_key` None) is not refused: `check_sink` and `Catalog.write_changes` know
    theirs.
    """
    topic = topic_of(node, Mode.UPSERT)
    if topic is None or settings.sink_key is None:
        return None
    reason = sink_is_keyed_alike(node, topic, settings.sink_key)
    if reason is None:
        return None
    return Refused(
        f"the upserts of {topic.name!r} would leave replaced rows in the sink: {reason}",
        "read the topic with changelog = 'all', or write it into a sink with the topic's primary key",
    )
