"""The files that say things in JSON, to the byte: later releases read what earlier ones have written."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from upsert.schema import TableSchema
from upsert.store import paths
from upsert.store.log.files import GONE, LogBeginning
from upsert.store.metadata.definition import Definition
from upsert.store.metadata.snapshot import ManifestRef, SnapshotInfo
from upsert.store.metadata.tag_file import Tag
from upsert.store.retention.consumers import Consumer
from upsert.store.table import Table
from upsert.store.version import Version

UUID = "0123456789abcdef0123456789abcdef"
REF = ManifestRef("manifest/00000000000000000001-0123456789abcdef0123456789abcdef.arrow", 3, 2, 77)
SNAPSHOT = SnapshotInfo(
    id=7,
    uuid="a" * 32,
    parent="b" * 32,
    kind="append",
    time_ms=1_700_000_000_000,
    data_version=7,
    tracked=True,
    writers={"query": 4, "other": 0},
    watermark=None,
    log_offsets={"0": 12, "1": 3},
    manifests=(REF, ManifestRef(REF.name, 0, 1)),
    delta=REF,
    oldest=2,
    fence=1,
    files=5,
    rows=60,
    delta_rows=6,
    states=4,
    last_untracked=3,
    definition=1,
    untracked=((("day", "2013-01-01"), ("port", None)), (("day", None), ("port", ""))),
    definition_checksum=9,
)
SAID = {
    "id": 7,
    "uuid": "a" * 32,
    "parent": "b" * 32,
    "kind": "append",
    "time_ms": 1_700_000_000_000,
    "data_version": 7,
    "tracked": True,
    "writers": {"query": 4, "other": 0},
    "watermark": None,
    "log_offsets": {"0": 12, "1": 3},
    "manifests": [
        {"name": REF.name, "entries": 3, "sequence": 2, "checksum": 77},
        {"name": REF.name, "entries": 0, "sequence": 1, "checksum": 0},
    ],
    "delta": {"name": REF.name, "entries": 3, "sequence": 2, "checksum": 77},
    "oldest": 2,
    "fence": 1,
    "files": 5,
    "rows": 60,
    "delta_rows": 6,
    "states": 4,
    "last_untracked": 3,
    "definition": 1,
    "untracked": [[["day", "2013-01-01"], ["port", None]], [["day", None], ["port", ""]]],
    "definition_checksum": 9,
}


def assert_says(content: bytes, said: Mapping[str, Any], checksum: str) -> None:
    """Compare to the byte: format, what is said in this order, checksum."""
    fields = {"format": 1, **said, "checksum": checksum}.items()
    lines = ",\n ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in fields)
    assert content.decode() == f"{{\n {lines}\n}}"


def test_a_snapshot() -> None:
    """Its format is one that releases refuse which take small files without a sidecar for damaged."""
    assert_says(SNAPSHOT.content(UUID), {"format": 4, **SAID}, "f928e2b2ab76c0a6")


def test_a_tag() -> None:
    said = {"created_ms": 5, "snapshot": {"format": 1, **SAID}}
    assert_says(Tag("monday", SNAPSHOT, 5).content(UUID), said, "7cf589f04bdc7d40")


@pytest.mark.parametrize(
    ("version", "said", "checksum"),
    [
        (Version.complete(3), {"base": 3, "cursor": None, "target": 3}, "451ddf0e7b8c0e18"),
        (Version(0, 5, (1, 2**63)), {"base": 0, "cursor": [1, str(2**63)], "target": 5}, "9f4d5fe1263b6d45"),
    ],
)
def test_a_consumer(version: Version, said: Mapping[str, Any], checksum: str) -> None:
    content = Consumer("nightly", version, 10, 20).content(UUID)
    assert_says(content, {"version": said, "renewed_ms": 10, "until_ms": 20}, checksum)


@pytest.mark.parametrize(
    ("state", "properties", "checksum"),
    [("made", {"bootstrap.servers": "broker:9092"}, "070dd85715975198"), (GONE, {}, "e7910ef4262ab565")],
)
def test_where_a_log_began(tmp_path: Path, state: Any, properties: Mapping[str, str], checksum: str) -> None:
    begun = LogBeginning("flights", 4, 1_700_000_000_000, state, {"bootstrap.servers": "broker:9092"})
    begun.write(str(tmp_path), UUID)
    said = {
        "topic": "flights",
        "data_version": 4,
        "time_ms": 1_700_000_000_000,
        "state": state,
        "properties": properties,
    }
    assert_says((tmp_path / paths.log_file("flights")).read_bytes(), said, checksum)


def test_a_definition() -> None:
    schema = TableSchema.of(
        {"day": pa.string(), "id": pa.int64()}, primary_key=["day", "id"], partitioned_by=["day"]
    )
    untracked = frozenset({(("day", "b"),), (("day", None),), (("day", "a"),)})
    content = Definition(3, schema, {"bucket": "4"}, untracked, last_id=9).content(UUID)
    said = {
        "uuid": UUID,
        "version": 3,
        "schema": schema.to_json(),
        "options": {"bucket": "4"},
        "untracked": [[["day", "a"]], [["day", "b"]], [["day", None]]],
        "last_id": 9,
    }
    assert_says(content, said, "044f2dcf9a45295b")


def test_what_is_published_is_what_is_read(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64()}, primary_key=["id"]))
    snapshot = table.write(pa.table({"id": [1]}), writer_id="w", transaction=1).info
    file = tmp_path / "t" / paths.snapshot_file(1)
    assert file.read_bytes() == snapshot.content(table.uuid)
    assert table.published.reread().info(1) == snapshot
    assert table.tag("first") == table.tags()[0]
    assert table.hold("reader", Version.complete(1)) == table.consumers()[0]
