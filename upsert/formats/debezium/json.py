"""The format ``debezium-json``: Debezium's changes in JSON, with or without their schema (pure)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from upsert import options
from upsert.arrays import Positions, is_null, one_array
from upsert.errors import ConfigurationError
from upsert.formats import cdc, cdc_json
from upsert.formats.base import BadMessage, Decoded, FormatContext
from upsert.formats.cdc import Envelopes, Images
from upsert.formats.debezium import envelope, schemas, values
from upsert.formats.debezium.values import Encoding
from upsert.formats.json_reader import JsonReader
from upsert.formats.json_values import SHARED_OPTIONS, JsonDialect
from upsert.options import Option

_PAYLOAD: Final = "payload"
_IMAGES: Final = ("before", "after")


def _missing(name: str, has_schema: bool, envelopes: Envelopes, row: int) -> str:
    """Says that a message has no such field, what it seems to be, and what to do then."""
    message = envelopes.messages[int(envelopes.positions[row])].as_py()
    if b'"specversion"' in message:
        remedy = (
            "this is a CloudEvent, which no format reads; let the connector write with "
            "org.apache.kafka.connect.json.JsonConverter"
        )
    elif has_schema:
        remedy = "schema-include is set"
    elif b'"payload"' in message:
        remedy = "where messages carry their schema, set schema-include"
    else:
        remedy = "rows that Debezium has unwrapped are of the format json"
    return f"field {name!r} is missing; {remedy}"


Encodings = tuple[Encoding, ...]
"""One of each column."""


class _Rows:
    """Reads messages whose columns are written in one way into envelopes' fields."""

    def __init__(self, fields: pa.Schema, columns: pa.Schema, how: Encodings, dialect: JsonDialect) -> None:
        self._fields = fields
        self._dialect = dialect
        self._encodings = dict(zip(columns.names, how, strict=True))
        self._hints_at_base64 = all(not one.is_base64 for one in how)
        self._reader = JsonReader(pa.schema(map(self._wire, fields)), dialect, takes_arrays=False)

    def _wire(self, field: pa.Field) -> pa.Field:
        if field.name == _PAYLOAD:
            return field.with_type(pa.struct(map(self._wire, field.type)))
        if field.name not in _IMAGES:
            return field
        return field.with_type(
            pa.struct(
                own.with_type(values.wire_type(own.type, self._encodings[own.name])) for own in field.type
            )
        )

    def decode(self, messages: pa.Array) -> Decoded:
        """The rows of all messages; those with a value that is none of its type are bad."""
        found = self._reader.decode(messages)
        if self._hints_at_base64:
            found = replace(found, bad=tuple(map(_with_hint, found.bad)))
        if found.rows.schema == self._fields:
            return found
        bad: dict[int, str] = {}
        columns = [
            self._read(one_array(column), field, bad)
            for column, field in zip(found.rows.columns, self._fields, strict=True)
        ]
        rows = pa.Table.from_arrays(columns, schema=self._fields)
        positions = np.arange(len(messages)) if found.positions is None else found.positions
        if not bad:
            return Decoded.at(positions, len(messages), rows, found.bad)
        is_good = ~np.isin(np.arange(len(positions)), list(bad))
        more = [BadMessage(int(positions[row]), reason) for row, reason in bad.items()]
        return Decoded.at(
            positions[is_good], len(messages), rows.filter(pa.array(is_good)), [*found.bad, *more]
        )

    def _read(self, found: pa.Array, field: pa.Field, bad: dict[int, str]) -> pa.Array:
        if found.type == field.type:
            return found
        parts = zip(found.flatten(), field.type, strict=True)
        if field.name == _PAYLOAD:
            own = [self._read(part, one, bad) for part, one in parts]
        else:
            own = [self._values(part, one, f"{field.name}.{one.name}", bad) for part, one in parts]
        return pa.StructArray.from_arrays(own, fields=list(field.type), mask=found.is_null())

    def _values(self, found: pa.Array, field: pa.Field, path: str, bad: dict[int, str]) -> pa.Array:
        if found.type == field.type:
            return found
        encoding = self._encodings[field.name]
        read, is_bad = values.read(found, field.type, encoding, self._dialect.timestamps)
        if not (self._dialect.ignore_parse_errors and field.nullable):
            for row in np.flatnonzero(is_bad).tolist():
                why = values.reason(found[row].as_py(), field.type, encoding)
                bad.setdefault(row, f"field {path!r}: {why}")
        return read


def _with_hint(bad: BadMessage) -> BadMessage:
    hint = values.BASE64 if " is no DECIMAL" in bad.reason else ""
    return replace(bad, reason=bad.reason + hint)


