"""Upserts by key: which columns of a plan hold the key, and what a sink must be keyed by (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import islice, product
from typing import Final

from planner.plan.chains import chain_of
from planner.plan.expressions import (
    Call,
    Column,
    Expr,
    Literal,
    columns_of,
    conjuncts,
    folded_integer,
    without_ids,
    without_widening,
)
from planner.plan.nodes import (
    Aggregate,
    Changelog,
    Distinct,
    Filter,
    Generate,
    GroupBy,
    Join,
    LookupChanges,
    Normalized,
    Output,
    Plan,
    Project,
    RegularJoin,
    Relation,
    SignedAggregate,
    SlidingWindows,
    Union,
    Upserts,
    Watermark,
    Wrapper,
)
from planner.plan.sources import KafkaTopic, ManagedTable, Mode
from upsert.schema import TableSchema
from upsert.stream_keys import UniqueKeys, UpsertKey

UNLESS_GONE: Final = "UnlessGone"
"""Call of (kind, value): the value, or NULL for a group that is gone."""

AGGREGATE: Final = UpsertKey(()).of
"""What an aggregate is called as a source of upserts."""

KIND_IF: Final = "KindIf"
"""Call of (kind, condition): the kind where the condition is true, else `-D`; of (kind) alone: the kind."""


def is_marked(output: Output) -> bool:
    """Whether a column is such a kind."""
    return isinstance(output.value, Call) and output.value.name == KIND_IF


@dataclass(frozen=True)
class GroupKey:
    """One GROUP BY expression, and the columns of a plan that hold it, or the start or end of its window."""

    name: str
    ids: frozenset[int]
    window_ids: frozenset[int] = frozenset()


def group_keys(plan: Plan) -> tuple[GroupKey, ...] | None:
    """The key of the upserts that a plan gives; None where it gives none, or those of a topic."""
    match plan:
        case SignedAggregate(groups=groups, outputs=outputs):
            return tuple(held_by(group.by, outputs) for group in groups)
        case Changelog(columns=columns, origin=Upserts(UpsertKey(keys=names))):
            return tuple(
                GroupKey(" or ".join(held), frozenset(c.id for c in columns if c.name in held))
                for held in names
            )
        case Project(child, outputs):
            below = group_keys(child)
            return None if below is None else tuple(_followed(key, outputs) for key in below)
        case Filter() | Watermark() | Wrapper():
            return group_keys(plan.child)
        case _:
            return None


def upsert_key(plan: Plan) -> UpsertKey:
    """The key of a plan that gives upserts, by the names of its columns."""
    keys = group_keys(plan) or ()
    held = tuple(tuple(column.name for column in plan.columns if column.id in key.ids) for key in keys)
    constants = tuple(column.name for column in plan.columns if _is_constant(column, plan))
    return replace(_made_by(plan), keys=held, constants=constants)


def _made_by(plan: Plan) -> UpsertKey:
    """The key that the source of the upserts has, for what else it says of them."""
    match chain_of(plan).leaf:
        case Changelog(origin=Upserts(key)):
            return key
        case _:
            return UpsertKey(())


def uses_keys_only(expr: Expr, keys: Sequence[GroupKey]) -> bool:
    """Whether an expression is computed from group keys and constants: it has a value also in a delete."""
    if isinstance(expr, Column):
        return any(expr.id in key.ids for key in keys)
    return all(uses_keys_only(arg, keys) for arg in expr.args)


def sink_is_keyed_by_groups(plan: Plan, sink_key: Sequence[str]) -> str | None:
    """The sink must replace a row exactly where the upserts have another one of the same key."""
    keys = group_keys(plan) or ()
    what = "group" if _made_by(plan).of == AGGREGATE else "upsert key"
    if not sink_key:
        return "the sink has no primary key"
    found: set[GroupKey] = set()
    for name in sink_key:
        column = next((column for column in plan.columns if column.name == name), None)
        if column is None:
            return f"the sink's key column {name!r} is no column of the query"
        held = {key for key in keys if column.id in key.ids}
        if not held and not _is_constant(column, plan):
            return f"the sink's key column {name!r} is no {what} column"
        found |= held
    missing = [key.name for key in keys if key not in found]
    if missing:
        return f"the sink's key ({', '.join(sink_key)}) lacks the {what} column(s) {', '.join(missing)}"
    return None


def held_by(by: GroupBy, outputs: Sequence[Output]) -> GroupKey:
    """The key of one GROUP BY expression, as the columns of its aggregate hold it."""
    value = without_widening(by.value)
    same = frozenset(o.column.id for o in outputs if without_widening(o.value) == value)
    if by.window is None or not isinstance(value, Column):
        return GroupKey(without_ids(value), same)
    parts = frozenset(o.column.id for o in outputs if _is_part_of(o.value, frozenset({value.id})))
    return GroupKey(value.name, same | parts, same)


def _followed(key: GroupKey, outputs: Sequence[Output]) -> GroupKey:
    """The key as it is known above a projection."""
    same = frozenset(o.column.id for o in outputs if _is_one_of(o.value, key.ids))
    whole = frozenset(o.column.id for o in outputs if _is_one_of(o.value, key.window_ids))
    parts = frozenset(o.column.id for o in outputs if _is_part_of(o.value, key.window_ids))
    return GroupKey(key.name, same | parts, whole)


def _is_one_of(expr: Expr, ids: frozenset[int]) -> bool:
    inner = without_widening(expr)
    return isinstance(inner, Column) and inner.id in ids


def _is_part_of(expr: Expr, windows: frozenset[int]) -> bool:
    """Whether the expression is a window's start or end: windows have one length, so either tells."""
    match without_widening(expr):
        case Call("GetStructField", (Column(number),)):
            return number in windows
        case _:
            return False


