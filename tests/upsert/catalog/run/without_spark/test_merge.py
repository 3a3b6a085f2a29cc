"""MERGE that needs no Spark, beside what Spark makes of the same text."""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.upsert.catalog.run.without_spark.beside_spark import (
    KINDS,
    UTC_SESSION,
    kinds,
    needs_spark,
    without,
)
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Done
from upsert.catalog.run import merge
from upsert.catalog.run.jobs import SparkNeededError
from upsert.catalog.run.merge import REMEDIES
from upsert.errors import TableNotFoundError, UpsertError
from upsert.managed import frames

pytestmark = pytest.mark.spark

SEED = int(os.environ.get("SEED", "0"))

TARGET = (
    "CREATE TABLE t (id BIGINT, n INT, small SMALLINT, price DECIMAL(10, 2), ratio DOUBLE, v STRING, "
    "short VARCHAR(3), flag BOOLEAN, day DATE, at TIMESTAMP, d INT DEFAULT 7, tags ARRAY<STRING>, "
    "twice AS n * 2, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '3')"
)
SOURCE = (
    "CREATE TABLE s (id INT, n BIGINT, price DECIMAL(6, 1), ratio FLOAT, v STRING, flag BOOLEAN, day DATE, "
    "tags ARRAY<STRING>, place INT, PRIMARY KEY (place) NOT ENFORCED)"
)


@pytest.fixture
def catalogs(tmp_path: Path) -> tuple[Catalog, Catalog]:
    """Two with the same empty tables: one for Spark, one without."""
    found = Catalog(tmp_path / "spark"), Catalog(tmp_path / "here")
    for catalog in found:
        catalog.context.settings = UTC_SESSION
        catalog.sql(TARGET)
        catalog.sql(SOURCE)
    return found


def by_spark(catalog: Catalog, text: str, spark: SparkSession) -> str:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(merge, "merged", lambda *_: None)
        return outcome(lambda: catalog.sql(text, spark))


def outcome(execute: Callable[[], Any]) -> str:
    """The note of a statement, or its error."""
    try:
        done = execute()
    except SparkNeededError:
        raise
    except UpsertError as error:
        return f"{type(error).__name__}: {error}"
    assert isinstance(done, Done)
    return done.note


def rows(catalog: Catalog) -> list[str]:
    found = catalog.table("t").snapshot()
    return sorted(map(repr, found.scan().to_pylist()))


def changes(catalog: Catalog, since: int) -> list[str]:
    return sorted(map(repr, catalog.table("t").changes(since).to_pylist()))


def fill(random: Random, catalogs: tuple[Catalog, Catalog]) -> None:
    """The same random rows in the tables of both."""
    for name, ids in (("t", range(1, 9)), ("s", range(3, 12))):
        keys = [one for one in ids if random.random() < 0.7]
        if name == "s":
            keys += random.choices(keys or [1], k=random.choice([0, 0, 0, 1]))
        columns: dict[str, list[Any]] = {"id": keys, "place": [*range(len(keys))]}
        schema = catalogs[0].table(name).schema
        for column in schema.names:
            if column not in columns:
                columns[column] = [_stored(random, schema.type_of(column)) for _ in keys]
        given = {one: pa.array(columns[one], schema.type_of(one)) for one in schema.names}
        for catalog in catalogs:
            catalog.table(name).delete([])
            catalog.table(name).write(pa.table(given))


def _stored(random: Random, type_: pa.DataType) -> Any:
    """A value of a column, as Python has it."""
    if random.random() < 0.2:
        return None
    if pa.types.is_string(type_):
        return random.choice(["a", "b", "ab", "é"])
    if pa.types.is_list(type_):
        return random.choice([["a"], [], [None]])
    if pa.types.is_date(type_):
        return date(2019, 4, random.randrange(1, 30))
    if pa.types.is_timestamp(type_):
        return datetime(2019, 4, 14, tzinfo=UTC)
    number = random.randrange(9)
    return number % 2 == 0 if pa.types.is_boolean(type_) else number


