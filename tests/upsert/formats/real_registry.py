"""A real schema registry for `make test-long`: a running one, or Apicurio Registry as a child process.

Apicurio comes from Maven Central by the Ivy inside pyspark, 142 MB, once; it keeps everything in memory.
"""

import fcntl
import os
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark

from upsert.testing.local_kafka import free_ports

VARIABLE: Final = "UPSERT_SCHEMA_REGISTRY"
"""Environment variable with the URL of a registry that runs already."""

VERSION: Final = "2.6.13.Final"
START_SECONDS: Final = 120.0
_IVY: Final = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="deltajoin" module="schema-registry"/>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{VERSION}" transitive="false">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


@contextmanager
def real_registry() -> Iterator[str]:
    """The URL of a registry for the length of the block."""
    if VARIABLE in os.environ:
        yield os.environ[VARIABLE]
        return
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as scratch, open(Path(scratch) / "log", "wb") as log:
        process = subprocess.Popen(
            ["java", "-Xmx384m", "-XX:+UseSerialGC", "-jar", str(_runner())],
            env={**os.environ, "QUARKUS_HTTP_PORT": str(port), "QUARKUS_HTTP_HOST": "127.0.0.1"},
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
            _wait(url, process)
            yield url
        finally:
            process.kill()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{url}/subjects", timeout=5):
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _runner() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deltajoin"
    folder = base / f"apicurio-{VERSION}"
    base.mkdir(parents=True, exist_ok=True)
    with open(base / "apicurio.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=base) as part:
                os.rename(_fetch(Path(part)), folder)
    return next(folder.glob("*-runner.jar"))


def _fetch(part: Path) -> Path:
    (part / "ivy.xml").write_text(_IVY)
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    command = ["java", "-jar", str(ivy), "-cache", str(part / "cache"), "-ivy", str(part / "ivy.xml")]
    pattern = f"{part}/[artifact].[ext]"
    subprocess.run([*command, "-retrieve", pattern], check=True, capture_output=True, timeout=600)
    with tarfile.open(part / "apicurio-registry-app.tar.gz") as archive:
        archive.extractall(part / "app", filter="data")
    return part / "app"
