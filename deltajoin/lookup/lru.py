"""The entries of a cache, of which those used last stay (pure)."""

from __future__ import annotations

from collections.abc import Hashable

from cachetools import Cache, LRUCache


class Entry:
    """Numbers of a key and of its rows, by upsert key; and the bytes that key and rows take."""

    __slots__ = ("bytes", "key", "key_bytes", "rows")

    def __init__(self, key: int, key_bytes: int) -> None:
        self.rows: dict[Hashable, int] = {}
        self.key = key
        self.key_bytes = key_bytes
        self.bytes = 0


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
