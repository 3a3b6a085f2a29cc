"""Enrichment: each row of a stream looks up what a table or a source holds when the row is processed.

`lookup_join` checks and plans on the driver; `Enrichment` is what a task does with its rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, Self

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from deltajoin.errors import LookupFailedError
from deltajoin.lookup.batch import CAPACITY, TIMEOUT_S, open_lookups
from deltajoin.lookup.declared import source_of, with_cache
from deltajoin.lookup.managed import Newest
from deltajoin.lookup.protocol import LookupSource, check_source, key_fields, name_of
from deltajoin.settings import JoinSettings
from upsert import types
from upsert.arrays import Positions
from upsert.errors import ConfigurationError, SchemaError
from upsert.lookups.options import LookupTable, PartialCache
from upsert.managed.task_counts import add, counter_of
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema, listed
from upsert.spark.batches import arrow_schema, for_spark, from_spark, mapped
from upsert.spark.columns import spark_schema
from upsert.spark.connect import parallelism
from upsert.spark.queries import python_functions
from upsert.store.predicate import Where, parse_where
from upsert.store.rows.conform import conform, equal_values, may_look_up
from upsert.store.rows.fold import fold
from upsert.store.rows.layout import Layout
from upsert.store.table import Table
from upsert.stream_keys import UPSERTS_MARK, UpsertKey
from upsert.types import first_repeated, quoted

HOWS: Final = ("inner", "left")


Pairs = Sequence[tuple[str, str]]
"""Columns of the stream, and those of what is looked up that must be equal to them."""

Find = Callable[[pa.Table], tuple[Positions, pa.Table]]
"""Keys to rows, and for each row the position of its key."""


@dataclass(frozen=True)
class InTable:
    """Rows of a managed table; ``uuid`` tells it from another one that came to lie at its path."""

    path: str
    uuid: str
    where: Where | None = None
    snapshot: int | None = None

    def opened(self, keys: Sequence[str], selected: Sequence[str]) -> Find:
        """What finds rows by keys, all in the snapshot that a task reads, unless it expires meanwhile."""
        table = Table.open(self.path)
        if table.uuid != self.uuid:
            raise ConfigurationError(
                f"lookup_join: {self.path!r} was replaced by another table during the query; start it again"
            )
        newest, where = Newest(table, self.snapshot), self.where
        return lambda found: newest.read(lambda read: read.match(keys, found, select=selected, where=where))

    def check(self, keys: Sequence[str], what: str) -> None:
        """Refuse a lookup that would fail in every task."""
        table = Table.open(self.path)
        _check_keys(keys, table.schema.arrow, what)
        table.snapshot().rows_per_key(keys)
        parse_where(self.where, table.schema)

    def has_one_row(self, keys: Sequence[str]) -> bool:
        """Whether a value of some columns has one row at most."""
        table = Table.open(self.path)
        read = table.snapshot() if self.snapshot is None else table.snapshot(self.snapshot)
        return read.has_one_row(keys)


@dataclass(frozen=True)
class InSource:
    """Rows of a lookup source.

    ``token`` tells this join's connections and cache from those of others in a worker process. ``unique``
    names columns by which there is one row at most; a source that gives several for a key breaks its promise.
    """

    source: LookupSource
    token: str
    cache: PartialCache | None = None
    unique: tuple[str, ...] = ()
    capacity: int = CAPACITY
    timeout_s: float = TIMEOUT_S

    @classmethod
    def declared(
        cls, table: LookupTable, pairs: Pairs, selected: Sequence[str], settings: JoinSettings
    ) -> Self:
        """Those of a table that CREATE TABLE has declared, for a lookup of its own."""
        keys = tuple(name for _, name in pairs)
        return cls(
            source_of(table, keys, tuple(dict.fromkeys((*keys, *selected)))),
            uuid.uuid4().hex,
            table.lookup.cache,
            table.schema.primary_key,
            settings.async_buffer_capacity,
            settings.async_timeout / 1000,
        )

    def check(self, keys: Sequence[str], what: str) -> None:
        """Refuse a lookup that would fail in every task."""
        check_source(self.source)
        _check_keys(keys, self.source.schema, what)
        if set(keys) != set(self.source.keys):
            raise SchemaError(
                f"{what}: on must name the columns that the source is asked by, "
                f"({', '.join(self.source.keys)}), got ({', '.join(keys)})"
            )

    def has_one_row(self, keys: Sequence[str]) -> bool:
        """Whether a value of some columns has one row at most."""
        return bool(self.unique) and set(self.unique) <= set(keys)

    def opened(self, keys: Sequence[str], selected: Sequence[str]) -> Find:
        """What finds rows by keys, each of which it asks for once."""
        lookups = open_lookups(self.token, self.source, capacity=self.capacity, timeout_s=self.timeout_s)
        answered, fields = with_cache(lookups, self.cache), key_fields(self.source)
        is_unique = self.has_one_row(keys)

        def found(given: pa.Table) -> tuple[Positions, pa.Table]:
            asked = {field.name: equal_values(given.column(field.name), field.type) for field in fields}
            answer = answered(pa.table(asked))
            if answer.failures:
                raise next(iter(answer.failures.values()))
            if is_unique and len(np.unique(answer.positions)) < len(answer.positions):
                raise LookupFailedError(
                    f"{self.source!r}: a key must have one row at most, as PRIMARY KEY "
                    f"({', '.join(self.unique)}) says, it has several; correct the key, or the source's rows"
                )
            return answer.positions, answer.rows.select(selected)

        return found


def _check_keys(keys: Sequence[str], schema: pa.Schema, what: str) -> None:
    for name in keys:
        if name not in schema.names:
            raise SchemaError(
                f"{what}: on {name!r}: unknown column {name!r}; columns are {', '.join(schema.names)}"
            )
    if len(set(keys)) < len(keys) or not keys:
        raise SchemaError(f"{what}: on must name at least one column of the table and each once")


@dataclass(frozen=True)
class Enrichment:
    """The lookup of one stream in one table or source; a task calls it with its rows.

    ``pairs`` are columns of stream and table that must be equal; ``selected`` ones of the table are added.
    ``name`` is what metrics call the table, or Spark's plan this function; ``counter`` is where lookups are
    counted: see `upsert.managed.task_counts`.
    """

    rows: InTable | InSource
    pairs: tuple[tuple[str, str], ...]
    selected: tuple[str, ...]
    how: str
    name: str = ""
    counter: int | None = None

    @property
    def __name__(self) -> str:
        return f"lookup {self.name}"

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the batches with their matches."""
        find = self.opened()
        for batch in from_spark(batches):
            if batch.num_rows:
                yield from for_spark(self.enriched(find, pa.Table.from_batches([batch])).to_batches())

    def opened(self) -> Find:
        """What a task finds rows by; each lookup counts."""
        find = self.rows.opened(self._table_columns, self.selected)

        def counted(keys: pa.Table) -> tuple[Positions, pa.Table]:
            positions, rows = find(keys)
            of = self.__name__
            add(self.counter, {f"{of}_keys": keys.num_rows, f"{of}_rows": len(positions)})
            return positions, rows

        return counted

    def enriched(self, find: Find, rows: pa.Table) -> pa.Table:
        """Each row as often as it has matches, in order; ``left``: at least once."""
        keys = pa.table([rows.column(own) for own, _ in self.pairs], names=self._table_columns)
        positions, found = find(keys)
        order = np.argsort(positions, kind="stable")
        left, right = _paired(positions[order], order, rows.num_rows, keep_all=self.how == "left")
        columns = rows.take(pa.array(left)).columns + found.take(pa.array(right, mask=right < 0)).columns
        return pa.table(columns, names=[*rows.column_names, *self.selected])

    def check_finds_one_row(self, what: str) -> None:
        """Refuse a lookup that may find several rows for a key."""
        keys = self._table_columns
        if not self.rows.has_one_row(keys):
            raise ConfigurationError(
                f"{what}: with upsert_key a row must have one match at most, got a lookup by "
                f"({', '.join(keys)}); look up by the PRIMARY KEY or a UNIQUE INDEX"
            )

    @property
    def _table_columns(self) -> list[str]:
        return [name for _, name in self.pairs]


