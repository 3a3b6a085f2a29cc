"""Columns called as Spark allows it, however they are used: each way takes all names at once."""

import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import deltajoin
import planner
import upsert
from deltajoin.lookup import MemoryLookup
from tests.local_postgres import LocalPostgres
from upsert.catalog.catalog import Catalog
from upsert.postgres.types import quoted as quoted_there
from upsert.types import quoted

pytestmark = pytest.mark.spark

NAMES = ("a.b", "c`d", "e f", "Upper", "😀", "1a", "it's", 'say "so"', "k$", "{n}", "50%", "<t>", "*")
KEYS = tuple(f"{name} k" for name in NAMES)
ALL = (*KEYS, *NAMES)
N = len(NAMES)


def listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def row(key: int, value: int | None) -> tuple[int | None, ...]:
    return (key,) * N + (value,) * N


def named(*rows: tuple[int, int | None]) -> pa.Table:
    """Rows with these values under the keys, and under the other names."""
    values = pa.array([value for _, value in rows], pa.int64())
    keys = pa.array([key for key, _ in rows], pa.int64())
    return pa.table([keys] * N + [values] * N, names=list(ALL))


def stream(spark: SparkSession, folder: Path, rows: pa.Table, *more: str) -> DataFrame:
    """A stream of some rows, with ``more`` computed columns."""
    plain = rows.rename_columns([f"c{place}" for place in range(rows.num_columns)])
    place = str(folder / uuid.uuid4().hex)
    spark.createDataFrame(plain).coalesce(1).write.parquet(place)
    found = spark.readStream.schema(spark.read.parquet(place).schema).parquet(place)
    names = [f"c{place} AS {quoted(name)}" for place, name in enumerate(rows.column_names)]
    return found.selectExpr(*names, *more)


def collected(df: DataFrame, folder: Path) -> list[tuple[object, ...]]:
    """What a stream gives, in order."""
    rows: list[tuple[object, ...]] = []

    def collect(batch: DataFrame, _: int) -> None:
        assert batch.columns == df.columns
        rows.extend(map(tuple, batch.collect()))

    writer = df.writeStream.foreachBatch(collect).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / uuid.uuid4().hex)).start().awaitTermination()
    return sorted(rows, key=repr)


