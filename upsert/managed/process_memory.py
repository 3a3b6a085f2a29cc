"""The most memory that Python processes have taken: this one, and the workers of a query that tell it."""

from __future__ import annotations

import re
import resource
import sys
import threading
from pathlib import Path
from typing import Final

_UNIT: Final = 1 if sys.platform == "darwin" else 1024
_STATUS: Final = Path("/proc/self/status")
_PEAK: Final = re.compile(rb"^VmHWM:\s*(\d+) kB$", re.MULTILINE)

KEPT: Final = 1_000
"""Queries whose workers are remembered; of more, those that told nothing for longest go."""

_WORKERS: Final[dict[str, int]] = {}
_LOCK: Final = threading.Lock()


def peak_bytes() -> int:
    """The most memory that this process has had at once; pages of mapped files count.

    Linux tells it in ``/proc``. What ``getrusage`` tells there may be that of the process which started this
    one, as of the JVM of ``spark-submit``.

    >>> peak_bytes() > 1 << 20
    True
    """
    try:
        found = _PEAK.search(_STATUS.read_bytes())
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def note_worker(query: str, peak: int) -> None:
    """A worker has told its peak, after a task of a query with this id."""
    with _LOCK:
        _WORKERS[query] = max(peak, _WORKERS.pop(query, 0))
        while len(_WORKERS) > KEPT:
            del _WORKERS[next(iter(_WORKERS))]


def worker_peak(query: str) -> int:
    """The largest peak of a query's workers that told one; 0 if none has.

    >>> note_worker("8f14e45f", 7)
    >>> note_worker("8f14e45f", 5)
    >>> worker_peak("8f14e45f"), worker_peak("c9f0f895")
    (7, 0)
    """
    with _LOCK:
        return _WORKERS.get(query, 0)
