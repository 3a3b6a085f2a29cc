"""Write the pages of options in docs/ from the declarations: `python scripts/option_tables.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from deltajoin import settings
from deltajoin.spark import source as delta_join_source
from upsert.catalog import namespace, session
from upsert.delta import table as delta
from upsert.formats.base import FORMATS, format_named
from upsert.kafka.options import OPTIONS
from upsert.lookups import http
from upsert.lookups.options import LOOKUP_OPTIONS
from upsert.managed.options import READ_OPTIONS, WRITE_OPTIONS
from upsert.managed.task_memory import task_memory
from upsert.options import (
    Integer,
    OneOf,
    Option,
    boolean,
    byte_size,
    duration_ms,
    json_object,
    names,
    positive_duration_ms,
)
from upsert.postgres import table as postgres
from upsert.store import table_options
from upsert.store.log_options import LOG_OPTIONS

MILLISECONDS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000, "ms": 1}
BYTES = {"gb": 1 << 30, "mb": 1 << 20, "kb": 1 << 10, "bytes": 1}

DOCS = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True)
class Section:
    """A part of the page: its title, where its options are given, and their declarations."""

    title: str
    where: str
    options: Iterable[Option]


SECTIONS = (
    Section(
        "Managed tables",
        "`CREATE TABLE … WITH ('bucket' = '4')`, `ALTER TABLE … SET`, `catalog.create_table(…, options=…)`. "
        "In a session, `table-storage.<option>` is the default of new tables. `fields.<column>.…` are on the "
        "page on [merge engines](merge-engines.md), `log.kafka.…` goes to the "
        "[Kafka client of a log](kafka-log.md).",
        table_options.OPTIONS,
    ),
    Section(
        "Reading a managed table",
        'Options of `spark.read` and `spark.readStream` with `format("upsert-table")`; of `catalog.read` and '
        "`catalog.read_changes` as arguments, with `_` for `.` and `-`; of a query in SQL after the table's "
        "name: `FROM orders /*+ OPTIONS('scan.mode' = 'latest') */`.",
        READ_OPTIONS,
    ),
    Section(
        "Writing a managed table",
        'Options of `df.write` and `df.writeStream` with `format("upsert-table")`; of an `INSERT` in SQL '
        "after the table's name.",
        WRITE_OPTIONS,
    ),
    Section(
        "Joins",
        "Arguments of `planner.optimize`, `planner.explain` and `deltajoin.read_join`, with `_` for `.` and "
        f"`-`; in a session with the prefix `{settings.SESSION_PREFIX}`. The other names are those of Flink. "
        "The page on [joins](joins.md) says when to use them.",
        settings.OPTIONS,
    ),
    Section(
        "The source of a join",
        f"Options of the Spark format `{delta_join_source.FORMAT}`, which `planner.optimize` and "
        "`read_join` set.",
        delta_join_source.OPTIONS,
    ),
    Section("Sessions of SQL", "`SET 'key' = 'value'`, `catalog.options[key] = value`.", session.OPTIONS),
    Section(
        "Tables of PostgreSQL",
        "`CREATE TABLE … WITH ('connector' = 'postgres', …)`: [the page](postgres.md) says what is "
        "written when. For joins that look rows up there are those of [lookups](#lookups) too.",
        [option for option in postgres.OPTIONS if option not in LOOKUP_OPTIONS],
    ),
    Section(
        "Tables of web services",
        "`CREATE TABLE … WITH ('connector' = 'http', …)`, and those of [lookups](#lookups). "
        "`header.<name>` is sent with each request.",
        [option for option in http.OPTIONS if option not in LOOKUP_OPTIONS],
    ),
    Section(
        "Lookups",
        "Of tables of PostgreSQL and of web services: the page on [lookup sources](lookup-sources.md#in-sql) "
        "says what is looked up when.",
        LOOKUP_OPTIONS,
    ),
    Section(
        "Tables of Delta Lake",
        "`CREATE TABLE … WITH ('connector' = 'delta', …)` with a PRIMARY KEY, see [the page](delta.md). "
        "Options of the mirror begin with `mirror.`. Without a key, the options are those of Delta's format.",
        delta.OPTIONS,
    ),
    Section("Catalogs", "`CREATE CATALOG name WITH (…)`.", namespace.OPTIONS),
)
OPTIONS_HEAD = """# Options

Written by `python scripts/option_tables.py` from the declarations in the code. Options of Kafka tables,
of the log of a managed table and of record formats are on [a page of their own](kafka-options.md).
An unknown option is refused, and the nearest known one is named.

The type is a list of the values that are allowed, or: boolean (`true`, `false`), integer,
duration (`250 ms`, `10 s`, `5 min`, `3 d`), size (`64 kb`, `128 mb`, `1 gb`), columns (names with commas
between them), JSON, text.
"""
HEAD = """# Options of Kafka tables

