"""Aggregates as Spark runs them: signed sums in its own aggregation, under the user's expression ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltajoin.aggregate.source import read_aggregate
from deltajoin.aggregate.spec import DeltaAggregateSpec
from planner.aggregate_nodes import LookupAggregate, SignedAggregate
from planner.errors import PlanBuildError
from planner.expressions import Aggregation, Expr, walk_expression
from planner.group_keys import upsert_key
from planner.jvm import Catalyst, JavaObject
from planner.nodes import Output, Plan
from planner.signed_sums import Result, Sums, kind_of, result_of
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.stream_keys import UPSERTS_MARK


def signed_aggregate(catalyst: Catalyst, plan: SignedAggregate, child: JavaObject) -> JavaObject:
    """Spark's aggregation over an input with nothing but the columns of groups and measures, and the kind.

    Where a group is gone only its key has a value: an expression over the aggregates of no rows may fail.
    """
    rows = _without_marks(catalyst.dataframe(child))
    sums = Sums()
    results = [result_of(measure, sums) for measure in plan.measures]
    kind = kind_of(sums, has_groups=bool(plan.groups))
    source = catalyst.analyzed(_aggregated(rows, plan, sums, results, kind))
    found = {catalyst.attribute(one)[1]: one for one in catalyst.output(source)}
    known = [*_groups(catalyst, plan, found), *_measures(catalyst, plan, results, found)]
    row_kind = found[ROW_KIND_COLUMN]
    named = [_named(catalyst, output, known, row_kind) for output in plan.outputs]
    return catalyst.project([*named, marked_kind(catalyst, plan, plan.row_kind.id, row_kind)], source)


def lookup_aggregate(catalyst: Catalyst, plan: LookupAggregate, shards: int) -> JavaObject:
    """The source of an aggregate by lookups, under the columns of the user's aggregate."""
    spec = DeltaAggregateSpec(
        plan.table.path,
        plan.keys,
        tuple(measure.by for measure in plan.measures),
        plan.where,
        shards,
        plan.table.max_rows,
        rows=plan.table.where,
    )
    changes = read_aggregate(
        catalyst.session, spec, consumer_id=plan.table.consumer_id, lease_ms=plan.table.lease_ms
    )
    source = catalyst.analyzed(changes)
    found = {catalyst.attribute(one)[1]: one for one in catalyst.output(source)}
    known = [*_groups(catalyst, plan, found)]
    for measure in plan.measures:
        original, made = _original(catalyst, measure.function), found[measure.column.name]
        _check_type(catalyst, measure.function, original, made)
        known.append((original, made))
    named = [
        catalyst.alias(
            catalyst.substituted(_original(catalyst, output.value), known),
            output.column.name,
            output.column.id,
        )
        for output in plan.outputs
    ]
    kind = catalyst.alias(found[ROW_KIND_COLUMN], ROW_KIND_COLUMN, plan.row_kind.id)
    return catalyst.project([*named, kind], source)


def _without_marks(rows: DataFrame) -> DataFrame:
    """The rows with nothing attached to their columns.

    A watermark would let Spark drop changes that come late, and forget groups that may yet change.
    """
    return rows.select(*(F.col(name).alias(name, metadata={}) for name in rows.columns))


def marked_kind(catalyst: Catalyst, plan: Plan, number: int, kind: JavaObject) -> JavaObject:
    """A kind that says of which upserts it is, for `write_changes` and for the planner itself."""
    return catalyst.alias(kind, ROW_KIND_COLUMN, number, {UPSERTS_MARK: upsert_key(plan).to_text()})


def unless_gone(catalyst: Catalyst, kind: JavaObject, value: JavaObject) -> JavaObject:
    """A value that is not computed for a group that is gone."""
    return catalyst.unless(catalyst.is_text(kind, RowKind.DELETE), value)


def kind_if(catalyst: Catalyst, kind: JavaObject, condition: JavaObject) -> JavaObject:
    """The kind of a row that a HAVING may take away."""
    chosen = catalyst.choice(condition, kind, RowKind.DELETE)
    return catalyst.choice(catalyst.is_text(kind, RowKind.UPDATE_AFTER), chosen, RowKind.DELETE)


def _aggregated(
    rows: DataFrame, plan: SignedAggregate, sums: Sums, results: list[Result], kind: str
) -> DataFrame:
    names = [group.column.name for group in plan.groups]
    rows = _with_columns(rows, sums.parts)
    kept = [F.expr(sql).alias(name) for sql, name in sums.names.items()]
    made = [
        F.expr(text).alias(f"{name}_{number}")
        for number, result in enumerate(results)
        for name, text in (("result", result.value), ("count", result.count))
        if text is not None
    ]
    groups = _with_columns(rows.groupBy(*names).agg(*kept), sums.derived)
    return groups.select(*names, *made, F.expr(kind).alias(ROW_KIND_COLUMN))


def _with_columns(df: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """The frame with columns by their Spark SQL; one may use those before it."""
    return df.select("*", *(F.expr(sql).alias(name) for sql, name in columns.items())) if columns else df


def _groups(
    catalyst: Catalyst, plan: SignedAggregate | LookupAggregate, found: dict[str, JavaObject]
) -> Iterator[tuple[JavaObject, JavaObject]]:
    for group in plan.groups:
        yield _original(catalyst, group.by.value), found[group.column.name]


def _measures(
    catalyst: Catalyst, plan: SignedAggregate, results: list[Result], found: dict[str, JavaObject]
) -> Iterator[tuple[JavaObject, JavaObject]]:
    for number, (measure, result) in enumerate(zip(plan.measures, results, strict=True)):
        value = found[f"result_{number}"]
        original = _original(catalyst, measure.function)
        if result.count is not None:
            function, _, _ = catalyst.aggregation(original)
            value = catalyst.average(function, value, found[f"count_{number}"])
        _check_type(catalyst, measure.function, original, value)
        yield original, value


def _named(
    catalyst: Catalyst, output: Output, known: list[tuple[JavaObject, JavaObject]], row_kind: JavaObject
) -> JavaObject:
    value = catalyst.substituted(_original(catalyst, output.value), known)
    is_computed = not isinstance(output.value, Aggregation) and any(
        isinstance(part, Aggregation) for part in walk_expression(output.value)
    )
    if is_computed:
        value = unless_gone(catalyst, row_kind, value)
    return catalyst.alias(value, output.column.name, output.column.id, {})


def _original(catalyst: Catalyst, expr: Expr) -> JavaObject:
    if expr.ref is None:
        raise PlanBuildError(f"{expr} must come from the user's query; this is a bug, please report it")
    return catalyst.kept(expr.ref)


def _check_type(catalyst: Catalyst, function: Aggregation, original: JavaObject, made: JavaObject) -> None:
    expected, found = catalyst.type_name(original), catalyst.type_name(made)
    if expected != found:
        raise PlanBuildError(f"{function} must be {expected}, got {found}; this is a bug, please report it")
