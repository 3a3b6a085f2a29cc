"""Replace a join of two streams that can be looked up by lookups (pure)."""

from __future__ import annotations

from typing import Final

from planner.conditions import Refused
from planner.lookup_join import faults_of_join, is_lookup_join, made_of
from planner.plan import Join, Plan
from planner.settings import Settings
from planner.trees import joins_changes

_NOT_DECLARED: Final = Refused(
    "consistency is 'latest', and managed tables may delete rows on both sides and change their join keys",
    "declare what they do not: deltajoin.with_lookup(catalog.read_changes(…).where(\"_row_kind <> '-U'\"), "
    "TableLookup.of(path, keys), keys=…, upsert_key=…, kinds=['+I', '+U'], immutable=…); or leave the "
    "consistency at 'snapshot', which is exact",
)


def replace_lookup_join(node: Plan, settings: Settings) -> Plan | tuple[Refused, ...] | None:
    """Replace a join of two streams that `deltajoin.with_lookup` has marked by lookups of what is newest.

    Only when FLIP-486's conditions hold, `deltajoin.latest.conditions`. The result replaces its own rows by
    key and has no `-U`. Projections and filters of the inputs are stacked on the join; a filter takes away,
    by a delete, what an update makes fail it. The input of an outer join whose rows may be missing has
    neither filters nor computed columns. Joins of managed tables are exact, unless the consistency is
    "latest": that is refused as long as nobody says what their changes may be.

        Join left outer ON (user#2 = user#5)      Project [columns of the join, KindIf(_row_kind#-6) AS …]
          Changelog lookups …               =>      Project [left_id#-1 AS id#1, …]
          Changelog lookups …                         Changelog a lookup join [left_id#-1: bigint, …]
    """
    if not isinstance(node, Join):
        return None
    if not is_lookup_join(node):
        return (_NOT_DECLARED,) if settings.consistency == "latest" and joins_changes(node) else None
    if settings.strategy == "none":
        why = "strategy is 'none', and Spark's own join would take each change for a row"
        return (Refused(why, "allow a delta join with strategy='auto'"),)
    return faults_of_join(node, settings) or made_of(node, settings)