def _is_constant(column: Column, plan: Plan) -> bool:
    match plan:
        case Project(child, outputs):
            value = next((o.value for o in outputs if o.column == column), None)
            return isinstance(value, Literal) or (isinstance(value, Column) and _is_constant(value, child))
        case SignedAggregate(outputs=outputs):
            return any(o.column == column and isinstance(o.value, Literal) for o in outputs)
        case Changelog(origin=Upserts(UpsertKey(constants=names))):
            return column.name in names and column in plan.columns
        case Filter() | Watermark() | Wrapper():
            return _is_constant(column, plan.child)
        case _:
            return False


_MOST: Final = 16
"""Keys that are followed at most, the smallest ones: joins of many tables have very many."""

Ids = frozenset[int]

Parts = tuple[tuple[str, ...], ...]
"""A key by names: for each part the columns that hold it, any of which will do."""


def is_unique_by(plan: Plan, columns: Iterable[Column]) -> bool:
    """Whether no two rows of the plan can be equal in these columns at any time.

    Known of tables, topics and normalized streams with a key; a topic of changes may repeat them, and counts
    as one without.

    >>> from planner.plan.expressions import Column
    >>> orders = Changelog("orders", (Column(1, "id", "bigint"),), Normalized(("id",), None))
    >>> is_unique_by(orders, orders.columns), is_unique_by(orders, [])
    (True, False)
    """
    found = _facts(plan, _checked_keys)
    return found.has_key_within(column.id for column in columns)


def unique_keys(plan: Plan) -> UniqueKeys:
    """The unique keys of a plan by the names of its columns, the smallest ones first; none if none is known.

    A PRIMARY KEY that a topic of changes declares is believed, as in Flink.

    >>> from planner.plan.expressions import Column
    >>> orders = Changelog("orders", (Column(1, "id", "bigint"),), Normalized(("id",), None))
    >>> str(unique_keys(orders))
    '(id)'
    """
    found = _facts(plan, _declared_keys)
    held = {
        number: tuple(c.name for c in plan.columns if found.stands_for(c.id) == number)
        for key in found.keys
        for number in key
    }
    return UniqueKeys(tuple(tuple(held[number] for number in sorted(key)) for key in found.keys))


