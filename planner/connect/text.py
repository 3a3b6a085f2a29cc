"""Changes of a query that is planned from its text: of one table row by row, or of one delta join."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Any, NoReturn

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import deltajoin
from deltajoin.aggregate.source import read_aggregate
from deltajoin.expressions import Ref
from deltajoin.spec import DeltaJoinSpec, JoinedTable, output_name, present_name
from deltajoin.tree import visible
from planner.connect.explained import Told, planned_join
from planner.connect.groups import groups_of
from planner.connect.lookups import FoundJoin, looked_up_in
from planner.connect.nested import Piece, pieces
from planner.connect.relations import are_groups, starts_late
from planner.connect.select import COUNTED, Inputs, Select, Source
from planner.connect.sums import is_signed, summed
from planner.connect.touched import Touched
from planner.refusals import PlanError, Refused
from planner.settings import Settings
from upsert.errors import SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.spark.connect import parallelism
from upsert.sql.query import AsOfKind, QueryText, Reference
from upsert.store.table import Table
from upsert.stream_keys import KEYS_MARK, UPSERTS_MARK, UniqueKeys, UpsertKey
from upsert.types import quoted


def planned(
    df: DataFrame,
    query: QueryText,
    references: Sequence[Reference],
    tables: Sequence[DataFrame | None],
    options: Mapping[str, Any],
    told: list[Any] | None = None,
) -> DataFrame:
    """The changes of a query, by its text: of one table row by row, or of a delta join of several.

    Those of queries with UNION ALL between them are all of theirs; nothing is known to tell these apart.

    Rows that are only added may be looked up in others, `FOR SYSTEM_TIME AS OF`; a batch, too.

    Each table is a column with the table's name in the query, of which its columns are fields; so items and
    conditions of the text mean what they mean in the text.

    Args:
        df: any of the streams.
        query: the query.
        references: the tables that it names.
        tables: the stream of each; None for one of Spark's.
        options: of `optimize`.
        told: gets the `Explanation`, also of a query that is refused.

    Raises:
        PlanError: the query is not ``SELECT … FROM … JOIN … ON … WHERE …`` over such tables.
        SchemaError: a column is unknown, or a join lacks an index.
    """
    by_place = {one.position: (one, table) for one, table in zip(references, tables, strict=True)}
    settings = Settings.of_query(options, df.sparkSession.conf.getAll)
    queries = _Queries(df, by_place, settings)
    try:
        rows = queries.rows(pieces(query))
    except PlanError as cause:
        if told is not None:
            told.append(queries.told.explanation(cause.refusals))
        raise
    if told is not None:
        told.append(queries.told.explanation())
    return rows


@dataclass(frozen=True)
class _Queries:
    """The queries of one text.

    Attributes:
        like: any of its streams.
        tables: those that it names, by their places.
        settings: of the whole query.
        told: what is decided.
    """

    like: DataFrame
    tables: Mapping[str, tuple[Reference, DataFrame | None]]
    settings: Settings
    told: Told = field(default_factory=Told)

    def rows(self, parts: Sequence[Piece]) -> DataFrame:
        """Those of some queries with UNION ALL between them."""
        inputs = Inputs(self.tables, self.rows)
        selects = [[Select(one, inputs) for one in inputs.branches(part)] for part in parts]
        found = [_Rows(one, self.like, self.settings, self.told, others).planned for one, *others in selects]
        return found[0] if len(found) == 1 else _united(found, parts[0].query.subject)


def _united(parts: Sequence[DataFrame], subject: str) -> DataFrame:
    """The changes of queries with UNION ALL between them, whose columns meet by position."""
    first, *others = parts

    def refuse(what: str, remedy: str) -> NoReturn:
        raise PlanError([Refused(f"{subject}: over Spark Connect a UNION ALL {what}", remedy)])

    if len({ROW_KIND_COLUMN in part.columns for part in parts}) > 1:
        refuse("of changes and of rows that are only added", "write these into a managed table first")
    if len({len(part.columns) for part in parts}) > 1:
        counts = " and ".join(str(len(part.columns)) for part in parts)
        refuse(f"must have queries of as many columns, got {counts}", "select as many in each")
    if any(UpsertKey.of_schema(part.schema.jsonValue()) is not None for part in parts):
        refuse(
            "of upserts, which do not say which rows they replace, cannot be planned",
            "read every kind of change, or write each query into a table of its own",
        )
    is_changes = ROW_KIND_COLUMN in first.columns
    kinds = [ROW_KIND_COLUMN] if is_changes else []
    names = [f"_{number}" for number in range(len(first.columns) - len(kinds))]
    rows = first.toDF(*names, *kinds)
    for other in others:
        rows = rows.unionByName(other.toDF(*names, *kinds))
    rows = rows.toDF(*first.columns)
    return rows.withMetadata(ROW_KIND_COLUMN, {KEYS_MARK: UniqueKeys().to_text()}) if is_changes else rows


@dataclass(frozen=True)
class _Rows:
    """The rows of one SELECT.

    Attributes:
        others: the same with other queries of a UNION ALL in place of its tables; their rows are its, too.
    """

    select: Select
    like: DataFrame
    settings: Settings
    told: Told
    others: Sequence[Select] = ()

    @property
    def planned(self) -> DataFrame:
        """They, with the kind of each change, and marks of what tells them apart."""
        select = self.select
        subject = select.query.subject
        try:
            source = self._filtered()
            kinds = [ROW_KIND_COLUMN] if ROW_KIND_COLUMN in source.columns else []
            if select.is_counted:
                return self._grouped(source)
            rows = source.selectExpr(*(one.text for one in select.outputs), *kinds)
            names = rows.columns[: len(rows.columns) - len(kinds)]
            if kinds and ROW_KIND_COLUMN in map(str.lower, names):
                raise SchemaError(
                    f"{subject}: a column of the query is called {ROW_KIND_COLUMN!r}, which is reserved; "
                    "rename it"
                )
        except AnalysisException as cause:
            reason = str(cause.getMessage() or cause).strip().partition("\n")[0]
            raise SchemaError(f"{subject}: {reason}") from cause
        if not kinds:
            return rows
        # a column of a DataFrame is not found in one whose columns are computed by functions of SQL
        return rows.toDF(*rows.columns).withMetadata(ROW_KIND_COLUMN, self._marks(names))

    def _filtered(self) -> DataFrame:
        """The changes of the tables that its conditions leave, of all queries in the place of one."""
        rows = self._source()
        for condition in self.select.filters:
            rows = rows.where(condition)
        for other in self.others:
            more = replace(self, select=other, others=())._filtered()
            if (own := rows.schema.simpleString()) != (theirs := more.schema.simpleString()):
                self.select.refuse(
                    f"a join with a query that has UNION ALL of other types, {own} and {theirs},",
                    "CAST its columns to one type each",
                )
            rows = rows.unionByName(more)
        return rows

    def _source(self) -> DataFrame:
        """The changes of the tables, or of their join: for each table a column of its own columns."""
        if len(self.select.sources) == 1:
            (only,) = self.select.sources
            columns = F.struct(*(F.col(quoted(name)) for name in only.columns)).alias(only.alias)
            kinds = [ROW_KIND_COLUMN] if ROW_KIND_COLUMN in only.rows.columns else []
            if self.select.filters and are_groups(only.rows):
                self.select.refuse(
                    f"a WHERE over the groups of {only.alias!r}",
                    "write it as HAVING, behind their GROUP BY, or as WHERE of the query with DISTINCT",
                )
            return only.rows.select(columns, *kinds)
        if self.select.has_lookups:
            return self._with_found()
        try:
            join = planned_join(spec := self.spec)
        except PlanError as cause:
            self.told.refused(self.select, cause.refusals)
            raise
        self.told.join(self.select, join, self.settings, spec.shards)
        rows = deltajoin.read_join(
            self.like.sparkSession, spec, self.settings.physical, first_load=self.settings.first_load
        )
        return _with_tables(rows, self.select, [ROW_KIND_COLUMN])

    @property
    def spec(self) -> DeltaJoinSpec:
        """The join of the tables."""
        refuse = self.select.refuse
        if self.settings.strategy == "none" or self.settings.consistency == "latest":
            refuse("a join with option strategy = 'none' or consistency = 'latest'")
        joined = []
        for one in self.select.leaves:
            if one.path is None:
                refuse(
                    f"a join with {one.alias!r}, which is no managed table read as it is,",
                    "name the tables of a plain view, read a topic's mirror, and leave out OPTIONS",
                )
            joined.append(JoinedTable(one.path, tuple(one.columns)))
        shards = self.settings.shards or parallelism(self.like.sparkSession)
        return DeltaJoinSpec(tuple(joined), self.select.tree, tuple(_present(self.select)), shards=shards)

    def _with_found(self) -> DataFrame:
        """The rows of the first table, each with those that it finds in the others."""
        first, *others = self.select.sources
        if any(one.as_of is None for one in others):
            self.select.refuse("a join of changes beside one by FOR SYSTEM_TIME AS OF")
        of_times = [one.as_of for one in others if one.as_of and one.as_of.kind is AsOfKind.ROW]
        if len(of_times) > 1:
            self.select.refuse("more than one join by event time")
        if ROW_KIND_COLUMN in first.rows.columns:
            self.select.refuse(
                f"a lookup for the changes of {first.alias!r}, for which the deletion of a row would find "
                "another row than its insert found,",
                "look up for a stream whose rows are only added, or join the changes of both tables",
            )
        names = [output_name(0, name) for name in first.columns]
        rows = first.rows.toDF(*names)
        for one in others:
            join = FoundJoin(
                f"{self.select.query.subject}: over Spark Connect the join with {one.alias!r}",
                tuple((output_name(ref.table, ref.column), own.column) for ref, own in one.on),
                tuple(one.columns),
                one.kind,
                None if one.as_of not in of_times else self._time(first, one.as_of.value),
            )
            rows = join.of(rows, one.rows, self.settings)
            self.told.lookup(first, one, looked_up_in(one.rows))
            names += [output_name(one.number, name) for name in one.columns]
            rows = rows.toDF(*names)
        return rows.select(*map(_as_column, self.select.sources))

    def _time(self, first: Source, name: str) -> str:
        """The column of the rows whose time asks for versions."""
        own = next((one for one in first.columns if one.lower() == name.lower()), None)
        if own is None:
            self.select.refuse(f"FOR SYSTEM_TIME AS OF {name!r}, which is no column of {first.alias!r},")
        return output_name(0, own)

    def _grouped(self, source: DataFrame) -> DataFrame:
        """What is computed of the groups of some changes: upserts, or every change where it is no sum."""
        if ROW_KIND_COLUMN not in source.columns or self._gives_upserts:
            self.select.refuse("a query with groups of what is no stream of whole changes", COUNTED)
        groups = groups_of(self.select)
        if (mode := starts_late(source)) is not None:
            self.select.refuse(
                f"a query with groups, read with {mode}, would delete rows that it never counted, so that it",
                "leave the option out",
            )
        if not all(map(is_signed, groups.calls)):
            session = self.like.sparkSession
            flat = self.select.flat
            touched = Touched(flat, groups := groups_of(flat))
            index, shards = touched.index, self.settings.shards or parallelism(session)
            spec = touched.spec(shards, is_loud=session.conf.get("spark.sql.ansi.enabled") == "true")
            self.told.aggregate(flat, groups, index)
            return touched.rows(read_aggregate(session, spec))
        found = summed(source, groups, COUNTED)
        if isinstance(found, Refused):
            self.select.refuse(found.reason, found.remedy)
        self.told.aggregate(self.select, groups)
        return found

    @property
    def _gives_upserts(self) -> bool:
        streams = (one.stream for one in self.select.sources if one.stream is not None)
        return any(UpsertKey.of_schema(stream.schema.jsonValue()) is not None for stream in streams)

    def _marks(self, names: Sequence[str]) -> dict[str, str]:
        """What the rows' kinds bear: by which of the columns ``names`` rows are told apart, or replaced.

        Raises:
            PlanError: upserts have lost their key.
        """
        given: dict[Ref, list[str]] = {}
        for item, name in zip(self.select.outputs, names, strict=True):
            if item.ref is not None and names.count(name) == 1:
                given.setdefault(item.ref, []).append(name)
        first, *others = self.select.sources
        if self.others:
            return {KEYS_MARK: UniqueKeys().to_text()}
        if others or first.path is not None:
            return {KEYS_MARK: self._keys(given).to_text()}
        # a plain view, or a topic
        schema = first.rows.schema.jsonValue()

        def renamed(key: Iterable[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
            parts = ([given.get(Ref(0, name), []) for name in part] for part in key)
            return tuple(tuple(name for names in part for name in names) for part in parts)

        found = {}
        if (keys := UniqueKeys.of_schema(schema)) is not None:
            kept = tuple(key for key in map(renamed, keys.keys) if all(key))
            found[KEYS_MARK] = UniqueKeys(kept).to_text()
        if (upserts := UpsertKey.of_schema(schema)) is not None:
            if not all(key := renamed(upserts.keys)):
                wanted = ", ".join(part[0] for part in upserts.keys if part)
                self.select.refuse(
                    f"a query that leaves out {wanted}, by which rows of {first.alias!r} are replaced,"
                )
            found[UPSERTS_MARK] = replace(upserts, keys=key, constants=()).to_text()
        return found

    def _keys(self, given: Mapping[Ref, Sequence[str]]) -> UniqueKeys:
        """The key of the rows: that of each table, but of those that a row finds by their whole key.

        ``given`` has the columns that hold one of a table; there is no key where one of its parts has none.
        """
        key: list[tuple[str, ...]] = []
        seen = visible(self.select.tree)
        for one in self.select.leaves:
            if one.number not in seen or one.number in self.select.determined:
                continue
            primary = Table.open(one.path).schema.primary_key if one.path is not None else ()
            parts = [tuple(given.get(Ref(one.number, name), ())) for name in primary]
            if not primary or not all(parts):
                return UniqueKeys()
            key += parts
        return UniqueKeys((tuple(key),))


def _as_column(source: Source) -> Column:
    """A table as a column of its name, of which its columns are fields; these bear output names."""
    fields = (F.col(quoted(output_name(source.number, name))).alias(name) for name in source.columns)
    return F.struct(*fields).alias(source.alias)


def _with_tables(rows: DataFrame, select: Select, kept: Sequence[str]) -> DataFrame:
    """Joined rows with a column for each table of a SELECT, of which its columns are fields, and others."""
    made = []
    for one in select.visible:
        if one.inner is None:
            made.append(_as_column(one))
        else:
            rows = _with_values(rows, one, select.witnesses(one))
            made.append(F.col(quoted(_held(one))).alias(one.alias))
    return rows.select(*map(quoted, kept), *made)


def _with_values(rows: DataFrame, source: Source, witnesses: Sequence[int]) -> DataFrame:
    """Joined rows with one more column: the values of a query that is joined as a table."""
    assert source.inner is not None
    found = _with_tables(rows, source.inner, rows.columns)
    for condition in source.inner.filters:
        found = found.where(condition)
    named = zip(source.inner.outputs, source.columns, strict=True)
    value = F.struct(*(F.expr(one.text).alias(name) for one, name in named))
    if witnesses:
        value = F.when(reduce(or_, (F.col(present_name(number)) for number in witnesses)), value)
    return found.select(*map(quoted, rows.columns), value.alias(_held(source)))


def _held(source: Source) -> str:
    return f":{source.number}"


def _present(select: Select) -> Iterator[int]:
    """The tables of which a row is to say whether it has a part, each once."""
    for one in select.visible:
        if one.inner is not None:
            yield from {*_present(one.inner), *select.witnesses(one)}
