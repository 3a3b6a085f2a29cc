"""What the planner decided about each join, aggregate and topic of a query and its sink, and why (pure).

As text, as HTML, and as values for programs. In HTML for notebooks, whatever a query or a table is called is
text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Final

from deltajoin.core.costs import StepCost
from deltajoin.core.evaluate import determined
from deltajoin.core.plans import Path
from planner.join_tree import lookup_paths, step_cost
from planner.optimizer import Step, Trace
from planner.plan.expressions import without_ids
from planner.plan.keys import group_keys, unique_keys, upsert_key
from planner.plan.nodes import (
    Aggregate,
    Changelog,
    DeltaJoin,
    Enriched,
    EnrichedUpserts,
    Filter,
    Join,
    LookupAggregate,
    LookupChanges,
    LookupJoined,
    LookupRows,
    Normalized,
    Plan,
    Project,
    RegularJoin,
    Relation,
    TableRows,
    VersionRows,
    Watermark,
    Wrapper,
    tree_in_words,
)
from planner.plan.sources import KafkaTopic, Mode, RecordRange
from planner.plan.trees import (
    aggregations,
    chain_of,
    is_streaming,
    join_in_words,
    reads_changes,
    sources,
    static_input,
    trace,
    tree,
    walk,
)
from planner.refusals import FOR_A_VIEW, Refused
from planner.rules.aggregates import replace_aggregate
from planner.rules.joins import fall_back_to_regular_join, replace_join
from planner.rules.lookup_joins import replace_lookup_join
from planner.rules.static_joins import enrich_stream
from planner.rules.temporal_joins import join_versions, look_up
from planner.rules.topics import needs_normalizer, topic_of, unmet_everywhere
from planner.settings import Settings
from planner.signed_sums import FIXED_POINTS, is_floating
from upsert.errors import ConfigurationError
from upsert.managed.options import ALL_ROWS
from upsert.materializer.choice import Changes, Sink, choose
from upsert.stream_keys import UniqueKeys

_CONSISTENCY: Final = {
    "snapshot": "snapshot: lookups read the versions that the micro-batch moves between",
    "latest": "latest: lookups read the newest rows",
}

_EVERY_CHANGE: Final = "every change of both inputs for ever, those that took rows away among them"
_EVERY_ROW: Final = "the rows of both inputs, for ever where no watermark tells when they find no match"
_WAITING: Final = "rows of the stream, and versions of the table, until the watermark has passed their time"
_STEPS: Final = "a few numbers for each shard"
_QUEUES: Final = "a few numbers for each shard, and rows whose lookup has failed until it succeeds"
"""What Spark's state has for a join."""

_ASSUMED: Final = (
    "the static side is read again in each micro-batch and must never change; keep it in a managed table and "
    "join its changes if it does"
)

_ENRICHED: Final = (
    "each row of the stream looks the table up when it is processed; what changes in the table later comes "
    "to later rows only, and a micro-batch that is run again may find newer rows"
)

_LOOKED_UP: Final = (
    "each row looks the table {0!r} up ({1}) when it is processed; what changes there later comes to later "
    "rows only, and a micro-batch that is run again may find newer rows"
)

_LOOKED_UP_FOR_CHANGES: Final = (
    "each change looks the table {0!r} up ({1}) when it is processed, and its row replaces the one before by "
    "({2}), which the sink must be keyed by; what changes in the table later comes to rows that change after "
    "it only"
)

_VERSIONS: Final = (
    "each row waits until the watermark of both sides has passed its time, and then meets the version that "
    "was valid at that time"
)

_READ_ONCE: Final = (
    "table {0!r} is read as it was when the query was analysed, what is written later comes to no row; an "
    "INDEX of it within the join columns lets each row of the stream look up what is newest"
)

_BLURRED: Final = (
    "the query computes with {} and does not put it out as it is: where what it computes is equal, an update "
    "comes as a row and its opposite in one micro-batch; select it too if no row may come with both signs"
)

