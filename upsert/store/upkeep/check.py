"""Whether a table on the disk keeps every rule of the store: each a named function, each breach a value.

Nothing is repaired, and nothing that this process remembers is believed: all is read from the disk again. A
rule is asked only of what could be read, so that one damage is named by one rule. Rules of commits are those
that commits obey, `upsert.store.commit.change`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from upsert import nested, types
from upsert.errors import (
    ChangelogError,
    CorruptTableError,
    SnapshotExpiredError,
    StorageError,
    TableNotFoundError,
    UpsertError,
)
from upsert.store import paths
from upsert.store.commit import change
from upsert.store.files.data_file import DataFile, check_bytes, forget_open_files
from upsert.store.files.lookup_index import HashIndex, KeyIndex, StoredHashes, upper_halves
from upsert.store.log.files import beginnings
from upsert.store.metadata.definition import Definition
from upsert.store.metadata.file_entry import FileEntry, bounds
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.history import History
from upsert.store.metadata.partition_order import key_of, values_of
from upsert.store.metadata.snapshot import refs_of
from upsert.store.read.snapshot import Snapshot
from upsert.store.retention import consumers
from upsert.store.rows.hashing import hash_columns, row_hashes
from upsert.store.rows.keys import key_of_row, lower_bound, order_by, upper_bound
from upsert.store.rows.layout import COUNT_COLUMN, ROW_HASH_COLUMN
from upsert.store.rows.partitions import split
from upsert.store.upkeep.disk_state import DiskState
from upsert.store.upkeep.orphans import based_files, temporary_files


@dataclass(frozen=True)
class Violation:
    """A rule, named as its function, that a table on the disk does not keep.

    ``subject`` is a file relative to the table's folder, or a snapshot. What ``is_information`` does no harm:
    waste on the disk, or a lease that is over.
    """

    rule: str
    subject: str
    found: str
    is_information: bool = False

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.found}"


class Finding(NamedTuple):
    """What breaks a rule, and how."""

    subject: str
    found: str


Rule = Callable[[DiskState], Iterator[Finding]]


def check(history: History, *, deep: bool = False) -> tuple[Violation, ...]:
    """Everything that is wrong with the table; empty for a table that keeps every rule and has no waste.

    Other processes may be at work: what an expiry takes away meanwhile is left out, what a writer has not yet
    committed is information. ``deep``: data files are read too, each once, and the latest snapshot is
    scanned; else their sizes are compared.
    """
    at_ms = int(time.time() * 1000)
    found = _once(history, deep, at_ms)
    if all(one.is_information for one in found):
        return found
    # what others took away or put there meanwhile looks like damage, and is something else the next time
    before = frozenset(found)
    return tuple(one for one in _once(history, deep, at_ms) if one.is_information or one in before)


def _once(history: History, deep: bool, now_ms: int) -> tuple[Violation, ...]:
    try:
        reread = history.reread()
    except StorageError as reason:
        return (Violation(file_is_given.__name__, paths.TABLE_FILE, str(reason)),)
    except CorruptTableError as reason:
        return (Violation(table_can_be_read.__name__, paths.TABLE_FILE, str(reason)),)
    state = DiskState.read(reread, now_ms)
    harmful = _asked((*RULES, *DEFINITION_RULES, *(DATA_RULES if deep else ())), state)
    waste = [replace(one, is_information=True) for one in _asked(INFORMATION, state)]
    return (*harmful, *_asked((file_is_given,), state), *waste)


def _asked(rules: Sequence[Rule], state: DiskState) -> list[Violation]:
    return [Violation(rule.__name__, *finding) for rule in rules for finding in _findings(rule, state)]


def _findings(rule: Rule, state: DiskState) -> Iterator[Finding]:
    """What a rule finds; of a table that is damaged so that it cannot be asked, that."""
    try:
        yield from rule(state)
    except TableNotFoundError:
        raise
    except StorageError as reason:
        subject = os.fspath(reason.filename) if reason.filename is not None else "table"
        state.unread.setdefault(subject.removeprefix(f"{state.history.root}/"), str(reason))
    except (UpsertError, ValueError, LookupError, TypeError, ArithmeticError) as cause:
        yield Finding("table", f"the rule cannot be asked of what lies there: {cause!r}")


def file_is_given(state: DiskState) -> Iterator[Finding]:
    """The disk or the store gives every file that is asked for; one that it does not give may be whole."""
    for name, reason in sorted(state.unread.items()):
        yield Finding(name, f"it could not be read: {reason}")


def table_can_be_read(state: DiskState) -> Iterator[Finding]:
    """The file that makes a folder a table is whole, and says what it said when snapshots were published."""
    found = state.history.definition_at(0).checksum
    for one in state.published:
        if one.info.definition == 0 and one.info.definition_checksum not in (0, found):
            stated = one.info.definition_checksum
            yield Finding(paths.TABLE_FILE, f"{one.name} names the checksum {stated:016x}, got {found:016x}")
            return


def data_file_is_whole(state: DiskState) -> Iterator[Finding]:
    """Every live file is there with the size that its manifest says."""
    for entry in state.entries:
        size = state.size_of(entry.file)
        if size != entry.bytes:
            found = "it is missing" if size is None else f"it has {size} bytes"
            yield Finding(entry.file, f"it must have {entry.bytes} bytes, {found}")


def index_file_is_there(state: DiskState) -> Iterator[Finding]:
    """Every live file has its lookup indexes beside it, if its manifest says so."""
    for entry in state.entries:
        if entry.has_sidecar and not state.size_of(name := paths.index_file(entry.file)):
            yield Finding(name, "the lookup indexes are missing")


def tag_can_be_read(state: DiskState) -> Iterator[Finding]:
    """A tag has a valid name and a whole file."""
    for name, reason in sorted(state.bad_tags.items()):
        yield Finding(paths.tag_file(name), reason)


def tag_is_of_this_history(state: DiskState) -> Iterator[Finding]:
    """A tag's snapshot is the one that the history has or had under its id."""
    retained = {one.info.id: one.info for one in state.published}
    for tag in state.tags:
        there = retained.get(tag.snapshot.id)
        if state.head is not None and tag.snapshot.id > state.head.id:
            yield Finding(paths.tag_file(tag.name), f"snapshot {tag.snapshot.id} is not there yet")
        elif there is not None and there != tag.snapshot:
            yield Finding(paths.tag_file(tag.name), f"it is not equal to snapshot {there.id} of the history")


