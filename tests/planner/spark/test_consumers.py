"""Under which name, and for how long, a delta join holds tables that were read with options of their own."""

import pyarrow as pa
import pytest

from planner.plan.sources import ManagedTable, consumer_of
from upsert.errors import ConfigurationError
from upsert.managed.options import DEFAULT_LEASE_MS
from upsert.schema import TableSchema

SCHEMA = TableSchema.of({"id": pa.int64()}, primary_key=["id"])


def table(name: str, consumer_id: str | None = None, lease_ms: int = DEFAULT_LEASE_MS) -> ManagedTable:
    return ManagedTable(name, f"/{name}", SCHEMA, consumer_id=consumer_id, lease_ms=lease_ms)


def test_the_name_of_one_table_is_that_of_the_join_and_the_longest_lease_its_lease() -> None:
    assert consumer_of([table("a"), table("b", "x", 1000), table("c", lease_ms=5)]) == ("x", DEFAULT_LEASE_MS)
    assert consumer_of([table("a", "x", 0), table("b", "x", 7)]) == ("x", 7)
    assert consumer_of([table("a", lease_ms=0), table("b", lease_ms=0)]) == (None, 0)


def test_two_names_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="one 'consumer-id', got 'x', 'y'; give all of them"):
        consumer_of([table("a", "y"), table("b", "x")])
