"""The tables of a catalog in plain Spark SQL: `spark.sql`, `spark.table`, `readStream.table`, BI tools.

Spark asks a Python format for the columns of a table before it knows any option of that. So each table gets
a format of its own, which knows the folder, and a table of Spark's that uses it. The format's name has the
version of the table's definition and a hash of its folder: an altered or renamed table is another one to
Spark.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from upsert.catalog.connectors.definition import definition_in
from upsert.errors import ConfigurationError, DatabaseNotFoundError, SchemaError, TableNotFoundError
from upsert.managed.datasource import UpsertTableSource
from upsert.managed.options import READ_OPTIONS, WRITE_OPTIONS
from upsert.registration import register
from upsert.spark.formats import known_format, make_known
from upsert.store.table import Table
from upsert.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from upsert.catalog.context import Context

CHANGES: Final = "__changes"
"""What follows the name of a table where Spark reads its changes, with their kinds."""

_FORMATS: Final = "deltajoin_"
"""What the names of these formats begin with; a hash of the warehouse follows."""

_PROVIDER: Final = re.compile(r"^Provider: (\S+)$", re.MULTILINE)
"""Where Spark says the format of a table, which nothing that a user has written stands before."""

_SESSION_CATALOG: Final = "spark.sql.catalog.spark_catalog"
_BUILT_IN: Final = "builtin"
_SPARKS: Final = "spark_catalog"
"""The catalog that has them, whichever is the session's current one."""

_ONE_AT_A_TIME: Final = threading.Lock()
"""Sessions of a program share Spark's catalog: a name that one lists another drops or creates meanwhile."""

_OPTIONS: Final = {option.key for option in (*READ_OPTIONS, *WRITE_OPTIONS)}


def expose(context: Context, spark: SparkSession) -> tuple[str, ...]:
    """Let Spark's own catalog have the tables that the current catalog has now; see `Catalog.expose`."""
    register(spark)
    if (found := spark.conf.get(_SESSION_CATALOG, _BUILT_IN)) != _BUILT_IN:
        raise ConfigurationError(
            f"expose: {_SESSION_CATALOG!r} must not be set, because Spark then reads no tables of a Python "
            f"format; found {found!r}; "
            "use catalog.read or catalog.sql in this session, or expose the tables in another one"
        )
    with _ONE_AT_A_TIME:
        return _brought_there(context, spark, _prefix(context))


def _brought_there(context: Context, spark: SparkSession, prefix: str) -> tuple[str, ...]:
    wanted = {one.qualified: one for one in _tables(context, prefix)}
    for database in {one.database for one in wanted.values()}:
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {_SPARKS}.{quoted(database)}")
    known = dict(_exposed(spark, prefix))
    for name, one in wanted.items():
        make_known(spark, one.source())
        found = known.pop(name, None)
        if found == one.format:
            continue
        if found is not None:
            _drop(spark, name, found)
        elif spark.catalog.tableExists(name):
            raise ConfigurationError(
                f"expose: table {name} of the catalog has the name of another table of Spark; rename or drop "
                "one of them"
            )
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING {one.format}")
    for name, format_ in known.items():
        _drop(spark, name, format_)
    return tuple(sorted(f"{one.database}.{one.table}" for one in wanted.values() if not one.has_kinds))


def unexpose(context: Context, spark: SparkSession) -> None:
    """Take the names of the current catalog's tables out of Spark's own catalog; see `Catalog.unexpose`."""
    with _ONE_AT_A_TIME:
        for name, format_ in _exposed(spark, _prefix(context)):
            _drop(spark, name, format_)


def _drop(spark: SparkSession, name: str, format_: str) -> None:
    """Drop a table of Spark's, which a session can do that knows its format; another one may have made it."""
    unknown = type("Dropped", (DataSource,), {"name": classmethod(lambda _: format_)})
    make_known(spark, known_format(format_) or unknown)
    spark.sql(f"DROP TABLE IF EXISTS {name}")


