"""A lookup source that is a Parquet file, so that a test can change it; also one that can be switched off."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from deltajoin.errors import LookupUnavailableError
from deltajoin.lookup.memory import MemoryLookup
from deltajoin.lookup.protocol import Answer, RequestLimits

QUICK = RequestLimits(attempts=2, first_wait_s=0.001, max_wait_s=0.001)


@dataclass(frozen=True)
class FileLookup:
    """The rows that are in the file at the time of a lookup; fails while a file ``<path>.off`` is there."""

    path: str
    schema: pa.Schema
    keys: tuple[str, ...]
    limits: RequestLimits = field(default_factory=lambda: QUICK)

    def open(self) -> FileLookup:
        return self

    async def lookup(self, keys: pa.Table) -> Answer:
        if Path(f"{self.path}.off").exists():
            raise LookupUnavailableError(f"FileLookup: {self.path} is switched off")
        rows = pq.read_table(self.path) if Path(self.path).exists() else self.schema.empty_table()
        return await MemoryLookup(rows.cast(self.schema), self.keys).open().lookup(keys)

    async def close(self) -> None:
        """Nothing is open."""