def consumer_can_be_read(state: DiskState) -> Iterator[Finding]:
    """A consumer has a valid name and a whole file."""
    for name, reason in sorted(state.bad_consumers.items()):
        yield Finding(paths.consumer_file(name), reason)


def held_version_can_be_read(state: DiskState) -> Iterator[Finding]:
    """What a consumer holds by a lease that goes on has not expired."""
    for consumer in () if state.unreadable or state.bad_tags else state.consumers:
        for version in () if consumer.is_lapsed(state.now_ms) else consumers.needed(consumer.version):
            try:
                state.history.equal_to(version)
            except SnapshotExpiredError as reason:
                yield Finding(paths.consumer_file(consumer.name), str(reason))
            except StorageError:
                raise
            except UpsertError as reason:
                found = f"it must hold an existing snapshot: {reason}"
                yield Finding(paths.consumer_file(consumer.name), found)


def log_can_be_read(state: DiskState) -> Iterator[Finding]:
    """What the table says of logs that began or ended by ALTER TABLE is in whole files."""
    try:
        beginnings(state.history.root, state.history.uuid)
    except CorruptTableError as reason:
        yield Finding(paths.LOG_FOLDER, str(reason))


def snapshot_can_be_read(state: DiskState) -> Iterator[Finding]:
    """Every snapshot from the earliest to the latest has a whole file."""
    for id, reason in sorted(state.unreadable.items()):
        yield Finding(paths.snapshot_file(id), reason)


def parent_is_the_snapshot_before(state: DiskState) -> Iterator[Finding]:
    """A snapshot names the one before it as its parent: the history has one line."""
    for one, following in pairwise(state.published):
        if following.info.id == one.info.id + 1 and following.info.parent != one.info.uuid:
            found = f"its parent is {following.info.parent!r}, snapshot {one.info.id} is {one.info.uuid!r}"
            yield Finding(paths.snapshot_file(following.info.id), found)


