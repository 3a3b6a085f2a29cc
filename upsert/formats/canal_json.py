r"""The format ``canal-json``: each message holds changes of one kind to rows of one MySQL table (pure).

It follows Flink's format of this name. ``INSERT``, ``UPDATE`` and ``DELETE`` are read, ``CREATE`` is passed
over. ``old`` has only the columns that an update changed: one that is not in it is as in ``data``, one that
is there as ``null`` was NULL. Values are those of the format ``json``, so Canal's strings become numbers.
``database.include`` and ``table.include`` must match the whole name; they are Java's regular expressions as
far as Python's mean the same (``\d``, ``\w``, ``\s`` are ASCII), others are refused.

>>> context = FormatContext(pa.schema([("id", pa.int64()), ("n", pa.int64())]))
>>> message = b'{"type": "UPDATE", "data": [{"id": "1", "n": "6"}], "old": [{"n": "5"}]}'
>>> found = FORMAT.decoder(context).decode(pa.array([message]))
>>> found.kinds.to_pylist(), found.rows.to_pylist()
(['-U', '+U'], [{'id': 1, 'n': 5}, {'id': 1, 'n': 6}])
"""

from __future__ import annotations

import re
import warnings
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Positions, is_null
from upsert.formats import cdc
from upsert.formats.base import BadMessage, FormatContext
from upsert.formats.json_reader import JsonReader
from upsert.formats.json_values import SHARED_OPTIONS, JsonDialect
from upsert.metadata_columns import MetadataKey
from upsert.options import Option

_MEMBERS: Final = {
    "database": pa.field("database", pa.string()),
    "table": pa.field("table", pa.string()),
    "sql-type": pa.field("sqlType", pa.map_(pa.string(), pa.int32())),
    "pk-names": pa.field("pkNames", pa.list_(pa.field("element", pa.string()))),
    "ingestion-timestamp": pa.field("ts", pa.int64()),
    "event-timestamp": pa.field("es", pa.int64()),
}
"""Metadata key -> the member of a message that it comes from; a number is a time."""


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


class _CanalReader:
    def __init__(self, context: FormatContext) -> None:
        self._fields = context.fields
        self._dialect = dialect = JsonDialect.of(context.options)
        included = ((name, context.options.get(f"{name}.include")) for name in ("database", "table"))
        self._included = {name: re.compile(text, re.ASCII) for name, text in included if text is not None}
        names = pa.schema([(name, pa.string()) for name in self._included])
        self._names = JsonReader(names, dialect, takes_arrays=False)
        rows = (("data", pa.struct(list(context.fields))), ("old", cdc.old_of(context.fields)))
        envelope = [
            *(pa.field(name, pa.list_(pa.field("element", type_))) for name, type_ in rows),
            pa.field("type", pa.string()),
            *(_MEMBERS[key] for key in context.metadata),
        ]
        self._reader = JsonReader(pa.schema(envelope), dialect, takes_arrays=False)

    def read(self, messages: pa.Array) -> cdc.Envelopes:
        unnamed: list[BadMessage] = []
        if self._included:
            messages, unnamed = self._of_tables(messages)
        envelopes = cdc.Envelopes(self._reader.decode(messages), messages, unnamed)
        envelopes.refuse(is_null(envelopes.columns["type"]), "field 'type' is missing")
        return envelopes

    def _of_tables(self, messages: pa.Array) -> tuple[pa.Array, list[BadMessage]]:
        """The messages of the tables asked for, NULL for others; and those that name none."""
        envelopes = cdc.Envelopes(self._names.decode(messages), messages)
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

    def images(self, envelopes: cdc.Envelopes, first_kinds: Positions) -> cdc.Images:
        return cdc.data_and_old(envelopes, first_kinds, self._fields, self._dialect)

    def metadata(self, key: str, envelopes: cdc.Envelopes) -> pa.Array:
        name = _MEMBERS[key].name
        values = envelopes.columns[name]
        return envelopes.times(values, name) if values.type == pa.int64() else values


TOOL: Final = cdc.CdcTool(
    name="canal-json",
    options=(
        Option("database.include", _regular_expression, "which databases are read, all of the name", None),
        Option("table.include", _regular_expression, "which tables are read, all of the name", None),
        *SHARED_OPTIONS,
    ),
    metadata=tuple(
        MetadataKey(key, types.TIMESTAMP if member.type == pa.int64() else member.type)
        for key, member in _MEMBERS.items()
    ),
    operation="type",
    first_kinds={
        "INSERT": cdc.INSERT,
        "UPDATE": cdc.UPDATE_BEFORE,
        "DELETE": cdc.DELETE,
        "CREATE": cdc.NO_ROW,
    },
    check=cdc.check_json,
    reader=_CanalReader,
    encoder=partial(
        cdc.JsonChangeEncoder,
        added=('{"data":[', '],"type":"INSERT"}'),
        removed=('{"data":[', '],"type":"DELETE"}'),
    ),
)

FORMAT: Final = cdc.cdc_format(TOOL)
