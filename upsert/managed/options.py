"""The options with which the Spark format ``upsert-table`` reads and writes (pure).

Scan options follow FLIP-188.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from upsert import options
from upsert.errors import ConfigurationError
from upsert.managed.task_memory import TASK_MEMORY
from upsert.options import Option
from upsert.schema import TableSchema
from upsert.spark.formats import FORMAT
from upsert.store.metadata.stands_for import StandsFor
from upsert.store.metadata.tag_file import checked_name
from upsert.store.paths import table_folder
from upsert.store.predicate import Where, where_from_json
from upsert.store.read.row_metadata import metadata_option
from upsert.store.retention.consumers import DEFAULT_LEASE_S
from upsert.store.table import Table
from upsert.store.table_options import SINK_MATERIALIZE

METADATA_COLUMNS: Final = "metadata.columns"
SCAN_WHERE: Final = "scan.where"
DEFAULT_MAX_ROWS: Final = 1_000_000
ALL_ROWS: Final = 2**63 - 1
"""As `max-rows-per-trigger`: rows are not counted."""

DEFAULT_LEASE_MS: Final = int(DEFAULT_LEASE_S * 1000)


def pinned_state(value: str) -> tuple[int, str]:
    """Id of a snapshot and uuid of its table.

    >>> pinned_state("7@8f14e45f")
    (7, '8f14e45f')
    """
    number, _, uuid = value.partition("@")
    if not number.isascii() or not number.isdigit() or not uuid:
        raise ValueError("the id of a snapshot and the uuid of its table, as id@uuid")
    return int(number), uuid


PATH: Final = Option("path", options.text, "folder of the table; what load() and start() are given")

READ_OPTIONS: Final = (
    PATH,
    Option(
        "scan.mode",
        options.one_of("full", "latest", "from-snapshot", "from-timestamp"),
        "where a stream starts: full = a snapshot, then changes; latest = changes from now on; from-snapshot "
        "and from-timestamp = changes after that state. A batch reads the state that the mode names",
        "full",
        aliases=("log.scan",),
    ),
    Option(
        "scan.source",
        options.one_of("auto", "log", "files"),
        "where a stream reads changes: log = the Kafka log of the table; files = the table's own files; "
        "auto = the log where the table has one",
        "auto",
    ),
    Option(
        "changelog",
        options.one_of("all", "upsert"),
        "what a stream returns from a log without UPDATE_BEFORE: all = every kind of change; upsert = the "
        "newest row of each key, +U or -D, for sinks with the same key",
        "all",
    ),
    Option(
        "state.path",
        options.text,
        "folder for the newest row of each key, which driver and executors share; needed for changelog = all "
        "of a log with 'log.consistency' = 'eventual'",
        None,
    ),
    Option("scan.snapshot-id", options.integer(0), "the state of scan.mode = from-snapshot", None),
    Option("scan.tag-name", options.text, "the same, by the name of a tag", None),
    Option(
        "scan.timestamp-millis",
        options.integer(0),
        "the state of scan.mode = from-timestamp: milliseconds since 1970",
        None,
        aliases=("log.scan.timestamp-mills",),
    ),
    Option(
        "scan.pinned",
        pinned_state,
        "snapshot and table that a batch without a state of its own was analysed with, as id@uuid",
        None,
        set_by="catalog.read",
    ),
    Option(
        "max-rows-per-trigger",
        options.positive_int,
        "changed keys that one micro-batch reads at most; cuts the first load and any larger commit",
        DEFAULT_MAX_ROWS,
    ),
    TASK_MEMORY,
    Option(
        SCAN_WHERE,
        options.text,
        'which rows to read, as JSON: [["day", "=", "2013-01-01"], ["hub", "in", ["JFK", "EWR"]]], or a list '
        "of such lists, of which one must hold, see upsert.store.predicate; files without such rows are not "
        "opened. Of an update a stream returns -U and +U each only if its row passes",
        None,
    ),
    Option(
        "scan.untracked",
        options.one_of("fail", "skip"),
        "a commit with change-tracking = false: fail = the stream stops and names it; skip = the stream "
        "skips it, and from then on its changes may not fit those before",
        "fail",
    ),
    Option(
        "scan.used-columns",
        options.names,
        "the columns that a stream's query uses, where it reads more: only these must still be the ones that "
        "its checkpoint was written with; default: all that are read. SQL says it itself",
        None,
    ),
    Option("row-kind", options.boolean, "whether rows have the column _row_kind; a stream must", True),
    Option(
        METADATA_COLUMNS,
        metadata_option,
        "METADATA columns to add, by their keys snapshot-id, commit-timestamp, bucket and sequence-number: "
        'separated by commas, or as JSON with names of their own: {"version": "snapshot-id"}',
        None,
    ),
    Option(
        "consumer-id",
        options.text,
        "name under which a stream holds the snapshots that a restart would read; default: a random one, "
        "which its checkpoint keeps",
        None,
    ),
    Option(
        "consumer.lease",
        options.duration_ms,
        "how long these snapshots are held after the stream's last renewal; 0 s: none are held",
        DEFAULT_LEASE_MS,
    ),
)
"""Options of ``spark.read`` and ``spark.readStream``."""

OF_STREAMS: Final = tuple(
    one for one in READ_OPTIONS if one.key in ("consumer-id", "consumer.lease", TASK_MEMORY.key)
)
"""Those that every stream of tables has: what it holds, and what a task may take."""

_CHANGES: Final = "a stream gives changes; a batch by table_changes(t, from, to) in SQL, or Table.changes"
_ELSEWHERE: Final = {
    "versionasof": "write 'scan.mode' = 'from-snapshot' and 'scan.snapshot-id'",
    "timestampasof": "write 'scan.mode' = 'from-timestamp' and 'scan.timestamp-millis'",
    "startingversion": "write 'scan.mode' = 'from-snapshot' and 'scan.snapshot-id', the state before",
    "startingtimestamp": "write 'scan.mode' = 'from-timestamp' and 'scan.timestamp-millis'",
    **dict.fromkeys(("readchangefeed", "readchangedata", "endingversion", "endingtimestamp"), _CHANGES),
    **dict.fromkeys(
        ("ignorechanges", "ignoredeletes", "skipchangecommits"),
        "a stream gives each change with its _row_kind; leave it out",
    ),
    **dict.fromkeys(("maxfilespertrigger", "maxbytespertrigger"), "write 'max-rows-per-trigger'"),
    "replacewhere": "write 'partition' of the mode overwrite, or MERGE INTO",
    "overwriteschema": "write CREATE OR REPLACE TABLE … AS SELECT, or 'mergeSchema'",
    **dict.fromkeys(
        ("txnappid", "txnversion"), "use writeStream, or Table.commit with a writer_id and a transaction"
    ),
    **dict.fromkeys(("incremental-between", "incremental-between-timestamp"), _CHANGES),
    "scan.startup.mode": "write 'scan.mode'",
}
"""Options of Delta Lake, Paimon and Fluss, and what is written here."""

_read: Final = partial(options.held, READ_OPTIONS)


@dataclass(frozen=True)
class ReadOptions:
    """What a reader was asked for; ``path`` is absolute.

    ``asked`` are the keys of the options that say something else than their defaults.
    """

    path: str
    scan_mode: str = _read("scan.mode")
    snapshot_id: int | None = _read("scan.snapshot-id")
    timestamp_ms: int | None = _read("scan.timestamp-millis")
    max_rows: int = _read("max-rows-per-trigger")
    row_kind: bool = _read("row-kind")
    metadata: Mapping[str, str] = field(default_factory=dict)
    where: str | None = _read(SCAN_WHERE)
    tag: str | None = _read("scan.tag-name")
    pinned: tuple[int, str] | None = _read("scan.pinned")
    consumer_id: str | None = _read("consumer-id")
    lease_ms: int = _read("consumer.lease")
    skips_untracked: bool = False
    source: str = _read("scan.source")
    changelog: str = _read("changelog")
    state_path: str | None = None
    task_memory: int = _read(TASK_MEMORY.key)
    used: tuple[str, ...] | None = _read("scan.used-columns")
    names_mode: bool = field(default=False, compare=False)
    asked: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """The options that ``given`` says."""
        values = options.parse(FORMAT, READ_OPTIONS, given, _ELSEWHERE)
        _check_goes_with_mode(values, ("scan.snapshot-id", "scan.tag-name"), "from-snapshot")
        _check_goes_with_mode(values, ("scan.timestamp-millis",), "from-timestamp")
        keys = frozenset(map(str.lower, given))
        if TASK_MEMORY.key in keys and "max-rows-per-trigger" not in keys:
            values["max-rows-per-trigger"] = ALL_ROWS
        consumer = values["consumer-id"]
        if consumer is not None:
            checked_name("consumer", consumer)
            if not values["consumer.lease"]:
                raise ConfigurationError(
                    f"{FORMAT}: option 'consumer-id' = {consumer!r} needs a lease, got 'consumer.lease' = "
                    "'0 s'; leave one of them out"
                )
        return cls(
            path=table_folder(values["path"]),
            metadata=values["metadata.columns"] or {},
            skips_untracked=values["scan.untracked"] == "skip",
            state_path=None if values["state.path"] is None else table_folder(values["state.path"]),
            names_mode=not {"scan.mode", "log.scan"}.isdisjoint(keys),
            asked=frozenset(
                one.key for one in READ_OPTIONS if values[one.key] not in (one.default, ALL_ROWS)
            ),
            **options.values_held(cls, values),
        )

    def reads_log_of(self, table: Table) -> bool:
        """Whether a stream reads the log of a table, not its files; refuses a log that is not there."""
        has_log = table.options.log.is_kafka
        if self.source != "log":
            return self.source == "auto" and has_log and not self.metadata
        if not has_log:
            raise ConfigurationError(
                f"{FORMAT}: option 'scan.source' = 'log' needs a table with a log, got {table.name!r}; "
                "ALTER TABLE … SET ('log.system' = 'kafka') gives it one; or leave the option out"
            )
        if self.metadata:
            raise ConfigurationError(
                f"{FORMAT}: option 'scan.source' = 'log' gives no METADATA columns, got "
                f"{', '.join(self.metadata)}; leave one of them out"
            )
        return True

    def beginning_as(self, table: Table) -> ReadOptions:
        """These options; for a stream of the log without a scan mode, with the one that the table says."""
        log = table.options.log
        if self.names_mode or not self.reads_log_of(table):
            return self
        return replace(self, scan_mode=log.scan, timestamp_ms=log.scan_timestamp_ms)

    @property
    def of_log(self) -> str | None:
        """The first option that only the read of a log can follow; None if there is none."""
        if self.source == "log":
            return "scan.source"
        if self.changelog == "upsert":
            return "changelog"
        return None if self.state_path is None else "state.path"

    def where_of(self, schema: TableSchema) -> Where | None:
        """The rows to read of a table with this schema; None for all."""
        return None if self.where is None else where_from_json(self.where, schema)


def _check_goes_with_mode(values: Mapping[str, Any], keys: tuple[str, ...], needed_by: str) -> None:
    mode = values["scan.mode"]
    given = [key for key in keys if values[key] is not None]
    if mode == needed_by and len(given) != 1:
        choice = " or ".join(map(repr, keys))
        found = ", got both" if given else ""
        raise ConfigurationError(f"{FORMAT}: option 'scan.mode' = {mode!r} needs the option {choice}{found}")
    if mode != needed_by and given:
        raise ConfigurationError(
            f"{FORMAT}: option {given[0]!r} needs 'scan.mode' = {needed_by!r}, got 'scan.mode' = {mode!r}"
        )


_CHECKPOINT: Final = "checkpointlocation"
_SPARKS_OWN: Final = frozenset({_CHECKPOINT, "queryname"})


def _stands_for(value: str) -> StandsFor:
    try:
        return StandsFor.from_json(options.json_object(value))
    except (KeyError, TypeError):
        raise ValueError("the versions of tables and a state, as a JSON object") from None


MERGE_SCHEMA: Final = Option(
    "merge-schema",
    options.boolean,
    "whether columns of a batch that the table lacks are added to it, nullable and last, and too narrow "
    "types are widened, in one ALTER TABLE before the rows are written",
    False,
    aliases=("mergeschema",),
)
"""Option of a batch write and of INSERT."""

WRITE_OPTIONS: Final = (
    PATH,
    Option(
        "partition",
        options.json_object,
        'values of partition columns, as JSON: {"day": "2013-01-01"}; the query may lack these columns, all '
        "rows must have these values, and an overwrite replaces only partitions that have them",
        None,
    ),
    Option(
        "partition-overwrite-mode",
        options.one_of("static", "dynamic"),
        "what an overwrite replaces: static = the table, or what 'partition' says; dynamic = of these, the "
        "partitions in which there are rows; default: as spark.sql.sources.partitionOverwriteMode says",
        None,
    ),
    Option(
        "change-tracking",
        options.boolean,
        "whether the commit shows in change streams; default: as table and partitions say",
        None,
    ),
    Option(
        "bucketed",
        options.integer(0),
        "of so many buckets each one's rows come to one task",
        0,
        set_by="catalog.write_changes",
    ),
    Option(
        "micro-batch",
        options.micro_batch,
        "query and number of the micro-batch that a batch write is",
        None,
        set_by="catalog.write_changes",
    ),
    Option(
        "unchanged-since",
        options.integer(0),
        "snapshot from which the rows were computed: a commit after it to one of their keys is a conflict",
        None,
        set_by="UPDATE and DELETE",
    ),
    Option(
        "stands-for",
        _stands_for,
        "versions of its tables that the rows of a materialized view are of then, as JSON",
        None,
        set_by="a refresh",
    ),
    Option(
        "definition",
        options.integer(0),
        "version of the table's definition that the query's columns are of: a running query continues when "
        "columns are added",
        None,
        set_by="catalog.write_changes",
    ),
    MERGE_SCHEMA,
    replace(SINK_MATERIALIZE, default=None),
)
"""Options of ``df.write`` and ``df.writeStream``."""

_write: Final = partial(options.held, WRITE_OPTIONS)


@dataclass(frozen=True)
class WriteOptions:
    """What a writer was asked for; ``path`` is absolute, ``checkpoint`` the query's, if it is told."""

    path: str
    bucketed: int = _write("bucketed")
    micro_batch: tuple[str, int] | None = _write("micro-batch")
    definition: int | None = _write("definition")
    partition: Mapping[str, object] | None = _write("partition")
    overwrite_mode: str | None = _write("partition-overwrite-mode")
    change_tracking: bool | None = _write("change-tracking")
    unchanged_since: int | None = _write("unchanged-since")
    stands_for: StandsFor | None = _write("stands-for")  # noqa: RUF009 - a frozen field
    materialize: str | None = _write(SINK_MATERIALIZE.key)
    merge_schema: bool = _write("merge-schema")
    checkpoint: str | None = None

    def check_for_a_stream(self) -> None:
        """Refuse what only a batch may ask for: columns to add, and an overwrite mode."""
        if self.merge_schema:
            raise ConfigurationError(
                f"{FORMAT}: option 'merge-schema' must go with a batch write, got true for a stream; ALTER "
                "TABLE, and start the stream again"
            )
        self.check_adds_rows()

    def check_adds_rows(self) -> None:
        """Refuse an overwrite mode for a write that adds rows."""
        if self.overwrite_mode is not None:
            raise ConfigurationError(
                f"{FORMAT}: option 'partition-overwrite-mode' must go with a batch write of mode overwrite, "
                f"got {self.overwrite_mode!r} for another; leave it out, no stream overwrites partitions"
            )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """The options that ``given`` says; those of Spark's own writer are ignored."""
        own = {key: value for key, value in given.items() if key.lower() not in _SPARKS_OWN}
        values = options.parse(FORMAT, WRITE_OPTIONS, own, _ELSEWHERE)
        held = options.values_held(cls, values)
        checkpoint = next((text for key, text in given.items() if key.lower() == _CHECKPOINT), None)
        return cls(table_folder(values["path"]), **held, checkpoint=checkpoint)
