"""A spec met with its two tables: what must hold for the join, and the types that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import pyarrow as pa

from deltajoin.offset import JoinIdentity
from deltajoin.row_codes import Ints, common_key_type
from deltajoin.spec import DeltaJoinSpec, Side
from deltajoin.two_tables import JoinTypes, Match, output_schema
from upsert import types
from upsert.errors import SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store.filters import parse_where
from upsert.store.table import Table
from upsert.store.version import Version

SIDES: Final = ("left", "right")


@dataclass(frozen=True)
class JoinedTables:
    """A spec and its tables, opened in this process."""

    spec: DeltaJoinSpec
    left: Table
    right: Table
    types: JoinTypes

    @classmethod
    def open(cls, spec: DeltaJoinSpec) -> Self:
        """The tables of a spec.

        Raises:
            TableNotFoundError: there is no table at a path.
            SchemaError: a column is unknown, a filter does not fit it, or the keys cannot be compared.
        """
        left, right = (Table.open(side.path) for side in spec.sides)
        for name, table, side in zip(SIDES, (left, right), spec.sides, strict=True):
            _check_columns(table, side, name)
            parse_where(side.table.pushed, table.schema)
        keys = tuple(
            _key_type(left, right, a, b) for a, b in zip(*(side.keys for side in spec.sides), strict=True)
        )
        output = output_schema(
            *(
                _selected(table.schema, side.select)
                for table, side in zip((left, right), spec.sides, strict=True)
            )
        )
        return cls(spec, left, right, JoinTypes(keys, output))

    def check_lookups(self) -> None:
        """Refuse a join that would have to scan a table to find the matches of a change.

        Raises:
            SchemaError: a side has no index within its join keys; the message names the INDEX to add.
        """
        for name, table, side in zip(SIDES, self.tables, self.spec.sides, strict=True):
            if table.snapshot().index_for(side.keys) is None:
                keys = ", ".join(side.keys)
                raise SchemaError(
                    f"{name} side of the join, table {table.name!r}: a PRIMARY KEY, a prefix of it or an "
                    f"INDEX must lie within the join columns ({keys}), there is none; "
                    f"declare INDEX ({keys}) in its CREATE TABLE"
                )

    @property
    def tables(self) -> tuple[Table, Table]:
        """Left, then right."""
        return self.left, self.right

    @property
    def located(self) -> DeltaJoinSpec:
        """The spec with absolute paths, for processes with another working folder."""
        located = (
            replace(part, path=table.path) for part, table in zip(self.spec.tables, self.tables, strict=True)
        )
        return replace(self.spec, tables=tuple(located))

    @property
    def identity(self) -> JoinIdentity:
        """What the offsets of this join must belong to."""
        return JoinIdentity(str(self.spec), self.spec.fingerprint, (self.left.uuid, self.right.uuid))

    def match(self, side: int, version: Version) -> Match:
        """Lookups in one of the tables at a version, by keys of the other one."""
        part = self.spec.sides[side]
        view, schema = self.tables[side].at(version), self.images(side)

        def match(keys: pa.Table) -> tuple[Ints, pa.Table]:
            probe = keys.rename_columns(list(part.keys))
            positions, rows = view.match(part.keys, probe, select=part.select, where=part.table.pushed)
            return positions, rows.cast(schema)

        return match

    def images(self, side: int) -> pa.Schema:
        """Arrow schema of a side's rows as the join carries them: the selected columns, all nullable."""
        return _selected(self.tables[side].schema, self.spec.sides[side].select)

    def changes(self, side: int) -> pa.Schema:
        """Arrow schema of a side's changes: its images, then ``_row_kind``."""
        return self.images(side).append(pa.field(ROW_KIND_COLUMN, pa.string()))


def _selected(schema: TableSchema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, schema.type_of(name)) for name in names])


def _check_columns(table: Table, side: Side, name: str) -> None:
    for column in side.table.columns:
        table.schema.type_of(column, f"{name} side of the join, table {table.name!r}")


def _key_type(left: Table, right: Table, a: str, b: str) -> pa.DataType:
    of_a, of_b = left.schema.type_of(a), right.schema.type_of(b)
    if common := common_key_type(of_a, of_b):
        return common
    raise SchemaError(
        f"join keys {left.name}.{a} and {right.name}.{b} must have the same scalar type, or be two integers, "
        f"got {types.sql_name(of_a)} and {types.sql_name(of_b)}; change one of the tables"
    )
