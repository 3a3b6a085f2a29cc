"""Local copies of objects: whole files, downloaded once for all processes of a machine, the oldest used go.

The folder is ``UPSERT_CACHE_FOLDER``, by default one of the user's own in the folder for temporary files, and
holds about ``UPSERT_CACHE_BYTES``. A copy appears by a rename, so it is whole; its name is a hash of the
object's, so no name leads out of the folder. A copy that is deleted while it is mapped stays readable.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final
from uuid import uuid4

from upsert.errors import ConfigurationError, StorageError
from upsert.flock import locked
from upsert.store.kept import Kept
from upsert.store.storage.base import NO_ROOM, SwappingStorage, T, disk_errors_of

FOLDER_VARIABLE: Final = "UPSERT_CACHE_FOLDER"
BYTES_VARIABLE: Final = "UPSERT_CACHE_BYTES"
DEFAULT_BYTES: Final = 8 << 30
_SETTINGS: Final = (
    f"free space there, set {FOLDER_VARIABLE} to a folder that this user may write to on another disk, or "
    f"{BYTES_VARIABLE} to less"
)
_STALE_S: Final = 86_400.0
"""Age of a temporary file whose process is taken to be dead."""
_COPY: Final = re.compile("[0-9a-f]{64}")
_NEW: Final = re.compile("[0-9a-f]{32}")
"""Names of copies and of files that are being written: a folder that was set may have others in it."""
_LOCKS: Final = 64
_TRIES: Final = 10

_errors_of = partial(disk_errors_of, cache_remedy=_SETTINGS)


class LocalCache:
    """The copies in one folder; threads and processes may share it."""

    def __init__(self, folder: str, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._unseen = max_bytes
        """Bytes added since this process last looked how much there is; it looks before it relies on that."""
        self._make_folders()

    def _make_folders(self) -> None:
        for name in ("files", "new", "locks"):
            Path(self.folder, name).mkdir(mode=0o700, parents=True, exist_ok=True)

    def use(self, name: str, fetch: Callable[[str], None], use: Callable[[str], T]) -> T:
        """What ``use`` makes of the copy of an object, which ``fetch`` writes to a path if there is none.

        A copy that ``use`` cannot use is dropped and fetched once more. If the disk is full, copies that were
        not used for long make room.
        """
        path = self._path(name)
        failure: Exception | None = None
        for _ in range(_TRIES):
            is_fresh = self._have(path, fetch)
            try:
                with _errors_of(self.folder):
                    return use(path)
            except Exception as cause:  # each reader of files has errors of its own for a damaged one
                # it went to make room before it was opened, or the disk has damaged it: once more
                if is_fresh and os.path.exists(path):
                    raise
                failure = cause
                Path(path).unlink(missing_ok=True)
        raise StorageError(
            errno.ENOSPC,
            f"the cache folder is too small for {name!r}; make {BYTES_VARIABLE} larger",
            self.folder,
        ) from failure

    def _have(self, path: str, fetch: Callable[[str], None]) -> bool:
        """Make sure that there is a copy; whether this call has downloaded it."""
        with _errors_of(self.folder):
            self._make_folders()
            try:
                os.utime(path)  # the time of its last use
            except FileNotFoundError:
                with self._only_one(path):
                    if os.path.exists(path):
                        return False
                    try:
                        self._fetch(path, fetch)
                    except OSError as cause:
                        if isinstance(cause, StorageError) and cause.filename != self.folder:
                            raise  # of the object's store
                        if cause.errno not in NO_ROOM or not self._make_half():
                            raise
                        self._fetch(path, fetch)
                    return True
        return False

    def _fetch(self, path: str, fetch: Callable[[str], None]) -> None:
        with self.new_file() as temporary:
            fetch(temporary)
            self._publish(temporary, path)

    @contextmanager
    def new_file(self) -> Iterator[str]:
        """A path for a file that is being written; what is there afterwards is deleted."""
        with _errors_of(self.folder):
            self._make_folders()
            path = os.path.join(self.folder, "new", uuid4().hex)
            try:
                yield path
            finally:
                Path(path).unlink(missing_ok=True)

    @contextmanager
    def uploaded(self, name: str, upload: Callable[[str, str], None]) -> Iterator[str]:
        """A path for the content of a new object: ``upload(name, path)`` sends it at the end of the block.

        It is the object's copy from then on.
        """
        with self.new_file() as temporary:
            yield temporary
            upload(name, temporary)
            self._publish(temporary, self._path(name))

    def drop(self, name: str) -> None:
        """Forget an object that has been deleted."""
        Path(self._path(name)).unlink(missing_ok=True)

    def lock_file(self, name: str) -> str:
        """Path of a file that processes of this machine may lock in the name of something remote."""
        self._make_folders()
        return os.path.join(self.folder, "locks", sha256(name.encode()).hexdigest())

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, "files", sha256(name.encode()).hexdigest())

    def _publish(self, temporary: str, path: str) -> None:
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())  # or a power failure may leave the name without the rows
            size = os.fstat(file.fileno()).st_size
        self._unseen += size
        if self._unseen >= self.max_bytes // 64:
            self._shrink(self.max_bytes - size)
            self._sweep()
            self._unseen = 0
        os.replace(temporary, path)

    def _make_half(self) -> bool:
        """Delete half of the copies, of those not used for longest; False if there are none."""
        used = sum(size for _, size, _ in self._copies())
        self._shrink(used // 2)
        return used > 0

    def _copies(self) -> list[tuple[int, int, str]]:
        """Time of the last use, size and path of each copy."""
        used = []
        with os.scandir(os.path.join(self.folder, "files")) as entries:
            for entry in entries:
                if not _COPY.fullmatch(entry.name):
                    continue
                try:
                    found = entry.stat()
                except FileNotFoundError:
                    continue  # another process makes room too
                used.append((found.st_mtime_ns, found.st_size, entry.path))
        return used

    def _shrink(self, limit: int) -> None:
        used = self._copies()
        too_much = sum(size for _, size, _ in used) - limit
        for _, size, path in sorted(used):
            if too_much <= 0:
                break
            Path(path).unlink(missing_ok=True)
            too_much -= size

    def _sweep(self) -> None:
        """Delete the temporary files of processes that died."""
        limit = time.time() - _STALE_S
        for path in Path(self.folder, "new").iterdir():
            try:
                if _NEW.fullmatch(path.name) and path.stat().st_mtime < limit:
                    path.unlink()
            except FileNotFoundError:
                continue  # its process has just finished it

    def _only_one(self, path: str) -> AbstractContextManager[None]:
        """Let one process and thread at a time download a file."""
        number = int(os.path.basename(path)[:8], 16) % _LOCKS
        return locked(os.path.join(self.folder, "locks", f"{number}"))


_caches = Kept[tuple[str, int], LocalCache](dict, is_inherited=True)


def local_cache() -> LocalCache:
    """The cache that the environment names."""
    given = os.environ.get(FOLDER_VARIABLE)
    folder = os.path.abspath(given or os.path.join(tempfile.gettempdir(), f"upsert-cache-{os.getuid()}"))
    max_bytes = os.environ.get(BYTES_VARIABLE) or str(DEFAULT_BYTES)
    if not max_bytes.isdecimal() or not int(max_bytes):
        raise ConfigurationError(f"{BYTES_VARIABLE} must be a number of bytes above 0, got {max_bytes!r}")

    def make() -> LocalCache:
        with _errors_of(folder):
            _check_own(folder)
            return LocalCache(folder, int(max_bytes))

    return _caches.made((folder, int(max_bytes)), make)


def _check_own(folder: str) -> None:
    """Make the folder, for this user alone; others could put their rows in place of the table's."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigurationError(
            f"cache folder {folder!r} must be a folder of this user that no other one may write to, got mode "
            f"{stat.S_IMODE(found.st_mode):o} and owner {found.st_uid}; set {FOLDER_VARIABLE}"
        )


