"""Four calls to a schema registry, and every answer that is none."""

import json
import pickle
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.upsert.formats.real_registry import real_registry
from tests.upsert.formats.registry_double import Double, registry_double
from upsert.errors import ConfigurationError, KafkaUnavailableError, SchemaError
from upsert.formats.schema_registry import RegistryConfig, SchemaRegistry
from upsert.options import Secret

INT, LONG = '"int"', '"long"'


def record(name: str) -> str:
    """A schema that no other test registers."""
    fields = [{"name": name, "type": "int"}]
    return json.dumps({"type": "record", "name": f"r{uuid4().hex}", "fields": fields}, separators=(",", ":"))


@pytest.fixture(scope="module")
def real_url() -> Iterator[str]:
    with real_registry() as url:
        yield url


@pytest.fixture(params=["double", pytest.param("real_url", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest) -> str:
    found = request.getfixturevalue(request.param)
    return found.url if isinstance(found, Double) else str(found)


def client(*urls: str, **settings: str | None) -> SchemaRegistry:
    secrets = {
        key: value if value is None or "store" in key else Secret(value) for key, value in settings.items()
    }
    config = RegistryConfig(tuple(map(Secret, urls)), **secrets)  # type: ignore[arg-type]
    return SchemaRegistry(config, patience_s=0.0, sleep=lambda _: None)


def test_registered_schema_is_found_by_its_id_and_has_a_version_in_its_subject(url: str) -> None:
    registry, subject = client(url), f"orders {uuid4().hex}/value"
    first, second = record("a"), record("b")
    ids = registry.id_of(subject, first), registry.id_of(subject, second)
    assert ids[0] != ids[1]
    assert (registry.schema(ids[0]), registry.schema(ids[1])) == (first, second)
    assert registry.version(ids[0], subject) == 1
    assert registry.version(ids[1], subject) == 2
    assert registry.version(ids[1], "other") is None


def test_schema_that_is_there_is_not_registered_again(url: str) -> None:
    subject, schema = f"orders-{uuid4().hex}", record("a")
    assert client(url).id_of(subject, schema) == client(url).id_of(subject, schema)
    registry = client(url)
    assert registry.version(registry.id_of(subject, schema), subject) == 1


def test_unknown_id_is_none(url: str) -> None:
    registry = client(url)
    assert registry.schema(2_000_000_000) is None
    assert registry.version(2_000_000_000, "a") is None


def test_schema_that_the_registry_does_not_take_is_refused_with_its_words(url: str) -> None:
    with pytest.raises(SchemaError, match=r"the schema registry at 'http://127\.0\.0\.1.* refused: "):
        client(url).id_of(f"orders-{uuid4().hex}", "{}")


def test_what_was_said_is_not_asked_again(double: Double) -> None:
    registry = client(double.url)
    for _ in range(3):
        id = registry.id_of("a-value", INT)
        assert (registry.schema(id), registry.version(id, "a-value")) == (INT, 1)
    assert double.requests == [
        ("POST", "/subjects/a-value"),
        ("POST", "/subjects/a-value/versions"),
        ("GET", f"/schemas/ids/{id}"),
        ("GET", f"/schemas/ids/{id}/versions"),
    ]


def test_id_that_cannot_be_used_is_asked_for_again_after_some_seconds_and_is_found_then(
    double: Double,
) -> None:
    """Messages with such an id come by the thousand, and are decoded a piece at a time."""
    now = 1.0
    registry = SchemaRegistry(RegistryConfig((Secret(double.url),)), clock=lambda: now)
    for _ in range(3):
        assert registry.schema(1) is None
        with pytest.raises(SchemaError, match="schema 1 is not in the registry"):
            registry.files(1)
    double.add("a-value", INT)
    assert registry.schema(1) is None
    assert len(double.requests) == 2
    now = 7.0
    assert registry.schema(1) == INT
    for _ in range(3):
        with pytest.raises(SchemaError, match="schema 1 must be a Protobuf schema, got 'AVRO'"):
            registry.files(1)
    assert len(double.requests) == 4


def test_version_in_a_subject_is_known_as_soon_as_the_schema_is_registered_there(double: Double) -> None:
    """A Protobuf file that others import is read from one subject, and registered in that of its name."""
    double.add("b-value", LONG)
    id = double.add("a-value", INT)
    registry = client(double.url)
    assert registry.version(id, "b-value") is None
    assert registry.id_of("b-value", INT) == id
    assert registry.version(id, "b-value") == 2


def test_registry_that_only_reads_serves_a_writer_whose_schema_is_there(double: Double) -> None:
    id = double.add("a-value", INT)
    assert client(double.url).id_of("a-value", INT) == id
    assert [path for _, path in double.requests] == ["/subjects/a-value"]


def test_next_address_answers_where_the_first_is_down(double: Double) -> None:
    double.add("a-value", INT)
    assert client("http://127.0.0.1:9", f"{double.url}/").schema(1) == INT


@pytest.mark.parametrize(
    ("settings", "url_user", "header"),
    [
        ({}, "", None),
        ({"user_info": "ann:pass"}, "", "Basic YW5uOnBhc3M="),
        ({}, "ann:pa%73s@", "Basic YW5uOnBhc3M="),
        ({"token": "t0ken"}, "", "Bearer t0ken"),
    ],
)
def test_credentials_are_sent(
    double: Double, settings: dict[str, str], url_user: str, header: str | None
) -> None:
    double.add("a-value", INT)
    assert client(double.url.replace("//", f"//{url_user}"), **settings).schema(1) == INT
    assert double.authorizations == [header]


def test_registry_that_is_down_is_waited_for(double: Double) -> None:
    double.add("a-value", INT)
    double.replies = [(503, {}, b""), (429, {}, b""), (200, {}, json.dumps({"schema": LONG}).encode())]
    pauses: list[float] = []
    config = RegistryConfig((Secret(double.url),))
    assert SchemaRegistry(config, patience_s=60.0, sleep=pauses.append).schema(1) == LONG
    assert pauses == [0.1, 0.2]


def test_registry_that_stays_down_is_told_without_its_password() -> None:
    with pytest.raises(KafkaUnavailableError) as error:
        client("http://ann:hunter2@127.0.0.1:9").schema(1)
    assert str(error.value).startswith("the schema registry at 'http://127.0.0.1:9' should answer within 0 s")
    assert "Connection refused" in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "headers", "content", "error", "message"),
    [
        (401, {}, b"", ConfigurationError, "refused the credentials (401); correct 'basic-auth.user-info'"),
        (403, {}, b"no", ConfigurationError, "refused the credentials (403)"),
        (
            302,
            {"Location": "http://127.0.0.1:9/x"},
            b"",
            ConfigurationError,
            "is not followed; correct 'url'",
        ),
        (404, {}, b"<html>", ConfigurationError, "must answer with JSON, got b'<html>'; correct 'url'"),
        (404, {}, b"{}", ConfigurationError, "must answer with an error, got {}"),
        (200, {}, b"", ConfigurationError, "must answer with JSON, got b''"),
        (200, {}, b"[" * 100_000, ConfigurationError, "must answer with JSON"),
        (200, {}, b"[]", ConfigurationError, "must answer with a schema, got []"),
        (200, {}, b'{"schema": 5}', ConfigurationError, "must answer with a schema"),
        (200, {}, b"x" * 10_000_001, ConfigurationError, "got 'more than 10000000 bytes'"),
        (409, {}, b'{"error_code": 409, "message": "incompatible"}', SchemaError, "refused: 'incompatible'"),
        (
            200,
            {},
            b'{"schema": "syntax", "schemaType": "PROTOBUF"}',
            SchemaError,
            "schema 1 must be an Avro schema, got 'PROTOBUF'",
        ),
        (
            200,
            {},
            b'{"schema": "{}", "references": [{"name": "a"}]}',
            SchemaError,
            "schema 1 refers to schemas of other subjects",
        ),
        (500, {}, b"", KafkaUnavailableError, "HTTPError: HTTP Error 500"),
    ],
)
def test_answer_that_is_none_is_told(
    double: Double, status: int, headers: dict[str, str], content: bytes, error: type[Exception], message: str
) -> None:
    double.replies = [(status, headers, content)]
    with pytest.raises(error) as raised:
        client(double.url, user_info="ann:hunter2").schema(1)
    assert message in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("reply", [b'{"id": "1"}', b'{"id": -1}', b'{"id": 2147483648}', b"[]", b"{}"])
