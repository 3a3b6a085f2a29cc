"""What the planner knows of what a query reads: managed tables, and topics of Kafka as tables (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final, Self

from deltajoin.filters import Filters
from upsert.errors import ConfigurationError
from upsert.managed.options import DEFAULT_LEASE_MS
from upsert.managed.task_memory import DEFAULT_TASK_MEMORY
from upsert.schema import TableSchema
from upsert.store.rows.layout import Layout


@dataclass(frozen=True)
class ManagedTable:
    """What the planner knows about a managed table and about the way a query reads its changes.

    `changed_rows` is the size of the latest commit, unless a compaction came after it; `rows` is about how
    many rows there are, `rows_per_key` about how many of them one key finds, by the name of the index.
    `changing` are the METADATA columns of the read, which a change has from its own commit: ALTER TABLE may
    change a row's bucket too. `where` are the rows that the read asks for, all if None, and `asked` the
    options that it gives.
    """

    name: str
    path: str
    schema: TableSchema
    buckets: int = 1
    bucket_key: tuple[str, ...] = ()
    scan_mode: str = "full"
    max_rows: int = 1_000_000
    task_memory: int = DEFAULT_TASK_MEMORY
    changed_rows: int | None = field(default=None, compare=False)
    rows: int | None = field(default=None, compare=False)
    rows_per_key: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)
    consumer_id: str | None = field(default=None, compare=False)
    lease_ms: int = field(default=DEFAULT_LEASE_MS, compare=False)
    changing: frozenset[str] = frozenset()
    where: Filters | None = None
    asked: frozenset[str] = field(default=frozenset(), compare=False)


def consumer_of(tables: Iterable[ManagedTable]) -> tuple[str | None, int]:
    """Name of a query that reads these tables at once, as their consumer, and its lease in milliseconds.

    Raises:
        ConfigurationError: they are to be read under different names.

    >>> import pyarrow as pa
    >>> schema = TableSchema.of({"id": pa.int64()}, primary_key=["id"])
    >>> consumer_of([ManagedTable("a", "/a", schema, consumer_id="x"), ManagedTable("b", "/b", schema)])
    ('x', 259200000)
    """
    found = list(tables)
    names = sorted({table.consumer_id for table in found if table.consumer_id is not None})
    if len(names) > 1:
        raise ConfigurationError(
            f"tables of one delta join must have one 'consumer-id', got {', '.join(map(repr, names))}; give "
            "all of them the same, or one of them alone"
        )
    # 0 holds nothing: one table that asks for it does not speak for the others
    return (names[0] if names else None), max(table.lease_ms for table in found)


class Mode(StrEnum):
    """What a query gets of a topic.

    ALL: every kind of change, which takes a normalizer; UPSERT: `+U` with the new row and `-D` with the key
    alone; CDC: the changes that the records hold; CDC_NET: what those of a key leave in a micro-batch;
    CDC_NORMALIZED: the changes, made whole by a normalizer; ROWS: one row a record, which is no change.
    """

    ALL = "all"
    UPSERT = "upsert"
    CDC = "cdc"
    CDC_NET = "cdc-net"
    CDC_NORMALIZED = "cdc-normalized"
    ROWS = "rows"


@dataclass(frozen=True)
class RecordRange:
    """Which records of a topic are read, by the options `scan.filter.…` of its source; None: no bound.

    Attributes:
        partitions: these only, ascending.
        offset_until: exclusive.
        timestamp_from: of each partition from the first record on whose time is not less, in milliseconds
            since 1970.

    >>> RecordRange(partitions=(0, 2), offset_from=5) & RecordRange(partitions=(2, 3), offset_from=4)
    RecordRange(partitions=(2,), offset_from=5, offset_until=None, timestamp_from=None)
    """

    partitions: tuple[int, ...] | None = None
    offset_from: int | None = None
    offset_until: int | None = None
    timestamp_from: int | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The range that a topic's options say; an upsert topic has none of them."""
        return cls(*(values.get(_option(field)) for field in fields(cls)))

    def __and__(self, other: RecordRange) -> RecordRange:
        """The records that lie in both."""
        both = [part for part in (self.partitions, other.partitions) if part is not None]
        return RecordRange(
            tuple(sorted(set(both[0]).intersection(*both))) if both else None,
            max(_given(self.offset_from, other.offset_from), default=None),
            min(_given(self.offset_until, other.offset_until), default=None),
            max(_given(self.timestamp_from, other.timestamp_from), default=None),
        )

    @property
    def is_empty(self) -> bool:
        """Whether no record can lie in it."""
        has_no_offsets = self.offset_until is not None and (self.offset_from or 0) >= self.offset_until
        return self.partitions == () or has_no_offsets

    @property
    def options(self) -> dict[str, str]:
        """The range as options of the source; it must not be empty."""
        values = {_option(field): getattr(self, field.name) for field in fields(self)}
        return {
            key: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            for key, value in values.items()
            if value is not None
        }

    def __str__(self) -> str:
        parts = (
            None if self.partitions is None else f"partition in ({', '.join(map(str, self.partitions))})",
            None if self.offset_from is None else f"offset >= {self.offset_from}",
            None if self.offset_until is None else f"offset < {self.offset_until}",
            None if self.timestamp_from is None else f"timestamp >= {self.timestamp_from}",
        )
        return " and ".join(filter(None, parts))


