"""The rules of definitions: each version that something names is there, and rows keep their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from upsert import types
from upsert.errors import CorruptTableError, StorageError
from upsert.store import paths
from upsert.store.check_data import Finding
from upsert.store.definition import Definition

if TYPE_CHECKING:
    from upsert.store.disk_state import DiskState


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


RULES: Final[tuple[Callable[[DiskState], Iterator[Finding]], ...]] = (
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
