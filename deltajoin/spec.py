"""What is joined: tables, the columns to emit of each, and the tree that joins them (pure).

A spec is a value. It crosses from driver to executors, and it reaches the source as the text of an
option, so its JSON form is parsed as if anybody could have written it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from deltajoin import expressions, filters, tree
from deltajoin.expressions import Condition, Ref
from deltajoin.tree import Inner, Leaf, Node, Outer, Where
from upsert.errors import ConfigurationError

OFFSET_FORMAT: Final = 1
"""Format of the offsets that Spark keeps; part of the fingerprint, so another format is another join."""

MAX_TABLES: Final = 8
KINDS: Final = ("inner", "left", "right", "full", "semi", "anti")
"""Kinds of a join of two tables, as `DeltaJoinSpec.of` takes them."""


def output_name(table: int, column: str) -> str:
    """Name of a table's column in the output.

    >>> output_name(1, "name")
    't1_name'
    """
    return f"t{table}_{column}"


def present_name(table: int) -> str:
    """Name of the flag that tells whether a row has a part from the table, or NULLs in its place.

    >>> present_name(1)
    'present_1'
    """
    return f"present_{table}"


@dataclass(frozen=True)
class JoinedTable:
    """One table of a join: where it lies, which columns to emit of it, which rows to leave out.

    Args:
        path: folder of the managed table.
        select: columns to emit, those that the tree uses among them.
        where: filters in the store's form. A row that fails them takes no part in the join, as if the
            table did not have it. Kept as nested tuples.

    Raises:
        ConfigurationError: a part is empty or repeated.

    >>> JoinedTable("/data/orders", ("order_id", "product_id"), [("amount", ">", 0)]).where
    ((('amount', '>', 0),),)
    """

    path: str
    select: tuple[str, ...]
    where: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        """Bring the parts into their one form and check them."""
        object.__setattr__(self, "select", _names("select", self.select))
        object.__setattr__(self, "where", filters.normalized(self.where))
        if not isinstance(self.path, str) or not self.path:
            raise ConfigurationError(f"a table of a join needs the path of its folder, got {self.path!r}")

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that must be read: the selected ones, then those that only the filters use."""
        used = dict.fromkeys(column for parts in self.where or () for column, _, _ in parts)
        return (*self.select, *(column for column in used if column not in self.select))

    @property
    def pushed(self) -> list[list[tuple[str, str, Any]]] | None:
        """The filters in the lists that the store takes."""
        return None if self.where is None else [list(parts) for parts in self.where]

    @property
    def name(self) -> str:
        """The last part of the path, for messages."""
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    def to_json(self) -> dict[str, Any]:
        """This table as JSON values."""
        return {"path": self.path, "select": list(self.select), "where": filters.to_json(self.where)}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The table of its JSON values.

        Raises:
            ConfigurationError: the value is none.
        """
        fields = _fields("a table of a join", value, ("path", "select", "where"))
        return cls(fields["path"], fields["select"], filters.from_json(fields["where"]))


@dataclass(frozen=True)
class Side:
    """One table of a join of two, with the columns to join by: what people write for `DeltaJoinSpec.of`.

    Args:
        path: folder of the managed table.
        select: columns to emit, the keys among them.
        keys: join columns, paired by position with the other side's.
        where: rows to leave out, see `JoinedTable`.

    Raises:
        ConfigurationError: a part is empty, repeated, or a key is not selected.

    >>> Side("/data/orders", ("order_id", "product_id"), ("product_id",)).keys
    ('product_id',)
    """

    path: str
    select: tuple[str, ...]
    keys: tuple[str, ...]
    where: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        """Bring the parts into their one form and check them."""
        table = JoinedTable(self.path, self.select, self.where)
        object.__setattr__(self, "select", table.select)
        object.__setattr__(self, "where", table.where)
        object.__setattr__(self, "keys", _names("keys", self.keys))
        if missing := [key for key in self.keys if key not in self.select]:
            raise ConfigurationError(
                f"side {self.path!r}: select must contain the join keys; add {', '.join(missing)}"
            )

    @property
    def table(self) -> JoinedTable:
        """The side without its keys."""
        return JoinedTable(self.path, self.select, self.where)


@dataclass(frozen=True)
class DeltaJoinSpec:
    """A join of managed tables, and how much of it to do at once.

    Args:
        tables: the tables; one may be there several times, under several numbers.
        tree: how they are joined; each number occurs once.
        present: tables that may be padded with NULLs, for each of which a flag tells whether its part of
            a row is there: a projection above the join needs it to tell a NULL from a missing row.
        shards: how many tasks share the join of a micro-batch.
        max_rows_per_trigger: changes of each table that a micro-batch reads at most.

    Raises:
        ConfigurationError: the parts do not fit together, or a limit is not positive.

    >>> orders = Side("/data/orders", ("order_id", "product_id"), ("product_id",))
    >>> products = Side("/data/products", ("id", "name"), ("id",))
    >>> spec = DeltaJoinSpec.of("left", orders, products)
    >>> spec.columns
    ('t0_order_id', 't0_product_id', 't1_id', 't1_name')
    >>> DeltaJoinSpec.from_json(spec.to_json()) == spec
    True
    """

    tables: tuple[JoinedTable, ...]
    tree: Node
    present: tuple[int, ...] = ()
    shards: int = 2
    max_rows_per_trigger: int = 1_000_000

    def __post_init__(self) -> None:
        """Check what concerns several parts."""
        object.__setattr__(self, "tables", tuple(self.tables))
        object.__setattr__(self, "present", tuple(self.present))
        if not 1 <= len(self.tables) <= MAX_TABLES:
            raise ConfigurationError(f"a delta join takes 1 to {MAX_TABLES} tables, got {len(self.tables)}")
        if sorted(tree.leaves(self.tree)) != list(range(len(self.tables))):
            raise ConfigurationError(
                f"a join tree must have each of tables 0 to {len(self.tables) - 1} once, "
                f"got {list(tree.leaves(self.tree))!r}"
            )
        for ref in sorted(tree.columns_of(self.tree)):
            if ref.column not in self.tables[ref.table].select:
                raise ConfigurationError(
                    f"table {self.tables[ref.table].path!r}: select must contain what the join uses; "
                    f"add {ref.column}"
                )
        self._check_numbers()

    def _check_numbers(self) -> None:
        padded = tree.null_supplied(self.tree)
        if len(set(self.present)) != len(self.present) or not padded.issuperset(self.present):
            raise ConfigurationError(
                f"present must name tables that may be padded with NULLs, {sorted(padded)!r}, each once, "
                f"got {list(self.present)!r}"
            )
        for name in ("shards", "max_rows_per_trigger"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"delta join: {name} must be a positive integer, got {value!r}")

    @classmethod
    def of(
        cls,
        kind: str,
        left: Side,
        right: Side,
        *,
        where: Condition | None = None,
        present: Sequence[int] = (),
        shards: int = 2,
        max_rows_per_trigger: int = 1_000_000,
    ) -> Self:
        """The join of two tables: the left one is number 0, the right one number 1.

        Args:
            kind: ``inner``, ``left``, ``right``, ``full``, ``semi`` or ``anti``.
            left: the left table and its keys.
            right: the right table and its keys; may be the same table.
            where: the rest of the ON condition.
            present: see `DeltaJoinSpec`.
            shards: see `DeltaJoinSpec`.
            max_rows_per_trigger: see `DeltaJoinSpec`.

        Raises:
            ConfigurationError: the kind is unknown, or the sides have different numbers of keys.
        """
        if kind not in KINDS:
            raise ConfigurationError(f"a join's kind must be one of {', '.join(KINDS)}, got {kind!r}")
        if len(left.keys) != len(right.keys):
            raise ConfigurationError(
                f"both sides of a join need as many keys, got {left.keys!r} and {right.keys!r}"
            )
        on = tuple((Ref(0, a), Ref(1, b)) for a, b in zip(left.keys, right.keys, strict=True))
        node: Node
        match kind:
            case "inner":
                node = Inner((Leaf(0), Leaf(1)), on, where)
            case "right":
                node = Outer("left", Leaf(1), Leaf(0), tuple((b, a) for a, b in on), where)
            case _:
                node = Outer(kind, Leaf(0), Leaf(1), on, where)
        return cls((left.table, right.table), node, tuple(present), shards, max_rows_per_trigger)

    @property
    def visible(self) -> tuple[int, ...]:
        """Numbers of the tables whose columns come out: all but those on the right of semi and anti joins."""
        return tuple(sorted(tree.visible(self.tree)))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the output's columns, without ``_row_kind``: ``t0_<column>`` …, ``present_<number>`` …."""
        of_tables = (output_name(table, name) for table in self.visible for name in self.tables[table].select)
        return (*of_tables, *map(present_name, self.present))

    @property
    def fingerprint(self) -> str:
        """A short hash of what the join means and how its offsets are written.

        Equal for specs that emit the same rows, whatever their order of columns, of inner joins or of
        conditions, their shards, limits, or the folder that the tables have moved to: the tables themselves
        are known by their uuids.
        """
        meaning: dict[str, Any] = {
            "format": OFFSET_FORMAT,
            "select": [sorted(table.select) for table in self.tables],
            "where": [_sorted_filters(table.where) for table in self.tables],
        }
        match _canonical(self.tree):
            case {"node": "inner", "children": [{"node": "leaf"}, {"node": "leaf"}], "on": on, "where": []}:
                # In the words of release 0.1, which knew no other join: its checkpoints go on.
                pairs = sorted((one[1], other[1]) for one, other in on)
                meaning |= {"join": "inner", "keys": pairs}
            case canonical:
                meaning |= {"tree": canonical, "present": sorted(self.present)}
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """The join in the words that errors and checkpoints use."""
        return tree.described(self.tree, {i: table.name for i, table in enumerate(self.tables)})

    def to_json(self) -> str:
        """This spec as JSON text."""
        return json.dumps(
            {
                "tables": [table.to_json() for table in self.tables],
                "tree": tree.to_json(self.tree),
                "present": list(self.present),
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
        names = ("tables", "tree", "present", "shards", "max_rows_per_trigger")
        fields = _fields("a delta join's spec", value, names)
        tables, present = fields["tables"], fields["present"]
        for name, part in (("tables", tables), ("present", present)):
            if not isinstance(part, list):
                raise ConfigurationError(f"a delta join's {name} must be a list, got {part!r}")
        if bad := [number for number in present if type(number) is not int]:
            raise ConfigurationError(f"a delta join's present must hold table numbers, got {bad[0]!r}")
        joined = tuple(JoinedTable.from_json(table) for table in tables)
        node = tree.from_json(fields["tree"])
        return cls(joined, node, tuple(present), fields["shards"], fields["max_rows_per_trigger"])


def _canonical(node: Node) -> Any:
    """JSON values of a tree, equal for trees that differ only in the order of what has no order."""
    match node:
        case Leaf():
            return tree.to_json(node)
        case Inner(children, on, where):
            below = sorted(map(_canonical, children), key=json.dumps)
            pairs = sorted(sorted([ref.table, ref.column] for ref in pair) for pair in on)
            return {"node": "inner", "children": below, "on": pairs, "where": _conditions(where)}
        case Outer(kind, left, right, on, where):
            sides = [_canonical(left), _canonical(right)]
            pairs = sorted([[ref.table, ref.column] for ref in pair] for pair in on)
            return {"node": kind, "sides": sides, "on": pairs, "where": _conditions(where)}
        case Where(child, condition):
            return {"node": "where", "child": _canonical(child), "where": _conditions(condition)}


def _conditions(where: Condition | None) -> list[str]:
    return sorted(json.dumps(expressions.to_json(part)) for part in expressions.conjuncts(where))


def _sorted_filters(where: Sequence[Any] | None) -> list[str]:
    return sorted(
        json.dumps(sorted(json.dumps(part) for part in parts)) for parts in filters.to_json(where) or ()
    )


def _names(what: str, value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ConfigurationError(f"a table of a join: {what} must be a list of column names, got {value!r}")
    if bad := [name for name in value if not isinstance(name, str) or not name]:
        raise ConfigurationError(f"a table of a join: {what} must hold column names, got {bad[0]!r}")
    if len(set(value)) != len(value):
        raise ConfigurationError(f"a table of a join: {what} names a column twice, got {list(value)!r}")
    return tuple(value)


def _fields(what: str, value: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict) or sorted(value) != sorted(names):
        found = sorted(value) if isinstance(value, dict) else value
        raise ConfigurationError(f"{what} must have exactly {', '.join(names)}, got {found!r}")
    return value
