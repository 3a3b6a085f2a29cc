"""What one micro-batch does: the versions from which and to which each table of a join moves (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from deltajoin.offset import Versions
from upsert.errors import ConfigurationError
from upsert.store.version import Version


@dataclass(frozen=True)
class JoinStep:
    """Both vectors of versions: where every table was, and where it is then; and the tables' uuids.

    A task opens the tables by their paths, where others may lie by then.

    >>> step = JoinStep((Version.complete(3), Version.EMPTY), (Version.complete(3), Version.complete(1)))
    >>> step.moved, JoinStep.from_json(step.to_json()) == step
    ((1,), True)
    """

    old: Versions
    new: Versions
    tables: tuple[str, ...] = ()

    @property
    def moved(self) -> tuple[int, ...]:
        """Numbers of the tables that change."""
        return tuple(i for i, (old, new) in enumerate(zip(self.old, self.new, strict=True)) if old != new)

    @property
    def is_first(self) -> bool:
        """Whether no table had a row before."""
        return all(version == Version.EMPTY for version in self.old)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "old": [version.to_json() for version in self.old],
            "new": [version.to_json() for version in self.new],
            "tables": list(self.tables),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The step of its JSON values.

        Raises:
            ConfigurationError: the value is no step.
        """
        match value:
            case {
                "old": [dict(), *_] as old,
                "new": [dict(), *_] as new,
                "tables": [*tables],
            } if len(old) == len(new):
                before, after = (tuple(map(Version.from_json, each)) for each in (old, new))
                return cls(before, after, tuple(map(str, tables)))
        raise ConfigurationError(
            f"a step of a delta join must have as many old as new versions, got {value!r}"
        )
