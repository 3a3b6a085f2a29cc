"""Small joins, after tests of Flink and hazards of FLIP-486, planned, and right after every commit."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import planner
from tests.helpers import changelog
from tests.planner.test_queries import in_one
from upsert import Catalog
from upsert.rowkind import RowKind

pytestmark = pytest.mark.spark

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cases" / "joins.json").read_text())
TITLES = [case["title"] for case in CASES]
ROUNDS = max(len(case["rounds"]) for case in CASES)
Rows = Counter[str]


class Run:
    """All cases as one stream, and what it has put out after each round of commits."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.catalogs = {case["title"]: Catalog(folder / str(number)) for number, case in enumerate(CASES)}
        self.net: dict[str, Rows] = {title: Counter() for title in TITLES}
        self.opposed: set[str] = set()
        self.rounds: list[tuple[dict[str, Rows], dict[str, Rows]]] = []

    def queries(self, *, of_changes: bool) -> DataFrame:
        """The queries of all cases as one, over changes or over snapshots."""
        found = {}
        for case in CASES:
            catalog = self.catalogs[case["title"]]
            for name in case["tables"]:
                read = catalog.read_changes if of_changes else catalog.read
                read(self.spark, name).createOrReplaceTempView(name)
            df = self.spark.sql(case["sql"])
            found[case["title"]] = planner.optimize(df, strategy="force", shards=2) if of_changes else df
        return in_one(found)

    def take(self, batch: DataFrame, _: int) -> None:
        signs: dict[tuple[str, str], set[int]] = {}
        for title, row, kind in batch.collect():
            sign = RowKind(kind).sign
            self.net[title][row] += sign
            signs.setdefault((title, row), set()).add(sign)
        self.opposed |= {title for (title, _), both in signs.items() if len(both) > 1}

    def go(self, checkpoint: Path) -> None:
        for case in CASES:
            for name, columns in case["tables"].items():
                self.catalogs[case["title"]].sql(f"CREATE TABLE {name} ({columns})")
        writer = self.queries(of_changes=True).writeStream.foreachBatch(self.take)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            for number in range(ROUNDS):
                self.commit(number)
                query.processAllAvailable()
                net = {
                    title: Counter({r: n for r, n in rows.items() if n}) for title, rows in self.net.items()
                }
                wanted: dict[str, Rows] = {title: Counter() for title in TITLES}
                for title, row, _ in self.queries(of_changes=False).collect():
                    wanted[title][row] += 1
                self.rounds.append((net, wanted))
        finally:
            query.stop()

    def commit(self, number: int) -> None:
        for case in CASES:
            for name, lines in dict(enumerate(case["rounds"])).get(number, {}).items():
                table = self.catalogs[case["title"]].table(name)
                table.write(changelog(table.schema.arrow, *lines))


@pytest.fixture(scope="module")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = Run(spark, tmp_path_factory.mktemp("cases"))
    made.go(tmp_path_factory.mktemp("checkpoint"))
    return made


@pytest.mark.parametrize("title", TITLES)
def test_join_is_right_after_every_commit(title: str, run: Run) -> None:
    for net, wanted in run.rounds:
        assert net[title] == wanted[title]
    assert title not in run.opposed, "what a join puts out is net"


@pytest.mark.parametrize("case", CASES, ids=TITLES)
def test_rows_in_the_end_are_those_of_the_case(case: dict[str, Any], run: Run) -> None:
    net, _ = run.rounds[-1]
    found = [json.loads(row).values() for row, count in net[case["title"]].items() for _ in range(count)]
    texts = [" ".join("NULL" if value is None else str(value) for value in row) for row in found]
    assert sorted(texts) == sorted(case["final"])
