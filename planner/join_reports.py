"""What became of each join of a query: its form, what it looks up, what state it has, and why (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from deltajoin.core.costs import StepCost
from deltajoin.core.evaluate import identified
from deltajoin.core.plans import Path
from planner.join_spec import lookup_paths, step_cost
from planner.optimizer import Step, Trace
from planner.plan.nodes import (
    Changelog,
    DeltaJoin,
    Enriched,
    EnrichedUpserts,
    Filter,
    Join,
    LookupChanges,
    LookupJoined,
    LookupRows,
    Plan,
    Project,
    RegularJoin,
    Relation,
    TableRows,
    VersionRows,
    Wrapper,
    tree_in_words,
)
from planner.plan.trees import (
    chain_of,
    is_streaming,
    join_in_words,
    reads_changes,
    static_input,
    trace,
    walk,
)
from planner.refusals import Refused
from planner.rules.joins import fall_back_to_regular_join, replace_join
from planner.rules.lookup_joins import replace_lookup_join
from planner.rules.static_joins import enrich_stream, refuse_static_join
from planner.rules.temporal_joins import join_versions, look_up
from planner.settings import Settings
from upsert.managed.options import ALL_ROWS

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
    """How many keys a micro-batch looks up at most, along the path of each table.

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
    """How one join of the query is computed, or several that became one delta join.

    Attributes:
        join: the join in words: tables and condition.
        form: for a delta join "fused", "shuffled" or "stateful"; "regular": Spark joins signed rows;
            "static": Spark joins each change with rows that never change; "lookup": rows of a stream are
            looked up in a table; "temporal": they are joined with the versions of their time; "spark": Spark
            joins rows; "refused".
        tree: how the tables of a delta join are joined, by their numbers.
        tables: its tables by number.
        paths: what the changes of each table look up, in which order and by which index; tables in the order
            in which they move from one version to the next.
        consistency: which versions lookups read.
        estimated_lookups: of a micro-batch; None if it is no delta join.
        cost: what tasks take to share a micro-batch with as many changes as the latest commits; None if one
            task has them all, if that is unknown, or if the form was not left to choose.
        refusals: why it is no delta join, and what to do about it; empty if it is one.
        hints: what makes it cost more than it could, or what it relies on, and what to do about that.
        state: what Spark's state holds for it; None for nothing.
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

    def to_json(self) -> dict[str, Any]:
        """The same as values of JSON."""
        lookups = self.estimated_lookups
        return asdict(self) | {
            "tables": [asdict(table) for table in self.tables],
            "paths": [str(path) for path in self.paths],
            "estimated_lookups": None if lookups is None else str(lookups),
            "cost": None if self.cost is None else str(self.cost),
            "refusals": [asdict(refused) for refused in self.refusals],
        }

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


def join_reports(trace: Trace, settings: Settings, *, is_materialized: bool = False) -> Iterator[JoinReport]:
    """One report for each delta join and each join that is none, in the order of the plan.

    ``is_materialized`` says that the sink keeps all rows of each key.
    """
    fixed = _why_one_form(trace.after, is_materialized)
    told, handled = set[int](), set[str]()
    for join, results in _by_join(trace.steps):
        name = join_in_words(join)
        handled.add(name)
        if refusals := tuple(result for result in results if isinstance(result, Refused)):
            yield JoinReport(name, "refused", refusals=refusals)
            continue
        parts = (part for result in results if not isinstance(result, Refused) for part in walk(result))
        for part in parts:
            if isinstance(part, Enriched | EnrichedUpserts):
                if id(part) in told:  # it lies below the lookups of another join
                    continue
                told.add(id(part))
            if isinstance(part, DeltaJoin):
                yield of_delta_join(name, part, trace.after, settings, fixed)
            elif (report := _replaced(name, part, trace.after)) is not None:
                yield report
    yield from _of_joins_left(trace, handled)


def _replaced(name: str, part: Plan, after: Plan) -> JoinReport | None:
    """The report of a join that became this part of a plan; None if the part is not what computes it."""
    match part:
        case Enriched(rows=TableRows()):
            return found_by_rows(name)
        case Enriched(rows=VersionRows()):
            return found_by_rows(name, is_of_times=True)
        case Enriched(rows=LookupRows(table)):
            return found_by_rows(name, (table.name, table.connector))
        case EnrichedUpserts(rows=LookupRows(table), key=key):
            names = ", ".join(column.name for column in key)
            hint = _LOOKED_UP_FOR_CHANGES.format(table.name, table.connector, names)
            return JoinReport(name, "lookup", consistency=_CONSISTENCY["latest"], hints=(hint,))
        case RegularJoin(reason=reason, remedy=remedy):
            why = Refused(reason, remedy)
            return JoinReport(name, "regular", refusals=(why,), state=_EVERY_CHANGE, grows=True)
        case Changelog(origin=LookupJoined() as joined):
            return _lookup_join(name, joined, _whole(joined, after))
    return None


def found_by_rows(
    name: str, table: tuple[str, str] | None = None, *, is_of_times: bool = False
) -> JoinReport:
    """The report of a join of rows with those that each of them finds.

    Args:
        name: the join.
        table: the name and the connector of a table that is only looked up; None for a managed table.
        is_of_times: whether they find versions as of their times.
    """
    if is_of_times:
        return JoinReport(name, "temporal", hints=(_VERSIONS,), state=_WAITING)
    return JoinReport(name, "lookup", hints=(_ENRICHED if table is None else _LOOKED_UP.format(*table),))


def _of_joins_left(trace: Trace, handled: Collection[str]) -> Iterator[JoinReport]:
    """The reports of the joins that the plan still has, but for those that rules have replaced or refused."""
    refused = {
        join_in_words(step.node): step.result
        for step in trace.steps
        if step.rule == refuse_static_join.__name__
        and isinstance(step.node, Join)
        and isinstance(step.result, Refused)
    }
    for node in walk(trace.after):
        if not isinstance(node, Join) or (name := join_in_words(node)) in handled:
            continue
        if name in refused:
            yield JoinReport(name, "refused", refusals=(refused[name],))
        elif static_input(node) is not None:
            yield JoinReport(name, "static", hints=(_ASSUMED,))
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


def _why_one_form(plan: Plan, is_materialized: bool) -> str | None:
    """Why the form of a delta join is not chosen for each micro-batch; None if it is."""
    chain = chain_of(plan)
    is_by_rows = all(
        isinstance(node, Project | Filter) or (isinstance(node, Wrapper) and node.name == "SubqueryAlias")
        for node in chain.nodes
    )
    if not (is_by_rows and isinstance(chain.leaf, DeltaJoin)):
        return "the query has more than projections and filters above the join"
    if is_materialized:
        return "the sink keeps all rows of each key"
    return None


def of_delta_join(
    name: str, join: DeltaJoin, after: Plan, settings: Settings, fixed: str | None
) -> JoinReport:
    """The report of a delta join, as later rules have left it; ``fixed`` is why its form is not chosen."""
    final = {node.row_kind: node for node in walk(after) if isinstance(node, DeltaJoin)}
    made = final.get(join.row_kind, join)
    hidden = blurred(after) if made in final.values() else ()
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
    shown = frozenset(refs[number] for number in put_out if number in refs)
    known = identified(join.tree, shown, lambda ref: join.tables[ref.table].table.schema.type_of(ref.column))
    hidden = [column.name for column in join.columns if column.id in refs and refs[column.id] not in known]
    flags = [flag.name for _, flag in join.present if flag.id not in put_out]
    return tuple(dict.fromkeys((*hidden, *flags)))
