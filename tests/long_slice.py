"""A pytest plugin that runs some of the tests that it is given, chosen by a seed, for a limited time.

`make test-slice` runs it over the long tests: every run takes others, so that none fails unnoticed for long.
Tests that were chosen and not begun when the time is over are skipped.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import pytest

PER_FILE: Final = 3
"""Tests of one file in a slice, at most: a file has one subject, and all of them have a turn."""
SECONDS_EACH: Final = 3
"""A slice has one test for every so many seconds: more than it has the time for, as most take longer."""

_begun: Final = pytest.StashKey[float]()
_told: Final = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The seed and the time."""
    group = parser.getgroup("slice")
    group.addoption("--slice-seed", type=int, required=True, help="which tests are chosen, in which order")
    group.addoption("--slice-seconds", type=float, default=150.0, help="no test is begun after this time")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose, after markers have deselected what they do; all workers choose the same."""
    seed, seconds = config.getoption("--slice-seed"), config.getoption("--slice-seconds")
    names = chosen([item.nodeid for item in items], seed, int(seconds / SECONDS_EACH))
    found = {item.nodeid: item for item in items}
    wanted = set(names)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
    config.stash[_told] = (
        f"slice: at most {len(names)} of {len(items)} tests in {seconds:g} s, by seed {seed}; "
        f"again: make test-slice SEED={seed} SECONDS={seconds:g}"
    )
    items[:] = [found[name] for name in names]
    config.stash[_begun] = time.monotonic()


def chosen(names: Sequence[str], seed: int, count: int) -> list[str]:
    """Some of the tests in the order in which they run: those of a file together.

    >>> chosen(["a.py::x", "a.py::y", "b.py::z"], 1, 2) == chosen(["b.py::z", "a.py::y", "a.py::x"], 1, 2)
    True
    """
    shuffled = random.Random(seed).sample(sorted(names), len(names))
    of_file: Counter[str] = Counter()
    taken: list[str] = []
    for name in shuffled:
        file = name.partition("::")[0]
        if of_file[file] < PER_FILE and len(taken) < count:
            of_file[file] += 1
            taken.append(name)
    places = {file: place for place, file in enumerate(dict.fromkeys(n.partition("::")[0] for n in taken))}
    return sorted(taken, key=lambda name: places[name.partition("::")[0]])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin no test after the time."""
    if time.monotonic() - item.config.stash[_begun] > item.config.getoption("--slice-seconds"):
        pytest.skip("the time of this slice is over")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which slice it was, and how to have it again."""
    seed = config.getoption("--slice-seed")
    terminalreporter.section("slice")
    for report in terminalreporter.stats.get("failed", []) + terminalreporter.stats.get("error", []):
        again = f"make test-slice SEED={seed} PYTEST_ARGS='\"{report.nodeid}\"'"
        terminalreporter.line(f"failed: {report.nodeid}; again: {again}")
    told = config.stash.get(_told, f"slice: by seed {seed}; again: make test-slice SEED={seed}")
    terminalreporter.line(told)
