"""A version is a place in a table's history, also in the middle of a step."""

import json
import pickle

import numpy as np
import pytest

from upsert.errors import ConfigurationError
from upsert.store.version import MAX_HASH, Step, Version, has_arrived, step_between

COMPLETE_3 = Version.complete(3)
CUT = Version(3, 5, (1, 100))


@pytest.mark.parametrize(
    "version", [Version.EMPTY, COMPLETE_3, CUT, Version(0, 1, (0, MAX_HASH)), Version(0, 2, (7, 2**63 + 1))]
)
def test_version_survives_json_and_pickle(version: Version) -> None:
    """Offsets pass through JSON parsers that keep 53 bits of a number."""
    text = json.dumps(version.to_json())
    assert Version.from_json(json.loads(text, parse_int=float)) == version
    assert pickle.loads(pickle.dumps(version)) == version


@pytest.mark.parametrize(
    ("base", "target", "cursor"),
    [
        (-1, 0, None),
        (5, 3, None),
        (3, 5, None),
        (3, 3, (0, 1)),
        (3, 5, (-1, 0)),
        (3, 5, (0, -1)),
        (3, 5, (0, 2**64)),
    ],
)
def test_impossible_version_is_refused(base: int, target: int, cursor: tuple[int, int] | None) -> None:
    with pytest.raises(ConfigurationError, match=r"^version must"):
        Version(base, target, cursor)


@pytest.mark.parametrize(
    "value", [{}, {"base": 1, "target": 1}, {"base": "x", "target": 1, "cursor": None}, [1]]
)
def test_json_that_is_no_version_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="a version must have 'base'"):
        Version.from_json(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        (COMPLETE_3, Version.complete(5), Step(3, 5, (0, 0), None)),
        (COMPLETE_3, CUT, Step(3, 5, (0, 0), (1, 100))),
        (CUT, Version(3, 5, (1, 200)), Step(3, 5, (1, 100), (1, 200))),
        (CUT, Version.complete(5), Step(3, 5, (1, 100), None)),
        (COMPLETE_3, COMPLETE_3, Step(3, 3, (0, 0), None)),
        (Version.EMPTY, Version.complete(4), Step(0, 4, (0, 0), None)),
    ],
)
def test_one_step_has_one_base_and_one_target(start: Version, end: Version, step: Step) -> None:
    assert step_between(start, end) == step


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (COMPLETE_3, Version.complete(2)),
        (COMPLETE_3, Version(4, 5, (0, 1))),
        (CUT, Version.complete(6)),
        (CUT, Version(3, 6, (1, 200))),
        (CUT, Version(3, 5, (1, 99))),
        (CUT, Version(4, 5, (1, 200))),
        (CUT, COMPLETE_3),
    ],
)
def test_versions_that_no_single_step_connects_are_refused(start: Version, end: Version) -> None:
    """A replayed batch never silently reads another range than the one that was logged."""
    with pytest.raises(ConfigurationError, match="no single step leads"):
        step_between(start, end)


def test_range_of_a_step_in_each_bucket() -> None:
    step = Step(3, 5, (1, 100), (3, 50))
    found = [step.hashes_of(bucket) for bucket in range(5)]
    assert found == [None, (100, MAX_HASH), (0, MAX_HASH), (0, 49), None]
    assert Step(0, 5, (0, 0), (2, 0)).hashes_of(2) is None
    assert Step(0, 5, (2, 7), (2, 7 + 1)).hashes_of(2) == (7, 7)


def test_keys_below_the_cursor_have_arrived() -> None:
    buckets = np.array([0, 1, 1, 2])
    hashes = np.array([MAX_HASH, 99, 100, 0], np.uint64)
    assert has_arrived((1, 100), buckets, hashes).tolist() == [True, True, False, False]
