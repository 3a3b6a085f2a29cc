"""The records that streaming queries leave: what they say; nothing waits for them or fails by them."""

import json
import os
import subprocess
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import GatewayClient
from py4j.protocol import CALL_COMMAND_NAME
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

from deltajoin.latest.metrics import LEVELS, MAXIMA, NAMES, OBSERVED
from tests.forked_python import forked_program
from upsert.catalog import query_recorder, query_records
from upsert.catalog.catalog import Catalog
from upsert.catalog.query_recorder import QueryRecorder, QueryRecordWarning
from upsert.catalog.query_records import KEPT_BATCHES, Decision, MicroBatch, QueryRecord, Totals, read_all
from upsert.catalog.run import jobs
from upsert.errors import ConfigurationError, UpsertError
from upsert.options import masked_text
from upsert.spark.queries import ToldAsText
from upsert.store.version import Version

ID = "11111111-0000-4000-8000-000000000001"
RUN = "22222222-0000-4000-8000-000000000002"


def progress(batch: int, *, rows: int = 1, out: int = -1, offset: Any = None, id: str = ID) -> dict[str, Any]:
    """A progress event as Spark writes it."""
    source = {
        "description": "orders",
        "numInputRows": rows,
        "startOffset": None,
        "endOffset": offset,
        "latestOffset": offset,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0,
        "metrics": {},
    }
    return {
        "id": id,
        "runId": RUN,
        "name": "job",
        "timestamp": f"2026-01-01T00:00:{batch % 60:02}.000Z",
        "batchId": batch,
        "batchDuration": 5,
        "durationMs": {"addBatch": 3, "triggerExecution": 5},
        "stateOperators": [],
        "sources": [source],
        "sink": {"description": "sink", "numOutputRows": out, "metrics": {}},
    }


def test_a_micro_batch_says_how_many_records_it_has_left_in_each_topic() -> None:
    def offset(**ends: list[int]) -> str:
        topics = {name: {"id": None, "partitions": dict(enumerate(at))} for name, at in ends.items()}
        return json.dumps({"stream": "s", "topics": topics})

    def left(end: object, latest: object) -> Any:
        event = progress(1, offset=end)
        event["sources"][0]["latestOffset"] = latest
        found = fresh().progressed(event, 7)
        assert QueryRecord.from_json(json.loads(found.content())) == found
        return found.batches[0].inputs[0].topics

    assert left(offset(orders=[7, 4]), offset(orders=[9, 5])) == {"orders": 3}
    assert left(offset(a=[7], b=[4]), offset(a=[7], b=[6])) == {"a": 0, "b": 2}
    assert left(offset(orders=[7]), offset(orders=[5])) == {"orders": 0}, "it was made again, and is shorter"
    for other in (None, "no JSON", '{"orders": {"0": 17}}', {"topics": {"orders": [1]}}, {"table": "u1"}):
        assert left(other, other) is None


def record(**given: Any) -> QueryRecord:
    return QueryRecord(**{"id": ID, "run": RUN, "name": "job", "driver": "h:1", "state": "running"} | given)


def fresh() -> QueryRecord:
    return record(started_ms=1, heard_ms=1)


def test_a_micro_batch_that_is_done_again_is_told_once() -> None:
    found = fresh()
    for batch, rows in ((0, 1), (1, 2), (1, 3)):
        found = found.progressed(progress(batch, rows=rows), 7)
    assert [(one.id, one.rows_in) for one in found.batches] == [(0, 1), (1, 3)]
    assert found.totals == Totals(batches=3, rows_in=6, duration_ms=15)
    assert (found.heard_ms, found.sink) == (7, "sink")


def test_lookups_are_added_up_through_restarts_but_not_what_a_cache_holds() -> None:
    observed = {f"{side}_{name}": 3 for side in ("left", "right") for name in NAMES}
    looked_up = progress(1) | {"observedMetrics": {"deltajoin.lookups": observed}}
    nothing = progress(2) | {"observedMetrics": {"deltajoin.lookups": dict.fromkeys(observed)}}
    first = fresh().progressed(looked_up, 7).progressed(nothing, 7)
    assert [batch.lookups for batch in first.batches] == [observed, None]
    again = fresh().progressed(progress(3) | {"observedMetrics": looked_up["observedMetrics"]}, 9)
    kept = QueryRecord.from_json(json.loads(first.content()))
    totals = again.after(kept).totals
    assert (totals.batches, totals.rows_in) == (3, 3)
    assert totals.lookups == {name: 6 for name in observed if name not in query_records.LEVELS}
    assert {name for name in observed if name.partition("_")[2] in MAXIMA | LEVELS} == query_records.LEVELS
    assert query_records.LOOKUPS == OBSERVED


