"""Delta Lake's tables followed and written: its tests in a process of their own, and Spark without it."""

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.helpers import REPOSITORY, output_of, spark_script
from upsert import Catalog
from upsert.delta.table import PACKAGE
from upsert.errors import ConfigurationError
from upsert.spark.version import PYSPARK

HERE = Path(__file__).parent


def run_with_delta(marker: str) -> None:
    """A Spark that has begun without Delta's jars gets none later, so its tests need another process."""
    files = [str(HERE / name) for name in ("following.py", "merging.py")]
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-m", marker]
    run = [sys.executable, "-m", "pytest", *options, *files]
    done = subprocess.run(run, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    if "unresolved dependency" in output and PACKAGE.rpartition(":")[0].replace(":", "#") in output:
        pytest.skip(f"the jars of {PACKAGE} could not be fetched from Maven Central")
    assert done.returncode == 0, output


needs_delta = pytest.mark.skipif(PYSPARK != "4.2", reason=f"{PACKAGE} is for Spark 4.2: make test SPARK=4.2")


@needs_delta
@pytest.mark.spark
def test_with_delta() -> None:
    run_with_delta("not long")


@needs_delta
@pytest.mark.long
@pytest.mark.spark
def test_with_delta_for_long() -> None:
    run_with_delta("long")


@needs_delta
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("seed", range(2))
def test_killed_drivers_lose_and_repeat_nothing(tmp_path: Path, seed: int) -> None:
    """One follows a Delta table, which changes meanwhile, and merges into another one what it follows."""
    random = Random(seed)
    for number in range(4):
        process = spark_script(HERE / "crash_script.py", tmp_path, 10 * seed + number, "go on")
        assert process.stdout is not None
        output = []
        for line in process.stdout:
            output.append(line)
            if line == "under way\n":
                break
        assert output[-1:] == ["under way\n"], "".join(output)
        time.sleep(random.uniform(0.5, 8))
        process.kill()  # its JVM ends with it
        process.communicate()
    process = spark_script(HERE / "crash_script.py", tmp_path, 0, "end")
    said = output_of(process)
    assert said.splitlines()[-1] == "equal", said


@pytest.mark.spark
@pytest.mark.parametrize("columns", ["", "id BIGINT, "])
def test_a_session_without_delta_is_told_the_package(
    spark: SparkSession, tmp_path: Path, columns: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"table 't'.*needs Delta Lake in the session.*'{PACKAGE}'"):
        Catalog(tmp_path).sql(
            f"CREATE TABLE t ({columns}PRIMARY KEY (id) NOT ENFORCED) "
            f"WITH ('connector' = 'delta', 'path' = '{tmp_path}/orders')",
            spark,
        )
