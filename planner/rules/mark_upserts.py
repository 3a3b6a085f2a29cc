"""Say at the top of a query by which columns its rows replace each other (pure)."""

from __future__ import annotations

from dataclasses import replace

from planner.expressions import Call, Column
from planner.group_keys import KIND_IF, group_keys
from planner.nodes import Output, Plan, Project
from planner.settings import Settings
from planner.trees import fresh_ids
from upsert.rowkind import ROW_KIND_COLUMN


def mark_upserts(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Mark the kind of a projection on top of upserts anew: it may have renamed the columns of their key.

    The mark on the kind names these columns, for `write_changes`. It was made further down, and knows the
    names there.

        Project [id#1 AS order_id#5, _row_kind#2]      Project [id#1 AS order_id#5, KindIf(_row_kind#2) AS …]
          Changelog a lookup join by (id) …        =>    Changelog a lookup join by (id) …
    """
    if not isinstance(node, Project) or not group_keys(node):
        return None
    kind = next((output for output in reversed(node.outputs) if output.column.is_row_kind), None)
    if kind is None or (isinstance(kind.value, Call) and kind.value.name == KIND_IF):
        return None
    marked = Output(Column(next(fresh_ids(node)), ROW_KIND_COLUMN, "string"), Call(KIND_IF, (kind.value,)))
    return replace(node, outputs=tuple(marked if one is kind else one for one in node.outputs), ref=None)
