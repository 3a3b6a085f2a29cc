"""What Arrow computes of a micro-batch of a stream: the plan that Spark has optimized for it, read."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from planner.plan.in_arrow import Given, in_arrow
from planner.plan.nodes import Relation
from planner.plan.trees import walk
from planner.spark.catalyst import Catalyst, JavaObject
from planner.spark.read import OperatorReader
from upsert.spark.batches import arrow_schema
from upsert.store.rows.computed import InArrow, NotInArrowError


def rows_in_arrow(df: DataFrame, plan: JavaObject, source: StructType) -> InArrow | None:
    """What a plan makes of the rows of its one leaf; None if Spark has to compute it.

    Args:
        df: what the plan was made for.
        plan: of projections and filters. Spark has put values in the place of what reads the clock.
        source: the columns of the leaf.
    """
    if len({*source.names}) < len(source.names):
        return None  # in Arrow they are known by their names
    reading = OperatorReader(Catalyst(df))
    read = reading.node(plan)
    (leaf,) = (node for node in walk(read) if isinstance(node, Relation))
    assert leaf.ref is not None  # it was read
    given = {leaf.ref: Given(0, arrow_schema(source))}
    try:
        return in_arrow(read, given, reading, arrow_schema(df.schema))
    except NotInArrowError:
        return None
