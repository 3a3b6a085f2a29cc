"""Bringing a view up to date: its query at chosen versions of its tables, and the commit of what differs.

A commit of a view says which versions of its base tables the view stands for from then on. That alone
decides what has been done: a step that is repeated after a crash finds its versions in the view, and does
nothing. The changes are those of the very state that they were computed from, so of two processes that
refresh one view at once the second commit is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

import pyarrow as pa
from cachetools import LRUCache
from pyspark.errors import PySparkException

from upsert.errors import (
    ChangelogError,
    CommitConflictError,
    ConfigurationError,
    LogNotPublishedError,
    TableNotFoundError,
)
from upsert.failpoints import reach
from upsert.managed import frames
from upsert.spark.batches import collected, table_for_spark
from upsert.spark.connect import is_connect, needs_classic
from upsert.spark.formats import active
from upsert.store.metadata.looks import looking_once
from upsert.store.metadata.stands_for import Costs, Refresh, StandsFor
from upsert.store.read.snapshot import Snapshot
from upsert.store.table import Table
from upsert.views import hidden_tables
from upsert.views.difference import SAME_KEY, check_keys, collected_up_to, difference, signed_rows
from upsert.views.progress import Bases, Versions, known_versions, uuids_of
from upsert.views.session import settings_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POINTS: Final = ("view.before-commit", "view.after-commit")
"""Points of ``upsert.failpoints`` at which a test can kill the driver."""

NOT_PLANNED: Final = "the catalog plans nothing; make it as Catalog(warehouse, optimize=planner.optimize)"
"""Why the query is computed as it says."""

AS_OPTION_SAYS: Final = "option 'refresh' = 'full' says so"
"""Why all rows are computed."""

OVER_CONNECT: Final = "over Spark Connect there is no plan to keep"
"""Why all rows are computed there."""

FEW_ROWS: Final = 100_000
"""So many are read, computed and compared in the driver: that takes a third to half of the processor time of
Spark's tasks, and less time, except where five tables or more are joined on several cores."""

FEWEST_ROWS: Final = 1_000
"""So many a query may always give where few are read in the driver."""

FEW_BYTES: Final = 64 << 20
"""So much they may take in memory."""

LOG: Final = logging.getLogger("upsert.views")

T = TypeVar("T")

_OUTGROWN: Final = 2
"""A plan holds for tables of up to so many times the rows, and of as many times less."""


@dataclass(frozen=True)
class ViewShape:
    """What a view is, for what computes its rows.

    Attributes:
        folder: of the view's table, for what is kept to refresh it.
        uuid: of that table.
        key: its primary key; () for none.
        must_be_incremental: whether a query that cannot be kept by what has changed is refused.
        scratch: folder for empty tables in the place of hidden ones that are not there, if only the
            explanation is wanted, so that nothing is brought anywhere.
        small: uuids of the tables that its query joined without equality, as small ones, when its rows were
            last computed.
    """

    folder: str
    uuid: str
    key: tuple[str, ...]
    must_be_incremental: bool = False
    scratch: str | None = None
    small: frozenset[str] = frozenset()

    @classmethod
    def of(cls, table: Table) -> Self:
        """That of a view's table."""
        refresh = table.snapshot().info.refresh
        small = frozenset(() if refresh is None else refresh.small)
        return cls(table.root, table.uuid, table.schema.primary_key, small=small)


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


def are_few(rows: Snapshot) -> bool:
    """Whether all rows of a table are few enough to be read in the driver."""
    # to count rows opens files; there are no more than are stored, unless a row has a count
    stored = rows.row_count if rows.layout.is_counted else rows.info.rows
    return (stored <= FEW_ROWS or rows.row_count <= FEW_ROWS) and rows.bytes_in_memory <= FEW_BYTES


def collected_if_few(rows: DataFrame, before: Snapshot) -> DataFrame | pa.Table:
    """All rows of a query, read in the driver if there are as few as before; else left to Spark's tasks.

    To compare few rows in tasks takes Spark a job with two shuffles, and Python processes to read those of
    before and to write the others: more than many a query.
    """
    if is_connect(rows) or not before.info.base_versions or before.row_count > FEW_ROWS // 2:
        return rows
    if not are_few(before):
        return rows
    # how wide they are is not known before: so not many times as much as there was, in rows and in bytes
    width = before.bytes_in_memory / max(1, before.row_count)
    most = max(FEWEST_ROWS, min(2 * before.row_count, int(FEW_BYTES / max(1, width))))
    found = collected_up_to(rows.limit(most + 1), FEW_BYTES)
    return rows if found is None or found.num_rows > most or found.nbytes > FEW_BYTES else found


