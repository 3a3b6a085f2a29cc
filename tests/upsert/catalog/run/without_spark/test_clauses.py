"""What the clauses of a MERGE make of two tables, beside rows that Python goes through one by one."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from upsert.catalog.run.without_spark import clauses
from upsert.catalog.run.without_spark.clauses import (
    SEVERAL,
    SOURCE,
    TARGET,
    THERE,
    TWICE,
    BrokenRuleError,
    Clause,
    Clauses,
    Merged,
)
from upsert.conditions.expressions import Call, Condition, Const, Field, Ref
from upsert.schema import TableSchema
from upsert.sql.statements import MergeAction, MergeRows
from upsert.store.rows.computed import NotInArrowError

Row = dict[str, Any]

SCHEMA = TableSchema.of({"id": pa.int64(), "part": pa.string(), "n": pa.int32()}, primary_key=["id", "part"])
GIVEN = pa.schema([("id", pa.int32()), ("part", pa.string()), ("n", pa.int64())])


def of(table: int, column: str) -> Field:
    return Field(Ref(table, column))


@dataclass(frozen=True)
class Said:
    """An expression, and what it is of a row of each table, of which one may be missing."""

    condition: Condition
    of: Callable[[Row, Row], Any]


ONE = Const(1, pa.int32())
CONDITIONS = {
    MergeRows.MATCHED: [
        Said(Call("<", (of(TARGET, "n"), of(SOURCE, "n"))), lambda t, s: _less(t["n"], s["n"])),
        Said(Call("isnull", (of(SOURCE, "n"),)), lambda _, s: s["n"] is None),
    ],
    MergeRows.NOT_MATCHED: [
        Said(Call("<", (of(SOURCE, "n"), Const(3, pa.int64()))), lambda _, s: _less(s["n"], 3)),
    ],
    MergeRows.NOT_MATCHED_BY_SOURCE: [
        Said(Call("isnull", (of(TARGET, "n"),)), lambda t, _: t["n"] is None),
        Said(Call("<", (of(TARGET, "n"), Const(3, pa.int32()))), lambda t, _: _less(t["n"], 3)),
    ],
}
VALUES = {
    MergeRows.MATCHED: [
        Said(of(SOURCE, "n"), lambda _, s: s["n"]),
        Said(Call("+", (of(TARGET, "n"), ONE)), lambda t, _: None if t["n"] is None else t["n"] + 1),
    ],
    MergeRows.NOT_MATCHED: [Said(of(SOURCE, "n"), lambda _, s: s["n"]), Said(ONE, lambda *_: 1)],
    MergeRows.NOT_MATCHED_BY_SOURCE: [Said(Const(None, pa.int32()), lambda *_: None)],
}
KEY = {
    "id": Said(of(SOURCE, "id"), lambda _, s: s["id"]),
    "part": Said(of(SOURCE, "part"), lambda _, s: s["part"]),
}


def _less(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other


@dataclass(frozen=True)
class Written:
    """A clause of which both ways know the parts."""

    rows: MergeRows
    action: MergeAction
    condition: Said | None
    values: dict[str, Said]

    @classmethod
    def some(cls, random: Random) -> "Written":
        rows = random.choice([*MergeRows])
        condition = random.choice([None, *CONDITIONS[rows]])
        value = {"n": random.choice(VALUES[rows])}
        if rows is MergeRows.NOT_MATCHED:
            return cls(rows, MergeAction.INSERT, condition, KEY | value)
        action = random.choice([MergeAction.UPDATE, MergeAction.DELETE])
        return cls(rows, action, condition, value if action is MergeAction.UPDATE else {})

    @property
    def clause(self) -> Clause:
        values = {name: said.condition for name, said in self.values.items()}
        return Clause(
            self.rows, self.action, None if self.condition is None else self.condition.condition, values
        )


def expected(
    target: list[Row], source: list[Row], equal: tuple[str, ...], written: list[Written]
) -> tuple[dict[tuple[Any, ...], Row] | None, tuple[int, int, int]]:
    """The rows by key, None where a rule is broken, and how many are updated, deleted and inserted."""
    met = [(t, s) for t in target for s in source if all(t[one] == s[one] is not None for one in equal)]
    rows: dict[MergeRows, list[tuple[Row, Row]]] = {
        MergeRows.MATCHED: met,
        MergeRows.NOT_MATCHED: [({}, s) for s in source if not any(s is other for _, other in met)],
        MergeRows.NOT_MATCHED_BY_SOURCE: [(t, {}) for t in target if not any(t is other for other, _ in met)],
    }
    found, changed, deleted = {(row["id"], row["part"]): row for row in target}, Counter[Any](), set[Any]()
    inserted = list[Row]()
    for kind, pairs in rows.items():
        for t, s in pairs:
            first = (w for w in written if w.rows is kind and (w.condition is None or w.condition.of(t, s)))
            if (one := next(first, None)) is None:
                continue
            new = {**t, **{name: said.of(t, s) for name, said in one.values.items()}}
            key = new["id"], new["part"]
            match one.action:
                case MergeAction.INSERT:
                    inserted.append(new)
                case MergeAction.DELETE:
                    deleted.add(key)
                    found.pop(key, None)
                case MergeAction.UPDATE:
                    changed[key] += 1
                    found[key] = new
    if any(count > 1 for count in changed.values()) or deleted & changed.keys():
        return None, (0, 0, 0)
    for row in inserted:
        if (key := (row["id"], row["part"])) in found:
            return None, (0, 0, 0)
        found[key] = row
    return found, (len(changed), len(deleted), len(inserted))


def applied(target: list[Row], merged: Merged) -> dict[tuple[Any, ...], Row]:
    """The rows by key after changes, of which there is at most one for each key."""
    found = {(row["id"], row["part"]): row for row in target}
    changes = merged.rows.to_pylist()
    assert len({(row["id"], row["part"]) for row in changes}) == len(changes)
    for row in changes:
        kind = row.pop("_row_kind")
        found.pop((row["id"], row["part"]), None)
        if kind == "+I":
            found[row["id"], row["part"]] = row
    return found


def some_rows(random: Random, count: int, *, is_target: bool) -> list[Row]:
    keys = [(id, part) for id in range(4) for part in ("a", "b")]
    chosen = random.sample(keys, count) if is_target else random.choices(keys, k=count)
    return [{"id": id, "part": part, "n": random.choice([None, 1, 2, 3, 4])} for id, part in chosen]


@pytest.mark.parametrize("seed", range(4))
def test_random_clauses_make_the_rows_that_a_loop_makes(seed: int) -> None:
    random, done, broken = Random(seed), 0, Counter[str]()
    for step in range(300):
        target = some_rows(random, random.randrange(8), is_target=True)
        source = some_rows(random, random.randrange(5), is_target=False)
        equal = random.choice([("id", "part"), ("id", "part"), ("id",), ("n",), ("part", "n")])
        written = [Written.some(random) for _ in range(random.randint(1, 5))]
        merge = Clauses(SCHEMA, [(one, one) for one in equal], None, [one.clause for one in written])
        keys = {(row["id"], row["part"]) for row in target}

        def has(asked: pa.Table, keys: set[Any] = keys) -> Any:
            return np.array([(row["id"], row["part"]) in keys for row in asked.to_pylist()], np.bool_)

        given = pa.Table.from_pylist(target, SCHEMA.arrow), pa.Table.from_pylist(source, GIVEN)
        rows, counts = expected(target, source, equal, written)
        about = f"seed {seed}, step {step}: {target}, {source}, ON {equal}, {written}"
        try:
            found = merge.merged(*given, has)
        except BrokenRuleError as error:
            assert rows is None, about
            broken[str(error).partition("{")[0]] += 1
            continue
        assert (applied(target, found), found.counts) == (rows, counts), about
        done += 1
    assert done > 100
    assert broken.keys() == {SEVERAL, TWICE, THERE}


def test_a_broken_rule_is_told_with_the_key() -> None:
    clause = Clause(MergeRows.MATCHED, MergeAction.UPDATE, None, {"n": ONE})
    target = pa.table({"id": [7], "part": ['é"'], "n": pa.array([1], pa.int32())})
    source = pa.table({"id": pa.array([7, 7], pa.int32())})
    with pytest.raises(BrokenRuleError) as error:
        Clauses(SCHEMA, [("id", "id")], None, [clause]).merged(
            target, source, lambda _: np.zeros(0, np.bool_)
        )
    assert str(error.value) == SEVERAL + '{"id":7,"part":"é\\""}'


def test_an_overflow_and_many_pairs_are_sparks(monkeypatch: pytest.MonkeyPatch) -> None:
    most = Const(2**31 - 1, pa.int32())
    clause = Clause(MergeRows.MATCHED, MergeAction.UPDATE, None, {"n": Call("+", (of(TARGET, "n"), most))})
    target = pa.table({"id": [7], "part": ["a"], "n": pa.array([1], pa.int32())})
    merge = Clauses(SCHEMA, [("id", "id")], None, [clause])
    with pytest.raises(NotInArrowError):
        merge.merged(target, pa.table({"id": [7]}), lambda _: np.zeros(0, np.bool_))
    monkeypatch.setattr(clauses, "_MOST_PAIRS", 1)
    with pytest.raises(NotInArrowError, match="pairs"):
        merge.merged(target, pa.table({"id": [7, 7]}), lambda _: np.zeros(0, np.bool_))
