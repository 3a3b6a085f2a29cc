"""The options of a managed table, as WITH (…) names them (pure).

Follows FLIP-188. Options of compaction and ``file.…``, but ``file.format``, have the names that they have in
Paimon, its successor. Those of a table's log are declared in ``log_options``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from upsert import options, types
from upsert.errors import ConfigurationError, SchemaError
from upsert.options import Option
from upsert.schema import TableSchema
from upsert.store import log_options
from upsert.store.files.formats import FORMATS, format_called
from upsert.store.files.formats.base import Compression, FileForm, refuse_depth
from upsert.store.log_options import LOG_OPTIONS, LogOptions
from upsert.store.retention import partition_time, policy
from upsert.store.retention.partition_time import PARTITION_OPTIONS, PartitionAge
from upsert.store.retention.policy import Retention
from upsert.store.rows import merge_rules
from upsert.store.rows.merge_rules import MERGE_OPTIONS, PLAIN, MergeRules, with_names

_GREATEST_LEVEL: Final = 22
_CODECS: Final = tuple(dict.fromkeys(codec for format_ in FORMATS for codec in format_.codecs))


def _zstd_level(value: str) -> int:
    level = options.positive_int(value)
    if level > _GREATEST_LEVEL:
        raise ValueError(f"an integer from 1 to {_GREATEST_LEVEL}")
    return level


def _file_form(owner: str, values: Mapping[str, Any], schema: TableSchema) -> FileForm:
    format_ = format_called(values["file.format"])
    codec = values["file.compression"] or format_.codecs[0]
    if codec not in format_.codecs:
        raise ConfigurationError(
            f"{owner}: option 'file.compression' of format {format_.name!r} must be one of "
            f"{', '.join(format_.codecs)}, got {codec!r}"
        )
    level = values["file.compression.zstd-level"]
    if level is not None and (codec != "zstd" or not format_.has_levels):
        raise ConfigurationError(
            f"{owner}: option 'file.compression.zstd-level' must go with zstd in arrow or parquet, got "
            f"{codec!r} in {format_.name!r}; leave it out"
        )
    for column in schema.arrow:
        if reason := refuse_depth(column, format_.name) or format_.refusal(column):
            raise SchemaError(f"{owner}: file.format {format_.name!r}: {reason}")
    return FileForm(format_.name, Compression(codec, level))


SINK_MATERIALIZE: Final = Option(
    "sink.materialize",
    options.one_of("auto", "force", "none"),
    "whether a sink with a key keeps all rows of each key, to write the newest one that remains: auto = if "
    "the key does not tell the rows of the query apart; force = always; none = never",
    "auto",
)

MATERIALIZED_VIEW: Final = Option(
    "materialized-view",
    options.text,
    "the query whose rows the table holds, as JSON",
    None,
    set_by="CREATE MATERIALIZED VIEW",
)

VIEW_REFRESH: Final = Option(
    "refresh",
    options.one_of("auto", "incremental", "full"),
    "how a materialized view is refreshed: incremental = by changed rows, refused for a query that always "
    "needs all rows; full = by all rows; auto = by changed rows where that is possible and takes less time",
    "auto",
)

TARGET_BYTES: Final = 128 << 20
"""A file is written from memory, in several times its size: a larger run is written as several files."""

OPTIONS: Final = (
    Option(
        "bucket",
        options.positive_int,
        "buckets of each partition, at most 1 000 000; ALTER TABLE … SET brings all rows into another number",
        1,
    ),
    Option("bucket-key", options.names, "columns whose hash gives the bucket; default: the primary key", ()),
    Option("change-tracking", options.boolean, "whether commits show in change streams", True),
    Option("write-only", options.boolean, "never compact after a commit; call compact() elsewhere", False),
    Option(
        "num-sorted-run.compaction-trigger",
        options.integer(2),
        "sorted runs of a bucket that start a compaction",
        8,
        aliases=("universal_sort_run_num_compaction_trigger",),
    ),
    Option(
        "compaction.max-size-amplification-percent",
        options.positive_int,
        "newer runs may have this share of the oldest run's size before all are merged",
        200,
        aliases=("universal_max_size_amplification_percent",),
    ),
    Option(
        "compaction.size-ratio",
        options.integer(0),
        "percent by which runs count as equally large when merging",
        1,
        aliases=("universal_size_ratio",),
    ),
    Option(
        "compaction.policy",
        options.one_of("universal", "leveled"),
        "universal: few bytes written; leveled: few runs to read",
        "universal",
    ),
    Option(
        "level0-file-num-compaction-trigger",
        options.positive_int,
        "leveled: commits on level 0 of a bucket that are merged into level 1",
        4,
        aliases=("level0_file_num_compaction_trigger",),
    ),
    Option(
        "max-bytes-for-level-base",
        options.byte_size,
        "leveled: size of level 1 of a bucket from which on files go to level 2",
        256 << 20,
        aliases=("max_bytes_for_level_base",),
    ),
    Option(
        "max-bytes-for-level-multiplier",
        options.integer(2),
        "leveled: how many times larger than the one before it each further level may be",
        10,
        aliases=("max_bytes_for_level_multiplier",),
    ),
    Option(
        "target-file-size",
        options.byte_size,
        "size of the files that a compaction writes; it takes about five times as much memory",
        TARGET_BYTES,
    ),
    Option(
        "snapshot.num-retained.min",
        options.positive_int,
        "newest states that commits never expire, however old they are",
        policy.DEFAULT_MIN,
    ),
    Option(
        "snapshot.num-retained.max",
        options.positive_int,
        "states beyond so many newest ones expire at once; default: no such limit",
        None,
    ),
    Option(
        "snapshot.time-retained",
        options.duration_ms,
        "how long a state can still be read after it was replaced; tags and consumers keep it longer",
        policy.DEFAULT_AGE_MS,
    ),
    Option(
        "snapshot.expire.limit",
        options.positive_int,
        "snapshots that one commit expires at most",
        policy.DEFAULT_LIMIT,
    ),
    *PARTITION_OPTIONS,
    SINK_MATERIALIZE,
    MATERIALIZED_VIEW,
    VIEW_REFRESH,
    # a change of these holds for new files, and compaction brings the others to it
    Option(
        "file.format",
        options.one_of(*(format_.name for format_ in FORMATS)),
        "format of new data files: arrow is memory-mapped, for fast lookups; the others are smaller, and "
        "other programs read them",
        FORMATS[0].name,
    ),
    Option(
        "file.compression",
        options.one_of(*_CODECS),
        "codec of new data files; default: narrow for arrow, zstd for parquet and orc, deflate for avro",
        None,
    ),
    Option(
        "file.compression.zstd-level",
        _zstd_level,
        "compression level of zstd, for arrow and parquet; default: that of the format's library",
        None,
    ),
    *MERGE_OPTIONS,
    *LOG_OPTIONS,
)
"""Every option that a managed table knows by name; single fields and Kafka's client have others."""

