"""Exact delta joins: join the changes of two managed tables by looking the other side up, with no state."""

from deltajoin.errors import BrokenPayloadError, CheckpointMismatchError
from deltajoin.forms.shuffled import read_join
from deltajoin.source import register
from deltajoin.spec import DeltaJoinSpec, Side

__all__ = [
    "BrokenPayloadError",
    "CheckpointMismatchError",
    "DeltaJoinSpec",
    "Side",
    "read_join",
    "register",
]
