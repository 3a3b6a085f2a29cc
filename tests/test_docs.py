"""The pages of docs/ are true: their snippets run, and tables of options are those of the declarations."""

import os
import re
import runpy
from pathlib import Path

import pytest

from tests.helpers import REPOSITORY, run_snippet
from upsert.kafka.testing import LocalKafka

DOCS = REPOSITORY / "docs"


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


PRELUDE = """
from pyspark.sql import SparkSession
spark, bootstrap = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate(), {!r}
"""


@pytest.mark.kafka
@pytest.mark.spark
def test_snippets_of_the_kafka_page_run_in_order(kafka: LocalKafka, tmp_path: Path) -> None:
    output = run_snippet("".join([PRELUDE.format(kafka.bootstrap_servers), *snippets("kafka.md")]), tmp_path)
    seen = re.findall(r"\| *([+-][IUD])\| *100\| *Bob\| *(\w+)\|", output)
    assert seen == [("+I", "Berlin")]
    assert re.search(r"\| *100\| *Bob\|Berlin\|", output)


def test_table_of_kafka_options_is_that_of_the_declarations() -> None:
    page = runpy.run_path(str(REPOSITORY / "scripts" / "option_tables.py"))["page"]
    assert (DOCS / "kafka-options.md").read_text() == page(), "run: python scripts/option_tables.py"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    assert [link for link in links if not os.path.exists(page.parent / link)] == []
