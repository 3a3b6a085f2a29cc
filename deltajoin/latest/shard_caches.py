"""The caches of one shard in this process, which know what other worker processes did to theirs."""

from __future__ import annotations

import os
from typing import Final

from pyspark import SparkFiles, TaskContext

from deltajoin.latest.spec import LatestJoin
from deltajoin.lookup.cache import RowCache
from deltajoin.lookup.epoch import EpochCaches, caches_of
from deltajoin.lookup.journal import Journal
from upsert.streaming_query import query_of_task

_FOLDER: Final = "deltajoin-caches"


def caches_of_shard(join: LatestJoin, run: str, shard: int) -> EpochCaches:
    """The caches of a shard in one run of the query."""
    settings = join.settings
    sizes = settings.left_cache_size, settings.right_cache_size
    folder = _folder(shard) if settings.cache_enabled else None

    def make() -> EpochCaches:
        left, right = (
            RowCache(
                side.columns,
                join.keys(number),
                side.upsert_key,
                max_keys=sizes[number],
                max_bytes=settings.cache_max_bytes,
                is_recorded=folder is not None,
            )
            for number, side in enumerate(join.sides)
        )
        return EpochCaches(left, right, None if folder is None else Journal(folder, run))

    return caches_of((run, shard), make)


def _folder(shard: int) -> str | None:
    """Where the worker processes of this executor leave what they did; it goes away with the application."""
    if TaskContext.get() is None:
        return None
    return os.path.join(SparkFiles.getRootDirectory(), _FOLDER, query_of_task("lookup join"), str(shard))
