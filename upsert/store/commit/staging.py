"""What a writing task leaves behind for the committer: files that no snapshot names yet.

Where a task has all changes of its buckets, it folds them and writes finished data files. Where it has only
some (any partitioning will do), it keeps the signed rows as they are, bucket by bucket in one file of *raw
changes*, and the committer folds them across all tasks. A part of such a file is one record batch: the rows
of one bucket out of one piece of a task's input. Being sorted, the parts of a bucket can be folded range by
range, so neither a task nor the committer ever holds all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from typing import Final, NamedTuple, TypeAlias
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Kinds
from upsert.errors import ConfigurationError, CorruptTableError, StorageError
from upsert.failpoints import reach
from upsert.store import paths
from upsert.store.commit.change import CommitRules
from upsert.store.files.data_file import remove_data_files
from upsert.store.files.writing import (
    KeyBounds,
    ParallelWrites,
    removed_if_failed,
    write_data_file,
    written_files,
)
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.history import History
from upsert.store.paths import BucketId, Partition
from upsert.store.rows.conform import ArrowStream, Signs, conform, read_stream
from upsert.store.rows.fold import Order, fold, naming
from upsert.store.rows.keys import order_by
from upsert.store.rows.layout import COUNT_COLUMN, KIND_COLUMN, Layout, Projection, with_ids
from upsert.store.rows.merge import SortedRows, gather, halves, key_ranges, weight
from upsert.store.rows.partitions import Portion, split
from upsert.store.storage import delete_each, storage_of

Rows: TypeAlias = pa.Table | pa.RecordBatchReader
"""What is written: a table, or a stream of record batches that need not fit into memory."""


def arrow_rows(given: Rows | ArrowStream) -> Rows:
    """Rows that another library has, as a stream; those of Arrow as they are.

    The row numbers that a DataFrame of pandas keeps when it is filtered or sorted are left out.

    >>> arrow_rows(pa.record_batch({"id": [1, 2]})).read_all().num_rows
    2
    """
    if isinstance(given, pa.Table | pa.RecordBatchReader) or not isinstance(given, ArrowStream):
        return given
    rows = read_stream(given)
    kept = [place for place, name in enumerate(rows.schema.names) if not _UNNAMED_INDEX.fullmatch(name)]
    if len(kept) == len(rows.schema):
        return rows
    schema = rows.schema.empty_table().select(kept).schema
    return pa.RecordBatchReader.from_batches(schema, (batch.select(kept) for batch in rows))


_UNNAMED_INDEX: Final = re.compile(r"__index_level_\d+__")
"""What Arrow calls an index of pandas that has no name."""


PIECE_BYTES: Final = 64 << 20
"""What is sorted or folded in memory at a time; that takes about three times as much."""

_SIGN_COLUMN: Final = KIND_COLUMN


@dataclass(frozen=True)
class RawPart:
    """The rows of one bucket within a file of raw changes: the number of their record batch."""

    bucket_id: BucketId
    batch: int
    rows: int


@dataclass(frozen=True)
class RawFile:
    """A file of raw changes: signed rows, part by part.

    ``order`` says whether the order of a key's rows means anything, ``definition`` which version of the
    table's definition they were written under. What the process that stages a few rows commits itself is in
    ``batches``, and in no file.
    """

    file: str
    base: int
    parts: tuple[RawPart, ...]
    order: Order = "none"
    definition: int = 0
    batches: tuple[pa.RecordBatch, ...] | None = field(default=None, repr=False, compare=False)


class BucketPart(NamedTuple):
    """The rows of one bucket in one file."""

    file: RawFile
    part: RawPart


def parts_by_bucket(raw: Iterable[RawFile]) -> dict[BucketId, list[BucketPart]]:
    """The parts of some files by partition and bucket, in the order of the files."""
    found: dict[BucketId, list[BucketPart]] = {}
    for file in raw:
        for part in file.parts:
            found.setdefault(part.bucket_id, []).append(BucketPart(file, part))
    return found


def pieces_of(rows: Rows, max_bytes: int | None = None) -> Iterator[pa.Table]:
    """The rows in order, in tables of bounded size; at least one table, so that its columns are seen."""
    max_bytes = max_bytes or PIECE_BYTES
    if not isinstance(rows, pa.RecordBatchReader):
        yield from _parts_of(rows, max_bytes) if isinstance(rows, pa.Table) and rows.num_rows else [rows]
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


_Cut: TypeAlias = Iterable[tuple[RawPart, pa.RecordBatch]]
"""Parts of raw changes and their rows."""


def _write_raw(root: str, layout: Layout, base: int, cut: _Cut, order: Order) -> RawFile | None:
    """Write the signed rows of each bucket; None if there are no rows.

    Not synced: power failure ends the task too. Cleaning removes what a crash leaves.
    """
    name = paths.staging_file(base, uuid4().hex)
    path = paths.resolve(root, name)
    parts: list[RawPart] = []
    with (
        storage_of(path).new_file(path) as local,
        pa.OSFile(local, "wb") as sink,
        pa.ipc.new_file(sink, _schema(layout)) as writer,
    ):
        for part, batch in cut:
            writer.write_batch(batch)
            parts.append(part)
    if not parts:
        storage_of(path).delete(path)
        return None
    return RawFile(name, base, tuple(parts), order, layout.version)


def _raw_in_memory(layout: Layout, base: int, cut: _Cut, order: Order) -> RawFile | None:
    """As ``_write_raw``, without a file."""
    found = [*cut]
    if not found:
        return None
    parts, batches = tuple(part for part, _ in found), tuple(batch for _, batch in found)
    return RawFile("", base, parts, order, layout.version, batches)


def _raw_parts(root: str, layout: Layout, pieces: Iterable[pa.Table]) -> _Cut:
    """What is written, bucket by bucket."""
    return _cut(layout, (conform(layout, piece, _owner(root)) for piece in pieces))


def _cut(layout: Layout, given: Iterable[tuple[pa.Table, Signs | None]]) -> _Cut:
    numbers = count()
    for stored, signs in given:
        for portion in split(layout, stored, signs):
            part = RawPart(portion.bucket_id, next(numbers), portion.rows.num_rows)
            yield part, _sorted_batch(layout, portion)


def cut_again(root: str, layout: Layout, base: int, raw: RawFile) -> RawFile | None:
    """The same raw changes in the buckets and with the columns of a layout; the given file stays."""
    given = (_read(root, layout, raw, part) for part in raw.parts)
    signed = ((rows.drop_columns([_SIGN_COLUMN]), rows.column(_SIGN_COLUMN).to_numpy()) for rows in given)
    cut = _cut(layout, signed)
    if raw.batches is not None:
        return _raw_in_memory(layout, base, cut, raw.order)
    return _write_raw(root, layout, base, cut, raw.order)


def _schema(layout: Layout) -> pa.Schema:
    fields = [*with_ids(layout)]
    if layout.is_counted:  # else a column of the table may have that name
        fields = [field for field in fields if field.name != COUNT_COLUMN]
    return pa.schema([*fields, (_SIGN_COLUMN, pa.int8())])


def _sorted_batch(layout: Layout, portion: Portion) -> pa.RecordBatch:
    """The rows by key, those of one key in input order, and the sign of each."""
    order = order_by([portion.rows.column(name) for name in layout.key]).rows
    signs = np.ones(len(order), np.int8) if portion.weights is None else portion.weights[order]
    rows = gather(portion.rows, order).append_column(_SIGN_COLUMN, pa.array(signs, pa.int8()))
    (batch,) = rows.combine_chunks().to_batches()
    return pa.RecordBatch.from_arrays(batch.columns, schema=_schema(layout))


def _folded(root: str, layout: Layout, parts: Iterable[BucketPart], order: Order) -> Iterator[SortedRows]:
    for rows, weights in signed_rows(root, layout, parts):
        with naming(_owner(root)):
            run = fold(layout, rows, weights, order)
        yield run


def signed_rows(root: str, layout: Layout, parts: Iterable[BucketPart]) -> Iterator[tuple[pa.Table, Signs]]:
    """The rows of one bucket in the form of ``layout``, and the sign of each: range by range of keys.

    The rows of a key come in the order of the parts, and within one in that of the input.
    """
    inputs = [SortedRows(_read(root, layout, *part), None) for part in parts]
    for within in key_ranges(layout, inputs, PIECE_BYTES):
        rows = pa.concat_tables([run.rows for run in within])
        yield rows.drop_columns([_SIGN_COLUMN]), rows.column(_SIGN_COLUMN).to_numpy()


def _read(root: str, layout: Layout, file: RawFile, part: RawPart) -> pa.Table:
    batch = _batch_in(root, file, part.batch) if file.batches is None else file.batches[part.batch]
    schema = pa.schema([field.remove_metadata() for field in _schema(layout)])
    if file.definition != layout.version:
        *own, signs = batch.schema.names
        columns = batch.select(own)
        projection = Projection.of(columns.schema, layout, f"file of raw changes {file.file!r}")
        arrays = projection.apply(columns, schema.names[:-1]).columns
        return pa.Table.from_arrays([*arrays, batch.column(signs)], schema=schema)
    return pa.Table.from_arrays(batch.columns, schema=schema)


def _batch_in(root: str, file: RawFile, number: int) -> pa.RecordBatch:
    path = paths.resolve(root, file.file)
    try:
        return storage_of(path).mapped(
            path, lambda local: pa.ipc.open_file(pa.memory_map(local)).get_batch(number)
        )
    except StorageError:
        raise  # the file may be whole
    except (pa.ArrowException, OSError) as cause:
        raise CorruptTableError(
            f"file of raw changes {path!r} must be there until it is committed, got {cause}; write the rows "
            "again"
        ) from cause


@dataclass(frozen=True)
class StagedFiles:
    """What one task wrote: plain values that can be pickled and sent to the committer.

    ``retracting`` names the files of a table without primary key that lower a count, ``partitions`` those in
    which rows were written, also if nothing is left of them. ``folded`` are raw changes whose rows are in
    data files by now, of this task or of others; they go with the commit. ``rows`` counts the rows that were
    given, also those of one key.
    """

    table: str
    files: tuple[FileEntry, ...] = ()
    raw: tuple[RawFile, ...] = ()
    retracting: frozenset[str] = frozenset()
    partitions: frozenset[Partition] = frozenset()
    folded: tuple[RawFile, ...] = ()
    rows: int = 0


_FEW_BYTES: Final = 4 << 20
"""Raw changes that take no more stay in the memory of the process that commits them."""


def stage_folded(
    history: History,
    rows: Rows,
    order: Order,
    definition: int | None = None,
    *,
    is_committed_here: bool = False,
) -> StagedFiles:
    """Fold the rows of each bucket and write them as data files of level 0.

    What is too large to be folded in memory goes through a file of raw changes, gone afterwards. Where the
    commit must look at the table's rows (``MergeRules.needs_present_rows``), all does, and stays; few rows
    stay in memory instead, if this process commits them.
    ``definition`` is the version that has the rows' columns; None for the present one.

    Raises:
        SchemaError: the rows do not fit the table.
        ChangelogError: they contradict each other.
        StaleWriterError: a clean-up took the file of raw changes meanwhile.
    """
    # an older base than the latest snapshot only makes those careful who delete files
    base, layout, root = history.seen_just_now().id, _layout(history, definition), history.root
    if layout.merge.needs_present_rows:
        if is_committed_here and isinstance(rows, pa.Table) and rows.nbytes <= _FEW_BYTES:
            cut = _raw_parts(root, layout, [rows])
            return _staged_raw(history, _raw_in_memory(layout, base, cut, order))
        return stage_raw(history, rows, order, definition)
    pieces = pieces_of(rows)
    first, second = next(pieces), next(pieces, None)
    if second is not None:
        cut = _raw_parts(root, layout, chain([first, second], pieces))
        raw = _staged_raw(history, _write_raw(root, layout, base, cut, "none"))
        try:
            return replace(fold_raw(history, layout, base, raw.raw, order), rows=raw.rows)
        finally:
            remove(root, raw)
    stored, signs = conform(layout, first, _owner(root))
    portions = list(split(layout, stored, signs))
    with naming(_owner(root)):
        runs = [(p.bucket_id, [fold(layout, p.rows, p.weights, order)]) for p in portions]
    return replace(_write_all(history, layout, base, runs), rows=stored.num_rows)


def stage_raw(
    history: History, rows: Rows, order: Order = "none", definition: int | None = None
) -> StagedFiles:
    """Write the signed rows of each bucket as they are, in one file; arguments as for ``stage_folded``."""
    base, layout = history.seen_just_now().id, _layout(history, definition)
    cut = _raw_parts(history.root, layout, pieces_of(rows))
    staged = _staged_raw(history, _write_raw(history.root, layout, base, cut, order))
    reach("stage.after-raw")
    return staged


def _layout(history: History, definition: int | None) -> Layout:
    return history.layout if definition is None else history.definition_at(definition).layout


def _staged_raw(history: History, raw: RawFile | None) -> StagedFiles:
    if raw is None:
        return StagedFiles(history.uuid)
    partitions = frozenset(part.bucket_id[0] for part in raw.parts)
    rows = sum(part.rows for part in raw.parts)
    return StagedFiles(history.uuid, raw=(raw,), partitions=partitions, rows=rows)


def _owner(root: str) -> str:
    return f"table {paths.name_of(root)!r}"


def fold_raw(
    history: History, layout: Layout, base: int, raw: Iterable[RawFile], order: Order = "none"
) -> StagedFiles:
    """Fold the raw changes of all tasks, a range of a bucket's keys at a time.

    Raises:
        StaleWriterError: a clean-up took one of their files meanwhile.
    """
    raw = [*raw]
    runs = (
        (bucket_id, _folded(history.root, layout, parts, order))
        for bucket_id, parts in parts_by_bucket(raw).items()
    )
    try:
        return _write_all(history, layout, base, runs)
    except CorruptTableError as cause:
        began = min(file.base for file in raw)
        if began < (head := history.latest()).fence:
            raise CommitRules(history).stale(began, head) from cause
        raise


def _write_all(
    history: History, layout: Layout, base: int, runs: Iterable[tuple[BucketId, Iterable[SortedRows]]]
) -> StagedFiles:
    root = history.root
    partitions: set[Partition] = set()
    retracting: set[str] = set()
    written: list[Future[FileEntry]] = []

    def write_noted(
        bucket_id: BucketId, rows: pa.Table, kinds: Kinds | None, key_bounds: KeyBounds
    ) -> FileEntry:
        entry = write_data_file(
            root, layout, rows, kinds, key_bounds, bucket_id=bucket_id, level=0, base=base
        )
        if layout.is_counted and pc.min(rows.column(COUNT_COLUMN)).as_py() < 0:
            retracting.add(entry.file)
        return entry

    with removed_if_failed(root, lambda: [one.result().file for one in written if _is_done(one)]):
        with ParallelWrites() as writes:
            for bucket_id, run in runs:
                partitions.add(bucket_id[0])
                write_file = partial(write_noted, bucket_id)
                target = 2 * PIECE_BYTES
                written += written_files(partial(writes.write, write_file), layout.key, run, target)
        files = tuple(one.result() for one in written)
    return StagedFiles(history.uuid, files, (), frozenset(retracting), frozenset(partitions))


def _is_done(one: Future[FileEntry]) -> bool:
    return one.done() and not one.cancelled() and one.exception() is None


def of_each_bucket(staged: Iterable[StagedFiles]) -> tuple[StagedFiles, ...]:
    """The raw changes of several tasks, those of a bucket together."""
    found: dict[BucketId, StagedFiles] = {}
    for one in staged:
        for file in one.raw:
            for bucket_id, parts in parts_by_bucket([file]).items():
                own = replace(file, parts=tuple(part for _, part in parts))
                before = found.get(bucket_id, StagedFiles(one.table))
                found[bucket_id] = replace(before, raw=(*before.raw, own))
    return tuple(found.values())


def fold_staged(history: History, staged: StagedFiles) -> StagedFiles:
    """Raw changes of one definition as data files.

    The files are as old as the oldest of these, so a commit refuses them where it would refuse these.
    """
    (version,) = {file.definition for file in staged.raw}
    base = min(file.base for file in staged.raw)
    return fold_raw(history, history.definition_at(version).layout, base, staged.raw, staged.raw[0].order)


def join(uuid: str, staged: Iterable[StagedFiles]) -> StagedFiles:
    """What several tasks wrote, as one."""
    files: list[FileEntry] = []
    raw: list[RawFile] = []
    folded: list[RawFile] = []
    retracting: set[str] = set()
    partitions: set[Partition] = set()
    owner: dict[BucketId, int] = {}
    arrivals: dict[BucketId, int | None] = {}
    rows = 0
    for number, one in enumerate(staged):
        if one.table != uuid:
            raise ConfigurationError(
                f"staged files must belong to the table they are committed to, {uuid!r}, got {one.table!r}; "
                "was the table dropped and created again?"
            )
        for entry in one.files:
            if owner.setdefault(entry.bucket_id, number) != number:
                raise _shared_bucket(entry.bucket)
        for bucket_id, parts in parts_by_bucket(one.raw).items():
            in_order = number if parts[0].file.order == "rows" else None
            if arrivals.setdefault(bucket_id, in_order) != in_order:
                raise _shared_bucket(bucket_id[1])
        files += one.files
        raw += one.raw
        folded += one.folded
        retracting |= one.retracting
        partitions |= one.partitions
        rows += one.rows
    return StagedFiles(
        uuid, tuple(files), tuple(raw), frozenset(retracting), frozenset(partitions), tuple(folded), rows
    )


def _shared_bucket(bucket: int) -> ConfigurationError:
    return ConfigurationError(
        f"one task must stage all rows of a bucket, got two tasks for bucket {bucket}; use stage_raw where "
        "rows are partitioned otherwise"
    )


def remove(root: str, staged: StagedFiles) -> None:
    """Delete the files of ``staged``; whatever is gone already is no error."""
    raw = [one.file for one in (*staged.raw, *staged.folded) if one.batches is None]
    delete_each(storage_of(root), [paths.staging_path(root, name) for name in raw])
    remove_data_files(root, [entry.file for entry in staged.files])
