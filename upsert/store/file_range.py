"""Rows of a compressed data file that follow each other, decoded when they are needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from upsert.store.data_file import DataFile
from upsert.store.file_entry import FileEntry
from upsert.store.layout import Layout
from upsert.store.merge import SortedRows
from upsert.store.row_keys import key_bytes


class FileRange:
    """What a merge cuts into ranges of keys without holding the file, see ``key_ranges``."""

    def __init__(self, file: DataFile, layout: Layout, start: int = 0, length: int | None = None) -> None:
        self._file = file
        self._layout = layout
        self._start = start
        self._length = file.rows - start if length is None else length

    def __len__(self) -> int:
        return self._length

    @property
    def size(self) -> int:
        """About how many bytes of memory the rows take, taking all rows of the file for equally large."""
        return self._file.entry.size * self._length // self._file.rows

    def key(self, row: int) -> bytes:
        """The key of a row as bytes; the part of the file that it lies in is kept for the next one asked."""
        found = self._file.take(self._layout.key, np.array([self._start + row]))
        return key_bytes(found.columns)

    def slice(self, start: int, length: int) -> FileRange:
        """Some of these rows."""
        return FileRange(self._file, self._layout, self._start + start, length)

    def load(self) -> SortedRows:
        """The rows themselves."""
        rows = pa.Table.from_batches([self._file.slice(self._file.names, self._start, self._length)])
        kinds = self._file.kinds
        return SortedRows(rows, None if kinds is None else kinds[self._start : self._start + self._length])


def rows_of_file(root: str | Path, layout: Layout, entry: FileEntry) -> SortedRows | FileRange:
    """The rows of a data file, to be merged range by range: views of it, or decoded when they are needed.

    Raises:
        CorruptTableError: the file is missing or damaged.
    """
    file = DataFile.open(root, layout, entry)
    return SortedRows(file.table, file.kinds) if file.is_mapped else FileRange(file, layout)
