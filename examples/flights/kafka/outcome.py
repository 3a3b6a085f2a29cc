"""What both upsert topics hold at the end, beside what DuckDB computes from the source files alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from examples.flights.compare import WITH_WEATHER, Comparison, expected_rows
from examples.flights.kafka.consumed import Consumed
from examples.flights.kafka.tables import BOARD_SCHEMA, JOINED_SCHEMA, LATE_MINUTES

_LATE: Final = f"WHERE dep_time IS NOT NULL AND dep_delay >= {LATE_MINUTES}"
"""A flight that left on time is taken back, one that was cancelled too."""


@dataclass(frozen=True)
class Outcome:
    """What a consumer finds in both upsert topics, and how it differs from what DuckDB computes.

    Attributes:
        board: the topic of the board.
        board_comparison: its newest values beside DuckDB's.
        joined: the topic of the join.
        joined_comparison: its newest values beside DuckDB's.
    """

    board: Consumed
    board_comparison: Comparison
    joined: Consumed
    joined_comparison: Comparison

    @property
    def repeats(self) -> int:
        """Records that were written twice."""
        return self.board.repeats + self.joined.repeats

    @property
    def strays(self) -> int:
        """Keys whose records are in more than one partition."""
        return self.board.strays + self.joined.strays

    @property
    def is_right(self) -> bool:
        """Whether nothing is missing, wrong or there twice."""
        differences = self.board_comparison.differences + self.joined_comparison.differences
        return differences == self.repeats == self.strays == 0


def expected_board(files: Mapping[str, Path], first: int | None = None) -> pa.Table:
    """The newest value of each key of the board: the flights that left late."""
    return expected_rows(files, BOARD_SCHEMA, _LATE, first)


def expected_join(files: Mapping[str, Path], first: int | None = None) -> pa.Table:
    """The newest value of each key of the joined topic."""
    return expected_rows(files, JOINED_SCHEMA, f"{WITH_WEATHER} {_LATE}", first)
