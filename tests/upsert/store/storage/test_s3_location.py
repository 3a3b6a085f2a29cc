import pytest

from upsert.errors import ConfigurationError
from upsert.store.paths import table_folder
from upsert.store.storage.s3 import S3Location, folder_uri, split


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("s3://bucket/orders", "s3://bucket/orders"),
        ("s3a://bucket/a/b/", "s3://bucket/a/b"),
        ("S3://bucket/a b", "s3://bucket/a b"),
        (
            "s3://bucket/t?endpoint=https://s3.example.org/",
            "s3://bucket;endpoint=https%3A%2F%2Fs3.example.org/t",
        ),
        (
            "s3://bucket/t?endpoint=http://[::1]:9000",
            "s3://bucket;endpoint=http%3A%2F%2F%5B%3A%3A1%5D%3A9000/t",
        ),
    ],
)
def test_a_path_is_kept_with_its_settings_beside_the_bucket(given: str, kept: str) -> None:
    assert table_folder(given) == kept
    assert table_folder(kept) == kept, "a path that was kept is given again"


def test_a_name_is_joined_to_a_path_as_to_a_folder() -> None:
    path = folder_uri("s3://bucket/wh?endpoint=http://127.0.0.1:9000&region=eu-west-1") + "/orders/table.json"
    assert split(path) == (
        S3Location("bucket", "http://127.0.0.1:9000", "eu-west-1"),
        "wh/orders/table.json",
    )


@pytest.mark.parametrize(
    "path",
    [
        "s3://bucket",
        "s3://bucket/",
        "s3:///folder",
        "s3://b/folder",
        "s3://user:password@bucket/folder",
        "s3://bucket/a/../b",
        "s3://bucket/a//b",
        "s3://bucket/./b",
        "s3://bucket/a\0b",
        "s3://bucket/t?endpoint=ftp://host",
        "s3://bucket/t?endpoint=http://user:hunter2@host",
        "s3://bucket/t?endpoint=http://host/path",
        "s3://bucket/t?endpoint=http://host:99999",
        "s3://bucket/t?region=a%20b",
        "s3://bucket/t?secret_access_key=hunter2",
        "gs://bucket/t",
        "viewfs://host/t",
        "memory:t",
    ],
)
def test_a_path_that_names_no_folder_is_refused_and_no_secret_is_shown(path: str) -> None:
    with pytest.raises(ConfigurationError, match="table path") as error:
        table_folder(path)
    assert "hunter2" not in str(error.value)
    assert "password" not in str(error.value)
