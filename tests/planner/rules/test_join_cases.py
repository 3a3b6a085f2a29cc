"""Small joins, after tests of Flink and hazards of FLIP-486, planned, and right after every commit."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import planner
from tests.helpers import changelog
from tests.in_duckdb import duckdb_with
from tests.planner.in_steps import Versions, joined_in_steps, step_of, versions_of
from tests.planner.test_queries import in_one
from upsert import Catalog
from upsert.rowkind import RowKind
from upsert.store import Table

pytestmark = pytest.mark.spark

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "cases" / "joins.json").read_text(encoding="utf-8")
)
TITLES = [case["title"] for case in CASES]
ROUNDS = max(len(case["rounds"]) for case in CASES)
Rows = Counter[str]


class Run:
    """All cases, each in tables of its own, through all rounds of commits; and where these led."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.catalogs = {case["title"]: Catalog(folder / str(number)) for number, case in enumerate(CASES)}
        for case in CASES:
            for name, columns in case["tables"].items():
                self.catalogs[case["title"]].sql(f"CREATE TABLE {name} ({columns})")
        self.ends: list[Versions] = []

    def tables(self, case: dict[str, Any]) -> dict[str, Table]:
        return {name: self.catalogs[case["title"]].table(name) for name in case["tables"]}

    def commit(self, number: int) -> None:
        for case in CASES:
            for name, lines in dict(enumerate(case["rounds"])).get(number, {}).items():
                table = self.catalogs[case["title"]].table(name)
                table.write(changelog(table.schema.arrow, *lines))
        self.ends.append(versions_of([table for case in CASES for table in self.tables(case).values()]))

    def optimized(self) -> DataFrame:
        """The queries of all cases as one, over changes."""
        found = {}
        for case in CASES:
            for name in case["tables"]:
                changes = self.catalogs[case["title"]].read_changes(self.spark, name)
                changes.createOrReplaceTempView(name)
            query = self.spark.sql(case["sql"])
            found[case["title"]] = planner.optimize(query, strategy="force", shards=2)
        return in_one(found)

    def wanted(self) -> list[dict[str, Rows]]:
        """What DuckDB gives for each query over the tables as they were after each round."""
        return [{case["title"]: self.in_duckdb(case, end) for case in CASES} for end in self.ends]

    def in_duckdb(self, case: dict[str, Any], end: Versions) -> Rows:
        tables = self.tables(case).items()
        with duckdb_with({name: table.at(end[table.path]).scan() for name, table in tables}) as db:
            text = case["sql"].replace("LEFT SEMI", "SEMI").replace("LEFT ANTI", "ANTI")
            rows = db.sql(text).fetchall()
        named = ({f"c{number}": value for number, value in enumerate(row)} for row in rows)
        return Counter(json.dumps(row, separators=(",", ":")) for row in named)


@dataclass
class Found:
    """What the cases gave after each round, what they should have, and the rows that came with both signs."""

    net: list[dict[str, Rows]]
    wanted: list[dict[str, Rows]]
    opposed: set[str]


@pytest.fixture(scope="module")
def found(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Found:
    run = Run(spark, tmp_path_factory.mktemp("cases"))
    for number in range(ROUNDS):
        run.commit(number)
    with joined_in_steps(run.ends):
        given = run.optimized().collect()
    signs: dict[tuple[str, str, int], set[int]] = {}
    net = [{title: Counter[str]() for title in TITLES} for _ in run.ends]
    for title, row, text in given:
        kind, step = step_of(text)
        signs.setdefault((title, row, step), set()).add(kind.sign)
        for later in net[step:]:
            later[title][row] += kind.sign
    return Found(net, run.wanted(), {title for (title, _, _), both in signs.items() if len(both) > 1})


@pytest.mark.parametrize("title", TITLES)
def test_join_is_right_after_every_commit(title: str, found: Found) -> None:
    for net, wanted in zip(found.net, found.wanted, strict=True):
        assert {row: count for row, count in net[title].items() if count} == wanted[title]
    assert title not in found.opposed, "what a join puts out is net"


@pytest.mark.parametrize("case", CASES, ids=TITLES)
def test_rows_in_the_end_are_those_of_the_case(case: dict[str, Any], found: Found) -> None:
    net = found.net[-1][case["title"]]
    rows = [json.loads(row).values() for row, count in net.items() for _ in range(count)]
    texts = [" ".join("NULL" if value is None else str(value) for value in row) for row in rows]
    assert sorted(texts) == sorted(case["final"])


@pytest.mark.long
def test_a_stream_of_all_joins_is_right_after_every_commit(
    spark: SparkSession, tmp_path: Path, found: Found
) -> None:
    run = Run(spark, tmp_path)
    net: dict[str, Rows] = {title: Counter() for title in TITLES}

    def take(batch: DataFrame, _: int) -> None:
        for title, row, kind in batch.collect():
            net[title][row] += RowKind(kind).sign

    query = run.optimized().writeStream.foreachBatch(take)
    stream = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        for number, wanted in enumerate(found.wanted):
            run.commit(number)
            stream.processAllAvailable()
            assert {t: +rows for t, rows in net.items()} == wanted
    finally:
        stream.stop()
