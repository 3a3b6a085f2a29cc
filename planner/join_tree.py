"""Joins of a query, as deep as they are nested, as one tree of a delta join (pure).

Works from the tables upwards and knows of each column what it is computed from. A maximal region of INNER
joins becomes one node whatever the order in which they are written, with all equalities of its columns. What
need not hold inside the join is left to Spark above it, see `planner.stack`; that depends on the place:

- Rows whose columns come out as they are may be filtered above the join.
- Rows that an outer join may replace by NULLs may not: a filter decides there whether a row has a match.
  Projections run above the join, but must give NULL where the row is missing.
- Of rows on the right of a semi or anti join nothing comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import count
from typing import Final

import pyarrow as pa

from deltajoin.condition_types import check_is_condition
from deltajoin.expressions import Condition, Ref, conjunction, refs_of
from deltajoin.spec import MAX_TABLES
from deltajoin.tree import Inner, Leaf, Node, On, Outer, Where, null_supplied, visible
from planner.chain import are_joinable, without_widening
from planner.conditions import Refused
from planner.delta_join import Predicate
from planner.expressions import Call, Cast, Column, Expr, columns_of, conjuncts, walk_expression
from planner.expressions import conjunction as all_of
from planner.lookup_paths import lacking_indexes
from planner.null_tolerance import Outcome, Value, in_deletes
from planner.plan import Changelog, Filter, Join, Plan, Project, Relation, Unary, Watermark, Wrapper
from planner.predicates import predicates_of
from planner.sources import ManagedTable
from planner.stack import Chained, Joined, Raw, Staged
from planner.translate import NotTranslatableError, translated
from planner.words import join_in_words
from upsert.errors import ConfigurationError


class Place(Enum):
    """What becomes of the rows of a part of the tree further up."""

    OUTSIDE = "their columns come out as they are"
    PADDED = "an outer join may put NULLs in their place"
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
_COMPUTE: Final = "compute it when the rows are written, as a column of the table"


@dataclass(frozen=True)
class JoinTree:
    """What a plan of joins is as a delta join, and what is to be done above it.

    Attributes:
        tables: the tables by number, in the order of the query.
        raw: their columns.
        node: how they are joined.
        staged: the rest of the query's joins and what lies below them.
        present: table -> its flag, of those whose flag is used.
        where: filters that each table's rows must pass, from conditions inside the tree.
        fresh: column ids that are not in use.
        faults: why there is no such delta join; then the rest means nothing.
    """

    tables: tuple[Changelog, ...]
    raw: tuple[Raw, ...]
    node: Node
    staged: Staged
    present: Mapping[int, Column]
    where: Mapping[int, tuple[Predicate, ...]]
    fresh: Iterator[int]
    faults: tuple[Refused, ...]


def join_tree(plan: Join) -> JoinTree:
    """The tree of a join; it and those below must fulfil `planner.join_conditions.JOIN_CONDITIONS`."""
    reader = _Reader()
    part = reader.part(plan, Place.OUTSIDE)
    node = reader.closed(part)
    if len(reader.tables) > MAX_TABLES:
        reader.faults.append(
            Refused(
                f"the query joins {len(reader.tables)} tables, a delta join takes {MAX_TABLES} at most",
                "write some of them into a managed table with catalog.write_changes and join its changes",
            )
        )
    if not reader.faults:
        reader.faults += lacking_indexes(node, [table_of(leaf) for leaf in reader.tables])
    where = {number: tuple(dict.fromkeys(found)) for number, found in reader.where.items()}
    used = {number: reader.flags[number] for number in sorted(reader.flags)}
    return JoinTree(
        tuple(reader.tables),
        tuple(reader.raw),
        node,
        part.staged,
        used,
        where,
        reader.fresh,
        tuple(dict.fromkeys(reader.faults)),
    )


@dataclass(frozen=True)
class _Part:
    """The rows of a plan: as parts that are all joined INNER, with what joins them.

    Attributes:
        children: what is joined; a single one is just that.
        on: equal columns of different children.
        where: what must hold besides.
        columns: id of a column of the plan -> what it is computed from, in raw columns.
        staged: what is to be done above the delta join.
        witnesses: tables of which one is there in every row.
        tried: conditions that might have been equalities, for messages.
    """

    children: tuple[Node, ...]
    on: On
    where: tuple[Condition, ...]
    columns: Mapping[int, Expr]
    staged: Staged
    witnesses: tuple[int, ...]
    tried: tuple[Expr, ...] = ()

    @property
    def visible(self) -> frozenset[int]:
        """Tables whose columns the rows have."""
        return frozenset().union(*map(visible, self.children))

    @property
    def always_there(self) -> frozenset[int]:
        """Tables of which every row has a part."""
        return self.visible.difference(*map(null_supplied, self.children))


@dataclass
class _Reader:
    tables: list[Changelog] = field(default_factory=list)
    raw: list[Raw] = field(default_factory=list)
    refs: dict[int, Ref] = field(default_factory=dict)
    flags: dict[int, Column] = field(default_factory=dict)
    where: dict[int, list[Predicate]] = field(default_factory=dict)
    faults: list[Refused] = field(default_factory=list)
    fresh: Iterator[int] = field(default_factory=lambda: count(-1, -1))

    # --- nodes -----------------------------------------------------------------------------------------

    def part(self, plan: Plan, place: Place) -> _Part:
        match plan:
            case Changelog():
                return self.leaf(plan)
            case Project():
                return self.project(plan, place)
            case Filter():
                return self.filter(plan, place)
            case Watermark() | Wrapper():
                below = self.part(plan.child, place)
                return replace(below, staged=Chained(plan, below.staged))
            case Join(kind="inner" | "cross"):
                return self.inner(plan, place)
            case Join():
                return self.outer(plan, place)
        raise AssertionError(f"the conditions of a delta join rule out {plan}")

    def leaf(self, leaf: Changelog) -> _Part:
        number = len(self.tables)
        own = tuple(replace(column, ref=None) for column in leaf.columns if not column.is_row_kind)
        hidden = tuple(replace(column, id=next(self.fresh)) for column in own)
        raw = Raw(number, own, hidden)
        self.tables.append(leaf)
        self.raw.append(raw)
        self.refs |= {column.id: Ref(number, column.name) for column in hidden}
        columns: dict[int, Expr] = {old.id: new for old, new in zip(own, hidden, strict=True)}
        return _Part((Leaf(number),), (), (), columns, raw, (number,))

    def project(self, project: Project, place: Place) -> _Part:
        below = self.part(project.child, place)
        own = [output for output in project.outputs if not output.column.is_row_kind]
        columns = {output.column.id: _substituted(output.value, below.columns) for output in own}
        present = None
        if place is Place.PADDED and not all(_is_null_for_null(output.value) for output in own):
            self.refuse_python(project)
            present = self.is_there(below)
        return replace(below, columns=columns, staged=Chained(project, below.staged, present))

    def filter(self, filter_: Filter, place: Place) -> _Part:
        below = self.part(filter_.child, place)
        below, rest = self.with_keys(below, conjuncts(filter_.condition), below.columns)
        if place is not Place.OUTSIDE:
            return self.holding(below, rest, below.columns, f"the filter {filter_.condition}")
        condition = all_of(rest)
        return below if condition is None else _chained(replace(filter_, condition=condition), below)

    def inner(self, join: Join, place: Place) -> _Part:
        left, right = self.part(join.left, place), self.part(join.right, place)
        columns = {**left.columns, **right.columns}
        own = tuple(column for column in join.columns if not column.is_row_kind)
        both = _Part(
            (*left.children, *right.children),
            (*left.on, *right.on),
            (*left.where, *right.where),
            columns,
            Joined(left.staged, right.staged, own, None),
            min(left.witnesses, right.witnesses, key=len),
            (*left.tried, *right.tried),
        )
        both, rest = self.with_keys(both, conjuncts(join.condition), columns)
        if place is not Place.OUTSIDE:
            return self.holding(both, rest, columns, f"the condition of the {join_in_words(join)}")
        return replace(both, staged=Joined(left.staged, right.staged, own, all_of(rest)))

    def outer(self, join: Join, place: Place) -> _Part:
        left_place, right_place = _places(join.kind, place)
        left, right = self.part(join.left, left_place), self.part(join.right, right_place)
        columns = {**left.columns, **right.columns}
        kind, is_swapped = KINDS[join.kind], join.kind == "right outer"
        one, other = (right, left) if is_swapped else (left, right)
        parts = conjuncts(join.condition)
        above: tuple[Expr, ...] = ()
        if kind == "semi" and place is Place.OUTSIDE:
            # a left row that fails a condition of its own does not come out, whatever the right side has
            above = tuple(part for part in parts if columns_of(part) <= left.columns.keys())
            parts = tuple(part for part in parts if part not in above)
        on, rest = self.keys_between(one, other, parts, columns)
        if not on:
            self.faults.append(_no_keys(self.names(left.visible), self.names(right.visible), parts))
            rest = ()
        what = f"the condition of the {join_in_words(join)}"
        where = tuple(found for part in rest if (found := self.condition(part, columns, what)) is not None)
        self.push(rest, columns, _decided_by(kind, one, other))
        node = Outer(kind, self.closed(one), self.closed(other), on, conjunction(*where))
        staged = Joined(left.staged, right.staged, _own(join.columns), None)
        match kind:
            case "semi" | "anti":
                condition = all_of(above)
                only = _Part((node,), (), (), left.columns, left.staged, left.witnesses)
                return only if condition is None else _chained(Filter(join.left, condition), only)
            case "full":
                witnesses = (*one.witnesses, *other.witnesses)
                return _Part((node,), (), (), self.padded(one) | self.padded(other), staged, witnesses)
            case _:
                return _Part((node,), (), (), {**one.columns, **self.padded(other)}, staged, one.witnesses)

    # --- what joins them -------------------------------------------------------------------------------

    def with_keys(
        self, part: _Part, conditions: Sequence[Expr], columns: Mapping[int, Expr]
    ) -> tuple[_Part, tuple[Expr, ...]]:
        """The part with the equalities of its children among the conditions, and the other conditions."""
        scopes = [visible(child) for child in part.children]
        on, rest = list(part.on), list[Expr]()
        for condition in conditions:
            pair = self.pair(condition, columns)
            if pair is None or any({pair[0].table, pair[1].table} <= scope for scope in scopes):
                rest.append(condition)
            else:
                on.append((min(pair), max(pair)))
        return replace(part, on=tuple(dict.fromkeys(on)), tried=(*part.tried, *rest)), tuple(rest)

    def keys_between(
        self, left: _Part, right: _Part, conditions: Sequence[Expr], columns: Mapping[int, Expr]
    ) -> tuple[On, tuple[Expr, ...]]:
        """Pairs of a column of each side that are equated, and the other conditions."""
        on, rest = dict[tuple[Ref, Ref], None](), list[Expr]()
        for condition in conditions:
            pair = self.pair(condition, columns)
            if pair is not None and pair[0].table in right.visible:
                pair = pair[1], pair[0]
            if pair is None or pair[0].table not in left.visible or pair[1].table not in right.visible:
                rest.append(condition)
            else:
                on[pair] = None
        return tuple(on), tuple(rest)

    def pair(self, condition: Expr, columns: Mapping[int, Expr]) -> tuple[Ref, Ref] | None:
        """The columns of tables that a condition equates, if it does just that."""
        match condition:
            case Call("EqualTo", (a, b)):
                one, other = (without_widening(_substituted(side, columns)) for side in (a, b))
                if isinstance(one, Column) and isinstance(other, Column) and are_joinable(one, other):
                    refs = self.refs.get(one.id), self.refs.get(other.id)
                    return None if refs[0] is None or refs[1] is None else (refs[0], refs[1])
        return None

    def closed(self, part: _Part) -> Node:
        """The part as one node; a condition of one child alone becomes a filter of it."""
        if len(part.children) > 1 and (refused := self.unconnected(part)):
            self.faults.append(refused)
        own: list[list[Condition]] = [[] for _ in part.children]
        common: list[Condition] = []
        for condition in part.where:
            tables = {ref.table for ref in refs_of(condition)}
            of = (of for of, child in zip(own, part.children, strict=True) if tables <= visible(child))
            next(of, common).append(condition)
        children = tuple(map(_where, part.children, own))
        if len(children) == 1:
            return _where(children[0], common)
        return Inner(children, part.on, conjunction(*common))

    def unconnected(self, part: _Part) -> Refused | None:
        """Why a child of the part can be looked up from no other."""
        reached = visible(part.children[0])
        rest = list(part.children[1:])
        while found := [child for child in rest if _are_joined(reached, visible(child), part.on)]:
            reached = reached.union(*map(visible, found))
            rest = [child for child in rest if child not in found]
        if not rest:
            return None
        apart = frozenset().union(*map(visible, rest))
        return _no_keys(self.names(reached), self.names(apart), part.tried)

    # --- conditions ------------------------------------------------------------------------------------

    def holding(
        self, part: _Part, conditions: Sequence[Expr], columns: Mapping[int, Expr], what: str
    ) -> _Part:
        """The part with conditions that must hold inside the join."""
        found = [self.condition(condition, columns, what) for condition in conditions]
        self.push(conditions, columns, part.always_there)
        return replace(part, where=(*part.where, *(one for one in found if one is not None)))

    def condition(self, condition: Expr, columns: Mapping[int, Expr], what: str) -> Condition | None:
        try:
            found = translated(_substituted(condition, columns), self.refs)
            check_is_condition(found, self.type_of)
        except NotTranslatableError as cause:
            reason = f"{what} must hold inside the delta join, which cannot evaluate {cause}"
        except ConfigurationError as cause:
            reason = f"{what} must hold inside the delta join: {cause}"
        else:
            return found
        self.faults.append(Refused(reason, _COMPUTE))
        return None

    def type_of(self, ref: Ref) -> pa.DataType:
        return table_of(self.tables[ref.table]).schema.type_of(ref.column)

    def push(self, conditions: Sequence[Expr], columns: Mapping[int, Expr], tables: frozenset[int]) -> None:
        """Let the store leave out the rows of these tables that fail a condition."""
        raw = Relation("raw", tuple(column for part in self.raw for column in part.hidden))
        for condition in conditions:
            for column, predicate in predicates_of(_substituted(condition, columns), raw):
                number = self.refs[column.id].table
                if number in tables:
                    self.where.setdefault(number, []).append(predicate)

    def padded(self, part: _Part) -> dict[int, Expr]:
        """The columns of a part where NULLs may take the place of a row."""
        return {number: self.null_if_missing(expr, part) for number, expr in part.columns.items()}

    def null_if_missing(self, expr: Expr, part: _Part) -> Expr:
        outcome = in_deletes(expr, dict.fromkeys(columns_of(expr), Outcome(Value.NULL)))
        if outcome is not None and outcome.value is Value.NULL:
            return expr
        never_null = [self.never_null(number) for number in part.witnesses]
        there = [Call("IsNotNull", (column,)) for column in never_null if column is not None]
        if len(there) < len(part.witnesses):
            return Call("Missing", (expr,))  # nothing tells a missing row of such a table from NULLs
        return Call("CaseWhen", (_any_of(there), expr))

    def never_null(self, number: int) -> Column | None:
        """A column of a table that no row has NULL in."""
        schema = table_of(self.tables[number]).schema
        names = {column.name for column in schema.columns if not column.nullable} | set(schema.primary_key)
        return next((column for column in self.raw[number].hidden if column.name in names), None)

    def is_there(self, part: _Part) -> Expr:
        """True where a row of the part is there, by flags of the delta join."""
        for number in part.witnesses:
            if number not in self.flags:
                self.flags[number] = Column(next(self.fresh), f"present_{number}", "boolean")
        return _any_of([self.flags[number] for number in part.witnesses])

    def refuse_python(self, project: Project) -> None:
        """Spark calls a Python function for every row, also in a CASE that does not want its result."""
        for output in project.outputs:
            if any(
                isinstance(e, Call) and e.name.startswith("PythonUDF") for e in walk_expression(output.value)
            ):
                reason = f"a Python function computes {output.column.name!r} below an outer join, "
                self.faults.append(
                    Refused(
                        f"{reason}where it would be called for rows that are missing",
                        "call it on the joined DataFrame, or when the rows are written",
                    )
                )

    def names(self, numbers: frozenset[int]) -> str:
        return " or ".join(dict.fromkeys(repr(self.tables[number].name) for number in sorted(numbers)))


def _places(kind: str, place: Place) -> tuple[Place, Place]:
    """Where the inputs of an outer, semi or anti join are."""
    supplied = Place.UNSEEN if place is Place.UNSEEN else Place.PADDED
    match kind:
        case "left outer":
            return place, supplied
        case "right outer":
            return supplied, place
        case "full outer":
            return supplied, supplied
        case _:
            return place, Place.UNSEEN


def _decided_by(kind: str, left: _Part, right: _Part) -> frozenset[int]:
    """Tables whose rows cannot come out, nor keep others from it, if they fail the ON condition."""
    match kind:
        case "left" | "anti":
            return right.always_there
        case "semi":
            return left.always_there | right.always_there
        case _:
            return frozenset()


def _no_keys(left: str, right: str, conditions: Sequence[Expr]) -> Refused:
    for condition in conditions:
        match condition:
            case Call("EqualTo", (a, b)) if columns_of(a) and columns_of(b):
                return Refused(
                    f"no equality between plain columns of both tables, {condition} compares computed values",
                    "add the computed value as a column of the table, with an INDEX",
                )
    if any(isinstance(part, Call) and part.name == "EqualNullSafe" for part in conditions):
        return Refused("no equality between columns of both tables; <=> also matches NULL", "join on =")
    return Refused(
        f"no equality between a column of {left} and one of {right}",
        "join on equal columns; any other condition may come in addition",
    )


def _are_joined(one: frozenset[int], other: frozenset[int], on: On) -> bool:
    return any((a.table in one and b.table in other) or (b.table in one and a.table in other) for a, b in on)


def _where(node: Node, conditions: Sequence[Condition]) -> Node:
    condition = conjunction(*conditions)
    return node if condition is None else Where(node, condition)


def _chained(node: Unary, below: _Part) -> _Part:
    return replace(below, staged=Chained(node, below.staged))


def _own(columns: Sequence[Column]) -> tuple[Column, ...]:
    return tuple(column for column in columns if not column.is_row_kind)


def _any_of(parts: Sequence[Expr]) -> Expr:
    whole = parts[0]
    for part in parts[1:]:
        whole = Call("Or", (whole, part))
    return whole


def _is_null_for_null(expr: Expr) -> bool:
    """Whether the expression is a column, at most converted."""
    while isinstance(expr, Cast):
        expr = expr.value
    return isinstance(expr, Column)


def _substituted(expr: Expr, columns: Mapping[int, Expr]) -> Expr:
    """The expression over what its columns are computed from."""
    match expr:
        case Column(number):
            return columns.get(number, expr)
        case Cast(value):
            return replace(expr, value=_substituted(value, columns), ref=None)
        case Call(_, args) if args:
            return replace(expr, args=tuple(_substituted(arg, columns) for arg in args), ref=None)
        case _:
            return expr


def table_of(leaf: Changelog) -> ManagedTable:
    """The table of a changelog that fulfils the conditions of a delta join."""
    if not isinstance(leaf.origin, ManagedTable):
        raise AssertionError(f"the conditions of a delta join promise managed tables, got {leaf}")
    return leaf.origin
