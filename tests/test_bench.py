"""What is measured runs, on few rows."""

from pathlib import Path

from bench.manifests import time_manifests


def test_manifests_are_timed(tmp_path: Path) -> None:
    found = time_manifests(tmp_path, files=20, commits=3)
    assert found.keys() >= {"plan_all_s", "plan_one_partition_s", "last_hundred_median_ms"}
