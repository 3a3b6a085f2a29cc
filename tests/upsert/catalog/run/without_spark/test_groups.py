"""Queries of groups of rows that need no Spark, beside what Spark gives for the same text."""

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.upsert.catalog.run.without_spark.beside_spark import (
    UTC_SESSION,
    assert_refused_alike,
    needs_spark,
    plain_rows,
    rows_of,
    same,
    without,
)
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Found, Frame
from upsert.catalog.run.without_spark import given, settings, shown
from upsert.store.read.snapshot import Snapshot

pytestmark = pytest.mark.spark


def both(catalog: Catalog, text: str, expected: pa.Table) -> tuple[list[Any], list[Any]]:
    """The rows of both, whose names and types are the same."""
    found = rows_of(without(catalog, text))
    assert found.schema.names == expected.schema.names, text
    assert found.schema.types == expected.schema.types, text
    return same(expected.to_pylist()), same(found.to_pylist())


def test_a_count_of_all_rows_reads_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog(tmp_path)
    catalog.context.settings = UTC_SESSION
    catalog.sql("CREATE TABLE t (id INT, v INT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.table("t").write(
        pa.table({"id": pa.array(range(100), pa.int32()), "v": pa.nulls(100, pa.int32())})
    )
    without(catalog, "UPDATE t SET v = 1 WHERE id < 9")
    without(catalog, "DELETE FROM t WHERE id IN (3, 50)")

    def read(*_: object, **__: object) -> None:
        raise AssertionError("rows were read")

    monkeypatch.setattr(Snapshot, "pieces", read)
    text = "SELECT count(*) AS n, count(*) FROM t"
    assert rows_of(without(catalog, text)).to_pylist() == [{"n": 98, "count(1)": 98}]
    assert rows_of(without(catalog, "SELECT count(*) FROM t$snapshots")).to_pylist() == [{"count(1)": 3}]
    for asked in ("count(v)", "count(*), max(id)"):
        with pytest.raises(AssertionError, match="rows were read"):
            without(catalog, f"SELECT {asked} FROM t")