_own: Final = partial(options.held, OPTIONS)


@dataclass(frozen=True)
class TableOptions:
    """The options of one table, converted and checked."""

    bucket: int = _own("bucket")
    bucket_key: tuple[str, ...] = _own("bucket-key")
    change_tracking: bool = _own("change-tracking")
    write_only: bool = _own("write-only")
    compaction_trigger: int = _own("num-sorted-run.compaction-trigger")
    max_size_amplification_percent: int = _own("compaction.max-size-amplification-percent")
    size_ratio: int = _own("compaction.size-ratio")
    retention: Retention = field(default_factory=Retention)
    compaction_policy: str = _own("compaction.policy")
    level0_trigger: int = _own("level0-file-num-compaction-trigger")
    level_base_bytes: int = _own("max-bytes-for-level-base")
    level_multiplier: int = _own("max-bytes-for-level-multiplier")
    target_file_size: int = _own("target-file-size")
    file_form: FileForm = field(default_factory=FileForm)
    merge: MergeRules = PLAIN
    log: LogOptions = field(default_factory=LogOptions)
    partition_age: PartitionAge | None = None
    materialize: str = _own(SINK_MATERIALIZE.key)
    refresh: str = _own(VIEW_REFRESH.key)

    @classmethod
    def parse(cls, given: Mapping[str, str], schema: TableSchema, owner: str = "table") -> TableOptions:
        """The options that ``given`` says, for a table of this schema."""
        others, aggregates, groups = merge_rules.split(owner, given)
        others, of_client = log_options.split(others)
        values = options.parse(owner, OPTIONS, others, _OF_PAIMON)
        merge = MergeRules(
            values["merge-engine"],
            values["sequence.field"],
            values["ignore-delete"],
            aggregates,
            groups,
            values[merge_rules.DEFAULT_OPTION],
        )
        merge_rules.check(owner, merge, schema)
        _check_bucket_key(owner, values["bucket-key"], schema)
        _check_retained(owner, values)
        return cls(
            retention=Retention(
                values["snapshot.num-retained.min"],
                values["snapshot.num-retained.max"],
                values["snapshot.time-retained"],
                values["snapshot.expire.limit"],
            ),
            file_form=_file_form(owner, values, schema),
            merge=merge,
            log=log_options.log_options(owner, values, of_client, schema, merge),
            partition_age=_partition_age(owner, values, schema),
            **options.values_held(cls, values),
        )


