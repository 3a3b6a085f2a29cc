"""Spark's variables in a text of SQL, ``${name}``: Spark exchanges them before it reads the text.

What is read of a statement here must be what Spark reads, so they are exchanged first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from upsert.errors import ConfigurationError
from upsert.spark.connect import is_connect
from upsert.spark.java import java_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VARIABLE: Final = re.compile(r"\$\{(?:(\w+?):)?(\S+?)\}")
_SETTINGS: Final = (None, "spark", "hivevar", "hiveconf")
"""What may stand before the name of a setting of the session."""
_KINDS: Final = (*_SETTINGS, "env", "system")
"""The same of any variable; ``${file:…}``, which means something to other programs, is a text to Spark."""


def has_variables(text: str) -> bool:
    """Whether a session may exchange a part of the text.

    >>> has_variables("'${day}'"), has_variables("'${env:HOME}'"), has_variables("'${file:a}'")
    (True, True, False)
    """
    return any(found[1] in _KINDS for found in _VARIABLE.finditer(text))


def with_variables(text: str, spark: SparkSession) -> str:
    """A text as a session reads it, with the values of its variables.

    These are settings of the session, empty where there is none, variables of the environment, as
    ``${env:HOME}``, and properties of the JVM, ``${system:user.name}``. A session with
    ``spark.sql.variable.substitute`` = ``false`` has none.

    Raises:
        ConfigurationError: a value names itself; over Spark Connect, one is the server's alone.

    >>> spark.conf.set("fruit", "fig")
    >>> with_variables("SELECT * FROM t WHERE name = '${fruit}'", spark)
    "SELECT * FROM t WHERE name = 'fig'"
    >>> spark.conf.unset("fruit")
    """
    if not has_variables(text) or spark.conf.get("spark.sql.variable.substitute", "true") != "true":
        return text
    return _exchanged(text, spark, ())


def _exchanged(text: str, spark: SparkSession, around: tuple[str, ...]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[0] in around:
            raise ConfigurationError(
                f"SQL: the value of {found[0]!r} must not name it again, got {' in '.join(around)}; "
                "correct the setting"
            )
        given = _value(spark, found[1], found[2])
        return found[0] if given is None else _exchanged(given, spark, (*around, found[0]))

    return _VARIABLE.sub(value, text)


def _value(spark: SparkSession, kind: str | None, name: str) -> str | None:
    """The value of a variable; None leaves it as it is written."""
    if kind in _SETTINGS:
        return str(spark.conf.get(name, ""))
    if kind not in _KINDS:
        return None
    if is_connect(spark):
        raise ConfigurationError(
            f"SQL: over Spark Connect the value of '${{{kind}:{name}}}' is the server's; write it, or set "
            "'spark.sql.variable.substitute' = 'false'"
        )
    system = java_of(spark).java.lang.System
    found = system.getenv(name) if kind == "env" else system.getProperty(name)
    return None if found is None else str(found)
