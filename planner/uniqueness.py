"""Which columns tell every row of a plan from every other, as far as declared keys say so (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Set

from planner.chain import without_widening
from planner.changelogs import Changelog, Normalized
from planner.expressions import Column
from planner.plan import Distinct, Filter, Join, Plan, Project, RegularJoin, Watermark, Wrapper
from planner.sources import KafkaTopic, ManagedTable, Mode


def is_unique_by(plan: Plan, columns: Iterable[Column]) -> bool:
    """Whether no two rows of the plan can be equal in these columns at any time.

    Known of tables, topics and normalized streams with a key, through projections, filters and joins: a pair
    of rows is told apart by what tells both apart, padded with NULL or not.

    >>> from planner.expressions import Column
    >>> orders = Changelog("orders", (Column(1, "id", "bigint"),), Normalized(("id",), None))
    >>> is_unique_by(orders, orders.columns), is_unique_by(orders, [])
    (True, False)
    """
    return _is_unique(plan, frozenset(column.id for column in columns))


def _is_unique(plan: Plan, ids: Set[int]) -> bool:
    match plan:
        case Project(child, outputs):
            values = (without_widening(output.value) for output in outputs if output.column.id in ids)
            return _is_unique(child, {value.id for value in values if isinstance(value, Column)})
        case Filter() | Watermark() | Wrapper():
            return _is_unique(plan.child, ids)
        case Distinct(child, keys):
            own = {key.id for key in keys if not key.is_row_kind}
            return own <= ids or _is_unique(child, ids)
        case RegularJoin(left, right):
            return _is_unique(left, ids) and _is_unique(right, ids)
        case Join(left, right, kind):
            of_right = kind in ("left semi", "left anti") or _is_unique(right, ids)
            return of_right and _is_unique(left, ids)
        case Changelog():
            key = _key_of(plan)
            return bool(key) and set(key) <= {column.name for column in plan.columns if column.id in ids}
        case _:
            return False


def _key_of(leaf: Changelog) -> tuple[str, ...]:
    match leaf.origin:
        case ManagedTable(schema=schema):
            return schema.primary_key
        case KafkaTopic(schema=schema, mode=Mode.ALL | Mode.CDC_NORMALIZED):
            return schema.primary_key
        case Normalized(key):
            return key
        case _:
            return ()