def test_a_record_of_an_earlier_release_has_no_totals() -> None:
    written = json.loads(fresh().progressed(progress(1), 7).content())
    del written["totals"]
    assert QueryRecord.from_json(written).totals == Totals()


def test_the_state_of_operators_is_told() -> None:
    states = [{"numRowsTotal": 2, "memoryUsedBytes": 100}, {"numRowsTotal": 3, "memoryUsedBytes": 50}]
    (batch,) = fresh().progressed(progress(1) | {"stateOperators": states}, 7).batches
    assert (batch.state_rows, batch.state_bytes) == (5, 150)


def test_the_peaks_of_processes_are_told() -> None:
    (batch,) = fresh().progressed(progress(1), 7, (100, 50)).batches
    assert (batch.driver_peak_bytes, batch.worker_peak_bytes) == (100, 50)
    (batch,) = fresh().progressed(progress(1), 7).batches
    assert not batch.to_json().keys() & {"driver_peak_bytes", "worker_peak_bytes"}


def test_a_record_is_bounded() -> None:
    found = fresh()
    for batch in range(500):
        offset = {"tables": ["a" * 32] * 9, "versions": [Version.complete(10**9).to_json()] * 9}
        lookups = {f"{side}_{name}": 10**9 for side in ("left", "right") for name in NAMES}
        event = progress(batch, offset=offset) | {"observedMetrics": {"deltajoin.lookups": lookups}}
        found = found.progressed(event, 7)
    assert [one.id for one in found.batches] == list(range(500 - KEPT_BATCHES, 500))
    mark = json.dumps([["y" * 9_000, False]] * 9)
    failed = replace(found.terminated("x" * 10**6, 8), decisions=Decision.all_in(mark))
    assert [len(one.text) for one in failed.decisions] == [9_000, 1_000]
    assert len(failed.content()) < 140_000


@pytest.mark.parametrize(
    ("offset", "versions"),
    [
        (
            {"consumer": "c", "table": "a", "version": Version(3, 5, (0, 7)).to_json()},
            {"a": Version(3, 5, (0, 7))},
        ),
        (
            {"tables": ["a", "b"], "versions": [Version.EMPTY.to_json(), Version.complete(2).to_json()]},
            {"a": Version.EMPTY, "b": Version.complete(2)},
        ),
        ({"versions": {"a": Version.complete(4).to_json()}}, {"a": Version.complete(4)}),
        ({"orders": {"0": 5}}, {}),
        ({"table": "a", "version": {"base": "x"}}, {}),
        ({"versions": {"a": 1}}, {}),
        ({"versions": {"a": [1]}}, {}),
        (7, {}),
        (None, {}),
        ("[" * 100_000, {}),
    ],
)
def test_versions_are_read_from_every_form_of_offset(offset: Any, versions: dict[str, Version]) -> None:
    assert query_records.versions_in(offset) == versions
    if not isinstance(offset, str):
        assert query_records.versions_in(json.dumps(offset)) == versions


def test_a_failure_is_the_own_sentence_with_its_remedy() -> None:
    text = (
        "STREAM_FAILED\n  File …\nupsert.errors.SchemaError: table 'a': column 'b' is gone; add it\n\tat Java"
    )
    failed = fresh().terminated(text, 9)
    assert (failed.state, failed.error, failed.error_ms) == (
        "failed",
        "table 'a': column 'b' is gone; add it",
        9,
    )
    assert fresh().terminated(None, 9).state == "ended"


