"""Planes as they come into the register in the course of the year (pure).

Every second one is there from the beginning. The others are registered one after the other, most of them
after their first flights: what is joined with them before has NULLs, and is then corrected.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def registered(planes: pa.Table, step: int, steps: int) -> pa.Table:
    """The planes that come into the register in one of `steps` steps, counted from 0.

    >>> planes = pa.table({"tailnum": ["a", "b", "c", "d"]})
    >>> [registered(planes, step, 3)["tailnum"].to_pylist() for step in range(3)]
    [['a', 'c'], ['b'], ['d']]
    """
    number = np.arange(planes.num_rows)
    is_late = (number % 2 == 1) & (steps > 1)
    rank = np.cumsum(is_late) - 1
    when = np.where(is_late, 1 + rank * (steps - 1) // max(1, int(is_late.sum())), 0)
    return planes.filter(pa.array(when == step))
