"""Each condition: a join that meets it, and the nearest one that does not."""

import pickle
from typing import Any

import pyarrow as pa
import pytest

from deltajoin.expressions import Call, Condition, Const, Field, Ref
from deltajoin.latest.spec import CONDITIONS, LatestJoin, LookupSide, check_join, faults_of
from deltajoin.settings import JoinSettings
from tests.deltajoin.latest.driver import LEFT, ON, RIGHT, side
from upsert.errors import ConfigurationError

UPSERTS = ("+I", "+U")
WITH_DELETES = ("+I", "+U", "-D")


def left(
    *, kinds: Any = UPSERTS, key: Any = ("lid",), immutable: Any = ("lk",), asked_by: Any = ("lk",)
) -> LookupSide:
    return side(LEFT, asked_by, key, kinds, immutable=immutable)


def right(
    *, kinds: Any = UPSERTS, key: Any = ("rid",), immutable: Any = ("rk",), asked_by: Any = ("rk",)
) -> LookupSide:
    return side(RIGHT, asked_by, key, kinds, immutable=immutable)


def greater(one: Ref, other: Ref | int) -> Condition:
    return Call(">", (Field(one), Field(other) if isinstance(other, Ref) else Const(other, pa.int64())))


def names(join: LatestJoin) -> list[str]:
    """Names of the conditions that fail."""
    return [condition.__name__ for condition in CONDITIONS if condition(join) is not None]


ACCEPTED = {
    "every kind of change, with a place to remember rows": LatestJoin(
        left(), right(), ON, settings=JoinSettings(changelog="all", state_path="/data/given")
    ),
    # FLIP-486: the join key is the primary key, or a part of it
    "the join key is the upsert key": LatestJoin(
        left(key=("lk",), immutable=()), right(key=("rk",), immutable=()), ON
    ),
    "the join key is part of it": LatestJoin(
        left(key=("lid", "lk"), immutable=()), right(key=("rk", "rid"), immutable=()), ON
    ),
    "the join key is declared immutable": LatestJoin(left(), right(), ON),
    "rows are only added": LatestJoin(
        left(kinds=("+I",), immutable=()), right(kinds=("+I",), immutable=()), ON, "full"
    ),
    "an outer join of upserts": LatestJoin(left(), right(), ON, "full"),
    "an inner join that deletes on the left": LatestJoin(left(kinds=WITH_DELETES), right(), ON),
    "an inner join that deletes on the right": LatestJoin(left(), right(kinds=WITH_DELETES), ON),
    "a left join that deletes on the left": LatestJoin(left(kinds=WITH_DELETES), right(), ON, "left"),
    "a right join that deletes on the right": LatestJoin(left(), right(kinds=WITH_DELETES), ON, "right"),
    "a condition on upsert keys": LatestJoin(
        left(), right(), ON, where=greater(Ref(0, "lid"), Ref(1, "rid"))
    ),
    "any condition where rows are only added": LatestJoin(
        left(kinds=("+I",)), right(kinds=("+I",)), ON, where=greater(Ref(0, "lv"), Ref(1, "rv"))
    ),
    "a source that is asked by less than the join key": LatestJoin(
        left(immutable=("lk", "lv"), asked_by=("lk",)),
        right(immutable=("rk", "rv")),
        (("lk", "rk"), ("lv", "rv")),
    ),
}

REFUSED = {
    "changes_have_no_images_before": LatestJoin(left(kinds=("+I", "-U", "+U")), right(), ON),
    "keys_have_one_type": LatestJoin(left(immutable=("lk", "lv")), right(), (("lv", "rk"), ("lk", "rk"))),
    "sources_are_asked_by_join_keys": LatestJoin(left(asked_by=("lk", "lid")), right(), ON),
    "join_keys_never_change": LatestJoin(left(immutable=()), right(), ON),
    "rest_of_condition_never_changes": LatestJoin(left(), right(), ON, where=greater(Ref(0, "lv"), 3)),
    "deletes_come_from_one_side": LatestJoin(left(kinds=WITH_DELETES), right(kinds=WITH_DELETES), ON),
    "padded_side_never_deletes": LatestJoin(left(), right(kinds=WITH_DELETES), ON, "left"),
    "emitted_rows_are_kept": LatestJoin(left(), right(), ON, settings=JoinSettings(changelog="all")),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_join_that_comes_out_right_is_accepted(name: str) -> None:
    assert faults_of(ACCEPTED[name]) == ()


@pytest.mark.parametrize("name", REFUSED)
def test_each_condition_refuses_alone_with_a_remedy(name: str) -> None:
    join = REFUSED[name]
    assert names(join) == [name]
    (fault,) = faults_of(join)
    with pytest.raises(ConfigurationError, match="lookup join: ") as refusal:
        check_join(join)
    assert str(refusal.value).endswith(f"{fault.reason}; {fault.remedy}")


def test_every_condition_has_a_join_that_it_refuses() -> None:
    assert set(REFUSED) == {condition.__name__ for condition in CONDITIONS}


@pytest.mark.parametrize(("kind", "deleting"), [("right", 0), ("full", 0), ("full", 1), ("left", 1)])
def test_the_side_that_can_be_missing_may_not_delete(kind: str, deleting: int) -> None:
    sides = [left(), right()]
    sides[deleting] = (left, right)[deleting](kinds=WITH_DELETES)
    assert names(LatestJoin(sides[0], sides[1], ON, kind)) == ["padded_side_never_deletes"]


@pytest.mark.parametrize(
    ("one", "other", "kind", "key"),
    [
        (left(), right(), "inner", ("left_lid", "right_rid")),
        (left(), right(key=("rk",)), "inner", ("left_lid",)),
        (left(key=("lk",)), right(), "inner", ("right_rid",)),
        (left(), right(key=("rk",)), "left", ("left_lid",)),
        (left(), right(key=("rk",)), "right", ("left_lid", "right_rk")),
        (left(key=("lk",)), right(key=("rk",)), "full", ("left_lk", "right_rk")),
    ],
)
def test_the_key_of_the_result(one: LookupSide, other: LookupSide, kind: str, key: tuple[str, ...]) -> None:
    assert LatestJoin(one, other, ON, kind).output_key == key


def test_a_join_goes_to_tasks_as_it_is() -> None:
    join = ACCEPTED["a condition on upsert keys"]
    again = pickle.loads(pickle.dumps(join))
    assert (again.on, again.where, again.output) == (join.on, join.where, join.output)
