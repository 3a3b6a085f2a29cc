"""Measurements, each beside something to compare with: `python -m bench.store`, `python -m bench.join`.

One that needs several files, most of them for processes of its own, is a folder, and begins in `__main__.py`.
"""

from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[1]
RESULTS: Final = REPOSITORY / "bench" / "results"
"""Figures of the last runs, with their plots."""
