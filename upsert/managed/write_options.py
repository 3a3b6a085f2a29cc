"""The options with which the Spark format ``upsert-table`` writes (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from upsert import options
from upsert.errors import ConfigurationError
from upsert.managed.options import FORMAT, PATH
from upsert.materializer.choice import SINK_MATERIALIZE
from upsert.options import Option
from upsert.store.paths import table_folder

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})

OVERWRITE_MODES: Final = ("static", "dynamic")

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
        options.one_of(*OVERWRITE_MODES),
        "what an overwrite replaces: static = the table, or what 'partition' says; dynamic = of these, the "
        "partitions in which there are rows",
        None,
    ),
    Option(
        "change-tracking",
        options.boolean,
        "whether the commit shows in change streams; default: as table and partitions say",
        None,
    ),
    Option("bucketed", options.boolean, "a key's rows come to one task; set by catalog.write_changes", False),
    Option(
        "micro-batch",
        options.micro_batch,
        "query and number of the micro-batch that a batch write is; set by catalog.write_changes",
        None,
    ),
    Option(
        "unchanged-since",
        options.integer(0),
        "snapshot from which the rows were computed: a commit after it to one of their keys is a conflict; "
        "set by UPDATE and DELETE",
        None,
    ),
    Option(
        "definition",
        options.integer(0),
        "version of the table's definition that the query's columns are of; set by catalog.write_changes, so "
        "that a running query goes on when columns are added",
        None,
    ),
    replace(SINK_MATERIALIZE, default=None),
)
"""Options of ``df.write`` and ``df.writeStream``."""


@dataclass(frozen=True)
class WriteOptions:
    """What a writer was asked for; ``path`` is absolute."""

    path: str
    bucketed: bool = False
    micro_batch: tuple[str, int] | None = None
    definition: int | None = None
    partition: Mapping[str, object] | None = None
    overwrite_mode: str | None = None
    change_tracking: bool | None = None
    unchanged_since: int | None = None
    materialize: str | None = None

    def check_for_a_stream(self) -> None:
        """Refuse how to overwrite for a write that adds to what is there.

        Raises:
            ConfigurationError: an option says it.
        """
        if self.overwrite_mode is not None:
            raise ConfigurationError(
                f"{FORMAT}: option 'partition-overwrite-mode' must go with a batch write of mode overwrite, "
                f"got {self.overwrite_mode!r} for another; leave it out, no stream overwrites partitions"
            )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """The options that ``given`` says; those of Spark's own writer are passed over.

        Raises:
            ConfigurationError: an option is unknown or does not convert.
        """
        own = {key: value for key, value in given.items() if key.lower() not in _SPARKS_OWN}
        values = options.parse(FORMAT, WRITE_OPTIONS, own)
        return cls(
            path=table_folder(values["path"]),
            bucketed=values["bucketed"],
            micro_batch=values["micro-batch"],
            definition=values["definition"],
            partition=values["partition"],
            overwrite_mode=values["partition-overwrite-mode"],
            change_tracking=values["change-tracking"],
            unchanged_since=values["unchanged-since"],
            materialize=values["sink.materialize"],
        )
