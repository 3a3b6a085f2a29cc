import os
import signal
import time
from pathlib import Path

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
