"""What became of each join of a query, in words and as values (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deltajoin.core.output import determined
from deltajoin.core.plans import Path
from planner.joins.paths import lookup_paths
from planner.plan.chains import chain_of, join_in_words, trace
from planner.plan.nodes import (
    Changelog,
    DeltaJoin,
    Enriched,
    Join,
    LookupChanges,
    LookupJoined,
    Plan,
    RegularJoin,
    Relation,
    tree_in_words,
)
from planner.plan.trees import reads_changes, static_input, walk
from planner.refusals import Refused
from planner.rules.joins import STATE_GROWS, fall_back_to_regular_join, replace_join
from planner.rules.lookup_joins import replace_lookup_join
from planner.rules.static_joins import ASSUMED, enrich_stream
from planner.settings import Settings
from planner.trace import Step, Trace

_AUTO: Final = "fused"
"""The physical form of a join of managed tables that was asked for none."""

_CONSISTENCY: Final = {
    "snapshot": "snapshot: lookups read the versions that the micro-batch moves between",
    "latest": "latest: lookups read the newest rows",
}

_ENRICHED: Final = (
    "each row of the stream looks the table up when it is processed; what changes in the table later comes "
    "to later rows only, and a micro-batch that is run again may find newer rows"
)

_READ_ONCE: Final = (
    "table {0!r} is read as it was when the query was analysed, what is written later comes to no row; an "
    "INDEX of it within the join columns lets each row of the stream look up what is newest"
)

_BLURRED: Final = (
    "the query computes with {} and does not put it out as it is: where what it computes is equal, an update "
    "comes as a row and its opposite in one micro-batch; select it too if no row may come with both signs"
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
        limit: changes of each table that no batch exceeds, but for a first load in one batch.
    """

    by_table: Mapping[int, int | None]
    limit: int

    def __str__(self) -> str:
        known = [count for count in self.by_table.values() if count is not None]
        about = f"about {sum(known)} for" if len(known) == len(self.by_table) else "unknown for some of"
        return f"{about} the latest commits; at most {self.limit} changes of each table"


@dataclass(frozen=True)
class JoinReport:
    """What became of one join of the query, or of several that became one delta join.

    Attributes:
        join: the join in words: tables and condition.
        form: of a delta join "fused", "shuffled" or "stateful"; "regular" where Spark joins signed rows;
            "static" where it joins each change with rows that never change; "lookup" where rows of a stream
            look a managed table up; "spark" where it joins rows; "refused".
        tree: how the tables of a delta join are joined, by their numbers.
        tables: its tables by number.
        paths: what the changes of each table look up, in which order and by which index; tables in the order
            in which they move from one version to the next.
        consistency: which versions lookups read.
        estimated_lookups: of a micro-batch; None if it is no delta join.
        refusals: why it is no delta join, and what to do about it; empty if it is one.
        hints: what makes it dearer than it could be, or what it relies on, and what to do about that.
    """

    join: str
    form: str
    tree: str | None = None
    tables: tuple[TableReport, ...] = ()
    paths: tuple[Path, ...] = ()
    consistency: str | None = None
    estimated_lookups: Lookups | None = None
    refusals: tuple[Refused, ...] = ()
    hints: tuple[str, ...] = ()

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
            return "\n".join([*lines, *(f"  hint: {hint}" for hint in self.hints)])
        lines += [f"  form: delta join ({self.form})", f"  consistency: {self.consistency}"]
        lines.append(f"  tree: {self.tree}")
        lines += [f"  t{number}: {table}" for number, table in enumerate(self.tables)]
        for path in self.paths:
            lines.append(f"  changes of t{path.table} {path.name}:")
            lines += [f"    look up {step}" for step in path.steps]
        if self.estimated_lookups is not None:
            lines.append(f"  lookups of a micro-batch: {self.estimated_lookups}")
        lines += [f"  hint: {hint}" for hint in self.hints]
        return "\n".join(lines)


