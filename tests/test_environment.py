"""The ground that the Spark tests stand on."""

import os
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.forked_python import SOURCE, launcher
from tests.helpers import LOCAL_CLUSTER, run_spark_script

SCRIPT = """
import pyarrow as pa
from pyspark.sql import SparkSession

from upsert.rowkind import signs

spark = SparkSession.builder.getOrCreate()

def sign(batches):
    for batch in batches:
        yield pa.record_batch({"sign": pa.array(signs(batch["kind"]).tolist(), pa.int64())})

rows = spark.createDataFrame([("+I",), ("-D",), ("+U",)], "kind STRING").repartition(2)
print("sum of signs:", sum(row.sign for row in rows.mapInArrow(sign, "sign BIGINT").collect()))
print("master:", spark.sparkContext.master)
spark.stop()
"""


@pytest.mark.spark
def test_session_is_small_and_in_utc(spark: SparkSession) -> None:
    assert spark.sparkContext.master == "local[2]"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.range(3).count() == 3


def test_a_forked_python_has_the_streams_and_the_end_of_one_that_was_started(tmp_path: Path) -> None:
    with launcher(tmp_path) as python:
        given = {**os.environ, "PYTHON_WORKER_FACTORY_PORT": "no port"}
        command = [python, "-m", SOURCE]
        forked = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
        assert forked.returncode == 1
        assert "'no port'" in forked.stderr.splitlines()[-1]
        other = subprocess.run([python, "-c", "print(1)"], capture_output=True, text=True, check=True)
        assert other.stdout == "1\n"


@pytest.mark.long
@pytest.mark.spark
def test_workers_of_a_local_cluster_find_the_packages(tmp_path: Path) -> None:
    """Executors are processes of their own, which inherit nothing of the driver's import path."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    output = run_spark_script(script, master=LOCAL_CLUSTER)
    assert "sum of signs: 1" in output
    assert f"master: {LOCAL_CLUSTER}" in output
