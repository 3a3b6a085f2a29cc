"""`python -m deltajoin.demo.kafka`."""

from deltajoin.demo.kafka.cli import app

app(prog_name="python -m deltajoin.demo.kafka")
