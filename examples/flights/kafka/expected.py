"""What both upsert topics must hold at the end, computed by DuckDB from the source files alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa

from examples.flights.compare import WITH_WEATHER, expected_rows
from examples.flights.kafka.tables import BOARD_SCHEMA, JOINED_SCHEMA, LATE_MINUTES

_LATE: Final = f"WHERE dep_time IS NOT NULL AND dep_delay >= {LATE_MINUTES}"
"""A flight that left on time is taken back, one that was cancelled too."""


def expected_board(files: Mapping[str, Path], first: int | None = None) -> pa.Table:
    """The newest value of each key of the board: the flights that left late."""
    return expected_rows(files, BOARD_SCHEMA, _LATE, first)


def expected_join(files: Mapping[str, Path], first: int | None = None) -> pa.Table:
    """The newest value of each key of the joined topic."""
    return expected_rows(files, JOINED_SCHEMA, f"{WITH_WEATHER} {_LATE}", first)
