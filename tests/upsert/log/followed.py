"""A stream of a table as Spark drives it, without Spark: steps, replays, restarts, and the rows that come."""

import json
from collections import Counter
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.upsert.log.log_content import settled_ends
from upsert.kafka.client.connection import Connection
from upsert.managed.log_reader import stream_reader
from upsert.managed.options import ReadOptions
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.spark.columns import spark_schema
from upsert.store.table import Table

Row = tuple[Any, ...]


def content(table: Table, snapshot: int | None = None, **scan: Any) -> Counter[Row]:
    """The rows of a table, now or at a snapshot, as a multiset."""
    return Counter(tuple(row.values()) for row in table.snapshot(snapshot).scan(**scan).to_pylist())


class Followed:
    """A streaming query over a table; its checkpoint is in memory.

    Attributes:
        changes: all rows that came, ``_row_kind`` last.
        rows: what is there after them.
    """

    def __init__(self, table: Table, *, columns: list[str] | None = None, **options: str) -> None:
        self._table = table
        self._options = {"path": table.path, **options}
        self._gives_upserts = options.get("changelog") == "upsert"
        asked = spark_schema(table.schema, row_kind=True)
        names = asked.names if columns is None else [*columns, ROW_KIND_COLUMN]
        self._asked = type(asked)([asked[name] for name in names])
        self._planned: tuple[Any, Any] | None = None
        self.changes: list[Row] = []
        self.rows: Counter[Row] = Counter()
        self.restart()
        self.offset = self._kept(self._reader.initialOffset())

    def restart(self) -> None:
        """Go on from the checkpoint in a new process: a batch that was planned last is read again."""
        self._reader = stream_reader(ReadOptions.parse(self._options), self._asked)
        if self._planned is not None:
            start, end = self._planned
            assert Counter(self._read(start, end)) == self._last, "a micro-batch that is replayed is the same"

    def restart_without_replay(self) -> None:
        """Go on from the checkpoint in a new process; the last batch was committed."""
        self._planned = None
        self.restart()

    def step(self, max_rows: int | None = None) -> bool:
        """Plan and read one micro-batch; False if nothing is new."""
        limit = self._reader.getDefaultReadLimit() if max_rows is None else ReadMaxRows(max_rows)
        end = self._kept(self._reader.latestOffset(self.offset, limit))
        if end == self.offset:
            return False
        if self._planned is not None:
            self._reader.commit(self.offset)
        rows = self._read(self.offset, end)
        self._last = Counter(rows)
        self._planned, self.offset = (self.offset, end), end
        self.changes += rows
        self._apply(rows)
        return True

    def drain(self, max_rows: int | None = None) -> int:
        """Read all that is there; how many micro-batches that took."""
        if (log := self._table.options.log).topic is not None:
            settled_ends(Connection(log.properties, patience_s=60), self._table)
        steps = 0
        while self.step(max_rows):
            steps += 1
        return steps

    def _apply(self, rows: list[Row]) -> None:
        for *row, kind in rows:
            if self._gives_upserts:  # the first column is the key
                self.rows = Counter({there: 1 for there in self.rows if there[0] != row[0]})
            if kind[0] == "+":
                self.rows[tuple(row)] += 1
            elif not self._gives_upserts:
                self.rows[tuple(row)] -= 1
        assert not -self.rows, "only rows that are there are taken away"
        self.rows = +self.rows

    def _read(self, start: Any, end: Any) -> list[Row]:
        partitions = self._reader.partitions(start, end)
        batches = [batch for each in partitions for batch in self._reader.read(each)]
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    def _kept(self, offset: Any) -> Any:
        """As Spark's checkpoint gives it back."""
        return json.loads(json.dumps(offset))
