"""METADATA columns of managed tables: how they are declared, and what every kind of read puts into them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Frame, Rows
from upsert.errors import SchemaError

READINGS = """
    CREATE TABLE readings (
        version BIGINT METADATA FROM 'snapshot-id' VIRTUAL,
        id BIGINT,
        `bucket` INT METADATA,
        at TIMESTAMP_NTZ METADATA FROM 'commit-timestamp',
        ms BIGINT METADATA FROM 'commit-timestamp',
        v STRING,
        seq BIGINT METADATA FROM 'sequence-number' COMMENT 'who wrote it',
        PRIMARY KEY (id) NOT ENFORCED
    ) WITH ('bucket' = '2', 'num-sorted-run.compaction-trigger' = '50')"""


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "warehouse", optimize=planner.optimize)


class TestDeclaration:
    def test_columns_are_no_part_of_what_is_stored_and_show_as_they_were_declared(
        self, catalog: Catalog
    ) -> None:
        catalog.sql(READINGS)
        assert catalog.schema("readings").names == ("id", "v")
        shown = catalog.sql("SHOW CREATE TABLE readings")
        assert isinstance(shown, Rows)
        text = shown.rows.column(0)[0].as_py()
        catalog.sql("DROP TABLE readings")
        catalog.sql(text)
        again = catalog.sql("SHOW CREATE TABLE readings")
        assert isinstance(again, Rows)
        assert again.rows == shown.rows
        described = catalog.sql("DESCRIBE readings")
        assert isinstance(described, Rows)
        rows = {row["name"]: row for row in described.rows.to_pylist()}
        assert list(rows) == ["version", "id", "bucket", "at", "ms", "v", "seq"]
        assert rows["seq"]["extras"] == "METADATA FROM 'sequence-number' VIRTUAL"
        assert (rows["seq"]["type"], rows["seq"]["comment"]) == ("BIGINT", "who wrote it")

    @pytest.mark.parametrize(
        ("elements", "message"),
        [
            (
                "id INT, o BIGINT METADATA FROM 'offset'",
                "unknown metadata key 'offset'; keys are snapshot-id",
            ),
            ("id INT, o DATE METADATA FROM 'bucket'", "which cannot be cast to DATE; declare it as INT"),
            ("id INT, s BIGINT METADATA FROM 'sequence-number'", "needs a PRIMARY KEY"),
            (
                "id INT, a AS s + 1, s BIGINT METADATA FROM 'snapshot-id'",
                "column 'a' must be computed from stored columns",
            ),
        ],
    )
    def test_what_the_store_cannot_tell_is_refused(
        self, catalog: Catalog, elements: str, message: str
    ) -> None:
        with pytest.raises(SchemaError) as error:
            catalog.sql(f"CREATE TABLE t ({elements})")
        assert message in str(error.value)


@pytest.mark.spark
class TestReading:
    def rows(self, catalog: Catalog, spark: SparkSession, text: str) -> list[tuple[Any, ...]]:
        result = catalog.sql(text, spark)
        assert isinstance(result, Frame)
        return [tuple(row.values()) for row in result.rows.to_pylist()]

    def test_batch_has_those_of_the_state_it_reads_until_a_compaction_hides_who_wrote_what(
        self, catalog: Catalog, spark: SparkSession
    ) -> None:
        catalog.sql(READINGS)
        table = catalog.table("readings")
        table.write(pa.table({"id": [1, 2, 3, 4], "v": ["a", "b", "c", "d"]}))
        table.write(pa.table({"id": [2, 4], "v": ["B", "D"]}))
        table.delete([("id", "=", 3)])
        buckets = {
            id: bucket
            for (partition, bucket) in table.snapshot(1).files.groups
            for id in table.snapshot(1).scan(["id"], buckets=[(partition, bucket)])["id"].to_pylist()
        }
        found = self.rows(catalog, spark, "SELECT id, version, bucket, seq FROM readings ORDER BY id")
        assert found == [(1, 3, buckets[1], 1), (2, 3, buckets[2], 2), (4, 3, buckets[4], 2)]
        first, last = table.history()[0], table.snapshot().info
        old = "readings FOR SYSTEM_VERSION AS OF 1"
        assert self.rows(catalog, spark, f"SELECT * FROM {old} WHERE id = 3 AND seq = 1") == [
            (1, 3, buckets[3], *self.times(first.time_ms), "c", 1)
        ]
        # a predicate on a METADATA column is not for the store, which would look for such a column
        assert self.rows(catalog, spark, "SELECT count(*) FROM readings WHERE version = 3 AND id < 3") == [
            (2,)
        ]
        table.compact()
        assert self.rows(catalog, spark, "SELECT DISTINCT version, ms FROM readings") == [(3, last.time_ms)]
        with pytest.raises(Exception, match="is known until its file is compacted"):
            self.rows(catalog, spark, "SELECT seq FROM readings")

    def times(self, time_ms: int) -> tuple[Any, int]:
        return pa.scalar(time_ms * 1000, pa.int64()).cast(pa.timestamp("us")).as_py(), time_ms

    def test_change_has_those_of_its_commit(self, catalog: Catalog, spark: SparkSession) -> None:
        catalog.sql(READINGS)
        catalog.sql(
            "CREATE TABLE log (id BIGINT, v STRING, version BIGINT, ms BIGINT, PRIMARY KEY (id) NOT ENFORCED)"
        )
        table = catalog.table("readings")
        for ids in ([1, 2, 3], [2], [3], [4]):
            table.write(pa.table({"id": ids, "v": [str(id) for id in ids]}))
            if ids == [2]:
                table.write(pa.table({"id": [1], "v": ["one"]}))
        catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
        catalog.sql("SET 'pipeline.name' = 'copy'")
        for text, message in {
            "SELECT version, count(*) FROM readings GROUP BY version": "line 1, column 31",
            "CREATE TABLE u AS SELECT version, id FROM readings": "so a PRIMARY KEY must find the row",
            # another number of buckets may bring the row elsewhere before it is deleted
            "CREATE TABLE u AS SELECT bucket, id FROM readings": "so a PRIMARY KEY must find the row",
            "SELECT r.version FROM readings r JOIN log USING (id)": "has another one; select and filter it",
        }.items():
            with pytest.raises(SchemaError) as error:
                catalog.sql(text, spark)
            assert message in str(error.value)
        running: Any = catalog.sql("INSERT INTO log SELECT id, v, version, ms FROM readings", spark)
        running.query.processAllAvailable()
        table.write(pa.table({"id": [2], "v": ["two"]}))
        table.write(pa.table({"id": [2, 4], "v": ["zwei", "vier"]}))
        running.query.processAllAvailable()
        running.query.stop()
        last = table.history()[-1]
        rows = catalog.table("log").snapshot().scan().sort_by("id").to_pylist()
        assert [(row["id"], row["version"]) for row in rows] == [(1, 5), (2, 7), (3, 5), (4, 7)]
        assert rows[3]["ms"] == last.time_ms

    def test_changes_in_two_numbers_of_buckets_have_no_bucket(
        self, catalog: Catalog, spark: SparkSession
    ) -> None:
        catalog.sql(READINGS)
        table = catalog.table("readings")
        for buckets, id in ("2", 1), ("2", 2), ("5", 3), ("5", 4):
            catalog.sql(f"ALTER TABLE readings SET ('bucket' = '{buckets}')")
            table.write(pa.table({"id": [id], "v": ["a"]}))
        first, second, _, third, fourth = (snapshot.id for snapshot in table.history())
        query = "SELECT id, bucket FROM table_changes(readings, {}, {}) ORDER BY id"
        for base, target in (first, second), (third, fourth):
            (change,) = self.rows(catalog, spark, query.format(base, target))
            state = f"readings FOR SYSTEM_VERSION AS OF {target}"
            assert [change] == self.rows(
                catalog, spark, f"SELECT id, bucket FROM {state} WHERE id = {change[0]}"
            )
        with pytest.raises(SchemaError) as error:
            self.rows(catalog, spark, query.format(first, fourth))
        assert str(error.value) == (
            "table 'readings': metadata 'bucket' must be of changes in one number of buckets, but ALTER "
            "TABLE changed it between the snapshots 1 and 5; leave the column out, or read the changes "
            "before and after it apart"
        )
        without = query.replace(", bucket", "").format(first, fourth)
        assert self.rows(catalog, spark, without) == [(2,), (3,), (4,)]
