"""Publishing a change of the table: put-if-absent of the next snapshot, again until it succeeds or cannot.

Each attempt asks again what should change, checks the store's rules against the files that are live now, and
tries to create the next snapshot's file. A published id is never used twice: after the link the committer
makes sure that its snapshot is part of the history, for a writer that stalled until ids expired could create
a long-gone one again. An exception while publishing means *unknown*: nothing is cleaned up before the disk
has been looked at.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType
from typing import Final, NoReturn
from uuid import uuid4

from upsert.errors import (
    CommitConflictError,
    ConfigurationError,
    CorruptTableError,
    SnapshotExpiredError,
    StaleWriterError,
    TableNotFoundError,
    UnknownOutcomeError,
    UpsertError,
)
from upsert.failpoints import reach
from upsert.retry import retried
from upsert.store import paths
from upsert.store.commit.change import Change, CommitRules, Propose
from upsert.store.commit.turn import Turn
from upsert.store.metadata.definition import Shown, shown
from upsert.store.metadata.file_entry import FileEntry, newest
from upsert.store.metadata.folding import fold
from upsert.store.metadata.history import History
from upsert.store.metadata.manifest import Manifest, checked, write_manifest
from upsert.store.metadata.snapshot import ManifestRef, SnapshotInfo, refs_of
from upsert.store.rows.layout import Layout
from upsert.store.storage import delete_each, put_if_absent, storage_of

_Key = tuple[str, str | None]
"""A table, by its uuid, and its topic: offsets of one log say nothing of the next one."""


class _LogEnds:
    """Where the logs of tables ended when this process last looked; snapshots name these offsets."""

    def __init__(self) -> None:
        self._ends: dict[_Key, Mapping[str, int]] = {}
        self._lock = threading.Lock()

    def known(self, key: _Key) -> bool:
        return key in self._ends

    def note(self, key: _Key, ends: Mapping[str, int]) -> None:
        with self._lock:
            self._ends[key] = later(self._ends.get(key, {}), ends)

    def of(self, key: _Key) -> Mapping[str, int]:
        return self._ends.get(key, {})


def later(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The higher offset of each partition.

    >>> later({"0": 5, "1": 2}, {"0": 3, "2": 1})
    {'0': 5, '1': 2, '2': 1}
    """
    return {key: max(one.get(key, 0), other.get(key, 0)) for key in sorted({*one, *other}, key=int)}


log_ends = _LogEnds()


def note_ends(uuid: str, topic: str, ends: Mapping[str, int]) -> None:
    """Remember where a table's log ended, now that all snapshots up to the latest are in it or before it."""
    log_ends.note((uuid, topic), ends)


GIVE_UP_AFTER_S: Final = 300.0
"""Ten tries were too few for eight writers; a commit that loses for minutes has another problem."""

MOST_TURNS: Final = 50
"""A commit that goes first gives up after so many lost races: its attempts take minutes in a large table."""

TURN_AFTER: Final = 5
"""A commit that has lost so many races gets its turn: who commits without a pause would win each of them."""

_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True)
class _Delta:
    """A manifest that an attempt has written, and the snapshot that was the latest then."""

    change: Change
    base: int
    ref: ManifestRef


@dataclass(frozen=True)
class Environment:
    """What a committer is given instead of asking the system, so that tests can give it something else."""

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = field(default=random.uniform)
    put_if_absent: Callable[[str, bytes], bool] = put_if_absent

    def now_ms(self) -> int:
        """The time in milliseconds, as snapshots have it."""
        return int(self.now() * 1000)


REAL: Final = Environment()


def _names_of(info: SnapshotInfo) -> set[str]:
    """Names of the manifests that a snapshot needs."""
    return {ref.name for ref in refs_of(info)}


class _LostRaceError(Exception):
    """Another committer was first to follow this snapshot."""


class _TakenBackError(StaleWriterError):
    """The snapshot that was followed has expired meanwhile; what was published is no part of the history."""


