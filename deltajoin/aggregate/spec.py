"""What an aggregate by lookups computes, as a value that travels as JSON (pure)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from deltajoin import expressions, filters
from deltajoin.expressions import OPTIONAL_CONDITION, Condition, Ref, refs_of
from deltajoin.filters import Filters
from deltajoin.fingerprint import hash_of, part, renamed_condition, untyped
from upsert.codec import Jsonable, from_text, json_by, to_text
from upsert.errors import ConfigurationError
from upsert.schema import Column

FUNCTIONS: Final = {
    "avg": 1,
    "collect_list": 1,
    "collect_set": 1,
    "count": None,
    "max": 1,
    "max_by": 2,
    "min": 1,
    "min_by": 2,
    "sum": 1,
}
"""Aggregate functions and how many values each takes; None: any number."""


@dataclass(frozen=True)
class Measure(Jsonable):
    """One of `FUNCTIONS` of some stored columns; ``where`` is its FILTER, as a condition on table 0."""

    function: str
    columns: tuple[str, ...]
    is_distinct: bool = False
    where: Condition | None = field(default=None, metadata=OPTIONAL_CONDITION)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        takes = FUNCTIONS.get(self.function, -1)
        if takes is not None and takes != len(self.columns):
            raise ConfigurationError(
                f"an aggregate function must be one of {', '.join(FUNCTIONS)}, with its columns, got "
                f"{self.function!r} of {self.columns!r}"
            )

    @property
    def names(self) -> frozenset[str]:
        """All columns that it reads."""
        return frozenset(self.columns) | {ref.column for ref in refs_of(self.where)}

    def renamed(self, name: Callable[[str], str]) -> Self:
        """The same measure of columns under other names."""
        where = self.where and renamed_condition(self.where, lambda ref: name(ref.column))
        return replace(self, columns=tuple(map(name, self.columns)), where=where)

    def meaning(self, to_json: Callable[[Condition], Any] = untyped) -> list[Any]:
        """JSON values that do not depend on the types of the columns, if ``to_json`` gives such ones."""
        where = None if self.where is None else to_json(self.where)
        return [self.function, list(self.columns), self.is_distinct, where]

    def __str__(self) -> str:
        distinct = "DISTINCT " if self.is_distinct else ""
        where = "" if self.where is None else f" FILTER {self.where}"
        return f"{self.function}({distinct}{', '.join(self.columns) or '*'}){where}"


@dataclass(frozen=True)
class DeltaAggregateSpec:
    """An aggregate of one managed table, by columns that an index of it finds rows by.

    Attributes:
        groups: columns to group by, at least one.
        where: which rows count, as a condition on table 0; None for all.
        shards: tasks that share the groups of a micro-batch, at most.
        max_rows_per_trigger: changed rows that a micro-batch reads at most.
        began: the columns in ``read`` as they were when the query began, so that it finds them again after
            ``ALTER TABLE``; () for those that have the names now.
        rows: which rows of the table are read at all, as filters of the store; None for all.
    """

    path: str
    groups: tuple[str, ...]
    measures: tuple[Measure, ...]
    where: Condition | None = field(default=None, metadata=OPTIONAL_CONDITION)
    shards: int = 2
    max_rows_per_trigger: int = 1_000_000
    began: tuple[Column, ...] = field(default=(), compare=False, repr=False)
    rows: Filters | None = field(default=None, metadata=json_by(filters.from_json, filters.to_json))

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        object.__setattr__(self, "rows", filters.normalized(self.rows))
        object.__setattr__(self, "measures", tuple(self.measures))
        if not self.groups or len(set(self.groups)) != len(self.groups):
            raise ConfigurationError(f"an aggregate needs groups, each once, got {self.groups!r}")
        if self.began and {column.name for column in self.began} != set(self.read):
            raise ConfigurationError(
                f"an aggregate's began must have each column that it reads, "
                f"got {[column.name for column in self.began]!r}"
            )
        for name in ("shards", "max_rows_per_trigger"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be a positive integer, got {getattr(self, name)!r}")
        if any(
            ref.table for part in (self.where, *(m.where for m in self.measures)) for ref in refs_of(part)
        ):
            raise ConfigurationError("conditions of an aggregate must be on table 0, got another table")

    @property
    def read(self) -> tuple[str, ...]:
        """Columns of the table that it reads: those of the groups first."""
        others = {ref.column for ref in refs_of(self.where)}.union(*(m.names for m in self.measures))
        others |= set(filters.columns_of(self.rows))
        return (*self.groups, *sorted(others.difference(self.groups)))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that come out: ``group_0`` and so on, then ``result_0`` and so on."""
        groups = (f"group_{number}" for number in range(len(self.groups)))
        return (*groups, *(f"result_{number}" for number in range(len(self.measures))))

    @property
    def fingerprint(self) -> str:
        """Equal for specs that mean the same, wherever the table lies and however many tasks there are.

        Columns count by name, as in checkpoints of release 0.1; see `fingerprint_by`.
        """
        return self._hash(expressions.to_json)

    def fingerprint_by(self, id_of: Callable[[str], str]) -> str:
        """The fingerprint with columns that count by what ``id_of`` gives for them, whatever their types."""
        return self.renamed(id_of)._hash(untyped)

    def _hash(self, to_json: Callable[[Condition], Any]) -> str:
        where = None if self.where is None else to_json(self.where)
        measures = [measure.meaning(to_json) for measure in self.measures]
        rows = {} if self.rows is None else {"rows": filters.to_json(self.rows)}
        return hash_of({"groups": list(self.groups), "measures": measures, "where": where, **rows})

    def renamed(self, name: Callable[[str], str]) -> Self:
        """The same aggregate with its columns under the names that ``name`` gives them."""
        return replace(
            self,
            groups=tuple(map(name, self.groups)),
            measures=tuple(measure.renamed(name) for measure in self.measures),
            where=self.where and renamed_condition(self.where, lambda ref: name(ref.column)),
            rows=filters.renamed(self.rows, name),
            began=(),
        )

    def parts(self, id_of: Callable[[str], str]) -> tuple[str, ...]:
        """What the aggregate consists of, for `deltajoin.fingerprint.what_differs`."""
        by_ids = self.renamed(id_of)
        groups = zip(by_ids.groups, self.groups, strict=True)
        found = [part("group", json.dumps([n, key]), words) for n, (key, words) in enumerate(groups)]
        pairs = zip(by_ids.measures, self.measures, strict=True)
        found += [
            part("result", json.dumps([n, key.meaning()]), str(own)) for n, (key, own) in enumerate(pairs)
        ]
        if self.where is not None and by_ids.where is not None:
            found.append(part("filter", json.dumps(untyped(by_ids.where)), str(self.where)))
        if by_ids.rows is not None:
            words = str([list(parts) for parts in self.rows or ()])
            found.append(part("rows", json.dumps(filters.to_json(by_ids.rows)), words))
        return tuple(found)

    def __str__(self) -> str:
        functions = ", ".join(f"{m.function}({', '.join(m.columns) or '*'})" for m in self.measures)
        return f"{functions} by ({', '.join(self.groups)})"

    def to_json(self) -> str:
        """JSON text that ``from_json`` reads."""
        return to_text(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The spec of its JSON text, which is not trusted; `ConfigurationError` if it is none."""
        return from_text(cls, text, "the spec of an aggregate")


def of_table(column: str) -> Ref:
    """A column of the aggregate's table, for conditions."""
    return Ref(0, column)
