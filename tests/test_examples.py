"""Each example prints what the comment at its end says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
OUTPUT = "\n# Output:\n"
MAX_LINES = 60


def expected_output(text: str) -> str:
    """The lines of the trailing comment, without its marks."""
    _, comment = text.split(OUTPUT)
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in comment.splitlines())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example_prints_what_its_comment_says(example: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(example)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.rstrip("\n") == expected_output(example.read_text())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example_is_short(example: Path) -> None:
    program, _ = example.read_text().split(OUTPUT)
    assert len(program.splitlines()) < MAX_LINES


def test_there_are_examples() -> None:
    assert [example.stem for example in EXAMPLES][:2] == ["01_managed_table", "02_delta_join"]
