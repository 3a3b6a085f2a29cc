"""Delta Lake's tables and managed ones in one session, with the Spark that Delta Lake has a release for."""

import json
from pathlib import Path

import pytest

from tests.helpers import output_of, spark_script
from upsert.spark.version import PYSPARK

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
SCRIPT = Path(__file__).parent / "beside_delta.py"


@pytest.mark.spark
@pytest.mark.skipif(PYSPARK != "4.2", reason=f"{PACKAGE} is for Spark 4.2: make test SPARK=4.2")
def test_a_query_joins_a_delta_table_with_a_managed_one(tmp_path: Path) -> None:
    process = spark_script(SCRIPT, tmp_path, PACKAGE)
    output = output_of(process)
    if "unresolved dependency" in output and PACKAGE.rpartition(":")[0].replace(":", "#") in output:
        pytest.skip(f"the jars of {PACKAGE} could not be fetched from Maven Central")
    assert process.returncode == 0, output
    assert json.loads(output.splitlines()[-1]) == {
        "sql": [[10, "tea"], [11, "coffee"]],
        "dataframes": [[10, "tea"], [11, "coffee"]],
        "stream": [[1, "tea"], [2, "coffee"]],
        "expose": (
            "expose: 'spark.sql.catalog.spark_catalog' must not be set, "
            "because Spark then reads no tables of a Python format; "
            "found 'org.apache.spark.sql.delta.catalog.DeltaCatalog'; "
            "use catalog.read or catalog.sql in this session, or expose the tables in another one"
        ),
    }
