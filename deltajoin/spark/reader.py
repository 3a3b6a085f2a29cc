"""The part of the format ``delta-join`` that steps through the versions of all tables of a join.

A micro-batch knows the versions from and to which each table moves from Spark's offset log, and a
replayed batch is the same batch. What a task reads is the business of a physical form, see `deltajoin.spark`.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from deltajoin.spark.offsets import JoinOffset, JoinStep, Versions
from deltajoin.spark.options import SourceOptions
from deltajoin.spark.tables import JoinedTables
from upsert.managed.stepping import CONSUMER, Offset, SteppingReader
from upsert.store.table import Table
from upsert.store.version import Version


class JoinStepReader(SteppingReader[JoinedTables]):
    """Finds the end of each step of all tables of a join; a form of the join reads it."""

    def __init__(self, options: SourceOptions) -> None:
        """Nothing is opened yet."""
        super().__init__(options.consumer_id, options.lease_ms)
        self._options = options
        self._spec = options.spec

    def initialOffset(self) -> Offset:  # noqa: N802
        """All tables before their first commit, so that the first load is read as changes.

        With the option ``start`` it is where another checkpoint of the same join has got to.
        """
        identity = JoinedTables.open(self._spec).identity
        if self._options.start is not None:
            # the other query may go on: this one holds its versions under an id of its own
            return replace(JoinOffset.of(self._options.start, identity), consumer=None).to_json()
        return JoinOffset(identity, (Version.EMPTY,) * len(self._spec.tables)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``max_rows_per_trigger``, of each table."""
        return ReadMaxRows(self._spec.max_rows_per_trigger)

    def opened(self) -> JoinedTables:
        """The tables of the join."""
        return JoinedTables.open(self._spec)

    def tables_of(self, opened: JoinedTables) -> tuple[Table, ...]:
        """Each of them."""
        return opened.tables

    def versions_of(self, opened: JoinedTables, offset: Offset) -> Versions:
        """Their versions."""
        return JoinOffset.of(offset, opened.identity).versions

    def offset_at(self, opened: JoinedTables, versions: Versions, consumer: str | None = None) -> Offset:
        """The offset of their versions."""
        owner = self._holding.in_offset(consumer).get(CONSUMER)
        return JoinOffset(opened.identity, versions, owner).to_json()

    def ends(
        self, opened: JoinedTables, versions: tuple[Version | None, ...], max_rows: int | None
    ) -> Versions:
        """The end of the next step of all tables."""
        old = tuple(version or Version.EMPTY for version in versions)
        if self.takes_all(opened, old):
            max_rows = None
        until = self._until or (None,) * len(old)
        return tuple(
            table.advance(version, max_rows=max_rows, until=last)
            for table, version, last in zip(opened.tables, old, until, strict=True)
        )

    def takes_all(self, tables: JoinedTables, old: Versions) -> bool:  # noqa: ARG002
        """Whether the step from these versions ignores the read limit."""
        return False

    def step(self, tables: JoinedTables, start: Offset, end: Offset) -> JoinStep:
        """What lies between two offsets of this join; a replay finds it held."""
        old, new = (self.versions_of(tables, offset) for offset in (start, end))
        self._holding.keep(self._holding.consumer_of(end), tables.tables, old, new)
        return JoinStep(old, new, tables.identity.tables)
