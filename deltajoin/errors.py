"""What this layer adds to the errors of `upsert.errors`: classes whose reader does something else next.

    UpsertError
    ├── CheckpointMismatchError   the checkpoint is another join's or another table's: use a new one
    └── LookupFailedError         a source refused, or answered nonsense: correct the source or the call
        └── LookupUnavailableError    a source did not answer in time: try again later

All other errors of a join are those of ``upsert``, ``BrokenPayloadError`` among them.
"""

from dataclasses import dataclass

from upsert.errors import BrokenPayloadError, ConfigurationError, UpsertError

__all__ = [
    "BrokenPayloadError",
    "CheckpointMismatchError",
    "LookupFailedError",
    "LookupUnavailableError",
    "Refused",
]


@dataclass(frozen=True)
class Refused:
    """Why a plan or a join cannot be right as it is, and what its author can do; not an error yet."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


class CheckpointMismatchError(ConfigurationError):
    """The offset in the checkpoint was written by another join or for another table; nothing was read."""


class LookupFailedError(UpsertError):
    """A lookup source refused a request, or its answer makes no sense; asking again would not help."""


class LookupUnavailableError(LookupFailedError):
    """A lookup source did not answer, or said that it cannot now; the same request may succeed later.

    Attributes:
        retry_after_s: seconds that the source asked to be left alone, or None.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
