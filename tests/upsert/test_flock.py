import os
import signal
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
        second = FileLock.take(tmp_path / "lock")
        assert second is not None
        second.release()
    finally:
        os.kill(child, signal.SIGKILL)
        finish([child])
