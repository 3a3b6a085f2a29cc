"""Changes into a real PostgreSQL: what it then holds, through kills and repeated micro-batches."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from tests.forked_python import forked_program
from tests.local_postgres import PASSWORD, LocalPostgres
from upsert import Catalog
from upsert.errors import (
    ChangelogError,
    ConfigurationError,
    MissingStateError,
    SchemaError,
    SinkUnavailableError,
)
from upsert.failpoints import ENVIRONMENT_VARIABLE
from upsert.postgres import sink
from upsert.postgres.table import PostgresTable
from upsert.schema import TableSchema

SCHEMA = TableSchema.of(
    {"id": pa.int64(), "part": pa.string(), "v": pa.float64()}, primary_key=["id", "part"]
)


@pytest.fixture
def target(postgres: LocalPostgres) -> Iterator[str]:
    """The name of an empty table with the columns of ``SCHEMA``."""
    name = f"sink_{next(_numbers)}"
    postgres.run(f"CREATE TABLE {name} (id bigint, part text, v float8, PRIMARY KEY (id, part))")
    yield name
    postgres.run(f"DROP TABLE IF EXISTS {name}; DROP TABLE IF EXISTS {sink.PROGRESS}")


_numbers = iter(range(1_000_000))


def declared(postgres: LocalPostgres, target: str) -> PostgresTable:
    table = PostgresTable.of("t", SCHEMA, {"url": postgres.dsn, "table-name": target})
    sink._prepare(table)
    return table


def rows_of(changes: Sequence[tuple[str, int, str, float | None]]) -> Iterator[pa.RecordBatch]:
    """Changes as a task gets them: ascending by key, in small batches."""
    ordered = sorted(changes, key=lambda change: (change[1], change[2]))
    kinds, ids, parts, values = zip(*ordered, strict=True) if ordered else ((), (), (), ())
    table = pa.table({
        "id": pa.array(ids, pa.int64()), "part": pa.array(parts, pa.string()),
        "v": pa.array(values, pa.float64()), "_row_kind": pa.array(kinds, pa.string()),
    })  # fmt: skip
    yield from table.to_batches(max_chunksize=3)


def held(postgres: LocalPostgres, target: str) -> dict[tuple[int, str], float | None]:
    return {(id_, part): v for id_, part, v in postgres.fetch(f"SELECT id, part, v FROM {target}")}


def test_random_changes_leave_what_a_dict_has(postgres: LocalPostgres, target: str) -> None:
    """Repeated and overtaken micro-batches change nothing."""
    table, random = declared(postgres, target), Random(7)
    model: dict[tuple[int, str], float | None] = {}
    for number in range(25):
        before = dict(model)
        changes: list[tuple[str, int, str, float | None]] = []
        for _ in range(random.randrange(12)):
            key = (random.randrange(6), random.choice(["", "a\tb", "\\N"]))
            if key in model:
                changes.append(("-U", *key, model.pop(key)))
            if random.random() < 0.7:
                model[key] = random.choice([None, 0.5, random.random()])
                changes.append(("+U", *key, model[key]))
        for _ in range(random.randrange(1, 3)):
            sink.write_rows(table, ("q", number), rows_of(changes))
        if before != model:
            overtaken = [("+I", 99, "late", 1.0)]
            assert sink.write_rows(table, ("q", number), rows_of(overtaken)) == 0
        assert held(postgres, target) == model


def test_two_queries_and_batches_without_a_number_do_not_hide_each_other(
    postgres: LocalPostgres, target: str
) -> None:
    table = declared(postgres, target)
    for micro_batch, id_ in ((("a", 0), 1), (("b", 0), 2), (None, 3), (None, 4), (("a", 1), 5)):
        assert sink.write_rows(table, micro_batch, rows_of([("+I", id_, "x", 1.0)])) == 1
    assert sorted(id_ for id_, _ in held(postgres, target)) == [1, 2, 3, 4, 5]


def test_a_checkpoint_that_is_older_than_the_table_is_refused(postgres: LocalPostgres, target: str) -> None:
    """Its micro-batches have the numbers of others that are there, so their rows would be left out."""
    table = declared(postgres, target)
    for number in range(3):
        sink.write_rows(table, ("q", number), rows_of([("+I", number, "x", 1.0)]))
    with pytest.raises(
        MissingStateError, match=r"micro-batch 1 must follow .*, that is 2: the checkpoint is older"
    ):
        sink.write_rows(table, ("q", 1), rows_of([("+I", 9, "x", 1.0)]))
    assert len(held(postgres, target)) == 3


def test_a_micro_batch_without_rows_counts_as_one(postgres: LocalPostgres, target: str) -> None:
    """Else the next one of an older checkpoint has the number of the last one with rows, and is left out."""
    table = declared(postgres, target)
    assert sink.write_rows(table, ("q", 0), rows_of([("+I", 0, "x", 1.0)])) == 1
    for number in (1, 2, 2):
        assert sink.write_rows(table, ("q", number), ()) == 0
    assert sink.write_rows(table, None, ()) == 0
    for number in (0, 1):
        with pytest.raises(MissingStateError, match="that is 2: the checkpoint is older than the table"):
            sink.write_rows(table, ("q", number), rows_of([("+I", 9, "x", 1.0)]))
    assert sink.write_rows(table, ("q", 3), rows_of([("+I", 3, "x", 1.0)])) == 1
    assert sorted(id_ for id_, _ in held(postgres, target)) == [0, 3]


def test_rows_that_contradict_each_other_are_refused_whole(postgres: LocalPostgres, target: str) -> None:
    table = declared(postgres, target)
    changes = [("+I", 1, "x", 1.0), ("+I", 2, "x", 1.0), ("+I", 2, "x", 2.0)]
    with pytest.raises(ChangelogError, match=r"table 't': .*sink\.materialize"):
        sink.write_rows(table, ("q", 0), rows_of(changes))
    assert held(postgres, target) == {}


SCRIPT = """
import sys, pyarrow as pa
from upsert.postgres import sink
from upsert.postgres.table import PostgresTable
from tests.upsert.postgres.test_sink import CHANGES, SCHEMA, rows_of
table = PostgresTable.of("t", SCHEMA, {"url": sys.argv[1], "table-name": sys.argv[2]})
sink.write_rows(table, ("q", 1), rows_of(CHANGES))
"""
CHANGES = [("-U", 1, "x", 1.0), ("+U", 1, "x", 2.0), ("-D", 2, "x", 1.0), ("+I", 3, "x", 3.0)]


@pytest.mark.parametrize("point", sink.POINTS)
def test_a_task_killed_anywhere_counts_once(postgres: LocalPostgres, target: str, point: str) -> None:
    """Readers see all of a micro-batch or nothing; the one that comes again completes it."""
    table = declared(postgres, target)
    before: dict[tuple[int, str], float | None] = {(1, "x"): 1.0, (2, "x"): 1.0}
    after = {(1, "x"): 2.0, (3, "x"): 3.0}
    sink.write_rows(table, ("q", 0), rows_of([("+I", *key, value) for key, value in before.items()]))
    run = forked_program("-c", SCRIPT, postgres.dsn, target)
    killed = subprocess.run(run, env={**os.environ, ENVIRONMENT_VARIABLE: point}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert held(postgres, target) == (after if point == "postgres.after-commit" else before)
    for _ in range(2):
        sink.write_rows(table, ("q", 1), rows_of(CHANGES))
        assert held(postgres, target) == after


def test_an_attempt_waits_for_another_one_of_its_micro_batch(postgres: LocalPostgres, target: str) -> None:
    """Its process may still be at work, though Spark has given it up."""
    table, reached, go_on = declared(postgres, target), Event(), Event()

    def slow() -> Iterator[pa.RecordBatch]:
        # more than a task holds at once, so its transaction has begun when the rows stop
        ids = pa.array(range(100_001), pa.int64())
        yield pa.record_batch({"id": ids, "part": ["x"] * len(ids), "v": [1.0] * len(ids)})
        reached.set()
        assert go_on.wait(60)

    with ThreadPoolExecutor(2) as threads:
        earlier = threads.submit(sink.write_rows, table, ("q", 0), slow())
        assert reached.wait(60)
        later = threads.submit(sink.write_rows, table, ("q", 0), rows_of([("+I", -1, "x", 2.0)]))
        try:
            while not postgres.fetch("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
                assert not later.done()
        finally:
            go_on.set()
        assert (earlier.result(60), later.result(60)) == (100_001, 0)
    assert (-1, "x") not in held(postgres, target)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nul\0", "column 'part' must be without the character NUL"),
        ("too long", r"value too long.*line 2, column part"),
        ("no", "violates check constraint"),
    ],
)
def test_a_value_that_the_database_refuses_is_named(
    postgres: LocalPostgres, target: str, value: str, message: str
) -> None:
    table = declared(postgres, target)
    postgres.run(f"ALTER TABLE {target} ALTER part TYPE varchar(4), ADD CHECK (part <> 'no')")
    with pytest.raises(SchemaError, match=f"{message}.*nothing of the micro-batch was written"):
        sink.write_rows(table, ("q", 0), rows_of([("+I", 1, "a", 1.0), ("+I", 2, value, 1.0)]))
    assert held(postgres, target) == {}


def test_keys_that_the_database_takes_for_one_are_refused(postgres: LocalPostgres, target: str) -> None:
    """As texts that differ in spaces at their end, in a CHAR."""
    table = declared(postgres, target)
    postgres.run(f"ALTER TABLE {target} ALTER part TYPE char(4)")
    with pytest.raises(SchemaError, match=r"must take the rows, it did not: .*nothing of the micro-batch"):
        sink.write_rows(table, ("q", 0), rows_of([("+I", 1, "a", 1.0), ("+I", 1, "a ", 2.0)]))
    assert held(postgres, target) == {}


# the tables of a catalog


def created(
    catalog: Catalog, postgres: LocalPostgres, target: str, columns: str = "", **options: str
) -> None:
    columns = columns or "id BIGINT, part STRING, v DOUBLE, PRIMARY KEY (id, part) NOT ENFORCED"
    given = {"connector": "postgres", "url": postgres.dsn, "table-name": target, **options}
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in given.items())
    catalog.sql(f"CREATE TABLE results ({columns}) WITH ({listed})")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (
            "id BIGINT, v DOUBLE, PRIMARY KEY (id) NOT ENFORCED",
            {},
            "column 'part' is NOT NULL in the database",
        ),
        (
            "part STRING, id BIGINT, PRIMARY KEY (id) NOT ENFORCED",
            {},
            r"KEY \(id\) must be unique.*there: id, part",
        ),
        (
            "id BIGINT, part STRING, V DOUBLE, PRIMARY KEY (id, part) NOT ENFORCED",
            {},
            "column 'V' is not there",
        ),
        ("id STRING, part STRING, PRIMARY KEY (id, part) NOT ENFORCED", {}, "column 'id' is STRING.*int8"),
        ("id BIGINT, part STRING, v ARRAY<INT>, PRIMARY KEY (id) NOT ENFORCED", {}, "scalar type.*to_json"),
        ("id BIGINT", {}, "needs a PRIMARY KEY"),
        ("", {"table-name": "nowhere"}, 'no such table.*CREATE TABLE "nowhere" .*PRIMARY KEY'),
        ("", {"table-name": "a.b.c"}, "must be 'table' or 'schema.table'"),
        ("", {"url": "mysql://h/db"}, "must be like 'postgresql"),
        ("", {"password": "wr0ng"}, "must take user and statement.*InvalidPassword"),
        ("", {"tabel-name": "x"}, "unknown option 'tabel-name'; did you mean 'table-name'"),
        ("", {"username": "nobody"}, "must take user"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_when_it_is_created(
    tmp_path: Path, postgres: LocalPostgres, target: str, columns: str, options: dict[str, str], message: str
) -> None:
    catalog = Catalog(tmp_path)
    with pytest.raises((ConfigurationError, SchemaError), match=f"(?s)table 'results'.*{message}") as caught:
        created(catalog, postgres, target, columns, **options)
    assert PASSWORD not in str(caught.value)
    assert catalog.tables() == ()


def test_a_key_that_is_checked_at_the_end_only_is_refused(
    tmp_path: Path, postgres: LocalPostgres, target: str
) -> None:
    """A row cannot replace another one by it: ON CONFLICT takes no such constraint."""
    postgres.run(f"ALTER TABLE {target} DROP CONSTRAINT {target}_pkey, ADD PRIMARY KEY (id, part) DEFERRABLE")
    with pytest.raises(SchemaError, match=r"KEY \(id, part\) must be unique.*unique there: none"):
        created(Catalog(tmp_path), postgres, target)


def test_a_server_that_is_away_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("upsert.postgres.connection._PATIENCE_S", 0.2)
    given = "'connector' = 'postgres', 'url' = 'postgresql://u:s3cret@127.0.0.1:1/db', 'table-name' = 't'"
    with pytest.raises(SinkUnavailableError, match=r"127\.0\.0\.1:1/db.*must answer") as caught:
        Catalog(tmp_path).sql(f"CREATE TABLE t (id BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH ({given})")
    assert "s3cret" not in str(caught.value)


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Catalog:
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql("CREATE TABLE customers (cust BIGINT, name STRING, PRIMARY KEY (cust) NOT ENFORCED)")
    catalog.sql(
        "CREATE TABLE orders (id BIGINT, cust BIGINT, amount DECIMAL(10, 2), PRIMARY KEY (id) NOT ENFORCED, "
        "INDEX (cust))"
    )
    catalog.sql("INSERT INTO customers VALUES (1, 'ann'), (2, 'bob')", spark)
    catalog.sql("INSERT INTO orders VALUES (10, 1, 1.50), (11, 1, 2.50), (12, 2, 4.00)", spark)
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    catalog.sql(f"SET 'checkpoint.location' = '{tmp_path / 'checkpoints'}'")
    return catalog


def follow(catalog: Catalog, spark: SparkSession, statement: str) -> None:
    """Run a streaming INSERT until it has written what there is."""
    running: Any = catalog.sql(statement, spark)
    try:
        running.query.processAllAvailable()
    finally:
        running.query.stop()


JOIN = "INSERT INTO results SELECT id, name, amount FROM orders JOIN customers USING (cust)"


def test_a_join_is_followed_through_restarts(
    shop: Catalog, spark: SparkSession, postgres: LocalPostgres, target: str
) -> None:
    postgres.run(
        f"DROP TABLE {target}; CREATE TABLE {target} (id int8 PRIMARY KEY, name varchar, amount numeric)"
    )
    columns = "id BIGINT, name STRING, amount DECIMAL(10, 2), PRIMARY KEY (id) NOT ENFORCED"
    created(shop, postgres, target, columns, url=f"jdbc:{postgres.dsn}")
    shown = f"SELECT id, name, amount::text FROM {target} ORDER BY id"
    follow(shop, spark, JOIN)
    assert [tuple(row) for row in postgres.fetch(shown)] == [
        (10, "ann", "1.50"), (11, "ann", "2.50"), (12, "bob", "4.00")
    ]  # fmt: skip
    shop.table("customers").write(
        pa.table({"cust": [1, 2], "name": ["eve", "bob"], "_row_kind": ["+U", "-D"]})
    )
    shop.table("orders").write(pa.table({"id": [10], "_row_kind": ["-D"], "cust": [1], "amount": [None]}))
    follow(shop, spark, JOIN)
    assert [tuple(row) for row in postgres.fetch(shown)] == [(11, "eve", "2.50")]
    last = "SELECT batch FROM deltajoin_progress ORDER BY written_at DESC LIMIT 1"
    ((before,),) = postgres.fetch(last)
    shop.table("orders").write(pa.table({"id": [13], "cust": [99], "amount": [Decimal("1.00")]}))
    follow(shop, spark, JOIN)
    assert [tuple(row) for row in postgres.fetch(last)] == [(before + 1,)]


def test_rows_that_the_key_does_not_tell_apart_are_kept_aside(
    shop: Catalog, spark: SparkSession, postgres: LocalPostgres, target: str
) -> None:
    """``sink.materialize``: the newest row of a customer that is left, as with every keyed sink."""
    postgres.run(f"DROP TABLE {target}; CREATE TABLE {target} (cust int8 PRIMARY KEY, id int8)")
    created(shop, postgres, target, "cust BIGINT, id BIGINT, PRIMARY KEY (cust) NOT ENFORCED")
    statement = "INSERT INTO results SELECT cust, id FROM orders JOIN customers USING (cust)"
    follow(shop, spark, statement)
    assert dict(postgres.fetch(f"SELECT cust, id FROM {target}")) == {1: 11, 2: 12}
    shop.table("orders").write(pa.table({"id": [11], "_row_kind": ["-D"], "cust": [1], "amount": [None]}))
    follow(shop, spark, statement)
    assert dict(postgres.fetch(f"SELECT cust, id FROM {target}")) == {1: 10, 2: 12}


def test_an_aggregate_and_a_batch_are_written(
    shop: Catalog, spark: SparkSession, postgres: LocalPostgres, target: str
) -> None:
    postgres.run(f"DROP TABLE {target}; CREATE TABLE {target} (cust int8 PRIMARY KEY, n int8)")
    created(shop, postgres, target, "cust BIGINT, n BIGINT, PRIMARY KEY (cust) NOT ENFORCED")
    statement = "INSERT INTO results SELECT cust, count(*) FROM orders GROUP BY cust"
    follow(shop, spark, statement)
    shop.table("orders").write(pa.table({"id": [12], "_row_kind": ["-D"], "cust": [2], "amount": [None]}))
    follow(shop, spark, statement)
    assert dict(postgres.fetch(f"SELECT cust, n FROM {target}")) == {1: 2}
    shop.sql("SET 'execution.runtime-mode' = 'batch'")
    shop.sql("INSERT INTO results VALUES (1, 7), (3, 8), (3, 9)", spark)
    assert dict(postgres.fetch(f"SELECT cust, n FROM {target}")) == {1: 7, 3: 9}
    with pytest.raises(ConfigurationError, match=r"'results'.*is written, and looked up by key"):
        shop.sql("SELECT * FROM results", spark)
    shop.sql("DROP TABLE results")
    assert dict(postgres.fetch(f"SELECT cust, n FROM {target}")) == {1: 7, 3: 9}