@dataclass(frozen=True)
class UpsertEnrichment:
    """The lookup over a changelog whose rows of one key come to one task: one row a key comes out."""

    enrichment: Enrichment
    schema: TableSchema

    @property
    def __name__(self) -> str:
        return self.enrichment.__name__

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """``+U`` with the new row and its match, or ``-D`` with the key alone."""
        given = [batch for batch in from_spark(batches) if batch.num_rows]
        if not given:
            return
        layout = Layout.of(self.schema)
        rows, signs = conform(layout, pa.Table.from_batches(given), "lookup_join")
        folded = fold(layout, rows, signs, "none")
        gone = np.zeros(folded.rows.num_rows, np.bool_) if folded.kinds is None else folded.kinds == 1
        numbers = np.arange(folded.rows.num_rows)
        find = self.enrichment.opened()
        there = folded.rows.append_column("", pa.array(numbers)).filter(pa.array(~gone))
        new = self.enrichment.enriched(find, there)
        matched = new.column("").to_numpy()
        new = new.drop_columns([""])
        deleted = np.setdiff1d(numbers, matched)
        yield from for_spark(_with_kind(new, "+U").to_batches())
        gone_rows = self._keys_alone(folded.rows.take(pa.array(deleted)), new.schema)
        yield from for_spark(_with_kind(gone_rows, "-D").to_batches())

    def _keys_alone(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        columns = [
            rows.column(field.name)
            if field.name in self.schema.primary_key
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)


def _paired(
    positions: Positions, found: Positions, rows: int, *, keep_all: bool
) -> tuple[Positions, Positions]:
    """For each row to put out the number of the stream's row and of the table's, -1 for none.

    ``positions`` ascend.
    """
    if not keep_all:
        return positions, found
    counts = np.bincount(positions, minlength=rows)
    lengths = np.maximum(counts, 1)
    right = np.full(int(lengths.sum()), -1, np.int64)
    is_pair = np.ones(len(right), np.bool_)
    is_pair[(np.cumsum(lengths) - lengths)[counts == 0]] = False
    right[is_pair] = found
    return np.repeat(np.arange(rows), lengths), right


def _with_kind(rows: pa.Table, kind: str) -> pa.Table:
    return rows.append_column(ROW_KIND_COLUMN, pa.array([kind] * rows.num_rows, pa.string()))


On = str | Sequence[str | tuple[str, str]]


def lookup_join(
    df: DataFrame,
    table: Table | LookupSource | str,
    *,
    on: On,
    how: str = "inner",
    select: Sequence[str] | None = None,
    where: Where | None = None,
    snapshot: int | None = None,
    upsert_key: Sequence[str] = (),
    cache: PartialCache | None = None,
) -> DataFrame:
    """The rows of a stream, each with the current rows that match it in a managed table or a lookup source.

    A task looks up all of its rows of a micro-batch in one snapshot of a table, the latest when the task
    begins. Another task may use a later snapshot, and so may a micro-batch that is run again after a crash.
    If the snapshot expires during the task, the remaining rows are looked up in the latest one. A source is
    asked once for each key of a batch of rows; a lookup that fails for good fails the micro-batch. Sinks that
    write exactly once keep the rows that the first run committed. Spark keeps no state.

    A changelog needs ``upsert_key``: the deletion of a row would look up another version of the table than
    its insert, so it could not be emitted with the same values. Instead rows of the result replace each other
    by key. For each key a micro-batch has one row: ``+U`` with the new row and what the table holds now, or
    ``-D`` with only the key if the row is deleted or has no match. Such a result goes into a sink with this
    primary key. A join of changelogs must be optimized before it is passed here.

    A watermark of ``df`` is one of the result.

    Args:
        df: a DataFrame, streaming or not.
        table: a managed table, such as ``catalog.table(name)``, or its folder; or a source, such as
            ``HttpLookup``.
        on: what must be equal: columns of one name on both sides, or pairs of a column of ``df`` and one of
            the table. Some index of the table must lie within its columns; a source must be asked by these
            and no other. NULL matches nothing.
        how: "inner", or "left": a row without match has NULLs in the table's columns.
        select: the table's columns to add; None for all but those of ``on``.
        where: which rows of the table, see ``upsert.store.predicate``; None for all. Not of a source.
        snapshot: id of the snapshot to look up in; None for the latest of each micro-batch. Not of a source.
        upsert_key: columns of ``df`` that identify rows of a changelog. The table must then be looked up by
            its PRIMARY KEY or a UNIQUE INDEX, and a source must give at most one row for a key.
        cache: the cache of each worker process for rows of a source; None for no cache.

    Returns:
        The columns of ``df``, then those selected, and ``_row_kind`` last for a changelog.

    Raises:
        ConfigurationError: ``how`` is another one; or ``df`` is a changelog, and there is no ``upsert_key``;
            or an argument does not fit the table or source.
        SchemaError: a column is unknown or would be there twice, or nothing serves the lookup.
        TableNotFoundError: there is no such table.

    >>> import tempfile, pyarrow as pa
    >>> schema = TableSchema.of({"user": pa.int64(), "region": pa.string()}, primary_key=["user"])
    >>> users = Table.create(tempfile.mkdtemp() + "/users", schema)
    >>> _ = users.write(pa.table({"user": [1, 2], "region": ["Berlin", "Beijing"]}))
    >>> views = spark.createDataFrame([(1, "/home"), (3, "/cart")], "user BIGINT, page STRING")
    >>> lookup_join(views, users, on="user", how="left").orderBy("user").collect()
    [Row(user=1, page='/home', region='Berlin'), Row(user=3, page='/cart', region=None)]
    """
    pairs, key = pairs_of(on), listed(upsert_key, "upsert_key")
    select = None if select is None else listed(select, "select")
    if isinstance(table, LookupSource):
        what, name = f"lookup_join with {table!r}", name_of(table)
        if where is not None or snapshot is not None:
            argument = "where" if where is not None else "snapshot"
            raise ConfigurationError(f"{what}: {argument} is for managed tables; leave it out")
        rows: InTable | InSource = InSource(table, uuid.uuid4().hex, cache, tuple(table.keys) if key else ())
        schema = TableSchema(tuple(Column(field.name, field.type) for field in table.schema))
    else:
        opened = table if isinstance(table, Table) else Table.open(table)
        name, schema = opened.name, opened.schema
        what = f"lookup_join with table {name!r}"
        if cache is not None:
            raise ConfigurationError(f"{what}: cache is for lookup sources, got a table; leave it out")
        rows = InTable(opened.path, opened.uuid, where, snapshot)
    if how not in HOWS:
        raise ConfigurationError(f"{what}: how must be one of {', '.join(HOWS)}, got {how!r}")
    selected = _selected(schema, pairs, select)
    _check_names(df, pairs, selected, what)
    rows.check([name for _, name in pairs], what)
    _check_types(df, pairs, schema, what)
    return enriched(df, Enrichment(rows, pairs, selected, how, name), schema, key, what)


def enriched(
    df: DataFrame,
    enrichment: Enrichment,
    schema: TableSchema,
    upsert_key: tuple[str, ...],
    what: str,
    tasks: int | None = None,
) -> DataFrame:
    """The rows of a stream with their matches, which have these columns; ``what`` begins refusals.

    ``tasks`` share the changes of a changelog, as many as the session has cores if None.
    """
    added = spark_schema(schema, row_kind=False)
    enrichment = _named_apart(replace(enrichment, counter=counter_of(df.sparkSession)), df)
    selected = enrichment.selected
    fields = [StructField(name, added[name].dataType, True, added[name].metadata) for name in selected]
    if ROW_KIND_COLUMN in df.columns:
        return _upserts(df, enrichment, fields, upsert_key, what, tasks or parallelism(df.sparkSession))
    if upsert_key:
        raise ConfigurationError(
            f"{what}: upsert_key is for changelogs, got a stream without {ROW_KIND_COLUMN!r}; leave it out"
        )
    return mapped(df, enrichment, StructType([*df.schema.fields, *fields]))


def _named_apart(enrichment: Enrichment, df: DataFrame) -> Enrichment:
    """The lookup by a name that none has which rows of the stream have passed, such as ``users 2``."""
    taken, numbers = python_functions(df), count(2)
    given = enrichment
    while enrichment.__name__ in taken:
        enrichment = replace(given, name=f"{given.name} {next(numbers)}")
    return enrichment


def pairs_of(on: On) -> tuple[tuple[str, str], ...]:
    """The columns that must be equal, of one side and of the other."""
    parts = [on] if isinstance(on, str) else on
    return tuple((part, part) if isinstance(part, str) else (part[0], part[1]) for part in parts)


def _selected(schema: TableSchema, pairs: Pairs, select: Sequence[str] | None) -> tuple[str, ...]:
    if select is None:
        keys = {own for _, own in pairs}
        return tuple(name for name in schema.names if name not in keys)
    for name in select:
        schema.type_of(name, "select")
    return tuple(select)


def _check_names(df: DataFrame, pairs: Pairs, selected: Sequence[str], what: str) -> None:
    if missing := [name for name, _ in pairs if name not in df.columns]:
        raise SchemaError(
            f"{what}: on must name columns of the stream, got {missing[0]!r}; its columns are "
            f"{', '.join(df.columns)}"
        )
    names = [*df.columns, *selected]
    if repeated := first_repeated(names):
        raise SchemaError(
            f"{what}: the result must have each column once, got {repeated!r} twice; rename it in the "
            "stream, or leave it out of select"
        )


def _check_types(df: DataFrame, pairs: Pairs, schema: TableSchema, what: str) -> None:
    """Refuse keys of another type, of which Spark would cast one before it compares them."""
    given = arrow_schema(StructType([df.schema[own] for own, _ in pairs]))
    for (own, name), found in zip(pairs, given.types, strict=True):
        if not may_look_up(found, type_ := schema.type_of(name, what)):
            raise SchemaError(
                f"{what}: on column {name!r}, which is {types.sql_name(type_)}: column {own!r} of the stream "
                f"must be of this type, got {types.sql_name(found)}; cast it"
            )


def _upserts(
    df: DataFrame,
    enrichment: Enrichment,
    fields: list[StructField],
    key: tuple[str, ...],
    what: str,
    tasks: int,
) -> DataFrame:
    """The result over a changelog: rows that replace each other by key."""
    if not key:
        raise ConfigurationError(
            f"{what}: the deletion of a row would look up another version of the table than its insert; "
            "give upsert_key, the columns by which a sink replaces rows, or join the changes of both tables, "
            "catalog.read_changes, for results that follow both"
        )
    enrichment.check_finds_one_row(what)
    columns = [field for field in df.schema.fields if field.name != ROW_KIND_COLUMN]
    schema = TableSchema(
        tuple(Column(f.name, types.from_json(f.dataType.jsonValue()), f.nullable) for f in columns), key
    )
    folding = UpsertEnrichment(enrichment, schema)
    own = [StructField(f.name, f.dataType, f.name not in key, f.metadata) for f in columns]
    kind = StructField(ROW_KIND_COLUMN, df.schema[ROW_KIND_COLUMN].dataType, False)
    together = df.repartition(tasks, *map(quoted, key))
    found = mapped(together, folding, StructType([*own, *fields, kind]))
    mark = UpsertKey(tuple((name,) for name in key), of="lookup_join", is_append=True).to_text()
    names = [quoted(name) for name in found.columns[:-1]]
    return found.select(*names, F.col(ROW_KIND_COLUMN).alias(ROW_KIND_COLUMN, metadata={UPSERTS_MARK: mark}))
