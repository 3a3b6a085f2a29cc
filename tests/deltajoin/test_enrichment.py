"""Enrichment of a stream by what a managed table holds: the task alone, then queries."""

import pickle
import uuid
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

import upsert
from deltajoin import lookup_join
from deltajoin.enrichment import Enrichment, InSource, InTable, UpsertEnrichment
from deltajoin.errors import LookupFailedError
from deltajoin.lookup import MemoryLookup
from tests.helpers import changelog
from upsert.errors import ChangelogError, ConfigurationError, SchemaError
from upsert.lookups.options import PartialCache
from upsert.schema import Index, TableSchema
from upsert.store import Table
from upsert.store.alterations import AddIndex, DropIndex

USERS = TableSchema.of(
    {"user": pa.int64(), "region": pa.string(), "tags": pa.list_(pa.int32())}, ["user"]
).index("region")
VIEWS = TableSchema.of({"view": pa.int64(), "user": pa.int32(), "page": pa.string()}, ["view"])


@pytest.fixture
def users(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "users", USERS, {"bucket": "2"})
    tags = pa.array([[1], None, []], pa.list_(pa.int32()))
    table.write(pa.table({"user": [1, 2, 3], "region": ["Berlin", "Beijing", "Berlin"], "tags": tags}))
    return table


def enrichment(table: Table, *pairs: tuple[str, str], how: str = "inner", **more: Any) -> Enrichment:
    return Enrichment(InTable(table.path, table.uuid, **more), pairs, ("user", "region"), how)


KEYS = st.lists(st.none() | st.sampled_from(["Berlin", "Beijing", "Paris"]), max_size=8)


@given(KEYS, KEYS, st.sampled_from(["inner", "left"]), st.sampled_from(["table", "source", "cache"]))
def test_every_row_comes_with_each_of_its_matches_in_order(tmp_path_factory, stored, asked, how, looked_up):
    users = [{"user": n, "region": region, "tags": None} for n, region in enumerate(stored)]
    held = pa.Table.from_pylist(users, schema=USERS.arrow)
    rows = pa.table({"n": range(len(asked)), "place": pa.array(asked, pa.string())})
    if looked_up == "table":
        table = Table.create(tmp_path_factory.mktemp("t") / "users", USERS)
        table.write(held)
        task = enrichment(table, ("place", "region"), how=how)
    else:
        cache = PartialCache(max_keys=1, keeps_missing=len(asked) % 2 == 0) if looked_up == "cache" else None
        source = InSource(MemoryLookup(held, ["region"]), uuid.uuid4().hex, cache)
        task = Enrichment(source, (("place", "region"),), ("user", "region"), how)
    find = task.opened()
    parts = [task.enriched(find, rows.slice(at, 3)) for at in range(0, len(asked), 3)]
    found = [row for part in parts for row in part.to_pylist()]
    expected = []
    for n, place in enumerate(asked):
        matches = [(u["user"], place) for u in users if place is not None and u["region"] == place]
        expected += [(n, place, *match) for match in matches or ([(None, None)] if how == "left" else [])]
    assert Counter(tuple(row.values()) for row in found) == Counter(expected)
    assert [row["n"] for row in found] == [row[0] for row in expected]


def test_a_task_reads_one_snapshot_and_may_be_told_which(users: Table):
    before = users.snapshot().id
    users.write(pa.table({"user": [1], "region": ["Paris"], "tags": pa.nulls(1, pa.list_(pa.int32()))}))
    batch = pa.record_batch({"who": pa.array([1], pa.int64())})
    users.delete([("user", "=", 3)])
    users.alter(DropIndex("INDEX_region"), AddIndex(Index.over(["region"], unique=True)))
    in_table = partial(InTable, users.path, users.uuid)
    assert [in_table(snapshot=one).has_one_row(["region"]) for one in (None, before)] == [True, False]
    (now,) = enrichment(users, ("who", "user"))([batch])
    (then,) = pickle.loads(pickle.dumps(enrichment(users, ("who", "user"), snapshot=before)))([batch])
    assert (now["region"].to_pylist(), then["region"].to_pylist()) == (["Paris"], ["Berlin"])


