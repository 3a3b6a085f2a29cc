"""Rows that tasks have staged as they came are folded by tasks: the committing process reads none of them."""

import gc
import pickle
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from tests.helpers import changelog, multiset, wait_until
from upsert.errors import ChangelogError, StaleWriterError
from upsert.managed import micro_batch, tasks
from upsert.managed.frames import read_changes, write, write_changes
from upsert.managed.tasks import FoldBuckets
from upsert.schema import TableSchema
from upsert.spark.task import begin_task
from upsert.store.commit import staging
from upsert.store.commit.staging import StagedFiles, of_each_bucket
from upsert.store.table import Table

KEYED = TableSchema.of({"id": pa.int64(), "v": pa.int64()}, primary_key=["id"])
COUNTED = TableSchema.of({"id": pa.int64(), "v": pa.int64()})


def folded(table: Table, staged: list[StagedFiles]) -> list[StagedFiles]:
    """As `folded_by_tasks`, with a task for each bucket, called here."""
    work: FoldBuckets = pickle.loads(
        pickle.dumps(FoldBuckets(table.path, table.uuid, of_each_bucket(staged)))
    )
    found = [
        pickle.loads(row.column(0)[0].as_py())
        for number in range(len(work.buckets))
        for row in work(iter([pa.record_batch({"id": [number]})]))
    ]
    return [*(StagedFiles(one.table, folded=one.raw) for one in staged), *found]


def lines(*changes: str) -> pa.Table:
    return changelog(KEYED.arrow, *changes)


