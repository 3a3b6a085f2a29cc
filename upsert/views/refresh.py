"""Bringing a view up to date: its query at chosen versions of its tables, and the commit of what differs.

A commit of a view says which versions of its base tables the view stands for from then on. That alone
decides what has been done: a step that is repeated after a crash finds its versions in the view, and does
nothing. The changes are those of the very state that they were computed from, so of two processes that
refresh one view at once the second commit is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from upsert.errors import ChangelogError, ConfigurationError
from upsert.failpoints import reach
from upsert.managed import frames
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store.commit.append import StandsFor
from upsert.store.table import Table
from upsert.views.difference import SAME_KEY, difference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POINTS: Final = ("view.before-commit", "view.after-commit")
"""Points of ``upsert.failpoints`` at which a test can kill the driver."""

Versions = Mapping[str, int]
"""A snapshot of each base table, by the table's database and name."""


@dataclass(frozen=True)
class ViewState:
    """Where a view is when it is refreshed.

    Attributes:
        folder: of the view's table, for what is kept to refresh it.
        key: its primary key; () for none.
        versions: data version of each base table that its rows are of, by the table's uuid; none of one that
            is being created.
        must_be_incremental: whether a query that cannot be kept by what has changed is refused.
    """

    folder: str
    key: tuple[str, ...]
    versions: Mapping[str, int]
    must_be_incremental: bool = False


def consumer_of(uuid: str) -> str:
    """What the names begin with under which a view holds the changes of its tables until it has read them."""
    return f"view-{uuid}"


Plan = Callable[["DataFrame", ViewState], "DataFrame"]
"""Makes of the query's rows at the versions to come what is cheaper to compute.

The result has the same rows; or it has the column ``_row_kind``, and is the changes that make the view's rows
these.
"""


@dataclass(frozen=True)
class Refresher:
    """Refreshes one view.

    Attributes:
        name: the view, for messages.
        path: folder of the view's table.
        uuid: the view's table.
        spark: the session that runs the query.
        rows_at: the rows of the query at some versions, in the view's columns.
        uuids: of the base tables, by their database and name.
        plan: how the rows are computed; None: as the query says.
    """

    name: str
    path: str
    uuid: str
    spark: SparkSession
    rows_at: Callable[[Versions], DataFrame]
    uuids: Mapping[str, str] = field(default_factory=dict)
    plan: Plan | None = None

    def refresh(self, versions: Versions) -> bool:
        """Let the view stand for these versions of its base tables or later ones; False if it does already.

        Raises:
            ChangelogError: the query gives two rows of one key.
            ConfigurationError: it must be refreshed by what has changed, and cannot.
            CommitConflictError: another process has changed the view meanwhile.
            SnapshotExpiredError: a base table has no such snapshot any more.
        """
        table = Table.open(self.path, self.uuid)
        head = table.snapshot()
        known = head.info.base_versions or {}
        # another process may have been faster with one of them: no table goes back
        versions = {base: max(id, known.get(base, 0)) for base, id in versions.items()}
        if versions == known:
            return False
        key = table.schema.primary_key
        rows = self.rows_at(versions)
        if (mode := table.options.refresh) != "full" and self.plan is not None:
            of = {self.uuids[base]: id for base, id in known.items()}
            rows = self.plan(rows, ViewState(table.root, key, of, mode == "incremental"))
        elif mode == "incremental":
            raise ConfigurationError(
                f"view {self.name!r}: option 'refresh' = 'incremental' needs a catalog that plans, got one "
                "without; make it as Catalog(warehouse, optimize=planner.optimize)"
            )
        if ROW_KIND_COLUMN not in rows.columns:
            rows = difference(frames.read(self.spark, self.path, head.info.data_version), rows, key)
        reach(POINTS[0])
        self._write(rows, StandsFor(versions, head.info.data_version), key)
        reach(POINTS[1])
        return True

    def _write(self, changes: DataFrame, stands_for: StandsFor, key: Sequence[str]) -> None:
        try:
            frames.write(changes, self.path, {"stands-for": json.dumps(stands_for.to_json())})
        except PySparkException as cause:
            if SAME_KEY in str(cause):
                raise ChangelogError(
                    f"view {self.name!r}: PRIMARY KEY ({', '.join(key)}) must tell the rows of its query "
                    "apart, got two rows of one key; choose columns that do, or create the view without a key"
                ) from cause
            raise