class RandomMerge:
    """A statement with literals or a table as its source."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.source, self.columns = self._source()
        self.on = self._on()
        self.clauses = [*self._clauses()]

    @property
    def text(self) -> str:
        return f"MERGE INTO t USING {self.source} ON {self.on}\n" + "\n".join(self.clauses)

    def _source(self) -> tuple[str, list[str]]:
        random = self.random
        if random.random() < 0.4:
            table = random.choice(["s", "s AS s", "(SELECT * FROM s WHERE n > 2 OR n IS NULL) s"])
            return table, ["id", "n", "price", "v", "flag", "day", "tags"]
        texts = {
            "id": lambda: str(random.randrange(1, 12)),
            "n": lambda: random.choice(["1", "-4", "7", "NULL"]),
            "price": lambda: random.choice(["1.5", "NULL", "2.25", "3"]),
            "v": lambda: random.choice(["'a'", "'b'", "NULL", "'it''s'"]),
            "flag": lambda: random.choice(["true", "false", "NULL"]),
            "day": lambda: random.choice(["DATE '2019-04-14'", "NULL"]),
        }
        names = ["id", *random.sample([*texts][1:], random.randint(1, 5))]
        lines = [[texts[name]() for name in names] for _ in range(random.randint(1, 4))]
        if len(lines) == 1 or random.random() < 0.3:
            items = ", ".join(f"{value} AS {name}" for name, value in zip(names, lines[0], strict=True))
            others = "".join(f" UNION ALL SELECT {', '.join(line)}" for line in lines[1:])
            return f"(SELECT {items}{others}) AS s", names
        values = f"VALUES {', '.join('(' + ', '.join(line) + ')' for line in lines)}"
        own = f"({', '.join(names)})"
        forms = [f"({values}) AS s{own}", f"(SELECT * FROM {values} AS x{own}) s"]
        return random.choice(forms), names

    def _has(self, *names: str) -> bool:
        return set(names) <= set(self.columns)

    def _on(self) -> str:
        found = ["t.id = s.id"] * 5 + ["s.id = t.id AND t.n < 6", "(t.id = s.id) AND NOT t.flag"]
        found += ["t.n = s.n", "t.n = s.n AND t.id = s.id"] * self._has("n")
        found += ["t.v = s.v AND s.id > 3"] * self._has("v")
        found += ["t.id <=> s.id AND t.day = s.day"] * self._has("day")
        return self.random.choice(found)

    def _clauses(self) -> Any:
        random = self.random
        kinds = random.sample(["MATCHED", "NOT MATCHED", "NOT MATCHED BY SOURCE"], random.randint(1, 3))
        for kind in kinds:
            for place in range(number := random.randint(1, 2)):
                is_last = place == number - 1 and random.random() < 0.5
                condition = "" if is_last else f" AND {self._condition(kind)}"
                yield f"WHEN {kind}{condition} THEN {self._action(kind)}"

    def _condition(self, kind: str) -> str:
        own = [] if kind == "NOT MATCHED" else ["t.n > 3", "t.v IS NULL", "t.flag", "t.price >= 2.5"]
        if kind != "NOT MATCHED BY SOURCE":
            own += ["s.id > 5", "s.id IN (3, 4, 5)"]
            own += ["s.n <= 3", "(s.n IS NULL OR s.n + 1 > 3)"] * self._has("n")
            own += ["s.v < 'b'", "length(s.v) = 1"] * self._has("v")
        if kind == "MATCHED":
            own += ["t.n > s.n"] * self._has("n") + ["NOT (t.v <=> s.v)"] * self._has("v")
        return self.random.choice(own)

    def _action(self, kind: str) -> str:
        random = self.random
        if kind == "NOT MATCHED":
            key = random.choice(["s.id"] * 5 + ["s.id + 3"])
            values = {"id": key, **self._values(kind)}
            return f"INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"
        if random.random() < 0.3:
            return "DELETE"
        return "UPDATE SET " + ", ".join(f"{name} = {value}" for name, value in self._values(kind).items())

    def _values(self, kind: str) -> dict[str, str]:
        found = {
            "n": ["5", "NULL"],
            "small": ["5", "NULL"],
            "price": ["9.75", "NULL", "3"],
            "ratio": ["1.5", "1e2"],
            "v": ["'new'", "NULL"],
            "short": ["'abc  '", "'a'"],
            "day": ["DATE '2020-02-29'"],
            "at": ["TIMESTAMP '2020-01-01 10:00:00'", "TIMESTAMP '2020-01-01 10:00:00Z'"],
            "flag": ["true", "NULL"],
            "d": ["DEFAULT", "1"],
            "tags": ["NULL"],
        }
        if kind != "NOT MATCHED":
            found["n"] += ["t.n + 1", "coalesce(t.n, 0)", "CASE WHEN t.flag THEN t.n ELSE 2 END"]
            found["v"] += ["t.v", "concat(t.v, 'x')"]
            found["ratio"] += ["t.n", "t.ratio * 2e0"]
        if kind != "NOT MATCHED BY SOURCE":
            for name in ("n", "price", "v", "flag", "day", "tags"):
                found[name] += [f"s.{name}"] * 4 * self._has(name)
            found["small"] += ["s.n"] * self._has("n")
            found["ratio"] += ["s.price", "s.n"] * self._has("price", "n")
            found["flag"] += ["s.id > 5"]
        if kind == "MATCHED":
            found["n"] += ["t.n + s.n"] * self._has("n")
            found["v"] += ["coalesce(s.v, t.v)"] * self._has("v")
        names = self.random.sample([*found], self.random.randint(1, 5))
        return {name: self.random.choice(found[name]) for name in names}


def compare(
    spark: SparkSession, catalogs: tuple[Catalog, Catalog], seed: int, number: int
) -> tuple[int, int]:
    """How many random statements needed no Spark, and how many of these were refused."""
    random, done, refused = Random(seed), 0, 0
    for step in range(number):
        fill(random, catalogs)
        text = RandomMerge(random).text
        about = f"seed {seed}, step {step}: {text}"
        before = catalogs[1].table("t").snapshot().id
        try:
            found = outcome(lambda: without(catalogs[1], text))  # noqa: B023
        except SparkNeededError:
            continue
        expected = by_spark(catalogs[0], text, spark)
        if is_broken := "nothing was written" in expected:
            # which of several broken rules is told may differ
            assert found.startswith("ChangelogError: MERGE INTO t: "), about
            assert found.endswith(tuple(REMEDIES.values())), about
        else:
            assert found == expected, about
        assert rows(catalogs[1]) == rows(catalogs[0]), about
        assert changes(catalogs[1], before) == changes(catalogs[0], before), about
        done += 1
        refused += is_broken
    return done, refused


def test_random_merges_are_sparks(spark: SparkSession, catalogs: tuple[Catalog, Catalog]) -> None:
    """Of this seed all are computed without Spark, and one is refused."""
    assert compare(spark, catalogs, seed=136, number=3) == (3, 1)


@pytest.mark.long
def test_many_random_merges_are_sparks(spark: SparkSession, catalogs: tuple[Catalog, Catalog]) -> None:
    done, refused = compare(spark, catalogs, seed=SEED, number=200)
    assert done > 100
    assert refused > 5


@pytest.fixture
def filled(catalogs: tuple[Catalog, Catalog]) -> tuple[Catalog, Catalog]:
    fill(Random(1), catalogs)
    return catalogs


BY_KEY = "USING (VALUES (1, 5, 'x'), (2, NULL, 'y')) AS s(id, n, v) ON t.id = s.id"


@pytest.mark.parametrize(
    "text",
    [
        "USING (VALUES (1), (1)) AS s(id) ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = 1",
        "USING (VALUES (1), (1)) AS s(id) ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (VALUES (90), (90)) AS s(id) ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id) VALUES (id)",
        "USING (VALUES (1, 77)) AS s(id, n) ON t.n = s.n WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
        f"{BY_KEY} WHEN MATCHED THEN DELETE WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = 'left'",
        f"{BY_KEY} WHEN MATCHED THEN UPDATE SET short = 'abcd'",
        f"{BY_KEY} WHEN MATCHED THEN UPDATE SET id = s.id, n = s.n",
        f"{BY_KEY} WHEN MATCHED THEN UPDATE SET n = 2147483647 + t.n",
        "USING (SELECT id FROM s WHERE n IS NULL) AS s ON t.id = s.id WHEN MATCHED THEN DELETE",
    ],
)
def test_what_a_statement_gives_or_is_refused_for_is_sparks(
    spark: SparkSession, filled: tuple[Catalog, Catalog], text: str
) -> None:
    by, here = filled
    text = f"MERGE INTO t {text}"
    expected, before = by_spark(by, text, spark), here.table("t").snapshot().id
    assert outcome(lambda: here.sql(text, spark)) == expected
    assert rows(here) == rows(by)
    assert changes(here, before) == changes(by, before)


@pytest.mark.parametrize(
    "text",
    [
        "USING (VALUES (1, 'a',)) AS s(id, v) ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (VALUES (1, 'a\\t')) AS s(id, v) ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (VALUES (1), (2.5e0)) AS s(id) ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (VALUES ('1')) AS s(id) ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (SELECT 1 AS id UNION SELECT 2) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (SELECT 1 AS id EXCEPT ALL SELECT 2) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (SELECT 1 AS id UNION ALL BY NAME SELECT 2) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (SELECT 1 AS id UNION ALL SELECT id FROM s) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (VALUES (1, . 5)) AS s(id, v) ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (VALUES (1, . 1.5)) AS s(id, v) ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (VALUES (1, TIMESTAMPTZ '2020-01-01 00:00:00Z')) s(v) ON t.at = s.v WHEN MATCHED THEN DELETE",
        "USING (SELECT 1 id, DATETIME '2020-01-01 00:00:00Z' v) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (SELECT 1 AS 'id') s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (SELECT id % 2 AS id FROM s) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (SELECT * FROM s WHERE n > nix) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING parquet.`/nowhere` AS s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (SELECT s.id FROM s JOIN t ON s.id = t.id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING s ON t.ratio = s.ratio WHEN MATCHED THEN DELETE",
        "USING s ON t.id > s.id WHEN MATCHED THEN DELETE",
        "USING s ON false WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
        "USING s ON t.n <=> s.n WHEN MATCHED THEN DELETE",
        "USING s ON t.id = s.id AND upper(t.v) = s.v WHEN MATCHED THEN DELETE",
        "USING s ON t.id = s.id WHEN MATCHED AND rand() < 2 THEN DELETE",
        "USING s ON t.id = s.id WHEN MATCHED AND s.v THEN DELETE",
        "USING s ON t.id = s.id WHEN MATCHED AND s.v NOT NULL THEN DELETE",
        "USING s ON t.id = s.id AND t.n BETWEEN 1 2 WHEN MATCHED THEN DELETE",
        "USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET ratio = . 5",
        "USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = CASE WHEN t.flag 1 END",
        "USING s ON t.id = s.id WHEN MATCHED AND id > 3 THEN DELETE",
        "USING s ON t.id = s.id WHEN MATCHED AND s.id IN (1,,2) THEN DELETE",
        "USING s ON t.id = s.id WHEN MATCHED AND s.id IN (SELECT 1) THEN DELETE",
        "USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET day = current_date",
        "USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = t.twice",
        f"{BY_KEY} WHEN NOT MATCHED THEN INSERT (id, v) VALUES (NULL, v)",
        f"{BY_KEY} WHEN MATCHED THEN UPDATE SET small = 40000",
        f"{BY_KEY} WHEN MATCHED THEN UPDATE SET small = s.n, price = 1.005",
        f"{BY_KEY} WHEN MATCHED THEN UPDATE SET twice = 4",
        f"{BY_KEY} WHEN MATCHED THEN UPDATE SET nix = 4",
        f"{BY_KEY} WHEN MATCHED THEN UPDATE SET n = 4, N = 5",
        f"{BY_KEY} WHEN MATCHED THEN UPDATE SET id = s.n",
        f"{BY_KEY} WHEN MATCHED THEN UPDATE SET n = v",
        f"{BY_KEY} WHEN MATCHED THEN UPDATE SET n = nix",
        f"{BY_KEY} WHEN MATCHED AND t.twice > 5 THEN UPDATE SET n = 1",
        f"{BY_KEY} WHEN NOT MATCHED THEN INSERT *",
        "USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *",
        "USING t AS s ON t.id = s.n WHEN MATCHED AND s.n <> s.id THEN DELETE",
        "USING (SELECT id, n AS id FROM s) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "USING (SELECT nix FROM s) s ON t.id = s.nix WHEN MATCHED THEN DELETE",
    ],
)
def test_what_else_is_asked_is_sparks(filled: tuple[Catalog, Catalog], text: str) -> None:
    assert needs_spark(filled[1], f"MERGE INTO t {text}")


def test_a_source_that_is_not_there_is_told_without_spark(filled: tuple[Catalog, Catalog]) -> None:
    with pytest.raises(TableNotFoundError, match="table 'nope' does not exist"):
        without(filled[1], "MERGE INTO t USING nope AS s ON t.id = s.id WHEN MATCHED THEN DELETE")


def test_row_that_others_changed_meanwhile_is_looked_at_again(
    filled: tuple[Catalog, Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer inserts the key that the first attempt would insert: the second one updates it."""
    table, write, tries = filled[1].table("t"), frames.write_rows, 0

    def outrun(*given: Any) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            filled[1].sql("INSERT INTO t (id, n) VALUES (90, 1)")
        write(*given)

    monkeypatch.setattr(frames, "write_rows", outrun)
    text = (
        "MERGE INTO t USING (VALUES (90, 5)) AS s(id, n) ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET n = t.n + s.n WHEN NOT MATCHED THEN INSERT (id, n) VALUES (id, n)"
    )
    assert outcome(lambda: without(filled[1], text)).endswith("1 row updated, 0 deleted, 0 inserted")
    assert tries == 2
    assert table.snapshot().scan(["n"], [("id", "=", 90)]).to_pylist() == [{"n": 6}]


