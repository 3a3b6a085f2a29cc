"""Rows that Arrow computes, figures of those that are observed, and texts on their way between tasks."""

from collections.abc import Iterator
from typing import cast

import pyarrow as pa

from upsert.blobs import from_blob, to_blobs
from upsert.conditions.expressions import Call, Const, Field, Ref
from upsert.managed.tasks import MadeRows, Read, StageRows
from upsert.managed.writer import StreamWriter
from upsert.store.rows.computed import Figure, Filtered, InArrow, Input, Observation, Observed

A = Field(Ref(0, "1"))
BATCHES = [pa.record_batch({"a": pa.array(some, pa.int64())}) for some in ([1, 2, 3], [4], [], [5, -7])]


def observed_twice() -> InArrow:
    """Rows that are observed below a filter, which is the inner observation, and above it."""
    told = [
        Observation((figure,), ((figure[0], Field(Ref(0, figure[0]))),), pa.schema([(figure[0], pa.int64())]))
        for figure in (("above", Figure("count", (A,))), ("below", Figure("min", (A,))))
    ]
    given = Input(0, (("1", "a", pa.int64()),))
    kept = Filtered(Observed(given, told[1].figures), Call(">", (A, Const(2, pa.int64()))), ("1",))
    return InArrow(Observed(kept, told[0].figures), ("1",), pa.schema([("a", pa.int64())]), tuple(told))


def as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def test_figures_of_many_batches_are_put_together() -> None:
    made, read = observed_twice(), Read()
    rows = [*MadeRows(as_they_are, made)(iter(BATCHES), read)]
    assert [value for batch in rows for value in batch.column(0).to_pylist()] == [3, 4, 5]
    assert read.rows == 6
    parts = [read.figures, made.made([pa.table({"a": [9]})]).told]
    found = made.observed(made.merged([part for part in parts if part is not None]))
    assert [row.to_pylist() for row in found] == [[{"above": 4}], [{"below": -7}]]


class Counts:
    """A writer that stages nothing."""

    def stage(self, rows: Iterator[pa.RecordBatch]) -> None:
        assert sum(batch.num_rows for batch in rows) == 6


def test_an_observation_of_constants_has_no_figures() -> None:
    told = Observation((), (("2", Const(5, pa.int32())),), pa.schema([("five", pa.int32())]))
    made = InArrow(Input(0, (("1", "a", pa.int64()),)), ("1",), pa.schema([("a", pa.int64())]), (told,))
    stage = StageRows(cast("StreamWriter", Counts()), MadeRows(as_they_are, made))
    ((row,),) = (batch.to_pylist() for batch in stage(iter(BATCHES)))
    assert (row["rows"], row["figures"]) == (6, None)


def test_texts_that_are_no_utf_8_go_through_blobs_as_their_bytes() -> None:
    texts = pa.array([b"a", b"\xff", None, b"\xf0\x9f"], pa.binary())
    given = pa.table({"t": texts.view(pa.string()), "n": [1, 2, 3, 4]})
    (blob,) = to_blobs(given, {})
    found, _ = from_blob(blob)
    assert found.schema == given.schema
    assert found.column("t").cast(pa.binary()).combine_chunks() == texts
