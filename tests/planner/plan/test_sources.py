"""Which index serves a join, as the store itself will decide."""

from itertools import combinations
from pathlib import Path

import pyarrow as pa

from planner.plan.sources import index_within
from upsert.schema import TableSchema
from upsert.store import Table

COLUMNS = ("a", "b", "c", "d")


def test_index_is_the_one_that_the_store_takes(tmp_path: Path) -> None:
    """For every set of columns, over keys of one and more columns, none, and overlapping indexes."""
    plain = {name: pa.int64() for name in COLUMNS}
    schemas = [
        TableSchema.of(plain, ["a"]).index("b").index("b", "c"),
        TableSchema.of(plain, ["a", "b", "c"]).index("b").index("d", "a"),
        TableSchema.of(plain).index("d"),
        TableSchema.of(plain),
    ]
    for number, schema in enumerate(schemas):
        snapshot = Table.create(tmp_path / str(number), schema).snapshot()
        for length in range(1, len(COLUMNS) + 1):
            for columns in combinations(COLUMNS, length):
                assert index_within(schema, set(columns)) == snapshot.index_for(columns), (schema, columns)