def join_reports(trace: Trace, settings: Settings) -> Iterator[JoinReport]:
    """One report for each delta join and each join that is none, in the order of the plan."""
    final = {node.row_kind: node for node in walk(trace.after) if isinstance(node, DeltaJoin)}
    handled = set()
    for join, results in _by_join(trace.steps):
        name = join_in_words(join)
        handled.add(name)
        refusals = tuple(result for result in results if isinstance(result, Refused))
        if refusals:
            yield JoinReport(name, "refused", refusals=refusals)
            continue
        for part in (part for result in results if not isinstance(result, Refused) for part in walk(result)):
            match part:
                case DeltaJoin():
                    made = final.get(part.row_kind, part)
                    hidden = blurred(trace.after) if made in final.values() else ()
                    yield _delta_join(name, made, settings, hidden)
                case Enriched():
                    yield JoinReport(name, "lookup", hints=(_ENRICHED,))
                case RegularJoin(reason=reason, remedy=remedy):
                    yield JoinReport(
                        name, "regular", refusals=(Refused(reason, remedy),), hints=(STATE_GROWS,)
                    )
                case Changelog(origin=LookupJoined() as joined):
                    yield _lookup_join(name, joined, _whole(joined, trace.after))
    for node in walk(trace.after):
        if not isinstance(node, Join) or join_in_words(node) in handled:
            continue
        if static_input(node) is not None:
            yield JoinReport(join_in_words(node), "static", hints=(ASSUMED,))
        elif not reads_changes(node):
            yield _left_to_spark(node)


def _by_join(steps: Sequence[Step]) -> Iterator[tuple[Join, list[Plan | Refused]]]:
    """Each join that a rule replaced or refused, with what came of it."""
    rules = (replace_join, replace_lookup_join, enrich_stream, fall_back_to_regular_join)
    names = {rule.__name__ for rule in rules}
    found: dict[int, tuple[Join, list[Plan | Refused]]] = {}
    for step in steps:
        if step.rule in names and isinstance(step.node, Join):
            found.setdefault(id(step.node), (step.node, []))[1].append(step.result)
    yield from found.values()


def _delta_join(name: str, made: DeltaJoin, settings: Settings, hidden: Sequence[str]) -> JoinReport:
    paths = lookup_paths(made)
    tables = tuple(
        TableReport(
            one.table.name,
            tuple(column.name for column in one.columns),
            one.filters_in_words,
            one.table.rows,
            one.table.changed_rows,
        )
        for one in made.tables
    )
    form = _AUTO if settings.physical == "auto" else settings.physical
    return JoinReport(
        name,
        form,
        tree_in_words(made.tree),
        tables,
        paths,
        _CONSISTENCY[settings.consistency],
        _lookups(made, paths),
        hints=tuple(dict.fromkeys(_hints(made, paths, form, hidden))),
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
    return Lookups(by_table, limit)


def _hints(join: DeltaJoin, paths: Sequence[Path], form: str, hidden: Sequence[str]) -> Iterator[str]:
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
    return JoinReport(
        name,
        "stateful",
        f"t0 {made.join.kind} join t1 on {on}{rest}",
        tuple(tables),
        consistency=_CONSISTENCY["latest"],
        hints=(result, _PARTITIONS),
    )


def _left_to_spark(join: Join) -> JoinReport:
    reason = "it reads no changes of managed tables, so Spark's own join is right"
    remedy = "none needed; keep the inputs in managed tables and join their changes for a delta join"
    read_once = dict.fromkeys(
        node.rows.table.name
        for node in walk(join)
        if isinstance(node, Relation) and node.rows is not None and node.rows.snapshot is None
    )
    is_stream = any(isinstance(node, Relation) and node.is_streaming for node in walk(join))
    hints = tuple(_READ_ONCE.format(name) for name in read_once) if is_stream else ()
    return JoinReport(join_in_words(join), "spark", refusals=(Refused(reason, remedy),), hints=hints)


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