@pytest.mark.parametrize(
    "text",
    [
        "password=pa55",
        "sasl.jaas.config=… username='u' password='pa55';",
        'fs.s3a.secret.key = "pa55"',
        "jdbc:postgresql://me:pa55@host/db",
        '{"access_token": "pa55"}',
        "api-key: pa55, next",
        'password="not closed pa55',
        r"{\"sasl.password\": \"of two words pa55\"}",
        "Authorization: Bearer pa55",
        "password => pa55",
        "https://pa55@host/path",
        "ssl.key.pem=pa55",
    ],
)
def test_secrets_in_what_others_say_are_masked(text: str) -> None:
    assert "pa55" not in masked_text(text)
    assert "pa55" not in str(fresh().terminated(f"java.io.IOException: {text}", 1).error)
    for before in ("", "x" * 180 + " ", "x" * 1_980 + " "):  # what is cut off would have said that it is one
        described = progress(1) | {"sink": {"description": before + text}}
        assert b"pa55" not in fresh().progressed(described, 1).content()
        assert "pa55" not in str(fresh().terminated(before + text, 1).error)


@pytest.mark.parametrize("text", ["password", "a", "x://a:", "token=", 'token="', "a ", "password  ", ".-"])
def test_a_long_text_is_masked_in_linear_time(text: str) -> None:
    began = time.process_time()
    masked_text(text * 20_000)
    assert time.process_time() - began < 10, "of the third degree it were days, of the second minutes"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    offset = {"table": "a", "version": Version(3, 5, (1, 2**63)).to_json()}
    one = fresh().progressed(progress(3, out=2, offset=offset), 7).terminated("naïve", 8)
    query_records.write(str(tmp_path), one)
    assert read_all(str(tmp_path)) == ((one,), ())


def test_a_record_that_is_none_is_told_and_hides_no_other(tmp_path: Path) -> None:
    query_records.write(str(tmp_path), fresh())
    folder = tmp_path / query_records.FOLDER
    damages: list[bytes] = [
        b"",
        b"\xff",
        b"[]",
        b'{"format": 2}',
        b"[" * 100_000,
        fresh().content(),  # under another name
        b" " * (2 << 20),
        fresh().content().replace(b'"running"', b'"dancing"'),
        fresh().content().replace(b'"started_ms": 1', b'"started_ms": "1"'),
    ]
    for content in damages:
        (folder / f"{uuid.uuid4()}.json").write_bytes(content)
    (folder / "notes.txt").write_bytes(b"not ours")
    (folder / "..json").write_bytes(b"not ours")
    found = read_all(str(tmp_path))
    assert found.queries == (fresh(),)
    assert len(found.unreadable) == len(damages)
    assert all("delete the file" in one or "1 MiB" in one for one in found.unreadable)


def test_a_folder_in_the_place_of_a_record_or_of_a_stop_hides_no_other(tmp_path: Path) -> None:
    query_records.write(str(tmp_path), fresh())
    query_records.ask_to_stop(str(tmp_path), fresh())
    for suffix in (".json", ".stop"):
        (tmp_path / query_records.FOLDER / f"{uuid.UUID(int=0)}{suffix}").mkdir()
    found = read_all(str(tmp_path))
    assert found.queries == (fresh(),)
    (unreadable,) = found.unreadable
    assert "got 'Is a directory'; move the folder away" in unreadable
    assert query_records.asked_to_stop(str(tmp_path)) == {fresh().id: fresh().run}
    assert query_records.read(str(tmp_path), str(uuid.UUID(int=0))) is None


def test_a_pipe_in_the_place_of_a_record_holds_up_no_reader(tmp_path: Path) -> None:
    query_records.write(str(tmp_path), fresh())
    os.mkfifo(tmp_path / query_records.FOLDER / f"{uuid.UUID(int=0)}.json")
    found: list[query_records.Records] = []
    reader = threading.Thread(target=lambda: found.append(read_all(str(tmp_path))), daemon=True)
    reader.start()
    reader.join(10)
    assert [one.queries for one in found] == [(fresh(),)]
    assert [len(one.unreadable) for one in found] == [1]


