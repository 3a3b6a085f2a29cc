"""A delta join through SIGKILLs of its driver or JVM, beside processes that change its tables and its sink.

Two processes execute the same UPDATE of rows that the join never writes, in the join's own sink, so that they
overtake each other and take turns before the join's commits. Others change the orders and names that it
reads. Each of them is killed again and again, too. What has expired is kept by the stream's lease alone.
"""

import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.helpers import output_of, spark_script
from tests.upsert.catalog.run.without_spark.beside_spark import without
from tests.upsert.store.disk import KILLED, finish, start
from upsert.catalog.catalog import Catalog
from upsert.errors import StaleWriterError

SCRIPT = Path(__file__).parent / "join_script.py"
MERGED = (
    "'bucket' = '2', 'num-sorted-run.compaction-trigger' = '2', 'snapshot.num-retained.min' = '1', "
    "'snapshot.num-retained.max' = '4', 'snapshot.time-retained' = '1 ms'"
)
TABLES = {
    "orders": "(id INT, c INT, n INT, PRIMARY KEY (id) NOT ENFORCED, INDEX (c))",
    "names": "(c INT, name STRING, PRIMARY KEY (c) NOT ENFORCED)",
    "joined": "(id INT, name STRING, n INT, PRIMARY KEY (id) NOT ENFORCED)",
}
CLAUSES = (
    "WHEN MATCHED AND o.n > 5 THEN DELETE WHEN MATCHED THEN UPDATE SET n = o.n + s.n "
    "WHEN NOT MATCHED THEN INSERT *"
)
OWN = "UPDATE joined SET n = n + 1 WHERE id < 0"


def count(catalog: Catalog, log: Path) -> None:
    """Change rows of the sink again and again, and say in a log before and after each time."""
    with open(log, "ab", buffering=0) as file:
        while True:
            file.write(b"b")
            without(catalog, OWN)
            file.write(b"d")


def change(catalog: Catalog, seed: int) -> None:
    """Change orders and names again and again."""
    random = Random(seed)
    while True:
        start, length, value = random.randrange(60), random.randrange(1, 15), random.randrange(9)
        rows = ", ".join(f"({id}, {random.randrange(6)}, {value})" for id in range(start, start + length))
        texts = (
            f"INSERT INTO orders VALUES {rows}",
            f"UPDATE orders SET n = n + {value} WHERE id >= {start} AND id + 0 < {start + length}",
            f"UPDATE orders SET c = {value % 6} WHERE id >= {start} AND id + 0 < {start + length}",
            f"DELETE FROM orders WHERE id + 0 >= {start} AND id < {start + 3}",
            f"MERGE INTO orders AS o USING (VALUES {rows}) AS s(id, c, n) ON o.id = s.id {CLAUSES}",
            f"UPDATE names SET name = 'name {value}' WHERE c = {value % 6}",
        )
        try:
            without(catalog, random.choice(texts))
        except StaleWriterError:  # an INSERT that stalled past four snapshots: nothing was committed
            continue
        time.sleep(random.random() / 10)


def await_micro_batch(driver: subprocess.Popen[str]) -> None:
    """Return after the driver has finished a micro-batch."""
    assert driver.stdout is not None
    said: list[str] = []
    while not (said and said[-1].startswith("finished")):
        said.append(driver.stdout.readline())
        assert said[-1], "".join(said)


def kill_driver(random: Random, driver: subprocess.Popen[str]) -> None:
    """The driver with its JVM, or one of both first: what it leaves is at work for a moment."""
    found = subprocess.run(["pgrep", "-P", str(driver.pid), "-f", "java"], capture_output=True, text=True)
    victims = {"driver": [driver.pid], "JVM": list(map(int, found.stdout.split())), "group": []}
    for victim in victims[random.choice(list(victims))]:
        os.kill(victim, signal.SIGKILL)
        time.sleep(random.random())
    os.killpg(driver.pid, signal.SIGKILL)
    output_of(driver)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.minutes
@pytest.mark.parametrize("seed", [1, 2])
def test_a_join_and_statements_that_are_killed_beside_each_other_lose_and_double_nothing(
    tmp_path: Path, seed: int
) -> None:
    random, catalog = Random(seed), Catalog(tmp_path / "warehouse")
    for name, columns in TABLES.items():
        catalog.sql(f"CREATE TABLE {name} {columns} WITH ({MERGED})")
    without(catalog, "INSERT INTO names VALUES (0, 'a'), (1, 'b'), (2, 'c'), (3, 'd'), (4, 'e')")
    without(catalog, "INSERT INTO joined VALUES (-1, 'own', 0), (-2, 'own', 0), (-3, 'own', 0)")
    logs = [tmp_path / "log-0", tmp_path / "log-1"]
    works = [partial(count, catalog, log) for log in logs]
    for _ in range(4):
        works[2:] = [partial(change, catalog, random.randrange(2**32)) for _ in range(2)]
        children = [start(work) for work in works]
        driver = spark_script(SCRIPT, catalog.warehouse, tmp_path / "checkpoints")
        for _ in range(random.randrange(1, 8)):
            await_micro_batch(driver)
            (victim,) = random.sample(range(len(children)), 1)
            os.kill(children[victim], signal.SIGKILL)
            assert finish([children[victim]]) == [KILLED]
            children[victim] = start(works[victim])
        kill_driver(random, driver)
        for child in children:
            os.kill(child, signal.SIGKILL)
        assert finish(children) == [KILLED] * len(children)
    last = spark_script(SCRIPT, catalog.warehouse, tmp_path / "checkpoints", "available-now")
    assert output_of(last).endswith("ended\n")
    orders, names, joined = (catalog.table(name).snapshot().scan().to_pylist() for name in TABLES)
    name_of = {row["c"]: row["name"] for row in names}
    expected = [
        {"id": row["id"], "name": name_of[row["c"]], "n": row["n"]} for row in orders if row["c"] in name_of
    ]
    assert sorted((row for row in joined if row["id"] >= 0), key=lambda row: row["id"]) == sorted(
        expected, key=lambda row: row["id"]
    )
    told, own = "".join(log.read_text() for log in logs), [row["n"] for row in joined if row["id"] < 0]
    assert len(own) == 3
    assert len(set(own)) == 1
    assert told.count("d") <= own[0] <= told.count("b")
    for name in TABLES:
        table = catalog.table(name)
        assert all(found.is_information for found in table.check(deep=True))
