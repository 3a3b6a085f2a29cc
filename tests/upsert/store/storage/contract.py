"""What is asked of every store that tables may lie in, and the table that the tests of each use."""

import os
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.upsert.store.disk import assert_nothing_is_left_over
from tests.upsert.store.samples import ids_of
from upsert.errors import TableExistsError, TableNotFoundError
from upsert.schema import TableSchema
from upsert.store import Table, paths
from upsert.store.storage import delete_each, put_if_absent, read_each, storage_of

SCHEMA = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"])
WRITERS = 8


def rows(*ids: int, name: str = "a") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array([name] * len(ids), pa.string())})


def assert_one_of_eight_writers_of_a_name_wins(uri: str, races: int) -> None:
    """All put their own content under the same name at the same moment, again and again."""
    folder, start_together, won = paths.table_folder(uri), threading.Barrier(WRITERS), list[str]()

    def put(writer: int) -> None:
        for race in range(races):
            start_together.wait()
            if put_if_absent(f"{folder}/{race}", f"writer {writer}".encode()):
                won.append(f"{race}: writer {writer}")

    threads = [threading.Thread(target=put, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    storage = storage_of(folder)
    read = storage.read
    assert sorted(won) == sorted(f"{race}: {read(f'{folder}/{race}').decode()}" for race in range(races))
    assert len(storage.names(folder)) == races
    files = [f"{folder}/{race}" for race in reversed(range(races))]
    assert read_each(storage, files) == [read(file) for file in files]
    with pytest.raises(FileNotFoundError, match="missing-1"):
        read_each(storage, [files[0], f"{folder}/missing-1", f"{folder}/missing-2", *files])
    calls: list[None] = []
    delete_each(storage, [f"{folder}/missing-1", *files[1:]], lambda: calls.append(None))
    assert (len(calls), storage.names(folder)) == (races, [os.path.basename(files[0])])


def assert_a_table_lives_there(new_folder: Callable[[], str]) -> Table:
    """A table is written, read, tagged, compacted, expired and cleaned in the first of two new folders."""
    table = Table.create(new_folder(), SCHEMA)
    for number in range(3):
        table.write(rows(number, number + 1, name=f"commit {number}"))
    assert table.changes(0, 3).num_rows == 4
    table.tag("early", 2)
    assert table.compact() is not None or table.snapshot().id > 3
    assert table.expire(keep=1) > 0
    opened = Table.open(table.path)
    assert ids_of(opened) == list(range(4))
    found = opened.snapshot().lookup(["id"], pa.table({"id": [3, 9]})).to_pylist()
    assert found == [{"id": 3, "name": "commit 2"}]
    assert sorted(opened.snapshot("early").scan()["id"].to_pylist()) == [0, 1, 2]
    assert opened.check() == ()
    opened.clean(older_than_s=0)
    assert_nothing_is_left_over(opened)
    with pytest.raises(TableExistsError):
        Table.create(table.path, SCHEMA)
    with pytest.raises(TableNotFoundError):
        Table.open(new_folder())
    return opened
