"""What lies in a table's log, for readers of committed records, and whether it is what the table says."""

import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from upsert.kafka.client import admin
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.records import TopicPartition
from upsert.log.messages import LogDecoder, Mark
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store.table import Table

KEYED = TableSchema.of({"id": pa.int64(), "v": pa.string()}, primary_key=["id"])
MULTISET = TableSchema.of({"id": pa.int64(), "v": pa.string()})


class Message(NamedTuple):
    """One change in a log, and where it lies."""

    snapshot: int
    kind: str
    row: tuple[Any, ...]
    offset: int
    key: bytes | None


def new_table(folder: Path | str, servers: str, schema: TableSchema = KEYED, **options: str) -> Table:
    """A table of two buckets with a log."""
    log = {"bucket": "2", "log.system": "kafka", "log.kafka.bootstrap.servers": servers}
    return Table.create(folder, schema, log | options)


def rows(*changes: tuple[Any, ...]) -> pa.Table:
    kinds, ids, values = zip(*changes, strict=True) if changes else ((), (), ())
    columns = {"id": pa.array(ids, pa.int64()), "v": pa.array(values, pa.string())}
    return pa.table({**columns, "_row_kind": pa.array(kinds, pa.string())})


def log_of(table: Table) -> list[tuple[list[Message], list[Mark]]]:
    """The changes and marks of each partition."""
    log = table.options.log
    connection = Connection(log.properties, patience_s=60)
    ends = settled_ends(connection, table)
    decoder = LogDecoder(table.schema, log, table.uuid)
    found = []
    for place in ends:
        messages, marks = list[Message](), list[Mark]()
        for records in read_range(connection, place, 0, ends[place], {"headers"}):
            decoded = decoder.decode(records)
            at = pa.array(decoded.records)
            offsets = records.column("offset").take(at).to_pylist()
            keys = records.column("key").take(at).to_pylist()
            changed = [tuple(row.values()) for row in decoded.rows.to_pylist()]
            snapshots = decoded.snapshots.tolist()
            messages += [
                Message(snapshot, row[-1], row[:-1], offset, key)
                for snapshot, row, offset, key in zip(snapshots, changed, offsets, keys, strict=True)
            ]
            marks += decoded.marks
        found.append((messages, marks))
    return found


def settled_ends(connection: Connection, table: Table) -> dict[TopicPartition, int]:
    """Ends of what is committed to a table's log, when no transaction is open or patience is over.

    The broker ends a transaction in its partitions after it has told the producer that it is committed.
    """
    places = [TopicPartition(str(table.options.log.topic), bucket) for bucket in range(table.options.bucket)]
    everything = Connection({**connection.properties, "isolation.level": "read_uncommitted"}, patience_s=60)
    deadline = time.monotonic() + connection.patience_s
    while True:
        ends = admin.latest_offsets(connection, places)
        if ends == admin.latest_offsets(everything, places) or time.monotonic() > deadline:
            return ends
        time.sleep(0.02)


def assert_log_is_the_table(table: Table) -> None:
    """Every commit since the first is in the log once, in order, with its exact changes."""
    partitions = log_of(table)
    everything = [message for messages, _ in partitions for message in messages]
    marks = [(mark.since, mark.snapshot) for mark in partitions[0][1]]
    assert all([(mark.since, mark.snapshot) for mark in own] == marks for _, own in partitions)
    assert all(before[1] == after[0] for before, after in pairwise([(0, 0), *marks]))
    assert (marks[-1][1] if marks else 0) == table.snapshot().info.data_version
    for mark in partitions[0][1]:
        sent = Counter((m.kind, m.row) for m in everything if m.snapshot == mark.snapshot)
        assert sent == (changes_of(table, mark) if mark.untracked is None else Counter())
    for messages, _ in partitions:
        assert [m.snapshot for m in messages] == sorted(m.snapshot for m in messages)


def changes_of(table: Table, mark: Mark) -> Counter[tuple[str, tuple[Any, ...]]]:
    """The changes of a commit as its files tell them."""
    kinds = {"-U"} if table.options.log.changelog_mode == "upsert" else set()
    found = table.changes(mark.since, mark.snapshot).to_pylist()
    return Counter(
        (row[ROW_KIND_COLUMN], tuple(row.values())[:-1]) for row in found if row[ROW_KIND_COLUMN] not in kinds
    )


def last_by_key(table: Table) -> dict[Any, tuple[Any, ...]]:
    """What a reader has in the end that keeps the newest row of each key."""
    kept = {}
    for messages, _ in log_of(table):
        for message in messages:
            kept.pop(message.key, None)
            if message.kind[0] == "+":
                kept[message.key] = message.row
    return kept


def content(table: Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.snapshot().scan().to_pylist())
