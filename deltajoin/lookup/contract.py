"""What every lookup source must do, as tests that run over any source, also over one of your own.

Subclass `LookupContract` in a file of tests, say how a source with given rows is made, and run pytest::

    class TestMyLookup(LookupContract):
        def make(self, rows, keys):
            fill_my_store(rows)
            return MyLookup(schema=rows.schema, keys=keys)

The tests ask as the join asks, through `deltajoin.lookup.batch`; a few speak to the client directly. They
need nothing but ``assert``, so that this module does not depend on a test library.
"""

from __future__ import annotations

import asyncio
import math
import pickle
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from deltajoin.errors import LookupUnavailableError
from deltajoin.lookup.batch import Lookups
from deltajoin.lookup.protocol import Answer, LookupClient, LookupSource, as_table, check_answer, key_fields
from upsert import types

_FIRST, _LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)

SCALAR_VALUES: Final[Mapping[pa.DataType, Sequence[Any]]] = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, 0, 127],
    pa.int16(): [-(2**15), 0, 2**15 - 1],
    pa.int32(): [-(2**31), 0, 2**31 - 1],
    pa.int64(): [-(2**63), -(2**53) - 1, 0, 2**53 + 1, 2**63 - 1],
    pa.float32(): [-1.5, 0.0, 16_777_216.0, math.inf, -math.inf, math.nan],
    pa.float64(): [-1.5, 0.0, 0.1, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan],
    pa.decimal128(10, 2): [Decimal("-99999999.99"), Decimal("0.00"), Decimal("0.01")],
    pa.decimal128(38, 0): [Decimal(10**38 - 1), Decimal(-(10**38) + 1), Decimal(7)],
    pa.string(): [
        "",
        " ",
        "a",
        "A",
        "a ",
        "ä",
        "a\u0308",
        "ß",
        "ss",
        "\U0001f600",
        "'; --",
        '"\\',
        "\n\t",
        "x" * 9_999,
    ],
    pa.binary(): [b"", b"\x00", b"\xff\x00\xfe", b"a"],
    pa.date32(): [_FIRST.date(), date(1969, 12, 31), _LAST.date()],
    types.TIMESTAMP: [moment.replace(tzinfo=UTC) for moment in (_FIRST, datetime(1969, 12, 31, 23), _LAST)],
    types.TIMESTAMP_NTZ: [_FIRST, datetime(2000, 2, 29, 12, 30, 0, 1), _LAST],
}
"""Scalar types and values of them that are easily changed on the way; all of one type are different keys."""

NESTED_VALUES: Final[Mapping[pa.DataType, Sequence[Any]]] = {
    pa.list_(pa.field("element", pa.int64())): [[], [1, None, 2**63 - 1]],
    pa.struct([("a", pa.int32()), ("b", pa.string())]): [{"a": 1, "b": None}, {"a": None, "b": "\U0001f600"}],
    pa.map_(pa.string(), pa.float64()): [[], [("x", 0.5), ("y", None)]],
}
"""Types that rows may have but keys may not."""

VALUES: Final[Mapping[pa.DataType, Sequence[Any]]] = {**SCALAR_VALUES, **NESTED_VALUES}

_TEN_THOUSAND: Final = 10_000