EQUAL = (
    "SELECT a.small + b.tiny AS s, a.id FROM kinds a JOIN kinds b ON a.id = b.id WHERE a.flag",
    "SELECT -2147483648 AS least, - 9223372036854775808 AS l, -2147483648E0 AS d FROM kinds",
    "SELECT id FROM kinds WHERE if(NULL, NULL, flag) OR CASE flag WHEN NULL THEN NULL ELSE flag END AND NULL",
    "SELECT 1 AS one, 'x' AS x, (id) AS id, id + 1 AS name FROM kinds ORDER BY name",
    "SELECT tiny, count(*) c FROM kinds GROUP BY tiny HAVING count(*) > 0 ORDER BY count(*), 1",
    "SELECT tiny, count(*) c FROM kinds GROUP BY tiny HAVING c > 0 ORDER BY count(1), 1",
    "SELECT DISTINCT id FROM kinds ORDER BY kinds.id",
    "SELECT DISTINCT id FROM kinds k ORDER BY K.ID",
    "SELECT sum(`small`), sum(KINDS.`Small`), SUM(small) FROM kinds",
    "SELECT count(DISTINCT name, flag) FROM kinds GROUP BY ratio ORDER BY 1",
    "SELECT `count`(small), `SUM`(small) FROM kinds",
    "SELECT count(*) FROM kinds LIMIT 0",
    "SELECT count(*) AS c FROM kinds OFFSET 1",
    "SELECT count(tags), count(pair), count(counts) FROM kinds",
    "SELECT count(DISTINCT ratio) FROM kinds",
    "SELECT min(ratio), max(ratio) FROM kinds WHERE ratio != 0",
    "SELECT min(single), max(single), avg(single), sum(ratio), avg(ratio) FROM kinds WHERE single != 0",
    "SELECT flag, min(single), max(ratio) FROM kinds WHERE single != 0 AND ratio != 0 GROUP BY flag",
    "SELECT sum(large), avg(large), min(large), max(large) FROM kinds WHERE large < 100",
    "SELECT sum(price), avg(price) FROM kinds",
    "SELECT sum(whole), avg(whole), sum(tiny), avg(tiny), avg(id) FROM kinds",
    "SELECT min(name), max(name), min(raw), max(raw), min(short), max(short) FROM kinds",
    "SELECT min(day), max(at), min(local), max(clock), min(span), max(span), max(flag) FROM kinds",
    "SELECT flag, min(name), max(raw), min(clock), max(span), min(flag), max(large) FROM kinds GROUP BY 1",
    "SELECT name AS n FROM kinds GROUP BY n HAVING n = 'a' OR name >= 'b'",
    "SELECT max(name) FROM kinds GROUP BY flag HAVING max(name) > 'a'",
    "SELECT max(name) FROM kinds GROUP BY flag HAVING max(short) = 'abcde'",
    "SELECT day, max(at) FROM kinds GROUP BY day HAVING day > DATE '1990-01-01'",
    "SELECT day FROM kinds GROUP BY day HAVING sum(price) > 1",
    "SELECT day FROM kinds GROUP BY day HAVING sum(price) > 1.25",
    "SELECT day FROM kinds GROUP BY day HAVING avg(price) > 0.001",
    "SELECT day FROM kinds GROUP BY day HAVING avg(small) > 0.5",
    "SELECT day FROM kinds GROUP BY day HAVING sum(ratio) > 1.5",
    "SELECT day FROM kinds GROUP BY day HAVING max(tiny) > 1000",
    "SELECT day FROM kinds GROUP BY day HAVING max(tiny) = -3 OR min(whole) <= -2147483648",
    "SELECT flag, count(*) FROM kinds GROUP BY kinds.flag",
    "SELECT flag, flag, count(*), count(*) FROM kinds GROUP BY flag, flag, 1",
    "SELECT flag AS count, count(*) FROM kinds GROUP BY flag ORDER BY count, 2",
    "SELECT count(*) FROM kinds GROUP BY flag HAVING count(*) > - 1",
    "SELECT flag, max(id) AS m FROM kinds GROUP BY flag HAVING m > 1 ORDER BY m",
    "SELECT small AS tiny, tiny AS small, count(*) FROM kinds GROUP BY small, tiny ORDER BY small, tiny",
)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("text", EQUAL)
def test_what_a_query_names_is_what_spark_takes_it_for(
    spark: SparkSession, filled: Catalog, text: str
) -> None:
    expected, found = both(filled, text, plain_rows(spark, text))
    assert found == expected if "ORDER BY" in text else sorted(found) == sorted(expected)


