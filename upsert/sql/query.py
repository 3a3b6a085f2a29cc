"""A query over tables of a catalog: which ones it reads, and its text over other names for them (pure).

sqlglot's tree tells where in the text the tables stand, and what the query needs of them. The text itself
stays the user's: only names of tables, versions, hints and a few words of Flink are exchanged, so Spark sees,
and names columns by, what was written, and says of an error where in it that lies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property
from itertools import pairwise, takewhile
from typing import Any, Final

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from upsert.errors import SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.sql.dialect import (
    END,
    START,
    Edit,
    Revision,
    TableChanges,
    position,
    query_tree,
    spelled,
    tokens_of,
    visible_name,
)
from upsert.sql.flink_words import check_no_sessions_of_a_table, spark_words
from upsert.sql.predicates import Comparison, brackets, comparisons, literal_tree
from upsert.sql.reads import Reads, is_understood, reads_of
from upsert.sql.tokens import Cursor, Hint, blanked, hints_in
from upsert.types import quoted

_DIGESTING: Final = (exp.Join, exp.Group, exp.Distinct, exp.SetOperation, exp.AggFunc, exp.Window)
"""What makes of several rows one, or of one several."""


class AsOfKind(StrEnum):
    """Which state of a table a query asks for."""

    PROCESSING = "the time at which a row is processed"
    ROW = "the time that a row of the stream has"
    VERSION = "a snapshot's id or a tag"
    TIMESTAMP = "a time"


@dataclass(frozen=True)
class AsOf:
    """``FOR SYSTEM_TIME AS OF …`` or ``FOR SYSTEM_VERSION AS OF …``.

    Attributes:
        kind: how the state is named.
        value: the snapshot, tag or time without quotes; the name of the column that holds a processing time
            or the row's own, empty for ``PROCTIME()`` itself.
        is_number: whether a version was written as a number.
    """

    kind: AsOfKind
    value: str
    is_number: bool = False


@dataclass(frozen=True)
class ChangesBetween:
    """``table_changes(t, from [, to])``: the states before and after the changes; None for the newest."""

    start: AsOf
    end: AsOf | None = None


@dataclass(frozen=True)
class Reference:
    """A table that a query reads, at one position of its text.

    Attributes:
        name: as written, parts separated by dots, without quotes.
        options: of the hint ``/*+ OPTIONS(…) */``.
        changes: the two states of which the query reads the difference; None: it reads rows.
        columns: every name in lower case that may be one of the table's columns; None: all are read.
        is_alone: whether the query takes the table row by row: it joins, counts and unites nothing.
        where: comparisons of the query's own WHERE; rows that fail them need not be read.
    """

    name: str
    position: str
    options: Mapping[str, str] = field(default_factory=dict)
    as_of: AsOf | None = None
    changes: ChangesBetween | None = None
    columns: frozenset[str] | None = None
    is_alone: bool = True
    where: tuple[Comparison, ...] = ()


@dataclass(frozen=True)
class QueryText:
    """The query that a part of a statement is; ``edits`` make one of a statement that is none, as UPDATE.

    ``args`` has values for its parameters, see ``upsert.sql.parameters``; a ``?`` is one by its number.

    >>> query = QueryText.of("SELECT o.id, name FROM orders o JOIN shop.products USING (product_id)")
    >>> [reference.name for reference in query.references]
    ['orders', 'shop.products']
    >>> query.over(["v1", "v2"]).text
    'SELECT o.id, name FROM `v1` o JOIN `v2` AS `products` USING (product_id)'
    """

    statement: str = field(repr=False)  # options may hold secrets
    start: int
    end: int
    subject: str = "query"
    edits: tuple[Edit, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        statement: str,
        start: int = 0,
        end: int | None = None,
        subject: str = "query",
        edits: Iterable[Edit] = (),
    ) -> QueryText:
        """The query that a part of a statement is."""
        last = len(statement.rstrip().rstrip(";")) if end is None else end
        query = cls(statement, start, last, subject, tuple(edits))
        query.references  # noqa: B018 - refuses what is no query
        return query

    @property
    def text(self) -> str:
        """The query as it was written."""
        return self.statement[self.start : self.end].strip()

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """The tables that the query reads, in the order of the text; not the names that WITH gives."""
        found = tuple(self._reference(table) for table in self._tables)
        used = {self._hint(table) for table in self._tables}
        if unused := next((hint for hint in self._hints if hint not in used), None):
            raise SchemaError(
                f"{self.subject}: a hint OPTIONS must stand right after the name of a table, found one at "
                f"{position(self.statement, unused.start)}"
            )
        return found

    @cached_property
    def reads(self) -> tuple[Reads | None, ...]:
        """What the query may read of each of its references, in their order; None: all."""
        return tuple(reads_of(table, self.tree) if self._is_understood else None for table in self._tables)

    @cached_property
    def processing_times(self) -> frozenset[str]:
        """Names in lower case that the query itself gives to ``PROCTIME()``."""
        aliases = self.tree.find_all(exp.Alias)
        return frozenset(a.alias.lower() for a in aliases if isinstance(a.this, exp.CurrentTimestamp))

    def check_can_stream(self) -> None:
        """Refuse what only a batch can answer, with a ``SchemaError``: sessions of a table."""
        check_no_sessions_of_a_table(self._white, self.subject)

    def over(
        self,
        views: Sequence[str | None],
        names: Sequence[str] | None = None,
        columns: Callable[[str], Iterable[str]] = lambda _: (),
    ) -> Revision:
        """The query with other names for its tables, each under its old one as an alias; None leaves it.

        All around it is white, so its lines and columns are those of the statement. ``names`` are the full
        ones of the tables, with databases and catalogs, that may stand before a column; None: as written.
        ``columns`` gives those of a view, which is asked where it matters: ``shop.t.x`` may be a field of a
        column ``shop``, and ``AS x(a, b)`` does not count a kind of change.

        >>> query = QueryText.of("SELECT a.t.id, b.T.id FROM a.t JOIN b.t")
        >>> query.over(["v1", "v2"]).text
        'SELECT `a.t`.id, `b.t`.id FROM `v1` AS `a.t` JOIN `v2` AS `b.t`'
        """
        names = names or [reference.name for reference in self.references]
        found = zip(self._tables, views, names, strict=True)
        given = [(table, view, name) for table, view, name in found if view is not None]
        tables = [
            _Named(table, name, self._shares_its_name(table), view)
            for table, view, name in given
            if not table.alias
        ]
        aliases = {id(one.table): quoted(one.alias) for one in tables}
        edits = [
            edit for table, view, _ in given for edit in self._edits(table, view, aliases.get(id(table)))
        ]
        edits += [edit for table, view, _ in given for edit in _with_kind(table, view, columns)]

        @cache
        def known(view: str) -> frozenset[str]:
            return frozenset(map(str.lower, columns(view)))

        def is_field(parts: Sequence[str], of: _Named, name: str) -> bool:
            """Whether the first part is a column, and the table has none by the name."""
            is_column = name == "*" or name in known(of.view)
            return not is_column and any(parts[0] in known(view) for _, view, _ in given)

        return self.worded.edited([*edits, *_columns_by_alias(self.tree, tables, is_field)])

    def _shares_its_name(self, table: exp.Table) -> bool:
        """Whether something else in the query is called as a table is: one of another database, an alias."""
        around = list(map(id, _ancestors(table)))
        return any(
            _written(one) != _written(table)
            for one in self.tree.find_all(exp.Table, exp.Subquery)
            if _called(one) == _called(table) and id(one) not in around
        )

    @property
    def united(self) -> tuple[QueryText, ...]:
        """The queries of which UNION ALL alone makes one, in the order of the text; else the query itself.

        >>> [one.text for one in QueryText.of("SELECT a FROM t UNION ALL SELECT b FROM u").united]
        ['SELECT a FROM t', 'SELECT b FROM u']
        """
        if self.is_piped or not _is_union_all(self.tree):
            return (self,)
        depth, starts, ends = 0, [self.start], list[int]()
        tokens = tokens_of(self._white, self.subject)
        for token, following in pairwise(tokens):
            depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
            is_union = token.token_type is TokenType.UNION and following.token_type is TokenType.ALL
            if depth == 0 and is_union:  # else it is a name
                ends.append(token.start)
                starts.append(following.end + 1)
        return tuple(
            replace(self, start=start, end=end) for start, end in zip(starts, [*ends, self.end], strict=True)
        )

    @cached_property
    def _white(self) -> str:
        return blanked(self.statement, self.start, self.end)

    @cached_property
    def worded(self) -> Revision:
        """The query with Spark's words, hints left out; the tree's offsets are in it."""
        given = self.edits  # a hint within one is refused with the references
        hints = [
            Edit(hint.start, hint.end, "")
            for hint in self._hints
            if not any(edit.start < hint.end and hint.start < edit.end for edit in given)
        ]
        edits = [*hints, *spark_words(self._white, self.subject), *given]
        tokens = tokens_of(self._white, self.subject)
        edits += _short_queries(tokens, edits)
        worded = Revision(self._white).edited(edits)
        steps = list(_steps(tokens))
        if steps and not _is_query(worded.text):
            worded = Revision(self._white).edited([*edits, *steps])
        if not self.is_numbered:
            return worded
        marks = [token for token in tokens_of(worded.text, self.subject) if _is_mark(token)]
        names = self.numbers(len(marks))
        return worded.edited(
            Edit(mark.start, mark.end + 1, f":{name}") for mark, name in zip(marks, names, strict=True)
        )

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, each once; those of ``numbers`` are ``?``."""
        # in the tree itself they may have values
        tree = query_tree(self.worded.text, self.subject, self.worded) if self.args else self.tree
        marks = tree.find_all(exp.Placeholder)
        return tuple(sorted({mark.name for mark in marks}))

    @cached_property
    def is_numbered(self) -> bool:
        """Whether there are parameters ``?``."""
        return any(map(_is_mark, tokens_of(self._white, self.subject)))

    @staticmethod
    def numbers(count: int) -> list[str]:
        """The names of that many parameters ``?``, in their order."""
        return [f"_{number:06}" for number in range(count)]

    @cached_property
    def is_piped(self) -> bool:
        """Whether there are steps after ``|>``: the tree is one query, in which they have another order."""
        tokens = tokens_of(self.worded.text, self.subject)
        return any(token.token_type is TokenType.PIPE_GT for token in tokens)

    @cached_property
    def _is_understood(self) -> bool:
        """Whether the query's text tells what it reads of its tables."""
        return not self.is_piped and self._has_known_parts

    @cached_property
    def _has_known_parts(self) -> bool:
        return is_understood(self.tree)

    @cached_property
    def _words(self) -> frozenset[str]:
        """All words in lower case that may be names: of the text, for sqlglot's tree drops some."""
        tokens = tokens_of(self.worded.text, self.subject)
        return frozenset(one.text.lower() for one in tokens if one.token_type is not TokenType.STRING)

    @cached_property
    def _hints(self) -> tuple[Hint, ...]:
        return hints_in(self._white, self.subject)

    @property
    def is_list(self) -> bool:
        """Whether the query is a list of rows, ``VALUES (…), (…)``: the only one whose rows have an order."""
        return isinstance(self.tree, exp.Values)

    def with_defaults(self, values: Sequence[str]) -> QueryText:
        """A list of rows with these texts, one for each column, in place of DEFAULT; others as they are.

        >>> query = QueryText.of("VALUES (DEFAULT, 'a'), (1, DEFAULT)")
        >>> query.with_defaults(["7", "'x'"]).worded.text
        "VALUES (7, 'a'), (1, 'x')"
        """
        if not self.is_list:
            return self
        found, depth, column = [], 0, 0
        texts = (TokenType.STRING, TokenType.IDENTIFIER)
        tokens = tokens_of(self._white, self.subject)
        words = ["" if token.token_type in texts else token.text.upper() for token in tokens]
        for number, (word, token) in enumerate(zip(words, tokens, strict=True)):
            depth += (word == "(") - (word == ")")
            if depth == 0:
                column = 0
            elif depth == 1:
                column += word == ","
            around = {words[other] for other in (number - 1, number + 1) if other < len(words)}
            is_cell = word == "DEFAULT" and depth <= 1 and around <= {"(", ",", ")", "VALUES"}
            if is_cell and column < len(values):
                found.append(Edit(token.start, token.end + 1, values[column]))
        return replace(self, edits=(*self.edits, *found)) if found else self

    @cached_property
    def tree(self) -> exp.Expr:
        """The query as sqlglot reads it, in Spark's words, with values for parameters where it has them."""
        tree = query_tree(self.worded.text, self.subject, self.worded)
        for mark in list(tree.find_all(exp.Placeholder)) if self.args else ():
            if (value := literal_tree(self.args.get(mark.name, ...))) is not None:
                mark.replace(value)
        return tree

    @cached_property
    def _tables(self) -> tuple[exp.Table, ...]:
        tables = filter(is_read, self.tree.find_all(exp.Table))
        named = (table for table in tables if not _is_named_query(table))
        return tuple(sorted(named, key=_span))

    def _edits(self, table: exp.Table, view: str, own_alias: str | None) -> Iterator[Edit]:
        start, end = _span(table)
        version = table.args.get("version")
        alias = "" if own_alias is None else f" AS {own_alias}"
        if table.args.get("sample") is None:
            yield Edit(start, end, f"{quoted(view)}{alias}")
        else:
            yield Edit(start, end, quoted(view))
            after = self._end_of_sample(end)
            yield Edit(after, after, alias)
        if version is not None:
            yield Edit(version.meta[START], version.meta[END], "")

    def _end_of_sample(self, start: int) -> int:
        """Where TABLESAMPLE (…) [REPEATABLE (…)] of a table ends, behind which Spark wants its alias."""
        tokens = [token for token in tokens_of(self.worded.text, self.subject) if token.start >= start]
        words = [token.token_type for token in tokens]
        at = words.index(TokenType.R_PAREN, words.index(TokenType.TABLE_SAMPLE))
        if at + 1 < len(tokens) and tokens[at + 1].text.upper() == "REPEATABLE":
            at = words.index(TokenType.R_PAREN, at + 1)
        return int(tokens[at].end) + 1

    def _reference(self, table: exp.Table) -> Reference:
        start, _ = _span(table)
        select = table.find_ancestor(exp.Select)
        hint = self._hint(table)
        where = position(self.statement, self.worded.original(start))
        parts = table.this.args["name"] if isinstance(table.this, TableChanges) else table.parts
        subject = f"{self.subject}: table {parts[-1].name!r} at {where}"
        return Reference(
            ".".join(part.name for part in parts),
            where,
            {} if hint is None else hint.options,
            _as_of(table, subject),
            _changes_between(table.this, subject) if isinstance(table.this, TableChanges) else None,
            self._words if self._is_understood and _names_columns(table, select, self.tree) else None,
            len(self._tables) == 1 and self._has_known_parts and self.tree.find(*_DIGESTING) is None,
            # else a condition may be that of another table
            comparisons(table, select)
            if isinstance(select, exp.Select) and self._is_understood and not self._shares_its_name(table)
            else (),
        )

    def _hint(self, table: exp.Table) -> Hint | None:
        """The hint right after a table's name."""
        end = self.worded.original(_span(table)[1] - 1) + 1
        return next((hint for hint in self._hints if hint.after == end), None)


