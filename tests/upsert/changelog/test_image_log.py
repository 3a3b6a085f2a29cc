"""Images of a log: whatever is replayed, by whom and how often, the changes lead to the committed images."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import changelog
from tests.upsert.changelog.model import Log, Model, Row, by_key, logs
from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, files_on_disk, run
from upsert.changelog import image_log
from upsert.changelog.image_log import ImageLog, segments
from upsert.changelog.normalizer import Expiry, Rules
from upsert.errors import ConfigurationError, MissingStateError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.commit.staging import StagedFiles

SCHEMA = TableSchema.of({"word": pa.string(), "n": pa.int64(), "offset": pa.int64()}, primary_key=["word"])
ROWS = SCHEMA.arrow


def opened(folder: Path | str, **options: Any) -> ImageLog:
    return ImageLog.open(Path(folder) / "words-0", SCHEMA, "words-0", beginning=0, **options)


def advance(log: ImageLog, start: int, end: int, *lines: str, expiry: Expiry | None = None) -> list[Row]:
    found = log.advance(start, end, changelog(ROWS, *lines), compare=["n"], expiry=expiry)
    return [row for table in found for row in table.to_pylist()]


def rows(*lines: str) -> list[Row]:
    found: list[Row] = changelog(ROWS, *lines).to_pylist()
    return found


def table_of(folder: Path) -> Table:
    return Table.open(folder / "words-0")


def test_batches_go_on_from_each_other(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert advance(log, 0, 2, "+U a 1 0", "+U a 2 1") == rows("+I a 1 0", "-U a 1 0", "+U a 2 1")
    assert advance(log, 2, 3, "-D a NULL 2") == rows("-D a 2 1")
    assert advance(log, 3, 9, "+U b 1 3", "+U a 7 8") == rows("+I b 1 3", "+I a 7 8")


def test_a_replay_gives_the_same_rows_and_commits_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path)
    advance(log, 0, 1, "+U a 1 0", "+U c 1 0")
    lines = ("+U a 2 1", "+U b 1 2", "+U a 3 3", "-D b NULL 4", "-D c NULL 5", "-D d NULL 6")
    first = advance(log, 1, 7, *lines)
    latest = table_of(tmp_path).snapshot().id
    assert advance(opened(tmp_path), 1, 7, *lines) == first
    assert table_of(tmp_path).snapshot().id == latest
    assert advance(opened(tmp_path), 7, 8, "+U a 4 7") == rows("-U a 3 3", "+U a 4 7")


def test_an_older_batch_can_be_replayed_while_its_start_is_kept(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for start in range(5):
        advance(log, start, start + 1, f"+U a {start} {start}")
    assert advance(opened(tmp_path), 2, 3, "+U a 2 2") == rows("-U a 1 1", "+U a 2 2")


def test_a_batch_without_changes_makes_its_end_known(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert advance(log, 0, 5) == []
    assert advance(log, 5, 6, "+U a 1 5") == rows("+I a 1 5")
    assert advance(log, 6, 7, "+U a 1 6") == []
    assert advance(log, 7, 8, "+U a 2 7") == rows("-U a 1 5", "+U a 2 7")


def test_replay_after_kafka_has_compacted_records_away_leads_to_the_same_images(tmp_path: Path) -> None:
    log = opened(tmp_path)
    advance(log, 0, 2, "+U a 1 0", "+U b 1 1")
    advance(log, 2, 6, "+U a 2 2", "+U c 1 3", "-D b NULL 4", "+U c 2 5")
    # a has a newer record later on, the tombstone of b is gone, one of c is left
    replayed = advance(opened(tmp_path), 2, 6, "+U c 2 5")
    assert by_key(replayed, ["word"]) == by_key(
        rows("+I c 2 5", "-U a 1 0", "+U a 2 2", "-D b 1 1"), ["word"]
    )
    assert advance(log, 6, 7, "+U a 3 6") == rows("-U a 2 2", "+U a 3 6")


def test_replay_without_the_record_between_two_equal_ones_takes_over_their_metadata(tmp_path: Path) -> None:
    log = opened(tmp_path)
    advance(log, 0, 1, "+U a 1 0")
    advance(log, 1, 3, "+U a 2 1", "+U a 1 2")
    assert advance(opened(tmp_path), 1, 3, "+U a 1 2") == rows("-U a 1 0", "+U a 1 2")


@dataclass
class Attempt:
    """Records that find out only while they are read that another attempt is through."""

    log: ImageLog
    lines: Sequence[str]
    other: Callable[[], object]

    def records(self) -> Iterable[pa.Table]:
        yield changelog(ROWS, *self.lines)
        self.other()


def test_two_attempts_at_once_do_no_harm(tmp_path: Path) -> None:
    advance(opened(tmp_path), 0, 1, "+U a 1 0")
    faster = partial(advance, opened(tmp_path), 1, 3, "+U a 2 1", "+U a 3 2")
    slow = Attempt(opened(tmp_path), ["+U a 3 2"], faster)
    found = [row for t in slow.log.advance(1, 3, slow.records(), compare=["n"]) for row in t.to_pylist()]
    assert found == rows("-U a 1 0", "+U a 3 2")
    assert advance(opened(tmp_path), 3, 4, "+U a 4 3") == rows("-U a 3 2", "+U a 4 3")


def test_two_attempts_that_write_at_once_give_the_rows_of_the_one_that_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance(opened(tmp_path), 0, 1, "+U a 1 0")
    stage = Table.stage

    def overtaken(table: Table, *given: Any, **named: Any) -> StagedFiles:
        monkeypatch.setattr(Table, "stage", stage)
        advance(opened(tmp_path), 1, 3, "+U a 2 1", "+U a 3 2", "+U b 1 2")
        return stage(table, *given, **named)

    monkeypatch.setattr(Table, "stage", overtaken)
    found = advance(opened(tmp_path), 1, 3, "+U a 2 1")
    expected = rows("-U a 1 0", "+U a 2 1", "-U a 2 1", "+U a 3 2", "+I b 1 2")
    assert by_key(found, ["word"]) == by_key(expected, ["word"])
    assert_nothing_is_left_over(table_of(tmp_path))


def test_an_attempt_that_wakes_up_batches_later_changes_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path)

    def others() -> None:
        advance(log, 0, 1, "+U a 1 0")
        advance(log, 1, 2, "-D a NULL 1")

    zombie = Attempt(opened(tmp_path), ["+U a 1 0"], others)
    found = [row for t in zombie.log.advance(0, 1, zombie.records(), compare=["n"]) for row in t.to_pylist()]
    assert found == rows("+I a 1 0")
    assert table_of(tmp_path).snapshot().scan().num_rows == 0
    assert table_of(tmp_path).snapshot().info.writers == {"words-0": 2}


def test_images_for_an_unknown_start_are_an_error(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(
        MissingStateError, match=r"words-0.*a state at position 7 must be there, got .* up to 0"
    ):
        log.advance(7, 9, changelog(ROWS), compare=["n"])
    advance(log, 0, 5, "+U a 1 0")
    with pytest.raises(MissingStateError, match=r"restore the folder together with the checkpoint"):
        log.advance(3, 9, changelog(ROWS), compare=["n"])
    with pytest.raises(MissingStateError, match=r"from 0 to 9 must find them at 0, got 5"):
        advance(log, 0, 9, "+U a 1 0")
    with pytest.raises(MissingStateError, match=r"a state at position 4 must be there"):
        advance(log, 0, 4, "+U a 1 0")


def test_arguments_and_records_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(ConfigurationError, match="must end after its start, got 3 to 3"):
        log.advance(3, 3, [], compare=["n"])
    with pytest.raises(ConfigurationError, match="keep and drop_every at least 1, got 0, 0 and"):
        opened(tmp_path, keep=0)
    with pytest.raises(SchemaError, match="compare has unknown column 'x'"):
        log.advance(0, 1, [], compare=["x"])
    with pytest.raises(SchemaError, match="log 'words-0': PRIMARY KEY column 'word' must not be NULL"):
        advance(log, 0, 1, "+U NULL 1 0")
    other = TableSchema.of({"word": pa.string()}, primary_key=["word"])
    with pytest.raises(ConfigurationError, match="must have columns word string, PRIMARY KEY"):
        ImageLog.open(tmp_path / "words-0", other, "words-0", beginning=0)


def test_old_states_are_given_up_and_new_ones_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("upsert.changelog.image_log._SLACK", 8)
    log = opened(tmp_path, keep=3)
    for start in range(60):
        advance(log, start, start + 1, f"+U a {start} {start}")
    table = table_of(tmp_path)
    assert table.snapshot().info.oldest > 30
    assert len(files_on_disk(table)) < 100
    for start in range(57, 60):
        assert len(advance(log, start, start + 1, f"+U a {start} {start}")) == 2
    with pytest.raises(MissingStateError, match="the newest 4 are kept"):
        advance(log, 2, 3, "+U a 2 2")


def test_many_records_are_normalized_in_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_log, "_SEGMENT_ROWS", 2)
    monkeypatch.setattr(image_log, "_HELD_BYTES", 100)
    log = opened(tmp_path)
    advance(log, 0, 1, "+U z 1 0")
    lines = ["+U a 1 1", "+U b 1 2", "-D a NULL 3", "+U z 1 4", "+U b 2 5", "-D z NULL 6", "+U a 2 7"]
    found = advance(log, 1, 8, *lines)
    assert by_key(found, ["word"]) == by_key(
        rows("+I a 1 1", "+I b 1 2", "-D a 1 1", "-U b 1 2", "+U b 2 5", "-D z 1 0", "+I a 2 7"), ["word"]
    )
    left = rows("+U a 2 7", "+U b 2 5")
    assert table_of(tmp_path).snapshot().scan().sort_by("word").to_pylist() == [
        {name: value for name, value in row.items() if name != ROW_KIND_COLUMN} for row in left
    ]


def test_segments_keep_all_rows_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_log, "_SEGMENT_ROWS", 10)
    tables = [pa.table({"n": np.arange(first, last)}) for first, last in ((0, 3), (3, 3), (3, 40), (40, 41))]
    found = list(segments(tables))
    assert [n for table in found for n in table["n"].to_pylist()] == list(range(41))
    assert max(table.num_rows for table in found) <= 10


def test_expired_images_are_absent_and_dropped(tmp_path: Path) -> None:
    log, ttl = opened(tmp_path, drop_every=4), Expiry("offset", 10)
    advance(log, 0, 2, "+U a 1 0", "+U b 1 1", expiry=ttl)
    assert advance(log, 2, 3, "+U b 1 9", expiry=ttl) == rows("-U b 1 1", "+U b 1 9")
    assert table_of(tmp_path).snapshot().scan().num_rows == 2
    assert advance(log, 3, 5, "+U c 1 15", expiry=ttl) == rows("+I c 1 15")
    assert sorted(table_of(tmp_path).snapshot().scan()["word"].to_pylist()) == ["b", "c"]
    assert advance(opened(tmp_path, drop_every=4), 3, 5, "+U c 1 15", expiry=ttl) == rows("+I c 1 15")
    # without its only record the replay has no clock: what was dropped is still nothing to tell
    assert advance(opened(tmp_path, drop_every=4), 3, 5, expiry=ttl) == rows("+I c 1 15")
    assert advance(log, 5, 6, "+U a 1 16", expiry=ttl) == rows("+I a 1 16")


def test_what_is_remembered_of_deleted_rows_is_dropped_for_its_age_too(tmp_path: Path) -> None:
    log, ttl = opened(tmp_path, drop_every=4, order_by=["offset"]), Expiry("offset", 10)
    advance(log, 0, 1, "+U a 1 0", "+U b 1 0", expiry=ttl)
    advance(log, 1, 2, "-D a NULL 1", "-D b NULL 9", expiry=ttl)
    assert advance(log, 2, 5, "+U c 1 15", expiry=ttl) == rows("+I c 1 15")
    assert sorted(table_of(tmp_path).snapshot().scan()["word"].to_pylist()) == ["b", "c"]


def test_ordered_images_outlive_their_rows(tmp_path: Path) -> None:
    log = opened(tmp_path, order_by=["offset"])
    advance(log, 0, 1, "+U a 1 10", "+U b 1 10")
    assert advance(log, 1, 2, "-D a NULL 20", "-D c NULL 20") == rows("-D a 1 10")
    assert advance(log, 2, 3, "+U a 2 15", "+U c 2 15", "+U b 2 5") == []
    assert advance(opened(tmp_path, order_by=["offset"]), 3, 4, "+U a 2 25") == rows("+I a 2 25")


def test_a_replay_of_ordered_rows_may_have_lost_rows_but_not_gained_newer_ones(tmp_path: Path) -> None:
    log = opened(tmp_path, order_by=["offset"])
    advance(log, 0, 1, "+U a 1 10", "+U b 1 10", "+U c 1 10")
    first = advance(log, 1, 2, "+U a 2 20", "-D b NULL 20", "+U c 1 20")
    assert advance(log, 1, 2, "+U a 2 20", "-D b NULL 20", "+U c 1 20") == first
    assert by_key(advance(log, 1, 2), ["word"]) == by_key(first, ["word"])
    with pytest.raises(
        MissingStateError, match=r"no newer rows than at first, got one of key \{'word': 'a'\}"
    ):
        advance(log, 1, 2, "+U a 3 21")
    with pytest.raises(MissingStateError, match=r"got one of key \{'word': 'z'\}"):
        advance(log, 1, 2, "+U a 2 20", "+U z 1 5")


@dataclass
class Consumer:
    """Somebody who applies changes and knows what a row may follow."""

    key: tuple[str, ...]
    table: dict[Any, Any] = field(default_factory=dict)

    def apply(self, changes: Sequence[Row]) -> None:
        for key, rows_of_key in by_key(changes, self.key).items():
            for *row, kind in rows_of_key:
                if kind[0] == "-":
                    assert self.table.pop(key) == row
                else:
                    assert self.table.setdefault(key, row) is row


@given(logs(), st.data())
def test_any_log_with_replays_leads_to_the_newest_rows(log: Log, data: st.DataObject) -> None:
    """An attempt commits and is lost, Kafka compacts, another one counts."""
    with TemporaryDirectory() as folder:
        schema = TableSchema.of(log.schema, primary_key=log.keys)
        model, consumer = Model(Rules(log.keys, log.values)), Consumer(log.keys)
        for number, batch in enumerate(log.batches):
            state = ImageLog.open(f"{folder}/log", schema, "log", beginning=0)
            whole = log.table(batch)
            if data.draw(st.booleans(), "a first attempt is lost"):
                list(state.advance(number, number + 1, whole, compare=log.values))
                later = [row for batch in log.batches[number + 1 :] for row in batch]
                whole = whole.filter(
                    pa.array([data.draw(st.booleans()) or not _has(later, log, r) for r in batch], pa.bool_())
                )
            found = list(state.advance(number, number + 1, whole, compare=log.values))
            consumer.apply([row for table in found for row in table.to_pylist()])
            model.batch(log.table(batch).to_pylist())
            images = [{**row, ROW_KIND_COLUMN: "+I"} for row in model.images.values()]
            assert consumer.table == {key: row[0][:-1] for key, row in _lists(images, log).items()}


def _has(later: Sequence[Row], log: Log, record: Row) -> bool:
    keys = by_key([{name: row[name] for name in log.keys} for row in (*later, record)], log.keys)
    return len(by_key([record], log.keys).keys() & by_key(later, log.keys).keys()) > 0 and bool(keys)


def _lists(images: Sequence[Row], log: Log) -> dict[Any, list[Any]]:
    return {key: [list(row) for row in rows_of] for key, rows_of in by_key(images, log.keys).items()}


POINTS = (
    "data.before-file",
    "data.after-sidecar",
    "commit.before-manifest",
    "publish.before-link",
    "publish.after-link",
    "compact.after-write",
    "compact.after-publish",
    "expire.after-publish",
    "expire.after-data",
)


def records_of(batch: int) -> pa.Table:
    lines = [f"+U key{number} {batch} {batch}" for number in range(batch % 3, 12, 2)]
    return changelog(ROWS, *lines, f"-D key{batch % 12} NULL {batch}")


def live(folder: str, batches: int, done: int) -> None:
    """Run the batches from the last one that was finished; say when one is."""
    log = opened(folder, keep=1)
    for batch in range(batches):
        changes = [
            row
            for table in log.advance(batch, batch + 1, records_of(batch), compare=["n"])
            for row in table.to_pylist()
        ]
        assert changes
        os.write(done, bytes([batch + 1]))


OF_THE_LOG = ("commit.before-manifest", "publish.after-link", "compact.after-publish")
"""Moments after which a batch, whole or not, is in the log; at the others its table is as any table is."""


@pytest.mark.parametrize(
    "point",
    [point if point in OF_THE_LOG else pytest.param(point, marks=pytest.mark.long) for point in POINTS],
)
def test_killed_at(point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("upsert.changelog.image_log._SLACK", 4)
    monkeypatch.setattr("upsert.changelog.image_log._RUNS", 5)
    batches, nth = 14, {"data": 9, "commit": 9, "publish": 11}.get(point.split(".")[0], 1)
    reading, writing = os.pipe()
    assert run(lambda: live(str(tmp_path), batches, writing), f"{point}:{nth}") == KILLED
    os.close(writing)
    finished = (os.read(reading, 100) or b"\0")[-1]
    os.close(reading)
    assert 0 < finished < batches

    model, consumer = Model(Rules(("word",), ("n",))), Consumer(("word",))
    for batch in range(finished):
        consumer.apply(model.batch(records_of(batch).to_pylist()))
    log = opened(tmp_path, keep=1)
    for batch in range(finished, batches):
        found = log.advance(batch, batch + 1, records_of(batch), compare=["n"])
        consumer.apply([row for table in found for row in table.to_pylist()])
        model.batch(records_of(batch).to_pylist())
    images = [list(row.values()) for row in model.images.values()]
    assert sorted(consumer.table.values()) == sorted(images)


def test_bytes_written_by_a_batch_follow_its_changes_not_the_images(tmp_path: Path) -> None:
    """Merging aside, which is paid in the background and logarithmic; that is the store's own test."""
    written = {}
    for keys in (1_000, 50_000):
        log = ImageLog.open(tmp_path / str(keys), SCHEMA, "log", beginning=0)
        words = pa.array([f"word{number}" for number in range(keys)])
        first = pa.table({"word": words, "n": np.zeros(keys, np.int64), "offset": np.arange(keys)})
        list(log.advance(0, keys, first, compare=["n"]))
        changed = first.slice(0, 500).set_column(1, "n", pa.array(np.ones(500, np.int64)))
        list(log.advance(keys, keys + 500, changed, compare=["n"]))
        table = Table.open(tmp_path / str(keys))
        written[keys] = sum(entry.bytes for entry in table.published.delta(table.snapshot().info).added)
    assert written[50_000] <= 1.01 * written[1_000] < 50_000


