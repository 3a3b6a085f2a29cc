"""The format ``debezium-avro-confluent``: Debezium's changes in Avro, whose schemas a registry has.

It follows Flink's format of this name: what ``debezium-json`` is to ``json``, this is to ``avro-confluent``.
Messages are read with the schemas that Debezium wrote them with; fields that are no column and no metadata
asked for are passed over. Rows are written with a schema of ``before``, ``after`` and ``op``, derived from
the columns as Flink derives it, or given: ``+I`` and ``+U`` as ``c``, ``-U`` and ``-D`` as ``d``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Positions, is_null, one_array
from upsert.formats import avro, avro_confluent, cdc
from upsert.formats.base import FormatContext
from upsert.formats.debezium import envelope

NAME: Final = "debezium-avro-confluent"


class _DebeziumAvroReader:
    def __init__(self, context: FormatContext) -> None:
        of_schema = tuple(key for key in context.metadata if key in avro_confluent.METADATA)
        self._needs_before = context.needs_before
        fields = pa.schema(envelope.fields_of(context))
        self._messages = avro_confluent.AvroConfluentDecoder(
            replace(context, fields=fields, metadata=of_schema)
        )

    def read(self, messages: pa.Array) -> cdc.Envelopes:
        """The envelopes of all messages; an empty one holds no change, like none."""
        is_empty = pc.equal(pc.binary_length(messages), 0)
        messages = pc.if_else(is_empty, pa.scalar(None, pa.binary()), messages)
        envelopes = cdc.Envelopes(self._messages.decode(messages), messages)
        envelopes.refuse(
            is_null(envelopes.columns["op"]),
            "field 'op' is missing; rows that Debezium has unwrapped are of the format avro-confluent",
        )
        envelope.refuse_truncations(envelopes)
        return envelopes

    def images(self, envelopes: cdc.Envelopes, first_kinds: Positions) -> cdc.Images:
        return envelope.images(envelopes, first_kinds, needs_before=self._needs_before)

    def metadata(self, key: str, envelopes: cdc.Envelopes) -> pa.Array:
        if key in avro_confluent.METADATA:
            return envelopes.columns[key]
        return envelope.metadata(key, envelopes)


class _DebeziumAvroEncoder:
    """One row is one change."""

    def __init__(self, context: FormatContext) -> None:
        self._image = pa.struct(list(context.fields))
        self._fields = _written(context.fields, op_is_nullable=False)
        schema = avro.schema_of(_with_schema(context))
        given = {**context.options, avro.SCHEMA_KEY: schema}
        self._messages = avro_confluent.AvroConfluentEncoder(
            replace(context, fields=self._fields, options=given), of=NAME
        )

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:
        is_added = pa.array(cdc.adds(kinds, rows.num_rows))
        columns = [one_array(rows.column(field.name)) for field in self._image]
        images = pa.StructArray.from_arrays(columns, fields=list(self._image))
        none = pa.scalar(None, self._image)
        changes = [
            pc.if_else(is_added, none, images),
            pc.if_else(is_added, images, none),
            pc.if_else(is_added, "c", "d"),
        ]
        return self._messages.encode(pa.Table.from_arrays(changes, schema=self._fields))


def _written(fields: pa.Schema, *, op_is_nullable: bool) -> pa.Schema:
    image = pa.struct(list(fields))
    op = pa.field("op", pa.string(), nullable=op_is_nullable)
    return pa.schema([pa.field("before", image), pa.field("after", image), op])


def _with_schema(context: FormatContext) -> FormatContext:
    """The context of an envelope: Flink's schema says that ``op`` may be null, though it never is."""
    return replace(context, fields=_written(context.fields, op_is_nullable=True), metadata=())


def _check(context: FormatContext) -> None:
    avro_confluent.check(_with_schema(context), of=NAME)


TOOL: Final = cdc.CdcTool(
    name=NAME,
    options=avro_confluent.OPTIONS,
    metadata=(
        *envelope.METADATA,
        *(key for key in avro_confluent.FORMAT.metadata if key.key != avro.SCHEMA_KEY),
    ),
    operation=envelope.OPERATION,
    first_kinds=envelope.KINDS,
    check=_check,
    reader=_DebeziumAvroReader,
    encoder=_DebeziumAvroEncoder,
    splits_key_changes=True,
)

FORMAT: Final = cdc.cdc_format(TOOL)
