"""One immutable sorted file of a bucket and its sidecar, if it has one, open for reading.

By default a data file is a single uncompressed Arrow IPC batch, see docs/decisions/0002. Readers map it:
opening costs a few pages, and a lookup touches only the pages of the rows that it returns. Files of the other
formats are mapped too, and decoded where they are read. Sidecars are always mapped Arrow. Names are never
used twice, so an open map never goes stale; a file that is deleted while mapped stays readable until the map
is dropped (POSIX).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cachetools import LRUCache

from upsert.arrays import Kinds, Positions, taken
from upsert.errors import ConfigurationError, CorruptTableError, StorageError, UpsertError
from upsert.store import paths
from upsert.store.checksums import checksum_of
from upsert.store.files.formats import ARROW, format_of_file
from upsert.store.files.formats.arrow import EVERY, Some, check_offsets, has_offsets
from upsert.store.files.formats.base import Bounds, FileFormat, StoredRows, without_columns
from upsert.store.files.formats.narrow import NarrowRows
from upsert.store.files.lookup_index import (
    HashIndex,
    KeyIndex,
    build_index,
    is_sidecar,
    may_hold,
    part_of,
    read_indexes,
    read_key_index,
    sidecar_columns,
)
from upsert.store.kept import Kept
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.paths import index_file, resolve
from upsert.store.predicate import Filter
from upsert.store.rows.hashing import Hashes
from upsert.store.rows.keys import key_bytes
from upsert.store.rows.layout import KIND_COLUMN, Layout, Projection
from upsert.store.rows.merge import SortedRows, gather_parts
from upsert.store.storage import delete_each, storage_of
from upsert.store.version import MAX_HASH

MAX_DECODED_BYTES: Final = 512 << 20
"""Decoded columns of compressed files that a process keeps."""

Rows = npt.NDArray[np.integer[Any]]

_WHOLE: Final = -1
"""Stands for all parts together."""


class FileColumns:
    """The columns of an open file, as they were written.

    What is mapped is read where it lies, after a look at the offsets that are followed. Of a compressed file
    a lookup decodes the parts that its rows lie in; the process keeps these, for the next micro-batch asks
    again. A scan that looks up no key takes what is kept and adds nothing to it.
    """

    def __init__(self, path: str, stored: StoredRows) -> None:
        self.path = path
        self.schema = stored.schema
        self.rows = stored.rows
        self.is_mapped = stored.is_mapped and not isinstance(stored, NarrowRows)
        self._stored = stored
        self._narrow = stored.narrow if isinstance(stored, NarrowRows) else ()
        self._whole: dict[str, pa.Array] = {}  # columns of a mapped file, as they lie there
        self._unchecked = {
            field.name
            for field in stored.schema
            if has_offsets(field.type) and field.name not in self._narrow
        }

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """Number of the first row of each part, and after these the number of rows."""
        return np.array(self._stored.starts, np.int64)

    def bounds(self, name: str) -> Bounds | None:
        """What the file says about the values of a column in each of its parts; None if it says nothing."""
        try:
            return self._stored.bounds(name)
        except (OSError, ValueError, OverflowError, LookupError, pa.ArrowException) as cause:
            raise _damaged(self.path, "be whole", cause) from cause

    def slice(self, names: Sequence[str], start: int, stop: int) -> pa.RecordBatch:
        """Some columns of the rows from ``start`` to before ``stop``; no other part is decoded."""
        if self._stored.is_mapped:
            touched = EVERY if stop - start == self.rows else slice(start, stop)
            return self._widened(self._mapped(names, touched).slice(start, stop - start))
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        last = int(np.searchsorted(self.starts, max(stop, start + 1)))
        parts = [self._part(number, names, keep=False) for number in range(max(0, first), last)]
        joined = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        return joined.slice(start - int(self.starts[max(0, first)]), stop - start)

    def column(self, name: str) -> pa.Array:
        """One column of all rows, which is kept: something searches it again and again."""
        if self._stored.is_mapped and name not in self._narrow:
            return self._mapped([name], EVERY).column(0)
        if (found := _DECODED.get((self.path, _WHOLE, name))) is None:
            found = self.slice([name], 0, self.rows).column(0)
            _DECODED.put((self.path, _WHOLE, name), found)
        return found

    def columns(self, names: Sequence[str], rows: Rows) -> list[pa.Array]:
        """Some columns of some rows, given by their numbers."""
        if self._stored.is_mapped:
            return [self._taken(name, rows) for name in names]
        columns: list[pa.Array] = self.take(names, rows).columns
        return columns

    def _taken(self, name: str, rows: Rows) -> pa.Array:
        if (column := self._whole.get(name)) is None:
            column = self._mapped([name], rows).column(0)
            if name not in self._unchecked:
                self._whole[name] = column
        found = taken(column, rows)
        return self._widened_column(name, found) if name in self._narrow else found

    def take(self, names: Sequence[str], rows: Rows) -> pa.RecordBatch:
        """Some columns of some rows as one batch."""
        if self._stored.is_mapped:
            if not names:
                return without_columns(len(rows))
            schema = pa.schema([self.schema.field(name) for name in names])
            return pa.RecordBatch.from_arrays(self.columns(names, rows), schema=schema)
        if not len(rows):
            return self._part(0, names, keep=True).slice(0, 0)
        return gather_parts(self.starts, rows, lambda number: self._part(number, names, keep=True))

    def _mapped(self, names: Sequence[str], rows: Some) -> pa.RecordBatch:
        """Some columns of all rows, of which no others than these will be touched."""
        found = self._stored.read(0, names)
        if self._unchecked.isdisjoint(names):
            return found
        for name, column in zip(names, found.columns, strict=True):
            if name not in self._unchecked:
                continue
            try:
                check_offsets(column, rows)
            except ValueError as cause:
                raise _damaged(self.path, "be whole", cause) from cause
            if rows is EVERY or pa.types.is_nested(column.type):
                self._unchecked.discard(name)
        return found

    def _widened_column(self, name: str, values: pa.Array) -> pa.Array:
        assert isinstance(self._stored, NarrowRows)
        try:
            return self._stored.widened_column(name, values)
        except (ValueError, LookupError, pa.ArrowException) as cause:
            raise _damaged(self.path, "be whole", cause) from cause

    def _widened(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if not isinstance(self._stored, NarrowRows):
            return rows
        try:
            return self._stored.widened(rows)
        except (ValueError, LookupError, pa.ArrowException) as cause:
            raise _damaged(self.path, "be whole", cause) from cause

    def _part(self, number: int, names: Sequence[str], *, keep: bool) -> pa.RecordBatch:
        start, stop = int(self.starts[number]), int(self.starts[number + 1])
        if not names:
            return without_columns(stop - start)
        there: dict[str, pa.Array] = {}
        for name in names:
            if (whole := _DECODED.get((self.path, _WHOLE, name))) is not None:
                there[name] = whole.slice(start, stop - start)
            elif (found := _DECODED.get((self.path, number, name))) is not None:
                there[name] = found
        if missing := [name for name in dict.fromkeys(names) if name not in there]:
            decoded = self._decoded(number, missing, stop - start)
            for name, column in zip(missing, decoded.columns, strict=True):
                there[name] = column
                if keep:
                    _DECODED.put((self.path, number, name), column)
        schema = pa.schema([self.schema.field(name) for name in names])
        return pa.RecordBatch.from_arrays([there[name] for name in names], schema=schema)

    def _decoded(self, number: int, names: Sequence[str], rows: int) -> pa.RecordBatch:
        try:
            found = self._stored.read(number, names)
        except (OSError, ValueError, LookupError, pa.ArrowException) as cause:
            raise _damaged(self.path, "be whole", cause) from cause
        if found.num_rows != rows:
            raise _damaged(self.path, f"have {rows} rows in part {number}", found.num_rows)
        return found


def _size(column: pa.Array) -> int:
    return max(1, int(column.nbytes))


_DECODED = Kept[tuple[str, int, str], pa.Array](lambda: LRUCache(MAX_DECODED_BYTES, _size), is_inherited=True)
"""Decoded columns by path, part and name; the least recently used ones go first."""


_FEW_PROBES: Final = 4
"""So many for each row of a small file are searched in its keys themselves."""

MAX_OPEN_FILES: Final = 2048
"""Open maps kept by a process: each is two file mappings, far below the usual limit of 65 530."""


class DataFile:
    """An open data file: zero-copy views of memory-mapped pages, or columns that are decoded when asked for.

    ``kinds`` has 0 or 1 for each row, and is None if the file has no deletion.
    """

    def __init__(
        self,
        entry: FileEntry,
        stored: FileColumns,
        columns: Projection,
        indexes: dict[str, HashIndex],
        by_key: KeyIndex | None,
        layout: Layout,
    ) -> None:
        """Take over what ``open`` has checked: rows as written, and the table's columns made of them."""
        self._by_key = by_key
        self.entry = entry
        self.rows = stored.rows
        self.kinds: Kinds | None = stored.column(KIND_COLUMN).to_numpy() if entry.deletes else None
        self._stored = stored
        self._columns = columns
        self._indexes = indexes
        self._layout = layout

    @classmethod
    def open(cls, root: str | Path, layout: Layout, entry: FileEntry) -> DataFile:
        """The file of a manifest entry, from the process-wide cache if it is open."""
        known_by = os.fspath(root), entry.file, layout.identity
        if (file := _OPEN.get(known_by)) is None:
            path = resolve(*known_by[:2])
            path = path if "://" in path else os.path.abspath(path)
            # two threads may map the same file at once: harmless, and no reader waits for another's disk
            file = cls._map(path, layout, entry)
            _OPEN.put(known_by, file)
        return file

    @classmethod
    def _map(cls, path: str, layout: Layout, entry: FileEntry) -> Self:
        if (format_ := format_of_file(path)) is None:
            raise _damaged(path, "have a name that tells its format", repr(os.path.basename(path)))
        if entry.definition == layout.version:
            expected = layout.stored
            if entry.deletes:
                expected = expected.append(pa.field(KIND_COLUMN, pa.int8()))
            stored = _open_file(path, format_, expected, entry.rows, entry.bytes, entry.checksum)
            columns = Projection.same(layout)
        else:
            stored = _open_file(path, format_, None, entry.rows, entry.bytes, entry.checksum)
            if (has_kinds := KIND_COLUMN in stored.schema.names) != bool(entry.deletes):
                found = f"{'a' if has_kinds else 'no'} column {KIND_COLUMN!r}"
                raise _damaged(path, f"have {entry.deletes} deletions, as its manifest says", found)
            columns = Projection.of(stored.schema, layout, f"data file {path!r}")
        indexes, by_key = _read_sidecar(path, layout, entry) if entry.has_sidecar else ({}, None)
        for index in layout.indexes:
            if columns.converts(index.columns):
                indexes.pop(index.name, None)
        return cls(entry, stored, columns, indexes, by_key, layout)

    def select(self, names: Sequence[str]) -> pa.RecordBatch:
        """Some of the table's stored columns, in this order; no copy of what is mapped as it is today."""
        return self.slice(names, 0, self.rows)

    def slice(self, names: Sequence[str], start: int, length: int) -> pa.RecordBatch:
        """Some stored columns of some rows that follow each other; not much else is decoded."""
        return self._columns.apply(
            self._stored.slice(self._columns.needed(names), start, start + length), names
        )

    def take(self, names: Sequence[str], rows: npt.NDArray[np.integer[Any]]) -> pa.RecordBatch:
        """Some stored columns of some rows, given by their numbers."""
        return self._columns.apply(self._stored.take(self._columns.needed(names), rows), names)

    def columns(self, names: Sequence[str], rows: npt.NDArray[np.integer[Any]]) -> dict[str, pa.Array]:
        """As ``take``, column by column."""
        if self._columns.is_same:
            return dict(zip(names, self._stored.columns(names, rows), strict=True))
        return dict(zip(names, self.take(names, rows).columns, strict=True))

    def column(self, name: str) -> pa.Array:
        """One of the table's stored columns, for one who asks again: what was decoded for it is kept."""
        source = self._columns.needed([name])
        if self._columns.is_same:
            return self._stored.column(name)
        if not source:
            return self.select([name]).column(0)
        stored = pa.record_batch([self._stored.column(source[0])], names=source)
        return self._columns.apply(stored, [name]).column(0)

    def stretches(self, where: Filter, columns: Collection[str]) -> list[tuple[int, int]]:
        """Which rows may be some of which a filter is true, by what the file says about some columns.

        Each stretch is the number of its first row and of the one after its last; they ascend.
        """
        bounds = {
            name: found
            for name in where.columns
            if name in columns and (found := self._bounds(name)) is not None
        }
        if not bounds:
            return [(0, self.rows)]
        starts = self._stored.starts
        kept = np.flatnonzero(where.possible(bounds, len(starts) - 1))
        neighbours = np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1) if len(kept) else []
        return [(int(starts[part[0]]), int(starts[part[-1] + 1])) for part in neighbours]

    def _bounds(self, name: str) -> Bounds | None:
        source = self._columns.sources.get(name)
        found = None if source is None else self._stored.bounds(source)
        if found is None:
            return None
        low, high = (self._columns.apply(pa.record_batch([end], [source]), [name]) for end in found)
        return low.column(0), high.column(0)

    @property
    def is_mapped(self) -> bool:
        """Whether its columns are views of the file; those of a narrow or compressed one take memory."""
        return self._stored.is_mapped

    @property
    def is_in_one_part(self) -> bool:
        """Whether any rows can be read without others that lie beside them."""
        return len(self._stored.starts) <= 2

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all stored columns."""
        return self._columns.names

    @property
    def table(self) -> pa.Table:
        """The stored columns as a table."""
        return pa.Table.from_batches([self.select(self.names)])

    def has_index(self, name: str) -> bool:
        """Whether a lookup index is there, or soon made; an older file lacks one that was added since."""
        return (
            not self.entry.has_sidecar or name in self._indexes or (name == "pk" and self._by_key is not None)
        )

    def index(self, name: str) -> HashIndex:
        """The sorted hashes and row numbers of a lookup index; built and kept where no sidecar has it."""
        found = self._indexes.get(name)
        if found is None:
            columns = self._layout.lookup_index(name).columns
            whole = build_index(self.select(columns), columns)
            # as in a sidecar: the whole hashes of the key cut steps
            found = self._indexes[name] = whole if name == "pk" else whole.short()
        return found

    @property
    def key_index(self) -> KeyIndex | None:
        """What the sidecar has of a key that is searched itself; None if it has the whole index of it."""
        if self._by_key is None or self._by_key.starts is not None:
            return self._by_key
        return self._by_key.in_parts(self._part_starts)

    def keys_that_may_be_there(self, hashes: Hashes) -> Positions:
        """Positions of all keys of these hashes that the file has, and of few others; see ``may_hold``."""
        is_made = self._by_key is not None or "pk" in self._indexes
        if not is_made and self._layout.is_searched_by_key and len(hashes) <= _FEW_PROBES * self.rows:
            return np.arange(len(hashes))  # they are searched sooner than the index is made
        return may_hold(self._by_key or self.index("pk"), hashes)

    def key_hashes(self, start: int = 0, stop: int | None = None) -> Hashes:
        """The hashes of the keys in ascending order, from one place in it to before another."""
        if self._by_key is None:
            return self.index("pk").hashes[start:stop].astype(np.uint64, copy=False)
        starts, end = self._part_starts, self.rows if stop is None else min(stop, self.rows)
        parts = [part for part in range(len(starts) - 1) if starts[part] < end and starts[part + 1] > start]
        if not parts:
            return np.empty(0, np.uint64)
        hashes = np.concatenate([self._of_part(part)[0] for part in parts])
        first, last = start - starts[parts[0]], end - starts[parts[0]]
        if last < len(hashes):
            hashes = np.partition(hashes, last - 1)[:last]
        return np.sort(hashes)[first:]

    def keys_below(self, limit: int) -> int:
        """How many keys have a hash below a limit."""
        if limit > MAX_HASH:
            return self.rows
        if self._by_key is None:
            return int(np.searchsorted(self.index("pk").hashes, np.uint64(limit)))
        part = part_of(limit)
        hashes, _ = self._of_part(part)
        return self._part_starts[part] + int(np.count_nonzero(hashes < np.uint64(limit)))

    def rows_of_hashes(self, low: int, high: int) -> Positions:
        """Numbers of the rows of which the hash of the key lies in a range, both ends inside; ascending."""
        if self._by_key is None:
            in_range = self.index("pk").rows[self.keys_below(low) : self.keys_below(high + 1)]
            return np.sort(in_range).astype(np.int64)
        found = [np.empty(0, np.int64)]
        ends = part_of(low), part_of(high)
        for part in range(ends[0], ends[1] + 1):
            if part in ends:
                hashes, rows = self._of_part(part)
                found.append(rows[(hashes >= np.uint64(low)) & (hashes <= np.uint64(high))])
            else:
                found.append(self._by_key.part(part, self._part_starts))
        return np.sort(np.concatenate(found))

    @cached_property
    def _part_starts(self) -> Sequence[int]:
        """Where the parts of a short index of the key begin."""
        assert self._by_key is not None
        if self._by_key.starts is not None:
            return self._by_key.starts
        rows = self._by_key.rows  # in the order of their hashes

        def part_at(place: int) -> int:
            return part_of(
                int(self._layout.key_hashes(self.take(self._layout.key, rows[place : place + 1]))[0])
            )

        parts = range(part_of(MAX_HASH) + 1)
        return [*(bisect_left(range(self.rows), part, key=part_at) for part in parts), self.rows]

    def _of_part(self, number: int) -> tuple[Hashes, Positions]:
        """The hashes of a part of the short index of the key, and its rows, ascending."""
        assert self._by_key is not None
        rows = self._by_key.part(number, self._part_starts)
        return self._layout.key_hashes(self.take(self._layout.key, rows)), rows


class _OpenFiles(Kept[tuple[str, str, int], DataFile]):
    """By the table's folder, name, and the identity of the form that they are read in.

    No name is used twice. A file that was deleted takes its disk space as long as it is mapped: a table that
    changes all the time had four times its own size in such files. Now and then they are looked for.
    """

    def __init__(self) -> None:
        super().__init__(lambda: LRUCache(MAX_OPEN_FILES), is_inherited=True)
        self._opened = 0

    def put(self, key: tuple[str, str, int], thing: DataFile) -> None:
        """Keep an open file; let others go that were deleted, if as many were opened as a quarter of all."""
        super().put(key, thing)
        self._opened += 1
        if self._opened >= max(_FEWEST_OPENED, len(self) // 4):
            self._opened = 0
            self.keep_only(_may_be_there)


_FEWEST_OPENED: Final = 16
"""Deleted files are looked for when so many others were opened, at the earliest."""


def _may_be_there(key: tuple[str, str, int]) -> bool:
    """Whether a file is not known to be deleted; of one that was downloaded there is only the copy."""
    path = resolve(*key[:2])
    return "://" in path or os.path.exists(path)


_OPEN: Final = _OpenFiles()


def forget_open_files() -> None:
    """Drop all open maps of this process; the next reader opens (and checks) its files again."""
    _OPEN.clear()
    _DECODED.clear()


@contextmanager
def damage_named(root: str | Path, entries: Callable[[], Iterable[FileEntry]]) -> Iterator[None]:
    """Say which file is damaged where what was read of files led to an error that only damage explains.

    Opening a file reads a few pages of it, so a changed byte in the others shows when they are used, or
    never; the checksums are compared then.
    """
    try:
        yield
    except UpsertError:
        raise
    except (LookupError, ArithmeticError, TypeError, ValueError, pa.ArrowException) as cause:
        for entry in entries():
            path = resolve(os.fspath(root), entry.file)
            for name, stated in ((path, entry.checksum), (index_file(path), entry.index_checksum)):
                if stated and (found := checksum_of(storage_of(name).mapped(name, _mapped))) != stated:
                    raise _damaged(name, f"have checksum {stated:x}", f"{found:x}") from cause
        raise


def _open_file(
    path: str, format_: FileFormat, expected: pa.Schema | None, rows: int, size: int | None, checksum: int
) -> FileColumns:
    storage = storage_of(path)

    def opened(local: str) -> FileColumns:
        content = _mapped(local)
        if size is not None and content.size != size:
            raise _damaged(path, f"have {size} bytes", f"{content.size} bytes")
        # of a local file that would read what the map avoids reading; this one was just downloaded
        if checksum and not storage.is_local:
            _check_checksum(path, content, checksum)
        return FileColumns(path, format_.open(content))

    try:
        columns = storage.mapped(path, opened)
    except (ConfigurationError, StorageError):
        raise  # a package is missing, or the disk or the store failed: the file may be whole
    except FileNotFoundError as cause:
        raise CorruptTableError(
            f"data file {path!r} is missing; restore it, or read a snapshot that does not need it"
        ) from cause
    except (pa.ArrowException, OSError, ValueError) as cause:
        raise _damaged(path, f"have a whole file of format {format_.name}", cause) from cause
    if expected is not None and columns.schema != expected:
        raise _damaged(path, f"have columns {', '.join(expected.names)}", ", ".join(columns.schema.names))
    if columns.rows != rows:
        raise _damaged(path, f"have {rows} rows", columns.rows)
    return columns


def _read_sidecar(
    path: str, layout: Layout, entry: FileEntry
) -> tuple[dict[str, HashIndex], KeyIndex | None]:
    """The indexes beside a data file, and the short one of its key, if it has that."""
    path = index_file(path)
    # of an older definition a file may lack indexes, and have others
    sidecar = _open_file(path, ARROW, None, entry.rows, None, entry.index_checksum)
    if entry.definition == layout.version and not is_sidecar(layout, sidecar.schema):
        found = ", ".join(f"{field.name} {field.type}" for field in sidecar.schema)
        raise _damaged(path, f"have columns {sidecar_columns(layout, entry.rows)}", found or "none")
    try:
        batch = sidecar.slice(sidecar.schema.names, 0, sidecar.rows)
        by_key = read_key_index(batch) if layout.is_searched_by_key else None
        return read_indexes(layout, batch), by_key
    except (LookupError, TypeError, ValueError, pa.ArrowException) as cause:
        raise _damaged(path, "have whole lookup indexes", cause) from cause


def check_bytes(path: str, checksum: int) -> None:
    """Compare all bytes of a file, wherever it lies, with the checksum of its manifest; 0: it has none."""
    storage_of(path).mapped(path, lambda local: _check_checksum(path, _mapped(local), checksum))


def _check_checksum(path: str, content: pa.Buffer, stated: int) -> None:
    found = checksum_of(content)
    if stated and found != stated:
        raise _damaged(path, f"have checksum {stated:x}", f"{found:x}")


def _mapped(local: str) -> pa.Buffer:
    """The bytes of a file; the buffer keeps the map, and needs no open file for it."""
    with pa.memory_map(local) as mapped:
        return mapped.read_buffer()


def _damaged(path: str, must: str, found: object) -> CorruptTableError:
    return CorruptTableError(f"data file {path!r} must {must}, got {found}; restore the file from a copy")


@dataclass(frozen=True)
class FileRange:
    """Some columns of rows of a file, which a reader cuts without holding the file, see ``key_ranges``."""

    file: DataFile
    layout: Layout
    start: int
    length: int
    names: Sequence[str]

    def __len__(self) -> int:
        return self.length

    @property
    def size(self) -> int:
        """About how many bytes of memory the rows take, taking all rows of the file for equally large."""
        return self.file.entry.size * self.length // self.file.rows

    def key(self, row: int) -> bytes:
        """The key of a row as bytes; the part of a compressed file that it lies in is kept for the next."""
        key, at = self.layout.key, self.start + row
        found = self.file.slice(key, at, 1) if self.file.is_mapped else self.file.take(key, np.array([at]))
        return key_bytes(found.columns)

    def slice(self, start: int, length: int) -> FileRange:
        """Some of these rows."""
        return replace(self, start=self.start + start, length=length)

    def load(self) -> SortedRows:
        """The rows themselves."""
        rows = pa.Table.from_batches([self.file.slice(self.names, self.start, self.length)])
        kinds = self.file.kinds
        return SortedRows(rows, None if kinds is None else kinds[self.start : self.start + self.length])


def rows_of_file(root: str | Path, layout: Layout, entry: FileEntry) -> SortedRows | FileRange:
    """The rows of a data file, to be merged range by range: views of it, or decoded when they are needed."""
    file = DataFile.open(root, layout, entry)
    if file.is_mapped:
        return SortedRows(file.table, file.kinds)
    return FileRange(file, layout, 0, file.rows, file.names)


def remove_data_files(root: str, names: Iterable[str], then: Callable[[], None] = lambda: None) -> None:
    """Delete data files and their sidecars; ``then`` is called after each of both."""
    data = [paths.data_path(root, name) for name in names]
    delete_each(storage_of(root), [file for path in data for file in (path, paths.index_file(path))], then)