SPARKS = (
    "SELECT id + 1 AS a, a FROM kinds",
    "SELECT price * 2 AS x FROM kinds",
    "SELECT coalesce(price, 1) AS x FROM kinds",
    "SELECT NULL AS x FROM kinds",
    "SELECT CASE WHEN flag THEN NULL END AS x FROM kinds",
    "SELECT DISTINCT id + 1 AS x FROM kinds",
    "SELECT id + 1 AS x, count(*) FROM kinds GROUP BY x",
    "SELECT 1 AS one, count(*) FROM kinds",
    "SELECT id + 1 x FROM kinds",
    "SELECT id + 1 AS 'x' FROM kinds",
    "SELECT INTERVAL '1' DAY AS x FROM kinds",
    "SELECT whole + whole AS x FROM kinds",
    "SELECT id AS x, count(*) FROM kinds GROUP BY id HAVING count(*) > 0 ORDER BY id",
    "SELECT id AS id, count(*) FROM kinds GROUP BY id HAVING count(*) > 0 ORDER BY kinds.id",
    "SELECT DISTINCT id AS id FROM kinds ORDER BY kinds.id",
    "SELECT DISTINCT *, id FROM kinds",
    "SELECT mean(small) FROM kinds",
    "SELECT count(*) FROM kinds HAVING count(*) > 1",
    "SELECT min(tags) FROM kinds",
    "SELECT count(DISTINCT tags) FROM kinds",
    "SELECT tags, count(*) FROM kinds GROUP BY tags",
    "SELECT sum(span), avg(span) FROM kinds",
    "SELECT sum(large), avg(large), min(large), max(large) FROM kinds",
    "SELECT sum(whole), avg(whole), sum(tiny), avg(tiny), avg(id), sum(flag) FROM kinds",
    "SELECT day, max(at) FROM kinds GROUP BY day HAVING max(at) > TIMESTAMP '2020-01-01 00:00:00'",
    "SELECT day, max(at) FROM kinds GROUP BY day HAVING max(at) > '2020-01-01'",
    "SELECT flag FROM kinds GROUP BY flag HAVING flag",
    "SELECT flag FROM kinds GROUP BY flag HAVING flag = TRUE",
    "SELECT id AS b, b FROM kinds",
    "SELECT small AS b, b, count(*) FROM kinds GROUP BY small",
    "SELECT flag, count(*) FROM kinds k GROUP BY kinds.flag",
    "SELECT flag, count(*) FROM kinds GROUP BY 0",
    "SELECT flag, count(*) FROM kinds GROUP BY -1",
    "SELECT flag, count(*) FROM kinds GROUP BY 1.0",
    "SELECT flag, count(*) FROM kinds GROUP BY '1'",
    "SELECT flag, count(*) FROM kinds GROUP BY 2",
    "SELECT flag, count(*) n FROM kinds GROUP BY n",
    "SELECT flag AS a, name AS a, count(*) FROM kinds GROUP BY a",
    "SELECT flag AS a, flag AS a, count(*) FROM kinds GROUP BY a",
    "SELECT DISTINCT flag FROM kinds ORDER BY name",
    "SELECT DISTINCT count(*) FROM kinds",
    "SELECT count(*) FROM kinds GROUP BY",
    "SELECT count(*) FROM kinds GROUP BY ,",
    "SELECT count(*) FROM kinds GROUP BY flag,",
    "SELECT count(*) FROM kinds HAVING count(*) > 1 GROUP BY flag",
    "SELECT count(*) FROM kinds GROUP BY flag WHERE flag",
    "SELECT count(*) FROM kinds ORDER BY 1 GROUP BY flag",
    "SELECT count(DISTINCT *) FROM kinds",
    "SELECT count(kinds.*) FROM kinds",
    "SELECT count(*, *) FROM kinds",
    "SELECT count(1, 1) FROM kinds",
    "SELECT count(2) FROM kinds",
    "SELECT count('1') FROM kinds",
    "SELECT count(NULL) FROM kinds",
    "SELECT count() FROM kinds",
    "SELECT count(DISTINCT) FROM kinds",
    "SELECT count() AS n FROM kinds",
    "SELECT year() AS n FROM kinds",
    "SELECT length(1e) AS n FROM kinds",
    "SELECT if(flag, 'a' 'b') AS n FROM kinds",
    "SELECT nvl(small, 1, 2) AS n FROM kinds",
    "SELECT id FROM kinds WHERE ifnull(flag)",
    "SELECT id FROM kinds WHERE coalesce(flag, NVL(nvl(flag, true)))",
    "SELECT + name AS n FROM kinds",
    "SELECT id FROM kinds WHERE + name = 'a'",
    "SELECT count(DISTINCT flag,) FROM kinds",
    "SELECT count(flag,) FROM kinds",
    "SELECT count(,flag) FROM kinds",
    "SELECT DISTINCT ALL flag FROM kinds",
    "SELECT ALL flag FROM kinds",
    "SELECT sum(1) FROM kinds",
    "SELECT sum(*) FROM kinds",
    "SELECT max(small, 2) FROM kinds",
    "SELECT sum(DISTINCT small) FROM kinds",
    "SELECT max(DISTINCT small) FROM kinds",
    "SELECT flag, count(*) FROM kinds GROUP BY ALL",
    "SELECT flag, count(*) FROM kinds GROUP BY flag WITH ROLLUP",
    "SELECT flag, count(*) FROM kinds GROUP BY ROLLUP(flag)",
    "SELECT flag, count(*) FROM kinds GROUP BY (flag)",
    "SELECT flag, count(*) FROM kinds GROUP BY ()",
    "SELECT flag, count(*) FROM kinds GROUP BY GROUPING SETS ((flag))",
    "SELECT flag, count(*) FROM kinds GROUP BY flag GROUPING SETS ((flag))",
    "SELECT flag, count(*) FILTER (WHERE id > 1) FROM kinds GROUP BY flag",
    "SELECT flag, count(*) OVER () FROM kinds",
    "SELECT flag, count(*) IGNORE NULLS FROM kinds GROUP BY flag",
    "SELECT max(id) WITHIN GROUP (ORDER BY id) FROM kinds",
    "SELECT flag, count(*) FROM kinds",
    "SELECT flag, count(*) FROM kinds GROUP BY name",
    "SELECT count(*) FROM kinds GROUP BY count(*)",
    "SELECT count(*) FROM kinds GROUP BY flag HAVING count(*)",
    "SELECT count(*) FROM kinds GROUP BY flag HAVING count(*) > NULL",
    "SELECT count(*) FROM kinds GROUP BY flag HAVING count(*) > 1L",
    "SELECT count(*) FROM kinds GROUP BY flag HAVING count(*) > 1e400",
    "SELECT count(*) FROM kinds GROUP BY flag HAVING count(*) = 20 OR count(*) = 20 AND flag = 3",
    "SELECT count(*) FROM kinds GROUP BY flag HAVING id > 1",
    "SELECT count(*) FROM kinds GROUP BY flag HAVING nix > 1",
    "SELECT count(*) FROM kinds WHERE count(*) > 1",
    "SELECT flag, max(id) AS id FROM kinds GROUP BY flag ORDER BY max(id)",
    "SELECT flag, max(id) AS id FROM kinds GROUP BY flag ORDER BY min(id)",
    "SELECT flag, max(id) AS id FROM kinds GROUP BY flag HAVING max(id) > 1",
    "SELECT flag, max(id) AS id FROM kinds GROUP BY flag HAVING id > 1",
    "SELECT flag, max(id) AS m FROM kinds GROUP BY flag ORDER BY max(m)",
    "SELECT tiny, min(small) FROM kinds GROUP BY tiny HAVING count(*) > 0 ORDER BY min(small), 1",
    "SELECT DISTINCT id x FROM kinds ORDER BY id",
    "SELECT sum(small, tiny) FROM kinds",
    "SELECT min(ratio) FROM kinds",
)


