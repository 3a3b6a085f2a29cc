"""Plans that Arrow computes where that gives what Spark gives: few rows, a micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from planner.plan.in_arrow import Given, in_arrow
from planner.plan.nodes import Relation
from planner.plan.trees import walk
from planner.spark.catalyst import Catalyst, JavaObject
from planner.spark.few_rows import FewRows, OneTask
from planner.spark.read import OperatorReader
from planner.spark.template import Template
from upsert.spark.batches import arrow_schema
from upsert.spark.formats import active
from upsert.spark.java import class_name
from upsert.store.rows.computed import InArrow, NotInArrowError


class SmallPlan:
    """A plan over few rows, which are others each time.

    Attributes:
        why_spark: why Arrow does not compute it; "" if it does.
    """

    def __init__(
        self,
        catalyst: Catalyst,
        template: Template[Any],
        leaves: Sequence[tuple[JavaObject, StructType]],
        task: OneTask,
    ) -> None:
        """Of a template; each of its inputs with its columns."""
        self._catalyst = catalyst
        self._template = template
        self._leaves = leaves
        self._task = task
        self._lock = Lock()
        self._by_spark: FewRows | None = None
        self.in_arrow: InArrow | None = None
        self.why_spark = ""
        try:
            self.in_arrow = self._read()
        except NotInArrowError as cause:
            self.why_spark = str(cause)

    def computed(self, rows: Sequence[pa.Table]) -> pa.Table:
        """What it gives of some rows, for each input; see `FewRows`."""
        if self.in_arrow is not None:
            with suppress(NotInArrowError):  # Spark says what is wrong
                return self.in_arrow.rows(rows)
        return self._planned().computed(rows)

    def _planned(self) -> FewRows:
        """The plan as Spark computes it, made when it is wanted first."""
        with self._lock:
            if self._by_spark is None:
                self._by_spark = FewRows(self._catalyst, self._template, self._leaves, self._task)
            return self._by_spark

    def _read(self) -> InArrow:
        """The plan as Spark has optimized it, in Arrow.

        Spark has put a value in the place of what reads the clock or the session: no view has such a query.
        """
        catalyst, session = self._catalyst, self._task.session
        blanks = [catalyst.unknown_rows(leaf.output(), in_one_partition=True) for leaf, _ in self._leaves]
        numbers = {int(blank.rdd().id()): number for number, blank in enumerate(blanks)}
        with active(session):
            df = catalyst.dataframe(self._template.over(blanks), session)
            plan = catalyst.optimized(df)

        def given(leaf: JavaObject) -> Given | None:
            if class_name(leaf) != "LogicalRDD":
                return None
            number = numbers[int(leaf.rdd().id())]
            return Given(number, arrow_schema(self._leaves[number][1]))

        found = _in_arrow(df, plan, given)
        if found.observations:
            raise NotInArrowError("what is observed is told by Spark")
        return found


def rows_in_arrow(df: DataFrame, plan: JavaObject, source: StructType) -> InArrow | None:
    """What a plan makes of the rows of its one leaf; None if Spark has to compute it.

    Args:
        df: a micro-batch of a stream, which the plan was made for.
        plan: of projections and filters. Spark has put values in the place of what reads the clock.
        source: the columns of the leaf.
    """
    if len({*source.names}) < len(source.names):
        return None  # in Arrow they are known by their names
    given = Given(0, arrow_schema(source))
    with suppress(NotInArrowError):
        return _in_arrow(df, plan, lambda _: given)
    return None


def _in_arrow(df: DataFrame, plan: JavaObject, given: Callable[[JavaObject], Given | None]) -> InArrow:
    """A plan that Spark has optimized for a DataFrame, in Arrow; ``given`` says what a leaf of it reads."""
    reading = OperatorReader(Catalyst(df))  # what another one keeps of its plan is not kept
    read = reading.node(plan)
    refs = [leaf.ref for leaf in walk(read) if isinstance(leaf, Relation) and leaf.ref is not None]
    leaves = {ref: one for ref in refs if (one := given(reading.catalyst.kept(ref))) is not None}
    return in_arrow(read, leaves, reading, arrow_schema(df.schema))
