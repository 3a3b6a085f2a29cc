"""What EXPLAIN says of a stream that is planned from its text: the reports of a classic session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from pyspark.sql import DataFrame

from deltajoin.spec import DeltaJoinSpec, present_name
from planner.connect.calls import Groups
from planner.connect.relations import carried, joins_in
from planner.connect.select import Select, Source
from planner.explanation import (
    AggregateReport,
    Explanation,
    aggregate_name,
    key_notes,
    lookup_notes,
    report_of_sink,
)
from planner.join_reports import JoinReport, found_by_rows, of_delta_join
from planner.join_spec import lacking_indexes
from planner.managed_tables import managed_table
from planner.plan.expressions import Column
from planner.plan.nodes import DeltaJoin, JoinTable, Opaque, Plan, Union
from planner.refusals import PlanError, Refused
from planner.settings import Settings
from upsert.managed.options import ReadOptions
from upsert.materializer.choice import Changes
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.sql.query import AsOfKind
from upsert.store.table import Table
from upsert.types import sql_name

_WORDS = {"left": "left outer", "right": "right outer", "full": "full outer", "semi": "left semi"}
_WORDS |= {"anti": "left anti"}
"""What Spark calls a kind of join."""

_ONE_FORM = "over Spark Connect the server runs each micro-batch in one form"


def planned_join(spec: DeltaJoinSpec) -> DeltaJoin:
    """The join as the planner knows joins.

    Raises:
        PlanError: it needs indexes that its tables lack.
    """
    ids = count(1)
    tables = []
    for joined in spec.tables:
        table = managed_table(Table.open(joined.path), ReadOptions.parse({"path": joined.path}))
        types = ((name, sql_name(table.schema.type_of(name)).lower()) for name in joined.select)
        tables.append(JoinTable(table, tuple(Column(next(ids), name, type_) for name, type_ in types)))
    if lacks := tuple(lacking_indexes(spec.tree, [one.table for one in tables])):
        raise PlanError(lacks)
    flags = tuple((number, Column(next(ids), present_name(number), "boolean")) for number in spec.present)
    return DeltaJoin(tuple(tables), spec.tree, Column(next(ids), ROW_KIND_COLUMN, "string"), flags)


@dataclass
class Told:
    """What is decided of the queries of one text, while they are planned."""

    joins: list[JoinReport] = field(default_factory=list)
    aggregates: list[AggregateReport] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)

    def join(self, select: Select, join: DeltaJoin, settings: Settings, shards: int) -> None:
        """A delta join."""
        own = replace(settings, shards=shards)
        self.joins.append(of_delta_join(_name_of(select), join, join, own, _ONE_FORM))
        self.plans.append(join)

    def refused(self, select: Select, refusals: tuple[Refused, ...]) -> None:
        """A join that cannot be one."""
        self.joins.append(JoinReport(_name_of(select), "refused", refusals=refusals))

    def lookup(self, first: Source, source: Source, table: tuple[str, str] | None) -> None:
        """A join that finds rows; of a table that is only looked up its name and connector."""
        name = f"{_word(source)} join of {first.alias} with {source.alias} on {_on(source, [first])}"
        is_of_times = source.as_of is not None and source.as_of.kind is AsOfKind.ROW
        self.joins.append(found_by_rows(name, table, is_of_times=is_of_times))

    def aggregate(self, select: Select, groups: Groups, index: str | None = None) -> None:
        """An aggregate, by sums; by lookups through an index of its table if it is given."""
        tables = ", ".join(dict.fromkeys(repr(one.alias) for one in select.sources))
        name = aggregate_name([*map(str, groups.calls)], groups.by, tables)
        if index is None:
            keys = [(*groups.held(place), text)[0] for place, text in enumerate(groups.by)]
            report = AggregateReport(name, "signed sums", notes=tuple(key_notes(keys)))
        else:
            keys = [ref.column for ref in groups.columns if ref is not None]
            table = Table.open(select.leaves[0].path or "").name
            report = AggregateReport(name, "lookups", notes=lookup_notes(table, index, keys))
        self.aggregates.append(report)

    def explanation(self, refusals: tuple[Refused, ...] = ()) -> Explanation:
        """All of it."""
        before: Plan = Opaque("the text", (), ())
        after = self.plans[0] if len(self.plans) == 1 else Union(tuple(self.plans)) if self.plans else before
        return Explanation(tuple(self.joins), refusals, before, after, (), (), tuple(self.aggregates))


def _word(source: Source) -> str:
    return _WORDS.get(source.kind, source.kind)


def _on(source: Source, before: Sequence[Source]) -> str:
    alias = {leaf.number: leaf.alias for one in (*before, source) for leaf in one.leaves}
    pairs = (f"({alias[a.table]}.{a.column} = {alias[b.table]}.{b.column})" for a, b in source.on)
    return " and ".join(pairs)


def _name_of(select: Select) -> str:
    """A join by its kind, its tables and what it compares, as a plan of Spark says it."""
    *others, last = select.sources
    before = " and ".join(one.alias for one in others)
    return f"{_word(last)} join of {before} with {last.alias} on {_on(last, others)}"


def explained_frame(df: DataFrame, settings: Settings, mode: str) -> Explanation:
    """What is decided of a DataFrame: of the joins that it reads, and whether it may be written."""
    told = Told()
    for spec in joins_in(df) if df.isStreaming else ():
        join = planned_join(spec)
        names = " and ".join(one.table.name for one in join.tables)
        own = replace(settings, shards=spec.shards)
        told.joins.append(of_delta_join(f"join of {names}", join, join, own, _ONE_FORM))
        told.plans.append(join)
    return explained_over_connect(df, [told.explanation()], settings.sink_key, mode)


def explained_over_connect(
    df: DataFrame, told: Sequence[Explanation], sink_key: Sequence[str] | None, sink_materialize: str
) -> Explanation:
    """What is decided of a stream whose texts, its own and those of plain views, have said the rest.

    Args:
        df: the stream.
        told: of each text.
        sink_key: the primary key of the table that it is written into; None if there is none.
        sink_materialize: that table's option.
    """
    found = Told()
    for one in told:  # the names of an INSERT BY NAME are asked of the query before it is planned
        found.joins += [report for report in one.joins if report not in found.joins]
        found.aggregates += [report for report in one.aggregates if report not in found.aggregates]
        found.plans += [one.after] if one.after is not one.before and one.after not in found.plans else []
    refusals: tuple[Refused, ...] = ()
    try:
        carried(df)
    except PlanError as cause:
        refusals = cause.refusals
    changes = Changes.of_schema(df.schema.jsonValue())
    sink = None if sink_key is None else report_of_sink(changes, tuple(sink_key), sink_materialize)
    return replace(found.explanation(refusals), sink=sink)
