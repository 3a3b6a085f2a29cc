"""Specs as values: what they refuse, that they travel as text and pickle, and what they are recognised by."""

import json
import pickle
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from deltajoin import DeltaJoinSpec, Side
from deltajoin.expressions import Call, Condition, Const, Field, Ref
from deltajoin.spec import JoinedTable
from deltajoin.tree import Inner, Leaf, Node, Outer, Where
from upsert.errors import ConfigurationError

ORDERS = Side(
    "/data/orders", ("id", "product", "day"), ("product",), [("id", ">", 3), ("product", "in", [1, 2])]
)
PRODUCTS = Side("/data/products", ("code", "name"), ("code",))
SPEC = DeltaJoinSpec.of("inner", ORDERS, PRODUCTS, shards=4, max_rows_per_trigger=10)

TABLES = tuple(JoinedTable(f"/data/{name}", ("id", name)) for name in "abcd")


def pair(left: int, right: int, column: str = "id") -> tuple[Ref, Ref]:
    return Ref(left, column), Ref(right, "id")


def less(left: int, right: int) -> Condition:
    return Call("<", (Field(Ref(left, "id")), Field(Ref(right, "id"))))


TREES: dict[str, Node] = {
    "one table": Leaf(0),
    "a filter": Where(Leaf(0), Call("isnull", (Field(Ref(0, "a")),))),
    "a star": Inner((Leaf(0), Leaf(1), Leaf(2)), (pair(0, 1), pair(0, 2, "a")), less(1, 2)),
    "a bushy tree": Outer(
        "left",
        Outer("full", Leaf(0), Leaf(1), (pair(0, 1),)),
        Where(Outer("anti", Leaf(2), Leaf(3), (pair(2, 3),), less(3, 2)), less(2, 2)),
        (pair(1, 2),),
    ),
}


def spec_of(tree: Node) -> DeltaJoinSpec:
    tables = 1 + max(int(part) for part in "0123" if f"table={part})" in repr(tree))
    return DeltaJoinSpec(TABLES[:tables], tree)


@pytest.mark.parametrize("spec", [SPEC, *map(spec_of, TREES.values())], ids=["two tables", *TREES])
def test_spec_survives_json_and_pickle(spec: DeltaJoinSpec) -> None:
    assert DeltaJoinSpec.from_json(spec.to_json()) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_joins_of_two_tables_are_trees() -> None:
    def tree(kind: str) -> Node:
        return DeltaJoinSpec.of(kind, ORDERS, PRODUCTS).tree

    on = ((Ref(0, "product"), Ref(1, "code")),)
    swapped = ((Ref(1, "code"), Ref(0, "product")),)
    assert tree("inner") == Inner((Leaf(0), Leaf(1)), on)
    assert tree("anti") == Outer("anti", Leaf(0), Leaf(1), on)
    assert tree("right") == Outer("left", Leaf(1), Leaf(0), swapped)


def test_columns_are_those_of_all_visible_tables_then_the_flags() -> None:
    full = DeltaJoinSpec.of("full", ORDERS, PRODUCTS, present=(1, 0))
    of_orders = ("t0_id", "t0_product", "t0_day")
    assert full.columns == (*of_orders, "t1_code", "t1_name", "present_1", "present_0")
    assert DeltaJoinSpec.of("semi", ORDERS, PRODUCTS).columns == of_orders


@pytest.mark.parametrize(
    "value",
    [
        1,
        "x",
        True,
        2.5,
        None,
        date(2013, 1, 31),
        datetime(2013, 1, 31, 12, 30, 0, 123456),
        datetime(2013, 1, 31, tzinfo=UTC),
        Decimal("10.20"),
        b"\x00\xff",
        (1, 2),
    ],
)
def test_filter_values_of_every_type_survive_json(value: Any) -> None:
    side = replace(ORDERS, where=[("day", "=", value)])
    parsed = DeltaJoinSpec.from_json(DeltaJoinSpec.of("inner", side, PRODUCTS).to_json()).tables[0].where
    assert parsed == side.where
    assert parsed is not None
    assert type(parsed[0][0][2]) is type(value)


CONSTANTS: list[tuple[Any, pa.DataType]] = [
    (None, pa.int64()),
    (7, pa.int8()),
    (True, pa.bool_()),
    ("x", pa.string()),
    (2.5, pa.float64()),
    (float("-inf"), pa.float32()),
    (date(2013, 1, 31), pa.date32()),
    (datetime(2013, 1, 31, 12, 30, 0, 123456), pa.timestamp("us")),
    (datetime(2013, 1, 31, tzinfo=UTC), pa.timestamp("us", tz="UTC")),
    (Decimal("10.20"), pa.decimal128(10, 2)),
    (b"\x00\xff", pa.binary()),
]


@pytest.mark.parametrize(("value", "type_"), CONSTANTS)
def test_constants_of_every_type_survive_json(value: Any, type_: pa.DataType) -> None:
    spec = DeltaJoinSpec(TABLES[:1], Where(Leaf(0), Call("<=>", (Field(Ref(0, "a")), Const(value, type_)))))
    assert DeltaJoinSpec.from_json(spec.to_json()) == spec


