"""Notebooks run from the first cell to the last, and are kept without their outputs."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from upsert.testing.local_kafka import BOOTSTRAP_VARIABLE, LocalKafka

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def read(path: Path) -> Any:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def results(notebook: Any) -> dict[str, dict[str, str]]:
    """What each cell shows, by the cell's name: MIME type -> content; printed text is text/plain."""
    found: dict[str, dict[str, str]] = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            shown = {"text/plain": output.text} if output.output_type == "stream" else output.get("data", {})
            found.setdefault(cell.id, {}).update(shown)
    return found


def executed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """What the cells of a notebook show when all of them are run."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    notebook = read(ROOT / "examples" / "notebooks" / f"{name}.ipynb")
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return results(notebook)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.kafka
def test_the_pipeline_runs_and_its_topic_and_table_agree(
    tmp_path: Path, kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, kafka.bootstrap_servers)
    shown = executed("kafka_pipeline", tmp_path, monkeypatch)
    assert "normalizer left out: the sink is keyed by (id)" in shown["start-queries"]["text/plain"]
    assert "image/png" in shown["plot"]
    last_round = shown["flow"]["text/plain"].splitlines()[-1].split()
    assert last_round == ["7", "0", "0", "1800"]


@pytest.mark.long
@pytest.mark.spark
def test_the_joined_rows_are_those_of_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = executed("joins_side_by_side", tmp_path, monkeypatch)
    said = shown["equal"]["text/plain"]
    assert re.fullmatch(r"(\d{6}) joined rows, \1 in the tables, 0 counted wrongly\n", said)
    assert "image/png" in shown["plot"]
    assert "text/html" in shown["explain"]


@pytest.mark.long
@pytest.mark.spark
def test_the_quick_start_ends_with_the_totals_of_all_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = executed("quick_start", tmp_path, monkeypatch)
    assert "form: delta join" in shown["plan"]["text/html"]
    assert "green tea" in shown["changes"]["text/html"]
    assert "View(&#x27;totals&#x27;)" in shown["view"]["text/html"]
    totals = ast.literal_eval(shown["end"]["text/plain"].splitlines()[-1])
    assert [list(row.values()) for row in totals] == [["coffee", 2, 45.0], ["green tea", 4, 71.0]]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_not_kept(path: Path) -> None:
    code = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert code
    assert [cell.id for cell in code if cell.outputs or cell.execution_count] == []


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["joins_side_by_side", "kafka_pipeline", "quick_start"]