class PlanOutgrownError(Exception):
    """What was planned no longer fits the rows, which another plan does; a refresh makes that."""


_TRIALS: Final[ContextVar[list[Refresh] | None]] = ContextVar("trials of a refresh", default=None)


def trial_begins(refresh: Refresh) -> None:
    """Say that what is computed now goes by changes for no other reason than to measure them."""
    if (trials := _TRIALS.get()) is not None:
        trials.append(refresh)


def tried(costs: Costs, refresh: Callable[[Costs], T]) -> T:
    """What a refresh gives by what earlier ones took; by all rows where changes that are tried once fail."""
    trials: list[Refresh] = []
    token = _TRIALS.set(trials)
    try:
        return refresh(costs)
    except (PlanOutgrownError, ChangelogError, CommitConflictError, TableNotFoundError, LogNotPublishedError):
        raise  # all rows would not help
    except Exception as error:  # no measurement may fail a refresh, whatever a task or Spark's planner raises
        if not trials:
            raise
        LOG.warning("changes were to be measured for once, which failed; all rows are read: %s", error)
    finally:
        _TRIALS.reset(token)
    return refresh(costs.after_failure)


class Explained(Protocol):
    """What a refresh reads and computes; its ``str`` is for people, line by line."""

    def to_json(self) -> dict[str, Any]:
        """The same as values of JSON."""


@dataclass(frozen=True)
class ReadWhole:
    """A view of which all rows are computed, and why."""

    why: str

    def to_json(self) -> dict[str, Any]:
        """As of the view and the hidden tables that it has."""
        return {"name": "", "title": "the view", "notes": [self._note], "plan": [], "inputs": []}

    @property
    def _note(self) -> str:
        return f"all rows of its tables are read: {self.why}"

    def __str__(self) -> str:
        return f"the view\n   {self._note}"


class Kept(Protocol):
    """How the rows of a view are computed by what has changed."""

    @property
    def is_lasting(self) -> bool:
        """Whether it holds for other versions than those of the query that it was made of."""

    @property
    def is_unique(self) -> bool:
        """Whether the view's key is proven to tell the rows of its query apart; without one it is."""

    @property
    def small(self) -> frozenset[str]:
        """Uuids of the small tables that its query joins without equality."""

    @property
    def part(self) -> Explained:
        """What a refresh reads and computes."""

    @property
    def hidden(self) -> frozenset[str]:
        """Names of the hidden tables that it reads."""

    def at(self, known: Versions, versions: Versions, costs: Costs) -> Computed:
        """What makes the view's rows those of other versions of its tables, which are given by uuid.

        Raises:
            PlanOutgrownError: another plan is needed.
        """


Plan = Callable[["DataFrame", ViewShape], Kept]
"""Finds out how the rows of a query are computed by what has changed."""


def explained(plan: Plan | None, view: ViewShape, mode: str, rows: DataFrame) -> Explained:
    """What a refresh of a view with this option ``refresh`` reads and computes.

    Raises:
        ConfigurationError: the view must be refreshed by what has changed, and cannot.
    """
    if is_connect(rows) and mode != "full":
        _check_is_not_incremental(rows, mode)
        return ReadWhole(OVER_CONNECT)
    if mode == "full" or plan is None:
        return ReadWhole(AS_OPTION_SAYS if mode == "full" else NOT_PLANNED)
    with TemporaryDirectory(prefix="explained-") as scratch:
        shape = replace(view, must_be_incremental=mode == "incremental", scratch=scratch)
        return plan(rows, shape).part


def _check_is_not_incremental(of: SparkSession | DataFrame, mode: str) -> None:
    """Refuse over Spark Connect what its option says must be refreshed by what has changed."""
    if mode == "incremental":
        needs_classic(
            of,
            "a view with option 'refresh' = 'incremental'",
            "refresh it there, or set 'refresh' = 'auto', which computes all rows here",
        )


@dataclass(frozen=True)
class Prepared:
    """What the refreshes of a view share: the session of its query, and how its rows are computed.

    Attributes:
        holds_for: all that it was made of, as text.
        rows: how many each of its tables had.
        spark: the session.
        kept: how the rows are computed; None: as the query says.
        uuids: of the hidden tables that it reads, as the last refresh found them.
        is_tidy: whether all others are gone.
    """

    holds_for: str
    rows: Sequence[int]
    spark: SparkSession
    kept: Kept | None
    uuids: Mapping[str, str] = field(default_factory=dict)
    is_tidy: bool = False

    def has_outgrown(self, rows: Sequence[int]) -> bool:
        """Whether another plan may be better, for a table has many more rows or many less.

        What a table that grows or shrinks little by little gets is another plan each time that it has doubled
        or halved, not one whenever it passes a certain size.

        >>> plan = Prepared("", (1_000, 7), None, None)
        >>> plan.has_outgrown((2_000, 4)), plan.has_outgrown((2_001, 7)), plan.has_outgrown((1_000, 3))
        (False, True, True)
        """
        return any(
            now > _OUTGROWN * before or _OUTGROWN * now < before
            for now, before in zip(rows, self.rows, strict=True)
        )


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


