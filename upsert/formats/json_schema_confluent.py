"""The format ``json-schema-confluent``: JSON whose JSON Schema a registry has, by its id before the text.

A message is a zero byte, the id in four bytes, and what the format ``json`` reads and writes; so Confluent's
serializers for JSON Schema have it. Messages are read whatever their schemas say, for JSON names its members;
an id that the registry does not have, or that is of no JSON Schema, is bad. Rows are written with the schema
of the columns, or the one given, which is registered in the subject.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.errors import SchemaError
from upsert.formats import avro_confluent
from upsert.formats import json as json_format
from upsert.formats.base import BadMessage, Decoded, Format, FormatContext
from upsert.formats.schema_registry import JSON, RegistryConfig, shared_registry
from upsert.options import Option

NAME: Final = "json-schema-confluent"
_SCHEMA: Final = "schema"
_ODD_NUMBERS: Final = {"enum": ["NaN", "Infinity", "-Infinity"]}


def derived(fields: pa.Schema) -> str:
    """The JSON Schema of what is written of these columns, as text.

    NULL is a type of its own beside the column's, as Kafka Connect has it. No other member is allowed: so a
    registry takes a schema with one more nullable column for a compatible one.

    >>> derived(pa.schema([pa.field("n", pa.int64(), nullable=False), ("d", pa.date32())]))
    '{"type":"object","title":"record","properties":{"n":{"type":"integer"},"d":{"oneOf":...
    """
    object_ = _object(list(fields))
    return json.dumps(
        {"type": "object", "title": "record", **object_}, separators=(",", ":"), ensure_ascii=False
    )


def _object(fields: list[pa.Field]) -> dict[str, Any]:
    return {
        "properties": {field.name: _value(field) for field in fields},
        "required": [field.name for field in fields if not field.nullable],
        "additionalProperties": False,
    }


def _value(field: pa.Field) -> dict[str, Any]:
    found = _plain(field.type)
    return {"oneOf": [{"type": "null"}, found]} if field.nullable else found


def _plain(type_: pa.DataType) -> dict[str, Any]:
    if pa.types.is_struct(type_):
        return {"type": "object", **_object(list(type_))}
    if pa.types.is_list(type_):
        return {"type": "array", "items": _value(type_.value_field)}
    if pa.types.is_map(type_):
        return {"type": "object", "additionalProperties": _value(type_.item_field)}
    if type_ == pa.bool_():
        return {"type": "boolean"}
    if pa.types.is_integer(type_):
        return {"type": "integer"}
    if pa.types.is_decimal(type_):
        return {"type": "number"}
    if pa.types.is_floating(type_):
        return {"oneOf": [{"type": "number"}, _ODD_NUMBERS]}
    if type_ == pa.binary():
        return {"type": "string", "contentEncoding": "base64"}
    return {"type": "string", "format": "date"} if type_ == pa.date32() else {"type": "string"}


class _Decoder:
    """Messages of any JSON Schemas of a registry to rows."""

    def __init__(self, context: FormatContext) -> None:
        self._texts = json_format.FORMAT.decoder(context)
        self._registry = shared_registry(RegistryConfig.of(context.options))
        self._subject = avro_confluent.subject_of(context)
        self._metadata = {key: avro_confluent.METADATA[key] for key in context.metadata}
        self._passes_bad_over = bool(context.options["ignore-parse-errors"])

    def decode(self, messages: pa.Array) -> Decoded:
        """The rows of all texts. Bad is what names no JSON Schema of the registry, or is no such text."""
        headers = pc.binary_slice(messages, 0, avro_confluent.HEADER_BYTES).dictionary_encode()
        numbers = headers.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        known: list[dict[str, Any] | None] = []
        bad: list[BadMessage] = []
        for number, header in enumerate(headers.dictionary.to_pylist()):
            try:
                known.append(self._of_schema(header))
            except SchemaError as cause:
                known.append(None)
                bad += [BadMessage(int(place), str(cause)) for place in np.flatnonzero(numbers == number)]
        is_read = np.array([found is not None for found in [*known, None]])[numbers]
        read = pc.if_else(pa.array(is_read), messages, pa.scalar(None, pa.binary()))
        # binary_slice without an end fails in pyarrow 26
        found = self._texts.decode(pc.binary_replace_slice(read, 0, avro_confluent.HEADER_BYTES, b""))
        positions = np.arange(len(messages)) if found.positions is None else found.positions
        rows, of_rows = found.rows, pa.array(numbers[positions])
        for key, type_ in self._metadata.items():
            values = pa.array([None if one is None else one[key] for one in known], type_)
            rows = rows.append_column(pa.field(key, type_), values.take(of_rows))
        bad = [] if self._passes_bad_over else [*bad, *found.bad]
        return Decoded.at(positions, len(messages), rows, bad)

    def _of_schema(self, header: bytes) -> dict[str, Any]:
        """The metadata that is asked for of messages which name one schema."""
        id = avro_confluent.id_in(header)
        if (text := self._registry.schema(id, JSON)) is None:
            raise SchemaError(f"schema {id} is not in the registry")
        version = None
        if "schema-version" in self._metadata and self._subject is not None:
            version = self._registry.version(id, self._subject)
        return {"schema": text, "schema-id": id, "schema-version": version}


class _Encoder:
    """Rows to texts of one JSON Schema, which has an id in a registry."""

    def __init__(self, context: FormatContext) -> None:
        self._subject = avro_confluent.subject_to_write(context, NAME)
        self._schema: str = context.options[_SCHEMA] or derived(context.fields)
        self._texts = json_format.JsonEncoder(context)
        self._registry = shared_registry(RegistryConfig.of(context.options))

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:
        del kinds
        if not rows.num_rows:
            return pa.array([], pa.binary())
        header = avro_confluent.header_of(self._registry.id_of(self._subject, self._schema, JSON))
        return pc.binary_join_element_wise(header, self._texts.encode(rows), b"")


def _check(context: FormatContext) -> None:
    json_format.check(context)
    avro_confluent.check_registry(context.options, NAME)


def _schema_text(value: str) -> str:
    try:
        is_schema = isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        is_schema = False
    if not is_schema:
        raise ValueError("a JSON Schema, which is a JSON object")
    return value


FORMAT: Final = Format(
    NAME,
    (
        *avro_confluent.REGISTRY_OPTIONS,
        Option(
            _SCHEMA,
            _schema_text,
            "the JSON Schema that is registered; rows are not compared with it; default: that of the columns",
            None,
        ),
        *json_format.OPTIONS,
    ),
    _check,
    _Decoder,
    _Encoder,
    metadata=avro_confluent.FORMAT.metadata,
    reads_some=True,
)
