"""What is derived to be a unique key of a plan is one: random plans over random tables, run row by row."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from itertools import count, product
from typing import Any

import pyarrow as pa
import pytest

from planner.plan.expressions import Aggregation, Call, Cast, Column, Expr, Literal
from planner.plan.keys import (
    is_unique_by,
    key_for_upserts,
    sink_is_keyed_by_groups,
    unique_keys,
    upsert_key,
)
from planner.plan.nodes import (
    Aggregate,
    Changelog,
    Distinct,
    Filter,
    Generate,
    Group,
    GroupBy,
    Join,
    LookupChanges,
    Normalized,
    Opaque,
    Output,
    Plan,
    Project,
    SignedAggregate,
    Union,
    Upserts,
    WindowKind,
    Wrapper,
)
from planner.plan.sources import KafkaTopic, ManagedTable, Mode
from tests.planner.lookup_sides import LOOKUP_STREAMS, lookup_joined
from upsert.schema import Column as Declared
from upsert.schema import TableSchema
from upsert.stream_keys import UniqueKeys, UpsertKey

Row = dict[int, Any]
Data = Mapping[str, list[dict[str, Any]]]

_LONG = pa.int64()
_PLAIN = {"a": _LONG, "b": _LONG, "c": _LONG}
SCHEMAS = {
    "one": TableSchema.of(_PLAIN, ["a"]),
    "two": TableSchema.of(_PLAIN, ["a", "b"]),
    "bag": TableSchema.of(_PLAIN),
    "indexed": TableSchema(
        (Declared("a", _LONG), Declared("b", _LONG, nullable=False), Declared("c", _LONG)), ("a",)
    )
    .index("b", unique=True)
    .index("c", unique=True),
    "late": TableSchema(
        (Declared("a", _LONG), Declared("b", _LONG, nullable=False), Declared("c", _LONG, nullable=False)),
        ("a",),
    )
    .index("b", unique=True)
    .index("c", unique=True),
}
_B, _C = SCHEMAS["late"].indexes
SCHEMAS["late"] = replace(
    SCHEMAS["late"],
    columns=tuple(replace(c, had_nulls=c.name == "c") for c in SCHEMAS["late"].columns),
    indexes=(replace(_B, is_late=True), _C),
)
DOMAIN = (None, 0, 1, 2)
KINDS = ("inner", "cross", "left outer", "right outer", "full outer", "left semi", "left anti")


def tables(rng: random.Random) -> Data:
    """Some rows for each table, which keep its keys; a unique index takes any number of NULLs.

    What a table has promised late, rows of an older snapshot need not keep.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for name, schema in SCHEMAS.items():
        rows: list[dict[str, Any]] = []
        keys = [schema.primary_key] if schema.primary_key else []
        keys += [index.columns for index in schema.indexes if not index.is_late]
        for _ in range(rng.randrange(7)):
            row = {
                column.name: rng.choice(
                    DOMAIN[1:] if column.name in schema.primary_key or not column.may_be_null else DOMAIN
                )
                for column in schema.columns
            }
            values = [tuple(row[name] for name in key) for key in keys]
            if not any(
                None not in value and value == tuple(other[name] for name in key)
                for key, value in zip(keys, values, strict=True)
                for other in rows
            ):
                rows.append(row)
        found[name] = rows
    return found


