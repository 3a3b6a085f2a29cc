"""Replies whose values are plain, read without a step of Python for each value (pure).

The reader of `deltajoin.lookup.http_json` goes through a reply value by value. Most replies have nothing that
needs that: whole numbers, doubles, texts and booleans in columns of just these types, a row for what was
asked, no errors. Such a reply is taken as Python's own decoder reads it; any doubt leaves it to the other
one, which gives the same for these, and the reason for those that are bad.
"""

from __future__ import annotations

import json
import math
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from deltajoin.lookup.late_rows import LateRows, as_table
from deltajoin.lookup.protocol import Answer
from upsert.formats.text_values import integer_range

_KINDS: Final[dict[pa.DataType, frozenset[type]]] = {
    pa.int8(): frozenset({int}),
    pa.int16(): frozenset({int}),
    pa.int32(): frozenset({int}),
    pa.int64(): frozenset({int}),
    pa.float64(): frozenset({float, int}),
    pa.string(): frozenset({str}),
    pa.bool_(): frozenset({bool}),
}
"""What Python must have read for a value of a type; ``bool`` is no ``int`` here."""
_EXACT: Final = 1 << 53
_FEW: Final = 16
"""Rows that are left to be made into columns together with those of other replies."""


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(strict=False, parse_constant=_refuse)


class PlainReplies:
    """Reads replies about rows of one schema.

    Args:
        schema: columns of the rows.

    >>> replies = PlainReplies(pa.schema({"id": pa.int64(), "name": pa.string()}))
    >>> answer = replies.answer(b'{"results": [[], [{"name": "bob", "id": 2}]]}', 2)
    >>> answer.positions.tolist(), answer.rows.rows
    ([1], [(2, 'bob')])
    >>> replies.answer(b'{"results": [[], [{"name": "bob", "id": "2"}]]}', 2) is None
    True
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._is_plain = all(field.type in _KINDS for field in schema)
        self._columns = [
            (
                itemgetter(field.name),
                _KINDS.get(field.type, frozenset()) | ({type(None)} if field.nullable else set()),
                field.type,
            )
            for field in schema
        ]

    def answer(self, reply: bytes, keys: int) -> Answer | None:
        """What a reply says about so many keys; None if it is not plain, or nothing that could be read."""
        if not self._is_plain:
            return None
        try:
            results = _DECODER.decode(reply.decode())["results"]
            if type(results) is not list or len(results) != keys or not _are_all(list, results):
                return None
            rows = list(chain.from_iterable(results))
            columns = [list(map(value, rows)) for value, _, _ in self._columns]
            if not _are_all(dict, rows) or not self._fit(columns, reply):
                return None
        except (ValueError, LookupError, TypeError, RecursionError):
            return None  # the reader of single values says what is wrong
        found = LateRows(self._schema, list(zip(*columns, strict=True)))
        positions = (
            np.zeros(len(rows), np.int64)
            if keys == 1
            else np.repeat(np.arange(keys), list(map(len, results)))
        )
        return Answer(positions, found if len(rows) <= _FEW else as_table(found))

    def _fit(self, columns: list[list[Any]], reply: bytes) -> bool:
        for values, (_, kinds, type_) in zip(columns, self._columns, strict=True):
            found = set(map(type, values))
            if not found <= kinds:
                return False
            if type(None) in found:
                values = [value for value in values if value is not None]
            if values and not _is_in_range(values, type_, found, reply):
                return False
        return True


def _is_in_range(values: list[Any], type_: pa.DataType, found: set[type], reply: bytes) -> bool:
    """Whether values of the right kind are values of a type."""
    if type_ == pa.string():
        "".join(values).encode()  # half of a surrogate pair raises a ValueError
        return True
    if type_ == pa.bool_():
        return True
    if type_ != pa.float64():
        low, high = integer_range(type_)
        return bool(low <= min(values) and max(values) <= high)
    if int in found and (b"-0" in reply or max(map(abs, values)) > _EXACT):
        return False  # -0 is no whole number, and Arrow does not round
    return not (math.inf in values or -math.inf in values)


def _are_all(kind: type, values: list[Any]) -> bool:
    return {kind}.issuperset(map(type, values))
