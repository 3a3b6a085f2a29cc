"""A client is made of what the path and the environment say, and an error says where that is too little."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.identity import DefaultAzureCredential
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.object_store import KEY, LossyProxy, ObjectStore
from upsert.errors import ConfigurationError
from upsert.store.paths import table_folder
from upsert.store.storage import azure, gcs, put_if_absent, s3, storage_of
from upsert.store.storage.azure import AzureLocation
from upsert.store.storage.base import RefusedError, UnansweredError

OTHER_KEY = "c2VjcmV0c2VjcmV0c2VjcmV0"


@pytest.fixture(autouse=True)
def _new_clients() -> Iterator[None]:
    """Others are made of another environment."""
    yield
    for kept in (s3._clients, gcs._sessions, azure._containers):
        kept.clear()


def test_the_environment_may_say_where_the_server_is(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = table_folder(object_store.folder())
    for name, value in (
        ("AWS_ENDPOINT_URL_S3", object_store.endpoint),
        ("STORAGE_EMULATOR_HOST", object_store.endpoint.removeprefix("http://")),
        (azure.CONNECTION_VARIABLE, object_store.connection_string),
    ):
        monkeypatch.setenv(name, value)
    elsewhere = object_store.folder().partition("?")[0]
    assert put_if_absent(f"{folder}/name", b"1")
    head = table_folder(elsewhere).rpartition("/")[0].rpartition("/")[0]
    same = f"{head}/{'/'.join(folder.split('/')[-2:])}/name"
    assert same != f"{folder}/name"
    assert storage_of(same).read(same) == b"1"
    if object_store.kind == "azure":
        same = f"az://tests/{'/'.join(folder.split('/')[-2:])}/name"
        assert storage_of(same).read(same) == b"1"


@pytest.mark.parametrize(
    ("library", "path", "message"),
    [
        ("botocore.session", "s3://bucket/t", "needs the package 'botocore', .*; .*'deltajoin.s3.'"),
        ("google.auth", "gs://bucket/t", "needs the package 'google-auth', .*'deltajoin.gcs.'"),
        ("azure.storage.blob", "az://shop/t", "needs the package 'azure-storage-blob', .*'deltajoin.azure.'"),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    library: str, path: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigurationError, match=message):
        storage_of(path).read(path)


def service_account(folder: Path) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "account.json"
    value = {
        "type": "service_account",
        "private_key": pem.decode(),
        "client_email": "us@shop",
        "token_uri": "http://127.0.0.1:9/token",
        "project_id": "shop",
    }
    file.write_text(json.dumps(value))
    return str(file)


def test_google_s_credentials_are_those_of_its_own_chain_and_go_over_https_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", service_account(tmp_path))
    credentials = gcs._made("https://storage.googleapis.com", "bucket").credentials
    assert credentials.service_account_email == "us@shop"
    assert not hasattr(gcs._made("http://host:4443", "bucket").credentials, "service_account_email")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(ConfigurationError, match="needs credentials, got DefaultCredentialsError; set"):
        storage_of("gs://bucket/t").read("gs://bucket/t")


def test_azure_s_credentials_are_those_of_the_path_s_account(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = AzureLocation("shop", "ours.dfs.core.windows.net")
    monkeypatch.setenv(azure.ACCOUNT_VARIABLE, "ours")
    monkeypatch.setenv(azure.KEY_VARIABLE, KEY)
    assert azure._credential(ours) == {"account_name": "ours", "account_key": KEY}
    monkeypatch.delenv(azure.KEY_VARIABLE)
    monkeypatch.setenv(azure.TOKEN_VARIABLE, "sig=1")
    assert azure._credential(ours) == "sig=1"
    theirs = AzureLocation("shop", "theirs.dfs.core.windows.net")
    assert isinstance(azure._credential(theirs), DefaultAzureCredential)
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(ConfigurationError, match="needs credentials, got none; set AZURE_STORAGE_CONNECTION"):
        azure._credential(theirs)
    monkeypatch.setenv(azure.CONNECTION_VARIABLE, f"AccountKey={OTHER_KEY}")
    with pytest.raises(ConfigurationError, match="must be as Azure gives them") as told:
        azure._made(ours)
    assert OTHER_KEY not in str(told.value)
    monkeypatch.delenv(azure.CONNECTION_VARIABLE)
    monkeypatch.delenv(azure.ACCOUNT_VARIABLE)
    with pytest.raises(ConfigurationError, match="its account must be known, got none; write abfss://"):
        azure._made(AzureLocation("shop"))


def test_folders_of_a_hierarchical_namespace_are_no_files_and_are_deleted_too(azure: ObjectStore) -> None:
    """Azurite has none; to a client they are empty blobs with an entry of their own."""
    folder = table_folder(azure.folder())
    storage = storage_of(folder)
    blob = storage._client._blob  # type: ignore[attr-defined]
    for name in ("", "/a", "/a/b"):
        blob(f"{folder}{name}").upload_blob(b"", metadata={"hdi_isfolder": "true"})
    storage.write(f"{folder}/a/b/file", b"1")
    storage.write(f"{folder}/file", b"1")
    assert sorted(found.name for found in storage.walk(folder)) == ["a/b/file", "file"]
    assert (sorted(storage.names(folder)), storage.names(f"{folder}/a")) == (["a", "file"], ["b"])
    storage.delete_folder(folder)
    assert not any(storage.exists(f"{folder}{name}") for name in ("/a", "/a/b", "/a/b/file", "/file"))


@pytest.mark.parametrize(
    ("status", "code", "kind", "message"),
    [
        (501, "NotImplemented", RefusedError, "got 501 NotImplemented, which it will say again; correct the"),
        (400, "InvalidArgument", RefusedError, "got 400 InvalidArgument, which it will say again"),
        (301, "PermanentRedirect", RefusedError, "got 301 PermanentRedirect, which it will say again"),
        (400, "InvalidToken", RefusedError, "got InvalidToken; correct the credentials"),
        (403, "RequestTimeTooSkewed", RefusedError, "clocks of the server and of this machine must agree"),
        (400, "RequestTimeout", UnansweredError, "got 503 RequestTimeout; check the server and the network"),
        (400, "ThrottlingException", UnansweredError, "got 503 ThrottlingException; check the server"),
        (429, "TooManyRequests", UnansweredError, "got 429 TooManyRequests; check the server"),
        (503, "SlowDown", UnansweredError, "got 503 SlowDown; check the server"),
    ],
)
def test_a_request_is_sent_again_only_where_another_answer_may_come(
    status: int, code: str, kind: type[Exception], message: str
) -> None:
    """A store without conditional puts was asked for a minute, and then said to be away."""
    answer = ClientError(
        {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject"
    )
    with pytest.raises(kind, match=message), s3._errors_of("s3://bucket/t"):
        raise answer


def test_a_wrong_key_is_refused_and_not_shown(azure: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", OTHER_KEY)
    path = f"{table_folder(azure.folder('http://localhost:' + azure.endpoint.rpartition(':')[2]))}/t"
    with pytest.raises(RefusedError, match="correct the credentials in the environment") as told:
        put_if_absent(path, b"")
    assert OTHER_KEY not in str(told.value)


def test_a_server_that_wants_other_credentials_than_there_are_is_refused(gcs: ObjectStore) -> None:
    with LossyProxy(gcs.endpoint) as lossy:
        path = f"{table_folder(gcs.folder(lossy.endpoint))}/t"
        lossy.refuse, lossy.status, lossy.times = "/t", 401, 99
        with pytest.raises(RefusedError, match="got no token for them; correct the credentials in GOOGLE"):
            put_if_absent(path, b"")
