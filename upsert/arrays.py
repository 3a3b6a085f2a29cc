"""Arrays of Arrow as one piece and as numpy sees them, and the names of their types (pure)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
"""Numbers of rows."""
Mask = npt.NDArray[np.bool_]
"""For each row whether something is true of it."""
Kinds = npt.NDArray[np.int8]
"""The kind of each row, by number."""
