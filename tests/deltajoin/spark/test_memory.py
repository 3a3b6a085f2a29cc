"""A backlog of millions of rows is worked off within the memory that the option says, step by step."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers import run_spark_script
from upsert.schema import TableSchema
from upsert.store.table import Table

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="peaks of processes are read from /proc"),
]

SCRIPT = Path(__file__).parent / "memory_script.py"
LIBRARIES = 150 << 20
"""What a worker takes that has loaded pyarrow, numpy and pyspark, and nothing else."""


def tables(folder: Path, orders: int, products: int, commits: int) -> tuple[Table, Table]:
    """Small rows, in commits of which each is much for the limit of the test; no row is ever changed."""
    left = Table.create(
        folder / "orders",
        TableSchema.of(
            {"id": pa.int64(), "product": pa.int64(), "note": pa.string()}, primary_key=["id"]
        ).index("product"),
        {"bucket": "4", "write-only": "true"},
    )
    right = Table.create(
        folder / "products",
        TableSchema.of({"code": pa.int64(), "name": pa.string()}, primary_key=["code"]),
        {"bucket": "4", "write-only": "true"},
    )
    random = np.random.default_rng(7)
    for part in range(commits):
        ids = np.arange(part, orders, commits)
        notes = pa.array(ids).cast(pa.string())
        left.write(pa.table({"id": ids, "product": random.integers(0, products, len(ids)), "note": notes}))
        codes = np.arange(part, products, commits)
        right.write(pa.table({"code": codes, "name": pa.array(codes).cast(pa.string())}))
    return left, right


def joined(left: Table, right: Table, checkpoint: Path, memory: str) -> dict[str, Any]:
    output = run_spark_script(SCRIPT, left.path, right.path, checkpoint, memory, forked=False)
    return json.loads(output.splitlines()[-1])


def test_a_backlog_takes_the_memory_of_the_option_and_a_replay_reads_the_same(tmp_path: Path) -> None:
    left, right = tables(tmp_path, orders=2_000_000, products=300_000, commits=3)
    found = joined(left, right, tmp_path / "checkpoint", "256 mb")
    assert found["peak"] < (256 << 20) + LIBRARIES
    assert len(found["batches"]) > 3
    assert [sum(column) for column in zip(*found["batches"].values(), strict=True)] == found["truth"]
    assert found["truth"][0] == 2_000_000
    # the last micro-batch is done again under another bound: what it reads is said by its offsets
    last = max(map(int, found["batches"]))
    for name in (str(last), f".{last}.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    again = joined(left, right, tmp_path / "checkpoint", "4 gb")
    assert again["batches"] == {str(last): found["batches"][str(last)]}
