"""Joins by `FOR SYSTEM_TIME AS OF` over Spark Connect: lookups of rows, and versions as of their times.

Each is one call of what a classic session makes of it; the conditions are those of its rules
(`planner.rules.temporal_joins`, `planner.rules.static_joins`), as far as a text without a plan can meet them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, NoReturn

from pyspark.sql import DataFrame

import deltajoin
from deltajoin.enrichment import Enrichment, InSource, enriched
from deltajoin.temporal import temporal_join
from planner.connect.relations import relation
from planner.plan.expressions import Column, are_joinable
from planner.refusals import PlanError, Refused
from planner.rules.static_joins import NO_ARROW
from planner.settings import Settings
from upsert.catalog.connectors.lookups import FORMAT as LOOKUP_FORMAT
from upsert.catalog.connectors.lookups import looked_up
from upsert.lookups.options import LookupTable
from upsert.spark.formats import FORMAT
from upsert.stream_keys import VERSIONS_MARK

_PLAIN: Final = frozenset({"row-kind", "scan.pinned", "scan.used-columns", "scan.where"})
"""Options of a read of a managed table that a lookup does without: WHERE stays above it."""


@dataclass(frozen=True)
class FoundJoin:
    """A join of rows that are only added with those that each of them finds in a table.

    Attributes:
        what: begins refusals.
        on: the equated columns.
        columns: the table's columns that are added.
        how: a kind of join.
        time: the column of the rows that says as of when a version is asked for; None for the newest rows.
    """

    what: str
    on: tuple[tuple[str, str], ...]
    columns: tuple[str, ...]
    how: str
    time: str | None

    def of(self, rows: DataFrame, table: DataFrame, settings: Settings) -> DataFrame:
        """The rows with the table's columns behind their own; the table is as the query reads it.

        Raises:
            PlanError: the join cannot be one by lookups or versions.
        """
        if self.how not in ("inner", "left"):
            self._refuse(f"{self.how!r} would need all rows of the table", "write an INNER or a LEFT join")
        types = {field.name: field.dataType.simpleString() for field in rows.schema}
        if odd := [type_ for type_ in types.values() if any(part in type_ for part in NO_ARROW)]:
            self._refuse(f"{odd[0]} does not reach the tasks that look rows up", "cast it")
        for own, other in self.on:
            found = table.schema[other].dataType.simpleString()
            if not are_joinable(Column(0, own, types[own]), Column(1, other, found)):
                self._refuse(
                    f"column {other!r} is {found.upper()}, and equated with {types[own].upper()}", "cast it"
                )
        if self.time is not None:
            return self._with_versions(rows, table, self.time)
        read = relation(table).read.data_source
        if read.format == LOOKUP_FORMAT:
            return self._with_lookups(rows, looked_up(dict(read.options)), settings)
        if read.format != FORMAT or len(read.paths) != 1 or not _PLAIN.issuperset(read.options):
            self._refuse(
                "it is no managed table read as it is, and no table that is only looked up",
                "name a table without METADATA and computed columns and without OPTIONS, or a topic's mirror",
            )
        path = str(read.paths[0])
        return deltajoin.lookup_join(rows, path, on=self.on, how=self.how, select=self.columns)

    def _refuse(self, reason: str, remedy: str) -> NoReturn:
        raise PlanError([Refused(f"{self.what}: {reason}", f"{remedy}; or use a classic session")])

    def _with_lookups(self, rows: DataFrame, table: LookupTable, settings: Settings) -> DataFrame:
        keys = tuple(name for _, name in self.on)
        asked = table.asked_by(keys)
        if asked is None or set(asked) != set(keys):
            self._refuse(
                "the table is asked by its PRIMARY KEY "
                f"({', '.join(table.schema.primary_key)}), and the join "
                f"equates {', '.join(keys)} of it",
                "equate each column of the key, and write other conditions into WHERE",
            )
        source = InSource.declared(table, self.on, self.columns, settings)
        lookups = Enrichment(source, self.on, self.columns, self.how, table.name)
        return enriched(rows, lookups, table.schema, (), table.shown)

    def _with_versions(self, rows: DataFrame, table: DataFrame, time: str) -> DataFrame:
        mark = json.loads(table.schema.fields[-2].metadata[VERSIONS_MARK])
        equated = [name for _, name in self.on]
        if set(equated) != set(mark["key"]):
            self._refuse(
                f"versions are those of the PRIMARY KEY ({', '.join(mark['key'])}), and the join equates "
                f"{', '.join(equated)} of it",
                "equate each column of the key, and write other conditions into WHERE",
            )
        return temporal_join(
            rows,
            table,
            on=self.on,
            time=time,
            valid_from=mark["valid-from"],
            how=self.how,
            select=self.columns,
            has_deletes=mark["has-deletes"],
        )


def looked_up_in(table: DataFrame) -> tuple[str, str] | None:
    """The name and the connector of a table that is only looked up; None for any other."""
    read = relation(table).read.data_source
    if read.format != LOOKUP_FORMAT:
        return None
    found = looked_up(dict(read.options))
    return found.name, found.connector