_T: Final = TokenType
_BEFORE_QUERIES: Final = frozenset({_T.L_PAREN, _T.R_PAREN, _T.UNION, _T.EXCEPT, _T.INTERSECT})
"""What may stand before a query; a bracket that ends may be that of WITH."""


def _short_queries(tokens: Sequence[Token], edits: Sequence[Edit]) -> Iterator[Edit]:
    """``TABLE t`` and ``f(TABLE(t))`` as the queries for which they are short, but in words of Flink."""
    names = (_T.VAR, _T.IDENTIFIER)
    for at, token in enumerate(tokens):
        kinds = [one.token_type for one in tokens[at + 1 : at + 3]]
        if token.token_type is not _T.TABLE or any(one.start <= token.start < one.end for one in edits):
            continue
        is_first = at == 0 and kinds[:1] != [_T.L_PAREN]
        if kinds and (is_first or (kinds[0] in names and _is_before_a_query(tokens[:at]))):
            if any(one.text.upper() == "BY" for one in tokens[at + 2 : at + 3]):
                continue  # an alias, before GROUP BY
            yield Edit(token.start, token.end + 1, "SELECT * FROM")
        elif len(kinds) > 1 and kinds[0] is _T.L_PAREN and kinds[1] in names and _is_name(tokens[at + 2 :]):
            yield Edit(tokens[at + 2].start, tokens[at + 2].start, "SELECT * FROM ")


