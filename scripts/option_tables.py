"""Write docs/kafka-options.md from the declarations: `python scripts/option_tables.py`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from upsert.formats.base import FORMATS, format_named
from upsert.kafka.options import OPTIONS
from upsert.log.log_options import LOG_OPTIONS
from upsert.options import Option

TARGET = Path(__file__).parents[1] / "docs" / "kafka-options.md"
HEAD = """# Options of Kafka tables

Written by `python scripts/option_tables.py` from `upsert/kafka/options.py`, `upsert/log/log_options.py` and
`upsert/formats/`.

`properties.*` (or `kafka.*`, of a log `log.kafka.*`) goes to the Kafka client, librdkafka. Durations:
`250 ms`, `10 s`, `5 min`.
"""
LOG_HEAD = """## Log of a managed table

Options of a table without `connector`, see [kafka-log.md](kafka-log.md); in a session they begin with
`table-storage.`.
"""
FORMATS_HEAD = """## Formats

Prefixed with `key.<format>.` or `value.<format>.`; without `value.` they mean the value.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for connector, declared in OPTIONS.items():
        parts.append(f"## Connector `{connector}`\n\n{table(declared)}")
    parts.append(f"{LOG_HEAD}\n{table(LOG_OPTIONS)}")
    parts.append(FORMATS_HEAD)
    for name in FORMATS:
        options = format_named(name, "docs").options
        parts.append(f"### `{name}`\n\n{table(options) if options else 'No options.' + chr(10)}")
    return "\n".join(parts)


def table(declared: Iterable[Option]) -> str:
    """Options as a Markdown table."""
    rows = [
        f"| {names(option)} | {default(option)} | {option.doc.replace('|', chr(92) + '|')} |"
        for option in declared
    ]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows, ""])


def names(option: Option) -> str:
    """The key and its aliases."""
    return ", ".join(f"`{name}`" for name in (option.key, *option.aliases))


def default(option: Option) -> str:
    """The default as a user would write it."""
    if option.is_required:
        return "required"
    if option.default in (None, "", ()):
        return ""
    value = option.default
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    TARGET.write_text(page())
