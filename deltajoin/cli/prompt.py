"""The prompt of `deltajoin sql`: statements as they are typed, with history and completion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.utils import is_dumb_terminal

from upsert.catalog.run.procedures import PROCEDURES
from upsert.catalog.script import is_ended
from upsert.catalog.system_tables import SYSTEM_TABLES
from upsert.errors import UpsertError
from upsert.options import is_secret
from upsert.sql.syntax import words

_OF_QUERIES: Final = (
    *("BETWEEN", "CASE WHEN", "CROSS JOIN", "DISTINCT", "FOR SYSTEM_TIME AS OF", "FOR SYSTEM_VERSION AS OF"),
    *("FULL JOIN", "GROUP BY", "HAVING", "INSERT OVERWRITE", "IS NOT NULL", "IS NULL", "JOIN", "LATERAL"),
    *("LEFT JOIN", "LEFT ANTI JOIN", "LEFT SEMI JOIN", "LIMIT", "ORDER BY", "OVER", "PARTITION BY"),
    *("RIGHT JOIN", "SHOW CREATE VIEW", "SHOW CURRENT DATABASE", "UNION ALL", "UNIQUE INDEX"),
    *("DESCRIPTOR", "TABLE", "CUMULATE", "HOP", "SESSION", "TUMBLE", "table_changes"),
)
WORDS: Final = tuple(dict.fromkeys((*words(), *_OF_QUERIES)))
"""What is completed: the words of every statement and type, as its syntax has them, and those of queries."""

_LAST_WORD: Final = re.compile(r"\w*\$|\w+")
"""What is typed of a word, read backwards: letters, and a ``$`` before them."""

_CONTINUED: Final = "...> "
"""What is asked where a statement has not ended."""
_LEAVE: Final = ("exit", "quit", "\\q")
_ASK: Final = ("help", "?", "\\?", "\\h")
_OF_PSQL: Final = {
    "\\d": "SHOW TABLES",
    "\\dt": "SHOW TABLES",
    "\\dv": "SHOW VIEWS",
    "\\dm": "SHOW MATERIALIZED VIEWS",
    "\\df": "SHOW PROCEDURES",
    "\\l": "SHOW DATABASES",
}
"""What users of psql type, and the statement that tells it."""
_ALONE: Final = frozenset({*_LEAVE, *_ASK})
_HELP: Final = """\
A semicolon ends a statement, which may have several lines. Tab completes it.
Ctrl-C throws away what was typed, or cancels what runs. Ctrl-D, exit and quit
leave. SHOW TABLES, SHOW PROCEDURES, SHOW JOBS and DESCRIBE t tell what there is,
as \\d, \\df and \\d t do; docs/sql-reference.md has all statements."""


def statements(names: Callable[[], Sequence[str]]) -> Iterator[str]:
    """Statements as the user ends them with a semicolon, until Ctrl-D, ``exit`` or ``quit``; ``help`` helps.

    Ctrl-C throws away what has been typed of a statement. ``names`` are those of the tables, for completion.
    """
    session: PromptSession[str] = PromptSession(history=_history())
    while True:
        try:
            text = _statement(session, completer(_known(names)))
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if _word(text) in _LEAVE:
            return
        if _word(text) in _ASK:
            print(_HELP)
        elif (statement := meant(text)) is None:
            print(f"{_word(text)} is no command of this prompt; help says what there is")
        elif statement.strip():
            yield statement


def _known(names: Callable[[], Sequence[str]]) -> Sequence[str]:
    """The names, none where they cannot be told: the statements that follow say why."""
    with suppress(UpsertError, OSError):
        return names()
    return ()


def completer(names: Sequence[str]) -> WordCompleter:
    """What completes words of SQL, names of tables and procedures, and system tables behind their ``$``."""
    system = (f"${name}" for name in SYSTEM_TABLES)
    return WordCompleter([*WORDS, *names, *PROCEDURES, *system], ignore_case=True, pattern=_LAST_WORD)


def meant(text: str) -> str | None:
    r"""The statement that a command of psql's stands for, None for an unknown one; any other text as it is.

    >>> meant("\\d orders"), meant("\\dt"), meant("\\x"), meant("SELECT 1;")
    ('DESCRIBE orders', 'SHOW TABLES', None, 'SELECT 1;')
    """
    command, _, name = text.strip().rstrip(";").partition(" ")
    if not command.startswith("\\"):
        return text
    if command in ("\\d", "\\d+") and name:
        return f"DESCRIBE {'EXTENDED ' if command.endswith('+') else ''}{name}"
    return None if name else _OF_PSQL.get(command)


def _statement(session: PromptSession[str], completer: WordCompleter) -> str:
    """What was typed up to an Enter at which it is whole: all its lines can be edited until then.

    A terminal that only appends, such as a shell in Emacs, is asked for one line after the other.
    """
    if is_dumb_terminal():
        lines = [session.prompt("sql> ", completer=completer)]
        while not is_whole("\n".join(lines)):
            lines.append(session.prompt(_CONTINUED, completer=completer))
        return "\n".join(lines)
    keys = KeyBindings()

    @keys.add("enter", filter=has_focus(DEFAULT_BUFFER))  # in a search of the history it takes what is found
    def _(event: KeyPressEvent) -> None:
        typed = event.current_buffer
        if is_whole(typed.text):
            typed.validate_and_handle()
        else:
            typed.insert_text("\n", fire_event=False)  # else all words are proposed for the empty line

    return session.prompt(
        "sql> ", completer=completer, multiline=True, prompt_continuation=_CONTINUED, key_bindings=keys
    )


def is_whole(text: str) -> bool:
    """Whether what was typed can be executed; a semicolon in a quote, a comment or a set is no end.

    >>> is_whole("SELECT 1"), is_whole("SELECT 1; -- one"), is_whole("exit"), is_whole(" ")
    (False, True, True, True)
    """
    return not text.strip() or text.lstrip().startswith("\\") or is_ended(text) or _word(text) in _ALONE


def _word(text: str) -> str:
    """What was typed, if it is one of the prompt's own words."""
    return text.strip().rstrip(";").strip().lower()


class DiscreetHistory(FileHistory):
    """Lines typed before, in a file that only its owner reads; lines that name a secret are not kept."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)  # an earlier one may have been made for everybody
        super().__init__(path)

    def store_string(self, string: str) -> None:
        """Keep one line, unless it may hold a password."""
        if not is_secret(string):
            super().store_string(string)


def _history() -> History:
    """What was typed before: kept in the user's own folder, or for this time only if that cannot be."""
    try:
        return DiscreetHistory(Path(typer.get_app_dir("deltajoin")) / "sql-history")
    except OSError:
        return InMemoryHistory()
