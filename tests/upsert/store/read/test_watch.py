"""A watched table shows each commit in its place: on a terminal, in a notebook's kernel, and in a pipe."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import nbformat
import pyarrow as pa
import pytest
from nbclient import NotebookClient

from tests.deltajoin.cli.terminal import Terminal
from tests.deltajoin.cli.test_sql import environment
from upsert import Table, TableSchema
from upsert.errors import ConfigurationError, SchemaError


@pytest.fixture
def table(tmp_path: Path) -> Table:
    schema = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"])
    made = Table.create(tmp_path / "users", schema)
    made.write(pa.table({"id": [1], "name": ["ann"]}))
    return made


def add(table: Table, id: int, name: str) -> None:
    table.write(pa.table({"id": [id], "name": [name]}))


class Pipe(io.StringIO):
    """A standard output that does one more thing whenever something has been printed."""

    def __init__(self, *then: Callable[[], object]) -> None:
        super().__init__()
        self._then = iter(then)

    def write(self, text: str) -> int:
        written = super().write(text)
        if text:
            next(self._then, lambda: None)()
        return written


def test_a_pipe_gets_a_picture_for_each_commit_until_the_table_is_dropped(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = Pipe(lambda: add(table, 2, "bob\x1b[2J"), lambda: shutil.rmtree(table.path))
    monkeypatch.setattr("sys.stdout", pipe)
    table.watch(every=0.01)
    seen = pipe.getvalue()
    pictures = seen.split("Table(")[1:]
    assert ["state dropped" in picture for picture in pictures] == [False, False, True]
    assert ["bob" in picture for picture in pictures] == [False, True, True]
    assert "\x1b" not in seen
    assert "bob\\x1b[2J" in pictures[1]


def test_the_rows_that_are_shown_are_few_and_those_that_are_asked_for(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    table.write(pa.table({"id": range(100), "name": [f"name{number}" for number in range(100)]}))
    table.watch(rows=3, columns=["name"], where=[("id", ">=", 90)], seconds=0)
    shown = capsys.readouterr().out
    assert [f"name{number}" in shown for number in (89, 90, 92, 93)] == [False, True, True, False]
    assert "(7 more rows)" in shown
    table.watch(rows=3, seconds=0)
    assert "(97 more rows)" in capsys.readouterr().out


def test_what_cannot_be_shown_is_refused(table: Table) -> None:
    with pytest.raises(ConfigurationError, match="rows and every must be positive, got rows=0"):
        table.watch(rows=0)
    with pytest.raises(SchemaError, match="nme"):
        table.watch(columns=["nme"])


def test_a_terminal_shows_the_newest_rows_until_it_is_interrupted(table: Table) -> None:
    code = f"import upsert; upsert.Table.open({table.path!r}).watch(every=0.02); print('gone on')"
    terminal = Terminal("-c", code, env=environment() | {"TERM": "xterm"})
    terminal.until("ann")
    add(table, 2, "bob")
    terminal.until("bob")
    assert "\x1b[" in terminal.shown  # the cursor goes back: one picture takes the place of the other
    terminal.type("\x03")
    assert "gone on" in terminal.end()
    assert "Traceback" not in terminal.shown


def test_a_notebook_shows_the_newest_rows_in_one_output(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    code = f"""
import shutil, pyarrow as pa, upsert
table = upsert.Table.open({table.path!r})
next_steps = iter([
    lambda: table.write(pa.table({{"id": [2], "name": ["<bob>"]}})),
    lambda: shutil.rmtree(table.path),
])

def shown(message):
    next(next_steps, lambda: None)()
    return message

get_ipython().display_pub.register_hook(shown)
table.watch(every=0.02)
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "display_data"
    assert "&lt;bob&gt;" in output.data["text/html"]
    assert ">dropped<" in output.data["text/html"]
    assert "<bob>" in output.data["text/plain"]
