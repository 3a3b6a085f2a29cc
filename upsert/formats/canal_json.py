r"""The format ``canal-json``: each message holds changes of one kind to rows of one MySQL table (pure).

It follows Flink's format of this name. ``INSERT``, ``UPDATE`` and ``DELETE`` are read, ``CREATE`` is passed
over. ``old`` has only the columns that an update changed: one that is not in it is as in ``data``, one that
is there as ``null`` was NULL. Values are those of the format ``json``, so Canal's strings become numbers.
``database.include`` and ``table.include`` must match the whole name; they are Java's regular expressions as
far as Python's mean the same (``\d``, ``\w``, ``\s`` are ASCII), others are refused.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, Positions
from upsert.formats.base import BadMessage, Decoded, Decoder, Encoder, FormatContext, Side
from upsert.formats.cdc import (
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    Around,
    ChangeEncoder,
    Envelopes,
    any_null,
    check_cdc,
    timestamps,
    with_metadata,
)
from upsert.formats.json_reader import JsonReader
from upsert.formats.json_values import (
    DECIMAL_AS_PLAIN_NUMBER,
    IGNORE_PARSE_ERRORS,
    MAP_NULL_KEY_LITERAL,
    MAP_NULL_KEY_MODE,
    TIMESTAMP_STANDARD,
    JsonDialect,
    parse,
)
from upsert.formats.text_values import shown
from upsert.metadata_columns import MetadataKey
from upsert.options import Option

METADATA: Final = (
    MetadataKey("database", pa.string()),
    MetadataKey("table", pa.string()),
    MetadataKey("sql-type", pa.map_(pa.string(), pa.int32())),
    MetadataKey("pk-names", pa.list_(pa.field("element", pa.string()))),
    MetadataKey("ingestion-timestamp", types.TIMESTAMP),
    MetadataKey("event-timestamp", types.TIMESTAMP),
)
_TYPES: Final = {key.key: key.type for key in METADATA}
_MEMBERS: Final = {
    "database": pa.field("database", pa.string()),
    "table": pa.field("table", pa.string()),
    "sql-type": pa.field("sqlType", _TYPES["sql-type"]),
    "pk-names": pa.field("pkNames", _TYPES["pk-names"]),
    "ingestion-timestamp": pa.field("ts", pa.int64()),
    "event-timestamp": pa.field("es", pa.int64()),
}
"""Metadata key -> the member of a message that it comes from."""

_CHANGES: Final = pa.array(["INSERT", "UPDATE", "DELETE", "CREATE"])
_FIRST_KINDS: Final = np.array([INSERT, UPDATE_BEFORE, DELETE])
_UPDATE, _CREATE = 1, 3


def regular_expression(text: str) -> str:
    """A pattern that means the same to Java and to Python.

    Raises:
        ValueError: Python cannot compile it, or may mean something else by it.

    >>> regular_expression("[a-z&&[^x]]")
    Traceback (most recent call last):
    ...
    ValueError: a regular expression that Python has as well (Possible set intersection at position 4)
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            re.compile(text, re.ASCII)
    except (re.error, FutureWarning) as cause:
        raise ValueError(f"a regular expression that Python has as well ({cause})") from None
    return text