@dataclass(frozen=True)
class _Facts:
    """What is known of the rows of a plan.

    Attributes:
        keys: its unique keys; each column is the first of those that are equal to it, none has one value.
        same: for a column the first of those that are equal to it in each row, NULL to NULL.
        constants: columns of one value, and which; None where it is not known.
        filled: columns that are never NULL.
    """

    keys: tuple[Ids, ...] = ()
    same: Mapping[int, int] = field(default_factory=dict)
    constants: Mapping[int, Literal | None] = field(default_factory=dict)
    filled: Ids = frozenset()

    def stands_for(self, column: int) -> int:
        return self.same.get(column, column)

    def reduced(self, columns: Iterable[int]) -> Ids:
        """The columns as keys have them."""
        fixed = {self.stands_for(column) for column in self.constants}
        return frozenset(self.stands_for(column) for column in columns) - fixed

    def has_key_within(self, columns: Iterable[int]) -> bool:
        given = self.reduced(columns)
        return any(key <= given for key in self.keys)

    def with_keys(self, keys: Iterable[Iterable[int]]) -> _Facts:
        """The same, with these keys in place of its own."""
        found: list[Ids] = []
        for key in sorted(set(map(self.reduced, keys)), key=lambda key: (len(key), sorted(key))):
            if not any(smaller <= key for smaller in found):
                found.append(key)
        return replace(self, keys=tuple(found[:_MOST]))

    def equating(self, pairs: Iterable[tuple[int, int]]) -> _Facts:
        """The same, where these pairs of columns are equal."""
        same = dict(self.same)
        for one, other in pairs:
            first, second = sorted((same.get(one, one), same.get(other, other)))
            same |= {column: first for column, stands in same.items() if stands == second}
            same |= {second: first, one: first, other: first}
        return replace(self, same=same).with_keys(self.keys)


def _facts(plan: Plan, leaf_keys: Callable[[Changelog], Iterable[Parts]]) -> _Facts:
    def below(child: Plan) -> _Facts:
        return _facts(child, leaf_keys)

    match plan:
        case Project():
            return _projected(below(plan.child), plan)
        case Filter(child, condition):
            return _filtered(below(child), condition)
        case Watermark() | Wrapper():
            return below(plan.child)
        case Distinct(child, keys):
            found = below(child)
            own = (key.id for key in keys if not key.is_row_kind)
            return found.with_keys([*found.keys, own])
        case Aggregate():
            return _aggregated(below(plan.child), plan)
        case Union(inputs):
            return _united([below(one) for one in inputs], inputs)
        case Generate(child, generator, made):
            found = below(child)
            is_numbered = isinstance(generator, Call) and generator.name == "PosExplode"
            return found.with_keys(key | {made[0].id} for key in found.keys if is_numbered)
        case SlidingWindows(child, made):
            found = below(child)
            return found.with_keys(key | {made.id} for key in found.keys)
        case RegularJoin(left, right, condition):
            return _joined(below(left), below(right), _Sides(left, right), "inner", condition)
        case Join(left, right, kind, condition):
            return _joined(below(left), below(right), _Sides(left, right), kind, condition)
        case Changelog(columns=columns):
            return _of_leaf(columns, leaf_keys(plan), plan)
        case Relation(columns=columns, rows=rows) if rows is not None:
            return _of_leaf(columns, _keys_of_table(rows.table.schema), plan)
        case _:
            return _Facts()


def _of_leaf(columns: tuple[Column, ...], keys: Iterable[Parts], leaf: Changelog | Relation) -> _Facts:
    """A key counts if its columns are read."""
    ids = {column.name: column.id for column in columns}
    origin = leaf.origin if isinstance(leaf, Changelog) else None
    fixed = origin.key.constants if isinstance(origin, Upserts) else ()
    known = [tuple(tuple(ids[name] for name in names if name in ids) for names in key) for key in keys]
    chosen = [choice for key in known for choice in islice(product(*key), _MOST)]
    filled = frozenset(ids[name] for name in _filled_columns(leaf) if name in ids)
    constants = {ids[name]: None for name in fixed if name in ids}
    return _Facts(constants=constants, filled=filled).with_keys(chosen)


def _checked_keys(leaf: Changelog) -> Iterator[Parts]:
    """The keys that this project itself makes sure of."""
    match leaf.origin:
        case ManagedTable(schema=schema):
            yield from _keys_of_table(schema)
        case KafkaTopic(schema=schema, mode=Mode.ALL | Mode.CDC_NORMALIZED) if schema.primary_key:
            yield _plain(schema.primary_key)
        case Normalized(key) if key:
            yield _plain(key)


