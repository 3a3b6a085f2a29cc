"""Named points at which a test can kill the process as ``kill -9`` would.

Every step that must survive a crash calls ``reach("subject.moment")``. It does nothing unless the
environment names that point: ``UPSERT_STORE_FAILPOINT="publish.before-link"`` kills the process the
first time it is reached, ``"publish.before-link:3"`` the third time.
"""

from __future__ import annotations

import os
import signal
from typing import Final

ENVIRONMENT_VARIABLE: Final = "UPSERT_STORE_FAILPOINT"

_VARIABLE: Final = ENVIRONMENT_VARIABLE.encode()

POINTS: Final = (
    "data.before-file",
    "data.after-file",
    "data.after-sidecar",
    "stage.after-raw",
    "delete.after-write",
    "move.after-write",
    "commit.before-manifest",
    "commit.after-manifest",
    "fold.after-part",
    "publish.before-link",
    "publish.after-link",
    "publish.after-sync",
    "alter.after-definition",
    "alter.after-rewrite",
    "resolve.after-write",
    "compact.after-write",
    "compact.after-publish",
    "expire.after-publish",
    "expire.after-snapshot",
    "expire.after-manifest",
    "expire.after-data",
    "clean.after-list",
    "clean.after-publish",
    "clean.after-delete",
    "hold.before-file",
    "hold.after-file",
    "untag.after-unlink",
    "untag.after-data",
)
"""Every point of the store, in the order in which a table's life meets them."""

_reached: dict[str, int] = {}


def reach(point: str) -> None:
    """Say that the process is at ``point``; it dies here, without any clean-up, if a test asked for that."""
    wanted = os.environb.get(_VARIABLE)  # which takes half of the time: a commit asks forty times
    if wanted is None:
        return
    name, _, nth = wanted.decode().partition(":")
    if name != point:
        return
    _reached[point] = _reached.get(point, 0) + 1
    if _reached[point] == int(nth or "1"):
        os.kill(os.getpid(), signal.SIGKILL)
