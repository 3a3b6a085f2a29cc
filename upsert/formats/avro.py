"""Format ``avro``: each message is one datum of one schema, as Flink's ``avro`` has it.

The schema follows from the columns, as Flink derives it: a record with a field for each column, a union with
null where the column is nullable. ``TIMESTAMP`` is ``timestamp-micros`` and ``TIMESTAMP_NTZ`` is
``local-timestamp-micros``, which Flink has with ``timestamp_mapping.legacy = false``. Messages carry no
schema: one they were written with otherwise must be given as option ``schema``, or they mean something else.

A message is the plain binary encoding of one record (or of one value, for a table with one column), without
a header. A message that is none is bad, but for one that the codec, fastavro, takes for a datum: it counts an
index of a union or an enum below zero from the end, and reads numbers of any length. It knows no logical
types: a time is a number, a decimal its bytes, a record a dict of ``f<i>``. What they mean is settled here,
in Arrow, for a whole column at once. Times without a zone are UTC. Messages are written by
``avro_writer``, in Arrow too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import options, types
from upsert.arrays import floor_divided, one_array
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats import avro_schema
from upsert.formats.avro_schema import (
    TEXTS_BY_NAME,
    AvroType,
    UnfitError,
    codec_schema,
    derived,
    is_zoned,
    mismatch,
    parse,
    record_mismatch,
    ticks,
    to_scale,
)
from upsert.formats.avro_writer import datums, records
from upsert.formats.base import BadMessage, Decoded, Format, FormatContext
from upsert.formats.metadata_columns import MetadataKey
from upsert.formats.text_values import TimestampStandard, example, read_column, shown
from upsert.options import Option

_INTEGERS: Final = ("int", "long")
_TEXTS: Final = ("string", "enum")
_TIMES: Final = (types.TIMESTAMP, types.TIMESTAMP_NTZ)
_MICROS: Final = 1_000_000
_WITH_OFFSET: Final = TimestampStandard.ISO_WITH_OFFSET


def to_arrow(values: Sequence[Any], avro: AvroType, field: pa.Field) -> pa.Array:
    """Values of the codec as a column, which may be of an inner field; raises `UnfitError`."""
    is_null = np.fromiter((value is None for value in values), bool, len(values))
    if not field.nullable and is_null.any():
        raise UnfitError(f"field {field.name!r} must not be null")
    try:
        return _converted(values, avro, field.type, is_null)
    except (pa.ArrowInvalid, OverflowError) as cause:
        raise UnfitError(f"field {field.name!r} does not fit {types.sql_name(field.type)}: {cause}") from None


def _converted(values: Sequence[Any], avro: AvroType, type_: pa.DataType, is_null: Any) -> pa.Array:
    if avro.inner is not None:
        return _nested(values, avro, avro.inner, type_, is_null)
    if avro.kind == "record" and type_ == TEXTS_BY_NAME:
        return _texts_by_name(values, avro)
    if avro.kind == "record":
        children = fields_to_arrow(values, avro, list(type_), is_null)
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=pa.array(is_null))
    if avro.logical == "decimal":
        return _decimals(values, avro, type_)
    if (per_second := ticks(avro)) is not None and type_ in _TIMES:
        return _times(pa.array(values, pa.int64()), per_second).cast(type_)
    if type_ in _TIMES and is_zoned(avro):
        return _zoned(pa.array(values, pa.string()), type_)
    if avro.kind in _INTEGERS:
        numbers = pa.array(values, pa.int64())
        if type_ == pa.date32():
            return numbers.cast(pa.int32()).cast(type_)
        return numbers.cast(type_, safe=not pa.types.is_floating(type_))
    if avro.kind in ("bytes", "fixed"):
        return pa.array(values, pa.binary()).cast(type_)
    return pa.array(values, pa.string() if avro.kind in _TEXTS else type_).cast(type_)


def _texts_by_name(values: Sequence[Mapping[str, Any] | None], avro: AvroType) -> pa.Array:
    """Records as maps of each field's name to its value as text, as JSON has it."""
    names = [name for name, _ in avro.fields]

    def text(value: Any) -> str | None:
        return value if value is None or isinstance(value, str) else json.dumps(value)

    found = [
        None if value is None else [(name, text(value[f"f{i}"])) for i, name in enumerate(names)]
        for value in values
    ]
    return pa.array(found, TEXTS_BY_NAME)