def numbers_never_fall(state: DiskState) -> Iterator[Finding]:
    """Time, boundary, fence, states, definition and the newest untracked commit only grow."""
    for one, following in pairwise(state.published):
        for name in ("time_ms", "oldest", "fence", "states", "definition", "last_untracked", "data_version"):
            before, after = (getattr(each.info, name, 0) for each in (one, following))
            if after < before:
                found = f"{name} must not fall, from {before} to {after}"
                yield Finding(paths.snapshot_file(following.info.id), found)


def manifest_can_be_read(state: DiskState) -> Iterator[Finding]:
    """Every manifest that a snapshot or tag names is there and holds the entries that it should."""
    for name, reason in sorted(state.bad_manifests.items()):
        yield Finding(name, reason)


def manifest_is_as_it_is_named(state: DiskState) -> Iterator[Finding]:
    """A manifest has the partitions and removals that its snapshot says: readers may not even open it."""
    infos = [one.info for one in (*state.published, *state.tagged)]
    for ref in dict.fromkeys(ref for info in infos for ref in refs_of(info) if ref.ends):
        if (found := state.manifest_of(ref)) is None:
            continue
        if len(found.removed) != ref.removed:
            yield Finding(ref.name, f"it must have {ref.removed} removals, got {len(found.removed)}")
        first, last = key_of(ref.first), key_of(ref.last)
        for partition in sorted({entry.partition for entry in (*found.added, *found.removed)}, key=repr):
            if not first <= key_of(values_of(partition)) <= last:
                must = f"it must have partitions from {ref.first} to {ref.last}"
                yield Finding(ref.name, f"{must}, got {values_of(partition)}")


def totals_fit_the_files(state: DiskState) -> Iterator[Finding]:
    """A snapshot's numbers of files and rows are those of its live files."""
    files = rows = 0
    for moment in state.walk():
        if moment.before is None:
            files, rows = len(moment.live), sum(entry.rows for entry in moment.live.values())
        else:
            files += len(moment.delta.added) - len(moment.delta.removed)
            rows += sum(e.rows for e in moment.delta.added) - sum(e.rows for e in moment.delta.removed)
        info = moment.one.info
        if (info.files, info.rows) != (files, rows):
            stated = f"{info.files} files and {info.rows} rows"
            yield Finding(moment.one.name, f"it must have {stated}, its manifests give {files} and {rows}")
            files, rows = info.files, info.rows


def states_are_counted(state: DiskState) -> Iterator[Finding]:
    """A commit that changes rows is a state of its own, any other keeps that of the snapshot before it."""
    for before, one in pairwise(one.info for one in state.published):
        version, states = before.data_version, before.states
        if one.data_version == one.id:
            version, states = one.id, states + 1
        if one.id == before.id + 1 and (one.data_version, one.states) != (version, states):
            found = f"data version {one.data_version} and {one.states} states"
            yield Finding(paths.snapshot_file(one.id), f"it must have {version} and {states}, got {found}")


def manifests_fit_the_commits(state: DiskState) -> Iterator[Finding]:
    """The files of a snapshot are those before it, less what its commit removed, and with what it added."""
    for moment in state.walk():
        info, before = moment.one.info, moment.before
        own = () if info.delta is None else (info.delta,)
        if before is None or info.manifests == (*before.manifests, *own):
            continue  # the way begins here, or nothing was folded
        expected = moment.live.keys() - {entry.file for entry in moment.delta.removed}
        expected |= {entry.file for entry in moment.delta.added}
        if (found := state.files_of(info)) is not None and found.keys() != expected:
            odd = ", ".join(sorted(expected ^ found.keys())[:3])
            yield Finding(moment.one.name, f"its manifests and the commits up to it differ in {odd}")


def removed_file_is_live(state: DiskState) -> Iterator[Finding]:
    """``change.removed_file_that_is_not_live`` of each commit."""
    for moment in state.walk():
        if gone := change.removed_file_that_is_not_live(moment.live, moment.delta.removed):
            yield Finding(gone.file, f"{moment.one.name} removes it, and it was not there")


