"""Refuse METADATA columns of tables that a delta join looks up (pure)."""

from __future__ import annotations

from planner.conditions import Refused
from planner.delta_join import DeltaJoin
from planner.nodes import Plan
from planner.settings import Settings


def refuse_metadata_in_join(node: Plan, settings: Settings) -> Refused | None:  # noqa: ARG001
    """Refuse a delta join that would have to put out METADATA of a table, which no lookup gives.

    Those that the query does not use are gone by now: `prune_columns` has to come before this.

        DeltaJoin _row_kind#5
          inner(t0, t1: t0.k = t1.k)
          t0 readings [id#1, version#2]          version is no column of the table
    """
    if not isinstance(node, DeltaJoin):
        return None
    for one in node.tables:
        for column in one.columns:
            if column.name not in one.table.schema.names:
                return Refused(
                    f"a delta join puts out {column.name!r}, which the option 'metadata.columns' adds to "
                    f"table {one.table.name!r}, and a row that is looked up has none",
                    f"leave {column.name!r} out of the query, or write it into a managed table as a column",
                )
    return None
