"""What an aggregate gives as a table of its own, for plans that join it or aggregate it again.

Its rows are made of those of the aggregate's stage: a step of the stage is a step of this table. A plan reads
it as it reads any table: by its key, by indexes, and by its changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from planner.plan.nodes import Plan
from planner.spark.template import Template
from planner.views.drawing import Part
from planner.views.inputs import Input, Planning
from planner.views.kept_table import KeptTable, brought, snapshot_of
from planner.views.moves import Versions
from planner.views.stage_table import IS_NULL, StageTable, key_of
from planner.views.stages import looked_up
from upsert.managed import frames
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import Column as TableColumn
from upsert.schema import Index, TableSchema
from upsert.spark.columns import stored_type
from upsert.store.metadata.stands_for import Costs
from upsert.types import is_scalar
from upsert.views.refresh import Computed

_KEY: Final = "key_"


class ResultTable(KeptTable):
    """The rows of one aggregate where a plan reads them."""

    def __init__(self, planning: Planning, stage: StageTable, plan: Plan) -> None:
        """Of a stage in a plan; the table itself may not be there yet."""
        self._stage = stage
        self._groups = stage.group_outputs
        sums, columns, rows = stage.opened(), stage.stage.columns, stage.row_count
        self._all_rows = self._made(stage.results(frames.read(planning.catalyst.session, sums.path, 0)))
        schema = self._schema_of(self._all_rows, looked_up(plan, columns))
        path = planning.folder_of(f"{stage.name}-rows-{_short(schema)}", rows)
        buckets = sums.options.bucket
        super().__init__(planning, path, schema, columns, buckets=buckets, bases=stage.bases, rows=rows)

    @cached_property
    def _rows(self) -> Template[Input]:
        """All rows of the table; made, as the changes are, when it is wanted: one of them often is not."""
        return self._planning.template(self._all_rows.where(F.col(ROW_KIND_COLUMN) != RowKind.DELETE.value))

    @cached_property
    def _changes(self) -> Template[Input]:
        """The changes of the table, made of those of the stage."""
        session, sums = self._planning.catalyst.session, self._stage.opened()
        changed = frames.read_changes(session, sums.path, scan_source="files")
        return self._planning.template(self._made(self._stage.changed_results(changed)))

    @property
    def part(self) -> Part:
        """What it is, and what moves it."""
        return Part(self.name, self.title, ("by changes: the results of its stage",), "", (self._stage.part,))

    def at(self, versions: Versions) -> int:
        """The table's snapshot that stands for some versions of the base tables: brought there.

        Raises:
            CommitConflictError: another process has brought it further.
        """
        target = {uuid: versions[uuid] for uuid in self.bases}

        def rows(known: Versions, costs: Costs) -> Computed:
            sums, to = self._stage.at(versions)
            since = snapshot_of(sums, known) if known else None
            begin = {} if since is None else {sums.uuid: since}
            move = self._planning.move({sums.uuid: sums.path}, begin, {sums.uuid: to}, costs)
            template = self._rows if move.step is None else self._changes
            return Computed(self._planning.computed(template, move), move.refresh, are_all=move.step is None)

        _, found = brought(self.opened(), target, rows)
        return found

    def _made(self, results: DataFrame) -> DataFrame:
        """The table's rows and their kind, of results of the stage."""
        names = [f"column_{number}" for number in range(len(results.columns) - 1)]
        numbered = results.toDF(*names, ROW_KIND_COLUMN)
        return numbered.select(*names, *self._keys(numbered), ROW_KIND_COLUMN)

    def _keys(self, rows: DataFrame) -> list[Column]:
        """Columns for the key where groups may be NULL, or are of several fields, which no key may be."""
        found = []
        for number in self._groups:
            field = rows.schema[number]
            if not _is_key(field):
                found += key_of(F.col(field.name), field.dataType, _KEY, str(number))
        return found

    def _schema_of(self, rows: DataFrame, indexes: Sequence[tuple[int, ...]]) -> TableSchema:
        fields = [field for field in rows.schema if field.name != ROW_KIND_COLUMN]
        key = []
        for number in self._groups:
            whole = f"column_{number}"
            made = (f"{_KEY}{number}", f"{IS_NULL}{number}")
            parts = [
                name
                for name in rows.columns
                if name in made or name.startswith(tuple(f"{one}_" for one in made))
            ]
            key += [whole] if _is_key(rows.schema[whole]) else parts
        columns = (
            TableColumn(field.name, stored_type(field, "a stage"), field.name not in key) for field in fields
        )
        types = tuple(columns)
        scalars = {column.name for column in types if is_scalar(column.type)}
        by = ([f"column_{number}" for number in numbers] for numbers in indexes)
        found = ([name for name in names if name in scalars] for names in by)  # no index is over a struct
        kept = dict.fromkeys(Index.over(names) for names in found if names)
        return TableSchema(types, tuple(key), indexes=tuple(kept))


def _is_key(field: StructField) -> bool:
    return not field.nullable and not isinstance(field.dataType, StructType)


def _short(schema: TableSchema) -> str:
    """What tells tables of one stage apart that are looked up by other columns."""
    return hashlib.sha256(json.dumps(schema.to_json(), sort_keys=True).encode()).hexdigest()[:8]
