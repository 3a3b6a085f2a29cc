"""What the README says is true: its snippet runs as printed, its commands exist, its links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import REPOSITORY, use_this_python

README = (REPOSITORY / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.spark
def test_snippet_runs_as_printed(tmp_path: Path) -> None:
    (snippet,) = blocks("python")
    program = tmp_path / "snippet.py"
    program.write_text(snippet)
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    use_this_python(environment)
    run = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "form: delta join" in run.stdout
    assert [line.split() for line in run.stdout.splitlines()[-2:]] == [
        ["0", "10", "tea", "3.5"],
        ["1", "11", "coffee", "4.0"],
    ]


def test_commands_are_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z-]+)", "\n".join(blocks("sh")), re.MULTILINE))
    assert named
    assert named <= targets


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (REPOSITORY / page).read_text())
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
