"""What the prompt remembers, and what it completes."""

from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from deltajoin.cli.prompt import DiscreetHistory, completer


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
