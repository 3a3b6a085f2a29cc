"""A spec met with its tables: what must hold for the join, and what tasks of any physical form read.

A change is cut to the columns and rows that take part in the join. A shard of a step has all changes of its
join keys, so that what consolidates to nothing meets in one task.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice, product
from typing import Final

import pyarrow as pa
from cachetools import LRUCache
from pyspark.sql.types import StringType, StructField, StructType

from deltajoin.core.consolidate import consolidate_changes
from deltajoin.core.costs import SharedTable, StepCost
from deltajoin.core.deltas import Match
from deltajoin.core.evaluate import Join, evaluate, output_schema, split_of_join
from deltajoin.core.keys import common_key_type, have_values
from deltajoin.core.plans import unreachable_lookups
from deltajoin.core.rows import Changes
from deltajoin.core.shards import Bucketing, ShardNumbers, Split, agreeing, needed_keys
from deltajoin.expressions import Ref
from deltajoin.spark.offsets import JoinIdentity, JoinStep
from deltajoin.spark.pinned_side import PinnedSide
from deltajoin.spec import DeltaJoinSpec
from deltajoin.tree import Inner, Outer, Where, flattened, nodes
from upsert import types
from upsert.arrays import Ints
from upsert.blobs import by_number
from upsert.conditions.evaluate import check_is_condition
from upsert.errors import SchemaError, TableNotFoundError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema
from upsert.spark.columns import spark_schema
from upsert.store.kept import Kept
from upsert.store.metadata import table_file
from upsert.store.predicate import parse_where
from upsert.store.read.shares import KeyShare
from upsert.store.read.snapshot import Snapshot
from upsert.store.read.steps import touched_rows
from upsert.store.table import Table
from upsert.store.version import Version, step_between

_MAX_JOINS: Final = 16
_MAX_FORMS: Final = 4096
"""Combinations of former names of the joined tables' columns that are compared with an older checkpoint."""
_JOINS: Final = Kept[tuple[object, ...], Join](lambda: LRUCache(_MAX_JOINS), is_inherited=True)
"""Joins that this process has planned: a worker reads a shard of many micro-batches."""

_MAX_OPENED: Final = 16

_MAX_MEANINGS: Final = 256
_MEANINGS: Final = Kept[tuple[object, ...], tuple[str, str, tuple[str, ...]]](
    lambda: LRUCache(_MAX_MEANINGS), is_inherited=True
)
"""What joins are in words, their fingerprints and their parts: each step asks for them several times."""


