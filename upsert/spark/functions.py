"""Functions that a session was given, by ``CREATE TEMPORARY FUNCTION`` or ``udf.register``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from upsert.sql.volatile import functions_in
from upsert.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TYPES: Final = re.compile(r"(?:Input|Returns): +(.*)", re.DOTALL)
_BODY: Final = re.compile(r"Body: +(.*)", re.DOTALL)
"""Rows of DESCRIBE FUNCTION that are the same in each session."""


def function_names(spark: SparkSession, kind: str) -> list[str]:
    """The names of a session's functions: its own (``USER``), Spark's (``SYSTEM``), or ``ALL``.

    >>> "upper" in function_names(spark, "SYSTEM")
    True
    """
    return [row[0] for row in spark.sql(f"SHOW {kind} FUNCTIONS").collect()]


def functions_of(spark: SparkSession, called: Iterable[str]) -> dict[str, str]:
    r"""Those of some names, and those that these call, with what Spark says that they compute.

    It says that of functions in SQL alone, the expression or query in brackets; of others the text is empty.

    Args:
        spark: the session.
        called: names in lower case.

    >>> _ = spark.sql("CREATE TEMPORARY FUNCTION half(x INT) RETURNS DOUBLE RETURN x / 2")
    >>> functions_of(spark, ["half", "upper"])
    {'half': 'x INT\nDOUBLE\n(x / 2)'}
    >>> _ = spark.sql("DROP TEMPORARY FUNCTION half")
    """
    own = {name.rpartition(".")[2].lower() for name in function_names(spark, "USER")}
    found: dict[str, str] = {}
    more = own.intersection(called)
    while more:
        found |= {name: _meaning(spark, name) for name in sorted(more)}
        more = own.intersection([one for name in more for one in functions_in(found[name])]) - found.keys()
    return found


def _meaning(spark: SparkSession, name: str) -> str:
    said = [row[0] for row in spark.sql(f"DESCRIBE FUNCTION EXTENDED {quoted(name)}").collect()]
    types = [found[1] for one in said if (found := _TYPES.match(one))]
    return "\n".join([*types, *(f"({found[1]})" for one in said if (found := _BODY.match(one)))])
