"""What is wrong with the files of a checkpoint that Spark reads when a query starts.

Spark goes on from the newest file of ``offsets`` and the one before it, and from the newest of ``commits``.
Of one that is missing or damaged it tells, if anything, what its parser did not like, and not which it is.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

_LOCATION: Final = re.compile(r"(?s)(?P<scheme>[^/:]+):(?://(?P<host>[^/]*))?(?P<path>.*)")
_FIRST_LINE: Final = re.compile(r"v[1-9][0-9]*")


def damage_in(checkpoint: str) -> str | None:
    r"""The file of a checkpoint on the local disk that is missing or damaged, and how; None if none is.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> damage_in(folder)
    >>> os.mkdir(f"{folder}/offsets")
    >>> with open(f"{folder}/offsets/0", "w") as file:
    ...     _ = file.write('v1\n{"batchWatermarkMs":0}\n{"lo')
    >>> damage_in(folder).removeprefix(folder)
    '/offsets/0: line 3 is no whole JSON'
    >>> with open(f"{folder}/offsets/0", "w") as file:
    ...     _ = file.write('v1\n{"batchWatermarkMs":0}\n{"topic":"a\u2028b"}')
    >>> damage_in(folder)
    """
    # in this order: a query that is just ending plans a micro-batch before it is done
    done, planned = (_numbers(os.path.join(checkpoint, log)) for log in ("commits", "offsets"))
    if not planned and not done:
        return None
    newest, committed = max(planned, default=-1), max(done, default=-1)
    for number in (newest - 1, newest, committed):
        path = os.path.join(checkpoint, "offsets", str(number))
        if number < max(0, newest - 1):
            continue
        if number not in planned:
            return f"{path}: it is missing"
        if (found := _wrong_with(path, 3)) is not None:
            return f"{path}: {found}"
    path = os.path.join(checkpoint, "commits", str(committed))
    if committed >= 0 and (found := _wrong_with(path, 2)) is not None:
        return f"{path}: {found}"
    return None


_UNFINISHED: Final = re.compile(r"\.{1,2}0\.[0-9a-f-]{36}\.tmp(\.crc)?")


def left_of_first_plan(checkpoint: str) -> list[str]:
    """Files of a query that has ended while Spark wrote its first micro-batch down, so that none is planned.

    Spark has no use for them, and refuses to start with a checkpoint where they are.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> os.mkdir(f"{folder}/offsets")
    >>> with open(f"{folder}/offsets/.0.0b6a3ea5-6a7c-4a68-9d1c-2d0f3c7b9f10.tmp", "w"):
    ...     [path.removeprefix(folder) for path in left_of_first_plan(folder)]
    ['/offsets/.0.0b6a3ea5-6a7c-4a68-9d1c-2d0f3c7b9f10.tmp']
    """
    folder = os.path.join(checkpoint, "offsets")
    with suppress(OSError):
        names = os.listdir(folder)
        if all(map(_UNFINISHED.fullmatch, names)):
            return [os.path.join(folder, name) for name in names]
    return []


def local_folder(location: str) -> str | None:
    """The folder that a checkpoint's location names, if that may be on the local disk.

    What is behind ``file:`` is a path as it is, no URL: so Hadoop reads it.

    >>> local_folder("file:///data/50%20#1"), local_folder("/data/c"), local_folder("s3a://bucket/c")
    ('/data/50%20#1', '/data/c', None)
    """
    found = _LOCATION.fullmatch(location)
    if found is None:
        return location
    return found["path"] if found["scheme"] == "file" and found["host"] in (None, "", "localhost") else None


def query_of(folder: str) -> str | None:
    """The id of the query whose checkpoint a folder of this machine is; None where it does not tell one.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> query_of(folder)
    >>> with open(f"{folder}/metadata", "w") as file:
    ...     _ = file.write('{"id":"0b6a3ea5-6a7c-4a68-9d1c-2d0f3c7b9f10"}')
    >>> query_of(folder)
    '0b6a3ea5-6a7c-4a68-9d1c-2d0f3c7b9f10'
    """
    found: str | None = json_in(folder, "metadata").get("id")
    return found


def json_in(folder: str, name: str) -> Mapping[str, Any]:
    """What a small file of a checkpoint says; nothing if it is not there, or no JSON object."""
    with suppress(OSError, ValueError):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            found = json.load(file)
        return found if isinstance(found, dict) else {}
    return {}


def _numbers(folder: str) -> set[int]:
    with suppress(OSError):
        return {int(name) for name in os.listdir(folder) if name.isdecimal()}
    return set()


def _wrong_with(path: str, lines: int) -> str | None:
    """What is wrong with a file of a log that must have so many lines."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode()
    except OSError:  # Spark says so, with the path
        return None
    except UnicodeDecodeError:
        return "it is no text"
    found = text.rstrip("\n").split("\n")  # JSON may have what ends a line elsewhere
    if not text:
        return "it is empty"
    if not _FIRST_LINE.fullmatch(found[0]):
        return f"line 1 must be a version as 'v1', got {found[0][:20]!r}"
    if found[0] != "v1":
        return None  # of another release of Spark
    if len(found) < lines:
        return f"it must have {lines} lines, it has {len(found)}"
    for number, line in enumerate(found[1:], 2):
        if line.startswith("{"):
            try:
                json.loads(line)
            except ValueError:
                return f"line {number} is no whole JSON"
    return None
