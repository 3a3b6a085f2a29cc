"""The pages of docs/ are true: their snippets run, and tables of options are those of the declarations."""

import os
import re
import runpy
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.helpers import REPOSITORY, run_in_session, snippet
from tests.object_store import ObjectStore
from upsert.errors import TableNotFoundError, UpsertError
from upsert.kafka.client.admin import delete_topic
from upsert.kafka.client.connection import Connection
from upsert.sql.parser import parse
from upsert.testing import LocalKafka

DOCS = REPOSITORY / "docs"
PRINTING_PAGES = (
    "compaction.md",
    "file-formats.md",
    "joins.md",
    "merge-engines.md",
    "operate.md",
    "partitions.md",
    "schema-evolution.md",
    "ui.md",
    "views.md",
)


def snippets(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


PRELUDE = """
from pyspark.sql import SparkSession
spark, bootstrap = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate(), {!r}
"""


@pytest.mark.kafka
@pytest.mark.spark
def test_snippets_of_the_kafka_page_run_in_order(
    kafka: LocalKafka, spark: SparkSession, tmp_path: Path
) -> None:
    text = "".join([PRELUDE.format(kafka.bootstrap_servers), *snippets("kafka.md")])
    output = run_in_session(snippet(text, tmp_path), tmp_path, spark)
    seen = re.findall(r"\| *([+-][IUD])\| *100\| *Bob\| *(\w+)\|", output)
    assert seen == [("+I", "Berlin")]
    assert re.search(r"\| *100\| *Bob\|Berlin\|", output)


@pytest.mark.spark
@pytest.mark.parametrize("page", PRINTING_PAGES)
def test_snippets_of_a_page_print_what_it_says(page: str, spark: SparkSession, tmp_path: Path) -> None:
    """All its python blocks in a row; its text blocks are what they print, a time of day apart."""
    output = run_in_session(snippet("".join(snippets(page)), tmp_path), tmp_path, spark)
    output = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d;", "…;", output)
    assert output.split() == "".join(snippets(page, "text")).split()


def test_snippets_of_the_page_on_concepts_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(snippet("".join(snippets("concepts.md")), tmp_path)))
    assert capsys.readouterr().out.split() == "".join(snippets("concepts.md", "text")).split()


@pytest.mark.kafka
@pytest.mark.spark
def test_snippets_of_the_page_on_logs_print_what_it_says(
    kafka: LocalKafka, spark: SparkSession, tmp_path: Path
) -> None:
    with suppress(TableNotFoundError):  # an earlier run at a broker that goes on may have died half-way
        delete_topic(Connection({"bootstrap.servers": kafka.bootstrap_servers}), "parcels-log")
    text = "".join([PRELUDE.format(kafka.bootstrap_servers), *snippets("kafka-log.md")])
    output = run_in_session(snippet(text, tmp_path), tmp_path, spark)
    assert output.split() == "".join(snippets("kafka-log.md", "text")).split()


@pytest.mark.spark
def test_snippets_of_the_page_on_object_stores_print_what_it_says(
    s3: ObjectStore, spark: SparkSession, tmp_path: Path
) -> None:
    s3.make_bucket("shop")
    text = "".join([f"endpoint = {s3.endpoint!r}\n", *snippets("object-stores.md")])
    output = run_in_session(snippet(text, tmp_path), tmp_path, spark)
    assert output.split() == "".join(snippets("object-stores.md", "text")).split()


RUN_COMMANDS = """
import os, shlex, sys
from typer.testing import CliRunner
from deltajoin.cli.app import app

for line in sys.stdin.read().splitlines():
    *given, command = line.removeprefix("$ ").split(" | ")
    if command.startswith("export "):
        name, _, value = command.removeprefix("export ").partition("=")
        os.environ[name] = value
        continue
    typed = shlex.split(given[0])[1] if given else ""
    done = CliRunner().invoke(app, shlex.split(command)[1:], input=typed)
    print(done.output)
    assert done.exit_code == 0, (line, done.output, done.exception)
"""


@pytest.mark.spark
def test_commands_of_the_page_on_the_command_line_run_in_order(spark: SparkSession, tmp_path: Path) -> None:
    """In one process, for the sake of time: each would start its own Python, and some a JVM."""
    commands = "".join(
        re.findall(r"```console\n(.*?)```", (DOCS / "cli.md").read_text(encoding="utf-8"), re.DOTALL)
    )
    program = snippet(RUN_COMMANDS, tmp_path)
    assert "every rule holds" in run_in_session(program, tmp_path, spark, given=commands)