def test_parameters_are_literals(filled: tuple[Catalog, Catalog]) -> None:
    text = (
        "MERGE INTO t USING (VALUES (?, ?)) AS s(id, v) ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT (id, v, n) VALUES (id, v, ?)"
    )
    table = filled[1].table("t")
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("SPARK_SUBMIT_OPTS", raising=False)
        patched.setattr(SparkSession, "getActiveSession", classmethod(lambda _: None))
        filled[1].sql(text, args=[90, "it's", 7])
    found = table.snapshot().scan(["v", "n"], [("id", "=", 90)])
    assert found.to_pylist() == [{"v": "it's", "n": 7}]


SAME = ("flag", "raw", "day", "at", "local", "clock", "span", "tags", "times", "pair", "counts")
ASSIGNED = {
    "other AS s": (
        {name: name for name in SAME}
        | {"small": "id", "tiny": "small", "whole": "tiny", "single": "id", "price": "small"}
        | {"ratio": "large", "large": "price", "name": "short", "short": "name"},
        {"whole": "id", "ratio": "price", "single": "tiny", "price": "id", "large": "whole"},
        {"ratio": "single", "large": "id"},
    ),
    "(VALUES (1, 7, 1.50, -0.0, 2147483648, NULL, 'a  '), (2, -3, 2, 12345.6, 1, NULL, 'b')) "
    "AS s(id, i, d, z, big, nothing, text)": (
        {"small": "i", "tiny": "i", "whole": "i", "price": "d", "ratio": "d", "large": "big", "name": "text"},
        {"single": "i", "price": "z", "ratio": "z", "large": "d", "short": "text", "tags": "nothing"},
        {"ratio": "big", "large": "z", "day": "nothing", "whole": "nothing"},
    ),
}


