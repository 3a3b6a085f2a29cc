"""``fields.<columns>.sequence-group`` of ``partial-update``: columns that come from one row together (pure).

The option is Paimon's. Of a key's rows the one that is highest in ``<columns>`` gives all columns of the
group, NULL too; a row in which all of ``<columns>`` are NULL says nothing about the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from upsert import options, types
from upsert.arrays import Positions
from upsert.errors import ConfigurationError
from upsert.schema import TableSchema
from upsert.store.hashing import fixed_bytes, is_null
from upsert.store.row_hash import row_hashes
from upsert.store.sequences import in_sequence, last_of_each


@dataclass(frozen=True)
class SequenceGroup:
    """Columns that order the rows of a key for some others, and these others."""

    sequence: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def option(self) -> str:
        """The name of the option that declares it."""
        return f"fields.{','.join(self.sequence)}.sequence-group"


def parse(owner: str, sequence: str, columns: str) -> SequenceGroup:
    """The group that an option declares.

    Raises:
        ConfigurationError: a name is empty or repeated.
    """
    try:
        return SequenceGroup(options.names(sequence), options.names(columns))
    except ValueError as cause:
        raise ConfigurationError(
            f"{owner}: option 'fields.{sequence}.sequence-group' must be {cause}, got {columns!r}"
        ) from None


def check(owner: str, groups: Sequence[SequenceGroup], taken: Sequence[str], schema: TableSchema) -> None:
    """Refuse groups that a table of this schema cannot have.

    Args:
        owner: the table, for messages.
        groups: its groups.
        taken: columns that belong to no group: the primary key and those of ``sequence.field``.
        schema: its columns.

    Raises:
        ConfigurationError: a column is unknown, taken, in two groups, or no scalar where it orders rows.
    """
    known = {column.name for column in schema.physical}
    seen: dict[str, str] = {}
    for group in groups:
        for name in (*group.sequence, *group.columns):
            if name not in known or name in taken:
                raise ConfigurationError(
                    f"{owner}: option {group.option!r} must name columns outside of the primary key and of "
                    f"'sequence.field', got {name!r}"
                )
            if name in seen:
                raise ConfigurationError(
                    f"{owner}: option {group.option!r} must name columns of no other group, got {name!r}, "
                    f"which {seen[name]!r} has; leave it out of one"
                )
            seen[name] = group.option
        for name in group.sequence:
            if not types.is_scalar(schema.type_of(name)):
                raise ConfigurationError(
                    f"{owner}: option {group.option!r} must order by columns of scalar types, got {name!r} "
                    f"of type {types.sql_name(schema.type_of(name))}"
                )


def group_of(groups: Sequence[SequenceGroup]) -> Mapping[str, SequenceGroup]:
    """Column -> the group that it is in, as one that orders or one that follows."""
    return {name: group for group in groups for name in (*group.sequence, *group.columns)}


def winners(group: SequenceGroup, rows: pa.Table, of: Positions, stored: Positions) -> Positions:
    """For each key the row that gives the group's columns, -1 where none does.

    Args:
        group: the group.
        rows: rows ordered by key, and within a key as they count.
        of: the number of each row's key, ascending from 0 without a gap.
        stored: which rows are the table's own; one stays where no row says anything.
    """
    found = np.full(int(of[-1]) + 1, -1, dtype=np.int64)
    found[of[stored]] = stored
    known = _known(group, rows)
    if len(known):
        some = rows.select(list(group.sequence)).take(pa.array(known))
        order = in_sequence(some, group.sequence, of[known])
        last = last_of_each(of[known][order])
        found[of[known][order[last]]] = known[order[last]]
    return found


def ambiguous_key(
    group: SequenceGroup, rows: pa.Table, of: Positions, stored: Positions, chosen: Positions
) -> int | None:
    """The number of a key whose rows, without an order and equal in sequence, differ; None for no key."""
    is_new = np.ones(len(of), np.bool_)
    is_new[stored] = False
    new = _known(group, rows)
    new = new[is_new[new]]
    best = chosen[of[new]]
    # a stored row that won is older than new ones of another sequence, so these do not matter
    same = _words(rows, group.sequence)
    equal = (same[new] == same[best]).all(axis=1) & is_new[best]
    values = _words(rows, (*group.sequence, *group.columns))
    differs = equal & (values[new] != values[best]).any(axis=1)
    return int(of[new][differs][0]) if differs.any() else None


def _words(rows: pa.Table, names: Sequence[str]) -> np.ndarray:
    arrays = [rows.column(name).combine_chunks() for name in names]
    return np.ascontiguousarray(fixed_bytes(row_hashes(arrays, rows.num_rows)))


def _known(group: SequenceGroup, rows: pa.Table) -> Positions:
    missing = np.logical_and.reduce([is_null(rows.column(name).combine_chunks()) for name in group.sequence])
    return np.flatnonzero(~missing)


def renamed(columns: str, old: str, new: str) -> str:
    """A list of columns of which one is called otherwise.

    >>> renamed("a, b", "a", "x")
    'x,b'
    """
    return ",".join(new if name == old else name for name in options.names(columns))


def without(groups: Mapping[str, str], column: str) -> Iterator[tuple[str, str]]:
    """The options of groups, by name, without a column that follows; a group that has no other goes too."""
    for key, columns in groups.items():
        if left := [name for name in options.names(columns) if name != column]:
            yield key, ",".join(left)