_SHUFFLED: Final = (
    "a micro-batch of that size is shuffled where write_changes, or INSERT INTO, writes it into a managed "
    "table; for other sinks 'physical' = 'shuffled' does the same, also with few changes"
)

_COULD_BE_SHUFFLED: Final = (
    "a micro-batch of that size is not shuffled, though that takes its tasks less time: {0}; 'physical' = "
    "'shuffled' does it, also with few changes"
)

_PARTITIONS: Final = (
    "the stateful form has as many partitions as the session's spark.sql.shuffle.partitions says, "
    "200 by default, which costs seconds a batch; set it to the number of cores before the start"
)


@dataclass(frozen=True)
class TableReport:
    """One table of a delta join.

    Attributes:
        name: the table.
        columns: those that are read.
        where: filters of the store, in words; empty for none.
        rows: about how many rows it has; None if unknown.
        changed_rows: rows of its latest commit; None if unknown.
    """

    name: str
    columns: tuple[str, ...]
    where: str
    rows: int | None
    changed_rows: int | None

    def __str__(self) -> str:
        where = f" where {self.where}" if self.where else ""
        rows = "" if self.rows is None else f", about {self.rows} rows"
        return f"{self.name}({', '.join(self.columns)}){where}{rows}"


@dataclass(frozen=True)
class Lookups:
    """How many keys a micro-batch looks up at most: what the path of each table comes to.

    Attributes:
        by_table: number of a table -> lookups for a batch with as many changes as its latest commit; None
            where that is unknown.
        limit: changes of each table that no batch exceeds, but for a first load in one batch; None: as many
            as fit into the memory of a task.
    """

    by_table: Mapping[int, int | None]
    limit: int | None

    def __str__(self) -> str:
        known = [count for count in self.by_table.values() if count is not None]
        about = f"about {sum(known)} for" if len(known) == len(self.by_table) else "unknown for some of"
        most = f"{self.limit} changes of each table" if self.limit else "as many as fit into a task's memory"
        return f"{about} the latest commits; at most {most}"


@dataclass(frozen=True)
class JoinReport:
    """What became of one join of the query, or of several that became one delta join.

    Attributes:
        join: the join in words: tables and condition.
        form: of a delta join "fused", "shuffled" or "stateful"; "regular" where Spark joins signed rows;
            "static" where it joins each change with rows that never change; "lookup" where rows of a stream
            look a table up; "temporal" where they meet the versions of their time; "spark" where it joins
            rows; "refused".
        tree: how the tables of a delta join are joined, by their numbers.
        tables: its tables by number.
        paths: what the changes of each table look up, in which order and by which index; tables in the order
            in which they move from one version to the next.
        consistency: which versions lookups read.
        estimated_lookups: of a micro-batch; None if it is no delta join.
        cost: what tasks take to share a micro-batch with as many changes as the latest commits; None if one
            task has them all, if that is unknown, or if the form was not left to choose.
        refusals: why it is no delta join, and what to do about it; empty if it is one.
        hints: what makes it dearer than it could be, or what it relies on, and what to do about that.
        state: what Spark's state has for it; None for nothing.
        grows: whether this state grows with the inputs.
    """

    join: str
    form: str
    tree: str | None = None
    tables: tuple[TableReport, ...] = ()
    paths: tuple[Path, ...] = ()
    consistency: str | None = None
    estimated_lookups: Lookups | None = None
    cost: StepCost | None = None
    refusals: tuple[Refused, ...] = ()
    hints: tuple[str, ...] = ()
    state: str | None = None
    grows: bool = False

    @property
    def reason(self) -> str | None:
        """The first reason why it is no delta join."""
        return self.refusals[0].reason if self.refusals else None

    @property
    def remedy(self) -> str | None:
        """What to do about the first reason."""
        return self.refusals[0].remedy if self.refusals else None

    @property
    def indexes(self) -> tuple[str, ...]:
        """For each table, by number, the index by which its rows are found, or several with "and" between."""
        steps = [step for path in self.paths for step in path.steps]
        found = (
            dict.fromkeys(step.index for step in steps if step.table == number)
            for number in range(len(self.tables))
        )
        return tuple(map(" and ".join, found))

    def __str__(self) -> str:
        lines = [self.join]
        if self.tree is None:
            lines.append(f"  form: {self.form}")
            for refused in self.refusals:
                lines += [f"  because {refused.reason}", f"  remedy: {refused.remedy}"]
        else:
            lines += [f"  form: delta join ({self.form})", f"  consistency: {self.consistency}"]
            lines.append(f"  tree: {self.tree}")
            lines += [f"  t{number}: {table}" for number, table in enumerate(self.tables)]
            for path in self.paths:
                lines.append(f"  changes of t{path.table} {path.name}:")
                lines += [f"    look up {step}" for step in path.steps]
            if self.estimated_lookups is not None:
                lines.append(f"  lookups of a micro-batch: {self.estimated_lookups}")
        if self.cost is not None:
            lines.append(f"  cost of sharing the latest commits: {self.cost}")
        lines += [] if self.state is None else [f"  state: {self.state}"]
        return "\n".join([*lines, *(f"  hint: {hint}" for hint in self.hints)])


