"""The rows that the changes of a streaming query make, kept in the driver (``execution.result-mode``)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from upsert.rowkind import ROW_KIND_COLUMN
from upsert.stream_keys import UpsertKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_REMOVING = ("-U", "-D")


class Materialized:
    """A streaming query and the rows that are in its result now, for people to look at.

    All rows are in this process, so this is for results of moderate size; its checkpoint is a temporary one.

    Attributes:
        query: the running query.
    """

    query: StreamingQuery

    def __init__(self, schema: pa.Schema, key: tuple[int, ...] | None) -> None:
        """Of no rows; see ``started``."""
        self._schema = schema
        self._key = key
        self._rows: dict[str, tuple[tuple[Any, ...], int]] = {}
        self._lock = threading.Lock()

    @classmethod
    def started(cls, changes: DataFrame, trigger: Mapping[str, Any]) -> Self:
        """The rows of a streaming DataFrame, whose query this starts.

        Args:
            changes: rows, or changes with ``_row_kind``.
            trigger: of the query, as ``DataStreamWriter.trigger`` takes it; empty for Spark's own.
        """
        upserts = UpsertKey.of_schema(changes.schema.jsonValue())
        names = [name for name in changes.columns if name != ROW_KIND_COLUMN]
        key = None if upserts is None else tuple(sorted({names.index(n) for ns in upserts.keys for n in ns}))
        empty = changes.sparkSession.createDataFrame([], changes.drop(ROW_KIND_COLUMN).schema)
        found = cls(empty.toArrow().schema, key)
        mode = "append" if upserts is None or upserts.is_append else "update"
        writer = changes.writeStream.outputMode(mode).foreachBatch(
            lambda rows, _: found.apply(rows.toArrow())
        )
        found.query = (writer.trigger(**trigger) if trigger else writer).start()
        return found

    def __repr__(self) -> str:
        return f"{self.rows().num_rows} rows, {'running' if self.query.isActive else 'stopped'}"

    def rows(self) -> pa.Table:
        """The rows that are in the result now."""
        with self._lock:
            values = [row for row, count in self._rows.values() for _ in range(count)]
        columns = list(zip(*values, strict=True)) or [()] * len(self._schema)
        return pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)],
            schema=self._schema,
        )

    def apply(self, changes: pa.Table) -> None:
        """Apply the changes of one micro-batch, of which there may be any number for a row."""
        has_kinds = ROW_KIND_COLUMN in changes.column_names
        kinds = changes.column(ROW_KIND_COLUMN).to_pylist() if has_kinds else ["+I"] * changes.num_rows
        columns = [
            column.to_pylist()
            for name, column in zip(changes.column_names, changes.columns, strict=True)
            if name != ROW_KIND_COLUMN
        ]
        with self._lock:
            for kind, row in zip(kinds, zip(*columns, strict=True), strict=True):
                self._count(row, -1 if kind in _REMOVING else 1)

    def _count(self, row: tuple[Any, ...], sign: int) -> None:
        # values of nested types have no hash, their text does
        identity = repr(row if self._key is None else tuple(row[number] for number in self._key))
        count = sign if self._key is not None else self._rows.get(identity, (row, 0))[1] + sign
        if count == 0 or (count < 0 and self._key is not None):
            self._rows.pop(identity, None)
        else:
            self._rows[identity] = (row, count)
