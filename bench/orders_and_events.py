"""Rows of two tables that benchmarks join: *orders*, and *events* of orders, which grow step by step.

An event belongs to an order chosen from all that have come so far, so that lookups go far back, every step
emits one pair per event, and only the history grows. Ids are scattered over 63 bits, so that no order of
arrival helps any system.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.session import CORES
from deltajoin import DeltaJoinSpec, Side
from upsert.schema import TableSchema
from upsert.store.table import Table

STATUSES: Final = np.array(["new", "paid", "sent"])
ORDERS: Final = pa.schema({"order_id": pa.int64(), "customer": pa.int64(), "amount": pa.float64()})
EVENTS: Final = pa.schema({"event_id": pa.int64(), "order_id": pa.int64(), "status": pa.string()})


def scattered(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Numbers as ids without order: a bijection of 64 bits, of which the sign is cut off."""
    return (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(1)).astype(np.int64)


def step_rows(before: int, rows: int) -> tuple[pa.Table, pa.Table]:
    """Orders and events of the step that follows ``before`` rows a side."""
    random = np.random.default_rng(before)
    numbers = np.arange(before, before + rows)
    orders = [scattered(numbers), random.integers(0, 100_000, rows), random.random(rows)]
    of = scattered(random.integers(0, before + rows, rows))
    events = [scattered(numbers), of, STATUSES[random.integers(0, len(STATUSES), rows)]]
    return (
        pa.table([pa.array(column) for column in orders], schema=ORDERS),
        pa.table([pa.array(column) for column in events], schema=EVENTS),
    )


def write_tables(folder: Path, orders: pa.Table, events: pa.Table) -> None:
    """One commit to each of two managed tables."""
    bucket = {"bucket": str(CORES)}
    of_orders = TableSchema.of(ORDERS, primary_key=["order_id"])
    of_events = TableSchema.of(EVENTS, primary_key=["event_id"]).index("order_id")
    Table.create(folder / "orders", of_orders, bucket, if_not_exists=True).write(orders)
    Table.create(folder / "events", of_events, bucket, if_not_exists=True).write(events)


def pairs_table(folder: Path, name: str = "pairs") -> Table:
    """A table for the rows of the join, made if it is missing."""
    tables = [Table.open(folder / one).schema.arrow for one in ("orders", "events")]
    columns = {f"t{i}_{field.name}": field.type for i, table in enumerate(tables) for field in table}
    schema = TableSchema.of(columns, primary_key=["t0_order_id", "t1_event_id"])
    return Table.create(folder / name, schema, {"bucket": str(CORES)}, if_not_exists=True)


def spec_of(folder: Path, max_rows: int = 1_000_000) -> DeltaJoinSpec:
    """Our join of the two tables."""
    orders = Side(str(folder / "orders"), tuple(ORDERS.names), ("order_id",))
    events = Side(str(folder / "events"), tuple(EVENTS.names), ("order_id",))
    return DeltaJoinSpec.of("inner", orders, events, shards=CORES, max_rows_per_trigger=max_rows)
