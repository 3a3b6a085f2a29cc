"""Figures of what the driver begins and leaves to tasks."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.accumulators import _accumulatorRegistry

from upsert.managed.micro_batch import WriteStep
from upsert.managed.task_counts import add
from upsert.spark import task
from upsert.store.read.steps import StepSize

COUNTER = 1 << 40
"""The number of no other accumulator."""


class Reader:
    """Gives ten rows in each of two parts, and counts each part."""

    readable_bytes = 1 << 30

    def size(self, *_: object) -> StepSize:
        return StepSize(2, 20)

    def partitions(self, *_: object) -> list[int]:
        return [0, 1]

    def read(self, part: int) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": range(10)})
        add(COUNTER, {"t0_keys": 1 + part})


@pytest.mark.parametrize(
    ("few", "rows", "figures"), [(20, 20, {("q", 7): (-1, {"t0_keys": 3})}), (15, None, None)]
)
def test_what_the_driver_gives_up_is_counted_by_tasks_alone(
    monkeypatch: pytest.MonkeyPatch, few: int, rows: int | None, figures: Any
) -> None:
    """The first part has been read, and counted, when the second one shows that the rows are not few."""
    monkeypatch.setattr(task, "micro_batch_here", lambda: ("q", 7))
    parts: dict[str, Any] = dict.fromkeys(WriteStep.__dataclass_fields__)
    step = WriteStep(**parts | {"reader": Reader()})
    batch: Any = SimpleNamespace(start={}, end={})
    found = step._read(batch, few)
    sums = _accumulatorRegistry.pop(COUNTER, None)
    assert (None if found is None else found.num_rows) == rows
    assert (None if sums is None else sums._value) == figures