class TestColumnsThatChange:
    """A table's columns are altered between two runs of a query, which remembers its images."""

    MORE = TableSchema.of(
        {"word": pa.string(), "extra": pa.string(), "n": pa.int64(), "offset": pa.int64()}, ["word"]
    )
    LESS = TableSchema.of({"word": pa.string(), "extra": pa.string(), "offset": pa.int64()}, ["word"])

    def opened(self, folder: Path, schema: TableSchema, version: int) -> ImageLog:
        return ImageLog.open(folder / "words-0", schema, "words-0", beginning=0, version=version)

    def advance(self, log: ImageLog, schema: TableSchema, start: int, end: int, *lines: str) -> list[Row]:
        compare = [name for name in schema.names if name not in ("word", "offset")]
        found = log.advance(start, end, changelog(schema.arrow, *lines), compare=compare)
        return [row for table in found for row in table.to_pylist()]

    def test_images_get_a_column_and_lose_one(self, tmp_path: Path) -> None:
        """What is added is NULL in rows that were emitted without it, also if their records have it."""
        advance(opened(tmp_path), 0, 2, "+U a 1 0", "+U b 1 1")
        log = self.opened(tmp_path, self.MORE, 1)
        assert self.advance(log, self.MORE, 2, 4, "+U a x 1 2", "+U b NULL 1 3") == [
            *changelog(self.MORE.arrow, "-U a NULL 1 0", "+U a x 1 2").to_pylist()
        ]
        log = self.opened(tmp_path, self.LESS, 2)
        found = self.advance(log, self.LESS, 4, 6, "+U a x 4", "-D b NULL 5")
        assert found == changelog(self.LESS.arrow, "-D b NULL 1").to_pylist()
        log = self.opened(tmp_path, self.MORE, 3)
        found = self.advance(log, self.MORE, 6, 7, "+U a y 7 6")
        assert found == changelog(self.MORE.arrow, "-U a x NULL 2", "+U a y 7 6").to_pylist()

    def test_a_batch_that_is_replayed_with_more_columns_leads_to_what_was_committed(
        self, tmp_path: Path
    ) -> None:
        log = opened(tmp_path)
        advance(log, 0, 1, "+U a 1 0")
        advance(log, 1, 3, "+U a 2 1", "+U b 1 2")
        log = self.opened(tmp_path, self.MORE, 1)
        held = {row["word"]: row for row in rows_of(self.MORE, "+I a NULL 1 0")}
        for row in self.advance(log, self.MORE, 1, 3, "+U a x 2 1", "+U b y 1 2"):
            kind = row.pop(ROW_KIND_COLUMN)
            if kind in ("-U", "-D"):
                assert held.pop(row["word"]) == row
            else:
                assert row["word"] not in held
                held[row["word"]] = row
        expected = rows_of(self.MORE, "+I a NULL 2 1", "+I b NULL 1 2")
        assert sorted(held.values(), key=lambda row: row["word"]) == expected
        assert self.advance(log, self.MORE, 3, 4, "-D b NULL NULL 3") == [
            *changelog(self.MORE.arrow, "-D b NULL 1 2").to_pylist()
        ]

    def test_an_attempt_with_older_columns_is_refused(self, tmp_path: Path) -> None:
        """One that was given up may still run, and would drop what the newer one has remembered."""
        advance(opened(tmp_path), 0, 1, "+U a 1 0")
        self.opened(tmp_path, self.MORE, 1)
        for schema, version in ((SCHEMA, 0), (self.LESS, 1)):
            with pytest.raises(ConfigurationError, match="must have columns"):
                self.opened(tmp_path, schema, version)

    def test_a_column_of_another_type_is_refused(self, tmp_path: Path) -> None:
        advance(opened(tmp_path), 0, 1, "+U a 1 0")
        other = TableSchema.of({"word": pa.string(), "n": pa.string(), "offset": pa.int64()}, ["word"])
        with pytest.raises(ConfigurationError, match="must have columns"):
            self.opened(tmp_path, other, 1)


def rows_of(schema: TableSchema, *lines: str) -> list[Row]:
    return [
        {name: value for name, value in row.items() if name != ROW_KIND_COLUMN}
        for row in changelog(schema.arrow, *lines).to_pylist()
    ]
