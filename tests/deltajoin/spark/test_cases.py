"""Every fixture in ``cases/``, however its changes are spread over commits and steps."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deltajoin.spark.cases import ARRANGEMENTS, CASES, Case, Commit, load
from tests.deltajoin.spark.steps import Steps


@pytest.mark.parametrize("max_rows", [None, 1])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("name", CASES)
def test_join_equals_sql_after_every_commit(
    name: str, arrangement: Callable[[Case], Iterator[Commit]], max_rows: int | None, tmp_path: Path
) -> None:
    case = load(name, tmp_path)
    steps = Steps(case.spec, max_rows=max_rows)
    for commit in arrangement(case):
        case.commit(commit)
        assert steps.run() == case.truth()


@pytest.mark.parametrize("name", CASES)
def test_join_of_a_case_is_not_empty_at_some_point(name: str, tmp_path: Path) -> None:
    """A fixture whose join never has a row would test nothing."""
    case = load(name, tmp_path)
    rows = 0
    for left, right in zip(*[iter_of(lines) for lines in case.lines], strict=False):
        case.commit((left, right))
        rows += case.truth().total()
    assert rows > 0


def iter_of(lines: list[str]) -> Iterator[list[str]]:
    return ([line] for line in lines)
