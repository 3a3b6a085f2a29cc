import pytest

from upsert.errors import ConfigurationError
from upsert.store.paths import table_folder
from upsert.store.storage.hdfs_client import HdfsLocation, folder_uri, split


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("hdfs://namenode:8020/orders", "hdfs://namenode:8020/orders"),
        ("HDFS://cluster/a/b/", "hdfs://cluster/a/b"),
        ("webhdfs://namenode:9870/a b", "webhdfs://namenode:9870/a b"),
        ("swebhdfs://[::1]:9871/a", "swebhdfs://[::1]:9871/a"),
        (
            "hdfs://cluster/t?endpoint=http://nn1:9870/,https://nn2:9871",
            "hdfs://cluster;endpoint=http%3A%2F%2Fnn1%3A9870%2Chttps%3A%2F%2Fnn2%3A9871/t",
        ),
    ],
)
def test_a_path_is_kept_with_its_setting_beside_the_host(given: str, kept: str) -> None:
    assert table_folder(given) == kept
    assert table_folder(kept) == kept, "a path that was kept is given again"


def test_a_name_is_joined_to_a_path_as_to_a_folder() -> None:
    path = folder_uri("hdfs://cluster/wh?endpoint=http://nn:9870") + "/orders/table.json"
    assert split(path) == (HdfsLocation("hdfs", "cluster", ("http://nn:9870",)), "/wh/orders/table.json")


@pytest.mark.parametrize(
    ("path", "configured", "addresses"),
    [
        ("hdfs://nn:8020/t", None, ("http://nn:9870",)),
        ("hdfs://[::1]:8020/t", None, ("http://[::1]:9870",)),
        ("hdfs://cluster/t", "http://nn1:9870, http://nn2:9870", ("http://nn1:9870", "http://nn2:9870")),
        ("hdfs://cluster/t?endpoint=http://nn3:50070", "http://nn1:9870", ("http://nn3:50070",)),
        ("webhdfs://nn:50070/t", "http://nn1:9870", ("http://nn:50070",)),
        ("webhdfs://nn/t", None, ("http://nn:9870",)),
        ("swebhdfs://nn/t", None, ("https://nn:9871",)),
    ],
)
def test_where_the_name_nodes_answer(path: str, configured: str | None, addresses: tuple[str, ...]) -> None:
    assert split(path)[0].addresses(configured) == addresses


def test_a_configured_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be the HTTP address of a name node"):
        HdfsLocation("hdfs", "cluster").addresses("nn1:9870")


@pytest.mark.parametrize(
    "path",
    [
        "hdfs://namenode",
        "hdfs://namenode/",
        "hdfs:///folder",
        "hdfs:/folder",
        "hdfs://alice:hunter2@namenode/folder",
        "hdfs://namenode:99999/folder",
        "hdfs://namenode/a/../b",
        "hdfs://namenode//a",
        "hdfs://namenode/a//b",
        "hdfs://namenode/a:b",
        "hdfs://namenode/a\0b",
        "hdfs://namenode/t?endpoint=namenode:9870",
        "hdfs://namenode/t?endpoint=http://alice:hunter2@namenode:9870",
        "hdfs://namenode/t?endpoint=http://namenode:9870/webhdfs",
        "hdfs://namenode/t?endpoint=",
        "hdfs://namenode/t?password=hunter2",
        "webhdfs://namenode/t?user.name=hunter2",
    ],
)
def test_a_path_that_names_no_folder_is_refused_and_no_secret_is_shown(path: str) -> None:
    with pytest.raises(ConfigurationError, match="table path") as error:
        table_folder(path)
    assert "hunter2" not in str(error.value)
