"""What `upsert.normalize` may be given: rows, or changes with their kinds, by the key they have (pure)."""

from __future__ import annotations

from typing import Final

from planner.chain import trace
from planner.changelogs import Changelog, Normalized
from planner.conditions import Condition, Refused, sources
from planner.nodes import Join, Plan
from planner.sources import Mode
from planner.trees import reads_changes, row_kind_of, walk
from planner.upsert_conditions import topic_of


def input_has_its_kinds(node: Plan) -> Refused | None:
    """The planner does not change what the operator is given: its columns are fixed."""
    match node:
        case Changelog(origin=Normalized(input=given)) if reads_changes(given):
            has_join = any(isinstance(part, Join) and reads_changes(part) for part in walk(given))
            if row_kind_of(given) is None or has_join:
                fault = "joins changes as rows" if has_join else "has lost its '_row_kind'"
                return Refused(
                    f"what upsert.normalize is given of the changes of {sources(given)} {fault}",
                    "write upsert.normalize(planner.optimize(df), …)",
                )
    return None


def input_is_told_apart_by_its_key(node: Plan) -> Refused | None:
    """A delete among upserts has no column but its key, so it cannot be known by others."""
    match node:
        case Changelog(origin=Normalized(key, given)):
            topic = topic_of(given, Mode.UPSERT)
            if topic is None:
                return None
            named = [column for column in given.columns if column.name in key]
            origins = {origin.name for column in named if (origin := trace(column, given)) is not None}
            if origins != set(topic.schema.primary_key):
                return Refused(
                    f"upsert.normalize by ({', '.join(key)}) does not see which rows of {topic.name!r}, read "
                    "with changelog = 'upsert', are deleted: the topic's key is "
                    f"({', '.join(topic.schema.primary_key)})",
                    "normalize by the topic's primary key, or read the topic with changelog = 'all'",
                )
    return None


NORMALIZED_CONDITIONS: Final[tuple[Condition, ...]] = (input_has_its_kinds, input_is_told_apart_by_its_key)
