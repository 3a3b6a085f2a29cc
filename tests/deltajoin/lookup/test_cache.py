"""Caches of looked-up rows: against a dictionary, within their bounds, and only for the history they saw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltajoin.errors import LookupFailedError
from deltajoin.latest.journal import EpochCaches, caches_of
from deltajoin.lookup import Answer
from deltajoin.lookup.cache import CacheCounts, Expiry, RowCache
from upsert.errors import ConfigurationError, SchemaError

SCHEMA = pa.schema({"hub": pa.string(), "id": pa.int64(), "name": pa.string()})
Row = tuple[str, int, str]


def cache(**bounds: int) -> RowCache:
    return RowCache(SCHEMA, ["hub"], ["id"], **bounds)


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def hubs(*values: str | None) -> pa.Table:
    return pa.table({"hub": pa.array(values, pa.string())})


def put(into: RowCache, rows_of: dict[str, list[Row]]) -> None:
    """What a lookup of these hubs found, the rows in an odd order."""
    found = [(at, row) for at, rows in enumerate(rows_of.values()) for row in rows][::-1]
    positions = np.array([at for at, _ in found], dtype=np.int64)
    into.put(hubs(*rows_of), Answer(positions, table([row for _, row in found])))


def known(of: RowCache, *asked: str | None) -> dict[int, list[Row]]:
    """The rows by the place of their key; a key that is missing is not in it."""
    found = of.get(hubs(*asked))
    rows: dict[int, list[Row]] = {at: [] for at in range(len(asked)) if at not in found.missing}
    for at, row in zip(found.positions.tolist(), found.rows.to_pylist(), strict=True):
        rows[at].append(tuple(row.values()))
    return {at: sorted(each) for at, each in rows.items()}


ANN, BOB, CY = ("JFK", 1, "ann"), ("JFK", 2, "bob"), ("EWR", 3, "cy")


# entries


def test_what_was_looked_up_is_known_also_that_there_is_nothing() -> None:
    kept = cache()
    put(kept, {"JFK": [ANN, BOB], "LGA": []})
    assert known(kept, "LGA", "EWR", "JFK", None, "JFK") == {0: [], 2: [ANN, BOB], 3: [], 4: [ANN, BOB]}
    counts = kept.counts()
    assert (counts.hits, counts.misses, counts.keys) == (3, 1, 2)
    assert kept.counts() == CacheCounts(keys=2, bytes=counts.bytes)


def test_keys_that_failed_are_not_remembered() -> None:
    kept = cache()
    failures = {0: LookupFailedError("away")}
    kept.put(hubs("JFK", "EWR"), Answer(np.array([1]), table([CY]), failures))
    assert known(kept, "JFK", "EWR") == {1: [CY]}


def test_the_own_side_changes_entries_and_builds_none() -> None:
    kept = cache()
    put(kept, {"JFK": [ANN], "LGA": []})
    kept.update(table([("JFK", 1, "eve"), BOB, ("LGA", 4, "dan"), CY]))
    assert known(kept, "JFK", "LGA", "EWR") == {0: [("JFK", 1, "eve"), BOB], 1: [("LGA", 4, "dan")]}


def test_changes_of_the_own_side_count_in_their_order() -> None:
    kept = cache()
    put(kept, {"JFK": [ANN]})
    kept.update(table([BOB, ("JFK", 1, "x"), ANN, BOB, ANN]), [False, False, True, True, False])
    assert known(kept, "JFK") == {0: [ANN]}


def test_a_deletion_of_what_is_not_there_does_nothing() -> None:
    kept = cache()
    put(kept, {"JFK": [ANN]})
    kept.update(table([BOB]), [True])
    assert known(kept, "JFK") == {0: [ANN]}


def test_rows_of_a_key_must_differ_in_their_upsert_key() -> None:
    with pytest.raises(SchemaError, match=r"several rows of \{'hub': 'JFK'\} have equal ones"):
        put(cache(), {"JFK": [ANN, ("JFK", 1, "eve")]})
    with pytest.raises(SchemaError, match=r"upsert key \(id\): values must not be NULL"):
        put(cache(), {"JFK": [("JFK", None, "eve")]})  # type: ignore[list-item]


def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="max_keys must be a positive integer, got 0"):
        cache(max_keys=0)
    with pytest.raises(ConfigurationError, match="cache: 'x' must be one of the columns"):
        RowCache(SCHEMA, ["hub"], ["x"])
    with pytest.raises(ConfigurationError, match="upsert_key must have one column or more"):
        RowCache(SCHEMA, ["hub"], [])


# bounds


def test_keys_used_last_stay() -> None:
    kept = cache(max_keys=2)
    put(kept, {"JFK": [ANN], "EWR": [CY]})
    known(kept, "JFK")
    put(kept, {"LGA": []})
    assert known(kept, "JFK", "EWR", "LGA") == {0: [ANN], 2: []}
    assert kept.counts().evictions == 1


def within(kept: RowCache, max_bytes: int) -> bool:
    """Whether entries, rows and keys, those that nobody uses any more too, stay below a bound together."""
    keys = 0 if kept._key_store is None else kept._key_store.bytes
    return kept._lru.currsize + kept._store.bytes + keys <= max_bytes


def test_bytes_are_bounded_also_by_keys_that_have_no_rows() -> None:
    kept = cache(max_bytes=100_000)
    for start in range(0, 20_000, 100):
        put(kept, {f"a hub that nobody flies to, number {start + n}": [] for n in range(100)})
        assert within(kept, 100_000)
    assert kept.entries > 50


def test_what_an_attempt_that_did_not_count_told_a_cache_is_not_told_on() -> None:
    kept = RowCache(SCHEMA, ["hub"], ["id"], is_recorded=True)
    put(kept, {"JFK": [ANN]})
    EpochCaches(kept, cache()).begin(None)
    assert kept.take_effects() == []


def test_bytes_are_bounded() -> None:
    kept = cache(max_bytes=100_000)
    for number in range(100):
        put(kept, {f"H{number}": [(f"H{number}", number, "x" * 2_000)]})
        assert within(kept, 100_000)
    assert 10 < kept.entries < 25
    assert known(kept, "H99") == {0: [("H99", 99, "x" * 2_000)]}


def test_an_entry_that_is_too_large_is_not_kept() -> None:
    kept = cache(max_bytes=10_000)
    put(kept, {"JFK": [("JFK", 1, "x" * 10_000)], "EWR": [CY]})
    assert known(kept, "JFK", "EWR") == {1: [CY]}
    kept.update(table([("EWR", 4, "x" * 10_000)]))
    assert known(kept, "EWR") == {}
    assert kept.counts().keys == 0


def test_a_row_keeps_nothing_else_of_its_reply_in_memory() -> None:
    reply = table([("JFK", n, "x" * 1_000) for n in range(1_000)])
    before = pa.total_allocated_bytes()
    kept = cache()
    kept.put(hubs("JFK"), Answer(np.array([0]), reply.slice(500, 1)))
    del reply
    assert pa.total_allocated_bytes() < before


OPERATION = st.one_of(
    st.tuples(st.just("put"), st.sets(st.sampled_from("abcdef"), min_size=1)),
    st.tuples(st.just("get"), st.lists(st.sampled_from("abcdef"))),
    st.tuples(
        st.just("update"),
        st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), st.booleans()), max_size=8),
    ),
)


@given(
    operations=st.lists(OPERATION, max_size=40),
    max_keys=st.integers(1, 8),
    max_bytes=st.sampled_from([1_200, 3_000, 10_000, 1 << 20]),
)
def test_what_a_cache_knows_is_true(operations: list[Any], max_keys: int, max_bytes: int) -> None:
    """Against the table itself, whose changes all pass the cache: an entry equals it at any time."""
    kept = cache(max_keys=max_keys, max_bytes=max_bytes)
    truth: dict[str, dict[int, Row]] = {hub: {} for hub in "abcdef"}
    version = 0
    for name, argument in operations:
        match name:
            case "put":
                put(kept, {hub: sorted(truth[hub].values()) for hub in argument})
            case "get":
                for at, rows in known(kept, *argument).items():
                    assert rows == sorted(truth[argument[at]].values())
            case "update":
                rows = []
                for hub, id_, is_deleted in argument:
                    version += 1
                    rows.append((hub, id_, "v" * (version % 50)))
                    if is_deleted:
                        truth[hub].pop(id_, None)
                    else:
                        truth[hub][id_] = rows[-1]
                kept.update(table(rows), [is_deleted for _, _, is_deleted in argument])
        counts = kept.counts()
        assert counts.keys <= max_keys
        assert within(kept, max_bytes)


# epochs


def epochs() -> EpochCaches:
    return EpochCaches(cache(), cache())


def test_caches_are_believed_only_after_the_batch_that_they_saw_last() -> None:
    caches = epochs()
    assert not caches.begin(None)
    put(caches.left, {"JFK": [ANN]})
    seventh = caches.seal()
    assert caches.begin(seventh)
    assert known(caches.left, "JFK") == {0: [ANN]}
    caches.seal()  # of an attempt that Spark made in vain: the state still has the epoch before
    assert not caches.begin(seventh)
    assert known(caches.left, "JFK") == {}
    assert caches.left.counts().drops == 2


def test_caches_of_a_task_that_died_are_dropped() -> None:
    caches = epochs()
    caches.begin(None)
    epoch = caches.seal()
    caches.begin(epoch)
    put(caches.right, {"JFK": [ANN]})  # and here the task ends
    assert not caches.begin(epoch)
    assert known(caches.right, "JFK") == {}


def test_no_two_batches_have_the_same_epoch() -> None:
    """Two attempts at one batch differ, so the cache of the one that did not count is found out."""
    assert len({epochs().seal() for _ in range(1_000)}) == 1_000


def test_a_process_keeps_the_caches_it_used_last() -> None:
    first = caches_of("first", epochs)
    for number in range(62):
        caches_of(number, epochs)
    assert caches_of("first", epochs) is first
    caches_of(62, epochs)
    caches_of(63, epochs)
    assert caches_of("first", epochs) is first
    assert caches_of(1, epochs) is not None


class TestExpiry:
    """Entries that are too old are looked up again."""

    @pytest.mark.parametrize(
        ("bounds", "known_at"),
        [({"after_write_s": 10}, {4, 8}), ({"after_access_s": 5}, {4, 8, 12}), ({}, {4, 8, 12, 30})],
    )
    def test_an_entry_is_known_until_it_is_too_old(
        self, bounds: dict[str, float], known_at: set[int]
    ) -> None:
        now = [0.0]
        of = RowCache(SCHEMA, ["hub"], None, expiry=Expiry(**bounds, now=lambda: now[0]))
        put(of, {"a": [("a", 1, "x"), ("a", 1, "x")], "b": []})
        found = set()
        for now[0] in (4, 8, 12, 30):
            if known(of, "a", "b") == {0: [("a", 1, "x"), ("a", 1, "x")], 1: []}:
                found.add(int(now[0]))
            else:
                assert known(of, "a", "b") == {}
        assert found == known_at

    def test_a_row_that_is_looked_up_again_is_new(self) -> None:
        now = [0.0]
        of = RowCache(SCHEMA, ["hub"], None, expiry=Expiry(after_write_s=10, now=lambda: now[0]))
        put(of, {"a": [("a", 1, "x")]})
        now[0] = 10
        assert known(of, "a") == {}
        put(of, {"a": [("a", 1, "y")]})
        now[0] = 19
        assert known(of, "a") == {0: [("a", 1, "y")]}
