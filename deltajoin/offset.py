"""Where a delta join stands: the vector of its tables' versions, and whose vector it is (pure).

Spark keeps this as small JSON in its offset log, and nothing else is kept between two micro-batches. It says
nothing of the physical form, of shards or of the order of lookups: each form goes on from the same vector. A
checkpoint that another join wrote, or whose table was dropped and made again, is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from deltajoin.errors import CheckpointMismatchError
from upsert.store.version import Version

_FIELDS: Final = ("fingerprint", "join", "tables", "versions")
_MISMATCH: Final = "choose another checkpoint, or restore what it was made with"

Versions = tuple[Version, ...]
"""One version for each table of a join, in the spec's order."""


@dataclass(frozen=True)
class JoinIdentity:
    """What an offset belongs to: the join in words, its fingerprint, and the uuids of its tables."""

    join: str
    fingerprint: str
    tables: tuple[str, ...]


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
        return {
            **owner,
            "fingerprint": self.identity.fingerprint,
            "join": self.identity.join,
            "tables": list(self.identity.tables),
            "versions": [version.to_json() for version in self.versions],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The offset of its JSON values.

        Raises:
            CheckpointMismatchError: the value is no offset of a delta join.
            ConfigurationError: one of the versions is none.
        """
        match value:
            case {
                "join": str(join),
                "fingerprint": str(fingerprint),
                "tables": [str(), *_] as tables,
                "versions": [dict(), *_] as versions,
            } if len(tables) == len(versions) and all(isinstance(uuid, str) for uuid in tables):
                identity = JoinIdentity(join, fingerprint, tuple(tables))
                consumer = value.get("consumer")
                found = tuple(Version.from_json(version) for version in versions)
                return cls(identity, found, consumer if isinstance(consumer, str) else None)
        raise CheckpointMismatchError(
            f"delta join: the checkpoint must hold offsets with {', '.join(_FIELDS)}, "
            f"got {value!r}; {_MISMATCH}"
        )

    @classmethod
    def of(cls, value: Mapping[str, Any], owner: JoinIdentity) -> Self:
        """The offset of its JSON values, which must belong to this join.

        Raises:
            CheckpointMismatchError: it belongs to another join, or to other tables.
        """
        offset = cls.from_json(value)
        theirs = offset.identity
        if theirs.fingerprint != owner.fingerprint:
            raise CheckpointMismatchError(
                f"delta join: the checkpoint belongs to the join {theirs.join} [{theirs.fingerprint}], "
                f"this one is {owner.join} [{owner.fingerprint}]; keys, columns and filters must be the "
                f"same; {_MISMATCH}"
            )
        if theirs.tables != owner.tables:
            raise CheckpointMismatchError(
                f"delta join {owner.join}: the checkpoint belongs to the tables with uuids "
                f"{', '.join(theirs.tables)}, these are the tables with uuids {', '.join(owner.tables)}: "
                f"one was dropped and made again; {_MISMATCH}"
            )
        return offset
