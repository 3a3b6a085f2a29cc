"""A table that CREATE TABLE AS SELECT fills without Spark, and what a warehouse has of it."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from upsert import Catalog
from upsert.schema import TableSchema
from upsert.store import Table

SCHEMA = TableSchema.of({"id": pa.int64(), "life": pa.int64()}, primary_key=["id"])
ROWS = 40


@dataclass(frozen=True)
class Filled:
    """A managed table; ``life`` is in all of its rows."""

    life: int
    name: str = "t"
    schema: TableSchema = field(default=SCHEMA)

    def create(self, folder: str) -> None:
        Table.create(folder, SCHEMA, {"bucket": "2"})

    def schema_in(self, folder: str) -> TableSchema:
        return Table.open(folder).schema

    def make_outside(self, folder: str) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def fill(self, folder: str, rows: Any) -> None:  # noqa: ARG002
        Table.open(folder).write(pa.table({"id": range(ROWS), "life": [self.life] * ROWS}))

    def write(self, folder: str, changes: Any) -> Any:
        raise NotImplementedError


def lives_in(warehouse: str) -> set[int]:
    """Which lives the rows of the table are from; empty if there is no table, one if it is whole."""
    catalog = Catalog(warehouse)
    if not catalog.tables():
        return set()
    found = catalog.table("t").snapshot().scan()
    assert found.num_rows == ROWS
    return set(found.column("life").to_pylist())
