"""A Java that Spark does not run on is named before Spark starts."""

from pathlib import Path

import pytest

from deltajoin.cli.session import check_java
from upsert.errors import ConfigurationError


def java(folder: Path, says: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize("version", ["17.0.10", "21", "25-ea"])
def test_new_ones_are_taken(version: str, tmp_path: Path) -> None:
    check_java({"JAVA_HOME": str(java(tmp_path / "j", f'openjdk version "{version}" 2024-01-16'))})


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (
            'openjdk version "11.0.2" 2019-01-15',
            r"needs Java 17 or newer, found Java 11\.0\.2 by JAVA_HOME = ",
        ),
        ('java version "1.8.0_392"', r"needs Java 17 or newer, found Java 8\.0_392 by JAVA_HOME = "),
        ("no such thing", r"must tell its version, got 'no such thing'; install Java 17 or newer"),
    ],
)
def test_others_are_refused_by_their_version(says: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_java({"JAVA_HOME": str(java(tmp_path / "j", says))})


def test_none_is_told_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="found none by JAVA_HOME = '/nowhere'"):
        check_java({"JAVA_HOME": "/nowhere"})
    with pytest.raises(ConfigurationError, match="found none by PATH; install Java 17 or newer"):
        check_java({"PATH": str(tmp_path)})


def test_that_of_the_path_counts_without_java_home(tmp_path: Path) -> None:
    folder = java(tmp_path / "j", 'openjdk version "11.0.2"')
    with pytest.raises(ConfigurationError, match="found Java 11"):
        check_java({"PATH": f"{folder}/bin:/usr/bin:/bin"})
