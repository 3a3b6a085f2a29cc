"""Notebooks run from the first cell to the last, and are kept without their outputs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from upsert.kafka.testing import BOOTSTRAP_VARIABLE, LocalKafka

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


@pytest.mark.spark
@pytest.mark.kafka
def test_the_pipeline_runs_and_its_topic_and_table_agree(
    tmp_path: Path, kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, kafka.bootstrap_servers)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    notebook = read(ROOT / "examples" / "notebooks" / "kafka_pipeline.ipynb")
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = results(notebook)
    assert "normalizer left out: the sink is keyed by (id)" in shown["start-queries"]["text/plain"]
    assert "image/png" in shown["plot"]
    last_round = shown["flow"]["text/plain"].splitlines()[-1].split()
    assert last_round == ["7", "0", "0", "1800"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_not_kept(path: Path) -> None:
    code = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert code
    assert [cell.id for cell in code if cell.outputs or cell.execution_count] == []


def test_there_is_a_notebook() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["kafka_pipeline"]
