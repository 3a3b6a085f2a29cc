"""Aggregates over changes over Spark Connect: counts, sums and the like in groups, as sums of signs.

What a classic session makes of an aggregate (`planner.signed_sums`) is Spark SQL over rows with their kinds.
A text is enough for it where each function is given one value of each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from planner.connect.calls import Call, Groups, Item, group_name, result_name
from planner.plan import expressions as plan
from planner.plan.nodes import Measure
from planner.refusals import Refused
from planner.rules.aggregates import instead_of_sum
from planner.signed_sums import SIGNED, Result, Sums, is_summable, kind_of, result_of
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.stream_keys import UPSERTS_MARK, UpsertKey

_GONE: Final = f"{ROW_KIND_COLUMN} = '{RowKind.DELETE}'"


def is_signed(call: Call) -> bool:
    """Whether a function is a sum of signs, whatever its type."""
    return call.function in SIGNED and not call.is_distinct


def summed(rows: DataFrame, groups: Groups, instead: str) -> DataFrame | Refused:
    """Upserts of the groups of some changes, in output mode update; or which function has no type for it.

    Args:
        rows: changes, with their kind.
        groups: what is computed of them, all of it `is_signed`.
        instead: what to do about a function that is refused.
    """
    texts = (text for call in groups.calls for text in (call.given, call.where) if text is not None)
    values = {text: f"value_{number}" for number, text in enumerate(dict.fromkeys(texts))}
    names = [group_name(place) for place in range(len(groups.by))]
    given = [f"{text} AS {name}" for text, name in (*zip(groups.by, names, strict=True), *values.items())]
    base = rows.selectExpr(*given, ROW_KIND_COLUMN)
    # a watermark would let Spark forget groups that may yet change
    base = base.select(*(F.col(name).alias(name, metadata={}) for name in base.columns))
    types = {field.name: field.dataType.simpleString() for field in base.schema}
    is_loud = rows.sparkSession.conf.get("spark.sql.ansi.enabled") == "true"
    sums, results = Sums(), list[Column]()
    for place, call in enumerate(groups.calls):
        measure = _measure(call, values, types)
        for type_ in measure.function.types:
            if not _takes(call.function, type_):
                return Refused(f"{call} of {type_.upper()}", instead)
            if call.function == "Sum" and not is_loud and (remedy := instead_of_sum(type_)) is not None:
                return Refused(f"{call} of {type_.upper()}, which stays NULL when it has overflown,", remedy)
        results.append(F.expr(_in_sql(result_of(measure, sums))).alias(result_name(place)))
    kind = F.expr(kind_of(sums, has_groups=bool(groups.by)))
    parts = base.select("*", *(F.expr(sql).alias(name) for sql, name in sums.parts.items()))
    found = parts.groupBy(*names).agg(*(F.expr(sql).alias(name) for sql, name in sums.names.items()))
    for sql, name in sums.derived.items():  # one may use those before it
        found = found.select("*", F.expr(sql).alias(name))
    found = found.select(*names, *results, kind.alias(ROW_KIND_COLUMN))
    if groups.having is not None:  # a group that fails it leaves the sink, where an earlier batch has put it
        stays = f"CASE WHEN {_GONE} THEN false ELSE {groups.having} END"
        kind = F.expr(f"CASE WHEN {stays} THEN {ROW_KIND_COLUMN} ELSE '{RowKind.DELETE}' END")
        found = found.select(*found.columns[:-1], kind.alias(ROW_KIND_COLUMN))
    held = tuple(map(groups.held, range(len(groups.by))))
    mark = UpsertKey(held, tuple(one.name for one in groups.items if one.is_constant)).to_text()
    made = (F.expr(_unless_gone(item)).alias(item.name) for item in groups.items)
    return found.select(*made, F.col(ROW_KIND_COLUMN).alias(ROW_KIND_COLUMN, metadata={UPSERTS_MARK: mark}))


def _measure(call: Call, values: Mapping[str, str], types: Mapping[str, str]) -> Measure:
    """A call as the planner knows it, over the columns that have what it is given."""

    def column(text: str) -> plan.Column:
        return plan.Column(-1, values[text], types[values[text]])

    columns = () if call.given is None else (column(call.given),)
    function = plan.Aggregation(call.function, columns, tuple(one.type for one in columns))
    return Measure(function, columns, None if call.where is None else column(call.where))


def _unless_gone(item: Item) -> str:
    """An item, which is not computed for a group that is gone: of no rows it may fail."""
    return f"CASE WHEN NOT {_GONE} THEN {item.value} END" if item.is_computed else item.value


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
