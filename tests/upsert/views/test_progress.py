"""How far a view is behind a table: versions, rows and seconds, also when some have expired."""

from pathlib import Path

import pyarrow as pa
import pytest

from upsert import Table
from upsert.schema import TableSchema
from upsert.store import paths
from upsert.views.progress import Lag, lag_behind


@pytest.fixture
def table(tmp_path: Path) -> Table:
    schema = TableSchema.of({"id": pa.int64()}, primary_key=["id"])
    return Table.create(tmp_path / "t", schema, {"bucket": "1"})


def seconds_of(table: Table, id: int) -> float:
    return table.snapshot(id).info.time_ms / 1000


def test_the_lag_is_what_commits_have_written_since(table: Table) -> None:
    assert lag_behind(table, 0) == Lag(0, 0, 0.0)
    for rows in ([1, 2, 3], [4], [5, 6]):
        table.write(pa.table({"id": rows}))
    table.alter()  # nothing
    table.delete([("id", "=", 1)])
    first, second = seconds_of(table, 1), seconds_of(table, 2)
    assert lag_behind(table, 0, first + 2) == Lag(4, 7, 2.0)
    assert lag_behind(table, 1, second + 0.5) == Lag(3, 4, 0.5)
    assert lag_behind(table, 1, second - 100) == Lag(3, 4, 0.0)  # clocks of two machines
    head = table.snapshot().info.data_version
    assert lag_behind(table, head) == Lag(0, 0, 0.0)
    table.compact()
    assert lag_behind(table, head) == Lag(0, 0, 0.0)


def test_of_expired_commits_it_is_known_that_there_were_some(table: Table) -> None:
    for id in range(5):
        table.write(pa.table({"id": [id]}))
    table.expire(keep=2)
    assert lag_behind(table, 3, seconds_of(table, 4)) == Lag(2, 2, 0.0)
    assert lag_behind(table, 1, seconds_of(table, 4)) == Lag(2, 2, 0.0, is_least=True)


def test_only_what_the_view_lacks_is_read(table: Table) -> None:
    for id in range(5):
        table.write(pa.table({"id": [id]}))
    Path(table.path, paths.snapshot_file(2)).unlink()
    table.published = table.published.reread()
    assert lag_behind(table, 3, seconds_of(table, 4)) == Lag(2, 2, 0.0)
