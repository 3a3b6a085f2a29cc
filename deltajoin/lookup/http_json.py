"""What a batch endpoint is asked and what it answers, in JSON (pure).

`JsonExchange` goes through a reply value by value. Most replies have nothing that needs that: whole numbers,
doubles, texts and booleans in columns of just these types, a row for what was asked, no errors. Such a reply
`PlainReplies` takes as Python's own decoder reads it; any doubt leaves it to the other one, which gives the
same for these, and the reason for those that are bad.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from deltajoin.errors import LookupFailedError, LookupUnavailableError
from deltajoin.lookup.protocol import Answer, ReplyRows, as_table
from upsert.arrays import one_array
from upsert.formats.json import row_texts
from upsert.formats.json_values import JsonDialect, check_types, parse, struct_converter, to_text
from upsert.formats.text_values import BadValueError, TimestampStandard, integer_range, shown

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

_FEW_ROWS: Final = 16
"""Rows that are left to be made into columns together with those of other replies."""


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(strict=False, parse_constant=_refuse)


class PlainReplies:
    """Reads replies about rows of one schema.

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
        found = ReplyRows(self._schema, list(zip(*columns, strict=True)))
        positions = (
            np.zeros(len(rows), np.int64)
            if keys == 1
            else np.repeat(np.arange(keys), list(map(len, results)))
        )
        return Answer(positions, found if len(rows) <= _FEW_ROWS else as_table(found))

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


_MAX_REASON: Final = 300
_MASKED_BYTES: Final = 1 << 16
_FEW: Final = 16
"""Keys that Python writes faster than Arrow, where its JSON of them is the same."""
_PLAIN: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class JsonExchange:
    """Requests and replies about rows of one schema, whose types must have a form in JSON.

    A column that a row leaves out is an error, unless ``missing_is_null``. ``masked`` makes what a reply says
    fit for a message.

    >>> exchange = JsonExchange(pa.schema({"id": pa.int64(), "name": pa.string()}))
    >>> exchange.request(pa.table({"id": [1, 2]}))
    b'{"columns":["id","name"],"keys":[{"id":1},{"id":2}]}'
    >>> answer = exchange.answer(b'{"results": [[], [{"name": "bob", "id": 2}]]}', 2)
    >>> answer.positions.tolist(), as_table(answer.rows).to_pylist()
    ([1], [{'id': 2, 'name': 'bob'}])
    """

    def __init__(
        self, schema: pa.Schema, *, missing_is_null: bool = False, masked: Callable[[str], str] = str
    ) -> None:
        check_types(schema)
        self._masked = masked
        self._schema = schema
        dialect = JsonDialect(
            timestamps=TimestampStandard.ISO,
            fail_on_missing_field=not missing_is_null,
            decimal_as_plain_number=True,
        )
        self._dialect = dialect
        self._convert = struct_converter(list(schema), dialect)
        self._plain_replies = PlainReplies(schema)
        self._plain_keys = {f.name for f in schema if f.type == pa.string() or pa.types.is_integer(f.type)}
        self._head = f'{{"columns":{to_text(schema.names)},"keys":['.encode()

    def request(self, keys: pa.Table) -> bytes:
        """The body that asks for some keys."""
        if keys.num_rows <= _FEW and self._plain_keys.issuperset(keys.column_names):
            (batch,) = keys.combine_chunks().to_batches()
            return b"%b%b}" % (self._head, _PLAIN.encode(batch.to_pylist())[1:].encode())
        columns = [one_array(column) for column in keys.columns]
        texts = row_texts(columns, list(keys.schema), self._dialect, keys.num_rows)
        return b"%b%b]}" % (self._head, ",".join(texts.to_pylist()).encode())

    def answer(self, reply: bytes, keys: int) -> Answer:
        """What a reply says about so many keys."""
        return self._plain_replies.answer(reply, keys) or self._answer(reply, keys)

    def _answer(self, reply: bytes, keys: int) -> Answer:
        """The same, value by value."""
        try:
            value = parse(reply)
        except BadValueError as cause:
            raise LookupFailedError(f"the reply must be JSON, it is {cause.reason}") from None
        results = value.get("results") if isinstance(value, dict) else None
        if not isinstance(results, list) or len(results) != keys:
            # masked before it is cut: the beginning of a secret would not be known as one
            text = self._masked(reply[:_MASKED_BYTES].decode(errors="surrogateescape"))
            said = shown(text.encode(errors="surrogateescape")[:80])
            found = f"{len(results)} results" if isinstance(results, list) else said
            raise LookupFailedError(
                f"the reply must be an object whose 'results' are {keys}, one for each key, got {found}"
            )
        rows: list[tuple[Any, ...]] = []
        counts: list[int] = []
        failures: dict[int, LookupFailedError] = {}
        for at, result in enumerate(results):
            try:
                found_rows = self._rows(result)
            except LookupFailedError as failure:
                failures[at], found_rows = failure, []
            rows += found_rows
            counts.append(len(found_rows))
        return Answer(np.repeat(np.arange(keys), counts), as_table(ReplyRows(self._schema, rows)), failures)

    def _rows(self, result: Any) -> list[tuple[Any, ...]]:
        if isinstance(result, list):
            try:
                return [self._convert(row) for row in result]
            except BadValueError as cause:
                raise LookupFailedError(
                    f"a row of the reply must fit the schema: {self._masked(cause.reason)}"
                ) from None
        if isinstance(result, dict) and "error" in result:
            reason = f"the endpoint reports for the key: {self._quoted(result['error'])[:_MAX_REASON]}"
            if result.get("retry") is True:
                raise LookupUnavailableError(reason)
            raise LookupFailedError(reason)
        raise LookupFailedError(
            f"a result must be an array of rows, or an object with 'error', got {self._quoted(result)[:80]}"
        )

    def _quoted(self, value: Any) -> str:
        """A value of a reply for a message; half a surrogate pair would keep it from being written."""
        return self._masked(to_text(value).encode(errors="backslashreplace").decode())
