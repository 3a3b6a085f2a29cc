"""What a table is at one time: its columns, options and untracked partitions, as one numbered value (pure).

Columns are told apart by their field ids, which no later column gets again, whatever its name. Whether a
commit shows in change streams is said by the statement, else by the partition, else by the table (FLIP-188).
A commit may touch partitions that are tracked and others that are not; then its snapshot names the latter.
See docs/decisions/0014.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from upsert.codec import Jsonable
from upsert.errors import CorruptTableError
from upsert.schema import Check, TableSchema
from upsert.store import paths
from upsert.store.checksums import (
    FORMAT_OF_FUNCTIONS,
    FORMAT_OF_INITIAL_VALUES,
    FORMAT_OF_LATE_PROMISES,
    FORMAT_OF_RULES,
    FORMAT_OF_TYPES,
    checksum_of_value,
    content_of,
    parse_versioned,
    subject_of,
)
from upsert.store.paths import Partition
from upsert.store.rows.layout import Layout
from upsert.store.table_options import TableOptions


@dataclass(frozen=True)
class Definition:
    """One version of a table's definition; 0 is what it was created with.

    Attributes:
        given: the options as they were written, for ``SHOW CREATE TABLE``; may hold secrets of the log's
            client, so they are not in the repr.
        untracked: partitions whose commits show in no change stream.
        last_id: the highest field id that any column, or field of a struct, has had.
        owner: what the definition belongs to, for messages.
        checksum: of what its file says, as it was read; 0 before that.
    """

    version: int
    schema: TableSchema
    given: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    untracked: frozenset[Partition] = frozenset()
    last_id: int = 0
    owner: str = field(default="table", compare=False)
    checksum: int = field(default=0, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Make the options read-only and count the ids that are in use."""
        object.__setattr__(self, "given", MappingProxyType(dict(self.given)))
        columns = self.schema.columns
        highest = max(n for column in columns for n in (column.id, *(one.number for one in column.fields)))
        object.__setattr__(self, "last_id", max(self.last_id, highest))

    def __getstate__(self) -> dict[str, Any]:
        """For another process; Python pickles no read-only view of a dict."""
        return {**vars(self), "given": dict(self.given)}

    @cached_property
    def options(self) -> TableOptions:
        """The options, converted and checked."""
        return TableOptions.parse(self.given, self.schema, self.owner)

    @cached_property
    def layout(self) -> Layout:
        """The physical form that schema and options mean."""
        options = self.options
        return Layout.of(
            self.schema, options.bucket, options.bucket_key, self.version, options.merge, options.file_form
        )

    def content(self, uuid: str) -> bytes:
        """The content of this version's file, for the table with this uuid."""
        untracked = sorted(self.untracked, key=lambda one: repr([list(pair) for pair in one]))
        said = _Said(uuid, self.version, self.schema, self.given, tuple(untracked), self.last_id)
        value = {**format_of(self), **said.to_json()}
        return content_of(value, subject_of(uuid, paths.definition_file(self.version)))

    @classmethod
    def from_json(cls, content: bytes, where: str, uuid: str, version: int, owner: str) -> Self:
        """The definition whose file has this content; uuid and version must be those inside."""
        value = parse_versioned(content, where, subject_of(uuid, paths.definition_file(version)))
        try:
            said = _Said.from_json(value)
            untracked, checksum = frozenset(said.untracked), checksum_of_value(value)
            found = cls(said.version, said.schema, said.options, untracked, said.last_id, owner, checksum)
            found.layout  # noqa: B018 - refuses what cannot be a table before anyone counts on it
        except (KeyError, TypeError, ValueError, AttributeError, CorruptTableError) as cause:
            raise CorruptTableError(
                f"{where}: a definition must have valid fields, got {cause!r}; restore the file"
            ) from cause
        if (said.uuid, said.version) != (uuid, version):
            raise CorruptTableError(
                f"{where}: the file must hold version {version} of table {uuid!r}, got version "
                f"{said.version} of {said.uuid!r}; restore the file"
            )
        return found


@dataclass(frozen=True)
class _Said(Jsonable):
    """What the file of a definition says."""

    uuid: str
    version: int
    schema: TableSchema
    options: Mapping[str, str]
    untracked: tuple[Partition, ...]
    last_id: int


def why_unreadable(old: Definition, new: Definition) -> str | None:
    """Why rows staged under ``old`` cannot be committed when the table is ``new``; None if they can.

    In newer columns rows of an older form have the value of older rows, or NULL, which these must take; and
    they were not checked by newer constraints. Without a primary key the columns are the row's identity, by
    which existing rows have been rewritten.
    """
    there = {column.id for column in old.schema.columns}
    for column in new.schema.columns:
        if column.id not in there and not column.nullable and column.initial is None:
            return f"column {column.name!r}, which was added meanwhile, is NOT NULL"
    if required := newly_required(old.schema, new.schema):
        return f"column {required[0]!r} has become NOT NULL meanwhile"
    if added := new_checks(old.schema, new.schema):
        return f"{added[0]} was added meanwhile, which they were not checked by"
    if new.layout.is_counted and not has_same_values(old.schema, new.schema):
        return "its columns have changed meanwhile, by which rows without PRIMARY KEY are told apart"
    return None


def newly_required(old: TableSchema, new: TableSchema) -> tuple[str, ...]:
    """The columns that rows of an old schema may have NULL in, and those of a new one may not."""
    nullable = {column.id for column in old.columns if column.nullable}
    return tuple(column.name for column in new.columns if column.id in nullable and not column.nullable)


def new_checks(old: TableSchema, new: TableSchema) -> tuple[Check, ...]:
    """The constraints that rows of an old schema were not checked by: their columns may be others by now."""

    def known_by(check: Check, schema: TableSchema) -> tuple[Check, list[int]]:
        return check, [schema.column(name).id for name in check.columns]

    there = [known_by(check, old) for check in old.checks]
    return tuple(check for check in new.checks if known_by(check, new) not in there)


def format_of(definition: Definition) -> dict[str, int]:
    """The format version of a file that says a definition, where it is not the first one."""
    schema = definition.schema
    if definition.options.merge.has_later_functions:
        return {"format": FORMAT_OF_FUNCTIONS}
    if schema.has_late_promises:
        return {"format": FORMAT_OF_LATE_PROMISES}
    if schema.has_values_of_older_rows:
        return {"format": FORMAT_OF_INITIAL_VALUES}
    if schema.has_later_types:
        return {"format": FORMAT_OF_TYPES}
    return {"format": FORMAT_OF_RULES} if schema.has_rules else {}


def has_same_values(old: TableSchema, new: TableSchema) -> bool:
    """Whether rows of both schemas hold the same values in the same order, if under other names."""
    before, after = ([(c.id, c.type, c.fields) for c in one.physical] for one in (old, new))
    return before == after


class Shown(NamedTuple):
    """What of a commit shows: nothing, or all but some partitions."""

    is_tracked: bool
    hidden: tuple[Partition, ...]

    @property
    def is_whole(self) -> bool:
        """Whether all of it shows."""
        return self.is_tracked and not self.hidden


def shown(definition: Definition, touched: Iterable[Partition], tracked: bool | None) -> Shown:
    """What of a commit that touches some partitions shows; ``tracked`` is what its statement says."""
    if tracked is not None:
        return Shown(tracked, ())
    partitions = set(touched)
    if not definition.options.change_tracking or (partitions and partitions <= definition.untracked):
        return Shown(False, ())
    return Shown(True, tuple(sorted(partitions & definition.untracked, key=repr)))
