"""Figures that tasks of a source in Python leave, added up in the driver by an accumulator of Spark.

Spark takes no metrics from such a source, but its processes send what they add to accumulators, as those of
any task do, once for each task that succeeds. One accumulator serves all queries of a driver: tasks add their
figures under the query and the number of the micro-batch, which the query's progress has too, and Spark's
number of the execution. A query that starts again after a failure executes its micro-batch again, under a
higher number, and only the newest execution counts. What tasks do again within one, they count again. Over
Spark Connect there is no accumulator.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from upsert.spark.connect import is_connect

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

KEPT: Final = 1_000
"""Micro-batches of all queries whose figures a driver remembers: Spark remembers 100 of each query."""


class _Executed(NamedTuple):
    """The figures of one execution of a micro-batch; ``execution`` is -1 where Spark does not number it."""

    execution: int
    figures: dict[str, int]


_Figures = dict[tuple[str, int], _Executed]
"""By query and number of the micro-batch."""

_LOCK: Final = threading.Lock()


class _Sums:
    """Spark's `AccumulatorParam` of figures by micro-batch and name; the oldest batches are forgotten."""

    def zero(self, value: _Figures) -> _Figures:  # noqa: ARG002
        return {}

    def addInPlace(self, value1: _Figures, value2: _Figures) -> _Figures:  # noqa: N802
        with _LOCK:
            for batch, added in value2.items():
                known = value1.get(batch)
                if known is None or known.execution < added.execution:
                    value1[batch] = known = _Executed(added.execution, {})
                if known.execution == added.execution:
                    for name, count in added.figures.items():
                        known.figures[name] = known.figures.get(name, 0) + count
            while len(value1) > KEPT:
                del value1[next(iter(value1))]
        return value1


_Added = tuple[int, dict[str, int]]

_SUMS: Final[Any] = _Sums()
_WAITING: Final[ContextVar[list[_Added] | None]] = ContextVar("figures that do not count yet", default=None)
_own: tuple[SparkContext, Accumulator[_Figures]] | None = None


def counter_of(spark: SparkSession) -> int | None:
    """The number by which tasks add to the accumulator of this driver; None where there is none."""
    global _own
    if is_connect(spark):
        return None
    with _LOCK:
        if _own is None or _own[0] is not spark.sparkContext:
            _own = spark.sparkContext, spark.sparkContext.accumulator({}, _SUMS)
        return _own[1].aid


def add(counter: int | None, figures: Mapping[str, int]) -> None:
    """Add the figures of a task, or of the driver where it does what tasks do, to those of its micro-batch.

    What belongs to no micro-batch does not count.
    """
    if counter is None or not (counted := {name: count for name, count in figures.items() if count}):
        return
    if (waiting := _WAITING.get()) is not None:
        waiting.append((counter, counted))
        return
    # here: a process that only reads records needs no Spark
    from pyspark.accumulators import _deserialize_accumulator

    from upsert.spark.task import execution_here, micro_batch_here

    if (found := micro_batch_here()) is not None:
        execution = execution_here()
        executed = _Executed(-1 if execution is None else execution, counted)
        _deserialize_accumulator(counter, {}, _SUMS).add({found: executed})


@contextmanager
def counted_at_end() -> Iterator[list[_Added]]:
    """What is added in the block counts when it ends, unless it fails or the list is cleared.

    For a driver that may give up what it does, and leave all of it to tasks.
    """
    waiting: list[_Added] = []
    token = _WAITING.set(waiting)
    try:
        yield waiting
    finally:
        _WAITING.reset(token)
    for one in waiting:
        add(*one)


def figures_of(progress: Mapping[str, Any]) -> dict[str, int]:
    """The figures of the micro-batch that an event of Spark's progress, in its JSON form, tells of."""
    sources = progress.get("sources") or ()
    if _own is None or all(one.get("startOffset") == one.get("endOffset") for one in sources):
        return {}  # an idle query tells the number of the micro-batch that comes next
    with _LOCK:
        found = _own[1].value.get((str(progress.get("id")), int(progress.get("batchId", -1))))
        return {} if found is None else dict(found.figures)
