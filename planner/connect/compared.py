"""Conditions on joined tables: which columns they compare, and what they are without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
from sqlglot import exp

from deltajoin.expressions import Condition, Ref, conjunction
from planner.connect.scope import Scope
from planner.refusals import PlanError, Refused
from upsert.errors import SchemaError
from upsert.schema import TableSchema
from upsert.sql.checks import condition_of
from upsert.sql.dialect import spelled
from upsert.store.table import Table

_BELOW: Final = "below an outer, semi or anti join"


class Joined(Protocol):
    """A table that is joined; `Source` is one."""

    @property
    def path(self) -> str | None:
        """The folder of a managed table that is read as it is; None for others."""


@dataclass(frozen=True)
class Compared:
    """What conditions of a SELECT say of the columns of its tables.

    Attributes:
        subject: begins errors.
        tables: those that are known by now, by their numbers.
    """

    subject: str
    tables: Mapping[int, Joined]

    def pairs(
        self, parts: Iterable[exp.Expr], scope: Scope, numbers: frozenset[int], padded: frozenset[int]
    ) -> tuple[list[tuple[Ref, Ref]], list[exp.Expr]]:
        """The columns that conditions compare with those of some tables, these second; all other conditions.

        ``padded`` has the tables in place of whose rows there may be NULLs.
        """
        pairs, others = list[tuple[Ref, Ref]](), list[exp.Expr]()
        for part in parts:
            if (pair := self._pair(part, scope, numbers, padded)) is not None:
                pairs.append(pair)
            else:
                others.append(part)
        return pairs, others

    def _pair(
        self, part: exp.Expr, scope: Scope, numbers: frozenset[int], padded: frozenset[int]
    ) -> tuple[Ref, Ref] | None:
        """The columns of both sides that a condition compares; None for any other condition.

        What is equal to a column that is never NULL is the same by ``<=>``.
        """
        if not isinstance(part, exp.EQ | exp.NullSafeEQ):
            return None
        refs: list[tuple[bool, Ref]] = []
        for side in (part.this.unnest(), part.expression.unnest()):
            if not isinstance(side, exp.Column) or isinstance(side.this, exp.Star):
                return None
            column, length = scope.named(side)
            if column.ref is None or len(side.parts) > length:
                return None
            refs.append((column.ref.table in numbers, column.ref))
        (is_first, own), (is_second, other) = sorted(refs, key=lambda one: one[0])
        if is_first or not is_second:
            return None
        if isinstance(part, exp.NullSafeEQ):
            never_null = any(self.is_never_null(ref, padded) for ref in (own, other))
            return (own, other) if never_null else None
        return own, other

    def is_never_null(self, ref: Ref, padded: frozenset[int]) -> bool:
        """Whether a column is NULL in no row, if there may be NULLs in place of rows of some tables."""
        schema = self._schema(ref)
        if schema is None or ref.table in padded:
            return False
        return ref.column in schema.primary_key or not schema.column(ref.column).may_be_null

    def _schema(self, ref: Ref) -> TableSchema | None:
        """That of the managed table that a column is of; None for any other."""
        path = self.tables[ref.table].path
        return None if path is None else Table.open(path).schema

    def translated(
        self, part: exp.Expr, scope: Scope, where: str = _BELOW, done: str = "joined"
    ) -> Condition:
        """A condition on columns of a scope that is evaluated without Spark.

        ``where`` and ``done`` say in errors where it stands, and what rows are by it.

        Raises:
            PlanError: it is more than can be evaluated so.
        """

        def column(node: exp.Column) -> Ref:
            found, length = scope.named(node)
            if found.ref is None or len(node.parts) > length:
                raise SchemaError(f"{subject} compares {spelled(node)!r}, which is computed")
            return found.ref

        def type_of(ref: Ref) -> pa.DataType:
            if (schema := self._schema(ref)) is None:
                raise SchemaError(f"{subject} compares a column of no managed table")
            return schema.type_of(ref.column)

        subject = f"{self.subject}: over Spark Connect {spelled(part)!r} {where}"
        try:
            return condition_of(part, column, type_of, subject, done)
        except SchemaError as cause:
            remedy = "store what it compares as columns, or use a classic session"
            raise PlanError([Refused(str(cause), remedy)]) from None

    def all_translated(self, parts: Iterable[exp.Expr], scope: Scope) -> Condition | None:
        """Conditions that must all hold, as one; None for none."""
        return conjunction(*(self.translated(part, scope) for part in parts))
