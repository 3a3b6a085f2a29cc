"""How far the queries of the demo are, from outside: checkpoints beside what Kafka and the tables have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deltajoin.spark.offsets import JoinOffset
from examples.flights.checkpoint import Checkpoint
from examples.flights.kafka.queries import QUERIES, Query
from examples.flights.kafka.tables import BOARD, FLIGHTS_LOG, WEATHER_LOG, Topics
from upsert import Catalog, Version
from upsert.kafka.client.admin import topics
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.offsets import latest_offsets
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.offsets import Offset

_TOPICS: Final = (FLIGHTS_LOG, WEATHER_LOG, BOARD)
"""Those that a query reads."""


class Watch:
    """The checkpoints of all queries, and what they have not read yet.

    Args:
        names: the topics of the run.
        catalog: has the tables.
        checkpoints: folder of the checkpoints, by name of the query.
    """

    def __init__(self, names: Topics, catalog: Catalog, checkpoints: Path) -> None:
        self._names = names
        self._catalog = catalog
        self._connection = Connection({"bootstrap.servers": names.bootstrap_servers})
        self.checkpoints: Mapping[str, Checkpoint] = {
            query.name: Checkpoint(checkpoints / query.name) for query in QUERIES
        }

    def ends(self) -> dict[TopicPartition, int]:
        """The end of each partition that a query reads; topics that are not there yet have none."""
        found = topics(self._connection, [self._names.name(table) for table in _TOPICS])
        places = [TopicPartition(topic.name, n) for topic in found.values() for n in range(topic.partitions)]
        return latest_offsets(self._connection, places)

    def read_and_behind(self, query: Query, ends: Mapping[TopicPartition, int]) -> tuple[int, int]:
        """How many offsets of its topic, or commits of its tables, a query has read and has not.

        Of a join only what it has not read is told.
        """
        if len(query.sources) > 1:
            return 0, self._commits_behind(query)
        topic = self._names.name(query.sources[0])
        found = self.checkpoints[query.name].offset
        places = Offset.from_json(found, query.name).partitions if found is not None else {}
        total = sum(end for place, end in ends.items() if place.topic == topic)
        read = sum(place.at for place in places.values())
        return read, total - read

    def have_caught_up(self) -> bool:
        """Whether all queries have read all there is, and none of them is in a micro-batch."""
        ends = self.ends()
        return not self.in_flight() and all(self.read_and_behind(query, ends)[1] == 0 for query in QUERIES)

    def in_flight(self) -> dict[str, int]:
        """The micro-batches that have begun and are not complete, by query."""
        found = {
            name: checkpoint.planned
            for name, checkpoint in self.checkpoints.items()
            if checkpoint.is_in_flight
        }
        return {name: planned for name, planned in found.items() if planned is not None}

    def _commits_behind(self, query: Query) -> int:
        found = self.checkpoints[query.name].offset
        reached: dict[str, Version] = {}
        if found is not None:
            offset = JoinOffset.from_json(found)
            reached = dict(zip(offset.identity.tables, offset.versions, strict=True))
        return sum(self._behind(name, reached) for name in query.sources)

    def _behind(self, name: str, reached: Mapping[str, Version]) -> int:
        table = self._catalog.table(name)
        version = reached.get(table.uuid, Version.EMPTY)
        if table.advance(version) == version:
            return 0
        return max(1, table.snapshot().id - version.target)