def _given(*bounds: int | None) -> list[int]:
    return [bound for bound in bounds if bound is not None]


def _option(field_: Field[Any]) -> str:
    return f"scan.filter.{field_.name.replace('_', '-')}"


_UPDATES_BEFORE: Final = "scan.updates-before"


@dataclass(frozen=True)
class KafkaTopic:
    """What the planner knows about a topic of Kafka as a table, and about the way a query reads it.

    Attributes:
        name: the topics' names, or the pattern that chooses them.
        source: the Spark format.
        label: the name that the user gave the source, by which checkpoints know it.
        options: those of the query, by key in lower case; they may hold secrets.
        apart: the options of the query that its mirror, if it has one, was not given.
        table: the catalog's table that declares it, if it may have a mirror.
        mirror: the managed table that mirrors it, with the changes that the query reads.
        splits_key_changes: whether a change of a row's key is a deletion and an insert in its records.
    """

    name: str
    schema: TableSchema
    mode: Mode
    range: RecordRange = field(default_factory=RecordRange)
    source: str = field(default="upsert-kafka", compare=False)
    label: str | None = field(default=None, compare=False)
    options: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    table: str | None = field(default=None, compare=False)
    mirror: ManagedTable | None = field(default=None, compare=False)
    apart: str | None = field(default=None, compare=False)
    splits_key_changes: bool = field(default=True, compare=False)

    def read_as(self, mode: Mode) -> KafkaTopic:
        """The topic read without a normalizer, as UPSERT, or with one, as ALL."""
        return replace(self, mode=mode, options={**self.options, "changelog": mode.value})

    def read_as_net(self, *, needs_before: bool) -> KafkaTopic:
        """The topic of changes with no more of a key than what its changes in a micro-batch leave.

        Updates may lack their row before if that is not needed.
        """
        before = {} if needs_before else {"scan.needs-before": "false"}
        own = {"scan.net-changes": "true", **before}
        return replace(self, mode=Mode.CDC_NET, options={**self.options, **own})

    def without_updates_before(self) -> KafkaTopic:
        """The topic without the `-U` of each update that keeps its key."""
        return replace(self, options={**self.options, _UPDATES_BEFORE: "false"})

    @property
    def has_updates_before(self) -> bool:
        """Whether each update that it gives has its `-U`; for modes other than UPSERT."""
        return self.options.get(_UPDATES_BEFORE) != "false"

    @property
    def has_state_path(self) -> bool:
        """Whether it is known where the source may keep the newest row of each key."""
        return "state.path" in self.options

    @property
    def starts_late(self) -> str | None:
        """The mode in which the query starts if that is not with the earliest records; else None."""
        mode = self.options.get("scan.startup.mode")
        return None if mode == "earliest-offset" else mode

    def within(self, range_: RecordRange) -> KafkaTopic:
        """The topic with less of it read."""
        return replace(self, range=range_, options={**self.options, **range_.options})

    def metadata_key(self, column: str) -> str | None:
        """The metadata key that a column holds; None for a column of the data, and for the kind."""
        return next((c.metadata for c in self.schema.metadata if c.name == column), None)

    @property
    def set_in_deletes(self) -> frozenset[str]:
        """The columns that have a value in a `-D` of mode UPSERT: the key's and the record's own metadata.

        A tombstone has no value, so neither the columns nor the metadata of the value's format are known.
        """
        # only keys of formats have a dot
        keys = {c.name: c.metadata or "" for c in self.schema.metadata}
        own = (name for name, key in keys.items() if "." not in key or key.startswith("key."))
        return frozenset((*own, *self.schema.primary_key))

    def __str__(self) -> str:
        where = str(self.range)
        without = "" if self.has_updates_before else " without -U"
        return f"topic {self.name} {self.mode}{without}" + (f" where {where}" if where else "")


def index_within(schema: TableSchema, columns: set[str]) -> str | None:
    """Name of the index that finds rows by no more than these columns, as `Snapshot.index_for` names it."""
    index = Layout.of(schema).best_index(columns)
    return None if index is None else index.label
