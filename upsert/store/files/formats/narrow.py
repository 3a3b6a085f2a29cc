"""Columns in fewer bytes a value, still mapped: any row is read without the others (pure).

Whole numbers and times are stored as their distance from the least one of the file, in the fewest bytes that
hold the greatest distance; 64-bit floats as 32-bit ones where all of them are the same number then; texts of
few different values as numbers in a dictionary. What does not get smaller stays as it is. The schema of the
file says under ``narrow``, as JSON, what was done to each column, and has the schema of the rows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import integers, of_numbers
from upsert.store.files.formats.base import retyped, schema_of, schema_text

NOTES: Final = b"narrow"
"""Metadata of the schema of a file with such columns."""

_SCHEMA: Final = b"schema"

LEAST_ROWS: Final = 1024
"""In a file with fewer rows the notes would take more than is saved."""

_SAMPLE: Final = 1024
_MAX_DICTIONARY_BYTES: Final = 1 << 16

_SIGNED: Final = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED: Final = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32()}

Note = Mapping[str, Any]
"""What was done to a column: ``{"base": 7}``, ``{"float": 32}`` or ``{"dictionary": "…"}``."""


def narrowed(rows: pa.RecordBatch, plain: Collection[str]) -> pa.RecordBatch:
    """The rows with narrower columns, all but the ``plain`` ones; themselves if none gets smaller."""
    if rows.num_rows < LEAST_ROWS:
        return rows
    notes: dict[str, Note] = {}
    columns, fields = [], []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        found = None if field.name in plain else _narrowed(column)
        if found is not None:
            column, notes[field.name] = found
        columns.append(column)
        fields.append(pa.field(field.name, column.type))
    if not notes:
        return rows
    metadata = {NOTES: json.dumps(notes), _SCHEMA: schema_text(rows.schema)}
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata))


def _narrowed(column: pa.Array) -> tuple[pa.Array, Note] | None:
    type_ = column.type
    if pa.types.is_integer(type_) or pa.types.is_temporal(type_):
        return _as_distances(column)
    if pa.types.is_float64(type_):
        narrow = column.cast(pa.float32(), safe=False)
        is_same = _bits(narrow.cast(pa.float64())) == _bits(column)
        # what lies under a NULL is never read
        return (narrow, {"float": 32}) if (is_same | pc.is_null(column).to_numpy(False)).all() else None
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return _as_numbers(column)
    return None


def _bits(column: pa.Array) -> Any:
    return np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * 8)


def _as_distances(column: pa.Array) -> tuple[pa.Array, Note] | None:
    if (signed := _SIGNED.get(column.type.bit_width)) is None:
        return None
    numbers = column.view(signed)
    ends = pc.min_max(numbers)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is None:
        low = high = 0
    bits = next((bits for bits in _UNSIGNED if high - low < 1 << bits), 64)
    if bits >= column.type.bit_width:
        return None
    distances = numbers if low == 0 else pc.subtract(numbers, pa.scalar(low, signed))
    return distances.cast(_UNSIGNED[bits], safe=False), {"base": low}


def _as_numbers(column: pa.Array) -> tuple[pa.Array, Note] | None:
    # most texts differ from each other, which a few of them show
    some = column.take(pa.array(np.linspace(0, len(column) - 1, _SAMPLE, dtype=np.int64)))
    if pc.count_distinct(some).as_py() > _SAMPLE // 4:
        return None
    found = column.dictionary_encode()
    count, size = len(found.dictionary), found.dictionary.nbytes
    bits = 8 if count <= 1 << 8 else 16
    if count > 1 << 16 or size > _MAX_DICTIONARY_BYTES or bits // 8 * len(column) + 2 * size >= column.nbytes:
        return None
    batch = pa.record_batch([found.dictionary], names=["values"])
    text = base64.b64encode(batch.schema.serialize().to_pybytes()).decode()
    content = base64.b64encode(batch.serialize().to_pybytes()).decode()
    return found.indices.cast(_UNSIGNED[bits]), {"dictionary": [text, content]}


class NarrowRows:
    """The rows of such a file: what is read of it are views of its content, to be widened afterwards."""

    is_mapped = True

    def __init__(self, stored: pa.RecordBatch) -> None:
        """The one batch of a file; ``ValueError`` if its notes cannot be right."""
        metadata = stored.schema.metadata
        self.schema = schema_of(metadata.get(_SCHEMA), stored.schema.names)
        self.rows = int(stored.num_rows)
        self.starts = (0, self.rows)
        self._stored = stored
        try:
            notes = json.loads(metadata[NOTES])
            self._widen = {
                name: _widening(note, stored.schema.field(name).type, self.schema.field(name).type)
                for name, note in notes.items()
            }
        except (LookupError, TypeError, AttributeError, OverflowError, pa.ArrowException) as cause:
            raise ValueError(f"its notes on narrow columns are damaged, {cause!r}") from cause
        for field in stored.schema:
            if field.name not in self._widen and field.type != self.schema.field(field.name).type:
                raise ValueError(f"column {field.name} has type {field.type}, and no note says why")

    @property
    def narrow(self) -> Collection[str]:
        """Names of the columns that are to be widened."""
        return self._widen.keys()

    def bounds(self, name: str) -> None:
        """Nothing is known of the values in a part."""

    def read(self, part: int, names: Sequence[str]) -> pa.RecordBatch:  # noqa: ARG002 - there is one
        """Some columns as they are stored; no copy."""
        return self._stored.select(names)

    def widened(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Some rows of ``read`` as they were written."""
        if not rows.num_columns:
            return rows
        names = rows.schema.names
        columns = [
            self.widened_column(name, column) for name, column in zip(names, rows.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([self.schema.field(n) for n in names]))

    def widened_column(self, name: str, values: pa.Array) -> pa.Array:
        """Some values of a column of ``read`` as they were written."""
        return self._widen[name](values) if name in self._widen else values


def _as_doubles(column: pa.Array) -> pa.Array:
    if column.null_count:
        return column.cast(pa.float64())
    return of_numbers(column.to_numpy().astype(np.float64), pa.float64())


def _widening(note: Note, narrow: pa.DataType, type_: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    if narrow not in ([pa.float32()] if "float" in note else _UNSIGNED.values()):
        raise ValueError(f"a column of type {narrow} does not fit the note {note!r:.100}")
    if "dictionary" in note:
        text, content = (pa.py_buffer(base64.b64decode(part, validate=True)) for part in note["dictionary"])
        (values,) = pa.ipc.read_record_batch(content, pa.ipc.read_schema(text)).columns
        values.validate(full=True)
        if values.type != type_:
            raise ValueError(f"a dictionary must be of type {type_}, got {values.type}")
        return lambda column: values.take(column)
    if "float" in note:
        return _as_doubles
    signed, number = _SIGNED[type_.bit_width], int(note["base"])
    base, dtype = pa.scalar(number, signed), np.dtype(f"i{type_.bit_width // 8}")

    def widen(column: pa.Array) -> pa.Array:
        if column.null_count:
            numbers = column.cast(signed)
            return retyped(pc.add(numbers, base) if number else numbers, type_)
        values = integers(column).astype(dtype)
        values += dtype.type(number)
        return of_numbers(values, type_)

    return widen
