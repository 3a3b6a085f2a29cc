"""Processes that execute statements without Spark in the same tables, each killed at some moment of its own.

Each process owns some rows of each table, so a model knows them after each of its statements. Of the one that
it was killed in they say whether it was done. The row 0 of each table is everyone's, and is changed together
with a row of its own, the anchor: so the row 0 must have what all anchors have together.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from tests.upsert.catalog.run.without_spark.beside_spark import without
from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, finish, start
from upsert.catalog.catalog import Catalog
from upsert.errors import StaleWriterError, UnknownOutcomeError
from upsert.store.version import Version

Row = tuple[int, int, int]
Rows = Counter[Row]
Model = Mapping[str, Rows]
"""The rows of one process, by table."""

PROCESSES, WIDTH = 4, 40
KEY = "PRIMARY KEY (id) NOT ENFORCED"
MERGED = (
    "'bucket' = '2', 'num-sorted-run.compaction-trigger' = '2', 'snapshot.num-retained.min' = '1', "
    "'snapshot.num-retained.max' = '4', 'snapshot.time-retained' = '1 ms'"
)
TABLES = {
    "keyed": f"(id INT, p INT, n INT, {KEY}) WITH ({MERGED})",
    "indexed": f"(id INT, p INT, n INT, {KEY}, INDEX (n), INDEX (p)) WITH ({MERGED})",
    "keyless": f"(id INT, p INT, n INT) WITH ({MERGED})",
    "parted": f"(id INT, p INT, n INT, PRIMARY KEY (id, p) NOT ENFORCED) PARTITIONED BY (p) WITH ({MERGED})",
    "summed": f"(id INT, p INT, n INT, {KEY}) WITH ('merge-engine' = 'aggregation', "
    f"'fields.n.aggregate-function' = 'sum', 'fields.p.aggregate-function' = 'last_value', {MERGED})",
}
CHANGES = ("insert", "copy", "delete", "delete by expression", "update", "update", "merge")


def anchor_of(process: int) -> int:
    return process * 1_000 + 999


def inserted(name: str, rows: Rows, new: list[Row]) -> Rows:
    """What an INSERT makes of rows."""
    if name == "keyless":
        return rows + Counter(new)
    present = {id: (p, n) for id, p, n in rows}
    for id, p, n in new:
        present[id] = (p, n + present[id][1] if name == "summed" and id in present else n)
    return Counter((id, p, n) for id, (p, n) in present.items())


def mapped(rows: Rows, change: Callable[[int, int], int | None]) -> Rows:
    """Rows with what a change of id and ``n`` makes of ``n``; without those of which it makes None."""
    found = Rows()
    for (id, p, n), count in rows.items():
        if (new := change(id, n)) is not None:
            found[id, p, new] += count
    return found


def statement(random: Random, process: int, model: Model) -> tuple[str, str, Rows]:
    """A text, its table, and the rows that the process has there after it."""
    name, change, base = random.choice(list(TABLES)), random.choice(CHANGES), process * 1_000
    if (name == "summed" and change in CHANGES[3:]) or (name == "keyless" and change == "merge"):
        change = "insert"
    rows, anchor, value = model[name], anchor_of(process), random.randrange(1, 9)
    start, end = (base + at for at in sorted(random.sample(range(WIDTH + 1), 2)))
    within = f"p = {process} AND id >= {start} AND id < {end}"
    match change:
        case "insert":
            new = [(id, process, random.randrange(20)) for id in range(start, end)]
            if name == "summed":
                new.append((anchor, process, value))
            others = [(0, 0, value)] if name == "summed" else []
            text = f"INSERT INTO {name} VALUES {', '.join(map(str, new + others))}"
            return text, name, inserted(name, rows, new)
        case "copy":
            source = random.choice([one for one in TABLES if one != "keyless" or name == "keyless"])
            new = [(id + 1, p, n) for id, p, n in model[source].elements() if start <= id < end]
            text = f"INSERT INTO {name} SELECT id + 1 AS id, p, n FROM {source} WHERE {within}"
            return text, name, inserted(name, rows, new)
        case "delete":
            after = mapped(rows, lambda id, n: None if start <= id < end else n)
            return f"DELETE FROM {name} WHERE {within}", name, after
        case "delete by expression":
            text = f"DELETE FROM {name} WHERE p = {process} AND id + n < {end} AND id <> {anchor}"
            return text, name, mapped(rows, lambda id, n: None if id + n < end and id != anchor else n)
        case "update":
            text = f"UPDATE {name} SET n = n + {value} WHERE p = {process} AND id >= {start} OR id = 0"
            return text, name, mapped(rows, lambda id, n: n + value if id >= start else n)
    given = {base + at: random.randrange(20) for at in random.sample(range(WIDTH), 5)}
    text = (
        f"MERGE INTO {name} AS t USING (VALUES {', '.join(map(str, given.items()))}) AS s(id, n) "
        f"ON t.id = s.id AND t.p = {process} WHEN MATCHED AND t.n > 15 THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET n = s.n + {value} "
        f"WHEN NOT MATCHED THEN INSERT (id, p, n) VALUES (s.id, {process}, s.n)"
    )
    missing = given.keys() - {id for id, _, _ in rows}
    merged = mapped(rows, lambda id, n: n if id not in given else None if n > 15 else given[id] + value)
    return text, name, merged + Counter((id, process, given[id]) for id in missing)


def statements(seed: int, process: int, model: Model) -> Iterator[tuple[str, str, Model]]:
    """What a process executes: texts, their tables, and the model after each."""
    random = Random(seed)
    while True:
        text, name, rows = statement(random, process, model)
        model = {**model, name: rows}
        yield text, name, model


def execute(warehouse: Path, seed: int, process: int, model: Model, log: Path) -> None:
    catalog = Catalog(warehouse)
    with open(log, "wb", buffering=0) as file:
        for text, _, _ in statements(seed, process, model):
            file.write(b"b")
            executed(catalog, text)
            file.write(b"d")


def executed(catalog: Catalog, text: str) -> None:
    while True:
        try:
            without(catalog, text)
        except StaleWriterError:  # an INSERT that stalled past four snapshots: nothing was committed
            continue
        except UnknownOutcomeError:  # its rows tell, as of one that was killed while it was at it
            signal.pause()
        return


def rows_of(catalog: Catalog, name: str, process: int | None = None) -> Rows:
    rows = catalog.table(name).snapshot().scan(["id", "p", "n"]).to_pylist()
    return Counter(tuple(row.values()) for row in rows if process is None or row["p"] == process)


def model_after(catalog: Catalog, seed: int, process: int, model: Model, log: Path) -> Model:
    """The model of a killed process; what it was at must be done as a whole or not at all."""
    text = log.read_text()
    planned = statements(seed, process, model)
    for _, _, after in islice(planned, text.count("d")):
        model = after
    if text.endswith("b"):
        killed, name, after = next(planned)
        found = rows_of(catalog, name, process)
        assert found in (model[name], after[name]), killed
        if found == after[name]:
            return after
    return model


class Follower:
    """Who reads the changes of a table between rounds, and so knows its rows."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self.table = catalog.table(name)
        self.at, self.rows = 0, Rows()

    def follow(self) -> Rows:
        head = self.table.snapshot().id
        for change in self.table.changes(self.at, head).to_pylist():
            row = change["id"], change["p"], change["n"]
            self.rows[row] += 1 if change["_row_kind"] in ("+I", "+U") else -1
        assert all(count >= 0 for count in self.rows.values())
        self.table.hold("follower", Version.complete(head))
        self.at, self.rows = head, +self.rows
        return self.rows


