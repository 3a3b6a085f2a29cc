"""Manifests: which data files a commit added and removed, and the set of live files that they make.

A snapshot lists manifests, oldest first. Each commit appends one with its own additions and removals
(the *delta*). When there are too many, the newest ones are folded into one; a manifest takes part
once those behind it weigh half as much, so an entry is rewritten a logarithmic number of times and the
cost of a commit does not grow with the number of commits before it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import compress, groupby
from operator import itemgetter
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import one_array
from upsert.errors import CorruptTableError
from upsert.store import paths
from upsert.store.checksums import checksum_of
from upsert.store.metadata.file_entry import FileEntry, bounds_of, by_bucket
from upsert.store.metadata.shared_mapping import SharedMapping
from upsert.store.metadata.snapshot import ManifestRef
from upsert.store.paths import BucketId, Partition
from upsert.store.rows.layout import Layout
from upsert.store.storage import storage_of


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


_T = TypeVar("_T")

Run = tuple[FileEntry, ...]
"""Files of one bucket whose keys are disjoint: together one sorted run."""


@dataclass(frozen=True)
class FileSet:
    """The live files of a snapshot.

    ``groups`` maps (partition, bucket) to the bucket's runs, newest first: the files of each commit that are
    still on level 0, then each higher level. The files of a run ascend by key.
    """

    groups: Mapping[BucketId, tuple[Run, ...]]

    @classmethod
    def of(cls, entries: Iterable[FileEntry]) -> Self:
        """The set of these files, in any order."""
        with without_garbage_collection():
            return cls(SharedMapping({id: runs_of(files) for id, files in by_bucket(entries).items()}))

    def after(self, added: Iterable[FileEntry], removed: Iterable[FileEntry]) -> FileSet:
        """The set after a commit; only the buckets that it touches are looked at."""
        came, went = by_bucket(added), by_bucket(removed)
        groups = self.groups if isinstance(self.groups, SharedMapping) else SharedMapping(self.groups)
        changes: dict[BucketId, tuple[Run, ...] | None] = {}
        for bucket_id in dict.fromkeys((*came, *went)):
            runs = groups.get(bucket_id, ())
            changes[bucket_id] = _after(runs, came.get(bucket_id, []), went.get(bucket_id, [])) or None
        return FileSet(groups.after(changes))

    def only(self, is_wanted: Callable[[Partition], bool]) -> FileSet:
        """The files of some partitions."""
        wanted = {
            partition: is_wanted(partition) for partition in {bucket_id[0] for bucket_id in self.groups}
        }
        if all(wanted.values()):
            return self
        return self.within(bucket_id for bucket_id in self.groups if wanted[bucket_id[0]])

    def within(self, buckets: Iterable[BucketId]) -> FileSet:
        """The files of some buckets, those that there are."""
        groups = self.groups
        return FileSet({bucket_id: groups[bucket_id] for bucket_id in buckets if bucket_id in groups})

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """All files: newest first within a bucket."""
        return tuple(entry for runs in self.groups.values() for run in runs for entry in run)


def _after(runs: tuple[Run, ...], added: list[FileEntry], removed: list[FileEntry]) -> tuple[Run, ...]:
    """The runs of a bucket after a commit; what an append finds there is taken as it is, however much."""
    oldest_added = max((entry.age for entry in added), default=None)
    is_append = oldest_added is not None and (not runs or oldest_added < runs[0][0].age)
    if is_append and not removed:
        return (*runs_of(added), *runs)
    files = {entry.file: entry for run in runs for entry in run}
    for entry in removed:
        files.pop(entry.file)
    return runs_of(list((files | {entry.file: entry for entry in added}).values()))


def runs_of(files: Sequence[FileEntry]) -> tuple[Run, ...]:
    """The files of a bucket as its runs."""
    if len(files) == 1:
        return ((files[0],),)
    ordered = sorted((entry.age, entry.first_key, number) for number, entry in enumerate(files))
    return tuple(tuple(files[number] for *_, number in run) for _, run in groupby(ordered, key=itemgetter(0)))


MAX_MANIFESTS: Final = 16
_FEWEST_TO_FOLD: Final = 8
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
    name = paths.manifest_file(base, uuid4().hex)
    path = paths.resolve(root, name)
    content = encode(layout, added, removed)
    storage_of(path).write(path, content)
    return ManifestRef(name, len(added) + len(removed), 0, checksum_of(content))


def encode(layout: Layout, added: Sequence[FileEntry], removed: Sequence[FileEntry] = ()) -> bytes:
    """Entries as the content of a manifest."""
    actions = [_ADD] * len(added) + [_DELETE] * len(removed)
    rows = [_row(action, entry) for action, entry in zip(actions, (*added, *removed), strict=True)]
    # bounds go by field id: manifests are read whatever definition they were written under
    statistics = pa.struct([(str(c.id), c.type) for c in layout.schema.columns if types.is_scalar(c.type)])
    schema = pa.schema([*_PLAIN_FIELDS.items(), ("min", statistics), ("max", statistics)])
    table = pa.Table.from_pylist(rows, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@dataclass(frozen=True)
class ManifestRows:
    """A manifest of which no entry has been made yet: its rows, and the snapshot that published it."""

    rows: pa.Table
    sequence: int

    @property
    def removed(self) -> pa.Array:
        """The names of the files that it removes."""
        return one_array(self.rows.filter(pc.equal(self.rows.column("action"), _DELETE)).column("file"))

    def added(self, gone: pa.Array) -> Self:
        """Its additions alone, but for files with these names."""
        is_wanted = pc.equal(self.rows.column("action"), _ADD)
        if len(gone):
            is_gone = pc.is_in(self.rows.column("file"), value_set=gone)
            is_wanted = pc.and_(is_wanted, pc.invert(is_gone))
        if pc.all(is_wanted).as_py():
            return self
        return replace(self, rows=self.rows.filter(is_wanted))

    def entries(self, numbers: pa.Array | None = None) -> list[FileEntry]:
        """The entries of some rows; of all if None."""
        with without_garbage_collection():
            return _entries(self.rows if numbers is None else self.rows.take(numbers), self.sequence)

    def buckets(self) -> BucketRows:
        """Which rows each bucket has."""
        partitions, codes = _partition_codes(one_array(self.rows.column("partition")))
        buckets = self.rows.column("bucket").to_numpy().astype(np.int64)
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
    return ManifestRows(_read(root, ref, lambda content: _checked(content, ref.entries))[0], ref.sequence)


def read_manifest(root: str, ref: ManifestRef) -> Manifest:
    """The entries of a manifest; files without a sequence of their own get the manifest's.

    One that is not there has expired, or is lost; only the caller can tell which.
    """
    return _parsed(root, ref)[0]


def checked(root: str, ref: ManifestRef) -> ManifestRef:
    """A manifest of an older release, which has no checksum, with that of its bytes."""
    return replace(ref, checksum=_parsed(root, ref)[1])


def _parsed(root: str, ref: ManifestRef) -> tuple[Manifest, int]:
    """A manifest and the checksum of its bytes."""
    return _read(root, ref, lambda content: _decoded(content, ref.sequence, ref.entries))


def _read(root: str, ref: ManifestRef, decode: Callable[[bytes], _T]) -> tuple[_T, int]:
    """What is made of a manifest's bytes; Arrow sees only what has the checksum that is known."""
    path = paths.manifest_path(root, ref.name)
    content = storage_of(path).read(path)
    found = checksum_of(content)
    if ref.checksum and found != ref.checksum:
        raise CorruptTableError(
            f"manifest {path!r} must have the checksum {ref.checksum:016x}, got {found:016x}; restore it "
            "from a copy"
        )
    try:
        return decode(content), found
    except ValueError as cause:
        raise CorruptTableError(f"manifest {path!r} {cause}; restore it from a copy") from cause


