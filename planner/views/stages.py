"""What of a query follows from its tables' changes: all, its aggregates as sums, or its joins (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from planner.optimizer import optimize_plan
from planner.plan.expressions import (
    Call,
    Column,
    Expr,
    columns_of,
    conjuncts,
    equal_columns,
    has_subquery,
)
from planner.plan.keys import is_unique_by
from planner.plan.nodes import (
    Aggregate,
    Changelog,
    DeltaJoin,
    Distinct,
    Filter,
    Generate,
    Join,
    Opaque,
    Output,
    Plan,
    Project,
    Relation,
    SignedAggregate,
    SlidingWindows,
    Union,
    Wrapper,
)
from planner.plan.sources import ManagedTable
from planner.plan.trees import (
    aggregations,
    children,
    expressions,
    reads_changes,
    static_input,
    transform_up,
    tree,
    walk,
    with_children,
)
from planner.refusals import Refused
from planner.settings import Settings
from upsert.rowkind import ROW_KIND_COLUMN

_ROW_BY_ROW = (Changelog, DeltaJoin, Filter, Generate, Project, SlidingWindows, Union, Wrapper)
"""What remembers nothing: it gives the changes of a step for those of its inputs."""

SMALL_SIDE_ROWS: Final = 5_000
"""Tables of so few rows may be joined without equality, each changed row of the others with all of them."""

_STAY_SMALL: Final = 2
"""Those that an earlier plan of the view has joined so stay so up to so many times the rows: of a table whose
size goes up and down a little, the view would be kept in another way by each process."""

Tables = tuple[tuple[ManagedTable, int], ...]
"""Tables that a query reads, each once, and the data version of each that it reads."""

Folders = frozenset[str]
"""Folders of some tables."""

_RESTING = (Filter, Join, Project, Relation, Union, Wrapper)
"""What a side may be made of that stands still."""

_KNOWN: Final = 512
"""Of so many parts of queries it is known what follows from changes: about those of one large query."""

_IDS = re.compile(r"#(-?\d+)")


@dataclass(frozen=True)
class Stage:
    """An aggregate of a query that is kept.

    Attributes:
        node: where the query has it.
        text: what it means, as a plan over the changes of its tables.
        changes: that plan, as sums; its groups are among its outputs, after the columns of the aggregate.
        tables: what it reads.
        still: folders of those tables of which a change is not followed.
    """

    node: Aggregate | Distinct
    text: str
    changes: SignedAggregate
    tables: Tables
    still: Folders

    @property
    def columns(self) -> tuple[Column, ...]:
        """Those of the aggregate itself."""
        outputs = self.changes.outputs[: len(self.node.columns)]
        return tuple(output.column for output in outputs)

    @property
    def rows(self) -> Project:
        """What goes into the sums, of the tables themselves instead of their changes; without the kind."""
        inputs = self.changes.child
        assert isinstance(inputs, Project)
        outputs = tuple(output for output in inputs.outputs if not output.column.is_row_kind)
        return Project(self.node.child, outputs)


def stages_of(plan: Plan, settings: Settings) -> tuple[Stage, ...]:
    """The aggregates of a batch query that can be kept; none of them is below another.

    An aggregate can be kept if its functions are sums, and the joins below it are delta joins: each has a key
    or an index for every lookup.
    """
    return tuple(_found(plan, replace(settings, sink_key=None), _ids()))


def has_stage(plan: Plan, settings: Settings) -> bool:
    """Whether `stages_of` finds any."""
    settings = replace(settings, sink_key=None)
    aggregates = (one for one in walk(plan) if isinstance(one, Aggregate | Distinct))
    return any(_is_stage(_Node(one), settings) for one in aggregates)


@lru_cache(maxsize=_KNOWN)
def _is_stage(node: _Node, settings: Settings) -> bool:
    assert isinstance(node.plan, Aggregate | Distinct)
    return _stage(node.plan, settings, _ids()) is not None


@dataclass(frozen=True, eq=False)
class _Node:
    """A node as the very object that it is: to compare what two plans say takes as long as to walk them."""

    plan: Plan

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Node) and other.plan is self.plan

    def __hash__(self) -> int:
        return id(self.plan)


@dataclass(frozen=True)
class Changes:
    """A query of which each row follows from the changes of its tables, with nothing kept.

    Attributes:
        plan: the changes of its rows, with their kinds.
        tables: as of a `Stage`.
        is_unique: whether the key of what they go to is proven to tell its rows apart; without one it is.
        still: as of a `Stage`.
    """

    plan: Plan
    tables: Tables
    is_unique: bool
    still: Folders


def changes_of(plan: Plan, settings: Settings) -> Changes | None:
    """The query over changes, if it is delta joins and what works row by row; None for any other.

    Each way to keep a view asks it of the same parts of its query, and all rules run over each of them.
    """
    return _changes_of(_Node(plan), settings)


@lru_cache(maxsize=_KNOWN)
def _changes_of(node: _Node, settings: Settings) -> Changes | None:
    plan = node.plan
    if isinstance(plan, Opaque) and plan.name == "Sort":
        plan = plan.inputs[0]  # a table has no order
    if any(isinstance(one, Aggregate | Opaque) for one in walk(plan)):
        return None  # they remember rows, whatever the rules make of them, which take long over a large plan
    over_changes, tables, still = _over_changes(plan, settings, _ids())
    if not tables:
        return None
    key = [column for column in over_changes.columns if column.name in (settings.sink_key or ())]
    is_unique = not settings.sink_key or is_unique_by(over_changes, key)
    trace = optimize_plan(over_changes, replace(settings, sink_key=None))
    if trace.refusals or not _is_row_by_row(trace.after):
        return None
    return Changes(trace.after, tables, is_unique, still)


def without_order(plan: Plan) -> Plan:
    """A query without the ORDER BY of its rows, which a table does not keep; one below a LIMIT stays.

    It lies below a projection where it names a column that the query leaves out.

    >>> rows = Relation("r", (Column(1, "a", "int"), Column(2, "b", "int")))
    >>> ordered = Project(Opaque("Sort", (rows,), rows.columns), (Output.of(rows.columns[0]),))
    >>> without_order(ordered).child.name
    'r'
    >>> limited = Opaque("GlobalLimit", (ordered,), ordered.columns)
    >>> without_order(limited) is limited
    True
    """
    if isinstance(plan, Opaque) and plan.name == "Sort":
        return without_order(plan.inputs[0])
    if not isinstance(plan, Filter | Project | Wrapper):
        return plan
    return with_children(plan, [without_order(child) for child in children(plan)])


@dataclass(frozen=True)
class Joined:
    """Joins of a query, or a UNION ALL, whose rows follow from their tables' changes, below something else.

    Attributes:
        place: where the query has them.
        plan: what is needed of their rows.
        tables: as of a `Stage`.
    """

    place: Plan
    plan: Project
    tables: Tables


def joined_in(plan: Plan, settings: Settings, apart: Collection[int]) -> tuple[Joined, ...]:
    """The largest parts of a batch query that join tables and of which each row follows from their changes.

    Args:
        plan: the query, which is none itself.
        settings: of the planner.
        apart: nodes that are kept in another way, by their identity.
    """
    return tuple(_joined_below(plan, plan, replace(settings, sink_key=None), apart))


def _joined_below(whole: Plan, plan: Plan, settings: Settings, apart: Collection[int]) -> Iterator[Joined]:
    if id(plan) in apart:
        return
    is_joined = any(isinstance(node, Join) for node in walk(plan)) and not isinstance(plan, Opaque)
    if is_joined and (changes := changes_of(plan, settings)) is not None:
        yield from _needed_of(whole, plan, changes.tables)
        return
    for child in children(plan):
        yield from _joined_below(whole, child, settings, apart)


def _needed_of(whole: Plan, part: Plan, tables: Tables) -> Iterator[Joined]:
    """A part of a query with the columns that are needed of it, if there are any."""
    used = _used_outside(whole, part)
    if needed := tuple(Output.of(column) for column in part.columns if column.id in used):
        yield Joined(part, Project(part, needed), tables)


def united_in(plan: Plan, settings: Settings) -> tuple[Joined, ...]:
    """The sides of joins of a batch query that are a UNION ALL, and of which each row follows from changes.

    No index of a table finds a row of several tables; one of their rows together does.
    """
    sides = (side for node in walk(plan) if isinstance(node, Join) for side in (node.left, node.right))
    settings = replace(settings, sink_key=None)
    found: list[Joined] = []
    for side in sides:
        if _is_union(side) and (changes := changes_of(side, settings)) is not None:
            found += _needed_of(plan, side, changes.tables)
    return tuple(found)


def _is_union(plan: Plan) -> bool:
    while isinstance(plan, Filter | Project | Wrapper):
        (plan,) = children(plan)
    return isinstance(plan, Union)


def _used_outside(whole: Plan, part: Plan) -> set[int]:
    """The columns that a query needs outside of a part of it."""
    if whole is part:
        return set()
    inputs = children(whole)
    named = {id for expr in expressions(whole) for id in columns_of(expr)}
    passed = {column.id for column in whole.columns}
    if isinstance(whole, Union | Opaque):  # columns meet by position, or nothing is known of them
        passed |= {column.id for child in inputs for column in child.columns}
    return named | passed | {id for child in inputs for id in _used_outside(child, part)}


def why_not(plan: Plan, settings: Settings) -> str:
    """Why neither a query nor an aggregate of it can be computed from changes."""
    lowest = _lowest(plan, replace(settings, sink_key=None))
    if not _over_changes(lowest, settings, _ids())[1]:
        return "it reads something else than managed tables"
    if refusals := _refusals(lowest, settings):
        return f"{refusals[0].reason}; {refusals[0].remedy}"
    return (
        "none of its aggregates is of sums, over rows and joins with an index for each lookup, by groups of "
        "types that a key can have, which FLOAT, DOUBLE, ARRAY, MAP and collated texts are not"
    )


def why_all(plan: Plan, settings: Settings) -> str:
    """Why all rows are read of which a plan is computed: what needs them, or why what is below does."""
    kinds, lowest = needs_all_rows(plan), _lowest(plan, replace(settings, sink_key=None))
    is_of_a_kind = isinstance(lowest, Opaque) or _kind_of_all_rows(lowest) is not None
    return kinds if kinds and (is_of_a_kind or not _refusals(lowest, settings)) else why_not(plan, settings)


def _refusals(plan: Plan, settings: Settings) -> Sequence[Refused]:
    over_changes, _, _ = _over_changes(plan, settings, _ids())
    return optimize_plan(over_changes, replace(settings, sink_key=None)).refusals


def _lowest(plan: Plan, settings: Settings) -> Plan:
    """The lowest part of a query that does not follow from the changes of its tables."""
    for child in children(plan):
        if changes_of(without_order(child), settings) is None:
            return _lowest(child, settings)
    return plan


def needs_all_rows(plan: Plan) -> str:
    """What in a plan needs all rows of its inputs, in words; "" if nothing does by its kind.

    >>> rows = Relation("r", (Column(1, "a", "int"),))
    >>> needs_all_rows(Distinct(rows, rows.columns)), needs_all_rows(Filter(rows, None))
    ('DISTINCT', '')
    >>> needs_all_rows(Opaque("Window", (rows,), rows.columns))
    'a window function over all rows'
    """
    found = dict.fromkeys(kind for node in walk(plan) if (kind := _kind_of_all_rows(node)))
    return ", ".join(found)


def _kind_of_all_rows(node: Plan) -> str | None:
    match node:
        case Opaque(name="Sort" | "LocalLimit"):
            return None
        case Opaque(name="GlobalLimit"):
            return "LIMIT"
        case Opaque(name="Window", apart=apart):
            return "a window function over all rows" if apart is None else "a window function"
        case Opaque(name=name):
            return name
        case Distinct():
            return "DISTINCT"
        case Aggregate(groups=groups, outputs=outputs):
            named = dict.fromkeys(one.name.upper() for one in aggregations(outputs))
            functions = " and ".join(named) or "DISTINCT"
            return f"{functions} of groups" if groups else f"{functions} of all rows"
        case Filter() | Project() | Join() if any(map(has_subquery, expressions(node))):
            return "a subquery that cannot be a join"
        case Join(condition=condition) if not any(
            isinstance(part, Call) and part.name in ("EqualTo", "EqualNullSafe")
            for part in conjuncts(condition)
        ):
            return "a join without equality"
    return None


def looked_up(plan: Plan, columns: Sequence[Column]) -> tuple[tuple[int, ...], ...]:
    """By which of some columns a plan's joins may look for rows, all columns that a condition names at once.

    >>> a, b, c = (Column(number, name, "int") for number, name in enumerate("abc"))
    >>> looked_up(Filter(Relation("r", (a, b, c)), Call("EqualTo", (c, b), "boolean")), [a, b])
    ((1,),)
    """
    numbers = {column.id: number for number, column in enumerate(columns)}
    found = set()
    for node in walk(plan):
        if isinstance(node, Filter | Join):
            ids = {column.id for pair in equal_columns(node.condition) for column in pair}
            if met := tuple(sorted(numbers[id] for id in ids if id in numbers)):
                found.add(met)
    return tuple(sorted(found))


def _found(plan: Plan, settings: Settings, ids: Iterator[int]) -> Iterator[Stage]:
    if isinstance(plan, Aggregate | Distinct) and (stage := _stage(plan, settings, ids)) is not None:
        yield stage
        return
    for child in children(plan):
        yield from _found(child, settings, ids)


def _stage(node: Aggregate | Distinct, settings: Settings, ids: Iterator[int]) -> Stage | None:
    if any(isinstance(one, Aggregate | Distinct) for one in walk(node.child)):
        return None  # a DISTINCT that tells nothing apart is left out: the sums are those of what is below
    over_changes, tables, still = _over_changes(node, settings, ids)
    if not tables:
        return None
    trace = optimize_plan(over_changes, settings)
    found = [one for one in walk(trace.after) if isinstance(one, SignedAggregate)]
    if trace.refusals or len(found) != 1 or not _is_row_by_row(found[0].child):
        return None
    values = [output.value for output in found[0].outputs]
    missing = (group for group in found[0].groups if group.by.value not in values)
    more = (Output(replace(group.column, id=next(ids)), group.by.value) for group in missing)
    changes = replace(found[0], outputs=(*found[0].outputs, *more))
    return Stage(node, meant(over_changes), changes, tables, still)


def _is_row_by_row(plan: Plan) -> bool:
    """Whether a plan over changes gives those of its rows for them; what stands still is any rows."""
    if not reads_changes(plan):
        return True
    is_linear = isinstance(plan, Join) and static_input(plan) is not None
    return (is_linear or isinstance(plan, _ROW_BY_ROW)) and all(map(_is_row_by_row, children(plan)))


def _over_changes(plan: Plan, settings: Settings, ids: Iterator[int]) -> tuple[Plan, Tables, Folders]:
    """The plan over the changes of its tables, its tables, and those that stand still.

    No tables if it reads anything else.
    """
    tables: dict[str, tuple[ManagedTable, int]] = {}
    still = _still(plan, settings)

    def changelog(leaf: Plan) -> Plan:
        if not isinstance(leaf, Relation) or leaf.rows is None or leaf.rows.snapshot is None:
            return leaf
        read = leaf.rows.table
        tables[read.path] = read, leaf.rows.snapshot
        if read.path in still:
            return leaf
        kind = Column(next(ids), ROW_KIND_COLUMN, "string")
        return Changelog(read.name, (*leaf.columns, kind), replace(read, scan_mode="full", asked=frozenset()))

    changed = transform_up(plan, changelog)
    found = [_folder(leaf) for leaf in walk(changed) if isinstance(leaf, Relation)]
    return changed, tuple(tables.values()) if all(one in still for one in found) else (), still


def small_sides(plan: Plan, settings: Settings) -> Folders:
    """Folders of the small tables that a query joins with others, and not by an equality of columns."""
    return frozenset(_resting(plan, (), settings.small))


def _still(plan: Plan, settings: Settings) -> Folders:
    """Folders of the small tables with which a plan joins others, and not by an equality of columns.

    Nothing finds the rows that a change there meets, so it is not followed; while they rest all others are.
    """
    found = small_sides(plan, settings)
    folders = [_folder(leaf) for leaf in walk(plan) if isinstance(leaf, Relation)]
    # one that is read elsewhere too changes there; and something must be left that changes
    return frozenset(one for one in found if folders.count(one) == 1) if set(folders) - found else frozenset()


def _resting(plan: Plan, above: tuple[Expr, ...], known: Folders) -> Iterator[str]:
    """Folders of the sides that rest.

    Args:
        plan: a query or a part of it.
        above: the conditions over it that are of the same tree of inner joins: that has no order, so two
            tables without an equality are found by way of a third.
        known: folders of the tables that an earlier plan of the view has taken for small.
    """
    conditions: tuple[Expr, ...] = ()
    match plan:
        case Join(kind="inner" | "cross", condition=condition) | Filter(condition=condition):
            conditions = (*above, *conjuncts(condition))
        case Project():
            conditions = above
    if isinstance(plan, Join) and not any(equal_columns(plan.condition)):
        yield from _small_side(plan, above, known)
    for child in children(plan):
        yield from _resting(child, conditions, known)


def _small_side(join: Join, above: tuple[Expr, ...], known: Folders) -> Iterator[str]:
    sides: tuple[Plan, ...] = ()
    match join.kind:
        case "inner" | "cross":
            sides = (
                ()
                if _is_linked(join.left, above) and _is_linked(join.right, above)
                else (join.right, join.left)
            )
        case "right outer":
            sides = (join.left,)
        case "left outer" | "left semi" | "left anti":
            sides = (join.right,)
    if small := [side for side in sides if _is_small(side, known)]:
        yield from (_folder(leaf) for leaf in walk(min(small, key=_rows_of)) if isinstance(leaf, Relation))


def _is_linked(side: Plan, above: tuple[Expr, ...]) -> bool:
    """Whether an equality above leads from a side to another table."""
    own = {column.id for column in side.columns}
    return any((one.id in own) != (other.id in own) for part in above for one, other in equal_columns(part))


def _is_small(plan: Plan, known: Folders) -> bool:
    if not all(isinstance(node, _RESTING) for node in walk(plan)):
        return False
    tables = [leaf.rows for leaf in walk(plan) if isinstance(leaf, Relation)]
    are_pinned = all(rows is not None and rows.snapshot is not None for rows in tables)
    are_known = all(rows is not None and rows.table.path in known for rows in tables)
    return are_pinned and _rows_of(plan) <= SMALL_SIDE_ROWS * (_STAY_SMALL if are_known else 1)


def _rows_of(plan: Plan) -> int:
    leaves = (leaf.rows for leaf in walk(plan) if isinstance(leaf, Relation))
    return sum(rows.table.rows or 0 for rows in leaves if rows is not None)


def _folder(leaf: Relation) -> str:
    return "" if leaf.rows is None else leaf.rows.table.path


def _ids() -> Iterator[int]:
    """Ids for the kinds of changes, each with room below it for those that rules draw."""
    return iter(range(-1_000_000, -2_000_000_000, -1_000_000))


def meant(plan: Plan) -> str:
    """A plan over tables as text, whichever of their snapshots it reads."""

    def unpinned(node: Plan) -> Plan:
        if not isinstance(node, Relation) or node.rows is None:
            return node
        return replace(node, rows=replace(node.rows, snapshot=None))

    return shown(transform_up(plan, unpinned))


def shown(plan: Plan) -> str:
    """The plan as text, whatever ids Spark has drawn: the same for the same query.

    >>> shown(Relation("r", (Column(4711, "a", "int"), Column(12, "b", "int"))))
    'Relation r [a#0: int, b#1: int]'
    """
    ids: dict[str, int] = {}
    return _IDS.sub(lambda match: f"#{ids.setdefault(match[1], len(ids))}", tree(plan))
