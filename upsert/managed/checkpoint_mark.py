"""Whether a table that a stream writes into and the checkpoint of the stream are of one time.

The table tells the last micro-batch of each query of which it has rows, the checkpoint which ones are done.
It does not follow that the table is older: a micro-batch without rows is no commit. So a mark is left in the
checkpoint, of the last micro-batch that was committed and of its snapshot: a small file beside Spark's,
written after the commit. That costs a local disk little; an object store would be asked once more for each
micro-batch, so there the mark is left out. See docs/decisions/0106.

That the checkpoint is older shows without a mark. Spark does the last planned micro-batch again, and none
before it; and it has planned that before the table had it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Self

from upsert.codec import Jsonable, written_with
from upsert.errors import MissingStateError, SnapshotExpiredError
from upsert.spark.checkpoint_files import json_in, local_folder, query_of
from upsert.store.metadata.history import History
from upsert.store.metadata.identity import is_same
from upsert.store.table import Table

MARK: Final = "deltajoin-tables.json"
"""File in a checkpoint: a `_Written` for each table, by the table's uuid."""

_CLOCK_MS: Final = 60_000
"""So far a clock may be set back between the planning of a micro-batch and its commit."""

_REMEDY: Final = (
    "restore table and checkpoint as of one time, or start the query with a new checkpoint and an empty table"
)


@dataclass(frozen=True)
class _Written(Jsonable):
    """The last micro-batch of which a table has rows, the snapshot that it made, and when it was planned."""

    batch: int
    snapshot: int
    uuid: str
    planned_ms: int | None = field(default=None, metadata=written_with("planned_ms"))


class CheckpointMark:
    """What the checkpoint of one query says of the tables that it has written into."""

    def __init__(self, folder: str | None, query: str) -> None:
        """Of the checkpoint in a folder of the local disk; None: it lies elsewhere, and says nothing."""
        self._folder = folder
        self._query = query

    @classmethod
    def of(cls, location: str | None, query: str) -> Self:
        """That of a query's ``checkpointLocation``, as far as it is known."""
        folder = None if location is None else local_folder(location)
        is_own = folder is not None and query_of(folder) == query
        return cls(folder if is_own else None, query)

    def has_rows(self, table: Table, batch: int) -> bool:
        """Whether a table has the rows of a micro-batch; the table has just been looked at.

        Raises:
            MissingStateError: table and checkpoint are not of one time: what the query would write next does
                not follow what the table has.
        """
        last = table.published.seen.writers.get(self._query, -1)
        if last > batch:
            raise self._differ(
                table,
                f"micro-batch {batch} must follow the last one that the table has, that is {last}: the "
                "checkpoint is older than the table",
            )
        if (marked := self._marked(table)) is not None:
            if last < marked.batch:
                # a slow look of another thread may have replaced a newer one
                last = table.published.latest().writers.get(self._query, -1)
            self._check_has(table, marked, last)
        if last == batch:
            self._check_is_replay(table, batch, marked)
        return last == batch

    def note(self, table: Table, batch: int) -> None:
        """Say that a table has the rows of a micro-batch, which this process has just committed."""
        if self._folder is None:
            return
        newest = table.published.seen
        written = _Written(batch, newest.data_version, newest.identity, self._planned_ms(batch))
        path = os.path.join(self._folder, MARK)
        staged = f"{path}.{table.uuid}"  # one that a killed process has left is written again
        try:
            with open(staged, "w", encoding="utf-8") as file:
                json.dump({**json_in(self._folder, MARK), table.uuid: written.to_json()}, file)
            os.replace(staged, path)
        except OSError:  # it is read to find mistakes, and is none itself
            with suppress(OSError):
                os.unlink(staged)

    def _marked(self, table: Table) -> _Written | None:
        found = None if self._folder is None else json_in(self._folder, MARK).get(table.uuid)
        with suppress(KeyError, TypeError):
            return None if found is None else _Written.from_json(found)
        return None

    def _check_has(self, table: Table, marked: _Written, last: int) -> None:
        """Refuse a table that has not got as far as a checkpoint says, or only with other commits."""
        if last < marked.batch:
            found = f"up to {last} only" if last >= 0 else "none of them"
        elif not is_same(table.published, marked.snapshot, marked.uuid):
            found = "others of these numbers"
        else:
            return
        raise self._differ(
            table,
            f"it must have the micro-batches up to {marked.batch} that the checkpoint says were written, it "
            f"has {found}: the table is older than the checkpoint, or was written on from an older copy",
        )

    def _check_is_replay(self, table: Table, batch: int, marked: _Written | None) -> None:
        """Refuse a micro-batch that was planned when the table had one of this number already."""
        planned_ms = self._planned_ms(batch)
        if marked is not None and (marked.batch, marked.planned_ms) == (batch, planned_ms):
            return  # the very one, however the clock was set meanwhile
        committed_ms = None if planned_ms is None else _committed_ms(table.published, self._query, batch)
        if planned_ms is None or committed_ms is None:
            return
        if planned_ms > committed_ms + _CLOCK_MS:
            planned, committed = (
                datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
                for ms in (planned_ms, committed_ms)
            )
            raise self._differ(
                table,
                f"micro-batch {batch}, planned at {planned}, must not be there yet, the table has one of "
                f"this number since {committed}: the checkpoint is older than the table",
            )

    def _planned_ms(self, batch: int) -> int | None:
        """When Spark planned a micro-batch, as the checkpoint says."""
        if self._folder is None:
            return None
        with suppress(OSError, ValueError, IndexError):
            with open(os.path.join(self._folder, "offsets", str(batch)), encoding="utf-8") as file:
                found = json.loads(file.read().splitlines()[1])
            at = found.get("batchTimestampMs") if isinstance(found, dict) else None
            return at if isinstance(at, int) else None
        return None

    def _differ(self, table: Table, found: str) -> MissingStateError:
        return MissingStateError(f"table {table.name!r} and query {self._query}: {found}; {_REMEDY}")


def _committed_ms(history: History, query: str, batch: int) -> int | None:
    """When a table got the last micro-batch of a query; None if that has expired."""
    head = history.seen
    with suppress(SnapshotExpiredError):
        found = history.first(lambda info: info.writers.get(query, -1) >= batch, head)
        if found <= head.id and (found > head.oldest or head.oldest <= 1):
            return history.info(found, head).time_ms
    return None