def added_file_is_new(state: DiskState) -> Iterator[Finding]:
    """``change.added_file_that_is_live`` of each commit, and no file comes back."""
    removed: set[str] = set()
    for moment in state.walk():
        delta = moment.delta
        there = change.added_file_that_is_live(moment.live, delta.added, delta.removed)
        if there := there or change.added_file_that_was_removed(removed, delta.added):
            yield Finding(there.file, f"{moment.one.name} adds it, and it was there before")
        removed |= {entry.file for entry in delta.removed} - {entry.file for entry in delta.added}


def file_was_begun_after_the_fence(state: DiskState) -> Iterator[Finding]:
    """``change.file_below_fence`` of each commit; a file that only goes to another level was there."""
    for moment in state.walk():
        new = [entry for entry in moment.delta.added if entry.file not in moment.live]
        if moment.before and (stale := change.file_below_fence(moment.before.fence, new)):
            yield Finding(stale.file, f"its base is {stale.base}, the fence was {moment.before.fence}")


def bucket_is_known(state: DiskState) -> Iterator[Finding]:
    """``change.added_file_of_unknown_bucket`` of all live files."""
    buckets = {one.version: one.options.bucket for one in _readable(state)}
    for entry in state.entries:
        count = buckets.get(entry.definition, state.history.layout.buckets)
        if change.added_file_of_unknown_bucket(count, [entry]):
            yield Finding(entry.file, f"bucket {entry.bucket} is none of {count}")


def files_of_a_run_are_disjoint(state: DiskState) -> Iterator[Finding]:
    """``change.second_run_of_level``: a key lies in one file of a run at most.

    A run is a level above 0, or what one commit has added on level 0.
    """
    for moment in state.walk():
        new = moment.live.values() if moment.before is None else moment.delta.added
        for runs in FileSet.of(new).groups.values():
            for one, following in (pair for run in runs for pair in pairwise(run)):
                if one.overlaps(following):
                    yield Finding(following.file, f"its keys overlap those of {one.file}")
        delta = moment.delta
        live = moment.live.values()
        if moment.before and (other := change.second_run_of_level(live, delta.added, delta.removed)):
            found = f"its keys overlap those of a file of level {other.level} in {moment.one.name}"
            yield Finding(other.file, found)


RULES: Final[tuple[Rule, ...]] = (
    table_can_be_read,
    snapshot_can_be_read,
    parent_is_the_snapshot_before,
    numbers_never_fall,
    manifest_can_be_read,
    manifest_is_as_it_is_named,
    totals_fit_the_files,
    states_are_counted,
    manifests_fit_the_commits,
    removed_file_is_live,
    added_file_is_new,
    file_was_begun_after_the_fence,
    bucket_is_known,
    files_of_a_run_are_disjoint,
    data_file_is_whole,
    index_file_is_there,
    tag_can_be_read,
    tag_is_of_this_history,
    consumer_can_be_read,
    held_version_can_be_read,
    log_can_be_read,
)
"""The rules that every table keeps, but for those of definitions."""


def definition_can_be_read(state: DiskState) -> Iterator[Finding]:
    """Every version that a snapshot or a data file names has a whole file of this table with its checksum."""
    infos = [one.info for one in (*state.tagged, *state.published)]
    stated = {info.definition: info.definition_checksum for info in infos}
    for version in sorted(_named(state)):
        try:
            found = state.history.definition_at(version).checksum
        except StorageError as reason:
            state.unread[paths.definition_file(version)] = str(reason)
            continue
        except CorruptTableError as reason:
            yield Finding(paths.definition_file(version), str(reason))
            continue
        if version and stated.get(version, 0) not in (0, found):
            named = f"a snapshot names the checksum {stated[version]:016x}, got {found:016x}"
            yield Finding(paths.definition_file(version), named)


def file_is_of_a_published_definition(state: DiskState) -> Iterator[Finding]:
    """A data file was written under a definition that holds by its commit."""
    for moment in state.walk():
        present = moment.one.info.definition
        entries = moment.live.values() if moment.before is None else moment.delta.added
        for entry in entries:
            if entry.definition > present:
                must = f"its definition must be at most version {present}, as {moment.one.name} says"
                yield Finding(entry.file, f"{must}, got {entry.definition}")


