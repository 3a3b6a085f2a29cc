"""Joins of a query, as deep as they are nested, as one tree of a delta join (pure).

Works from the tables upwards and knows of each column what it is computed from. A maximal region of INNER
joins becomes one node in whatever order they are written, with all equalities of its columns. What need not
hold inside the join is left to Spark above it; what may is a question of the side:

- Rows whose columns come out as they are may be filtered above the join.
- Rows that an outer join may replace by NULLs may not: a filter decides there whether a row has a match.
  Projections run above the join, but must give NULL where the row is missing.
- Of rows on the right of a semi or anti join nothing comes out.

The projections and filters below the joins are stacked on it afterwards, see `planner.stacking`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from itertools import count
from typing import Final

import pyarrow as pa

from deltajoin.expressions import Condition, Ref, conjunction, refs_of
from deltajoin.filters import Predicate
from deltajoin.spec import MAX_TABLES
from deltajoin.tree import Inner, Leaf, Node, On, Outer, Where, null_supplied, visible
from planner.join_spec import lacking_indexes
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
    Filter,
    Join,
    Plan,
    Project,
    Relation,
    Unary,
    Watermark,
    Wrapper,
)
from planner.plan.sources import ManagedTable
from planner.plan.translate import NotTranslatableError, predicates_of, translated
from planner.plan.trees import join_in_words, row_kind_of
from planner.refusals import Refused
from planner.stacking import Chained, Joined, Raw, Staged
from upsert.conditions.evaluate import check_is_condition
from upsert.errors import ConfigurationError, SchemaError

_COMPUTE: Final = "compute it when the rows are written, as a column of the table"


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
            self.faults += lacking_indexes(self.node, self.tables)

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
        names = {column.name for column in schema.columns if not column.may_be_null} | set(schema.primary_key)
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
                case Call("Or", (Call("EqualTo") as equal, Call("IsNull", (Call("EqualTo") as same,)))):
                    if same == equal:
                        return Refused(
                            f"NOT IN takes no row where {equal} is NULL, so a NULL would match all rows",
                            "write NOT EXISTS with that equality, to which a NULL is equal to nothing",
                        )
        if any(isinstance(part, Call) and part.name == "EqualNullSafe" for part in conditions):
            return Refused("no equality between columns of both tables; <=> also matches NULL", "join on =")
        return Refused(
            f"no equality between a column of {self._names(left)} and one of {self._names(right)}",
            "join on equal columns; any other condition may come in addition",
        )

    def _computed_keys(self, condition: Expr, *sides: Expr) -> Refused:
        """That a condition equates what is computed; a full outer join makes one key of two."""
        values = (substituted(side, self._computed) for side in sides)
        if any(_is_key_of_several(value) for value in values):
            return Refused(
                f"{condition} compares a key that is computed of several columns by coalesce, as a full "
                "outer join USING does, and no index has it",
                "join on a column of one table, or write the full outer join into a managed table with an "
                "INDEX of that key and join its changes",
            )
        return Refused(
            f"no equality between plain columns of both tables, {condition} compares computed values",
            "store the computed value in a column of the table, with an INDEX",
        )

    def _names(self, numbers: frozenset[int]) -> str:
        return " or ".join(dict.fromkeys(repr(self.tables[number].name) for number in sorted(numbers)))


def _is_key_of_several(expr: Expr) -> bool:
    """Whether an expression is the first of several columns that is not NULL."""
    return isinstance(expr, Call) and expr.name == "Coalesce" and len(columns_of(expr)) > 1


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
