"""Random join trees, random tables for them, and what such a tree must give, row by row in Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from deltajoin.expressions import Call, Condition, Const, Field, Ref
from deltajoin.spec import DeltaJoinSpec, JoinedTable
from deltajoin.tree import Inner, Leaf, Node, Outer, Where, leaves, null_supplied, visible
from tests.deltajoin.core.memory_tables import Row, Rows, counted, hashable

COLUMNS = ("id", "k", "m", "f")
SCHEMAS = (
    pa.schema({"id": pa.int64(), "k": pa.int32(), "m": pa.int64(), "f": pa.float64()}),
    pa.schema({"id": pa.int32(), "k": pa.int64(), "m": pa.int16(), "f": pa.float64()}),
)
FLOATS = (None, 0.0, -0.0, 1.0, float("nan"))

Joined = tuple[Row | None, ...]
"""One row of the join: for each table its row, or None."""


def random_row(random: Random) -> Row:
    """Few different values, so that rows meet, are equal, and have NULLs in all places."""
    key = random.choice((0, 0, 1, 1, 2, None))
    return random.randint(0, 2), key, random.choice((0, 1, None)), hashable(random.choice(FLOATS) or key)


def random_state(random: Random) -> Rows:
    return counted(random_row(random) for _ in range(random.randint(0, 4)))


def next_state(random: Random, old: Rows) -> Rows:
    """Rows come, go and change, and often all stays."""
    if random.random() < 0.25:
        return old
    kept = [row for row in old.elements() if random.random() < 0.6]
    return counted(kept) + random_state(random)


def random_tree(random: Random, tables: int, kinds: Sequence[str], *, one_key: bool = False) -> Node:
    """Some tree over so many tables; with ``one_key`` all joins are by one column."""
    parts: list[Node] = [Leaf(table) for table in range(tables)]
    random.shuffle(parts)
    while len(parts) > 1:
        taken = [parts.pop() for _ in range(min(len(parts), random.choice((2, 2, 2, 3))))]
        parts.insert(random.randint(0, len(parts)), _joined(random, taken, random.choice(kinds), one_key))
    return _perhaps_filtered(random, parts[0])


def _joined(random: Random, parts: list[Node], kind: str, one_key: bool) -> Node:
    if kind != "inner":
        rest = _joined(random, parts[1:], "inner", one_key) if len(parts) > 2 else parts[1]
        on = tuple(_pair(random, parts[0], rest, one_key) for _ in range(random.choice((1, 1, 2))))
        return Outer(
            kind, _perhaps_filtered(random, parts[0]), rest, on, _condition(random, (parts[0], rest))
        )
    on = tuple(_pair(random, random.choice(parts[:i]), parts[i], one_key) for i in range(1, len(parts)))
    if random.random() < 0.3:
        on = (*on, _pair(random, parts[0], parts[-1], one_key))
    return Inner(tuple(parts), on, _condition(random, parts))


def _pair(random: Random, one: Node, other: Node, one_key: bool) -> tuple[Ref, Ref]:
    left, right = (random.choice(sorted(visible(node))) for node in (one, other))
    if one_key:
        return Ref(left, "k"), Ref(right, "k")
    if random.random() < 0.2:
        return Ref(left, "f"), Ref(right, "f")
    return Ref(left, random.choice(("k", "m", "id"))), Ref(right, random.choice(("k", "m")))


def _perhaps_filtered(random: Random, node: Node) -> Node:
    condition = _condition(random, (node,))
    return node if condition is None else Where(node, condition)


def _condition(random: Random, parts: Sequence[Node]) -> Condition | None:
    if random.random() < 0.6:
        return None

    def field() -> Condition:
        table = random.choice(sorted(visible(random.choice(parts))))
        return Field(Ref(table, random.choice(("id", "k", "m"))))

    some = [
        Call(random.choice(("<", "<=", "=", "!=", "<=>")), (field(), field())),
        Call(random.choice(("isnull", "isnotnull")), (field(),)),
        Call(">", (field(), Const(0, pa.int64()))),
    ]
    first, second = random.sample(some, 2)
    return random.choice(
        (first, Call("not", (first,)), Call("or", (first, second)), Call("and", (first, second)))
    )


def value(condition: Condition, row: Joined) -> Any:
    """The condition's value for one row, in Spark's three-valued logic."""
    match condition:
        case Field(ref):
            part = row[ref.table]
            return None if part is None else part[COLUMNS.index(ref.column)]
        case Const(constant):
            return constant
        case Call(op, args):
            return _called(op, [value(arg, row) for arg in args])
    raise AssertionError(condition)


def _called(op: str, values: list[Any]) -> Any:
    if op in ("isnull", "isnotnull"):
        return (values[0] is None) == (op == "isnull")
    if op == "<=>":
        return values[0] == values[1]
    if op in ("and", "or"):
        decisive = op == "or"
        return decisive if decisive in values else None if None in values else not decisive
    if None in values:
        return None
    if op == "not":
        return not values[0]
    compare = {"=": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__"}[op]
    return getattr(values[0], compare)(values[1])


def evaluated(node: Node, states: Sequence[Rows]) -> Counter[Joined]:
    """All rows of a tree, by nested loops."""
    match node:
        case Leaf(table):
            nothing: Joined = (None,) * len(states)
            return Counter(
                {(*nothing[:table], row, *nothing[table + 1 :]): n for row, n in states[table].items()}
            )
        case Where(child, condition):
            return Counter({r: n for r, n in evaluated(child, states).items() if value(condition, r) is True})
        case Inner(children, on, where):
            result: Counter[Joined] = Counter()
            for combination in product(*(evaluated(child, states).items() for child in children)):
                row = reduce(_merged, (row for row, _ in combination))
                if _matches(row, on, where):
                    result[row] += int(np.prod([n for _, n in combination]))
            return result
        case Outer(kind, left, right, on, where):
            return _outer(kind, evaluated(left, states), evaluated(right, states), on, where)


def _outer(
    kind: str, left: Counter[Joined], right: Counter[Joined], on: Any, where: Condition | None
) -> Counter[Joined]:
    result: Counter[Joined] = Counter()
    lonely = set(right)
    for a, n in left.items():
        found = [(b, m) for b, m in right.items() if _matches(_merged(a, b), on, where)]
        lonely -= {b for b, _ in found}
        if kind in ("left", "full"):
            for b, m in found:
                result[_merged(a, b)] += n * m
        if (kind == "semi" and found) or (kind != "semi" and not found):
            result[a] += n
    if kind == "full":
        result.update({b: right[b] for b in lonely})
    return result


def _merged(one: Joined, other: Joined) -> Joined:
    return tuple(a if b is None else b for a, b in zip(one, other, strict=True))


def _matches(row: Joined, on: Any, where: Condition | None) -> bool:
    pairs = [(value(Field(one), row), value(Field(other), row)) for one, other in on]
    is_equal = all(one is not None and one == other for one, other in pairs)
    return is_equal and (where is None or value(where, row) is True)


def output_of(spec: DeltaJoinSpec, rows: Counter[Joined]) -> Rows:
    """The rows as a join gives them: emitted columns of the visible tables, then the flags."""
    result: Rows = Counter()
    for row, count in rows.items():
        if spec.keep is not None and value(spec.keep, row) is not True:
            continue
        refs = (Ref(table, name) for table in spec.visible for name in spec.tables[table].emitted)
        flags = tuple(row[table] is not None for table in spec.present)
        result[(*(value(Field(ref), row) for ref in refs), *flags)] += count
    return result


@dataclass(frozen=True)
class Facts:
    """Tables that have an index for everything, or for what ``has_index`` says; statistics are made up."""

    has_index: Callable[[int, Sequence[str]], bool] | None = None
    seed: int = 0

    def name(self, table: int) -> str:
        return f"t{table}"

    def index_for(self, table: int, columns: Sequence[str]) -> str | None:
        return "INDEX" if self.has_index is None or self.has_index(table, columns) else None

    def rows_per_key(self, table: int, columns: Sequence[str]) -> float:
        return 1.0 + Random(f"{self.seed} {table} {columns}").randint(0, 3)

    def select(self, table: int) -> tuple[str, ...]:
        return COLUMNS if table >= 0 else ()


def spec_of(random: Random, tree: Node) -> DeltaJoinSpec:
    """A spec with the flags of some tables."""
    tables = [JoinedTable(f"/t{table}", COLUMNS) for table in range(len(leaves(tree)))]
    present = [table for table in sorted(null_supplied(tree)) if random.random() < 0.5]
    return DeltaJoinSpec(tuple(tables), tree, tuple(present))


def narrowed(random: Random, spec: DeltaJoinSpec) -> DeltaJoinSpec:
    """The spec with only some columns and rows coming out, often so few that different rows are equal."""
    if random.random() < 0.3:
        return spec
    share = random.choice((0.2, 0.5, 0.8))
    tables = tuple(
        replace(table, emit=tuple(name for name in COLUMNS if random.random() < share))
        for table in spec.tables
    )
    return replace(spec, tables=tables, keep=_condition(random, (spec.tree,)))


def sql_of(node: Node) -> str:
    """The tree as a query of DuckDB over tables t0, t1, …: columns t0_id, … and flags p0, …."""
    match node:
        case Leaf(table):
            columns = ", ".join(f"{name} AS t{table}_{name}" for name in COLUMNS)
            return f"SELECT {columns}, true AS p{table} FROM t{table}"
        case Where(child, condition):
            return f"SELECT * FROM ({sql_of(child)}) WHERE {_sql(condition)}"
        case Inner(children, on, where):
            inputs = " CROSS JOIN ".join(f"({sql_of(child)}) c{i}" for i, child in enumerate(children))
            return f"SELECT * FROM {inputs} WHERE {_matching(on, where)}"
        case Outer(kind, left, right, on, where):
            inputs = f"({sql_of(left)}) l {kind.upper()} JOIN ({sql_of(right)}) r"
            return f"SELECT * FROM {inputs} ON {_matching(on, where)}"


def _matching(on: Any, where: Condition | None) -> str:
    pairs = [f"{_sql(Field(one))} = {_sql(Field(other))}" for one, other in on]
    return " AND ".join(pairs + ([] if where is None else [_sql(where)]))


def _sql(condition: Condition) -> str:
    match condition:
        case Field(ref):
            return f"t{ref.table}_{ref.column}"
        case Const(constant):
            return str(constant)
        case Call("isnull" | "isnotnull" as op, (arg,)):
            return f"({_sql(arg)} {'IS NULL' if op == 'isnull' else 'IS NOT NULL'})"
        case Call("not", (arg,)):
            return f"(NOT {_sql(arg)})"
        case Call("and" | "or" as op, args):
            return f"({f' {op} '.join(map(_sql, args))})"
        case Call("in", (arg, *options)):
            return f"({_sql(arg)} IN ({', '.join(map(_sql, options))}))"
        case Call(op, (one, other)):
            return f"({_sql(one)} {'IS NOT DISTINCT FROM' if op == '<=>' else op} {_sql(other)})"
    raise AssertionError(condition)
