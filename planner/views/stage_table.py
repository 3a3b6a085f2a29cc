"""Stages at work: hidden tables with the sums of a query's aggregates, moved by the changes of its tables.

A stage's table has a row for each group that there has been: its key, and its sums, which the merge engine
``aggregation`` adds up. Each of its commits says which versions of which tables the sums are of, so a step
that is repeated after a crash finds its versions there, and a step that cannot be read is replaced by
computing all sums again. A group without rows stays in the table with a count of 0, and in no result.

What the aggregate gives may be a table of its own, for plans that join it or aggregate it again. Its rows are
made of those of the stage: a step of the stage is a step of this table. A plan reads it as it reads any
table: by its key, by indexes, and by its changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from planner.plan.nodes import Plan
from planner.spark.build import SumsOf
from planner.views.drawing import Part, keys_of
from planner.views.inputs import Planning
from planner.views.kept_table import (
    COLUMN,
    columns_of,
    meaning_of,
    most_rows,
    names_of,
    step_in_words,
)
from planner.views.moves import bases_of
from planner.views.rows_table import Followed, KeptRows, RowsTable
from planner.views.stages import Stage, looked_up, shown
from upsert.managed import frames
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import Column as TableColumn
from upsert.schema import Index, TableSchema
from upsert.types import is_scalar, quoted

_GROUP: Final = "group_"
_IS_NULL: Final = "is_null_"
"""What the names of columns begin with that say whether a value is NULL."""

_ALL: Final = "all_rows"

_KEY: Final = "key_"
"""What those begin with of a key of results."""

_DEFAULTS: Final[Mapping[type[t.DataType], str]] = {
    t.BooleanType: "false",
    t.ByteType: "0",
    t.ShortType: "0",
    t.IntegerType: "0",
    t.LongType: "0",
    t.DecimalType: "0",
    t.StringType: "''",
    t.BinaryType: "X''",
    t.DateType: "'1970-01-01'",
    t.TimestampType: "'1970-01-01 00:00:00'",
    t.TimestampNTZType: "'1970-01-01 00:00:00'",
}
"""Types that a group can have as a key, and what stands for NULL in a column that must have a value."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StageTable(RowsTable):
    """The table of one stage; what a plan reads of it are the results that its sums make.

    Attributes:
        stage: the aggregate.
        sums: its sums, and what they make.
        groups: the columns of a group.
    """

    stage: Stage
    sums: SumsOf
    groups: t.StructType
    kind: ClassVar[str] = "stage"

    @property
    def group_outputs(self) -> tuple[int, ...]:
        """Where the groups are among the outputs of the stage, each once; () if it is of all rows."""
        values = [output.value for output in self.stage.changes.outputs]
        return tuple(dict.fromkeys(values.index(group.by.value) for group in self.stage.changes.groups))

    @property
    def title(self) -> str:
        """Its name, its key, and how many groups there are."""
        if not self.groups.fields:
            return f"{self.kind} {self.name}, one row"
        groups = self.planning.rows_in_words(self.path, "groups")
        return f"{self.kind} {self.name} ({keys_of(self.schema)}), {groups}"

    @property
    def group_count(self) -> int:
        """How many groups there are; 0 before the first time, if that is to come."""
        return self.planning.rows_in(self.path)

    def read(self, version: int) -> DataFrame:
        """The aggregate's rows in a snapshot of the table."""
        return _without_gone(self.results(super().read(version)))

    def results(self, kept: DataFrame) -> DataFrame:
        """The aggregate's columns and their kind, made of rows of the table."""
        fields = enumerate(self.groups)
        values = (
            f"{_value(field.dataType, str(number))} AS {quoted(field.name)}" for number, field in fields
        )
        groups = kept.selectExpr(*values, *map(quoted, self.sums.kept.values()))
        catalyst = self.planning.catalyst
        return catalyst.dataframe(self.sums.results(catalyst, groups))

    def changed_results(self) -> DataFrame:
        """The same of the table's changes, for each group that has changed.

        A group that no row is left of stays, with sums of nothing, until all sums are computed again.
        """
        session = self.planning.catalyst.session
        changes = frames.read_changes(session, self.path, scan_source="files")
        count = quoted(self.sums.count)
        left = f"CASE WHEN {ROW_KIND_COLUMN} = '{RowKind.DELETE}' THEN 0L ELSE {count} END AS {count}"
        sums = (left if name == self.sums.count else quoted(name) for name in changes.columns)
        return self.results(
            changes.where(f"{ROW_KIND_COLUMN} <> '{RowKind.UPDATE_BEFORE}'").selectExpr(*sums)
        )


def stage_table(planning: Planning, stage: Stage) -> StageTable | None:
    """The table of a stage, which may not be there yet; None where its groups cannot be a key."""
    rows = planning.built(stage.rows)
    sums = SumsOf(stage.changes)
    groups = t.StructType([rows.schema[name] for name in sums.groups])
    if not all(_can_be_key(field.dataType) for field in groups):
        return None
    more = *sums.kept, groups.json()
    name = meaning_of(planning.catalyst, stage.node, stage.text, stage.tables, *more)
    all_rows = _keyed(sums, groups, rows.selectExpr("*", f"'{RowKind.INSERT}' AS {ROW_KIND_COLUMN}"))
    changes = _keyed(sums, groups, planning.built(stage.changes.child))
    added = {f"fields.{one}.aggregate-function": "sum" for one in sums.kept.values()}
    key = [one for one in all_rows.columns if one not in sums.kept.values()]
    kept = KeptRows(
        planning,
        Followed(bases_of(stage.tables), stage.still, planning.template(changes)),
        planning.template(all_rows),
        Part(reads=names_of(stage.tables)),
        name=name,
    )
    return StageTable(
        planning=planning,
        path=planning.folder_of(name, most_rows(stage.tables)),
        schema=TableSchema(columns_of(all_rows.schema, key), tuple(key)),
        columns=stage.columns,
        tables=stage.tables,
        options={"merge-engine": "aggregation", **added},
        kept=kept,
        moved=f"its sums are moved by {step_in_words(stage.tables, stage.still)}",
        shown=shown(stage.changes),
        stage=stage,
        sums=sums,
        groups=groups,
    )