@pytest.mark.parametrize("text", SPARKS)
def test_what_else_is_asked_of_groups_is_sparks(filled: Catalog, text: str) -> None:
    """Other queries, and those that Spark refuses."""
    assert needs_spark(filled, text)


REFUSED = (
    "SELECT tiny, count(*), c FROM kinds GROUP BY tiny",
    "SELECT max(max) FROM kinds",
    "SELECT count(*) FROM kinds GROUP BY flag HAVING",
    "SELECT count(*) FROM kinds GROUP flag",
    "SELECT count(DISTINCT DISTINCT flag) FROM kinds",
    "SELECT DISTINCT DISTINCT flag FROM kinds",
    "SELECT count(*) FROM kinds GROUP BY flag HAVING count(*) > 1 AND",
    "SELECT count(*) FROM kinds GROUP BY nix",
    "SELECT nix, count(*) FROM kinds GROUP BY nix",
    "SELECT max(nix) FROM kinds",
    "SELECT max(idd) FROM kinds",
    "SELECT flag, count(*) FROM kinds GROUP BY flag ORDER BY nix",
    "SELECT flag, count(*) FROM kinds GROUP BY flag ORDER BY naem",
    "SELECT flag, count(*) FROM kinds GROUP BY flag ORDER BY max(naem)",
    "SELECT flag, count(*) FROM kinds GROUP BY flag HAVING max(naem) > 1",
    "SELECT DISTINCT naem FROM kinds",
    "SELECT DISTINCT flag FROM kinds ORDER BY naem",
    "SELECT flag, count(*) c FROM kinds WHERE c > 1 GROUP BY flag",
)


