"""What `explain` says of plans, as text, as values and as HTML; no Spark."""

from dataclasses import replace
from typing import Any

from planner.explanation import Explanation, SinkReport, explanation_of
from planner.optimizer import optimize_plan
from planner.plan.nodes import Changelog, Plan
from planner.plan.sources import ManagedTable
from planner.plan.trees import transform_up
from planner.settings import Settings
from tests.planner.plan_text import parse_plan
from upsert.stream_keys import UniqueKeys

LEFT = """\
Join left outer ON (order_id#1 = item#31)
  Join left outer ON (product_id#2 = cast(id#6 AS bigint))
    <orders>
    Filter (name#7 = 'x')
      <products>
  <stock>
"""


def explained(plan: Plan, **settings: Any) -> Explanation:
    chosen = replace(Settings(), **settings)
    return explanation_of(optimize_plan(plan, chosen), chosen)


def with_statistics(plan: Plan) -> Plan:
    """Every table with 1000 rows, of which the last commit changed 10, and 4 rows a key of an index."""

    def known(node: Plan) -> Plan:
        match node:
            case Changelog(origin=ManagedTable() as table):
                keys = {index.name: 4.0 for index in table.schema.indexes} | {"PRIMARY KEY": 1.0}
                return replace(
                    node, origin=replace(table, rows=1000, changed_rows=10, rows_per_key=keys), ref=None
                )
            case _:
                return node

    return transform_up(plan, known)


def test_paths_are_told_with_their_indexes_and_statistics() -> None:
    (join,) = explained(with_statistics(parse_plan(LEFT))).joins
    assert str(join).splitlines() == [
        "left outer join of orders and products with stock on (order_id#1 = item#31)",
        "  form: delta join (fused)",
        "  consistency: snapshot: lookups read the versions that the micro-batch moves between",
        (
            "  tree: left(left(t0, where(t1: (t1.name = 'x')): t0.product_id = t1.id), "
            "t2: t0.order_id = t2.item)"
        ),
        "  t0: orders(order_id, product_id, amount, note), about 1000 rows",
        "  t1: products(id, name, price) where name == 'x', about 1000 rows",
        "  t2: stock(item, shop, left), about 1000 rows",
        "  changes of t1 products:",
        "    look up t0 orders by (product_id) with INDEX_product_id, ~4 rows a key",
        "    look up t1 products by (id) with PRIMARY KEY, ~1 rows a key",
        "    look up t2 stock by (item) with PRIMARY KEY, ~1 rows a key",
        "  changes of t2 stock:",
        "    look up t0 orders by (order_id) with PRIMARY KEY, ~1 rows a key",
        "    look up t1 products by (id) with PRIMARY KEY, ~1 rows a key",
        "    look up t2 stock by (item) with PRIMARY KEY, ~1 rows a key",
        "  changes of t0 orders:",
        "    look up t1 products by (id) with PRIMARY KEY, ~1 rows a key",
        "    look up t2 stock by (item) with PRIMARY KEY, ~1 rows a key",
        "  lookups of a micro-batch: about 140 for the latest commits; at most 1000000 changes of each table",
    ]


def test_the_cost_of_sharing_many_changes_is_told() -> None:
    """Orders go by a column that updates change, so each task of the fused form reads all their changes."""

    def grown(node: Plan) -> Plan:
        match node:
            case Changelog(origin=ManagedTable(changed_rows=int()) as table):
                bucketed = replace(table, buckets=8, bucket_key=table.schema.primary_key)
                return replace(node, origin=replace(bucketed, changed_rows=1_500_000), ref=None)
            case _:
                return node

    inner = "Join inner ON (product_id#2 = cast(id#6 AS bigint))\n  <orders>\n  <products>\n"
    plan = transform_up(with_statistics(parse_plan(inner)), grown)
    costs = {shards: explained(plan, shards=shards).joins[0].cost for shards in (1, 64)}
    assert costs[1] is None
    assert costs[64] is not None
    assert costs[64].is_shuffled
    text = str(explained(plan, shards=64).joins[0])
    assert f"  cost of sharing the latest commits: {costs[64]}" in text.splitlines()
    assert "shuffled where write_changes" in text
    assert explained(plan, shards=64, physical="fused").joins[0].cost is None
    by_key = parse_plan("Join inner ON (order_id#1 = item#31)\n  <orders>\n  <stock>\n")
    agreed = explained(transform_up(with_statistics(by_key), grown), shards=12).joins[0].cost
    assert agreed is not None
    assert agreed.tasks == 8, "as many as there are buckets, as in the source"
    kept = SinkReport((), UniqueKeys(), "materialized", "the sink's key tells no rows apart")
    counted = parse_plan("Aggregate by (name#7) [name#7, Count(1) AS n#20]\n  " + inner.replace("\n", "\n  "))
    assert "not shuffled, though" in told(plan, kept)
    assert "not shuffled, though" in told(transform_up(with_statistics(counted), grown))
    assert "not shuffled, though" not in told(plan)


