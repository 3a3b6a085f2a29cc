"""Join keys of both sides under common names, and which of them are among others (pure)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from deltajoin.latest.drivers import Mask, codes_of
from deltajoin.latest.spec import LatestJoin
from deltajoin.lookup.distinct import distinct_keys, usable_keys
from upsert.store.hashing import one_array


def join_keys(join: LatestJoin, side: int, rows: pa.Table) -> pa.Table:
    """The join keys of some rows of a side, with the columns ``0``, ``1`` …, in the order of ``join.on``."""
    return rows.select(list(join.keys(side))).rename_columns([str(n) for n in range(len(join.on))])


def each_once(keys: pa.Table) -> pa.Table:
    """The distinct keys without NULLs.

    >>> each_once(pa.table({"0": [7, None, 7, 5]})).to_pydict()
    {'0': [7, 5]}
    """
    return distinct_keys(keys, keys.schema).keys


def has_value(keys: pa.Table) -> Mask:
    """Which keys have no NULL."""
    return usable_keys([one_array(column) for column in keys.columns])


def is_among(keys: pa.Table, others: pa.Table) -> Mask:
    """Which keys are among the others; one with a NULL is not.

    >>> is_among(pa.table({"0": [7, None, 5]}), pa.table({"0": [5, None]})).tolist()
    [False, False, True]
    """
    if not keys.num_rows or not others.num_rows:
        return np.zeros(keys.num_rows, np.bool_)
    codes = codes_of(pa.concat_tables([keys, others]), keys.column_names)
    found: Mask = np.isin(codes[: keys.num_rows], codes[keys.num_rows :]) & has_value(keys)
    return found
