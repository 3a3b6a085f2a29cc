"""Tags: snapshots that stay readable under a name, whatever expires around them.

Expiry deletes the file of a tagged snapshot as any other, for ids go in ascending order; the tag has a copy.
What it spares are the manifests and data files that the copy names. Deleting a tag deletes what only its
snapshot needs.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial

from upsert.errors import ConfigurationError, CorruptTableError, SnapshotExpiredError
from upsert.failpoints import reach
from upsert.store import paths
from upsert.store.files.data_file import remove_data_files
from upsert.store.metadata import tag_file
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo, refs_of
from upsert.store.metadata.tag_file import Tag
from upsert.store.retention import consumers
from upsert.store.retention.lock import lifetime_lock
from upsert.store.storage import delete_each, put_if_absent, storage_of


def create(history: History, name: str, id: int | None) -> Tag:
    """Give a snapshot a name; after that it does not expire until the tag is deleted."""
    path = tag_file.path_of(history.root, name)
    with lifetime_lock(history) as lock:
        head = history.latest()
        info = head if id is None else history.equal_to(id, head)
        if info.id == 0:
            raise ConfigurationError(
                f"tag {name!r}: there must be a snapshot to tag, got the empty table, which can always be "
                "read as snapshot 0; write rows first"
            )
        tag = Tag(name, info, int(time.time() * 1000))
        storage_of(path).prepare(os.path.dirname(path))
        with history.publishing(path):
            is_new = put_if_absent(path, tag.content(history.uuid))
        if not is_new:
            raise ConfigurationError(
                f"table {history.root!r}: a tag's name must not be in use, got {name!r}; delete that tag "
                "first, or choose another name"
            )
        if not lock.is_held:  # the snapshot may have expired since it was looked at
            storage_of(path).delete(path)
            lock.check()
    return tag


def delete(history: History, name: str) -> None:
    """Take a tag away, and delete what only its snapshot needs.

    After a crash the tag is there, or it is gone and ``clean`` removes what is left; the latter also where
    the snapshot's manifests are missing or damaged.
    """
    path = tag_file.path_of(history.root, name)
    with lifetime_lock(history) as lock:
        tag = history.tag(name, "choose one of them")
        others = [other for other in tag_file.read_all(history.root, history.uuid) if other.name != name]
        head = history.latest()
        is_expired = tag.snapshot.id < head.oldest
        if is_expired:
            _check_unheld(history, tag, others, head)
        storage_of(path).delete(path)
        storage_of(path).settle(os.path.dirname(path))
        reach("untag.after-unlink")
        if is_expired and lock.is_held:  # or ``clean`` gives it back
            # that its snapshot cannot be read any more is no reason to keep a tag
            with suppress(CorruptTableError, SnapshotExpiredError):
                _give_back(history, tag, others, head)


def _check_unheld(history: History, tag: Tag, others: list[Tag], head: SnapshotInfo) -> None:
    retained = history.info(head.oldest, head).data_version
    now_ms = int(time.time() * 1000)
    for consumer in consumers.read_all(history.root, history.uuid):
        lost = [
            version
            for version in consumers.needed(consumer.version)
            if version < retained
            and tag.snapshot.has_rows_of(version)
            and not any(other.snapshot.has_rows_of(version) for other in others)
        ]
        if lost and not consumer.is_lapsed(now_ms):
            raise ConfigurationError(
                f"tag {tag.name!r}: no consumer may need the snapshot any more, {consumer.name!r} reads on "
                f"from {consumer.version}; wait until it has gone on, or release it"
            )


def _give_back(history: History, tag: Tag, others: list[Tag], head: SnapshotInfo) -> None:
    """Delete the files of an expired snapshot that no retained one and no other tag needs.

    A file that has been removed never comes back, so what the earliest retained snapshot does not have, none
    has.
    """
    earliest = history.info(head.oldest, head)
    expired = [other.snapshot for other in others if other.snapshot.id < head.oldest]
    data = set(history.live(tag.snapshot))
    manifests = {ref.name for ref in refs_of(tag.snapshot)}
    for keeper in (earliest, *expired):
        data -= history.live(keeper).keys()
        manifests -= {ref.name for ref in refs_of(keeper)}
    files = [paths.manifest_path(history.root, name) for name in sorted(manifests)]
    delete_each(storage_of(history.root), files)
    remove_data_files(history.root, sorted(data), partial(reach, "untag.after-data"))
