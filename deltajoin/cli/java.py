"""Which Java would run Spark, looked at before Spark fails to start with a page about class files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

from upsert.errors import ConfigurationError

OLDEST: Final = 17
"""The first version of Java that Spark 4 runs on."""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)([^"]*)"')


def check_java(environment: Mapping[str, str]) -> None:
    """Make sure that Spark will find a Java that it runs on.

    Args:
        environment: variables of the process: `JAVA_HOME`, else `PATH`, says which Java it is.

    Raises:
        ConfigurationError: there is none, or it is too old; the message has its version.
    """
    home = environment.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environment.get("PATH"))
    where = f"JAVA_HOME = {home!r}" if home else "PATH"
    remedy = f"install Java {OLDEST} or newer and set JAVA_HOME to its folder"
    if java is None or not os.access(java, os.X_OK):
        raise ConfigurationError(f"Spark needs Java {OLDEST} or newer, found none by {where}; {remedy}")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise ConfigurationError(f"Java at {java!r} must tell its version, got {cause}; {remedy}") from cause
    found = _VERSION.search(told.stderr + told.stdout)
    if found is None:
        said = (told.stderr + told.stdout).strip().partition("\n")[0]
        raise ConfigurationError(f"Java at {java!r} must tell its version, got {said!r}; {remedy}")
    if int(found[1]) < OLDEST:
        raise ConfigurationError(
            f"Spark needs Java {OLDEST} or newer, found Java {found[1]}{found[2]} by {where}; {remedy}"
        )
