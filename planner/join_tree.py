"""Joins of a query, as deep as they are nested, as one tree of a delta join (pure).

Works from the tables upwards and knows of each column what it is computed from. A maximal region of INNER
joins becomes one node in whatever order they are written, with all equalities of its columns. What need not
hold inside the join is left to Spark above it; what may is a question of the side:

- Rows whose columns come out as they are may be filtered above the join.
- Rows that an outer join may replace by NULLs may not: a filter decides there whether a row has a match.
  Projections run above the join, but must give NULL where the row is missing.
- Of rows on the right of a semi or anti join nothing comes out.

A delta join emits raw columns of all its tables. The projections and filters below the joins of a query use
columns of their own input only, so they are stacked on the delta join in the order they had, one input after
the other, each passing the columns of the others on: see docs/decisions/0005.

Two inputs may use one expression id for columns of their own: Spark renews the ids of a table joined with
itself only where both would put out the same id. Then the columns of all inputs but the one being stacked
bear ids of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from itertools import count
from typing import Final

import pyarrow as pa

from deltajoin.core.costs import SharedTable, StepCost
from deltajoin.core.evaluate import split_of_join
from deltajoin.core.plans import Path, UnreachableLookup, paths_of, unreachable_lookups
from deltajoin.core.shards import TASK_ROWS, Bucketing, Split, agreeing
from deltajoin.expressions import Condition, Ref, conjunction, refs_of
from deltajoin.filters import Predicate
from deltajoin.spec import MAX_TABLES, DeltaJoinSpec, JoinedTable
from deltajoin.tree import Inner, Leaf, Node, On, Outer, Where, flattened, null_supplied, visible
from planner.plan.expressions import (
    Call,
    Cast,
    Column,
    Expr,
    Outcome,
    Value,
    are_joinable,
    columns_of,
    conjuncts,
    in_deletes,
    substituted,
    walk_expression,
    without_kinds,
    without_widening,
)
from planner.plan.expressions import conjunction as all_of
from planner.plan.nodes import (
    Changelog,
    DeltaJoin,
    Filter,
    Join,
    Output,
    Plan,
    Project,
    Relation,
    Unary,
    Watermark,
    Wrapper,
)
from planner.plan.sources import ManagedTable, index_within
from planner.plan.translate import NotTranslatableError, predicates_of, translated
from planner.plan.trees import above, join_in_words, row_kind_of
from planner.refusals import Refused
from upsert.conditions.evaluate import check_is_condition
from upsert.errors import ConfigurationError, SchemaError


@dataclass(frozen=True)
class Raw:
    """The columns of a table: under the ids that the query has for them, and under ids of their own."""

    number: int
    own: tuple[Column, ...]
    hidden: tuple[Column, ...]


@dataclass(frozen=True)
class Chained:
    """A node over an input; `present` is true where the input has a row, None if it always has."""

    node: Unary
    below: Staged
    present: Expr | None = None


@dataclass(frozen=True)
class Joined:
    """Both inputs of a join, and what its condition asks beyond the delta join."""

    left: Staged
    right: Staged
    columns: tuple[Column, ...]
    residual: Expr | None


Staged = Raw | Chained | Joined


def with_hidden_ids(staged: Staged) -> frozenset[int]:
    """Tables whose columns must bear ids of their own: one of their ids is used in another input, too."""
    match staged:
        case Raw():
            return frozenset()
        case Chained(_, below):
            return with_hidden_ids(below)
        case Joined(left, right):
            shared = _ids(left) & _ids(right)
            clashing = (raw.number for raw in _raws(staged) if not shared.isdisjoint(c.id for c in raw.own))
            return with_hidden_ids(left) | with_hidden_ids(right) | frozenset(clashing)


@dataclass(frozen=True)
class Stacker:
    """Stacks nodes on a delta join; the columns of its `hidden` tables have ids of their own in it."""

    hidden: frozenset[int]
    fresh: Iterator[int]

    def over(self, staged: Staged, plan: Plan, carried: tuple[Column, ...]) -> Plan:
        """The nodes over a plan; its `carried` columns come out as well, no node uses their ids."""
        match staged:
            case Raw(number, own, hidden):
                return _renamed(plan, hidden, own, carried) if number in self.hidden else plan
            case Chained(node, below, present):
                if isinstance(node, Project):
                    outputs = tuple(_where_present(output, present) for output in node.outputs)
                    node = replace(node, outputs=outputs)
                return above(node, self.over(below, plan, carried), carried)
            case Joined(_, _, _, residual):
                joined = self._joined(staged, plan, carried)
                return joined if residual is None else Filter(joined, residual)

    def _joined(self, staged: Joined, plan: Plan, carried: tuple[Column, ...]) -> Plan:
        left, right = _columns(staged.left), _columns(staged.right)
        raws = _raws(staged.right)
        raw = tuple(c for part in raws for c in (part.hidden if part.number in self.hidden else part.own))
        plan = self.over(staged.left, plan, (*raw, *carried))
        if _ids(staged.right).isdisjoint(column.id for column in left):
            return self.over(staged.right, plan, (*left, *carried))
        apart = tuple(replace(column, id=next(self.fresh), ref=None) for column in left)
        plan = _renamed(plan, left, apart, (*raw, *carried))
        plan = self.over(staged.right, plan, (*apart, *carried))
        return _renamed(plan, apart, left, (*right, *carried))


def _columns(staged: Staged) -> tuple[Column, ...]:
    """The columns that the nodes put out for the query, without kinds."""
    match staged:
        case Raw(_, own):
            return own
        case Chained(Project() as project, _):
            return tuple(replace(column, ref=None) for column in without_kinds(project.columns))
        case Chained(_, below):
            return _columns(below)
        case Joined(_, _, columns):
            return columns


def _where_present(output: Output, present: Expr | None) -> Output:
    """The output as it would be in a row that is NULL as a whole, where the input's row is not there."""
    value = output.value
    while isinstance(value, Cast):
        value = value.value
    if present is None or isinstance(value, Column):
        return output
    return Output(output.column, Call("CaseWhen", (present, output.value)))


