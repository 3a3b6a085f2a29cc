"""The rules in their order, the loop that applies them, and what they did (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from planner.plan.expressions import Call, walk_expression
from planner.plan.nodes import Changelog, Opaque, Plan
from planner.plan.sources import ManagedTable
from planner.plan.trees import at_join_trees, at_top, expressions, transform_down, transform_up, walk
from planner.refusals import Refused
from planner.rules.aggregates import drop_needless_distinct, group_distinct, replace_aggregate
from planner.rules.joins import (
    fall_back_to_regular_join,
    merge_filter_into_join,
    refuse_metadata_in_join,
    replace_join,
)
from planner.rules.lookup_joins import make_lookup_joins_whole, replace_lookup_join
from planner.rules.push_down import (
    keep_rows_inside,
    narrow_kafka_range,
    prune_columns,
    push_filters,
    read_used_columns,
)
from planner.rules.row_kinds import (
    carry_group_deletes,
    carry_row_kind,
    end_with_row_kind,
    mark_upserts,
    refuse_over_groups,
    refuse_ungrouped_sink,
)
from planner.rules.static_joins import enrich_stream, refuse_static_join
from planner.rules.temporal_joins import join_versions, look_up, refuse_scan_of_lookups
from planner.rules.topics import (
    leave_out_normalizer,
    leave_out_updates_before,
    look_below_normalize,
    put_in_normalizer,
    refuse_metadata_of_changes,
    refuse_unkeyed_sink,
    take_net_changes,
    use_mirror,
)
from planner.rules.unsupported import OF_NO_VIEW, refuse_unsupported
from planner.settings import Settings

_OF_ONE_QUERY: Final = frozenset(
    {"fall_back_to_regular_join", "group_distinct", "refuse_over_groups", "replace_aggregate", "replace_join"}
)
"""Rules that refuse what one streaming query cannot hold, and several tables can."""


@dataclass(frozen=True)
class Step:
    """One node on which a rule fired, and what came of it."""

    rule: str
    node: Plan
    result: Plan | Refused


@dataclass(frozen=True)
class Trace:
    """A plan before and after all rules, and every step between."""

    before: Plan
    after: Plan
    steps: tuple[Step, ...]

    @property
    def refusals(self) -> tuple[Refused, ...]:
        """Why the plan has no right answer; empty when `after` has."""
        return tuple(dict.fromkeys(step.result for step in self.steps if isinstance(step.result, Refused)))

    @property
    def is_for_a_view(self) -> bool:
        """Whether a materialized view can hold what is refused: any function of managed tables' rows."""
        refused = [step for step in self.steps if isinstance(step.result, Refused)]
        return (
            bool(refused)
            and all(step.rule in _OF_ONE_QUERY or _is_of_sql(step.node) for step in refused)
            and all(map(_is_of_whole_tables, walk(self.before)))
        )

    @property
    def is_changed(self) -> bool:
        """Whether a rule rewrote anything."""
        return self.after is not self.before


def _is_of_sql(node: Plan) -> bool:
    """Whether an operator that changes do not pass may be in the query of a view."""
    return isinstance(node, Opaque) and node.name not in OF_NO_VIEW


def _is_of_whole_tables(node: Plan) -> bool:
    if isinstance(node, Changelog):
        return isinstance(node.origin, ManagedTable) and node.origin.scan_mode == "full"
    calls = (part for whole in expressions(node) for part in walk_expression(whole) if isinstance(part, Call))
    return all(call.is_deterministic for call in calls)


class Rule(Protocol):
    """Looks at one node: a rewritten node, refusals, or None where the rule has nothing to say."""

    __name__: str

    def __call__(self, node: Plan, settings: Settings, /) -> Plan | Refused | tuple[Refused, ...] | None:
        """What the rule makes of the node."""


Walk = Callable[[Plan, Callable[[Plan], Plan]], Plan]

RULES: Final[tuple[tuple[Walk, Rule], ...]] = (
    (transform_up, use_mirror),  # a mirror is a managed table to all others
    (at_top, put_in_normalizer),  # before the refusal of what needs it
    (transform_up, look_below_normalize),
    (transform_up, refuse_unsupported),  # the rules below may rely on what it has ruled out
    (at_top, refuse_unkeyed_sink),
    (transform_up, drop_needless_distinct),
    (transform_up, group_distinct),
    (transform_up, merge_filter_into_join),  # before replace_join, which needs the equalities in the join
    (transform_up, replace_lookup_join),  # such streams can be joined in no other way
    (at_top, make_lookup_joins_whole),  # while all that may need it still lies above
    (transform_up, look_up),
    (transform_up, join_versions),
    (transform_up, enrich_stream),
    (at_top, refuse_scan_of_lookups),
    (transform_up, refuse_static_join),
    (at_join_trees, fall_back_to_regular_join),
    (at_join_trees, replace_join),  # once for joins that lie right below each other
    (transform_up, carry_row_kind),  # upwards: a Project passes on the kind that its input has by now
    (transform_up, replace_aggregate),  # its input carries the kind by now
    (transform_up, carry_group_deletes),
    (transform_up, refuse_over_groups),
    (transform_up, carry_row_kind),  # again: aggregates have a kind by now
    (at_top, end_with_row_kind),
    (at_top, mark_upserts),  # its mark is that of the kind at the top
    (at_top, refuse_ungrouped_sink),
    (transform_up, push_filters),
    (at_top, keep_rows_inside),  # what it moves was pushed into the tables before
    (transform_down, prune_columns),  # downwards: what a Project does not ask for, none below need pass on
    (transform_up, refuse_metadata_in_join),
    (at_top, leave_out_normalizer),  # the sink is above the whole query
    (at_top, leave_out_updates_before),
    (at_top, narrow_kafka_range),
    (at_top, take_net_changes),  # after narrow_kafka_range, which knows topics of all changes
    (at_top, refuse_metadata_of_changes),  # which net changes have no need of
    (at_top, read_used_columns),  # when it is known how each topic is read
)
"""Each rule with the direction in which it walks; `tests/planner/rules/plans/` draws what each one does."""

CHEAPER: Final = frozenset(
    rule.__name__
    for rule in (
        *(enrich_stream, leave_out_normalizer, look_below_normalize, narrow_kafka_range, mark_upserts),
        read_used_columns,
    )
)
"""Rules without which a plan is as right, only dearer, or of which `check_sink` asks by itself."""


def optimize_plan(plan: Plan, settings: Settings) -> Trace:
    """Apply all rules, each to every node. A refusal does not stop the others: explain() shows them all."""
    steps: list[Step] = []
    after = plan
    for order, rule in RULES:
        after = apply_rule(rule, order, after, settings, steps)
    return Trace(plan, after, tuple(steps))


def apply_rule(rule: Rule, order: Walk, plan: Plan, settings: Settings, steps: list[Step]) -> Plan:
    """The plan after one rule has seen each node; what it did is added to `steps`."""

    def change(node: Plan) -> Plan:
        found = rule(node, settings)
        if found is None:
            return node
        results: tuple[Plan | Refused, ...] = found if isinstance(found, tuple) else (found,)
        steps.extend(Step(rule.__name__, node, result) for result in results)
        return node if isinstance(found, Refused | tuple) else found

    return order(plan, change)