def _declared_keys(leaf: Changelog) -> Iterator[Parts]:
    """Those, those that topics declare, and those by which upserts replace each other."""
    match leaf.origin:
        case KafkaTopic(schema=schema) if schema.primary_key:
            yield _plain(schema.primary_key)
        case Upserts(key) | LookupChanges(Upserts(key)):
            yield key.keys
        case _:
            yield from _checked_keys(leaf)


def _keys_of_table(schema: TableSchema) -> Iterator[Parts]:
    """The primary key, and unique indexes over columns without NULL."""
    if schema.primary_key:
        yield _plain(schema.primary_key)
    filled = _never_null(schema)
    for index in schema.indexes:
        if index.unique and filled.issuperset(index.columns):
            yield _plain(index.columns)


def _plain(names: Iterable[str]) -> Parts:
    return tuple((name,) for name in names)


def _filled_columns(leaf: Changelog | Relation) -> frozenset[str]:
    match leaf:
        case Relation(rows=rows) if rows is not None:
            return _never_null(rows.table.schema)
        case Changelog(origin=ManagedTable(schema=schema)):
            return _never_null(schema)
        case Changelog(origin=KafkaTopic(schema=schema)):
            return frozenset(schema.primary_key)
        case Changelog(origin=Normalized(key)):
            return frozenset(key)
        case _:
            return frozenset()


def _never_null(schema: TableSchema) -> frozenset[str]:
    return frozenset((*schema.primary_key, *(c.name for c in schema.columns if not c.nullable)))


def _projected(child: _Facts, plan: Project) -> _Facts:
    """Columns that are passed on, renamed or widened stand for those below."""
    holders: dict[int, list[int]] = {}
    constants: dict[int, Literal | None] = {}
    filled = set()
    for output in plan.outputs:
        value, number = folded_integer(without_widening(output.value)), output.column.id
        if isinstance(value, Literal):
            constants[number] = value
            filled |= set() if value.value is None else {number}
        if not isinstance(value, Column) or value.is_row_kind:
            continue
        below = child.stands_for(value.id)
        holders.setdefault(below, []).append(number)
        filled |= {number} if value.id in child.filled else set()
        if value.id in child.constants:
            constants[number] = child.constants[value.id]
    found = _Facts(constants=constants, filled=frozenset(filled))
    found = found.equating((first, one) for first, *others in holders.values() for one in others)
    kept = [[holders[one][0] for one in key] for key in child.keys if key <= holders.keys()]
    ids = {column.name: column.id for column in plan.columns}
    known = [[ids[names[0]] for names in key] for key in plan.known_keys]
    return found.with_keys([*kept, *known])


def _filtered(child: _Facts, condition: Expr) -> _Facts:
    """Equalities that hold in every row that is left."""
    constants, filled, pairs = dict(child.constants), set(child.filled), []
    for part in conjuncts(condition):
        match part:
            case Call("EqualTo" | "EqualNullSafe" as name, (left, right)):
                one, other = (folded_integer(without_widening(side)) for side in (left, right))
                columns = [side for side in (one, other) if isinstance(side, Column) and _is_exact(side)]
                literals = [side for side in (one, other) if isinstance(side, Literal)]
                if len(columns) == 2:
                    pairs.append((columns[0].id, columns[1].id))
                elif columns and literals:
                    constants[columns[0].id] = literals[0]
                if name == "EqualTo":
                    filled |= {column.id for column in columns}
            case Call("IsNotNull", (Column(number),)):
                filled.add(number)
    found = replace(child, constants=constants, filled=frozenset(filled))
    return found.equating(pairs).with_keys(child.keys)


def _is_exact(column: Column) -> bool:
    """Whether equal values of the column are one value: under a collation they may be several."""
    return "collate" not in column.type.lower()


def _aggregated(child: _Facts, plan: Aggregate) -> _Facts:
    """A row for each combination of the groups; without any, one row."""
    held = [held_by(by, plan.outputs) for by in plan.groups if not isinstance(by.value, Literal)]
    keys = [frozenset(choice) for choice in islice(product(*(sorted(one.ids) for one in held)), _MOST)]
    passed_on = _projected(child, Project(plan.child, plan.outputs))
    of_groups = {number for one in held for number in one.ids}
    found = replace(passed_on, filled=passed_on.filled & of_groups)
    # a group of rows that a key told apart below has one row: its columns are enough
    return found.with_keys([*keys, *(key for key in passed_on.keys if key <= of_groups)])


