"""What the planner did with a query and why: as text, and as values for programs (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.chain import chain_of
from planner.conditions import Refused
from planner.optimizer import Step, Trace
from planner.plan import Changelog, DeltaJoin, Join, JoinSide, Opaque, Plan, Relation, predicates_in_words
from planner.rules.replace_join import replace_join
from planner.sources import ManagedTable
from planner.topic_reports import TopicReport, topic_reports
from planner.trees import reads_changes, tree, walk


@dataclass(frozen=True)
class Lookups:
    """How many rows a micro-batch looks up, one for each row that changed on the other side.

    Attributes:
        in_left: for a batch with as many changes of the right table as its latest commit; None if unknown.
        in_right: likewise, the other way round.
        limit: what no batch exceeds on either side, the first load included.
    """

    in_left: int | None
    in_right: int | None
    limit: int

    def __str__(self) -> str:
        left, right = ("?" if count is None else str(count) for count in (self.in_left, self.in_right))
        return f"{left} in the left table, {right} in the right one, never more than {self.limit} in each"


@dataclass(frozen=True)
class JoinReport:
    """What became of one join of the query.

    Attributes:
        join: the join in words: tables and condition.
        form: "shuffled", the physical form of a delta join; "spark" where Spark joins; "refused".
        left_index: index of the left table by which the changes of the right one find their matches.
        right_index: likewise, the other way round.
        reason: why it is no delta join; None if it is one.
        remedy: what to do about the reason.
        estimated_lookups: of a micro-batch; None if it is no delta join.
        details: what is read of each side, in words.
    """

    join: str
    form: str
    left_index: str | None = None
    right_index: str | None = None
    reason: str | None = None
    remedy: str | None = None
    estimated_lookups: Lookups | None = None
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [self.join]
        if self.reason is None:
            lines += [
                f"  form: delta join ({self.form})",
                *(f"  {line}" for line in self.details),
                f"  lookups of a micro-batch: {self.estimated_lookups}",
            ]
        else:
            lines += [f"  form: {self.form}", f"  because {self.reason}", f"  remedy: {self.remedy}"]
        return "\n".join(lines)


@dataclass(frozen=True)
class Explanation:
    """The answer of `explain`: `str()` is the text, the rest is for programs.

    Attributes:
        joins: one report for each join, in the order of the plan.
        refusals: why the query cannot run, empty if `optimize` accepts it.
        before: the plan as the query has it.
        after: the plan as `optimize` gives it back.
        steps: every rule that fired.
        topics: one report for each topic of Kafka, in the order of the plan.
    """

    joins: tuple[JoinReport, ...]
    refusals: tuple[Refused, ...]
    before: Plan
    after: Plan
    steps: tuple[Step, ...]
    topics: tuple[TopicReport, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if not self.joins:
            yield "the query has no join"
        yield from map(str, self.joins)
        yield from map(str, self.topics)
        of_joins = {report.reason for report in self.joins}
        for refused in self.refusals:
            if refused.reason not in of_joins:
                yield f"refused: {refused.reason}\n  remedy: {refused.remedy}"
        if self.before is self.after:
            yield "the plan is left as it is"
            return
        for step in self.steps:
            outcome = "refused" if isinstance(step.result, Refused) else "rewritten"
            yield f"{step.rule}: {outcome} {step.node}"
        yield tree(self.after)


def explanation_of(trace: Trace, sink_key: Sequence[str] | None = None) -> Explanation:
    """What a trace says about the query, each of its joins and each of its topics."""
    final = {node.row_kind: node for node in walk(trace.after) if isinstance(node, DeltaJoin)}
    reports: list[JoinReport] = []
    for step in trace.steps:
        if isinstance(step.node, Join) and step.rule == replace_join.__name__:
            if isinstance(step.result, Refused):
                reports.append(_refused(step.node, step.result))
            else:
                (made,) = (node for node in walk(step.result) if isinstance(node, DeltaJoin))
                reports.append(_rewritten(step.node, final[made.row_kind]))
    handled = {report.join for report in reports}
    untouched = [node for node in walk(trace.after) if isinstance(node, Join) and not reads_changes(node)]
    reports += [_left_to_spark(node) for node in untouched if _in_words(node) not in handled]
    topics = tuple(topic_reports(trace.before, trace.after, sink_key))
    return Explanation(tuple(reports), trace.refusals, trace.before, trace.after, trace.steps, topics)


def _rewritten(join: Join, made: DeltaJoin) -> JoinReport:
    return JoinReport(
        _in_words(join),
        "shuffled",
        made.left.index,
        made.right.index,
        estimated_lookups=_lookups(made.left.table, made.right.table),
        details=tuple(line for name, side in made.sides for line in _side_in_words(name, side)),
    )


def _refused(join: Join, refused: Refused) -> JoinReport:
    return JoinReport(_in_words(join), "refused", reason=refused.reason, remedy=refused.remedy)


def _left_to_spark(join: Join) -> JoinReport:
    reason = "it reads no changes of managed tables, so Spark's own join is right"
    remedy = "none needed; keep the inputs in managed tables and join their changes for a delta join"
    return JoinReport(_in_words(join), "spark", reason=reason, remedy=remedy)


def _in_words(join: Join) -> str:
    left, right = (_name_of(chain_of(plan).leaf) for plan in (join.left, join.right))
    return f"{join.kind} join of {left} with {right}" + (
        f" on {join.condition}" if join.condition is not None else ""
    )


def _name_of(leaf: Plan) -> str:
    match leaf:
        case Changelog(name) | Relation(name) | Opaque(name):
            return name
        case _:
            return "a join"


def _side_in_words(name: str, side: JoinSide) -> Iterator[str]:
    columns = ", ".join(column.name for column in side.columns)
    where = predicates_in_words(side.where)
    yield f"{name}: {side.table.name}({columns})" + (f" where {where}" if where else "")
    yield f"  its rows are found by {side.index} for the join columns ({', '.join(side.keys)})"
    if side.table.buckets > 1 and not set(side.table.bucket_key) <= set(side.keys):
        yield (
            f"  each lookup searches all {side.table.buckets} buckets, for the join columns lack a part of "
            f"the bucket key ({', '.join(side.table.bucket_key)})"
        )


def _lookups(left: ManagedTable, right: ManagedTable) -> Lookups:
    limit = min(left.max_rows, right.max_rows)
    changed = [None if t.changed_rows is None else min(t.changed_rows, limit) for t in (left, right)]
    return Lookups(in_left=changed[1], in_right=changed[0], limit=limit)
