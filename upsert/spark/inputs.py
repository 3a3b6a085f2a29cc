"""What a batch reads, as its plan says before it runs: how much that is, and whether the time counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from upsert.spark.formats import FORMAT
from upsert.spark.java import items_of, java_of
from upsert.spark.reads import is_read, read_of
from upsert.store.read.steps import StepSize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_UNKNOWN: Final = 1 << 62
"""Spark takes what it does not know for as large as can be."""

_WORD: Final = 8
"""Bytes of a row in Spark's estimates, beside its values."""


def input_size(df: DataFrame, stored: Callable[[Mapping[str, str]], StepSize]) -> StepSize | None:
    """About how many rows, and bytes of them, all that a batch reads has; None if it is not known of a part.

    Args:
        df: a DataFrame of a classic session.
        stored: tells it of a read of a managed table, by its options.
    """
    plan = df._jdf.queryExecution().optimizedPlan()
    rows = size = 0
    for one in (plan, *items_of(plan.subqueriesAll())):
        for found in _inputs(df.sparkSession, one, stored):
            if found is None:
                return None
            rows, size = rows + found.rows, size + found.bytes
    return StepSize(rows, size)


def _inputs(
    spark: SparkSession, node: Any, stored: Callable[[Mapping[str, str]], StepSize]
) -> Iterator[StepSize | None]:
    if is_read(node):
        format_, options = read_of(spark, node)
        yield stored(options) if format_ == FORMAT else None
        return
    children = items_of(node.children())
    for child in children:
        yield from _inputs(spark, child, stored)
    if not children:
        yield _of_leaf(node)


def _of_leaf(node: Any) -> StepSize | None:
    size = int(str(node.stats().sizeInBytes()))
    if size >= _UNKNOWN:
        return None
    columns = items_of(node.output())
    each = _WORD + sum(int(one.dataType().defaultSize()) for one in columns)
    return StepSize(max(1, size // each), size)


def is_filled_in(df: DataFrame) -> bool:
    """Whether Spark puts something into a plan whenever it runs: the time, the user or the like."""
    patterns = java_of(df.sparkSession).org.apache.spark.sql.catalyst.trees
    filled_in = getattr(getattr(patterns, "TreePattern$"), "MODULE$").CURRENT_LIKE()
    return bool(df._jdf.queryExecution().analyzed().containsPattern(filled_in))
