import pytest

from upsert.errors import ConfigurationError
from upsert.store.paths import table_folder
from upsert.store.storage import azure, gcs, s3, storage_of
from upsert.store.storage.azure import AzureLocation
from upsert.store.storage.gcs import GcsLocation
from upsert.store.storage.s3 import S3Location

ACCOUNT = "account.dfs.core.windows.net"


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
        ("gs://a.bucket_of-ours/orders/", "gs://a.bucket_of-ours/orders"),
        ("GCS://bucket/a b", "gs://bucket/a b"),
        ("gs://bucket/t?endpoint=http://host:4443", "gs://bucket;endpoint=http%3A%2F%2Fhost%3A4443/t"),
        (f"abfss://shop@{ACCOUNT}/a/b/", f"abfss://shop@{ACCOUNT}/a/b"),
        (f"abfs://shop@{ACCOUNT.upper()}/t", f"abfss://shop@{ACCOUNT}/t"),
        ("wasbs://shop@account.blob.core.windows.net/t", "abfss://shop@account.blob.core.windows.net/t"),
        ("az://shop/t", "az://shop/t"),
        (
            "abfss://shop@account/t?endpoint=http://host:10000",
            "abfss://shop@account;endpoint=http%3A%2F%2Fhost%3A10000/t",
        ),
    ],
)
def test_a_path_is_kept_with_its_settings_beside_the_bucket(given: str, kept: str) -> None:
    assert table_folder(given) == kept
    assert table_folder(kept) == kept, "a path that was kept is given again"


def test_the_storage_of_a_bucket_is_not_that_of_one_whose_name_is_its_beginning() -> None:
    assert storage_of("s3://bucket-12") is storage_of("s3://bucket-12/wh")
    assert storage_of("s3://bucket-1/wh") is not storage_of("s3://bucket-12/wh")


def test_a_name_is_joined_to_a_path_as_to_a_folder() -> None:
    path = s3.STORES.folder_uri("s3://bucket/wh?endpoint=http://127.0.0.1:9000&region=eu-west-1")
    location = S3Location("bucket", "http://127.0.0.1:9000", "eu-west-1")
    assert s3.split(f"{path}/orders/table.json") == (location, "wh/orders/table.json")
    path = gcs.STORES.folder_uri("gs://bucket/wh?endpoint=http://127.0.0.1:4443")
    location = GcsLocation("bucket", "http://127.0.0.1:4443")
    assert gcs.split(f"{path}/orders/table.json") == (location, "wh/orders/table.json")
    path = azure.STORES.folder_uri(f"abfs://shop@{ACCOUNT}/wh?endpoint=http://127.0.0.1:10000")
    location = AzureLocation("shop", ACCOUNT, "http://127.0.0.1:10000")
    assert azure.split(f"{path}/orders/table.json") == (location, "wh/orders/table.json")


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
        "gs://bucket",
        "gs://B/t",
        "gs://bucket/a/../b",
        "gs://bucket/t?region=eu",
        "gs://bucket/t?client_secret=hunter2",
        "gs://bucket/t?endpoint=http://user:hunter2@host",
        "gs://user:password@bucket/t",
        "abfss://shop",
        f"abfss://shop@{ACCOUNT}",
        f"abfss://shop@{ACCOUNT}/a//b",
        f"abfss://shop@{ACCOUNT}/t?sig=hunter2",
        f"abfss://Shop@{ACCOUNT}/t",
        f"abfss://shop@{ACCOUNT}:443/t",
        "abfss://account:password@host/shop/t",
        "az://shop/t?endpoint=https://host/path",
        "viewfs://host/t",
        "memory:t",
    ],
)
def test_a_path_that_names_no_folder_is_refused_and_no_secret_is_shown(path: str) -> None:
    with pytest.raises(ConfigurationError, match="table path") as error:
        table_folder(path)
    assert "hunter2" not in str(error.value)
    assert "password" not in str(error.value)