@pytest.fixture
def names_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process must read no raw changes; tasks of Spark are other processes."""

    def read(*given: object) -> None:
        raise AssertionError("the committing process has read rows")

    with monkeypatch.context() as patched:
        patched.setattr(staging, "_read", read)
        yield


@pytest.mark.parametrize("schema", [KEYED, COUNTED], ids=["keyed", "counted"])
def test_random_rows_of_several_tasks_become_what_a_commit_would_fold(
    tmp_path: Path, schema: TableSchema
) -> None:
    """Halves of an update come from different tasks, and equal rows cancel across them."""
    random = Random(3)
    one, other = (Table.create(tmp_path / name, schema, {"bucket": "3"}) for name in ("one", "other"))
    rows = {key: random.randrange(3) for key in range(30)}
    for table in (one, other):
        table.write(pa.table({"id": list(rows), "v": list(rows.values())}))
    for _ in range(3):
        changed = random.sample(sorted(rows), 12)
        halves = [f"-U {key} {rows[key]}" for key in changed]
        rows |= {key: random.randrange(3) for key in changed}
        halves += [f"+U {key} {rows[key]}" for key in changed]
        random.shuffle(halves)
        parts = [lines(*halves[start::3]) for start in range(3)]
        for table, fold in ((one, folded), (other, lambda _, staged: staged)):
            table.commit(fold(table, [table.stage_raw(part) for part in parts]))
        assert multiset(one.snapshot().scan()) == multiset(other.snapshot().scan()) == Counter(rows.items())
        assert multiset(one.changes(one.snapshot().id - 1)) == multiset(
            other.changes(other.snapshot().id - 1)
        )
        assert one.check(deep=True) == ()
        assert not list(Path(one.path).glob("staging/*"))


def test_two_values_of_a_key_are_refused_by_the_task(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2"})
    staged = [table.stage_raw(lines("+I 1 1")), table.stage_raw(lines("+I 1 2"))]
    with pytest.raises(ChangelogError, match="table 't'"):
        folded(table, staged)


def test_rows_that_were_staged_before_a_clean_up_are_refused_as_raw_ones_are(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2"})
    table.write(lines("+I 1 1"))
    staged = folded(table, [table.stage_raw(lines("+I 2 2"))])
    table.write(lines("+I 3 3"))
    table.clean(older_than_s=0)
    with pytest.raises(StaleWriterError):
        table.commit(staged)


@pytest.mark.spark
def test_what_other_tasks_have_staged_goes_when_one_fails(spark: SparkSession, tmp_path: Path) -> None:
    """The one that fails waits until the other one is done; nothing is published, and nothing is left."""
    table = Table.create(tmp_path / "t", COUNTED, {"bucket": "2"})
    files, done = Path(table.path, "staging"), tmp_path / "seen"

    def fail_late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 0 in batch.column("id").to_pylist():
                wait_until(done.exists)
                assert any(one.suffix == ".arrow" for one in files.glob("*"))
                raise ValueError("one task fails")
            yield batch

    def tell_when_the_driver_knows_of_the_other_task() -> None:
        wait_until(lambda: tasks._own is not None and any(tasks._own[1].value.values()))
        done.touch()

    rows = spark.range(0, 20, 1, 2).selectExpr("id", "id AS v").mapInArrow(fail_late, "id BIGINT, v BIGINT")
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(tell_when_the_driver_knows_of_the_other_task)
        with pytest.raises(PythonException, match="one task fails"):
            write(rows, table.path)
        told.result()
    assert not list(files.glob("*"))
    assert table.snapshot().id == 0
    write(spark.range(20).selectExpr("id", "id AS v"), table.path)
    assert table.snapshot().scan().num_rows == 20
    assert table.check() == ()


@pytest.mark.spark
def test_the_driver_reads_no_rows_of_streams_and_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names_alone: None
) -> None:
    """A stream into a few buckets has no shuffle, and Spark does not know the buckets of the other."""
    monkeypatch.setattr(micro_batch, "FEW_ROWS", -1)
    monkeypatch.setattr(tasks, "FOLDED_BY_DRIVER", 0)
    source = Table.create(tmp_path / "source", KEYED, {"bucket": "2"})
    keyed = Table.create(tmp_path / "keyed", KEYED, {"bucket": "2"})
    counted = Table.create(tmp_path / "counted", COUNTED, {"bucket": "3"})
    wanted: Counter[tuple[int, int]] = Counter()
    for changes in (("+I 1 1", "+I 2 2", "+I 3 3"), ("+U 1 5", "-D 2 2", "+I 4 4")):
        source.write(lines(*changes))
        writer = write_changes(read_changes(spark, source.path), keyed.path)
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(
            availableNow=True
        ).start().awaitTermination()
        assert multiset(keyed.snapshot().scan()) == multiset(source.snapshot().scan())
        rows = spark.range(40).selectExpr("id % 7 AS id", "id % 2 AS v").repartition(3)
        write(rows, counted.path)
        wanted.update((id % 7, id % 2) for id in range(40))
        assert multiset(counted.snapshot().scan()) == wanted
    assert keyed.check(deep=True) == counted.check(deep=True) == ()
    write(rows.where("id = 1"), counted.path, overwrite=True)
    assert {id for id, _ in multiset(counted.snapshot().scan())} == {1}


_PAGES_THAT_COME_AGAIN = """
import resource
import numpy as np
from upsert.spark.task import keep_freed_memory

def work():
    for rows in (25_000, 50_000, 12_500, 37_500, 600_000):
        arrays = [np.ones(rows * count) for count in (1, 2, 3)]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

work()
print(faults(), end=" ")
keep_freed_memory()
work()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries of C have no such settings")
def test_freed_memory_is_used_again_without_new_pages() -> None:
    child = [sys.executable, "-c", _PAGES_THAT_COME_AGAIN]
    before, after = map(int, subprocess.run(child, check=True, capture_output=True, text=True).stdout.split())
    assert before > 100
    assert after < before / 10


def test_what_a_process_has_loaded_is_left_out_of_its_garbage_collections(spark: SparkSession) -> None:
    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        first = gc.get_freeze_count()
        begin_task()
        yield from (pa.record_batch({"n": [first], "again": [gc.get_freeze_count()]}) for _ in batches)

    before = gc.get_freeze_count()
    (row,) = spark.range(0, 1, 1, 1).mapInArrow(frozen, "n LONG, again LONG").collect()
    assert row.n > 10_000
    assert row.again <= row.n
    assert gc.get_freeze_count() <= before