def kill_each(random: Random, children: list[int]) -> None:
    """Kill processes one after the other; before that some stop for a while, as one whose machine swaps."""
    for child in random.sample(children, len(children)):
        time.sleep(random.random())
        if random.random() < 0.5:
            os.kill(child, signal.SIGSTOP)
            time.sleep(random.random() / 3)
            os.kill(child, signal.SIGCONT)
            time.sleep(random.random() / 3)
        os.kill(child, signal.SIGKILL)
    assert finish(children) == [KILLED] * len(children)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.minutes)])
def test_whenever_processes_are_killed_each_of_their_statements_is_done_as_a_whole_or_not(
    tmp_path: Path, seed: int
) -> None:
    random, catalog = Random(seed), Catalog(tmp_path / "warehouse")
    processes = range(1, PROCESSES + 1)
    models: dict[int, Model] = {}
    for name, columns in TABLES.items():
        catalog.sql(f"CREATE TABLE {name} {columns}")
        anchors = [f"({anchor_of(process)}, {process}, 0)" for process in processes]
        without(catalog, f"INSERT INTO {name} VALUES (0, 0, 0), {', '.join(anchors)}")
    for process in processes:
        models[process] = {name: rows_of(catalog, name, process) for name in TABLES}
    followers = {name: Follower(catalog, name) for name in TABLES}
    for _ in range(5 if seed == 1 else 30):
        seeds = {process: random.randrange(2**32) for process in processes}
        logs = {process: tmp_path / f"log-{process}" for process in processes}
        works = [
            partial(execute, tmp_path / "warehouse", seeds[process], process, models[process], logs[process])
            for process in processes
        ]
        for log in logs.values():
            log.write_text("")
        kill_each(random, [start(work) for work in works])
        for process in processes:
            models[process] = model_after(catalog, seeds[process], process, models[process], logs[process])
        for name, follower in followers.items():
            own: Rows = sum((models[process][name] for process in processes), Rows())
            shared = sum(n for id, p, n in own if id == anchor_of(p))
            assert rows_of(catalog, name) == follower.follow() == own + Rows([(0, 0, shared)]), name
            assert all(found.is_information for found in follower.table.check(deep=True))
            follower.table.clean(older_than_s=0)
            assert follower.table.check(deep=True) == ()
            assert_nothing_is_left_over(follower.table)