def test_records_that_were_not_written_for_longest_are_forgotten(tmp_path: Path) -> None:
    ids = [str(uuid.uuid4()) for _ in range(5)]
    for number, id in enumerate(ids):
        query_records.write(str(tmp_path), record(id=id, started_ms=1, heard_ms=1))
        path = Path(query_records.file_of(str(tmp_path), id))
        os.utime(path, (number, number))
    query_records.forget_oldest(str(tmp_path), keep=2)
    assert sorted(one.id for one in read_all(str(tmp_path)).queries) == sorted(ids[3:])


def test_what_a_driver_left_that_was_killed_while_it_wrote_a_record_is_deleted(tmp_path: Path) -> None:
    query_records.write(str(tmp_path), fresh())
    folder = Path(query_records.file_of(str(tmp_path), ID)).parent
    left, young = (folder / f".{ID}.json-{number:032x}.tmp" for number in range(2))
    for path in (left, young):
        path.write_bytes(b"{")
    two_hours_ago = time.time() - 7_200
    os.utime(left, (two_hours_ago, two_hours_ago))
    query_records.forget_oldest(str(tmp_path))
    assert sorted(folder.iterdir()) == [young, folder / f"{ID}.json"]


class Clock:
    """A clock that goes on by a millisecond each time."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        self.now += 1
        return self.now


def started(id: str = ID) -> QueryStartedEvent:
    return QueryStartedEvent.fromJson(
        {"id": id, "runId": RUN, "name": "job", "timestamp": "2026-01-01T00:00:00.000Z"}
    )


def progressed(batch: int, id: str = ID) -> QueryProgressEvent:
    return QueryProgressEvent.fromJson({"progress": progress(batch, id=id)})


def terminated(exception: str | None = None, id: str = ID) -> QueryTerminatedEvent:
    return QueryTerminatedEvent.fromJson(
        {"id": id, "runId": RUN, "exception": exception, "errorClassOnException": None}
    )


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[QueryRecorder]:
    made = QueryRecorder(str(tmp_path), Clock())
    made.run()
    yield made
    made.close()


def test_events_become_a_record(recorder: QueryRecorder, tmp_path: Path) -> None:
    recorder.onQueryStarted(started())
    for batch in range(3):
        recorder.onQueryProgress(progressed(batch))
    recorder.onQueryTerminated(terminated("boom; mend it"))
    recorder.close()
    (found,) = read_all(str(tmp_path)).queries
    assert (found.state, found.error, [one.id for one in found.batches]) == (
        "failed",
        "boom; mend it",
        [0, 1, 2],
    )


@pytest.mark.spark
@pytest.mark.usefixtures("ended_queries")
def test_a_recorder_gets_the_progress_of_a_micro_batch_in_few_calls(
    spark: SparkSession, recorder: QueryRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else events of a driver with many micro-batches a second wait, more and more of them."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one").write_text("a\n")
    writer = spark.readStream.text(str(tmp_path / "texts")).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    query.awaitTermination()
    told = query._jsq.lastProgress()

    class Event:
        def progress(self) -> Any:
            return told

    recorder.onQueryStarted(started(str(query.id)))
    calls, send = [], GatewayClient.send_command

    def counted(self: GatewayClient, command: str, *args: Any, **given: Any) -> Any:
        if command.startswith(CALL_COMMAND_NAME) and threading.current_thread() is threading.main_thread():
            calls.append(command)
        return send(self, command, *args, **given)

    monkeypatch.setattr(GatewayClient, "send_command", counted)
    ToldAsText(recorder).onQueryProgress(Event())
    recorder.close()
    (record,) = read_all(str(tmp_path)).queries
    assert [batch.id for batch in record.batches] == [0]
    assert len(calls) == 1


def test_a_query_that_starts_again_keeps_what_earlier_runs_told(tmp_path: Path) -> None:
    for first in (0, 2):
        recorder = QueryRecorder(str(tmp_path), Clock())
        recorder.run()
        recorder.onQueryStarted(started())
        recorder.onQueryProgress(progressed(first))
        recorder.onQueryProgress(progressed(first + 1))
        recorder.onQueryTerminated(terminated("boom" if first == 0 else None))
        recorder.close()
    (found,) = read_all(str(tmp_path)).queries
    assert (found.state, found.error, [one.id for one in found.batches]) == ("ended", "boom", [0, 1, 2, 3])


def test_a_query_that_a_driver_has_forgotten_keeps_what_earlier_runs_told(
    recorder: QueryRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_recorder, "_KEPT_QUERIES", 1)
    monkeypatch.setattr(query_recorder, "_pause", lambda event, s: event.wait(s / 100))
    other, end = str(uuid.uuid4()), time.monotonic() + 60
    for batch in range(2):
        for id in (ID, other):
            recorder.onQueryStarted(started(id))
            recorder.onQueryProgress(progressed(batch, id))
            recorder.onQueryTerminated(terminated(id=id))
            is_written = False
            while not is_written and time.monotonic() < end:
                told = [one for one in read_all(str(tmp_path)).queries if one.id == id]
                is_written = any(one.state == "ended" and one.batches[-1].id == batch for one in told)
    found = read_all(str(tmp_path)).queries
    assert [(len(one.batches), one.totals.batches) for one in found] == [(2, 2), (2, 2)]


def test_nothing_is_left_of_a_query_that_a_driver_has_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_recorder, "_KEPT_QUERIES", 1)
    recorder = QueryRecorder(str(tmp_path), Clock())
    recorder.onQueryStarted(started())
    recorder._met.add(ID)  # as its thread does, which does not run here
    recorder._asked.add(ID)
    recorder.onQueryTerminated(terminated())
    recorder.onQueryStarted(started(str(uuid.uuid4())))
    assert ID not in recorder._met | recorder._asked


@pytest.mark.spark
def test_a_session_is_not_held_by_a_recorder_that_is_closed(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.record_queries(spark.newSession()).close()
    recorder = catalog.record_queries(spark)
    assert [*catalog.context.recorders.values()] == [recorder]
    recorder.close()


@pytest.mark.spark
def test_threads_may_begin_to_record_at_once(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    recorders: dict[Any, Any] = catalog.context.recorders

    class Closed:
        @property
        def is_closed(self) -> bool:  # here another thread goes on
            recorders.pop("first", None)
            recorders["new"] = self
            return True

    recorders |= {name: Closed() for name in ("first", "second")}
    catalog.record_queries(spark).close()


def test_events_never_wait_for_the_storage(
    recorder: QueryRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage that hangs: events are taken all the same, and the writer goes on when it answers."""
    is_hanging, goes_on = threading.Event(), threading.Event()
    write = query_records.write

    def hang(warehouse: str, found: QueryRecord) -> None:
        is_hanging.set()
        goes_on.wait(60)
        write(warehouse, found)

    monkeypatch.setattr(query_records, "write", hang)
    recorder.onQueryStarted(started())
    assert is_hanging.wait(60)
    for batch in range(100):
        recorder.onQueryProgress(progressed(batch))
    recorder.onQueryTerminated(terminated())
    assert read_all(str(tmp_path)).queries == ()
    goes_on.set()
    recorder.close(60)
    (found,) = read_all(str(tmp_path)).queries
    assert (found.state, found.batches[-1].id) == ("ended", 99)


