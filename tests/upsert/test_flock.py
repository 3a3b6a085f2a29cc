import errno
import os
import signal
import time
from pathlib import Path

import pytest

from tests.upsert.store.disk import finish, start
from upsert.flock import FileLock


def test_a_released_lock_is_free_though_a_child_was_forked_meanwhile(tmp_path: Path) -> None:
    lock = FileLock.take(tmp_path / "lock")
    assert lock is not None
    child = start(signal.pause)
    try:
        assert FileLock.take(tmp_path / "lock") is None
        lock.release()
        end = time.monotonic() + 60  # the child lets go when it gets to run
        while (second := FileLock.take(tmp_path / "lock")) is None and time.monotonic() < end:
            time.sleep(0.01)
        assert second is not None
        second.release()
    finally:
        os.kill(child, signal.SIGKILL)
        finish([child])


def test_a_lock_that_a_network_file_system_closes_with_an_error_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that had won was told as failed, and its manifest deleted."""
    lock, close, closed = FileLock.take(tmp_path / "lock"), os.close, list[int]()
    assert lock is not None

    def fails(descriptor: int) -> None:
        close(descriptor)
        closed.append(descriptor)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", fails)
        with lock:
            lock.release()
    assert closed == [lock.descriptor]
