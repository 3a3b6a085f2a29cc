"""The options of the Spark format ``upsert-table``, all of them (pure). Scan options follow FLIP-188."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from upsert import options
from upsert.errors import ConfigurationError
from upsert.options import Option
from upsert.store.paths import table_folder

FORMAT: Final = "upsert-table"
SCAN_MODES: Final = ("full", "latest", "from-snapshot", "from-timestamp")
DEFAULT_MAX_ROWS: Final = 1_000_000

_PATH: Final = Option("path", options.text, "folder of the table; what load() and start() are given")
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})

READ_OPTIONS: Final = (
    _PATH,
    Option(
        "scan.mode",
        options.one_of(*SCAN_MODES),
        "where a stream starts: full = a snapshot, then changes; latest = changes from now on; from-snapshot "
        "and from-timestamp = changes after that state. A batch reads the state that the mode names",
        "full",
        aliases=("log.scan",),
    ),
    Option("scan.snapshot-id", options.integer(0), "the state of scan.mode = from-snapshot", None),
    Option(
        "scan.timestamp-millis",
        options.integer(0),
        "the state of scan.mode = from-timestamp: milliseconds since 1970",
        None,
        aliases=("log.scan.timestamp-mills",),
    ),
    Option(
        "max-rows-per-trigger",
        options.positive_int,
        "changed keys that one micro-batch reads at most; cuts the first load and any larger commit",
        DEFAULT_MAX_ROWS,
    ),
    Option("row-kind", options.boolean, "whether rows have the column _row_kind; a stream must", True),
)
"""Options of ``spark.read`` and ``spark.readStream``."""

WRITE_OPTIONS: Final = (
    _PATH,
    Option("bucketed", options.boolean, "a key's rows come to one task; set by catalog.write_changes", False),
    Option(
        "micro-batch",
        options.micro_batch,
        "query and number of the micro-batch that a batch write is; set by catalog.write_changes",
        None,
    ),
)
"""Options of ``df.write`` and ``df.writeStream``."""


@dataclass(frozen=True)
class ReadOptions:
    """What a reader was asked for; ``path`` is absolute.

    >>> ReadOptions.parse({"path": "/data/orders", "scan.mode": "latest"}).scan_mode
    'latest'
    """

    path: str
    scan_mode: str = "full"
    snapshot_id: int | None = None
    timestamp_ms: int | None = None
    max_rows: int = DEFAULT_MAX_ROWS
    row_kind: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """The options that ``given`` says.

        Raises:
            ConfigurationError: an option is unknown or does not convert, or the scan mode and its
                snapshot or timestamp are not given together.
        """
        values = options.parse(FORMAT, READ_OPTIONS, given)
        _check_goes_with_mode(values, "scan.snapshot-id", "from-snapshot")
        _check_goes_with_mode(values, "scan.timestamp-millis", "from-timestamp")
        return cls(
            path=table_folder(values["path"]),
            scan_mode=values["scan.mode"],
            snapshot_id=values["scan.snapshot-id"],
            timestamp_ms=values["scan.timestamp-millis"],
            max_rows=values["max-rows-per-trigger"],
            row_kind=values["row-kind"],
        )


@dataclass(frozen=True)
class WriteOptions:
    """What a writer was asked for; ``path`` is absolute."""

    path: str
    bucketed: bool = False
    micro_batch: tuple[str, int] | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """The options that ``given`` says; those of Spark's own writer are passed over.

        Raises:
            ConfigurationError: an option is unknown or does not convert.
        """
        own = {key: value for key, value in given.items() if key.lower() not in _SPARKS_OWN}
        values = options.parse(FORMAT, WRITE_OPTIONS, own)
        return cls(table_folder(values["path"]), values["bucketed"], values["micro-batch"])


def _check_goes_with_mode(values: Mapping[str, Any], key: str, needed_by: str) -> None:
    mode = values["scan.mode"]
    if mode == needed_by and values[key] is None:
        raise ConfigurationError(f"{FORMAT}: option 'scan.mode' = {mode!r} needs the option {key!r}")
    if mode != needed_by and values[key] is not None:
        raise ConfigurationError(
            f"{FORMAT}: option {key!r} needs 'scan.mode' = {needed_by!r}, got 'scan.mode' = {mode!r}"
        )
