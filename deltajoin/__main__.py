"""`python -m deltajoin`, which is the command `deltajoin`."""

from deltajoin_command import main

main()
