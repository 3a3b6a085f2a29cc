"""What a manifest says about one data file (pure): its keys, its rows, and bounds of its values.

Readers skip a file by its bounds. They also tell how far a table's rows have come in event time: a commit
keeps the newest value that the column of WATERMARK has ever had, so what a deletion or a compaction takes
away does not set it back. Of a rowtime that is computed of one column this is that column's value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Self

import pyarrow as pa

from upsert import types
from upsert.arrays import min_max
from upsert.schema import Column, TableSchema
from upsert.store.paths import BucketId, Partition
from upsert.store.rows.layout import Layout

_TEXT_LENGTH: Final = 64
_MICROS_OF_DAY: Final = 86_400_000_000


def bounds(layout: Layout, batch: pa.RecordBatch) -> tuple[dict[int, Any], dict[int, Any]]:
    """Smallest and largest value of each scalar column of a file, by field id.

    None for none, or if it is not known. NaN does not count. Texts are cut, for every manifest repeats them.
    """
    low: dict[int, Any] = {}
    high: dict[int, Any] = {}
    for column in layout.schema.columns:
        if types.is_scalar(column.type):
            low_end, high_end = min_max(batch.column(column.name))
            least, greatest = _python_value(low_end), _python_value(high_end)
            if column.type == pa.time64("ns"):
                greatest = _not_below(high_end)
            if isinstance(least, str | bytes):
                least = least[:_TEXT_LENGTH]
            if isinstance(greatest, str | bytes) and len(greatest) > _TEXT_LENGTH:
                greatest = None  # the beginning of a text is below it, so it bounds nothing
            low[column.id], high[column.id] = least, greatest
    return low, high


def _python_value(value: pa.Scalar) -> Any:
    """The value, or None where Python has none (a time beyond the year 9999) or it does not compare (NaN)."""
    try:
        plain = value.as_py()
        if isinstance(plain, timedelta):
            pa.scalar(plain, value.type)  # Arrow does not take back the outermost ones that it gives
    except (ValueError, OverflowError):
        return None
    return None if plain != plain else plain


def _not_below(value: pa.Scalar) -> time | None:
    """The first of Python's times of day, which have microseconds, that is not below one; None for none."""
    if not value.is_valid:
        return None
    micros = -(-value.value // 1000)
    return pa.scalar(micros, pa.int64()).cast(pa.time64("us")).as_py() if micros < _MICROS_OF_DAY else None


class StoredBounds(Mapping[int, Any]):
    """The bounds of one file, by field id, as a row of a manifest's columns: made Python values on use.

    A manifest has bounds of all columns of all files, and a reader asks for those of one column or two.
    """

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: Mapping[int, _Values], row: int) -> None:
        self._columns = columns
        self._row = row

    def __getitem__(self, id: int) -> Any:
        return self._columns[id]()[self._row]

    def __iter__(self) -> Iterator[int]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[type, tuple[dict[int, Any]]]:
        """Another process gets the values of this file, not the manifest."""
        return dict, (dict(self),)


_Values = Callable[[], list[Any]]
"""The values of a column, computed when it is called first."""


def bounds_of(array: pa.StructArray) -> list[StoredBounds]:
    """The bounds of each file of a manifest; the struct's fields are named by field id.

    >>> bounds_of(pa.array([{"1": 5, "2": "a"}]))
    [{1: 5, 2: 'a'}]
    """
    fields = zip(array.type, array.flatten(), strict=True)
    columns = {int(field.name): cache(values.to_pylist) for field, values in fields}
    return [StoredBounds(columns, row) for row in range(len(array))]


Key = bytes

