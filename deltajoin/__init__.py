"""Exact delta joins: join the changes of managed tables by looking the others up, with no state."""

from deltajoin.checkpoint import reached
from deltajoin.errors import BrokenPayloadError, CheckpointMismatchError
from deltajoin.source import register
from deltajoin.spec import DeltaJoinSpec, Side
from deltajoin.stream import read_join

__all__ = [
    "BrokenPayloadError",
    "CheckpointMismatchError",
    "DeltaJoinSpec",
    "Side",
    "reached",
    "read_join",
    "register",
]
