"""What is joined: tables, the columns to emit of each, and the tree that joins them (pure).

A spec is a value. It crosses from driver to executors, and it reaches the source as the text of an
option, so its JSON form is not trusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Self

from deltajoin import expressions, filters, tree
from deltajoin.expressions import OPTIONAL_CONDITION, Condition, Ref, conjuncts, refs_of
from deltajoin.fingerprint import (
    OFFSET_FORMAT,
    Name,
    canonical,
    hash_of,
    part,
    plain_filters,
    renamed_tree,
    shape,
    sorted_filters,
    untyped,
)
from deltajoin.tree import Inner, Leaf, Node, Outer, Where, nodes
from upsert.codec import Jsonable, from_text, json_by, to_text
from upsert.errors import ConfigurationError
from upsert.schema import Column

MAX_TABLES: Final = 8
KINDS: Final = ("inner", "left", "right", "full", "semi", "anti")
"""Kinds of a join of two tables, as `DeltaJoinSpec.of` takes them."""


@dataclass(frozen=True)
class JoinedTable(Jsonable):
    """One table of a join: its path, the columns to read, and the rows to leave out.

    Args:
        path: folder of the managed table.
        select: columns of the join's rows, those that the tree uses among them.
        where: filters in the store's form. A row that fails them takes no part in the join, as if the
            table did not have it. Kept as nested tuples.
        emit: those of ``select`` that the join emits; None for all. The rest is only compared.
        began: all these columns as they were when the query began, so that it finds them again after ``ALTER
            TABLE``; () for the columns that have the names now.

    Raises:
        ConfigurationError: a part is empty or repeated, or an emitted column is not selected.

    >>> JoinedTable("/data/orders", ("order_id", "product_id"), [("amount", ">", 0)]).where
    ((('amount', '>', 0),),)
    """

    path: str
    select: tuple[str, ...]
    where: Sequence[Any] | None = field(default=None, metadata=json_by(filters.from_json, filters.to_json))
    emit: tuple[str, ...] | None = None
    began: tuple[Column, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "select", _names("select", self.select))
        object.__setattr__(self, "where", filters.normalized(self.where))
        if self.began and {column.name for column in self.began} != set(self.columns):
            raise ConfigurationError(
                f"table {self.path!r}: began must have each column of select and where, "
                f"got {[column.name for column in self.began]!r}"
            )
        if self.emit is not None:
            object.__setattr__(self, "emit", () if self.emit in ((), []) else _names("emit", self.emit))
            if missing := [name for name in self.emitted if name not in self.select]:
                raise ConfigurationError(
                    f"table {self.path!r}: select must contain what is emitted; add {', '.join(missing)}"
                )
        if not isinstance(self.path, str) or not self.path:
            raise ConfigurationError(f"a table of a join needs the path of its folder, got {self.path!r}")

    @property
    def emitted(self) -> tuple[str, ...]:
        """The columns that come out."""
        return self.select if self.emit is None else self.emit

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that must be read: the selected ones, then those that only the filters use."""
        return tuple(dict.fromkeys((*self.select, *filters.columns_of(self.where))))

    @property
    def name(self) -> str:
        """The last part of the path, for messages."""
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    def renamed(self, number: int, name: Name) -> Self:
        """This table, which has a number, with each column under the name that ``name`` gives it."""

        def of(column: str) -> str:
            return name(Ref(number, column))

        emit = None if self.emit is None else tuple(map(of, self.emit))
        return type(self)(self.path, tuple(map(of, self.select)), filters.renamed(self.where, of), emit)