def test_a_driver_writes_once_a_second_at_most(
    recorder: QueryRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    written: list[str] = []
    done = threading.Event()

    def note(warehouse: str, found: QueryRecord) -> None:
        written.append(found.id)
        if len(written) == 4:
            done.set()

    monkeypatch.setattr(query_records, "write", note)
    monkeypatch.setattr(query_recorder, "_pause", lambda event, s: pauses.append(s) or event.is_set())
    ids = [f"{digit * 8}-0000-4000-8000-{digit * 12}" for digit in "1234"]
    for id in ids:
        recorder.onQueryStarted(started(id))
        recorder.onQueryTerminated(terminated(id=id))
    assert done.wait(60)
    recorder.close()
    assert set(written) == set(ids)
    assert len(pauses) >= 3
    assert set(pauses) == {1.0}


def test_a_quiet_query_is_heard_of_beside_a_busy_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_recorder, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(query_recorder, "_pause", lambda event, s: event.wait(s / 100))
    quiet, busy = ID, "33333333-0000-4000-8000-000000000003"
    recorder = QueryRecorder(str(tmp_path), Clock())
    recorder.run()
    recorder.onQueryStarted(started(quiet))
    recorder.onQueryStarted(started(busy))
    end = time.monotonic() + 60
    heard: set[int] = set()
    batch = 0
    while len(heard) < 3 and time.monotonic() < end:
        recorder.onQueryProgress(progressed(batch := batch + 1, busy))
        time.sleep(0.005)
        heard |= {one.heard_ms for one in read_all(str(tmp_path)).queries if one.id == quiet}
    recorder.onQueryTerminated(terminated(id=busy))
    recorder.onQueryTerminated(terminated(id=quiet))
    recorder.close()
    assert len(heard) >= 3


def test_the_end_of_a_query_is_written_when_the_storage_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_recorder, "_pause", lambda event, s: event.wait(s / 100))
    folder = tmp_path / query_records.FOLDER
    folder.write_text("in the way")
    recorder = QueryRecorder(str(tmp_path), Clock())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        recorder.run()
        recorder.onQueryStarted(started())
        recorder.onQueryTerminated(terminated("boom"))
        end = time.monotonic() + 60
        while not told and time.monotonic() < end:
            time.sleep(0.01)
        folder.unlink()
        while not (found := read_all(str(tmp_path)).queries) and time.monotonic() < end:
            time.sleep(0.01)
    recorder.close()
    assert [one.state for one in found] == ["failed"]