class CachedStorage(SwappingStorage):
    """What remote storages have in common: large files go through the local cache, and nothing is settled."""

    is_local = False

    def write(self, path: str, content: bytes) -> None:
        """Write a new file."""
        self.replace(path, content)

    def publishing_into(self, folder: str, check: Callable[[], None]) -> AbstractContextManager[None]:  # noqa: ARG002
        """Nothing: no folder is moved."""
        return nullcontext()

    def prepare(self, folder: str) -> None:
        """Nothing: folders are made with their files."""

    def settle(self, folder: str) -> None:
        """Nothing: a file has its name for good as soon as it is there."""

    def settle_with_next(self, folder: str) -> None:
        """Nothing, as ``settle``."""

    def new_file(self, path: str) -> AbstractContextManager[str]:
        """A file in the cache, uploaded at the end of the block."""
        return local_cache().uploaded(path, self._upload)

    @abstractmethod
    def _upload(self, path: str, source: str) -> None:
        """Send a local file under a name that is used once."""

    def mapped(self, path: str, use: Callable[[str], T]) -> T:
        """What ``use`` makes of the file's copy in the cache."""
        return local_cache().use(path, partial(self._download, path), use)

    @abstractmethod
    def _download(self, path: str, target: str) -> None:
        """Write a file's content to a local path."""

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        return self.stat(path) is not None

    def lock_file(self, root: str, name: str) -> str:
        """A file of this machine: processes elsewhere are not kept off."""
        return local_cache().lock_file(f"{root}/{name}")
