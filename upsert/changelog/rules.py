"""What the normalizer knows of rows: their key, which is newer, how long one is remembered (pure).

`Rules` and `Expiry` are about rows; `NormalizeSpec` has the operator's arguments, plain values that go from
the driver to its tasks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema

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
        """Columns of the images of such rows, without ``_row_kind``; all may be NULL."""
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


KEEP: Final = 100
"""Spark's ``spark.sql.streaming.minBatchesToRetain``: so far back a query can be made to start again."""

MAX_STATE_BYTES: Final = 32 << 20
"""Images of one bucket that are kept in Spark's state store, which writes all of them in every batch."""


@dataclass(frozen=True)
class NormalizeSpec:
    """The operator's arguments, checked.

    Attributes:
        schema: the rows' columns, with the key as primary key.
        rules: the key and the order of rows.
        buckets: number of groups of keys.
        state_path: absolute folder for images in tables; None: in the state store.
        max_state_bytes: limit for a bucket's images in the state store.
        keep: batches that can still be run again from images in tables.

    Raises:
        ConfigurationError: a number is below 1.
        SchemaError: rules do not fit the columns.
    """

    schema: TableSchema
    rules: Rules
    buckets: int
    state_path: str | None = None
    max_state_bytes: int = MAX_STATE_BYTES
    keep: int = KEEP

    def __post_init__(self) -> None:
        """Check at the driver what every task relies on."""
        for name in ("buckets", "max_state_bytes", "keep"):
            number = getattr(self, name)
            if number < 1:
                raise ConfigurationError(f"normalize: {name} must be a positive integer, got {number!r}")
        self.rules.check(self.schema.arrow)

    @property
    def label(self) -> str:
        """What must stay the same as long as a checkpoint is used; kept with the state of each bucket."""
        columns = [[column.name, str(column.type)] for column in self.schema.columns]
        kept = {
            "buckets": self.buckets,
            "key": self.rules.key,
            "order_by": self.rules.order_by,
            "columns": columns,
        }
        return json.dumps(kept)

    def check_label(self, found: str) -> None:
        """Refuse state that was written under another label.

        Raises:
            ConfigurationError: it was; the message has both.
        """
        if found != self.label:
            raise ConfigurationError(
                f"normalize: a query must continue with the arguments of its checkpoint, {found}, got "
                f"{self.label}; restore them, or start with a new checkpoint"
            )
