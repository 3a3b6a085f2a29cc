"""Replace a join of two streams that can be looked up by lookups (pure)."""

from __future__ import annotations

from typing import Final

from planner.chain import chain_of, trace
from planner.changelogs import Changelog
from planner.conditions import Refused
from planner.keys import equalities
from planner.lookup_join import faults_of_join, is_lookup_join, made_of
from planner.nodes import Join, Plan
from planner.settings import Settings
from planner.sources import ManagedTable
from planner.trees import joins_changes

_NOT_DECLARED: Final = (
    "consistency is 'latest', and managed tables may delete rows on both sides and change their join keys"
)
_SIDE: Final = (
    "deltajoin.with_lookup({changes}, TableLookup.of({path!r}, {keys!r}), keys={keys!r}, upsert_key={key!r}, "
    "kinds=['+I', '+U'], immutable={immutable!r})"
)
"""A side of which is said that its rows are never deleted and keep their join keys."""
_EXACT: Final = "or leave the consistency at 'snapshot', which is exact"


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
        return (_not_declared(node),) if settings.consistency == "latest" and joins_changes(node) else None
    if settings.strategy == "none":
        why = "strategy is 'none', and Spark's own join would take each change for a row"
        return (Refused(why, "allow a delta join with strategy='auto'"),)
    return faults_of_join(node, settings) or made_of(node, settings)


def _not_declared(join: Join) -> Refused:
    """That nobody has said what the sides never do, and how to say it of two managed tables."""
    pairs = [(trace(one, join.left), trace(other, join.right)) for _, one, other in equalities(join)]
    sides = []
    for number, plan in enumerate((join.left, join.right)):
        leaf = chain_of(plan).leaf
        keys = [pair[number] for pair in pairs if pair[0] is not None and pair[1] is not None]
        names = [column.name for column in keys if column is not None]
        if not isinstance(leaf, Changelog) or not isinstance(leaf.origin, ManagedTable) or not names:
            break
        table = leaf.origin
        key = table.schema.primary_key
        if not key:
            break
        sides.append(
            _SIDE.format(
                changes=f"catalog.read_changes(spark, {table.name!r})",
                path=table.path,
                keys=names,
                key=list(key),
                immutable=[name for name in names if name not in key],
            )
        )
    if len(sides) < 2:
        remedy = "join managed tables with a PRIMARY KEY on equal columns, each in deltajoin.with_lookup(…)"
        return Refused(_NOT_DECLARED, f"{remedy}; {_EXACT}")
    return Refused(_NOT_DECLARED, f"if they do not, join {' and '.join(sides)}; {_EXACT}")
