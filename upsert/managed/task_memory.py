"""How much a task of a stream may read so that its Python process stays within a bound of memory (pure).

Files tell what their rows take in memory. A task that reads changes holds them several times: as they are
stored, as they were before and after, as what a lookup brought, and as what Spark gets. Buffers, and the
pages of files in which it searches, come on top. How much was measured: see docs/decisions/0085. The bound is
for what a task adds to a Python process that has loaded its libraries.
"""

from __future__ import annotations

from typing import Final

from upsert.options import Option, byte_size

DEFAULT_TASK_MEMORY: Final = 1 << 30
_LEAST: Final = 256 << 20

_FIXED: Final = 160 << 20
"""What the smallest task takes."""

_TIMES: Final = 6
"""So many times the rows that a task reads lie in memory at once, at most."""


def task_memory(value: str) -> int:
    """Bytes of memory that a task may take.

    >>> task_memory("1 gb")
    1073741824
    """
    if (found := byte_size(value)) < _LEAST:
        raise ValueError("a size of at least 256 mb")
    return found


TASK_MEMORY: Final = Option(
    "max-memory-per-task",
    task_memory,
    "about how much memory a task may take to read its part of a micro-batch, beside the 100 MB of a Python "
    "process with its libraries. A backlog is read in micro-batches as large as this and "
    "max-rows-per-trigger allow; if only this option is set, rows are not counted",
    DEFAULT_TASK_MEMORY,
)
"""Option of streams, and of joins of streams."""


def readable_bytes(memory: int) -> int:
    """Bytes of stored rows that a task may read within so much memory.

    >>> readable_bytes(640 << 20) >> 20
    80
    """
    return max(1, (memory - _FIXED) // _TIMES)
