"""One side's cache: the rows of the keys that were looked up last, in a bounded space (pure)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import Cache, LRUCache

from deltajoin.lookup.keys import key_values
from deltajoin.lookup.protocol import Answer
from upsert.arrays import Positions, one_array
from upsert.errors import ConfigurationError, SchemaError


@dataclass(frozen=True)
class CacheCounts:
    """What a cache did since it was asked last, and what it holds, see `latest.metrics.Measures`."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    drops: int = 0
    keys: int = 0
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class Cached:
    """What a cache knows about a batch of keys: rows, and for each the position of its key, ascending.

    ``missing`` are positions of the keys that it knows nothing about, ascending.
    """

    positions: Positions
    rows: pa.Table
    missing: Positions


@dataclass(frozen=True, eq=False)
class CacheEffect:
    """What `put` or `update` did to a cache, so that another one can repeat it.

    Rows that were found for ``keys``, or that changed, where these are None; ``marks`` have for each row the
    position of its key, or whether it was deleted.
    """

    keys: pa.Table | None
    rows: pa.Table
    marks: npt.NDArray[np.generic]

    @classmethod
    def of(cls, keys: pa.Table, answer: Answer) -> Self:
        """What ``put`` did, without the keys whose lookup has failed."""
        if not answer.failures:
            return cls(keys, answer.rows, answer.positions)
        is_known = np.ones(keys.num_rows, np.bool_)
        is_known[list(answer.failures)] = False
        numbers = np.cumsum(is_known) - 1
        return cls(keys.filter(pa.array(is_known)), answer.rows, numbers[answer.positions])

    @property
    def size(self) -> int:
        """Keys and rows in it."""
        return int(self.rows.num_rows) + (0 if self.keys is None else int(self.keys.num_rows))


@dataclass(eq=False, slots=True)
class Entry:
    """Numbers of a key and of its rows, by upsert key; and the bytes that key and rows take."""

    key: int
    key_bytes: int
    rows: dict[Hashable, int]
    bytes: int = 0
    expires_at: float = math.inf
    unused_until: float = math.inf


class Lru(LRUCache[Hashable, Entry | None]):
    """An LRU that counts what it evicts, and has None for what it has not."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, getsizeof=lambda entry: entry.bytes if entry else 0)
        self.evictions = 0

    def __missing__(self, key: Hashable) -> None:
        return None

    def entries(self) -> list[Entry]:
        """All entries; to see them is no use of them."""
        return [entry for key in self if (entry := Cache.__getitem__(self, key))]

    def popitem(self) -> tuple[Hashable, Entry | None]:
        """Let the entry go that was used longest ago."""
        self.evictions += 1
        return super().popitem()


@dataclass(frozen=True)
class Expiry:
    """From when on an entry is too old: seconds after it was looked up, and after its last use."""

    after_write_s: float = math.inf
    after_access_s: float = math.inf
    now: Callable[[], float] = time.monotonic


_MAX_PIECES = 64
_SIZE_BYTES = 8
"""What it takes to know a row's size."""


