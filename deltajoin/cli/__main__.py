"""`python -m deltajoin.cli`, which is what the command `deltajoin` runs."""

from deltajoin.cli.app import main

main()
