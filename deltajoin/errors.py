"""What this layer adds to the errors of `upsert.errors`: classes whose reader does something else next.

    UpsertError
    └── CheckpointMismatchError   the checkpoint is another join's or another table's: use a new one

All other errors of a join are those of ``upsert``, ``BrokenPayloadError`` among them.
"""

from upsert.errors import BrokenPayloadError, ConfigurationError

__all__ = ["BrokenPayloadError", "CheckpointMismatchError"]


class CheckpointMismatchError(ConfigurationError):
    """The offset in the checkpoint was written by another join or for another table; nothing was read."""
