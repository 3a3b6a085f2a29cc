"""The first rows by some order as a hidden table, for ORDER BY … LIMIT, MIN and MAX over a large input.

The table has all rows up to the key of one that comes well after the last row that the LIMIT shows. So it
follows from changes like any filtered rows, whichever of them come and go. When too few are left, or too many
have come, the plan no longer fits its rows, and the next one draws another line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t

from planner.plan.expressions import Aggregation, Column, columns_of
from planner.plan.nodes import Aggregate, Opaque, Output, Plan, Project, Wrapper
from planner.plan.trees import aggregations, children
from planner.settings import Settings
from planner.views.inputs import Planning
from planner.views.kept_table import COLUMN, bag_schema, can_keep, meaning_of, named_tables
from planner.views.moves import versions_of
from planner.views.rows_table import KeptRows, Line, RowsTable
from planner.views.stages import Tables, changes_of, meant
from upsert.views.hidden_tables import hidden_tables
from upsert.views.refresh import PlanOutgrownError

MORE: Final = 10
"""So many times the rows that a LIMIT shows are kept, at first."""

LEAST_KEPT: Final = 1_000

MOST_KEPT: Final = 50_000
"""If more rows are up to the line, there is no such table."""

_MOST_SHOWN: Final = MOST_KEPT // MORE

_KEY: Final = "top"

_MARK: Final = "-top-"
"""Part of the names of such tables."""

_KEY_ID: Final = -2_040_000_000
"""Id for the key of an order, below those that stages and rules draw."""

_AS_TEXT: Final = (
    t.ByteType,
    t.ShortType,
    t.IntegerType,
    t.LongType,
    t.FloatType,
    t.DoubleType,
    t.DecimalType,
    t.DateType,
    t.TimestampNTZType,
)
"""Types of which each value is read again from its text."""


@dataclass(frozen=True)
class Top:
    """An ORDER BY … LIMIT of a query, or its MIN or MAX of all rows.

    Attributes:
        by: the node that orders rows, or the function.
        child: what is ordered.
        needed: its columns that are needed above.
        shown: how many of its first rows are needed.
        tables: what it reads, of which each row follows from their changes.
    """

    by: Opaque | Aggregation
    child: Plan
    needed: tuple[Column, ...]
    shown: int
    tables: Tables


def tops_of(plan: Plan, settings: Settings, numbers: Callable[[Opaque], int | None]) -> Iterator[Top]:
    """The orders with a LIMIT, and the extremes, of a batch query, of inputs that follow from changes.

    Args:
        plan: the query.
        settings: of the planner.
        numbers: how many rows a LIMIT or an OFFSET says.
    """
    if isinstance(plan, Opaque) and plan.name == "GlobalLimit":
        shown, node = numbers(plan), plan.inputs[0]
        while shown is not None and _is_in_order(node):
            if isinstance(node, Opaque) and node.name == "Offset":
                offset = numbers(node)
                shown = None if offset is None else shown + offset
            (node,) = children(node)
        if shown and isinstance(node, Opaque) and node.name == "Sort":
            child = node.inputs[0]
            tables = _changed_in(child, settings)
            if tables and shown <= _MOST_SHOWN:
                yield Top(node, child, child.columns, shown, tables)
                return
    if isinstance(plan, Aggregate) and (function := _extreme(plan)) is not None:
        used, tables = columns_of(function), _changed_in(plan.child, settings)
        if tables:
            needed = tuple(column for column in plan.child.columns if column.id in used)
            yield Top(function, plan.child, needed, 1, tables)
            return
    for child in children(plan):
        yield from tops_of(child, settings, numbers)


def _changed_in(plan: Plan, settings: Settings) -> Tables:
    """The tables that a plan reads if it follows from their changes; () if not, or if one is such a table."""
    changes = changes_of(plan, replace(settings, sink_key=None))
    if changes is None or any(_MARK in os.path.basename(read.path) for read, _ in changes.tables):
        return ()
    return changes.tables


def _extreme(plan: Aggregate) -> Aggregation | None:
    """The one MIN or MAX that an aggregate of all rows has; None if there are others, or it has a FILTER."""
    if plan.groups:
        return None
    functions = aggregations(plan.outputs)
    if len(set(functions)) != 1:
        return None
    one = functions[0]
    is_plain = one.name in ("Min", "Max") and one.condition is None and len(one.values) == 1
    return one if is_plain and columns_of(one) else None


def _is_in_order(node: Plan) -> bool:
    """Whether a node below a LIMIT gives each row of its input in its order, or the first of them."""
    is_limit = isinstance(node, Opaque) and node.name in ("LocalLimit", "Offset")
    return is_limit or isinstance(node, Project | Wrapper)


def top_table(
    planning: Planning, top: Top, keep: Callable[[DataFrame], KeptRows], *, must_be_there: bool = False
) -> RowsTable | None:
    """The table of the first rows of an order, which may not be there yet; None if it cannot have them.

    Args:
        planning: of the view.
        top: the order.
        keep: finds out how the rows of a query are kept.
        must_be_there: whether only one counts that an earlier plan has made.
    """
    catalyst = planning.catalyst
    assert top.by.ref is not None
    by, is_extreme = catalyst.kept(top.by.ref), isinstance(top.by, Aggregation)
    order = catalyst.order_of_extreme(by) if is_extreme else catalyst.first_order(by)
    if order is None or catalyst.subqueries_in(order.key):  # a line is drawn for one state of the rows
        return None
    plan = Project(top.child, tuple(map(Output.of, top.needed)))
    names = [f"{COLUMN}{number}" for number in range(len(plan.columns))]
    made = catalyst.analyzed(planning.built(plan))
    key = catalyst.alias(order.key, _KEY, _KEY_ID)
    keyed = catalyst.dataframe(catalyst.project([*catalyst.output(made), key], made)).toDF(*names, _KEY)
    if is_extreme:
        keyed = keyed.where(F.col(_KEY).isNotNull())
    rows = _Ordered.of(keyed, order.is_ascending, order.are_nulls_first)
    if rows is None or not can_keep(keyed.drop(_KEY).schema, ()):
        return None
    words = f"{catalyst.text(order.key)} {order.is_ascending} {order.are_nulls_first}"
    meaning = meaning_of(catalyst, plan, meant(plan), top.tables, words)

    def table(line: Line) -> RowsTable:
        first, words = rows.up_to(line.key), named_tables(top.tables)
        return RowsTable(
            planning=planning,
            path=planning.folder_of(f"{meaning}{_MARK}{_short(line)}", line.most),
            schema=replace(bag_schema(first.schema, ()), comment=json.dumps(line.to_json())),
            columns=plan.columns,
            tables=top.tables,
            kept=keep(first),
            moved=f"the first rows of an order, moved by a step of {words}",
            shown=meant(plan),
            line=line,
        )

    known = _known_line(planning, meaning, top.shown) if planning.view.uuid else None
    if known is None and must_be_there:
        return None
    if planning.view.scratch is not None:  # where to draw another one would have to be read
        return table(known or Line(None, top.shown, MOST_KEPT))
    if known is not None:
        found = table(known)
        with suppress(PlanOutgrownError):
            found.at(versions_of(top.tables))
            return found
    line = None if must_be_there else rows.line(top.shown)
    return None if line is None else table(line)


@dataclass(frozen=True)
class _Ordered:
    """Rows with the key by which they are ordered as their last column, each value as its text gives it."""

    keyed: DataFrame
    is_ascending: bool
    are_nulls_first: bool

    @classmethod
    def of(cls, keyed: DataFrame, is_ascending: bool, are_nulls_first: bool) -> Self | None:
        """None if the key is of a type of which a text does not give the values again."""
        type_ = keyed.schema[_KEY].dataType
        if isinstance(type_, t.TimestampType):
            keyed = keyed.withColumn(_KEY, F.unix_micros(_KEY))
        elif not isinstance(type_, _AS_TEXT) and type_.simpleString() != "string":
            return None
        return cls(keyed, is_ascending, are_nulls_first)

    def line(self, shown: int) -> Line | None:
        """Where to draw the line for so many rows that are shown; None if too many have the key there."""
        key = F.col(_KEY)
        sides = (key.asc_nulls_last(), key.asc_nulls_first(), key.desc_nulls_last(), key.desc_nulls_first())
        by = sides[2 * (not self.is_ascending) + self.are_nulls_first]
        wanted = max(LEAST_KEPT, MORE * shown)
        first = self.keyed.select(_KEY).orderBy(by).limit(wanted).select(key.cast("string")).collect()
        if len(first) < wanted:
            return Line(None, 0, MOST_KEPT)
        if (last := first[-1][0]) is None or self.up_to(last).limit(MOST_KEPT + 1).count() > MOST_KEPT:
            return None
        return Line(last, shown, MOST_KEPT)

    def up_to(self, last: str | None) -> DataFrame:
        """The rows up to those with a key; all for None."""
        rows, key = self.keyed, F.col(_KEY)
        if last is not None:
            value = F.lit(last).cast(self.keyed.schema[_KEY].dataType)
            is_within = key <= value if self.is_ascending else key >= value
            rows = rows.where(is_within | key.isNull() if self.are_nulls_first else is_within)
        return rows.drop(_KEY)


def _known_line(planning: Planning, meaning: str, shown: int) -> Line | None:
    """That of the newest table of such rows that still fits them."""
    tables = hidden_tables(planning.view.folder)
    heads = [one.head for name, one in tables.items() if name.startswith(f"{meaning}{_MARK}")]
    for head in sorted(heads, key=lambda one: one.info.time_ms, reverse=True):
        line = Line.from_json(json.loads(head.layout.schema.comment or "{}"))
        if line.least in (0, shown) and line.fits(head):
            return line
    return None


def _short(line: Line) -> str:
    """What tells tables with other lines apart."""
    return hashlib.sha256(json.dumps(line.to_json()).encode()).hexdigest()[:8]