def test_a_task_refuses_another_table_in_the_place_of_its_own(users: Table):
    with pytest.raises(ConfigurationError, match="replaced by another table during the query"):
        list(Enrichment(InTable(users.path, "0" * 32), (("user", "user"),), ("region",), "left")([]))


def in_source(source: MemoryLookup, **more: Any) -> Enrichment:
    return Enrichment(InSource(source, uuid.uuid4().hex, **more), (("who", "id"),), ("name",), "left")


NAMES = pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["ann", "bob"]})


def test_keys_of_another_width_match_what_equals_them() -> None:
    rows = pa.table({"who": [1, 1 + (1 << 32), None, -(1 << 40), 2]})
    task = in_source(MemoryLookup(NAMES, ["id"]))
    assert task.enriched(task.opened(), rows)["name"].to_pylist() == ["ann", None, None, None, "bob"]


def test_a_cache_spares_lookups_and_the_next_task_of_the_process_has_it() -> None:
    """One that fails is tried again, and not kept."""
    asked = list[int]()

    class Counting(MemoryLookup):
        def open(self):
            client = super().open()
            lookup = client.lookup

            async def counted(keys):
                asked.extend(keys["id"].to_pylist())
                return await lookup(keys)

            client.lookup = counted
            return client

    task = in_source(Counting(NAMES, ["id"], refused=[(3,)]), cache=PartialCache(expire_after_write_s=3600))
    for ids in ([1, 9, 1], [9, 2, 1]):
        assert len(list(task([pa.record_batch({"who": pa.array(ids, pa.int64())})]))) == 1
    assert asked == [1, 9, 2]
    for _ in range(2):
        with pytest.raises(LookupFailedError):
            list(task([pa.record_batch({"who": pa.array([3, 1], pa.int64())})]))
    assert asked == [1, 9, 2, 3, 3]


def test_a_source_that_gives_several_rows_for_a_primary_key_is_told() -> None:
    twice = pa.concat_tables([NAMES, NAMES])
    task = in_source(MemoryLookup(twice, ["id"]), unique=("id",))
    with pytest.raises(LookupFailedError, match=r"one row at most, as PRIMARY KEY \(id\) says"):
        task.enriched(task.opened(), pa.table({"who": [1]}))


def upserts(users: Table, how: str, *lines: str) -> list[tuple[Any, ...]]:
    task = UpsertEnrichment(enrichment(users, ("user_id", "user"), how=how), SEEN)
    rows = changelog(SEEN.arrow, *lines)
    return sorted(tuple(row.values()) for batch in task(rows.to_batches()) for row in batch.to_pylist())


SEEN = TableSchema.of({"view": pa.int64(), "user_id": pa.int64()}, ["view"])


def test_changes_become_one_row_a_key_which_replaces_or_deletes(users: Table):
    lines = ("+I 1 1", "-U 2 1", "+U 2 2", "-D 3 3", "-U 4 1", "+U 4 9")
    gone = [(3, None, None, None, "-D")]
    met = [(1, 1, 1, "Berlin", "+U"), (2, 2, 2, "Beijing", "+U")]
    assert upserts(users, "inner", *lines) == [*met, *gone, (4, None, None, None, "-D")]
    assert upserts(users, "left", *lines) == [*met, *gone, (4, 9, None, None, "+U")]


def test_two_rows_of_one_key_at_once_are_refused(users: Table):
    with pytest.raises(ChangelogError, match="must leave one value per key"):
        upserts(users, "left", "+I 1 1", "+I 1 2")


