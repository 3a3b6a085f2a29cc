r"""Change records in JSON: ``canal-json``, ``maxwell-json`` and ``ogg-json`` (pure).

They follow Flink's formats of these names; values are those of the format ``json``. A message is an object of
the images of a row, the kind of change and metadata, which have other names with every tool. It is written as
the image of a row between two texts, which say whether the row was added or removed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, Positions, is_null
from upsert.formats import cdc
from upsert.formats.base import BadMessage, FormatContext
from upsert.formats.cdc import ChangedRows, Envelopes, Images
from upsert.formats.json import JsonEncoder
from upsert.formats.json_reader import JsonReader
from upsert.formats.json_values import SHARED_OPTIONS, JsonDialect, check_types, parse
from upsert.formats.metadata_columns import MetadataKey
from upsert.formats.text_values import TimestampStandard, read_column
from upsert.options import Option


class _Rows:
    """The rows in a member of all envelopes: their columns, where each envelope's start, how many it has.

    There is no ``lengths`` where the member is one row, and no list.
    """

    def __init__(self, envelopes: Envelopes, name: str, is_needed: Mask) -> None:
        found = envelopes.columns[name]
        envelopes.refuse(is_null(found) & is_needed, f"field {name!r} is missing")
        self.lengths: Positions | None = None
        if pa.types.is_struct(found.type):
            self.columns = found.flatten()
            self.starts = np.arange(len(found))
            return
        self.columns = found.values.flatten()
        self.starts = found.offsets.to_numpy()[:-1].astype(np.int64)
        self.lengths = found.value_lengths().fill_null(0).to_numpy().astype(np.int64)
        if found.values.null_count:
            holes = np.concatenate([[0], np.cumsum(is_null(found.values))])
            has_hole = holes[self.starts + self.lengths] > holes[self.starts]
            envelopes.refuse(has_hole & is_needed, f"field {name!r} has a NULL among its rows")


def _data_and_old(
    envelopes: Envelopes, first_kinds: Positions, fields: pa.Schema, dialect: JsonDialect
) -> Images:
    """Images in ``data``, and for an update in ``old``: one row each, or as many as lists have.

    ``old`` has only the columns that an update changed: one that is not in it is as in ``data``, one that is
    there as ``null`` was NULL.
    """
    is_update = first_kinds == cdc.UPDATE_BEFORE
    data = _Rows(envelopes, "data", first_kinds != cdc.NO_ROW)
    old = _Rows(envelopes, "old", is_update)
    if data.lengths is not None and old.lengths is not None:
        envelopes.refuse(
            is_update & (data.lengths != old.lengths), "fields 'data' and 'old' differ in length"
        )
    is_in_old = _is_in_old(envelopes, is_update, old, fields, dialect)

    def columns(rows: ChangedRows) -> list[pa.Array]:
        is_before = rows.kinds == cdc.UPDATE_BEFORE
        positions = data.starts[rows.envelope] + rows.within
        before = old.starts[rows.envelope[is_before]] + rows.within[is_before]
        found = []
        for now, then, is_there in zip(data.columns, old.columns, is_in_old, strict=True):
            where = positions.copy()
            where[is_before] = np.where(is_there[before], before + len(now), positions[is_before])
            found.append(pa.concat_arrays([now, then]).take(pa.array(where)))
        return found

    return Images(data.lengths, columns)


def _is_in_old(
    envelopes: Envelopes, is_update: Mask, old: _Rows, fields: pa.Schema, dialect: JsonDialect
) -> list[Mask]:
    """For each field, which images before have it: those where it is NULL need a look at the text.

    A text without ``null`` behind the name of ``old`` says nothing of the kind, unless a bad value has been
    taken for NULL.
    """
    found = [~is_null(column) for column in old.columns]
    texts = envelopes.messages.take(pa.array(envelopes.positions))
    if not dialect.ignore_parse_errors:
        has_null = pc.match_substring_regex(texts, pattern=_NULL_IN_OLD)
        is_update = is_update & has_null.to_numpy(zero_copy_only=False)
    for envelope in np.flatnonzero(is_update & envelopes.is_good).tolist():
        written = parse(texts[envelope].as_py())["old"]
        for image, names in enumerate(
            [written] if old.lengths is None else written, int(old.starts[envelope])
        ):
            for field, is_there in zip(fields, found, strict=True):
                if field.name in names and not is_there[image]:
                    is_there[image] = True
                    if not field.nullable:
                        envelopes.refuse_one(
                            envelope, f"field 'old.{field.name}': is NULL, but declared NOT NULL"
                        )
    return found


_NULL_IN_OLD: Final = r'(?s)"old".*null|\\u006'
"""All three letters of the name may be written by their numbers, which have this in common."""


def _old_of(fields: pa.Schema) -> pa.StructType:
    """The type of a row in ``old``: what is not there must not be missed."""
    return pa.struct([field.with_nullable(True) for field in fields])


def check(context: FormatContext) -> None:
    """Refuse fields whose types JSON has no form for."""
    check_types(context.fields)


class ChangeEncoder:
    """One row is one change: ``+I`` and ``+U`` add it, ``-U`` and ``-D`` remove it.

    ``added`` and ``removed`` are what is written before and after such a row.
    """

    def __init__(self, context: FormatContext, added: tuple[str, str], removed: tuple[str, str]) -> None:
        self._rows = JsonEncoder(context)
        self._added = added
        self._removed = removed

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:
        """One message a row; without kinds every row is added."""
        images = self._rows.encode(rows).cast(pa.string())
        is_added = pa.array(cdc.adds(kinds, rows.num_rows))
        before = pc.if_else(is_added, self._added[0], self._removed[0])
        after = pc.if_else(is_added, self._added[1], self._removed[1])
        return pc.binary_join_element_wise(before, images, after, "").cast(pa.binary())


class _Reader:
    """Reads envelopes of images, by default those in ``data`` and ``old``, a kind of change and metadata.

    ``members`` has for each metadata key the member of a message; keys of times end with ``-timestamp``.
    """

    operation = "type"
    members: ClassVar[Mapping[str, pa.Field]]

    def __init__(self, context: FormatContext, images: Sequence[pa.Field]) -> None:
        self._fields = context.fields
        self._dialect = JsonDialect.of(context.options)
        metadata = (self.members[key] for key in context.metadata)
        envelope = [*images, pa.field(self.operation, pa.string()), *metadata]
        self._reader = JsonReader(pa.schema(envelope), self._dialect, takes_arrays=False)

    def read(self, messages: pa.Array) -> Envelopes:
        envelopes = Envelopes(self._reader.decode(messages), messages)
        envelopes.refuse(is_null(envelopes.columns[self.operation]), f"field {self.operation!r} is missing")
        return envelopes

    def images(self, envelopes: Envelopes, first_kinds: Positions) -> Images:
        return _data_and_old(envelopes, first_kinds, self._fields, self._dialect)

    def metadata(self, key: str, envelopes: Envelopes) -> pa.Array:
        name = self.members[key].name
        values = envelopes.columns[name]
        return self._times(values, name, envelopes) if key.endswith("-timestamp") else values

    def _times(self, values: pa.Array, name: str, envelopes: Envelopes) -> pa.Array:
        return envelopes.times(values, name)


def _metadata_of(members: Mapping[str, pa.Field]) -> tuple[MetadataKey, ...]:
    return tuple(
        MetadataKey(key, types.TIMESTAMP if key.endswith("-timestamp") else member.type)
        for key, member in members.items()
    )


class _MaxwellReader(_Reader):
    """``maxwell-json``: each message is a change of one row of a MySQL table.

    ``old`` has only the columns that an update changed: one that is not in it is as in ``data``, one that is
    there as ``null`` was NULL. Rows of a bootstrap, ``bootstrap-insert``, are ``+I``, and its start and end
    give nothing; Flink knows neither. Other types, such as DDL's, are bad. Written are ``+I`` and ``+U`` as
    ``insert``, ``-U`` and ``-D`` as ``delete``. ``ts`` is in seconds, as Maxwell writes it; Flink takes it
    for milliseconds.

    >>> context = FormatContext(pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    >>> message = b'{"type": "update", "data": {"id": 1, "n": 6}, "old": {"n": 5}}'
    >>> found = MAXWELL.decoder(context).decode(pa.array([message]))
    >>> found.kinds.to_pylist(), found.rows.to_pylist()
    (['-U', '+U'], [{'id': 1, 'n': 5}, {'id': 1, 'n': 6}])
    """

    members: ClassVar = {
        "database": pa.field("database", pa.string()),
        "table": pa.field("table", pa.string()),
        "primary-key-columns": pa.field("primary_key_columns", pa.list_(pa.field("element", pa.string()))),
        "ingestion-timestamp": pa.field("ts", pa.int64()),
    }

    def __init__(self, context: FormatContext) -> None:
        rows = pa.struct(list(context.fields)), _old_of(context.fields)
        super().__init__(context, [pa.field("data", rows[0]), pa.field("old", rows[1])])

    def _times(self, values: pa.Array, name: str, envelopes: Envelopes) -> pa.Array:
        return envelopes.times(values, name, per_second=1)


class _CanalReader(_Reader):
    r"""``canal-json``: each message holds changes of one kind to rows of one MySQL table.

    ``INSERT``, ``UPDATE`` and ``DELETE`` are read, ``CREATE`` is passed over. ``old`` is as Maxwell's.
    Canal's strings become numbers. ``database.include`` and ``table.include`` must match the whole name; they
    are Java's regular expressions as far as Python's mean the same (``\d``, ``\w``, ``\s`` are ASCII), others
    are refused.

    >>> context = FormatContext(pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    >>> message = b'{"type": "UPDATE", "data": [{"id": "1", "n": "6"}], "old": [{"n": "5"}]}'
    >>> found = CANAL.decoder(context).decode(pa.array([message]))
    >>> found.kinds.to_pylist(), found.rows.to_pylist()
    (['-U', '+U'], [{'id': 1, 'n': 5}, {'id': 1, 'n': 6}])
    """

    members: ClassVar = {
        "database": pa.field("database", pa.string()),
        "table": pa.field("table", pa.string()),
        "sql-type": pa.field("sqlType", pa.map_(pa.string(), pa.int32())),
        "pk-names": pa.field("pkNames", pa.list_(pa.field("element", pa.string()))),
        "ingestion-timestamp": pa.field("ts", pa.int64()),
        "event-timestamp": pa.field("es", pa.int64()),
    }

    def __init__(self, context: FormatContext) -> None:
        rows = (("data", pa.struct(list(context.fields))), ("old", _old_of(context.fields)))
        super().__init__(
            context, [pa.field(name, pa.list_(pa.field("element", type_))) for name, type_ in rows]
        )
        included = ((name, context.options.get(f"{name}.include")) for name in ("database", "table"))
        self._included = {name: re.compile(text, re.ASCII) for name, text in included if text is not None}
        names = pa.schema([(name, pa.string()) for name in self._included])
        self._names = JsonReader(names, self._dialect, takes_arrays=False)

    def read(self, messages: pa.Array) -> Envelopes:
        if not self._included:
            return super().read(messages)
        messages, unnamed = self._of_tables(messages)
        envelopes = super().read(messages)
        envelopes.bad += unnamed
        return envelopes

    def _of_tables(self, messages: pa.Array) -> tuple[pa.Array, list[BadMessage]]:
        """The messages of the tables asked for, NULL for others; and those that name none."""
        envelopes = Envelopes(self._names.decode(messages), messages)
        is_kept = np.ones(len(envelopes.positions), dtype=np.bool_)
        for name, pattern in self._included.items():
            names = envelopes.columns[name]
            envelopes.refuse(is_null(names), f"field {name!r} is missing, which {name}.include is about")
            known = names.unique().drop_null()
            matching = pa.array([text for text in known.to_pylist() if pattern.fullmatch(text)], pa.string())
            is_kept &= pc.is_in(names, value_set=matching).to_numpy(zero_copy_only=False)
        is_asked_for = np.zeros(len(messages), dtype=np.bool_)
        is_asked_for[envelopes.positions[is_kept & envelopes.is_good]] = True
        return pc.if_else(pa.array(is_asked_for), messages, pa.scalar(None, pa.binary())), envelopes.bad


def _regular_expression(text: str) -> str:
    """A pattern that means the same to Java and to Python.

    >>> _regular_expression("[a-z&&[^x]]")
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


OGG_REMEDY: Final = (
    "Oracle needs ADD TRANDATA ... ALLCOLS, and GoldenGate GETUPDATEBEFORES, to log all of the old row"
)


class _OggReader(_Reader):
    """``ogg-json``: each message is a change that Oracle GoldenGate saw, with the row before and after it.

    ``I`` is ``+I``, ``U`` is ``-U`` and ``+U``, ``D`` is ``-D``; another type, such as ``T`` for a table that
    was truncated, is bad, for its rows are not known. Written are ``+I`` and ``+U`` as ``I``, ``-U`` and
    ``-D`` as ``D``. Times of metadata without a zone are UTC.

    >>> context = FormatContext(pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    >>> message = b'{"before": {"id": 1, "n": 5}, "after": {"id": 1, "n": 6}, "op_type": "U"}'
    >>> found = OGG.decoder(context).decode(pa.array([message]))
    >>> found.kinds.to_pylist(), found.rows.to_pylist()
    (['-U', '+U'], [{'id': 1, 'n': 5}, {'id': 1, 'n': 6}])
    """

    operation = "op_type"
    members: ClassVar = {
        "table": pa.field("table", pa.string()),
        "primary-keys": pa.field("primary_keys", pa.list_(pa.field("element", pa.string()))),
        "ingestion-timestamp": pa.field("current_ts", pa.string()),
        "event-timestamp": pa.field("op_ts", pa.string()),
    }

    def __init__(self, context: FormatContext) -> None:
        image = pa.struct(list(context.fields))
        self._needs_before = context.needs_before
        super().__init__(context, [pa.field("before", image), pa.field("after", image)])

    def images(self, envelopes: Envelopes, first_kinds: Positions) -> Images:
        needs_before = self._needs_before
        return cdc.before_and_after(envelopes, first_kinds, OGG_REMEDY, needs_before=needs_before)

    def _times(self, values: pa.Array, name: str, envelopes: Envelopes) -> pa.Array:
        # op_ts has a space where current_ts has a T
        texts = pc.replace_substring(pc.utf8_rtrim(values, characters="Z"), "T", " ", max_replacements=1)
        times, bad = read_column(texts, types.TIMESTAMP_NTZ, TimestampStandard.SQL)
        if bad is not None:
            envelopes.refuse(bad, f"field {name!r} is no TIMESTAMP")
        return times.cast(types.TIMESTAMP)


CANAL: Final = cdc.cdc_format(
    cdc.CdcTool(
        name="canal-json",
        options=(
            Option(
                "database.include",
                _regular_expression,
                "regular expression that the whole name of a database must match to be read",
                None,
            ),
            Option("table.include", _regular_expression, "the same of tables", None),
            *SHARED_OPTIONS,
        ),
        metadata=_metadata_of(_CanalReader.members),
        operation=_CanalReader.operation,
        first_kinds={
            "INSERT": cdc.INSERT,
            "UPDATE": cdc.UPDATE_BEFORE,
            "DELETE": cdc.DELETE,
            "CREATE": cdc.NO_ROW,
        },
        check=check,
        reader=_CanalReader,
        encoder=partial(
            ChangeEncoder,
            added=('{"data":[', '],"type":"INSERT"}'),
            removed=('{"data":[', '],"type":"DELETE"}'),
        ),
    )
)

MAXWELL: Final = cdc.cdc_format(
    cdc.CdcTool(
        name="maxwell-json",
        options=SHARED_OPTIONS,
        metadata=_metadata_of(_MaxwellReader.members),
        operation=_MaxwellReader.operation,
        first_kinds={
            "insert": cdc.INSERT,
            "update": cdc.UPDATE_BEFORE,
            "delete": cdc.DELETE,
            "bootstrap-insert": cdc.INSERT,
            "bootstrap-start": cdc.NO_ROW,
            "bootstrap-complete": cdc.NO_ROW,
        },
        check=check,
        reader=_MaxwellReader,
        encoder=partial(
            ChangeEncoder,
            added=('{"data":', ',"type":"insert"}'),
            removed=('{"data":', ',"type":"delete"}'),
        ),
    )
)

OGG: Final = cdc.cdc_format(
    cdc.CdcTool(
        name="ogg-json",
        options=SHARED_OPTIONS,
        metadata=_metadata_of(_OggReader.members),
        operation=_OggReader.operation,
        first_kinds={"I": cdc.INSERT, "U": cdc.UPDATE_BEFORE, "D": cdc.DELETE},
        check=check,
        reader=_OggReader,
        encoder=partial(
            ChangeEncoder,
            added=('{"before":null,"after":', ',"op_type":"I"}'),
            removed=('{"before":', ',"after":null,"op_type":"D"}'),
        ),
    )
)