class LookupContract:
    """The tests. A subclass gives ``make``, and says with the attributes what its store cannot hold.

    Attributes:
        key_types: types that the store can be asked by.
        column_types: types that its rows can have.
        has_nul: whether texts may hold the character U+0000.
    """

    key_types: ClassVar[Sequence[pa.DataType]] = tuple(SCALAR_VALUES)
    column_types: ClassVar[Sequence[pa.DataType]] = (*SCALAR_VALUES, *NESTED_VALUES)
    has_nul: ClassVar[bool] = True

    def make(self, rows: pa.Table, keys: Sequence[str]) -> LookupSource:
        """A source that has exactly these rows, to be asked by these columns."""
        raise NotImplementedError("a subclass of LookupContract must have the method make(rows, keys)")

    def make_silent(self, rows: pa.Table, keys: Sequence[str]) -> LookupSource | None:
        """A source whose store does not answer, with ``attempts = 1``; None: there is no such thing."""
        del rows, keys
        return None

    # rows and keys

    def test_no_keys_give_no_rows(self) -> None:
        """An empty batch has an empty answer, with the schema."""
        source = self.make(_PEOPLE, ["id"])
        answer = ask(source, _PEOPLE.select(["id"]).slice(0, 0))
        assert (answer.rows.num_rows, answer.failures) == (0, {})
        assert answer.rows.schema.equals(source.schema)

    def test_one_key_gives_its_row(self) -> None:
        """The row comes with all columns, in the order of the schema."""
        assert found(self.make(_PEOPLE, ["id"]), {"id": [2]}) == pairs([(0, (2, "bob"))])

    def test_unknown_keys_give_no_rows(self) -> None:
        """A row that does not exist is no failure."""
        answer = ask(self.make(_PEOPLE, ["id"]), keys_of(_PEOPLE, {"id": [7, 8]}))
        assert (answer.rows.num_rows, answer.failures) == (0, {})
        assert answer.rows.schema.equals(_PEOPLE.schema)

    def test_each_of_equal_keys_gets_the_rows(self) -> None:
        """Rows of a batch that have the same key are answered alike."""
        expected = pairs([(0, (2, "bob")), (2, (2, "bob")), (3, (1, "ann"))])
        assert found(self.make(_PEOPLE, ["id"]), {"id": [2, 7, 2, 1]}) == expected

    def test_a_key_may_have_several_rows(self) -> None:
        """Equal rows too: what comes is a multiset."""
        rows = pa.table({"hub": ["x", "y", "x", "x"], "n": pa.array([1, 2, 3, 3], pa.int64())})
        expected = pairs([(0, ("x", 1)), (0, ("x", 3)), (0, ("x", 3)), (1, ("y", 2))])
        assert found(self.make(rows, ["hub"]), {"hub": ["x", "y"]}) == expected

    def test_a_null_in_a_key_matches_nothing(self) -> None:
        """Neither a row whose key is NULL."""
        rows = pa.table({"a": pa.array([None, 1, 1], pa.int64()), "b": ["x", None, "y"]})
        expected = pairs([(2, (1, "y"))])
        assert found(self.make(rows, ["a", "b"]), {"a": [None, 1, 1], "b": ["x", None, "y"]}) == expected

    def test_a_null_in_a_row_comes_back_as_null(self) -> None:
        """In each type."""
        for type_ in self.column_types:
            rows = pa.table({"id": pa.array([1], pa.int64()), "value": pa.nulls(1, type_)})
            assert found(self.make(rows, ["id"]), {"id": [1]}) == pairs([(0, (1, None))]), type_

    def test_values_of_every_type_come_back_as_they_are(self) -> None:
        """No value is rounded, cut, shifted to another zone or padded."""
        for type_ in self.column_types:
            values = VALUES[type_]
            ids = list(range(len(values)))
            rows = pa.table({"id": pa.array(ids, pa.int64()), "value": pa.array(values, type_)})
            expected = pairs([(at, row) for at, row in enumerate(tuples(rows))])
            assert found(self.make(rows, ["id"]), {"id": ids}) == expected, type_

    def test_keys_of_every_type_find_their_own_row_only(self) -> None:
        """Equality is Spark's: texts byte by byte, NaN equals NaN, decimals and times to the last digit."""
        for type_ in self.key_types:
            values = pa.array(SCALAR_VALUES[type_], type_)
            rows = pa.table({"key": values, "n": pa.array(range(len(values)), pa.int64())})
            expected = pairs([(at, row) for at, row in enumerate(tuples(rows))])
            assert found(self.make(rows, ["key"]), {"key": values}) == expected, type_

    def test_minus_zero_finds_zero(self) -> None:
        """They are equal to a join."""
        for type_ in (pa.float32(), pa.float64()):
            if type_ in self.key_types:
                rows = pa.table({"key": pa.array([0.0], type_)})
                assert found(self.make(rows, ["key"]), {"key": [-0.0]}) == pairs([(0, (0.0,))]), type_

    def test_a_text_with_the_character_nul_is_looked_up(self) -> None:
        """A store that cannot hold it has no such row, and nothing fails."""
        held = ["a\0b", "a"] if self.has_nul else ["ab", "a"]
        rows = pa.table({"key": held, "n": pa.array([1, 2], pa.int64())})
        expected = [(0, ("a\0b", 1)), (1, ("a", 2))] if self.has_nul else [(1, ("a", 2))]
        assert found(self.make(rows, ["key"]), {"key": ["a\0b", "a"]}) == pairs(expected)

    def test_all_columns_of_a_key_count(self) -> None:
        """A pair of values is found only where both stand in one row."""
        rows = pa.table({"a": pa.array([1, 2, 1], pa.int64()), "b": ["x", "y", "y"], "n": ["p", "q", "r"]})
        asked = {"b": ["y", "x", "y"], "a": [2, 2, 1]}
        assert found(self.make(rows, ["b", "a"]), asked) == pairs([(0, (2, "y", "q")), (2, (1, "y", "r"))])

    # batches

    def test_ten_thousand_keys_are_a_batch(self) -> None:
        """Cut into requests, each answered for itself, every row at its key's position."""
        ids = np.random.default_rng(7).permutation(2 * _TEN_THOUSAND)[:_TEN_THOUSAND]
        rows = pa.table(
            {"id": np.arange(0, 2 * _TEN_THOUSAND, 2), "name": [f"n{i}" for i in range(_TEN_THOUSAND)]}
        )
        answer = ask(self.make(rows, ["id"]), pa.table({"id": ids}))
        assert answer.failures == {}
        assert answer.positions.tolist() == np.flatnonzero(ids % 2 == 0).tolist()
        assert answer.rows["id"].to_pylist() == ids[ids % 2 == 0].tolist()
        assert answer.rows["name"].to_pylist() == [f"n{i // 2}" for i in ids if i % 2 == 0]

    def test_lookups_at_the_same_time_get_their_own_answers(self) -> None:
        """One client serves many calls that overlap."""
        rows = pa.table({"id": np.arange(50), "name": [f"n{i}" for i in range(50)]})
        source = self.make(rows, ["id"])

        async def ask_all(client: LookupClient) -> list[Answer]:
            return await asyncio.gather(*(client.lookup(pa.table({"id": [i]})) for i in range(50)))

        for number, answer in enumerate(with_client(source, ask_all)):
            check_answer(answer, source, 1)
            assert as_table(answer.rows)["name"].to_pylist() == [f"n{number}"]

    # clients

    def test_a_cancelled_lookup_does_no_harm(self) -> None:
        """The next one is answered, and gets no answer of the one before."""

        async def cancel_and_ask(client: LookupClient) -> Answer:
            task = asyncio.ensure_future(client.lookup(pa.table({"id": pa.array([1], pa.int64())})))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return await client.lookup(pa.table({"id": pa.array([2], pa.int64())}))

        answer = with_client(self.make(_PEOPLE, ["id"]), cancel_and_ask)
        assert as_table(answer.rows)["name"].to_pylist() == ["bob"]

    def test_a_client_may_be_closed_twice_and_the_source_opened_again(self) -> None:
        """A source is a value: what one client did leaves no trace in it."""
        source = self.make(_PEOPLE, ["id"])

        async def close(client: LookupClient) -> None:
            await client.close()

        with_client(source, close)
        assert found(source, {"id": [1]}) == pairs([(0, (1, "ann"))])
        assert found(source, {"id": [1]}) == pairs([(0, (1, "ann"))])

    def test_a_source_can_be_sent_to_a_task(self) -> None:
        """It is pickled, and answers there."""
        source = self.make(_PEOPLE, ["id"])
        again = pickle.loads(pickle.dumps(source))
        assert (again.schema, again.keys, again.limits) == (source.schema, source.keys, source.limits)
        assert isinstance(again, LookupSource)
        assert found(again, {"id": [2]}) == pairs([(0, (2, "bob"))])

    def test_a_store_that_does_not_answer_is_unavailable(self) -> None:
        """The engine may ask again, and a query may let the rows wait."""
        source = self.make_silent(_PEOPLE, ["id"])
        if source is not None:
            answer = ask(source, keys_of(_PEOPLE, {"id": [1, 2]}))
            assert [type(answer.failures[at]) for at in (0, 1)] == [LookupUnavailableError] * 2
            assert answer.rows.num_rows == 0