@pytest.mark.spark
def test_snippets_of_the_pages_on_sql_run_in_order(spark: SparkSession, tmp_path: Path) -> None:
    pages = [*snippets("sql.md"), *snippets("create-table-as.md")]
    program = snippet("".join([PRELUDE.format(""), *pages]), tmp_path)
    output = run_in_session(program, tmp_path, spark)
    assert "{'name': 'coffee', 'n': 5}" in output
    assert "FOR SYSTEM_VERSION AS OF 'before' [10]" in output
    assert "day=2020-10-01" in output
    assert "('product',)" in output
    assert "filled copy" in output
    assert "{'code': 'ab  ', 'name': 'unnamed', 'price': Decimal('1.50')}" in output
    assert (
        "CONSTRAINT CHECK_price CHECK (price > 0) must not be false of a row, got 1 such, one with id = 3"
        in output
    )
    assert "{'id': 8, 'colour': 'blue', 'coats': 2}" in output


@pytest.mark.parametrize("name", ["options.md", "kafka-options.md"])
def test_tables_of_options_are_those_of_the_declarations(name: str) -> None:
    page = runpy.run_path(str(REPOSITORY / "scripts" / "option_tables.py"))["PAGES"][name]
    assert (DOCS / name).read_text(encoding="utf-8") == page(), "run: python scripts/option_tables.py"


def test_the_reference_of_sql_is_that_of_the_syntax() -> None:
    reference = runpy.run_path(str(REPOSITORY / "scripts" / "sql_reference.py"))
    assert (DOCS / "sql-reference.md").read_text(encoding="utf-8") == reference["page"](), (
        "run: python scripts/sql_reference.py"
    )


def test_links_of_the_pages_lead_somewhere() -> None:
    links = {
        (page, link)
        for page in DOCS.rglob("*.md")
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8"))
    }
    assert len(links) > 50
    assert [(page, link) for page, link in links if not os.path.exists(page.parent / link)] == []


def pages_of(nav: object) -> Iterator[str]:
    match nav:
        case str(page):
            yield page
        case list(entries):
            for entry in entries:
                yield from pages_of(entry)
        case dict(titles):
            yield from pages_of(list(titles.values()))


def test_the_site_leads_to_every_page_once() -> None:
    nav = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(pages_of(nav)) == sorted(path.name for path in DOCS.glob("*.md"))


def test_the_quick_start_is_that_of_the_readme_which_runs() -> None:
    (section,) = re.findall(
        r'^--8<-- "README.md:(\w+)"$', (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    _, _, rest = (
        (REPOSITORY / "README.md").read_text(encoding="utf-8").partition(f"<!-- --8<-- [start:{section}] -->")
    )
    shown, end, _ = rest.partition(f"<!-- --8<-- [end:{section}] -->")
    assert "```python" in shown
    assert end


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("lengths inside ARRAY", "CREATE TABLE t (a ARRAY<VARCHAR(3)>)"),
        ("CHAR(n) as a partition column", "CREATE TABLE t (a CHAR(3)) PARTITIONED BY (a)"),
        ("a CHECK by subqueries", "CREATE TABLE t (a INT, CHECK (a > (SELECT 3)))"),
        ("fields of structs", "ALTER TABLE t ALTER COLUMN a.b COMMENT 'x'"),
        ("intervals as partition columns", "CREATE TABLE t (a INTERVAL DAY) PARTITIONED BY (a)"),
        ("narrower intervals than `DAY TO SECOND`", "CREATE TABLE t (a ARRAY<INTERVAL DAY>)"),
        ("`INTERVAL YEAR TO MONTH`", "CREATE TABLE t (a INTERVAL YEAR TO MONTH)"),
        ("VARIANT as a key", "CREATE TABLE t (a VARIANT, PRIMARY KEY (a) NOT ENFORCED)"),
        ("an index, a key, or a delta join by a computed", "CREATE TABLE t (a INT, b AS a + 1, INDEX (b))"),
    ],
)
def test_a_statement_that_the_page_says_is_not_there_is_refused(name: str, statement: str) -> None:
    """One that is there now has its line on the page of SQL, and none on this page."""
    _, _, rest = (DOCS / "not-there-yet.md").read_text(encoding="utf-8").partition("## SQL\n")
    assert name in rest.partition("## ")[0]
    with pytest.raises(UpsertError):
        parse(statement)


def named_tests(page: str) -> list[str]:
    return re.findall(
        r"`((?!tests/)(?:\w+/)+test_\w+\.py(?:::test_\w+)?)`", (DOCS / page).read_text(encoding="utf-8")
    )


def test_tests_that_the_page_on_flips_names_are_there() -> None:
    named = set(named_tests("flip-188-and-218.md"))
    assert len(named) > 50
    for file, _, function in (one.partition("::") for one in named):
        text = (REPOSITORY / "tests" / "upsert" / file).read_text(encoding="utf-8")
        assert f"def {function}(" in text if function else text, (file, function)
