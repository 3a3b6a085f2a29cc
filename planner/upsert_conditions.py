"""When a topic may be read as upserts: `+U` with the new row, `-D` with the key alone (pure).

Such a stream is right where each key's newest row replaces the older ones, and nowhere else. Conditions on
single nodes are refusals, as in `planner/conditions.py`. Those under which the normalizer of a topic
may be left out give the reason why it has to stay, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from planner.chain import chain_of, origins, trace
from planner.changelogs import Changelog
from planner.conditions import OBSERVATION, Condition, Refused
from planner.expressions import Call, Column, Expr
from planner.nodes import Filter, Plan, Project, Wrapper
from planner.null_tolerance import Outcome, Value, in_deletes
from planner.sources import KafkaTopic, Mode

_READ_ALL: Final = (
    "read it with changelog = 'all', or make its changes whole with upsert.normalize(df, key=[…], order_by=…)"
)


def topic_of(plan: Plan, mode: Mode) -> KafkaTopic | None:
    """The topic that a plan reads in this mode, through projections and filters alone."""
    match chain_of(plan).leaf:
        case Changelog(origin=KafkaTopic() as topic) if topic.mode is mode:
            return topic
        case _:
            return None


def upserts_keep_their_key(node: Plan) -> Refused | None:
    """Without its key nobody knows which row an upsert replaces."""
    topic = topic_of(node, Mode.UPSERT)
    if topic is None or not isinstance(node, Project):
        return None
    lost = _lost_key(node, topic)
    if not lost or _lost_key(node.child, topic):  # said once, where it was lost
        return None
    return Refused(
        f"a projection of {topic.name!r}, read with changelog = 'upsert', loses {', '.join(lost)} of its "
        "primary key, or computes it anew",
        f"pass the whole key ({', '.join(topic.schema.primary_key)}) on; or {_READ_ALL}",
    )


def upserts_are_filtered_by_key(node: Plan) -> Refused | None:
    """A row that leaves the filter would stay where it went before: no `-U` says that it is gone."""
    topic = topic_of(node, Mode.UPSERT)
    if topic is None or not isinstance(node, Filter):
        return None
    other = _other_than_key(node.condition, node.child, topic)
    if not other:
        return None
    return Refused(
        f"a filter on {', '.join(other)} of {topic.name!r}, read with changelog = 'upsert', would not take "
        "away a row that an update makes fail it",
        _READ_ALL,
    )


UPSERT_CONDITIONS: Final[tuple[Condition, ...]] = (upserts_keep_their_key, upserts_are_filtered_by_key)


def sink_is_keyed_alike(plan: Plan, topic: KafkaTopic, sink_key: tuple[str, ...] | None) -> str | None:
    """The sink must replace a row exactly where the topic does."""
    if sink_key is None:
        return "the key of the sink is not known; give it as sink_key"
    if not sink_key:
        return "the sink has no primary key"
    traced = set()
    for name in sink_key:
        column = next((column for column in plan.columns if column.name == name), None)
        if column is None:
            return f"the sink's key column {name!r} is no column of the query"
        origin = trace(column, plan)
        if origin is None:
            return f"the sink's key column {name!r} is computed"
        traced.add(origin.name)
    if traced == set(topic.schema.primary_key):
        return None
    return (
        f"the sink is keyed by ({', '.join(sink_key)}), the topic by ({', '.join(topic.schema.primary_key)})"
    )


KeepReason = Callable[[Plan, KafkaTopic], str | None]


def nobody_counts_changes(plan: Plan, topic: KafkaTopic) -> str | None:  # noqa: ARG001
    """A query that is observed shows how many changes there are."""
    if any(isinstance(node, Wrapper) and node.name == OBSERVATION for node in chain_of(plan).nodes):
        return "the query is observed, and its metrics would change"
    return None


def filters_are_on_the_key(plan: Plan, topic: KafkaTopic) -> str | None:
    """A row that leaves a filter must be taken away, which only its `-U` says."""
    for node in chain_of(plan).nodes:
        if isinstance(node, Filter) and (other := _other_than_key(node.condition, node.child, topic)):
            return f"filter on {', '.join(other)}"
    return None


def deletes_may_have_nulls(plan: Plan, topic: KafkaTopic) -> str | None:  # noqa: ARG001
    """A delete carries its key alone, so every other column must be able to hold NULL."""
    known = topic.set_in_deletes
    strict = [c.name for c in topic.schema.columns if not c.nullable and c.name not in known]
    return (
        f"column(s) {', '.join(strict)} are NOT NULL, and a delete has no value for them" if strict else None
    )


def expressions_take_nulls(plan: Plan, topic: KafkaTopic) -> str | None:
    """An expression over a column that is NULL in deletes must not raise an error for that."""
    chain = chain_of(plan)
    outcomes = {column.id: _outcome(column, topic) for column in chain.leaf.columns}
    for node in chain.nodes:
        if not isinstance(node, Project):
            continue
        computed: dict[int, Outcome] = {}
        for output in node.outputs:
            outcome = in_deletes(output.value, outcomes)
            if outcome is None:
                return f"{_in_words(output.value)} may fail for a delete, where all but the key is NULL"
            computed[output.column.id] = outcome
        outcomes = computed
    return None


_KEEP_REASONS: Final[tuple[KeepReason, ...]] = (
    nobody_counts_changes,
    filters_are_on_the_key,
    deletes_may_have_nulls,
    expressions_take_nulls,
)


def needs_normalizer(plan: Plan, topic: KafkaTopic, sink_key: Sequence[str] | None) -> str | None:
    """Why a topic that a chain of nodes reads up to the sink needs its normalizer, or None."""
    key = None if sink_key is None else tuple(sink_key)
    if reason := sink_is_keyed_alike(plan, topic, key):
        return reason
    return next((reason for condition in _KEEP_REASONS if (reason := condition(plan, topic))), None)


def _outcome(column: Column, topic: KafkaTopic) -> Outcome:
    is_set = column.is_row_kind or column.name in topic.set_in_deletes
    return Outcome(Value.AS_EVER if is_set else Value.NULL)


def _lost_key(plan: Plan, topic: KafkaTopic) -> list[str]:
    origin = (trace(column, plan) for column in plan.columns)
    kept = {column.name for column in origin if column is not None}
    return [name for name in topic.schema.primary_key if name not in kept]


def _other_than_key(condition: Expr, plan: Plan, topic: KafkaTopic) -> list[str]:
    used = {column.name for column in origins(condition, plan)}
    return sorted(used.difference(topic.schema.primary_key))


def _in_words(expr: Expr) -> str:
    return f"{expr.name}(…)" if isinstance(expr, Call) else str(expr)
