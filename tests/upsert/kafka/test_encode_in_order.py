"""Rows of a task in order: which of them become records, against a loop over rows."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert.kafka import encode
from upsert.kafka.encode import Effects, KindedRows, last_in_windows, without_befores

Change = tuple[str, int, int]
"""Kind, key and value."""

changes = st.lists(
    st.tuples(st.sampled_from(["+I", "-U", "+U", "-D"]), st.integers(0, 3), st.integers(0, 9)), max_size=30
)
sizes = st.lists(st.integers(1, 5), min_size=1, max_size=30)


def chunks(rows: Sequence[Change], sizes: Sequence[int] = (1_000,)) -> Iterator[KindedRows]:
    start, number = 0, 0
    while start < len(rows):
        some = rows[start : start + sizes[number % len(sizes)]]
        start, number = start + len(some), number + 1
        kinds, keys, values = zip(*some, strict=True)
        yield KindedRows(pa.table({"k": keys, "v": values}), pa.array(kinds))


def written(effects: Sequence[Effects]) -> list[tuple[int, int | None]]:
    """Key and value of each record, None for a tombstone."""
    found = []
    for rows, flags in effects:
        assert len(flags) == rows.num_rows > 0
        pairs = zip(rows["k"].to_pylist(), rows["v"].to_pylist(), flags, strict=True)
        found += [(key, None if gone else value) for key, value, gone in pairs]
    return found


def by_key(records: Sequence[tuple[int, int | None]]) -> dict[int, list[int | None]]:
    return {key: [value for k, value in records if k == key] for key in {key for key, _ in records}}


def model_of_records(rows: Sequence[Change]) -> dict[int, list[int | None]]:
    found: dict[int, list[int | None]] = {}
    for number, (kind, key, value) in enumerate(rows):
        following = next((k for k, other, _ in rows[number + 1 :] if other == key), "")
        if not (kind == "-U" and following.startswith("+")):
            found.setdefault(key, []).append(value if kind.startswith("+") else None)
    return found


@given(changes, sizes)
def test_every_row_is_a_record_but_before_images_that_are_replaced(
    rows: list[Change], sizes: list[int]
) -> None:
    """However the rows are cut into chunks, the records of each key are the same."""
    assert by_key(written(list(without_befores(chunks(rows, sizes), ("k",))))) == model_of_records(rows)


@given(changes, sizes)
def test_the_newest_record_of_each_key_is_what_the_changelog_leaves(
    rows: list[Change], sizes: list[int]
) -> None:
    table = {key: value if kind.startswith("+") else None for kind, key, value in rows}
    assert dict(written(list(without_befores(chunks(rows, sizes), ("k",))))) == table


def test_rows_without_kinds_are_not_copied() -> None:
    rows = pa.table({"k": [1, 1], "v": [1, 2]})
    assert [effects.rows is rows for effects in without_befores([KindedRows(rows, None)], ("k",))] == [True]


def test_before_images_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of too many become tombstones early; a value that comes later still wins."""
    monkeypatch.setattr(encode, "_MOST_HELD", 2)
    rows = [("-U", 1, 1), ("-U", 2, 2), ("-U", 3, 3), ("+U", 1, 4), ("+U", 2, 5)]
    assert written(list(without_befores(chunks(rows, [3, 2]), ("k",)))) == [
        (1, None),
        (1, 4),
        (2, 5),
        (3, None),
    ]


def windowed(
    rows: Sequence[Change], sizes: Sequence[int], max_keys: int
) -> list[list[tuple[int, int | None]]]:
    effects = without_befores(chunks(rows, sizes), ("k",))
    return [written([window]) for window in last_in_windows(effects, ("k",), max_keys, 60.0, lambda: 0.0)]


@given(changes, sizes, st.integers(1, 4))
def test_windows_hold_the_last_row_of_so_many_keys(
    rows: list[Change], sizes: list[int], max_keys: int
) -> None:
    records = written(list(without_befores(chunks(rows, sizes), ("k",))))
    expected: list[tuple[int, int | None]] = []
    window: dict[int, int | None] = {}
    for key, value in records:
        window.pop(key, None)
        window[key] = value
        if len(window) == max_keys:
            expected += window.items()
            window = {}
    found = [record for some in windowed(rows, sizes, max_keys) for record in some]
    assert found == [*expected, *window.items()]


def test_later_row_of_a_key_wins_inside_the_buffer() -> None:
    """UK06: max-rows 2."""
    rows = [("+I", 1, 1), ("+I", 2, 2), ("+I", 3, 3), ("+I", 3, 4)]
    assert windowed(rows, [4], 2) == [[(1, 1), (2, 2)], [(3, 4)]]


def test_a_window_ends_when_it_is_old() -> None:
    rows = [("+I", 1, 1), ("+I", 1, 2), ("+I", 1, 3), ("+I", 2, 4)]
    clock = iter([0.0, 1.0, 5.0, 5.0, 6.0, 7.0])
    effects = without_befores(chunks(rows, [1]), ("k",))
    windows = last_in_windows(effects, ("k",), 10, 5.0, lambda: next(clock))
    assert [written([window]) for window in windows] == [[(1, 2)], [(1, 3), (2, 4)]]
