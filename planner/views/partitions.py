"""Which parts of a query are computed for each partition of their rows apart (pure).

The rows of a window function, or of an aggregate that is no sum, follow from those of one partition or group:
if rows of it have changed it is computed again, from all of its rows, and no other one is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from planner.plan.expressions import Column, Expr, columns_of, has_subquery
from planner.plan.nodes import (
    Aggregate,
    Filter,
    Opaque,
    Output,
    Plan,
    Project,
    Relation,
    WindowKind,
    Wrapper,
)
from planner.plan.trees import children, expressions, walk, with_children
from planner.settings import Settings
from planner.views.stages import Tables, changes_of, has_stage

_KEYS: Final = -2_050_000_000
"""Ids for the columns that tell partitions apart, below those that stages and rules draw."""

_ABOVE = (Filter, Project, Wrapper)
"""What works row by row on what a partition gives, and is computed with it."""


@dataclass(frozen=True)
class Partitions:
    """A part of a query whose rows follow, for each partition, from the partition's rows alone.

    Attributes:
        place: where the query has it.
        top: the part, with only the columns that are needed.
        node: the lowest window function in it, or its aggregate.
        keys: what tells partitions apart, computed from the input of ``node``.
        tables: what it reads.
    """

    place: Plan
    top: Plan
    node: Opaque | Aggregate
    keys: tuple[Expr, ...]
    tables: Tables

    @property
    def child(self) -> Plan:
        """What the partitions are of."""
        (child,) = children(self.node)
        return child

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """Columns for the keys."""
        return tuple(
            Column(_KEYS - number, f"key_{number}", key.type if isinstance(key, Column) else "")
            for number, key in enumerate(self.keys)
        )

    @property
    def rows(self) -> Project:
        """The columns of the input that are needed, and the keys."""
        return Project(self.child, (*map(Output.of, self.needed), *self._keys()))

    @property
    def needed(self) -> tuple[Column, ...]:
        """The columns of the input from which the part is computed."""
        plan, ids = self.top, {column.id for column in self.top.columns}
        while plan is not self.child:
            ids |= _used(plan)
            (plan,) = children(plan)
        return tuple(column for column in self.child.columns if column.id in ids)

    @property
    def ids(self) -> frozenset[int]:
        """Ids of all columns that the part, and what is below it, evaluates or puts out."""
        own = (one.id for one in self.top.columns)
        return frozenset(own).union(*(_used(one) for one in walk(self.top)))

    def over(self, leaf: Plan) -> Plan:
        """The part over another input, with the keys as its last columns."""
        carrying = _carrying(self.top, self.node, leaf, self._keys())
        # a window function gives its own columns after all of its input's
        return Project(carrying, tuple(map(Output.of, (*self.top.columns, *self.key_columns))))

    def _keys(self) -> tuple[Output, ...]:
        return tuple(map(Output, self.key_columns, self.keys))


def partitions_of(plan: Plan, settings: Settings, also: Collection[int] = ()) -> tuple[Partitions, ...]:
    """The parts of a batch query that are computed by partition, and whose input follows from changes.

    None of them is below another, nor has one below that is kept as sums; ``also`` are aggregates of sums, by
    their identity, that are not kept so.
    """
    return tuple(_found(plan, replace(settings, sink_key=None), also))


def _found(plan: Plan, settings: Settings, also: Collection[int]) -> Iterator[Partitions]:
    if (part := _part(plan, settings, also)) is not None:
        yield part
        return
    for child in children(plan):
        yield from _found(child, settings, also)


def _part(plan: Plan, settings: Settings, also: Collection[int]) -> Partitions | None:
    """The part with this node at its top; None if there is none, or only further below."""
    node = plan
    while isinstance(node, _ABOVE):
        (node,) = children(node)
    if isinstance(node, Aggregate):
        # a row may join two sessions, or leave two: they are told apart by all rows of the other groups
        lasting = (group for group in node.groups if group.window is not WindowKind.SESSION)
        keys: tuple[Expr, ...] = tuple(dict.fromkeys(group.value for group in lasting))
        if id(node) not in also and has_stage(node, settings):
            return None
    else:
        node, keys = _windows(node)
    if not keys:
        return None
    assert isinstance(node, Opaque | Aggregate)
    (child,) = children(node)
    changes = changes_of(child, settings)
    if changes is None or _has_subquery(plan, child):
        return None
    top = _pruned(plan, frozenset(column.id for column in plan.columns))
    return Partitions(plan, top, _lowest(top), keys, changes.tables)


def _has_subquery(plan: Plan, child: Plan) -> bool:
    """Whether a part reads rows that are not of its input: when they change, no partition is touched."""
    if plan is child:
        return False
    (below,) = children(plan)
    return any(map(has_subquery, expressions(plan))) or _has_subquery(below, child)


def _pruned(plan: Plan, ids: frozenset[int]) -> Plan:
    """A part with only the columns of these ids, and what they need, as far down as it is one path."""
    if isinstance(plan, Project):
        outputs = {output.column.id: output for output in plan.outputs if output.column.id in ids}
        plan = replace(plan, outputs=tuple(outputs.values()), ref=None)
    elif not isinstance(plan, Filter | Wrapper | Aggregate) and not (isinstance(plan, Opaque) and plan.apart):
        return plan
    (child,) = children(plan)
    below = _pruned(child, _used(plan) if isinstance(plan, Project | Aggregate) else ids | _used(plan))
    if isinstance(plan, Opaque):
        gone = set(child.columns) - set(below.columns)
        return replace(plan, inputs=(below,), columns=tuple(one for one in plan.columns if one not in gone))
    return with_children(plan, [below])


def _lowest(plan: Plan) -> Opaque | Aggregate:
    """The lowest window function of a part, or its aggregate."""
    found = None
    while isinstance(plan, (*_ABOVE, Opaque, Aggregate)):
        found = plan if isinstance(plan, Opaque | Aggregate) else found
        (plan,) = children(plan)
    assert found is not None
    return found


def _used(plan: Plan) -> frozenset[int]:
    """Ids of the columns that a node evaluates."""
    windows = plan.apart.used if isinstance(plan, Opaque) and plan.apart is not None else frozenset[int]()
    return columns_of(*expressions(plan)) | windows


def _windows(plan: Plan) -> tuple[Plan, tuple[Column, ...]]:
    """The lowest of some window functions, and the columns of the PARTITION BY that all of them have."""
    lowest, keys, node = plan, dict[int, Column](), plan
    while isinstance(node, _ABOVE) or (isinstance(node, Opaque) and node.apart is not None):
        if isinstance(node, Opaque) and node.apart is not None:
            by = {column.id: column for column in node.apart.by}
            common = by if lowest is plan and not keys else {id: by[id] for id in by if id in keys}
            if not common:
                return plan, ()  # those above are of other partitions: they are over a table of these
            lowest, keys = node, common
        (node,) = children(node)
    return lowest, tuple(keys.values())


def _carrying(plan: Plan, node: Plan, leaf: Plan, keys: Sequence[Output]) -> Plan:
    """A part over another input, with the keys among its columns."""
    carried = tuple(Output.of(output.column) for output in keys)
    if isinstance(plan, Aggregate):
        return replace(plan, child=leaf, outputs=(*plan.outputs, *keys), ref=None)
    if plan is node:
        below: Plan = Project(leaf, (*map(Output.of, leaf.columns), *keys))
    else:
        (child,) = children(plan)
        below = _carrying(child, node, leaf, keys)
    if isinstance(plan, Project):
        return replace(plan, child=below, outputs=(*plan.outputs, *carried), ref=None)
    if isinstance(plan, Opaque):
        return replace(plan, inputs=(below,), columns=(*plan.columns, *(one.column for one in keys)))
    return with_children(plan, [below])


def relation_below(plan: Plan) -> Relation | None:
    """The table of which each row gives one row of a plan, or none."""
    while isinstance(plan, _ABOVE):
        (plan,) = children(plan)
    return plan if isinstance(plan, Relation) and plan.rows is not None else None