def join_reports(trace: Trace, settings: Settings, sink: SinkReport | None = None) -> Iterator[JoinReport]:
    """One report for each delta join and each join that is none, in the order of the plan."""
    fixed = _why_one_form(trace.after, sink)
    final = {node.row_kind: node for node in walk(trace.after) if isinstance(node, DeltaJoin)}
    handled, told = set(), set[int]()
    for join, results in _by_join(trace.steps):
        name = join_in_words(join)
        handled.add(name)
        if refusals := tuple(result for result in results if isinstance(result, Refused)):
            yield JoinReport(name, "refused", refusals=refusals)
            continue
        for part in (part for result in results if not isinstance(result, Refused) for part in walk(result)):
            if isinstance(part, Enriched | EnrichedUpserts):
                if id(part) in told:  # it lies below the lookups of another join
                    continue
                told.add(id(part))
            match part:
                case DeltaJoin():
                    made = final.get(part.row_kind, part)
                    hidden = blurred(trace.after) if made in final.values() else ()
                    yield _delta_join(name, made, settings, hidden, fixed)
                case Enriched(rows=TableRows()):
                    yield JoinReport(name, "lookup", hints=(_ENRICHED,))
                case Enriched(rows=VersionRows()):
                    yield JoinReport(name, "temporal", hints=(_VERSIONS,), state=_WAITING)
                case Enriched(rows=LookupRows(table)):
                    yield JoinReport(name, "lookup", hints=(_LOOKED_UP.format(table.name, table.connector),))
                case EnrichedUpserts(rows=LookupRows(table), key=key):
                    names = ", ".join(column.name for column in key)
                    hint = _LOOKED_UP_FOR_CHANGES.format(table.name, table.connector, names)
                    yield JoinReport(name, "lookup", consistency=_CONSISTENCY["latest"], hints=(hint,))
                case RegularJoin(reason=reason, remedy=remedy):
                    why = Refused(reason, remedy)
                    yield JoinReport(name, "regular", refusals=(why,), state=_EVERY_CHANGE, grows=True)
                case Changelog(origin=LookupJoined() as joined):
                    yield _lookup_join(name, joined, _whole(joined, trace.after))
    for node in walk(trace.after):
        if not isinstance(node, Join) or join_in_words(node) in handled:
            continue
        if static_input(node) is not None:
            yield JoinReport(join_in_words(node), "static", hints=(_ASSUMED,))
        elif not reads_changes(node):
            yield _left_to_spark(node)


