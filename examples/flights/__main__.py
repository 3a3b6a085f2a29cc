"""`python -m examples.flights`."""

from examples.flights.cli import app

app(prog_name="python -m examples.flights")
