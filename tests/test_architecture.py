"""ARCHITECTURE.md is true: rooms exist, ways lead from room to room, and retired words stay away."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.helpers import REPOSITORY

PAGE = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
PRODUCT = ("upsert", "deltajoin", "planner")
ROOM = re.compile(r"`((?:upsert|deltajoin|planner|examples|bench|tests)/[\w/.*-]*)`")
WAY = re.compile(r"^## The way of ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
WAYS = {title: re.findall(r"^\d+\. `([\w/]+\.py)`", text, re.MULTILINE) for title, text in WAY.findall(PAGE)}
RETIRED = re.findall(r"^\| [^|]+ \| [^|]+ \| ([^|]+) \|$", PAGE.partition("## Glossary")[2], re.MULTILINE)
WORDS = [word.strip() for cell in RETIRED[2:] for word in cell.split(",") if word.strip()]


@cache
def sources() -> dict[Path, str]:
    """Where the retired words stay away: the product, its examples, and the pages that users read."""
    files = [path for package in (*PRODUCT, "examples") for path in (REPOSITORY / package).rglob("*.py")]
    pages = [*(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "README.md"]
    return {path: path.read_text(encoding="utf-8") for path in sorted([*files, *pages])}


IMPORT = re.compile(r"^[ ]*from ([\w.]+) import (?:\(([^)]*)\)|([^(\n]*))$", re.MULTILINE)
"""Faster than Python's own parser, by ten times."""


@cache
def imports(path: Path) -> set[str]:
    """Files of the product that a file imports, wherever in it."""
    found = set()
    for module, in_brackets, on_the_line in IMPORT.findall(path.read_text(encoding="utf-8")):
        base = module.replace(".", "/")
        names = re.findall(r"(\w+)(?: as \w+)?", in_brackets or on_the_line.partition("#")[0])
        found |= {f"{base}.py", *(f"{base}/{name}.py" for name in names)}
    return found


def test_rooms_that_the_page_names_exist() -> None:
    rooms = set(ROOM.findall(PAGE))
    assert len(rooms) > 40
    assert [room for room in sorted(rooms) if not list(REPOSITORY.glob(room.rstrip("/")))] == []


def test_the_page_shows_its_ways() -> None:
    ways = ["a written row", "a key that is looked up", "a plan", "a refreshed view", "a statement"]
    assert list(WAYS) == ways
    assert all(len(rooms) >= 4 for rooms in WAYS.values()), WAYS


@pytest.mark.parametrize("way", WAYS)
def test_a_way_leads_from_its_entrance_and_never_back(way: str) -> None:
    """Each room is reached by imports from the first one, which none of them imports."""
    entrance, *rooms = WAYS[way]
    reached: set[str] = set()
    ahead = [entrance]
    while ahead:
        found = {room for room in imports(REPOSITORY / ahead.pop()) if (REPOSITORY / room).exists()} - reached
        reached |= found
        ahead += found
    assert set(rooms) <= reached
    assert entrance not in reached


@cache
def lowered() -> dict[Path, str]:
    """The same for a quick look."""
    return {path: text.lower() for path, text in sources().items()}


@pytest.mark.parametrize("word", WORDS)
def test_a_retired_word_stays_away(word: str) -> None:
    pattern = re.compile(rf"(?<![\w'-]){re.escape(word)}(?![\w-])", re.IGNORECASE)
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}"
        for path, text in sources().items()
        if word.lower() in lowered()[path] and pattern.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)
