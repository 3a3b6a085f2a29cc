"""The server of HDFS that does as tests tell it."""

from collections.abc import Iterator

import pytest

from tests.scripted_webhdfs import ScriptedHdfs, scripted_hdfs


@pytest.fixture(scope="module")
def hdfs_of_module() -> Iterator[ScriptedHdfs]:
    with scripted_hdfs() as server:
        yield server


@pytest.fixture
def hdfs(hdfs_of_module: ScriptedHdfs) -> ScriptedHdfs:
    """A server that has no troubles yet, and was asked nothing."""
    hdfs_of_module.troubles.clear()
    hdfs_of_module.asked.clear()
    hdfs_of_module.users.clear()
    return hdfs_of_module
