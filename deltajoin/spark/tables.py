"""A spec met with its tables: what must hold for the join, and all that follows from both.

A table keeps the names and types that its columns had when the query began: see `PinnedSide`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice, product
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from deltajoin.core import shards
from deltajoin.core.codes import Ints, common_key_type
from deltajoin.core.conditions import check_is_condition
from deltajoin.core.deltas import Match
from deltajoin.core.evaluate import Join, evaluate
from deltajoin.core.output import determined, emitted, output_schema
from deltajoin.core.plans import Path, paths_of, unreachable_lookups
from deltajoin.core.rows import Changes
from deltajoin.core.shards import Split, split_of
from deltajoin.expressions import Ref
from deltajoin.fingerprint import fingerprint_of, named_fingerprint, parts_of, renamed_tables, renamed_tree
from deltajoin.spark.offsets import JoinIdentity, JoinStep
from deltajoin.spec import DeltaJoinSpec
from deltajoin.tree import Inner, Node, Outer, Where, flattened, nodes
from upsert import types
from upsert.errors import SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema
from upsert.store.predicate import parse_where
from upsert.store.read.pinned_columns import PinnedColumns, PinnedWhere
from upsert.store.read.snapshot import Snapshot
from upsert.store.table import Table
from upsert.store.version import Version

_POSITION: Final = "\0position"
_UNUSED: Final = "\0"
"""Begins the name of a column that the query does not use: no column of a table can have such a name."""


@dataclass(frozen=True)
class PinnedSide:
    """Some columns of a table as they were, for reads and lookups.

    Attributes:
        table: the table, whatever it is by now.
        columns: those that the query uses, as they were when it began.
    """

    table: Table
    columns: tuple[Column, ...]

    @cached_property
    def schema(self) -> TableSchema:
        """The columns of the query, without keys."""
        return TableSchema(self.columns)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The table's primary key; a column that the query does not use has a name that no column has."""
        return tuple(map(self._name_then, self.table.schema.primary_key))

    @property
    def bucket_key(self) -> tuple[str, ...]:
        """The columns whose hash decides a row's bucket, named as those of ``primary_key``."""
        return tuple(map(self._name_then, self.table.layout.bucket_key))

    def index_for(self, columns: Sequence[str]) -> str | None:
        """What serves a lookup by these columns; None for nothing."""
        index = self.table.layout.best_index(self.names_now(columns))
        return None if index is None else index.label

    def names_now(self, columns: Sequence[str]) -> tuple[str, ...]:
        """What some columns of the query are called by now."""
        return self._pinned(columns).names_in(self.table.schema)

    def where_now(self, where: Any) -> Any:
        """Filters with the present names of their columns."""
        return PinnedWhere(where, self.schema, f"table {self.table.name!r}").now(self.table.schema)

    def id_of(self, column: str) -> str:
        """The field id of a column of the query."""
        return str(self.schema.column(column).id)

    def forms(self) -> list[dict[str, Column]]:
        """The columns by their names in the query, as each definition of the table has them."""
        found: list[dict[str, Column]] = []
        for version in range(self.table.definition.version, -1, -1):
            schema = self.table.published.definition_at(version).schema
            there = {column.id: column for column in schema.columns}
            if all(column.id in there for column in self.columns):
                form = {column.name: there[column.id] for column in self.columns}
                found += [] if form in found else [form]
        return found

    def changes_between(
        self,
        start: Version,
        end: Version,
        columns: Sequence[str],
        buckets: Collection[int] | None = None,
        where: Any = None,
    ) -> pa.Table:
        """The consolidated changes of one step, as ``Table.changes_between`` gives them."""
        return self._pinned(columns).read(
            self.table,
            lambda names: self.table.changes_between(
                start, end, columns=names, buckets=buckets, where=self.where_now(where)
            ),
        )

    def scan(self, version: Version, columns: Sequence[str], where: Any = None) -> pa.Table:
        """The rows at a version, as ``View.scan`` gives them."""
        pinned = self._pinned(columns)
        return pinned.read(
            self.table, lambda names: self.table.at(version).scan(names, self.where_now(where))
        )

    def lookup(self, version: Version, by: Sequence[str], keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Each row that equals any of the keys once, as ``View.lookup`` gives them."""

        def read(names: tuple[str, ...]) -> pa.Table:
            view = self.table.at(version)
            return view.lookup(self.names_now(by), self._keys_now(by, keys), select=names)

        return self._pinned(columns).read(self.table, read)

    def match(self, version: Version, where: Any, images: pa.Schema) -> Match:
        """Lookups at a version, among the rows for which ``where`` is true, with the types of ``images``."""

        def match(by: Sequence[str], keys: pa.Table, select: Sequence[str]) -> tuple[Ints, pa.Table]:
            def read(names: tuple[str, ...]) -> pa.Table:
                positions, rows = self.table.at(version).match(
                    self.names_now(by), self._keys_now(by, keys), select=names, where=self.where_now(where)
                )
                return rows.append_column(_POSITION, pa.array(positions, pa.int64()))

            rows = self._pinned(select or by).read(self.table, read)
            positions = rows.column(_POSITION).to_numpy().astype(np.int64, copy=False)
            return positions, rows.select(list(select)).cast(pa.schema([images.field(n) for n in select]))

        return match

    def _pinned(self, columns: Sequence[str]) -> PinnedColumns:
        return PinnedColumns.named(self.schema, columns, f"table {self.table.name!r}")

    def _keys_now(self, by: Sequence[str], keys: pa.Table) -> pa.Table:
        """Keys under the present names of their columns; those of a column that has become wider are cast."""
        arrays = []
        for name, now in zip(by, self.names_now(by), strict=True):
            type_, values = self.table.schema.type_of(now), keys.column(name)
            is_cast = values.type != type_ and types.widens(values.type, type_)
            arrays.append(values.cast(type_) if is_cast else values)
        return pa.table(arrays, names=list(self.names_now(by)))

    def _name_then(self, now: str) -> str:
        number = self.table.schema.column(now).id
        return next((c.name for c in self.columns if c.id == number), f"{_UNUSED}{number}")


_MAX_JOINS: Final = 16
_MAX_FORMS: Final = 4096
"""Combinations of former names of the joined tables' columns that are compared with an older checkpoint."""
_JOINS: Final[dict[tuple[object, ...], Join]] = {}
"""Joins that this process has planned: a worker reads a shard of many micro-batches."""


@dataclass(frozen=True)
class JoinedTables:
    """A spec and its tables, opened in this process."""

    spec: DeltaJoinSpec
    tables: tuple[Table, ...]

    @classmethod
    def open(cls, spec: DeltaJoinSpec, uuids: Sequence[str] = ()) -> Self:
        """The tables of a spec; with ``uuids`` they must be those, for a query that continues."""
        known = uuids or (None,) * len(spec.tables)
        parts = zip(spec.tables, known, strict=True)
        joined = cls(spec, tuple(Table.open(part.path, uuid) for part, uuid in parts))
        for side, part in zip(joined.sides, spec.tables, strict=True):
            side.names_now(part.columns)
            parse_where(part.where, side.schema)
        joined._check_tree()
        return joined

    @cached_property
    def sides(self) -> tuple[PinnedSide, ...]:
        """The tables with the columns that the query began with; those of now where the spec does not say."""
        return tuple(
            PinnedSide(table, part.began or self._columns_now(number, part.columns))
            for number, (table, part) in enumerate(zip(self.tables, self.spec.tables, strict=True))
        )

    def _columns_now(self, number: int, names: Sequence[str]) -> tuple[Column, ...]:
        schema = self.tables[number].schema
        for name in names:
            schema.type_of(name, f"table t{number} of the join, {self.tables[number].name!r}")
        return tuple(schema.column(name) for name in names)

    def _check_tree(self) -> None:
        for node in nodes(self.spec.tree):
            match node:
                case Inner(_, on, where) | Outer(_, _, _, on, where):
                    for one, other in on:
                        self._check_keys(one, other)
                    if where is not None:
                        check_is_condition(where, self.type_of)
                case Where(_, condition):
                    check_is_condition(condition, self.type_of)
        if self.spec.keep is not None:
            check_is_condition(self.spec.keep, self.type_of)

    def _check_keys(self, one: Ref, other: Ref) -> None:
        of_one, of_other = self.type_of(one), self.type_of(other)
        if common_key_type(of_one, of_other) is None:
            names = [f"{self.tables[ref.table].name}.{ref.column}" for ref in (one, other)]
            raise SchemaError(
                f"join keys {names[0]} and {names[1]} must have the same scalar type, or be two integers, "
                f"got {types.sql_name(of_one)} and {types.sql_name(of_other)}; change one of the tables"
            )

    def type_of(self, ref: Ref) -> pa.DataType:
        """Type of a column."""
        return self.sides[ref.table].schema.type_of(ref.column)

    def check_lookups(self) -> None:
        """Refuse a join that would have to scan a table to find the matches of a change.

        Raises:
            SchemaError: a path needs a lookup that no index serves; the message names each INDEX to add.
        """
        if missing := unreachable_lookups(self._tree, _Facts(self)):
            raise SchemaError("; ".join(map(str, missing)))

    def paths(self) -> tuple[Path, ...]:
        """What the changes of each table look up, in turn, in the order in which the tables move."""
        return paths_of(self._tree, _Facts(self))

    @cached_property
    def _tree(self) -> Node:
        return flattened(self.spec.tree)

    @property
    def located(self) -> DeltaJoinSpec:
        """The spec with absolute paths, for processes elsewhere, and with its columns as they are now."""
        parts = zip(self.spec.tables, self.sides, strict=True)
        tables = tuple(replace(part, path=side.table.path, began=side.columns) for part, side in parts)
        return replace(self.spec, tables=tables)

    @property
    def identity(self) -> JoinIdentity:
        """What the offsets of this join must belong to."""
        spec, uuids = self.spec, tuple(table.uuid for table in self.tables)
        meaning = spec.tables, spec.tree, spec.present, lambda ref: self.sides[ref.table].id_of(ref.column)
        known = fingerprint_of(*meaning)
        return JoinIdentity(str(spec), known, uuids, parts_of(*meaning), self._named_fingerprints)

    def _named_fingerprints(self) -> frozenset[str]:
        """What release 0.1 called this join, under all the names that its columns have had."""
        found = set()
        forms = (side.forms() for side in self.sides)
        for chosen in islice(product(*forms), _MAX_FORMS):
            found.add(self._named_fingerprint(chosen))
        return frozenset(found)

    def _named_fingerprint(self, forms: Sequence[Mapping[str, Column]]) -> str:
        def name(ref: Ref) -> str:
            return forms[ref.table][ref.column].name

        tables = renamed_tables(self.spec.tables, name)
        fingerprint = named_fingerprint(tables, renamed_tree(self.spec.tree, name), self.spec.present)
        altered: list[str] = []
        for number, (table, part) in enumerate(zip(self.tables, self.spec.tables, strict=True)):
            first = {c.name: (c.id, c.type) for c in table.published.definition_at(0).schema.columns}
            altered += [
                f"t{number}.{column.name} {column.id} {types.sql_name(column.type)}"
                for column in (forms[number][used] for used in part.columns)
                if first.get(column.name) != (column.id, column.type)
            ]
        if not altered:
            return fingerprint
        # columns that were not those that their tables were created with under these names
        return hashlib.sha256("\0".join((fingerprint, *altered)).encode()).hexdigest()[:16]

    @property
    def output(self) -> pa.Schema:
        """Arrow schema of the join's rows: the spec's columns, all nullable, and ``_row_kind``."""
        return output_schema(self.spec, [self.images(table) for table in range(len(self.tables))])

    @property
    def roots(self) -> tuple[int, ...]:
        """Tables that every output row has a part of, so that a first load may be sliced by their rows."""
        return tuple(sorted(shards.roots(self.spec.tree)))

    @cached_property
    def split(self) -> Split:
        """How a step is cut into shards."""
        known = determined(self.spec.tree, emitted(self.spec)) if self.spec.is_net else None
        identities = [self._identity_of(table) for table in range(len(self.tables))]
        return split_of(self.spec.tree, self.type_of, identities, known)

    def _identity_of(self, table: int) -> tuple[str, ...]:
        select, key = self.spec.tables[table].select, self.sides[table].primary_key
        return key if key and set(key) <= set(select) else select

    def needed_keys(self, table: int) -> tuple[str, ...]:
        """Columns of a table in which a NULL means that a row takes no part at all."""
        return shards.needed_keys(self.spec.tree, table)

    def images(self, table: int) -> pa.Schema:
        """Arrow schema of a table's rows as the join carries them: the selected columns, all nullable."""
        schema = self.sides[table].schema
        return pa.schema([pa.field(name, schema.type_of(name)) for name in self.spec.tables[table].select])

    def changes(self, table: int) -> pa.Schema:
        """Arrow schema of a table's changes: its images, then ``_row_kind``."""
        return self.images(table).append(pa.field(ROW_KIND_COLUMN, pa.string()))

    def match(self, table: int, version: Version) -> Match:
        """Lookups in one of the tables at a version."""
        return self.sides[table].match(version, self.spec.tables[table].where, self.images(table))

    @cached_property
    def join(self) -> Join:
        """The join as `deltajoin.core.evaluate` evaluates it."""
        known = self._known_by()
        if (join := _JOINS.get(known)) is None:
            schemas = [self.images(table) for table in range(len(self.tables))]
            join = Join.of(self.spec, schemas, self.split, _Facts(self))
            if len(_JOINS) == _MAX_JOINS:
                _JOINS.clear()
            _JOINS[known] = join
        return join

    def _known_by(self) -> tuple[object, ...]:
        """What a join follows from: the spec, the tables' definitions, and about how many rows they have.

        The order of lookups is chosen again when a table has doubled; estimates cost as much as a lookup.
        """
        rows = (table.published.latest().rows for table in self.tables)
        definitions = ((table.uuid, table.definition.version) for table in self.tables)
        return self.spec.to_json(), *definitions, *(count.bit_length() for count in rows)

    def evaluate(
        self, step: JoinStep, changes: Sequence[Changes], *, shard: int = 0, shards: int = 1
    ) -> Iterator[pa.RecordBatch]:
        """Consolidated rows of one shard of a step, given its consolidated changes; batches as ``output``."""
        before, after = (
            [
                self.split.cut_lookup(table, self.match(table, version), shard, shards)
                for table, version in enumerate(versions)
            ]
            for versions in (step.old, step.new)
        )
        yield from evaluate(self.join, changes, before, after)


class _Facts:
    """What is known of the tables: their indexes, and statistics of their latest snapshots."""

    def __init__(self, joined: JoinedTables) -> None:
        self._joined = joined
        self._snapshot = cache(self._latest)
        self._estimate = cache(self._estimated)

    def name(self, table: int) -> str:
        """Its name."""
        return self._joined.tables[table].name

    def index_for(self, table: int, columns: Sequence[str]) -> str | None:
        """What serves a lookup by these columns."""
        return self._joined.sides[table].index_for(columns)

    def rows_per_key(self, table: int, columns: Sequence[str]) -> float:
        """How many rows one key is expected to have."""
        return self._estimate(table, tuple(columns))

    def select(self, table: int) -> tuple[str, ...]:
        """Columns that come out of the join."""
        return self._joined.spec.tables[table].select

    def _latest(self, table: int) -> Snapshot:
        return self._joined.tables[table].snapshot()

    def _estimated(self, table: int, columns: tuple[str, ...]) -> float:
        snapshot: Snapshot = self._snapshot(table)
        return snapshot.rows_per_key(self._joined.sides[table].names_now(columns))
