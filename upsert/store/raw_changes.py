"""Files of raw changes: signed rows that no task could fold alone, sorted by key within each part.

A part is one record batch: the rows of one bucket out of one piece of a task's input. Being sorted, the parts
of a bucket can be folded range by range, so neither a task nor the committer ever holds all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias
from uuid import uuid4

import numpy as np
import pyarrow as pa

from upsert.errors import CorruptTableError, StorageError
from upsert.store import paths
from upsert.store.fold import Order, fold, naming
from upsert.store.key_ranges import halves, key_ranges, weight
from upsert.store.layout import COUNT_COLUMN, Layout
from upsert.store.merge import SortedRows, gather
from upsert.store.paths import BucketId, Partition
from upsert.store.placement import Portion, split
from upsert.store.projection import Projection, with_ids
from upsert.store.row_keys import order_by
from upsert.store.rows import Signs, conform
from upsert.store.storage import storage_of

Rows: TypeAlias = pa.Table | pa.RecordBatchReader
"""What is written: a table, or a stream of record batches that need not fit into memory."""


PIECE_BYTES: Final = 64 << 20
"""What is sorted or folded in memory at a time; that takes about three times as much."""

_SIGN_COLUMN: Final = "_sign"


@dataclass(frozen=True)
class RawPart:
    """The rows of one bucket within a file of raw changes: the number of their record batch."""

    partition: Partition
    bucket: int
    batch: int
    rows: int


@dataclass(frozen=True)
class RawFile:
    """A file of raw changes: signed rows, part by part.

    ``order`` says whether the order of a key's rows means anything, ``definition`` which version of the
    table's definition they were written under.
    """

    file: str
    base: int
    parts: tuple[RawPart, ...]
    order: Order = "none"
    definition: int = 0


class PlacedPart(NamedTuple):
    """The rows of one bucket in one file."""

    file: RawFile
    part: RawPart


def places_of(raw: Iterable[RawFile]) -> dict[BucketId, list[PlacedPart]]:
    """The parts of some files by partition and bucket, in the order of the files."""
    places: dict[BucketId, list[PlacedPart]] = {}
    for file in raw:
        for part in file.parts:
            places.setdefault((part.partition, part.bucket), []).append(PlacedPart(file, part))
    return places


def pieces_of(rows: Rows, max_bytes: int | None = None) -> Iterator[pa.Table]:
    """The rows in order, in tables of bounded size; at least one table, so that its columns are seen.

    >>> [piece.num_rows for piece in pieces_of(pa.table({"a": range(10)}), max_bytes=160)]
    [5, 5]
    """
    max_bytes = max_bytes or PIECE_BYTES
    if not isinstance(rows, pa.RecordBatchReader):
        is_large = isinstance(rows, pa.Table) and rows.num_rows > 0
        yield from _parts_of(rows, max_bytes) if is_large else iter([rows])
        return
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        for part in _parts_of(pa.Table.from_batches([batch]), max_bytes):
            if held and size + weight(SortedRows(part, None)) > max_bytes:
                yield pa.Table.from_batches(held)
                held, size = [], 0
            held += part.to_batches()
            size += weight(SortedRows(part, None))
    yield pa.Table.from_batches(held, rows.schema)


def _parts_of(rows: pa.Table, max_bytes: int) -> Iterator[pa.Table]:
    return (part.rows for part in halves(SortedRows(rows, None), max_bytes))


def write_raw(
    root: str, layout: Layout, base: int, pieces: Iterable[pa.Table], owner: str, order: Order = "none"
) -> RawFile | None:
    """Write the signed rows of each bucket; None if there are no rows.

    Not synced: power failure ends the task too. After a crash there may be a file that nobody names; cleaning
    removes it.

    Raises:
        SchemaError: the rows do not fit the table.
    """
    name = paths.staging_file(base, uuid4().hex)
    path = paths.resolve(root, name)
    parts: list[RawPart] = []
    with (
        storage_of(path).new_file(path) as local,
        pa.OSFile(local, "wb") as sink,
        pa.ipc.new_file(sink, _schema(layout)) as writer,
    ):
        for piece in pieces:
            for portion in split(layout, *conform(layout, piece, owner)):
                writer.write_batch(_sorted_batch(layout, portion))
                parts.append(RawPart(portion.partition, portion.bucket, len(parts), portion.rows.num_rows))
    if not parts:
        storage_of(path).delete(path)
        return None
    return RawFile(name, base, tuple(parts), order, layout.version)


def _schema(layout: Layout) -> pa.Schema:
    fields = [field for field in with_ids(layout) if field.name != COUNT_COLUMN]
    return pa.schema([*fields, pa.field(_SIGN_COLUMN, pa.int8())])


def _sorted_batch(layout: Layout, portion: Portion) -> pa.RecordBatch:
    """The rows by key, those of one key in input order, and the sign of each."""
    order = order_by([portion.rows.column(name) for name in layout.key]).rows
    signs = np.ones(len(order), np.int8) if portion.weights is None else portion.weights[order]
    rows = gather(portion.rows, order).append_column(_SIGN_COLUMN, pa.array(signs, pa.int8()))
    (batch,) = rows.combine_chunks().to_batches()
    return pa.RecordBatch.from_arrays(batch.columns, schema=_schema(layout))


def folded(
    root: str, layout: Layout, parts: Iterable[PlacedPart], order: Order, owner: str
) -> Iterator[SortedRows]:
    """What the parts of one bucket do to the table, which is ``owner`` in messages: range by range.

    Raises:
        ChangelogError: rows without an order leave two different values for a key.
        CorruptTableError: a file of raw changes is missing or damaged.
    """
    for rows, weights in signed_rows(root, layout, parts):
        with naming(owner):
            run = fold(layout, rows, weights, order)
        yield run


def signed_rows(root: str, layout: Layout, parts: Iterable[PlacedPart]) -> Iterator[tuple[pa.Table, Signs]]:
    """The rows of one bucket in the form of ``layout``, and the sign of each: range by range of keys.

    The rows of a key come in the order of the parts, and within one in that of the input.

    Raises:
        CorruptTableError: a file of raw changes is missing or damaged.
    """
    inputs = [SortedRows(_read(root, layout, *placed), None) for placed in parts]
    for within in key_ranges(layout, inputs, PIECE_BYTES):
        rows = pa.concat_tables([run.rows for run in within])
        yield rows.drop_columns([_SIGN_COLUMN]), rows.column(_SIGN_COLUMN).to_numpy()


def _read(root: str, layout: Layout, file: RawFile, part: RawPart) -> pa.Table:
    batch = _read_batch(root, file.file, part)
    schema = pa.schema([field.remove_metadata() for field in _schema(layout)])
    if file.definition != layout.version:
        columns = batch.drop_columns([_SIGN_COLUMN])
        projection = Projection.of(columns.schema, layout, f"file of raw changes {file.file!r}")
        arrays = projection.apply(columns, schema.names[:-1]).columns
        return pa.Table.from_arrays([*arrays, batch.column(_SIGN_COLUMN)], schema=schema)
    return pa.Table.from_arrays(batch.columns, schema=schema)


def _read_batch(root: str, file: str, part: RawPart) -> pa.RecordBatch:
    path = paths.resolve(root, file)
    try:
        batch: pa.RecordBatch = storage_of(path).mapped(
            path, lambda local: pa.ipc.open_file(pa.memory_map(local)).get_batch(part.batch)
        )
    except StorageError:
        raise  # the file may be whole
    except (pa.ArrowException, OSError) as cause:
        raise CorruptTableError(
            f"file of raw changes {path!r} must be there until it is committed, got {cause}; write the rows "
            "again"
        ) from cause
    return batch