def as_pairs(left: Sequence[str], right: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(left, right, strict=True))


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """Tables ``t`` and ``u`` with all names, keys of ``u`` are among the values of ``t``."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    for table in "tu":
        catalog.sql(f"CREATE TABLE {table} ({columns()}, INDEX ({listed(NAMES)}))")
    catalog.table("t").write(named((1, 10), (2, 20)))
    catalog.table("u").write(named((10, 5), (30, 6)))
    return catalog


def columns() -> str:
    declared = ", ".join(f"{quoted(name)} BIGINT" for name in ALL)
    return f"{declared}, PRIMARY KEY ({listed(KEYS)}) NOT ENFORCED"


def stored(catalog: Catalog, name: str) -> list[tuple[object, ...]]:
    return sorted(
        (tuple(row.values()) for row in catalog.table(name).snapshot().scan().to_pylist()), key=repr
    )


def test_rows_are_changed_without_spark(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    same_key = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in KEYS)
    catalog.sql(f"INSERT INTO t ({listed(ALL)}) VALUES {row(3, 40)}, {row(30, 50)}")
    catalog.sql(f"UPDATE t SET {quoted('a.b')} = {quoted('c`d')} + 1L WHERE {quoted('a.b k')} = 1")
    catalog.sql(
        f"MERGE INTO t USING u AS s ON {same_key} WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    catalog.sql("DELETE FROM t WHERE " + " AND ".join(f"{quoted(name)} = 40" for name in NAMES))
    updated = (1,) * N + (11,) + (10,) * (N - 1)
    assert stored(catalog, "t") == [updated, row(10, 5), row(2, 20), row(30, 6)]
    (made,) = catalog.sql("SHOW CREATE TABLE t").rows.to_pylist()
    catalog.sql("DROP TABLE t")
    catalog.sql(*made.values())
    assert catalog.table("t").schema.names == ALL


def test_a_join_is_followed_by_a_stream_and_by_a_view(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    taken = [*(f"t.{quoted(name)}" for name in KEYS), *(f"u.{quoted(name)}" for name in NAMES)]
    on = " AND ".join(f"t.{quoted(name)} = u.{quoted(key)}" for name, key in as_pairs(NAMES, KEYS))
    query = f"SELECT {', '.join(taken)} FROM t JOIN u ON {on} WHERE t.{quoted('a.b')} > 0"
    catalog.sql(f"CREATE MATERIALIZED VIEW v PRIMARY KEY ({listed(KEYS)}) AS {query}", spark)
    catalog.sql(f"CREATE TABLE s ({columns()})")
    catalog.sql(f"SET 'checkpoint.location' = '{tmp_path}/checkpoints'")
    catalog.sql("SET 'execution.trigger' = 'available-now'")
    for expected in ([row(1, 5)], [row(2, 7)]):
        catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
        catalog.sql(f"INSERT INTO s {query}", spark).await_termination()
        catalog.sql("SET 'execution.runtime-mode' = 'batch'")
        catalog.sql("REFRESH MATERIALIZED VIEW v", spark)
        assert stored(catalog, "s") == stored(catalog, "v") == expected
        catalog.table("u").write(named((20, 7)))
        catalog.sql(f"DELETE FROM t WHERE {quoted('c`d k')} = 1")


def test_rows_are_normalized(spark: SparkSession, tmp_path: Path) -> None:
    given = stream(spark, tmp_path, named((1, 10), (2, 20), (1, 11)))
    found = upsert.normalize(given, key=KEYS, order_by=NAMES, buckets=2)
    kinds = [(*row(1, 10), "+I"), (*row(1, 10), "-U"), (*row(1, 11), "+U"), (*row(2, 20), "+I")]
    assert collected(planner.optimize(found), tmp_path) == kinds


def test_rows_look_rows_up(spark: SparkSession, catalog: Catalog, tmp_path: Path) -> None:
    given = stream(spark, tmp_path, named((1, 10), (2, 20))).select(*map(quoted, NAMES))
    own = given.toDF(*(f"{name} s" for name in NAMES))
    joined = deltajoin.lookup_join(own, catalog.table("u"), on=as_pairs(own.columns, KEYS), how="left")
    assert collected(joined, tmp_path) == [(10,) * N + (5,) * N, (20,) * N + (None,) * N]


def test_changes_look_rows_up(spark: SparkSession, catalog: Catalog, tmp_path: Path) -> None:
    kind = "if(c0 = 1, '+U', '-D') AS _row_kind"
    own = stream(spark, tmp_path, named((1, 10), (2, 20)), kind)
    own = own.toDF(*(f"{name} s" for name in ALL), "_row_kind")
    joined = deltajoin.lookup_join(
        own, catalog.table("u"), on=as_pairs(own.columns[N:-1], KEYS), upsert_key=own.columns[:N]
    )
    found = collected(joined, tmp_path)
    assert found == [(*row(1, 10), *(5,) * N, "+U"), (2,) * N + (None,) * 2 * N + ("-D",)]


def test_rows_meet_the_versions_of_their_time(spark: SparkSession, tmp_path: Path) -> None:
    time = "timestamp_seconds(c0 * 3600) AS `at.`"
    left = stream(spark, tmp_path, named((2, 10), (9, 30)), time).withWatermark("`at.`", "1 second")
    versions = stream(spark, tmp_path, named((1, 10), (9, 40)), time, "'+U' AS _row_kind")
    right = versions.toDF(*(f"{name} v" for name in ALL), "v.at", "_row_kind")
    joined = deltajoin.temporal_join(
        left,
        right.withWatermark("`v.at`", "1 second"),
        on=as_pairs(NAMES, [f"{name} v" for name in NAMES]),
        time="at.",
        valid_from="v.at",
        select=[f"{name} v" for name in KEYS],
    ).drop("at.")
    assert collected(joined, tmp_path) == [(*row(2, 10), *(1,) * N)]


def test_changes_on_both_sides_look_rows_up(spark: SparkSession, tmp_path: Path) -> None:
    rows = {"left": named((1, 10), (2, 20)), "right": named((10, 5), (30, 6))}
    rows["right"] = rows["right"].rename_columns([f"{name} r" for name in ALL])
    on = as_pairs(NAMES, rows["right"].column_names[:N])
    sides = {
        "left": deltajoin.with_lookup(
            stream(spark, tmp_path, rows["left"]),
            MemoryLookup(rows["left"], NAMES),
            keys=NAMES,
            upsert_key=KEYS,
            immutable=NAMES,
        ),
        "right": deltajoin.with_lookup(
            stream(spark, tmp_path, rows["right"]),
            MemoryLookup(rows["right"], rows["right"].column_names[:N]),
            keys=rows["right"].column_names[:N],
            upsert_key=rows["right"].column_names[:N],
        ),
    }
    joined = deltajoin.lookup_delta_join(sides["left"], sides["right"], on=on)
    assert collected(joined, tmp_path) == [(*row(1, 10), *row(10, 5), "+U")]


def test_rows_are_written_into_postgres(
    spark: SparkSession, catalog: Catalog, postgres: LocalPostgres, tmp_path: Path
) -> None:
    target = quoted_there('x "y`z')
    declared = ", ".join(f"{quoted_there(name)} bigint" for name in ALL)
    key = ", ".join(map(quoted_there, KEYS))
    postgres.run(f"CREATE TABLE {target} ({declared}, PRIMARY KEY ({key}))")
    catalog.sql(
        f"CREATE TABLE p ({columns()}) WITH ('connector' = 'postgres', 'url' = '{postgres.dsn}', "
        f"'table-name' = 'public.x \"y`z')"
    )
    writer = catalog.write_changes(catalog.read_changes(spark, "t"), "p").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    catalog.sql("INSERT INTO p SELECT * FROM u", spark)
    found = postgres.fetch(f"SELECT * FROM {target}")
    assert sorted(map(tuple, found)) == [row(1, 10), row(2, 20), row(10, 5), row(30, 6)]
