"""Commands about tables and their maintenance, without Spark."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from deltajoin.cli.app import app
from tests.object_store import ObjectStore
from upsert import Catalog, Table

Run = Callable[..., Result]


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"


@pytest.fixture
def fruit(warehouse: Path) -> Table:
    """A table of three commits."""
    catalog = Catalog(warehouse)
    catalog.sql("CREATE TABLE fruit (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED, INDEX (name))")
    table = catalog.table("fruit")
    table.write(pa.table({"id": [1, 2], "name": ["apple", "pear"]}))
    table.write(pa.table({"id": [2, 3], "name": ["pear 🍐", None]}))
    table.write(pa.table({"id": [1], "name": ["apple"], "_row_kind": ["-D"]}))
    return table


@pytest.fixture
def run(warehouse: Path) -> Run:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "-w", str(warehouse)])

    return invoke


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_tables_are_listed(run: Run, fruit: Table) -> None:
    assert lines(run("tables", "--json")) == [{"table": "fruit"}]
    assert "fruit" in run("tables").output


def test_a_warehouse_without_tables_says_so(run: Run) -> None:
    assert run("tables").output.endswith("warehouse, which is no folder; -w names the warehouse\n")
    assert lines(run("tables", "--json")) == []


def test_a_warehouse_may_lie_in_a_bucket(s3: ObjectStore) -> None:
    warehouse = s3.warehouse
    Catalog(warehouse).sql("CREATE TABLE fruit (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    found = CliRunner().invoke(app, ["tables", "--json", "-w", warehouse])
    assert lines(found) == [{"table": "fruit"}]


def test_head_shows_rows_as_they_are_and_as_they_were(run: Run, fruit: Table) -> None:
    assert lines(run("head", "fruit", "--json")) == [{"id": 2, "name": "pear 🍐"}, {"id": 3, "name": None}]
    assert len(lines(run("head", "fruit", "--snapshot", "1", "--json"))) == 2
    assert len(lines(run("head", "fruit", "-n", "1", "--json"))) == 1
    shown = run("head", "fruit").output
    assert "fruit, snapshot 3" in shown
    assert "NULL" in shown
    assert "--follow redraws the newest rows in a terminal" in run("head", "fruit", "-f", "--json").stderr


def test_snapshots_and_files_are_listed(run: Run, fruit: Table) -> None:
    found = lines(run("snapshots", "fruit", "--json"))
    assert [line["snapshot"] for line in found] == [1, 2, 3]
    files = lines(run("files", "fruit", "--json"))
    assert [file["rows"] for file in files] == [1, 2, 2]
    assert sum(file["deletes"] for file in files) == 1


def test_changes_are_net_between_two_snapshots(run: Run, fruit: Table) -> None:
    assert lines(run("changes", "fruit", "--since", "1", "--until", "2", "--json")) == [
        {"id": 2, "name": "pear", "_row_kind": "-U"},
        {"id": 2, "name": "pear 🍐", "_row_kind": "+U"},
        {"id": 3, "name": None, "_row_kind": "+I"},
    ]
    assert len(lines(run("changes", "fruit", "-n", "1", "--json"))) == 1


def test_changes_follow_commits(run: Run, fruit: Table) -> None:
    found = lines(run("changes", "fruit", "--follow", "--since", "2", "--limit", "1", "--json"))
    assert found == [{"id": 1, "name": "apple", "_row_kind": "-D"}]


def test_a_table_is_compacted_and_its_past_given_up(run: Run, fruit: Table) -> None:
    assert lines(run("compact", "fruit", "--json"))[0] == {"what": "files", "before": 3, "after": 1}
    assert lines(run("expire", "fruit", "--keep", "1", "--json")) == [
        {"snapshots that can no longer be read": 3}
    ]
    assert lines(run("clean", "fruit", "--json")) == [{"files deleted": 0}]
    gone = run("changes", "fruit", "--since", "1")
    assert gone.exit_code == 4
    assert "error: " in gone.stderr


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (("head", "fruits"), 4, "did you mean 'fruit'?"),
        (("head", "../fruit"), 1, "a table's name must be"),
        (("changes", "fruit", "--follow", "--until", "2"), 1, "--follow has no end"),
        (("head", "fruit", "--snapshot", "9"), 1, "9"),
        (("head",), 2, "Missing argument"),
        (("view", "refresh", "fruits"), 4, "did you mean 'fruit'?"),
        (("view", "explain", "fruits"), 4, "did you mean 'fruit'?"),
        (("view", "refresh", "fruit"), 1, "'fruit' is a table, and no materialized view"),
    ],
)
def test_a_wrong_command_gives_one_message_and_its_code(
    run: Run, fruit: Table, command: tuple[str, ...], code: int, message: str
) -> None:
    result = run(*command)
    assert result.exit_code == code
    assert message in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.output


def test_an_error_is_json_for_programs(run: Run, fruit: Table) -> None:
    result = run("head", "fruits", "--json")
    assert json.loads(result.stderr)["error"] == "TableNotFoundError"


def test_a_damaged_table_has_its_own_exit_code(run: Run, fruit: Table) -> None:
    assert run("check", "fruit").exit_code == 0
    next(Path(fruit.path).glob("bucket-0/*.arrow")).unlink()
    result = run("check", "fruit", "--json")
    assert result.exit_code == 3
    assert any(json.loads(line)["harm"] for line in result.stdout.splitlines())


def test_without_a_command_help_is_printed() -> None:
    result = CliRunner().invoke(app, [])
    assert "compact" in result.output
    assert "sql" in result.output
