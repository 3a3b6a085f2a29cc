"""A slice of the long tests: chosen by a seed, limited in time, and it fails if one of them does."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.long_slice import PER_FILE, chosen

ROOT = Path(__file__).parent.parent
NAMES = [f"tests/test_{file}.py::test_{number}" for file in "abcdef" for number in range(5)]


def run(folder: Path, content: str, *options: str) -> tuple[int, str]:
    """Run pytest with the plugin over a file with this content; its exit code and what it says."""
    (folder / "test_it.py").write_text(content)
    command = [sys.executable, "-m", "pytest", "-p", "tests.long_slice", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout


def test_a_seed_chooses_the_same_tests_and_another_seed_others() -> None:
    one = chosen(NAMES, 1, 8)
    assert one == chosen(list(reversed(NAMES)), 1, 8)
    assert set(one) != set(chosen(NAMES, 2, 8))
    assert len(one) == 8
    assert max(Counter(name.split("::")[0] for name in one).values()) <= PER_FILE


def test_every_test_has_its_turn() -> None:
    assert set().union(*(chosen(NAMES, seed, 6) for seed in range(60))) == set(NAMES)


def test_tests_of_a_file_run_together() -> None:
    files = [name.split("::")[0] for name in chosen(NAMES, 3, 12)]
    assert len([file for file, before in zip(files[1:], files, strict=False) if file != before]) + 1 == len(
        set(files)
    )


def test_a_failure_fails_the_run_and_says_how_to_repeat_it(tmp_path: Path) -> None:
    code, said = run(tmp_path, "def test_bad():\n    assert False\n", "--slice-seed=7")
    assert code == 1
    assert "again: make test-slice SEED=7 PYTEST_ARGS='\"test_it.py::test_bad\"'" in said


def test_what_does_not_begin_in_time_is_skipped(tmp_path: Path) -> None:
    code, said = run(tmp_path, "def test_one():\n    pass\n", "--slice-seed=7", "--slice-seconds=30")
    assert (code, re.findall(r"\d+ passed", said)) == (0, ["1 passed"])
    clock = (
        "import tests.long_slice as s\ns.time = type('Clock', (), {'monotonic': iter([0.0, 1e9]).__next__})\n"
    )
    (tmp_path / "conftest.py").write_text(clock)
    code, said = run(tmp_path, "def test_one():\n    pass\n", "--slice-seed=7", "--slice-seconds=30")
    assert (code, re.findall(r"\d+ skipped", said)) == (0, ["1 skipped"])