def _united(found: list[_Facts], inputs: tuple[Plan, ...]) -> _Facts:
    """Rows of several inputs are told apart by a column that has another constant in each."""
    first = inputs[0].columns
    positions = [{column.id: position for position, column in enumerate(one.columns)} for one in inputs]
    same_in_all = [
        [
            _literal_at(facts, one.columns[position].id) if position < len(one.columns) else None
            for facts, one in zip(found, inputs, strict=True)
        ]
        for position in range(len(first))
    ]
    tags = [
        position
        for position, values in enumerate(same_in_all)
        if None not in values and len({str(value) for value in values}) == len(inputs)
    ]
    filled = frozenset(
        column.id
        for position, column in enumerate(first)
        if all(
            position < len(one.columns) and one.columns[position].id in facts.filled
            for facts, one in zip(found, inputs, strict=True)
        )
    )
    keys: list[set[int]] = []
    for tag in tags:
        choices = [
            [frozenset(_position_of(facts, key, own)) for key in facts.keys]
            for facts, own in zip(found, positions, strict=True)
        ]
        keys += [
            {first[tag].id, *(first[position].id for key in choice for position in key)}
            for choice in islice(product(*choices), _MOST)
        ]
    return _Facts(filled=filled).with_keys(keys)


def _literal_at(facts: _Facts, column: int) -> Literal | None:
    found = facts.constants.get(column)
    is_exact = found is not None and isinstance(found.value, bool | int | str | date)
    return found if is_exact else None


def _position_of(facts: _Facts, key: Ids, positions: Mapping[int, int]) -> Iterator[int]:
    for number in key:
        yield next(position for one, position in positions.items() if facts.stands_for(one) == number)


@dataclass(frozen=True)
class _Sides:
    """The inputs of a join."""

    left: Plan
    right: Plan

    def equated(self, condition: Expr | None, own: Plan, other: Plan) -> Iterator[int]:
        """Columns of one input that must equal what is computed of the other, or of nothing."""
        ids, others = ({column.id for column in plan.columns} for plan in (own, other))
        for part in conjuncts(condition):
            match part:
                case Call("EqualTo" | "EqualNullSafe", (one, two)):
                    for side, value in ((one, two), (two, one)):
                        column = without_widening(side)
                        is_own = isinstance(column, Column) and column.id in ids and _is_exact(column)
                        if is_own and columns_of(value) <= others:
                            yield column.id  # type: ignore[union-attr]


def _joined(left: _Facts, right: _Facts, sides: _Sides, kind: str, condition: Expr | None) -> _Facts:
    if kind in ("left semi", "left anti"):
        return left
    keeps_left = kind in ("left outer", "full outer")
    keeps_right = kind in ("right outer", "full outer")
    if kind not in ("inner", "cross") and not (keeps_left or keeps_right):
        return _Facts()
    meets_one_right = right.has_key_within(sides.equated(condition, sides.right, sides.left))
    meets_one_left = left.has_key_within(sides.equated(condition, sides.left, sides.right))
    both = [one | other for one, other in product(left.keys, right.keys)]
    if keeps_left and keeps_right:
        # a row of either side alone has NULL for all of the other: its own key must not be all NULL
        is_told = (left.filled, right.filled)
        keys = [
            one | other
            for one, other in product(left.keys, right.keys)
            if any(key & filled for key, filled in zip((one, other), is_told, strict=True))
        ]
    else:
        keys = [
            *(left.keys if meets_one_right and not keeps_right else ()),
            *(right.keys if meets_one_left and not keeps_left else ()),
            *both,
        ]
    joined = _Facts(
        same={**left.same, **right.same},
        constants={
            **({} if keeps_right else left.constants),
            **({} if keeps_left else right.constants),
        },
        filled=frozenset(
            (() if keeps_right else tuple(left.filled)) + (() if keeps_left else tuple(right.filled))
        ),
    )
    found = joined.with_keys(keys)
    if keeps_left or keeps_right or condition is None:
        return found
    return _filtered(found, condition)
