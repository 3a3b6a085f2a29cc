"""The part of the format ``delta-join`` that steps through the versions of all tables of a join.

A micro-batch knows the versions from and to which each table moves from Spark's offset log, and a
replayed batch is the same batch. What a task reads is the business of a physical form, see `deltajoin.spark`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from deltajoin.spark.offsets import JoinOffset, JoinStep, Versions
from deltajoin.spark.options import SourceOptions
from deltajoin.spark.tables import JoinedTables
from upsert.errors import SnapshotExpiredError
from upsert.managed.stepping import CONSUMER, Holding, IdleLooks
from upsert.store.read.version import Version

Offset = dict[str, Any]


class SteppingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Finds the end of each step of all tables.

    Tables are opened again in every call: Spark pickles readers and keeps them as long as it likes.
    """

    def __init__(self, options: SourceOptions) -> None:
        """Nothing is opened yet."""
        self._options = options
        self._spec = options.spec
        self._until: tuple[int, ...] | None = None
        self._holding = Holding(options.consumer_id, options.lease_ms)
        self._idle = IdleLooks()

    def initialOffset(self) -> Offset:  # noqa: N802
        """All tables before their first commit, so that the first load is read as changes.

        With the option ``start`` it is where another checkpoint of the same join has got to.

        Raises:
            CheckpointMismatchError: the option is an offset of another join or of other tables.
        """
        identity = JoinedTables.open(self._spec).identity
        if self._options.start is not None:
            # the other query may go on: this one holds its versions under an id of its own
            return replace(JoinOffset.of(self._options.start, identity), consumer=None).to_json()
        return JoinOffset(identity, (Version.EMPTY,) * len(self._spec.tables)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``max_rows_per_trigger``, of each table."""
        return ReadMaxRows(self._spec.max_rows_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no further than what is there now."""
        self._until = _data_versions(JoinedTables.open(self._spec))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The end of the next step of all tables; ``start`` itself when nothing is new.

        Raises:
            CheckpointMismatchError: ``start`` belongs to another join or to other tables.
            SnapshotExpiredError: the changes after ``start`` are gone.
            UntrackedChangesError: a commit was written with ``change-tracking = false``.
        """
        if self._until is None:
            self._idle.wait(start)
        tables, holding = JoinedTables.open(self._spec), self._holding
        old = JoinOffset.of(start, tables.identity).versions
        known = holding.consumer_of(start)
        consumer = known or holding.new_id()
        holding.keep(consumer, tables.tables, old)
        new = self._ends(tables, old, limit)
        while True:
            try:
                holding.keep(consumer, tables.tables, old, new)
                break
            except SnapshotExpiredError:
                new = self._ends(tables, old, limit)  # expired just after it was chosen
        if new == old and not (known is None and holding.is_needed(new)):
            self._idle.note(tables.tables, start)
            return start
        owner = holding.in_offset(consumer).get(CONSUMER)
        return JoinOffset(tables.identity, new, owner).to_json()

    def _ends(self, tables: JoinedTables, old: Versions, limit: ReadLimit) -> Versions:
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self.takes_all(tables, old):
            max_rows = None
        until = self._until or (None,) * len(old)
        return tuple(
            table.advance(version, max_rows=max_rows, until=last)
            for table, version, last in zip(tables.tables, old, until, strict=True)
        )

    def commit(self, end: Offset) -> None:
        """Nothing before ``end`` is read again."""
        tables = JoinedTables.open(self._spec)
        reached = JoinOffset.of(end, tables.identity).versions
        self._holding.tell(self._holding.consumer_of(end), tables.tables, reached)

    def takes_all(self, tables: JoinedTables, old: Versions) -> bool:  # noqa: ARG002
        """Whether the step from these versions ignores the read limit."""
        return False

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Where the stream will be when it has read all: for the progress that Spark shows."""
        if (known := self._idle.answer) is not None:
            return dict(known)
        tables = JoinedTables.open(self._spec)
        versions = tuple(map(Version.complete, _data_versions(tables)))
        return JoinOffset(tables.identity, versions).to_json()

    def step(self, tables: JoinedTables, start: Offset, end: Offset) -> JoinStep:
        """What lies between two offsets of this join; a replay finds it held.

        Raises:
            CheckpointMismatchError: one of them belongs to another join or to other tables.
            SnapshotExpiredError: some of it is gone.
        """
        old, new = (JoinOffset.of(offset, tables.identity).versions for offset in (start, end))
        self._holding.keep(self._holding.consumer_of(end), tables.tables, old, new)
        return JoinStep(old, new, tables.identity.tables)


def _data_versions(tables: JoinedTables) -> tuple[int, ...]:
    return tuple(table.snapshot().info.data_version for table in tables.tables)
