"""Random transactions, steps, replays, restarts, added partitions: a sink has what a dict has, without Spark.

A run is drawn by the seed in the name of its test.
"""

import json
import random
import zlib
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from upsert.kafka.client import admin
from upsert.kafka.client.connection import Connection, admin_library, client_properties, library
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.options import PLAIN, UPSERT
from upsert.kafka.planning import Offset, Planner, ranges
from upsert.kafka.source import mode_of_stream, rows_of
from upsert.kafka.table import KafkaTable
from upsert.rowkind import RowKind
from upsert.schema import TableSchema

pytestmark = [pytest.mark.kafka, pytest.mark.long]

KEYED = TableSchema.of({"k": pa.string(), "n": pa.int64()}, primary_key=["k"])
DEBEZIUM = {"format": "debezium-json"}
UPSERTS = {"format": "json", "key.format": "json"}
FORMS: dict[str, dict[str, str]] = {
    "changes": DEBEZIUM,
    "net changes": DEBEZIUM | {"scan.net-changes": "true"},
    "normalized changes": DEBEZIUM | {"cdc-events-duplicate": "true"},
    "upserts": UPSERTS | {"changelog": "upsert", "allow-new-partitions": "true"},
    "normalized upserts": UPSERTS,
}
GROWING = ("changes", "net changes", "upserts")
KEYS = "abcdef"

Rows = dict[str, int]
Changes = dict[str, int | None]
Row = tuple[str, int | None, str]


class Writers:
    """Producers of transactions over one topic; a key is written by one open transaction at a time."""

    def __init__(self, rng: random.Random, connection: Connection, topic: str, form: str) -> None:
        self.rows: Rows = {}
        """What the committed transactions leave."""
        self.open: dict[int, Changes] = {}
        self.partitions = 2
        self._rng, self._connection, self._topic, self._form = rng, connection, topic, form
        self._counts: dict[int, int] = {}
        """How many partitions there were when a transaction began, for each that is open."""
        self._producers: dict[tuple[int, int], Any] = {}

    def write(self) -> None:
        """Some records in a transaction that is open, or begins."""
        number = self._rng.randrange(3)
        if self._counts.setdefault(number, self.partitions) != self.partitions:
            return  # it does not know the new partitions, and writes no more
        producer = self._producer(number)
        if number not in self.open:
            producer.begin_transaction()
        changed = self.open.setdefault(number, {})
        held = {key for other in self.open.values() if other is not changed for key in other}
        free = [key for key in KEYS if key not in held]
        for _ in range(self._rng.randrange(1, 6) if free else 0):
            key, new = self._rng.choice(free), self._rng.choice([None, 1, 2, 3])
            for value in self._values(key, changed.get(key, self.rows.get(key)), new):
                place = zlib.crc32(key.encode()) % self.partitions
                producer.produce(self._topic, value, _json(k=key), partition=place)
            changed[key] = new
        producer.flush()

    def end(self, number: int) -> None:
        """Commit, mostly, or abort."""
        changed, producer = self.open.pop(number), self._producer(number)
        del self._counts[number]
        if self._rng.random() < 0.3:
            producer.abort_transaction()
            return
        producer.commit_transaction()
        self.rows = _there({**self.rows, **changed})

    def add_partitions(self) -> None:
        """Twice as many; whoever writes from now on knows them."""
        self.partitions *= 2
        library = admin_library()
        client = library.AdminClient(client_properties(self._connection))
        client.create_partitions([library.NewPartitions(self._topic, self.partitions)])[self._topic].result()
        while admin.topics(self._connection, [self._topic])[self._topic].partitions != self.partitions:
            pass

    def finish(self) -> None:
        """End all transactions, and wait until readers see it."""
        for number in list(self.open):
            self.end(number)
        places = [TopicPartition(self._topic, number) for number in range(self.partitions)]
        known = self._connection
        while admin.latest_offsets(known, places) != admin.written_offsets(known, places):
            pass

    def _values(self, key: str, old: int | None, new: int | None) -> list[bytes | None]:
        """The values of the records that say so; such as come twice where that is allowed."""
        if self._form.endswith("upserts"):
            return [_json(k=key, n=new) if new is not None else None]
        before, after = (None if n is None else {"k": key, "n": n} for n in (old, new))
        if before is None and after is None:
            return []
        event = _json(before=before, after=after, op="d" if after is None else "u" if before else "c")
        if self._form == "changes":
            return [event]
        doubtful: list[bytes | None] = [event] * self._rng.choice([1, 1, 2])
        if after is not None and self._rng.random() < 0.2:
            doubtful.append(_json(before=None, after=after, op="r"))
        return doubtful

    def _producer(self, number: int) -> Any:
        """One made after partitions were added, for it must know them; an open transaction keeps its own."""
        known = (number, self._counts.get(number, self.partitions))
        if known not in self._producers:
            own = client_properties(self._connection, fixed={"transactional.id": f"{self._topic}-{known}"})
            self._producers[known] = library().Producer(own)
            self._producers[known].init_transactions()
        return self._producers[known]


