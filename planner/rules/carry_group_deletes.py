"""Make projections and filters above an aggregate say which groups are gone (pure)."""

from __future__ import annotations

from dataclasses import replace

from planner.expressions import Aggregation, Call, Column, Literal, conjunction, conjuncts
from planner.group_keys import KIND_IF, UNLESS_GONE, GroupKey, group_keys, uses_keys_only
from planner.nodes import Filter, Output, Plan, Project
from planner.rules.carry_row_kind import carry_row_kind
from planner.settings import Settings
from planner.trees import fresh_ids, row_kind_of
from upsert.rowkind import ROW_KIND_COLUMN


def carry_group_deletes(node: Plan, settings: Settings) -> Plan | None:
    """Turn a filter above upserts of groups into their kind, and compute nothing for groups that are gone.

    A group that fails a HAVING must leave the sink, where it may be since an earlier batch: its row is a
    delete. What the filter says of the key alone stays a filter. In a delete only the key has a value, and an
    expression over the rest could fail:

        Filter (n#3 > 2)                  Project [a#1, n#3, KindIf(_row_kind#-4, (n#3 > 2)) AS _row_kind#-5]
          SignedAggregate …          =>     SignedAggregate …
    """
    if not isinstance(node, Project | Filter):
        return None
    keys, kind = group_keys(node.child), row_kind_of(node.child)
    if keys is None:
        return None
    if kind is None:
        raise AssertionError(f"every node above an aggregate carries the kind by now, got {node.child}")
    new_kind = Column(next(fresh_ids(node)), ROW_KIND_COLUMN, "string")
    if isinstance(node, Filter):
        return _having(node, kind, new_kind, keys)
    if any(isinstance(o.value, Call) and o.value.name == KIND_IF for o in node.outputs):
        return None
    guarded = tuple(_guarded(output, kind, keys) for output in node.outputs if not output.column.is_row_kind)
    if set(map(id, guarded)) <= set(map(id, node.outputs)):
        return carry_row_kind(node, settings)
    return replace(node, outputs=(*guarded, Output(new_kind, Call(KIND_IF, (kind,)))), ref=None)


def _having(node: Filter, kind: Column, new_kind: Column, keys: tuple[GroupKey, ...]) -> Plan | None:
    """What a condition says of the key holds for a group for ever: only the rest can take it away."""
    parts = conjuncts(node.condition)
    of_keys = conjunction([part for part in parts if uses_keys_only(part, keys)])
    rest = conjunction([part for part in parts if not uses_keys_only(part, keys)])
    if rest is None:
        return None
    below = node.child if of_keys is None else Filter(node.child, of_keys)
    passed = tuple(Output.of(column) for column in node.columns if not column.is_row_kind)
    return Project(below, (*passed, Output(new_kind, Call(KIND_IF, (kind, rest)))))


def _guarded(output: Output, kind: Column, keys: tuple[GroupKey, ...]) -> Output:
    if isinstance(output.value, Column | Literal | Aggregation) or uses_keys_only(output.value, keys):
        return output
    return Output(output.column, Call(UNLESS_GONE, (kind, output.value)))
