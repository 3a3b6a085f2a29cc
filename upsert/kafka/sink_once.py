"""One task's records exactly once: which transaction they belong to, and what tells a replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Final

import pyarrow as pa

from upsert.errors import ConfigurationError
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import Outcome, produce_once
from upsert.kafka.client.transactions import read_marker, settled_marker
from upsert.kafka.sink_records import RecordMaker, Seen

DEAD_AFTER_S: Final = 2.0
"""A transaction that stays open for longer while its task runs again is that of a task that died."""


def write_once(
    maker: RecordMaker, batches: Iterable[pa.RecordBatch], *, query: str, batch: int, task: int
) -> Outcome:
    """Write the records of a task unless an earlier attempt of the micro-batch did.

    The transactional id is ``<prefix>-<query>-<task>``. Where keys are distributed by their hash a replay is
    the same if the number of tasks is; the rows may be fewer, when Kafka has compacted the source meanwhile.
    Elsewhere it must have as many rows, with the same checksum.

    A task without rows leaves no mark: there is nothing that a replay could write twice. Only task 0 always
    does where keys are distributed, so that another number of tasks is noticed whatever rows there are.

    Raises:
        ConfigurationError: the micro-batch was written before from other rows, or by another number of tasks.
        FencedError: a later attempt of the task has taken over.
        DeliveryError, KafkaUnavailableError: nothing of this attempt is visible, or it is not known.
    """
    table = maker.table
    connection, topic = table.connection, (table.topics or ("",))[0]
    base = f"{table.values['sink.transactional-id-prefix']}-{query}"
    seen = Seen() if maker.tasks is None else None
    records = maker.records(batches, task, seen)
    if maker.tasks is not None:
        _check_number_of_tasks(connection, topic, base, maker.tasks, table.name)
    first = next(records, None)
    if first is None and not _needs_mark(maker, connection, topic, f"{base}-{task}", batch, task):
        return Outcome(0, skipped=False)
    fingerprint = f"{maker.tasks} tasks by key" if seen is None else seen.__str__
    return produce_once(
        connection,
        topic,
        _joined(first, records),
        transactional_id=f"{base}-{task}",
        batch=batch,
        fingerprint=fingerprint,
    )


def _joined(first: pa.Table | None, rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    return rest if first is None else chain((first,), rest)


def _needs_mark(
    maker: RecordMaker, connection: Connection, topic: str, name: str, batch: int, task: int
) -> bool:
    """Whether a task without rows is written like others: to leave a mark, or to be held against one."""
    if maker.tasks is not None:
        return task == 0
    marker = settled_marker(connection, topic, name, DEAD_AFTER_S)
    return marker is not None and marker.batch >= batch


@lru_cache(maxsize=64)
def _check_number_of_tasks(connection: Connection, topic: str, base: str, tasks: int, of: str) -> None:
    """Refuse a query that shares its keys among another number of tasks than before; once per process.

    A micro-batch that was cut short would give a key to a task that has not written it, though another has.
    """
    # not waiting: task 0 itself ends what a task before it may have left open
    marker = read_marker(connection, topic, f"{base}-0", settled=False)
    if marker is not None and marker.fingerprint != f"{tasks} tasks by key":
        raise ConfigurationError(
            f"{of}: a query must keep its number of tasks, it was written by {marker.fingerprint!r} and has "
            f"{tasks} now; set 'sink.parallelism' to the old number, or begin with a new checkpoint"
        )
