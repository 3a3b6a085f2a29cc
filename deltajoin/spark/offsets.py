"""Where a delta join stands: the versions of its tables, and the step from some to later ones (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from deltajoin.errors import CheckpointMismatchError
from deltajoin.fingerprint import what_differs
from upsert.codec import Jsonable
from upsert.errors import ConfigurationError
from upsert.store.version import Version, owner_of

_MISMATCH: Final = "choose another checkpoint, or restore the tables of this one"
GO_ON: Final = (
    "choose a new checkpoint: it loads all rows again, or begins where this one stopped with start_from = "
    "its path (in SQL the option 'start-from')"
)
"""What to do about another join's checkpoint."""

Versions = tuple[Version, ...]
"""One version for each table of a join, in the spec's order."""


@dataclass(frozen=True)
class JoinIdentity:
    """What an offset belongs to: the join in words, a hash of what it means, the uuids of its tables.

    ``parts`` say what it consists of, see `DeltaJoinSpec.parts`; () if that is not known. ``others`` gives
    fingerprints that older releases may have written for it.
    """

    join: str
    fingerprint: str
    tables: tuple[str, ...]
    parts: tuple[str, ...] = field(default=(), compare=False)
    others: Callable[[], Collection[str]] = field(default=frozenset, compare=False, repr=False)

    def is_of(self, fingerprint: object) -> bool:
        """Whether a fingerprint is one of this join."""
        return fingerprint == self.fingerprint or fingerprint in self.others()


@dataclass(frozen=True)
class JoinOffset:
    """The versions of all tables, for one join; and the id by which the query holds them.

    >>> identity = JoinIdentity("orders(product_id) = products(id)", "2f6c", ("a1", "b2"))
    >>> JoinOffset(identity, (Version(0, 3, (0, 7)), Version.complete(5))).to_json()["tables"]
    ['a1', 'b2']
    """

    identity: JoinIdentity
    versions: Versions
    consumer: str | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON values, names sorted: Spark compares offsets as text."""
        owner = {} if self.consumer is None else {"consumer": self.consumer}
        parts = {"parts": list(self.identity.parts)} if self.identity.parts else {}
        return {
            **owner,
            "fingerprint": self.identity.fingerprint,
            "join": self.identity.join,
            **parts,
            "tables": list(self.identity.tables),
            "versions": [version.to_json() for version in self.versions],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The offset of its JSON values, which must be one of a delta join."""
        match value:
            case {
                "join": str(join),
                "fingerprint": str(fingerprint),
                "tables": [str(), *_] as tables,
                "versions": [dict(), *_] as versions,
            } if len(tables) == len(versions) and all(isinstance(uuid, str) for uuid in tables):
                parts = value.get("parts")
                words = tuple(map(str, parts)) if isinstance(parts, list) else ()
                identity = JoinIdentity(join, fingerprint, tuple(tables), words)
                consumer = value.get("consumer")
                found = tuple(Version.from_json(version) for version in versions)
                return cls(identity, found, consumer if isinstance(consumer, str) else None)
        raise CheckpointMismatchError(
            f"delta join: the checkpoint must belong to a join, it belongs to {owner_of(value)}; {_MISMATCH}"
        )

    @classmethod
    def of(cls, value: Mapping[str, Any], owner: JoinIdentity) -> Self:
        """The offset of its JSON values, which must belong to this join and its tables."""
        offset = cls.from_json(value)
        theirs = offset.identity
        if not owner.is_of(theirs.fingerprint):
            differs = "keys, columns and filters must be the same"
            if theirs.parts:
                differs = what_differs(theirs.parts, owner.parts)
            raise CheckpointMismatchError(
                f"delta join: the checkpoint belongs to the join {theirs.join} [{theirs.fingerprint}], "
                f"this one is {owner.join} [{owner.fingerprint}]: {differs}; {GO_ON}, or "
                "restore the join of this one"
            )
        if theirs.tables != owner.tables:
            raise CheckpointMismatchError(
                f"delta join {owner.join}: the checkpoint belongs to the tables with uuids "
                f"{', '.join(theirs.tables)}, these are the tables with uuids {', '.join(owner.tables)}: "
                f"one was dropped and made again; {_MISMATCH}"
            )
        return offset


@dataclass(frozen=True)
class JoinStep(Jsonable):
    """Both vectors of versions: where every table was, and where it is then; and the tables' uuids.

    A task opens the tables by their paths, where others may lie by then.
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

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The step of its JSON values."""
        with suppress(KeyError, TypeError):
            found = super().from_json(value)
            if found.old and len(found.old) == len(found.new):
                return found
        raise ConfigurationError(
            f"a step of a delta join must have as many old as new versions, got {value!r}"
        )
