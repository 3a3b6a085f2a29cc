"""Rows of JSON whose values are as Debezium writes them: changes, or rows that it has unwrapped (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from upsert.arrays import is_null, one_array
from upsert.formats.base import BadMessage, Decoded
from upsert.formats.debezium import values
from upsert.formats.debezium.values import Encoding
from upsert.formats.json_reader import JsonReader
from upsert.formats.json_values import JsonDialect

PAYLOAD: Final = "payload"
"""What has the change, where the schema is in the message too."""

_IMAGES: Final = ("before", "after")


class EncodedReader:
    """Reads messages whose columns are written in ways that are known; of changes, those of their images."""

    def __init__(
        self,
        fields: pa.Schema,
        encodings: Mapping[str, Encoding],
        dialect: JsonDialect,
        *,
        is_change: bool = False,
    ) -> None:
        self._fields = fields
        self._dialect = dialect
        self._encodings = encodings
        self._is_change = is_change
        self._hints_at_base64 = not any(one.is_base64 for one in encodings.values())
        wire = pa.schema([self._wire(field, not is_change) for field in fields])
        self._reader = JsonReader(wire, dialect, takes_arrays=not is_change)

    def _wire(self, field: pa.Field, is_column: bool) -> pa.Field:
        if is_column:
            return field.with_type(values.wire_type(field.type, self._encodings[field.name]))
        if field.name not in (PAYLOAD, *_IMAGES):
            return field
        return field.with_type(pa.struct([self._wire(part, field.name in _IMAGES) for part in field.type]))

    def decode(self, messages: pa.Array) -> Decoded:
        """The rows of all messages; those with a value that is none of its type are bad."""
        found = self._reader.decode(messages)
        if self._hints_at_base64:
            found = replace(found, bad=tuple(map(_with_hint, found.bad)))
        if found.rows.schema == self._fields:
            return found
        bad: dict[int, str] = {}
        columns = [
            self._read(one_array(column), field, "" if self._is_change else None, bad)
            for column, field in zip(found.rows.columns, self._fields, strict=True)
        ]
        rows = pa.Table.from_arrays(columns, schema=self._fields)
        positions = np.arange(len(messages)) if found.positions is None else found.positions
        reasons = {int(positions[row]): reason for row, reason in bad.items()}
        if reasons:
            is_good = ~np.isin(positions, list(reasons))
            positions, rows = positions[is_good], rows.filter(pa.array(is_good))
        is_told = not self._dialect.ignore_parse_errors
        more = [BadMessage(position, reason) for position, reason in reasons.items() if is_told]
        return Decoded.at(positions, len(messages), rows, [*found.bad, *more])

    def _read(self, found: pa.Array, field: pa.Field, image: str | None, bad: dict[int, str]) -> pa.Array:
        """The values of a field; ``image`` is empty outside of images, None where rows are no changes."""
        if found.type == field.type:
            return found
        if image == "":
            inner = field.name if field.name in _IMAGES else ""
            parts = zip(found.flatten(), field.type, strict=True)
            own = [self._read(part, one, inner, bad) for part, one in parts]
            return pa.StructArray.from_arrays(own, fields=list(field.type), mask=found.is_null())
        encoding = self._encodings[field.name]
        read, is_bad = values.read(found, field.type, encoding, self._dialect.timestamps)
        if self._dialect.ignore_parse_errors:
            is_bad &= is_null(read) & (not field.nullable)
        path = f"{image}.{field.name}" if image else field.name
        for row in np.flatnonzero(is_bad).tolist():
            why = values.reason(found[row].as_py(), field.type, encoding)
            bad.setdefault(row, f"field {path!r}: {why}")
        return read


def _with_hint(bad: BadMessage) -> BadMessage:
    hint = values.BASE64 if " is no DECIMAL" in bad.reason else ""
    return replace(bad, reason=bad.reason + hint)