def _keyed(sums: SumsOf, groups: t.StructType, rows: DataFrame) -> DataFrame:
    """The sums of some rows by group, as the table has them."""
    key = [] if groups.fields else [f"0 AS {_ALL}"]
    for number, group in enumerate(groups):
        key += _key_of(quoted(group.name), group.dataType, _GROUP, str(number))
    return sums.by_group(rows).selectExpr(*key, *map(quoted, sums.kept.values()))


def _key_of(value: str, type_: t.DataType, kind: str, number: str) -> list[str]:
    """The columns of a key for a value that may be NULL, or for those of a struct: none of them is NULL.

    In Spark SQL, as all columns here: a call for each of the functions of PySpark takes a dozen crossings.

    Args:
        value: of a type for which `_can_be_key` holds.
        type_: that type.
        kind: what begins the names of the columns for values.
        number: what ends all of their names.
    """
    is_null = f"{value} IS NULL AS {_IS_NULL}{number}"
    if isinstance(type_, t.StructType):
        fields = ((f"{value}.{quoted(one.name)}", one.dataType) for one in type_.fields)
        inner = (_key_of(*one, kind, f"{number}_{place}") for place, one in enumerate(fields))
        return [*(column for columns in inner for column in columns), is_null]
    default = f"CAST({_DEFAULTS[type(type_)]} AS {type_.simpleString()})"
    return [f"coalesce({value}, {default}) AS {kind}{number}", is_null]


def _value(type_: t.DataType, number: str) -> str:
    """The value of a group, made of the columns of its key."""
    value = f"{_GROUP}{number}"
    if isinstance(type_, t.StructType):
        fields = (
            f"{_value(one.dataType, f'{number}_{place}')} AS {quoted(one.name)}"
            for place, one in enumerate(type_.fields)
        )
        value = f"struct({', '.join(fields)})"
    return f"CASE WHEN NOT {_IS_NULL}{number} THEN {value} END"


def _can_be_key(type_: t.DataType) -> bool:
    """Whether the values of a type are told apart by a key as GROUP BY tells them apart."""
    if isinstance(type_, t.StructType):
        return bool(type_.fields) and all(_can_be_key(field.dataType) for field in type_.fields)
    if isinstance(type_, t.StringType) and type_.simpleString() != "string":
        return False  # a collation calls other texts equal than a key does
    return type(type_) in _DEFAULTS


def result_table(planning: Planning, stage: StageTable, plan: Plan) -> RowsTable:
    """What an aggregate gives, as a table with the indexes by which a plan looks it up; see `KeptTable`."""
    path, columns, rows = stage.opened().path, stage.stage.columns, stage.group_count
    of_none = frames.read(planning.catalyst.session, path, 0)
    all_rows, key = _with_key(stage.results(of_none), stage.group_outputs)
    changes, _ = _with_key(stage.changed_results(), stage.group_outputs)
    kept = KeptRows(
        planning,
        Followed({stage.uuid: path}, frozenset(), planning.template(changes)),
        planning.template(_without_gone(all_rows)),
        Part(reads=frozenset((stage.name,))),
    )
    types = columns_of(all_rows.drop(ROW_KIND_COLUMN).schema, key)
    schema = TableSchema(types, key, indexes=_indexes(types, looked_up(plan, columns)))
    return RowsTable(
        planning=planning,
        path=planning.folder_of(f"{stage.name}-rows-{_short(schema)}", rows),
        schema=schema,
        columns=columns,
        tables=stage.tables,
        row_count=rows,
        kept=kept.over([stage]),
        moved="the results of its stage",
    )


def _without_gone(results: DataFrame) -> DataFrame:
    """The results of the groups that have rows: a stage has others too."""
    return results.where(f"{ROW_KIND_COLUMN} <> '{RowKind.DELETE}'")


def _with_key(results: DataFrame, groups: Sequence[int]) -> tuple[DataFrame, tuple[str, ...]]:
    """Results of a stage, as a table has them, and the names of its key.

    The key has columns of its own where a group may be NULL, or is of several fields, which no key may be.
    """
    names = [f"{COLUMN}{number}" for number in range(len(results.columns) - 1)]
    numbered, key, more = results.toDF(*names, ROW_KIND_COLUMN), list[str](), list[str]()
    for number in groups:
        field = numbered.schema[number]
        if field.nullable or isinstance(field.dataType, t.StructType):
            parts = _key_of(field.name, field.dataType, _KEY, str(number))
            more += parts
            key += (part.rpartition(" AS ")[2] for part in parts)
        else:
            key.append(field.name)
    return numbered.selectExpr(*names, *more, ROW_KIND_COLUMN), tuple(key)


def _indexes(columns: Sequence[TableColumn], by: Sequence[tuple[int, ...]]) -> tuple[Index, ...]:
    """The indexes by which rows are looked up, without columns that no index can have."""
    scalars = ([columns[one].name for one in numbers if is_scalar(columns[one].type)] for numbers in by)
    return tuple(dict.fromkeys(Index.over(names) for names in scalars if names))


def _short(schema: TableSchema) -> str:
    """What tells tables of one stage apart that are looked up by other columns."""
    return hashlib.sha256(json.dumps(schema.to_json(), sort_keys=True).encode()).hexdigest()[:8]
