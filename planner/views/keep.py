"""How a view is refreshed: by its own changes, or out of the stages that its aggregates are kept in.

What a refresh runs is planned once, when the query is first seen, and run over other inputs each time.
"""

from __future__ import annotations

import os

import pyarrow as pa
from pyspark.sql import DataFrame

from planner.plan.nodes import Plan
from planner.plan.trees import transform_down
from planner.settings import Settings
from planner.spark.catalyst import Catalyst
from planner.spark.read import read_plan
from planner.spark.template import Template
from planner.views.inputs import Input, Planning
from planner.views.moves import Bases, Move, Versions, bases_of, move_of
from planner.views.stage_table import StageRows, StageTable
from planner.views.stages import changes_of, stages_of, why_not
from upsert.errors import ConfigurationError
from upsert.store.table import Table
from upsert.views.prepared import ViewShape
from upsert.views.refresh import consumer_of
from upsert.views.session import small_session


class KeptView:
    """What the refreshes of one view compute: made once for its query, run at any versions of its tables.

    Attributes:
        is_lasting: whether it holds for other versions than those of the query that it was made of.
    """

    def __init__(
        self,
        planning: Planning,
        changes: tuple[Bases, Template[Input]] | None,
        rest: Template[Input],
        is_lasting: bool,
    ) -> None:
        """Of a query whose changes follow from those of its tables, or of another, with or without stages."""
        self._planning = planning
        self._changes = changes
        self._rest = rest
        self.is_lasting = is_lasting

    def at(self, known: Versions, versions: Versions) -> DataFrame | pa.Table:
        """What makes the view's rows those of other versions: changes with their kinds, or all rows.

        Args:
            known: data version of each table that the view's rows are of, by the table's uuid; none of one
                that is being created.
            versions: those to come.

        Raises:
            CommitConflictError: another process brings the stages to other versions at this moment.
        """
        if self._changes is not None:
            bases, template = self._changes
            move = move_of(bases, known, versions, self._planning.consumer)
            if move.step is not None:
                return self._planning.computed(template, move)
        return self._planning.computed(self._rest, Move(versions))


def kept(df: DataFrame, view: ViewShape, settings: Settings) -> KeptView:
    """How a view is refreshed by what has changed, as far as that can be.

    Args:
        df: the view's query over managed tables at stated snapshots.
        view: what the view is.
        settings: of the planner.

    Raises:
        ConfigurationError: the view must be refreshed by what has changed, and cannot.
    """
    catalyst, consumer = Catalyst(df), consumer_of(Table.open(view.folder).uuid)
    planning = Planning(catalyst, small_session(df.sparkSession), settings, view.folder, consumer)
    joined = catalyst.without_subqueries(catalyst.analyzed(df))
    whole, is_lasting = catalyst.dataframe(joined), not catalyst.has_subqueries(joined)
    plan = read_plan(catalyst, whole)
    if (changes := changes_of(plan, settings)) is not None:
        template, rows = (planning.template(one) for one in (planning.built(changes.plan), whole))
        return KeptView(planning, (bases_of(changes.tables), template), rows, is_lasting)
    found = [(stage, StageTable.of(planning, stage)) for stage in stages_of(plan, settings)]
    stages = {id(stage.node): StageRows(table) for stage, table in found if table is not None}
    if not stages and view.must_be_incremental:
        raise ConfigurationError(
            f"view {os.path.basename(view.folder)!r}: option 'refresh' = 'incremental' must be possible, got "
            f"a query of which {why_not(plan, settings)}; or leave the option out"
        )

    def kept_node(node: Plan) -> Plan:
        return stages[id(node)].node if id(node) in stages else node

    made = planning.built(transform_down(plan, kept_node)) if stages else whole
    rest = planning.template(made, tuple(stages.values()))
    return KeptView(planning, None, rest, is_lasting)
