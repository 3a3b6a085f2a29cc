"""The programs of docs/lookup-sources.md run, and what it says of limits is so."""

import re
from pathlib import Path

from deltajoin.lookup import RequestLimits
from tests.helpers import REPOSITORY, run_program, snippet

PAGE = (REPOSITORY / "docs" / "lookup-sources.md").read_text(encoding="utf-8")

AFTERWARDS = """
from deltajoin.lookup.contract import ask, found, pairs

Path("lines").write_text("a=1\\nb=2\\n")
assert found(LinesLookup("lines"), {"key": ["b", "x"]}) == pairs([(0, ("b", "2"))])
answer = ask(products, pa.table({"product_id": [9, 7]}))
assert (answer.rows["name"].to_pylist(), list(answer.failures)) == (["pen"], [0])
for name in dir(TestMemoryLookup):
    if name.startswith("test_"):
        getattr(TestMemoryLookup(), name)()
print(over_http, in_postgres)
"""


def test_the_programs_run_in_order(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    program = snippet("".join([*programs, AFTERWARDS]), tmp_path)
    assert run_program(program, tmp_path) == (
        "HttpLookup('https://catalog.example.com/lookup/products', keys=('product_id',)) "
        "PostgresLookup('db.example.com/shop', table=('public', 'products'), keys=('product_id',))\n"
    )


def test_limits_have_the_defaults_that_the_page_names() -> None:
    found = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE, re.MULTILINE))
    limits = RequestLimits()
    assert found == {
        "keys_per_request": str(limits.keys_per_request),
        "requests": str(limits.requests),
        "timeout_s": f"{limits.timeout_s:g}",
        "attempts": str(limits.attempts),
    }
    assert f"| {limits.first_wait_s:g}, {limits.max_wait_s:g} |" in PAGE
