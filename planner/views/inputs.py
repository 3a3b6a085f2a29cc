"""What the plans of a view read: the changes of a step, or the rows of a state; by Spark, or here if few.

A Python source costs Spark a process to plan it, a job and tasks that start others, for a handful of rows as
for millions. Few rows are read in the driver by the very same reader, and travel with the plan.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from deltajoin.spark.source import JoinStepSource
from planner.plan.nodes import Plan, Relation
from planner.plan.trees import transform_up
from planner.settings import Settings
from planner.spark.build import build_plan
from planner.spark.catalyst import Catalyst, JavaObject
from planner.spark.few_rows import OneTask
from planner.spark.small_plan import SmallPlan
from planner.spark.template import Template
from planner.views.moves import Bases, Move, Versions, move_of
from planner.views.stages import Folders
from upsert.errors import TableNotFoundError
from upsert.managed.datasource import TableStepSource, UpsertTableSource
from upsert.managed.stepping import STEP, SUFFIX, StepReader
from upsert.spark.batches import arrow_schema, read_up_to
from upsert.spark.formats import FORMAT
from upsert.spark.java import class_name
from upsert.spark.reads import is_read, load_batch
from upsert.store.metadata.stands_for import Costs
from upsert.store.table import Table
from upsert.views.hidden_tables import HIDDEN_TABLES, consumer_of, uuids_of
from upsert.views.refresh import FEW_BYTES, FEW_ROWS, ViewShape, are_few

_SOURCES: Final[Mapping[str, type[DataSource]]] = {
    source.name(): source for source in (UpsertTableSource, TableStepSource, JoinStepSource)
}

_SNAPSHOT: Final = "scan.snapshot-id"


class Input(Protocol):
    """A leaf of a plan that is another one in each refresh."""

    @property
    def leaf(self) -> JavaObject:
        """A leaf with the same columns, under the ids that the plan knows."""

    @property
    def schema(self) -> StructType:
        """Its columns."""

    @property
    def meaning(self) -> Hashable:
        """What its rows are: those of inputs with the same meaning are the same in each refresh."""

    def rows(self, move: Move) -> pa.Table | None:
        """Its rows, read in this process; None if they are many."""

    def frame(self, move: Move) -> DataFrame:
        """Its rows, read by Spark."""


_FEWER_COLUMNS: Final = (
    "optimizer.ReorderJoin",  # it sees no join through the projections that the next one makes
    "optimizer.ColumnPruning",
    "optimizer.CollapseProject",
    "optimizer.RemoveNoopOperators",
)
"""Rules of Spark's optimizer after which a relation has a projection above it of what a plan needs."""


class Source:
    """A relation of one of our formats: a stream's changes in a step, or a table's rows in a state."""

    def __init__(self, catalyst: Catalyst, leaf: JavaObject, relation: JavaObject) -> None:
        """Of a relation, where a plan has it: the relation itself, or some columns of a table."""
        self.leaf = leaf
        self.schema = catalyst.schema(leaf)
        self._session = catalyst.session
        self._is_step = catalyst.is_streaming(relation)
        if self._is_step:
            name, options = catalyst.source(relation)
            files = {"scan.source": "files"} if name == FORMAT else {}
            self._format, self._options = name + SUFFIX, {**options, **files}
        else:
            self._format, self._options = catalyst.batch_source(relation)
            self._uuid = Table.open(self._options["path"]).uuid

    @property
    def meaning(self) -> Hashable:
        """What is read, and which columns of it."""
        return self._format, *sorted(self._options.items()), self.schema.json()

    @classmethod
    def of(cls, catalyst: Catalyst, node: JavaObject) -> Source | None:
        """What a node reads: a relation, or columns of a table; None for another one, and for VALUES."""
        if _is_relation(node):
            return cls(catalyst, node, node)
        if class_name(node) != "Project":
            return None
        (relation,) = catalyst.children(node)
        if not _is_relation(relation):
            return None
        is_step = catalyst.is_streaming(relation)
        name, _ = catalyst.source(relation) if is_step else catalyst.batch_source(relation)
        named = catalyst.projected(node)
        if name != FORMAT or not named:
            return None
        is_plain = all(class_name(one) == "AttributeReference" for one in named)
        is_once = len({one.exprId().id() for one in named}) == len(named)  # no read gives a column twice
        return cls(catalyst, node, relation) if is_plain and is_once else None

    def rows(self, move: Move) -> pa.Table | None:
        """Its rows, read in this process; None if they are many."""
        if not self._is_few(move):
            return None
        options = {name.lower(): value for name, value in self._at(move).items()}
        batches = _batches(_SOURCES[self._format](options).reader(self.schema))
        return read_up_to(batches, FEW_ROWS, FEW_BYTES, arrow_schema(self.schema))

    def frame(self, move: Move) -> DataFrame:
        """Its rows, read by Spark."""
        return load_batch(self._session, _SOURCES[self._format], self._at(move), self.schema)

    def _is_few(self, move: Move) -> bool:
        if self._is_step:
            return move.is_small
        return are_few(Table.open(self._options["path"]).snapshot(move.versions[self._uuid]))

    def _at(self, move: Move) -> dict[str, str]:
        if not self._is_step:
            return {**self._options, _SNAPSHOT: str(move.versions[self._uuid])}
        assert move.step is not None
        return {**self._options, STEP.key: move.step.to_option()}


def _is_relation(node: JavaObject) -> bool:
    return class_name(node) == "StreamingRelationV2" or is_read(node)


