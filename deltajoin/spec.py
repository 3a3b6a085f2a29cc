"""What is joined: tables, the columns to emit of each, and the tree that joins them (pure).

A spec is a value. It crosses from driver to executors, and it reaches the source as the text of an
option, so its JSON form is not trusted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from deltajoin import expressions, tree
from deltajoin.expressions import Condition, Ref, refs_of
from deltajoin.fingerprint import named_fingerprint
from deltajoin.joined_table import JoinedTable, Side, fields_of
from deltajoin.tree import Inner, Leaf, Node, Outer
from upsert.errors import ConfigurationError

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
    """Name of the flag that tells whether a row has a part from the table, or NULLs instead.

    >>> present_name(1)
    'present_1'
    """
    return f"present_{table}"


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
        keep: which rows of the join come out, as a filter above it would say; None for all. It may use
            columns that do not come out.
        is_net: whether no row may come out with both signs in one micro-batch, also where rows that differ
            are equal in the columns that come out. Not needed below an aggregate that sums signs, and
            dearer: such rows are held until the task has all of them.

    Raises:
        ConfigurationError: the parts do not fit together, or a limit is not positive.

    >>> orders = Side("/data/orders", ("order_id", "product_id"), ("product_id",))
    >>> products = Side("/data/products", ("id", "name"), ("id",))
    >>> spec = DeltaJoinSpec.of("left", orders, products)
    >>> spec.columns
    ('t0_order_id', 't0_product_id', 't1_id', 't1_name')
    >>> DeltaJoinSpec.from_json(spec.to_json()) == spec
    True

    Of more tables, with the nodes of `deltajoin.tree` and the conditions of `deltajoin.expressions`:

    >>> import pyarrow as pa
    >>> from deltajoin.expressions import Call, Const, Field
    >>> from deltajoin.tree import Inner, Leaf, Outer; from deltajoin.expressions import Ref
    >>> tables = (
    ...     JoinedTable("/data/orders", ("order_id", "product_id", "amount"), emit=("order_id", "amount")),
    ...     JoinedTable("/data/products", ("id", "shop"), emit=()),
    ...     JoinedTable("/data/shops", ("shop", "city")),
    ... )
    >>> of_shop = Outer("left", Leaf(1), Leaf(2), ((Ref(1, "shop"), Ref(2, "shop")),))
    >>> dear = Call(">", (Field(Ref(0, "amount")), Const(100, pa.int64())))
    >>> spec = DeltaJoinSpec(tables, Inner((Leaf(0), of_shop), ((Ref(0, "product_id"), Ref(1, "id")),), dear))
    >>> print(spec)
    inner(orders, products(shop) left shops(shop): orders.product_id = products.id and (t0.amount > 100))
    >>> spec.columns
    ('t0_order_id', 't0_amount', 't2_shop', 't2_city')
    """

    tables: tuple[JoinedTable, ...]
    tree: Node
    present: tuple[int, ...] = ()
    shards: int = 2
    max_rows_per_trigger: int = 1_000_000
    keep: Condition | None = None
    is_net: bool = True

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
        for ref in sorted(refs_of(self.keep)):
            if ref.table not in self.visible or ref.column not in self.tables[ref.table].select:
                raise ConfigurationError(f"keep must use selected columns of rows that come out, got {ref}")
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
        of_tables = (
            output_name(table, name) for table in self.visible for name in self.tables[table].emitted
        )
        return (*of_tables, *map(present_name, self.present))

    @property
    def fingerprint(self) -> str:
        """A short hash of what the join means and how its offsets are written.

        Equal for specs that select the same rows, whatever their order of columns, of inner joins or of
        conditions, their shards, limits, or the folder that the tables have moved to: the tables themselves
        are known by their uuids. What of these rows comes out has no part in it, as no projection or filter
        above the join has.
        """
        return named_fingerprint(self.tables, self.tree, self.present)

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
                "keep": expressions.to_json(self.keep),
                "is_net": self.is_net,
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
        names = ("tables", "tree", "present", "shards", "max_rows_per_trigger", "keep", "is_net")
        fields = fields_of("a delta join's spec", value, names)
        tables, present = fields["tables"], fields["present"]
        for name, part in (("tables", tables), ("present", present)):
            if not isinstance(part, list):
                raise ConfigurationError(f"a delta join's {name} must be a list, got {part!r}")
        if bad := [number for number in present if type(number) is not int]:
            raise ConfigurationError(f"a delta join's present must hold table numbers, got {bad[0]!r}")
        if not isinstance(fields["is_net"], bool):
            raise ConfigurationError(f"a delta join's is_net must be true or false, got {fields['is_net']!r}")
        joined = tuple(JoinedTable.from_json(table) for table in tables)
        node = tree.from_json(fields["tree"])
        shards, limit = fields["shards"], fields["max_rows_per_trigger"]
        keep = expressions.from_json(fields["keep"])
        return cls(joined, node, tuple(present), shards, limit, keep, fields["is_net"])
