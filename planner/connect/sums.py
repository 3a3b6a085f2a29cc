"""Aggregates over changes over Spark Connect: counts, sums and the like in groups, as sums of signs.

What a classic session makes of an aggregate (`planner.signed_sums`) is Spark SQL over rows with their kinds.
A text is enough for it where each item is a value of the GROUP BY, or a function of one value of each row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from planner.plan.expressions import Aggregation, Column
from planner.plan.nodes import Measure
from planner.signed_sums import Result, Sums, is_summable, kind_of, result_of
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.stream_keys import UPSERTS_MARK, UpsertKey

FUNCTIONS: Final[Mapping[type[exp.Expression], str]] = {
    exp.Count: "Count",
    exp.Sum: "Sum",
    exp.Avg: "Average",
    exp.CountIf: "CountIf",
    exp.LogicalAnd: "BoolAnd",
    exp.LogicalOr: "BoolOr",
}
"""What is computed, by its class in the text."""


@dataclass(frozen=True)
class Item:
    """A column of the result.

    Attributes:
        name: of the column.
        value: what it is, or what its function is given, in Spark SQL; None for the rows.
        function: one of `FUNCTIONS`; None for a value of the GROUP BY.
    """

    name: str
    value: str | None
    function: str | None = None


def is_summed(value: exp.Expr) -> bool:
    """Whether a value of a SELECT is a sum of signs, of rows or of one value of each."""
    if type(value) not in FUNCTIONS or any(
        part for name, part in value.args.items() if name not in ("this", "big_int")
    ):
        return False
    given = value.this
    if isinstance(given, exp.Star):
        return isinstance(value, exp.Count)
    has_star = isinstance(given, exp.Column) and isinstance(given.this, exp.Star)
    return not has_star and not isinstance(given, exp.Distinct) and given.find(exp.AggFunc) is None


def summed(rows: DataFrame, groups: Sequence[str], items: Sequence[Item]) -> DataFrame | str:
    """Upserts of the groups of some changes, in output mode update; or which function has no type for it.

    Args:
        rows: changes, with their kind.
        groups: the values of the GROUP BY, in Spark SQL.
        items: the columns of the result.
    """
    names = {text: f"group_{number}" for number, text in enumerate(dict.fromkeys(groups))}
    values = {
        text: f"value_{number}"
        for number, text in enumerate(dict.fromkeys(i.value for i in items if i.function and i.value))
    }
    given = [f"{text} AS {name}" for text, name in (*names.items(), *values.items())]
    base = rows.selectExpr(*given, ROW_KIND_COLUMN)
    # a watermark would let Spark forget groups that may yet change
    base = base.select(*(F.col(name).alias(name, metadata={}) for name in base.columns))
    types = {field.name: field.dataType.simpleString() for field in base.schema}
    sums, made = Sums(), []
    for item in items:
        if item.function is None:
            made.append(F.col(names[str(item.value)]).alias(item.name))
            continue
        columns = tuple(
            Column(-1, values[text], types[values[text]]) for text in (item.value,) if text is not None
        )
        if not all(_takes(item.function, column.type) for column in columns):
            return f"{item.function} of {columns[0].type.upper()}"
        function = Aggregation(item.function, columns, tuple(column.type for column in columns))
        made.append(F.expr(_in_sql(result_of(Measure(function, columns), sums))).alias(item.name))
    kind = F.expr(kind_of(sums, has_groups=True))
    parts = base.select("*", *(F.expr(sql).alias(name) for sql, name in sums.parts.items()))
    found = parts.groupBy(*names.values()).agg(*(F.expr(sql).alias(name) for sql, name in sums.names.items()))
    for sql, name in sums.derived.items():  # one may use those before it
        found = found.select("*", F.expr(sql).alias(name))
    held = (tuple(i.name for i in items if i.function is None and i.value == text) for text in names)
    mark = UpsertKey(tuple(held)).to_text()
    return found.select(*made, kind.alias(ROW_KIND_COLUMN, metadata={UPSERTS_MARK: mark}))


def _takes(function: str, type_: str) -> bool:
    """Whether a function of this type is a sum of signs, whose result needs no more than SQL."""
    match function:
        case "Count":
            return True
        case "Sum":
            return is_summable(type_)
        case "Average":  # of a decimal Spark has a type of its own
            return is_summable(type_) and not type_.startswith("decimal")
        case _:
            return type_ == "boolean"


def _in_sql(result: Result) -> str:
    """The value, of an average its sum by its count."""
    if result.count is None:
        return result.value
    return f"CASE WHEN {result.count} > 0 THEN {result.value} / {result.count} END"
