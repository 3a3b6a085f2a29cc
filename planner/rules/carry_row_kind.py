"""Carry the kind of each change to the top of the plan (pure)."""

from __future__ import annotations

from dataclasses import replace

from planner.changelogs import Changelog
from planner.expressions import Call, Column
from planner.group_keys import KIND_IF
from planner.nodes import Output, Plan, Project, Union
from planner.settings import Settings
from planner.trees import reads_changes, row_kind_of, with_children, with_row_kind_last
from upsert.rowkind import ROW_KIND_COLUMN


def carry_row_kind(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Make `_row_kind` of the input the last column of a Project over a changelog, and no other kind in it.

    Whether the query selects it (`SELECT *`), leaves it out or selects both kinds of a join is all the
    same: the kind belongs to the changelog. Works upwards, so that each Project finds it in its input.

        Project [a#1]                    Project [a#1, _row_kind#2]
          Changelog …              =>      Changelog …

    The inputs of a union all have it last, for they meet by position.
    """
    match node:
        case Union(inputs) if reads_changes(node):
            return _unless_same(node, with_children(node, [with_row_kind_last(part) for part in inputs]))
        case Project(child) if reads_changes(child) and (row_kind := row_kind_of(child)) is not None:
            if _carries(node, row_kind):
                return None
            own = [output for output in node.outputs if not output.column.is_row_kind]
            return replace(node, outputs=(*own, Output.of(row_kind)), ref=None)
        case Changelog():
            return _unless_same(node, with_row_kind_last(node))
    return None


def _unless_same(node: Plan, changed: Plan) -> Plan | None:
    return None if changed is node else changed


def _carries(node: Project, row_kind: Column) -> bool:
    """Whether the kind is the last column already, and the only one; it may have a new id, or be computed."""
    kinds = [output for output in node.outputs if output.column.is_row_kind]
    if kinds != [node.outputs[-1]] or kinds[0].column.name != ROW_KIND_COLUMN:
        return False
    match kinds[0].value:
        case Call(name, (kind, *_)) if name == KIND_IF:
            return kind == row_kind
        case kind:
            return kind == row_kind