def field_id_is_given_once(state: DiskState) -> Iterator[Finding]:
    """An id belongs to one column for ever, which keeps its values: its type at most becomes wider."""
    for old, new in _in_order(state):
        before = {column.id: column for column in old.schema.columns}
        for column in new.schema.columns:
            known, must = before.get(column.id), ""
            if known is None and column.id <= old.last_id:
                must = f"have an id above {old.last_id}, got {column.id}"
            elif known and not nested.follows(known.form, column.form):
                was, now = types.sql_name(known.type), types.sql_name(column.type)
                must = f"stay {was} or become wider, got {now}"
            if must:
                yield Finding(paths.definition_file(new.version), f"column {column.name!r} must {must}")


def place_of_rows_is_kept(state: DiskState) -> Iterator[Finding]:
    """Primary key, partitions and bucket key, by which rows are stored, are those of the first version."""
    for old, new in _in_order(state):
        after = _places(new)
        for what, before in _places(old).items():
            if before != after[what]:
                yield Finding(paths.definition_file(new.version), f"{what} must not change")


DEFINITION_RULES: Final[tuple[Rule, ...]] = (
    definition_can_be_read,
    file_is_of_a_published_definition,
    field_id_is_given_once,
    place_of_rows_is_kept,
)
"""The rules that ask for definitions."""


def _places(definition: Definition) -> dict[str, object]:
    ids = {column.name: column.id for column in definition.schema.columns}
    schema, layout = definition.schema, definition.layout
    return {
        "the primary key": [ids[name] for name in schema.primary_key],
        "PARTITIONED BY": [ids[name] for name in schema.partitioned_by],
        "the bucket key": [ids.get(name) for name in layout.bucket_key],
    }


def _named(state: DiskState) -> set[int]:
    found = {one.info.definition for one in (*state.published, *state.tagged)}
    return found | {entry.definition for entry in state.entries if entry.definition <= max(found, default=0)}


def _in_order(state: DiskState) -> Iterator[tuple[Definition, Definition]]:
    """Each version that can be read and the next such one."""
    yield from pairwise(_readable(state))


def _readable(state: DiskState) -> Iterator[Definition]:
    """Each version of the definition that can be read."""
    for version in sorted({0, *_named(state)}):
        try:
            yield state.history.definition_at(version)
        except (CorruptTableError, StorageError):
            continue  # ``definition_can_be_read`` says so


def bytes_have_their_checksum(state: DiskState) -> Iterator[Finding]:
    """The bytes of a file and of its indexes are those that were written; else no more is asked of it."""
    forget_open_files()
    for entry in state.entries:
        index = paths.index_file(entry.file)
        files = [(entry.file, entry.checksum), (index, entry.index_checksum)][: 1 + entry.has_sidecar]
        for name, stated in files:
            try:
                check_bytes(paths.resolve(state.history.root, name), stated)
            except FileNotFoundError:
                state.misfits.add(entry.file)  # rules that read no data have said so
            except StorageError as reason:
                state.misfits.add(entry.file)
                state.unread[name] = str(reason)
            except CorruptTableError as reason:
                state.misfits.add(entry.file)
                yield Finding(name, str(reason))


def data_can_be_read(state: DiskState) -> Iterator[Finding]:
    """Every file and its indexes are whole files of their format, with the columns and rows as stated."""
    for entry in state.entries:
        try:
            _open(state, entry)
        except StorageError as reason:
            state.misfits.add(entry.file)
            state.unread[entry.file] = str(reason)
        except CorruptTableError as reason:
            if entry.file not in state.misfits:  # else another rule has said so
                state.misfits.add(entry.file)
                yield Finding(entry.file, str(reason))


def keys_ascend(state: DiskState) -> Iterator[Finding]:
    """A file is sorted by key, and has each key once."""
    for entry, file in _opened(state):
        order = order_by([file.column(name) for name in state.history.layout.key])
        if not order.is_first.all() or (np.diff(order.rows) < 0).any():
            yield Finding(entry.file, "its rows must ascend by key, each key once")


