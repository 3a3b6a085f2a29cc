"""Each rule alone, over the titled cases of `plans/<rule>.txt`: a plan, then what comes of it.

Below its title a case may have settings, like `# sink_key: id`. Its expectation is the plan after the rule,
"unchanged", or the refusals. To write the expectations after a rule has changed, and read the
difference: REWRITE_PLANS=1 pytest tests/planner/rules/test_rules.py
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from planner.optimizer import RULES, Rule, Step, Walk, apply_rule, optimize_plan
from planner.refusals import Refused
from planner.settings import Settings
from tests.planner.plan_text import parse_plan, print_plan

PLANS = Path(__file__).parent / "plans"
SEPARATOR = "----"


@dataclass
class Case:
    title: str
    settings: Settings
    before: str
    expected: str


def cases(path: Path) -> Iterator[Case]:
    for block in path.read_text(encoding="utf-8").split("# title: ")[1:]:
        title, _, body = block.partition("\n")
        settings = Settings()
        while body.startswith("# "):
            first, _, body = body.partition("\n")
            name, _, value = first.removeprefix("# ").partition(":")
            known: Any = tuple(value.split()) if name == "sink_key" else value.strip()
            settings = replace(settings, **{name: known})
        before, _, expected = body.partition(f"{SEPARATOR}\n")
        yield Case(title, settings, before.strip("\n"), expected.strip("\n"))


def outcome(rule: Rule, walk: Walk, case: Case) -> str:
    plan, steps = parse_plan(case.before), list[Step]()
    assert print_plan(plan) == case.before, "the case must be written as plans print"
    after = apply_rule(rule, walk, plan, case.settings, steps)
    refusals = [f"refused: {step.result}" for step in steps if isinstance(step.result, Refused)]
    return "\n".join(refusals) or ("unchanged" if after is plan else print_plan(after))


@pytest.mark.parametrize(("walk", "rule"), RULES, ids=[rule.__name__ for _, rule in RULES])
def test_rule(walk: Walk, rule: Rule) -> None:
    path = PLANS / f"{rule.__name__}.txt"
    found = list(cases(path))
    results = [outcome(rule, walk, case) for case in found]
    if os.environ.get("REWRITE_PLANS"):
        path.write_text("\n".join(map(written, found, results)), encoding="utf-8")
    for case, result in zip(found, results, strict=True):
        assert result == case.expected, case.title


def written(case: Case, result: str) -> str:
    plain = Settings()
    options = "".join(
        f"# {name}: {value}\n"
        for name in ("strategy", "consistency", "changelog", "state_path", "sink_rule")
        if (value := getattr(case.settings, name)) != getattr(plain, name)
    )
    key = case.settings.sink_key
    sink = "" if key is None else f"# sink_key:{''.join(f' {name}' for name in key)}\n"
    return f"# title: {case.title}\n{options}{sink}{case.before}\n{SEPARATOR}\n{result}\n"


def test_every_rule_has_its_cases_and_no_others() -> None:
    assert {path.stem for path in PLANS.glob("*.txt")} == {rule.__name__ for _, rule in RULES} | {"all_rules"}


def test_all_rules_together() -> None:
    """What each rule leaves is what the next one needs."""
    path = PLANS / "all_rules.txt"
    found = list(cases(path))
    results = []
    for case in found:
        trace = optimize_plan(parse_plan(case.before), case.settings)
        refusals = "\n".join(f"refused: {refused}" for refused in trace.refusals)
        results.append(refusals or (print_plan(trace.after) if trace.is_changed else "unchanged"))
    if os.environ.get("REWRITE_PLANS"):
        path.write_text("\n".join(map(written, found, results)), encoding="utf-8")
    for case, result in zip(found, results, strict=True):
        assert result == case.expected, case.title


@pytest.mark.parametrize("case", list(cases(PLANS / "all_rules.txt")), ids=lambda case: case.title)
def test_a_second_pass_changes_nothing(case: Case) -> None:
    """An optimized plan comes back as the same object."""
    trace = optimize_plan(parse_plan(case.before), case.settings)
    if not trace.refusals:
        again = optimize_plan(trace.after, case.settings)
        assert again.after is trace.after
        assert not again.refusals
