"""Imports only point down, and each third party has one door."""

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = ("upsert", "deltajoin", "planner")
APPLICATIONS = ("deltajoin/cli/", "deltajoin/ui/")

FILES = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]
SOURCES = [path.relative_to(ROOT).as_posix() for path in FILES]
LIBRARY = [source for source in SOURCES if not source.startswith(APPLICATIONS)]


@cache
def tree(source: str) -> ast.Module:
    return ast.parse((ROOT / source).read_text(), source)


@cache
def imports(source: str) -> frozenset[str]:
    """Full names of the modules that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(tree(source)):
        match node:
            case ast.Import(names=names):
                found.update(name.name for name in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                found |= {module, *(f"{module}.{name.name}" for name in names)}
    return frozenset(found)


def imports_any(source: str, *packages: str) -> set[str]:
    below = tuple(f"{package}." for package in packages)
    return {name for name in imports(source) if f"{name}.".startswith(below)}


def is_pure(source: str) -> bool:
    """Whether the first line of the module's docstring says so."""
    first_line, *_ = (ast.get_docstring(tree(source)) or "").splitlines() or [""]
    return "(pure" in first_line


def test_imports_point_down() -> None:
    above = {source: LAYERS[LAYERS.index(source.split("/")[0]) + 1 :] for source in LIBRARY}
    assert {source: up for source, layers in above.items() if (up := imports_any(source, *layers))} == {}


def test_aliases_are_for_users() -> None:
    """Here a name that is imported says its layer; the command alone asks whose package `planner` is."""
    users = {source for source in SOURCES if imports_any(source, "deltajoin.upsert", "deltajoin.planner")}
    assert users == {"deltajoin/__init__.py", "deltajoin/cli/session.py"}


def test_only_the_door_uses_py4j() -> None:
    users = {source for source in SOURCES if imports_any(source, "py4j") or reaches_jvm(source)}
    of_sessions = {source for source in SOURCES if source.startswith("upsert/spark/")}
    of_sessions |= {"upsert/registration.py", "upsert/views/session.py"}
    of_plans = {f"planner/spark/{name}.py" for name in ("catalyst", "few_rows", "state")}
    assert users <= of_plans | of_sessions


def reaches_jvm(source: str) -> bool:
    """Whether a file uses PySpark's private handles of JVM objects: they are py4j by another name."""
    handles = {"_jdf", "_jsq", "_jvm", "_jsparkSession", "_jsc", "_jc", "_gateway"}
    return any(isinstance(node, ast.Attribute) and node.attr in handles for node in ast.walk(tree(source)))


def test_only_the_door_uses_kafka() -> None:
    users = {source for source in SOURCES if imports_any(source, "confluent_kafka", "kafka")}
    assert {user for user in users if not user.startswith("upsert/kafka/client/")} == set()


def test_only_the_door_uses_object_stores() -> None:
    users = {source for source in SOURCES if imports_any(source, "botocore", "boto3")}
    assert users == {"upsert/store/storage/s3.py"}
    users = {source for source in SOURCES if imports_any(source, "google.auth", "google.oauth2", "requests")}
    assert users == {"upsert/store/storage/gcs.py"}
    users = {source for source in SOURCES if imports_any(source, "azure")}
    assert users == {"upsert/store/storage/azure.py"}
    users = {source for source in SOURCES if imports_any(source, "urllib3")}
    assert users == {"upsert/store/storage/hdfs_client.py"}


def test_only_the_door_uses_protobuf() -> None:
    users = {source for source in SOURCES if imports_any(source, "google.protobuf")}
    assert users == {"upsert/formats/protobuf/descriptors.py"}


def test_clients_of_lookups_have_a_door_each() -> None:
    users = {source for source in SOURCES if imports_any(source, "aiohttp", "asyncpg")}
    own_server = {"deltajoin/ui/server.py"}
    clients = {"deltajoin/lookup/http_client.py", "deltajoin/lookup/postgres_client.py"}
    assert users - own_server == {*clients, "upsert/postgres/connection.py"}


def test_store_knows_nothing_above_it() -> None:
    """What lies in Kafka is behind a protocol: a table without a log loads nothing of it."""
    store = [source for source in SOURCES if source.startswith("upsert/store/")]
    packages = ("kafka", "log", "managed", "materializer", "changelog", "catalog", "sql")
    above = ("pyspark", *(f"upsert.{package}" for package in packages))
    assert {source for source in store if imports_any(source, *above)} == set()


def test_sql_lies_below_what_reads_it() -> None:
    """Columns of topics are declared in SQL too, so Kafka imports it; it imports no Kafka and no catalog."""
    sql = [source for source in SOURCES if source.startswith("upsert/sql/")]
    above = ("pyspark", "upsert.catalog", "upsert.kafka", "upsert.log", "upsert.managed", "upsert.formats")
    assert {source for source in sql if imports_any(source, *above)} == set()
    below = [
        source for source in SOURCES if source.startswith(("upsert/kafka/", "upsert/log/", "upsert/managed/"))
    ]
    assert {source for source in below if imports_any(source, "upsert.catalog")} == set()


def test_pure_files_know_no_spark_and_no_processes() -> None:
    pure = [source for source in LIBRARY if is_pure(source)]
    outside = ("pyspark", "py4j", "subprocess", "socket", "mmap", "tempfile", "shutil")
    assert {source for source in pure if imports_any(source, *outside)} == set()
    assert "upsert/schema.py" in pure


def test_every_module_says_what_it_is_for() -> None:
    assert [source for source in SOURCES if not ast.get_docstring(tree(source))] == []


def test_looking_a_format_up_and_planning_load_no_pandas() -> None:
    """Spark starts a process for each such question, and pandas is half of what that would load."""
    code = (
        "import sys, upsert.managed.datasource, upsert.kafka.source, deltajoin.spark.source, planner;"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Nodes that reach each other, each circle once."""
    reach: dict[str, set[str]] = {}
    for node in arrows:
        found: set[str] = set()
        ahead = [node]
        while ahead:
            new = arrows.get(ahead.pop(), set()) - found
            found |= new
            ahead += new
        reach[node] = found
    together = {
        node: sorted(other for other in found if node in reach.get(other, ()))
        for node, found in reach.items()
    }
    return sorted({tuple(circle): circle for node, circle in together.items() if node in circle}.values())


def arrows_between_files() -> dict[str, set[str]]:
    """Which file imports which; a package's `__init__` only passes names on."""
    files = {
        source.removesuffix(".py").replace("/", "."): source for source in SOURCES if "__init__" not in source
    }
    return {source: {files[name] for name in imports(source) if name in files} for source in files.values()}


def test_files_form_no_circle() -> None:
    assert circles(arrows_between_files()) == []


def test_folders_form_no_circle() -> None:
    """A folder and the one around it are one house; siblings are two."""
    between: dict[str, set[str]] = {}
    for source, targets in arrows_between_files().items():
        folder = source.rpartition("/")[0]
        for other in {target.rpartition("/")[0] for target in targets} - {folder}:
            if not f"{folder}/".startswith(f"{other}/") and not f"{other}/".startswith(f"{folder}/"):
                between.setdefault(folder, set()).add(other)
    assert circles(between) == []


def test_a_folder_holds_few_files() -> None:
    folders = Counter(source.rpartition("/")[0] for source in SOURCES if "__init__" not in source)
    assert {folder: count for folder, count in folders.items() if count > 20} == {}
