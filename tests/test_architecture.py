"""ARCHITECTURE.md is true: rooms exist, ways lead from room to room, and retired words stay away."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import REPOSITORY

PAGE = (REPOSITORY / "ARCHITECTURE.md").read_text()
PRODUCT = ("upsert", "deltajoin", "planner")
ROOM = re.compile(r"`((?:upsert|deltajoin|planner|examples|bench|tests)/[\w/.*-]*)`")
WAY = re.compile(r"^## The way of ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
WAYS = {title: re.findall(r"^\d+\. `([\w/]+\.py)`", text, re.MULTILINE) for title, text in WAY.findall(PAGE)}
RETIRED = re.findall(r"^\| [^|]+ \| [^|]+ \| ([^|]+) \|$", PAGE.partition("## Glossary")[2], re.MULTILINE)
WORDS = [word.strip() for cell in RETIRED[2:] for word in cell.split(",") if word.strip()]


def sources() -> Iterator[Path]:
    """Where the retired words stay away: the product, its examples, and the pages that users read."""
    for package in (*PRODUCT, "examples"):
        yield from sorted((REPOSITORY / package).rglob("*.py"))
    yield from sorted((REPOSITORY / "docs").glob("*.md"))
    yield REPOSITORY / "README.md"


def imports(path: Path) -> set[str]:
    """Files of the product that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            base = node.module.replace(".", "/")
            found |= {f"{base}.py", *(f"{base}/{name.name}.py" for name in node.names)}
    return found


@pytest.mark.parametrize("room", sorted(set(ROOM.findall(PAGE))))
def test_a_room_that_the_page_names_exists(room: str) -> None:
    assert list(REPOSITORY.glob(room.rstrip("/"))), room


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


@pytest.mark.parametrize("word", WORDS)
def test_a_retired_word_stays_away(word: str) -> None:
    pattern = re.compile(rf"(?<![\w'-]){re.escape(word)}(?![\w-])", re.IGNORECASE)
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}"
        for path in sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)
