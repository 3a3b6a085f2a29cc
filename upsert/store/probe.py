"""The keys of one lookup: checked, brought to the table's types, without NULLs (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Positions
from upsert.errors import SchemaError
from upsert.store.hashing import Hashes, hash_columns, normalised_floats, one_array
from upsert.store.layout import Layout
from upsert.store.row_keys import order_by
from upsert.store.rows import check_is_table, is_same_but_for_width


@dataclass(frozen=True)
class Probe:
    """Keys to look up.

    Attributes:
        columns: the columns that they are values of.
        values: one array a column, in the table's types, no NULL in any.
        origin: of each key, its row in what the caller gave; those that can match nothing are gone.
    """

    columns: tuple[str, ...]
    values: tuple[pa.Array, ...]
    origin: Positions
    _hashes: dict[tuple[str, ...], Hashes] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.origin)

    def column(self, name: str) -> pa.Array:
        """The keys' values of one column."""
        return self.values[self.columns.index(name)]

    def hashes(self, columns: tuple[str, ...]) -> Hashes:
        """Hash of the keys' values of some columns; computed once."""
        if columns not in self._hashes:
            self._hashes[columns] = hash_columns([self.column(name) for name in columns], len(self))
        return self._hashes[columns]

    def take(self, positions: Positions) -> Probe:
        """Some of the keys."""
        taken = pa.array(positions)
        hashes = {columns: found[positions] for columns, found in self._hashes.items()}
        return Probe(self.columns, tuple(v.take(taken) for v in self.values), self.origin[positions], hashes)

    def distinct(self, by: tuple[str, ...]) -> Probe:
        """Each key once; ``by`` are columns whose hashes will be needed anyway."""
        ordered = np.sort(self.hashes(by))
        if (ordered[1:] != ordered[:-1]).all():
            return self
        order = order_by(self.values)
        return self if order.is_first.all() else self.take(order.firsts)


def prepare(layout: Layout, columns: Sequence[str], keys: pa.Table) -> Probe:
    """The keys of a lookup by ``columns``.

    Integers of another width are cast; keys that do not fit the column's type, or have a NULL, match nothing.

    Args:
        layout: the table's layout.
        columns: the columns to look up by, at least one.
        keys: has these columns, and perhaps others.

    Raises:
        SchemaError: a column is unknown, missing in ``keys``, named twice, or of another type.
    """
    check_is_table(keys, "lookup: keys")
    names = tuple(columns)
    if not names or len(set(names)) < len(names):
        raise SchemaError(f"lookup: columns must be at least one and each once, got {list(names)!r}")
    arrays = [_values(layout, name, keys) for name in names]
    usable = pc.is_valid(arrays[0])
    for array in arrays[1:]:
        usable = pc.and_(usable, pc.is_valid(array))
    origin = np.flatnonzero(usable.to_numpy(zero_copy_only=False))
    if len(origin) < keys.num_rows:
        arrays = [array.take(pa.array(origin)) for array in arrays]
    return Probe(names, tuple(_normalised(array) for array in arrays), origin)


def _values(layout: Layout, name: str, keys: pa.Table) -> pa.Array:
    stored = layout.stored
    if name not in stored.names:
        raise SchemaError(f"lookup: unknown column {name!r}; columns are {', '.join(layout.schema.names)}")
    type_ = stored.field(name).type
    if name not in keys.column_names:
        raise SchemaError(f"lookup: keys must have column {name!r}, got {', '.join(keys.column_names)}")
    given = one_array(keys.column(name))
    if not is_same_but_for_width(given.type, type_) and not (_is_float(given.type) and _is_float(type_)):
        raise SchemaError(
            f"lookup: keys of column {name!r} must be {types.sql_name(type_)}, got Arrow type {given.type}; "
            "cast them"
        )
    return given if given.type == type_ else _cast(given, type_)


def _is_float(type_: pa.DataType) -> bool:
    return bool(pa.types.is_floating(type_))


def _cast(given: pa.Array, type_: pa.DataType) -> pa.Array:
    """The values in another type of their kind; NULL where a value has no equal there."""
    if pa.types.is_dictionary(given.type):
        return _cast(given.dictionary_decode(), type_)
    if not _is_float(type_):
        try:
            return given.cast(type_)
        except pa.ArrowInvalid:
            pass  # some value does not fit: find out which
    loose = _loose_cast(given, type_)
    same = pc.equal(loose.cast(given.type, safe=False), given)
    if _is_float(type_):
        same = pc.or_(same, pc.is_nan(given))
    return pc.if_else(pc.fill_null(same, False), loose, pa.scalar(None, type_))


def _loose_cast(given: pa.Array, type_: pa.DataType) -> pa.Array:
    if not pa.types.is_decimal(type_):
        return given.cast(type_, safe=False)
    limit = 10 ** (type_.precision - type_.scale)
    fits = pc.less(pc.abs(given.cast(pa.decimal256(76, 38))), pa.scalar(limit).cast(pa.decimal256(76, 38)))
    return pc.if_else(fits, given, pa.scalar(None, given.type)).cast(type_, safe=False)


def _normalised(array: pa.Array) -> pa.Array:
    return pa.array(normalised_floats(array)) if _is_float(array.type) else array
