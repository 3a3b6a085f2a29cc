"""Manifests: which data files a commit added and removed, and the live files, by name, that they make.

A snapshot lists manifests, oldest first. Each commit appends one with its own additions and removals
(the *delta*), and `folding` keeps them few.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import compress, groupby, islice
from typing import Any, Final
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, Positions, combinations, indices, integers, one_array
from upsert.errors import CorruptTableError
from upsert.store import paths
from upsert.store.checksums import checksum_of
from upsert.store.metadata.file_entry import FileEntry, bounds_of
from upsert.store.metadata.partition_order import Ends, ends_of
from upsert.store.metadata.shared_mapping import SharedMapping
from upsert.store.metadata.snapshot import ManifestRef
from upsert.store.paths import BucketId, Partition
from upsert.store.rows.layout import Layout
from upsert.store.storage import read_each, storage_of


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """A block that makes many objects and no garbage: looking for some would take most of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_ADD: Final = "add"
_DELETE: Final = "delete"

_PLAIN_FIELDS: Final = {
    "action": pa.string(),
    "file": pa.string(),
    "partition": pa.list_(pa.struct([("column", pa.string()), ("value", pa.string())])),
    "bucket": pa.int32(),
    "level": pa.int32(),
    "sequence": pa.int64(),
    "rows": pa.int64(),
    "deletes": pa.int64(),
    "bytes": pa.int64(),
    "base": pa.int64(),
    "definition": pa.int64(),
    "written_ms": pa.int64(),
    "memory": pa.int64(),
    "checksum": pa.uint64(),
    "index_checksum": pa.uint64(),
    "first_key": pa.binary(),
    "last_key": pa.binary(),
}


@dataclass(frozen=True)
class Manifest:
    """Files that a commit, or several folded ones, added and removed."""

    added: tuple[FileEntry, ...]
    removed: tuple[FileEntry, ...]


def write_manifest(
    root: str, layout: Layout, base: int, added: Sequence[FileEntry], removed: Sequence[FileEntry]
) -> ManifestRef:
    """Write a manifest durably; its ``sequence`` is 0 until the commit knows its id.

    After a crash there may be a manifest that no snapshot names; cleaning removes it.
    """
    ends = ends_of({entry.partition for entry in (*added, *removed)})
    return _written(root, base, _table(layout, added, removed), len(removed), ends)


def write_rows(root: str, base: int, rows: pa.Table, ends: Ends | None) -> ManifestRef:
    """``write_manifest`` of entries that are rows already; ``ends`` are their first and last partition."""
    removed = pc.sum(pc.equal(rows.column("action"), _DELETE)).as_py() or 0
    return _written(root, base, rows, removed, ends)


def _written(root: str, base: int, rows: pa.Table, removed: int, ends: Ends | None) -> ManifestRef:
    name = paths.manifest_file(base, uuid4().hex)
    path = paths.resolve(root, name)
    content = _content(rows)
    storage_of(path).write(path, content)
    ref = ManifestRef(name, rows.num_rows, 0, checksum_of(content))
    return ref if ends is None else replace(ref, first=ends[0], last=ends[1], removed=removed)


def encode(layout: Layout, added: Sequence[FileEntry], removed: Sequence[FileEntry] = ()) -> bytes:
    """Entries as the content of a manifest."""
    return _content(_table(layout, added, removed))


