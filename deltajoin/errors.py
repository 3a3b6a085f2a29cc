"""What this layer adds to the errors of `upsert.errors`: classes whose reader does something else next.

    UpsertError
    ├── CheckpointMismatchError   the checkpoint is another join's or another table's: use a new one
    └── BrokenPayloadError        rows were damaged on their way to the join: run the batch again

All other errors of a join are those of the tables that it reads.
"""

from upsert.errors import ConfigurationError, UpsertError


class CheckpointMismatchError(ConfigurationError):
    """The offset in the checkpoint was written by another join or for another table; nothing was read."""


class BrokenPayloadError(UpsertError):
    """Changes that reached the join are not what its source sent; the micro-batch emitted nothing."""