NO_SIDECAR: Final = 0
"""In place of the checksum of a sidecar that is not there."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What a manifest knows about one data file.

    Attributes:
        file: path relative to the table.
        partition: partition columns and their values as text, None for NULL.
        level: 0 for a flushed file; files of one higher level form one sorted run.
        sequence: id of the snapshot that published the rows; the higher is the newer.
        rows: number of rows, deletions included.
        base: id of the snapshot that its writer began at.
        min: smallest value of each scalar column by its field id; None if there is none or it is not known.
        max: largest value, likewise.
        first_key: key of the first row, in bytes that compare as keys do, see ``keys.key_bytes``; the
            beginning of a long one.
        last_key: key of the last row, likewise; what is a little above a long one.
        definition: version of the table's definition that it was written under.
        written_ms: when, in milliseconds since 1970, by the clock of the file system.
        memory: size of its rows in memory; 0 if it is not known.
        checksum: 64 bits of XXH3 of the file's bytes; 0 if it is not known.
        index_checksum: that of its sidecar; ``NO_SIDECAR`` if it has none.
    """

    file: str
    partition: Partition
    bucket: int
    level: int
    sequence: int
    rows: int
    deletes: int
    bytes: int
    base: int
    min: Mapping[int, Any] = field(repr=False)
    max: Mapping[int, Any] = field(repr=False)
    first_key: Key = field(default=b"", repr=False)
    last_key: Key = field(default=b"", repr=False)
    definition: int = 0
    written_ms: int = 0
    memory: int = 0
    checksum: int = 0
    index_checksum: int = 0

    @classmethod
    def many(cls, columns: Mapping[str, Sequence[Any]]) -> list[Self]:
        """Entries given column by column, with a value for every attribute: as many calls, much faster."""
        found = [object.__new__(cls) for _ in columns["file"]]
        for name, values in columns.items():
            # the slot itself: no step of the interpreter for each of a hundred thousand values
            deque(map(getattr(cls, name).__set__, found, values), maxlen=0)
        return found

    @property
    def has_sidecar(self) -> bool:
        """Whether its lookup indexes lie beside it; those of a small file are made by who searches it."""
        # of an earlier release's file neither checksum is known
        return self.index_checksum != NO_SIDECAR or not self.checksum

    @property
    def bucket_id(self) -> BucketId:
        """Its partition and bucket."""
        return self.partition, self.bucket

    @property
    def age(self) -> tuple[int, int]:
        """Ascends from newer to older files of a bucket: level 0 by sequence, then level by level.

        The sequence says nothing above level 0: a file that was merged with others there keeps the highest
        one, whatever part of its keys that came from.
        """
        return self.level, 0 if self.level else -self.sequence

    @property
    def size(self) -> int:
        """What counts against ``target-file-size``: the rows in memory, however small they are on disk."""
        return self.memory or self.bytes

    def overlaps(self, other: FileEntry) -> bool:
        """Whether a key may lie in both files, by their first and last ones."""
        return self.first_key <= other.last_key and other.first_key <= self.last_key


def by_bucket(entries: Iterable[FileEntry]) -> dict[BucketId, list[FileEntry]]:
    """Files by partition and bucket, in their order."""
    found: dict[BucketId, list[FileEntry]] = {}
    for entry in entries:
        found.setdefault(entry.bucket_id, []).append(entry)
    return found


Run = tuple[FileEntry, ...]
"""Files of one bucket whose keys are disjoint: together one sorted run."""


def runs_of(files: Sequence[FileEntry]) -> tuple[Run, ...]:
    """The files of a bucket as its runs."""
    if len(files) == 1:
        return ((files[0],),)
    ordered = sorted((entry.age, entry.first_key, number) for number, entry in enumerate(files))
    return tuple(tuple(files[number] for *_, number in run) for _, run in groupby(ordered, key=itemgetter(0)))


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def source_of(schema: TableSchema) -> Column | None:
    """The stored column that the watermark goes by; None if it goes by none, by several, or by texts."""
    if schema.watermark is None:
        return None
    names: tuple[str, ...] = (schema.watermark.column,)
    for column in schema.computed:
        if column.name == schema.watermark.column:
            names = column.uses
    if len(names) != 1 or names[0] not in schema.names:
        return None
    found = schema.column(names[0])
    is_moment = pa.types.is_timestamp(found.type) or pa.types.is_date(found.type)
    is_number = pa.types.is_integer(found.type) or is_moment
    return found if is_number else None


def newest(schema: TableSchema, files: Iterable[FileEntry], known: int | None = None) -> int | None:
    """The newest value of that column in some files and of what is known; times as microseconds since 1970.

    None if there is none. Values that are stored are enough, the present ones or not.
    """
    source = source_of(schema)
    if source is None:
        return known
    found = [_number(entry.max.get(source.id)) for entry in files]
    if None in found and source.initial is not None:
        found.append(_number(source.initial.value))  # files that lack the column state nothing of it
    return max((value for value in (known, *found) if value is not None), default=None)


def value_of(column: Column, number: int) -> pa.Scalar:
    """The value of a column of which ``newest`` gives a number."""
    if pa.types.is_date(column.type):
        return pa.scalar(number // 86_400_000_000, pa.int32()).cast(column.type)
    return pa.scalar(number, pa.int64()).cast(column.type)


def _number(value: object) -> int | None:
    match value:
        case bool() | None:
            return None
        case int():
            return value
        case datetime():
            moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            elapsed = moment - _EPOCH
            return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
        case date():
            return (value - _EPOCH.date()).days * 86_400_000_000
    return None