def test_what_cannot_be_forgotten_hinders_no_record(recorder: QueryRecorder, tmp_path: Path) -> None:
    left = tmp_path / query_records.FOLDER / f".{ID}.json-{0:032x}.tmp"
    left.mkdir(parents=True)  # as one of another user, it cannot be deleted
    os.utime(left, (1, 1))
    recorder.onQueryStarted(started())
    recorder.onQueryTerminated(terminated())
    recorder.close()
    assert [one.state for one in read_all(str(tmp_path)).queries] == ["ended"]


def test_a_storage_that_fails_is_told_once_and_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / query_records.FOLDER).write_text("a file where the folder should be")
    recorder = QueryRecorder(str(tmp_path), Clock())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        recorder.run()
        recorder.onQueryStarted(started())
        recorder.onQueryProgress(progressed(0))
        recorder.onQueryTerminated(terminated())
        recorder.close()
    (one,) = [each for each in told if each.category is QueryRecordWarning]
    assert "the query goes on" in str(one.message)


def test_a_micro_batch_says_what_spark_says() -> None:
    assert MicroBatch.of_progress(progress(2, rows=4, out=3)) == MicroBatch(
        2,
        1_767_225_602_000,
        4,
        3,
        {"addBatch": 3, "triggerExecution": 5},
        (query_records.Input("orders", 4, {}),),
    )


STOP = "STOP JOB '{}'"
BATCH = MicroBatch(7, 1, 3, None, {"triggerExecution": 40}, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("STOP JOB", "expected the id of a job in quotes, see SHOW JOBS, found the end"),
        ("STOP JOB 7", "expected the id of a job in quotes, see SHOW JOBS, found '7' at line 1, column 10"),
        ("STOP JOB 'a' WITH SAVEPOINT", "leave WITH … out, found 'WITH' at line 1, column 14"),
        ("SHOW JOBS LIKE 'a'", "expected the end of the statement, found 'LIKE' at line 1, column 11"),
        (
            "STOP JOB '../../orders'",
            "there must be a job of this id or name, there is none; none runs, see SHOW JOBS",
        ),
    ],
)
def test_a_wrong_job_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UpsertError) as error:
        Catalog(tmp_path).sql(text)
    assert message in str(error.value)


