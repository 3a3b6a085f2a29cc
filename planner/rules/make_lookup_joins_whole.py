"""Make a lookup join give `-U` where something above must know which rows are replaced (pure)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from planner.chain import chain_of
from planner.changelogs import Changelog, LookupChanges, LookupJoined
from planner.conditions import Refused
from planner.expressions import Call
from planner.group_keys import KIND_IF
from planner.nodes import Output, Plan, Project
from planner.settings import Settings
from planner.trees import transform_up, walk
from planner.upserts_above import unmet_lookup_joins

_ONE: Final = Refused(
    "the query has several lookup joins, and Spark runs one stateful operator in Python in a query",
    "write each of them but one into a managed table in a query of its own, with catalog.write_changes, and "
    "go on with that table's changes, catalog.read_changes",
)


def make_lookup_joins_whole(node: Plan, settings: Settings) -> Plan | Refused | None:
    """Let a join of two streams with lookups give every kind of change, instead of upserts.

    With `changelog = all` everywhere; with `auto` below all operators but projections and filters, and where
    the sink has another key; see `unmet_lookup_joins`. Only where `state_path` says in which folder
    the join keeps the rows that it has given: without, `auto` leaves the upserts, which are refused there.
    The kind then needs no mark, and a filter is a filter of changes. Two of them in one query are refused.

        Aggregate by (name#77) […]                        Aggregate by (name#77) […]
          Project […, KindIf(_row_kind#-8) AS …]     =>     Project […, _row_kind#-8 AS …]
            Changelog a lookup join (inner) of …              Changelog a lookup join (inner) … with -U […]
    """
    if settings.state_path is None or settings.changelog == "upsert":
        return None
    joins = [
        leaf for leaf in walk(node) if isinstance(leaf, Changelog) and isinstance(leaf.origin, LookupJoined)
    ]
    if len(joins) > 1:
        return _ONE
    wanted = list(unmet_lookup_joins(node, settings.sink_key))
    if settings.changelog == "all":
        wanted = [(leaf, "changelog is 'all'") for leaf in joins]

    def whole(part: Plan) -> Plan:
        match part:
            case Changelog(origin=LookupJoined() as joined):
                reason = next((reason for leaf, reason in wanted if leaf is part), None)
                return part if reason is None else replace(part, origin=LookupChanges.of(joined, reason))
            case Project(outputs=outputs) if _is_whole(part):
                return replace(part, outputs=tuple(map(_without_mark, outputs)), ref=None)
        return part

    plan = transform_up(node, whole)
    return None if plan is node else plan


def _is_whole(project: Project) -> bool:
    leaf = chain_of(project).leaf
    return (
        isinstance(leaf, Changelog)
        and isinstance(leaf.origin, LookupChanges)
        and any(_is_marked(output) for output in project.outputs)
    )


def _is_marked(output: Output) -> bool:
    return isinstance(output.value, Call) and output.value.name == KIND_IF


def _without_mark(output: Output) -> Output:
    match output.value:
        case Call(name, (kind,)) if name == KIND_IF:
            return Output(output.column, kind)
        case _:
            return output