def fields_to_arrow(
    values: Sequence[Mapping[str, Any] | None], avro: AvroType, fields: Sequence[pa.Field], is_null: Any
) -> list[pa.Array]:
    """The columns of records; NULL where the whole record is, also in a column that is NOT NULL."""
    known = {name: (f"f{i}", inner) for i, (name, inner) in enumerate(avro.fields)}
    children = []
    for field in fields:
        if field.name not in known:
            children.append(pa.nulls(len(values), field.type))
            continue
        key, inner = known[field.name]
        if not is_null.any():
            children.append(to_arrow([value[key] for value in values], inner, field))  # type: ignore[index]
            continue
        present = to_arrow([value[key] for value in values if value is not None], inner, field)
        positions = np.cumsum(~is_null) - 1
        children.append(present.take(pa.array(positions, mask=is_null)))
    return children


def _nested(
    values: Sequence[Any], avro: AvroType, inner: AvroType, type_: pa.DataType, is_null: Any
) -> pa.Array:
    lengths = [0 if value is None else len(value) for value in values]
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    mask = pa.array(is_null)
    if avro.kind == "array":
        items = to_arrow([item for value in values if value for item in value], inner, type_.value_field)
        return pa.ListArray.from_arrays(offsets, items, type=type_, mask=mask)
    keys = pa.array([key for value in values if value for key in value], type_.key_type)
    items = to_arrow([item for value in values if value for item in value.values()], inner, type_.item_field)
    return pa.MapArray.from_arrays(offsets, keys, items, type=type_, mask=mask)