def _by_join(steps: Sequence[Step]) -> Iterator[tuple[Join, list[Plan | Refused]]]:
    """Each join that a rule replaced or refused, with what came of it."""
    lookups = (replace_lookup_join, look_up, join_versions, enrich_stream)
    names = {rule.__name__ for rule in (replace_join, *lookups, fall_back_to_regular_join)}
    found: dict[int, tuple[Join, list[Plan | Refused]]] = {}
    for step in steps:
        if step.rule in names and isinstance(step.node, Join):
            found.setdefault(id(step.node), (step.node, []))[1].append(step.result)
    return iter(found.values())


def _why_one_form(plan: Plan, sink: SinkReport | None) -> str | None:
    """Why the form of a delta join is not chosen for each micro-batch; None if it is."""
    chain = chain_of(plan)
    is_by_rows = all(
        isinstance(node, Project | Filter) or (isinstance(node, Wrapper) and node.name == "SubqueryAlias")
        for node in chain.nodes
    )
    if not (is_by_rows and isinstance(chain.leaf, DeltaJoin)):
        return "the query has more than projections and filters above the join"
    if sink is not None and sink.form == "materialized":
        return "the sink keeps all rows of each key"
    return None


def _delta_join(
    name: str, made: DeltaJoin, settings: Settings, hidden: Sequence[str], fixed: str | None
) -> JoinReport:
    paths, tables = lookup_paths(made), list[TableReport]()
    for one in made.tables:
        columns, table = tuple(column.name for column in one.columns), one.table
        tables.append(TableReport(table.name, columns, one.filters_in_words, table.rows, table.changed_rows))
    form = "fused" if settings.physical == "auto" else settings.physical
    consistency, lookups = _CONSISTENCY[settings.consistency], _lookups(made, paths)
    cost = step_cost(made, settings.shards or 1) if settings.physical == "auto" else None
    hints = tuple(dict.fromkeys(_hints(made, paths, form, hidden, cost, fixed)))
    words, state = tree_in_words(made.tree), _STEPS if form == "stateful" else None
    return JoinReport(
        name, form, words, tuple(tables), paths, consistency, lookups, cost, hints=hints, state=state
    )


def _lookups(join: DeltaJoin, paths: Sequence[Path]) -> Lookups:
    limit = min(one.table.max_rows for one in join.tables)
    by_table: dict[int, int | None] = {}
    for path in paths:
        changed = join.tables[path.table].table.changed_rows
        keys, total = float(min(changed or 0, limit)), 0.0
        for step in path.steps:
            total += keys
            keys *= max(1.0, step.rows)
        by_table[path.table] = None if changed is None else round(total)
    return Lookups(by_table, None if limit == ALL_ROWS else limit)


def _hints(
    join: DeltaJoin,
    paths: Sequence[Path],
    form: str,
    hidden: Sequence[str],
    cost: StepCost | None,
    fixed: str | None,
) -> Iterator[str]:
    for step in (step for path in paths for step in path.steps):
        table = join.tables[step.table].table
        if table.buckets > 1 and not set(table.bucket_key) <= set(step.by):
            yield (
                f"each lookup in {table.name} by ({', '.join(step.by)}) searches all its {table.buckets} "
                f"buckets: these columns lack a part of the bucket key ({', '.join(table.bucket_key)})"
            )
    if hidden:
        yield _BLURRED.format(", ".join(hidden))
    if form == "stateful":
        yield _PARTITIONS
    if cost is not None and cost.is_shuffled:
        yield _SHUFFLED if fixed is None else _COULD_BE_SHUFFLED.format(fixed)


def _whole(made: LookupJoined, after: Plan) -> LookupChanges | None:
    """The join as it gives every kind of change, if it came to that."""
    found = (node.origin for node in walk(after) if isinstance(node, Changelog))
    return next((one for one in found if isinstance(one, LookupChanges) and one.joined == made), None)