def _is_before_a_query(tokens: Sequence[Token]) -> bool:
    """Whether the last words are such that a query may follow, which is no argument of a function."""
    *_, before, last = (None, *tokens)
    if last.token_type in (_T.ALL, _T.DISTINCT):
        return before is not None and (before.token_type in _BEFORE_QUERIES or before.text.upper() == "MINUS")
    is_call = last.token_type is _T.L_PAREN and before is not None and before.token_type is _T.VAR
    return not is_call and (last.token_type in _BEFORE_QUERIES or last.text.upper() == "MINUS")


def _is_name(tokens: Sequence[Token]) -> bool:
    """Whether words before the next bracket that ends are those of one name."""
    inside = list(takewhile(lambda one: one.token_type is not _T.R_PAREN, tokens))
    return len(inside) % 2 == 1 and all(one.token_type is _T.DOT for one in inside[1::2])


_STEP: Final = re.compile(
    "SELECT|EXTEND|SET|DROP|AS|WHERE|LIMIT|OFFSET|ORDER|SORT|CLUSTER|DISTRIBUTE|AGGREGATE|PIVOT|UNPIVOT|TABLESAMPLE"
    "|JOIN|INNER|LEFT|RIGHT|FULL|CROSS|NATURAL|SEMI|ANTI|LATERAL|UNION|EXCEPT|MINUS|INTERSECT",
    re.IGNORECASE,
)
"""With what a step of a pipe begins."""


