"""Write the reference of SQL in docs/ from the syntax of statements: `python scripts/sql_reference.py`."""

from __future__ import annotations

import re
from pathlib import Path

from upsert.sql.syntax import PARTS, SYNTAX, Syntax

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "sql-reference.md"

HEAD = """\
# SQL reference

<!-- Written by scripts/sql_reference.py from upsert/sql/syntax.py. -->

Every statement that [`catalog.sql`](sql.md) and [`deltajoin sql`](cli.md) take. Words in capital letters and
signs are written as they are, the words in any case. Other words stand for something of yours, or for one of
the [parts](#parts-of-statements) at the end. `[…]` may be left out. Of `{… | …}` one is written. `…` repeats
what is before it. A table is `table`, `database.table` or `catalog.database.table`, and any name may be in
backquotes. Queries are [Spark's SQL](sql.md#all-statements).
"""


def shown(text: str) -> str:
    """A syntax as people write it: no blanks within brackets and before commas.

    >>> shown("DROP TABLE [ IF EXISTS ] table ( column [, …] )")
    'DROP TABLE [IF EXISTS] table (column [, …])'
    """
    tight = re.sub(r"(?<=[\[({]) | (?=[\])},;])", "", text)
    return re.sub(r" < ", "<", re.sub(r" >", ">", re.sub(r" \. ?", ".", tight)))


def heading(page: str) -> str:
    """The heading that ``name.md#anchor`` leads to, or the title of ``name.md``."""
    name, _, anchor = page.partition("#")
    found = re.findall(r"^#+ (.*)$", (DOCS / name).read_text(), re.MULTILINE)
    return next(title for title in found if not anchor or slug(title) == anchor)


def slug(title: str) -> str:
    """What mkdocs calls a heading in links."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def section(syntax: Syntax) -> str:
    """What the page says of one statement."""
    return (
        f"## {syntax.title}\n\n{syntax.meaning} See [{heading(syntax.page)}]({syntax.page}).\n\n"
        f"```text\n{shown(syntax.text)}\n```\n\n```sql\n{syntax.example}\n```\n"
    )


def page() -> str:
    """The page."""
    parts = [f"### {name}\n\n```text\n{shown(text)}\n```\n" for name, text in PARTS.items()]
    return "\n".join([HEAD, *map(section, SYNTAX), "## Parts of statements\n", *parts])


if __name__ == "__main__":
    PAGE.write_text(page())
