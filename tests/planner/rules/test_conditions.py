"""Each condition alone, over the titled cases of `conditions/<file of rules>.txt`: what fulfils it, what not.

A title begins with the condition's name; a case expects "fulfilled", or the refusal. To write the
expectations from what comes out: REWRITE_PLANS=1 pytest tests/planner/rules/test_conditions.py
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.plan.expressions import Call, Cast, Column, Literal
from planner.plan.nodes import Changelog, Filter, Join, Plan, Wrapper
from planner.plan.sources import KafkaTopic, ManagedTable, Mode
from planner.refusals import Refused
from planner.rules.aggregates import AGGREGATE_CONDITIONS, sums_can_be_undone
from planner.rules.joins import JOIN_CONDITIONS, REGULAR_CONDITIONS, joins_of
from planner.rules.static_joins import STATIC_JOIN_CONDITIONS
from planner.rules.topics import UPSERT_CONDITIONS, upserts_are_replaced_above
from planner.rules.unsupported import CHANGE_CONDITIONS, NORMALIZED_CONDITIONS, OPERATOR_CONDITIONS
from tests.planner.plan_text import parse_plan, print_plan
from tests.planner.rules.test_rules import Case, cases, written

Checked = Callable[[Any], Refused | None]

FOLDER = Path(__file__).parent / "conditions"
CONDITIONS: dict[str, Iterable[Checked]] = {
    "operators": OPERATOR_CONDITIONS,
    "unsupported": (*CHANGE_CONDITIONS, *NORMALIZED_CONDITIONS),
    "topics": (*UPSERT_CONDITIONS, upserts_are_replaced_above),
    "joins": (*JOIN_CONDITIONS, *REGULAR_CONDITIONS),
    "static_joins": STATIC_JOIN_CONDITIONS,
    "aggregates": (*AGGREGATE_CONDITIONS, sums_can_be_undone),
}
FULFILLED = "fulfilled"


def name_of(case: Case) -> str:
    return case.title.partition(":")[0]


def outcome(condition: Checked, case: Case) -> str:
    plan = parse_plan(case.before)
    assert print_plan(plan) == case.before, "the case must be written as plans print"
    refused = condition(plan)
    return FULFILLED if refused is None else f"refused: {refused}"


@pytest.mark.parametrize("subject", CONDITIONS)
def test_conditions(subject: str) -> None:
    path = FOLDER / f"{subject}.txt"
    known = {one.__name__: one for one in CONDITIONS[subject]}
    found = list(cases(path))
    results = [outcome(known[name_of(case)], case) for case in found]
    if os.environ.get("REWRITE_PLANS"):
        path.write_text("\n".join(map(written, found, results)), encoding="utf-8")
    for case, result in zip(found, results, strict=True):
        assert result == case.expected, case.title


@pytest.mark.parametrize("subject", CONDITIONS)
def test_each_condition_has_a_case_that_fulfils_it_and_one_that_does_not(subject: str) -> None:
    expected = defaultdict(set)
    for case in cases(FOLDER / f"{subject}.txt"):
        expected[name_of(case)].add(case.expected == FULFILLED)
    assert expected == {one.__name__: {True, False} for one in CONDITIONS[subject]}


ORDERS, PRODUCTS = parse_plan("<orders>"), parse_plan("<products>")
NOTE = Column(4, "note", "string")


def joined(left: Plan, right: Plan = PRODUCTS) -> Join:
    key = Call("EqualTo", (left.columns[0], right.columns[0]))
    return Join(left, right, "inner", key, (*left.columns, *right.columns))


def table_with(**known: Any) -> Changelog:
    """The changes of orders, of which this is known besides."""
    assert isinstance(ORDERS, Changelog)
    assert isinstance(ORDERS.origin, ManagedTable)
    return replace(ORDERS, origin=replace(ORDERS.origin, **known))


def topic_with(mode: Mode, **known: Any) -> Changelog:
    """The changes of words, of which this is known besides."""
    words = parse_plan("<words>")
    assert isinstance(words, Changelog)
    assert isinstance(words.origin, KafkaTopic)
    return replace(words, origin=replace(words.origin, mode=mode, **known))


def refusal(conditions: Iterable[Checked], node: Plan) -> str:
    """What the first condition says that is not fulfilled; empty if all are."""
    return next((str(refused) for condition in conditions if (refused := condition(node))), "")


@pytest.mark.parametrize("name", ["Catalog", "Database", "Path", "TimeZone", "User"])
def test_what_a_session_fills_in_is_another_in_the_next(name: str) -> None:
    node = Filter(ORDERS, Call("EqualTo", (NOTE, Call(f"Current{name}", (), is_filled_in=True))))
    assert refusal(CHANGE_CONDITIONS, node) == (
        f"Current{name}(…) is another one in another session, so a row over the changes of 'orders' could "
        "not be deleted with the values of its insert; write its value into the query as a constant"
    )


def test_the_version_of_spark_is_filled_in_as_well() -> None:
    node = Filter(ORDERS, Call("SparkVersion", (), is_filled_in=True))
    assert "SparkVersion(…) is another one in another session" in refusal(CHANGE_CONDITIONS, node)
    assert refusal(CHANGE_CONDITIONS, Filter(ORDERS, Call("SparkVersion", ()))) == ""


@pytest.mark.parametrize(("vector", "is_repeatable"), [("X'00'", True), ("X''", False)])
def test_a_vector_of_bytes_must_not_be_empty(vector: str, is_repeatable: bool) -> None:
    parts = (NOTE, NOTE, Literal("GCM", "string"), NOTE, Call(vector, ()), NOTE)
    found = refusal(CHANGE_CONDITIONS, Filter(ORDERS, Call("AesEncrypt", parts)))
    assert (found == "") == is_repeatable


def test_a_constant_is_read_as_a_time_of_the_clock_only_where_a_time_is_made_of_it() -> None:
    today = Literal("today", "string")
    assert refusal(CHANGE_CONDITIONS, Filter(ORDERS, Cast(today, "int"))) == ""
    assert refusal(CHANGE_CONDITIONS, Filter(ORDERS, Cast(Literal(3, "int"), "timestamp"))) == ""
    assert "reads the clock" in refusal(CHANGE_CONDITIONS, Filter(ORDERS, Cast(today, "date")))


def test_a_topic_that_a_catalog_declares_can_be_mirrored() -> None:
    remedy = "mirror the topic in a managed table: start catalog.mirror(spark, 'declared')"
    assert remedy in refusal(JOIN_CONDITIONS, joined(ORDERS, topic_with(Mode.ALL, table="declared")))
    assert remedy not in refusal(JOIN_CONDITIONS, joined(ORDERS, topic_with(Mode.ALL)))


def test_a_topic_with_options_that_its_mirror_does_not_have_is_told_by_them() -> None:
    apart = topic_with(Mode.ALL, table="declared", apart="'value.format'")
    assert refusal(JOIN_CONDITIONS, joined(apart)) == (
        "the left input of the join reads the topic 'words' with 'value.format' of its own, without which "
        "its mirror is kept, and a delta join must look its rows up in a table; leave out 'value.format', or "
        "give it in CREATE TABLE … WITH (…), whose options the mirror has"
    )


def test_an_option_that_a_delta_join_cannot_follow_is_refused_by_its_name() -> None:
    assert refusal(JOIN_CONDITIONS, joined(table_with(asked=frozenset({"path", "scan.where"})))) == ""
    asked = frozenset({"path", "scan.source"})
    assert "the option 'scan.source', which a delta join cannot follow" in refusal(
        JOIN_CONDITIONS, joined(table_with(asked=asked))
    )


@pytest.mark.parametrize("mode", [Mode.CDC, Mode.CDC_NORMALIZED])
def test_sparks_own_join_needs_all_changes_of_a_topic(mode: Mode) -> None:
    late = topic_with(mode, options={"scan.startup.mode": "latest-offset"})
    assert refusal(REGULAR_CONDITIONS, joined(ORDERS, late)) == (
        "'words' is read with scan.startup.mode 'latest-offset', and a join needs all of its changes; leave "
        "out that option"
    )
    first = topic_with(mode, options={"scan.startup.mode": "earliest-offset"})
    assert refusal(REGULAR_CONDITIONS, joined(ORDERS, first)) == ""
    assert refusal(REGULAR_CONDITIONS, joined(ORDERS, topic_with(mode))) == ""


def test_an_aggregate_needs_all_changes_of_a_topic() -> None:
    plan = parse_plan("Aggregate by (n#42) [n#42]\n  <words>")
    late = topic_with(Mode.ALL, options={"scan.startup.mode": "latest-offset"})
    assert "scan.startup.mode = 'latest-offset'" in refusal(AGGREGATE_CONDITIONS, replace(plan, child=late))
    assert refusal(AGGREGATE_CONDITIONS, plan) == ""


@pytest.mark.parametrize(
    ("digits", "mode", "is_undone"), [(28, "LEGACY", True), (29, "LEGACY", False), (38, "ANSI", True)]
)
def test_a_sum_of_many_digits_is_undone_where_an_overflow_is_an_error(
    digits: int, mode: str, is_undone: bool
) -> None:
    plan: Any = parse_plan("Aggregate by (product_id#2) [Sum(amount#3) AS s#90]\n  <orders>")
    (output,) = plan.outputs
    value = replace(output.value, types=(f"decimal({digits},2)",), detail=(("evalContext", mode),))
    found = refusal([sums_can_be_undone], replace(plan, outputs=(replace(output, value=value),)))
    assert (found == "") == is_undone
    assert is_undone or "write CAST(… AS DECIMAL(28, 2))" in found


def test_the_joins_below_a_join_are_those_of_its_tree_the_lowest_first() -> None:
    inner = joined(ORDERS)
    static = Join(PRODUCTS, parse_plan("Relation parquet [k#80: bigint]"), "inner", None, PRODUCTS.columns)
    top = joined(Wrapper(inner, "SubqueryAlias"), ORDERS)
    assert list(joins_of(top)) == [inner, top]
    assert list(joins_of(joined(static, ORDERS))) == [joined(static, ORDERS)]