def test_jobs_of_other_processes_are_shown_and_asked_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Spark: only the files of the warehouse say what runs."""
    catalog, now = Catalog(tmp_path), time.time_ns() // 1_000_000
    ids = [f"{number}1111111-0000-4000-8000-000000000001" for number in range(4)]
    states = [
        record(id=ids[0], started_ms=1, heard_ms=now),
        record(id=ids[1], started_ms=1, heard_ms=now - 61_000),
        record(id=ids[2], started_ms=1, heard_ms=now - 62_000).terminated(None, now - 62_000),
        record(id=ids[3], started_ms=1, heard_ms=now - 63_000).terminated("gone", now - 63_000),
    ]
    for one in states:
        query_records.write(str(tmp_path), one)
    shown = catalog.sql("SHOW JOBS").rows
    assert shown.column("status").to_pylist() == ["running", "silent", "ended", "failed"]
    assert shown.column("job_id").to_pylist() == ids
    assert shown.column("error").to_pylist() == [None, None, None, "gone"]
    assert shown.column("start_time")[0].as_py().year == 1970
    query_records.write(str(tmp_path), replace(states[0], checkpoint="/c", batches=(BATCH,)))
    for said, of in ((ids[0], ids[:1]), (states[0].name, ids)):
        found = catalog.sql(f"DESCRIBE JOB '{said}'").rows
        assert found.column("job_id").to_pylist() == of
    last = found.to_pylist()[0]
    assert (last["checkpoint"], last["batch_id"], last["rows_in"], last["rows_out"]) == ("/c", 7, 3, None)
    assert (last["batch_time"].microsecond, last["duration_ms"]) == (1000, 40)
    with pytest.raises(ConfigurationError, match="must be a job of this id or name; jobs are "):
        catalog.sql("DESCRIBE JOB 'nobody'")
    assert catalog.sql(STOP.format(ids[3])).note == "has failed before"
    with pytest.raises(ConfigurationError, match=r"its driver h:1 was last heard of at .* stop it there"):
        catalog.sql(STOP.format(ids[1]))
    with pytest.raises(ConfigurationError, match=f"there is none; those that run are {ids[0]}"):
        catalog.sql(STOP.format(f"f{ID[1:]}"))
    monkeypatch.setattr(jobs, "_STOP_PATIENCE_S", 0.0)
    assert "is asked to stop it, and has not yet" in catalog.sql(STOP.format(states[0].name)).note
    assert query_records.asked_to_stop(str(tmp_path)) == {ids[0]: RUN}
    query_records.write(str(tmp_path), replace(states[0], name="nightly: orders"))
    assert catalog.sql("DESCRIBE JOB 'nightly'").rows.column("job_id").to_pylist() == ids[:1]
    assert "is asked to stop it, and has not yet" in catalog.sql(STOP.format("nightly")).note
    query_records.write(str(tmp_path), record(id=ids[1], started_ms=1, heard_ms=now, name="nightly: sales"))
    with pytest.raises(ConfigurationError, match=rf"one job must be called so, got {ids[0]} \(nightly: ord"):
        catalog.sql(STOP.format("nightly"))
    assert "is asked to stop it, and has not yet" in catalog.sql(STOP.format(ids[0])).note
    assert query_records.asked_to_stop(str(tmp_path)) == {ids[0]: RUN}


@pytest.mark.spark
def test_a_driver_stops_the_query_that_another_process_asks_it_to_stop(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_recorder, "HEARTBEAT_S", 0.2)
    catalog = Catalog(tmp_path)
    recorder = catalog.record_queries(spark)
    try:
        rate = spark.readStream.format("rate").load().writeStream.format("noop")
        one, two = rate.queryName("one").start(), rate.queryName("two").start()
        found = {row["job_name"]: row for row in catalog.sql("SHOW JOBS", spark).rows.to_pylist()}
        assert {name: found[name]["status"] for name in ("one", "two")} == {
            "one": "running",
            "two": "running",
        }
        deadline = time.monotonic() + 60
        while len(read_all(str(tmp_path)).queries) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        folder = tmp_path / query_records.FOLDER
        (folder / f"{two.id}.stop").write_text('{"format": 1, "run": "an earlier one"}')
        (folder / f"{ID}.stop").write_text("damaged")
        program = (
            f"from upsert import Catalog; print(Catalog({str(tmp_path)!r}).sql(\"STOP JOB '{one.id}'\").note)"
        )
        told = subprocess.run(
            forked_program("-c", program), capture_output=True, text=True, timeout=120, check=True
        )
        assert told.stdout.startswith("stopped; the same statement continues it")
        assert (one.isActive, two.isActive) == (False, True)
        assert sorted(path.name for path in folder.glob("*.stop")) == [f"{ID}.stop"]
        assert catalog.sql(STOP.format(two.id), spark).note.startswith("stopped")
        assert not two.isActive
    finally:
        for query in spark.streams.active:
            query.stop()
        recorder.close()