def _steps(tokens: Sequence[Token]) -> Iterator[Edit]:
    """Each ``|`` that may begin a step, as in Spark 4.3, as ``|>``."""
    for token, following in pairwise(tokens):
        if token.token_type is TokenType.PIPE and _STEP.fullmatch(following.text):
            yield Edit(token.start, token.end + 1, "|>")


def _is_query(text: str) -> bool:
    try:
        query_tree(text, "query")
    except SchemaError:
        return False
    return True


def _is_mark(token: Token) -> bool:
    return token.token_type is TokenType.PLACEHOLDER


def _span(table: exp.Table) -> tuple[int, int]:
    """Where a table's name begins and ends, with its database; or the function that gives its changes."""
    if isinstance(table.this, TableChanges):
        return table.this.meta[START], table.this.meta[END]
    parts = table.parts
    return parts[0].meta[START], parts[-1].meta[END] + 1


def is_read(table: exp.Table) -> bool:
    """Whether it is a table by its name, or the changes of one; not a function, or a parameter."""
    parts = [] if isinstance(table.this, TableChanges) else table.parts
    return all(isinstance(part, exp.Identifier) for part in parts)


def _is_named_query(table: exp.Table) -> bool:
    """Whether the name is one that a WITH around it has given, or that of an alias in a hint."""
    if table.find_ancestor(exp.Hint) is not None:
        return True
    if table.db:
        return False
    node: exp.Expr | None = table
    while node is not None:
        parent = node.parent
        if isinstance(parent, exp.With):
            # a query in WITH sees those before it, and itself if it is recursive
            own = parent.expressions.index(node)
            seen = parent.expressions[: own + bool(parent.recursive)]
        else:
            with_ = parent.args.get("with_") if parent is not None else None
            seen = with_.expressions if with_ is not None and node is not with_ else []
        if any(query.alias.lower() == table.name.lower() for query in seen):
            return True
        node = parent
    return False