def _json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def applied(form: str, rows: Rows, batch: list[Row]) -> Rows:
    """What a sink has after a micro-batch, whose parts come in any order; refuses what it could not apply."""
    if form == "upserts":
        assert len({key for key, _, _ in batch}) == len(batch), batch
        return _there({**rows, **{key: n for key, n, _ in batch}})
    left = Counter[tuple[str, int | None]]()
    for key, n, kind in batch:
        left[key, n] += RowKind(kind).sign
    if form == "net changes":
        gone: Changes = dict.fromkeys(key for (key, _), count in left.items() if count < 0)
        return _there({**rows, **gone, **_one_each(left)})
    left.update(rows.items())
    assert set(left.values()) <= {0, 1}, (rows, batch)  # what goes was there, what comes was not
    return _there(_one_each(left))


def _one_each(left: Counter[tuple[str, int | None]]) -> Changes:
    comes = [row for row, count in left.items() if count > 0]
    assert len({key for key, _ in comes}) == len(comes), left
    return dict(comes)


def _there(rows: Changes) -> Rows:
    return {key: n for key, n in rows.items() if n is not None}


def read(table: KafkaTable, start: Offset, end: Offset) -> list[Row]:
    """The rows of a step, one task after the other."""
    parts = (rows_of(table, part, mode_of_stream(table), "query") for part in ranges(start, end))
    return [(r["k"], r["n"], r["_row_kind"]) for part in parts for rows in part for r in rows.to_pylist()]


def run(connection: Connection, topic: str, form: str, seed: int, folder: Path) -> None:
    """Write and read at random, then read to the end."""
    rng = random.Random(seed)
    writers = Writers(rng, connection, topic, form)
    given = {"properties.bootstrap.servers": connection.bootstrap_servers, "topic": topic} | FORMS[form]
    given |= {"state.path": str(folder)} if "normalized" in form else {}
    table = KafkaTable.of(UPSERT if form.endswith("upserts") else PLAIN, KEYED, given)
    clock = count(step=1000.0)
    planner, at, rows = Planner(table, lambda: next(clock)), Offset(), Rows()

    def step(start: Offset, until: dict[TopicPartition, int] | None = None) -> Offset:
        nonlocal rows
        end = planner.next(start, rng.choice([1, 5, None, None]), until)
        rows, kept = applied(form, rows, read(table, start, end)), rows
        if rng.random() < 0.3:  # again, as after a crash before the commit of the query
            again = applied(form, kept, read(table, start, Offset.from_json(end.to_json(), "t")))
            if form != "upserts":  # of which compaction removes what a later step replaces
                assert again == rows
            rows = again
        return end

    actions = rng.choices(["write", "end", "step", "restart", "grow", "available"], [9, 6, 4, 1, 2, 1], k=30)
    for action in (action for one in actions for action in [one] * rng.choice([1, 1, 3])):
        match action:
            case "write":
                writers.write()
            case "end" if writers.open:
                writers.end(rng.choice(list(writers.open)))
            case "step":
                at = step(at)
            case "restart":
                planner = Planner(table, lambda: next(clock))
                at = Offset.from_json(at.to_json(), "t")
            case "grow" if form in GROWING and len(at.partitions) == writers.partitions < 16:
                writers.add_partitions()
            case "available":
                planner = Planner(table, lambda: next(clock))
                until = planner.ends()
                while (end := step(at, until)) != at:
                    at = end
    writers.finish()
    while (end := step(at)) != at:
        at = end
    assert rows == writers.rows


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("form", FORMS)
def test_a_sink_has_what_committed_transactions_leave(
    connection: Connection, new_topic: Callable[..., str], tmp_path: Path, form: str, seed: int
) -> None:
    """Whatever was aborted, left open for a while, read twice, planned anew, or moved to new partitions."""
    cleanup = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    topic = new_topic(partitions=2, **(cleanup if form.endswith("upserts") else {}))
    run(connection, topic, form, seed, tmp_path)