Written by `python scripts/option_tables.py` from `upsert/kafka/options.py`, `upsert/store/log_options.py` and
`upsert/formats/`.

`properties.*` (or `kafka.*`, of a log `log.kafka.*`) goes to the Kafka client, librdkafka, but for what loads
libraries, runs commands or sends files: the environment variable `UPSERT_KAFKA_ALLOWED_PROPERTIES` of driver
and executors, a list of names separated by commas, allows these (decision
[0032](decisions/0032-what-a-table-may-tell-the-kafka-client.md)). Properties of Java's client are
[translated or refused](kafka.md#properties-of-javas-client). The types are those of
[the other options](options.md).
"""
LOG_HEAD = """## Log of a managed table

Options of a table without `connector`, see [kafka-log.md](kafka-log.md); in a session they begin with
`table-storage.`.
"""
FORMATS_HEAD = """## Formats

Prefixed with `key.<format>.` or `value.<format>.`; without `value.` they mean the value, as
`'json.ignore-parse-errors' = 'true'`. A format has the options of each heading that names it.
"""


def options_page() -> str:
    """The page of all options that are not Kafka's."""
    sections = (f"## {part.title}\n\n{part.where}\n\n{table(part.options)}" for part in SECTIONS)
    return "\n".join((OPTIONS_HEAD, *sections))


def kafka_page() -> str:
    """The page of the options of Kafka tables, logs and formats."""
    formats = {name: format_named(name, "docs").options for name in FORMATS}
    parts = [HEAD]
    parts += [f"## {title}\n\n{table(found)}" for title, found in shared(OPTIONS, "Connector")]
    parts.append(f"{LOG_HEAD}\n{table(LOG_OPTIONS)}")
    parts.append(FORMATS_HEAD)
    parts += [f"### {title}\n\n{table(found)}" for title, found in shared(formats, "")]
    return "\n".join(parts)


def shared(owners: Mapping[str, Iterable[Option]], word: str) -> list[tuple[str, list[Option]]]:
    """The options of connectors or formats, each once: those that the same ones have, below their names."""
    found: dict[tuple[str, ...], list[Option]] = {}
    for option in dict.fromkeys(option for declared in owners.values() for option in declared):
        having = tuple(name for name, declared in owners.items() if option in declared)
        found.setdefault(having, []).append(option)
    ordered = sorted(found.items(), key=lambda one: (-len(one[0]), one[0]))
    return [
        (f"{word}{'s' * (word != '' and len(having) > 1)} {listed(*having)}".strip(), options)
        for having, options in ordered
    ]


def table(declared: Iterable[Option]) -> str:
    """Options as a Markdown table; those that no user sets are named below it."""
    declared = list(declared)
    rows = [
        f"| {listed(option.key, *option.aliases)} | {type_of(option)} | {default(option)} | "
        f"{option.doc.replace('|', chr(92) + '|')} |"
        for option in declared
        if not option.set_by
    ]
    internal = listed(*(option.key for option in declared if option.set_by))
    note = [f"Set by other calls, not by you: {internal}.", ""] if internal else []
    return "\n".join(["| option | type | default | meaning |", "|---|---|---|---|", *rows, "", *note])


def listed(*names: str) -> str:
    """Names as code."""
    return ", ".join(f"`{name}`" for name in names)


TYPES = {
    boolean: "boolean",
    duration_ms: "duration",
    positive_duration_ms: "duration",
    byte_size: "size",
    task_memory: "size",
    names: "columns",
    json_object: "JSON",
}


def type_of(option: Option) -> str:
    """What a value is: one of some words, or a type."""
    match option.convert:
        case OneOf(choices):
            return listed(*choices)
        case Integer():
            return "integer"
        case convert:
            return TYPES.get(convert, "text")


def default(option: Option) -> str:
    """The default as a user would write it."""
    if option.is_required:
        return "required"
    value = option.default
    if value in (None, "", (), {}):
        return ""
    if option.convert in (duration_ms, positive_duration_ms):
        return f"`{in_units(value, MILLISECONDS)}`"
    if option.convert in (byte_size, task_memory):
        return f"`{in_units(value, BYTES)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def in_units(value: int, units: Mapping[str, int]) -> str:
    """A number in the largest unit that it is a multiple of.

    >>> in_units(5_400_000, MILLISECONDS)
    '90 min'
    """
    if value == 0:
        return "0"
    unit = next(unit for unit, size in units.items() if value % size == 0)
    return f"{value // units[unit]} {unit}"


PAGES = {"options.md": options_page, "kafka-options.md": kafka_page}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