@dataclass(frozen=True)
class Committed:
    """The snapshot after a commit, and the files that it has added itself (none if it changed nothing).

    ``rows`` is how many rows it was given, or has deleted; None if they were not counted.
    """

    info: SnapshotInfo
    added: tuple[FileEntry, ...] = ()
    rows: int | None = None


class Committer:
    """Publishes changes of one table."""

    def __init__(self, history: History, environment: Environment = REAL) -> None:
        self.history = history
        self.root = history.root
        self.rules = CommitRules(history)
        self._storage = storage_of(history.root)
        self.environment = environment

    def commit(
        self, propose: Propose, *, has_just_looked: bool = False, goes_first: bool = False
    ) -> Committed:
        """Publish what ``propose`` says; the snapshot is the latest one if that is None.

        With ``has_just_looked`` the first attempt builds on what the caller has seen a moment ago, see
        ``History.seen_just_now``. Other commits of this machine wait once it has lost five races, until it is
        through; with ``goes_first`` once it has lost one: for changes that each of them makes longer.

        Raises:
            UnknownOutcomeError: neither the object store nor a look at the disk has said whether it was
                published, and it may be yet; or it was, and what became of it cannot be read or told.
            StaleWriterError: the files were begun before a clean-up, or the writer stalled past an expiry.
            CommitConflictError: the change does not fit what others committed; or every attempt for
                five minutes lost the race, or fifty of what goes first. Nothing was published.
            OSError: the disk refused. A look at it has shown that nothing was published.
        """
        turn = Turn(self.root, self.environment.sleep, self.environment.monotonic)
        with self.history.writing():
            return _Attempts(self, propose, turn, has_just_looked, goes_first).committed()

    def delete_left(self, manifests: Iterable[str]) -> None:
        """Delete what attempts that lost have written; whatever fails here, ``clean`` does it later."""
        with suppress(OSError, UpsertError):
            names = filter(None, manifests)
            delete_each(self._storage, [paths.manifest_path(self.root, name) for name in names])

    def delta(self, change: Change, head: SnapshotInfo, earlier: _Delta | None) -> _Delta:
        """The manifest of a change; that of an earlier attempt if it still says the same and is safe."""
        if earlier is not None and earlier.change == change and earlier.base >= head.fence:
            return earlier
        if not change.added and not change.removed:
            return _Delta(change, head.id, ManifestRef("", 0, 0))
        reach("commit.before-manifest")
        ref = write_manifest(self.root, self._layout(change), head.id, change.added, change.removed)
        reach("commit.after-manifest")
        return _Delta(change, head.id, ref)

    def _layout(self, change: Change) -> Layout:
        """The form of the table after a change: what ALTER TABLE writes again has bounds of new columns."""
        if change.definition is None:
            return self.history.layout
        return self.history.definition_at(change.definition).layout

    def successor(
        self, head: SnapshotInfo, change: Change, delta: ManifestRef, lost_races: int
    ) -> SnapshotInfo:
        """The snapshot that follows ``head`` with a change, whose manifest is ``delta``."""
        own_id = head.id + 1
        own = (replace(delta, sequence=own_id),) if delta.entries else ()
        # those of an older release have no checksums
        before = (ref if ref.checksum else checked(self.root, ref) for ref in head.manifests)
        manifests = fold(self.root, self._layout(change), head.id, (*before, *own), self.history.manifest)
        definition = head.definition if change.definition is None else change.definition
        added_rows = sum(entry.rows for entry in change.added)
        visible, stands_for, environment = self._shown(change, head), change.stands_for, self.environment
        if (refresh := stands_for.refresh if stands_for else None) is not None:
            refresh = refresh.ending(environment.now(), environment.monotonic())
        writers = head.writers
        if change.transaction is not None:
            writers = MappingProxyType(dict([*writers.items(), change.transaction]))
        return SnapshotInfo(
            id=own_id,
            uuid=uuid4().hex,
            parent=head.uuid or None,
            kind=change.kind,
            # time never runs backwards in a history: readers start "from a time"
            time_ms=max(environment.now_ms(), head.time_ms),
            data_version=own_id if change.changes_rows else head.data_version,
            tracked=visible.is_tracked,
            untracked=visible.hidden,
            writers=writers,
            watermark=self._watermark(head, change),
            log_offsets=self._log_offsets(head, change),
            manifests=manifests,
            delta=own[0] if own else None,
            oldest=max(head.oldest, change.oldest or 0),
            fence=max(head.fence, change.fence or 0),
            files=head.files + len(change.added) - len(change.removed),
            rows=head.rows + added_rows - sum(entry.rows for entry in change.removed),
            delta_rows=added_rows,
            states=head.states + change.changes_rows,
            last_untracked=head.last_untracked if visible.is_whole else own_id,
            definition=definition,
            definition_checksum=self.history.definition_at(definition).checksum,
            base_versions=stands_for.versions if stands_for else head.base_versions,
            refresh=refresh if stands_for else head.refresh and head.refresh.ended(head.time_ms),
            conflicts=head.conflicts + lost_races,
            base_uuids=stands_for.uuids if stands_for else head.base_uuids,
            data_uuid="" if change.changes_rows else head.identity,
        )

    def _watermark(self, head: SnapshotInfo, change: Change) -> int | None:
        """The newest value so far; another definition may have another WATERMARK."""
        known = head.watermark if change.definition is None else None
        found = newest(self.history.layout.schema, change.added, known)
        return None if found is None or found < 0 else found

    def _log_offsets(self, head: SnapshotInfo, change: Change) -> Mapping[str, int]:
        """Offsets of the log below which changes of earlier snapshots lie only."""
        if not change.changes_rows and change.definition is None:
            # its rows are those of the snapshot before, behind which a log may have changes that are not
            # committed yet, and come after them
            return head.log_offsets
        old = self.history.definition_at(head.definition)
        new = old if change.definition is None else self.history.definition_at(change.definition)
        topic = new.options.log.topic
        named = head.log_offsets if topic == old.options.log.topic else {}
        known = log_ends.of((self.history.uuid, topic))
        return later(named, known) if known else named

    def _shown(self, change: Change, head: SnapshotInfo) -> Shown:
        if not change.changes_rows:
            return Shown(True, ())
        touched = {entry.partition for entry in (*change.added, *change.removed)}
        return shown(self.history.definition_at(head.definition), touched, change.tracked)

    def publish(self, info: SnapshotInfo, change: Change) -> bool:
        """Whether ``info`` is now part of the history; False if another snapshot has its id."""
        path, content = os.path.join(self.root, paths.snapshot_file(info.id)), info.content(self.history.uuid)
        try:
            with self.history.publishing(path):
                won = self.environment.put_if_absent(path, content)
        except (TableNotFoundError, UnknownOutcomeError):
            raise
        except Exception as cause:  # from the disk, or a client of an object store
            if not self._is_there_after(cause, info, path):
                if isinstance(cause, FileNotFoundError) and self.history.is_there:
                    return False  # a clean-up without mercy took the temporary file
                raise
            won = True
        if won:
            try:
                self._check_lineage(info, path, change)
                added = tuple(replace(entry, sequence=entry.sequence or info.id) for entry in change.added)
                self.history.remember(info.id, content, Manifest(added, change.removed))
            except TableNotFoundError as cause:
                if self._withdraw(path, content):
                    raise
                raise UnknownOutcomeError(
                    f"table {self.root!r}: snapshot {info.id} was published while the table was dropped or "
                    f"renamed, and {cause}; if it has another name now, it has the rows"
                ) from cause
            # no right to read it any more, or what belongs to the newest snapshot is damaged, or has expired
            except (OSError, ConfigurationError, CorruptTableError, SnapshotExpiredError) as cause:
                raise UnknownOutcomeError(
                    f"table {self.root!r}: snapshot {info.id} was published, and must be seen to be part of "
                    f"the history, got {cause}; look at the table's history before you write the rows again"
                ) from cause
        return won

    def _withdraw(self, path: str, content: bytes) -> bool:
        """Delete a snapshot of this process that came after its table was dropped; whether it was there."""
        with suppress(OSError, UpsertError):
            return self._storage.read(path) == content and self._storage.delete(path)
        return False

    def _is_there_after(self, failure: Exception, info: SnapshotInfo, path: str) -> bool:
        """Whether a snapshot has been published, and will stay, although an error was reported."""
        try:
            found = self.history.content(info.id)
            if found is None or found.uuid != info.uuid:
                return False
            self._storage.settle(os.path.dirname(path))
        except (OSError, UpsertError) as also:
            if not self._storage.is_local:
                return False  # a remote store would have said that it does not know
            if isinstance(also, CorruptTableError):
                self.history.check_identity()  # it may be that of another table
            raise UnknownOutcomeError(
                f"table {self.root!r}: writing snapshot {info.id} failed ({failure}), and it must be seen "
                f"whether it is there for good, got {also}; look at the table's history before you write the "
                "rows again"
            ) from failure
        return True

    def _check_lineage(self, info: SnapshotInfo, path: str, change: Change) -> None:
        """Make sure that the history goes on from ``info``, not past it.

        If the id had been used before and had expired, newer snapshots exist that do not descend from ours.
        They are found whatever expiry is doing: it deletes in ascending order. So if the snapshot that ours
        follows is there yet, no other one has had our id; and if ours is legitimate and still there, so is
        its successor, if it has one. If ours is the newest, only an expiry in it can have taken the one
        before: otherwise the folder was set back to an older state while this process knew a newer one.
        """
        try:
            before = self.history.content(info.id - 1) if info.parent else None
        except CorruptTableError:
            self.history.check_identity()  # it may be that of another table
            raise
        if before is not None and before.uuid == info.parent:
            return
        newest = self.history.latest()
        if newest.id <= info.id:
            if info.parent and info.oldest < info.id:
                self._take_back(path, f"its folder no longer has snapshot {info.id - 1}")
            return
        successor = self.history.content(info.id + 1)
        own = self.history.content(info.id)
        if successor is not None and successor.parent == info.uuid:
            return
        if own is not None and own.uuid == info.uuid:
            self._take_back(path, f"snapshot {info.id - 1} has expired, the latest is {newest.id}")
        # expired between the link and this look, or taken away as a leftover
        if (transaction := change.transaction) is not None:
            if newest.writers.get(transaction[0], -1) < transaction[1]:
                raise self._taken_back(f"snapshot {info.id} has expired, the latest is {newest.id}")
            return
        live = self.history.files(newest).within({entry.bucket_id for entry in change.added})
        if {entry.file for entry in change.added}.isdisjoint(entry.file for entry in live.entries):
            raise UnknownOutcomeError(
                f"table {self.root!r}: snapshot {info.id} expired while it was being published, so it cannot "
                "be told whether it was part of the history; compare the rows with snapshot "
                f"{newest.id} and write what is missing"
            )

    def _take_back(self, path: str, found: str) -> NoReturn:
        """Delete a snapshot of this process that turned out to be no part of the history."""
        self._storage.delete(path)
        self.history.forget()
        raise self._taken_back(found)

    def _taken_back(self, found: str) -> _TakenBackError:
        return _TakenBackError(
            f"table {self.root!r}: a writer must commit while the snapshot that it builds on is there; "
            f"{found}; write the rows again"
        )