@pytest.mark.spark
class TestQueries:
    """Through Spark, with real streams."""

    @pytest.fixture
    def catalog(self, tmp_path: Path) -> upsert.Catalog:
        catalog = upsert.Catalog(tmp_path)
        catalog.sql(
            "CREATE TABLE views (view BIGINT, user INT, page STRING, PRIMARY KEY (view) NOT ENFORCED)"
        )
        catalog.sql(
            "CREATE TABLE seen (view BIGINT, user INT, page STRING, region STRING, tags ARRAY<INT>, "
            "PRIMARY KEY (view) NOT ENFORCED)"
        )
        return catalog

    @pytest.mark.long
    def test_a_changelog_is_enriched_into_a_sink_keyed_by_its_rows(
        self, spark: SparkSession, catalog: upsert.Catalog, users: Table, tmp_path: Path
    ) -> None:
        views = catalog.table("views")
        views.write(pa.table({"view": [1, 2, 3], "user": [1, 2, 9], "page": ["/", "/a", "/b"]}))
        changes = catalog.read_changes(spark, "views")
        joined = lookup_join(changes, users, on="user", how="left", upsert_key=["view"])
        assert joined.columns == ["view", "user", "page", "region", "tags", "_row_kind"]
        writer = catalog.write_changes(joined, "seen").option("checkpointLocation", f"{tmp_path}/checkpoint")
        query = writer.start()
        query.processAllAvailable()
        users.write(
            pa.table({"user": [1], "region": ["Rome"], "tags": pa.array([[7]], pa.list_(pa.int32()))})
        )
        views.write(changelog(VIEWS.arrow, "+U 2 1 /c", "-D 3 9 /b"))
        query.processAllAvailable()
        query.stop()
        found = catalog.table("seen").snapshot().scan().sort_by("view").to_pylist()
        assert [tuple(row.values()) for row in found] == [
            (1, 1, "/", "Berlin", [1]),  # came before the user moved
            (2, 1, "/c", "Rome", [7]),
        ]

    def test_a_stream_that_only_grows_keeps_its_columns(self, spark: SparkSession, users: Table) -> None:
        views = self.rows(spark)
        inner = lookup_join(views, users, on=[("who", "user")], select=iter(["region"]))
        assert sorted(map(tuple, inner.collect())) == [(1, "/", "Berlin"), (1, "/a", "Berlin")]
        where = [("region", "=", "Rome")]
        none = lookup_join(views, users.path, on=[("who", "user")], how="left", select=["user"], where=where)
        assert {row["user"] for row in none.collect()} == {None}

    def rows(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame([(1, "/"), (None, "/x"), (1, "/a"), (8, "/b")], "who INT, page STRING")

    def test_what_could_not_work_is_refused_before_it_runs(
        self, spark: SparkSession, catalog: upsert.Catalog, users: Table
    ) -> None:
        views, changes = self.rows(spark), catalog.read_changes(spark, "views")
        with pytest.raises(ConfigurationError, match="must be one of inner, left, got 'full'"):
            lookup_join(views, users, on="user", how="full")
        with pytest.raises(SchemaError, match="on must name columns of the stream, got 'user'"):
            lookup_join(views, users, on="user")
        with pytest.raises(SchemaError, match=r"create it with INDEX \(tags\)|needs an index"):
            lookup_join(views, users, on=[("page", "tags")])
        with pytest.raises(SchemaError, match="each column once, got 'user' twice"):
            lookup_join(changes, users, on="user", select=["user"], upsert_key=["view"])
        with pytest.raises(
            ConfigurationError, match="would look up another version of the table than its insert; give"
        ):
            lookup_join(changes, users, on="user")
        with pytest.raises(ConfigurationError, match=r"one match at most, got a lookup by \(region\)"):
            lookup_join(changes, users, on=[("page", "region")], select=["tags"], upsert_key=["view"])
        with pytest.raises(ConfigurationError, match="upsert_key is for changelogs"):
            lookup_join(views, users, on=[("who", "user")], upsert_key=["who"])
        source = MemoryLookup(pa.table({"user": [1], "region": ["Berlin"]}), ["user"])
        for looked_up in (users, source):
            with pytest.raises(SchemaError, match="which is BIGINT: column 'page' of the stream must"):
                lookup_join(views, looked_up, on=[("page", "user")], select=["region"])
        with pytest.raises(SchemaError, match=r"select must be a list of names, got 'region'; write"):
            lookup_join(views, users, on=[("who", "user")], select="region")
