"""What is joined: two tables, the columns to look up by, the columns to emit (pure).

A spec is a value. It crosses from driver to executors, and it reaches the source as the text of an
option, so its JSON form is parsed as if anybody could have written it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from deltajoin import filters
from upsert.errors import ConfigurationError

OFFSET_FORMAT: Final = 1
"""Format of the offsets that Spark keeps; part of the fingerprint, so another format is another join."""

SIDES: Final = ("left", "right")
OUTPUT_PREFIXES: Final = ("left_", "right_")


@dataclass(frozen=True)
class Side:
    """One table of a join: where it lies, what to emit of it, what to join by, which rows to leave out.

    Args:
        path: folder of the managed table.
        select: columns to emit, the keys among them.
        keys: join columns, paired by position with the other side's.
        where: filters in the store's form. A row that fails them takes no part in the join, so
            they may only leave out what the query leaves out as well. Kept as nested tuples.

    Raises:
        ConfigurationError: a part is empty, repeated, or a key is not selected.

    >>> Side("/data/orders", ("order_id", "product_id"), ("product_id",), [("amount", ">", 0)]).where
    ((('amount', '>', 0),),)
    """

    path: str
    select: tuple[str, ...]
    keys: tuple[str, ...]
    where: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        """Bring the parts into their one form and check them."""
        object.__setattr__(self, "select", _names("select", self.select))
        object.__setattr__(self, "keys", _names("keys", self.keys))
        object.__setattr__(self, "where", filters.normalized(self.where))
        if not isinstance(self.path, str) or not self.path:
            raise ConfigurationError(f"a side of a join needs the path of its table, got {self.path!r}")
        # Two pairs with different keys are different rows, so that an output row has one shard and is net.
        if missing := [key for key in self.keys if key not in self.select]:
            raise ConfigurationError(
                f"side {self.path!r}: select must contain the join keys; add {', '.join(missing)}"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that must be read: the selected ones, then those that only the filters use."""
        used = dict.fromkeys(column for parts in self.where or () for column, _, _ in parts)
        return (*self.select, *(column for column in used if column not in self.select))

    @property
    def pushed(self) -> list[list[tuple[str, str, Any]]] | None:
        """The filters in the lists that the store takes."""
        return None if self.where is None else [list(parts) for parts in self.where]

    def to_json(self) -> dict[str, Any]:
        """This side as JSON values."""
        where = filters.to_json(self.where)
        return {"path": self.path, "select": list(self.select), "keys": list(self.keys), "where": where}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The side of its JSON values.

        Raises:
            ConfigurationError: the value is no side.
        """
        fields = _fields("a side of a join", value, ("path", "select", "keys", "where"))
        return cls(fields["path"], fields["select"], fields["keys"], filters.from_json(fields["where"]))


@dataclass(frozen=True)
class DeltaJoinSpec:
    """An INNER equi-join of two managed tables, and how much of it to do at once.

    Args:
        left: the first table.
        right: the second table; may be the same one.
        shards: how many tasks share the join of a micro-batch.
        max_rows_per_trigger: changes of each table that a micro-batch reads at most.

    Raises:
        ConfigurationError: the sides have different numbers of keys, or a limit is not positive.

    >>> orders = Side("/data/orders", ("order_id", "product_id"), ("product_id",))
    >>> products = Side("/data/products", ("id", "name"), ("id",))
    >>> spec = DeltaJoinSpec(orders, products, shards=2)
    >>> spec.columns
    ('left_order_id', 'left_product_id', 'right_id', 'right_name')
    >>> DeltaJoinSpec.from_json(spec.to_json()) == spec
    True
    """

    left: Side
    right: Side
    shards: int = 2
    max_rows_per_trigger: int = 1_000_000

    def __post_init__(self) -> None:
        """Check what concerns both sides."""
        if len(self.left.keys) != len(self.right.keys):
            raise ConfigurationError(
                f"both sides of a join need as many keys, got {self.left.keys!r} and {self.right.keys!r}"
            )
        for name in ("shards", "max_rows_per_trigger"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"delta join: {name} must be a positive integer, got {value!r}")

    @property
    def sides(self) -> tuple[Side, Side]:
        """Left, then right."""
        return self.left, self.right

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the output's columns, without ``_row_kind``."""
        pairs = zip(OUTPUT_PREFIXES, self.sides, strict=True)
        return tuple(prefix + column for prefix, side in pairs for column in side.select)

    @property
    def fingerprint(self) -> str:
        """A short hash of what the join means and how its offsets are written.

        Equal for specs that emit the same rows, whatever their order of columns, shards, limits,
        or the folder that the tables have moved to: the tables themselves are known by their uuids.
        """
        pairs = sorted(zip(self.left.keys, self.right.keys, strict=True))
        meaning = {
            "format": OFFSET_FORMAT,
            "join": "inner",
            "keys": pairs,
            "select": [sorted(side.select) for side in self.sides],
            "where": [_sorted_filters(side.where) for side in self.sides],
        }
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """The join in the words that errors and checkpoints use."""
        left, right = (f"{_table_name(side.path)}({', '.join(side.keys)})" for side in self.sides)
        return f"{left} = {right}"

    def to_json(self) -> str:
        """This spec as JSON text."""
        return json.dumps(
            {
                "left": self.left.to_json(),
                "right": self.right.to_json(),
                "shards": self.shards,
                "max_rows_per_trigger": self.max_rows_per_trigger,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The spec of its JSON text.

        Raises:
            ConfigurationError: the text is no spec; the message says which part.
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as cause:
            raise ConfigurationError(f"a delta join's spec must be JSON, got {text[:80]!r}") from cause
        fields = _fields("a delta join's spec", value, ("left", "right", "shards", "max_rows_per_trigger"))
        left, right = (Side.from_json(fields[side]) for side in SIDES)
        return cls(left, right, fields["shards"], fields["max_rows_per_trigger"])


def _table_name(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def _sorted_filters(where: Sequence[Any] | None) -> list[str]:
    return sorted(
        json.dumps(sorted(json.dumps(part) for part in parts)) for parts in filters.to_json(where) or ()
    )


def _names(what: str, value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ConfigurationError(f"a side of a join: {what} must be a list of column names, got {value!r}")
    if bad := [name for name in value if not isinstance(name, str) or not name]:
        raise ConfigurationError(f"a side of a join: {what} must hold column names, got {bad[0]!r}")
    if len(set(value)) != len(value):
        raise ConfigurationError(f"a side of a join: {what} names a column twice, got {list(value)!r}")
    return tuple(value)


def _fields(what: str, value: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict) or sorted(value) != sorted(names):
        found = sorted(value) if isinstance(value, dict) else value
        raise ConfigurationError(f"{what} must have exactly {', '.join(names)}, got {found!r}")
    return value
