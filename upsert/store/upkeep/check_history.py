"""The rules of a history and of its definitions.

What snapshots and manifests say, each by itself and together with those before; each definition that
something names can be read, and rows keep their columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from upsert import types
from upsert.errors import CorruptTableError, StorageError
from upsert.store import paths
from upsert.store.commit import change
from upsert.store.metadata.definition import Definition
from upsert.store.metadata.manifest import FileSet
from upsert.store.upkeep.check_data import Finding

if TYPE_CHECKING:
    from upsert.store.upkeep.disk_state import DiskState


def snapshot_can_be_read(state: DiskState) -> Iterator[Finding]:
    """Every snapshot from the earliest to the latest has a whole file."""
    for id, reason in sorted(state.unreadable.items()):
        yield Finding(paths.snapshot_file(id), reason)


def parent_is_the_snapshot_before(state: DiskState) -> Iterator[Finding]:
    """A snapshot names the one before it as its parent: the history has one line."""
    for one, following in pairwise(state.published):
        if following.info.id == one.info.id + 1 and following.info.parent != one.info.uuid:
            yield Finding(
                paths.snapshot_file(following.info.id),
                f"its parent is {following.info.parent!r}, snapshot {one.info.id} is {one.info.uuid!r}",
            )


def numbers_never_fall(state: DiskState) -> Iterator[Finding]:
    """Time, boundary, fence, states, definition and the newest untracked commit only grow."""
    for one, following in pairwise(state.published):
        for name in ("time_ms", "oldest", "fence", "states", "definition", "last_untracked", "data_version"):
            before, after = (getattr(each.info, name, 0) for each in (one, following))
            if after < before:
                yield Finding(
                    paths.snapshot_file(following.info.id), f"{name} must not fall, from {before} to {after}"
                )


def manifest_can_be_read(state: DiskState) -> Iterator[Finding]:
    """Every manifest that a snapshot or tag names is there and holds the entries that it should."""
    for name, reason in sorted(state.bad_manifests.items()):
        yield Finding(name, reason)


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
        expected = (
            (one.id, before.states + 1)
            if one.data_version == one.id
            else (before.data_version, before.states)
        )
        if one.id == before.id + 1 and (one.data_version, one.states) != expected:
            found = f"data version {one.data_version} and {one.states} states"
            yield Finding(
                paths.snapshot_file(one.id), f"it must have {expected[0]} and {expected[1]}, got {found}"
            )


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
    for entry in state.entries:
        if change.added_file_of_unknown_bucket(state.history.layout.buckets, [entry]):
            yield Finding(entry.file, f"bucket {entry.bucket} is none of {state.history.layout.buckets}")


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
        if moment.before and (other := change.second_run_of_level(moment.live, delta.added, delta.removed)):
            yield Finding(
                other.file, f"its keys overlap those of a file of level {other.level} in {moment.one.name}"
            )


RULES: Final[tuple[Callable[[DiskState], Iterator[Finding]], ...]] = (
    snapshot_can_be_read,
    parent_is_the_snapshot_before,
    numbers_never_fall,
    manifest_can_be_read,
    totals_fit_the_files,
    states_are_counted,
    manifests_fit_the_commits,
    removed_file_is_live,
    added_file_is_new,
    file_was_begun_after_the_fence,
    bucket_is_known,
    files_of_a_run_are_disjoint,
)
"""The rules that ask for snapshots and manifests."""


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
            yield Finding(
                paths.definition_file(version),
                f"a snapshot names the checksum {stated[version]:016x}, got {found:016x}",
            )


def file_is_of_a_published_definition(state: DiskState) -> Iterator[Finding]:
    """A data file was written under a definition that holds by its commit."""
    for moment in state.walk():
        present = moment.one.info.definition
        entries = moment.live.values() if moment.before is None else moment.delta.added
        for entry in entries:
            if entry.definition > present:
                yield Finding(
                    entry.file,
                    f"its definition must be at most version {present}, as {moment.one.name} says, got "
                    f"{entry.definition}",
                )


def field_id_is_given_once(state: DiskState) -> Iterator[Finding]:
    """An id belongs to one column for ever, which keeps its values: its type at most becomes wider."""
    for old, new in _in_order(state):
        before = {column.id: column for column in old.schema.columns}
        for column in new.schema.columns:
            known = before.get(column.id)
            if known is None and column.id <= old.last_id:
                yield Finding(
                    paths.definition_file(new.version),
                    f"column {column.name!r} must have an id above {old.last_id}, got {column.id}",
                )
            elif (
                known is not None and known.type != column.type and not types.widens(known.type, column.type)
            ):
                yield Finding(
                    paths.definition_file(new.version),
                    f"column {column.name!r} must stay {types.sql_name(known.type)} or become wider, got "
                    f"{types.sql_name(column.type)}",
                )


def place_of_rows_is_kept(state: DiskState) -> Iterator[Finding]:
    """Primary key, partitions and buckets, by which rows are stored, are those of the first version."""
    for old, new in _in_order(state):
        for what, before, after in zip(_PLACES, _places(old), _places(new), strict=True):
            if before != after:
                yield Finding(paths.definition_file(new.version), f"{what} must not change")


DEFINITION_RULES: Final[tuple[Callable[[DiskState], Iterator[Finding]], ...]] = (
    definition_can_be_read,
    file_is_of_a_published_definition,
    field_id_is_given_once,
    place_of_rows_is_kept,
)
"""The rules that ask for definitions."""

_PLACES: Final = ("the primary key", "PARTITIONED BY", "the number of buckets", "the bucket key")


def _places(definition: Definition) -> tuple[object, ...]:
    ids = {column.name: column.id for column in definition.schema.columns}
    schema, layout = definition.schema, definition.layout
    return (
        [ids[name] for name in schema.primary_key],
        [ids[name] for name in schema.partitioned_by],
        layout.buckets,
        [ids.get(name) for name in layout.bucket_key],
    )


def _named(state: DiskState) -> set[int]:
    found = {one.info.definition for one in (*state.published, *state.tagged)}
    return found | {entry.definition for entry in state.entries if entry.definition <= max(found, default=0)}


def _in_order(state: DiskState) -> Iterator[tuple[Definition, Definition]]:
    """Each version that can be read and the next such one."""
    readable = []
    for version in sorted({0, *_named(state)}):
        try:
            readable.append(state.history.definition_at(version))
        except (CorruptTableError, StorageError):
            continue  # ``definition_can_be_read`` says so
    yield from pairwise(readable)
