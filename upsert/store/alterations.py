"""What may change in a table's definition, as values (pure).

Follows ALTER TABLE of FLIP-188 and FLIP-486's tables. What each makes of a definition is told in
``upsert.store.alteration_rules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from upsert.schema import Column
from upsert.store.declarations import Declaration


@dataclass(frozen=True)
class AddColumn:
    """A new column: last, or just after column ``after`` ("" for the first place). Old rows have NULL in it.

    A NOT NULL column can only be added while the table has no rows.
    """

    column: Column
    after: str | None = None


@dataclass(frozen=True)
class DropColumn:
    """A column less. Its values are not seen any more, also if a column of its name is added later."""

    name: str


@dataclass(frozen=True)
class RenameColumn:
    """Another name for a column; keys, indexes and options that name it follow."""

    old: str
    new: str


@dataclass(frozen=True)
class WidenColumn:
    """A type that holds every value of the column's present one, see ``types.widens``."""

    name: str
    type: pa.DataType


@dataclass(frozen=True)
class SetOptions:
    """Values of options, as WITH (…) takes them."""

    options: Mapping[str, str]


@dataclass(frozen=True)
class ResetOptions:
    """Options that get their defaults back."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class TrackPartition:
    """Whether commits to a partition show in change streams (FLIP-188: ``change-tracking`` of a partition).

    ``spec`` has a value for every partition column, in the column's type; None for NULL.
    """

    spec: Mapping[str, Any]
    is_tracked: bool


Alteration = (
    AddColumn
    | DropColumn
    | RenameColumn
    | WidenColumn
    | Declaration
    | SetOptions
    | ResetOptions
    | TrackPartition
)