@dataclass(frozen=True)
class JoinedTables:
    """A spec and its tables, opened in this process."""

    spec: DeltaJoinSpec
    tables: tuple[Table, ...]
    _definitions: tuple[int, ...]

    @classmethod
    def open(cls, spec: DeltaJoinSpec, uuids: Sequence[str] = ()) -> JoinedTables:
        """The tables of a spec; with ``uuids`` they must be those, for a query that continues.

        A process that has opened them goes on with what it has made of their definitions, until one of them
        has another one.
        """
        known_by = spec.to_json(), tuple(uuids)
        if (kept := _OPENED.get(known_by)) is not None and kept._are_as_opened():
            return kept
        joined = cls._opened(spec, uuids)
        # any other path may lead elsewhere the next time
        if all(table.path == part.path for table, part in zip(joined.tables, spec.tables, strict=True)):
            _OPENED.put(known_by, joined)
        return joined

    @classmethod
    def _opened(cls, spec: DeltaJoinSpec, uuids: Sequence[str]) -> JoinedTables:
        known = uuids or (None,) * len(spec.tables)
        parts = zip(spec.tables, known, strict=True)
        tables = tuple(Table.open(part.path, uuid) for part, uuid in parts)
        joined = cls(spec, tables, tuple(table.definition.version for table in tables))
        for side, part in zip(joined.sides, spec.tables, strict=True):
            side.names_now(part.columns)
            parse_where(part.where, side.schema)
        joined._check_tree()
        return joined

    def _are_as_opened(self) -> bool:
        """Whether these are still the tables, under the same definitions; it looks at each."""
        try:
            for table in self.tables:
                table_file.check_named(table.path)
                table.published.looked()
        except TableNotFoundError:
            return False  # dropped, or made again
        return self._definitions == tuple(table.definition.version for table in self.tables)

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
        """Refuse a join that would have to scan a table to find the matches of a change."""
        if missing := unreachable_lookups(flattened(self.spec.tree), _Facts(self)):
            raise SchemaError("; ".join(map(str, missing)))

    @property
    def located(self) -> DeltaJoinSpec:
        """The spec with absolute paths, for processes elsewhere, and with its columns as they are now."""
        parts = zip(self.spec.tables, self.sides, strict=True)
        tables = tuple(replace(part, path=side.table.path, began=side.columns) for part, side in parts)
        return replace(self.spec, tables=tables)

    @cached_property
    def identity(self) -> JoinIdentity:
        """What the offsets of this join must belong to."""
        uuids = tuple(table.uuid for table in self.tables)
        key = self.spec.to_json(), *(tuple(column.id for column in side.columns) for side in self.sides)
        if (meaning := _MEANINGS.get(key)) is None:
            spec = self.spec
            meaning = str(spec), spec.fingerprint_by(self._id_of), spec.parts(self._id_of)
            _MEANINGS.put(key, meaning)
        words, known, parts = meaning
        return JoinIdentity(words, known, uuids, parts, self._named_fingerprints)

    def _id_of(self, ref: Ref) -> str:
        return self.sides[ref.table].id_of(ref.column)

    def _named_fingerprints(self) -> frozenset[str]:
        """What release 0.1 called this join, under all the names that its columns have had."""
        forms = product(*(side.forms() for side in self.sides))
        return frozenset(map(self._named_fingerprint, islice(forms, _MAX_FORMS)))

    def _named_fingerprint(self, forms: Sequence[Mapping[str, Column]]) -> str:
        fingerprint = self.spec.renamed(lambda ref: forms[ref.table][ref.column].name).fingerprint
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
        return output_schema(self.spec, self.images)

    @cached_property
    def split(self) -> Split:
        """How a step is cut into shards."""
        return split_of_join(self.spec, self.type_of, [side.primary_key for side in self.sides])

    @cached_property
    def images(self) -> tuple[pa.Schema, ...]:
        """Arrow schema of each table's rows as the join carries them: the selected columns, all nullable."""
        parts = zip(self.sides, self.spec.tables, strict=True)
        return tuple(
            pa.schema([pa.field(name, side.schema.type_of(name)) for name in part.select])
            for side, part in parts
        )

    @cached_property
    def changes(self) -> tuple[pa.Schema, ...]:
        """Arrow schema of each table's changes: its images, then ``_row_kind``."""
        return tuple(images.append(pa.field(ROW_KIND_COLUMN, pa.string())) for images in self.images)

    def match(self, table: int, version: Version) -> Match:
        """Lookups in one of the tables at a version."""
        return self.sides[table].match(version, self.spec.tables[table].where, self.images[table])

    @property
    def join(self) -> Join:
        """The join as `deltajoin.core.evaluate` evaluates it."""
        known = self._known_by()
        if (join := _JOINS.get(known)) is None:
            join = Join.of(self.spec, self.images, self.split, _Facts(self))
            _JOINS.put(known, join)
        return join

    def _known_by(self) -> tuple[object, ...]:
        """What a join follows from: the spec, the tables' definitions, and about how many rows they have.

        The order of lookups is chosen again when a table has doubled; estimates cost as much as a lookup.
        """
        rows = (table.published.seen.rows for table in self.tables)
        definitions = ((table.uuid, table.definition.version) for table in self.tables)
        return self.spec.to_json(), *definitions, *(count.bit_length() for count in rows)

    def evaluate(
        self,
        step: JoinStep,
        changes: Sequence[Changes],
        *,
        shard: int = 0,
        shards: int = 1,
        figures: Counter[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Consolidated rows of one shard of a step, given its consolidated changes; batches as ``output``.

        ``figures`` gets how many keys were looked up in each table, as ``t0_keys``, and how many rows these
        have, as ``t0_rows``.
        """
        counted = Counter[str]() if figures is None else figures
        before, after = (
            [
                self.split.cut_lookup(
                    table, _counted(self.match(table, version), table, counted), shard, shards
                )
                for table, version in enumerate(versions)
            ]
            for versions in (step.old, step.new)
        )
        yield from evaluate(self.join, changes, before, after)

    def buckets_reached(self, step: JoinStep, table: int) -> list[int]:
        """Buckets of a table in which the step may have changed a row."""
        reached = step_between(step.old[table], step.new[table])
        if reached.is_empty:
            return []
        return [b for b in range(self._buckets(step, table)) if reached.hashes_of(b) is not None]

    def _buckets(self, step: JoinStep, table: int) -> int:
        """In how many buckets the step's changes of a table lie."""
        pinned = self.tables[table].pinned()
        return pinned.buckets_between(step.old[table].base, step.new[table].target)

    def bucket_changes(
        self, step: JoinStep, table: int, buckets: Collection[int], share: KeyShare | None = None
    ) -> pa.Table:
        """Signed rows of some buckets: selected columns, filters passed, no NULL where that takes no part."""
        part, side = self.spec.tables[table], self.sides[table]
        changed = side.changes_between(step.old[table], step.new[table], part.columns, buckets, share=share)
        # Each signed row by itself: an update may leave, enter or stay within the filter.
        passed = parse_where(part.where, side.schema).apply(changed)
        schema = self.changes[table]
        rows = pa.Table.from_arrays(passed.select(schema.names).columns, schema=schema)
        usable = have_values(rows, needed_keys(self.spec.tree, table))
        return rows if usable.all() else rows.filter(pa.array(usable))

    def shard_changes(self, step: JoinStep, table: int, shard: int, shards: int) -> Changes:
        """The consolidated changes of a table in one of so many shards.

        Where each shard needs all rows they are read bucket by bucket, so that memory holds them and one
        bucket. Where shards are groups of buckets, all rows of a bucket belong to one.
        """
        reached = self.buckets_reached(step, table)
        groups = self._groups(table, shards, self._buckets(step, table))
        buckets = [bucket for bucket in reached if bucket % groups == shard % groups]
        if groups == shards:
            return self.consolidated(table, [self.bucket_changes(step, table, buckets)] if buckets else [])
        share = self.sides[table].share_now(self._share(table, shard, shards))
        pieces = [buckets] if share is not None and buckets else [[bucket] for bucket in buckets]
        parts = (self.bucket_changes(step, table, piece, share) for piece in pieces)
        return self.consolidated(table, [self.split.of_shard(table, rows, shard, shards) for rows in parts])

    def _share(self, table: int, shard: int, shards: int) -> KeyShare | None:
        """The keys of a shard, where it has not all; the others are then not read at all."""
        columns = self.split.columns[table]
        if shards == 1 or columns is None:
            return None
        is_of_key = self.split.keeps_shards(table, self.sides[table].primary_key)
        return KeyShare(columns, shard, shards, ShardNumbers(self.split, table, shards), is_of_key)

    def _groups(self, table: int, shards: int, buckets: int) -> int:
        """In how many groups so many buckets fall, of each of which a shard needs one; 1 for all in one."""
        return self.split.groups(table, self._bucketings[table], buckets, shards)

    @cached_property
    def _bucketings(self) -> tuple[Bucketing, ...]:
        found = []
        for side in self.sides:
            present = {column.name for column in side.columns}
            types_of_key = (side.schema.type_of(name) for name in side.bucket_key if name in present)
            found.append(Bucketing(side.bucket_key, tuple(types_of_key)))
        return tuple(found)

    def agreeing(self, tasks: int, shards: int) -> int:
        """About so many tasks; a number by which each reads few buckets, where the join key is theirs."""
        buckets = [table.options.bucket for table in self.tables]
        if any(self._groups(table, own, own) < own for table, own in enumerate(buckets)):
            return tasks
        return agreeing(tasks, max(buckets), shards)

    def cost(self, step: JoinStep, tasks: int) -> StepCost:
        """What so many tasks take to share the changes of a step."""
        return StepCost.of([self._shared(step, table, tasks) for table in range(len(self.tables))], tasks)

    def _shared(self, step: JoinStep, table: int, tasks: int) -> SharedTable:
        rows = touched_rows(self.tables[table].pinned(), step.old[table], step.new[table])
        return SharedTable(
            rows,
            len(self.buckets_reached(step, table)),
            self._groups(table, tasks, self._buckets(step, table)),
            is_cut_by_key=self.split.keeps_shards(table, self.sides[table].primary_key),
            is_everywhere=self.split.columns[table] is None,
        )

    def by_shard(self, table: int, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """The rows of each shard that has any; all of them for each shard where all shards need all."""
        if not rows.num_rows:
            return
        shards = self.spec.shards
        shard = self.split.shard_of(table, rows, shards)
        if shard is None:
            yield from ((number, rows) for number in range(self.split.count(shards)))
        else:
            yield from by_number(rows, shard, shards)

    def consolidated(self, table: int, parts: Sequence[pa.Table]) -> Changes:
        """Changes of a table that were read bucket by bucket, without rows that cancel."""
        part, side = self.spec.tables[table], self.sides[table]
        rows = pa.concat_tables(parts or [self.changes[table].empty_table()]).combine_chunks()
        # Images that hold the whole primary key are consolidated already: each key is in one bucket, once.
        key = set(side.primary_key)
        is_consolidated = bool(key) and key <= set(part.select) and part.columns == part.select
        return Changes(rows) if is_consolidated else consolidate_changes(Changes(rows))


_OPENED: Final = Kept[tuple[str, tuple[str, ...]], JoinedTables](
    lambda: LRUCache(_MAX_OPENED), is_inherited=True
)
"""Joins whose tables this process has opened, by spec and uuids."""


def output_type(tables: JoinedTables) -> StructType:
    """Spark's schema of the join's output."""
    if not tables.spec.columns:  # SELECT 1: all that comes out is how often
        return StructType([StructField(ROW_KIND_COLUMN, StringType())])
    return spark_schema(TableSchema.of(tables.output), row_kind=True)


class _Facts:
    """What is known of the tables: their indexes, and statistics of their latest snapshots."""

    def __init__(self, joined: JoinedTables) -> None:
        self._joined = joined
        self._snapshot = cache(lambda table: joined.tables[table].snapshot())
        self._estimate = cache(self._estimated)

    def name(self, table: int) -> str:
        return self._joined.tables[table].name

    def index_for(self, table: int, columns: Sequence[str]) -> str | None:
        return self._joined.sides[table].index_for(columns)

    def rows_per_key(self, table: int, columns: Sequence[str]) -> float:
        return self._estimate(table, tuple(columns))

    def select(self, table: int) -> tuple[str, ...]:
        return self._joined.spec.tables[table].select

    def _estimated(self, table: int, columns: tuple[str, ...]) -> float:
        snapshot: Snapshot = self._snapshot(table)
        return snapshot.rows_per_key(self._joined.sides[table].names_now(columns))


def _counted(match: Match, table: int, figures: Counter[str]) -> Match:
    """Lookups that count their keys and what these find."""

    def counted(by: Sequence[str], keys: pa.Table, select: Sequence[str]) -> tuple[Ints, pa.Table]:
        positions, rows = match(by, keys, select)
        figures[f"t{table}_keys"] += keys.num_rows
        figures[f"t{table}_rows"] += len(positions)
        return positions, rows

    return counted
