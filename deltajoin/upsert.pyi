# What type checkers know of the alias (deltajoin/aliases.py).
from upsert import *
from upsert import __all__ as __all__