def test_id_that_is_no_id_is_refused(double: Double, reply: bytes) -> None:
    double.replies = [(200, {}, reply)]
    with pytest.raises(ConfigurationError, match="must answer with an id"):
        client(double.url).id_of("a", INT)


def test_redirect_does_not_take_the_credentials_elsewhere(double: Double) -> None:
    with registry_double() as other:
        double.replies = [(307, {"Location": f"{other.url}/schemas/ids/1"}, b"")]
        with pytest.raises(ConfigurationError, match="redirects to"):
            client(double.url, token="t0ken").schema(1)
        assert other.requests == []


def test_file_that_is_no_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.jks").write_bytes(b"\xfe\xed\xfe\xed")
    for settings in ({"truststore": str(tmp_path / "store.jks")}, {"keystore": str(tmp_path / "none.pem")}):
        with pytest.raises(ConfigurationError, match="must be PEM files, got"):
            client("https://127.0.0.1:9", **settings)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PEM file with a key, which has the password `hunter2`, and its own certificate for 127.0.0.1."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("makes a certificate with openssl, which is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = ["-x509", "-newkey", "rsa:2048", "-days", "2", "-passout", "pass:hunter2"]
    named = ["-subj", "/CN=registry", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [openssl, "req", *made, *named, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text(key.read_text() + certificate.read_text())
    return both


def test_registry_is_trusted_by_its_certificate_and_may_ask_for_the_clients(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
    context.load_cert_chain(certificate, password="hunter2")
    context.verify_mode = ssl.CERT_REQUIRED
    trusting = {"truststore": str(certificate)}
    known = {**trusting, "keystore": str(certificate), "keystore_password": "hunter2"}
    with registry_double(context) as double:
        double.add("a-value", INT)
        assert client(double.url, **known).schema(1) == INT
        for settings, message in (({}, "certificate verify failed"), (trusting, "should answer within")):
            with pytest.raises(KafkaUnavailableError, match=message):
                client(double.url, **settings).schema(1)
        with pytest.raises(ConfigurationError, match="must be PEM files") as error:
            client(double.url, **(known | {"keystore_password": "hunter3"}))
        assert "hunter" not in str(error.value)


def test_config_can_be_sent_and_shows_no_secret() -> None:
    config = RegistryConfig((Secret("http://a:b@c"),), Secret("ann:hunter2"), Secret("t0ken"))
    assert pickle.loads(pickle.dumps(config)) == config
    assert not any(secret in repr(config) for secret in ("hunter2", "t0ken", "a:b"))