@dataclass(frozen=True)
class _Exposed:
    """A table under a name of Spark's, as rows or as changes."""

    database: str
    table: str
    path: str
    format: str
    has_kinds: bool

    @property
    def qualified(self) -> str:
        """The name in a statement."""
        return f"{_SPARKS}.{quoted(self.database)}.{quoted(self.table + CHANGES * self.has_kinds)}"

    def source(self) -> type[DataSource]:
        """The format of this table alone."""
        return type("Exposed", (_ExposedSource,), {"exposed": self})


class _ExposedSource(DataSource):
    """A managed table, whose folder need not be said: that of the class which each table has."""

    exposed: ClassVar[_Exposed]

    @classmethod
    def name(cls) -> str:
        """Of this table and no other."""
        return cls.exposed.format

    def schema(self) -> StructType | str:
        """The table's columns, and the kind of a change where it has one."""
        return self._read().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        with self._of_present_columns(schema):
            return self._read().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The changes."""
        table = self.exposed.table
        if not self.exposed.has_kinds:
            raise SchemaError(
                f"table {table!r}: its changes must have column _row_kind, without which deletions look like "
                f"rows; read them with readStream.table('{table}{CHANGES}')"
            )
        with self._of_present_columns(schema):
            return self._read().streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        with self._of_present_columns(schema):
            return self._written().writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A stream write."""
        return self._written().streamWriter(schema, overwrite)

    @contextmanager
    def _of_present_columns(self, asked: StructType) -> Iterator[None]:
        """Tell from any other error that Spark's catalog has other columns than the table by now."""
        try:
            yield
        except SchemaError as cause:
            present = {field.name: field.dataType for field in self._table({}).schema()}
            if all(present.get(field.name) == field.dataType for field in asked):
                raise
            raise SchemaError(
                f"table {self.exposed.table!r}: Spark's catalog must have its columns, "
                f"{', '.join(map(repr, present))}, found {', '.join(map(repr, asked.names))}; "
                "catalog.unexpose(spark) and catalog.expose(spark) bring them there, and ALTER TABLE "
                "needs catalog.sql"
            ) from cause

    def _read(self) -> UpsertTableSource:
        return self._table({} if self.exposed.has_kinds else {"row-kind": "false"})

    def _written(self) -> UpsertTableSource:
        table = self.exposed.table
        if self.exposed.has_kinds:
            raise SchemaError(
                f"table '{table}{CHANGES}' shows the changes of {table!r}, it has no rows of its own; write "
                f"into {table!r}"
            )
        return self._table({})

    def _table(self, more: Mapping[str, str]) -> UpsertTableSource:
        given = {key: value for key, value in self.options.items() if key.lower() in _OPTIONS}
        return UpsertTableSource({**given, **more, "path": self.exposed.path})


def _prefix(context: Context) -> str:
    """What the names of the formats of a catalog's tables begin with."""
    return _FORMATS + _hash(context.warehouse)


def _hash(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()[:12]


def _tables(context: Context, prefix: str) -> Iterator[_Exposed]:
    """The managed tables and views of the current catalog, each as rows and as changes."""
    for database, name in context.databases.all_tables():
        try:
            path = context.databases.resolve(f"{database}.{name}").existing()
            if definition_in(path) is not None:
                continue
            table = Table.open(path)
        except (TableNotFoundError, DatabaseNotFoundError):
            continue  # it was dropped since
        own = f"{prefix}_{_hash(path)}_{table.uuid}_{table.definition.version}"
        yield _Exposed(database, name, path, own, has_kinds=False)
        yield _Exposed(database, name, path, f"{own}{CHANGES}", has_kinds=True)


def _exposed(spark: SparkSession, prefix: str) -> Iterator[tuple[str, str]]:
    """Names and formats of the tables of Spark's that use formats of a catalog."""
    # `spark.catalog.listDatabases` would ask for the description of each, which takes five times as long
    for (shown,) in spark.sql(f"SHOW DATABASES IN {_SPARKS}").collect():
        database = f"{_SPARKS}.{quoted(shown.strip('`'))}"  # Spark quotes one of digits alone
        for table in spark.sql(f"SHOW TABLE EXTENDED IN {database} LIKE '*'").collect():
            found = _PROVIDER.search(table.information)
            if found is not None and found[1].startswith(prefix):
                yield f"{database}.{quoted(table.tableName)}", found[1]