@dataclass
class _Attempts:
    """The attempts of one commit: what they have written, and how many of them have lost the race."""

    committer: Committer
    propose: Propose
    turn: Turn
    has_just_looked: bool
    goes_first: bool
    lost_races: int = 0
    written: set[str] = field(default_factory=set)
    delta: _Delta | None = None

    def committed(self) -> Committed:
        """What the attempt gives that wins."""
        try:
            with self.turn:
                try:
                    done = self._first_of(1 if self.goes_first else TURN_AFTER)
                except _LostRaceError:
                    self.turn.take()
                    done = self._first_in_turn()
                self.turn.end()  # also that of a statement, which is committed
        except UnknownOutcomeError:
            raise
        except (UpsertError, OSError):  # so a name that is not there, since the table was dropped
            self.committer.delete_left(self.written)
            raise
        except _LostRaceError as last:
            self.committer.delete_left(self.written)
            how_many = f", {self.lost_races} of them" if self.goes_first else f" in {GIVE_UP_AFTER_S:g} s"
            raise CommitConflictError(
                f"table {self.committer.root!r}: commit on snapshot {last.args[0]} lost every race for the "
                f"next id{how_many}; let fewer processes commit at once, then run it again"
            ) from None
        self.committer.delete_left(self.written - _names_of(done.info))
        return done

    def _first_in_turn(self) -> Committed:
        if self.goes_first:
            return self._first_of(MOST_TURNS - 1, patience_s=inf, longest_pause_s=_FIRST_PAUSE_S)
        return self._first_of(None)

    def _first_of(
        self,
        tries: int | None,
        *,
        patience_s: float = GIVE_UP_AFTER_S,
        longest_pause_s: float = _LONGEST_PAUSE_S,
    ) -> Committed:
        """The first of so many attempts that wins."""
        environment = self.committer.environment
        return retried(
            self._attempt,
            is_passing=lambda failure: isinstance(failure, _LostRaceError),
            first_pause_s=_FIRST_PAUSE_S,
            longest_pause_s=longest_pause_s,
            patience_s=patience_s,
            tries=tries,
            jitter=environment.uniform,
            sleep=environment.sleep,
            monotonic=environment.monotonic,
        )

    def _attempt(self) -> Committed:
        if not (self.goes_first or self.turn.has_come) and self.turn.wait_for_others():
            self.has_just_looked = False
        head, change, info = self._proposed()
        if change is None:
            return Committed(head)
        try:
            if self.committer.publish(info, change):
                return Committed(info, change.added)
        except _TakenBackError:
            # rows are of a state that is gone; what goes first, and what has none, begins again
            if not self.goes_first and (change.added or change.transaction is not None):
                raise
        self.lost_races += 1
        raise _LostRaceError(head.id)

    def _proposed(self) -> tuple[SnapshotInfo, Change | None, SnapshotInfo]:
        """The latest snapshot, a change of it, and what follows: the same snapshot if there is no change."""
        history, monotonic = self.committer.history, self.committer.environment.monotonic
        damage, until = "", monotonic() + GIVE_UP_AFTER_S
        while True:
            head = history.seen_just_now() if self.has_just_looked else history.latest()
            self.has_just_looked = False
            try:
                change = self.propose(head)
                return head, change, head if change is None else self._successor(head, change)
            except (SnapshotExpiredError, FileNotFoundError, CorruptTableError) as cause:
                # an expiry took away what belongs to ``head`` alone, so there must be a newer one; where
                # that was a data file, it is told as missing, and no later snapshot has it
                is_damage = isinstance(cause, CorruptTableError)
                is_seen = is_damage and (monotonic() > until or str(cause) == damage)
                if is_seen or history.latest().id == head.id:
                    raise
                damage = str(cause)

    def _successor(self, head: SnapshotInfo, change: Change) -> SnapshotInfo:
        committer = self.committer
        committer.rules.check(change, head)
        self.delta = committer.delta(change, head, self.delta)
        self.written.add(self.delta.ref.name)
        info = committer.successor(head, change, self.delta.ref, self.lost_races)
        self.written.update(_names_of(info) - _names_of(head))
        return info
