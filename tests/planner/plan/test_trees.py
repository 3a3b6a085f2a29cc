"""Inputs and expressions of every node, which come from the types of its fields."""

from dataclasses import replace
from typing import get_args

import pytest

from planner.plan.expressions import Column
from planner.plan.nodes import (
    Aggregate,
    EnrichedUpserts,
    LookupAggregate,
    Plan,
    SignedAggregate,
    SlidingWindows,
)
from planner.plan.trees import children, expressions, walk, with_children
from tests.planner.plan_text import LOOKUPS, TABLES, parse_plan

READ = parse_plan(
    """
Union
  Opaque Sort [order_id#1]
    Join inner ON (product_id#2 = cast(id#6 AS bigint))
      Enriched inner by table members [id#61: bigint, region#62: string] on (order_id#1 = id)
        SubqueryAlias
          Watermark note#4
            <orders>
      Distinct [id#6]
        <products>
  Generate Explode(note#4) AS [word#90: string]
    Aggregate by (product_id#2, window note#4) [product_id#2, Sum(amount#3) AS s#91]
      Filter (amount#3 > 2.0)
        Project [order_id#1, Upper(note#4) AS note#4]
          Relation parquet [a#92: bigint]
  RegularJoin _row_kind#5 ON (order_id#1 = order_id#11)
    <orders>
    DeltaJoin _row_kind#5
      inner(t0, t1: t0.product_id = t1.id)
      t0 orders [order_id#1: bigint]
      t1 products [id#6: int]
""".strip()
)
COLUMN = Column(93, "made", "bigint")
MADE: tuple[Plan, ...] = (
    SlidingWindows(parse_plan("<orders>"), COLUMN, (COLUMN, COLUMN)),
    SignedAggregate(parse_plan("<orders>"), (), (), (), COLUMN),
    EnrichedUpserts(parse_plan("<orders>"), LOOKUPS["rates"], (), (), "inner", (), COLUMN),
    LookupAggregate(TABLES["orders"], (), (), "PRIMARY KEY", (), None, (), COLUMN),
)
"""Nodes that the text of plans does not have."""
NODES = {type(node): node for node in (*walk(READ), *MADE)}


def test_all_nodes_are_tried() -> None:
    assert NODES.keys() == set(get_args(Plan))


@pytest.mark.parametrize("node", NODES.values(), ids=lambda node: type(node).__name__)
def test_a_node_over_other_inputs_has_these(node: Plan) -> None:
    """What it is apart from its inputs stays, and without other inputs it is the same object."""
    inputs = children(node)
    assert with_children(node, inputs) is node
    others = tuple(replace(one) for one in inputs)
    changed = with_children(node, others)
    assert [id(one) for one in children(changed)] == list(map(id, others))
    assert str(changed) == str(node)
    assert expressions(changed) == expressions(node)


def test_expressions_are_what_the_node_evaluates() -> None:
    found = {kind.__name__: [str(expr) for expr in expressions(node)] for kind, node in NODES.items()}
    assert {kind: exprs for kind, exprs in found.items() if exprs} == {
        "Join": ["(product_id#2 = cast(id#6 AS bigint))"],
        "Watermark": ["note#4"],
        "Generate": ["Explode(note#4)"],
        "Aggregate": ["product_id#2", "note#4", "product_id#2", "Sum(amount#3)"],
        "Filter": ["(amount#3 > 2.0)"],
        "Project": ["order_id#1", "Upper(note#4)"],
        "RegularJoin": ["(order_id#1 = order_id#11)"],
        "SlidingWindows": ["made#93", "made#93"],
    }


def test_a_semi_join_puts_out_the_columns_of_its_left_input() -> None:
    join = parse_plan("Join left semi ON (product_id#2 = cast(id#6 AS bigint))\n  <orders>\n  <products>")
    left, right = children(join)
    assert join.columns == left.columns
    assert with_children(join, [replace(left), right]).columns == left.columns


def test_an_aggregate_without_groups_evaluates_its_columns_alone() -> None:
    node = NODES[Aggregate]
    assert isinstance(node, Aggregate)
    assert [str(expr) for expr in expressions(replace(node, groups=()))] == ["product_id#2", "Sum(amount#3)"]
