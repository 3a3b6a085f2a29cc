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

from deltajoin.lookup.protocol import Answer

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


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(strict=False, parse_constant=_refuse)


class PlainReplies:
    """Reads replies about rows of one schema.

    Args:
        schema: columns of the rows.

    >>> replies = PlainReplies(pa.schema({"id": pa.int64(), "name": pa.string()}))
    >>> answer = replies.answer(b'{"results": [[], [{"name": "bob", "id": 2}]]}', 2)
    >>> answer.positions.tolist(), answer.rows.to_pylist()
    ([1], [{'id': 2, 'name': 'bob'}])
    >>> replies.answer(b'{"results": [[], [{"name": "bob", "id": "2"}]]}', 2) is None
    True
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._struct = pa.struct(list(schema))
        self._is_plain = all(field.type in _KINDS for field in schema)
        self._columns = [
            (
                itemgetter(field.name),
                _KINDS.get(field.type, frozenset()) | ({type(None)} if field.nullable else set()),
                field.type == pa.float64(),
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
            # tuples: Arrow takes a new dictionary's values several times as slowly
            table = pa.Table.from_struct_array(pa.array(list(zip(*columns, strict=True)), self._struct))
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError, pa.ArrowException):
            return None  # the reader of single values says what is wrong
        if keys == 1:  # counted in microseconds, most of a small reply's time is numpy's and Arrow's calls
            return Answer(np.zeros(len(rows), np.int64), table)
        return Answer(np.repeat(np.arange(keys), [len(result) for result in results]), table)

    def _fit(self, columns: list[list[Any]], reply: bytes) -> bool:
        for values, (_, kinds, is_double) in zip(columns, self._columns, strict=True):
            if not kinds.issuperset(map(type, values)):
                return False
            # what is too large for a double is bad, and -0 is no whole number there
            if is_double and (math.inf in values or -math.inf in values or b"-0" in reply):
                return False
        return True


def _are_all(kind: type, values: list[Any]) -> bool:
    return {kind}.issuperset(map(type, values))
