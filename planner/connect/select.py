"""One SELECT of a text over Spark Connect: the tables that it joins, and what it makes of their columns.

The text says which columns the joins compare, which a plan with names in it does not.

A query in the place of a table gives its own tables to the join, and what it computes is computed above. Its
conditions are so, too, where its rows come out as they are. Where an outer join may give NULLs in their
place, a condition decides which rows have a match: there it becomes one of the join. So do those of a query
of IN or EXISTS, which is joined behind all tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Final, NoReturn

from pyspark.sql import DataFrame
from sqlglot import exp

from deltajoin.expressions import Condition, Ref, conjunction
from deltajoin.spec import KINDS
from deltajoin.tree import Inner, Leaf, Node, Outer, Where, null_supplied, visible
from planner.connect.calls import function_of
from planner.connect.clauses import Clauses, Span
from planner.connect.compared import Compared
from planner.connect.matches import Match, conjuncts, match_of
from planner.connect.nested import Piece, alternatives
from planner.connect.relations import relation
from planner.connect.scope import Listed, Named, Scope, listed
from planner.refusals import PlanError, Refused
from upsert.errors import SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.sql.dialect import END, START, Edit, Revision, spelled, tokens_of, visible_name
from upsert.sql.query import AsOf, AsOfKind, Reference, is_read
from upsert.sql.tokens import without_comments
from upsert.sql.volatile import of_the_moment
from upsert.store.table import Table
from upsert.types import first_repeated, quoted

_FOUND: Final = (AsOfKind.PROCESSING, AsOfKind.ROW)
"""States of a table that are found for each row."""

_OF_TABLE: Final = frozenset({"this", "db", "catalog", "alias", "version"})
"""Parts of a table in a text that its stream has taken."""

_OF_JOIN: Final = frozenset({"this", "on", "using", "kind", "side", "method"})
_OF_SELECT: Final = ("expressions", "from_", "joins", "where", "hint")

_GENERATORS: Final = frozenset({"inline_outer", "json_tuple"})
"""Functions that make rows of a row, and that sqlglot knows by name alone."""

COUNTED: Final = "keep it as a materialized view, CREATE MATERIALIZED VIEW, which REFRESH computes here too"
"""What to do instead of what a stream of changes cannot have here."""

_BY_JOIN: Final = f"write IN and EXISTS in WHERE, with AND alone around them; else {COUNTED}"
"""What to do instead of a query in an expression."""

_IN_WORDS: Final = {"laterals": "LATERAL VIEW", "order": "ORDER BY", "sort": "SORT BY"}
"""Parts of a SELECT that have other names in its text."""

_STORED: Final = "store what is computed there as a column with an INDEX"
_WRITTEN: Final = "write its rows into a table first"
_WITHOUT: Final = "leave it out, rows of a stream have no order"

_INSTEAD: Final = {
    "CLUSTER": _WITHOUT,
    "DISTRIBUTE": _WITHOUT,
    "ORDER BY": _WITHOUT,
    "SORT BY": _WITHOUT,
    "WITH": "name its columns by AS within it, and leave RECURSIVE out",
}
"""What to do instead of a part, if not a materialized view."""


@dataclass(frozen=True)
class Inputs:
    """What the queries of one text read.

    Attributes:
        tables: each table by its place in the text, with its stream; None for one of Spark's.
        rows: what makes the stream of a query that another one reads.
    """

    tables: Mapping[str, tuple[Reference, DataFrame | None]]
    rows: Callable[[Sequence[Piece]], DataFrame]

    @property
    def is_batch(self) -> bool:
        """Whether none of them is a stream."""
        return not any(stream is not None and stream.isStreaming for _, stream in self.tables.values())

    def branches(self, piece: Piece) -> tuple[Piece, ...]:
        """The queries that a join is, with one query of each UNION ALL that is a table of it."""
        found = (self.tables.get(one.position, (one, None))[0] for one in piece.query.references)
        has_joins = isinstance(piece.query.tree, exp.Select) and piece.query.tree.args.get("joins")
        is_joined = (has_joins or piece.matched) and not any(one.as_of for one in found)
        return alternatives(piece) if is_joined else (piece,)


@dataclass(frozen=True)
class Source:
    """A table of a SELECT.

    Attributes:
        number: that of the table, or of the first one of the query that it is.
        alias: its name in the SELECT.
        columns: its columns, each with the one of a table that it is; None for a computed one.
        stream: of a table, or of a query that is not joined; None for ``inner``.
        inner: the query whose tables are joined in its place.
        as_of: which state is found for each row; None for changes.
        kind: how it is joined.
        on: the columns that this compares, those of this table second.
        where: what must hold of a match besides.
    """

    number: int
    alias: str
    columns: Mapping[str, Ref | None]
    stream: DataFrame | None = None
    inner: Select | None = None
    as_of: AsOf | None = None
    kind: str = ""
    on: tuple[tuple[Ref, Ref], ...] = ()
    where: Condition | None = None

    @cached_property
    def path(self) -> str | None:
        """The folder of a managed table whose changes the stream reads as they are; None for others."""
        if self.stream is None:
            return None
        read = relation(self.stream).read.data_source
        others = set(read.options) - {"scan.used-columns"}  # a join knows by itself which it uses
        is_plain = read.format == "upsert-table" and len(read.paths) == 1 and not others
        return str(read.paths[0]) if is_plain else None

    @property
    def rows(self) -> DataFrame:
        """The stream of a table, or of a query that is not joined."""
        assert self.stream is not None
        return self.stream

    @property
    def tree(self) -> Node:
        """The table, or the join that it is."""
        return Leaf(self.number) if self.inner is None else self.inner.tree

    @property
    def leaves(self) -> tuple[Source, ...]:
        """The tables that are joined for it."""
        return (self,) if self.inner is None else self.inner.leaves

    @property
    def numbers(self) -> frozenset[int]:
        """Those of these tables."""
        return frozenset(leaf.number for leaf in self.leaves)


@dataclass(frozen=True)
class Output:
    """A column that a SELECT gives.

    Attributes:
        name: None where only Spark gives it one.
        value: it in Spark SQL, over a column for each table.
        text: the same with the name that it gets.
        ref: the column of a table that it is; None for a computed one.
    """

    name: str | None
    value: str
    text: str
    ref: Ref | None


class Select:
    """The parts of a SELECT over the streams of its tables.

    Args:
        piece: its text.
        inputs: what it reads.
        first: the number of its first table.
        is_joined: whether it is a table of a join, so that its own tables are joined in its place.
        comes_out: whether all its rows are rows of the whole query, as far as conditions leave them.
        outer: what the query around may name, for one of IN or EXISTS.

    Attributes:
        filters: conditions on the joined rows, in Spark SQL.
        sources: its tables, and the queries of IN and EXISTS behind them.
        scope: the columns that it may name.
        outer_parts: the conditions of its WHERE with columns of the query around.

    Raises:
        PlanError: it has other parts than are planned.
        SchemaError: a column is in no table, or in several.
    """

    def __init__(
        self,
        piece: Piece,
        inputs: Inputs,
        first: int = 0,
        *,
        is_joined: bool = False,
        comes_out: bool = True,
        outer: Scope | None = None,
    ) -> None:
        self.query, self._piece, self._inputs = piece.query, piece, inputs
        self._is_inner, self._comes_out = is_joined, comes_out
        self.node = select = self._checked()
        self.sources: tuple[Source, ...] = ()
        self._pending: list[tuple[int, exp.Join, frozenset[int]]] = []
        self._known: dict[int, Source] = {}
        self._compared = Compared(self.query.subject, self._known)
        self._answers: list[Edit] = []
        self.filters: list[str] = []
        joins: list[exp.Join] = list(select.args.get("joins") or ())
        nodes = [select.args["from_"].this, *(join.this for join in joins)]
        for node in nodes:
            self._check_table(node)
        self.text = without_comments(self.query.worded.text, self.query.subject)
        self.clauses = Clauses(self.text, select, self.query.subject)
        self._kinds = ["", *map(self._kind, joins)]
        given = inputs.tables  # with the times that rows have
        references = [given.get(one.position, (one, None))[0] for one in self.query.references]
        times = [one.as_of for one in references[1:] if one.as_of is not None and one.as_of.kind in _FOUND]
        self._is_joined = is_joined or bool(piece.matched) or (len(nodes) > 1 and not times)
        number = first
        for place, (node, reference) in enumerate(zip(nodes, references, strict=True)):
            source = self._source(visible_name(node), reference, place, number)
            self._known |= {leaf.number: leaf for leaf in source.leaves}
            number += len(source.leaves)
            columns = listed(source.alias, source.columns)
            if place == 0:
                self.sources, self.scope = (source,), Scope(columns, self.query.subject)
            else:
                self._join(joins[place - 1], source, columns)
        where = select.args.get("where")
        matches, others = self._matches(where and where.this)
        self.outer_parts = [one for one in others if outer is not None and self._is_of(outer, one)]
        self._parts = [one for one in others if one not in self.outer_parts]
        for place, join, padded in self._pending:
            self._equate(place, join, padded)
        for match in matches:
            self._match(match)
        if where is not None and comes_out:
            self.filters.append(self.edited(self.clauses.where))

    def _checked(self) -> exp.Select:
        """The tree of the query, which has only parts that are planned, each made of the row alone."""
        select = self.query.tree
        if not isinstance(select, exp.Select):
            self.refuse(f"a query that is {type(select).__name__.upper()}", COUNTED)
        distinct = select.args.get("distinct")
        known = [*_OF_SELECT, "having", *(["group"] if _is_plain(select.args.get("group")) else [])]
        if distinct is not None and not any(distinct.args.values()):
            known += [] if any(select.args.get(word) for word in ("group", "having")) else ["distinct"]
        if others := sorted(key.strip("_") for key, part in select.args.items() if part and key not in known):
            word = _IN_WORDS.get(others[0], others[0].upper())
            self.refuse(f"a query with {word}", _INSTEAD.get(word, COUNTED))
        if (word := tokens_of(self.query.worded.text, self.query.subject)[0].text.upper()) != "SELECT":
            self.refuse(f"a query that begins with {word}")
        if select.args.get("from_") is None:
            self.refuse("a query without FROM")
        for node in select.find_all(exp.AggFunc, exp.Window, exp.Query, exp.UDTF, exp.Anonymous):
            if isinstance(node, exp.Anonymous) and node.name.lower() not in _GENERATORS:
                continue
            if node is not select and not (function_of(node) and _is_of_groups(node, select)):
                remedy = _BY_JOIN if isinstance(node, exp.Query) else COUNTED
                self.refuse(repr(spelled(node)), remedy)
        for star in select.find_all(exp.Star):
            if any(star.args.values()):
                self.refuse(repr(spelled(star)))
            within = star.parent
            if within is not None and not isinstance(within, exp.Select | exp.Column | exp.Count):
                # it would be the columns that stand for the tables, not theirs
                self.refuse(f"{spelled(within)!r}, a star within an expression,", "name the columns")
        if self.query.parameters:
            self.refuse("a query with parameters", "write their values into the text")
        if (found := of_the_moment(self.query.text)) is not None:
            remedy = "write the value into the table whose changes are read"
            self.refuse(f"{found.what}, which is not of the row alone,", remedy)
        return select

    def refuse(
        self, what: str, remedy: str = "write SELECT … FROM … JOIN … ON a.x = b.y … WHERE …"
    ) -> NoReturn:
        """Refuse the query for what it has."""
        reason = f"{self.query.subject}: over Spark Connect {what} cannot be planned"
        raise PlanError([Refused(reason, f"{remedy}; or use a classic session")])

    def _check_table(self, node: exp.Expr) -> None:
        is_plain = isinstance(node, exp.Table) and is_read(node) and not node.alias_column_names
        if not is_plain or any(part for name, part in node.args.items() if name not in _OF_TABLE):
            self.refuse(repr(spelled(node)))

    def _kind(self, join: exp.Join) -> str:
        words = [word for word in (join.side, join.kind) if word and word.upper() != "OUTER"]
        written = " ".join(words).lower()
        kind = {"": "inner", "cross": "inner", "left semi": "semi", "left anti": "anti"}.get(written, written)
        has_more = any(part for name, part in join.args.items() if name not in _OF_JOIN)
        if kind not in KINDS or has_more or join.method not in ("", "NATURAL"):
            self.refuse(repr(spelled(join)))
        return kind

    def _pads_later(self, place: int) -> bool:
        """Whether a later join may give NULLs in place of a table's rows."""
        return not {"right", "full"}.isdisjoint(self._kinds[place + 1 :])

    def _source(self, alias: str, reference: Reference, place: int, number: int) -> Source:
        if alias.lower() in {one.alias.lower() for one in self.sources}:
            self.refuse(f"a query of two tables called {alias!r}", "give one of them an alias")
        is_found = reference.as_of is not None and reference.as_of.kind in _FOUND and place > 0
        as_of = reference.as_of if is_found else None
        given = self._inputs.tables.get(reference.position)
        if given is not None:
            _, stream = given
            if stream is None or not (stream.isStreaming or is_found or self._inputs.is_batch):
                self.refuse(f"table {reference.name!r} at {reference.position}, which is no stream,")
        elif reference.as_of is not None:
            self.refuse(
                f"a state of {reference.name!r}, which is a query,", "name a table with that state in it"
            )
        elif self._is_joined:
            return self._inner(alias, self._piece.seen[reference.name.lower()], place, number)
        else:
            stream = self._inputs.rows(self._piece.seen[reference.name.lower()])
        names = [name for name in stream.columns if name != ROW_KIND_COLUMN]
        self._check_names(alias, names)
        return Source(number, alias, {name: Ref(number, name) for name in names}, stream, as_of=as_of)

    def _check_names(self, alias: str, names: Sequence[str]) -> None:
        if (twice := first_repeated(name.lower() for name in names)) is not None:
            self.refuse(f"a query of {alias!r}, which has several columns {twice!r},", "name them by AS")

    def _inner(self, alias: str, parts: Sequence[Piece], place: int, number: int) -> Source:
        """A query as a table of a join."""
        is_alone = len(self._kinds) == 1 and not self._piece.matched
        what = f"{'a query of' if is_alone else 'a join with'} {alias!r}, which is a query"
        comes_out = (
            self._comes_out and self._kinds[place] in ("", "inner", "right") and not self._pads_later(place)
        )
        inner = self._query(what, parts, number, comes_out=comes_out)
        named = inner
        if (first := parts[0].first) is not None:
            if not comes_out:
                self.refuse(
                    f"{what} with UNION ALL, at the side of an outer, semi or anti join that is looked up,",
                    _WRITTEN,
                )
            named = Select(first, self._inputs, number, is_joined=True, comes_out=comes_out)
        if len(named.outputs) != len(inner.outputs):
            self.refuse(f"{what} with UNION ALL between queries of more and fewer columns,", "select as many")
        columns: dict[str, Ref | None] = {}
        for one, own in zip(named.outputs, inner.outputs, strict=True):
            if one.name is None:
                self.refuse(f"{what} in which {one.text!r} has no name of its own,", "name it by AS")
            columns[one.name] = own.ref
        self._check_names(alias, [str(one.name) for one in named.outputs])
        return Source(number, alias, columns, inner=inner)

    def _query(
        self,
        what: str,
        parts: Sequence[Piece],
        number: int,
        *,
        comes_out: bool = False,
        outer: Scope | None = None,
    ) -> Select:
        """A query whose tables are joined in its place; with what is around it for IN and EXISTS."""
        if len(parts) > 1:
            self.refuse(
                f"{what} with UNION ALL, named twice or within IN or EXISTS,",
                f"{_WRITTEN}; if it is named twice, write it twice, in brackets",
            )
        inner = Select(parts[0], self._inputs, number, is_joined=True, comes_out=comes_out, outer=outer)
        is_set = outer is not None and inner.node.args.get("distinct") is not None  # of which one is enough
        if inner.is_counted and not is_set:
            self.refuse(f"{what} with GROUP BY,", "write its groups into a table first")
        if inner.has_lookups:
            self.refuse(f"{what} with FOR SYSTEM_TIME AS OF,", _WRITTEN)
        return inner

    # joins

    def _join(self, join: exp.Join, source: Source, columns: Sequence[Listed]) -> None:
        """Add a table with how it is joined to those before it."""
        place = len(self.sources)
        kind, both = self._kinds[place], self.scope.joined(columns)
        padded = self._padded | null_supplied(source.tree)
        condition, names = join.args.get("on"), [one.name for one in join.args.get("using") or ()]
        if join.method:
            names = list(self.scope.shared_with(columns))
        pairs, others = self._compared.pairs(conjuncts(condition), both, source.numbers, padded)
        if names:
            for own, other in self.scope.shared(columns, names):
                if own.ref is None or other.ref is None:
                    self.refuse(f"{spelled(join)!r}, which compares what is computed,")
                pairs.append((own.ref, other.ref))
        where = None
        if condition is None and not names and kind == "inner":
            if self._pads_later(place):
                self.refuse(f"{spelled(join)!r} before a RIGHT or FULL JOIN", "write its condition into ON")
            self._pending.append((place, join, padded))
        elif not pairs or (others and source.as_of is not None and kind != "inner"):
            self._refuse_on(join)
        elif others and kind == "inner" and self._comes_out and not self._pads_later(place):
            self.filters.append(self.edited(self.clauses.on(place), both))
        elif others:
            where = self._compared.all_translated(others, both)
        self.sources += (replace(source, kind=kind, on=tuple(pairs), where=where),)
        if names:
            self.scope = self.scope.joined_using(columns, names, kind)
        elif kind not in ("semi", "anti"):
            self.scope = both

    def _refuse_on(self, join: exp.Join) -> NoReturn:
        self.refuse(
            f"{spelled(join)!r}, whose ON must compare columns of both sides by =,",
            f"write ON a.x = b.y, and {_STORED}",
        )

    def _equate(self, place: int, join: exp.Join, padded: frozenset[int]) -> None:
        """Take from WHERE what a join without ON compares."""
        source = self.sources[place]
        pairs, _ = self._compared.pairs(self._parts, self.scope, source.numbers, padded)
        found = [pair for pair in pairs if pair[0].table < source.number]
        if not found:
            self._refuse_on(join)
        joined = replace(source, on=tuple(found))
        self.sources = (*self.sources[:place], joined, *self.sources[place + 1 :])

    def _matches(self, where: exp.Expr | None) -> tuple[list[Match], list[exp.Expr]]:
        """The parts of WHERE that ask for a match in a query, and all others."""
        matches, others = list[Match](), list[exp.Expr]()
        for part in conjuncts(where):
            match = match_of(part)
            if match is not None and match.query.name in self._piece.matched:
                matches.append(match)
            else:
                others.append(part)
        return matches, others

    def _is_of(self, outer: Scope, part: exp.Expr) -> bool:
        """Whether a condition has a column of the query around."""
        columns = (one for one in part.find_all(exp.Column) if not is_parameter(one))
        return any(not self.scope.knows(one) and outer.knows(one) for one in columns)

    def _match(self, match: Match) -> None:
        """Join the query of an IN or EXISTS: its conditions with columns of both say what a match is."""
        parts, number = self._piece.matched[match.query.name], len(self.leaves) + self.sources[0].number
        what = f"{match.word} ({parts[0].query.text})"
        inner = self._query(what, parts, number, outer=self.scope)
        self._known |= {leaf.number: leaf for leaf in inner.leaves}
        scope, padded = replace(inner.scope, outer=self.scope), self._padded | null_supplied(inner.tree)
        numbers, never_null = frozenset(leaf.number for leaf in inner.leaves), self._compared.is_never_null
        pairs, others = self._compared.pairs(inner.outer_parts, scope, numbers, padded)
        given, found = [*map(self.ref_of, match.values)], [one.ref for one in inner.outputs]
        if match.values and len(given) != len(found):
            self.refuse(f"{what} of {len(found)} columns for {len(given)}", "compare as many")
        for own, other in zip(given, found if given else (), strict=True):
            if own is None or other is None:
                self.refuse(f"{what}, which compares what is computed,", _STORED)
            if match.is_negated and not (never_null(own, padded) and never_null(other, padded)):
                self.refuse(
                    f"{what} of columns that may be NULL, of which one NULL leaves no row,",
                    "declare both NOT NULL, or write NOT EXISTS, for which NULL is no match",
                )
            pairs.append((own, other))
        if not pairs:
            self.refuse(
                f"{what}, which compares no column of it with one outside by =,",
                f"write b.x = a.y, and {_STORED}",
            )
        self._kinds.append(kind := "anti" if match.is_negated else "semi")
        name = " and ".join(one.alias for one in inner.leaves)
        where = self._compared.all_translated(others, scope)
        self.sources += (Source(number, name, {}, inner=inner, kind=kind, on=tuple(pairs), where=where),)
        span, is_not = self.clauses.match(match.start)
        self._answers.append(Edit(*span, "true" if match.is_negated == is_not else "false"))

    @property
    def _padded(self) -> frozenset[int]:
        """Tables whose rows may be NULLs in the rows that are joined so far."""
        return frozenset() if not self.sources else null_supplied(_tree_of(self.sources))

    # what comes of them

    def translated(self, part: exp.Expr, *words: str) -> Condition:
        """A condition on columns of the tables that is evaluated without Spark; see `Compared.translated`."""
        return self._compared.translated(part, self.scope, *words)

    @property
    def leaves(self) -> tuple[Source, ...]:
        """The tables that are joined, by their numbers."""
        return tuple(leaf for one in self.sources for leaf in one.leaves)

    @property
    def has_lookups(self) -> bool:
        """Whether rows are found in some of the tables."""
        return any(one.as_of is not None for one in self.sources)

    @property
    def flat(self) -> Select:
        """The same over the table of the query that is its only one; itself where that is none."""
        names = [one.name.lower() for one in self.query.references]
        is_one = len(names) == 1 and len(self._piece.seen.get(names[0], ())) == 1
        return Select(self._piece, self._inputs, is_joined=True) if is_one else self

    @property
    def conditions(self) -> Iterator[tuple[Select, exp.Expr]]:
        """What WHERE says, and that of each query whose tables are joined, with the query that says it."""
        for one in self.sources:
            if one.inner is not None:
                yield from one.inner.conditions
        if (where := self.node.args.get("where")) is not None:
            yield self, where.this

    @cached_property
    def tree(self) -> Node:
        """How the tables are joined."""
        tree = _tree_of(self.sources)
        return tree if self._comes_out else reduce(Where, map(self.translated, self._parts), tree)

    @cached_property
    def visible(self) -> tuple[Source, ...]:
        """The tables whose columns the joined rows have."""
        return tuple(one for one in self.sources if one.number in visible(_tree_of(self.sources)))

    def witnesses(self, source: Source) -> tuple[int, ...]:
        """The tables one of which says that a row has a part from a query, where an outer join may pad it.

        Without that the values of the query are NULL. Empty where nothing has to be asked.
        """
        place = self.sources.index(source)
        if source.inner is None or not (self._kinds[place] in ("left", "full") or self._pads_later(place)):
            return ()
        if all(ref is not None for ref in source.columns.values()):
            return ()
        always = visible(source.tree) - null_supplied(source.tree)
        return (min(always),) if always else tuple(sorted(visible(source.tree)))

    @property
    def determined(self) -> frozenset[int]:
        """The tables of which a row of the others finds one row at most, by its whole key."""
        found = set[int]()
        for one in self.sources:
            if one.inner is not None:
                found |= one.inner.determined
            for leaf in one.leaves if one.kind in ("inner", "left") else ():
                compared = {ref.column for _, ref in one.on if ref.table == leaf.number}
                key = () if leaf.path is None else Table.open(leaf.path).schema.primary_key
                if key and compared.issuperset(key):
                    found.add(leaf.number)
        return frozenset(found)

    # its text

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """What SELECT gives, all columns for a star."""
        found = list[Output]()
        for place, item in enumerate(self.node.expressions):
            column = item.unalias()
            if isinstance(column, exp.Star):
                found += map(_output, self.scope.star(None))
            elif (table_name := self._all_of(column)) is not None:
                found += map(_output, self.scope.star(table_name))
            else:
                value, text = self._value(place), self.edited(self.clauses.items[place])
                named = self._named(item) if isinstance(item, exp.Column) and len(item.parts) == 1 else None
                if named is not None and named.column.table is None:  # USING makes it of two
                    text = f"{text} AS {quoted(item.name)}"
                found.append(Output(name_of(item), value, text, self.ref_of(column)))
        return tuple(found)

    def _value(self, place: int) -> str:
        """An item of SELECT without the name that it gets."""
        return self.edited(self.clauses.value(place))

    def ref_of(self, value: exp.Expr) -> Ref | None:
        """The column of a table that a value is; None for others."""
        if not isinstance(value, exp.Column) or (named := self._named(value)) is None:
            return None
        return named.column.ref if len(value.parts) == named.parts else None

    def _all_of(self, value: exp.Expr) -> str | None:
        """The table of which a star takes all columns; None for what is no such star."""
        if not isinstance(value, exp.Column) or not isinstance(value.this, exp.Star):
            return None
        if len(value.parts) != 2 or not self.scope.is_table(value.table):
            self.refuse(f"{spelled(value)!r}, which is of no table,", "name the fields of a column")
        return value.table

    def _named(self, column: exp.Column) -> Named | None:
        """The column of a table that a word names; None for a value of the same SELECT, before it.

        Raises:
            SchemaError: it names nothing, or several.
        """
        try:
            return self.scope.named(column)
        except SchemaError:
            name, place = column.parts[0].name.lower(), _place_of(column, self.node)
            aliases = [alias_of(one) for one in self.node.expressions]
            if self.scope.has(name) or name not in aliases:
                raise
            is_before = place is not None and name in aliases[:place]
            # a table of the same name is a column, too; and groups are of columns of the tables
            if not is_before or self._is_inner or self.is_counted or self.scope.is_table(name):
                raise SchemaError(
                    f"{self.query.subject}: column {spelled(column)!r} is in no table of the query, but "
                    "an alias of its SELECT; write what it stands for, or SELECT … FROM (SELECT …)"
                ) from None
            return None

    def edited(self, span: Span, scope: Scope | None = None, *, in_full: bool = False) -> str:
        """A part of the text, in which each column says its table, of all tables or of those of a scope.

        With ``in_full`` a column has one text, however it is written.
        """
        start, end = span
        answers = [one for one in self._answers if start <= one.start < end]
        edits = [Edit(one.start - start, one.end - start, one.text) for one in answers]
        for column in self.node.find_all(exp.Column):
            first = column.parts[0]
            at = first.meta[START]
            if not start <= at < end or isinstance(first, exp.Star) or self._all_of(column) is not None:
                continue
            if any(one.start <= at < one.end for one in answers):
                continue
            if is_parameter(column):
                continue
            named = self._named(column) if scope is None else scope.named(column)
            is_field = names_a_field(column)
            if named is None or (named.parts > 1 and (is_field or not in_full)):
                continue
            if named.column.table is not None and (is_field or not in_full):
                edits.append(Edit(at - start, at - start, f"{quoted(named.column.table)}."))
                continue
            value = f"{named.column.value} AS {quoted(first.name)}" if is_field else named.column.value
            edits.append(Edit(at - start, column.parts[named.parts - 1].meta[END] + 1 - start, value))
        return Revision(self.text[start:end]).edited(edits).text.strip()

    @property
    def is_counted(self) -> bool:
        """Whether the query has functions of groups, a GROUP BY, or DISTINCT, by all that it gives."""
        has_words = any(self.node.args.get(word) is not None for word in ("group", "distinct", "having"))
        return has_words or self.node.find(exp.AggFunc) is not None

    def words(self, span: Span) -> tuple[str, ...]:
        """The words of a value, whatever stands between them, and whatever its columns are called by."""
        read = tokens_of(self.edited(span, in_full=True), "a value")
        return tuple(f"{one.token_type} {one.text}" for one in read)


