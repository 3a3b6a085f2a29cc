"""Lookups in memory pass the contract, and fail as they are told to."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from deltajoin.lookup import LookupSource, MemoryLookup, RequestLimits
from deltajoin.lookup.contract import LookupContract
from upsert.errors import ConfigurationError, SchemaError

PEOPLE = pa.table({"id": [1, 2], "name": ["ann", "bob"]})


class TestMemoryLookup(LookupContract):
    def make(self, rows: pa.Table, keys: Sequence[str]) -> LookupSource:
        return MemoryLookup(rows, keys)

    def make_silent(self, rows: pa.Table, keys: Sequence[str]) -> LookupSource:
        return MemoryLookup(rows, keys, unavailable_requests=9, limits=RequestLimits(attempts=1))


@pytest.mark.parametrize("keys", [[], ["id", "id"], "id"])
def test_keys_must_be_distinct_names(keys: Sequence[str]) -> None:
    with pytest.raises(ConfigurationError, match="keys must be one or more distinct column names"):
        MemoryLookup(PEOPLE, keys)


def test_keys_must_be_scalar_columns_of_the_rows() -> None:
    with pytest.raises(SchemaError, match="key 'nme' must be one of its columns, which are id, name"):
        MemoryLookup(PEOPLE, ["nme"])
    with pytest.raises(SchemaError, match=r"key 'id' must have a scalar type, got ARRAY<BIGINT>"):
        MemoryLookup(pa.table({"id": pa.array([[1]], pa.list_(pa.field("element", pa.int64())))}), ["id"])


def test_columns_must_have_types_of_spark() -> None:
    with pytest.raises(SchemaError, match=r"column 'name' must have an Arrow type .* declare string"):
        MemoryLookup(pa.table({"id": [1], "name": pa.array(["ann"], pa.large_string())}), ["id"])
