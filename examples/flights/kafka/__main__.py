"""`python -m examples.flights.kafka`."""

from examples.flights.kafka.cli import app

app(prog_name="python -m examples.flights.kafka")
