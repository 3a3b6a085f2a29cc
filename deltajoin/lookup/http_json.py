"""What a batch endpoint is asked and what it answers, in JSON (pure).

The body of a request has the names of the columns that are wanted and one object for each key::

    {"columns": ["id", "name"], "keys": [{"id": 1}, {"id": 2}, {"id": 3}]}

The reply has one result for each key, in the order of the keys: its rows, or why there is none::

    {"results": [[{"id": 1, "name": "ann"}], [], {"error": "shard 3 is away", "retry": true}]}

Values are written as in our format ``json`` with ISO-8601 times: BIGINT as a number of up to 19 digits,
DECIMAL as a number or a string, BINARY as base64, ``"2020-12-30T12:13:14.123Z"`` for TIMESTAMP, the same
without ``Z`` for TIMESTAMP_NTZ, ``"NaN"`` and ``"Infinity"`` for what JSON has no number for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from deltajoin.errors import LookupFailedError, LookupUnavailableError
from deltajoin.lookup.late_rows import LateRows, as_table
from deltajoin.lookup.plain_json import PlainReplies
from deltajoin.lookup.protocol import Answer
from upsert.formats.json_dialect import JsonDialect
from upsert.formats.json_text import row_texts
from upsert.formats.json_values import check_types, parse, struct_converter, to_text
from upsert.formats.text_values import BadValueError, shown
from upsert.formats.timestamps import TimestampStandard
from upsert.store.hashing import one_array

_MAX_REASON: Final = 300
_MASKED_BYTES: Final = 1 << 16
_FEW: Final = 16
"""Keys that Python writes faster than Arrow, where its JSON of them is the same."""
_PLAIN: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class JsonExchange:
    """Requests and replies about rows of one schema.

    Args:
        schema: columns of the rows.
        missing_is_null: whether a row may leave a column out, which is NULL then; else that is an error.
        masked: makes what a reply says fit for a message.

    Raises:
        SchemaError: JSON has no form for a column's type.

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
        """What a reply says about so many keys.

        Raises:
            LookupFailedError: it is no reply of this form. What is wrong with the result of a single key only
                is a failure of that key.
        """
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
            found_rows: list[tuple[Any, ...]] = []
            try:
                found_rows = self._rows(result)
            except LookupFailedError as failure:
                failures[at] = failure
            rows += found_rows
            counts.append(len(found_rows))
        return Answer(np.repeat(np.arange(keys), counts), as_table(LateRows(self._schema, rows)), failures)

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
