"""What the README says is true: its snippet runs as printed, its commands exist, its links lead somewhere."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import planner
from deltajoin.cli.command import Output
from tests.helpers import REPOSITORY, run_program, snippet
from upsert import Catalog

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.spark
def test_the_first_lines_of_sql_give_what_is_printed(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    *statements, _ = re.split(r";\n", blocks("sql")[0])
    results = [catalog.sql(statement, spark) for statement in statements]
    Output().table(results[-1].rows)  # as the command prints them
    assert capsys.readouterr().out == blocks("text")[0]


@pytest.mark.spark
def test_snippet_runs_as_printed(tmp_path: Path) -> None:
    (text,) = blocks("python")
    output = run_program(snippet(text, tmp_path), tmp_path)
    assert "form: delta join" in output
    assert [line.split() for line in output.splitlines()[-2:]] == [
        ["0", "10", "tea", "3.5"],
        ["1", "11", "coffee", "4.0"],
    ]


def test_commands_are_targets() -> None:
    targets = set(
        re.findall(r"^([a-z-]+):.*##", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    named = set(re.findall(r"^make ([a-z-]+)", "\n".join(blocks("sh")), re.MULTILINE))
    assert named
    assert named <= targets


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (REPOSITORY / page).read_text(encoding="utf-8"))
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
