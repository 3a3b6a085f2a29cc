"""Drivers killed between any two steps of a micro-batch: after a restart the sink is what the model says.

The sink has no primary key, so a change that was applied twice, or not at all, would show.
"""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tests.helpers import LOCAL_CLUSTER, multiset, output_of, run_spark_script, spark_script
from tests.upsert.managed.pipeline import WAY
from upsert.schema import TableSchema
from upsert.store.table import Table

pytestmark = pytest.mark.spark

SCRIPT = Path(__file__).parent / "pipeline.py"
COLUMNS = {"id": pa.int64(), "v": pa.int64()}


@pytest.fixture
def source(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "source", TableSchema.of(COLUMNS, primary_key=["id"]), {"bucket": "2"})


@pytest.fixture
def sink(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "sink", TableSchema.of(COLUMNS), {"bucket": "2", "bucket-key": "id"})


def change(source: Table, number: int) -> None:
    """A commit of 60 keys out of 100; a reader of 40 rows a batch cuts it."""
    rng = random.Random(number)
    keys = rng.sample(range(100), 60)
    kinds = ["-D" if number and rng.random() < 0.2 else "+U" for _ in keys]
    source.write(pa.table({"id": keys, "v": [number] * len(keys), "_row_kind": kinds}))


@pytest.mark.long
def test_killed_between_any_two_steps_of_a_micro_batch(source: Table, sink: Table, tmp_path: Path) -> None:
    """Killed in the first load, in the middle of a commit, and within a publication."""
    checkpoint = tmp_path / "checkpoint"
    change(source, 0)
    killed_run(source, sink, checkpoint, "staged", 0)
    change(source, 1)
    killed_run(source, sink, checkpoint, "after-publish", 2)
    change(source, 2)
    # only the worker dies, with the snapshot's name in place: Spark aborts the batch and fails the query
    environment = {"UPSERT_STORE_FAILPOINT": "publish.after-link"}
    process = spark_script(SCRIPT, source.path, sink.path, checkpoint, environment=environment)
    output = output_of(process)
    assert process.returncode == 1, output
    assert "is aborting" in output
    run_spark_script(SCRIPT, source.path, sink.path, checkpoint)
    assert multiset(sink.snapshot().scan()) == multiset(source.snapshot().scan())
    sink.clean(older_than_s=0)
    assert files_on_disk(sink) == reachable_files(sink)


@pytest.mark.long
@pytest.mark.parametrize("prefix", ["", "computed "])
def test_a_killed_driver_comes_back_the_other_way(
    source: Table, sink: Table, tmp_path: Path, prefix: str
) -> None:
    """Killed between staging and publication, within it and after it; the driver and tasks take turns."""
    points = ("step.after-stage", "step.after-publish:2", "publish.after-link", "commit.after-manifest:2")
    arguments = source.path, sink.path, tmp_path / "checkpoint"
    for number, point in enumerate(points):
        change(source, number)
        way = prefix + ("driver", "tasks")[number % 2]
        killed = spark_script(SCRIPT, *arguments, environment={"UPSERT_STORE_FAILPOINT": point, WAY: way})
        output = output_of(killed)
        assert killed.returncode == -9, output
    finished = spark_script(SCRIPT, *arguments, environment={WAY: f"{prefix}driver"})
    output = output_of(finished)
    assert finished.returncode == 0, output
    assert multiset(sink.snapshot().scan()) == multiset(source.snapshot().scan())
    sink.clean(older_than_s=0)
    assert files_on_disk(sink) == reachable_files(sink)


def killed_run(source: Table, sink: Table, checkpoint: Path, point: str, batch: int) -> None:
    process = spark_script(SCRIPT, source.path, sink.path, checkpoint, point, batch)
    output = output_of(process)
    assert process.returncode == -9, output
    assert (checkpoint / "offsets" / str(batch)).exists()
    assert not (checkpoint / "commits" / str(batch)).exists()


def files_on_disk(table: Table) -> set[str]:
    found = {p.relative_to(table.path).as_posix() for p in Path(table.path).rglob("bucket-*/*.arrow")}
    return {name for name in found if not name.endswith(".index.arrow")}


def reachable_files(table: Table) -> set[str]:
    return {entry.file for info in table.history() for entry in table.published.files(info).entries}


@pytest.mark.long
@pytest.mark.parametrize("way", ["", "driver", "tasks"])
def test_executors_in_processes_of_their_own(
    source: Table, sink: Table, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two executors that share nothing with the driver but the disk."""
    change(source, 0)
    monkeypatch.setenv(WAY, way)
    run_spark_script(SCRIPT, source.path, sink.path, tmp_path / "checkpoint", master=LOCAL_CLUSTER)
    assert multiset(sink.snapshot().scan()) == multiset(source.snapshot().scan())
