"""Changes of a query that is planned from its text: of one table row by row, or of a delta join of several.

The text says which columns the joins compare, which a plan with names in it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NoReturn

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

import deltajoin
from deltajoin.spec import KINDS, DeltaJoinSpec, JoinedTable, output_name
from deltajoin.tree import Inner, Leaf, Node, Outer, Ref, visible
from planner.connect.lookups import FoundJoin
from planner.connect.relations import relation
from planner.connect.sums import FUNCTIONS, Item, counted, in_sql, summed
from planner.refusals import PlanError, Refused
from planner.settings import Settings
from upsert.errors import SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.spark.connect import parallelism
from upsert.sql.dialect import START, Edit, Revision, tokens_of, visible_name
from upsert.sql.query import AsOf, AsOfKind, QueryText, Reference
from upsert.sql.volatile import of_the_moment
from upsert.store.table import Table
from upsert.stream_keys import KEYS_MARK, UPSERTS_MARK, UniqueKeys, UpsertKey
from upsert.types import quoted

_FOUND: Final = (AsOfKind.PROCESSING, AsOfKind.ROW)
"""States of a table that are found for each row."""

_OF_TABLE: Final = frozenset({"this", "db", "catalog", "alias", "version"})
"""Parts of a table in a text that its stream has taken."""

_GENERATORS: Final = frozenset({"inline_outer", "json_tuple"})
"""Functions that make rows of a row, and that sqlglot knows by name alone."""

_COUNTED: Final = "keep it as a materialized view, CREATE MATERIALIZED VIEW, which REFRESH computes here too"
"""What to do instead of an aggregate over changes."""


def planned(
    df: DataFrame,
    query: QueryText,
    references: Sequence[Reference],
    tables: Sequence[DataFrame | None],
    options: Mapping[str, Any],
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

    Raises:
        PlanError: the query is not ``SELECT … FROM … JOIN … ON … WHERE …`` over such tables.
        SchemaError: a column is unknown, or a join lacks an index.
    """
    if len(query.united) > 1:
        return _united(df, query, references, tables, options)
    text = _Text(query, references, tables)
    source = text.source(df, Settings.of_query(options, df.sparkSession.conf.getAll))
    try:
        if (where := text.where) is not None:
            source = source.where(where)
        kinds = [ROW_KIND_COLUMN] if ROW_KIND_COLUMN in source.columns else []
        if text.is_counted:
            return text.summed(source)
        rows = source.selectExpr(*text.items, *kinds)
        names = rows.columns[: len(rows.columns) - len(kinds)]
        if kinds and ROW_KIND_COLUMN in map(str.lower, names):
            raise SchemaError(
                f"{query.subject}: a column of the query is called {ROW_KIND_COLUMN!r}, which is reserved; "
                "rename it"
            )
    except AnalysisException as cause:
        reason = str(cause.getMessage() or cause).strip().partition("\n")[0]
        raise SchemaError(f"{query.subject}: {reason}") from cause
    return rows.withMetadata(ROW_KIND_COLUMN, text.marks(names)) if kinds else rows


def _united(
    df: DataFrame,
    query: QueryText,
    references: Sequence[Reference],
    tables: Sequence[DataFrame | None],
    options: Mapping[str, Any],
) -> DataFrame:
    """The changes of queries with UNION ALL between them, whose columns meet by position."""
    parts, at = list[DataFrame](), 0
    for one in query.united:
        own = slice(at, at := at + len(one.references))
        parts.append(planned(df, one, references[own], tables[own], options))
    first, *others = parts

    def refuse(what: str, remedy: str) -> NoReturn:
        raise PlanError([Refused(f"{query.subject}: over Spark Connect a UNION ALL {what}", remedy)])

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
class _Source:
    """A table of the query: its number, its name there, its stream and columns, and how it is joined."""

    number: int
    alias: str
    stream: DataFrame
    columns: tuple[str, ...]
    as_of: AsOf | None
    kind: str = ""
    on: tuple[tuple[Ref, Ref], ...] = ()

    def named(self, name: str) -> str | None:
        """The column of a name, whatever its case."""
        return next((own for own in self.columns if own.lower() == name.lower()), None)

    @cached_property
    def path(self) -> str | None:
        """The folder of a managed table whose changes the stream reads as they are; None for others."""
        read = relation(self.stream).read.data_source
        others = set(read.options) - {"scan.used-columns"}  # a join knows by itself which it uses
        is_plain = read.format == "upsert-table" and len(read.paths) == 1 and not others
        return str(read.paths[0]) if is_plain else None