def _lookup_join(name: str, made: LookupJoined, whole: LookupChanges | None) -> JoinReport:
    """The report of a join of two streams with lookups: each change asks the other side's source."""
    sides = zip((made.left, made.right), made.join.sides, strict=True)
    tables = (TableReport(leaf.name, tuple(side.columns.names), "", None, None) for leaf, side in sides)
    on = " and ".join(f"t0.{left} = t1.{right}" for left, right in made.join.on)
    rest = "" if made.join.where is None else f" and {made.join.where}"
    key = ", ".join(names[0] for names in made.key.keys)
    result = f"rows replace each other by ({key}), which the sink must be keyed by"
    if whole is not None:
        result = (
            f"gives every kind of change, for {whole.because}; of each ({key}) the row that was given last "
            f"is kept in a managed table below {whole.joined.join.settings.state_path}"
        )
    words, hints = f"t0 {made.join.kind} join t1 on {on}{rest}", (result, _PARTITIONS)
    of_sides, consistency = tuple(tables), _CONSISTENCY["latest"]
    return JoinReport(name, "stateful", words, of_sides, (), consistency, hints=hints, state=_QUEUES)


def _left_to_spark(join: Join) -> JoinReport:
    reason = "it reads no changes of managed tables, so Spark's own join is right"
    remedy = "none needed; keep the inputs in managed tables and join their changes for a delta join"
    rows = (node.rows for node in walk(join) if isinstance(node, Relation))
    read_once = dict.fromkeys(one.table.name for one in rows if one is not None and one.snapshot is None)
    hints = tuple(map(_READ_ONCE.format, read_once)) if is_streaming(join) else ()
    grows = is_streaming(join.left) and is_streaming(join.right)
    why, state = (Refused(reason, remedy),), _EVERY_ROW if grows else None
    return JoinReport(join_in_words(join), "spark", refusals=why, hints=hints, state=state, grows=grows)


def blurred(plan: Plan) -> tuple[str, ...]:
    """Columns of a query's delta join that do not follow from the columns that the query puts out.

    None if all its rows are consolidated: no row comes with both signs in one micro-batch. Queries that are
    more than projections and filters of one delta join have none either: what lies between decides.
    """
    join = chain_of(plan).leaf
    if not isinstance(join, DeltaJoin):
        return ()
    refs = join.refs
    put_out = {found.id for column in plan.columns if (found := trace(column, plan)) is not None}
    known = determined(join.tree, frozenset(refs[number] for number in put_out if number in refs))
    hidden = [column.name for column in join.columns if column.id in refs and refs[column.id] not in known]
    flags = [flag.name for _, flag in join.present if flag.id not in put_out]
    return tuple(dict.fromkeys((*hidden, *flags)))


@dataclass(frozen=True)
class AggregateReport:
    """How the query keeps one aggregate up to date.

    Attributes:
        aggregate: the aggregate in words: functions, groups and what it reads.
        form: "signed sums", "lookups" or "refused".
        reason: why it is refused; None if it is not.
        remedy: what to do about the reason.
        notes: what its author should know: how it is written, what it keeps.
    """

    aggregate: str
    form: str
    reason: str | None = None
    remedy: str | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [self.aggregate, f"  form: {self.form}", *(f"  {note}" for note in self.notes)]
        if self.reason is not None:
            lines += [f"  because {self.reason}", f"  remedy: {self.remedy}"]
        return "\n".join(lines)


def aggregate_reports(trace: Trace) -> Iterator[AggregateReport]:
    """A report for each aggregate over changes, inner ones first."""
    for step in trace.steps:
        if step.rule != replace_aggregate.__name__ or not isinstance(node := step.node, Aggregate):
            continue
        functions = ", ".join(map(without_ids, aggregations(node))) or "DISTINCT"
        groups = ", ".join(without_ids(group.value) for group in node.groups)
        name = f"aggregate {functions} by ({groups}) over the changes of {sources(node)}"
        match step.result:
            case Refused(reason, remedy):
                yield AggregateReport(name, "refused", reason, remedy)
            case LookupAggregate(table, keys=keys, index=index):
                how = (
                    f"of each group that changes all rows are looked up in {table.name}, by {index} for "
                    f"({', '.join(keys)}), before and after"
                )
                after = "gives every kind of change and keeps no state, so anything may follow"
                yield AggregateReport(name, "lookups", notes=(how, after))
            case _:
                yield AggregateReport(name, "signed sums", notes=tuple(_notes(node, groups)))


