"""The jars of Apache Kafka, fetched once from Maven Central and kept in a cache folder.

PySpark's own Ivy fetches them, so nothing but Java and pyspark has to be there. The folder appears under its
name complete or not at all: a fetch that is killed leaves a temporary folder beside it, which the next fetch
removes, and two processes never fetch at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from upsert.errors import ConfigurationError, UpsertError
from upsert.flock import locked

KAFKA_VERSION: Final = "4.1.1"

FETCH_SECONDS: Final = 600.0
"""How long the download may take: 43 MB in 46 files, about 40 s over a usual line."""

_MODULE: Final = f"""<ivy-module version="2.0">
  <info organisation="deltajoin" module="local-kafka"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}" conf="default->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->default"/>
  </dependencies>
</ivy-module>
"""
"""What Ivy resolves: the broker, and the smallest binding that lets it write a log."""

_NEEDED: Final = ("kafka_2.13", "kafka-server", "kafka-clients", "scala-library", "slf4j-simple")


def java() -> str:
    """The Java program that Spark would run too: below ``JAVA_HOME`` when that is set, else on ``PATH``.

    Raises:
        ConfigurationError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if not found:
        place = f"below JAVA_HOME ({home!r})" if home else "on PATH"
        raise ConfigurationError(
            f"a local Kafka runs on Java 17 or newer — no java was found {place}; install one, "
            "set JAVA_HOME to it, or name a running Kafka in UPSERT_KAFKA_BOOTSTRAP"
        )
    return found


def cache_folder() -> Path:
    """Where the jars are kept: ``deltajoin/kafka-<version>`` below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "deltajoin" / f"kafka-{KAFKA_VERSION}"


def kafka_jars() -> Path:
    """A folder with all jars of the broker; fetched when no earlier call did, which takes about 40 s.

    A process that is killed while it fetches leaves nothing that looks complete; the next call starts again.
    """
    folder = cache_folder()
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            for left_behind in folder.parent.glob(f"{folder.name}.part-*"):
                shutil.rmtree(left_behind)
            with tempfile.TemporaryDirectory(prefix=f"{folder.name}.part-", dir=folder.parent) as part:
                os.rename(_fetch(Path(part)), folder)
    return folder


def _fetch(folder: Path) -> Path:
    """The folder below ``folder`` into which all jars have been downloaded and checked."""
    module, jars = folder / "ivy.xml", folder / "jars"
    module.write_text(_MODULE)
    command = [java(), "-jar", str(_ivy()), "-cache", str(folder / "ivy"), "-ivy", str(module)]
    command += ["-confs", "default", "-retrieve", f"{jars}/[artifact]-[revision].[ext]"]
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired as late:
        raise _fetch_failed(f"not done after {FETCH_SECONDS:.0f} s") from late
    if run.returncode != 0:
        raise _fetch_failed("\n".join(run.stdout.splitlines()[-15:]))
    _check(jars)
    return jars


def _ivy() -> Path:
    """Ivy's jar in the installed pyspark; found without importing it, which would take a second."""
    spec = find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else Path()
    ivy = next(iter(sorted(folder.glob("ivy-*.jar"))), None)
    if ivy is None:
        raise ConfigurationError(
            f"a local Kafka is fetched with the Ivy inside pyspark — no ivy-*.jar lies in {str(folder)!r}; "
            "install pyspark from PyPI, or name a running Kafka in UPSERT_KAFKA_BOOTSTRAP"
        )
    return ivy


def _check(jars: Path) -> None:
    """Raise unless each needed jar is there and each jar can be opened."""
    files = sorted(jars.glob("*.jar"))
    for needed in _NEEDED:
        if not any(file.name.startswith(f"{needed}-") for file in files):
            raise _fetch_failed(f"{needed} is not among the {len(files)} jars that came")
    for file in files:
        if not zipfile.is_zipfile(file):
            raise _fetch_failed(f"{file.name} is damaged")


def _fetch_failed(reason: str) -> UpsertError:
    return UpsertError(
        f"the jars of Apache Kafka {KAFKA_VERSION} — could not be fetched from Maven Central — check the "
        f"network, or name a running Kafka in UPSERT_KAFKA_BOOTSTRAP — {reason}"
    )
