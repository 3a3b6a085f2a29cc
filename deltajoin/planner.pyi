# What type checkers know of the alias (deltajoin/aliases.py).
from planner import *
from planner import __all__ as __all__
