"""Keys of a plan's rows: what tells each from every other, and by what upserts replace each other (pure).

A *unique key* is a set of columns in which no two rows of the plan are equal at any time. Keys come from
tables, groups and DISTINCT, and are followed upwards together with what makes them smaller or lets other
columns stand for theirs: columns that are always equal, columns of one value, and those that are never NULL.
A join keeps the keys of a side of which each row meets one row of the other at most; else a pair of rows is
told apart by what tells both apart. What is not known here has no key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from itertools import islice, product
from typing import Final

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
    EnrichedUpserts,
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
from planner.plan.trees import chain_of
from upsert.stream_keys import UniqueKeys, UpsertKey

Ids = frozenset[int]

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
    ids: Ids
    window_ids: Ids = frozenset()


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
        case EnrichedUpserts(key=key):
            return tuple(GroupKey(column.name, frozenset({column.id})) for column in key)
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
        case EnrichedUpserts(child, rows):
            is_append = group_keys(child) is None or _made_by(child).is_append
            return UpsertKey((), of=f"the lookups in {rows.table.name!r}", is_append=is_append)
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
    return GroupKey(value.name, same | _parts_of(frozenset({value.id}), outputs), same)


def _followed(key: GroupKey, outputs: Sequence[Output]) -> GroupKey:
    """The key as it is known above a projection."""
    columns = ((output.column.id, without_widening(output.value)) for output in outputs)
    passed = {number: value.id for number, value in columns if isinstance(value, Column)}
    same = frozenset(number for number, below in passed.items() if below in key.ids)
    whole = frozenset(number for number, below in passed.items() if below in key.window_ids)
    return GroupKey(key.name, same | _parts_of(key.window_ids, outputs), whole)


def _parts_of(windows: Ids, outputs: Sequence[Output]) -> Ids:
    """The columns that are a window's start or end: windows have one length, so either tells."""
    found = set()
    for output in outputs:
        match without_widening(output.value):
            case Call("GetStructField", (Column(number),)) if number in windows:
                found.add(output.column.id)
    return frozenset(found)


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


def is_unique_by(plan: Plan, columns: Iterable[Column]) -> bool:
    """Whether no two rows of the plan can be equal in these columns at any time.

    Known of tables, topics and normalized streams with a key; a topic of changes may repeat them, and counts
    as one without.

    >>> from planner.plan.expressions import Column
    >>> orders = Changelog("orders", (Column(1, "id", "bigint"),), Normalized(("id",), None))
    >>> is_unique_by(orders, orders.columns), is_unique_by(orders, [])
    (True, False)
    """
    found = _facts(plan, is_believed=False)
    return found.has_key_within(column.id for column in columns)


def key_for_upserts(plan: Plan, wanted: Sequence[str] | None) -> tuple[Column, ...] | None:
    """The columns by which rows of changes can replace each other: never NULL, a unique key at any time.

    Where changes are upserts already, these are the columns of their key. Else the key of `wanted` names if
    it is one, or the first of the smallest. None if no key is known.
    """
    found = _facts(plan, is_believed=True)
    columns = {column.id: column for column in reversed(plan.columns) if not column.is_row_kind}
    if (groups := group_keys(plan)) is not None:
        ids = [min(group.ids & columns.keys(), default=None) for group in groups]
        held = tuple(columns[number] for number in ids if number is not None)
        is_whole = bool(held) and len(held) == len(groups)
        return held if is_whole and {column.id for column in held} <= found.filled else None
    keys = []
    for key in found.keys:
        same = [[c for c in columns.values() if found.stands_for(c.id) == number] for number in sorted(key)]
        if key and all(same) and all(any(c.id in found.filled for c in one) for one in same):
            choices = islice(product(*same), _MOST)
            keys += [choice for choice in choices if all(c.id in found.filled for c in choice)]
    in_sink = [key for key in keys if wanted is not None and {c.name for c in key} == set(wanted)]
    return next(iter((*in_sink, *keys)), None)


def unique_keys(plan: Plan) -> UniqueKeys:
    """The unique keys of a plan by the names of its columns, the smallest ones first; none if none is known.

    A PRIMARY KEY that a topic of changes declares is believed, as in Flink.

    >>> from planner.plan.expressions import Column
    >>> orders = Changelog("orders", (Column(1, "id", "bigint"),), Normalized(("id",), None))
    >>> str(unique_keys(orders))
    '(id)'
    """
    found = _facts(plan, is_believed=True)
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


def _facts(plan: Plan, *, is_believed: bool) -> _Facts:
    """What is known of a plan, with the keys that topics and upserts declare if these are believed."""
    below = partial(_facts, is_believed=is_believed)
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
        case Join() | RegularJoin():
            return _joined(plan, below(plan.left), below(plan.right))
        case EnrichedUpserts(child, key=key):
            ids = frozenset(column.id for column in key)
            return _Facts(filled=ids).with_keys([ids] if is_believed else [])
        case Changelog(columns=columns, origin=origin):
            return _of_leaf(columns, origin, is_believed=is_believed)
        case Relation(columns=columns, rows=rows) if rows is not None:
            return _of_leaf(columns, rows.table, is_believed=is_believed)
        case _:
            return _Facts()


