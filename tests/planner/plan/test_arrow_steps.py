"""What Arrow does for nodes of more than one row; Spark is asked for the same in `test_small_plan.py`."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from deltajoin.core.keys import equal_pairs
from deltajoin.expressions import Field, Ref
from planner.plan import arrow_steps
from planner.plan.arrow_steps import Joined
from upsert.store.rows.computed import Input, NotInArrowError


def test_a_join_of_many_pairs_is_given_up_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs of 50,000 rows with 50,000 of the same key take 40 GB."""
    made: list[int] = []

    def watched(*given: Any, **named: Any) -> Iterator[Any]:
        for pairs in equal_pairs(*given, **named):
            made.append(len(pairs.left))
            yield pairs

    monkeypatch.setattr(arrow_steps, "equal_pairs", watched)
    monkeypatch.setattr(arrow_steps, "_MOST_PAIRS", 10)
    of_one_key = pa.table({"k": [7] * 100})
    left, right = (Input(number, (("k", "k", pa.int64()),)) for number in (0, 1))
    key = Field(Ref(0, "k"))
    join = Joined(left, right, "inner", ((key, key),), None, ((), ()), ("k",), ())
    assert join.rows([of_one_key.slice(0, 1), of_one_key.slice(0, 10)]).count == 10
    made.clear()
    with pytest.raises(NotInArrowError, match="a join with many pairs"):
        join.rows([of_one_key, of_one_key])
    assert sum(made) <= 20