def _is_of_groups(node: exp.Expr, select: exp.Select) -> bool:
    """Whether a function may be one of a group: in an item or HAVING, and in no condition within."""
    above = node
    while above.parent is not None and above.parent is not select:
        above = above.parent
        if isinstance(above, exp.Where):
            return False
    return above.arg_key in ("expressions", "having") and select.args.get("distinct") is None


def _is_plain(group: exp.Group | None) -> bool:
    """Whether there is a GROUP BY of values alone."""
    if group is None or any(part for name, part in group.args.items() if name != "expressions"):
        return False
    return not any(isinstance(one, exp.Cube | exp.Rollup | exp.GroupingSets) for one in group.expressions)


def _tree_of(sources: Sequence[Source]) -> Node:
    """How some tables are joined, each to those before it."""
    tree = sources[0].tree
    for source in sources[1:]:
        match source.kind:
            case "inner" if isinstance(tree, Inner):
                where = conjunction(tree.where, source.where)
                tree = Inner((*tree.children, source.tree), (*tree.on, *source.on), where)
            case "inner":
                tree = Inner((tree, source.tree), source.on, source.where)
            case "right":
                on = tuple((own, other) for other, own in source.on)
                tree = Outer("left", source.tree, tree, on, source.where)
            case kind:
                tree = Outer(kind, tree, source.tree, source.on, source.where)
    return tree


