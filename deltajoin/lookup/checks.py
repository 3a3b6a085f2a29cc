"""What a source and its answers must be before a join believes them (pure)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltajoin.errors import LookupFailedError
from deltajoin.lookup.keys import comparable
from deltajoin.lookup.protocol import Answer, LookupSource
from upsert import types
from upsert.arrays import Mask, Positions, is_null, one_array
from upsert.errors import ConfigurationError, SchemaError


def name_of(source: LookupSource) -> str:
    """What messages call a source."""
    return type(source).__name__


def check_source(source: LookupSource) -> None:
    """Refuse a source whose schema and keys do not fit together."""
    of = name_of(source)
    check_columns(source.schema, source.keys, of)


def check_columns(schema: pa.Schema, keys: Sequence[str], of: str) -> None:
    """As `check_source`, for a source that is being made.

    Raises:
        ConfigurationError: there is no key, or one is named twice.
        SchemaError: a key is no column or not scalar, or a column has a type that Spark has not.

    >>> check_columns(pa.schema({"id": pa.int64()}), ["name"], "MemoryLookup")
    Traceback (most recent call last):
    ...
    upsert.errors.SchemaError: MemoryLookup: key 'name' must be one of its columns, which are id
    """
    if isinstance(keys, str) or not keys or len(set(keys)) < len(keys):
        raise ConfigurationError(f"{of}: keys must be one or more distinct column names, got {keys!r}")
    if len(set(schema.names)) < len(schema.names):
        raise SchemaError(f"{of}: columns must have distinct names, got {', '.join(schema.names)}")
    for field in schema:
        canonical = types.canonical(field.type, f"{of}: column {field.name!r}")
        if canonical != field.type:
            raise SchemaError(
                f"{of}: column {field.name!r} must have an Arrow type that Spark has, got {field.type}; "
                f"declare {canonical}"
            )
    for key in keys:
        if key not in schema.names:
            raise SchemaError(
                f"{of}: key {key!r} must be one of its columns, which are {', '.join(schema.names)}"
            )
        if not types.is_scalar(schema.field(key).type):
            raise SchemaError(
                f"{of}: key {key!r} must have a scalar type, got {types.sql_name(schema.field(key).type)}"
            )


def key_fields(source: LookupSource) -> pa.Schema:
    """Names and types of the keys that a source is asked with.

    >>> from deltajoin.lookup.memory import MemoryLookup
    >>> key_fields(MemoryLookup(pa.table({"name": ["ann"], "id": [1]}), ["id"])).names
    ['id']
    """
    return pa.schema([pa.field(name, source.schema.field(name).type) for name in source.keys])


def check_answer(answer: Answer, source: LookupSource, keys: int) -> None:
    """Refuse an answer that does not fit the source's schema or the number of keys.

    Raises:
        LookupFailedError: it does not.
    """
    of, rows, positions = name_of(source), answer.rows, answer.positions
    if not rows.schema.equals(source.schema):
        raise LookupFailedError(
            f"{of}: an answer must have the columns {_shown(source.schema)}, got {_shown(rows.schema)}"
        )
    if len(positions) != rows.num_rows or positions.dtype != np.int64:
        raise LookupFailedError(
            f"{of}: an answer must have one int64 position for each of its {rows.num_rows} rows, "
            f"got {len(positions)} of {positions.dtype}"
        )
    if len(positions) and positions.view(np.uint64).max() >= keys:  # as such a negative one is large too
        raise LookupFailedError(
            f"{of}: positions must lie between 0 and {keys - 1}, "
            f"got {int(positions.min())} to {int(positions.max())}"
        )
    if answer.failures and not all(0 <= at < keys for at in answer.failures):
        raise LookupFailedError(
            f"{of}: failures must be about positions below {keys}, got {[*answer.failures]}"
        )
    if answer.failures and (both := sorted({*positions.tolist()} & {*answer.failures})):
        raise LookupFailedError(
            f"{of}: a key must have rows or have failed, the one at position {both[0]} did both"
        )


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' NOT NULL'}" for field in schema)


def strangers(keys: pa.Table, positions: Positions, rows: pa.Table) -> Positions:
    """Positions of the keys that were answered with a row of another key.

    A store that compares texts by a collation, or without regard to trailing spaces, would otherwise
    join rows that Spark would not.

    >>> keys = pa.table({"name": ["ann", "bob"]})
    >>> strangers(keys, np.array([0, 1]), pa.table({"name": ["Ann", "bob"]})).tolist()
    [0]
    """
    is_same = np.ones(len(positions), dtype=np.bool_)
    for name in keys.column_names:
        asked = one_array(keys.column(name)).take(pa.array(positions))
        is_same &= _equal(asked, comparable(one_array(rows.column(name))))
    return np.unique(positions[~is_same])


def _equal(asked: pa.Array, given: pa.Array) -> Mask:
    same: Mask = pc.fill_null(pc.equal(asked, given), False).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(asked.type):
        nan = pc.is_nan(asked).to_numpy(zero_copy_only=False)
        nan_too = pc.fill_null(pc.is_nan(given), False).to_numpy(zero_copy_only=False)
        same = same | (nan & nan_too & ~is_null(given))
    return same
