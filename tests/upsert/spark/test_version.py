"""Which versions of Spark are accepted, and what a user of another one reads."""

import subprocess
import sys
import tomllib

import pytest
from pyspark.sql import SparkSession

from planner.spark.versions import CONSTRUCTORS
from tests.helpers import REPOSITORY
from upsert.errors import ConfigurationError
from upsert.spark.version import PYSPARK, SUPPORTED, TIME_DIGITS, same_as_pyspark, supported, version_of

WITH_AN_OLDER_ONE = """
import importlib, sys
import pyspark

pyspark.__version__ = "4.1.4"
sys.modules["pyspark.sql.datasource"] = sys.modules["pyspark.sql.streaming.datasource"] = None
import upsert
from upsert.errors import ConfigurationError

names = [("upsert", "Catalog"), ("upsert", "register"), ("deltajoin", "read_join"), ("planner", "")]
for package, name in names:
    try:
        module = importlib.import_module(package)
        getattr(module, name)
    except ConfigurationError as error:
        print(error)
print(upsert.Table.__name__)
"""
"""What the names of the three packages say where PySpark lacks what they need; the store needs no PySpark."""


@pytest.mark.parametrize("found", ["3.5.7", "4.0.5", "4.1.4", "4.4.0.dev1", "5.0.0"])
def test_a_pyspark_that_is_not_supported_is_named(found: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        supported(found)
    assert str(error.value) == (
        f"PySpark must be of version 4.2 or 4.3; found {found}; "
        "install one of these: pip install 'pyspark~=4.3.0'"
    )


def test_a_spark_of_another_version_than_pyspark_is_named() -> None:
    with pytest.raises(ConfigurationError) as error:
        same_as_pyspark("4.2.0", "4.3")
    assert str(error.value) == (
        "Spark must be of PySpark's version 4.3; found 4.2.0; "
        "start Spark 4.3, or install its PySpark: pip install 'pyspark~=4.2.0'"
    )
    with pytest.raises(ConfigurationError) as error:
        same_as_pyspark("4.1.4", "4.2")
    assert str(error.value) == "Spark must be of PySpark's version 4.2; found 4.1.4; start Spark 4.2"


def test_every_entry_says_that_pyspark_is_too_old() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITH_AN_OLDER_ONE], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    *errors, table = done.stdout.splitlines()
    assert len(errors) == 4
    assert {error.rpartition("; ")[0] for error in errors} == {
        "PySpark must be of version 4.2 or 4.3; found 4.1.4"
    }
    assert table == "Table"


def test_all_that_names_versions_names_the_same_ones() -> None:
    assert tuple(CONSTRUCTORS) == tuple(TIME_DIGITS) == SUPPORTED
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (needed,) = (one for one in project["dependencies"] if one.startswith("pyspark"))
    major, minor = SUPPORTED[-1].split(".")
    assert needed == f"pyspark>={SUPPORTED[0]},<{major}.{int(minor) + 1}"
    assert f"PySpark {' and '.join(SUPPORTED)}" in (REPOSITORY / "README.md").read_text()


@pytest.mark.spark
def test_a_session_is_of_the_version_of_pyspark(spark: SparkSession) -> None:
    assert version_of(spark) == PYSPARK
