"""The tables of a join: where each lies, what is read of it, and what of that comes out (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from deltajoin import filters
from upsert.errors import ConfigurationError, CorruptTableError, SchemaError
from upsert.schema import Column


@dataclass(frozen=True)
class JoinedTable:
    """One table of a join: where it lies, which columns to read of it, which rows to leave out.

    Args:
        path: folder of the managed table.
        select: columns of the join's rows, those that the tree uses among them.
        where: filters in the store's form. A row that fails them takes no part in the join, as if the
            table did not have it. Kept as nested tuples.
        emit: those of ``select`` that come out of the join; None for all. The rest is only compared.
        began: all these columns as they were when the query began, so that it finds them again after ``ALTER
            TABLE``; () for those that have the names now.

    Raises:
        ConfigurationError: a part is empty or repeated, or a column that is to come out is not selected.

    >>> JoinedTable("/data/orders", ("order_id", "product_id"), [("amount", ">", 0)]).where
    ((('amount', '>', 0),),)
    """

    path: str
    select: tuple[str, ...]
    where: Sequence[Any] | None = None
    emit: tuple[str, ...] | None = None
    began: tuple[Column, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        """Bring the parts into their one form and check them."""
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

    def to_json(self) -> dict[str, Any]:
        """This table as JSON values."""
        return {
            "path": self.path,
            "select": list(self.select),
            "where": filters.to_json(self.where),
            "emit": None if self.emit is None else list(self.emit),
            "began": [column.to_json() for column in self.began],
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The table of its JSON values.

        Raises:
            ConfigurationError: the value is none.
        """
        names = ("path", "select", "where", "emit", "began")
        given = {"began": [], **value} if isinstance(value, dict) else value
        fields = fields_of("a table of a join", given, names)
        where, began = filters.from_json(fields["where"]), columns_from_json(fields["began"])
        return cls(fields["path"], fields["select"], where, fields["emit"], began)


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


def _names(what: str, value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ConfigurationError(f"a table of a join: {what} must be a list of column names, got {value!r}")
    if bad := [name for name in value if not isinstance(name, str) or not name]:
        raise ConfigurationError(f"a table of a join: {what} must hold column names, got {bad[0]!r}")
    if len(set(value)) != len(value):
        raise ConfigurationError(f"a table of a join: {what} names a column twice, got {list(value)!r}")
    return tuple(value)


def columns_from_json(value: Any) -> tuple[Column, ...]:
    """Columns of their JSON values.

    Raises:
        ConfigurationError: the value is no list of columns.
    """
    try:
        return tuple(Column.from_json(column) for column in value)
    except (KeyError, TypeError, ValueError, AttributeError, CorruptTableError, SchemaError) as cause:
        raise ConfigurationError(f"columns of a query must be a list of columns, got {value!r}") from cause


def fields_of(what: str, value: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    """The values of a JSON object that must have just these names.

    Raises:
        ConfigurationError: it is none, or has others.
    """
    if not isinstance(value, dict) or sorted(value) != sorted(names):
        found = sorted(value) if isinstance(value, dict) else value
        raise ConfigurationError(f"{what} must have exactly {', '.join(names)}, got {found!r}")
    return value
