"""Remember nothing of a topic whose newest rows are all that the sink wants (pure)."""

from __future__ import annotations

from dataclasses import replace

from planner.chain import chain_of
from planner.changelogs import Changelog
from planner.nodes import Plan
from planner.settings import Settings
from planner.sources import KafkaTopic, Mode
from planner.trees import transform_up
from planner.upsert_conditions import needs_normalizer


def leave_out_normalizer(node: Plan, settings: Settings) -> Plan | None:
    """Read an upsert topic with `changelog = upsert` where no `-U` is of use: no state at all.

    The whole query must be projections, and filters on the key, from the topic to a sink with the topic's
    primary key; `needs_normalizer` has every condition. The sink ends up with
    the same rows. What differs is how they come there: an update is one `+U`, a delete has NULL in all
    columns but the key and metadata, and a record that repeats its predecessor is written again, with its
    own metadata.

        Project [word#1, (n#2 * 2) AS m#5]           Project [word#1, (n#2 * 2) AS m#5]
          Changelog topic words all […]        =>      Changelog topic words upsert […]
    """
    match leaf := chain_of(node).leaf:
        case Changelog(origin=KafkaTopic(mode=Mode.ALL) as topic):
            if needs_normalizer(node, topic, settings.sink_key):
                return None
            upserts = replace(leaf, origin=topic.as_upserts(), ref=None)
            return transform_up(node, lambda below: upserts if below is leaf else below)
        case _:
            return None
