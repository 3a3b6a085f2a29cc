"""Caches of several processes that leave each other what they did: always those of the state's epoch."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltajoin.errors import LookupFailedError
from deltajoin.latest.journal import EpochCaches, Journal
from deltajoin.lookup import Answer
from deltajoin.lookup.cache import RowCache
from tests.deltajoin.lookup.test_cache import ANN, BOB, CY, SCHEMA, Row, hubs, known, put, table
from upsert.errors import BrokenPayloadError

HUBS = ("JFK", "LGA", "EWR")


def process(folder: Path | str, run: str = "run", **bounds: int) -> EpochCaches:
    left, right = (RowCache(SCHEMA, ["hub"], ["id"], is_recorded=True, **bounds) for _ in range(2))
    return EpochCaches(left, right, Journal(str(folder), run))


operations = st.lists(
    st.tuples(
        st.integers(0, 2),  # which process
        st.sampled_from(["counts", "counts", "counts", "dies", "sealed in vain"]),
        st.sets(st.sampled_from(HUBS)),  # what is looked up
        st.lists(st.tuples(st.sampled_from(HUBS), st.integers(1, 3), st.booleans()), max_size=3),
    ),
    max_size=30,
)


@given(operations, st.sampled_from([2, 100]))
def test_what_any_process_knows_is_true(steps: list[Any], max_keys: int) -> None:
    """Whichever process runs a step, whether it dies, or ends and does not count."""
    rows: dict[tuple[str, int], Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        processes = [process(folder, max_keys=max_keys) for _ in range(3)]
        epoch: int | None = None
        for number, (who, how, asked, changes) in enumerate(steps):
            caches = processes[who]
            assert caches.begin(epoch) == (epoch is not None)
            for hub in HUBS:
                if found := known(caches.left, hub):
                    assert found[0] == sorted(row for row in rows.values() if row[0] == hub)
            after = dict(rows)
            for hub, id_, is_deleted in changes:
                row = (hub, id_, f"version {number}")
                after |= {(hub, id_): row}
                caches.left.update(table([row]), [is_deleted])
                if is_deleted:
                    del after[hub, id_]
            missing = [hub for hub in sorted(asked) if not known(caches.left, hub)]
            put(caches.left, {hub: [row for row in after.values() if row[0] == hub] for hub in missing})
            if how == "dies":
                continue
            sealed = caches.seal()
            if how == "counts":
                rows, epoch = after, sealed


def test_a_process_that_missed_steps_or_is_new_knows_what_the_others_do(tmp_path: Path) -> None:
    one, other = process(tmp_path), process(tmp_path)
    one.begin(None)
    put(one.left, {"JFK": [ANN, BOB], "LGA": []})
    put(one.right, {"EWR": [CY]})
    epoch = one.seal()
    assert other.begin(epoch)
    other.left.update(table([BOB, ("LGA", 7, "dan")]), [True, False])
    epoch = other.seal()
    for caches in (one, process(tmp_path)):
        assert caches.begin(epoch)
        assert known(caches.left, "JFK", "LGA", "EWR") == {0: [ANN], 1: [("LGA", 7, "dan")]}
        assert known(caches.right, "EWR") == {0: [CY]}
        assert caches.left.counts().drops == (1 if caches is one else 0)


def test_a_process_whose_step_did_not_count_forgets_what_it_did_in_it(tmp_path: Path) -> None:
    caches = process(tmp_path)
    caches.begin(None)
    put(caches.left, {"JFK": [ANN]})
    epoch = caches.seal()
    caches.begin(epoch)
    put(caches.left, {"LGA": [("LGA", 7, "dan")]})
    caches.seal()
    assert caches.begin(epoch)
    assert known(caches.left, "JFK", "LGA") == {0: [ANN]}


def test_keys_whose_lookup_failed_are_left_out(tmp_path: Path) -> None:
    one, other = process(tmp_path), process(tmp_path)
    one.begin(None)
    failed = {0: LookupFailedError("no")}
    one.left.put(hubs("LGA", "JFK"), Answer(np.array([1]), table([ANN]), failed))
    assert other.begin(one.seal())
    assert known(other.left, "JFK", "LGA") == {0: [ANN]}


def steps_of(caches: EpochCaches, count: int) -> Iterator[int]:
    epoch = None
    for number in range(count):
        caches.begin(epoch)
        if not number:
            put(caches.left, {"JFK": [], "EWR": [CY]})
        caches.left.update(table([("JFK", 1, f"ann {number}")]))
        epoch = caches.seal()
        yield epoch


def test_there_are_never_many_steps_to_read(tmp_path: Path) -> None:
    """Caches that are written whole have their keys without rows, too."""
    steps = [(epoch, len(list((tmp_path / "run").iterdir()))) for epoch in steps_of(process(tmp_path), 200)]
    epoch, _ = steps[-1]
    assert max(files for _, files in steps) <= 2 * 65
    later = process(tmp_path)
    assert later.begin(epoch)
    assert known(later.left, "JFK", "EWR") == {0: [("JFK", 1, "ann 199")], 1: [CY]}
    assert {path.suffix for path in (tmp_path / "run").iterdir()} == {".arrow"}


def test_a_step_that_looks_up_more_than_the_caches_hold_leaves_what_they_hold(tmp_path: Path) -> None:
    caches = process(tmp_path, max_keys=10)
    caches.begin(None)
    put(caches.left, {f"{number}": [(f"{number}", number, "x" * 100)] for number in range(5_000)})
    epoch = caches.seal()
    (path,) = (tmp_path / "run").iterdir()
    assert path.stat().st_size < 10_000
    later = process(tmp_path, max_keys=10)
    assert later.begin(epoch)
    assert later.left.entries == 10


def test_steps_that_are_gone_cost_the_entries(tmp_path: Path) -> None:
    *_, epoch = steps_of(process(tmp_path), 3)
    later = process(tmp_path)
    for path in (tmp_path / "run").iterdir():
        path.unlink()
    assert not later.begin(epoch)
    assert known(later.left, "JFK") == {}


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    (epoch,) = steps_of(process(tmp_path), 1)
    path = tmp_path / "run" / f"{epoch}.arrow"
    whole = path.read_bytes()
    for damaged in (b"", whole[:-100], whole[10:], b'{"parent": 0, "steps": 1}\n'):
        path.write_bytes(damaged)
        with pytest.raises(BrokenPayloadError, match="must be readable"):
            process(tmp_path).begin(epoch)


def test_what_another_run_has_left_is_deleted(tmp_path: Path) -> None:
    process(tmp_path, "first run").seal()
    process(tmp_path, "second run").seal()
    assert [path.name for path in tmp_path.iterdir()] == ["second run"]
