"""The versions of Spark that this works with; where PySpark is of another one, importing this says so.

Packages import it before their modules import what older versions of PySpark do not have: of that Python
would say no more than the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyspark

from upsert.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUPPORTED: Final = ("4.2", "4.3")

TIME_DIGITS: Final[Mapping[str, int]] = {"4.2": 6, "4.3": 9}
"""How many digits of a second a TIME has at most in each of them."""


def version_of(spark: SparkSession) -> str:
    """The version of a session's Spark, as in ``4.3``; it is that of PySpark.

    Raises:
        ConfigurationError: it is another one.
    """
    return same_as_pyspark(spark.version, PYSPARK)


def supported(found: str) -> str:
    """The version in short, from what PySpark says of itself.

    Raises:
        ConfigurationError: it is not supported.

    >>> supported("4.2.1")
    '4.2'
    """
    version = _short(found)
    if version not in SUPPORTED:
        raise ConfigurationError(
            f"PySpark must be of version {' or '.join(SUPPORTED)}; found {found}; "
            f"install one of these: pip install 'pyspark~={SUPPORTED[-1]}.0'"
        )
    return version


def same_as_pyspark(found: str, of_pyspark: str) -> str:
    """The version in short, from what Spark says of itself.

    Raises:
        ConfigurationError: PySpark, which runs the sources and sinks, is of another one.

    >>> same_as_pyspark("4.2.0-amzn-1", "4.2")
    '4.2'
    """
    version = _short(found)
    if version != of_pyspark:
        other = f", or install its PySpark: pip install 'pyspark~={version}.0'"
        raise ConfigurationError(
            f"Spark must be of PySpark's version {of_pyspark}; found {found}; "
            f"start Spark {of_pyspark}{other if version in SUPPORTED else ''}"
        )
    return version


def _short(version: str) -> str:
    return ".".join(version.split(".")[:2])


PYSPARK: Final = supported(pyspark.__version__)
"""The version of the installed PySpark."""
