"""What the prompt remembers, and what it completes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from deltajoin.cli import prompt
from deltajoin.cli.prompt import DiscreetHistory, completer
from upsert import Catalog


def test_lines_are_remembered_but_those_with_secrets_and_only_for_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "app" / "sql-history"
    path.parent.mkdir()
    path.touch(mode=0o644)  # of an earlier version
    history = DiscreetHistory(path)
    for line in (
        "SHOW TABLES;",
        "CREATE TABLE t (id INT) WITH ('properties.sasl.password' = 'hush');",
        "SELECT 1;",
    ):
        history.append_string(line)
    assert list(DiscreetHistory(path).load_history_strings()) == ["SELECT 1;", "SHOW TABLES;"]
    assert "hush" not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("SELECT * FROM orders", ["orders"]),
        ("SELECT * FROM orders$f", ["$files"]),
        ("select * from Orders$sn", ["$snapshots"]),
        ("SELECT * FROM table_ch", ["table_changes"]),
        ("CALL expire_s", ["expire_snapshots"]),
        ("ALTER TABLE orders roll", ["ROLLBACK TO", "rollback_to"]),
        ("ALTER MAT", ["MATERIALIZED VIEW"]),
        ("CREATE TABLE t (a TIMESTAMP_L", ["TIMESTAMP_LTZ"]),
    ],
)
def test_words_tables_and_system_tables_are_completed(typed: str, offered: list[str]) -> None:
    found = completer(["orders"]).get_completions(Document(typed), CompleteEvent())
    assert [one.text for one in found] == offered


def typed(
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    history: InMemoryHistory,
    names: Callable[[], Sequence[str]] = list,
) -> list[str]:
    """The statements that are executed when a text is typed, with ``\\r`` for Enter."""
    monkeypatch.setattr(prompt, "_history", lambda: history)
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keys.send_text(f"{text}exit\r")
        return list(prompt.statements(names))


def test_a_statement_of_several_lines_is_edited_and_remembered_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history, up = InMemoryHistory(), "\x1b[A"
    # the cursor goes up from the last line, and back
    found = typed(f"SELECT 1,\r22;\x7f{up}\x01/**/\x1b[B\x05;\rSELECT 3;\r", monkeypatch, history)
    assert found == ["/**/SELECT 1,\n22;", "SELECT 3;"]
    assert history.get_strings() == [*found, "exit"]


def test_a_database_that_is_gone_ends_no_prompt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another process may drop it; its names are asked for before each statement, to complete them."""
    catalog = Catalog(tmp_path)
    catalog.sql("CREATE DATABASE shop")
    catalog.sql("USE shop")
    (tmp_path / "shop.db").rmdir()
    found = typed("USE default;\r", monkeypatch, InMemoryHistory(), catalog.tables)
    assert found == ["USE default;"]


def test_enter_takes_what_a_search_of_the_history_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    history = InMemoryHistory(["SELECT 1;", "SELECT 22;"])
    assert typed("\x12T 1\r\r", monkeypatch, history) == ["SELECT 1;"]


def test_commands_of_psql_are_told_as_statements(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = typed("\\d\r\\d orders\r\\dv;\r\\timing\r\\?\rSELECT 1;\r", monkeypatch, InMemoryHistory())
    assert found == ["SHOW TABLES", "DESCRIBE orders", "SHOW VIEWS", "SELECT 1;"]
    shown = capsys.readouterr().out
    assert "\\timing is no command of this prompt; help says what there is" in shown
    assert "docs/sql-reference.md has all statements" in shown
