"""Batch reads that leave out rows by the filters of their DataFrame: docs/decisions/0113.

Spark passes no filter to what Python reads for it. So a DataFrame of such a read sees to it itself: what
`where` returns reads again, with the comparisons of its condition, and the condition stays above them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import DataFrame as AnyDataFrame
from pyspark.sql.classic.dataframe import DataFrame

from upsert.spark.java import class_name, frame_of, items_of, seq_of, under_ids
from upsert.spark.literals import python_value
from upsert.spark.reads import is_filled_in, is_read

Comparison = tuple[str, str, Any]
"""A column, an operator and a value, as the store's ``where`` has them."""

_OPERATORS: Final = {
    "EqualTo": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_MIRRORED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_FLOATS: Final = ("float", "double")

_CLOCK: Final = re.compile(r"\b(now|today|tomorrow|yesterday)|\btime '", re.IGNORECASE)

_PASSED: Final = ("Filter", "Project", "SubqueryAlias")
"""Nodes between a read and what is called on its DataFrame."""


class FilteredRead(DataFrame):
    """The rows of a read as a DataFrame, of which `where` reads only those that its comparisons let pass.

    It is as any other DataFrame, and so is what its methods give; those of columns keep what `where` does.
    """

    def __init__(
        self,
        df: AnyDataFrame,
        columns: Collection[str],
        again: Callable[[Sequence[Comparison]], AnyDataFrame | None],
    ) -> None:
        """Of a read.

        Args:
            df: its DataFrame.
            columns: the columns of it that can be compared where it is read.
            again: makes the same read of the rows of which some comparisons are true; None if it no longer
                can, for the table has other columns by now.
        """
        super().__init__(df._jdf, df.sparkSession)
        self._compared = columns
        self._again = again

    def filter(self, condition: Column | str) -> AnyDataFrame:
        """As `DataFrame.filter`."""
        filtered = super().filter(condition)
        found = list(comparisons(filtered, self._compared))
        if not found or (read := self._again(found)) is None:
            return self._kept(filtered)
        plan = _over(filtered._jdf.queryExecution().analyzed(), read)
        return self._kept(frame_of(self.sparkSession, plan))

    def where(self, condition: Column | str) -> AnyDataFrame:
        """As `DataFrame.where`."""
        return self.filter(condition)

    def select(self, *cols: Any) -> AnyDataFrame:
        """As `DataFrame.select`."""
        return self._kept(super().select(*cols))

    def selectExpr(self, *expr: Any) -> AnyDataFrame:  # noqa: N802 (PySpark's name)
        """As `DataFrame.selectExpr`."""
        return self._kept(super().selectExpr(*expr))

    def withColumn(self, colName: str, col: Column) -> AnyDataFrame:  # noqa: N802, N803 (PySpark's)
        """As `DataFrame.withColumn`."""
        return self._kept(super().withColumn(colName, col))

    def alias(self, alias: str) -> AnyDataFrame:
        """As `DataFrame.alias`."""
        return self._kept(super().alias(alias))

    def _kept(self, df: AnyDataFrame) -> AnyDataFrame:
        return FilteredRead(df, self._compared, self._again)


def comparisons(df: AnyDataFrame, columns: Collection[str]) -> Iterator[Comparison]:
    """Those between a column of a read and a constant that are true of all rows that a DataFrame has of it.

    They are taken from what Spark's optimizer makes of the plan, in which casts and constants are computed.
    Passed over is what the store judges otherwise than Spark, for which NaN is above all numbers, and each
    plan whose constants are others when it runs again, or to which it matters what other rows there are.
    """
    query = df._jdf.queryExecution()
    read, given = _down_to_read(query.analyzed())
    if read is None or not _is_always_the_same(df, given):
        return
    read, conditions = _down_to_read(query.optimizedPlan())
    if read is None or not conditions:
        return
    names = {int(one.exprId().id()): str(one.name()) for one in items_of(read.output())}
    known = {id: name for id, name in names.items() if name in columns}
    # the columns of the lowest are the read's own
    found = list(_conjuncts(conditions[-1], known))
    others = {name for name, operator, _ in found if operator != "is not null"}
    yield from (one for one in found if one[1] != "is not null" or one[0] not in others)


def _down_to_read(node: Any) -> tuple[Any | None, list[Any]]:
    """The read below a plan, and the conditions above it, the lowest last; None if others are between."""
    conditions: list[Any] = []
    while not is_read(node):
        if (name := class_name(node)) not in _PASSED:
            return None, conditions
        if name == "Filter":
            conditions.append(node.condition())
        node = node.child()
    return node, conditions


def _is_always_the_same(df: AnyDataFrame, conditions: Sequence[Any]) -> bool:
    """Whether a plan makes the same of a row whenever it runs, and whatever other rows there are.

    It is not where it numbers rows, also in a column that the optimizer drops, for a later call may name it;
    nor where a condition has the time, the user or the like, which Spark puts in when it runs. Texts such as
    'today' are a time when they are cast, and a time of day is completed by the day that it is.
    """
    if not df._jdf.queryExecution().analyzed().deterministic() or is_filled_in(df):
        return False
    return not any(_CLOCK.search(str(condition.sql())) for condition in conditions)


def _conjuncts(condition: Any, known: dict[int, str]) -> Iterator[Comparison]:
    match class_name(condition):
        case "And":
            yield from _conjuncts(condition.left(), known)
            yield from _conjuncts(condition.right(), known)
        case "AttributeReference":
            if (name := _column(condition, known)) is not None:
                yield name, "=", True
        case "Not":
            yield from _negated(condition.child(), known)
        case "IsNull" | "IsNotNull" as test:
            if (name := _column(condition.child(), known)) is not None:
                yield name, "is null" if test == "IsNull" else "is not null", None
        case "In":
            items = items_of(condition.list())
            if all(class_name(one) == "Literal" and _type(one) == _type(condition.value()) for one in items):
                yield from _in(condition.value(), [one.value() for one in items], known)
        case "InSet":  # what Spark makes of a long list
            yield from _in(condition.child(), items_of(condition.hset().toSeq()), known)
        case other if other in _OPERATORS:
            yield from _compared(condition.left(), _OPERATORS[other], condition.right(), known)


def _negated(condition: Any, known: dict[int, str]) -> Iterator[Comparison]:
    """What is true where a condition is false: of a column, ``=`` and IN."""
    if class_name(condition) == "AttributeReference":
        yield from ((name, operator, False) for name, operator, _ in _conjuncts(condition, known))
    elif class_name(condition) in ("EqualTo", "In", "InSet"):
        for name, operator, value in _conjuncts(condition, known):
            if _type(condition.children().head()) not in _FLOATS:
                yield name, "!=" if operator == "=" else "not in", value


def _compared(left: Any, operator: str, right: Any, known: dict[int, str]) -> Iterator[Comparison]:
    if class_name(left) == "Literal":
        left, operator, right = right, _MIRRORED[operator], left
    name = _column(left, known)
    if name is None or class_name(right) != "Literal" or _type(left) != _type(right):
        return
    if _type(left) in _FLOATS and operator in (">", ">="):
        return
    with suppress(ValueError):  # a constant that Python does not have
        if (value := _comparable(right.value(), _type(right))) is not None:
            yield name, operator, value


def _in(value: Any, items: list[Any], known: dict[int, str]) -> Iterator[Comparison]:
    """Whether a column is one of some values, as Catalyst has them inside."""
    if (name := _column(value, known)) is not None:
        with suppress(ValueError):
            values = [_comparable(one, _type(value)) for one in items]
            if values and None not in values:
                yield name, "in", values


def _column(expr: Any, known: dict[int, str]) -> str | None:
    return known.get(int(expr.exprId().id())) if class_name(expr) == "AttributeReference" else None


def _type(expr: Any) -> str:
    return str(expr.dataType().simpleString())


def _comparable(value: Any, type_name: str) -> Any:
    """A value of Catalyst's; None if nothing can be compared with it."""
    found = python_value(value, type_name)
    return None if isinstance(found, float) and math.isnan(found) else found


def _over(node: Any, read: AnyDataFrame) -> Any:
    """A plan over another read of the same columns, which keep their ids: a later call may name them."""
    if is_read(node):
        return under_ids(read.sparkSession, read._jdf.queryExecution().analyzed(), node.output())
    return node.withNewChildren(seq_of(read.sparkSession, [_over(node.child(), read)]))
