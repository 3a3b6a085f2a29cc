"""Where a topic is read as upserts and something above must know which rows they replace (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from planner.chain import chain_of
from planner.changelogs import Changelog, Normalized
from planner.conditions import Refused
from planner.nodes import Filter, Join, Opaque, Plan, Project, Watermark, Wrapper
from planner.operator_conditions import OPERATORS
from planner.sources import KafkaTopic, Mode
from planner.trees import children, joins_changes, walk
from planner.upsert_conditions import UPSERT_CONDITIONS, sink_is_keyed_alike


def unmet_upserts(plan: Plan, sink_key: tuple[str, ...] | None) -> Iterator[tuple[Changelog, str]]:
    """Leaves that are read as upserts, each with a reason why that is not enough; not below normalizers.

    Upserts need their UPDATE_BEFORE wherever a newer row of a key does not simply take the place of the older
    one: below anything but projections with the key and filters on it, and before a sink with another key.
    """
    for node in walk(plan):
        for child in children(node):
            leaf = _read_as_upserts(child)
            if leaf is not None and (reason := _reason(node)):
                yield leaf, reason
    leaf = _read_as_upserts(plan)
    if leaf is None or sink_key is None or not isinstance(leaf.origin, KafkaTopic):
        return
    if reason := sink_is_keyed_alike(plan, leaf.origin, sink_key):
        yield leaf, reason


def unmet_everywhere(plan: Plan, sink_key: tuple[str, ...] | None) -> Iterator[tuple[Changelog, str]]:
    """The same, below `upsert.normalize` as well, which is a sink with its key to what lies there."""
    yield from unmet_upserts(plan, sink_key)
    for node in walk(plan):
        match node:
            case Changelog(origin=Normalized(key, given)):
                yield from unmet_everywhere(given, key)


def upserts_are_replaced_above(node: Plan) -> Refused | None:
    """What is left of them must be refused; joins of two streams have conditions of their own."""
    if isinstance(node, Project | Filter | Watermark | Wrapper | Opaque) or joins_changes(node):
        return None
    for child in children(node):
        leaf = _read_as_upserts(child)
        if leaf is not None:
            return Refused(
                f"{leaf.name!r} is read with changelog = 'upsert', and {_reason(node)}",
                "read it with changelog = 'all' and a 'state.path', or make its changes whole with "
                "upsert.normalize",
            )
    return None


def _read_as_upserts(plan: Plan) -> Changelog | None:
    match leaf := chain_of(plan).leaf:
        case Changelog(origin=KafkaTopic(mode=Mode.UPSERT)):
            return leaf
        case _:
            return None


def _reason(node: Plan) -> str | None:
    match node:
        case Project() | Filter() | Watermark() | Wrapper():
            refused = (condition(node) for condition in UPSERT_CONDITIONS)
            return next((one.reason for one in refused if one is not None), None)
        case Join():
            what = "a join"
        case Opaque(name):
            what = OPERATORS.get(name, f"the operator {name!r}")
        case _:
            name = type(node).__name__
            what = OPERATORS.get(name, f"the operator {name!r}")
    return f"{what} must be told which rows the upserts replace"