def _is_union_all(tree: Any) -> bool:
    """Whether a query is several SELECT with UNION ALL between them, and nothing else."""
    while isinstance(tree, exp.Union):
        known = {"this", "expression", "distinct"}
        has_more = any(part for name, part in tree.args.items() if name not in known)
        if has_more or tree.args.get("distinct") or not isinstance(tree.expression, exp.Select):
            return False
        tree = tree.this
    return isinstance(tree, exp.Select)


def _called(source: exp.Expr) -> str:
    """What may stand before a column of a table or a query, in lower case."""
    return str(visible_name(source) if isinstance(source, exp.Table) else source.alias).lower()


def _written(source: exp.Expr) -> tuple[str, ...]:
    """The name as it is written, or the alias, which is another one."""
    if source.alias or not isinstance(source, exp.Table):
        return ("", _called(source))
    return tuple(part.name.lower() for part in source.parts)


def _ancestors(node: exp.Expr) -> Iterator[exp.Expr]:
    while (parent := node.parent) is not None:
        yield parent
        node = parent


@dataclass(frozen=True)
class _Named:
    """A table without an alias.

    Attributes:
        name: the full one.
        is_shared: whether something else is called so without databases.
        view: what Spark reads for it.
    """

    table: exp.Table
    name: str
    is_shared: bool
    view: str

    @property
    def alias(self) -> str:
        """What the table gets as an alias: its full name where it shares the last part."""
        return self.name if self.is_shared else visible_name(self.table)

    def ends_with(self, parts: Sequence[str]) -> bool:
        """Whether its full name has these last parts, in lower case."""
        return self.name.lower().split(".")[-len(parts) :] == [*parts]


