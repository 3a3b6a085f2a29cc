"""Looking after a table: what may go, what must stay, what is merged, and whether every rule holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from upsert.store import (
    check,
    compaction,
    consumers,
    expiry,
    left_folders,
    log_system,
    maintenance,
    orphans,
    tag_file,
    tags,
)
from upsert.store.check import Violation
from upsert.store.consumers import Consumer
from upsert.store.handle import Handle
from upsert.store.snapshot import Snapshot
from upsert.store.storage import storage_of
from upsert.store.tag_file import Tag
from upsert.store.version import Version


class TableUpkeep(Handle):
    """The methods of a table that look after its files."""

    def expire(self, *, keep: int | None = None, older_than_s: float | None = None) -> int:
        """Give up old states of the table; how many snapshots can no longer be read.

        Files that only expired snapshots need are deleted. What a consumer holds stays, with all that
        follows; what a tag names stays.

        Args:
            keep: so many newest states stay; compaction makes no new one.
            older_than_s: only states that were replaced longer ago than this go. With both, what neither
                keeps goes; with neither, what the table's options ``snapshot.…`` say goes, all of it at once.

        Raises:
            ConfigurationError: ``keep`` is below 1, or ``older_than_s`` below 0.
        """
        return expiry.expire(self._committer, self.options.retention, keep=keep, older_than_s=older_than_s)

    def tag(self, name: str, snapshot: int | str | None = None) -> Tag:
        """Give a snapshot a name, by which it stays readable until the tag is deleted.

        Args:
            name: letters, digits, ``.``, ``_`` and ``-``, not a number; must not be in use.
            snapshot: its id, or another tag of it; None for the latest.

        Raises:
            ConfigurationError: the name is wrong or in use, or there is no such snapshot.
            SnapshotExpiredError: the snapshot has expired.
        """
        id = self.published.tag(snapshot).snapshot.id if isinstance(snapshot, str) else snapshot
        return tags.create(self.published, name, id)

    def tags(self) -> tuple[Tag, ...]:
        """All tags, that of the oldest snapshot first."""
        return tag_file.read_all(self.root, self.uuid)

    def delete_tag(self, name: str) -> None:
        """Take a tag away, and delete what only its snapshot needs.

        Raises:
            ConfigurationError: there is no such tag, or a consumer reads on from its snapshot.
        """
        tags.delete(self.published, name)

    def hold(self, consumer: str, version: Version, lease_s: float = consumers.DEFAULT_LEASE_S) -> Consumer:
        """Keep what a reader at ``version`` needs until its lease ends.

        Args:
            consumer: name of the reader; what it held before is held no more.
            version: where it would read on.
            lease_s: for how long, from now on, in seconds.

        Raises:
            ConfigurationError: the name or the lease is wrong, or there is no such snapshot yet.
            SnapshotExpiredError: the version cannot be read any more.
        """
        return consumers.hold(self.published, consumer, version, lease_s)

    def consumers(self) -> tuple[Consumer, ...]:
        """Who holds what, by name; those whose lease is over are there until the next expiry."""
        return consumers.read_all(self.root, self.uuid)

    def release(self, consumer: str) -> bool:
        """Keep nothing for a consumer any more; whether it held anything."""
        return consumers.release(self.published, consumer)

    def check(self, *, deep: bool = False) -> tuple[Violation, ...]:
        """What is wrong with the table on the disk; repairs nothing.

        Args:
            deep: read all data too; else manifests, and the sizes of files.
        """
        return check.check(self.published, deep=deep)

    def clean(self, *, older_than_s: float = orphans.DEFAULT_AGE_S) -> int:
        """Delete files that no snapshot and no tag needs, left by processes that died; how many there were.

        In an object store also what tables of the name before, and queries that died, have left beside it.

        A writer that began before the youngest of them, and has not committed, gets a ``StaleWriterError``.

        Args:
            older_than_s: spare younger files; more than the longest write takes.

        Raises:
            ConfigurationError: ``older_than_s`` is negative.
            CorruptTableError: something that is needed is missing or damaged. Nothing was deleted.
        """
        folders = 0 if storage_of(self.path).is_local else left_folders.sweep(self.path)
        return folders + orphans.clean(self._committer, older_than_s)

    def publish_log(self, *, accept_gap: bool = False) -> int:
        """Send what is committed and not in the table's log; how many snapshots that were.

        Every commit does that itself. This is for the time after a commit that said that it could not, or
        whose process was killed. Any process may call it, several at once.

        Args:
            accept_gap: if changes have expired that the log lacks, go on behind them; readers of the log stop
                there and say so.

        Raises:
            ConfigurationError: the table has no log, or it is the log of another one.
            SnapshotExpiredError: such changes have expired, and ``accept_gap`` is not set.
            KafkaUnavailableError, DeliveryError: Kafka did not take them; call again.
        """
        self.published.latest()
        return log_system.publish(self.as_logged(), accept_gap=accept_gap)

    def compact(
        self, partition: Mapping[str, object] | None = None, buckets: Collection[int] | None = None
    ) -> Snapshot | None:
        """Merge each bucket to one sorted run without deletions, after any compaction that is at work.

        Memory stays bounded, however large a bucket is. ``upsert.managed.compaction.compact`` does the same
        in the tasks of a Spark job.

        Args:
            partition: values that a partition must have to be compacted; None for all.
            buckets: numbers of the buckets within each partition; None for all.

        Returns:
            The snapshot that this made, or None if there was nothing to merge.

        Raises:
            SchemaError: ``partition`` names no partition column, or a value does not fit it.
        """
        is_wanted = compaction.in_places(self.schema, partition, buckets)
        with maintenance.compaction_lock(self.root, wait=True):
            info = compaction.compact_fully(self._committer, self.uuid, self.options, is_wanted)
        expiry.after_commit(self._committer, self.options.retention)
        return None if info is None else self._snapshot_of(info)
