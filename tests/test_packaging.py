"""The wheel has the packages and a module for Spark; these notice when one of them is foreign."""

import os
import runpy
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

import deltajoin
from tests.helpers import MODULES, REPOSITORY, built_wheel

PACKAGES = ("deltajoin", "planner", "upsert")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(built_wheel(tmp_path_factory.mktemp("wheel") / "build")) as opened:
        yield opened


def test_the_wheel_has_every_module_and_no_other_file(wheel: zipfile.ZipFile) -> None:
    expected = {
        path.relative_to(REPOSITORY).as_posix()
        for package in PACKAGES
        for path in (REPOSITORY / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == {*expected, *MODULES}
    assert {f"{package}/py.typed" for package in PACKAGES} <= held


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    said = Parser().parsestr(wheel.read(name).decode())
    assert said["Version"] == deltajoin.__version__
    assert said["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in said.get_all("Classifier", [])
    licences = [name for name in wheel.namelist() if name.endswith("/LICENSE")]
    assert [wheel.read(name) for name in licences] == [(REPOSITORY / "LICENSE").read_bytes()]


def test_the_extra_all_is_every_extra_for_users() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (named,) = extras["all"]
    users = set(extras) - {"all", "demo", "bench", "docs", "dev"}
    assert set(named.removeprefix("deltajoin[").removesuffix("]").split(",")) == users


def test_each_release_has_its_notes() -> None:
    script = runpy.run_path(str(REPOSITORY / "scripts" / "release_notes.py"))
    notes, changelog = script["notes"], script["CHANGELOG"].read_text()
    found = notes(changelog, deltajoin.__version__).splitlines()
    assert found[0] == f"# deltajoin {deltajoin.__version__}"
    assert len([line for line in found if line.startswith("- ")]) > 100
    assert [line for line in found if line and not line.startswith(("#", "- "))] == []
    two = "# Changelog\n\n## 0.2.0\n\n- a\n  b\n- c\n\n## 0.1.0\n\n- d\n"
    assert notes(two, "0.2.0") == "# deltajoin 0.2.0\n\n- a b\n- c\n"
    assert notes(two, "0.1.0") == "# deltajoin 0.1.0\n\n- d\n"
    with pytest.raises(LookupError, match=r"must name version '0\.3\.0', found 0\.2\.0, 0\.1\.0"):
        notes(two, "0.3.0")


def python(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, with folders or archives first on its import path."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, "-P", "-c", code], env=variables, capture_output=True, text=True, check=False
    )


def test_the_wheel_is_imported_as_it_is_also_by_the_aliases(wheel: zipfile.ZipFile) -> None:
    """As executors do with `--py-files`: the archive itself is on the path."""
    assert wheel.filename is not None
    code = (
        "import deltajoin.planner, deltajoin.upsert.schema, planner, upsert.schema\n"
        "assert deltajoin.planner is planner and deltajoin.upsert.schema is upsert.schema\n"
        "print(deltajoin.__file__, planner.__file__, upsert.__file__, sep='\\n')"
    )
    done = python(code, Path(wheel.filename))
    assert done.stdout.split() == [f"{wheel.filename}/{package}/__init__.py" for package in PACKAGES], (
        done.stderr
    )


SAME = """
import importlib, pickle, sys
import deltajoin.upsert.store.table
import upsert.store.table

assert "planner" not in sys.modules                     # the layer above is left alone
assert deltajoin.upsert.store.table is upsert.store.table
assert upsert.store.table.__spec__.name == upsert.store.table.__name__ == "upsert.store.table"

from deltajoin.planner.rules import joins
import planner.rules.joins

assert joins is planner.rules.joins and deltajoin.planner is planner

from deltajoin.upsert.schema import Column
from upsert.schema import Column as Same

assert Column is Same and b"deltajoin" not in pickle.dumps(Column)
assert pickle.loads(b"cdeltajoin.upsert.schema\\nColumn\\n.") is Column

before = deltajoin.upsert
assert importlib.reload(deltajoin.upsert) is before is upsert is sys.modules["deltajoin.upsert"]
importlib.reload(deltajoin)
importlib.reload(deltajoin.aliases)
import deltajoin.upsert.codec, upsert.codec
assert deltajoin.upsert.codec is upsert.codec and upsert is deltajoin.upsert
print("same")
"""


def test_an_alias_gives_the_same_modules_at_any_depth_through_pickles_and_reloads() -> None:
    done = python(SAME, REPOSITORY)
    assert done.stdout == "same\n", done.stderr


def test_a_name_that_no_package_has_is_not_found_by_an_alias_either() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'deltajoin\.upsert\.nothing'"):
        __import__("deltajoin.upsert.nothing")
    with pytest.raises(AttributeError, match="no attribute 'planners'"):
        _ = deltajoin.planners


def test_a_module_is_run_by_its_alias() -> None:
    command = [sys.executable, "-m", "deltajoin.upsert.store.compactor", "--help"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert "--watch" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("foreign", "statement"),
    [
        ("upsert.py", "import deltajoin"),
        ("upsert/__init__.py", "import planner"),
        ("upsert.py", "import deltajoin.upsert"),
    ],
)
def test_a_foreign_package_is_named_by_the_first_import(statement: str, foreign: str, tmp_path: Path) -> None:
    (tmp_path / foreign).parent.mkdir(exist_ok=True)
    (tmp_path / foreign).touch()
    done = python(statement, tmp_path, REPOSITORY)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: deltajoin: the package 'upsert' must be the one of this installation, in "
        f"'{REPOSITORY}'; found '{tmp_path / foreign}'; rename or uninstall that, or install deltajoin again"
    )


def test_the_other_packages_work_beside_a_foreign_planner_which_the_alias_and_the_command_name(
    tmp_path: Path,
) -> None:
    (tmp_path / "planner.py").touch()
    use = "import deltajoin, planner, upsert; deltajoin.read_join; print(planner.__file__)"
    assert python(use, tmp_path, REPOSITORY).stdout == f"{tmp_path / 'planner.py'}\n"
    for code in (
        "import deltajoin.planner",
        "from deltajoin.cli.session import Session; Session('w', print).catalog.context.asked(None, None)",
    ):
        last = python(code, tmp_path, REPOSITORY).stderr.splitlines()[-1]
        assert f"the package 'planner' must be the one of this installation, in '{REPOSITORY}'; found" in last


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_of_two_installations_are_refused(
    package: str, wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    """Two versions, most likely: parts of one lie before the other on the path."""
    wheel.extractall(tmp_path, [name for name in wheel.namelist() if name.startswith(f"{package}/")])
    last = python("import planner", tmp_path, REPOSITORY).stderr.splitlines()[-1]
    assert "must be the one of this installation" in last
