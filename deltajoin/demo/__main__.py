"""`python -m deltajoin.demo`."""

from deltajoin.demo.cli import app

app(prog_name="python -m deltajoin.demo")
