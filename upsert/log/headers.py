"""The headers of a log's records: many of them made, and read, at once (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.kafka.records import HEADERS
from upsert.rowkind import every_kind

TABLE_HEADER: Final = "deltajoin.table"
SNAPSHOT_HEADER: Final = "deltajoin.snapshot"
DEFINITION_HEADER: Final = "deltajoin.definition"
KIND_HEADER: Final = "deltajoin.kind"
SINCE_HEADER: Final = "deltajoin.since"
UNTRACKED_HEADER: Final = "deltajoin.untracked"


def headers(known: Mapping[str, str], rows: int, kinds: pa.Array | None = None) -> pa.ListArray:
    """The same headers for all rows, and the kind of each.

    >>> headers({"a": "1"}, rows=2).to_pylist()
    [[{'key': 'a', 'value': b'1'}], [{'key': 'a', 'value': b'1'}]]
    """
    names = [*known, *([] if kinds is None else [KIND_HEADER])]
    texts = pa.array([text.encode() for text in known.values()], pa.binary())
    chosen = np.tile(np.arange(len(names)), (rows, 1))
    keys = pa.array(names, pa.string()).take(pa.array(chosen.ravel()))
    if kinds is not None:
        texts = pa.concat_arrays([texts, every_kind().cast(pa.binary())])
        chosen[:, -1] = len(known) + pc.index_in(kinds, value_set=every_kind()).to_numpy()
    values = texts.take(pa.array(chosen.ravel()))
    entries = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * len(names))
    return pa.ListArray.from_arrays(offsets, entries, HEADERS)


class Headers:
    """The headers of records, by name.

    >>> Headers(headers({"a": "1"}, rows=2)).values("a").to_pylist()
    [b'1', b'1']
    """

    def __init__(self, lists: pa.ListArray) -> None:
        self._rows = len(lists)
        entries = lists.flatten()
        self._names = pc.struct_field(entries, "key")
        self._values = pc.struct_field(entries, "value")
        self._parents = pc.list_parent_indices(lists).to_numpy()

    def values(self, name: str) -> pa.BinaryArray:
        """A header of each record, NULL where it is not there; of several the last one."""
        found = np.flatnonzero(pc.equal(self._names, name).to_numpy(zero_copy_only=False))
        places = np.full(self._rows, -1, np.int64)
        places[self._parents[found]] = found
        return self._values.take(pa.array(places, mask=places < 0))