def _notes(node: Aggregate, groups: str) -> Iterator[str]:
    key = f"the PRIMARY KEY ({groups})" if node.groups else "a PRIMARY KEY of a constant column"
    yield f"written with catalog.write_changes into a table with {key}, in output mode update"
    if node.groups:
        yield "Spark's state has one row for each group, also for those that are gone"
    else:
        yield "the one row stays when no row is left, with counts of 0"
    if any(isinstance(below, Watermark) for below in walk(node.child)):
        yield "the watermark is left out: changes that come late count, and no group is ever forgotten"
    floating = [f for f in aggregations(node) if f.name in ("Sum", "Average") and is_floating(f.types[0])]
    if floating:
        named = ", ".join(map(without_ids, floating))
        types = {f.types[0] for f in floating}
        numbers = ", ".join(sorted(f"{FIXED_POINTS[one].count} for {one.upper()}" for one in types))
        yield f"{named}: exact, whatever came and went; its state has a number for each limb, {numbers}"


@dataclass(frozen=True)
class TopicReport:
    """How the query reads one topic.

    Attributes:
        topic: the topics' names, or the pattern that chooses them.
        mode: what the query gets: "all", "upsert", "cdc", "cdc-normalized" or "rows"; "mirror" where it reads
            the changes of the managed table that mirrors the topic.
        normalizer: "left out", "put in", "kept", or "none" where the user's options ask for none.
        reason: why it was left out, put in or kept; None for "none".
        range: which records are read.
    """

    topic: str
    mode: str
    normalizer: str
    reason: str | None
    range: RecordRange

    def __str__(self) -> str:
        lines = [f"topic {self.topic}: {_MODES[self.mode]}"]
        if self.reason is not None:
            lines.append(f"  normalizer {self.normalizer}: {self.reason}")
        if where := str(self.range):
            lines.append(f"  records read: {where}")
        return "\n".join(lines)


_MODES: Final[Mapping[str, str]] = {
    "mirror": "the changes of its mirror, a managed table that catalog.mirror keeps",
    Mode.ALL: "every change, with UPDATE_BEFORE",
    Mode.UPSERT: "upserts, and deletes by key",
    Mode.CDC: "the changes in its records",
    Mode.CDC_NORMALIZED: "the changes in its records, made whole by a normalizer",
    Mode.ROWS: "its records as rows",
}


def topic_reports(before: Plan, after: Plan, sink_key: tuple[str, ...] | None) -> Iterator[TopicReport]:
    """A report for each topic of a plan, from left to right."""
    left = {number: topic for numbers, topic in _topics(after) for number in numbers}
    for numbers, given in _topics(before):
        read = next((left[number] for number in numbers if number in left), None)
        if read is None:
            yield TopicReport(given.name, "mirror", "none", None, given.range)
        else:
            normalizer, reason = _normalizer(before, given, read, sink_key)
            yield TopicReport(read.name, read.mode.value, normalizer, reason, read.range)


def _normalizer(
    before: Plan, given: KafkaTopic, read: KafkaTopic, sink_key: tuple[str, ...] | None
) -> tuple[str, str | None]:
    if given.mode is Mode.CDC_NORMALIZED:
        return "kept", "the option 'cdc-events-duplicate' asks for it"
    if given.mode is Mode.UPSERT and read.mode is Mode.ALL:
        reasons = (reason for leaf, reason in unmet_everywhere(before, sink_key) if leaf.origin == given)
        return "put in", next(reasons, None)
    if given.mode is not Mode.ALL:
        return "none", None
    if read.mode is Mode.UPSERT:
        return "left out", f"the sink is keyed by ({', '.join(sink_key or ())})"
    if topic_of(before, Mode.ALL) is None:
        return "kept", "the query is more than projections and filters of this topic"
    return "kept", needs_normalizer(before, given, sink_key)


