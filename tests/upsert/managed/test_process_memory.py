"""What a process says of its memory."""

import subprocess
import sys

import numpy as np

from upsert.managed.process_memory import KEPT, note_worker, peak_bytes, worker_peak

_TOLD = "import runpy, sys; print(runpy.run_path(sys.argv[1])['peak_bytes']())"


def test_peak_of_a_process_is_not_that_of_the_one_which_started_it() -> None:
    """``ru_maxrss`` of Linux outlives exec, and a process that is started by vfork has its parent's."""
    large = np.ones(200 << 20, np.uint8)
    module = sys.modules[peak_bytes.__module__].__file__
    told = subprocess.run([sys.executable, "-S", "-c", _TOLD, str(module)], check=True, capture_output=True)
    assert 1 << 20 < int(told.stdout) < large.nbytes < peak_bytes()


def test_the_queries_that_told_nothing_for_longest_are_forgotten() -> None:
    """A driver that starts a query each minute has started half a million after a year."""
    queries = [f"query {number}" for number in range(KEPT + 1)]
    for query in (*queries[:-1], queries[0], queries[-1]):
        note_worker(query, 7)
    assert [query for query in queries if worker_peak(query) == 0] == [queries[1]]
