"""Tasks whose output is lost, with the executor that had it, are run again: no job fails for it."""

from pathlib import Path

import pytest

from tests.helpers import run_spark_script

SCRIPT = Path(__file__).with_name("lost_output_script.py")


@pytest.mark.spark
@pytest.mark.long
def test_a_join_that_is_run_again_after_a_compaction_goes_on_with_what_was_read_of_the_first_run(
    tmp_path: Path,
) -> None:
    """Each bucket gets the same rows, in blobs of other bytes: Spark took that for other rows."""
    (tmp_path / "spark").mkdir()
    assert "attempt 1" in run_spark_script(SCRIPT, tmp_path)
