"""What the planner says of the table that a query is written into (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from planner.plan.nodes import Plan
from planner.plan.trees import reads_changes
from planner.plan.uniqueness import unique_keys
from planner.plan.upsert_keys import group_keys, upsert_key
from upsert.errors import ConfigurationError
from upsert.materializer.choice import Changes, Sink, choose
from upsert.stream_keys import UniqueKeys


@dataclass(frozen=True)
class SinkReport:
    """How the query is written into a table.

    Attributes:
        key: the table's primary key; () for none.
        keys: the unique keys of the query's rows, as far as they are known.
        form: "as it is", "materialized" or "refused".
        reason: why.
    """

    key: tuple[str, ...]
    keys: UniqueKeys
    form: str
    reason: str

    def __str__(self) -> str:
        key = f"PRIMARY KEY ({', '.join(self.key)})" if self.key else "no PRIMARY KEY"
        lines = [
            f"sink with {key}",
            f"  form: {self.form}",
            f"  the query's rows are told apart by {self.keys}",
            f"  because {self.reason}",
        ]
        if self.form == "materialized":
            lines.append("  a hidden table keeps all rows of each key, the newest that is left is written")
        return "\n".join(lines)


def sink_report(before: Plan, after: Plan, key: tuple[str, ...], mode: str) -> SinkReport:
    """What becomes of a query in a table with this key and this `sink.materialize`.

    Args:
        before: the plan of the query.
        after: the plan after the rules.
        key: the table's primary key; () for none.
        mode: the option.
    """
    keys = unique_keys(before)
    upserts = None if group_keys(after) is None else upsert_key(after)
    changes = Changes(reads_changes(before), keys if reads_changes(before) else None, upserts)
    try:
        choice = choose(Sink("sink", key, mode), changes)
    except ConfigurationError as cause:
        return SinkReport(key, keys, "refused", str(cause))
    return SinkReport(key, keys, "materialized" if choice.is_materialized else "as it is", choice.reason)
