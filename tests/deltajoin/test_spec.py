"""Specs are values: checked when made, parsed strictly, and recognised by what they mean."""

import json
import pickle
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from deltajoin import DeltaJoinSpec, Side
from upsert.errors import ConfigurationError

ORDERS = Side(
    "/data/orders", ("id", "product", "day"), ("product",), [("id", ">", 3), ("product", "in", [1, 2])]
)
PRODUCTS = Side("/data/products", ("code", "name"), ("code",))
SPEC = DeltaJoinSpec(ORDERS, PRODUCTS, shards=4, max_rows_per_trigger=10)


def test_spec_survives_json_and_pickle() -> None:
    assert DeltaJoinSpec.from_json(SPEC.to_json()) == SPEC
    assert pickle.loads(pickle.dumps(SPEC)) == SPEC


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
    parsed = DeltaJoinSpec.from_json(replace(SPEC, left=side).to_json()).left.where
    assert parsed == side.where
    assert parsed is not None
    assert type(parsed[0][0][2]) is type(value)


def test_fingerprint_is_about_meaning_alone() -> None:
    """Where the tables lie, how many shards, and the order of columns change no row of the output."""
    moved = replace(ORDERS, path="/elsewhere/orders", select=("day", "product", "id"))
    assert replace(SPEC, left=moved, shards=1, max_rows_per_trigger=7).fingerprint == SPEC.fingerprint


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
    assert replace(SPEC, left=replace(ORDERS, **change)).fingerprint != SPEC.fingerprint


def test_fingerprint_of_swapped_sides_differs() -> None:
    assert replace(SPEC, left=PRODUCTS, right=ORDERS).fingerprint != SPEC.fingerprint


def test_filter_columns_are_read_but_not_selected() -> None:
    side = replace(PRODUCTS, where=[[("price", ">", 1)], [("name", "=", "x"), ("price", "<", 9)]])
    assert side.columns == ("code", "name", "price")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Side("", ("a",), ("a",)), "needs the path of its table"),
        (lambda: Side("/t", (), ("a",)), "select must be a list of column names"),
        (lambda: Side("/t", "a", ("a",)), "select must be a list of column names"),  # type: ignore[arg-type]
        (lambda: Side("/t", ("a",), ()), "keys must be a list of column names"),
        (lambda: Side("/t", ("a", "a"), ("a",)), "names a column twice"),
        (lambda: Side("/t", ("a",), ("b",)), "select must contain the join keys; add b"),
        (lambda: Side("/t", ("a",), ("a",), [("a", ">")]), "must be \\(column, operator, value\\)"),
        (lambda: DeltaJoinSpec(ORDERS, replace(PRODUCTS, keys=("code", "name"))), "as many keys"),
        (lambda: replace(SPEC, shards=0), "shards must be a positive integer, got 0"),
        (lambda: replace(SPEC, max_rows_per_trigger=True), "must be a positive integer, got True"),
    ],
)
def test_a_wrong_spec_says_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def broken(**changes: Any) -> str:
    return json.dumps({**json.loads(SPEC.to_json()), **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
        ("[]", "must have exactly left, right, shards, max_rows_per_trigger"),
        (broken(more=1), "must have exactly left, right"),
        (broken(left=None), "a side of a join must have exactly path, select, keys, where"),
        (broken(left={**ORDERS.to_json(), "path": 7}), "needs the path of its table, got 7"),
        (broken(left={**ORDERS.to_json(), "keys": ["a", 1]}), "must hold column names, got 1"),
        (broken(left={**ORDERS.to_json(), "where": []}), "filters must be null or a list of lists"),
        (broken(left={**ORDERS.to_json(), "where": [[["a", "="]]]}), "must be \\[column, operator, value\\]"),
        (broken(left={**ORDERS.to_json(), "where": [[["a", "=", {"date": "x"}]]]}), "value must be a scalar"),
        (broken(left={**ORDERS.to_json(), "where": [[["a", "=", {"exec": "x"}]]]}), "value must be a scalar"),
        (broken(shards="4"), "shards must be a positive integer, got '4'"),
    ],
)
def test_anybodys_text_is_parsed_strictly(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DeltaJoinSpec.from_json(text)