def _renamed(
    plan: Plan, before: Sequence[Column], after: Sequence[Column], carried: Sequence[Column]
) -> Plan:
    pairs = zip(before, after, strict=True)
    renamed = (Output(replace(new, ref=None), replace(old, ref=None)) for old, new in pairs)
    return Project(plan, (*renamed, *map(Output.of, carried)))


def _raws(staged: Staged) -> Iterator[Raw]:
    match staged:
        case Raw():
            yield staged
        case Chained(_, below):
            yield from _raws(below)
        case Joined(left, right):
            yield from _raws(left)
            yield from _raws(right)


def _ids(staged: Staged) -> frozenset[int]:
    """All column ids that occur in the nodes."""
    match staged:
        case Raw(_, own):
            return frozenset(column.id for column in own)
        case Chained(node, below):
            return _ids(below).union(column.id for column in without_kinds(node.columns))
        case Joined(left, right):
            return _ids(left) | _ids(right)


_COMPUTE: Final = "compute it when the rows are written, as a column of the table"


@dataclass(frozen=True)
class _Facts:
    """What is known of the tables of a join when it is planned; indexes that are `assumed` are not there."""

    tables: Sequence[ManagedTable]
    selected: Sequence[tuple[str, ...]]
    assumed: frozenset[tuple[int, tuple[str, ...]]] = frozenset()

    def name(self, table: int) -> str:
        return self.tables[table].name

    def index_for(self, table: int, columns: Sequence[str]) -> str | None:
        found = index_within(self.tables[table].schema, set(columns))
        return "INDEX" if found is None and (table, tuple(columns)) in self.assumed else found

    def rows_per_key(self, table: int, columns: Sequence[str]) -> float:
        index = self.index_for(table, columns)
        return 1.0 if index is None else self.tables[table].rows_per_key.get(index, 1.0)

    def select(self, table: int) -> tuple[str, ...]:
        return self.selected[table]


def lookup_paths(join: DeltaJoin) -> tuple[Path, ...]:
    """For each table of a join, in the order in which the tables move, what its changes look up."""
    selected = [tuple(column.name for column in one.columns) for one in join.tables]
    return paths_of(flattened(join.tree), _Facts([one.table for one in join.tables], selected))


def spec_of(join: DeltaJoin, shards: int) -> DeltaJoinSpec:
    """The description of the join that its source gets."""
    limit = min(one.table.max_rows for one in join.tables)
    tables = tuple(
        JoinedTable(
            one.table.path,
            tuple(column.name for column in one.columns),
            one.filters,
            tuple(column.name for column in one.emitted) if one.compared else None,
        )
        for one in join.tables
    )
    present = tuple(number for number, _ in join.present)
    return DeltaJoinSpec(tables, join.tree, present, shards, limit, join.keep, join.is_net)


