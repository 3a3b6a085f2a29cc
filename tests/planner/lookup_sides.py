"""Streams with lookups that plans in tests may read, known to this process."""

import pyarrow as pa

from deltajoin.latest.api import mark_of
from deltajoin.latest.spec import ALL_BUT_BEFORE, UPSERTS, LatestJoin, LookupSide
from deltajoin.lookup import MemoryLookup
from planner.plan.nodes import Changelog, LookupJoined, LookupStream, Plan
from upsert.stream_keys import UpsertKey

_LONG, _TEXT = pa.int64(), pa.string()
_ORDERS = pa.schema({"order_id": _LONG, "product_id": _LONG, "amount": pa.float64(), "note": _TEXT})
_ITEMS = pa.schema({"id": _LONG, "name": _TEXT, "price": pa.float64()})

_SIDES = {
    "orders": LookupSide(
        _ORDERS,
        MemoryLookup(_ORDERS.empty_table(), ["product_id"]),
        ("order_id",),
        ALL_BUT_BEFORE,
        immutable=("product_id",),
    ),
    "items": LookupSide(_ITEMS, MemoryLookup(_ITEMS.empty_table(), ["id"]), ("id",), UPSERTS),
}

LOOKUP_STREAMS = {
    name: LookupStream(
        UpsertKey(
            tuple((column,) for column in side.upsert_key), of="a stream with MemoryLookup", is_append=True
        ),
        mark_of(side),
    )
    for name, side in _SIDES.items()
} | {"lost": LookupStream(UpsertKey(()), "of another process")}
"""Origins by name; `orders` deletes, `items` only updates, `lost` was marked by another process."""


def lookup_joined(orders: Plan, items: Plan, kind: str) -> LookupJoined:
    """The join of both by product."""
    assert isinstance(orders, Changelog)
    assert isinstance(items, Changelog)
    join = LatestJoin(_SIDES["orders"], _SIDES["items"], (("product_id", "id"),), kind)
    key = UpsertKey(tuple((name,) for name in join.output_key), of="a lookup join", is_append=True)
    return LookupJoined(key, orders, items, join)
