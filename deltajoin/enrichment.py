"""What a task of ``lookup_join`` does: rows of a stream in, the same with what a table holds for them out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltajoin.newest import Newest
from upsert.errors import ConfigurationError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.spark_table import from_spark
from upsert.store.filters import Where, parse_where
from upsert.store.fold import fold
from upsert.store.layout import Layout
from upsert.store.rows import conform
from upsert.store.table import Table

HOWS: Final = ("inner", "left")
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Enrichment:
    """The lookup of one stream in one table; a task calls it with its rows.

    Attributes:
        path: folder of the table.
        uuid: tells the table from another one that came to lie there.
        pairs: columns of the stream and of the table that must be equal.
        selected: columns of the table that are added.
        how: "inner" or "left".
        where: which rows of the table may match.
        snapshot: id of the snapshot to look up in, None for the latest.
    """

    path: str
    uuid: str
    pairs: tuple[tuple[str, str], ...]
    selected: tuple[str, ...]
    how: str
    where: Where | None = None
    snapshot: int | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the batches with their matches, all from one snapshot unless it expires meanwhile."""
        snapshot = self.pinned()
        for batch in from_spark(batches):
            if batch.num_rows:
                yield from self.enriched(snapshot, pa.Table.from_batches([batch])).to_batches()

    def pinned(self) -> Newest:
        """The snapshot that a task reads.

        Raises:
            ConfigurationError: another table lies in the folder by now.
            SnapshotExpiredError: the snapshot that was asked for has expired.
        """
        table = Table.open(self.path)
        if table.uuid != self.uuid:
            raise ConfigurationError(
                f"lookup_join: {self.path!r} was replaced by another table during the query; start it again"
            )
        return Newest(table, self.snapshot)

    def enriched(self, snapshot: Newest, rows: pa.Table) -> pa.Table:
        """Each row as often as it has matches, in order; ``left``: at least once."""
        keys = pa.table([rows.column(own) for own, _ in self.pairs], names=self._table_columns)
        positions, found = snapshot.read(
            lambda read: read.match(self._table_columns, keys, select=self.selected, where=self.where)
        )
        order = np.argsort(positions, kind="stable")
        left, right = _paired(positions[order], order, rows.num_rows, keep_all=self.how == "left")
        columns = rows.take(pa.array(left)).columns + found.take(pa.array(right, mask=right < 0)).columns
        return pa.table(columns, names=[*rows.column_names, *self.selected])

    def check(self, table: Table, what: str) -> None:
        """Refuse a lookup that would fail in every task.

        Raises:
            SchemaError: no index serves the columns, or ``where`` does not fit the table.
        """
        for own, name in self.pairs:
            table.schema.type_of(name, f"{what}: on {own!r}")
        if len(set(self._table_columns)) < len(self.pairs) or not self.pairs:
            raise SchemaError(f"{what}: on must name at least one column of the table and each once")
        table.snapshot().rows_per_key(self._table_columns)
        parse_where(self.where, table.schema)

    def check_finds_one_row(self, what: str) -> None:
        """Refuse a lookup that may find several rows for a key.

        Raises:
            ConfigurationError: its columns hold neither the primary key nor a unique index.
        """
        index = Table.open(self.path).layout.best_index(self._table_columns)
        if index is None or not index.is_unique:
            raise ConfigurationError(
                f"{what}: with upsert_key a row must have one match at most, got a lookup by "
                f"({', '.join(self._table_columns)}); look up by the PRIMARY KEY or a UNIQUE INDEX"
            )

    @property
    def _table_columns(self) -> list[str]:
        return [name for _, name in self.pairs]


@dataclass(frozen=True)
class UpsertEnrichment:
    """The lookup over a changelog whose rows of one key come to one task: one row a key comes out."""

    enrichment: Enrichment
    schema: TableSchema

    @cached_property
    def _layout(self) -> Layout:
        return Layout.of(self.schema)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """``+U`` with the new row and its match, or ``-D`` with the key alone.

        Raises:
            ChangelogError: two different rows of one key came together.
        """
        given = [batch for batch in from_spark(batches) if batch.num_rows]
        if not given:
            return
        rows, signs = conform(self._layout, pa.Table.from_batches(given), "lookup_join")
        folded = fold(self._layout, rows, signs, "none")
        gone = np.zeros(folded.rows.num_rows, np.bool_) if folded.kinds is None else folded.kinds == 1
        numbers = np.arange(folded.rows.num_rows)
        snapshot = self.enrichment.pinned()
        there = folded.rows.append_column("", pa.array(numbers)).filter(pa.array(~gone))
        new = self.enrichment.enriched(snapshot, there)
        matched = new.column("").to_numpy()
        new = new.drop_columns([""])
        deleted = np.setdiff1d(numbers, matched)
        yield from _with_kind(new, "+U").to_batches()
        yield from _with_kind(
            self._keys_alone(folded.rows.take(pa.array(deleted)), new.schema), "-D"
        ).to_batches()

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
