"""What a version brings, from CHANGELOG.md: `python scripts/release_notes.py [VERSION]`, by default this one.

A paragraph is one line, since where releases are announced each end of a line is shown.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import deltajoin

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def notes(changelog: str, version: str) -> str:
    r"""The section of a version, under a title of its own, with a line for each point of a list.

    Raises:
        LookupError: the changelog has none.

    >>> print(notes("# Changelog\n\n## 0.2.0\n\n- a\n  b\n- c\n\n## 0.1.0\n\n- d\n", "0.2.0"))
    # deltajoin 0.2.0
    <BLANKLINE>
    - a b
    - c
    <BLANKLINE>
    """
    sections = re.split(r"^## (.*)\n", changelog, flags=re.MULTILINE)[1:]
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        if version in re.split(r"[\s()]+", title):
            joined = re.sub(r"(?<=\S)\n[ ]+(?=\S)", " ", text.strip())
            return f"# deltajoin {version}\n\n{joined}\n"
    known = ", ".join(sections[::2])
    raise LookupError(
        f"CHANGELOG.md: a heading must name version {version!r}, found {known}; write its section"
    )


if __name__ == "__main__":
    print(notes(CHANGELOG.read_text(), *(sys.argv[1:2] or [deltajoin.__version__])), end="")
