"""The order of lookups, what it is chosen by, and what is said where an index lacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from deltajoin.core.plans import moving_order, paths_of, unreachable_lookups
from deltajoin.core.shards import needed_keys, roots, shared_keys
from deltajoin.expressions import Call, Field, Ref
from deltajoin.tree import Inner, Leaf, Node, Outer, Where, flattened
from tests.deltajoin.core.trees import random_tree
from upsert.errors import SchemaError


@dataclass(frozen=True)
class Known:
    """Tables by name, their indexes, and how many rows one key of an index has."""

    names: Sequence[str]
    indexes: Mapping[str, Sequence[tuple[str, ...]]]
    rows: Mapping[str, float] = field(default_factory=dict)

    def name(self, table: int) -> str:
        return self.names[table]

    def index_for(self, table: int, columns: Sequence[str]) -> str | None:
        found = [index for index in self.indexes[self.names[table]] if set(index) <= set(columns)]
        return f"INDEX ({', '.join(found[0])})" if found else None

    def rows_per_key(self, table: int, columns: Sequence[str]) -> float:
        return self.rows.get(self.names[table], 1.0) if columns else 0.0

    def select(self, table: int) -> tuple[str, ...]:
        return tuple(column for index in self.indexes[self.names[table]] for column in index)


def on(*pairs: tuple[int, str, int, str]) -> tuple[tuple[Ref, Ref], ...]:
    return tuple((Ref(a, x), Ref(b, y)) for a, x, b, y in pairs)


STAR = Inner(
    (Leaf(0), Leaf(1), Leaf(2), Leaf(3)),
    on((0, "customer", 1, "id"), (0, "product", 2, "id"), (2, "maker", 3, "id")),
)
SHOP = Known(
    ("orders", "customers", "products", "makers"),
    {
        "orders": [("id",), ("customer",), ("product",)],
        "customers": [("id",)],
        "products": [("id",), ("maker",)],
        "makers": [("id",)],
    },
    {"orders": 20.0, "products": 5.0},
)


def text(tree: Node, known: Known) -> list[str]:
    return [str(path) for path in paths_of(flattened(tree), known)]


def test_each_table_has_a_path_through_all_others() -> None:
    lookups = {
        "orders": "t0 orders by (customer) with INDEX (customer), ~20 rows a key",
        "orders by product": "t0 orders by (product) with INDEX (product), ~20 rows a key",
        "customers": "t1 customers by (id) with INDEX (id), ~1 rows a key",
        "products": "t2 products by (id) with INDEX (id), ~5 rows a key",
        "products by maker": "t2 products by (maker) with INDEX (maker), ~5 rows a key",
        "makers": "t3 makers by (id) with INDEX (id), ~1 rows a key",
    }
    paths = [
        ["orders", "customers", "products", "makers"],
        ["customers", "orders", "products", "makers"],
        ["products", "makers", "orders by product", "customers"],
        ["makers", "products by maker", "orders by product", "customers"],
    ]
    assert text(STAR, SHOP) == [
        " → ".join([f"changes of t{SHOP.names.index(driver)} {driver}", *map(lookups.__getitem__, steps)])
        for driver, *steps in paths
    ]


def test_statistics_choose_between_lookups_that_indexes_allow() -> None:
    """The same column leads to two tables: the one with fewer rows comes first."""
    tree = Inner((Leaf(0), Leaf(1), Leaf(2)), on((0, "k", 1, "k"), (0, "k", 2, "k")))
    indexes = {name: [("k",)] for name in "abc"}

    def order(rows: Mapping[str, float]) -> list[str]:
        return [step.name for step in paths_of(tree, Known("abc", indexes, rows))[0].steps]

    assert order({"b": 9.0, "c": 2.0}) == ["c", "b"]
    assert order({"b": 2.0, "c": 9.0}) == ["b", "c"]


def test_equality_is_followed_through_a_third_table() -> None:
    """b and c are only compared with a, yet b's changes find c by b's own key where c is the smaller one."""
    tree = Inner((Leaf(0), Leaf(1), Leaf(2)), on((0, "k", 1, "k"), (0, "k", 2, "k")))
    known = Known("abc", {name: [("k",)] for name in "abc"}, {"a": 50.0})
    assert [step.name for step in paths_of(tree, known)[1].steps] == ["c", "a"]


def test_a_table_without_an_index_is_looked_up_once_others_have_led_to_it() -> None:
    """No index for the pair with a, but one for both columns together."""
    tree = Inner((Leaf(0), Leaf(1), Leaf(2)), on((0, "x", 1, "x"), (0, "k", 2, "k"), (2, "y", 1, "y")))
    known = Known("abc", {"a": [("x",), ("k",)], "b": [("x", "y")], "c": [("k",), ("y",)]})
    assert [step.name for step in paths_of(tree, known)[0].steps] == ["c", "b"]


def test_a_lacking_index_is_named_with_the_changes_that_need_it() -> None:
    known = Known(("orders", "products"), {"orders": [("id",)], "products": [("code",)]})
    tree = Outer("left", Leaf(0), Leaf(1), on((0, "product", 1, "code")))
    (missing,) = unreachable_lookups(tree, known)
    assert (missing.table, missing.by, missing.driver) == (0, ("product",), 1)
    with pytest.raises(SchemaError) as caught:
        paths_of(tree, known)
    assert (
        str(caught.value)
        == str(missing)
        == (
            "table 'orders' (t0): a PRIMARY KEY, a prefix of it or an INDEX must lie within the join columns "
            "(product) by which changes of 'products' (t1) find its rows, there is none; "
            "declare INDEX (product) in its CREATE TABLE"
        )
    )


def test_a_table_that_no_equality_leads_to_is_named() -> None:
    tree = Inner((Leaf(0), Leaf(1), Leaf(2)), on((0, "k", 1, "k")))
    known = Known("abc", {name: [("k",)] for name in "abc"})
    found = [str(one) for one in unreachable_lookups(tree, known)]
    assert found[0] == (
        "table 'c' (t2): changes of 'a' (t0) must find its rows by an equality, there is none; "
        "add a condition t.column = other.column to the join"
    )


def test_an_eligible_join_has_no_lacking_lookup() -> None:
    assert unreachable_lookups(flattened(STAR), SHOP) == ()


def test_tables_that_supply_matches_move_first() -> None:
    """Their rows are then there when the rows that they match come: no row is padded and unpadded at once."""
    inner = Outer("left", Leaf(0), Leaf(1), on((0, "k", 1, "k")))
    assert moving_order(inner) == (1, 0)
    nested = Outer("left", Leaf(2), Outer("semi", Leaf(0), Leaf(1), inner.on), on((2, "k", 0, "k")))
    assert moving_order(nested) == (1, 0, 2)


def test_an_outer_join_looks_up_its_own_rows_to_count_matches() -> None:
    known = Known("ab", {"a": [("k",)], "b": [("k",)]})
    tree = Outer("left", Leaf(0), Leaf(1), on((0, "k", 1, "k")))
    assert [[step.name for step in path.steps] for path in paths_of(tree, known)] == [["a", "b"], ["b"]]


def test_all_joins_by_one_key_share_it() -> None:
    one = Outer("left", Leaf(0), Leaf(1), on((0, "k", 1, "k")))
    tree = Outer("full", one, Leaf(2), on((1, "k", 2, "m"), (0, "a", 2, "b")))
    assert shared_keys(tree) == ({0: "k", 1: "k", 2: "m"},)
    assert shared_keys(STAR) == ()
    assert shared_keys(Inner((one, Leaf(2)), on((0, "z", 2, "z")))) == ()


def test_roots_are_in_every_row() -> None:
    assert roots(STAR) == {0, 1, 2, 3}
    assert roots(Outer("left", STAR, Leaf(4), on((0, "k", 4, "k")))) == {0, 1, 2, 3}
    assert roots(Outer("full", Leaf(0), Leaf(1), on((0, "k", 1, "k")))) == frozenset()


def test_a_null_key_leaves_rows_out_only_where_no_padding_keeps_them() -> None:
    one = Where(Inner((Leaf(0), Leaf(1)), on((0, "a", 1, "b"))), Call("isnull", (Field(Ref(0, "z")),)))
    tree = Outer("left", one, Leaf(2), on((0, "z", 2, "c")))
    assert [needed_keys(tree, table) for table in range(3)] == [("a",), ("b",), ("c",)]
    anti = Outer("anti", Leaf(0), Leaf(1), on((0, "a", 1, "b")))
    assert [needed_keys(anti, table) for table in range(2)] == [(), ("b",)]
    semi = Outer("semi", Where(Leaf(0), Call("isnull", (Field(Ref(0, "z")),))), Leaf(1), anti.on)
    assert [needed_keys(semi, table) for table in range(2)] == [("a",), ("b",)]
    full = Outer("full", Leaf(0), Leaf(1), anti.on)
    assert [needed_keys(full, table) for table in range(2)] == [(), ()]


def test_a_flattened_tree_has_no_region_below_a_region() -> None:
    for seed in range(50):
        tree = flattened(random_tree(Random(seed), 5, ("inner",)))
        assert isinstance(tree, Inner)
        assert all(isinstance(child, Leaf) for child in tree.children)
