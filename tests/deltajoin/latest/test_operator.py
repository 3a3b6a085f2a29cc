"""What Spark calls for a shard, without Spark: blobs and a state in, blobs, measures and a state out."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext

from deltajoin.errors import CheckpointMismatchError, LookupFailedError
from deltajoin.latest import operator
from deltajoin.latest.operator import JoinShard, Pack, ShardState
from deltajoin.latest.spec import LatestJoin
from deltajoin.settings import JoinSettings
from tests.deltajoin.latest.driver import LEFT, ON, RIGHT, Row, as_rows, changes, rows, side
from tests.deltajoin.latest.files import FileLookup
from upsert.blobs import rows_of_blobs
from upsert.errors import BrokenPayloadError

run_of_task = operator._run


@pytest.fixture(autouse=True)
def _run_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test is a run of a query of its own, with its own caches and connections."""
    monkeypatch.setattr(operator, "_run", lambda: str(tmp_path))


class State:
    """The part of Spark's GroupState that the operator uses."""

    def __init__(self) -> None:
        self.value: tuple[Any, ...] | None = None
        self.timeout: int | None = None

    @property
    def exists(self) -> bool:
        return self.value is not None

    @property
    def get(self) -> tuple[Any, ...]:
        assert self.value is not None
        return self.value

    def update(self, value: tuple[Any, ...]) -> None:
        self.value = value

    def setTimeoutDuration(self, duration: int) -> None:  # noqa: N802
        self.timeout = duration


class Shard:
    """One shard over two files that can be switched off."""

    def __init__(self, folder: Path, on_error: str = "queue") -> None:
        left = replace(
            side(LEFT, ["lk"], ["lid"], immutable=("lk",)), source=FileLookup(f"{folder}/l", LEFT, ("lk",))
        )
        right = replace(side(RIGHT, ["rk"], ["rk"]), source=FileLookup(f"{folder}/r", RIGHT, ("rk",)))
        settings = JoinSettings(on_error=on_error)
        self.folder = folder
        self.join = LatestJoin(left, right, ON, "left", settings=settings)
        self.state = State()

    def newest(self, *lines: str) -> None:
        made = changes(self.join, 1, rows(RIGHT, *lines)).drop_columns(["_row_kind"])
        pq.write_table(made, self.folder / "r")

    def switch(self, *, on: bool) -> None:
        off = self.folder / "r.off"
        off.unlink(missing_ok=True) if on else off.touch()

    def call(self, *lines: str, shards: int = 1) -> tuple[list[Row], dict[str, int]]:
        """Rows that are emitted, and the measures of the call."""
        self.state.timeout = None
        packed = changes(self.join, 0, rows(LEFT, *lines)).to_batches() if lines else []
        blobs = [row["blob"] for batch in Pack(self.join, 0, shards)(packed) for row in batch.to_pylist()]
        frames = [pd.DataFrame({"blob": blobs})] if blobs else []
        out = pd.concat(JoinShard(self.join, shards)((0,), frames, self.state))  # type: ignore[arg-type]
        given = pa.record_batch({"blob": pa.array(out["blob"].tolist(), pa.binary())})
        found = [row for batch in rows_of_blobs([given]) for row in as_rows(pa.Table.from_batches([batch]))]
        return found, out.drop(columns="blob").sum().to_dict()


def test_the_state_is_an_epoch_while_nothing_waits(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    shard.newest("+I 1 7 x")
    found, measures = shard.call("+I 1 7 a", "+I 2 8 b")
    assert sorted(found) == [(1, 7, "a", 1, 7, "x", "+I"), (2, 8, "b", None, None, None, "+I")]
    state = ShardState(*shard.state.get)
    assert (state.label, state.left, state.right, shard.state.timeout) == ("", b"", b"", None)
    assert (measures["right_misses"], measures["right_rows"], measures["right_hits"]) == (2, 1, 0)
    # the next call goes on with the caches of this one, which know the key without rows as well
    assert shard.call("+U 1 7 aa", "+U 2 8 bb")[1]["right_hits"] == 2


def test_caches_of_an_attempt_that_did_not_count_are_dropped(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    shard.newest("+I 1 7 x")
    shard.call("+I 1 7 a")
    before = shard.state.value
    shard.call("+U 1 7 b")
    shard.state.value = before
    _, measures = shard.call("+U 1 7 b")
    assert (measures["right_hits"], measures["right_misses"], measures["right_drops"]) == (0, 1, 1)


def test_rows_wait_with_a_timeout_and_go_when_it_comes(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    shard.newest("+I 1 7 x")
    shard.switch(on=False)
    found, measures = shard.call("+I 1 7 a")
    assert (found, measures["left_waiting"]) == ([], 1)
    assert shard.state.timeout is not None
    shard.switch(on=True)
    found, _ = shard.call()  # Spark calls without rows when the timeout has passed
    assert found == [(1, 7, "a", 1, 7, "x", "+I")]
    assert (ShardState(*shard.state.get).left, shard.state.timeout) == (b"", None)


def test_rows_that_wait_go_on_with_their_own_join_and_shards_only(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    shard.switch(on=False)
    shard.call("+I 1 7 a")
    with pytest.raises(CheckpointMismatchError, match="rows that wait for a lookup must continue with"):
        shard.call(shards=2)


def test_a_failure_fails_the_batch_and_names_the_reason(tmp_path: Path) -> None:
    shard = Shard(tmp_path, on_error="fail")
    shard.switch(on=False)
    with pytest.raises(LookupFailedError, match=r"1 join key\(s\) could not be looked up; the first: .*off"):
        shard.call("+I 1 7 a")
    assert shard.state.value is None


def test_queries_that_set_the_same_job_group_share_neither_clients_nor_caches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A foreachBatch may set it, and Spark's id of the run is gone then; nor do the runs of one query."""

    def run_of(query: str, group: str, session: str = "") -> str:
        own = f"spark-session-{session}-execution-root-id-8"
        tags = f"x,{own},spark-session-1234" if session else None
        properties = {
            "sql.streaming.queryId": query,
            "spark.jobGroup.id": group,
            "spark.job.tags": tags,
        }
        monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(getLocalProperty=properties.get))
        return run_of_task()

    runs = {run_of("q1", "nightly"), run_of("q2", "nightly"), run_of("q1", "../../etc")}
    runs |= {run_of("q1", "nightly", "a1"), run_of("q1", "nightly", "a2"), run_of("q2", "nightly", "a1")}
    assert len(runs) == 6
    assert run_of("q1", "a group for each micro-batch", "a1") in runs
    assert all(run.isalnum() for run in runs)


def test_a_blob_of_another_join_is_refused(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    other = LatestJoin(side(RIGHT, ["rk"], ["rk"]), side(LEFT, ["lk"], ["lk"]), (("rk", "lk"),))
    packed = changes(other, 0, rows(RIGHT, "+I 1 7 x")).to_batches()
    (batch,) = Pack(other, 0, 1)(packed)
    frame = pd.DataFrame({"blob": batch.column("blob").to_pylist()})
    with pytest.raises(BrokenPayloadError, match="a shard must get changes of its two sides"):
        list(JoinShard(shard.join, 1)((0,), [frame], shard.state))  # type: ignore[arg-type]