def told(plan: Plan, sink: SinkReport | None = None) -> str:
    """What is said of the first join, which 64 tasks share."""
    settings = replace(Settings(), shards=64)
    return str(explanation_of(optimize_plan(plan, settings), settings, sink).joins[0])


def test_values_say_the_same() -> None:
    (join,) = explained(with_statistics(parse_plan(LEFT)), physical="shuffled").joins
    assert join.form == "shuffled"
    assert join.indexes == ("INDEX_product_id and PRIMARY KEY", "PRIMARY KEY", "PRIMARY KEY")
    assert [(path.table, [step.table for step in path.steps]) for path in join.paths] == [
        (1, [0, 1, 2]),
        (2, [0, 1, 2]),
        (0, [1, 2]),
    ]
    assert [table.name for table in join.tables] == ["orders", "products", "stock"]
    assert (join.reason, join.remedy, join.refusals) == (None, None, ())


def test_all_reasons_of_a_refused_join_are_told_with_their_remedies() -> None:
    text = LEFT.replace("(order_id#1 = item#31)", "(note#4 = name#7)").replace(
        "  <stock>", "  Filter (Soundex(shop#32) = 'x')\n    <stock>"
    )
    found = explained(parse_plan(text), strategy="force")
    (join,) = found.joins
    assert join.form == "refused"
    assert len(join.refusals) == 2
    assert [
        str(found).count(part) for refused in join.refusals for part in (refused.reason, refused.remedy)
    ] == [
        1,
        1,
        1,
        1,
    ]


def test_a_refused_query_without_a_join_is_told_to_be_refused() -> None:
    """It began with "the query has no join", which is no reason."""
    limited = explained(parse_plan("Opaque GlobalLimit [order_id#1]\n  <orders>"))
    assert str(limited).splitlines()[0] == "the query is refused"
    assert str(explained(parse_plan("<orders>"))).splitlines()[0] == "the query has no join"


def test_a_join_with_rows_that_may_change_is_refused_by_the_name_of_their_table() -> None:
    text = "Join inner ON (product_id#2 = id#64)\n  <orders>\n  <member rows>\n"
    (join,) = explained(parse_plan(text)).joins
    lines = str(join).splitlines()
    assert lines[:2] == [
        "inner join of orders with members on (product_id#2 = id#64)",
        "  form: refused",
    ]
    assert "'members', whose rows may change" in lines[2]
    assert len(lines) == 4


def test_an_aggregate_is_written_by_the_names_that_its_groups_have_in_the_result() -> None:
    text = "Aggregate by (note#4) [note#4 AS remark#90, Count(1) AS n#91]\n  <orders>\n"
    (aggregate,) = explained(parse_plan(text)).aggregates
    assert aggregate.notes[0] == (
        "written with catalog.write_changes into a table with the PRIMARY KEY (remark), in output mode update"
    )


def test_a_lookup_in_all_buckets_is_a_hint() -> None:
    def cut(node: Plan) -> Plan:
        match node:
            case Changelog(origin=ManagedTable(name="orders") as table):
                return replace(node, origin=replace(table, buckets=8, bucket_key=("order_id",)), ref=None)
            case _:
                return node

    (join,) = explained(transform_up(parse_plan(LEFT), cut), physical="stateful").joins
    by_product, partitions = join.hints
    assert by_product == (
        "each lookup in orders by (product_id) searches all its 8 buckets: these columns lack a part of the "
        "bucket key (order_id)"
    )
    assert "spark.sql.shuffle.partitions" in partitions


def test_html_has_the_report_and_both_plans_as_text() -> None:
    found = explained(parse_plan(LEFT.replace("'x'", "'<script>alert(1)</script>'")))
    page = found._repr_html_()
    assert "<script>" not in page
    assert "name == &#x27;&lt;script&gt;" in page
    assert page.count("<details>") == 2
    assert "DeltaJoin _row_kind#5" in page


def test_a_join_whose_state_grows_is_a_warning_and_no_other_is() -> None:
    text = LEFT.replace("left outer ON (order_id#1 = item#31)", "inner ON (note#4 = shop#32)")
    found = explained(parse_plan(text))
    assert [(join.form, join.grows) for join in found.joins] == [("regular", True), ("fused", False)]
    assert (
        found.joins[0].state == "every change of both inputs for ever, those that took rows away among them"
    )
    lines = str(found).splitlines()
    warned = [line for number, line in enumerate(lines) if number in found.warned]
    assert "\n".join(warned) == str(found.joins[0])
    assert repr(found) == str(found)
    assert found._repr_html_().count('class="deltajoin-warning"') == 1
    assert [join["grows"] for join in found.to_json()["joins"]] == [True, False]


def test_html_of_a_refusal_has_its_remedy_and_no_plan_after() -> None:
    found = explained(parse_plan("Opaque Sample [order_id#1, _row_kind#5]\n  <orders>"))
    page = found._repr_html_()
    assert "refused: " in page
    assert "remedy: " in page
    assert page.count("<details>") == 1