_MOST_PARTS: Final = 3
"""A catalog, a database and a table."""


def _with_kind(table: exp.Table, view: str, columns: Callable[[str], Iterable[str]]) -> Iterator[Edit]:
    """The kind of change, which is the last column of a stream, under its name in a list of all columns."""
    alias = table.args.get("alias")
    if alias is not None and alias.columns and ROW_KIND_COLUMN in columns(view):
        end = alias.columns[-1].meta[END] + 1
        yield Edit(end, end, f", {ROW_KIND_COLUMN}")


def _columns_by_alias(
    tree: exp.Expr, tables: Sequence[_Named], is_field: Callable[[Sequence[str], _Named, str], bool]
) -> Iterator[Edit]:
    """Columns written ``db.t.c``, and ``t.c`` of a table whose alias is not ``t``; not fields of columns."""
    for column in tree.find_all(exp.Column) if tables else ():
        names = [part.name.lower() for part in column.parts]
        for length in range(min(_MOST_PARTS, len(names) - 1), 0, -1):
            found = [one for one in tables if one.ends_with(names[:length])]
            if length == 1:
                found = _nearest(column, [one for one in found if one.is_shared])
            if len({one.alias for one in found}) != 1:
                continue
            if is_field(names, found[0], names[length]):
                continue
            start, last = column.parts[0].meta[START], column.parts[length - 1].meta
            if found[0].is_shared:
                yield Edit(start, last[END] + 1, quoted(found[0].alias))
            else:
                yield Edit(start, last[START], "")
            break


def _nearest(column: exp.Column, tables: Sequence[_Named]) -> list[_Named]:
    """Those of some tables, all called alike, that stand in the innermost query with anything called so."""
    if not tables:
        return []
    name = _called(tables[0].table)
    for query in _ancestors(column):
        if isinstance(query, exp.Select):
            sources = query.find_all(exp.Table, exp.Subquery)
            own = [one for one in sources if _called(one) == name and one.find_ancestor(exp.Select) is query]
            if own:
                found = [table for table in tables if any(table.table is one for one in own)]
                return found if len(found) == len(own) else []
    return []


