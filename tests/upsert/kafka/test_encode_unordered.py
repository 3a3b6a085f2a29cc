"""Rows of a task in no order, folded to one row per key, and whose task a key is."""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert.errors import ChangelogError, ConfigurationError
from upsert.kafka.encode import KindedRows, check_task, one_row_per_key
from upsert.schema import TableSchema
from upsert.store.rows.hashing import bucket_of, hash_columns
from upsert.store.rows.layout import Layout

LAYOUT = Layout.of(TableSchema.of({"k": pa.int64(), "v": pa.int64(), "seq": pa.string()}, primary_key=["k"]))
Change = tuple[str, int, int | None, str | None]
"""Kind, key, value and sequence."""


def folded(changes: Sequence[Change], sequence: str | None = None) -> dict[int, int | None]:
    """Key -> value, None for a deletion; given in chunks of two rows."""
    pairs = [changes[i : i + 2] for i in range(0, len(changes), 2)]
    chunks = [
        KindedRows(
            pa.Table.from_pylist([{"k": k, "v": v, "seq": s} for _, k, v, s in some], LAYOUT.stored),
            pa.array([c[0] for c in some]),
        )
        for some in pairs
    ]
    effects = one_row_per_key(chunks, LAYOUT, sequence, "table 't'")
    if effects is None:
        return {}
    gone = effects.is_deleted.tolist()
    keys, values = effects.rows["k"].to_pylist(), effects.rows["v"].to_pylist()
    return {k: None if d else v for k, v, d in zip(keys, values, gone, strict=True)}


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[int, tuple[int, str]], dict[int, tuple[int, str]], list[Change]]:
    """A table before and after some changes, and the changes in any order."""
    before = draw(st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 2), st.just("00"))))
    table = dict(before)
    changes: list[Change] = []
    steps = draw(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 2)), max_size=8))
    for number, (key, value) in enumerate(steps, start=1):
        old = table.pop(key, None)
        if old is not None:
            changes.append(("-U" if value is not None else "-D", key, *old))
        if value is not None:
            table[key] = (value, f"{number:02}")
            changes.append(("+U" if old else "+I", key, *table[key]))
    draw(st.randoms()).shuffle(changes)
    return before, table, changes


@given(histories())
def test_changes_in_any_order_leave_the_table_that_they_describe(
    history: tuple[dict[int, tuple[int, str]], dict[int, tuple[int, str]], list[Change]],
) -> None:
    """With or without a sequence: a full changelog agrees with itself."""
    before, after, changes = history
    for sequence in (None, "seq"):
        topic = {key: value for key, (value, _) in before.items()}
        for key, value in folded(changes, sequence).items():
            topic.pop(key, None)
            topic |= {} if value is None else {key: value}
        assert topic == {key: value for key, (value, _) in after.items()}


@pytest.mark.parametrize(
    ("changes", "result"),
    [
        ([("+U", 1, 5, "b"), ("+U", 1, 6, "a")], 5),
        ([("+U", 1, 5, "b"), ("+U", 1, 6, None)], 5),
        ([("+U", 1, 5, "a"), ("-D", 1, 6, "b")], None),
        ([("+U", 1, 5, "a"), ("-D", 1, None, None)], 5),
        ([("-U", 1, 6, "a"), ("+U", 1, 5, "a")], 5),
        ([("+U", 1, 5, None), ("-U", 1, 6, None)], 5),
    ],
    ids=["highest", "NULL is lowest", "later deletion", "deletion without one", "same one", "only NULLs"],
)
def test_highest_sequence_wins(changes: list[Change], result: int | None) -> None:
    for order in (changes, changes[::-1]):
        assert folded(order, "seq") == {1: result}


def test_two_values_for_a_key_are_refused_with_a_way_out() -> None:
    with pytest.raises(ChangelogError, match=r"table 't': key \{'k': 1\}.*2 different.*'sequence\.field'"):
        folded([("+U", 1, 5, "a"), ("+U", 1, 6, "a")])


def test_rows_of_inserts_only_need_no_kinds() -> None:
    rows = pa.table({"k": [2, 1], "v": [1, 2], "seq": pa.nulls(2, pa.string())})
    effects = one_row_per_key([KindedRows(rows, None)], LAYOUT, None, "t")
    assert effects is not None
    assert effects.rows["k"].to_pylist() == [1, 2]
    assert not effects.is_deleted.any()


def test_nothing_folds_to_nothing() -> None:
    assert one_row_per_key([], LAYOUT, None, "t") is None


def test_keys_of_another_task_are_refused() -> None:
    rows = pa.table({"k": list(range(100))})
    owners = bucket_of(hash_columns([rows["k"]]), 4)
    for task in range(4):
        check_task(rows.filter(pa.array(owners == task)), ("k",), 4, task, "table 't'")
    with pytest.raises(
        ConfigurationError, match=r"got key \{'k': \d+\} in task 2 .* of 4; let write_changes"
    ):
        check_task(rows, ("k",), 4, 2, "table 't'")
