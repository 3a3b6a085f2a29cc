"""What a process keeps for itself, and what a forked child has of it."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from cachetools import LRUCache

from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.kept import ENTRY_BYTES, Kept, KeptArrays


def child_says(answer: Callable[[], bool]) -> bool:
    """Whether something is true in a forked child, which has 10 s to tell."""
    child = os.fork()
    if not child:
        signal.alarm(10)
        os._exit(0 if answer() else 1)
    _, status = os.waitpid(child, 0)
    return status == 0


@pytest.mark.parametrize("is_inherited", [True, False])
def test_a_child_that_was_forked_while_a_thread_changed_the_things_begins_anew(is_inherited: bool) -> None:
    """The thread is not there any more to let go of the lock, or to end what it has half done."""
    kept = Kept[str, int](dict, is_inherited=is_inherited)
    kept.put("before", 1)
    assert child_says(lambda: (kept.get("before") is not None) == is_inherited)
    has_begun, may_end = threading.Event(), threading.Event()

    def make() -> int:
        has_begun.set()
        may_end.wait()
        return 2

    thread = threading.Thread(target=kept.made, args=("slow", make))
    thread.start()
    has_begun.wait()
    try:
        assert child_says(lambda: kept.made("own", lambda: 3) == 3)
        assert child_says(lambda: kept.get("before") is None)
    finally:
        may_end.set()
        thread.join()
    assert (kept.get("before"), kept.get("slow")) == (1, 2)


def test_a_child_that_was_forked_while_threads_read_a_table_can_read_it(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64()}, primary_key=["id"]))
    table.write(pa.table({"id": [1]}))
    history, is_over = table.published, threading.Event()

    def read() -> None:
        while not is_over.is_set():
            history.live(history.info(1, history.seen))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert all(child_says(lambda: table.snapshot(1).scan().num_rows == 1) for _ in range(6))
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def test_what_is_larger_than_the_whole_cache_is_not_kept() -> None:
    kept = Kept[str, str](lambda: LRUCache(3, len), is_inherited=True)
    kept.put("a", "long")
    kept.put("b", "abc")
    assert (kept.get("a"), kept.get("b")) == (None, "abc")


def test_small_things_count_by_what_any_entry_takes_and_by_their_keys() -> None:
    kept = KeptArrays[tuple[str, ...], bytes](64 << 10, len)
    for number in range(100):
        kept.put((f"{number}",), b"rows")
    there = [number for number in range(100) if kept.get((f"{number}",))]
    assert there == list(range(100 - len(there), 100))
    assert len(there) < (64 << 10) // ENTRY_BYTES
    kept.put(("name of a file", "x" * (40 << 10)), b"rows")
    assert sum(kept.get((f"{number}",)) is not None for number in there) < len(there) // 2
    kept.clear()
    assert kept.get(("99",)) is None
