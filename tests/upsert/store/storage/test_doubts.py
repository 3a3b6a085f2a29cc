"""Stores that fail while a name is published: nobody may call that a failure, or see half of a file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pytest

from tests.file_lock import FileLock
from upsert.errors import ConfigurationError, UnknownOutcomeError
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.storage import locked
from upsert.store.storage.s3 import S3Location, S3Storage, UnansweredError

SCHEMA = TableSchema.of({"id": pa.int64()}, primary_key=["id"])


def test_rights_that_end_after_a_put_without_an_answer_leave_it_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be carried out yet: whoever took it for refused would delete the rows of a commit."""
    storage = S3Storage(S3Location("bucket"), sleep=lambda _: None)
    answers: Iterator[Exception] = iter([UnansweredError(5, "no answer"), *[ConfigurationError("403")] * 99])

    def call(*_: Any, **__: Any) -> None:
        raise next(answers)

    monkeypatch.setattr(storage, "_call", call)
    with pytest.raises(UnknownOutcomeError, match="got no answer"):
        storage.put_if_absent("s3://bucket/t/snapshot-1", b"rows")


class Failing:
    """A file system of this machine that fails in the middle of the next snapshot, as it is told."""

    def __init__(self, folder: Path) -> None:
        self.failure: BaseException | None = None
        self._system = pyarrow.fs.SubTreeFileSystem(str(folder), pyarrow.fs.LocalFileSystem())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def open_output_stream(self, path: str) -> Any:
        out = self._system.open_output_stream(path)
        if self.failure is not None and "snapshot-" in path:
            out.write(b"{")
            out.close()
            raise self.failure
        return out


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failing:
    system = Failing(tmp_path)
    monkeypatch.setattr(locked, "file_system", lambda _: system)
    monkeypatch.setenv(locked.VARIABLE, "tests.file_lock:FileLock")
    FileLock.taken.clear()
    return system


@pytest.mark.parametrize(
    ("failure", "raised"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (OSError("broken pipe"), UnknownOutcomeError)],
    ids=["killed", "no answer"],
)
def test_a_name_appears_with_all_of_its_content(
    system: Failing, failure: BaseException, raised: type[BaseException]
) -> None:
    """Also where a file is seen while it is being written."""
    table = Table.create("abfs://container@account/t", SCHEMA)
    table.write(pa.table({"id": [1]}))
    system.failure = failure
    with pytest.raises(raised):
        table.write(pa.table({"id": [2]}))
    system.failure = None
    opened = Table.open(table.path)
    assert opened.snapshot().id == 1
    opened.write(pa.table({"id": [3]}))
    assert opened.clean(older_than_s=0) > 0
    assert opened.check() == ()
    assert sorted(opened.snapshot().scan()["id"].to_pylist()) == [1, 3]


@pytest.mark.parametrize(
    "path", ["abfs://account:s3cret@host/container/t", "gs://bucket/t?client_secret=s3cret"]
)
def test_a_path_with_a_secret_is_refused_and_not_shown(system: Failing, path: str) -> None:
    with pytest.raises(ConfigurationError, match="credentials come from the environment") as raised:
        Table.create(path, SCHEMA)
    assert "s3cret" not in str(raised.value)
