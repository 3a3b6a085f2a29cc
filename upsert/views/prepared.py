"""What is found out once about how a view is refreshed, and remembered by the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
from cachetools import LRUCache

from upsert.store.metadata.stands_for import Costs, Refresh

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HIDDEN_TABLES: Final = "stages"
"""Folder of the tables that a view keeps, in that of its own."""

Versions = Mapping[str, int]
"""A snapshot of each base table, by the table's database and name, or by its uuid."""


@dataclass(frozen=True)
class ViewShape:
    """What a view is, for what computes its rows.

    Attributes:
        folder: of the view's table, for what is kept to refresh it.
        uuid: of that table.
        key: its primary key; () for none.
        must_be_incremental: whether a query that cannot be kept by what has changed is refused.
        is_explained: whether only the explanation is wanted, so that nothing is brought anywhere.
    """

    folder: str
    uuid: str
    key: tuple[str, ...]
    must_be_incremental: bool = False
    is_explained: bool = False


@dataclass(frozen=True)
class Computed:
    """What makes a table's rows those of other versions.

    Attributes:
        rows: changes, or all rows; in Arrow if they are few.
        refresh: how they are computed.
        are_all: whether they are all rows.
    """

    rows: DataFrame | pa.Table
    refresh: Refresh
    are_all: bool


class PlanOutgrownError(Exception):
    """What was planned no longer fits the rows, which another plan does; a refresh makes that."""


class Kept(Protocol):
    """How the rows of a view are computed by what has changed."""

    @property
    def is_lasting(self) -> bool:
        """Whether it holds for other versions than those of the query that it was made of."""

    @property
    def is_unique(self) -> bool:
        """Whether the view's key is proven to tell the rows of its query apart; without one it is."""

    @property
    def explanation(self) -> str:
        """What a refresh reads and computes, line by line."""

    def at(self, known: Versions, versions: Versions, costs: Costs) -> Computed:
        """What makes the view's rows those of other versions of its tables, which are given by uuid.

        Raises:
            PlanOutgrownError: another plan is needed.
        """


Plan = Callable[["DataFrame", ViewShape], Kept]
"""Finds out how the rows of a query are computed by what has changed."""


@dataclass(frozen=True)
class Prepared:
    """What the refreshes of a view share.

    Attributes:
        holds_for: all that it was made of, as text.
        spark: the session in which its query runs.
        kept: how its rows are computed; None: as the query says.
    """

    holds_for: str
    spark: SparkSession
    kept: Kept | None


class PreparedViews:
    """What this process knows of how to refresh views; to find it out takes longer than a small refresh."""

    def __init__(self) -> None:
        self._known: LRUCache[str, Prepared] = LRUCache(maxsize=256)
        self._lock = Lock()

    def get(self, path: str, holds_for: str) -> Prepared | None:
        """That of the view in a folder, if it was made of the same."""
        with self._lock:
            found = self._known.get(path)
        return found if found is not None and found.holds_for == holds_for else None

    def put(self, path: str, prepared: Prepared) -> None:
        """Remember that of the view in a folder."""
        with self._lock:
            self._known[path] = prepared
