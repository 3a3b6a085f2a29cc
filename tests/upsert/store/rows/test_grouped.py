"""Groups of rows that come in pieces, beside plain Python over all rows."""

import math
from decimal import ROUND_HALF_UP, Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from upsert.store.rows import grouped
from upsert.store.rows.computed import NotInArrowError
from upsert.store.rows.grouped import GroupFunction, RunningGroups

MONEY = pa.decimal128(12, 2)
TYPES = {
    "k": pa.string(),
    "l": pa.float64(),
    "n": pa.int32(),
    "x": pa.float64(),
    "d": MONEY,
    "s": pa.binary(),
}
FUNCTIONS = [
    GroupFunction("count"),
    GroupFunction("count", ("n",)),
    GroupFunction("count", ("n", "s")),
    GroupFunction("count", ("l",), is_distinct=True),
    GroupFunction("count", ("n", "s"), is_distinct=True),
    *(GroupFunction(name, (column,)) for name in ("sum", "avg") for column in ("n", "x", "d")),
    *(GroupFunction(name, (column,)) for name in ("min", "max") for column in ("k", "n", "x", "d", "s")),
]


def rows(random: Random, count: int) -> pa.Table:
    makes = {
        "k": lambda: random.choice(["a", "b", "é", ""]),
        "l": lambda: random.choice([0.0, -0.0, math.nan, 1.5]),
        "n": lambda: random.choice([0, 1, -1, 2**31 - 1]),
        "x": lambda: random.random() * 10 ** random.randrange(9),
        "d": lambda: Decimal(random.randrange(-(10**11), 10**11)).scaleb(-2),
        "s": lambda: random.choice([b"", b"\0", b"\xff"]),
    }
    return pa.table(
        {
            name: pa.array([None if random.random() < 0.2 else make() for _ in range(count)], TYPES[name])
            for name, make in makes.items()
        }
    )


def same(value: Any) -> Any:
    """What is equal for values of one group: -0.0 is 0.0, and NaN is itself."""
    return repr(value + 0.0) if isinstance(value, float) else value


def expected(function: GroupFunction, given: list[dict[str, Any]]) -> Any:
    known = [row for row in given if None not in [row[name] for name in function.columns]]
    values = [row[function.columns[0]] for row in known] if function.columns else []
    match function.function:
        case "count" if function.is_distinct:
            return len({tuple(same(row[name]) for name in function.columns) for row in known})
        case "count":
            return len(known)
        case "min":
            return min(values, default=None)
        case "max":
            return max(values, default=None)
    if not values:
        return None
    total = values[0] * 0
    for value in values:  # in their order
        total += value
    if function.function == "sum":
        return total
    if isinstance(total, Decimal):
        return (total / len(values)).quantize(Decimal("1e-6"), ROUND_HALF_UP)
    return total / len(values)


@pytest.mark.parametrize("keys", [(), ("k",), ("l",), ("k", "l", "n")])
@pytest.mark.parametrize("at_once", [0, 1 << 20])
def test_groups_of_pieces_are_those_of_all_rows(
    keys: tuple[str, ...], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of floating-point numbers are equal to the last bit, also where rows wait for later ones."""
    monkeypatch.setattr(grouped, "_AT_ONCE", at_once)
    random = Random(len(keys))
    groups = RunningGroups(keys, FUNCTIONS, TYPES)
    pieces = [rows(random, random.choice([0, 1, 40])) for _ in range(9)]
    for piece in pieces:
        groups.add(piece)
    found = groups.rows()
    found.validate(full=True)
    by_key: dict[tuple[Any, ...], list[dict[str, Any]]] = {} if keys else {(): []}
    for row in pa.concat_tables(pieces).to_pylist():
        by_key.setdefault(tuple(same(row[name]) for name in keys), []).append(row)
    wanted = {key: [expected(function, given) for function in FUNCTIONS] for key, given in by_key.items()}
    listed = [list(row.values()) for row in found.to_pylist()]
    assert {tuple(map(same, row[: len(keys)])): row[len(keys) :] for row in listed} == wanted
    assert len(listed) == len(wanted)


def test_no_rows_are_one_group_only_without_keys() -> None:
    functions = [GroupFunction("count"), GroupFunction("sum", ("n",)), GroupFunction("avg", ("x",))]
    assert RunningGroups([], functions, TYPES).rows().to_pylist() == [
        {"result_0": 0, "result_1": None, "result_2": None}
    ]
    assert RunningGroups(["k"], functions, TYPES).rows().num_rows == 0


def test_zeros_are_one_key_and_come_out_as_zero() -> None:
    groups = RunningGroups(["l"], [], TYPES)
    groups.add(pa.table({"l": [-0.0, math.nan, None, 0.0, -math.nan]}))
    assert repr(groups.rows()["group_0"].to_pylist()) == "[0.0, nan, None]"


@pytest.mark.parametrize(
    ("type_", "value", "count"),
    [
        (pa.int64(), 1 << 62, 2),
        (pa.int64(), -(1 << 63), 1),
        (pa.decimal128(38, 2), Decimal(9 * 10**35), 2),
        (pa.decimal128(38, 2), Decimal(5 * 10**35), 2),
    ],
)
def test_a_sum_that_may_overflow_on_the_way_is_refused(type_: pa.DataType, value: Any, count: int) -> None:
    """In whichever pieces its values come, and whatever takes it back."""
    groups = RunningGroups([], [GroupFunction("sum", ("v",))], {"v": type_})
    pieces = [pa.table({"v": pa.array([value * (-1) ** part], type_)}) for part in range(count)]
    for piece in pieces[:-1]:
        groups.add(piece)
    with pytest.raises(NotInArrowError, match="may overflow on the way"):
        groups.add(pieces[-1])


def test_whether_a_zero_is_negative_is_not_said_here() -> None:
    for name in ("min", "max"):
        groups = RunningGroups([], [GroupFunction(name, ("x",))], TYPES)
        groups.add(pa.table({"x": [0.0, None, math.nan, -1.0]}))
        with pytest.raises(NotInArrowError, match=r"of 0\.0 and -0\.0"):
            groups.add(pa.table({"x": [1.0, -0.0]}))


def test_what_has_no_result_is_refused() -> None:
    given = {"tags": pa.list_(pa.string()), "name": pa.string()}
    for function in (GroupFunction("sum", ("name",)), GroupFunction("min", ("tags",))):
        with pytest.raises(NotInArrowError):
            RunningGroups([], [function], given)
    with pytest.raises(NotInArrowError, match="no scalar"):
        RunningGroups(["tags"], [], given)
    counted = RunningGroups([], [GroupFunction("count", ("tags",))], given)
    counted.add(pa.table({"tags": [["a"], None], "name": ["a", "b"]}))
    assert counted.rows().to_pylist() == [{"result_0": 1}]


def test_what_is_kept_grows_with_the_groups_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "_AT_ONCE", 0)
    groups = RunningGroups(["k"], [GroupFunction("sum", ("n",))], TYPES)
    for _ in range(20):
        groups.add(pa.table({"k": ["a", "b"] * 500, "n": pa.array([1] * 1000, pa.int32())}))
    assert groups.nbytes < 100
    assert groups.rows().to_pylist() == [
        {"group_0": "a", "result_0": 10_000},
        {"group_0": "b", "result_0": 10_000},
    ]