@pytest.fixture
def with_times(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that reads columns of TIME."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.timeType.enabled")


@pytest.mark.parametrize("source", ASSIGNED)
def test_values_go_into_columns_of_other_types_as_by_spark(
    with_times: SparkSession, tmp_path: Path, source: str
) -> None:
    random, catalogs = Random(3), (Catalog(tmp_path / "spark"), Catalog(tmp_path / "here"))
    given = {name: kinds(random, 12) | {"id": [*range(12)]} for name in ("kinds", "other")}
    for catalog in catalogs:
        catalog.context.settings = UTC_SESSION
        for name, columns in given.items():
            catalog.sql(KINDS.replace("kinds", name))
            schema = catalog.table(name).schema
            arrays = {one: pa.array(columns[one], schema.type_of(one)) for one in schema.names}
            catalog.table(name).write(pa.table(arrays))
    for assigned in ASSIGNED[source]:
        values = ", ".join(f"{column} = s.{name}" for column, name in assigned.items())
        text = f"MERGE INTO kinds t USING {source} ON t.id = s.id WHEN MATCHED THEN UPDATE SET {values}"
        found = outcome(lambda: without(catalogs[1], text))  # noqa: B023
        assert found == by_spark(catalogs[0], text, with_times)
        by, here = (one.table("kinds").snapshot().scan().sort_by("id").to_pylist() for one in catalogs)
        assert list(map(repr, here)) == list(map(repr, by)), text


def test_days_that_python_does_not_have_are_compared(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "warehouse")
    catalog.context.settings = UTC_SESSION
    catalog.sql("CREATE TABLE t (day DATE, n INT, PRIMARY KEY (day) NOT ENFORCED)")
    catalog.sql("CREATE TABLE s (day DATE)")
    days = pa.array([0, 4_000_000], pa.int32()).cast(pa.date32())  # the second one is in the year 12921
    catalog.table("t").write(pa.table({"day": days, "n": pa.array([1, 1], pa.int32())}))
    catalog.table("s").write(pa.table({"day": days[1:]}))
    without(catalog, "MERGE INTO t USING s ON t.day = s.day WHEN MATCHED THEN UPDATE SET n = 2")
    found = catalog.table("t").snapshot().scan()
    numbers = found["day"].cast(pa.int32()).to_pylist()
    assert dict(zip(numbers, found["n"].to_pylist(), strict=True)) == {0: 1, 4_000_000: 2}
