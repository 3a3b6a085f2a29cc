"""What a table may tell the Kafka client: nothing that runs code, reads a file for others, or hangs."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from shutil import copytree, which

import pyarrow as pa
import pytest

from upsert.catalog.catalog import Catalog
from upsert.errors import ConfigurationError, LogNotPublishedError
from upsert.formats.schema_registry import RegistryConfig, SchemaRegistry
from upsert.kafka.client.connection import (
    ALLOWED_VARIABLE,
    CHECKED,
    FILES,
    PLAIN,
    REFUSED,
    Connection,
    check_allowed,
    client_properties,
)
from upsert.kafka.options import PLAIN as KAFKA
from upsert.kafka.options import UPSERT
from upsert.kafka.table import KafkaTable
from upsert.schema import TableSchema
from upsert.store.alterations import SetOptions
from upsert.store.table import Table
from upsert.testing import LocalKafka

NOBODY = "127.0.0.1:1"
SCHEMA = TableSchema.of({"id": pa.int64(), "v": pa.string()}, primary_key=["id"])
FORMATS = {"key.format": "json", "format": "json"}

EVIL = {
    "plugin.library.paths": "/tmp/evil.so",
    "ssl.engine.location": "/tmp/evil.so",
    "ssl.engine.id": "evil",
    "ssl.providers": "../../../tmp/evil",
    "sasl.kerberos.kinit.cmd": "touch /tmp/evil",
    "sasl.kerberos.principal": "x; touch /tmp/evil",
    "sasl.kerberos.keytab": '/etc/x"; touch /tmp/evil; "',
    "sasl.kerberos.service.name": "$(touch /tmp/evil)",
    "sasl.oauthbearer.assertion.file": "/etc/passwd",
    "sasl.oauthbearer.assertion.jwt.template.file": "/etc/passwd",
    "sasl.oauthbearer.assertion.private.key.file": "/etc/key.pem",
    "sasl.oauthbearer.metadata.authentication.type": "azure_imds",
    "sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd",
    "internal.termination.signal": "9",
    "offset.store.path": "/tmp/evil",
    "PLUGIN.LIBRARY.PATHS": "/tmp/evil.so",
    "test.mock.num.brokers": "3",
}


@pytest.fixture
def library(tmp_path: Path) -> tuple[Path, Path]:
    """A shared library, and the file that it makes when it is loaded."""
    if which("cc") is None:
        pytest.skip("no C compiler")
    source, made, mark = tmp_path / "evil.c", tmp_path / "evil.so", tmp_path / "mark"
    source.write_text(
        "#include <stdio.h>\n"
        f'__attribute__((constructor)) static void run(void) {{ fclose(fopen("{mark}", "w")); }}\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], check=True)
    return made, mark


def makes_a_client(properties: Mapping[str, str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Ask a broker that is not there for its topics, in a process of its own."""
    program = (
        "import json, sys\n"
        "from upsert.kafka.client.admin import topics\n"
        "from upsert.kafka.client.connection import Connection\n"
        "topics(Connection(json.loads(sys.argv[1]), patience_s=0.1), ['t'])\n"
    )
    given = json.dumps({"bootstrap.servers": NOBODY, **properties})
    return subprocess.run(
        [sys.executable, "-c", program, given],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
    )


def test_a_library_is_loaded_only_if_the_process_allows_it(library: tuple[Path, Path]) -> None:
    made, mark = library
    refused = makes_a_client({"plugin.library.paths": str(made)})
    assert "ConfigurationError: a connection to Kafka: property 'plugin.library.paths'" in refused.stderr
    assert not mark.exists()
    makes_a_client(
        {"plugin.library.paths": str(made)}, **{ALLOWED_VARIABLE: "ssl.providers, plugin.library.paths"}
    )
    assert mark.exists()


@pytest.mark.parametrize(("name", "value"), EVIL.items())
def test_no_client_is_made_with_what_is_not_allowed(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"property '{name}'") as refused:
        Connection({"bootstrap.servers": NOBODY, name: value})
    assert ALLOWED_VARIABLE in str(refused.value)
    assert value not in str(refused.value).replace(repr(name), "")


def test_the_process_may_allow_each_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_VARIABLE, ", ".join(EVIL))
    assert Connection({"bootstrap.servers": NOBODY, **EVIL}).properties.keys() > EVIL.keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.kerberos.keytab", "/etc/security/keytabs/kafka.client-1.keytab"),
        ("sasl.kerberos.principal", "kafka/host-1.example.org@EXAMPLE.ORG"),
        ("sasl.kerberos.service.name", "kafka"),
        ("sasl.oauthbearer.token.endpoint.url", "https://sso.example.org/token?x=1"),
        ("compression.type", "zstd"),
    ],
)
def test_what_is_harmless_needs_nobodys_consent(name: str, value: str) -> None:
    check_allowed({name: value})


