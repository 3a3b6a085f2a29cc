"""Java that Spark does not run on is named before Spark starts; what classes are kept, and where."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from deltajoin.cli.java import Java, checked_java, kept_classes
from upsert import Catalog
from upsert.errors import ConfigurationError

JAVA = Java(
    "/usr/bin/java", 'openjdk version "17.0.15" 2025-04-15\nOpenJDK 64-Bit Server VM (mixed mode, sharing)'
)


def java(folder: Path, says: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize("version", ["17.0.10", "21", "25-ea"])
def test_new_ones_are_taken(version: str, tmp_path: Path) -> None:
    checked_java({"JAVA_HOME": str(java(tmp_path / "j", f'openjdk version "{version}" 2024-01-16'))})


def test_a_java_that_lacks_an_option_is_started_without(tmp_path: Path) -> None:
    home = java(tmp_path / "j", 'openjdk version "21"')
    taken = checked_java({"JAVA_HOME": str(home)}).options
    assert taken
    with (home / "bin" / "java").open("a") as program:
        program.write('case "$1" in -XX:*) exit 1;; esac\n')
    assert checked_java({"JAVA_HOME": str(home)}) == Java(
        str(home / "bin" / "java"), 'openjdk version "21"', options=()
    )


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
        checked_java({"JAVA_HOME": str(java(tmp_path / "j", says))})


def test_none_is_told_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="found none by JAVA_HOME = '/nowhere'"):
        checked_java({"JAVA_HOME": "/nowhere"})
    with pytest.raises(ConfigurationError, match="found none by PATH; install Java 17 or newer"):
        checked_java({"PATH": str(tmp_path)})


def test_that_of_the_path_counts_without_java_home(tmp_path: Path) -> None:
    folder = java(tmp_path / "j", 'openjdk version "11.0.2"')
    with pytest.raises(ConfigurationError, match="found Java 11"):
        checked_java({"PATH": f"{folder}/bin:/usr/bin:/bin"})


def test_classes_are_kept_once_and_used_from_then_on(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    assert kept_classes(JAVA, environment, makes=False) == []
    (making, *_) = kept_classes(JAVA, environment, makes=True)
    option, _, path = making.partition("=")
    assert option == "-XX:ArchiveClassesAtExit"
    file = Path(path)
    assert (file.parent, file.parent.stat().st_mode & 0o777) == (tmp_path / "deltajoin" / "classes", 0o700)
    file.write_bytes(bytes(4096))  # what a JVM leaves that is killed while it writes
    assert kept_classes(JAVA, environment, makes=True)[0] == making
    file.write_bytes(b"\xf0\x0b\xab\xa2" + bytes(4096))
    for makes in (True, False):
        assert kept_classes(JAVA, environment, makes=makes)[0] == f"-XX:SharedArchiveFile={path}"
    other = Java(JAVA.program, 'openjdk version "21.0.1" 2025-04-15\n(mixed mode, sharing)')
    assert kept_classes(other, environment, makes=False) == []


def test_without_a_terminal_a_second_session_keeps_what_the_first_one_has_missed(tmp_path: Path) -> None:
    """And no third one at the same time, nor one that could keep none. What there is, is taken."""
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    refusing = {**environment, "HADOOP_CONF_DIR": "/etc/hadoop"}
    assert [kept_classes(JAVA, one, makes=False) for one in (refusing, refusing, environment)] == [[]] * 3
    making, *_ = kept_classes(JAVA, environment, makes=False)
    option, _, path = making.partition("=")
    assert option == "-XX:ArchiveClassesAtExit"
    assert kept_classes(JAVA, environment, makes=False) == []
    Path(path).write_bytes(b"\xf0\x0b\xab\xa2")
    for _ in range(3):
        assert kept_classes(JAVA, environment, makes=False)[0] == f"-XX:SharedArchiveFile={path}"


def test_classes_that_a_jvm_may_no_longer_be_able_to_use_are_kept_again_after_a_month(tmp_path: Path) -> None:
    """It would not say so. One that cannot keep its own takes what there is."""
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    making, *_ = kept_classes(JAVA, environment, makes=True)
    file = Path(making.partition("=")[2])
    for days, found in ((29, "SharedArchiveFile"), (31, "ArchiveClassesAtExit")):
        file.write_bytes(b"\xf0\x0b\xab\xa2")
        for makes, expected in ((False, "SharedArchiveFile"), (True, found)):
            os.utime(file, (time.time() - days * 86400,) * 2)
            assert kept_classes(JAVA, environment, makes=makes)[0] == f"-XX:{expected}={file}"
    assert not file.exists()


def test_classes_that_were_kept_long_ago_are_removed_when_others_are_kept(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    folder = Path(kept_classes(JAVA, environment, makes=True)[0].partition("=")[2]).parent
    for name, days in (("spark-1.jsa", 31), ("spark-2.jsa", 29), ("other", 31)):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (time.time() - days * 86400,) * 2)
    kept_classes(JAVA, environment, makes=True)
    assert sorted(os.listdir(folder)) == ["other", "spark-2.jsa"]


@pytest.mark.parametrize(
    "said",
    ["-Xshare:off", "-XX:SharedArchiveFile=/a.jsa", "-XX:+AutoCreateSharedArchive", "-XX:AOTCache=/a.aot"],
)
def test_what_the_user_says_of_classes_counts_alone(said: str, tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path), "SPARK_SUBMIT_OPTS": f"-Xss16m {said}"}
    assert kept_classes(JAVA, environment, makes=True) == []
    assert os.listdir(tmp_path) == []


def test_no_classes_are_taken_from_where_others_can_put_them(tmp_path: Path) -> None:
    """Nor are they kept where there is no folder, or where options would be cut in two."""
    file = Path(kept_classes(JAVA, {"HOME": str(tmp_path)}, makes=True)[0].partition("=")[2])
    file.write_bytes(b"\xf0\x0b\xab\xa2")
    assert kept_classes(JAVA, {"HOME": str(tmp_path)}, makes=False) != []
    file.parent.chmod(0o770)
    assert kept_classes(JAVA, {"HOME": str(tmp_path)}, makes=True) == []
    (tmp_path / "file").touch()
    for base in (f"{tmp_path}/with space", f"{tmp_path}/file", "relative"):
        assert kept_classes(JAVA, {"XDG_CACHE_HOME": base}, makes=True) == []
    assert kept_classes(JAVA, {}, makes=True) == []


@pytest.mark.parametrize(
    ("environment", "conf"),
    [
        ({"HADOOP_CONF_DIR": "/etc/hadoop"}, []),
        ({"SPARK_SUBMIT_OPTS": "-XX:-UseCompressedClassPointers"}, []),
        ({"JAVA_TOOL_OPTIONS": "-agentlib:jdwp=transport=dt_socket"}, []),
        ({"PYSPARK_SUBMIT_ARGS": "--driver-class-path /jars/a.jar pyspark-shell"}, []),
        ({}, ["spark.driver.extraJavaOptions"]),
    ],
)
def test_no_classes_are_kept_of_a_jvm_that_would_end_with_an_error(
    environment: dict[str, str], conf: list[str], tmp_path: Path
) -> None:
    """Or that others could not take them from; those that are there may be taken."""
    environment = {"XDG_CACHE_HOME": str(tmp_path), **environment}
    file = Path(kept_classes(JAVA, {"XDG_CACHE_HOME": str(tmp_path)}, makes=True)[0].partition("=")[2])
    assert kept_classes(JAVA, environment, conf, makes=True) == []
    file.write_bytes(b"\xf0\x0b\xab\xa2")
    assert kept_classes(JAVA, environment, conf, makes=True)[0] == f"-XX:SharedArchiveFile={file}"


def test_classes_are_those_of_the_spark_that_the_environment_names(tmp_path: Path) -> None:
    """An installed one has a folder of configurations on its class path, with which a JVM keeps none."""
    cache, spark = {"XDG_CACHE_HOME": str(tmp_path)}, tmp_path / "spark"
    (spark / "jars").mkdir(parents=True)
    of_package = kept_classes(JAVA, cache, makes=True)
    of_other = kept_classes(JAVA, {**cache, "SPARK_HOME": str(spark)}, makes=True)
    assert of_other != of_package
    (spark / "conf").mkdir()
    assert kept_classes(JAVA, {**cache, "SPARK_HOME": str(spark)}, makes=True) == []


def test_a_jvm_without_java_s_own_classes_in_a_file_starts(tmp_path: Path) -> None:
    """As one of a small image; -Xshare:off makes any such one, also in a variable that Spark knows not of."""
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    without = checked_java({**os.environ, "JAVA_TOOL_OPTIONS": "-Xshare:off"})
    assert kept_classes(without, cache, makes=True) == []
    assert kept_classes(checked_java(os.environ), cache, makes=True) != []


@pytest.mark.long
def test_a_session_in_a_terminal_keeps_the_classes_that_the_next_command_starts_with(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "w")
    catalog.sql("CREATE TABLE words (id BIGINT, word STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.table("words").write(pa.table({"id": [1, 2], "word": ["a", "b"]}))
    log, cache = tmp_path / "log", tmp_path / "cache"
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "SPARK_SUBMIT_OPTS": ""}
    query = "SELECT word, rank() OVER (ORDER BY id) AS place FROM words"  # which only Spark answers
    statement = f"{sys.executable} -m deltajoin sql -w {tmp_path}/w -e '{query}'"
    # the shell stays, as that of a terminal does, until this JVM has written its classes
    wait = f"while ps axww -o args | grep -q '[A]rchiveClassesAtExit={cache}/'; do sleep 0.2; done"
    terminal = ["script", "-qec", f"{statement}; {wait}", "/dev/null"]
    subprocess.run(terminal, env=environment, check=True, timeout=300, stdout=subprocess.DEVNULL)
    (kept,) = (cache / "deltajoin" / "classes").iterdir()
    environment["SPARK_SUBMIT_OPTS"] = f"-Xlog:class+load:file={log}"
    said = subprocess.check_output(statement, shell=True, env=environment, timeout=300)
    assert b"b" in said
    loaded = [line for line in log.read_text().splitlines() if " org.apache.spark.SparkContext " in line]
    assert [line.endswith("shared objects file (top)") for line in loaded] == [True]
    kept.chmod(0o600)
    with kept.open("r+b") as damaged:
        damaged.seek(kept.stat().st_size // 4)
        damaged.write(bytes(kept.stat().st_size // 2))
    assert b"b" in subprocess.check_output(statement, shell=True, env=environment, timeout=300)
