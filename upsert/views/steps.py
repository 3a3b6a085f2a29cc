"""The Spark format ``table-steps``: a stream with a micro-batch when a table of a view has changed.

Its offset has the versions of all tables. What handles the micro-batch looks at the tables itself, so nothing
is held for a replay. The one row of a micro-batch is what the view tells of itself when the row is read: the
query observes it, and so Spark's progress has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from upsert import options
from upsert.errors import ConfigurationError
from upsert.managed.stepping import Offset, SteppingReader
from upsert.options import Option
from upsert.spark.batches import arrow_schema
from upsert.store.metadata.identity import has_all
from upsert.store.table import Table
from upsert.store.version import Version
from upsert.views.progress import SCHEMA, report

FORMAT: Final = "table-steps"

OPTIONS: Final = (
    Option("tables", options.json_object, "uuid of each table, by its folder, as JSON"),
    Option("begin", options.json_object, "snapshot of each table that is known already, by folder, as JSON"),
    Option("names", options.json_object, "database and name of each table, by its folder, as JSON"),
    Option("view", options.text, "folder of the view's table"),
    Option("name", options.text, "the view's name"),
)
"""Options of the format; a view sets them."""


class TableStepsSource(DataSource):
    """``spark.readStream`` of the steps of some tables."""

    @classmethod
    def name(cls) -> str:
        """``table-steps``."""
        return FORMAT

    def schema(self) -> str:
        """See `upsert.views.progress`."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> StepsReader:  # noqa: N802
        """The reader of the steps."""
        given = options.parse(FORMAT, OPTIONS, self.options)
        bases = {given["names"][path]: (path, uuid) for path, uuid in given["tables"].items()}
        return StepsReader(bases, given["begin"], given["view"], given["name"], schema)


class StepsReader(SteppingReader[tuple[Table, ...]]):
    """Steps through the versions of some tables, to the newest of all of them each time."""

    def __init__(
        self,
        bases: Mapping[str, tuple[str, str]],
        begin: Mapping[str, int],
        view: str,
        name: str,
        schema: StructType,
    ) -> None:
        """Of folder and uuid of tables by their names; nothing is opened yet."""
        super().__init__(None, 0)
        self._bases = dict(bases)
        self._uuids = dict(bases.values())
        self._begin = dict(begin)
        self._view = view
        self._name = name
        self._schema = schema

    def initialOffset(self) -> Offset:  # noqa: N802
        """The versions from which the view was filled."""
        return self._offset(Version.complete(self._begin[path]) for path in self._uuids)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """A step takes what there is."""
        return ReadAllAvailable()

    def opened(self) -> tuple[Table, ...]:
        """The tables; one that was dropped and made again is an error."""
        return tuple(Table.open(path, uuid) for path, uuid in self._uuids.items())

    def tables_of(self, opened: tuple[Table, ...]) -> tuple[Table, ...]:
        """Each of them."""
        return opened

    def versions_of(self, opened: tuple[Table, ...], offset: Offset) -> tuple[Version, ...]:
        """Their versions; an offset of other tables is refused."""
        known = offset.get("versions")
        if not isinstance(known, dict) or set(known) != set(self._uuids.values()):
            raise ConfigurationError(
                f"{FORMAT}: the checkpoint must be of the tables {', '.join(self._uuids)}, got {offset!r}; "
                "delete it, and the view continues from its own versions"
            )
        versions = (Version.from_json(known[uuid]) for uuid in self._uuids.values())
        # a table that was replaced by an older copy has moved, whatever its newest number is
        return tuple(
            version if has_all(table.published, version) else Version.EMPTY
            for table, version in zip(opened, versions, strict=True)
        )

    def offset_at(
        self,
        opened: tuple[Table, ...],  # noqa: ARG002
        versions: tuple[Version, ...],
        consumer: str | None = None,  # noqa: ARG002
    ) -> Offset:
        """The offset of these versions."""
        return self._offset(versions)

    def ends(
        self,
        opened: tuple[Table, ...],
        versions: tuple[Version | None, ...],  # noqa: ARG002
        max_rows: int | None,  # noqa: ARG002
    ) -> tuple[Version, ...]:
        """The newest versions."""
        return tuple(map(Version.complete, self._until or self.versions_seen(opened)))

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:  # noqa: ARG002
        """One, with one row."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """What the view tells of itself now."""
        told = report(self._name, Table.open(self._view), self._bases)
        yield pa.RecordBatch.from_pylist([told], arrow_schema(self._schema))

    def _offset(self, versions: Iterable[Version]) -> Offset:
        given = zip(self._uuids.values(), versions, strict=True)
        return {"versions": {uuid: version.to_json() for uuid, version in given}}
