"""Carry the kind of each change to the top of the plan (pure)."""

from __future__ import annotations

from dataclasses import replace

from planner.expressions import Column
from planner.plan import Changelog, Output, Plan, Project
from planner.settings import Settings
from planner.trees import reads_changes, row_kind_of
from upsert.rowkind import ROW_KIND_COLUMN


def carry_row_kind(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Make `_row_kind` of the input the last column of a Project over a changelog, and no other kind in it.

    Whether the query selects it (`SELECT *`), leaves it out or selects both kinds of a join is all the
    same: the kind belongs to the changelog. Works upwards, so that each Project finds it in its input.

        Project [a#1]                    Project [a#1, _row_kind#2]
          Changelog …              =>      Changelog …
    """
    match node:
        case Project(child) if reads_changes(child) and (row_kind := row_kind_of(child)) is not None:
            if _carries(node, row_kind):
                return None
            own = [output for output in node.outputs if not output.column.is_row_kind]
            return replace(node, outputs=(*own, Output.of(row_kind)), ref=None)
        case Changelog() if (row_kind := row_kind_of(node)) is not None and row_kind != node.columns[-1]:
            own_columns = [column for column in node.columns if column != row_kind]
            return Project(node, tuple(Output.of(column) for column in (*own_columns, row_kind)))
    return None


def _carries(node: Project, row_kind: Column) -> bool:
    """Whether the kind is the last column already, and the only one; it may have got a new id."""
    kinds = [output for output in node.outputs if output.column.is_row_kind]
    return (
        kinds == [node.outputs[-1]] and kinds[0].value == row_kind and kinds[0].column.name == ROW_KIND_COLUMN
    )
