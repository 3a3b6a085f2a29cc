"""What the normalizer operator does: plain values that go from the driver to its tasks (pure)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from upsert.changelog.rules import Rules
from upsert.errors import ConfigurationError
from upsert.schema import TableSchema

KEEP: Final = 100
"""Spark's ``spark.sql.streaming.minBatchesToRetain``: so far back a query can be made to start again."""
MAX_STATE_BYTES: Final = 32 << 20
"""Images of one bucket that are kept in Spark's state store, which writes all of them in every batch."""


@dataclass(frozen=True)
class NormalizeSpec:
    """The operator's arguments, checked.

    Attributes:
        schema: the rows' columns, with the key as primary key.
        rules: how rows are told apart and ordered.
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
                f"normalize: a query must go on with the arguments of its checkpoint, {found}, got "
                f"{self.label}; restore them, or start with a new checkpoint"
            )