def _as_column(source: _Source) -> Column:
    """A table as a column of its name, of which its columns are fields; these bear output names."""
    fields = (F.col(quoted(output_name(source.number, name))).alias(name) for name in source.columns)
    return F.struct(*fields).alias(source.alias)


class _Text:
    """The parts of a query's text over the streams of its tables.

    Raises:
        PlanError: it has others than these.
        SchemaError: a column is in no table, or in several.
    """

    def __init__(
        self, query: QueryText, references: Sequence[Reference], tables: Sequence[DataFrame | None]
    ) -> None:
        self._query = query
        self._select = select = self._checked()
        joins: list[exp.Join] = list(select.args.get("joins") or ())
        nodes = [select.args["from_"].this, *(join.this for join in joins)]
        self._sources: list[_Source] = []
        is_batch = not any(table is not None and table.isStreaming for table in tables)
        for number, (node, stream, reference) in enumerate(zip(nodes, tables, references, strict=True)):
            if node.alias_column_names or any(
                part for name, part in node.args.items() if name not in _OF_TABLE
            ):
                self._refuse(repr(node.sql("spark")))
            is_found = reference.as_of is not None and reference.as_of.kind in _FOUND and number > 0
            if stream is None or not (stream.isStreaming or is_found or is_batch):
                self._refuse(f"table {reference.name!r} at {reference.position}, which is no stream,")
            as_of = reference.as_of if is_found else None
            columns = tuple(name for name in stream.columns if name != ROW_KIND_COLUMN)
            if visible_name(node).lower() in {one.alias.lower() for one in self._sources}:
                self._refuse(
                    f"a query of two tables called {visible_name(node)!r}", "give one of them an alias"
                )
            self._sources.append(_Source(number, visible_name(node), stream, columns, as_of))
            if number:
                self._sources[-1] = self._joined(joins[number - 1], self._sources[-1])

    def _checked(self) -> exp.Select:
        """The tree of the query, which has only parts that are planned, each made of the row alone."""
        select = self._query.tree
        if not isinstance(select, exp.Select):
            self._refuse(f"a query that is {type(select).__name__.upper()}")
        known = ("expressions", "from_", "joins", "where", *(["group"] if counted(select) else []))
        if others := sorted(key.strip("_") for key, part in select.args.items() if part and key not in known):
            word = others[0].upper()
            self._refuse(
                f"a query with {word}", *([_COUNTED] if word in ("GROUP", "DISTINCT", "HAVING") else [])
            )
        if (word := tokens_of(self._query.worded.text, self._query.subject)[0].text.upper()) != "SELECT":
            self._refuse(f"a query that begins with {word}")
        for node in select.find_all(exp.AggFunc, exp.Window, exp.Query, exp.UDTF, exp.Anonymous):
            if isinstance(node, exp.Anonymous) and node.name.lower() not in _GENERATORS:
                continue
            if node is not select and not ("group" in known and type(node) in FUNCTIONS):
                is_counted = isinstance(node, exp.AggFunc)
                self._refuse(repr(node.sql("spark")), *([_COUNTED] if is_counted else []))
        for star in select.find_all(exp.Star):
            if any(star.args.values()):
                self._refuse(repr(star.sql("spark")))
            within = star.parent
            if within is not None and not isinstance(within, exp.Select | exp.Column | exp.Count):
                # it would be the columns that stand for the tables, not theirs
                self._refuse(f"{within.sql('spark')!r}, a star within an expression,", "name the columns")
        if self._query.parameters:
            self._refuse("a query with parameters")
        if (found := of_the_moment(self._query.text)) is not None:
            self._refuse(f"{found.what}, which is not of the row alone,")
        return select

    def _refuse(
        self, what: str, remedy: str = "write SELECT … FROM … JOIN … ON a.x = b.y … WHERE …"
    ) -> NoReturn:
        reason = f"{self._query.subject}: over Spark Connect {what} cannot be planned"
        raise PlanError([Refused(reason, f"{remedy}; or use a classic session")])

    def _joined(self, join: exp.Join, source: _Source) -> _Source:
        """A table with how it is joined to those before it."""
        words = [word for word in (join.method, join.side, join.kind) if word and word.upper() != "OUTER"]
        written = " ".join(words).lower()
        kind = {"": "inner", "left semi": "semi", "left anti": "anti"}.get(written, written)
        if kind not in KINDS:
            self._refuse(repr(join.sql("spark")))
        condition, pairs = join.args.get("on"), []
        for part in condition.flatten() if isinstance(condition, exp.And) else [condition]:
            equal = None if part is None else part.unnest()
            sides = (equal.this.unnest(), equal.expression.unnest()) if isinstance(equal, exp.EQ) else ()
            refs = [self._ref(side) for side in sides if isinstance(side, exp.Column)]
            refs.sort(key=lambda ref: ref.table == source.number)
            if [ref.table == source.number for ref in refs] != [False, True]:
                self._refuse(f"{join.sql('spark')!r}, whose ON must compare columns of both sides by =,")
            pairs.append((refs[0], refs[1]))
        return replace(source, kind=kind, on=tuple(pairs))

    def _ref(self, column: exp.Column) -> Ref:
        source, name = self._resolved(column)
        if len(column.parts) > (2 if self._of_alias(column.parts[0].name) else 1):
            self._refuse(f"{column.sql('spark')!r} in ON, which is a field of a column,")
        return Ref(source.number, name)

    def _resolved(self, column: exp.Column) -> tuple[_Source, str]:
        """The table of a column, and its name there."""
        first, *others = [part.name for part in column.parts]
        if others and (source := self._of_alias(first)) is not None:
            found = [(source, name)] if (name := source.named(others[0])) is not None else []
        else:  # what follows it are its fields
            found = [(one, name) for one in self._seen if (name := one.named(first)) is not None]
        if len(found) == 1:
            return found[0]
        where = "several tables, write that of one" if found else "no table of the query"
        known = ", ".join(f"{one.alias}.{name}" for one in self._seen for name in one.columns)
        raise SchemaError(
            f"{self._query.subject}: column {column.sql('spark')!r} is in {where}; there are {known}"
        )

    def _all_of(self, column: exp.Column) -> _Source | None:
        """The table of which a star takes all columns; None for a column."""
        if not isinstance(column.this, exp.Star):
            return None
        found = self._of_alias(column.table) if len(column.parts) == 2 else None
        if found is None:
            self._refuse(f"{column.sql('spark')!r}, which is of no table,", "name the fields of a column")
        return found

    def _of_alias(self, alias: str) -> _Source | None:
        return next((one for one in self._seen if one.alias.lower() == alias.lower()), None)

    @property
    def _seen(self) -> list[_Source]:
        """The tables whose columns may be named: not those of semi and anti joins, but in their ON."""
        return [one for one in self._sources if one.kind not in ("semi", "anti")]

    @cached_property
    def _tree(self) -> Node:
        tree: Node = Leaf(0)
        for source in self._sources[1:]:
            leaf = Leaf(source.number)
            match source.kind:
                case "inner" if isinstance(tree, Inner):
                    tree = Inner((*tree.children, leaf), (*tree.on, *source.on))
                case "inner":
                    tree = Inner((tree, leaf), source.on)
                case "right":
                    tree = Outer("left", leaf, tree, tuple((own, other) for other, own in source.on))
                case kind:
                    tree = Outer(kind, tree, leaf, source.on)
        return tree

    @cached_property
    def _visible(self) -> tuple[_Source, ...]:
        return tuple(self._sources[number] for number in sorted(visible(self._tree)))

    def source(self, like: DataFrame, settings: Settings) -> DataFrame:
        """The changes of the tables, or of their join: for each table a column of its own columns."""
        if len(self._sources) == 1:
            (only,) = self._sources
            columns = F.struct(*(F.col(quoted(name)) for name in only.columns)).alias(only.alias)
            kinds = [ROW_KIND_COLUMN] if ROW_KIND_COLUMN in only.stream.columns else []
            return only.stream.select(columns, *kinds)
        if any(one.as_of is not None for one in self._sources):
            return self._with_found(settings)
        if settings.strategy == "none" or settings.consistency == "latest":
            self._refuse("a join with option strategy = 'none' or consistency = 'latest'")
        joined = []
        for one in self._sources:
            if one.path is None:
                self._refuse(
                    f"a join with {one.alias!r}, which is no managed table read as it is,",
                    "name the tables of a plain view, read a topic's mirror, and leave out OPTIONS",
                )
            joined.append(JoinedTable(one.path, one.columns))
        session = like.sparkSession
        spec = DeltaJoinSpec(tuple(joined), self._tree, shards=settings.shards or parallelism(session))
        rows = deltajoin.read_join(session, spec, settings.physical, first_load=settings.first_load)
        return rows.select(*map(_as_column, self._visible), ROW_KIND_COLUMN)

    def _with_found(self, settings: Settings) -> DataFrame:
        """The rows of the first table, each with those that it finds in the others."""
        first, *others = self._sources
        if any(one.as_of is None for one in others):
            self._refuse("a join of changes beside one by FOR SYSTEM_TIME AS OF")
        of_times = [one.as_of for one in others if one.as_of and one.as_of.kind is AsOfKind.ROW]
        if len(of_times) > 1:
            self._refuse("more than one join by event time")
        if ROW_KIND_COLUMN in first.stream.columns:
            self._refuse(
                f"a lookup for the changes of {first.alias!r}, for which the deletion of a row would find "
                "another row than its insert found,",
                "look up for a stream whose rows are only added, or join the changes of both tables",
            )
        names = [output_name(0, name) for name in first.columns]
        rows = first.stream.toDF(*names)
        for one in others:
            join = FoundJoin(
                f"{self._query.subject}: over Spark Connect the join with {one.alias!r}",
                tuple((output_name(ref.table, ref.column), own.column) for ref, own in one.on),
                one.columns,
                one.kind,
                None if one.as_of not in of_times else self._time(first, one.as_of.value),
            )
            rows = join.of(rows, one.stream, settings)
            names += [output_name(one.number, name) for name in one.columns]
            rows = rows.toDF(*names)
        return rows.select(*map(_as_column, self._sources))

    def _time(self, first: _Source, name: str) -> str:
        """The column of the rows whose time asks for versions."""
        if (own := first.named(name)) is None:
            self._refuse(f"FOR SYSTEM_TIME AS OF {name!r}, which is no column of {first.alias!r},")
        return output_name(0, own)

    @property
    def is_counted(self) -> bool:
        """Whether the query has a GROUP BY."""
        return self._select.args.get("group") is not None

    def summed(self, source: DataFrame) -> DataFrame:
        """The upserts of the groups of some changes."""
        if ROW_KIND_COLUMN not in source.columns or self._gives_upserts:
            self._refuse("a query with GROUP over what is no stream of whole changes", _COUNTED)
        groups = [self._sql(column) for column in self._select.args["group"].expressions]
        items = []
        for one in self._select.expressions:
            value, name = one.unalias(), one.alias_or_name or one.sql("spark")
            if isinstance(value, exp.Column):
                items.append(Item(name, self._sql(value)))
                if items[-1].value not in groups:
                    self._refuse(f"{value.sql('spark')!r}, which is not in GROUP BY,", "name it there")
            else:
                given = self._sql(value.this) if isinstance(value.this, exp.Column) else None
                items.append(Item(name, given, FUNCTIONS[type(value)]))
        if lost := [text for text in groups if text not in {one.value for one in items if not one.function}]:
            self._refuse(f"a query that leaves out {lost[0]}, by which it groups,", "select it")
        found = summed(source, groups, items)
        if isinstance(found, str):
            self._refuse(f"a sum of {found.upper()}", _COUNTED)
        return found

    def _sql(self, column: exp.Column) -> str:
        ref = self._ref(column)
        return in_sql(self._sources[ref.table].alias, ref.column)

    @property
    def _gives_upserts(self) -> bool:
        return any(UpsertKey.of_schema(one.stream.schema.jsonValue()) is not None for one in self._sources)

    @property
    def where(self) -> str | None:
        """The condition of WHERE."""
        if self._select.args.get("where") is None:
            return None
        words = pairwise(self._tokens)  # after a dot it is a column
        at = next(
            token
            for before, token in words
            if token.token_type is TokenType.WHERE and before.token_type is not TokenType.DOT
        )
        following = pairwise(token for token in self._tokens if token.start > at.end)
        ends = (one.start for one, by in following if (one.text.upper(), by.text.upper()) == ("GROUP", "BY"))
        return self._edited(at.end + 1, next(ends, len(self._query.worded.text)))

    @cached_property
    def items(self) -> tuple[str, ...]:
        """What SELECT gives; all columns for a star."""
        first, table = self._tokens[0], self._select.args["from_"].this.parts[0].meta[START]
        before = [token for token in self._tokens if token.end < table]
        commas = [token for token in before if token.token_type is TokenType.COMMA]
        marks = [first, *commas, before[-1]]  # the last one is FROM
        texts = [self._edited(one.end + 1, following.start) for one, following in pairwise(marks)]
        stars = [f"{quoted(one.alias)}.*" for one in self._visible]
        return tuple(item for text in texts for item in (stars if text == "*" else [text]))

    @cached_property
    def _tokens(self) -> list[Token]:
        """The words of the query that stand in no brackets."""
        depth, found = 0, []
        for token in tokens_of(self._query.worded.text, self._query.subject):
            depth -= token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET)
            if depth == 0:
                found.append(token)
            depth += token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET)
        return found

    def _edited(self, start: int, end: int) -> str:
        """A part of the text, in which each column says its table."""
        edits = []
        for column in self._select.find_all(exp.Column):
            first = column.parts[0]
            at = first.meta[START]
            if start <= at < end and not isinstance(first, exp.Star) and self._all_of(column) is None:
                source, _ = self._resolved(column)
                if len(column.parts) == 1 or self._of_alias(first.name) is None:
                    edits.append(Edit(at - start, at - start, f"{quoted(source.alias)}."))
        return Revision(self._query.worded.text[start:end]).edited(edits).text.strip()

    def marks(self, names: Sequence[str]) -> dict[str, str]:
        """What the rows' kinds bear: by which of the columns ``names`` rows are told apart, or replaced.

        Raises:
            PlanError: upserts have lost their key.
        """
        given: dict[Ref, list[str]] = {}
        for item, name in zip(self._columns(), names, strict=True):
            if item is not None and names.count(name) == 1:
                given.setdefault(item, []).append(name)
        first, *others = self._sources
        if others or first.path is not None:
            return {KEYS_MARK: self._keys(given).to_text()}
        # a plain view, or a topic
        schema = first.stream.schema.jsonValue()

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
                self._refuse(
                    f"a query that leaves out {wanted}, by which rows of {first.alias!r} are replaced,"
                )
            found[UPSERTS_MARK] = replace(upserts, keys=key, constants=()).to_text()
        return found

    def _keys(self, given: Mapping[Ref, Sequence[str]]) -> UniqueKeys:
        """The key of the rows: that of each table, but of those that a row finds by their whole key.

        ``given`` has the columns that hold one of a table; there is no key where one of its parts has none.
        """
        key: list[tuple[str, ...]] = []
        for one in self._visible:
            primary = Table.open(one.path).schema.primary_key if one.path is not None else ()
            compared = {own.column for _, own in one.on}
            if one.kind in ("inner", "left") and primary and compared.issuperset(primary):
                continue
            parts = [tuple(given.get(Ref(one.number, name), ())) for name in primary]
            if not primary or not all(parts):
                return UniqueKeys()
            key += parts
        return UniqueKeys((tuple(key),))

    def _columns(self) -> Iterator[Ref | None]:
        """For each column of the result the one of a table that it is; None for computed ones."""
        for item in self._select.expressions:
            column = item.this if isinstance(item, exp.Alias) else item
            if isinstance(column, exp.Star):
                yield from (Ref(one.number, name) for one in self._visible for name in one.columns)
            elif not isinstance(column, exp.Column):
                yield None
            elif (table := self._all_of(column)) is not None:
                yield from (Ref(table.number, name) for name in table.columns)
            else:
                source, name = self._resolved(column)
                has_fields = len(column.parts) > (2 if self._of_alias(column.parts[0].name) else 1)
                yield None if has_fields else Ref(source.number, name)
