"""Reading Spark's own plans: only the files `planner/jvm*.py` use py4j.

`CatalystReader` looks into Catalyst's objects and gives each a number, the `ref` of plan.py. What such an
object means is the business of read.py. Written for PySpark 4.3 in classic mode (no Connect).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from upsert.errors import ConfigurationError

JavaObject = Any
"""A Catalyst plan node, expression or attribute. Nothing but this file and `planner.jvm` looks inside."""

_EPOCH: Final = datetime(1970, 1, 1)
_PLAN_EXPRESSION: Final = "org.apache.spark.sql.catalyst.expressions.PlanExpression"


def _timestamp(micros: int) -> datetime:
    return (_EPOCH + timedelta(microseconds=micros)).replace(tzinfo=UTC)


_LITERALS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "boolean": bool,
    "tinyint": int,
    "smallint": int,
    "int": int,
    "bigint": int,
    "float": float,
    "double": float,
    "string": str,
    "date": lambda days: date(1970, 1, 1) + timedelta(days=days),
    "timestamp": _timestamp,
    "timestamp_ntz": lambda micros: _EPOCH + timedelta(microseconds=micros),
}


class CatalystReader:
    """The analysed plan of one DataFrame.

    Raises:
        ConfigurationError: the DataFrame is of Spark Connect, which hides its plan.
    """

    def __init__(self, df: DataFrame) -> None:
        if not hasattr(df, "_jdf"):
            raise ConfigurationError(
                f"optimize needs a DataFrame of a classic Spark session, got {type(df).__module__}"
            )
        self.session: SparkSession = df.sparkSession
        self._jvm: Any = self.session._jvm
        self._gateway: Any = self.session._sc._gateway
        self._kept: list[JavaObject] = []
        self._expr_ids: dict[int, JavaObject] = {}
        self._numbers: dict[int, int] = {}
        self._qualifiers: dict[int, JavaObject] = {}

    def keep(self, thing: JavaObject) -> int:
        """A number for the object, by which `kept` gives it back."""
        self._kept.append(thing)
        return len(self._kept) - 1

    def kept(self, ref: int) -> JavaObject:
        """The object of a number."""
        return self._kept[ref]

    def analyzed(self, df: DataFrame) -> JavaObject:
        """The analysed plan of a DataFrame, with its common table expressions put in place.

        Spark's own rule does that, and renews the ids of one that is used twice. A plan without any comes
        back as it is.
        """
        plan = df._jdf.queryExecution().analyzed()
        inline = self._jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE
        defaults = [getattr(inline, f"$lessinit$greater$default${n}")() for n in (2, 3)]
        return inline(True, *defaults).apply(plan)

    def class_name(self, thing: JavaObject) -> str:
        """The Scala class of a node or an expression, without its package."""
        return str(thing.getClass().getSimpleName())

    def children(self, thing: JavaObject) -> list[JavaObject]:
        """The inputs of a node, or the arguments of an expression."""
        return items_of(thing.children())

    def output(self, node: JavaObject) -> list[JavaObject]:
        """The attributes that a node puts out."""
        return items_of(node.output())

    def is_streaming(self, node: JavaObject) -> bool:
        """Whether the node reads a stream."""
        return bool(node.isStreaming())

    def source(self, node: JavaObject) -> tuple[str, dict[str, str]]:
        """Format and options of a streaming relation."""
        return str(node.sourceName()), {str(k): str(v) for k, v in dict(node.extraOptions()).items()}

    def batch_source(self, node: JavaObject) -> tuple[str, dict[str, str]]:
        """Format and options of a relation that is read at once."""
        options = dict(node.options().asCaseSensitiveMap())
        return str(node.table().name()), {str(k).lower(): str(v) for k, v in options.items()}

    def label(self, node: JavaObject) -> str | None:
        """The name that the user gave a streaming relation with `readStream.name(…)`."""
        found = node.sourceIdentifyingName()
        return str(found.name()) if self.class_name(found) == "UserProvided" else None

    def struct(self, attributes: Iterable[JavaObject]) -> StructType:
        """Attributes as a schema, with the comments in which METADATA columns may have been declared."""
        fields = [
            {
                "name": str(attribute.name()),
                "type": json.loads(str(attribute.dataType().json())),
                "nullable": bool(attribute.nullable()),
                "metadata": self.metadata(attribute),
            }
            for attribute in attributes
        ]
        return StructType.fromJson({"type": "struct", "fields": fields})

    def projected(self, node: JavaObject) -> list[JavaObject]:
        """The named expressions of a Project."""
        return items_of(node.projectList())

    def condition(self, node: JavaObject) -> JavaObject | None:
        """The condition of a Filter or a Join; None for a join without one."""
        found = node.condition()
        if self.class_name(node) == "Filter":
            return found
        return found.get() if found.isDefined() else None

    def join_type(self, node: JavaObject) -> str:
        """The type of a join in lower case, as in "left outer"."""
        return str(node.joinType().sql()).lower()

    def generator(self, node: JavaObject) -> JavaObject:
        """The expression of a Generate that makes rows of one row."""
        return node.generator()

    def generated(self, node: JavaObject) -> list[JavaObject]:
        """The attributes that a Generate adds to its input's."""
        return items_of(node.generatorOutput())

    def expanded(self, node: JavaObject) -> list[list[JavaObject]]:
        """What an Expand makes of a row: for each row that comes out its expressions."""
        return [items_of(projection) for projection in items_of(node.projections())]

    def keys(self, node: JavaObject) -> list[JavaObject]:
        """The attributes of which a Deduplicate looks for equal values."""
        return items_of(node.keys())

    def event_time(self, node: JavaObject) -> JavaObject:
        """The column that a watermark node declares as event time."""
        return node.eventTime()

    def grouping(self, node: JavaObject) -> list[JavaObject]:
        """The expressions by which an Aggregate groups; none for one of all rows."""
        return items_of(node.groupingExpressions())

    def aggregated(self, node: JavaObject) -> list[JavaObject]:
        """The named expressions that an Aggregate puts out."""
        return items_of(node.aggregateExpressions())

    def aggregation(self, expr: JavaObject) -> tuple[JavaObject, JavaObject | None, bool]:
        """Function of an AggregateExpression, the condition of its FILTER, and whether it is DISTINCT."""
        condition = expr.filter()
        found = condition.get() if condition.isDefined() else None
        return expr.aggregateFunction(), found, bool(expr.isDistinct())

    def parameters(self, expr: JavaObject, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """What an expression was told beyond its arguments, as text, by the names of Catalyst's fields."""
        values = {name: getattr(expr, name)() for name in names}
        return tuple(
            (name, value if isinstance(value, str) else str(value)) for name, value in values.items()
        )

    def attribute(self, attribute: JavaObject) -> tuple[int, str, str]:
        """Id, name and type of an attribute or an alias."""
        expr_id = attribute.exprId()
        number = int(expr_id.id())
        self._expr_ids.setdefault(number, expr_id)
        self._qualifiers.setdefault(number, attribute.qualifier())
        return number, str(attribute.name()), self.type_name(attribute)

    def type_name(self, expr: JavaObject) -> str:
        """Type of an expression, as Spark SQL spells it."""
        return str(expr.dataType().simpleString())

    def metadata(self, attribute: JavaObject) -> dict[str, Any]:
        """What is attached to an attribute, as JSON has it."""
        found = json.loads(str(attribute.metadata().json()))
        return found if isinstance(found, dict) else {}

    def is_text_type(self, expr: JavaObject) -> bool:
        """Whether an expression gives a text, of any collation."""
        return self.type_name(expr).startswith("string")

    def text(self, expr: JavaObject) -> str:
        """The expression in SQL."""
        return str(expr.sql())

    def literal(self, expr: JavaObject) -> Any:
        """Value of a Literal as Python has it.

        Raises:
            ValueError: Python has no such value, or it is of no use here.
        """
        return self._python_value(expr.value(), self.type_name(expr))

    def folded(self, expr: JavaObject) -> Any:
        """Value of a constant expression.

        Raises:
            ValueError: it cannot be computed, or Python has no such value.
        """
        try:
            return self._python_value(expr.eval(None), self.type_name(expr))
        except (Py4JJavaError, PySparkException) as cause:
            raise ValueError(f"the constant {self.text(expr)} cannot be computed") from cause

    def _python_value(self, value: Any, type_name: str) -> Any:
        if value is None:
            return None
        if type_name.startswith("decimal"):
            return Decimal(str(value))
        try:
            return _LITERALS[type_name](value if isinstance(value, int | float) else str(value))
        except (KeyError, OverflowError) as cause:
            raise ValueError(f"no constant of type {type_name}: {value}") from cause

    def is_deterministic(self, expr: JavaObject) -> bool:
        """Whether Catalyst calls the expression, with all its arguments, deterministic."""
        return bool(expr.deterministic())

    def has_plan(self, expr: JavaObject) -> bool:
        """Whether the expression is a subquery."""
        return bool(is_instance_of(self._gateway, expr, _PLAN_EXPRESSION))

    def replacement(self, expr: JavaObject) -> JavaObject | None:
        """What Spark computes in place of a RuntimeReplaceable; None for any other expression.

        Of those that inherit the rules of analysis (Between, NVL, NULLIF, …) it is the only child: the fields
        for what the user wrote keep old ids where Spark renews those of the side of a self join.
        """
        return expr.replacement() if "RUNTIME_REPLACEABLE" in self._patterns(expr) else None

    def is_filled_in(self, expr: JavaObject) -> bool:
        """Whether Spark puts a value in the expression's place when it optimizes a micro-batch.

        One of the clock, the session or the user, which nobody can compute from a row.
        """
        return "CURRENT_LIKE" in self._patterns(expr) or self.class_name(expr) == "SparkVersion"

    def _patterns(self, expr: JavaObject) -> frozenset[str]:
        """Catalyst's own marks of an expression, by which its rules find what they are about."""
        return frozenset(str(expr.nodePatterns().mkString(",")).split(","))


def items_of(seq: JavaObject) -> list[JavaObject]:
    """A sequence of Scala as a list."""
    return [seq.apply(i) for i in range(seq.size())]