def names_a_field(column: exp.Column) -> bool:
    """Whether a struct calls its field as the column is written."""
    above = column.parent
    if isinstance(above, exp.PropertyEQ):  # without AS its name is a copy
        return above.this.meta.get(START) in (None, column.parts[-1].meta[START])
    return isinstance(above, exp.Struct | exp.Tuple)


def is_parameter(column: exp.Column) -> bool:
    """Whether a function in the text, as ``x -> x + 1``, has a parameter of the name, in whatever case."""
    name, node = column.parts[0].name.lower(), column.parent
    while node is not None:
        if isinstance(node, exp.Lambda) and name in (one.name.lower() for one in node.expressions):
            return True
        node = node.parent
    return False


def _output(column: Listed) -> Output:
    """A column of a star."""
    name = "" if column.table is not None else f" AS {quoted(column.name)}"
    return Output(column.name, column.value, f"{column.value}{name}", column.ref)


def alias_of(item: exp.Expr) -> str | None:
    """The name that AS gives an item, in lower case."""
    return item.alias.lower() if isinstance(item, exp.Alias) else None


def name_of(item: exp.Expr) -> str | None:
    """The name of a column of the result; None where only Spark gives it one."""
    return str(item.alias_or_name) if isinstance(item, exp.Alias | exp.Column) else None


def _place_of(node: exp.Expr, select: exp.Select) -> int | None:
    """In which item of a SELECT a node stands; None for none."""
    while (parent := node.parent) is not None and parent is not select:
        node = parent
    return node.index if node.arg_key == "expressions" else None
