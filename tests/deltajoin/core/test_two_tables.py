"""The INNER join of two tables against both whole joins, recomputed and subtracted."""

from collections import Counter
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltajoin.core import keys as core_keys
from deltajoin.core.consolidate import consolidate_changes
from deltajoin.core.evaluate import Join, evaluate
from deltajoin.core.keys import FIRST_LOOKUP_KEYS, common_key_type
from deltajoin.core.rows import Changes
from deltajoin.core.shards import split_of
from deltajoin.spec import DeltaJoinSpec, Side
from tests.deltajoin.core.memory_tables import (
    Row,
    Rows,
    changes_of,
    counted,
    difference,
    is_net,
    joined,
    match_in,
    signed,
)
from tests.deltajoin.core.trees import Facts

LEFT = pa.schema({"id": pa.int64(), "k": pa.int32(), "name": pa.string()})
RIGHT = pa.schema({"k": pa.int64(), "price": pa.float64()})
FLOATS = pa.schema({"id": pa.int32(), "k": pa.float64()})


@dataclass(frozen=True)
class Indexed(Facts):
    """Two tables that have an index for everything."""

    schemas: tuple[pa.Schema, ...] = ()

    def select(self, table: int) -> tuple[str, ...]:
        return tuple(self.schemas[table].names)


def step(
    schemas: tuple[pa.Schema, pa.Schema],
    keys: tuple[list[int], list[int]],
    a: tuple[Rows, Rows],
    b: tuple[Rows, Rows],
    output_rows: int = 3,
    keys_at_once: int = FIRST_LOOKUP_KEYS,
) -> list[Row]:
    """Rows that the join emits when both tables go from their first multiset to their second.

    With more contested keys than ``keys_at_once`` they are looked up after the others: so many first, then
    one by one.
    """
    names = [tuple(schema.names) for schema in schemas]
    sides = [
        Side(f"/t{table}", own, tuple(own[number] for number in keys[table]))
        for table, own in enumerate(names)
    ]
    spec = DeltaJoinSpec.of("inner", *sides)
    split = split_of(spec.tree, lambda ref: schemas[ref.table].field(ref.column).type, names)
    join = Join.of(spec, schemas, split, Indexed(schemas=schemas))
    changes = [changes_of(schema, new, old) for schema, (old, new) in zip(schemas, (a, b), strict=True)]
    old, new = (
        [match_in(schema, states[at]) for schema, states in zip(schemas, (a, b), strict=True)]
        for at in (0, 1)
    )
    emitted: list[Row] = []
    with (
        patch("deltajoin.core.evaluate.FIRST_LOOKUP_KEYS", keys_at_once),
        patch.multiple(core_keys, FIRST_LOOKUP_KEYS=max(keys_at_once, 1), LOOKUP_ROWS=1),
    ):
        for batch in evaluate(join, changes, old, new, output_rows=output_rows):
            assert batch.schema == join.outgoing.schema
            assert 0 < batch.num_rows <= output_rows
            emitted += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return emitted


def expected(keys: tuple[list[int], list[int]], a: tuple[Rows, Rows], b: tuple[Rows, Rows]) -> Rows:
    return difference(joined(a[1], b[1], *keys), joined(a[0], b[0], *keys))


def rows_of(*columns: st.SearchStrategy[Any]) -> st.SearchStrategy[Rows]:
    return st.lists(st.tuples(*columns), max_size=8).map(counted)


IDS, KEYS, NAMES = (
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(0, 2)),
    st.sampled_from(["x", "y", None]),
)
PRICES = st.sampled_from([1.0, 0.0, -0.0, float("nan"), None])
LEFT_ROWS, RIGHT_ROWS = rows_of(IDS, KEYS, NAMES), rows_of(KEYS, PRICES)


@given(a0=LEFT_ROWS, a1=LEFT_ROWS, b0=RIGHT_ROWS, b1=RIGHT_ROWS, keys=st.integers(0, 3))
@example(
    counted([(1, 0, "x")] * 3), counted([(1, 0, "x")] * 2), counted([(0, 1.0)]), counted([(0, 1.0)] * 2), 3
)
def test_any_changes_of_both_multisets_emit_exactly_the_difference(
    a0: Rows, a1: Rows, b0: Rows, b1: Rows, keys: int
) -> None:
    emitted = step((LEFT, RIGHT), ([1], [0]), (a0, a1), (b0, b1), keys_at_once=keys)
    assert signed(emitted) == expected(([1], [0]), (a0, a1), (b0, b1))
    assert is_net(emitted)


def keyed(*columns: st.SearchStrategy[Any]) -> st.SearchStrategy[Rows]:
    return st.dictionaries(st.integers(0, 6), st.tuples(*columns)).map(
        lambda rows: counted((key, *row) for key, row in rows.items())
    )


