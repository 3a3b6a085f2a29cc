"""The format ``upsert-table``, where Spark looks for data sources: a top-level module named ``pyspark_…``.

Spark imports such modules in a process of its own when a session first looks a Python format up. So this one
imports nothing of the package before a table is read or written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from upsert.managed.datasource import UpsertTableSource


class DefaultSource(DataSource):
    """Tables of ``upsert`` by their path, in a session that was told of nothing.

    Example:
        >>> DefaultSource.name()
        'upsert-table'
    """

    def __new__(cls, options: dict[str, str]) -> UpsertTableSource:  # type: ignore[misc]
        """The source that ``upsert.register`` makes known."""
        from upsert.managed.datasource import UpsertTableSource

        return UpsertTableSource(options)

    @classmethod
    def name(cls) -> str:
        """As `UpsertTableSource` has it."""
        return "upsert-table"
