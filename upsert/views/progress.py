"""What a view tells of itself: for which snapshots of its tables it stands, and how its rows were computed.

All of it is in the snapshots of the view, of its hidden tables, and of the tables that it reads. So any
process can tell it, and the micro-batch of the query that keeps a view tells it when all is committed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from upsert.errors import TableNotFoundError
from upsert.store.metadata.identity import is_same, uuids
from upsert.store.metadata.looks import looking_once
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.metadata.stands_for import Refresh
from upsert.store.table import Table
from upsert.views.hidden_tables import hidden_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Versions = Mapping[str, int]
"""A snapshot of each base table, by the table's database and name, or by its uuid."""

Bases = Mapping[str, tuple[str, str]]
"""Folder and uuid of each base table, by the table's database and name."""


def known_versions(view: SnapshotInfo, bases: Bases) -> Versions:
    """The snapshots of its tables that a view stands for.

    A table that was replaced by an older copy has no such snapshot any more, and is left out: its rows are as
    new to the view as those of a table that it has never read. See docs/decisions/0106.
    """
    named = view.base_uuids or {}

    def has(base: str, id: int) -> bool:
        if base not in bases:
            return True
        try:
            history = Table.open(*bases[base]).published
        except TableNotFoundError:  # which a refresh says, with what to do
            return True
        return is_same(history, id, named.get(base, ""))

    return {base: id for base, id in (view.base_versions or {}).items() if has(base, id)}


def uuids_of(versions: Versions, bases: Bases) -> Mapping[str, str] | None:
    """What tells some snapshots of the base tables from others of their numbers; None if nothing is known."""
    histories = {base: Table.open(*at).published for base, at in bases.items() if versions.get(base)}
    found = {base: uuids(history, [versions[base]]) for base, history in histories.items()}
    return {base: uuid for base, known in found.items() for uuid in known.values()} or None


METRICS: Final = "view"
"""Name of what a view's query observes, in ``observedMetrics`` of its progress."""

SCHEMA: Final = (
    "lag ARRAY<STRUCT<table: STRING, versions: BIGINT, rows: BIGINT, seconds: DOUBLE>>, "
    "refreshes ARRAY<STRUCT<table: STRING, by_changes: BOOLEAN, reason: STRING, changed: BIGINT, "
    "rows: BIGINT, seconds: DOUBLE>>"
)
"""Columns of `report`."""


def observed(told: DataFrame) -> DataFrame:
    """The rows of `report` with what Spark's progress is to have of them."""
    from pyspark.sql import functions as F

    return told.observe(METRICS, *(F.first(name).alias(name) for name in told.columns))


@dataclass(frozen=True)
class Lag:
    """How far a view is behind a table that it reads.

    Attributes:
        versions: how many commits have changed rows of the table since.
        rows: how many rows they have written; a deletion is one, too.
        seconds: since the first of them; 0.0 if there is none.
        is_least: whether it may be more, for the first of these commits have expired.

    >>> print(Lag(0, 0, 0.0), Lag(2, 1500, 3.21), Lag(1, 1, 9000.0, is_least=True), sep="; ")
    up to date; 2 versions, 1,500 rows, 3.2 s; at least 1 version, 1 row, 9,000.0 s
    """

    versions: int
    rows: int
    seconds: float
    is_least: bool = False

    def __str__(self) -> str:
        if not self.versions:
            return "up to date"
        versions, rows = f"version{'s' * (self.versions > 1)}", f"row{'s' * (self.rows != 1)}"
        least = "at least " * self.is_least
        return f"{least}{self.versions:,} {versions}, {self.rows:,} {rows}, {self.seconds:,.1f} s"


def lag_behind(table: Table, known: int, now_s: float | None = None) -> Lag:
    """How far a view is behind a table of which it has the rows of a data version; 0: none of them."""
    head = table.published.looked()
    behind = takewhile(lambda info: info.id > known, table.published.backwards(head))
    missed = [info for info in behind if info.changes_rows]
    if not missed:
        return Lag(0, 0, 0.0)
    seconds = (time.time() if now_s is None else now_s) - missed[-1].time_ms / 1000
    rows = sum(info.delta_rows for info in missed)
    return Lag(len(missed), rows, round(max(0.0, seconds), 3), is_least=head.oldest > known + 1)


def refreshes_of(name: str, table: Table, bases: Mapping[str, str]) -> dict[str, Refresh]:
    """How the present rows of a view, and of its hidden tables, were computed; see `View.refreshes`.

    Args:
        name: of the view.
        table: its rows.
        bases: uuid of each table that its query reads, by the table's database and name.
    """
    info, hidden = table.snapshot().info, hidden_tables(table.root)
    reached = {bases[base]: id for base, id in (info.base_versions or {}).items()}
    reached |= {one.uuid: one.head.info.data_version for one in hidden.values()}
    found = {}
    for part, head in {name: info, **{name: one.head.info for name, one in hidden.items()}}.items():
        # one that the query no longer needs, and that could not be dropped yet, stays where it was
        is_needed = head is info or (head.base_versions or {}).items() <= reached.items()
        if head.refresh is not None and is_needed:
            found[part] = head.refresh.ended(head.time_ms)
    return found


def report(name: str, table: Table, bases: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Both as one row; see `SCHEMA`.

    Args:
        name: of the view.
        table: its rows.
        bases: folder and uuid of each table that its query reads, by the table's database and name.
    """
    with looking_once():  # each micro-batch of the view's query asks
        known = known_versions(table.snapshot().info, bases)
        lags = {base: lag_behind(Table.open(*at), known.get(base, 0)) for base, at in bases.items()}
    refreshes = refreshes_of(name, table, {base: uuid for base, (_, uuid) in bases.items()})
    return {
        "lag": [{"table": base} | asdict(lag) for base, lag in lags.items()],
        "refreshes": [
            {
                **{name: getattr(one, name) for name in ("by_changes", "reason", "changed", "rows")},
                "table": part,
                "seconds": max(0, one.took_ms) / 1000,
            }
            for part, one in refreshes.items()
        ],
    }