def _of_leaf(columns: tuple[Column, ...], origin: object, *, is_believed: bool) -> _Facts:
    """A key counts if its columns are read."""
    # for each part of a key the columns that hold it, any of which will do
    keys: list[tuple[tuple[str, ...], ...]] = []
    plain: list[tuple[str, ...]] = []
    never_null, fixed = tuple[str, ...](), tuple[str, ...]()
    match origin:
        case ManagedTable(schema=schema):
            never_null = (*schema.primary_key, *(c.name for c in schema.columns if not c.may_be_null))
            unique = (index.columns for index in schema.indexes if index.unique and not index.is_late)
            plain = [schema.primary_key, *(names for names in unique if set(names) <= set(never_null))]
        case KafkaTopic(schema=schema, mode=mode):
            never_null = schema.primary_key
            plain = [never_null] if is_believed or mode in (Mode.ALL, Mode.CDC_NORMALIZED) else []
        case Normalized(key):
            never_null, plain = key, [key]
        case Upserts(upserts):
            keys, fixed = [upserts.keys] if is_believed else [], upserts.constants
        case LookupChanges(joined) if is_believed:
            keys = [joined.key.keys]
    keys += (tuple((name,) for name in names) for names in plain if names)
    ids = {column.name: column.id for column in columns}
    known = [tuple(tuple(ids[name] for name in names if name in ids) for names in key) for key in keys]
    chosen = [choice for key in known for choice in islice(product(*key), _MOST)]
    filled = frozenset(ids[name] for name in never_null if name in ids)
    constants = {ids[name]: None for name in fixed if name in ids}
    return _Facts(constants=constants, filled=filled).with_keys(chosen)


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
    tags, filled = list[int](), set[int]()
    for columns in zip(*(one.columns for one in inputs), strict=False):
        met = list(zip(found, columns, strict=True))
        values = {_literal(facts.constants.get(column.id)) for facts, column in met}
        if None not in values and len(values) == len(inputs):
            tags.append(columns[0].id)
        if all(column.id in facts.filled for facts, column in met):
            filled.add(columns[0].id)
    choices = []
    for facts, one in zip(found, inputs, strict=True):
        ids: dict[int, int] = {}  # of the input's columns, as keys have them -> of the first input's
        for column, first in zip(one.columns, inputs[0].columns, strict=False):
            ids.setdefault(facts.stands_for(column.id), first.id)
        choices.append([{ids[number] for number in key} for key in facts.keys])
    combined = list(islice(product(*choices), _MOST))
    keys = [{tag}.union(*choice) for tag in tags for choice in combined]
    return _Facts(filled=frozenset(filled)).with_keys(keys)


def _literal(constant: Literal | None) -> str | None:
    """A constant as text; None for one that is not known, or of which equal ones may differ as text."""
    is_exact = constant is not None and isinstance(constant.value, bool | int | str | date)
    return str(constant) if is_exact else None


def _equated(condition: Expr | None, own: Plan, other: Plan) -> Iterator[int]:
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


def _joined(join: Join | RegularJoin, left: _Facts, right: _Facts) -> _Facts:
    kind = join.kind if isinstance(join, Join) else "inner"
    if kind in ("left semi", "left anti"):
        return left
    keeps_left = kind in ("left outer", "full outer")
    keeps_right = kind in ("right outer", "full outer")
    if kind not in ("inner", "cross") and not (keeps_left or keeps_right):
        return _Facts()
    pairs = list(product(left.keys, right.keys))
    if keeps_left and keeps_right:
        # a row of either side alone has NULL for all of the other: its own key must not be all NULL
        pairs = [(one, other) for one, other in pairs if one & left.filled or other & right.filled]
    meets_one_right = right.has_key_within(_equated(join.condition, join.right, join.left))
    meets_one_left = left.has_key_within(_equated(join.condition, join.left, join.right))
    keys = [
        *(left.keys if meets_one_right and not keeps_right else ()),
        *(right.keys if meets_one_left and not keeps_left else ()),
        *(one | other for one, other in pairs),
    ]
    # what is known of the values of a side holds no more where it may be missing
    of_left, of_right = (_Facts() if keeps_right else left), (_Facts() if keeps_left else right)
    found = _Facts(
        same={**left.same, **right.same},
        constants={**of_left.constants, **of_right.constants},
        filled=of_left.filled | of_right.filled,
    ).with_keys(keys)
    if keeps_left or keeps_right or join.condition is None:
        return found
    return _filtered(found, join.condition)