def test_a_constant_that_is_no_number_survives_json() -> None:
    spec = DeltaJoinSpec(TABLES[:1], Where(Leaf(0), Const(float("nan"), pa.float64())))
    assert DeltaJoinSpec.from_json(spec.to_json()).to_json() == spec.to_json()


def test_fingerprint_is_about_meaning_alone() -> None:
    """Where the tables lie, how many shards, and the order of columns change no row of the output."""
    moved = replace(ORDERS, path="/elsewhere/orders", select=("day", "product", "id"))
    other = DeltaJoinSpec.of("inner", moved, PRODUCTS, shards=1, max_rows_per_trigger=7)
    assert other.fingerprint == SPEC.fingerprint


def test_checkpoints_of_the_last_release_belong_to_the_same_joins() -> None:
    """Release 0.1 gave this fingerprint to this join."""
    assert SPEC.fingerprint == "4cc906040e7dcd83"


def test_fingerprint_does_not_depend_on_an_order_without_meaning() -> None:
    one = Inner((Leaf(0), Leaf(1), Leaf(2)), (pair(0, 1), pair(0, 2)), Call("and", (less(0, 1), less(1, 2))))
    other = Inner(
        (Leaf(2), Leaf(0), Leaf(1)), (pair(2, 0), pair(0, 1)), Call("and", (less(1, 2), less(0, 1)))
    )
    assert spec_of(one).fingerprint == spec_of(other).fingerprint


def test_fingerprints_of_other_trees_differ() -> None:
    joins = [DeltaJoinSpec.of(kind, ORDERS, PRODUCTS) for kind in ("inner", "left", "right", "full", "semi")]
    with_rest = Call("<", (Field(Ref(0, "day")), Field(Ref(1, "name"))))
    joins += [DeltaJoinSpec.of(kind, ORDERS, PRODUCTS, where=with_rest) for kind in ("inner", "left")]
    joins += [DeltaJoinSpec.of("left", ORDERS, PRODUCTS, present=(1,))]
    assert len({join.fingerprint for join in joins}) == len(joins)


@pytest.mark.parametrize(
    "change",
    [
        {"select": ("id", "product")},
        {"select": ("id", "product", "day", "more")},
        {"keys": ("id",)},
        {"where": None},
        {"where": [("id", ">", 4), ("product", "in", [1, 2])]},
    ],
)
def test_fingerprint_of_another_join_differs(change: dict[str, Any]) -> None:
    other = DeltaJoinSpec.of("inner", replace(ORDERS, **change), PRODUCTS)
    assert other.fingerprint != SPEC.fingerprint


def test_fingerprint_of_swapped_sides_differs() -> None:
    assert DeltaJoinSpec.of("inner", PRODUCTS, ORDERS).fingerprint != SPEC.fingerprint


def test_filter_columns_are_read_but_not_selected() -> None:
    table = JoinedTable(
        "/p", ("code", "name"), [[("price", ">", 1)], [("name", "=", "x"), ("price", "<", 9)]]
    )
    assert table.columns == ("code", "name", "price")


A, B = TABLES[:2]
ON = (pair(0, 1),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Side("", ("a",), ("a",)), "needs the path of its folder"),
        (lambda: Side("/t", (), ("a",)), "select must be a list of column names"),
        (lambda: Side("/t", "a", ("a",)), "select must be a list of column names"),  # type: ignore[arg-type]
        (lambda: Side("/t", ("a",), ()), "keys must be a list of column names"),
        (lambda: Side("/t", ("a", "a"), ("a",)), "names a column twice"),
        (lambda: Side("/t", ("a",), ("b",)), "select must contain the join keys; add b"),
        (lambda: Side("/t", ("a",), ("a",), [("a", ">")]), "must be \\(column, operator, value\\)"),
        (lambda: DeltaJoinSpec.of("cross", ORDERS, PRODUCTS), "kind must be one of inner, left"),
        (lambda: DeltaJoinSpec.of("inner", ORDERS, replace(PRODUCTS, keys=("code", "name"))), "as many keys"),
        (lambda: replace(SPEC, shards=0), "shards must be a positive integer, got 0"),
        (lambda: replace(SPEC, max_rows_per_trigger=True), "must be a positive integer, got True"),
        (lambda: replace(SPEC, present=(1,)), r"may be padded with NULLs, \[\], each once, got \[1\]"),
        (lambda: DeltaJoinSpec((), Leaf(0)), "takes 1 to 8 tables, got 0"),
        (lambda: DeltaJoinSpec((A,) * 9, Leaf(0)), "takes 1 to 8 tables, got 9"),
        (lambda: DeltaJoinSpec((A, B), Leaf(0)), r"each of tables 0 to 1 once, got \[0\]"),
        (lambda: DeltaJoinSpec((A, B), Inner((Leaf(0), Leaf(1)), (pair(0, 1, "b"),))), "uses; add b"),
        (lambda: Leaf(-1), "must be a number from 0, got -1"),
        (lambda: Ref(True, "a"), "must be a number from 0, got True"),
        (lambda: Ref(0, ""), "needs a name"),
        (lambda: Inner((Leaf(0),), ()), "two children or more"),
        (lambda: Inner((Leaf(0), Leaf(0)), ()), r"must occur once in a join tree, got \[0\] again"),
        (lambda: Inner((Leaf(0), Leaf(1)), (pair(1, 1),)), "must be of two children, got t1.id = t1.id"),
        (lambda: Inner((Leaf(0), Leaf(1)), (pair(0, 2),)), "columns of its children, got t2.id"),
        (lambda: Inner((Leaf(0), Leaf(1)), ON, less(0, 2)), "columns of its children, got t2.id"),
        (lambda: Outer("right", Leaf(0), Leaf(1), ON), "kind must be one of"),
        (lambda: Outer("left", Leaf(1), Leaf(0), ON), "of its left, then its right side, got t0.id = t1.id"),
        (lambda: Where(Outer("semi", Leaf(0), Leaf(1), ON), less(0, 1)), "its children, got t1.id"),
        (lambda: Call("sleep", ()), "operator must be one of"),
        (lambda: Call("=", (Field(Ref(0, "a")),)), "another number of arguments"),
    ],
)
def test_a_wrong_spec_says_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def broken(**changes: Any) -> str:
    return json.dumps({**json.loads(SPEC.to_json()), **changes})