@dataclass(frozen=True)
class Side:
    """One table of a join of two, with the columns to join by, for `DeltaJoinSpec.of`.

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
    """A join of managed tables, and the size of its micro-batches.

    Args:
        tables: the tables; one may occur several times, under several numbers.
        tree: how they are joined; each number occurs once.
        present: tables that may be padded with NULLs and for which the result has a flag that says whether
            their part of a row exists: a projection above the join needs it to tell a NULL from a missing
            row.
        shards: how many tasks share the join of a micro-batch.
        max_rows_per_trigger: changes of each table that a micro-batch reads at most.
        keep: a filter of the join's rows, as one above the join; None for all rows. It may use columns that
            are not emitted.
        is_net: whether a micro-batch must not emit a row with both signs, even if different rows are equal
            in the emitted columns. It costs memory: such rows are held until the task has all of them. Not
            needed below an aggregate that sums signed rows.

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
    keep: Condition | None = field(default=None, metadata=OPTIONAL_CONDITION)
    is_net: bool = True

    def __post_init__(self) -> None:
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

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of what the join means and how its offsets are written.

        Equal for specs that select the same rows, whatever their order of columns, of inner joins or of
        conditions, their shards, limits, or the folder that the tables have moved to: the tables themselves
        are known by their uuids. What of these rows comes out has no part in it, as no projection or filter
        above the join has. Columns count by name, as in checkpoints of release 0.1; see `fingerprint_by`.
        """
        meaning: dict[str, Any] = {
            "format": OFFSET_FORMAT,
            "select": [sorted(table.select) for table in self.tables],
            "where": [sorted_filters(filters.to_json(table.where)) for table in self.tables],
        }
        match canonical(self.tree, expressions.to_json):
            case {"node": "inner", "children": [{"node": "leaf"}, {"node": "leaf"}], "on": on, "where": []}:
                # In the words of release 0.1, which knew no other join: its checkpoints go on.
                pairs = sorted((one[1], other[1]) for one, other in on)
                meaning |= {"join": "inner", "keys": pairs}
            case joined:
                meaning |= {"tree": joined, "present": sorted(self.present)}
        return hash_of(meaning)

    def fingerprint_by(self, id_of: Name) -> str:
        """The fingerprint with columns that count by what ``id_of`` gives for them, whatever their types."""
        by_ids = self.renamed(id_of)
        return hash_of(
            {
                "format": OFFSET_FORMAT,
                "select": [sorted(table.select) for table in by_ids.tables],
                "where": [sorted_filters(plain_filters(table.where)) for table in by_ids.tables],
                "tree": canonical(by_ids.tree, untyped),
                "present": sorted(self.present),
            }
        )

    def renamed(self, name: Name) -> Self:
        """The same join, without ``keep``, with its columns under the names that ``name`` gives them."""
        tables = tuple(table.renamed(number, name) for number, table in enumerate(self.tables))
        return replace(self, tables=tables, tree=renamed_tree(self.tree, name), keep=None)

    def parts(self, id_of: Name) -> tuple[str, ...]:
        """What the join consists of, for `deltajoin.fingerprint.what_differs`."""
        return tuple(dict.fromkeys(self._parts(self.renamed(id_of))))

    def _parts(self, by_ids: Self) -> Iterator[str]:
        names = [table.name for table in self.tables]
        for number, (table, same) in enumerate(zip(self.tables, by_ids.tables, strict=True)):
            for column, id_ in zip(table.columns, same.columns, strict=True):
                yield part("column", f"{number}.{id_}", f"{table.name}.{column}")
            if table.where is not None:
                words = " or ".join(
                    " and ".join(f"{column} {op} {value!r}" for column, op, value in parts)
                    for parts in table.where
                )
                key = json.dumps([number, sorted_filters(plain_filters(same.where))])
                yield part("filter", key, f"{table.name}: {words}")
        for node, same_node in zip(nodes(self.tree), nodes(by_ids.tree), strict=True):
            if isinstance(node, Inner | Outer) and isinstance(same_node, Inner | Outer):
                for pair, ids in zip(node.on, same_node.on, strict=True):
                    words = " = ".join(f"{names[ref.table]}.{ref.column}" for ref in pair)
                    yield part("key", str(sorted(map(str, ids))), words)
            conditions = (conjuncts(_condition_of(each)) for each in (node, same_node))
            for condition, by_id in zip(*conditions, strict=True):
                yield part("condition", json.dumps(untyped(by_id)), str(condition))
        numbers = [str(number) for number in range(len(names))]
        yield part("join", shape(self.tree, numbers), shape(self.tree, names))
        for number in self.present:
            yield part("flag", str(number), f"whether {names[number]} has a row")

    def __str__(self) -> str:
        """The join in the words that errors and checkpoints use."""
        return tree.described(self.tree, {i: table.name for i, table in enumerate(self.tables)})

    def to_json(self) -> str:
        """This spec as JSON text."""
        return self._text

    @cached_property
    def _text(self) -> str:
        return to_text(self)  # asked for by each task, as what says which join it is

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The spec of its JSON text.

        Raises:
            ConfigurationError: the text is no spec; the message says which part.
        """
        return from_text(cls, text, "a delta join's spec")


def _condition_of(node: Node) -> Condition | None:
    match node:
        case Leaf():
            return None
        case Where(_, condition):
            return condition
        case Inner() | Outer():
            return node.where


def _names(what: str, value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ConfigurationError(f"a table of a join: {what} must be a list of column names, got {value!r}")
    if bad := [name for name in value if not isinstance(name, str) or not name]:
        raise ConfigurationError(f"a table of a join: {what} must hold column names, got {bad[0]!r}")
    if len(set(value)) != len(value):
        raise ConfigurationError(f"a table of a join: {what} names a column twice, got {list(value)!r}")
    return tuple(value)
