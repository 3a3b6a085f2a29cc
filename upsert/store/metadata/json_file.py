"""Reading the small files in which a table says something in JSON, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from upsert.errors import ConfigurationError, CorruptTableError
from upsert.store.checksums import parse_versioned, subject_of
from upsert.store.storage import storage_of

T = TypeVar("T")


def read(
    root: str, uuid: str, name: str, make: Callable[[dict[str, Any]], T], must: str, remedy: str
) -> T | None:
    """What ``make`` makes of a file's JSON values; None if the file is not there.

    ``must`` and ``remedy`` are for messages: what must hold of the values, and what to do where it does not.

    Raises:
        CorruptTableError: the file is damaged, or ``make`` does not take what it says.
    """
    path = os.path.join(root, name)
    try:
        content = storage_of(path).read(path)
    except FileNotFoundError:
        return None
    value = parse_versioned(content, path, subject_of(uuid, name))
    try:
        return make(value)
    except (KeyError, TypeError, ValueError, ConfigurationError) as cause:
        raise CorruptTableError(f"{path}: {must}, got {cause!r}; {remedy}") from cause
