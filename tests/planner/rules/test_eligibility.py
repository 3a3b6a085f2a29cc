"""Which joins become delta joins, case by case, beside what Flink 2.3 makes of them; the docs have the table.

REWRITE_DOCS=1 pytest tests/planner/rules/test_eligibility.py writes it into docs/differences-from-flink.md.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import planner
from planner import Explanation
from tests.helpers import REPOSITORY
from upsert import Catalog

PAGE = REPOSITORY / "docs" / "differences-from-flink.md"
FIXTURES = json.loads((Path(__file__).parent / "cases" / "eligibility.json").read_text(encoding="utf-8"))
BEGIN, END = "<!-- table of cases -->\n", "<!-- end of table -->\n"


@dataclass(frozen=True)
class Case:
    """A query, and what becomes of its join here and in Flink."""

    title: str
    test: str
    sql: str
    flink: str
    ours: str
    message: str | None = None
    why: str | None = None
    sink_key: tuple[str, ...] | None = None


CASES = [Case(**case) for case in FIXTURES["cases"]]


@pytest.fixture(scope="module")
def views(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A session with the changes of the tables as temp views."""
    catalog = Catalog(tmp_path_factory.mktemp("eligibility"))
    for name, columns in FIXTURES["tables"].items():
        catalog.sql(f"CREATE TABLE {name} ({columns})")
        catalog.read_changes(spark, name).createOrReplaceTempView(name)
    timed = catalog.read_changes(spark, "timed").withWatermark("at", "1 minute")
    timed.createOrReplaceTempView("timed_with_watermark")
    return spark


def form_of(found: Explanation) -> str:
    """What became of a query with one join, or of one whose joins all became the same."""
    if found.refusals:
        return "refused"
    (form,) = {"delta join" if join.tree is not None else join.form for join in found.joins}
    return form


@pytest.mark.spark
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_join_becomes_what_the_docs_say(case: Case, views: SparkSession) -> None:
    found = planner.explain(views.sql(case.sql), sink_key=case.sink_key)
    assert form_of(found) == case.ours, str(found)
    if case.message is not None:
        assert case.message in str(found)


def table() -> str:
    """The table of the docs."""
    lines = ["| Case | Flink 2.3 | Here | Why |", "|---|---|---|---|"]
    lines += [f"| {case.title} | {case.flink} | {case.ours} | {case.why or 'the same'} |" for case in CASES]
    return "\n".join(lines) + "\n"


def test_page_has_the_table_of_these_cases() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    if os.environ.get("REWRITE_DOCS"):
        PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}", encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == f"{before}{BEGIN}{table()}{END}{after}"


def test_every_difference_has_its_reason() -> None:
    for case in CASES:
        is_same = case.flink == case.ours == "delta join"
        assert is_same == (case.why is None), case.title