def test_a_misspelt_property_gets_a_suggestion() -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean 'security\.protocol'\?"):
        check_allowed({"security.protocoll": "SSL"})


@pytest.mark.parametrize("connector", [UPSERT, KAFKA])
@pytest.mark.parametrize("prefix", ["properties.", "kafka.", "secret.properties."])
def test_a_table_of_a_topic_is_refused_with_its_name(connector: str, prefix: str) -> None:
    given = {"topic": "t", "properties.bootstrap.servers": NOBODY, f"{prefix}plugin.library.paths": "/x.so"}
    given |= FORMATS if connector == UPSERT else {"format": "json"}
    with pytest.raises(
        ConfigurationError, match=r"'mine'.*property 'plugin\.library\.paths' loads a library"
    ):
        KafkaTable.of(connector, SCHEMA, given, "mine")


def test_create_table_leaves_nothing_behind(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    columns = "(id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED)"
    topic = "'connector' = 'upsert-kafka', 'topic' = 't', 'key.format' = 'json', 'value.format' = 'json'"
    log = "'log.system' = 'kafka'"
    for kind, prefix in ((topic, "properties."), (log, "log.kafka.")):
        servers, evil = f"'{prefix}bootstrap.servers' = '{NOBODY}'", f"'{prefix}plugin.library.paths' = '/x'"
        with pytest.raises(ConfigurationError, match=r"property 'plugin\.library\.paths'"):
            catalog.sql(f"CREATE TABLE t {columns} WITH ({kind}, {servers}, {evil})")
    assert catalog.tables() == ()


@pytest.mark.kafka
def test_a_table_that_somebody_else_wrote_loads_nothing(
    tmp_path: Path, kafka: LocalKafka, library: tuple[Path, Path]
) -> None:
    made, mark = library
    log = {"log.system": "kafka", "log.kafka.bootstrap.servers": kafka.bootstrap_servers}
    table = Table.create(tmp_path / "t", SCHEMA, log)
    evil = SetOptions({"log.kafka.plugin.library.paths": str(made)})
    with pytest.raises(ConfigurationError, match=r"property 'plugin\.library\.paths'"):
        table.alter(evil)
    path = Path(copytree(table.path, tmp_path / "foreign"), "table.json")
    written = json.loads(path.read_text())
    del written["checksum"]  # as in a file of an older release: whoever writes it may leave it out
    written["options"]["log.kafka.plugin.library.paths"] = str(made)
    path.write_text(json.dumps(written))
    foreign = Table.open(path.parent)
    with pytest.raises(LogNotPublishedError, match=r"property 'plugin\.library\.paths'"):
        foreign.write(pa.table({"id": [1], "v": ["a"]}))
    with pytest.raises(ConfigurationError, match=r"property 'plugin\.library\.paths'"):
        foreign.publish_log()
    assert foreign.snapshot().scan().num_rows == 1
    assert not mark.exists()


def test_a_pipe_is_no_file_of_certificates(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for name in FILES:
        with pytest.raises(ConfigurationError, match=f"property '{name}' must name a file, got '{pipe}'"):
            client_properties(Connection({"bootstrap.servers": NOBODY, name: str(pipe)}))
    for name in ("truststore", "keystore"):
        with pytest.raises(ConfigurationError, match="must be PEM files"):
            SchemaRegistry(
                RegistryConfig.of(
                    {**dict.fromkeys(_REGISTRY), "url": ("https://x",), f"ssl.{name}.location": str(pipe)}
                )
            )


_REGISTRY = (
    "basic-auth.user-info",
    "bearer-auth.token",
    "ssl.truststore.location",
    "ssl.keystore.location",
    "ssl.keystore.password",
)


def test_every_property_of_the_library_is_judged(tmp_path: Path) -> None:
    """A release that has more of them makes this fail: somebody looks at what they do."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    [path] = folder.glob("librdkafka-*")
    library, libc = ctypes.CDLL(str(path)), ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    shown = tmp_path / "properties"
    file = ctypes.c_void_p(libc.fopen(os.fsencode(shown), b"w"))
    library.rd_kafka_conf_properties_show(file)
    libc.fclose(file)
    rows = [line.split("|") for line in shown.read_text().splitlines() if " | " in line]
    texts = {row[0].strip() for row in rows if "see dedicated API" not in row[-1]} - {"Property"}
    judged = PLAIN | FILES | CHECKED.keys() | REFUSED.keys()
    assert texts - judged == set()
    assert judged - texts == {"interceptors"}
    assert not PLAIN & (FILES | CHECKED.keys() | REFUSED.keys())
