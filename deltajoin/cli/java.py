"""The Java of a command: whether Spark runs on it, and the classes of Spark that it keeps for its next start.

A JVM loads and verifies some 15 000 classes to start Spark and to plan a first query. It can keep them in a
file (class-data sharing), which the next one maps into its memory: a first query is answered in three
quarters of the time. The file belongs to one Java and one folder of jars; another JVM sees that, and loads
its classes as always.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from upsert.errors import ConfigurationError

OLDEST: Final = 17
"""The first version of Java that Spark 4 runs on."""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)([^"]*)"')
_SILENT: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_IF_WHOLE: Final = "-XX:+VerifySharedSpaces"
"""For 50 ms: a JVM that does not look crashes on a file that a disk has damaged."""
_USER_SAYS: Final = (
    "-Xshare",
    "SharedArchiveFile",
    "ArchiveClassesAtExit",
    "AutoCreateSharedArchive",
    "-XX:AOT",
)
"""With the last ones, which Java has from 24 on, no JVM starts that has any of the others."""
_SHARES: Final = re.compile(r"\bsharing\b")
"""Said by a JVM that has Java's own classes from a file; no other starts if it is told to keep some."""
_OF_JVM: Final = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
_REFUSED: Final = re.compile(r"-XX:|-agent|-javaagent|--limit-modules|--upgrade-module-path|--patch-module")
_OF_DRIVER: Final = re.compile(r"driver-java-options|driver-class-path|driver\.\w*(?:JavaOptions|ClassPath)")
_ON_CLASS_PATH: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
_FREE_BYTES: Final = 1 << 30
_OLD_S: Final = 30 * 24 * 3600.0


_COMPILES_LATER: Final = tuple(
    f"-XX:Tier4{name}={20 * default}"
    for name, default in {
        "InvocationThreshold": 5_000,
        "MinInvocationThreshold": 600,
        "CompileThreshold": 15_000,
        "BackEdgeThreshold": 40_000,
    }.items()
)
"""After 20 times as many calls as by default Java compiles a method for the second time.

That takes much longer than the first time, and on few cores the statement waits for it. Most methods are
Spark's planner, which needs it least. Loops over rows come to so many calls within a second.
"""


@dataclass(frozen=True)
class Java:
    """A program that Spark runs on, what it says of its version, and the options that it is started with."""

    program: str
    says: str
    options: tuple[str, ...] = ()


def checked_java(environment: Mapping[str, str]) -> Java:
    """The Java that Spark will find: that of `JAVA_HOME`, else of `PATH`; an error if Spark cannot use it."""
    home = environment.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environment.get("PATH"))
    where = f"JAVA_HOME = {home!r}" if home else "PATH"
    remedy = f"install Java {OLDEST} or newer and set JAVA_HOME to its folder"
    if java is None or not os.access(java, os.X_OK):
        raise ConfigurationError(f"Spark needs Java {OLDEST} or newer, found none by {where}; {remedy}")
    options = _COMPILES_LATER
    try:
        answer = _answer([java, *options, "-version"], environment)
        if answer.returncode:  # some Java has other names for them
            options, answer = (), _answer([java, "-version"], environment)
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise ConfigurationError(f"Java at {java!r} must tell its version, got {cause}; {remedy}") from cause
    says = (answer.stderr + answer.stdout).strip()
    found = _VERSION.search(says)
    if found is None:
        said = says.partition("\n")[0]
        raise ConfigurationError(f"Java at {java!r} must tell its version, got {said!r}; {remedy}")
    if int(found[1]) < OLDEST:
        raise ConfigurationError(
            f"Spark needs Java {OLDEST} or newer, found Java {found[1]}{found[2]} by {where}; {remedy}"
        )
    return Java(os.path.realpath(java), says, options)


def _answer(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What a program says that ends at once."""
    return subprocess.run(
        command, env={**environment}, capture_output=True, text=True, timeout=60, check=False
    )


def kept_classes(
    java: Java, environment: Mapping[str, str], conf: Collection[str] = (), *, makes: bool
) -> list[str]:
    """Options with which a JVM starts by the classes that an earlier one has kept; none if there are none.

    Where there are none yet, or none younger than a month, it keeps its own when it ends: a JVM that cannot
    use a file says nothing. It does so if it ``makes`` them at once, or if an earlier session has found none
    either: a machine that lasts for one session has nothing from them. Nothing is done where the user has
    options of this kind, or where others could write into the folder: a JVM runs what it maps. ``conf`` are
    the settings that Spark is started with.
    """
    said = " ".join(environment.get(name, "") for name in _OF_JVM)
    if not _SHARES.search(java.says) or any(option in said for option in _USER_SAYS):
        return []
    folder = _folder(environment)
    if folder is None:
        return []
    file = folder / f"spark-{blake2b(_identity(java, environment).encode(), digest_size=8).hexdigest()}.jsa"
    is_whole = _is_whole(file)
    is_needed = not is_whole or _is_old(file)
    if is_needed and _can_keep(environment, conf, said, folder) and (makes or _is_second(file)):
        _remove_old(folder)
        return [f"-XX:ArchiveClassesAtExit={file}", *_SILENT]
    return [f"-XX:SharedArchiveFile={file}", _IF_WHOLE, *_SILENT] if is_whole else []


def _is_second(file: Path) -> bool:
    """Whether an earlier session has left a mark that it found no such file; one session takes it away."""
    mark = file.with_suffix(".missed")
    try:
        mark.unlink()
    except FileNotFoundError:
        mark.touch()
        return False
    return True


def _can_keep(environment: Mapping[str, str], conf: Collection[str], said: str, folder: Path) -> bool:
    """Whether a JVM can keep its classes, and the next one that is started as always can take them.

    One with a folder of configurations on its class path, or with some options, ends with an error instead,
    or does not start at all.
    """
    is_plain = not _REFUSED.search(said) and not any(map(environment.get, _ON_CLASS_PATH))
    settings = (*conf, environment.get("PYSPARK_SUBMIT_ARGS", ""))
    has_files = os.path.exists(os.path.join(_home(environment), "conf"))
    if not is_plain or has_files or any(map(_OF_DRIVER.search, settings)):
        return False
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > _FREE_BYTES


def _home(environment: Mapping[str, str]) -> str:
    """The folder of the Spark that will be started."""
    import pyspark

    return environment.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)


def _identity(java: Java, environment: Mapping[str, str]) -> str:
    """What a file of classes is good for."""
    jars = os.path.join(_home(environment), "jars")
    changed = os.stat(jars).st_mtime_ns if os.path.isdir(jars) else 0
    return "\n".join([java.program, java.says, os.path.realpath(jars), str(changed)])


def _folder(environment: Mapping[str, str]) -> Path | None:
    """The folder of this user alone in which such files are; None if there is none and none can be made."""
    base = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", ""), ".cache")
    folder = Path(base, "deltajoin", "classes")
    if not folder.is_absolute() or re.search(r"[\s\"']", str(folder)):  # options are parted by spaces
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return None
    is_private = found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o022
    return folder if is_private else None


def _is_whole(file: Path) -> bool:
    """Whether a JVM has written all of a file: its first bytes come last."""
    try:
        with file.open("rb") as content:
            return any(content.read(4))
    except OSError:
        return False


def _is_old(file: Path) -> bool:
    """Whether a file was written more than a month ago; not if it is gone by now."""
    try:
        return file.stat().st_mtime < time.time() - _OLD_S
    except OSError:
        return False


def _remove_old(folder: Path) -> None:
    for file in folder.glob("spark-*"):
        with suppress(OSError):
            if _is_old(file):
                file.unlink()