def _as_of(table: exp.Table, subject: str) -> AsOf | None:
    version = table.args.get("version")
    if version is None:
        return None
    value = version.expression
    if version.args["kind"] == "AS OF":
        if version.name == "VERSION" and isinstance(value, exp.Literal):
            return AsOf(AsOfKind.VERSION, value.name, not value.is_string)
        if version.name == "TIMESTAMP":
            if isinstance(value, exp.CurrentTimestamp | exp.Column):
                return AsOf(AsOfKind.PROCESSING, value.name if isinstance(value, exp.Column) else "")
            if (time := _written_time(value)) is not None:
                return AsOf(AsOfKind.TIMESTAMP, time)
    raise SchemaError(
        f"{subject}: expected FOR SYSTEM_TIME AS OF a processing time or TIMESTAMP '…', or "
        f"FOR SYSTEM_VERSION AS OF a snapshot's id or a 'tag', found {spelled(version)!r}"
    )


def _written_time(value: exp.Expr) -> str | None:
    """The text of ``TIMESTAMP '…'`` or ``'…'``."""
    literal = value.this if isinstance(value, exp.Cast) else value
    return literal.name if isinstance(literal, exp.Literal) and literal.is_string else None


_TIME: Final = re.compile(r"\d{4}-\d\d?-\d\d?[ T]\d\d?:")


def _changes_between(call: TableChanges, subject: str) -> ChangesBetween:
    def state(value: exp.Expr) -> AsOf:
        if isinstance(value, exp.Literal) and value.is_string and _TIME.match(value.name):
            return AsOf(AsOfKind.TIMESTAMP, value.name)  # no tag can have such a name
        if isinstance(value, exp.Literal):
            return AsOf(AsOfKind.VERSION, value.name, not value.is_string)
        if isinstance(value, exp.Cast) and (time := _written_time(value)) is not None:
            return AsOf(AsOfKind.TIMESTAMP, time)
        raise SchemaError(
            f"{subject}: table_changes takes as from and to a snapshot's id, a 'tag' or TIMESTAMP '…', found "
            f"{spelled(value)!r}"
        )

    end = call.args["end"]
    is_newest = end is None or isinstance(end, exp.Null)
    return ChangesBetween(state(call.args["start"]), None if is_newest else state(end))


def _names_columns(table: exp.Table, select: exp.Expr | None, tree: exp.Expr) -> bool:
    """Whether each column of the table that the query reads is named in its text."""
    if not isinstance(select, exp.Select) or _is_renamed(table):
        return False
    called = {visible_name(table).lower(), *(around.alias.lower() for around in brackets(table))}
    for star in tree.find_all(exp.Star):
        column = star.parent if isinstance(star.parent, exp.Column) else None
        if column is not None and column.table:
            is_own = column.table.lower() in called  # it may stand in a query within this one
        else:
            is_own = star.find_ancestor(exp.Select) is select and not isinstance(star.parent, exp.Count)
        if is_own and not _is_of_exists(star if column is None else column):
            return False
    return True


def _is_of_exists(item: exp.Expr) -> bool:
    """Whether a query gives a star or ``t.*`` to EXISTS, which asks for no value of its rows."""
    select = item.parent
    return (
        isinstance(select, exp.Select)
        and item.arg_key == "expressions"
        and isinstance(select.parent, exp.Exists)
        and not select.args.get("distinct")  # with OFFSET, how many rows differ decides; so does GROUP BY ALL
        and not select.args.get("group")
    )


def _is_renamed(table: exp.Table) -> bool:
    """Whether an alias gives the columns of a table, or of the brackets around it, names by their places."""
    aliases = (source.args.get("alias") for source in (table, *brackets(table)))
    return any(alias is not None and alias.columns for alias in aliases)


def query_at(cursor: Cursor) -> QueryText:
    """Read the query that the rest of the statement is."""
    if cursor.at_end:
        raise cursor.refusal("expected a query")
    return QueryText.of(cursor.text, *cursor.rest(), cursor.subject)
