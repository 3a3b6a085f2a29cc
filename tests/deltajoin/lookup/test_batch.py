"""Lookups of a batch: what is sent, what comes back in which order, what fails and what is tried again."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltajoin.errors import LookupFailedError, LookupUnavailableError
from deltajoin.lookup import Answer, MemoryLookup, RequestLimits
from deltajoin.lookup.batch import Lookups, close_lookups, open_lookups
from tests.deltajoin.lookup.recording import SCHEMA, Recording, echo
from tests.helpers import REPOSITORY
from upsert.errors import ConfigurationError, SchemaError


@pytest.fixture(autouse=True)
def _end() -> Iterator[None]:
    yield
    close_lookups()


def ids(*values: int | None) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def answer(source: Any, keys: pa.Table, **arguments: Any) -> Answer:
    lookups = Lookups(source, **arguments)
    try:
        return lookups.answer(keys)[0]
    finally:
        lookups.close()


def messages(found: Answer) -> dict[int, str]:
    return {at: str(failure) for at, failure in found.failures.items()}


# what is sent


def test_distinct_keys_without_nulls_are_sent_in_order_of_appearance() -> None:
    source = Recording(limits=RequestLimits(keys_per_request=2))
    answer(source, ids(5, None, 3, 5, 9))
    assert source.asked == [[5, 3], [9]]


def test_nothing_is_sent_for_a_batch_of_nulls() -> None:
    source = Recording()
    assert answer(source, ids(None, None)).rows.num_rows == 0
    assert source.asked == []


def test_keys_must_have_the_columns_and_types_of_the_source() -> None:
    for keys in (pa.table({"id": ["1"]}), pa.table({"key": [1]}), pa.table({"id": [1], "x": [1]})):
        with pytest.raises(SchemaError, match="keys must have the columns id BIGINT, got"):
            answer(Recording(), keys)


@pytest.mark.parametrize(
    ("requests", "capacity", "most"), [(4, 1000, 4), (100, 6, 3), (3, 1, 1), (100, 1000, 50)]
)
def test_requests_in_flight_are_bounded_by_both_limits(requests: int, capacity: int, most: int) -> None:
    source = Recording(limits=RequestLimits(keys_per_request=2, requests=requests))
    lookups = Lookups(source, capacity=capacity)
    _, counts = lookups.answer(ids(*range(100)))
    lookups.close()
    assert (source.most_in_flight, counts.most_in_flight) == (most, most)


def test_batches_of_several_threads_share_the_limit() -> None:
    source = Recording(limits=RequestLimits(keys_per_request=1, requests=3))
    lookups = Lookups(source)
    threads = [threading.Thread(target=lookups.answer, args=[ids(*range(50))]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lookups.close()
    assert (len(source.asked), source.most_in_flight) == (200, 3)


def test_batches_that_were_started_are_in_flight_together() -> None:
    """Each of the two waits until the other one is asked: one after the other would never end."""
    arrived = {"left": threading.Event(), "right": threading.Event()}

    def meet(own: str, other: str) -> Recording:
        async def does(keys: pa.Table) -> Answer:
            arrived[own].set()
            assert await asyncio.to_thread(arrived[other].wait, 120)
            return echo(keys)

        return Recording(does)

    sides = [Lookups(meet("left", "right")), Lookups(meet("right", "left"))]
    pending = [side.start(ids(1)) for side in sides]
    assert [each.result()[0].rows.num_rows for each in pending] == [1, 1]
    for side in sides:
        side.close()


# what comes back


def test_rows_come_in_the_order_of_the_batch_whatever_ends_first() -> None:
    async def later_keys_first(keys: pa.Table) -> Answer:
        for _ in range(100 - keys["id"][0].as_py()):
            await asyncio.sleep(0)
        return echo(keys)

    source = Recording(later_keys_first, RequestLimits(keys_per_request=1, requests=100))
    found = answer(source, ids(*range(100)))
    assert found.rows["id"].to_pylist() == found.positions.tolist() == list(range(100))


def test_positions_of_an_answer_may_come_in_any_order() -> None:
    def backwards(keys: pa.Table) -> Answer:
        straight = echo(keys)
        back = np.arange(keys.num_rows)[::-1].copy()
        return Answer(back, straight.rows.take(pa.array(back)))

    found = answer(Recording(backwards), ids(3, 1, 2))
    assert (found.positions.tolist(), found.rows["id"].to_pylist()) == ([0, 1, 2], [3, 1, 2])


BAD_ANSWERS = {
    "an answer must have the columns id int64, name string, got id int64": Answer(
        np.array([0]), pa.table({"id": [1]})
    ),
    "must have one int64 position for each of its 1 rows, got 2 of int64": Answer(
        np.array([0, 0]), pa.table({"id": [1], "name": ["x"]}, schema=SCHEMA)
    ),
    "must have one int64 position for each of its 1 rows, got 1 of int32": Answer(
        np.array([0], np.int32),  # type: ignore[arg-type]
        pa.table({"id": [1], "name": ["x"]}, schema=SCHEMA),
    ),
    "positions must lie between 0 and 0, got -1 to -1": Answer(
        np.array([-1]), pa.table({"id": [1], "name": ["x"]}, schema=SCHEMA)
    ),
    "failures must be about positions below 1, got [1]": Answer(
        np.array([], np.int64), SCHEMA.empty_table(), {1: LookupFailedError("x")}
    ),
    "a key must have rows or have failed, the one at position 0 did both": Answer(
        np.array([0]),
        pa.table({"id": [1], "name": ["x"]}, schema=SCHEMA),
        {0: LookupUnavailableError("again")},
    ),
    "rows must equal the key that they answer, byte by byte; the key {'id': 1} was": Answer(
        np.array([0]), pa.table({"id": [None], "name": ["x"]}, schema=SCHEMA)
    ),
}


@pytest.mark.parametrize("message", BAD_ANSWERS)
def test_an_answer_that_makes_no_sense_is_a_failure(message: str) -> None:
    source = Recording(lambda _: BAD_ANSWERS[message])
    found = answer(source, ids(1))
    assert type(found.failures[0]) is LookupFailedError
    assert message in messages(found)[0]
    assert found.rows.num_rows == 0
    assert len(source.asked) == 1


def test_a_row_of_another_key_takes_only_its_own_key_along() -> None:
    def mixed_up(keys: pa.Table) -> Answer:
        rows = pa.table({"id": [1, 99, 3, 2], "name": ["a", "b", "c", "d"]}, schema=SCHEMA)
        return Answer(np.array([0, 1, 2, 1]), rows)

    found = answer(Recording(mixed_up), ids(1, 2, 3))
    assert (found.rows["id"].to_pylist(), list(found.failures)) == ([1, 3], [1])


# what fails


def test_a_request_that_may_succeed_later_is_made_again() -> None:
    lookups = Lookups(
        MemoryLookup(
            pa.table({"id": [1]}),
            ["id"],
            unavailable_requests=2,
            limits=RequestLimits(attempts=3, first_wait_s=0.0, max_wait_s=0.0),
        )
    )
    found, counts = lookups.answer(ids(1))
    lookups.close()
    assert (found.rows.num_rows, found.failures) == (1, {})
    assert (counts.requests, counts.retries, counts.keys, counts.rows) == (3, 2, 1, 1)


def test_a_request_fails_with_its_last_reason_when_attempts_run_out() -> None:
    reasons = iter(["first", "second", "third", "fourth"])

    def fail(_: pa.Table) -> Answer:
        raise LookupUnavailableError(next(reasons))

    assert messages(answer(Recording(fail), ids(1, 2, 1))) == dict.fromkeys(range(3), "third")


def test_only_the_keys_that_failed_are_asked_for_again() -> None:
    def fail(keys: pa.Table) -> Answer:
        asked = keys["id"].to_pylist()
        failures: dict[int, LookupFailedError] = {}
        for at, key in enumerate(asked):
            if key == 3:
                failures[at] = LookupUnavailableError("away")
            if key == 4:
                failures[at] = LookupFailedError("never")
        good = [at for at in range(len(asked)) if at not in failures]
        return Answer(np.array(good, np.int64), echo(keys).rows.take(pa.array(good, pa.int64())), failures)

    source = Recording(fail)
    found = answer(source, ids(1, 2, 3, 4, 3))
    assert source.asked == [[1, 2, 3, 4], [3], [3]]
    assert found.rows["id"].to_pylist() == [1, 2]
    assert messages(found) == {2: "away", 3: "never", 4: "away"}


def test_a_key_that_fails_takes_no_other_request_along() -> None:
    rows = pa.table({"id": [1, 2, 3]})
    source = MemoryLookup(rows, ["id"], refused=[(2,)], limits=RequestLimits(keys_per_request=1))
    found = answer(source, ids(1, 2, 3))
    assert (found.rows["id"].to_pylist(), list(found.failures)) == ([1, 3], [1])


def test_a_request_that_takes_too_long_is_cancelled_and_made_again() -> None:
    cancelled = []

    async def hang(keys: pa.Table) -> Answer:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(keys["id"].to_pylist())
        raise AssertionError

    limits = RequestLimits(timeout_s=0.02, attempts=2, first_wait_s=0.0)
    found = answer(Recording(hang, limits), ids(1))
    assert cancelled == [[1], [1]]
    assert isinstance(found.failures[0], LookupUnavailableError)
    assert "a request of 1 keys must be answered within 0.02 s (timeout_s)" in messages(found)[0]


def test_all_attempts_together_have_a_limit() -> None:
    def fail(_: pa.Table) -> Answer:
        raise LookupUnavailableError("away", retry_after_s=3600)

    found = answer(Recording(fail), ids(1), timeout_s=0.05)
    assert "a lookup must succeed within 0.05 s (async.timeout), 1 attempts did not" in messages(found)[0]


def test_a_bug_in_a_client_is_no_failure_of_a_lookup() -> None:
    def wrong(_: pa.Table) -> Answer:
        raise KeyError("oops")

    source = Recording(wrong)
    with pytest.raises(KeyError, match="oops"):
        answer(source, ids(1))
    assert (len(source.asked), source.in_flight) == (1, 0)


def test_a_batch_that_nobody_waits_for_ends_its_requests_and_gives_their_places_back() -> None:
    """Also those that wait for another try: with room for two requests, two later ones find it free."""
    reached = threading.Event()

    async def hang_or_fail(keys: pa.Table) -> Answer:
        key = keys["id"][0].as_py()
        if key == 1:
            raise LookupUnavailableError("away", retry_after_s=3600)
        if key == 2:
            reached.set()
            await asyncio.Event().wait()
        return echo(keys)

    limits = RequestLimits(keys_per_request=1, requests=2, attempts=3)
    lookups = Lookups(Recording(hang_or_fail, limits), capacity=2)
    pending = lookups.start(ids(1, 2, 3))
    assert reached.wait(120)
    pending.cancel()
    with pytest.raises(CancelledError):
        pending.result()
    assert lookups.answer(ids(8, 9))[0].rows["id"].to_pylist() == [8, 9]
    lookups.close()


def test_a_request_that_waits_for_its_next_try_keeps_its_place() -> None:
    """With room for one request the second key waits for all tries of the first one."""

    def fail(keys: pa.Table) -> Answer:
        if keys["id"][0].as_py() == 1:
            raise LookupUnavailableError("away")
        return echo(keys)

    limits = RequestLimits(keys_per_request=1, requests=5, attempts=3, first_wait_s=0.0, max_wait_s=0.0)
    source = Recording(fail, limits)
    found = answer(source, ids(1, 2, 3), capacity=1)
    assert (source.asked, found.rows["id"].to_pylist()) == ([[1], [1], [1], [2], [3]], [2, 3])


def test_one_client_that_cannot_be_closed_keeps_no_other_open() -> None:
    class Stuck(Recording):
        async def close(self) -> None:
            raise RuntimeError("stuck")

    source = Recording()
    open_lookups(0, source)
    open_lookups(1, Stuck())
    with pytest.raises(RuntimeError, match="stuck"):
        close_lookups()
    assert source.closed == 1


def test_a_source_must_fit_itself() -> None:
    with pytest.raises(SchemaError, match="Recording: key 'key' must be one of its columns"):
        Lookups(Recording(keys=("key",)))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"keys_per_request": 0}, "keys_per_request must be a positive integer, got 0"),
        ({"attempts": True}, "attempts must be a positive integer, got True"),
        ({"timeout_s": 0.0}, "timeout_s must be above 0"),
        ({"first_wait_s": 2.0, "max_wait_s": 1.0}, "first_wait_s must lie between 0 and max_wait_s"),
    ],
)
def test_limits_are_checked(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RequestLimits(**limits)


# against an oracle


@given(
    rows=st.lists(st.tuples(st.integers(0, 5) | st.none(), st.sampled_from("ab") | st.none()), max_size=12),
    keys=st.lists(st.tuples(st.integers(0, 6) | st.none(), st.sampled_from("abc") | st.none()), max_size=12),
    refused=st.sets(st.tuples(st.integers(0, 5), st.sampled_from("ab")), max_size=3),
    limits=st.builds(RequestLimits, keys_per_request=st.integers(1, 4), requests=st.integers(1, 4)),
)
def test_a_batch_is_answered_like_a_dictionary(
    rows: list[Any], keys: list[Any], refused: set[Any], limits: RequestLimits
) -> None:
    schema = pa.schema({"a": pa.int64(), "b": pa.string(), "n": pa.int64()})
    table = pa.Table.from_pylist([{"a": a, "b": b, "n": n} for n, (a, b) in enumerate(rows)], schema)
    asked = pa.table(
        {"a": pa.array([k[0] for k in keys], pa.int64()), "b": pa.array([k[1] for k in keys], pa.string())}
    )
    found = answer(MemoryLookup(table, ["a", "b"], refused=sorted(refused), limits=limits), asked)
    assert sorted(found.failures) == [at for at, key in enumerate(keys) if key in refused]
    expected = [
        (at, n)
        for at, key in enumerate(keys)
        if None not in key and key not in refused
        for n, row in enumerate(rows)
        if row == key
    ]
    assert list(zip(found.positions.tolist(), found.rows["n"].to_pylist(), strict=True)) == expected


# clients that are kept


def test_a_token_keeps_its_client_open_from_batch_to_batch() -> None:
    source = Recording()
    for _ in range(3):
        open_lookups("query 1", source).answer(ids(1))
    assert source.closed == 0
    close_lookups()
    assert source.closed == 1
    assert open_lookups("query 1", source).answer(ids(1))[0].rows.num_rows == 1


def test_clients_that_were_not_used_lately_are_closed() -> None:
    sources = [Recording() for _ in range(18)]
    open_lookups(0, sources[0])
    for number in range(1, 17):
        open_lookups(number, sources[number])
        open_lookups(0, sources[0])
    open_lookups(17, sources[17])
    assert [source.closed for source in sources] == [0, 1, 1, *[0] * 15]


FORKED = """
import os, sys
import pyarrow as pa
from deltajoin.lookup.batch import open_lookups
from tests.deltajoin.lookup.recording import Recording

def say(what):
    os.write(1, f"{os.getpid() == parent} {what}\\n".encode())

class Told(Recording):
    async def close(self):
        say("closed")

parent, keys = os.getpid(), pa.table({"id": [1]})
open_lookups("q", Told()).answer(keys)
child = os.fork()
answer, _ = open_lookups("q", Told()).answer(keys)
say(answer.rows["name"].to_pylist())
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_process_opens_its_own_and_each_closes_at_its_end() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stderr == ""
    expected = ["False ['n1']", "True ['n1']", "False closed", "True closed"]
    assert sorted(run.stdout.splitlines()) == sorted(expected)