@pytest.mark.parametrize("text", REFUSED)
def test_unknown_columns_of_groups_are_refused_as_with_spark(
    spark: SparkSession, filled: Catalog, text: str
) -> None:
    assert_refused_alike(filled, text, spark)


@pytest.mark.parametrize("setting", ["groupByAliases", "groupByOrdinal", "orderByOrdinal"])
def test_a_session_says_what_numbers_and_names_mean(
    spark: SparkSession, filled: Catalog, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setattr(filled.context, "gives_rows", True)
    text = "SELECT flag, count(*) AS n FROM kinds GROUP BY flag ORDER BY 2"
    assert isinstance(filled.sql(text, spark), Found)
    spark.conf.set(f"spark.sql.{setting}", "false")
    try:
        assert isinstance(filled.sql(text, spark), Frame)
    finally:
        spark.conf.unset(f"spark.sql.{setting}")


def test_groups_of_many_bytes_are_sparks(filled: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "MOST_BYTES", 200)
    assert not needs_spark(filled, "SELECT flag, count(*), max(name) FROM kinds GROUP BY flag")
    assert needs_spark(filled, "SELECT id, count(*) FROM kinds GROUP BY id")
    assert needs_spark(filled, "SELECT count(DISTINCT id) FROM kinds")
    assert needs_spark(filled, "SELECT DISTINCT id FROM kinds LIMIT 1")
    monkeypatch.setattr(settings, "_MOST_READ", 100)
    assert needs_spark(filled, "SELECT flag, count(*) FROM kinds GROUP BY flag LIMIT 1")


def test_groups_of_each_row_are_sparks_before_any_is_read(
    filled: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given, "MOST_BYTES", 100)  # who counts groups while they are made takes more
    assert needs_spark(filled, "SELECT id, name, count(*) FROM kinds GROUP BY name, id")
    assert needs_spark(filled, "SELECT DISTINCT id FROM kinds")
    assert not needs_spark(filled, "SELECT name, count(*) FROM kinds GROUP BY name")
    assert not needs_spark(filled, "SELECT id, count(*) FROM kinds WHERE id < 0 GROUP BY id")


def test_floating_point_numbers_are_added_as_by_one_task(spark: SparkSession, tmp_path: Path) -> None:
    """To the last bit: where another order of the rows gives another sum."""
    catalog = Catalog(tmp_path)
    catalog.context.settings = UTC_SESSION
    catalog.sql("CREATE TABLE t (id INT, k INT, x DOUBLE, f FLOAT, n BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    random = Random(3)
    rows = [
        (
            id,
            random.randrange(3),
            random.random() * 10 ** random.randrange(9),
            random.random(),
            random.getrandbits(55),
        )
        for id in range(2000)
    ]
    schema = catalog.table("t").schema.arrow
    catalog.table("t").write(
        pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    )
    total = sum(row[2] for row in rows)
    assert total != sum(row[2] for row in reversed(rows))
    text = "SELECT sum(x), avg(x), sum(f), avg(f), avg(n) FROM t"
    expected, found = both(catalog, text, rows_of(catalog.sql(text, spark)))
    assert found == expected
    assert repr(total) in found[0]
    text = "SELECT k, sum(x), avg(n) FROM t GROUP BY k ORDER BY k"
    expected, found = both(catalog, text, rows_of(catalog.sql(text, spark)))
    assert found == expected
