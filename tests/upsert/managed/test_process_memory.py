"""What a process says of its memory."""

import subprocess
import sys

import numpy as np

from upsert.managed.process_memory import peak_bytes

_TOLD = "import runpy, sys; print(runpy.run_path(sys.argv[1])['peak_bytes']())"


def test_peak_of_a_process_is_not_that_of_the_one_which_started_it() -> None:
    """``ru_maxrss`` of Linux outlives exec, and a process that is started by vfork has its parent's."""
    large = np.ones(200 << 20, np.uint8)
    module = sys.modules[peak_bytes.__module__].__file__
    told = subprocess.run([sys.executable, "-S", "-c", _TOLD, str(module)], check=True, capture_output=True)
    assert 1 << 20 < int(told.stdout) < large.nbytes < peak_bytes()
