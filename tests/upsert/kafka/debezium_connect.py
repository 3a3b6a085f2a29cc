"""A real Debezium for `make test-long`: Kafka Connect as a child process, with the connector for PostgreSQL.

Its jars come from Maven Central by the Ivy inside pyspark, 38 MB, once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyspark

from upsert.flock import locked
from upsert.testing.local_kafka import free_ports, java

VERSION: Final = "3.6.1.Final"
_CONNECT: Final = "4.3.0"
_NEEDED: Final = {
    "io.debezium": (VERSION, "debezium-api debezium-embedded debezium-connector-postgres"),
    "org.apache.kafka": (_CONNECT, "connect-runtime connect-json connect-transforms"),
    "org.slf4j": ("1.7.36", "slf4j-simple"),
}


class DebeziumConnect:
    """`connect-standalone` with one connector; it goes on where it was when it is started again."""

    def __init__(self, folder: Path, bootstrap_servers: str, connector: Mapping[str, str]) -> None:
        self._folder = folder
        (port,) = free_ports(1)
        worker = {
            "bootstrap.servers": bootstrap_servers,
            "offset.storage.file.filename": str(folder / "offsets"),
            "offset.flush.interval.ms": "1000",
            "listeners": f"http://127.0.0.1:{port}",
            "plugin.discovery": "only_scan",
            **{part: connector[part] for part in ("key.converter", "value.converter")},
        }
        for name, properties in (("worker", worker), ("connector", connector)):
            lines = (f"{key}={value}\n" for key, value in properties.items())
            (folder / f"{name}.properties").write_text("".join(lines))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        files = [str(self._folder / f"{name}.properties") for name in ("worker", "connector")]
        options = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{_jars()}/*"]
        with open(self._folder / "connect.log", "ab") as log:
            self._process = subprocess.Popen(
                [java(), *options, "org.apache.kafka.connect.cli.ConnectStandalone", *files],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        """The end of what it has said."""
        return (self._folder / "connect.log").read_text()[-5_000:]


def _jars() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deltajoin"
    base.mkdir(parents=True, exist_ok=True)
    folder = base / f"debezium-{VERSION}"
    with locked(base / "debezium.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=base) as part:
                _fetch(Path(part))
                shutil.move(Path(part) / "jars", folder)
    return folder


def _fetch(part: Path) -> None:
    needed = "".join(
        f'<dependency org="{org}" name="{name}" rev="{version}" conf="default->default"/>'
        for org, (version, names) in _NEEDED.items()
        for name in names.split()
    )
    info = '<info organisation="deltajoin" module="debezium"/>'
    module = f'<ivy-module version="2.0">{info}<dependencies>{needed}</dependencies></ivy-module>'
    (part / "ivy.xml").write_text(module)
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    command = [java(), "-jar", str(ivy), "-cache", str(part / "cache"), "-ivy", str(part / "ivy.xml")]
    pattern = f"{part}/jars/[artifact]-[revision].[ext]"
    subprocess.run(
        [*command, "-confs", "default", "-retrieve", pattern], check=True, capture_output=True, timeout=600
    )