class _Decoder:
    """Picks the messages of the tables asked for, reads their envelopes as rows and takes these apart."""

    def __init__(self, context: FormatContext) -> None:
        self._fields = context.fields
        self._metadata = context.metadata
        self._schema = with_metadata(context.fields, [(key, _TYPES[key]) for key in context.metadata])
        self._dialect = JsonDialect.of(context.options)
        included = ((name, context.options.get(f"{name}.include")) for name in ("database", "table"))
        self._included = {name: re.compile(text, re.ASCII) for name, text in included if text is not None}
        names = pa.schema([(name, pa.string()) for name in self._included])
        self._names = JsonReader(names, self._dialect, takes_arrays=False)
        # What is not in `old` must not be missed there.
        old = pa.struct([field.with_nullable(True) for field in context.fields])
        rows = (("data", pa.struct(list(context.fields))), ("old", old))
        envelope = [
            *(pa.field(name, pa.list_(pa.field("element", type_))) for name, type_ in rows),
            pa.field("type", pa.string()),
            *(_MEMBERS[key] for key in context.metadata),
        ]
        self._reader = JsonReader(pa.schema(envelope), self._dialect, takes_arrays=False)

    def decode(self, messages: pa.Array) -> Decoded:
        """The changes of all messages to the tables asked for."""
        unnamed: tuple[BadMessage, ...] = ()
        if self._included:
            messages, unnamed = self._of_tables(messages)
        envelopes = Envelopes(self._reader.read(messages), len(messages), unnamed)
        codes = self._kinds_of_change(envelopes)
        is_update = codes == _UPDATE
        data = _Images(envelopes, "data", codes != _CREATE)
        old = _Images(envelopes, "old", is_update)
        envelopes.refuse(
            is_update & (data.lengths != old.lengths), "fields 'data' and 'old' differ in length"
        )
        metadata = [self._metadata_of(key, envelopes) for key in self._metadata]
        is_in_old = self._is_in_old(messages, envelopes, is_update, old)
        return self._rows(envelopes, codes, data, old, is_in_old, metadata)

    def _of_tables(self, messages: pa.Array) -> tuple[pa.Array, tuple[BadMessage, ...]]:
        """The messages of the tables asked for, NULL for others; and those that name none."""
        envelopes = Envelopes(self._names.read(messages), len(messages))
        is_kept = np.ones(envelopes.rows.num_rows, dtype=np.bool_)
        for name, pattern in self._included.items():
            names = envelopes.column(name)
            envelopes.refuse(any_null(names), f"field {name!r} is missing, which {name}.include is about")
            known = names.unique().drop_null()
            matching = pa.array([text for text in known.to_pylist() if pattern.fullmatch(text)], pa.string())
            is_kept &= pc.is_in(names, value_set=matching).to_numpy(zero_copy_only=False)
        is_asked_for = np.zeros(len(messages), dtype=np.bool_)
        is_asked_for[envelopes.positions[is_kept & envelopes.is_good]] = True
        return pc.if_else(pa.array(is_asked_for), messages, pa.scalar(None, pa.binary())), envelopes.bad

    def _kinds_of_change(self, envelopes: Envelopes) -> Positions:
        names = envelopes.column("type")
        envelopes.refuse(any_null(names), "field 'type' is missing")
        found = pc.index_in(names, value_set=_CHANGES)
        envelopes.refuse(
            any_null(found),
            lambda place: (
                f"field 'type': {shown(names[place].as_py())} is none of INSERT, UPDATE, DELETE, CREATE"
            ),
        )
        codes: Positions = found.fill_null(_CREATE).cast(pa.int64()).to_numpy()
        return codes

    def _metadata_of(self, key: str, envelopes: Envelopes) -> pa.Array:
        name = _MEMBERS[key].name
        values = envelopes.column(name)
        if values.type != pa.int64():
            return values
        times, outside = timestamps(values)
        envelopes.refuse(outside, f"field {name!r} is out of range for milliseconds")
        return times

    def _is_in_old(
        self, messages: pa.Array, envelopes: Envelopes, is_update: Mask, old: _Images
    ) -> list[Mask]:
        """For each field, which images before have it: those where it is NULL need a look at the text.

        A text without ``null`` says nothing of the kind, unless a bad value has been taken for NULL.
        """
        found = [~any_null(column) for column in old.columns]
        texts = messages.take(pa.array(envelopes.positions))
        if not self._dialect.ignore_parse_errors:
            is_update = is_update & pc.match_substring(texts, "null").to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(is_update & envelopes.is_good).tolist():
            for image, names in enumerate(parse(texts[place].as_py())["old"], int(old.starts[place])):
                for field, is_there in zip(self._fields, found, strict=True):
                    if field.name in names and not is_there[image]:
                        is_there[image] = True
                        if not field.nullable:
                            envelopes.refuse_one(
                                place, f"field 'old.{field.name}': is NULL, but declared NOT NULL"
                            )
        return found

    def _rows(
        self,
        envelopes: Envelopes,
        codes: Positions,
        data: _Images,
        old: _Images,
        is_in_old: list[Mask],
        metadata: list[pa.Array],
    ) -> Decoded:
        changed = np.flatnonzero(envelopes.is_good & (codes != _CREATE))
        lengths = data.lengths[changed]
        of_image = np.repeat(changed, lengths)
        within = np.arange(len(of_image)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        image = np.repeat(np.arange(len(of_image)), np.where(codes[of_image] == _UPDATE, 2, 1))
        is_second = np.zeros(len(image), dtype=np.bool_)
        is_second[1:] = image[1:] == image[:-1]
        of_row = of_image[image]
        kinds = np.where(is_second, UPDATE_AFTER, _FIRST_KINDS[codes[of_row]])
        is_before = kinds == UPDATE_BEFORE
        places = data.starts[of_row] + within[image]
        before = old.starts[of_row[is_before]] + within[image[is_before]]
        images = []
        for now, then, is_there in zip(data.columns, old.columns, is_in_old, strict=True):
            where = places.copy()
            where[is_before] = np.where(is_there[before], before + len(now), places[is_before])
            images.append(pa.concat_arrays([now, then]).take(pa.array(where)))
        ignore = self._dialect.ignore_parse_errors
        return envelopes.changes(self._schema, images, metadata, of_row, kinds, ignore_errors=ignore)


class _Images:
    """The rows in ``data`` or ``old`` of all envelopes.

    Attributes:
        columns: the fields of all rows of all envelopes.
        starts: the place of each envelope's first row in the columns.
        lengths: how many rows each envelope has.
    """

    def __init__(self, envelopes: Envelopes, name: str, is_needed: Mask) -> None:
        lists = envelopes.column(name)
        envelopes.refuse(any_null(lists) & is_needed, f"field {name!r} is missing")
        self.columns = lists.values.flatten()
        self.starts = lists.offsets.to_numpy()[:-1].astype(np.int64)
        self.lengths = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
        if lists.values.null_count:
            holes = np.concatenate([[0], np.cumsum(any_null(lists.values))])
            has_hole = holes[self.starts + self.lengths] > holes[self.starts]
            envelopes.refuse(has_hole & is_needed, f"field {name!r} has a NULL among its rows")


_THERE: Final = Around('{"data":[', '],"type":"INSERT"}')
_GONE: Final = Around('{"data":[', '],"type":"DELETE"}')


@dataclass(frozen=True)
class CanalJsonFormat:
    """Changes as Canal writes them.

    >>> context = FormatContext(pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    >>> message = b'{"type": "UPDATE", "data": [{"id": "1", "n": "6"}], "old": [{"n": "5"}]}'
    >>> found = FORMAT.decoder(context).decode(pa.array([message]))
    >>> found.kinds.to_pylist(), found.rows.to_pylist()
    (['-U', '+U'], [{'id': 1, 'n': 5}, {'id': 1, 'n': 6}])
    """

    name: str = "canal-json"
    options: Sequence[Option] = (
        Option("database.include", regular_expression, "which databases are read, all of the name", None),
        Option("table.include", regular_expression, "which tables are read, all of the name", None),
        IGNORE_PARSE_ERRORS,
        TIMESTAMP_STANDARD,
        MAP_NULL_KEY_MODE,
        MAP_NULL_KEY_LITERAL,
        DECIMAL_AS_PLAIN_NUMBER,
    )
    is_insert_only: bool = False

    def check(self, context: FormatContext) -> None:
        """Refuse MAPs whose key is no STRING, and use as the format of a key."""
        check_cdc(self.name, context)

    def readable_metadata(self, side: Side, options: Mapping[str, Any]) -> Sequence[MetadataKey]:
        """Names, types and times of a change, which only a value has."""
        del options
        return METADATA if side is Side.VALUE else ()

    def decoder(self, context: FormatContext) -> Decoder:
        """A decoder for one task."""
        return _Decoder(context)

    def encoder(self, context: FormatContext) -> Encoder:
        """An encoder for one task."""
        return ChangeEncoder(context, _THERE, _GONE)


FORMAT: Final = CanalJsonFormat()
