"""Tables and their files in a real HDFS; what its errors and lost answers mean is in test_webhdfs.py."""

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.hdfs_cluster import Hdfs, hdfs_cluster
from tests.object_store import LossyProxy
from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, finish, run, start
from tests.upsert.store.storage.contract import (
    SCHEMA,
    assert_a_table_lives_there,
    assert_one_of_eight_writers_of_a_name_wins,
    ids_of,
    rows,
)
from upsert import Catalog, failpoints
from upsert.errors import CommitConflictError, ConfigurationError
from upsert.schema import TableSchema
from upsert.store import Table, paths
from upsert.store.retention import lock
from upsert.store.storage import lease, put_if_absent, storage_of, swapping
from upsert.store.storage.hdfs import POINTS
from upsert.store.storage.hdfs_client import USER_VARIABLE
from upsert.store.storage.lease import Lease
from upsert.store.version import Version

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def hdfs() -> Iterator[Hdfs]:
    with hdfs_cluster() as cluster:
        yield cluster


@pytest.fixture
def table(hdfs: Hdfs) -> Table:
    return Table.create(hdfs.folder(), SCHEMA, {"write-only": "true"})


@pytest.fixture
def lossy(hdfs: Hdfs) -> Iterator[LossyProxy]:
    with LossyProxy(hdfs.endpoint) as proxy:
        yield proxy


def test_of_eight_writers_of_one_name_one_wins(hdfs: Hdfs) -> None:
    assert_one_of_eight_writers_of_a_name_wins(hdfs.folder(), races=20)


def test_a_table_lives_as_it_does_on_a_disk(hdfs: Hdfs) -> None:
    assert_a_table_lives_there(hdfs.folder)


@pytest.mark.parametrize("value", ["a/b", "a b", "a:b", "é+ü;x=1", "a&b#c%2Fd", "100%", "?", "'\""])
def test_partitions_may_have_any_name(hdfs: Hdfs, value: str) -> None:
    schema = TableSchema.of({"id": pa.int64(), "name": pa.string()}, partitioned_by=["name"])
    table = Table.create(hdfs.folder(), schema)
    table.write(rows(1, name=value))
    storage = storage_of(table.root)
    storage.write(f"{table.root}/{value.replace('/', '-').replace(':', '-')}/file", b"content")
    assert table.snapshot().scan().to_pylist() == [{"id": 1, "name": value}]
    assert storage.read(f"{table.root}/{value.replace('/', '-').replace(':', '-')}/file") == b"content"


def test_processes_that_commit_at_once_lose_nothing_also_when_forked_from_one_that_uses_the_client(
    table: Table,
) -> None:
    table.write(rows(100))
    children = [start(partial(commit_many, table.path, process)) for process in range(3)]
    assert finish(children) == [0, 0, 0]
    assert ids_of(table) == [*range(9), 100]
    assert [info.id for info in table.history()] == list(range(1, 11))


def commit_many(path: str, process: int) -> None:
    table = Table.open(path)
    for number in range(3):
        table.write(rows(3 * process + number), writer_id=f"writer-{process}", transaction=number + 1)


COMMIT = [
    point
    for point in failpoints.POINTS
    if point.partition(".")[0] in ("data", "commit", "publish") and point != "data.after-sidecar"
]


@pytest.mark.parametrize("point", [point for point in COMMIT if not point.startswith("publish.after")])
def test_a_writer_that_is_killed_before_the_rename_leaves_nothing_that_counts(
    table: Table, point: str
) -> None:
    assert run(lambda: void(table.write(rows(1))), point) == KILLED
    assert table.snapshot().id == 0
    table.write(rows(2))
    table.clean(older_than_s=0)
    assert ids_of(table) == [2]
    assert_nothing_is_left_over(table)


@pytest.mark.parametrize("point", ["publish.after-link", "publish.after-sync"])
def test_a_writer_that_is_killed_after_the_rename_has_committed(table: Table, point: str) -> None:
    assert run(lambda: void(table.write(rows(1))), point) == KILLED
    assert ids_of(table) == [1]


def void(_: object) -> None:
    """For a call whose result nobody wants."""


@pytest.mark.parametrize("number", range(6))
def test_a_commit_of_which_a_rename_is_not_answered_counts_once(
    hdfs: Hdfs, lossy: LossyProxy, number: int
) -> None:
    """Whichever it is: of rows, of the manifest, of the snapshot."""
    table = Table.create(hdfs.folder(lossy.endpoint), SCHEMA, {"write-only": "true"})
    lossy.lose = ("op=RENAME", paths.snapshot_file(1), "op=CREATE", "op=DELETE", "op=OPEN", "op=LISTSTATUS")[
        number
    ]
    assert table.write(rows(1)).id == 1
    opened = Table.open(table.path)
    assert [info.id for info in opened.history()] == [1]
    assert ids_of(opened) == [1]


def test_a_large_file_arrives_whole(table: Table) -> None:
    content, storage = bytes(range(256)) * (20 << 12), storage_of(table.root)
    path = f"{table.root}/large"
    with storage.new_file(path) as local, open(local, "wb") as file:
        file.write(content)
    assert storage.read(path) == content
    assert storage.mapped(path, lambda local: open(local, "rb").read()) == content  # noqa: SIM115
    failing = f"{table.root}/failing"
    with pytest.raises(RuntimeError), storage.new_file(failing):
        raise RuntimeError
    assert not storage.exists(failing)
    storage.write(f"{table.root}/empty", b"")
    assert storage.read(f"{table.root}/empty") == b""