class Plans:
    """Random plans, and the rows that each gives."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.ids = count(1)
        self.data = tables(rng)

    def new(self) -> Column:
        number = next(self.ids)
        return Column(number, f"x{number}", "bigint")

    def leaf(self) -> tuple[Plan, list[Row]]:
        name = self.rng.choice(list(SCHEMAS))
        schema = SCHEMAS[name]
        columns = tuple(Column(next(self.ids), own, "bigint") for own in schema.names)
        plan = Changelog(name, columns, ManagedTable(name, f"/{name}", schema))
        return plan, [{column.id: row[column.name] for column in columns} for row in self.data[name]]

    def plan(self, depth: int) -> tuple[Plan, list[Row]]:
        if depth == 0:
            return self.leaf()
        makes: list[Callable[[int], tuple[Plan, list[Row]]]] = [
            self.project,
            self.filter,
            self.join,
            self.join,
            self.aggregate,
            self.distinct,
            self.union,
            self.numbered,
        ]
        return self.rng.choice(makes)(depth - 1)

    def project(self, depth: int) -> tuple[Plan, list[Row]]:
        child, rows = self.plan(depth)
        values: list[Expr] = []
        for _ in range(self.rng.randrange(1, 5)):
            column = self.rng.choice(child.columns)
            values.append(
                self.rng.choice(
                    [
                        column,
                        column,
                        column,
                        Cast(column, "bigint"),
                        Call("Add", (column, Literal(1, "bigint"))),
                        Literal(self.rng.choice(DOMAIN), "bigint"),
                    ]
                )
            )
        outputs = tuple(Output(self.new(), value) for value in values)
        plan = Project(child, outputs)
        return plan, [{output.column.id: value_of(output.value, row) for output in outputs} for row in rows]

    def condition(self, columns: tuple[Column, ...], others: tuple[Column, ...]) -> Expr:
        one, other = self.rng.choice(columns), self.rng.choice(others)
        part: Expr = self.rng.choice(
            [
                Call("EqualTo", (one, other)),
                Call("EqualTo", (one, other)),
                Call("EqualNullSafe", (one, other)),
                Call("EqualTo", (one, Literal(self.rng.choice(DOMAIN[1:]), "bigint"))),
                Call("EqualTo", (Cast(one, "bigint"), Call("Add", (other, Literal(1, "bigint"))))),
                Call("EqualNullSafe", (other, Literal(None, "bigint"))),
                Call("IsNotNull", (other,)),
            ]
        )
        return part if self.rng.random() < 0.6 else Call("And", (part, self.condition(columns, others)))

    def filter(self, depth: int) -> tuple[Plan, list[Row]]:
        child, rows = self.plan(depth)
        condition = self.condition(child.columns, child.columns)
        return Wrapper(Filter(child, condition), "SubqueryAlias"), [r for r in rows if value_of(condition, r)]

    def join(self, depth: int) -> tuple[Plan, list[Row]]:
        (left, ours), (right, theirs) = self.plan(depth), self.plan(self.rng.randrange(depth + 1))
        kind = self.rng.choice(KINDS)
        condition = None if kind == "cross" else self.condition(left.columns, right.columns)
        is_half = kind in ("left semi", "left anti")
        columns = left.columns if is_half else (*left.columns, *right.columns)
        plan = Join(left, right, kind, condition, columns)
        pairs = [
            (i, k)
            for (i, one), (k, other) in product(enumerate(ours), enumerate(theirs))
            if condition is None or value_of(condition, one | other)
        ]
        met_left, met_right = ({pair[side] for pair in pairs} for side in (0, 1))
        if is_half:
            return plan, [row for i, row in enumerate(ours) if (i in met_left) == (kind == "left semi")]
        rows = [ours[i] | theirs[k] for i, k in pairs]
        empty_left, empty_right = (dict.fromkeys(c.id for c in side.columns) for side in (left, right))
        if kind in ("left outer", "full outer"):
            rows += [row | empty_right for i, row in enumerate(ours) if i not in met_left]
        if kind in ("right outer", "full outer"):
            rows += [empty_left | row for k, row in enumerate(theirs) if k not in met_right]
        return plan, rows

    def aggregate(self, depth: int) -> tuple[Plan, list[Row]]:
        child, rows = self.plan(depth)
        groups = self.rng.sample(child.columns, self.rng.randrange(0, min(3, len(child.columns)) + 1))
        counted = Output(self.new(), Aggregation("Count", (Literal(1, "int"),), ("int",)))
        shown = [group for group in groups if self.rng.random() < 0.85]
        outputs = (*(Output(self.new(), group) for group in shown), counted)
        plan = Aggregate(child, tuple(GroupBy(group) for group in groups), outputs)
        found = Counter(tuple(row[group.id] for group in groups) for row in rows)
        if not groups:
            found = Counter({(): len(rows)})
        made = []
        for values, number in found.items():
            by_id = {group.id: value for group, value in zip(groups, values, strict=True)}
            row = {o.column.id: by_id[one.id] for o, one in zip(outputs, shown, strict=False)}
            made.append(row | {counted.column.id: number})
        return plan, made

    def distinct(self, depth: int) -> tuple[Plan, list[Row]]:
        child, rows = self.plan(depth)
        keys = tuple(self.rng.sample(child.columns, self.rng.randrange(1, len(child.columns) + 1)))
        first = {tuple(row[key.id] for key in keys): row for row in reversed(rows)}
        return Distinct(child, keys), list(first.values())

    def union(self, depth: int) -> tuple[Plan, list[Row]]:
        parts = [self.plan(depth) for _ in range(2)]
        width = min(len(plan.columns) for plan, _ in parts)
        tags: list[Expr] = [Literal(self.rng.choice(DOMAIN), "bigint") for _ in parts]
        inputs, rows = [], []
        for (plan, given), tag in zip(parts, tags, strict=True):
            outputs = tuple(
                Output(self.new(), value) for value in (tag, *self.rng.sample(plan.columns, width))
            )
            inputs.append(Project(plan, outputs))
            rows += [[value_of(output.value, row) for output in outputs] for row in given]
        union = Union(tuple(inputs))
        return union, [dict(zip((c.id for c in union.columns), row, strict=True)) for row in rows]

    def numbered(self, depth: int) -> tuple[Plan, list[Row]]:
        child, rows = self.plan(depth)
        made = (self.new(), self.new()) if self.rng.random() < 0.5 else (self.new(),)
        name = "PosExplode" if len(made) == 2 else "Explode"
        values = [(0, 7), (1, 7)]
        plan = Generate(child, Call(name, ()), made)
        return plan, [
            row | dict(zip((c.id for c in made), value[-len(made) :], strict=True))
            for row in rows
            for value in values
        ]


def value_of(expr: Expr, row: Row) -> Any:
    match expr:
        case Column(number):
            return row[number]
        case Literal(value):
            return value
        case Cast(value):
            return value_of(value, row)
        case Call(name, args):
            values = [value_of(arg, row) for arg in args]
            match name:
                case "EqualNullSafe":
                    return values[0] == values[1]
                case "IsNotNull":
                    return values[0] is not None
                case "And":
                    return bool(values[0] and values[1])
            if None in values:
                return None
            return values[0] == values[1] if name == "EqualTo" else values[0] + values[1]
    raise AssertionError(expr)


def is_unique(rows: list[Row], ids: tuple[int, ...]) -> bool:
    return max(Counter(tuple(row[number] for number in ids) for row in rows).values(), default=0) <= 1


def choices(keys: UniqueKeys) -> Iterator[tuple[str, ...]]:
    for key in keys.keys:
        yield from product(*key)


def derived(seed: int) -> tuple[bool, bool]:
    """Whether the plan of a seed has a derived key, and whether some of its columns are a key of the rows."""
    plans = Plans(random.Random(seed))
    plan, rows = plans.plan(plans.rng.randrange(1, 4))
    by_name = {f"n{column.id}": column for column in plan.columns}
    # names as sinks know them: each once
    named = Project(plan, tuple(Output(Column(-c.id, name, "bigint"), c) for name, c in by_name.items()))
    keys = unique_keys(named)
    for choice in choices(keys):
        ids = tuple(by_name[name].id for name in choice)
        assert is_unique(rows, ids), (seed, choice, plan)
        assert is_unique_by(named, [column for column in named.columns if column.name in choice])
    if (replaced_by := key_for_upserts(named, None)) is not None:
        ids = tuple(by_name[column.name].id for column in replaced_by)
        assert is_unique(rows, ids), (seed, replaced_by, plan)
        assert not any(row[number] is None for row in rows for number in ids), (seed, replaced_by, plan)
    return bool(keys.keys), is_unique(rows, tuple(column.id for column in plan.columns))


def test_derived_keys_are_unique_in_random_plans() -> None:
    found = Counter(derived(seed) for seed in range(3_000))
    assert found[True, True] > 1_000, found  # it says something often, not only what is true
    assert found[True, False] == 0


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_derived_keys_are_unique_in_many_random_plans(part: int) -> None:
    for seed in range(10_000 * (part + 1), 10_000 * (part + 2)):
        derived(seed)


def orders(*names: str) -> Changelog:
    schema = TableSchema.of({"id": _LONG, "cust": _LONG, "amt": _LONG}, ["id"])
    columns = {name: Column(number, name, "bigint") for number, name in enumerate(schema.names, 1)}
    return Changelog("o", tuple(columns[n] for n in names), ManagedTable("o", "/o", schema))


def customers() -> Project:
    schema = TableSchema.of({"cust": _LONG, "name": pa.string()}, ["cust"])
    cust, name = Column(13, "cust", "bigint"), Column(12, "name", "string")
    leaf = Changelog("c", (cust, name), ManagedTable("c", "/c", schema))
    return Project(leaf, (Output(Column(11, "c", "bigint"), cust), Output.of(name)))


def joined(kind: str, on: Expr) -> Join:
    left, right = orders("id", "cust", "amt"), customers()
    return Join(left, right, kind, on, (*left.columns, *right.columns))


_O_CUST, _O_ID = Column(2, "cust", "bigint"), Column(1, "id", "bigint")
_C = Column(11, "c", "bigint")
_BY_CUST = Call("EqualTo", (_O_CUST, _C))
_BY_ID = Call("EqualTo", (_O_ID, _C))


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (orders("id", "cust"), "(id)"),
        (orders("cust", "amt"), "no columns"),
        (joined("inner", _BY_CUST), "(id)"),
        (joined("left outer", _BY_CUST), "(id)"),
        (joined("right outer", _BY_CUST), "(id, c)"),
        (joined("full outer", _BY_CUST), "(id, c)"),
        (joined("inner", Call("GreaterThan", (_O_CUST, _C))), "(id, c)"),
        (joined("left semi", _BY_CUST), "(id)"),
        (joined("inner", _BY_ID), "(id)"),  # or by c, which equals it
        (joined("right outer", _BY_ID), "(c)"),
        (Filter(joined("inner", _BY_CUST), Call("EqualTo", (_C, Literal(3, "bigint")))), "(id)"),
        (Filter(joined("inner", _BY_ID), Call("EqualTo", (_C, Literal(3, "bigint")))), "()"),  # one row
        (Distinct(orders("cust", "amt"), (_O_CUST,)), "(cust)"),
        (Generate(orders("id"), Call("Explode", ()), (Column(9, "x", "bigint"),)), "no columns"),
        (Opaque("Sample", (orders("id"),), (_O_ID,)), "no columns"),
        (Changelog("j", (_O_ID,), None), "no columns"),
        (Changelog("n", (_O_ID,), Normalized(("id",), orders("id"))), "(id)"),
        (Changelog("u", (_O_ID, _O_CUST), Upserts(UpsertKey((("id", "cust"),)))), "(id) or (cust)"),
        (Project(orders("amt"), (Output.of(Column(3, "amt", "bigint")),), ((("amt",),),)), "(amt)"),
    ],
    ids=str,
)
def test_key(plan: Plan, expected: str) -> None:
    assert str(unique_keys(plan)) == expected


def full_outer(left: Plan) -> Join:
    """With groups that may be NULL: a row of either side alone has NULL for the other."""
    right = Distinct(orders("amt"), (Column(3, "amt", "bigint"),))
    condition = Call("EqualTo", (left.columns[0], right.columns[0]))
    return Join(left, right, "full outer", condition, (*left.columns, *right.columns))


def tagged(value: object, type_: str) -> Project:
    return Project(customers(), (Output(Column(31, "tag", type_), Literal(value, type_)), Output.of(_C)))


_PADDED = Distinct(joined("left outer", _BY_CUST), (_C,))
_MAYBE_NULL = Call("EqualNullSafe", (_O_CUST, Column(4, "x", "bigint")))
_TAGGED = Project(customers(), (Output(Column(30, "tag", "int"), Literal(1, "int")), Output.of(_C)))


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (full_outer(Distinct(orders("cust"), (_O_CUST,))), "no columns"),
        (full_outer(Distinct(Filter(orders("cust"), _MAYBE_NULL), (_O_CUST,))), "no columns"),
        (
            full_outer(Distinct(Filter(orders("cust"), Call("IsNotNull", (_O_CUST,))), (_O_CUST,))),
            "(cust, amt)",
        ),
        (full_outer(Project(_PADDED, (Output.of(_C),))), "no columns"),
        (joined("inner", Call("EqualTo", (_C, Call("Abs", (_C,))))), "(id, c)"),
        (joined("inner", Call("EqualTo", (_C, Call("Abs", (_O_CUST,))))), "(id)"),
        (
            Distinct(
                Join(orders("cust"), _TAGGED, "left outer", _BY_CUST, (_O_CUST, *_TAGGED.columns)),
                (_TAGGED.columns[0],),
            ),
            "(tag)",
        ),
        (Union((orders("id"), orders("id"))), "no columns"),
        (
            Union(
                (
                    _TAGGED,
                    Project(_TAGGED, (Output(Column(40, "t", "int"), Literal(2, "int")), Output.of(_C))),
                )
            ),
            "(c, tag)",
        ),
        (
            Union(
                (
                    _TAGGED,
                    Project(_TAGGED, (Output(Column(40, "t", "int"), Literal(1, "int")), Output.of(_C))),
                )
            ),
            "no columns",
        ),
        (
            Union((tagged(Decimal("1.0"), "decimal(3,2)"), tagged(Decimal("1.00"), "decimal(3,2)"))),
            "no columns",
        ),
        (Union((tagged(0.0, "double"), tagged(-0.0, "double"))), "no columns"),
    ],
    ids=str,
)
def test_key_of_rows_that_are_padded_or_put_together(plan: Plan, expected: str) -> None:
    assert str(unique_keys(plan)) == expected


def test_columns_that_are_equal_stand_for_each_other() -> None:
    keys = unique_keys(joined("inner", _BY_ID))
    assert keys.within(["c"])
    assert keys.within(["id"])
    assert not keys.within(["cust"])


def test_an_aggregate_is_told_apart_by_its_groups() -> None:
    groups = (GroupBy(_O_CUST), GroupBy(Column(3, "amt", "bigint")))
    outputs = tuple(Output(Column(20 + n, f"g{n}", "bigint"), group.value) for n, group in enumerate(groups))
    assert str(unique_keys(Aggregate(orders("cust", "amt"), groups, outputs))) == "(g0, g1)"
    assert str(unique_keys(Aggregate(orders("cust", "amt"), groups, outputs[:1]))) == "no columns"
    assert unique_keys(Aggregate(orders("cust"), (), ())).within([])


def test_the_start_or_the_end_of_a_window_stands_for_it_wherever_it_is_taken_out() -> None:
    window, kind = Column(3, "window", "struct"), Column(9, "_row_kind", "string")
    parts = {name: Call("GetStructField", (window,), "timestamp") for name in ("start", "end")}
    values = {"window": window, "start": parts["start"], "n": Column(4, "n", "bigint"), "cust": _O_CUST}
    sums = SignedAggregate(
        orders("cust"),
        (Group(GroupBy(window, WindowKind.TIME), window), Group(GroupBy(_O_CUST), _O_CUST)),
        (),
        tuple(Output(Column(20 + n, name, ""), value) for n, (name, value) in enumerate(values.items())),
        kind,
    )
    assert upsert_key(sums).keys == (("window", "start"), ("cust",))
    of_sums = Column(20, "window", "struct")
    renamed = Project(sums, (Output(Column(30, "w", "struct"), of_sums), Output(kind, kind)))
    assert upsert_key(renamed).keys == (("w",), ())
    end = Call("GetStructField", (Column(30, "w", "struct"),), "timestamp")
    taken = Project(renamed, (Output(Column(40, "end", "timestamp"), end),))
    assert upsert_key(taken).keys == (("end",), ())


def test_a_sink_of_upserts_has_their_key_as_the_query_names_it_and_constants() -> None:
    columns = (_O_ID, _O_CUST, Column(3, "amt", "bigint"))
    values = dict(zip("abn", columns, strict=True)) | {"one": Literal(1, "bigint")}
    upserts = Changelog("u", columns, Upserts(UpsertKey((("id",), ("cust",)), of="a topic")))
    outputs = (
        Output(Column(20 + n, name, "bigint"), value) for n, (name, value) in enumerate(values.items())
    )
    plan = Filter(Project(upserts, tuple(outputs)), Call("IsNotNull", (Column(20, "a", "bigint"),)))
    found = upsert_key(plan)
    assert (found.keys, found.constants) == ((("a",), ("b",)), ("one",))
    assert [sink_is_keyed_by_groups(plan, key) for key in (["a", "b"], ["one", "b", "a"])] == [None, None]
    assert sink_is_keyed_by_groups(plan, ["a", "n"]) == "the sink's key column 'n' is no upsert key column"
    assert sink_is_keyed_by_groups(plan, ["one", "a"]) == (
        "the sink's key (one, a) lacks the upsert key column(s) cust"
    )
    assert key_for_upserts(plan, None) is None, "b may be NULL"
    filled = Filter(plan, Call("IsNotNull", (Column(21, "b", "bigint"),)))
    assert [column.name for column in key_for_upserts(filled, None) or ()] == ["a", "b"]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_topic_s_declared_key_is_believed_by_sinks_alone(mode: Mode) -> None:
    """DISTINCT over changes that may come twice must count them."""
    schema = TableSchema.of({"id": _LONG}, ["id"])
    topic = Changelog("t", (_O_ID,), KafkaTopic("t", schema, mode))
    assert str(unique_keys(topic)) == "(id)"
    assert is_unique_by(topic, topic.columns) == (mode in (Mode.ALL, Mode.CDC_NORMALIZED))


def test_a_join_by_lookups_has_its_upsert_key() -> None:
    sides = [Changelog(name, (), LOOKUP_STREAMS[name]) for name in ("orders", "items")]
    upserts = lookup_joined(sides[0], sides[1], "inner")
    columns = tuple(Column(n, name, "bigint") for n, name in enumerate(upserts.join.output_key, 1))
    for origin in (upserts, LookupChanges.of(upserts, "a test")):
        assert unique_keys(Changelog("j", columns, origin)).within(upserts.join.output_key)