def _topics(plan: Plan) -> Iterator[tuple[tuple[int, ...], KafkaTopic]]:
    """Each topic that a plan reads, and the ids of its columns."""
    for node in walk(plan):
        match node:
            case Changelog(origin=KafkaTopic() as topic) | Relation(topic=KafkaTopic() as topic):
                yield tuple(column.id for column in node.columns), topic
            case Changelog(origin=Normalized(input=given)):
                yield from _topics(given)


@dataclass(frozen=True)
class SinkReport:
    """How the query is written into a table.

    Attributes:
        key: the table's primary key; () for none.
        keys: the unique keys of the query's rows, as far as they are known.
        form: "as it is", "materialized" or "refused".
        reason: why.
    """

    key: tuple[str, ...]
    keys: UniqueKeys
    form: str
    reason: str

    def __str__(self) -> str:
        key = f"PRIMARY KEY ({', '.join(self.key)})" if self.key else "no PRIMARY KEY"
        lines = [f"sink with {key}", f"  form: {self.form}"]
        lines += [f"  the query's rows are told apart by {self.keys}", f"  because {self.reason}"]
        if self.form == "materialized":
            lines.append("  a hidden table keeps all rows of each key, the newest that is left is written")
        return "\n".join(lines)


def sink_report(before: Plan, after: Plan, key: tuple[str, ...], mode: str) -> SinkReport:
    """What becomes of a query in a table with this key and this `sink.materialize`."""
    keys = unique_keys(before)
    upserts = None if group_keys(after) is None else upsert_key(after)
    changes = Changes(reads_changes(before), keys if reads_changes(before) else None, upserts)
    try:
        choice = choose(Sink("sink", key, mode), changes)
    except ConfigurationError as cause:
        return SinkReport(key, keys, "refused", str(cause))
    return SinkReport(key, keys, "materialized" if choice.is_materialized else "as it is", choice.reason)


