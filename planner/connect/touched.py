"""Aggregates over changes over Spark Connect that are no sums: each touched group's rows are looked up.

A classic session does the same of a plan, on the same conditions: `lookup_aggregate` in
`planner.rules.aggregates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from deltajoin.aggregate.spec import DeltaAggregateSpec, Measure
from deltajoin.expressions import Condition, Ref, conjunction
from planner.connect.calls import Call, Groups
from planner.connect.select import Select
from planner.connect.sums import is_signed
from planner.plan.sources import index_within
from planner.refusals import adding_index
from upsert.errors import SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.sql.dialect import spelled
from upsert.store.rows.measures import result_type
from upsert.store.table import Table
from upsert.stream_keys import KEYS_MARK, UniqueKeys

_FUNCTIONS: Final = {
    "Average": "avg",
    "BoolAnd": "min",
    "BoolOr": "max",
    "CollectList": "collect_list",
    "CollectSet": "collect_set",
    "Count": "count",
    "CountIf": "count",
    "Max": "max",
    "MaxBy": "max_by",
    "Min": "min",
    "MinBy": "min_by",
    "Sum": "sum",
}
"""What `deltajoin.aggregate` calls a function."""

_WHERE: Final = ("in an aggregate by lookups", "counted")
_STORED: Final = "write its input into a managed table with an INDEX on the group columns, and aggregate that"


@dataclass(frozen=True)
class Touched:
    """The aggregate of one managed table, by the columns that one of its indexes finds rows by."""

    select: Select
    groups: Groups

    @property
    def index(self) -> str:
        """The index.

        Raises:
            PlanError: there is none.
        """
        keys = [ref.column for ref in self._stored(self.groups.columns, self.groups.by)]
        if (index := index_within(self._table.schema, set(keys))) is None:
            self._refuse(
                f"no PRIMARY KEY prefix or INDEX of {self._table.name!r} lies within ({', '.join(keys)})",
                adding_index(self._table.name, keys),
            )
        return index

    def spec(self, shards: int, *, is_loud: bool) -> DeltaAggregateSpec:
        """What is computed; ``is_loud`` says whether an overflow is an error.

        Raises:
            PlanError: it is more than can be computed by lookups.
        """
        groups, select = self.groups, self.select
        keys = tuple(ref.column for ref in self._stored(groups.columns, groups.by))
        measures = []
        for call in groups.calls:
            measure = self._measure(call)
            if measure.function in ("sum", "avg") and not is_loud:
                self._refuse(
                    f"{call} would have to overflow as it does without ANSI mode",
                    "set spark.sql.ansi.enabled, which makes an overflow an error",
                )
            measures.append(measure)
        found = [one.translated(part, *_WHERE) for one, part in select.conditions]
        condition = found[0] if len(found) == 1 else conjunction(*found)  # one alone as checkpoints have it
        return DeltaAggregateSpec(self._table.path, keys, tuple(measures), condition, shards)

    def rows(self, changes: DataFrame) -> DataFrame:
        """The changes of the groups, of those that the source gives."""
        if self.groups.having is not None:
            changes = changes.where(self.groups.having)
        made = (F.expr(item.value).alias(item.name) for item in self.groups.items)
        key = tuple(map(self.groups.held, range(len(self.groups.by))))
        kind = F.col(ROW_KIND_COLUMN).alias(
            ROW_KIND_COLUMN, metadata={KEYS_MARK: UniqueKeys((key,) if all(key) else ()).to_text()}
        )
        return changes.select(*made, kind)

    @property
    def _table(self) -> Table:
        first, *others = self.select.leaves
        if others or first.path is None:
            self._refuse(f"{first.alias!r} is not the only table, managed and read as it is", _STORED)
        if not self.groups.by:
            self._refuse("all rows would be one group", "group by a column")
        return Table.open(first.path)

    def _measure(self, call: Call) -> Measure:
        conditions = [] if call.condition is None else [call.condition]
        values = list(call.values)
        if call.function == "CountIf":
            conditions, values = [*conditions, *values], []
        if call.function == "Count":  # what is written there is never NULL
            values = [one for one in values if not isinstance(one, exp.Literal)]
        refs = self._stored([self.select.ref_of(one) for one in values], [spelled(one) for one in values])
        columns = tuple(ref.column for ref in refs)
        where = conjunction(*map(self._condition, conditions)) if conditions else None
        try:
            measure = Measure(_FUNCTIONS[call.function], columns, call.is_distinct, where)
            result_type(measure.function, [self._table.schema.type_of(name) for name in columns])
        except SchemaError as cause:
            self._refuse(str(cause), _STORED)
        return measure

    def _condition(self, part: exp.Expr) -> Condition:
        return self.select.translated(part, *_WHERE)

    def _stored(self, refs: Sequence[Ref | None], texts: Sequence[str]) -> list[Ref]:
        for ref, text in zip(refs, texts, strict=True):
            if ref is None:
                self._refuse(f"{text} is computed, and only stored columns are looked up", _STORED)
        return [ref for ref in refs if ref is not None]

    def _refuse(self, reason: str, remedy: str) -> NoReturn:
        what = next(call for call in self.groups.calls if not is_signed(call))
        self.select.refuse(f"{what}, for which the rows of a group are looked up, but {reason},", remedy)
