"""One step of a stream as a batch: the changes of its tables between two chosen states.

A stream's reader says how a step is cut into tasks, and reads them. Here the step is an option of the read,
and not found by Spark: a materialized view moves between versions that its refresh has chosen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from upsert import options
from upsert.errors import ConfigurationError
from upsert.managed.stepping import SteppingReader
from upsert.options import Option
from upsert.store.version import Version

STEP: Final = Option(
    "step", options.json_object, "data versions from and to, by the uuid of a table, as JSON"
)

SUFFIX: Final = "-step"
"""What the name of a stream's format gets as a batch of one step."""


@dataclass(frozen=True)
class Step:
    """Between which data versions tables move, by their uuids; 0 is the empty table.

    >>> Step({"a1": (0, 3)}).to_option()
    '{"a1": [0, 3]}'
    """

    versions: Mapping[str, tuple[int, int]]

    def to_option(self) -> str:
        """The value of the option."""
        return json.dumps(dict(self.versions))


class StepSource(DataSource):
    """A stream's format as a batch; a subclass says which."""

    stream: ClassVar[type[DataSource]]

    @classmethod
    def name(cls) -> str:
        """The stream's name, with a suffix."""
        return cls.stream.name() + SUFFIX

    def schema(self) -> StructType | str:
        """The stream's."""
        return self._opened().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the step."""
        step = {key: value for key, value in self.options.items() if key.lower() == STEP.key}
        versions = options.parse(self.name(), [STEP], step)[STEP.key]
        reader = self._opened().streamReader(schema)
        assert isinstance(reader, SteppingReader)
        return StepReader(reader, versions)

    def _opened(self) -> DataSource:
        return self.stream({key: value for key, value in self.options.items() if key.lower() != STEP.key})


class StepReader(DataSourceReader):
    """Reads what lies between two states of a stream's tables."""

    def __init__(self, reader: SteppingReader[Any], versions: Mapping[str, Any]) -> None:
        """The step of a stream's reader.

        Raises:
            ConfigurationError: the step does not say where a table is.
        """
        self._reader = reader
        opened = reader.opened()
        uuids = [table.uuid for table in reader.tables_of(opened)]
        if missing := [uuid for uuid in uuids if uuid not in versions]:
            raise ConfigurationError(
                f"option {STEP.key!r} must have the versions of all tables, those of {missing[0]} are missing"
            )
        self._start, self._end = (
            reader.offset_at(opened, tuple(Version.complete(int(versions[uuid][end])) for uuid in uuids))
            for end in (0, 1)
        )

    def partitions(self) -> list[InputPartition]:
        """Those of the stream's micro-batch; a batch must have one."""
        return [*self._reader.partitions(self._start, self._end)] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Its rows."""
        if type(partition) is InputPartition:
            return iter(())
        return self._reader.read(partition)
