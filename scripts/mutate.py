"""Change the pure core in small ways, one at a time, and see that its fast tests notice: `make mutate`.

mutmut makes the changes and knows which tests run a changed function; pyproject.toml names modules and tests.
A seed draws those that are tried. What was found is written to bench/results/mutants.json, with the names of
those that no test noticed; `mutmut show <name>` shows one. Some of them do not change what the code means.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results" / "mutants.json"
NOTICED, SURVIVED, UNTESTED = "noticed", "survived", "no test"
_SURVIVED, _UNTESTED = 0, (5, 33)
"""Exit codes of pytest, as mutmut keeps them: all tests passed; no test ran."""


def mutmut(*arguments: str) -> int:
    """Run mutmut in the repository; its exit code."""
    return subprocess.run([sys.executable, "-m", "mutmut", *arguments], cwd=ROOT, check=False).returncode


def outcomes() -> dict[str, int | None]:
    """Each change that mutmut has made, and what came of it; None if it was not tried."""
    found: dict[str, int | None] = {}
    for file in (ROOT / "mutants").rglob("*.meta"):
        found |= json.loads(file.read_text())["exit_code_by_key"]
    return found


def drawn(names: list[str], seed: int, count: int) -> list[str]:
    """So many of the names, or all.

    >>> drawn(["a", "b", "c"], 1, 2) == drawn(["c", "b", "a"], 1, 2)
    True
    """
    return random.Random(seed).sample(sorted(names), min(count, len(names)))


def main() -> int:
    """Try the changes; 1 if mutmut could not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="how many changes to try, drawn by the seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="try only those that no test noticed last time")
    given = parser.parse_args()
    if not outcomes():
        mutmut("run", "no-such-name")  # makes the changes and tries none
    names = drawn(list(outcomes()), given.seed, given.count)
    if not names:
        return 1
    left_before = json.loads(RESULTS.read_text())["left"] if given.again else names
    mutmut("run", *left_before)
    tried = {name: code for name, code in outcomes().items() if name in set(names) and code is not None}
    kinds = {
        name: SURVIVED if code == _SURVIVED else UNTESTED if code in _UNTESTED else NOTICED
        for name, code in tried.items()
    }
    by_module: dict[str, Counter[str]] = {}
    for name, kind in kinds.items():
        by_module.setdefault(name.rpartition(".")[0], Counter())[kind] += 1
    left = sorted(name for name, kind in kinds.items() if kind != NOTICED)
    result = {
        "seed": given.seed,
        "of": len(outcomes()),
        "tried": len(tried),
        **Counter(kinds.values()),
        "modules": {module: dict(found) for module, found in sorted(by_module.items())},
        "left": left,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