class RowStore:
    """Rows by number, from 0 in the order in which they came.

    Attributes:
        bytes: what the rows take in memory, about.

    >>> store = RowStore(pa.schema({"name": pa.string()}))
    >>> store.add(pa.table({"name": ["ann", "bob"]})), store.add(pa.table({"name": ["cy"]}))
    (0, 2)
    >>> store.take([2, 0])["name"].to_pylist()
    ['cy', 'ann']
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._rows = schema.empty_table()
        self._sizes: list[int] = []
        self.bytes = 0

    def add(self, rows: pa.Table) -> int:
        """Keep some rows; the number of the first one."""
        first = len(self._sizes)
        sizes = bytes_of_rows(rows) + _SIZE_BYTES
        self._sizes += sizes.tolist()
        self.bytes += int(sizes.sum())
        # A copy: the rows may be a few of a big reply, which would stay in memory as a whole.
        self._rows = pa.concat_tables([self._rows, rows.take(pa.array(np.arange(rows.num_rows)))])
        if self._rows.num_columns and self._rows.column(0).num_chunks > _MAX_PIECES:
            self._rows = self._rows.combine_chunks()
        return first

    def take(self, numbers: Sequence[int]) -> pa.Table:
        """The rows with these numbers, in this order."""
        return self._rows.take(pa.array(numbers, pa.int64()))

    def size(self, number: int) -> int:
        """What one row takes in memory, about."""
        return self._sizes[number]

    def keep(self, numbers: Sequence[int]) -> None:
        """Forget all rows but these, which get the numbers from 0 on."""
        kept = self.take(numbers)
        self._rows, self._sizes, self.bytes = kept.schema.empty_table(), [], 0
        self.add(kept)


def bytes_of_rows(rows: pa.Table) -> Positions:
    """What each row takes in memory, about: lengths of texts, widths of numbers; the mean of nested values.

    >>> bytes_of_rows(pa.table({"n": [1, 2], "s": ["a", None]})).tolist()
    [13, 12]
    """
    total = np.zeros(rows.num_rows, dtype=np.int64)
    for column in rows.columns:
        total += _bytes_of_values(one_array(column))
    return total


def _bytes_of_values(column: pa.Array) -> Positions | int:
    type_ = column.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        lengths: Positions = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
        return lengths + 4
    if pa.types.is_nested(type_):
        return -(-int(column.nbytes) // max(len(column), 1))
    return max(1, int(type_.bit_width) // 8)


MAX_KEYS: Final = 10_000
"""Keys of one side's cache; FLIP-486's ``table.exec.delta-join.left-cache-size``."""
MAX_BYTES: Final = 64 << 20

_ENTRY_BYTES: Final = 460  # the key, the entry, its dictionary, their links in the LRU: measured
_ROW_BYTES: Final = 150  # a number and an upsert key


class RowCache:
    """The newest known rows of some keys. Belongs to one thread.

    ``upsert_key`` tells the rows of one key apart; with None no row is ever updated. ``max_bytes`` bounds the
    memory, but for the rows of the call that is under way; a third of it is for what is in use, so that rows
    no longer used can be cleared away seldom and all at once. With ``is_recorded`` what is done to it is kept
    for ``take_effects``. An entry that is older than ``expiry`` says is none.

    >>> cache = RowCache(pa.schema({"id": pa.int64(), "name": pa.string()}), ["id"], ["id"])
    >>> keys = pa.table({"id": [1, 2]})
    >>> cache.get(keys).missing.tolist()
    [0, 1]
    >>> cache.put(keys, Answer(np.array([0]), pa.table({"id": [1], "name": ["ann"]})))
    >>> cache.update(pa.table({"id": [1, 3], "name": ["eve", "bob"]}))
    >>> found = cache.get(pa.table({"id": [3, 2, 1]}))
    >>> found.positions.tolist(), found.rows["name"].to_pylist(), found.missing.tolist()
    ([2], ['eve'], [0])
    """

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        upsert_key: Sequence[str] | None,
        *,
        max_keys: int = MAX_KEYS,
        max_bytes: int = MAX_BYTES,
        is_recorded: bool = False,
        expiry: Expiry | None = None,
    ) -> None:
        for name, value in (("max_keys", max_keys), ("max_bytes", max_bytes)):
            if value < 1:
                raise ConfigurationError(f"cache: {name} must be a positive integer, got {value!r}")
        if upsert_key is not None and not upsert_key:
            raise ConfigurationError("cache: upsert_key must have one column or more, it has none")
        for column in (*keys, *(upsert_key or ())):
            if column not in schema.names:
                raise ConfigurationError(
                    f"cache: {column!r} must be one of the columns, which are {', '.join(schema.names)}"
                )
        self._schema = schema
        self._keys = list(keys)
        self._upsert_key = list(upsert_key or ())
        self._expiry = expiry
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._is_recorded = is_recorded
        self._hits = self._misses = self._evictions = self._drops = 0
        self._clear()

    def _clear(self) -> None:
        self._lru = Lru(self._max_bytes // 3)
        self._store = RowStore(self._schema)
        self._key_store: RowStore | None = None  # keys of the entries, and of those that there were
        self._effects: list[CacheEffect] = []  # those of an attempt that did not count are dropped

    def get(self, keys: pa.Table) -> Cached:
        """What is known about some keys, which become those used last.

        A key that has a NULL has no rows, and is not missing either.
        """
        values = key_values(keys)
        entries = list(map(self._lru.__getitem__, values))
        if self._expiry is not None:
            entries = self._still_valid(values, entries, self._expiry)
        at = np.flatnonzero(np.fromiter((entry is not None for entry in entries), bool, len(entries)))
        rows = [entry.rows for entry in entries if entry is not None]
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        numbers = list(chain.from_iterable(map(dict.values, rows)))
        is_missing = np.fromiter((value is not None for value in values), bool, len(values))
        is_missing[at] = False
        missing = np.flatnonzero(is_missing)
        self._hits += len(at)
        self._misses += len(missing)
        return Cached(np.repeat(at, counts), self._store.take(numbers), missing)

    def _still_valid(
        self, values: Sequence[Hashable], entries: Sequence[Entry | None], expiry: Expiry
    ) -> list[Entry | None]:
        """The entries without those that are too old; the others are used now."""
        now = expiry.now()
        valid: list[Entry | None] = []
        for value, entry in zip(values, entries, strict=True):
            if entry is not None and now >= min(entry.expires_at, entry.unused_until):
                self._lru.pop(value, None)
                entry = None
            if entry is not None:
                entry.unused_until = now + expiry.after_access_s
            valid.append(entry)
        return valid

    def put(self, keys: pa.Table, answer: Answer) -> None:
        """Remember what a lookup of distinct keys without NULLs brought; keys that failed are passed over."""
        if self._is_recorded:
            self._effects.append(CacheEffect.of(keys, answer))
        order = np.argsort(answer.positions, kind="stable")
        rows = answer.rows.take(pa.array(order))
        ends = np.cumsum(np.bincount(answer.positions, minlength=keys.num_rows)).tolist()
        first = self._store.add(rows)
        if self._key_store is None:
            self._key_store = RowStore(keys.schema)
        first_key = self._key_store.add(keys)
        tellers = self._tellers(rows)
        start = 0
        each = zip(key_values(keys), bytes_of_rows(keys).tolist(), ends, strict=True)
        for at, (key, key_bytes, end) in enumerate(each):
            if at not in answer.failures:
                numbers = dict(zip(tellers[start:end], range(first + start, first + end), strict=True))
                if len(numbers) < end - start:
                    raise SchemaError(
                        f"upsert key ({', '.join(self._upsert_key)}): must tell the rows of a key apart, "
                        f"several rows of {keys.slice(at, 1).to_pylist()[0]!r} have equal ones; name more "
                        "columns in upsert_key"
                    )
                self._set(key, Entry(first_key + at, key_bytes, numbers))
            start = end
        self._tidy()

    def _tellers(self, rows: pa.Table) -> list[Hashable]:
        """The upsert key of each row."""
        if not self._upsert_key:
            return list(range(rows.num_rows))
        values = key_values(rows.select(self._upsert_key))
        if None in values:
            raise SchemaError(
                f"upsert key ({', '.join(self._upsert_key)}): values must not be NULL, "
                f"row {rows.slice(values.index(None), 1).to_pylist()[0]!r} has one"
            )
        return values

    def _set(self, key: Hashable, entry: Entry) -> None:
        sizes = sum(map(self._store.size, entry.rows.values()))
        entry.bytes = _ENTRY_BYTES + entry.key_bytes + _ROW_BYTES * len(entry.rows) + sizes
        if entry.bytes > self._lru.maxsize:
            self._lru.pop(key, None)
            self._lru.evictions += 1
            return
        if self._expiry is not None:
            now = self._expiry.now()
            entry.expires_at = now + self._expiry.after_write_s
            entry.unused_until = now + self._expiry.after_access_s
        self._lru[key] = entry
        if len(self._lru) > self._max_keys:
            self._lru.popitem()

    def update(self, rows: pa.Table, deleted: Sequence[bool] | None = None) -> None:
        """Apply changes of the side itself, in their order, to the entries that exist.

        Each row replaces the one with its upsert key, or is new, or deletes that where ``deleted`` says so.
        """
        if self._is_recorded:
            none = np.zeros(rows.num_rows, np.bool_)
            self._effects.append(
                CacheEffect(None, rows, none if deleted is None else np.asarray(deleted, np.bool_))
            )
        values = key_values(rows.select(self._keys))
        known = [at for at, value in enumerate(values) if value in self._lru]
        if not known:
            return
        rows = rows.take(pa.array(known, pa.int64()))
        tellers = self._tellers(rows)
        first = self._store.add(rows.select(self._schema.names).cast(self._schema))
        changed: dict[Hashable, Entry] = {}
        for nth, at in enumerate(known):
            entry = changed.get(values[at]) or self._lru[values[at]]
            assert entry is not None
            changed[values[at]] = entry
            if deleted is not None and deleted[at]:
                entry.rows.pop(tellers[nth], None)
            else:
                entry.rows[tellers[nth]] = first + nth
        for key, entry in changed.items():
            if key in self._lru:  # an entry that grew may have pushed it out
                self._set(key, entry)
        self._tidy()

    def take_effects(self) -> list[CacheEffect]:
        """What was done to the cache since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def repeat(self, effects: Sequence[CacheEffect]) -> None:
        """Do what another cache has done; ``take_effects`` does not tell of it."""
        for effect in effects:
            if effect.keys is None:
                self.update(effect.rows, effect.marks.tolist())
            else:
                self.put(effect.keys, Answer(effect.marks.astype(np.int64), effect.rows))
        self.take_effects()

    def content(self) -> list[CacheEffect]:
        """All entries as one effect, which an empty cache can repeat; empty without entries."""
        entries = self._lru.entries()
        if not entries or self._key_store is None:
            return []
        counts = [len(entry.rows) for entry in entries]
        numbers = list(chain.from_iterable(entry.rows.values() for entry in entries))
        keys = self._key_store.take([entry.key for entry in entries])
        return [CacheEffect(keys, self._store.take(numbers), np.repeat(np.arange(len(entries)), counts))]

    def drop(self) -> None:
        """Drop all entries."""
        self._drops += 1
        self.restart()

    def restart(self) -> None:
        """Begin without entries, to repeat what others have done: nothing is lost, so it is no drop."""
        self._evictions += self._lru.evictions
        self._clear()

    @property
    def entries(self) -> int:
        """How many keys it knows."""
        return len(self._lru)

    def counts(self) -> CacheCounts:
        """What happened since the last call, and what the cache holds now."""
        counts = CacheCounts(
            self._hits,
            self._misses,
            self._evictions + self._lru.evictions,
            self._drops,
            len(self._lru),
            int(self._lru.currsize),
        )
        self._hits = self._misses = self._evictions = self._drops = self._lru.evictions = 0
        return counts

    def _tidy(self) -> None:
        """Clear rows away that no entry has, when there are too many of them.

        Entries take a third of the memory, so rows and keys, used or not, may take the two others.
        """
        keys = self._key_store
        held = self._store.bytes + (0 if keys is None else keys.bytes)
        if held <= self._max_bytes * 2 // 3:
            return
        entries = self._lru.entries()
        if keys is not None:
            keys.keep([entry.key for entry in entries])
            for number, entry in enumerate(entries):
                entry.key = number
        self._store.keep(list(chain.from_iterable(entry.rows.values() for entry in entries)))
        start = 0
        for entry in entries:
            entry.rows = dict(zip(entry.rows, range(start, start + len(entry.rows)), strict=True))
            start += len(entry.rows)