def _times(numbers: pa.Array, per_second: int) -> pa.Array:
    """Microseconds, rounded down."""
    if per_second <= _MICROS:
        return pc.multiply_checked(numbers, pa.scalar(_MICROS // per_second, pa.int64()))
    return floor_divided(numbers, per_second // _MICROS)


def _zoned(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    times, bad = read_column(texts, type_, _WITH_OFFSET)
    if bad is not None:
        text = shown(texts[int(np.argmax(bad))].as_py())
        raise pa.ArrowInvalid(f"a text must be like {example(type_, _WITH_OFFSET)}, got {text}")
    return times


def _decimals(values: Iterable[bytes | None], avro: AvroType, type_: pa.DataType) -> pa.Array:
    limit = 10**type_.precision
    unscaled = [None if value is None else int.from_bytes(value, "big", signed=True) for value in values]
    rescaled = [to_scale(number, type_.scale - avro.scale) for number in unscaled]
    if any(number is not None and abs(number) >= limit for number in rescaled):
        raise UnfitError(f"a decimal has more digits than {types.sql_name(type_)}")
    data = b"".join((number or 0).to_bytes(16, "little", signed=True) for number in rescaled)
    is_valid = pa.array([number is not None for number in rescaled], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(type_, len(rescaled), [is_valid, pa.py_buffer(data)])


def fastavro() -> Any:
    """The package ``fastavro``."""
    return avro_schema.fastavro("an avro format", "kafka")


class AvroCodec:
    """One schema and the columns that its messages hold."""

    def __init__(self, schema: str, fields: pa.Schema) -> None:
        self._root = parse(schema)
        self._is_record = self._root.kind == "record"
        self._fields = fields
        self._codec = fastavro().parse_schema(codec_schema(self._root))

    def misfit(self, *, writing: bool) -> str | None:
        """Why the schema does not serve the columns; None if it does."""
        if self._is_record:
            return record_mismatch(self._root, list(self._fields), writing=writing)
        if len(self._fields) != 1:
            return f"the schema is of one {self._root}, not of a record"
        return mismatch(self._root, self._fields[0], writing=writing)

    def decode(
        self, messages: Sequence[bytes | None], start: int = 0
    ) -> tuple[pa.Table, list[int], list[BadMessage]]:
        """The rows of some messages, the position of each row's message, and the bad ones.

        None gives no row; of each message ``start`` bytes come before its datum.
        """
        data, positions, bad = self._read(messages, start)
        tables: list[pa.Table] = []
        kept: list[int] = []

        def convert(begin: int, end: int) -> None:
            """Convert a stretch; where a value does not fit, halve the stretch until it is found."""
            try:
                tables.append(self._table(data[begin:end]))
                kept.extend(positions[begin:end])
            except UnfitError as cause:
                if end - begin == 1:
                    bad.append(BadMessage(positions[begin], str(cause)))
                    return
                middle = (begin + end) // 2
                convert(begin, middle)
                convert(middle, end)

        convert(0, len(data))
        return pa.concat_tables(tables or [self._fields.empty_table()]).combine_chunks(), kept, bad

    def _read(
        self, messages: Sequence[bytes | None], start: int
    ) -> tuple[list[Any], list[int], list[BadMessage]]:
        read, codec = fastavro().schemaless_reader, self._codec
        data: list[Any] = []
        positions: list[int] = []
        bad: list[BadMessage] = []
        for position, message in enumerate(messages):
            if message is None:
                continue
            stream = BytesIO(message)
            stream.seek(start)
            try:
                datum = read(stream, codec)
            except (EOFError, ValueError, IndexError, OverflowError) as cause:  # what fastavro raises
                bad.append(BadMessage(position, f"no datum of the schema: {type(cause).__name__}"))
                continue
            if (rest := len(message) - stream.tell()) != 0:
                bad.append(BadMessage(position, f"{rest} bytes follow the datum"))
                continue
            data.append(datum)
            positions.append(position)
        return data, positions, bad

    def _table(self, data: list[Any]) -> pa.Table:
        is_null = np.fromiter((datum is None for datum in data), bool, len(data))
        if not self._is_record:
            return pa.table([to_arrow(data, self._root, self._fields[0])], schema=self._fields)
        if is_null.any():
            raise UnfitError("the record is null")
        columns = fields_to_arrow(data, self._root, list(self._fields), is_null)
        return pa.table(columns, schema=self._fields)

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None, *, before: bytes = b"") -> pa.Array:
        """One message for each row, whatever its kind, with the same bytes before each."""
        del kinds
        columns = {name: one_array(rows.column(name)) for name in rows.column_names}
        if self._is_record:
            return records(columns, self._root, rows.num_rows, before)
        return datums(columns[self._fields[0].name], self._root, before)


@lru_cache(maxsize=1_000)
def shared_codec(schema: str, fields: pa.Schema) -> AvroCodec:
    """The codec of a schema and columns; one for all tasks of a process."""
    return AvroCodec(schema, fields)


SCHEMA_KEY: Final = "schema"
"""Metadata key, and name of the option, of a schema's JSON text."""


def _schema_text(value: str) -> str:
    try:
        parse(value)
    except SchemaError as cause:
        raise ValueError(f"an Avro schema as JSON ({cause})") from None
    return value


def _no_codec(value: str) -> str:  # noqa: ARG001
    raise ValueError(
        "left out: it compresses files, and records have no codec of their own; use "
        "'properties.compression.type'"
    )


SHARED_OPTIONS: Final = (
    Option(
        SCHEMA_KEY,
        _schema_text,
        "the schema of the messages as JSON; default: the one that follows from the columns",
        None,
    ),
    Option(
        "timestamp_mapping.legacy",
        options.boolean,
        "whether times are timestamp-millis, as Flink writes TIMESTAMP(3) by default",
        False,
    ),
    Option("encoding", options.one_of("binary"), "Avro's encoding of a record; there is one", "binary"),
)
"""Options of ``avro`` and ``avro-confluent``."""


def schema_of(context: FormatContext) -> str:
    """The schema that a table has: the one that it was given, or the one of its columns."""
    given: str | None = context.options[SCHEMA_KEY]
    if given is not None:
        return given
    return derived(context.held, legacy_times=context.options["timestamp_mapping.legacy"])


def check(context: FormatContext) -> None:
    """Refuse fields and options that no Avro format can serve, or that lack fastavro."""
    fastavro()
    if context.options[SCHEMA_KEY] is not None and context.options["timestamp_mapping.legacy"]:
        raise ConfigurationError(
            "avro: option 'timestamp_mapping.legacy' is for a derived schema, got 'schema' too; give one"
        )
    if reason := shared_codec(schema_of(context), context.fields).misfit(writing=False):
        raise SchemaError(f"avro: option 'schema' must fit the columns: {reason}")


def writing_codec(context: FormatContext) -> AvroCodec:
    """The codec of a table's own schema, with which its rows can be written."""
    codec = shared_codec(schema_of(context), context.fields)
    if reason := codec.misfit(writing=True):
        raise SchemaError(f"avro: option 'schema' must hold every row that is written: {reason}")
    return codec


class _AvroDecoder:
    """Messages of one schema to rows."""

    def __init__(self, context: FormatContext) -> None:
        self._schema = schema_of(context)
        self._codec = shared_codec(self._schema, context.fields)
        self._metadata = context.metadata

    def decode(self, messages: pa.Array) -> Decoded:
        """One row a message. Bad is what is no datum of the schema, or more than one."""
        rows, positions, bad = self._codec.decode(messages.to_pylist())
        for key in self._metadata:
            rows = rows.append_column(key, pa.repeat(self._schema, rows.num_rows))
        return Decoded.at(np.array(positions, np.int64), len(messages), rows, bad)


FORMAT: Final = Format(
    "avro",
    (*SHARED_OPTIONS, Option("codec", _no_codec, "refused: compresses Avro files only", None)),
    check,
    _AvroDecoder,
    writing_codec,
    metadata=(MetadataKey(SCHEMA_KEY, pa.string()),),
    reads_some=True,
)
"""Its metadata is the schema with which messages are read, as JSON text."""