class _DebeziumReader:
    """``debezium-json``: each message is a change, with the row before and after it, and maybe with a schema.

    ``c`` and ``r`` (snapshot) are ``+I``, ``u`` is ``-U`` and ``+U``, ``d`` is ``-D``; a message of a
    log-compacted topic that is empty gives nothing. Written are ``+I`` and ``+U`` as ``c``, ``-U`` and ``-D``
    as ``d``.

    >>> context = FormatContext(pa.schema([("id", pa.int64()), ("day", pa.date32())]))
    >>> message = b'{"before": {"id": 1, "day": 5}, "after": {"id": 1, "day": 6}, "op": "u"}'
    >>> found = FORMAT.decoder(context).decode(pa.array([message]))
    >>> found.kinds.to_pylist(), found.rows["day"].cast(pa.string()).to_pylist()
    (['-U', '+U'], ['1970-01-06', '1970-01-07'])
    """

    def __init__(self, context: FormatContext) -> None:
        self._has_schema = bool(context.options.get("schema-include", False))
        self._needs_before = context.needs_before
        self._columns = context.fields
        self._dialect = JsonDialect.of(context.options)
        self._modes = values.Modes.of(context.options)
        fields = envelope.fields_of(context)
        if self._has_schema:
            fields = [pa.field(_PAYLOAD, pa.struct(fields))]
        if "schema" in context.metadata:
            fields.append(pa.field("schema", pa.string()))
        self._fields = pa.schema(fields)
        self._declared = tuple(self._modes.encoding(field.type) for field in context.fields)
        self._readers: dict[Encodings, _Rows] = {}

    def read(self, messages: pa.Array) -> Envelopes:
        envelopes = Envelopes(self._rows(messages), messages)
        if self._has_schema:
            payload = envelopes.columns.pop(_PAYLOAD)
            envelopes.refuse(is_null(payload), partial(_missing, _PAYLOAD, True, envelopes))
            names = [field.name for field in payload.type]
            envelopes.columns |= dict(zip(names, payload.flatten(), strict=True))
        is_missing = is_null(envelopes.columns["op"])
        envelopes.refuse(is_missing, partial(_missing, "op", self._has_schema, envelopes))
        envelope.refuse_truncations(envelopes)
        return envelopes

    def _rows(self, messages: pa.Array) -> Decoded:
        if not self._has_schema:
            return self._reader(self._declared).decode(messages)
        groups: dict[Encodings, list[Positions]] = {}
        for schema, own in schemas.positions_of(messages):
            groups.setdefault(self._encodings(schema), []).append(own)
        if len(groups) == 1:
            return self._reader(next(iter(groups))).decode(messages)
        found, bad = [], []
        for encodings, parts in groups.items():
            where = np.sort(np.concatenate(parts))
            decoded = self._reader(encodings).decode(messages.take(pa.array(where)))
            own = np.arange(len(where)) if decoded.positions is None else decoded.positions
            found.append((where[own], decoded.rows))
            bad += [BadMessage(int(where[one.position]), one.reason) for one in decoded.bad]
        return Decoded.of_groups(found, len(messages), self._fields.empty_table(), bad)

    def _reader(self, encodings: Encodings) -> _Rows:
        if encodings not in self._readers:
            self._readers[encodings] = _Rows(self._fields, self._columns, encodings, self._dialect)
        return self._readers[encodings]

    def _encodings(self, schema: schemas.Schema | None) -> Encodings:
        if schema is None:
            return self._declared
        return tuple(
            self._modes.of_schema(schema[field.name]) if field.name in schema else own
            for field, own in zip(self._columns, self._declared, strict=True)
        )

    def images(self, envelopes: Envelopes, first_kinds: Positions) -> Images:
        return envelope.images(envelopes, first_kinds, needs_before=self._needs_before)

    def metadata(self, key: str, envelopes: Envelopes) -> pa.Array:
        return envelopes.columns[key] if key == "schema" else envelope.metadata(key, envelopes)


def _debezium_encoder(context: FormatContext) -> cdc_json.ChangeEncoder:
    if context.options.get("schema-include"):
        raise ConfigurationError(
            "debezium-json: option 'schema-include' must be false to write, got true; messages are written "
            "without a schema"
        )
    return cdc_json.ChangeEncoder(
        context, ('{"before":null,"after":', ',"op":"c"}'), ('{"before":', ',"after":null,"op":"d"}')
    )


FORMAT: Final = cdc.cdc_format(
    cdc.CdcTool(
        name="debezium-json",
        options=(
            Option("schema-include", options.boolean, "whether each message carries its schema", False),
            *values.OPTIONS,
            *SHARED_OPTIONS,
        ),
        metadata=envelope.METADATA,
        operation=envelope.OPERATION,
        first_kinds=envelope.KINDS,
        check=cdc_json.check,
        reader=_DebeziumReader,
        encoder=_debezium_encoder,
        splits_key_changes=True,
    )
)
