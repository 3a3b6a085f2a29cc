"""Tables whose rows are looked up by key, in a catalog and in a plan of Spark.

There such a table is a relation that has columns, and cannot be read. The planner replaces a join with it by
lookups of the keys that a micro-batch has. What it needs for that are the options of the relation, as of
every format: those of CREATE TABLE, and the table's name and columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from upsert.catalog.connectors.base import Connector
from upsert.errors import ConfigurationError
from upsert.lookups.http import CONNECTOR, HttpTable
from upsert.lookups.options import LookupTable
from upsert.options import SECRET_PREFIX, with_secret_names
from upsert.postgres.table import PostgresTable
from upsert.schema import TableSchema
from upsert.spark.columns import spark_schema
from upsert.spark.formats import make_known

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = "lookup-table"
_PREFIX: Final = "lookup-table."


def lookup_rows(spark: SparkSession, table: LookupTable, columns: Sequence[str] | None) -> DataFrame:
    """The table as a batch DataFrame with some columns, for a join that the planner makes lookups of."""
    make_known(spark, LookupTableSource)
    schema = table.schema
    if columns is not None:
        wanted = {*columns, *schema.primary_key}
        kept = tuple(column for column in schema.columns if column.name in wanted)
        schema = replace(schema, columns=kept, computed=())
    declared = {"name": table.name, "connector": table.connector, "schema": json.dumps(schema.to_json())}
    options = {_PREFIX + key: text for key, text in declared.items()} | with_secret_names(table.given)
    reader = spark.read.format(FORMAT).options(**options)
    return reader.schema(spark_schema(schema, row_kind=False)).load()


def looked_up(options: Mapping[str, str]) -> LookupTable:
    """The table of a relation with these options."""
    own = (item for item in options.items() if not item[0].startswith(_PREFIX))
    given = {key.removeprefix(SECRET_PREFIX): text for key, text in own}
    name, connector, schema = (options[_PREFIX + key] for key in ("name", "connector", "schema"))
    columns = TableSchema.from_json(json.loads(schema))
    return (HttpTable if connector == HttpTable.connector else PostgresTable).of(name, columns, given)


def only_looked_up(of: str) -> ConfigurationError:
    """The refusal of a read of all rows; ``of`` begins it."""
    return ConfigurationError(
        f"{of}: its rows are only looked up by key, got a query that would read all of them; join a stream "
        "with it, … JOIN t FOR SYSTEM_TIME AS OF PROCTIME() ON …, or changes with "
        "'spark.deltajoin.consistency' = 'latest', in a catalog made as Catalog(warehouse, "
        "optimize=planner.optimize)"
    )


class LookupTableSource(DataSource):
    """The format of such a relation."""

    @classmethod
    def name(cls) -> str:
        """``lookup-table``."""
        return FORMAT

    def reader(self, schema: StructType) -> NoReturn:  # noqa: ARG002
        """Nothing."""
        raise only_looked_up(f"table {self.options.get(_PREFIX + 'name')!r}")


@dataclass(frozen=True)
class HttpConnector(Connector):
    """A table whose rows an endpoint gives by key."""

    is_looked_up = True
    mirror = None

    table: HttpTable

    @property
    def sink(self) -> NoReturn:
        """None."""
        raise self._not_written()

    def lookup_rows(self, spark: SparkSession, columns: Sequence[str] | None) -> DataFrame:
        """The rows of keys, when a row of a stream needs them."""
        return lookup_rows(spark, self.table, columns)

    def write(self, df: DataFrame) -> NoReturn:  # noqa: ARG002
        """Nothing."""
        raise self._not_written()

    write_changes = write_upsert = write

    def _not_written(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self.table.shown}: a table of the connector {CONNECTOR!r} is only looked up, got rows to "
            "write; write them into another table"
        )

    def without_mirror(self) -> ConfigurationError:
        """The table is only looked up."""
        return only_looked_up(self.table.shown)