@given(a0=keyed(KEYS, NAMES), a1=keyed(KEYS, NAMES), b0=keyed(KEYS), b1=keyed(KEYS))
def test_any_changes_of_both_keyed_tables_emit_exactly_the_difference(
    a0: Rows, a1: Rows, b0: Rows, b1: Rows
) -> None:
    right = pa.schema({"id": pa.int64(), "k": pa.int64()})
    emitted = step((LEFT, right), ([1], [1]), (a0, a1), (b0, b1))
    assert signed(emitted) == expected(([1], [1]), (a0, a1), (b0, b1))
    assert is_net(emitted)


@given(a0=rows_of(IDS, PRICES), a1=rows_of(IDS, PRICES), b0=rows_of(PRICES), b1=rows_of(PRICES))
def test_float_keys_join_as_in_spark(a0: Rows, a1: Rows, b0: Rows, b1: Rows) -> None:
    """-0.0 equals 0.0 and NaN equals NaN."""
    right = pa.schema({"k": pa.float64()})
    emitted = step((FLOATS, right), ([1], [0]), (a0, a1), (b0, b1))
    assert signed(emitted) == expected(([1], [0]), (a0, a1), (b0, b1))
    assert is_net(emitted)


@given(a0=LEFT_ROWS, a1=LEFT_ROWS, b0=LEFT_ROWS, b1=LEFT_ROWS)
def test_several_keys_must_all_be_equal(a0: Rows, a1: Rows, b0: Rows, b1: Rows) -> None:
    keys = ([1, 2], [1, 2])
    emitted = step((LEFT, LEFT), keys, (a0, a1), (b0, b1))
    assert signed(emitted) == expected(keys, (a0, a1), (b0, b1))
    assert is_net(emitted)


def test_one_row_of_each_kind_drives_a_row_of_its_kind() -> None:
    a0, a1 = counted([(1, 7, "a"), (2, 7, "b")]), counted([(1, 7, "c"), (3, 7, "d")])
    b = counted([(7, 1.0)])
    assert sorted(step((LEFT, RIGHT), ([1], [0]), (a0, a1), (b, b))) == [
        (1, 7, "a", 7, 1.0, "-U"),
        (1, 7, "c", 7, 1.0, "+U"),
        (2, 7, "b", 7, 1.0, "-D"),
        (3, 7, "d", 7, 1.0, "+I"),
    ]


def test_update_on_both_sides_replaces_the_pair_once() -> None:
    """Both terms have the pair of the old left and the new right row, with opposite signs."""
    a0, a1 = counted([(1, 7, "old")]), counted([(1, 7, "new")])
    b0, b1 = counted([(7, 1.0)]), counted([(7, 2.0)])
    emitted = step((LEFT, RIGHT), ([1], [0]), (a0, a1), (b0, b1))
    assert [(*row[:5], row[5][0]) for row in sorted(emitted)] == [
        (1, 7, "new", 7, 2.0, "+"),
        (1, 7, "old", 7, 1.0, "-"),
    ]


def test_delete_on_both_sides_retracts_the_pair_once() -> None:
    """The trap of a join that looks up only the newest rows: each delete would find the other side empty."""
    gone: Rows = Counter()
    emitted = step((LEFT, RIGHT), ([1], [0]), (counted([(1, 7, "a")]), gone), (counted([(7, 1.0)]), gone))
    assert [row[5] for row in emitted] == ["-D"]


def test_a_hot_key_comes_in_batches_of_bounded_size() -> None:
    a = counted((i, 7, "x") for i in range(100))
    b = counted((7, float(i)) for i in range(100))
    nothing: Rows = Counter()
    assert len(step((LEFT, RIGHT), ([1], [0]), (nothing, a), (nothing, b), output_rows=64)) == 10_000


def test_no_changes_emit_nothing() -> None:
    a = counted([(1, 7, "x")])
    assert step((LEFT, RIGHT), ([1], [0]), (a, a), (counted([(7, 1.0)]),) * 2) == []


def test_rows_with_nested_columns_cancel_by_value() -> None:
    schema = pa.schema({"k": pa.int64(), "tags": pa.list_(pa.string())})
    rows = pa.table(
        {
            "k": [1, 1, 1, 2],
            "tags": [["a"], ["b"], ["a"], None],
            "_row_kind": ["-U", "+U", "+I", "+I"],
        },
        schema=schema.append(pa.field("_row_kind", pa.string())),
    )
    net = consolidate_changes(Changes(rows)).rows.to_pylist()
    assert net == [
        {"k": 1, "tags": ["b"], "_row_kind": "+U"},
        {"k": 2, "tags": None, "_row_kind": "+I"},
    ]


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.string(), pa.string(), pa.string()),
        (pa.int32(), pa.float64(), None),
        (pa.decimal128(10, 2), pa.decimal128(12, 2), None),
        (pa.list_(pa.int32()), pa.list_(pa.int32()), None),
    ],
)
def test_keys_are_compared_in_a_common_type_or_not_at_all(
    left: pa.DataType, right: pa.DataType, common: pa.DataType | None
) -> None:
    assert common_key_type(left, right) == common