def _active(spark: SparkSession) -> AbstractContextManager[None]:
    """Let a session be this thread's active one; over Spark Connect nothing asks."""
    return nullcontext() if is_connect(spark) else active(spark)


@dataclass(frozen=True)
class Refresher:
    """Refreshes the view whose table, of this uuid, lies at ``path``.

    Attributes:
        spark: the user's session.
        own_session: makes of it the one in which the query means what it meant when the view was created.
        rows_at: the rows of the query at some versions in such a session, in the view's columns.
        plan: how the rows are computed; None: as the query says.
        prepared: what is known of that already.
    """

    name: str
    path: str
    uuid: str
    spark: SparkSession
    own_session: Callable[[SparkSession], SparkSession]
    rows_at: Callable[[SparkSession, Versions], DataFrame]
    bases: Bases
    plan: Plan | None = None
    prepared: PreparedViews = field(default_factory=PreparedViews)

    def refresh(self, versions: Versions) -> bool:
        """Let the view stand for these versions of its tables or later ones; False if it does already."""
        with looking_once():
            table = Table.open(self.path, self.uuid)
            prepared = self._refreshed(table, versions)
        if prepared is None:
            return False
        reach(POINTS[1])
        if not prepared.is_tidy and self.plan is not None and not is_connect(self.spark):
            self._tidy(table, prepared)
        return True

    def _refreshed(self, table: Table, versions: Versions) -> Prepared | None:
        """What a refresh has run, which is committed; None if there was nothing to do."""
        head = table.snapshot()
        known = known_versions(head.info, self.bases)
        if known.keys() < (head.info.base_versions or {}).keys():
            self._drop_hidden(table)
        # another process may have been faster with one of them: no table goes back
        versions = {base: max(id, known.get(base, 0)) for base, id in versions.items()}
        if versions == known:
            return None
        try:
            with hidden_tables.reading(table.root) if self._reads_hidden(table) else nullcontext():
                prepared = self._prepared(table, versions)
                with _active(prepared.spark):
                    try:
                        self._run(table, head, prepared, versions)
                    except PlanOutgrownError:
                        prepared = self._planned(table, versions, *self._holds_for(table))
                        self._run(table, head, prepared, versions)
        except (PySparkException, ChangelogError) as cause:
            if SAME_KEY not in str(cause):
                is_filled = bool(head.info.base_versions)
                done = "refreshed; it is as it was before" if is_filled else "created; nothing has changed"
                cause.add_note(f"while view {self.name!r} was {done}")
                raise
            raise ChangelogError(
                f"view {self.name!r}: PRIMARY KEY ({', '.join(table.schema.primary_key)}) must tell the rows "
                "of its query apart, got two rows of one key; choose columns that do, or create the view "
                "without a key"
            ) from cause
        return prepared

    def _run(self, table: Table, head: Snapshot, prepared: Prepared, versions: Versions) -> None:
        """Compute a refresh as it was planned, and commit it."""

        def run(costs: Costs) -> None:
            computed = self._computed(prepared, head, versions, costs)
            changes = self._changes(table, head, computed, prepared)
            reach(POINTS[0])
            small = () if prepared.kept is None else tuple(sorted(prepared.kept.small))
            refresh = replace(computed.refresh, small=small)
            stands_for = StandsFor(versions, head.info.data_version, refresh, uuids_of(versions, self.bases))
            frames.commit(changes, self.path, stands_for)

        tried(Costs.after(head.info.refresh, head.info.time_ms), run)

    def _drop_hidden(self, table: Table) -> None:
        """Drop all hidden tables: a table was replaced by an older copy, and they have what it was."""
        if not hidden_tables.drop_unused(
            table.root, table.uuid, frozenset(), (path for path, _ in self.bases.values())
        ):
            raise CommitConflictError(
                f"view {self.name!r}: a table that it reads was replaced by an older copy, so one refresh "
                "alone must compute all of its rows again, another one runs; refresh it again"
            )

    def explain(self, versions: Versions) -> Explained:
        """What a refresh to some versions reads and computes."""
        table = Table.open(self.path, self.uuid)
        shape = ViewShape.of(table)
        spark = self.own_session(self.spark)
        with _active(spark):
            return explained(self.plan, shape, table.options.refresh, self.rows_at(spark, versions))

    def _prepared(self, table: Table, versions: Versions) -> Prepared:
        """How the view is refreshed, found out if that is not known, or no longer holds."""
        holds_for, rows = self._holds_for(table)
        known = self.prepared.get(self.path, holds_for)
        if known is None or known.has_outgrown(rows):
            return self._planned(table, versions, holds_for, rows)
        if known.uuids == hidden_tables.uuids_of(table.root, known.uuids):
            return known
        return self._planned(table, versions, holds_for, rows)  # another process needed other tables

    def _reads_hidden(self, table: Table) -> bool:
        return self.plan is not None and table.options.refresh != "full" and not is_connect(self.spark)

    def _tidy(self, table: Table, prepared: Prepared) -> None:
        """Drop the hidden tables that the plan of a refresh, which is committed, no longer needs."""
        needed = frozenset[str]() if prepared.kept is None else prepared.kept.hidden
        bases = (path for path, _ in self.bases.values())
        is_tidy = hidden_tables.drop_unused(table.root, table.uuid, needed, bases)
        if prepared.kept is None or prepared.kept.is_lasting:
            uuids = hidden_tables.uuids_of(table.root, needed)
            self.prepared.put(self.path, replace(prepared, uuids=uuids, is_tidy=is_tidy))

    def _planned(self, table: Table, versions: Versions, holds_for: str, rows: Sequence[int]) -> Prepared:
        """How the view is refreshed, found out for its tables at some versions."""
        spark, mode = self.own_session(self.spark), table.options.refresh
        if is_connect(spark):
            _check_is_not_incremental(spark, mode)
            return Prepared(holds_for, rows, spark, None)
        if mode == "incremental" and self.plan is None:
            raise ConfigurationError(
                f"view {self.name!r}: option 'refresh' = 'incremental' needs a catalog that plans, got one "
                "without; make it as Catalog(warehouse, optimize=planner.optimize)"
            )
        kept = None
        if mode != "full" and self.plan is not None:
            shape = replace(ViewShape.of(table), must_be_incremental=mode == "incremental")
            with active(spark):
                kept = self.plan(self.rows_at(spark, versions), shape)
        prepared = Prepared(holds_for, rows, spark, kept)
        if kept is None:  # which hidden tables a plan reads is known when it has been run
            self.prepared.put(self.path, prepared)
        return prepared

    def _computed(self, prepared: Prepared, head: Snapshot, versions: Versions, costs: Costs) -> Computed:
        if prepared.kept is not None:
            known = self._by_uuid(known_versions(head.info, self.bases))
            return prepared.kept.at(known, self._by_uuid(versions), costs)
        reason = NOT_PLANNED if self.plan is None else AS_OPTION_SAYS
        if is_connect(self.spark) and self.plan is not None:
            reason = OVER_CONNECT
        refresh = Refresh.now(False, reason, 0, 0, costs)
        return Computed(self.rows_at(prepared.spark, versions), refresh, are_all=True)

    def _by_uuid(self, versions: Versions) -> Versions:
        return {self.bases[base][1]: id for base, id in versions.items()}

    def _holds_for(self, table: Table) -> tuple[str, Sequence[int]]:
        """On what but versions it depends how the rows are computed; and how many rows each table has."""
        bases = [Table.open(*base) for base in self.bases.values()]
        definitions = [(base.uuid, base.definition.version) for base in bases]
        rows = [base.snapshot().row_count for base in bases]
        return f"{table.uuid} {table.definition.version} {definitions} {settings_of(self.spark)}", rows

    def _changes(
        self, table: Table, head: Snapshot, computed: Computed, prepared: Prepared
    ) -> DataFrame | pa.Table:
        """What makes the view's rows these; changes are that already."""
        rows = computed.rows
        if not computed.are_all:
            is_proven = prepared.kept is None or prepared.kept.is_unique
            if table.schema.primary_key and isinstance(rows, pa.Table) and not is_proven:
                check_keys(head, collected(rows), f"view {self.name!r}")
            return rows
        if not head.info.rows and not table.schema.primary_key:
            return rows
        if not isinstance(rows, pa.Table):
            rows = collected_if_few(rows, head)
        if isinstance(rows, pa.Table):
            if are_few(head):
                return signed_rows(table.layout, head.scan(), collected(rows), f"view {self.name!r}")
            rows = prepared.spark.createDataFrame(table_for_spark(rows))  # an empty record batch would end it
        before = frames.read(prepared.spark, self.path, head.info.data_version)
        return difference(before, rows, table.schema.primary_key)
