"""The normalizer told again with a dict, one record after the other, and random logs to try it on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.upsert.store.samples import KEY_VALUES, canonical
from upsert.changelog.normalizer import Rules
from upsert.rowkind import ROW_KIND_COLUMN

Row = dict[str, Any]


def same(one: Row, other: Row, columns: Sequence[str]) -> bool:
    """Whether a record repeats its image; as text NaN equals NaN and -0.0 is not 0.0, also in a struct."""
    return all(repr(plain(one[name])) == repr(plain(other[name])) for name in columns)


@dataclass
class Model:
    """Images by key; with `order_by` also the order of each key's newest record."""

    rules: Rules
    images: dict[Any, Row] = field(default_factory=dict)
    orders: dict[Any, Any] = field(default_factory=dict)

    def batch(self, records: Sequence[Row]) -> list[Row]:
        """The changelog of a batch; with `order_by` it is seen in that order."""
        return [change for record in sorted(records, key=self._order) for change in self._record(record)]

    def _order(self, record: Row) -> Any:
        return tuple(record[name] for name in self.rules.order_by)

    def _record(self, record: Row) -> list[Row]:
        key = tuple(canonical(record[name]) for name in self.rules.key)
        if self.rules.order_by:
            if key in self.orders and self._order(record) < self.orders[key]:
                return []
            self.orders[key] = self._order(record)
        row = {name: value for name, value in record.items() if name != ROW_KIND_COLUMN}
        image = self._image(key, row)
        if record[ROW_KIND_COLUMN] in ("-U", "-D"):
            self.images.pop(key, None)
            return [] if image is None else [image | {ROW_KIND_COLUMN: "-D"}]
        expires = self.rules.expiry is not None
        if image is not None and not expires and same(image, row, self.rules.compare):
            return []
        self.images[key] = row
        if image is None:
            return [row | {ROW_KIND_COLUMN: "+I"}]
        return [image | {ROW_KIND_COLUMN: "-U"}, row | {ROW_KIND_COLUMN: "+U"}]

    def _image(self, key: Any, row: Row) -> Row | None:
        image, expiry = self.images.get(key), self.rules.expiry
        if image is None or expiry is None:
            return image
        then, now = image[expiry.time], row[expiry.time]
        is_young = then is None or now is None or now - then <= expiry.ttl_ms
        return image if is_young else None


NESTED: dict[pa.DataType, Sequence[Any]] = {
    pa.list_(pa.int64()): [None, [], [1], [1, None], [None]],
    pa.map_(pa.string(), pa.int64()): [None, [], [("a", 1), ("b", None)], [("b", None), ("a", 1)]],
    pa.struct({"a": pa.float64(), "b": pa.string()}): [
        None,
        {"a": None, "b": None},
        {"a": -0.0, "b": "\0"},
        {"a": 0.0, "b": "\0"},
        {"a": float("nan"), "b": "😀"},
    ],
}


@dataclass(frozen=True)
class Log:
    """Batches of records with columns `k0`, `k1`, …, `v0`, …, `at`, `_row_kind`."""

    schema: pa.Schema
    keys: tuple[str, ...]
    values: tuple[str, ...]
    batches: list[list[Row]]

    def table(self, batch: Sequence[Row]) -> pa.Table:
        return pa.Table.from_pylist(list(batch), schema=self.schema)


@st.composite
def logs(draw: Callable[..., Any], times: st.SearchStrategy[int | None] | None = None) -> Log:
    """Few keys of any types, so that records meet; half of the values are a few awkward ones."""
    scalar = st.sampled_from(list(KEY_VALUES))
    key_types = draw(st.lists(scalar, min_size=1, max_size=2))
    value_types = draw(st.lists(st.one_of(scalar, st.sampled_from(list(NESTED))), min_size=1, max_size=3))
    keys = {f"k{number}": type_ for number, type_ in enumerate(key_types)}
    values = {f"v{number}": type_ for number, type_ in enumerate(value_types)}
    choices = {name: st.sampled_from(KEY_VALUES[type_]) for name, type_ in keys.items()}
    for name, type_ in values.items():
        known = NESTED[type_] if type_ in NESTED else [None, *KEY_VALUES[type_]]
        choices[name] = st.sampled_from(list(known))
    counter = st.integers(0, 20) if times is None else times
    kinds = st.sampled_from(["+I", "+U", "+U", "-U", "-D"])
    record = st.fixed_dictionaries({**choices, "at": counter, ROW_KIND_COLUMN: kinds})
    batches = draw(st.lists(st.lists(record, max_size=12), max_size=4))
    schema = pa.schema({**keys, **values, "at": pa.int64(), ROW_KIND_COLUMN: pa.string()})
    return Log(schema, tuple(keys), tuple(values), batches)


def by_key(rows: Sequence[Row], key: Sequence[str]) -> dict[Any, list[Any]]:
    """Of each key its rows in order, as values that can be compared."""
    found: dict[Any, list[Any]] = {}
    for row in rows:
        own = tuple(canonical(row[name]) for name in key)
        found.setdefault(own, []).append(tuple(canonical(plain(value)) for value in row.values()))
    return found


def plain(value: Any) -> Any:
    """Entries of a map in one order, so that equal maps are equal lists."""
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return sorted(value, key=repr)
    return value