def entry_fits_the_rows(state: DiskState) -> Iterator[Finding]:
    """Deletions, bounds, first and last key of a file are what the manifest says."""
    for entry, file in _opened(state):
        layout = state.history.layout
        deletes = 0 if file.kinds is None else int(np.count_nonzero(file.kinds))
        if deletes != entry.deletes:
            yield Finding(entry.file, f"it must have {entry.deletes} deletions, got {deletes}")
        if entry.definition != layout.version:
            continue  # bounds and keys are of the rows as they were written
        low, high = bounds(layout, file.select(layout.stored.names))
        for column in low:
            stated = entry.min.get(column), entry.max.get(column)
            if stated != (low[column], high[column]):
                found = f"got {low[column]!r} to {high[column]!r}"
                must = f"column {column!r} must go from {stated[0]!r} to {stated[1]!r}"
                yield Finding(entry.file, f"{must}, {found}")
        rows = file.select(layout.key)
        first, last = key_of_row(rows, layout.key, 0), key_of_row(rows, layout.key, -1)
        # a bound is cut where a key is long
        if not (lower_bound(first) <= entry.first_key <= first):
            yield Finding(entry.file, "its first key is not the one that the manifest says")
        if not (last <= entry.last_key <= upper_bound(last)):
            yield Finding(entry.file, "its last key is not the one that the manifest says")


def index_fits_the_rows(state: DiskState) -> Iterator[Finding]:
    """A lookup index has the hash of every row, once, in order, and leads to each of them."""
    for entry, file in _opened(state):
        for index in state.history.layout.indexes:
            hashes = hash_columns([file.column(name) for name in index.columns], entry.rows)
            if index.name == "pk" and (by_key := file.key_index) is not None:
                pairs = zip(by_key, KeyIndex.of(hashes), strict=True)
                if not all(np.array_equal(np.array(one), np.array(other)) for one, other in pairs):
                    yield Finding(entry.file, f"its index {index.label} does not lead to all of its hashes")
                continue
            found = file.index(index.name)
            rows = found.rows_at(slice(None))
            is_whole = np.array_equal(np.sort(rows), np.arange(entry.rows))
            if not is_whole or not np.array_equal(found.as_here(hashes[rows]), found.hashes):
                yield Finding(entry.file, f"its index {index.label} does not have the hashes of its rows")
                continue
            stored = hashes[rows] if found.hashes.dtype == np.uint64 else upper_halves(hashes[rows])
            if (stored[1:] < stored[:-1]).any():
                yield Finding(entry.file, f"its index {index.label} is not in order")
            elif not _leads_to_all(found, stored):
                yield Finding(entry.file, f"its index {index.label} does not lead to all of its hashes")


def _leads_to_all(index: HashIndex, hashes: StoredHashes) -> bool:
    right, slots = HashIndex.of(hashes, index.rows), np.arange(len(index.rows))
    starts_are_right = np.array_equal(index.first_in(slots), right.first_in(slots))
    return starts_are_right and np.array_equal(index.filled, right.filled)


def rows_lie_in_their_bucket(state: DiskState) -> Iterator[Finding]:
    """The bucket and the partition of a file are those of its rows."""
    counts = {one.version: one.options.bucket for one in _readable(state)}
    for entry, file in _opened(state):
        layout = state.history.layout
        layout = layout.with_buckets(counts.get(entry.definition, layout.buckets))
        buckets = {portion.bucket_id for portion in split(layout, file.table, None)}
        if buckets != {entry.bucket_id}:
            found = f"its rows belong to {sorted(buckets)}, it lies in bucket {entry.bucket}"
            yield Finding(entry.file, found)


def identity_is_that_of_the_row(state: DiskState) -> Iterator[Finding]:
    """Without a primary key a row's key is the hash of all its columns."""
    for entry, file in _opened(state):
        layout = state.history.layout
        if layout.is_counted and entry.definition == layout.version:
            hashes = row_hashes([file.column(name) for name in layout.schema.names], entry.rows)
            if not hashes.equals(file.column(ROW_HASH_COLUMN)):
                yield Finding(entry.file, "a row's identity is not the hash of its columns")
            if 0 in file.column(COUNT_COLUMN).to_pylist():
                yield Finding(entry.file, "a row counts 0 times")


