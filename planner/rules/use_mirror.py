"""Read the mirrors of topics that take part in a join (pure)."""

from __future__ import annotations

from planner.chain import chain_of
from planner.changelogs import Changelog
from planner.nodes import Join, Plan
from planner.settings import Settings
from planner.sources import KafkaTopic
from planner.trees import joins_changes, transform_up, with_children


def use_mirror(node: Plan, settings: Settings) -> Plan | None:
    """Replace the changes of a mirrored topic below a join by those of its mirror, which can be looked up.

    Both have the same changes; those of the mirror come when its query has written them, and say what they
    replace, so the topic's normalizer is not needed. Not with the strategy "none", whose joins look nothing
    up.

        Join inner ON (user#1 = id#3)                 Join inner ON (user#1 = id#3)
          Changelog views [user#1: bigint]      =>      Changelog views [user#1: bigint]
          Changelog topic users [id#3: bigint]          Changelog users [id#3: bigint]
    """
    if not isinstance(node, Join) or not joins_changes(node) or settings.strategy == "none":
        return None
    inputs = [_mirrored(plan) for plan in (node.left, node.right)]
    changed = with_children(node, inputs)
    return None if changed is node else changed


def _mirrored(plan: Plan) -> Plan:
    leaf = chain_of(plan).leaf
    match leaf:
        case Changelog(origin=KafkaTopic(mirror=mirror)) if mirror is not None:
            made = Changelog(mirror.name, leaf.columns, mirror)
            return transform_up(plan, lambda node: made if node is leaf else node)
    return plan