def _content(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def schema_of(layout: Layout) -> pa.Schema:
    """The columns of a manifest of this form."""
    # bounds go by field id: manifests are read whatever definition they were written under
    statistics = pa.struct([(str(c.id), c.type) for c in layout.schema.columns if types.is_scalar(c.type)])
    return pa.schema([*_PLAIN_FIELDS.items(), ("min", statistics), ("max", statistics)])


def _table(layout: Layout, added: Sequence[FileEntry], removed: Sequence[FileEntry]) -> pa.Table:
    actions = [_ADD] * len(added) + [_DELETE] * len(removed)
    rows = [_row(action, entry) for action, entry in zip(actions, (*added, *removed), strict=True)]
    return pa.Table.from_pylist(rows, schema=schema_of(layout))


@dataclass(frozen=True)
class ManifestRows:
    """A manifest of which no entry has been made yet: its rows, and the snapshot that published it."""

    rows: pa.Table
    sequence: int

    @property
    def is_added(self) -> Mask:
        """Which rows are additions; the others are removals."""
        return _is_added(self.rows)

    def names(self, numbers: Positions) -> list[str]:
        """The names of the files of some rows."""
        names: list[str] = self.rows.column("file").take(indices(numbers)).to_pylist()
        return names

    def entries(self, numbers: Positions) -> list[FileEntry]:
        """The entries of some rows, in this order."""
        with without_garbage_collection():
            is_all = len(numbers) == self.rows.num_rows and bool((np.diff(numbers) == 1).all())
            rows = self.rows if is_all else self.rows.take(indices(numbers))
            return _entries(rows, [self.sequence] * rows.num_rows)

    def conformed(self, schema: pa.Schema) -> pa.Table:
        """Its rows with the columns of ``schema_of``, each with a sequence of its own."""
        columns = {name: self.rows.column(name) for name in _PLAIN_FIELDS}
        own = columns["sequence"]
        columns["sequence"] = pc.if_else(pc.equal(own, 0), pa.scalar(self.sequence, pa.int64()), own)
        for name in ("min", "max"):
            columns[name] = _bounds_as(one_array(self.rows.column(name)), schema.field(name).type)
        return pa.table(columns, schema=schema)

    def buckets(self) -> BucketRows:
        """Which rows each bucket has."""
        partitions, codes = partitions_of(one_array(self.rows.column("partition")))
        buckets = integers(self.rows.column("bucket")).astype(np.int64)
        both = codes * (int(buckets.max(initial=0)) + 1) + buckets
        order = np.argsort(both, kind="stable")
        begins = np.flatnonzero(np.diff(both[order], prepend=-1))
        firsts = order[begins]
        ranks = np.argsort(firsts)
        firsts = firsts[ranks]
        named = zip(
            map(partitions.__getitem__, codes[firsts].tolist()), buckets[firsts].tolist(), strict=True
        )
        with without_garbage_collection():
            return BucketRows(dict(zip(named, ranks.tolist(), strict=True)), order, begins)


@dataclass(frozen=True)
class BucketRows:
    """Row numbers by bucket: ``order`` has those of one after the other, of which ``begins`` says the places.

    ``ranks`` says which one a bucket is; it has them in the order of their first rows.
    """

    ranks: dict[BucketId, int]
    order: npt.NDArray[np.int64]
    begins: npt.NDArray[np.int64]

    def of(self, bucket_id: BucketId) -> npt.NDArray[np.int64]:
        """The rows of a bucket, ascending."""
        if (rank := self.ranks.get(bucket_id)) is None:
            return self.order[:0]
        end = self.begins[rank + 1] if rank + 1 < len(self.begins) else None
        return self.order[self.begins[rank] : end]


def read_rows(root: str, ref: ManifestRef) -> ManifestRows:
    """A manifest whose entries are made as they are needed; see ``read_manifest``."""
    return ManifestRows(_checked_rows(root, ref, _content_of(root, ref)), ref.sequence)


def read_manifest(root: str, ref: ManifestRef) -> Manifest:
    """The entries of a manifest; files without a sequence of their own get the manifest's.

    One that is not there has expired, or is lost; only the caller can tell which.
    """
    return read_manifests(root, [ref])[0]


def read_manifests(root: str, refs: Sequence[ManifestRef]) -> list[Manifest]:
    """``read_manifest`` of each; those of many are checked and made together, in a fifth of the time."""
    found: list[Manifest] = []
    for read in _pieces(refs, _ENTRIES_READ):
        contents = iter(read_each(storage_of(root), [paths.manifest_path(root, ref.name) for ref in read]))
        for some in _pieces(read, _ENTRIES_TOGETHER):
            rows = [(ref, _rows(root, ref, next(contents))) for ref in some]
            for _, alike in groupby(rows, lambda one: one[1].schema):
                found += _manifests(root, [*alike])
    return found


_ENTRIES_TOGETHER: Final = 1 << 10
"""An entry holds the bounds of all those that it was made with, as long as it lives."""
_ENTRIES_READ: Final = 1 << 15
"""Of so many the bytes are in memory at once."""


def _pieces(refs: Sequence[ManifestRef], most: int) -> Iterator[list[ManifestRef]]:
    """The manifests in turn, so many that they have ``most`` entries together, or one that has more."""
    some: list[ManifestRef] = []
    count = 0
    for ref in refs:
        if some and count + ref.entries > most:
            yield some
            some, count = [], 0
        some.append(ref)
        count += ref.entries
    if some:
        yield some


def _manifests(root: str, read: Sequence[tuple[ManifestRef, pa.Table]]) -> Iterator[Manifest]:
    """What manifests of the same columns say."""
    rows = pa.concat_tables([table for _, table in read]).combine_chunks()
    if _impossible(rows) is not None:
        for ref, table in read:
            with _naming(root, ref):
                _check_entries(table)
    counts = [table.num_rows for _, table in read]
    with without_garbage_collection():
        entries = iter(_entries(rows, np.repeat([ref.sequence for ref, _ in read], counts).tolist()))
    is_added = iter(_is_added(rows).tolist())
    for count in counts:
        yield _split([*islice(entries, count)], [*islice(is_added, count)])


def checked(root: str, ref: ManifestRef) -> ManifestRef:
    """A manifest of an older release, which has no checksum, with that of its bytes."""
    content = _content_of(root, ref)
    _checked_rows(root, ref, content)
    return replace(ref, checksum=checksum_of(content))


def _content_of(root: str, ref: ManifestRef) -> bytes:
    path = paths.manifest_path(root, ref.name)
    return storage_of(path).read(path)


def _checked_rows(root: str, ref: ManifestRef, content: bytes) -> pa.Table:
    """The rows of a manifest, of which entries can be made."""
    rows = _rows(root, ref, content)
    with _naming(root, ref):
        _check_entries(rows)
    return rows


def _rows(root: str, ref: ManifestRef, content: bytes) -> pa.Table:
    """The rows of a manifest, whatever they say; Arrow sees only what has the checksum that is known."""
    if ref.checksum and (found := checksum_of(content)) != ref.checksum:
        raise CorruptTableError(
            f"manifest {paths.manifest_path(root, ref.name)!r} must have the checksum {ref.checksum:016x}, "
            f"got {found:016x}; restore it from a copy"
        )
    with _naming(root, ref):
        return _opened(content, ref.entries)


@contextmanager
def _naming(root: str, ref: ManifestRef) -> Iterator[None]:
    """A block whose ``ValueError`` says what a manifest must be, and is not."""
    try:
        yield
    except ValueError as cause:
        path = paths.manifest_path(root, ref.name)
        raise CorruptTableError(f"manifest {path!r} {cause}; restore it from a copy") from cause


def decode(content: bytes) -> Manifest:
    """The entries in the content of a manifest; each must have a sequence of its own."""
    try:
        rows = _opened(content)
        _check_entries(rows)
    except ValueError as cause:
        raise CorruptTableError(f"entries of files {cause}") from cause
    with without_garbage_collection():
        return _split(_entries(rows, [0] * rows.num_rows), _is_added(rows).tolist())


def _split(entries: Sequence[FileEntry], is_added: Sequence[bool]) -> Manifest:
    return Manifest(
        tuple(compress(entries, is_added)), tuple(compress(entries, (not added for added in is_added)))
    )


def _opened(content: bytes, count: int | None = None) -> pa.Table:
    """The rows in the content of a manifest; a ``ValueError`` says what it must be."""
    try:
        table = pa.ipc.open_file(content).read_all()
        table.validate(full=True)  # else damaged offsets would be followed wherever they lead
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as cause:
        raise ValueError(f"must be an Arrow IPC file, got {cause}") from cause
    if not _is_manifest(table.schema):
        raise ValueError(f"must have the columns of a manifest, got {', '.join(table.column_names)}")
    if count is not None and table.num_rows != count:
        raise ValueError(f"must have {count} entries, got {table.num_rows}")
    return table


def _check_entries(rows: pa.Table) -> None:
    """Refuse rows of which entries cannot be made, by a ``ValueError``."""
    if (wrong := _impossible(rows)) is not None:
        raise ValueError(f"must have entries that can be, got {wrong}")


def _is_added(rows: pa.Table) -> Mask:
    """Which rows of a manifest are additions."""
    actions = one_array(rows.column("action")).dictionary_encode()
    names = actions.dictionary.to_pylist()
    mask: Mask = integers(actions.indices) == (names.index(_ADD) if _ADD in names else len(names))
    return mask


def _impossible(table: pa.Table) -> str | None:
    """What no entry of a manifest can say, if one does; None if all can be."""
    numbers: dict[str, Any] = {}
    for name, type_ in _PLAIN_FIELDS.items():
        column = table.column(name)
        if column.null_count:
            return f"no {name!r} in one of them"
        if pa.types.is_signed_integer(type_):
            numbers[name] = integers(column)
            if (numbers[name] < 0).any():
                return f"{name!r} of {numbers[name].min()}"
    if not set(pc.unique(table.column("action")).to_pylist()) <= {_ADD, _DELETE}:
        return f"an 'action' that is neither {_ADD!r} nor {_DELETE!r}"
    named = pc.match_substring_regex(table.column("file"), paths.DATA_FILE)
    if not pc.all(named).as_py():
        return f"{table.column('file').filter(pc.invert(named))[0].as_py()!r}, which is no data file"
    if (numbers["rows"] < np.maximum(numbers["deletes"], 1)).any():
        return "a file without rows, or with more deletions than rows"
    if pc.any(pc.greater(table.column("first_key"), table.column("last_key"))).as_py():
        return "a first key above the last one"
    low, high = (one_array(table.column(name)) for name in ("min", "max"))
    for number, field in enumerate(low.type):
        if pc.any(pc.greater(low.field(number), high.field(number))).as_py():
            return f"a least value of column {field.name} above the greatest"
    return None


def after(live: SharedMapping[str, FileEntry], manifest: Manifest) -> SharedMapping[str, FileEntry]:
    """The live files, by name, after a manifest."""
    touched = {entry.file for entry in manifest.removed} | {entry.file for entry in manifest.added}
    found = {name: live[name] for name in touched if name in live}
    apply(found, manifest)
    return live.after({name: found.get(name) for name in touched})


def apply(live: dict[str, FileEntry], manifest: Manifest) -> None:
    """Bring the live files, by name, from before a manifest to after it."""
    # removals first: a file that only goes to another level is in both lists
    for entry in manifest.removed:
        if live.pop(entry.file, None) is None:
            raise CorruptTableError(
                f"a manifest must remove live files only, got {entry.file!r}; restore the table"
            )
    for entry in manifest.added:
        live[entry.file] = entry


def _is_manifest(found: pa.Schema) -> bool:
    """Whether a schema is that of a manifest, written under whatever definition of the table."""
    plain = pa.schema(list(_PLAIN_FIELDS.items()))
    if found.names != [*plain.names, "min", "max"] or found.types[: len(plain)] != plain.types:
        return False
    low, high = found.types[len(plain) :]
    if low != high or not pa.types.is_struct(low):
        return False
    return all(field.name.isdecimal() and types.is_scalar(field.type) for field in low)


def _row(action: str, entry: FileEntry) -> dict[str, Any]:
    row = {name: getattr(entry, name) for name in _PLAIN_FIELDS if name != "action"}
    row["min"] = {str(id): value for id, value in entry.min.items()}
    row["max"] = {str(id): value for id, value in entry.max.items()}
    row["partition"] = [{"column": column, "value": value} for column, value in entry.partition]
    return {"action": action, **row}


def _entries(table: pa.Table, sequences: Iterable[int]) -> list[FileEntry]:
    """The entries of manifests, made column by column: there may be a hundred thousand.

    ``sequences`` are those of the manifests of the rows, for files without one of their own.
    """
    columns: dict[str, Sequence[Any]] = {}
    for name, type_ in _PLAIN_FIELDS.items():
        if name not in ("action", "partition"):
            column = table.column(name)
            columns[name] = integers(column).tolist() if pa.types.is_integer(type_) else column.to_pylist()
    columns["sequence"] = [own or of for own, of in zip(columns["sequence"], sequences, strict=True)]
    columns["partition"] = _partitions(one_array(table.column("partition")))
    for name in ("min", "max"):
        columns[name] = bounds_of(one_array(table.column(name)))
    return FileEntry.many(columns)


def _bounds_as(bounds: pa.StructArray, type_: pa.StructType) -> pa.StructArray:
    """Bounds with the fields of another definition: some are not known, and others are not wanted."""
    known = {field.name: values for field, values in zip(bounds.type, bounds.flatten(), strict=True)}
    columns = []
    for field in type_:
        values = known.get(field.name)
        if values is None:
            columns.append(pa.nulls(len(bounds), field.type))
        else:
            is_same = values.type == field.type
            columns.append(values if is_same else pa.array(values.to_pylist(), field.type))
    if not columns:
        return pa.array([{}] * len(bounds), type_)
    return pa.StructArray.from_arrays(columns, fields=list(type_))


def _partitions(pairs: pa.ListArray) -> list[Partition]:
    # one object for each partition, however many files it has
    known, codes = partitions_of(pairs)
    return [known[code] for code in codes.tolist()]


def partitions_of(pairs: pa.ListArray) -> tuple[list[Partition], npt.NDArray[np.int64]]:
    """The different partitions, and which of them each row has."""
    columns, codes = integers(pairs.value_lengths()), np.zeros(len(pairs), np.int64)
    if not columns.any():
        return [()] if len(pairs) else [], codes
    starts = integers(pairs.offsets)[:-1]
    parts: list[npt.NDArray[np.int64]] = []
    for field in pairs.values.flatten():
        encoded = integers(field.dictionary_encode(null_encoding="encode").indices).astype(np.int64)
        for number in range(int(columns.max(initial=0))):
            part = np.zeros(len(pairs), np.int64)
            part[columns > number] = 1 + encoded[starts[columns > number] + number]
            parts.append(part)
    ones, codes = combinations(parts)
    values = pairs.take(indices(ones)).to_pylist()
    return [tuple((pair["column"], pair["value"]) for pair in row) for row in values], codes
