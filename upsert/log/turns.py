"""One process of a host at a time sends to a table's log.

Kafka itself lets only the last one that began go on, and what the others had sent is taken back; so waiting
for one's turn is no matter of being right, but saves work. Who dies lets go of the lock.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from upsert.errors import KafkaUnavailableError

_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.1


@contextmanager
def turn(uuid: str, patience_s: float) -> Iterator[None]:
    """Hold the lock of a table's log; wait for it if necessary.

    Args:
        uuid: of the table.
        patience_s: seconds to wait.

    Raises:
        KafkaUnavailableError: another process has not let go of it for so long.
    """
    path = os.path.join(tempfile.gettempdir(), f"deltajoin-log-{os.getuid()}-{uuid}.lock")
    with open(path, "ab") as file:
        deadline, pause = time.monotonic() + patience_s, _PAUSE_S
        while not _taken(file.fileno()):
            if time.monotonic() > deadline:
                raise KafkaUnavailableError(
                    f"log of table {uuid!r}: it must become free, another process has been sending to it for "
                    f"{patience_s:g} s (lock {path!r}); look whether Kafka answers"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        yield


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