def with_own_columns(given: Mapping[str, str], own: Callable[[str], str]) -> dict[str, str]:
    """The options, with the names of columns as the table has them.

    >>> with_own_columns({"bucket-key": "ID", "partition.timestamp-pattern": "$Day $Hour"}, str.lower)
    {'bucket-key': 'id', 'partition.timestamp-pattern': '$day $hour'}
    """
    pattern = partition_time.PATTERN
    return {
        key: partition_time.NAMED.sub(lambda name: f"${own(name[1])}", text)
        if key.lower() == pattern
        else text
        for key, text in with_names(given, own).items()
    }


_NOT_NEEDED: Final = "leave it out: the changes of every commit are exact without it"
_OF_A_QUERY: Final = "it is an option of a query: FROM t /*+ OPTIONS('key' = 'value') */"
_BY_DELETE: Final = "leave it out: DELETE FROM deletes the row of a key; 'ignore-delete' ignores written -D"
_MEMORY: Final = "leave it out: the rows of a commit are merged before they are written"
_OF_PAIMON: Final = {
    "primary-key": "write PRIMARY KEY (…) NOT ENFORCED among the columns",
    "partition": "write PARTITIONED BY (…) after the columns",
    "rowkind.field": "rows say their kind in a column _row_kind, which DataFrames and Arrow tables may have",
    "sequence.field.sort-order": "the highest value is the last one; write negative values for the lowest",
    "deletion-vectors.enabled": "leave it out; 'compaction.policy' = 'leveled' keeps reads fast",
    **dict.fromkeys(
        ("changelog-producer", "changelog-producer.row-deduplicate", "delete.force-produce-changelog"),
        _NOT_NEEDED,
    ),
    **dict.fromkeys(
        (
            "partial-update.remove-record-on-delete",
            "partial-update.remove-record-on-sequence-group",
            "aggregation.remove-record-on-delete",
        ),
        _BY_DELETE,
    ),
    **dict.fromkeys(("write-buffer-size", "write-buffer-spillable", "local-merge-buffer-size"), _MEMORY),
    **dict.fromkeys(
        ("scan.mode", "scan.snapshot-id", "scan.tag-name", "scan.timestamp-millis", "consumer-id"),
        _OF_A_QUERY,
    ),
}
"""Options of tables of Paimon and Fluss, and what is written here."""


def _partition_age(owner: str, values: Mapping[str, Any], schema: TableSchema) -> PartitionAge | None:
    age = PartitionAge.of(owner, values, schema)
    if age is not None and values[MATERIALIZED_VIEW.key] is not None:
        raise ConfigurationError(
            f"{owner}: option {partition_time.AGE!r} is of tables, and this is a materialized view, whose "
            "rows are those of its query; let the partitions of its tables expire, or add a condition to it"
        )
    return age


MOST_BUCKETS: Final = 1_000_000


def check_new(owner: str, options: TableOptions, schema: TableSchema) -> None:
    """Refuse what no write can do; tables of earlier releases may say it.

    Raises:
        ConfigurationError: the sink is to keep all rows of each key, and has no key; or there are so many
            buckets that a lookup would take gigabytes, or that manifests have no such number.
    """
    if options.bucket > MOST_BUCKETS:
        raise ConfigurationError(
            f"{owner}: option 'bucket' must be at most {MOST_BUCKETS}, got {options.bucket}; rows of one "
            "partition lie in so many files at least"
        )
    if options.materialize == "force" and not schema.primary_key:
        raise ConfigurationError(
            f"{owner}: option {SINK_MATERIALIZE.key!r} = 'force' needs a PRIMARY KEY, got a table "
            "without one, whose rows have no key to keep them by; declare it, or leave the option out"
        )


def _check_retained(owner: str, values: Mapping[str, Any]) -> None:
    fewest, most = values["snapshot.num-retained.min"], values["snapshot.num-retained.max"]
    if most is not None and most < fewest:
        raise ConfigurationError(
            f"{owner}: option 'snapshot.num-retained.max' must be at least 'snapshot.num-retained.min', "
            f"which is {fewest}, got {most}; set both"
        )


def _check_bucket_key(owner: str, columns: tuple[str, ...], schema: TableSchema) -> None:
    known = schema.primary_key or schema.names
    what = "primary key columns" if schema.primary_key else "columns"
    for column in columns:
        if column not in known:
            raise ConfigurationError(
                f"{owner}: option 'bucket-key' must name {what} ({', '.join(known)}), got {column!r}"
            )
        if not types.is_scalar(schema.type_of(column)):
            raise ConfigurationError(
                f"{owner}: option 'bucket-key' must name columns of scalar types, got {column!r} of type "
                f"{types.sql_name(schema.type_of(column))}"
            )
