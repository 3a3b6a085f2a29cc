"""Files cut into sections: groups of files whose keys overlap, with nothing in common between groups (pure).

Only files of one section have to be merged with each other. What is alone in its section needs no rewriting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from upsert.store.file_entry import FileEntry

Section = tuple[FileEntry, ...]


def sections(files: Iterable[FileEntry]) -> list[Section]:
    """The files by section, ascending by key; files that share just one key are in one section."""
    found: list[list[FileEntry]] = []
    last = b""
    for entry in sorted(files, key=lambda entry: (entry.first_key, entry.last_key)):
        if found and entry.first_key <= last:
            found[-1].append(entry)
            last = max(last, entry.last_key)
        else:
            found.append([entry])
            last = entry.last_key
    return [tuple(section) for section in found]


def overlapping(files: Iterable[FileEntry], others: Sequence[FileEntry]) -> list[FileEntry]:
    """Of ``files`` those whose keys may lie between the first and the last key of all ``others``."""
    if not others:
        return []
    first = min(entry.first_key for entry in others)
    last = max(entry.last_key for entry in others)
    return [entry for entry in files if entry.first_key <= last and first <= entry.last_key]
