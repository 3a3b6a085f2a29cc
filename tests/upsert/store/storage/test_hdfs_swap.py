"""A file in HDFS is replaced only if it is as it was seen; over a server that fails when told so."""

import threading
from itertools import count
from typing import Any

import pytest

from tests.scripted_webhdfs import ScriptedHdfs, Trouble
from upsert.errors import UnknownOutcomeError
from upsert.store.storage import hdfs_client
from upsert.store.storage.hdfs import HdfsStorage
from upsert.store.storage.hdfs_client import folder_uri, split


@pytest.fixture
def path(hdfs: ScriptedHdfs) -> str:
    """A file to which everybody appends."""
    path = f"{folder_uri(hdfs.folder())}/name"
    assert storage_at(path).put_if_absent(path, b"")
    return path


def storage_at(path: str) -> HdfsStorage:
    storage = HdfsStorage(split(path)[0], sleep=lambda _: None)
    storage._is_sound = True
    return storage


def append(path: str, mark: bytes) -> bool:
    """Whether this has added its mark to what it saw."""
    storage = storage_at(path)
    seen = storage.versioned(path)
    assert seen is not None
    return storage.swap(path, seen.content + mark, seen)


def left_over(path: str) -> list[str]:
    storage = storage_at(path)
    return [name for name in storage.names(path.rpartition("/")[0]) if name != "name"]


def test_of_all_who_have_seen_the_same_one_wins(path: str) -> None:
    storage, start_together, won = storage_at(path), threading.Barrier(8), list[bytes]()
    seen = storage.versioned(path)
    assert seen is not None

    def swap(writer: bytes) -> None:
        start_together.wait()
        if storage.swap(path, writer, seen):
            won.append(writer)

    threads = [threading.Thread(target=swap, args=(b"%d" % writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [storage.read(path)]
    assert left_over(path) == []
    assert not storage.swap(path, b"late", seen)
    assert left_over(path) == []


def test_of_many_who_go_on_from_each_other_nobody_is_lost(path: str) -> None:
    done = list[bytes]()

    def add(writer: bytes) -> None:
        for number in range(5):
            mark = b"(%s:%d)" % (writer, number)
            while not append(path, mark):
                pass
            done.append(mark)

    threads = [threading.Thread(target=add, args=(b"%d" % writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = storage_at(path).read(path)
    assert len(content) == sum(map(len, done))
    assert all(mark in content for mark in done)
    assert left_over(path) == []


def test_what_is_gone_is_not_replaced(path: str) -> None:
    storage = storage_at(path)
    seen = storage.versioned(path)
    assert seen is not None
    storage.delete(path)
    assert storage.versioned(path) is None
    assert not storage.swap(path, b"new", seen)
    assert not storage.exists(path)
    assert left_over(path) == []
    storage.put_if_absent(path, seen.content)
    assert not storage.swap(path, b"new", seen), "another file of the same content is another one"


class Dead(BaseException):
    """The process has been killed."""


def killed_at(step: int, *, is_done: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die at one of its requests, before or after it is carried out."""
    requests = count()

    def wrapped(send: Any) -> Any:
        def dying(*arguments: Any, **parameters: Any) -> Any:
            dies = next(requests) == step
            if dies and not is_done:
                raise Dead
            reply = send(*arguments, **parameters)
            if dies:
                raise Dead
            return reply

        return dying

    monkeypatch.setattr(hdfs_client, "_send", wrapped(hdfs_client._send))


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("step", range(14))
def test_whoever_dies_at_any_request_keeps_nobody_off_and_has_done_all_or_nothing(
    path: str, step: int, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(path, b"(first)")
    with monkeypatch.context() as patched:
        killed_at(step, is_done=is_done, monkeypatch=patched)
        try:
            is_whole = append(path, b"(dead)")
        except Dead:
            is_whole = False
    while not append(path, b"(next)"):
        pass
    expected = {b"(first)(dead)(next)"} if is_whole else {b"(first)(dead)(next)", b"(first)(next)"}
    assert storage_at(path).read(path) in expected


def test_whoever_stalls_before_the_move_does_not_undo_what_came_after(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one moves its proposal, and goes on; then it moves, and it has done so already."""

    def others_go_on(point: str) -> None:
        if point == "swap.before-move" and threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=go_on)
            thread.start()
            thread.join()

    def go_on() -> None:
        for mark in (b"(b)", b"(c)"):
            while not append(path, mark):
                pass

    monkeypatch.setattr("upsert.store.storage.hdfs.reach", others_go_on)
    assert append(path, b"(a)")
    assert storage_at(path).read(path) == b"(a)(b)(c)"
    assert left_over(path) == []


def test_whoever_claims_what_is_no_more_has_lost(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = storage_at(path)
    seen = storage.versioned(path)
    assert seen is not None
    claim = storage._claim

    def claim_late(*arguments: Any) -> bool:
        assert append(path, b"(b)")
        return claim(*arguments)

    monkeypatch.setattr(storage, "_claim", claim_late)
    assert not storage.swap(path, b"(a)", seen)
    assert storage.read(path) == b"(b)"
    assert left_over(path) == []


@pytest.mark.parametrize("trouble", ["lost answer", "lost request"])
@pytest.mark.parametrize("operation", ["CREATE DATA", "RENAME", "GETFILESTATUS", "OPEN DATA", "DELETE"])
@pytest.mark.parametrize("number", range(3))
def test_a_swap_whose_answer_is_lost_counts_once(
    hdfs: ScriptedHdfs, path: str, operation: str, trouble: Trouble, number: int
) -> None:
    append(path, b"(first)")
    hdfs.troubles[operation] = [*([None] * number), trouble, None]
    assert append(path, b"(own)")
    assert storage_at(path).read(path) == b"(first)(own)"


@pytest.mark.parametrize("number", range(1, 3))
def test_a_swap_that_nobody_answers_is_unknown(hdfs: ScriptedHdfs, path: str, number: int) -> None:
    """First the file gets a name in its own folder: while that is not answered, nothing can have happened."""
    hdfs.troubles["RENAME"] = [*([None] * number), "lost answer"]
    with pytest.raises(UnknownOutcomeError):
        append(path, b"(own)")
    hdfs.troubles.clear()
    while not append(path, b"(next)"):
        pass
    assert storage_at(path).read(path) == b"(own)(next)"
