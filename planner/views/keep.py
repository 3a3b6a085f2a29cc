"""How a view is refreshed: by its own changes, or out of the stages that its aggregates are kept in.

What a refresh runs is planned once, when the query is first seen, and run over other inputs each time.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from pyspark.sql import DataFrame

from planner.plan.expressions import Column, has_subquery
from planner.plan.nodes import Filter, Opaque, Output, Plan, Project, Relation
from planner.plan.trees import children, transform_down, walk
from planner.settings import Settings
from planner.spark.catalyst import Catalyst
from planner.spark.few_rows import OneTask
from planner.spark.read import read_plan
from planner.spark.unnest import unnested
from planner.views.drawing import Part
from planner.views.inputs import Planning
from planner.views.kept_table import (
    COLUMN,
    KeptTable,
    can_keep,
    names_of,
    row_count,
    step_in_words,
    tables_in,
)
from planner.views.moves import (
    ORDERED_ROWS,
    SHALLOW_ROWS,
    WHOLE_ROWS,
    bases_of,
    versions_of,
)
from planner.views.partition_table import PartitionTable, partition_table
from planner.views.partitions import partitions_of
from planner.views.rows_table import FROM_HIDDEN, Followed, KeptRows, RowsTable, rows_table
from planner.views.stage_table import StageTable, result_table, stage_table
from planner.views.stages import (
    Joined,
    changes_of,
    joined_in,
    looked_up,
    meant,
    needs_all_rows,
    shown,
    small_sides,
    stages_of,
    united_in,
    why_all,
    why_not,
    without_order,
)
from planner.views.top_rows import Top, top_table, tops_of
from planner.views.unindexed import unindexed
from upsert.errors import ConfigurationError
from upsert.store.table import Table
from upsert.views.refresh import ViewShape
from upsert.views.session import small_session

_THE_VIEW: Final = "the view"

_STAYS: Final = 2
"""A hidden table stays while there are more than one in so many of the rows for which one is made: of a table
whose size goes up and down a little, each process would make it or drop it."""


def kept(df: DataFrame, view: ViewShape, settings: Settings) -> KeptRows:
    """How a view is refreshed by what has changed, as far as that can be.

    Args:
        df: the view's query over managed tables at stated snapshots.
        view: what the view is.
        settings: of the planner.

    Raises:
        ConfigurationError: the view must be refreshed by what has changed, and cannot.
    """
    catalyst = Catalyst(df)
    joined = unnested(catalyst, catalyst.analyzed(df))
    whole = catalyst.dataframe(joined)
    plan = without_order(read_plan(catalyst, whole))
    leaves = (leaf.rows for leaf in walk(plan) if isinstance(leaf, Relation))
    uuids = {rows.table.path: Table.open(rows.table.path).uuid for rows in leaves if rows is not None}
    settings = replace(settings, small=frozenset(path for path in uuids if uuids[path] in view.small))
    planning = Planning(catalyst, OneTask(small_session(df.sparkSession)), settings, view)
    found = _kept(planning, whole, plan, not catalyst.has_subqueries(joined))
    if view.must_be_incremental and not found.is_incremental:
        raise ConfigurationError(
            f"view {os.path.basename(view.folder)!r}: option 'refresh' = 'incremental' needs a query that "
            f"changes can refresh, got one of which {why_not(plan, settings)}; or leave the option out"
        )
    return replace(found, small=frozenset(uuids[path] for path in small_sides(plan, settings)))


def _kept(
    planning: Planning, whole: DataFrame, plan: Plan, is_lasting: bool, *, is_over_hidden: bool = False
) -> KeptRows:
    """How a query, as a DataFrame and as a plan, is kept: in the first way that it allows and that helps."""
    plan = planning.with_guesses(plan)
    followed = _followed(planning, whole, plan, is_lasting)
    if found := followed or _parted(planning, plan) or _indexed(planning, plan):
        return found
    made = [(stage, stage_table(planning, stage)) for stage in stages_of(plan, planning.settings)]
    stages = {id(stage.node): table for stage, table in made if table is not None}
    lost = [id(stage.node) for stage, table in made if table is None]
    if lost and (found := _parted(planning, plan, lost)):
        return found
    deep = _deep(planning, plan, list(stages.values())) if stages else ""
    if not isinstance(deep, str):
        return deep
    most_whole = ORDERED_ROWS if is_over_hidden else WHOLE_ROWS
    if found := _topped(planning, plan, most_whole) or _joined(planning, plan, stages.keys()):
        return found
    if stages:
        return _over_stages(planning, plan, stages, deep, is_lasting)
    reason = FROM_HIDDEN if is_over_hidden else why_not(plan, planning.settings)
    what = "what is below" if is_over_hidden else "its tables"
    note = f"all rows of {what} are read, and what is computed is compared: {_why_all(planning, plan)}"
    part = Part(title=_THE_VIEW, notes=(note,), plan=meant(plan), reads=tables_in(plan))
    rest = planning.template(whole)
    return KeptRows(planning, None, rest, part, why_rest=reason, is_incremental=False, is_lasting=is_lasting)


def _followed(planning: Planning, whole: DataFrame, plan: Plan, is_lasting: bool) -> KeptRows | None:
    """The view of which the changes follow from those of its tables, if they do."""
    if (changes := changes_of(plan, planning.settings)) is None:
        return None
    template, rows = (planning.template(one) for one in (planning.built(changes.plan), whole))
    note = f"by changes: those of its rows follow from {step_in_words(changes.tables, changes.still)}"
    part = Part(title=_THE_VIEW, notes=(note,), plan=shown(changes.plan), reads=names_of(changes.tables))
    followed = Followed(bases_of(changes.tables), changes.still, template, changes.is_unique)
    return KeptRows(planning, followed, rows, part, is_lasting=is_lasting)


def _over_stages(
    planning: Planning, plan: Plan, stages: Mapping[int, StageTable], why: str, is_lasting: bool
) -> KeptRows:
    """The view of which all rows are computed from those of its stages; ``why`` they are not tables."""
    over = _over_tables(plan, stages)
    why = why or needs_all_rows(over) or "they are few"
    note = f"all rows of what is below are read, and what is computed is compared: {why}"
    reads = tables_in(over).union(table.name for table in stages.values())
    part = Part(title=_THE_VIEW, notes=(note,), plan=meant(over), reads=reads)
    rest = planning.template(planning.built(over))
    kept = KeptRows(planning, None, rest, part, why_rest=FROM_HIDDEN, is_lasting=is_lasting)
    return kept.over(stages.values())


def _deep(planning: Planning, plan: Plan, stages: Sequence[StageTable]) -> KeptRows | str:
    """The view with its stages as tables, if there are many groups, and it helps; or why not."""
    if not all(table.group_outputs for table in stages):
        return ""
    if planning.view.scratch is None:
        _fill(stages)
    found = _results(planning, plan, stages)
    if not found:
        few = f"there are no more than {SHALLOW_ROWS:,} groups, beside {WHOLE_ROWS:,} rows of tables"
        return f"{few}, for {kinds}" if (kinds := needs_all_rows(plan)) else few
    looked_at = _with(plan, {number: one.planned for number, one in found.items()})
    settings = planning.settings
    is_kept = changes_of(looked_at, settings) or stages_of(looked_at, settings) or unindexed(looked_at)
    is_ordered = planning.view.must_be_incremental or any(
        _are_worth(planning, table.group_count, ORDERED_ROWS, [found[id(table.stage.node)]])
        for table in stages
    )
    has_parts = bool(is_kept or partitions_of(looked_at, settings))
    if not has_parts and not (is_ordered and _tops(planning, looked_at)):
        return _why_all(planning, looked_at)
    rest = _rest_over(planning, plan, found)
    # whether a line can be drawn is known only once the results are there: without one they are read whole
    if has_parts and not rest.is_incremental:
        return _why_all(planning, looked_at)
    return rest.over(found.values())


def _results(planning: Planning, plan: Plan, stages: Sequence[StageTable]) -> dict[int, RowsTable]:
    """The results of stages as tables, by the identity of their nodes; none if all of it is small."""
    groups = max(table.group_count for table in stages)
    beside = _rows_beside(plan, {id(table.stage.node) for table in stages})
    if _STAYS * groups <= SHALLOW_ROWS and _STAYS * beside <= WHOLE_ROWS:
        return {}
    found = {id(table.stage.node): result_table(planning, table, plan) for table in stages}
    is_small = groups <= SHALLOW_ROWS and beside <= WHOLE_ROWS
    return {} if is_small and not all(one.is_there for one in found.values()) else found


def _may_be_worth(planning: Planning, rows: int, most_whole: int) -> bool:
    """Whether parts of so many rows may be kept as tables; see `_are_worth`."""
    return planning.view.must_be_incremental or _STAYS * rows > most_whole


def _are_worth(planning: Planning, rows: int, most_whole: int, tables: Iterable[KeptTable]) -> bool:
    """Whether parts of so many rows are kept as tables: where they are many, or the tables are there."""
    if planning.view.must_be_incremental or rows > most_whole:
        return True
    return _STAYS * rows > most_whole and all(one.is_there for one in tables)


def _fill(stages: Sequence[StageTable]) -> None:
    """Bring stages without groups to where the plan reads their tables: those of a new view may have many."""
    for table in stages:
        if not table.group_count:
            table.at(versions_of(table.tables))


def _why_all(planning: Planning, plan: Plan) -> str:
    """Why all rows are read of which a plan over tables is computed."""
    if _rows_beside(plan, ()) <= WHOLE_ROWS and not planning.view.must_be_incremental:
        few = f"there are no more than {WHOLE_ROWS:,} of them"
        return f"{few}, for {kinds}" if (kinds := needs_all_rows(plan)) else few
    return why_all(plan, planning.settings)


def _parted(planning: Planning, plan: Plan, also: Collection[int] = ()) -> KeptRows | None:
    """The view with what is computed partition by partition as tables, if there are enough rows for that.

    So are aggregates of sums whose groups cannot be a key: ``also``, by their identity.
    """
    found: dict[int, PartitionTable] = {}
    for part in partitions_of(plan, planning.settings, also):
        rows = row_count(part.tables)
        if not _may_be_worth(planning, rows, WHOLE_ROWS):
            continue
        table = partition_table(
            planning, part, partial(_kept_rows, planning), looked_up(plan, part.top.columns)
        )
        if table is not None and _are_worth(planning, rows, WHOLE_ROWS, [table]):
            found[id(part.place)] = table
    return _over(planning, plan, found) if found else None


def _indexed(planning: Planning, plan: Plan) -> KeptRows | None:
    """The view with rows that joins look up without an index as tables that have it, if that helps.

    They are rows of tables, and those of UNION ALL.
    """
    united = united_in(plan, planning.settings)
    found = _kept_parts(planning, plan, united)
    inside = {id(node) for part in united if id(part.place) in found for node in walk(part.place)}
    found |= _unindexed_tables(planning, plan, inside)
    return _over_indexed(planning, plan, found) if found else None


def _unindexed_tables(planning: Planning, plan: Plan, apart: Collection[int]) -> dict[int, RowsTable]:
    """The rows of tables that lack an index as tables that have it, by their places; none if one cannot.

    Those ``apart``, by identity, are none of them.
    """
    missing = {number: one for number, one in unindexed(plan).items() if number not in apart}
    rows = sum(leaf.rows.table.rows or 0 for leaf, _ in missing.values() if leaf.rows is not None)
    if not missing or not _may_be_worth(planning, rows, WHOLE_ROWS):
        return {}
    found: dict[int, RowsTable] = {}
    # rows of another table decide what a condition with a subquery leaves: it stays above
    filters = {
        id(node.child): node
        for node in walk(plan)
        if isinstance(node, Filter) and not has_subquery(node.condition)
    }
    for number, (leaf, looked_up_by) in missing.items():
        place = filters.get(number, leaf)
        if (table := _rows_of(planning, place, leaf, looked_up_by)) is None:
            return {}
        found[id(place)] = table
    return found if _are_worth(planning, rows, WHOLE_ROWS, found.values()) else {}


def _over_indexed(planning: Planning, plan: Plan, found: Mapping[int, RowsTable]) -> KeptRows | None:
    """The view over tables with the indexes that its joins need, if more of it follows from changes then."""
    settings = planning.settings
    looked_at = _with(plan, {number: one.planned for number, one in found.items()})
    if changes_of(looked_at, settings) is None:
        parts = len(partitions_of(looked_at, settings)) + len(_tops(planning, looked_at))
        if parts + len(stages_of(looked_at, settings)) <= len(stages_of(plan, settings)):
            return _over_joins(planning, plan, looked_at, found)
    return _over(planning, plan, found)


def _over_joins(
    planning: Planning, plan: Plan, looked_at: Plan, found: Mapping[int, RowsTable]
) -> KeptRows | None:
    """The view over tables with an index, if joins of these can be kept below what needs all rows of them."""
    if _joined_tables(looked_at, planning.settings) <= _joined_tables(plan, planning.settings):
        return None
    rest = _rest_over(planning, plan, found)
    return rest.over(found.values()) if rest.is_incremental else None


def _joined_tables(plan: Plan, settings: Settings) -> int:
    """How many tables joins read whose rows follow from changes."""
    return sum(len(part.tables) for part in joined_in(plan, settings, ()))


def _tops(planning: Planning, plan: Plan) -> tuple[Top, ...]:
    """The orders with a LIMIT of which the first rows can be kept."""
    catalyst = planning.catalyst

    def row_number(node: Opaque) -> int | None:
        return None if node.ref is None else catalyst.row_number(catalyst.kept(node.ref))

    return tuple(tops_of(plan, planning.settings, row_number))


def _topped(planning: Planning, plan: Plan, most_whole: int) -> KeptRows | None:
    """The view with the first rows of larger inputs than so many as tables, for its ORDER BY … LIMIT."""
    found: dict[int, RowsTable] = {}
    for top in _tops(planning, plan):
        rows = row_count(top.tables)
        if not _may_be_worth(planning, rows, most_whole):
            continue
        must_be_there = rows <= most_whole and not planning.view.must_be_incremental
        keep = partial(_kept_rows, planning)
        if (table := top_table(planning, top, keep, must_be_there=must_be_there)) is not None:
            found[id(top.child)] = table
    return _over(planning, plan, found) if found else None


def _joined(planning: Planning, plan: Plan, stages: Collection[int]) -> KeptRows | None:
    """The view with the rows of joins of large tables as tables, where the rest needs all of them."""
    found = _kept_parts(planning, plan, joined_in(plan, planning.settings, stages))
    return _over(planning, plan, found) if found else None


def _kept_parts(planning: Planning, plan: Plan, parts: Iterable[Joined]) -> dict[int, RowsTable]:
    """Parts of a plan as tables of their rows, by their places, where these are many."""
    found: dict[int, RowsTable] = {}
    for part in parts:
        size = row_count(part.tables)
        if not _may_be_worth(planning, size, WHOLE_ROWS):
            continue
        columns = part.plan.columns
        names = [f"{COLUMN}{number}" for number in range(len(columns))]
        above = _with(plan, {id(part.place): Relation("rows", columns)})
        by = [[names[number] for number in numbers] for numbers in looked_up(above, columns)]
        rows = planning.built(part.plan).toDF(*names)
        as_built = changes_of(read_plan(planning.catalyst, rows), replace(planning.settings, sink_key=None))
        if as_built is not None and can_keep(rows.schema, by):
            kept = _kept_rows(planning, rows)
            table = rows_table(planning, part.plan, part.tables, rows, kept, by, columns)
            if _are_worth(planning, size, WHOLE_ROWS, [table]):
                found[id(part.place)] = table
    return found


def _rows_of(
    planning: Planning, place: Filter | Relation, leaf: Relation, indexes: Sequence[Sequence[Column]]
) -> RowsTable | None:
    """The rows of a table of the query, or those that a filter leaves, as a table with indexes.

    None if it cannot have them. What a condition leaves unread of the table is in its changes neither.
    """
    assert leaf.rows is not None
    assert leaf.rows.snapshot is not None
    plan = Project(place, tuple(map(Output.of, leaf.columns)))
    names = {column.id: f"{COLUMN}{number}" for number, column in enumerate(leaf.columns)}
    by = [[names[column.id] for column in one] for one in indexes]
    rows = planning.built(plan).toDF(*names.values())
    if not can_keep(rows.schema, by):
        return None
    tables = ((leaf.rows.table, leaf.rows.snapshot),)
    return rows_table(planning, plan, tables, rows, _kept_rows(planning, rows), by, leaf.columns)


def _over(planning: Planning, plan: Plan, found: Mapping[int, KeptTable]) -> KeptRows:
    """The view with tables in place of parts of its plan, over which the rest is kept."""
    return _rest_over(planning, plan, found).over(found.values())


def _rest_over(planning: Planning, plan: Plan, found: Mapping[int, KeptTable]) -> KeptRows:
    """How the rest is kept; the tables are brought to the versions that the base tables are read at."""
    over, catalyst = planning.built(_over_tables(plan, found)), planning.catalyst
    is_lasting = not catalyst.has_subqueries(catalyst.analyzed(over))
    return _kept(planning, over, read_plan(catalyst, over), is_lasting, is_over_hidden=True)


def _over_tables(plan: Plan, found: Mapping[int, KeptTable]) -> Plan:
    """The plan over tables that stand where its base tables are read."""
    versions = versions_of(tuple(read for one in found.values() for read in one.tables))
    return _with(plan, {number: one.node(versions) for number, one in found.items()})


def _kept_rows(planning: Planning, rows: DataFrame) -> KeptRows:
    """How the rows of a part of a query are kept; they have no key."""
    settings = replace(planning.settings, sink_key=None)
    plan = read_plan(planning.catalyst, rows)
    return _kept(replace(planning, settings=settings), rows, plan, is_lasting=True)


def _rows_beside(plan: Plan, stages: Collection[int]) -> int:
    """How many rows a plan reads of tables themselves, beside its stages."""
    if id(plan) in stages:
        return 0
    if isinstance(plan, Relation) and plan.rows is not None:
        return plan.rows.table.rows or 0
    return sum(_rows_beside(child, stages) for child in children(plan))


def _with(plan: Plan, nodes: Mapping[int, Plan]) -> Plan:
    """The plan with other nodes in place of some, by their identity."""
    return transform_down(plan, lambda node: nodes.get(id(node), node))