_PEOPLE: Final = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["ann", "bob", "cy"]})


def ask(source: LookupSource, keys: pa.Table) -> Answer:
    """What the engine makes of a batch of keys."""
    lookups = Lookups(source, timeout_s=60.0)
    try:
        return lookups.answer(keys)[0]
    finally:
        lookups.close()


def found(source: LookupSource, keys: Mapping[str, Any]) -> Counter[str]:
    """The rows that are found, each with the position of its key, as a multiset; nothing may fail."""
    schema = key_fields(source)
    arrays = [pa.array(keys[name], schema.field(name).type) for name in schema.names]
    answer = ask(source, pa.Table.from_arrays(arrays, schema=schema))
    assert answer.failures == {}
    return pairs(list(zip(answer.positions.tolist(), tuples(answer.rows), strict=True)))


def keys_of(rows: pa.Table, keys: Mapping[str, Any]) -> pa.Table:
    """Keys in the types that the rows have."""
    return pa.table({name: pa.array(values, rows.schema.field(name).type) for name, values in keys.items()})


def tuples(rows: pa.Table) -> list[tuple[Any, ...]]:
    """The rows as Python values."""
    return [tuple(row.values()) for row in rows.to_pylist()]


def pairs(expected: Sequence[tuple[int, tuple[Any, ...]]]) -> Counter[str]:
    """Places and rows as a multiset of texts, in which NaN equals NaN."""
    return Counter(map(repr, expected))


def with_client(source: LookupSource, use: Callable[[LookupClient], Coroutine[Any, Any, Any]]) -> Any:
    """What ``use`` returns for an open client, which is closed afterwards."""

    async def run() -> Any:
        client = source.open()
        try:
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(run())