def broken_table(**changes: Any) -> str:
    tables = json.loads(SPEC.to_json())["tables"]
    return broken(tables=[{**tables[0], **changes}, tables[1]])


LEAF = {"is": "Leaf", "table": 0}


def broken_condition(condition: Any) -> str:
    tree = json.loads(SPEC.to_json())["tree"]
    return broken(tree={**tree, "where": condition})


def deep(levels: int) -> Any:
    value: Any = {"field": [0, "id"]}
    for _ in range(levels):
        value = {"call": "not", "args": [value]}
    return value


def deep_tree(levels: int) -> Any:
    value: Any = LEAF
    for _ in range(levels):
        value = {"is": "Where", "child": value, "condition": {"field": [0, "id"]}}
    return value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
        ("[]", "a delta join's spec must be JSON text of one, got '\\[\\]'"),
        ("{}", "got '{}': KeyError\\('tables'\\)"),
        (broken(tables=7), "DeltaJoinSpec.tables is 7"),
        (broken(tables=[None]), "DeltaJoinSpec.tables is None"),
        (broken_table(path=7), "JoinedTable.path is 7"),
        (broken_table(select=["a", 1]), "JoinedTable.select is 1"),
        (broken_table(began=[{"name": 1}]), "must be JSON text of one"),
        (broken_table(where=[]), "filters must be null or a list of lists"),
        (broken_table(where=[[["a", "="]]]), "must be \\[column, operator, value\\]"),
        (broken_table(where=[[["a", "=", {"date": "x"}]]]), "value must be a scalar"),
        (broken_table(where=[[["a", "=", {"exec": "x"}]]]), "value must be a scalar"),
        (broken(shards="4"), "DeltaJoinSpec.shards is '4'"),
        (broken(present=[True]), "DeltaJoinSpec.present is True"),
        (broken(tree=None), "DeltaJoinSpec.tree is None"),
        (broken(tree={"is": "Tree", "table": 0}), "KeyError\\('Tree'\\)"),
        (broken(tree={"table": 0}), "KeyError\\('is'\\)"),
        (broken(tree={"is": "Leaf", "table": "0"}), "Leaf.table is '0'"),
        (broken(tree={"is": "Leaf", "table": -1}), "must be a number from 0, got -1"),
        (broken(tree={"is": "Inner", "children": [], "on": {}, "where": None}), "Inner.on is {}"),
        (broken(tree={"is": "Inner", "children": [], "on": [1], "where": None}), "Inner.on is 1"),
        (broken(tree={"is": "Where", "child": LEAF, "condition": None}), "a condition must be a field"),
        (broken(tree=deep_tree(400)), "RecursionError"),
        (broken_condition(deep(100)), "a condition must have at most 64 levels"),
        (broken_condition({"call": "exec", "args": []}), "operator must be one of"),
        (broken_condition({"field": "id"}), "must be a field, a const, a cast or a call"),
        (broken_condition({"const": 1, "type": "money"}), "type must be a scalar type, got 'money'"),
        (broken_condition({"const": 1, "type": {"type": "array"}}), "type must be a scalar type"),
        (broken_condition({"const": 300, "type": "byte"}), "must be a value of TINYINT, got 300"),
        (broken_condition({"const": True, "type": "long"}), "must be a value of BIGINT, got True"),
        (broken_condition({"const": "1", "type": "long"}), "must be a value of BIGINT, got '1'"),
        (broken_condition({"const": "zz", "type": "binary"}), "must be a value of BINARY"),
        (broken_condition({"const": "2013-01-31T00:00:00", "type": "timestamp"}), "value of TIMESTAMP"),
        (broken_condition({"const": "1.234", "type": "decimal(3,2)"}), "value of DECIMAL"),
    ],
)
def test_anybodys_text_is_parsed_strictly(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DeltaJoinSpec.from_json(text)