@dataclass(frozen=True)
class Explanation:
    """The answer of `explain`: `str()` is the text, a notebook shows HTML, the rest is for programs.

    Attributes:
        joins: one report for each delta join, or other join, in the order of the plan.
        refusals: why the query cannot run, empty if `optimize` accepts it.
        before: the plan as the query has it.
        after: the plan as `optimize` gives it back.
        steps: every rule that fired.
        topics: one report for each topic of Kafka, in the order of the plan.
        aggregates: one report for each aggregate over changes, inner ones first.
        sink: how the result is written; None if the sink is not known.
        is_for_a_view: whether a materialized view can hold the query that is refused.
    """

    joins: tuple[JoinReport, ...]
    refusals: tuple[Refused, ...]
    before: Plan
    after: Plan
    steps: tuple[Step, ...]
    topics: tuple[TopicReport, ...] = ()
    aggregates: tuple[AggregateReport, ...] = ()
    sink: SinkReport | None = None
    is_for_a_view: bool = False

    def __str__(self) -> str:
        return "\n".join(text for text, _ in self._parts())

    @property
    def warned(self) -> frozenset[int]:
        """Which lines of the text tell of a join whose state grows, or of a refusal: they are shown red."""
        flags = [is_bad for text, is_bad in self._parts() for _ in text.splitlines()]
        return frozenset(number for number, is_bad in enumerate(flags) if is_bad)

    @property
    def decisions(self) -> tuple[tuple[str, bool], ...]:
        """What was decided, without the plan: texts, and whether each is shown red; () for nothing."""
        return tuple(self._decisions()) if self.joins or self.aggregates or self.topics else ()

    def to_json(self) -> dict[str, Any]:
        """The same as values of JSON: what became of each join, aggregate and topic, and the plan as text."""
        sink = self.sink
        return {
            "joins": [_join_to_json(report) for report in self.joins],
            "aggregates": [asdict(report) for report in self.aggregates],
            "topics": [
                {"topic": one.topic, "mode": one.mode, "normalizer": one.normalizer, "reason": one.reason}
                for one in self.topics
            ],
            "sink": None if sink is None else {"key": sink.key, "form": sink.form, "reason": sink.reason},
            "refusals": [asdict(refused) for refused in self.refusals],
            "is_for_a_view": self.is_for_a_view,
            "plan": tree(self.after).splitlines(),
        }

    def _repr_html_(self) -> str:
        """The same for notebooks, with the plan before and after; all text is escaped."""
        parts = [_block(text, _BAD if is_bad else _GOOD) for text, is_bad in self._decisions()]
        parts.append(_folded("plan before", tree(self.before)))
        is_same = self.before is self.after
        parts.append(
            "<p>the plan is left as it is</p>" if is_same else _folded("plan after", tree(self.after))
        )
        return f'<div class="deltajoin-explanation tex2jax_ignore mathjax_ignore">{"".join(parts)}</div>'

    def _decisions(self) -> Iterator[tuple[str, bool]]:
        """What was decided, as texts, and whether each is to be shown as a warning."""
        others = [*map(str, self.aggregates), *map(str, self.topics)]
        if not self.joins:
            yield _NO_JOIN, False
        yield from ((str(join), join.grows or join.form == "refused") for join in self.joins)
        others += [] if self.sink is None else [str(self.sink)]
        yield from ((text, "form: refused" in text) for text in others)
        yield from ((text, True) for text in self._other_refusals())
        if self.is_for_a_view:
            yield f"remedy: {FOR_A_VIEW}", True

    def _parts(self) -> Iterator[tuple[str, bool]]:
        yield from self._decisions()
        if self.before is self.after:
            yield "the plan is left as it is", False
            return
        for step in self.steps:
            outcome = "refused" if isinstance(step.result, Refused) else "rewritten"
            yield f"{step.rule}: {outcome} {step.node}", False
        yield tree(self.after), False

    def _other_refusals(self) -> Iterator[str]:
        """Those that do not concern one of the joins or aggregates."""
        of_joins = {refused for report in self.joins for refused in report.refusals}
        of_aggregates = {report.reason for report in self.aggregates}
        for refused in self.refusals:
            if refused not in of_joins and refused.reason not in of_aggregates:
                yield f"refused: {refused.reason}\n  remedy: {refused.remedy}"


def _join_to_json(report: JoinReport) -> dict[str, Any]:
    lookups = report.estimated_lookups
    return asdict(report) | {
        "tables": [asdict(table) for table in report.tables],
        "paths": [str(path) for path in report.paths],
        "estimated_lookups": None if lookups is None else str(lookups),
        "cost": None if report.cost is None else str(report.cost),
        "refusals": [asdict(refused) for refused in report.refusals],
    }


_NO_JOIN: Final = "the query has no join"
_STYLE: Final = "text-align:left;white-space:pre-wrap;margin:0.3em 0;padding:0.5em;border-left:3px solid"
_GOOD, _BAD, _PLAN = "#2a7", "#c33", "#888"


def _block(text: str, colour: str) -> str:
    warning = f';color:{colour}" class="deltajoin-warning' if colour == _BAD else ""
    return f'<pre style="{_STYLE} {colour}{warning}">{escape(text)}</pre>'


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>{_block(text, _PLAN)}</details>"


def explanation_of(trace: Trace, settings: Settings, sink: SinkReport | None = None) -> Explanation:
    """What a trace says about the query, each of its joins and each of its topics, and of its sink."""
    joins, aggregates = tuple(join_reports(trace, settings, sink)), tuple(aggregate_reports(trace))
    topics = tuple(topic_reports(trace.before, trace.after, settings.sink_key))
    of_plan = trace.refusals, trace.before, trace.after, trace.steps
    return Explanation(joins, *of_plan, topics, aggregates, sink, trace.is_for_a_view)