def step_cost(join: DeltaJoin, shards: int) -> StepCost | None:
    """What tasks, of so many at most, take to share a step with the changes of the tables' latest commits.

    None if these are unknown, or worth one task.
    """
    tables = [one.table for one in join.tables]
    rows = [table.changed_rows for table in tables if table.changed_rows is not None]
    spec, keys = spec_of(join, shards), [table.schema.primary_key for table in tables]
    split = split_of_join(spec, lambda ref: tables[ref.table].schema.type_of(ref.column), keys)
    tasks = min(shards, -(-sum(rows) // TASK_ROWS))
    if all(split.groups(n, _bucketing(one), one.buckets) == one.buckets for n, one in enumerate(tables)):
        tasks = agreeing(tasks, max(one.buckets for one in tables), shards)
    tasks = split.count(tasks)
    if len(rows) < len(tables) or tasks < 2:
        return None
    numbered = enumerate(zip(tables, rows, strict=True))
    return StepCost.of([_shared(split, number, *known, tasks) for number, known in numbered], tasks)


def _shared(split: Split, number: int, table: ManagedTable, rows: int, tasks: int) -> SharedTable:
    return SharedTable(
        rows,
        table.buckets,
        split.groups(number, _bucketing(table), tasks),
        is_cut_by_key=split.keeps_shards(number, table.schema.primary_key),
        is_everywhere=split.columns[number] is None,
    )


def _bucketing(table: ManagedTable) -> Bucketing:
    types = tuple(table.schema.type_of(name) for name in table.bucket_key)
    return Bucketing(table.bucket_key, types, table.buckets)


def _lacking_indexes(tree: Node, tables: Sequence[ManagedTable]) -> Iterator[Refused]:
    """What stands in the way of the lookups of a join: one refusal for each index that lacks."""
    selected = [tuple(column.name for column in table.schema.columns) for table in tables]
    assumed: frozenset[tuple[int, tuple[str, ...]]] = frozenset()
    # a path tells the first index that it lacks; with that one it would tell the next
    while found := unreachable_lookups(flattened(tree), _Facts(tables, selected, assumed)):
        for lookup in found:
            yield _lacking(lookup)
        if not all(lookup.by for lookup in found):
            return
        assumed |= {(lookup.table, lookup.by) for lookup in found}


def _lacking(lookup: UnreachableLookup) -> Refused:
    columns = ", ".join(lookup.by)
    if not columns:
        return Refused(
            f"no equality leads from {lookup.driver_name!r} to {lookup.name!r}",
            "join on equal columns; any other condition may come in addition",
        )
    return Refused(
        f"no index of {lookup.name!r} lies within its join columns ({columns})",
        f"add INDEX ({columns}) to {lookup.name}",
    )


@dataclass(frozen=True)
class JoinedRows:
    """The rows of a plan.

    Attributes:
        children: what is joined; a single one is just that.
        on: equal columns of different children.
        where: what must hold besides.
        columns: id of a column of the plan -> what it is computed from, in raw columns.
        witnesses: tables, one of which every row has a part of.
        tried: conditions that might have been equalities, for messages.
    """

    children: tuple[Node, ...]
    on: On
    where: tuple[Condition, ...]
    columns: dict[int, Expr]
    staged: Staged
    witnesses: tuple[int, ...]
    tried: tuple[Expr, ...] = ()

    @property
    def visible(self) -> frozenset[int]:
        """Tables whose columns the rows have."""
        return frozenset().union(*map(visible, self.children))

    @property
    def always_there(self) -> frozenset[int]:
        """Tables that every row has a part of."""
        return self.visible.difference(*map(null_supplied, self.children))


def _as_node(part: JoinedRows) -> Node:
    """The part as one node; a condition of one child alone becomes a filter of it."""
    own: list[list[Condition]] = [[] for _ in part.children]
    common: list[Condition] = []
    for condition in part.where:
        tables = {ref.table for ref in refs_of(condition)}
        of = (of for of, child in zip(own, part.children, strict=True) if tables <= visible(child))
        next(of, common).append(condition)
    children = tuple(map(_where, part.children, own))
    return (
        _where(children[0], common) if len(children) == 1 else Inner(children, part.on, conjunction(*common))
    )


def _unconnected(part: JoinedRows) -> tuple[frozenset[int], frozenset[int]] | None:
    """Tables that can be looked up from each other, and those that cannot be from them; None if all can."""
    reached = visible(part.children[0])
    rest = list(part.children[1:])
    while found := [child for child in rest if _are_joined(reached, visible(child), part.on)]:
        reached = reached.union(*map(visible, found))
        rest = [child for child in rest if child not in found]
    return (reached, frozenset().union(*map(visible, rest))) if rest else None


def _decided_by(kind: str, left: JoinedRows, right: JoinedRows) -> frozenset[int]:
    """Tables whose rows cannot come out, nor keep others from it, if they fail the ON condition."""
    match kind:
        case "left" | "anti":
            return right.always_there
        case "semi":
            return left.always_there | right.always_there
        case _:
            return frozenset()


def _are_joined(one: frozenset[int], other: frozenset[int], on: On) -> bool:
    return any((a.table in one and b.table in other) or (b.table in one and a.table in other) for a, b in on)


def _where(node: Node, conditions: Sequence[Condition]) -> Node:
    condition = conjunction(*conditions)
    return node if condition is None else Where(node, condition)


class JoinSide(Enum):
    """What becomes of the rows of a part of the tree further up."""

    OUTSIDE = "their columns come out as they are"
    PADDED = "an outer join may replace them by NULLs"
    UNSEEN = "they only decide whether another row comes out"


KINDS: Final[Mapping[str, str]] = {
    "inner": "inner",
    "cross": "inner",
    "left outer": "left",
    "right outer": "left",
    "full outer": "full",
    "left semi": "semi",
    "left anti": "anti",
}
"""Spark's kind of a join -> kind of a node of the tree; a right outer join is a left one turned round."""


class JoinTree:
    """What a join is as a delta join with all joins below it, and what is to be done above that.

    All of them must fulfil `JOIN_CONDITIONS`. If there are faults, nothing else of it means anything.

    Attributes:
        tables: the tables by number, in the order of the query.
        raw: their columns, under ids of each table's own: an expression over these means the same anywhere.
        row_kind: the kind of the first one.
        node: how they are joined.
        staged: the rest of the query's joins and what lies below them.
        present: table -> the column that says whether a row has a part of it, where that is asked.
        where: table -> filters that its rows must pass, from conditions inside the tree.
        faults: why it cannot be a delta join.
        fresh: column ids that are not in use.
    """

    def __init__(self, join: Join) -> None:
        self.tables: list[ManagedTable] = []
        self.raw: list[Raw] = []
        self.row_kind: Column | None = None
        self.present: dict[int, Column] = {}
        self.where: dict[int, dict[Predicate, None]] = {}
        self.faults: list[Refused] = []
        self.fresh = count(-1, -1)
        self._refs: dict[int, Ref] = {}
        # id of a column of the query -> what it is computed from, for messages
        self._computed: dict[int, Expr] = {}
        part = self._part(join, JoinSide.OUTSIDE)
        self.staged, self.node = part.staged, self._closed(part)
        self.present = dict(sorted(self.present.items()))
        if len(self.tables) > MAX_TABLES:
            reason = f"the query joins {len(self.tables)} tables, a delta join takes {MAX_TABLES} at most"
            remedy = "write some of them into a managed table with catalog.write_changes and join its changes"
            self.faults.append(Refused(reason, remedy))
        elif not self.faults:
            self.faults += _lacking_indexes(self.node, self.tables)

    def _part(self, plan: Plan, side: JoinSide) -> JoinedRows:
        match plan:
            case Changelog():
                return self._leaf(plan)
            case Project():
                return self._project(plan, side)
            case Filter():
                return self._filter(plan, side)
            case Watermark() | Wrapper():
                below = self._part(plan.child, side)
                return replace(below, staged=Chained(plan, below.staged))
            case Join():
                return self._inner(plan, side) if KINDS[plan.kind] == "inner" else self._outer(plan, side)
        raise AssertionError(f"the conditions of a delta join rule out {plan}")

    def _leaf(self, leaf: Changelog) -> JoinedRows:
        if not isinstance(leaf.origin, ManagedTable):
            raise AssertionError(f"the conditions of a delta join promise managed tables, got {leaf}")
        number = len(self.tables)
        own = tuple(replace(column, ref=None) for column in without_kinds(leaf.columns))
        hidden = tuple(replace(column, id=next(self.fresh)) for column in own)
        self.tables.append(leaf.origin)
        self.raw.append(raw := Raw(number, own, hidden))
        self.row_kind = self.row_kind or row_kind_of(leaf)
        self._refs |= {column.id: Ref(number, column.name) for column in hidden}
        columns: dict[int, Expr] = {old.id: new for old, new in zip(own, hidden, strict=True)}
        return JoinedRows((Leaf(number),), (), (), columns, raw, (number,))

    def _project(self, project: Project, side: JoinSide) -> JoinedRows:
        below = self._part(project.child, side)
        own = [output for output in project.outputs if not output.column.is_row_kind]
        columns = {output.column.id: substituted(output.value, below.columns) for output in own}
        self._computed |= columns
        present = None
        if side is JoinSide.PADDED and not all(_is_null_for_null(output.value) for output in own):
            self._refuse_python(project)
            present = self._is_there(below.witnesses)
        return replace(below, columns=columns, staged=Chained(project, below.staged, present))

    def _filter(self, filter_: Filter, side: JoinSide) -> JoinedRows:
        below = self._part(filter_.child, side)
        below, rest = self._with_keys(below, conjuncts(filter_.condition))
        if side is not JoinSide.OUTSIDE:
            return self._holding(below, rest, f"the filter {filter_.condition}")
        condition = all_of(rest)
        return below if condition is None else _chained(replace(filter_, condition=condition), below)

    def _inner(self, join: Join, side: JoinSide) -> JoinedRows:
        left, right = self._part(join.left, side), self._part(join.right, side)
        own = without_kinds(join.columns)
        both = JoinedRows(
            (*left.children, *right.children),
            (*left.on, *right.on),
            (*left.where, *right.where),
            {**left.columns, **right.columns},
            Joined(left.staged, right.staged, own, None),
            min(left.witnesses, right.witnesses, key=len),
            (*left.tried, *right.tried),
        )
        both, rest = self._with_keys(both, conjuncts(join.condition))
        if side is not JoinSide.OUTSIDE:
            return self._holding(both, rest, f"the condition of the {join_in_words(join)}")
        return replace(both, staged=Joined(left.staged, right.staged, own, all_of(rest)))

    def _outer(self, join: Join, side: JoinSide) -> JoinedRows:
        left_side, right_side = _sides(join.kind, side)
        left, right = self._part(join.left, left_side), self._part(join.right, right_side)
        columns = {**left.columns, **right.columns}
        kind, is_swapped = KINDS[join.kind], join.kind == "right outer"
        one, other = (right, left) if is_swapped else (left, right)
        parts = conjuncts(join.condition)
        above: tuple[Expr, ...] = ()
        if kind == "semi" and side is JoinSide.OUTSIDE:
            # a left row that fails a condition of its own does not come out, whatever the right side has
            above = tuple(part for part in parts if columns_of(part) <= left.columns.keys())
            parts = tuple(part for part in parts if part not in above)
        on, rest = self._keys_between(one, other, parts, columns)
        if not on:
            self.faults.append(self._no_keys(left.visible, right.visible, parts))
            rest = ()
        what = f"the condition of the {join_in_words(join)}"
        where = [self._condition(part, columns, what) for part in rest]
        self._push(rest, columns, _decided_by(kind, one, other))
        node = Outer(kind, self._closed(one), self._closed(other), on, conjunction(*where))
        staged = Joined(left.staged, right.staged, without_kinds(join.columns), None)
        match kind:
            case "semi" | "anti":
                condition = all_of(above)
                only = JoinedRows((node,), (), (), left.columns, left.staged, left.witnesses)
                return only if condition is None else _chained(Filter(join.left, condition), only)
            case "full":
                columns = self._padded(one) | self._padded(other)
                witnesses = (*one.witnesses, *other.witnesses)
            case _:
                columns, witnesses = one.columns | self._padded(other, [key for _, key in on]), one.witnesses
        return JoinedRows((node,), (), (), columns, staged, witnesses)

    def _with_keys(self, part: JoinedRows, conditions: Sequence[Expr]) -> tuple[JoinedRows, tuple[Expr, ...]]:
        """The part with the equalities of its children among the conditions, and the other conditions."""
        scopes = [visible(child) for child in part.children]
        on, rest = list(part.on), list[Expr]()
        for condition in conditions:
            pair = self._pair(condition, part.columns)
            if pair is None or any({pair[0].table, pair[1].table} <= scope for scope in scopes):
                rest.append(condition)
            else:
                on.append((min(pair), max(pair)))
        return replace(part, on=tuple(dict.fromkeys(on)), tried=(*part.tried, *rest)), tuple(rest)

    def _keys_between(
        self, left: JoinedRows, right: JoinedRows, conditions: Sequence[Expr], columns: Mapping[int, Expr]
    ) -> tuple[On, tuple[Expr, ...]]:
        """Pairs of a column of each side that are equated, and the other conditions."""
        on, rest = dict[tuple[Ref, Ref], None](), list[Expr]()
        for condition in conditions:
            pair = self._pair(condition, columns)
            if pair is not None and pair[0].table in right.visible:
                pair = pair[1], pair[0]
            if pair is None or pair[0].table not in left.visible or pair[1].table not in right.visible:
                rest.append(condition)
            else:
                on[pair] = None
        return tuple(on), tuple(rest)

    def _closed(self, part: JoinedRows) -> Node:
        """The part as one node; it is a fault if some of its children can be looked up from no other."""
        if apart := _unconnected(part):
            self.faults.append(self._no_keys(*apart, part.tried))
        return _as_node(part)

    def _holding(self, part: JoinedRows, conditions: Sequence[Expr], what: str) -> JoinedRows:
        """The part with conditions that must hold inside the join."""
        found = (self._condition(condition, part.columns, what) for condition in conditions)
        where = (*part.where, *(one for one in found if one is not None))
        self._push(conditions, part.columns, part.always_there)
        return replace(part, where=where)

    def _padded(self, part: JoinedRows, keys: Sequence[Ref] = ()) -> dict[int, Expr]:
        """The columns of a part where NULLs may take the place of a row; it never has NULL in the keys."""
        return {
            number: self._null_if_missing(expr, part.witnesses, keys) for number, expr in part.columns.items()
        }

    def _refuse_python(self, project: Project) -> None:
        """Spark calls a Python function for every row, also in a CASE that does not want its result."""
        for output in project.outputs:
            calls = (part for part in walk_expression(output.value) if isinstance(part, Call))
            if any(call.name.startswith("PythonUDF") for call in calls):
                reason = (
                    f"a Python function computes {output.column.name!r} below an outer join, where it would "
                    "be called for rows that are missing"
                )
                remedy = "call it on the joined DataFrame, or when the rows are written"
                self.faults.append(Refused(reason, remedy))

    def _pair(self, condition: Expr, columns: Mapping[int, Expr]) -> tuple[Ref, Ref] | None:
        """The columns of tables that a condition equates, if it does just that."""
        match condition:
            case Call("EqualTo", (a, b)):
                one, other = (without_widening(substituted(side, columns)) for side in (a, b))
                if isinstance(one, Column) and isinstance(other, Column) and are_joinable(one, other):
                    refs = self._refs.get(one.id), self._refs.get(other.id)
                    return None if refs[0] is None or refs[1] is None else (refs[0], refs[1])
        return None

    def _condition(self, condition: Expr, columns: Mapping[int, Expr], what: str) -> Condition | None:
        """The condition for the tree; None if it cannot be there, which is a fault. `what` is it in words."""
        try:
            found = translated(substituted(condition, columns), self._refs)
            check_is_condition(found, self._type_of)
        except NotTranslatableError as cause:
            reason = f"{what} must hold inside the delta join, which cannot evaluate {cause}"
        except (ConfigurationError, SchemaError) as cause:
            reason = f"{what} must hold inside the delta join: {cause}"
        else:
            return found
        self.faults.append(Refused(reason, _COMPUTE))
        return None

    def _type_of(self, ref: Ref) -> pa.DataType:
        return self.tables[ref.table].schema.type_of(ref.column)

    def _push(self, conditions: Sequence[Expr], columns: Mapping[int, Expr], tables: frozenset[int]) -> None:
        """Let the store leave out the rows of these tables that fail a condition."""
        raw = Relation("raw", tuple(column for part in self.raw for column in part.hidden))
        for condition in conditions:
            for column, predicate in predicates_of(substituted(condition, columns), raw):
                number = self._refs[column.id].table
                if number in tables:
                    self.where.setdefault(number, {})[predicate] = None

    def _null_if_missing(self, expr: Expr, witnesses: Sequence[int], keys: Sequence[Ref] = ()) -> Expr:
        """The expression, or NULL where a row is not there, which has a part of one of these tables.

        For conditions inside the join, which know no flags. `keys` are columns that have a value wherever the
        row is there: it would match nothing otherwise.
        """
        outcome = in_deletes(expr, dict.fromkeys(columns_of(expr), Outcome(Value.NULL)))
        if outcome is not None and outcome.value is Value.NULL:
            return expr
        if keys:
            return Call("CaseWhen", (Call("IsNotNull", (self._column(keys[0]),)), expr))
        never_null = [self._never_null(number) for number in witnesses]
        there = [Call("IsNotNull", (column,)) for column in never_null if column is not None]
        if len(there) < len(witnesses):
            return Call("Missing", (expr,))  # nothing tells a missing row of such a table from NULLs
        return Call("CaseWhen", (_any_of(there), expr))

    def _column(self, ref: Ref) -> Column:
        return next(column for column in self.raw[ref.table].hidden if column.name == ref.column)

    def _never_null(self, number: int) -> Column | None:
        """A column of a table that no row has NULL in."""
        schema = self.tables[number].schema
        names = {column.name for column in schema.columns if not column.nullable} | set(schema.primary_key)
        return next((column for column in self.raw[number].hidden if column.name in names), None)

    def _is_there(self, witnesses: Sequence[int]) -> Expr:
        """True where a row exists that has a part of one of these tables, by flags of the delta join."""
        for number in witnesses:
            if number not in self.present:
                self.present[number] = Column(next(self.fresh), f"present_{number}", "boolean")
        return _any_of([self.present[number] for number in witnesses])

    def _no_keys(self, left: frozenset[int], right: frozenset[int], conditions: Sequence[Expr]) -> Refused:
        """That no condition equates columns of these tables, and what the conditions do instead."""
        for condition in conditions:
            match condition:
                case Call("EqualTo", (a, b)) if columns_of(a) and columns_of(b):
                    return self._computed_keys(condition, a, b)
        if any(isinstance(part, Call) and part.name == "EqualNullSafe" for part in conditions):
            return Refused("no equality between columns of both tables; <=> also matches NULL", "join on =")
        return Refused(
            f"no equality between a column of {self._names(left)} and one of {self._names(right)}",
            "join on equal columns; any other condition may come in addition",
        )

    def _computed_keys(self, condition: Expr, *sides: Expr) -> Refused:
        """That a condition equates what is computed; a full outer join makes one key of two."""
        values = (substituted(side, self._computed) for side in sides)
        if any(isinstance(value, Call) and value.name == "Coalesce" for value in values):
            return Refused(
                f"{condition} compares a key that is computed of several columns by coalesce, as a full "
                "outer join USING does, and no index has it",
                "join on a column of one table, or write the full outer join into a managed table with an "
                "INDEX of that key and join its changes",
            )
        return Refused(
            f"no equality between plain columns of both tables, {condition} compares computed values",
            "add the computed value as a column of the table, with an INDEX",
        )

    def _names(self, numbers: frozenset[int]) -> str:
        return " or ".join(dict.fromkeys(repr(self.tables[number].name) for number in sorted(numbers)))


def _any_of(parts: Sequence[Expr]) -> Expr:
    return reduce(lambda whole, part: Call("Or", (whole, part)), parts)


def _sides(kind: str, side: JoinSide) -> tuple[JoinSide, JoinSide]:
    """Where the inputs of an outer, semi or anti join are."""
    supplied = JoinSide.UNSEEN if side is JoinSide.UNSEEN else JoinSide.PADDED
    match kind:
        case "left outer":
            return side, supplied
        case "right outer":
            return supplied, side
        case "full outer":
            return supplied, supplied
        case _:
            return side, JoinSide.UNSEEN


def _chained(node: Unary, below: JoinedRows) -> JoinedRows:
    return replace(below, staged=Chained(node, below.staged))


def _is_null_for_null(expr: Expr) -> bool:
    """Whether the expression is a column, at most converted."""
    while isinstance(expr, Cast):
        expr = expr.value
    return isinstance(expr, Column)