def decode(content: bytes) -> Manifest:
    """The entries in the content of a manifest; each must have a sequence of its own."""
    try:
        return _decoded(content, 0)
    except ValueError as cause:
        raise CorruptTableError(f"entries of files {cause}") from cause


def _decoded(content: bytes, sequence: int, count: int | None = None) -> Manifest:
    """The entries in the content of a manifest; a ``ValueError`` says what it must be, and is not."""
    table = _checked(content, count)
    with without_garbage_collection():
        entries = _entries(table, sequence)
    is_added = [action == _ADD for action in table.column("action").to_pylist()]
    return Manifest(
        tuple(compress(entries, is_added)), tuple(compress(entries, (not added for added in is_added)))
    )


def _checked(content: bytes, count: int | None) -> pa.Table:
    """The rows of a manifest, of which entries can be made; else a ``ValueError`` as of ``_decoded``."""
    try:
        table = pa.ipc.open_file(content).read_all()
        table.validate(full=True)  # else damaged offsets would be followed wherever they lead
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as cause:
        raise ValueError(f"must be an Arrow IPC file, got {cause}") from cause
    if not _is_manifest(table.schema):
        raise ValueError(f"must have the columns of a manifest, got {', '.join(table.column_names)}")
    if count is not None and table.num_rows != count:
        raise ValueError(f"must have {count} entries, got {table.num_rows}")
    if (wrong := _impossible(table)) is not None:
        raise ValueError(f"must have entries that can be, got {wrong}")
    return table