class TestLifetime:
    """Who decides how long snapshots live does so one at a time, and who stalled is stopped."""

    def test_a_living_holder_is_waited_for(self, table: Table) -> None:
        table.write(rows(1))
        with (
            lock.lifetime_lock(table.published),
            pytest.raises(CommitConflictError, match="must become free"),
            lock.lifetime_lock(table.published, give_up_after_s=0),
        ):
            pass
        assert table.hold("reader", Version.complete(1), 60).name == "reader"

    def test_a_killed_holder_is_passed_over(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(2):
            table.write(rows(number))
        assert run(lambda: void(table.expire(keep=1)), "expire.after-publish") == KILLED
        assert Lease.take(storage_of(table.root), f"{table.root}/{paths.LIFETIME_LOCK}") is None
        monkeypatch.setattr(lease, "LEASE_S", 0.0)
        assert table.expire(keep=1) > 0
        assert ids_of(table) == [0, 1]


def test_who_may_not_write_is_told_so(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(USER_VARIABLE, "bob")
    with pytest.raises(
        ConfigurationError, match=r"must allow user 'bob' what is asked, got 'Permission denied"
    ):
        Table.create(hdfs.folder().replace("/tests/", "/"), SCHEMA)


def test_a_catalog_may_lie_there(hdfs: Hdfs) -> None:
    catalog = Catalog(hdfs.warehouse)
    for _ in range(2):
        catalog.sql("CREATE TABLE fruit (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
        fruit = catalog.table("fruit")
        fruit.write(rows(1, 2))
        assert fruit.snapshot().scan().num_rows == 2
        assert catalog.tables() == ("fruit",)
        catalog.sql("DROP TABLE fruit")
        assert catalog.tables() == ()


@pytest.mark.spark
def test_queries_write_and_read_there(hdfs: Hdfs, spark: SparkSession) -> None:
    """Tasks are other processes, which make connections of their own."""
    catalog = Catalog(hdfs.warehouse)
    catalog.sql(
        "CREATE TABLE fruit (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '2')"
    )
    catalog.table("fruit").write(rows(*range(1000)))
    catalog.sql("CREATE TABLE some AS SELECT id, name FROM fruit WHERE id < 10", spark=spark)
    catalog.sql("INSERT INTO some SELECT id, 'b' FROM fruit WHERE id > 7 AND id < 20", spark=spark)
    assert sorted(catalog.table("some").snapshot().scan()["id"].to_pylist()).count(9) == 2
    catalog.sql("CREATE OR REPLACE TABLE some AS SELECT id FROM fruit WHERE id > 998", spark=spark)
    assert catalog.table("some").snapshot().scan().to_pylist() == [{"id": 999}]
    catalog.sql("DROP TABLE some")
    assert catalog.tables() == ("fruit",)
    found = catalog.sql("SELECT count(*) AS n FROM fruit", spark=spark)
    assert found.rows.to_pylist() == [{"n": 1000}]


def append(path: str, mark: bytes) -> bool:
    """Whether this has added its mark to what it saw."""
    storage = swapping(path)
    seen = storage.versioned(path)
    assert seen is not None
    return storage.swap(path, seen.content + mark, seen)


def append_many(path: str, process: int) -> None:
    for number in range(10):
        while not append(path, b"(%d.%d)" % (process, number)):
            pass


def test_of_many_who_replace_what_they_saw_nobody_is_lost(hdfs: Hdfs) -> None:
    path = f"{paths.table_folder(hdfs.folder())}/name"
    assert put_if_absent(path, b"")
    children = [start(partial(append_many, path, process)) for process in range(4)]
    assert finish(children) == [0] * 4
    expected = [b"%d.%d" % (process, number) for process in range(4) for number in range(10)]
    assert sorted(storage_of(path).read(path)[1:-1].split(b")(")) == expected
    assert storage_of(path).names(path.rpartition("/")[0]) == ["name"]


@pytest.mark.parametrize("point", POINTS)
def test_who_is_killed_while_it_replaces_keeps_nobody_off(hdfs: Hdfs, point: str) -> None:
    path = f"{paths.table_folder(hdfs.folder())}/name"
    assert put_if_absent(path, b"")
    assert run(lambda: void(append(path, b"(dead)")), point) == KILLED
    while not append(path, b"(next)"):
        pass
    assert storage_of(path).read(path) == b"(dead)(next)"


@pytest.mark.parametrize("operation", ["op=RENAME", "renameoptions=NONE", "op=CREATE", "op=DELETE"])
def test_a_swap_whose_answer_is_lost_counts_once(hdfs: Hdfs, lossy: LossyProxy, operation: str) -> None:
    path = f"{paths.table_folder(hdfs.folder(lossy.endpoint))}/name"
    assert put_if_absent(path, b"")
    storage_of(path).prepare(path.rpartition("/")[0])
    lossy.lose = operation
    assert append(path, b"(own)")
    assert len(lossy.lost) == 1
    assert storage_of(path).read(path) == b"(own)"
