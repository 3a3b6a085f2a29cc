"""How rows are told apart, which is newer, and for how long one is remembered (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN

DELETED_COLUMN: Final = "_is_deleted"
"""Of the images of ordered rows: whether the key is deleted, so that only its order is remembered."""


@dataclass(frozen=True)
class Expiry:
    """How long an image counts: it is absent for a record that is more than ``ttl_ms`` younger.

    As in Flink, a record that equals its image then gives ``-U`` and ``+U``, and makes it younger. An image
    that counts as absent is not taken back: the next record is ``+I``.

    Attributes:
        time: a column of the rows: TIMESTAMP, or BIGINT milliseconds; a row without a time never expires.
        ttl_ms: milliseconds, at least 1.

    Raises:
        ConfigurationError: ``ttl_ms`` is below 1.
    """

    time: str
    ttl_ms: int

    def __post_init__(self) -> None:
        """Refuse what no row can follow."""
        if self.ttl_ms < 1:
            raise ConfigurationError(f"normalize: ttl must be at least 1 ms, got {self.ttl_ms!r}")

    def ticks(self, time: pa.DataType) -> int:
        """``ttl_ms`` in the unit of a time column."""
        return self.ttl_ms * (1000 if pa.types.is_timestamp(time) else 1)


@dataclass(frozen=True)
class Rules:
    """What the normalizer has to know about rows.

    Attributes:
        key: columns that identify a row, of scalar types, never NULL.
        compare: columns in which two rows of a key differ; rows that agree in them are duplicates.
        order_by: columns whose highest value is the newest, never NULL; empty: the order of the rows.
        expiry: when an image counts as absent; None: never.

    Raises:
        SchemaError: there is no key.
    """

    key: tuple[str, ...]
    compare: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    expiry: Expiry | None = None

    def __post_init__(self) -> None:
        """Refuse what no row can follow."""
        if not self.key:
            raise SchemaError("normalize: key must name at least one column, got none")

    @property
    def orders(self) -> tuple[str, ...]:
        """Columns of an image that hold the order of the newest row of its key, swallowed ones included."""
        return tuple(f"_order_{number}" for number in range(len(self.order_by)))

    @property
    def remembered(self) -> tuple[str, ...]:
        """Columns that an image has beside those of the row."""
        return (*self.orders, DELETED_COLUMN) if self.order_by else ()

    @property
    def kept_of_deleted(self) -> tuple[str, ...]:
        """Columns of the row that the image of a deleted key still has; the others are NULL."""
        return self.key if self.expiry is None else tuple(dict.fromkeys((*self.key, self.expiry.time)))

    def image_schema(self, rows: pa.Schema) -> pa.Schema:
        """Columns of the images of such rows, without ``_row_kind``; all may be NULL.

        Raises:
            SchemaError: a column is missing, or has a name that images need themselves.
        """
        self.check(rows)
        fields = [pa.field(field.name, field.type) for field in rows if field.name != ROW_KIND_COLUMN]
        if self.order_by:
            pairs = zip(self.orders, self.order_by, strict=True)
            fields += [pa.field(order, rows.field(name).type) for order, name in pairs]
            fields.append(pa.field(DELETED_COLUMN, pa.bool_()))
        return pa.schema(fields)

    def check(self, rows: pa.Schema) -> None:
        """Refuse rows that these rules do not fit.

        Raises:
            SchemaError: a column is missing, has a type that cannot serve, or a name that images need.
        """
        for what, names in (("key", self.key), ("order_by", self.order_by), ("compare", self.compare)):
            for name in names:
                if name not in rows.names or name == ROW_KIND_COLUMN:
                    known = ", ".join(known for known in rows.names if known != ROW_KIND_COLUMN)
                    raise SchemaError(f"normalize: {what} has unknown column {name!r}; columns are {known}")
                if what != "compare" and not types.is_scalar(rows.field(name).type):
                    raise SchemaError(
                        f"normalize: {what} column {name!r} must be of a scalar type, got "
                        f"{types.sql_name(rows.field(name).type)}"
                    )
        for name in self.remembered:
            if name in rows.names:
                raise SchemaError(f"normalize: column name {name!r} is used in its state; rename the column")
        if self.expiry is not None:
            _check_time(self.expiry.time, rows)


def _check_time(name: str, rows: pa.Schema) -> None:
    found = rows.field(name).type if name in rows.names else None
    if found is None or not (pa.types.is_timestamp(found) or pa.types.is_int64(found)):
        what = "no such column" if found is None else types.sql_name(found)
        raise SchemaError(
            f"normalize: the time column of a ttl, {name!r}, must be TIMESTAMP or BIGINT milliseconds, "
            f"got {what}"
        )
