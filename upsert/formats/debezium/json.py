"""The format ``debezium-json``: Debezium's changes in JSON, with or without their schema (pure)."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from upsert import options
from upsert.arrays import Positions, is_null
from upsert.errors import ConfigurationError
from upsert.formats import cdc, cdc_json
from upsert.formats.base import BadMessage, Decoded, FormatContext
from upsert.formats.cdc import Envelopes, Images
from upsert.formats.debezium import envelope, schemas, values
from upsert.formats.debezium.rows import PAYLOAD, EncodedReader
from upsert.formats.debezium.values import Encoding
from upsert.formats.json_values import SHARED_OPTIONS, JsonDialect
from upsert.options import Option


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
            fields = [pa.field(PAYLOAD, pa.struct(fields))]
        self._gives_schema = "schema" in context.metadata
        if self._gives_schema:
            fields.append(pa.field("schema", pa.string()))
        self._fields = pa.schema(fields)
        self._declared = tuple(self._modes.encoding(field.type) for field in context.fields)
        self._readers: dict[Encodings, EncodedReader] = {}

    def read(self, messages: pa.Array) -> Envelopes:
        envelopes = Envelopes(self._rows(messages), messages)
        if self._has_schema:
            payload = envelopes.columns.pop(PAYLOAD)
            envelopes.refuse(is_null(payload), partial(_missing, PAYLOAD, True, envelopes))
            names = [field.name for field in payload.type]
            envelopes.columns |= dict(zip(names, payload.flatten(), strict=True))
        is_missing = is_null(envelopes.columns["op"])
        envelopes.refuse(is_missing, partial(_missing, "op", self._has_schema, envelopes))
        envelope.refuse_truncations(envelopes)
        return envelopes

    def _rows(self, messages: pa.Array) -> Decoded:
        if not self._has_schema:
            return self._reader(self._declared).decode(messages)
        groups: dict[Encodings, list[schemas.Group]] = {}
        for group in schemas.groups_of(messages):
            groups.setdefault(self._encodings(group.schema), []).append(group)
        found, bad = [], []
        for encodings, parts in groups.items():
            where = np.concatenate([part.positions for part in parts])
            own_messages = messages.take(pa.array(where))
            if not self._gives_schema:
                own_messages = pa.concat_arrays([part.messages for part in parts])
            decoded = self._reader(encodings).decode(own_messages)
            own = np.arange(len(where)) if decoded.positions is None else decoded.positions
            found.append((where[own], decoded.rows))
            bad += [BadMessage(int(where[one.position]), one.reason) for one in decoded.bad]
        return Decoded.of_groups(found, len(messages), self._fields.empty_table(), bad)

    def _reader(self, encodings: Encodings) -> EncodedReader:
        if encodings not in self._readers:
            how = dict(zip(self._columns.names, encodings, strict=True))
            self._readers[encodings] = EncodedReader(self._fields, how, self._dialect, is_change=True)
        return self._readers[encodings]

    def _encodings(self, schema: schemas.Schema | None) -> Encodings:
        if schema is None:
            return self._declared
        return tuple(
            self._modes.of_schema(schema[field.name], own) if field.name in schema else own
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
