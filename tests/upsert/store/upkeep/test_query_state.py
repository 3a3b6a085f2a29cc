"""What queries leave is deleted as a whole, whatever dies meanwhile."""

from pathlib import Path
from uuid import UUID

import pyarrow as pa

from tests.upsert.store.disk import KILLED, run
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.upkeep.query_state import FORGOTTEN, forget_queries

SCHEMA = TableSchema.of({"id": pa.int64()}, ["id"])
LATER_S = 1e10


def test_after_a_crash_a_query_has_nothing_and_the_next_call_deletes_what_is_left(tmp_path: Path) -> None:
    ids = [str(UUID(int=n)) for n in range(2)]
    for id in ids:
        Table.create(tmp_path / id, SCHEMA).write(pa.table({"id": [1]}))
    assert run(lambda: print(forget_queries(str(tmp_path), LATER_S, ())), FORGOTTEN) == KILLED
    dropped, left = sorted(path.name for path in tmp_path.iterdir())
    assert dropped.startswith(".dropped-")
    assert left == ids[1]
    assert forget_queries(str(tmp_path), LATER_S, ()) == [ids[1]]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_files_is_left(tmp_path: Path) -> None:
    """Who has just made it may be about to make its table."""
    (tmp_path / str(UUID(int=0))).mkdir()
    assert forget_queries(str(tmp_path), LATER_S, ()) == []