def _impossible(table: pa.Table) -> str | None:
    """What no entry of a manifest can say, if one does; None if all can be."""
    numbers: dict[str, Any] = {}
    for name, type_ in _PLAIN_FIELDS.items():
        column = table.column(name)
        if column.null_count:
            return f"no {name!r} in one of them"
        if pa.types.is_signed_integer(type_):
            numbers[name] = column.to_numpy()
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


def fold(
    root: str, layout: Layout, base: int, refs: Sequence[ManifestRef], read: Callable[[ManifestRef], Manifest]
) -> tuple[ManifestRef, ...]:
    """The same live files in at most ``MAX_MANIFESTS`` manifests; writes one file if there are more."""
    count = folded_count([ref.entries for ref in refs])
    if not count:
        return tuple(refs)
    kept, folded = refs[:-count], refs[-count:]
    manifest = combine(map(read, folded))
    ref = write_manifest(root, layout, base, manifest.added, manifest.removed)
    return (*kept, ref) if ref.entries else tuple(kept)


def folded_count(entries: Sequence[int]) -> int:
    """How many of the newest manifests to fold, given the number of entries of each, oldest first.

    >>> folded_count([1] * 16), folded_count([1] * 17), folded_count([100, *[1] * 16])
    (0, 17, 16)
    """
    if len(entries) <= MAX_MANIFESTS:
        return 0
    count = total = 0
    for size in reversed(entries):
        if count >= _FEWEST_TO_FOLD and size > 2 * total:
            break
        count += 1
        total += size
    return count


def combine(manifests: Iterable[Manifest]) -> Manifest:
    """One manifest with the effect of several, oldest first: a file that came and went is in neither list."""
    added: dict[str, FileEntry] = {}
    removed: list[FileEntry] = []
    for manifest in manifests:
        removed += [entry for entry in manifest.removed if added.pop(entry.file, None) is None]
        added |= {entry.file: entry for entry in manifest.added}
    return Manifest(tuple(added.values()), tuple(removed))


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


def _entries(table: pa.Table, sequence: int) -> list[FileEntry]:
    """The entries of a manifest, made column by column: there may be a hundred thousand."""
    columns: dict[str, Sequence[Any]] = {}
    for name, type_ in _PLAIN_FIELDS.items():
        if name not in ("action", "partition"):
            column = table.column(name)
            columns[name] = column.to_numpy().tolist() if pa.types.is_integer(type_) else column.to_pylist()
    columns["sequence"] = [own or sequence for own in columns["sequence"]]
    columns["partition"] = _partitions(one_array(table.column("partition")))
    for name in ("min", "max"):
        columns[name] = bounds_of(one_array(table.column(name)))
    return FileEntry.many(columns)


def _partitions(pairs: pa.ListArray) -> list[Partition]:
    # one object for each partition, however many files it has
    known, codes = _partition_codes(pairs)
    return [known[code] for code in codes.tolist()]


def _partition_codes(pairs: pa.ListArray) -> tuple[list[Partition], npt.NDArray[np.int64]]:
    """The different partitions, and which of them each row has."""
    columns, codes = pairs.value_lengths().to_numpy(), np.zeros(len(pairs), np.int64)
    starts = pairs.offsets.to_numpy()[:-1]
    parts = [codes]
    for field in pairs.values.flatten():
        encoded = field.dictionary_encode(null_encoding="encode").indices.to_numpy().astype(np.int64)
        for number in range(int(columns.max(initial=0))):
            part = np.full(len(pairs), -1)
            part[columns > number] = encoded[starts[columns > number] + number]
            parts.append(part)
    _, firsts, codes = np.unique(np.stack(parts), axis=1, return_index=True, return_inverse=True)
    values = pairs.take(pa.array(firsts)).to_pylist()
    return [tuple((pair["column"], pair["value"]) for pair in row) for row in values], codes.ravel()
