"""The state that Spark would keep for a query as it is."""

from pyspark.sql import DataFrame

from planner.spark.state import Shapes, StatePlans


def state_shapes(df: DataFrame) -> set[Shapes]:
    """Of micro-batches with some sources silent."""
    plans = StatePlans(df)
    plan = plans.analyzed(df)
    return plans.shapes(plan, plans.silences(plan))
