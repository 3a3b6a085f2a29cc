"""The table is derived again from its two laws."""

from itertools import product

import pytest

from upsert.changelog.normalizer import TRANSITIONS

CASES = list(product((False, True), repeat=2))


def test_every_case_is_there() -> None:
    assert sorted(TRANSITIONS) == CASES


@pytest.mark.parametrize("case", CASES)
def test_signs_are_row_after_minus_row_before(case: tuple[bool, bool]) -> None:
    was, comes = case
    given = [kind.sign for kind in TRANSITIONS[case]]
    assert given == [-1] * was + [1] * comes


@pytest.mark.parametrize("case", CASES)
def test_kinds_say_whether_the_other_sign_comes_with_them(case: tuple[bool, bool]) -> None:
    kinds = [kind.value for kind in TRANSITIONS[case]]
    assert kinds == ["-U", "+U"] if len(kinds) == 2 else kinds in ([], ["+I"], ["-D"])