@dataclass(frozen=True)
class Planning:
    """What the plans of one view are made with.

    Attributes:
        catalyst: of its query.
        task: what computes few rows, in a session for these.
        settings: of the planner.
        view: what they are for.
        guesses: how many rows tables may have at most that are not there yet, by their folders.
        of_few_rows: the plans that have been made over few rows.
        begun: which refreshes have begun with these plans; the first of each kind compiles them.
    """

    catalyst: Catalyst
    task: OneTask
    settings: Settings
    view: ViewShape
    guesses: dict[str, int] = field(default_factory=dict)
    of_few_rows: dict[Template[Input], SmallPlan] = field(default_factory=dict)
    begun: set[tuple[str, ...]] = field(default_factory=set)

    def folder_of(self, name: str, most: int | None) -> str:
        """Folder of a hidden table; of an empty one instead if it is not there, and only explained.

        Args:
            name: of the table.
            most: how many rows it may have at most, for the rest of the plan; None if that is not known.
        """
        scratch, root = self.view.scratch, self.view.folder
        if scratch is None or uuids_of(root, [name]):
            return os.path.join(root, HIDDEN_TABLES, name)
        self.guesses[os.path.join(scratch, name)] = most or 0
        return os.path.join(scratch, name)

    def has(self, path: str) -> bool:
        """Whether a hidden table is there already: an earlier plan of the view has needed it."""
        return bool(uuids_of(self.view.folder, [os.path.basename(path)]))

    def rows_in(self, path: str) -> int:
        """About how many rows a hidden table has; at most, if it is not there yet."""
        if path in self.guesses:
            return self.guesses[path]
        try:
            return Table.open(path).snapshot().row_count
        except TableNotFoundError:
            return 0

    def rows_in_words(self, path: str, what: str = "rows") -> str:
        """How many rows a hidden table has, as far as that is known."""
        if path in self.guesses:
            most = self.guesses[path]
            return f"at most {most:,} {what}" if most else f"{what} not known yet"
        return f"{self.rows_in(path):,} {what}"

    def with_guesses(self, plan: Plan) -> Plan:
        """A plan of which each table that is not there yet has as many rows as it may have."""

        def guessed(node: Plan) -> Plan:
            if not isinstance(node, Relation) or node.rows is None:
                return node
            if (rows := self.guesses.get(node.rows.table.path)) is None:
                return node
            return replace(node, rows=replace(node.rows, table=replace(node.rows.table, rows=rows)))

        return transform_up(plan, guessed) if self.guesses else plan

    def move(
        self,
        bases: Bases,
        known: Versions,
        versions: Versions,
        costs: Costs,
        hidden: str = "",
        still: Folders = frozenset(),
    ) -> Move:
        """What brings the view, or a hidden table, from known versions to others; see `move_of`."""
        always, holder = self.view.must_be_incremental, consumer_of(self.view.uuid, hidden)
        move = move_of(bases, known, versions, holder, costs, must_be_by_changes=always, still=still)
        kind = (holder, *sorted(bases), move.refresh.measures)
        is_first = kind not in self.begun
        self.begun.add(kind)
        return replace(move, refresh=replace(move.refresh, is_first=is_first))

    def built(self, plan: Plan) -> DataFrame:
        """The DataFrame of a plan."""
        return build_plan(self.catalyst, plan, self.settings)

    def template(self, df: DataFrame, given: Input | None = None) -> Template[Input]:
        """The plan of a DataFrame over what it reads; ``given`` is of a leaf that stands for other rows."""
        catalyst = self.catalyst
        number = None if given is None else catalyst.first_id(given.leaf)

        def input_of(node: JavaObject) -> Input | None:
            is_leaf = number is not None and (is_read(node) or not catalyst.children(node))
            return given if is_leaf and catalyst.first_id(node) == number else Source.of(catalyst, node)

        return Template(
            catalyst, lambda: catalyst.rewritten(catalyst.analyzed(df), *_FEWER_COLUMNS), input_of
        )

    def computed(self, template: Template[Input], move: Move) -> DataFrame | pa.Table:
        """What a plan gives for a refresh: its rows, if all of its inputs are few, else a DataFrame."""
        catalyst = self.catalyst
        read: dict[Hashable, pa.Table | None] = {}
        for one in template.inputs:
            if one.meaning not in read:
                read[one.meaning] = one.rows(move)
        found = [read[one.meaning] for one in template.inputs]
        few = [rows for rows in found if rows is not None]
        rows, size = sum(one.num_rows for one in few), sum(one.nbytes for one in few)
        if len(few) == len(found) and rows <= FEW_ROWS and size <= FEW_BYTES:
            return self._few_rows(template).computed(few)
        leaves = [
            _read(catalyst, one, move) if given is None else catalyst.local(given, one.leaf, one.schema)
            for one, given in zip(template.inputs, found, strict=True)
        ]
        return catalyst.dataframe(template.over(leaves))

    def _few_rows(self, template: Template[Input]) -> SmallPlan:
        """A plan over few rows, made when it is wanted first."""
        if (known := self.of_few_rows.get(template)) is None:
            leaves = [(one.leaf, one.schema) for one in template.inputs]
            known = self.of_few_rows[template] = SmallPlan(self.catalyst, template, leaves, self.task)
        return known


def _batches(reader: DataSourceReader) -> Iterator[object]:
    """All that a reader gives, read in this process."""
    if isinstance(reader, StepReader):
        yield from reader.rows()
        return
    for partition in reader.partitions():
        yield from reader.read(partition)


def _read(catalyst: Catalyst, one: Input, move: Move) -> JavaObject:
    """The rows that Spark reads, under the ids that the plan knows."""
    source = catalyst.analyzed(one.frame(move))
    pairs = zip(catalyst.output(source), map(catalyst.attribute, catalyst.output(one.leaf)), strict=True)
    return catalyst.project([catalyst.alias(given, name, id) for given, (id, name, _) in pairs], source)
