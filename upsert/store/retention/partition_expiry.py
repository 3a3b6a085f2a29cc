"""Dropping partitions whose time is long ago: after commits, or when it is asked for.

It is a commit like ``DROP PARTITION``: readers of changes see each row go, unless commits to the partition
are not tracked; see docs/decisions/0070. What has expired is asked of the very snapshot that it builds on,
so rows that others commit to such a partition meanwhile go too. A crash leaves all of them or none.

A process whose clock is ahead would drop what is still wanted. Its own commits show it: their time is ahead
of that of their files, which is the storage's. Then the time of the storage is taken.
"""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from math import isfinite

from cachetools import LRUCache

from upsert.errors import ConfigurationError
from upsert.store.commit.change import Change
from upsert.store.commit.committer import Committed, Committer
from upsert.store.kept import Kept
from upsert.store.metadata.definition import Definition
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.paths import Partition
from upsert.store.retention.expiry import AHEAD_MS, ExpiryWarning, written_ms
from upsert.store.retention.partition_time import AGE, FORMATTER, PATTERN, PartitionAge
from upsert.store.table_options import TableOptions

_looked = Kept[str, int](lambda: LRUCache(10_000), is_inherited=True)
"""When this process last looked for expired partitions of a table, by its uuid, in ms since 1970."""


def asked_age(
    definition: Definition,
    older_than_s: float | None,
    timestamp_formatter: str | None,
    timestamp_pattern: str | None,
) -> PartitionAge:
    """The age that a call asks for; what it leaves out, the table's options say.

    Raises:
        ConfigurationError: neither of them says an age, or one of them is wrong.
    """
    if older_than_s is not None and not isfinite(older_than_s):
        raise ConfigurationError(f"{definition.owner}: older_than_s must be finite, got {older_than_s!r}")
    asked = {
        AGE: None if older_than_s is None else f"{int(older_than_s * 1000)} ms",
        FORMATTER: timestamp_formatter,
        PATTERN: timestamp_pattern,
    }
    said = {key: value for key, value in asked.items() if value is not None}
    given = {key: value for key, value in definition.given.items() if key.lower() not in said}
    age = TableOptions.parse(given | said, definition.schema, definition.owner).partition_age
    if age is None:
        raise ConfigurationError(
            f"{definition.owner}: expire_partitions needs an age, got none, and the table has no option "
            f"{AGE!r}; give one of them"
        )
    return age


def drop_expired(committer: Committer, age: PartitionAge) -> tuple[Committed, frozenset[Partition]]:
    """Commit the removal of the partitions that have expired, and say which; nothing if none have."""
    gone: frozenset[Partition] = frozenset()

    def propose(latest: SnapshotInfo) -> Change | None:
        nonlocal gone
        files = committer.history.files(latest)
        gone = age.expired({partition for partition, _ in files.groups}, _checked_now_ms(committer, latest))
        return Change("delete", removed=files.only(gone.__contains__).entries) if gone else None

    return committer.commit(propose), gone


def after_commit(committer: Committer, age: PartitionAge | None) -> Committed | None:
    """Drop what has expired, if this process has not looked for a while; never fails the commit.

    None if nothing was dropped.
    """
    if age is None:
        return None
    key, now_ms = committer.history.uuid, committer.environment.now_ms()
    if (last := _looked.get(key)) is not None and last <= now_ms < last + age.interval_ms:
        return None
    try:
        done, gone = drop_expired(committer, age)
    except Exception as failure:  # the commit is published: nothing that happens here may deny it
        warnings.warn(
            f"table {committer.root!r}: expired partitions could not be dropped — {failure!r}; correct the "
            "cause, then call expire_partitions()",
            ExpiryWarning,
            stacklevel=4,
        )
        return None
    _looked.put(key, now_ms)
    return done if gone else None


def _checked_now_ms(committer: Committer, latest: SnapshotInfo) -> int:
    """The time here, less what the newest snapshot says that its clock, and so the one here, is ahead by."""
    now_ms, written = committer.environment.now_ms(), written_ms(committer.history, latest.id)
    ahead = 0 if written is None else latest.time_ms - written
    if ahead <= AHEAD_MS or now_ms < latest.time_ms:
        return now_ms
    shown = datetime.fromtimestamp((now_ms - ahead) / 1000, UTC).isoformat(timespec="seconds")
    warnings.warn(
        f"table {committer.root!r}: the time of a commit must be that of the storage, got one that is "
        f"{ahead // 1000} s ahead of it; partitions expire by the time {shown}: set the clock here right",
        ExpiryWarning,
        stacklevel=5,
    )
    return now_ms - ahead