def no_count_is_negative(state: DiskState) -> Iterator[Finding]:
    """Without a primary key no row is there less than 0 times."""
    for name, snapshot in _snapshots(state):
        if snapshot.layout.is_counted:
            try:
                snapshot.scan([])
            except ChangelogError as reason:
                yield Finding(name, str(reason))


def unique_index_has_one_row_a_key(state: DiskState) -> Iterator[Finding]:
    """No two rows of the latest snapshot have one key of a UNIQUE INDEX, unless a part of it is NULL."""
    for name, snapshot in _snapshots(state):
        for index in snapshot.layout.indexes[1:]:
            if index.is_unique:
                rows = snapshot.scan(list(index.columns)).drop_null()
                counts = rows.group_by(list(index.columns)).aggregate([([], "count_all")])
                twice = counts.filter(pc.greater(counts["count_all"], 1)).drop_columns(["count_all"])
                if twice.num_rows:
                    key = twice.slice(0, 1).to_pylist()[0]
                    yield Finding(name, f"{index.label} has several rows with {key!r}")


DATA_RULES: Final[tuple[Rule, ...]] = (
    bytes_have_their_checksum,
    data_can_be_read,
    keys_ascend,
    entry_fits_the_rows,
    index_fits_the_rows,
    rows_lie_in_their_bucket,
    identity_is_that_of_the_row,
    no_count_is_negative,
    unique_index_has_one_row_a_key,
)
"""The rules that ask for data."""


def _open(state: DiskState, entry: FileEntry) -> DataFile:
    if entry.file in state.misfits:
        raise CorruptTableError(f"data file {entry.file!r} is not what was written; restore it from a copy")
    file = DataFile.open(state.history.root, state.history.layout, entry)
    if not file.is_mapped:
        file.table  # noqa: B018 - what is compressed shows its damage when it is decoded
    return file


def _opened(state: DiskState) -> Iterator[tuple[FileEntry, DataFile]]:
    for entry in state.entries:
        try:
            file = _open(state, entry)
        except CorruptTableError:
            continue  # ``data_can_be_read`` says so
        yield entry, file


def _snapshots(state: DiskState) -> Iterator[tuple[str, Snapshot]]:
    """The latest snapshot, if all of its files can be opened."""
    if state.head is None or (files := state.files_of(state.head)) is None:
        return
    try:
        for entry in files.values():
            _open(state, entry)
    except CorruptTableError:
        return
    history = state.history
    name = f"snapshot {state.head.id}"
    yield name, Snapshot(history.root, history.layout, FileSet.of(files.values()), state.head)


def file_is_needed(state: DiskState) -> Iterator[Finding]:
    """A file of data, index, staging or manifests is named by a snapshot or tag, or is on its way to be."""
    if state.is_partial:
        return
    needed = state.needed
    for name in sorted(found.name for found, _ in based_files(state.history.root)):
        if name not in needed:
            yield Finding(name, "no snapshot and no tag needs it; clean() removes it when it is old enough")


def expired_snapshot_is_gone(state: DiskState) -> Iterator[Finding]:
    """A snapshot file below the boundary has been deleted."""
    for id in state.expired:
        yield Finding(paths.snapshot_file(id), "it has expired; expire() or clean() removes it")


def temporary_file_is_gone(state: DiskState) -> Iterator[Finding]:
    """A file under a temporary name is being published."""
    for name in sorted(temporary_files(state.history.root)):
        yield Finding(name, "no snapshot names it; clean() removes it when it is old enough")


def lease_goes_on(state: DiskState) -> Iterator[Finding]:
    """A consumer has renewed its lease in time."""
    for consumer in state.consumers:
        if consumer.is_lapsed(state.now_ms):
            found = f"its lease is over since {consumer.until_ms} ms; the next expiry removes it"
            yield Finding(paths.consumer_file(consumer.name), found)


INFORMATION: Final[tuple[Rule, ...]] = (
    file_is_needed,
    expired_snapshot_is_gone,
    temporary_file_is_gone,
    lease_goes_on,
)
"""What does no harm."""
