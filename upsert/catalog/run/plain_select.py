"""A SELECT of columns of one table as values, and a list of rows: what is answered without Spark (pure).

A text is read here only if it is written as Spark wants it. Any other text, and any word that is not known
here, is left to Spark, which also says what is wrong with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from upsert import types
from upsert.catalog.run.unknown_columns import unknown_column
from upsert.errors import SchemaError
from upsert.schema import Column
from upsert.sql.dialect import START, position, tokens_of, visible_name
from upsert.sql.predicates import value_in
from upsert.sql.query import QueryText

_PARTS: Final = frozenset({"expressions", "from_", "where", "order", "limit", "offset"})
_MOST_ROWS: Final = (1 << 31) - 1
"""The largest number that Spark takes for a LIMIT."""


@dataclass(frozen=True)
class PlainSelect:
    """What a SELECT asks of one table.

    Attributes:
        called: what may stand before a column, in lower case.
        outputs: the names of the columns that come out, and of those of the table that they are.
        count: the name under which the number of rows comes out, in place of columns; None for columns.
        where: the condition, about which nothing is known here.
        orders: by which columns of the table, and for each whether ascending, and whether NULLs come first.
    """

    called: str
    outputs: tuple[tuple[str, str], ...]
    count: str | None
    where: exp.Expr | None
    orders: tuple[tuple[str, tuple[bool, bool]], ...]
    limit: int | None
    offset: int


def plain_select(query: QueryText, names: Sequence[str]) -> PlainSelect | None:
    """A query of one table with these columns; None for one that only Spark answers.

    Raises:
        UnknownColumnError: it names a column that the table does not have.

    >>> query = QueryText.of("SELECT ID, o.name AS n FROM orders o WHERE id > 3 ORDER BY n DESC LIMIT 5")
    >>> found = plain_select(query, ["id", "name"])
    >>> found.outputs, found.orders, found.limit
    ((('ID', 'id'), ('n', 'name')), (('name', (False, False)),), 5)
    >>> plain_select(QueryText.of("SELECT id + 1 FROM orders"), ["id", "name"])
    """
    return _plain(query, query.tree, names, is_computed=False)


def plain_update(query: QueryText, names: Sequence[str]) -> tuple[PlainSelect, list[exp.Expr]] | None:
    """The rows of an UPDATE, all of their columns, and the values that it sets; None where Spark is needed.

    ``query`` gives both, the values last.

    >>> query = QueryText.of("SELECT *, 7 AS n FROM orders WHERE id > 3")
    >>> found, values = plain_update(query, ["id", "name"])
    >>> found.outputs, found.where.sql(), values[0].sql()
    ((('id', 'id'), ('name', 'name')), 'id > 3', '7')
    """
    tree = query.tree.copy()
    if not isinstance(tree, exp.Select):
        return None
    values = [one.unalias() for one in tree.expressions[1:]]
    tree.set("expressions", tree.expressions[:1])
    found = _plain(query, tree, names, is_computed=True)
    return None if found is None else (found, values)


def _plain(
    query: QueryText, tree: exp.Expr, names: Sequence[str], *, is_computed: bool
) -> PlainSelect | None:
    if not isinstance(tree, exp.Select) or not {part for part, given in tree.args.items() if given} <= _PARTS:
        return None
    words = None if query.is_piped else _words(query)
    if words is None or not is_plain_select(words, is_computed=is_computed):
        return None
    table = tree.args["from_"].this
    if not _is_alone(table):
        return None
    reader = Columns(query, visible_name(table).lower(), names)
    try:
        return reader.select(tree)
    except NotPlainError:
        return None


def _is_alone(table: exp.Expr) -> bool:
    """Whether a source is a table, maybe one with an alias or as of a version, and nothing else."""
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        return False
    alias = table.args.get("alias")
    known = {"this", "db", "catalog", "alias", "version"}
    return {part for part, given in table.args.items() if given} <= known and not (alias and alias.columns)


def _words(query: QueryText) -> Sequence[Token] | None:
    """The words of a text; None if one has a backslash, for two readers may differ in what it escapes."""
    text = query.worded.text
    return None if "\\" in text else tokens_of(text, query.subject)


class NotPlainError(Exception):
    """A part of the query is Spark's."""


class UnknownColumnError(SchemaError):
    """A query names a column that its table does not have."""


_MAY_BE_FUNCTIONS: Final = re.compile(
    "current_.*|localtime.*|user|session_user|system_user|now|grouping__id", re.I
)
"""Names without brackets that Spark takes for functions, where no column is called so."""


@dataclass(frozen=True)
class Columns:
    """Reads a query of a table that is ``called`` so in it, with the columns ``names``."""

    query: QueryText
    called: str
    names: Sequence[str]

    def select(self, tree: exp.Select) -> PlainSelect:
        """The query as values.

        Raises:
            NotPlainError: it is Spark's.
        """
        limit, offset = (self._number(tree.args.get(part)) for part in ("limit", "offset"))
        where = None if tree.args.get("where") is None else tree.args["where"].this
        items = tree.expressions
        if (count := _counts(items)) is not None:
            if tree.args.get("order") or limit is not None or offset is not None:
                raise NotPlainError
            return PlainSelect(self.called, (), count, where, (), None, 0)
        outputs = tuple(pair for item in items for pair in self._outputs(item))
        orders = [] if tree.args.get("order") is None else tree.args["order"].expressions
        found = tuple(self._order(one, outputs) for one in orders)
        return PlainSelect(self.called, outputs, None, where, found, limit, offset or 0)

    def column(self, node: exp.Expr) -> str:
        """The table's column that a part of the query is.

        Raises:
            NotPlainError: it is something else, as far as is known here.
            UnknownColumnError: it can only be a column, and there is none.
        """
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            raise NotPlainError
        alike = [name for name in self.names if name.lower() == node.name.lower()]
        if not alike and len(node.parts) == 1 and not _MAY_BE_FUNCTIONS.fullmatch(node.name):
            raise self._unknown(node)
        if len(alike) != 1 or not self._is_before(node):
            raise NotPlainError
        return alike[0]

    def _unknown(self, node: exp.Column) -> UnknownColumnError:
        query = self.query
        where = position(query.statement, query.worded.original(node.this.meta[START]))
        found = unknown_column(node.name, "", [self.names], query)
        return UnknownColumnError(f"{query.subject}: {found} at {where}")

    def _is_before(self, node: exp.Column) -> bool:
        """Whether nothing stands before a column, or the table."""
        return [part.name.lower() for part in node.parts[:-1]] in ([], [self.called])

    def _outputs(self, item: exp.Expr) -> Iterator[tuple[str, str]]:
        name = None
        if isinstance(item, exp.Alias):
            name, item = item.alias, item.this
        star = item.this if isinstance(item, exp.Column) else item
        if not isinstance(star, exp.Star):
            column = self.column(item)
            yield item.name if name is None else name, column
            return
        is_own = not isinstance(item, exp.Column) or self._is_before(item)
        if name is not None or any(star.args.values()) or not is_own:
            raise NotPlainError
        yield from ((column, column) for column in self.names)

    def _order(self, one: exp.Expr, outputs: Sequence[tuple[str, str]]) -> tuple[str, tuple[bool, bool]]:
        """By which column: of those that come out one that is called so, else one of the table."""
        if not isinstance(one, exp.Ordered) or one.args.get("with_fill"):
            raise NotPlainError
        by = one.this
        how = not one.args.get("desc"), bool(one.args.get("nulls_first"))
        if isinstance(by, exp.Literal):
            place = self._number(by) or 0
            if not 1 <= place <= len(outputs):
                raise NotPlainError
            return outputs[place - 1][1], how
        alike = [column for name, column in outputs if name.lower() == by.name.lower()]
        is_output = isinstance(by, exp.Column) and len(by.parts) == 1 and alike
        if is_output and len(alike) > 1:
            raise NotPlainError  # Spark refuses a name of several
        return alike[0] if is_output else self.column(by), how

    def _number(self, part: exp.Expr | None) -> int | None:
        """The number of a LIMIT or an OFFSET, or one that stands for a column."""
        if part is None:
            return None
        literal = part if isinstance(part, exp.Literal) else part.args.get("expression")
        if not isinstance(literal, exp.Literal) or not re.fullmatch("[0-9]{1,10}", literal.name):
            raise NotPlainError
        if literal.is_string or int(literal.name) > _MOST_ROWS:
            raise NotPlainError
        return int(literal.name)


def _counts(items: Sequence[exp.Expr]) -> str | None:
    """The name of ``count(*)``, if that is all that is asked for."""
    if len(items) != 1:
        return None
    item = items[0].this if isinstance(items[0], exp.Alias) else items[0]
    is_count = isinstance(item, exp.Count) and isinstance(item.this, exp.Star) and not item.expressions
    if not is_count or any(item.this.args.values()):
        return None
    return items[0].alias if isinstance(items[0], exp.Alias) else "count(1)"


_TIMES: Final = {
    pa.date32(): re.compile(r"\d{4}-\d\d-\d\d"),
    types.TIMESTAMP: re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?"),
}
"""How days and times are written that all readers of texts read alike."""

_DIGITS: Final = 18
"""Signs of a number that is a BIGINT, or a DECIMAL with no more digits before the point than one."""

_DIGITS_OF_BIGINT: Final = 20
"""Spark's DECIMAL for whole numbers that stand in a column with others has as many."""


def listed_rows(query: QueryText, columns: Sequence[Column], zone: str | None) -> list[list[Any]] | None:
    """The values of each column of ``VALUES (…), (…)``; None for a list that only Spark reads.

    All are literals that a column has as they are written, so that it does not matter in which type they meet
    in the list. ``zone`` is the session's, None if it is not known.

    >>> column = Column("id", pa.int32())
    >>> listed_rows(QueryText.of("VALUES (1), (-2)"), [column], "UTC")
    [[1, -2]]
    >>> listed_rows(QueryText.of("VALUES (1), (2.5)"), [column], "UTC")
    """
    tree = query.tree
    if not isinstance(tree, exp.Values) or {part for part, given in tree.args.items() if given} != {
        "expressions"
    }:
        return None
    if (words := _words(query)) is None or not is_plain_list(words):
        return None
    rows = [one.expressions if isinstance(one, exp.Tuple) else [one] for one in tree.expressions]
    if any(len(row) != len(columns) for row in rows):
        return None
    found = [literals([row[at].unnest() for row in rows], column, zone) for at, column in enumerate(columns)]
    return None if any(values is None for values in found) else [values or [] for values in found]


def literals(nodes: Sequence[exp.Expr], column: Column, zone: str | None) -> list[Any] | None:
    """What literals are in a column that gets all of them; None where Spark would convert one."""
    values = [None if isinstance(one, exp.Null) else _literal(one, column.type, zone) for one in nodes]
    are_known = (
        value is not None or isinstance(one, exp.Null) for one, value in zip(nodes, values, strict=True)
    )
    if not all(are_known) or (None in values and not column.nullable):
        return None
    if not pa.types.is_integer(column.type) and not _meet_unchanged(nodes):
        return None
    try:
        pa.array(values, column.type)
    except (pa.ArrowException, OverflowError):
        return None  # one does not fit, of which Spark tells the column
    return values


def _literal(node: exp.Expr, type_: pa.DataType, zone: str | None) -> Any:
    """A literal's value, if a column of the type has it as it is written."""
    if isinstance(node, exp.Cast):
        pattern = _TIMES.get(type_)
        if not isinstance(node.this, exp.Literal) or pattern is None or not pattern.fullmatch(node.this.name):
            return None
        return value_in(node, type_, zone)
    if isinstance(node, exp.Literal | exp.Boolean) or (
        isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string
    ):
        text = node.this.name if isinstance(node, exp.Neg) else node.name
        if type_ == pa.float32() and not re.fullmatch("[0-9]{1,7}", text):
            return None  # Python would round it twice
        value = value_in(node, type_, zone)
        has_sign = not isinstance(value, float) or "e" in text.lower()
        return value if has_sign else value + 0.0  # -0.0 is a DECIMAL, whose zero has none
    return None


def _meet_unchanged(nodes: Sequence[exp.Expr]) -> bool:
    """Whether numbers have room in the types in which Spark lets them meet."""
    texts = [
        literal.name for node in nodes for literal in node.find_all(exp.Literal) if not literal.is_string
    ]
    exact = [text for text in texts if "e" not in text.lower()]
    if any(math.isinf(float(text)) for text in texts) or any(len(text) > _DIGITS for text in exact):
        return False
    scale = max((len(text.partition(".")[2]) for text in exact), default=0)
    return _DIGITS_OF_BIGINT + scale <= types.MAX_DECIMAL_PRECISION


# sqlglot passes over a comma too many, a dot, the words behind a LIMIT, and takes for a name what is none
# to Spark; its tree does not tell. So the words of each clause but a condition must have a known form.
_CLAUSES: Final = ("SELECT", "FROM", "WHERE", "ORDER", "LIMIT", "OFFSET")
"""In the order in which Spark wants them."""

_WORDS: Final = frozenset({*_CLAUSES, "BY", "AS", "ASC", "DESC", "NULLS", "ALL", "DISTINCT", "VALUES"})
"""They are no names here, also where Spark would take them for such."""

_FUNCTION: Final = "CURRENT_PATH"
"""Spark calls it also where a column has the name."""

_WITH_TEXT: Final = (TokenType.STRING, TokenType.IDENTIFIER)
_NAME: Final = re.compile("[A-Za-z0-9_]+")
_NUMBER: Final = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.I)
_NAME_OF_TABLE: Final = re.compile("[A-Za-z0-9_$]+")

_COLUMN: Final = r"[nk](?: \. [nk])*"
_ITEM: Final = rf"(?:\*|{_COLUMN} \. \*|(?:{_COLUMN}|n \( \* \))(?: AS [nk]| n)?)"
_VERSION: Final = r"(?: (?:k )?[nk] AS n (?:1|'|k '))?"
_ORDER: Final = rf"(?:{_COLUMN}|1)(?: ASC| DESC)?(?: NULLS [nk])?"
_FORMS: Final = {
    "SELECT": re.compile(rf"SELECT {_ITEM}(?: , {_ITEM})*"),
    "FROM": re.compile(rf"FROM [nk](?: \. [nk]){{0,2}}{_VERSION}(?: (?:AS )?n)?"),
    "ORDER": re.compile(rf"ORDER BY {_ORDER}(?: , {_ORDER})*"),
    "LIMIT": re.compile("LIMIT 1"),
    "OFFSET": re.compile("OFFSET 1"),
}
"""The words of clauses as `_sign` has them: n and k are names, a number is 1, a text is '."""


def is_plain_select(tokens: Sequence[Token], *, is_computed: bool = False) -> bool:
    """Whether a SELECT stands in Spark's order and forms; ``is_computed``: its list has expressions.

    >>> from upsert.sql.dialect import tokens_of
    >>> texts = ["SELECT a, t.b AS c FROM t WHERE a IN (1, 2) LIMIT 1", "SELECT a,, b FROM t"]
    >>> [is_plain_select(tokens_of(text, "query")) for text in texts]
    [True, False]
    """
    if any(word.text.upper() == _FUNCTION and word.token_type not in _WITH_TEXT for word in tokens):
        return False
    clauses = list(_clauses(tokens))
    names = [words[0].text.upper() for words in clauses]
    if names[:2] != ["SELECT", "FROM"] or names != sorted(set(names), key=_CLAUSES.index):
        return False
    free = {"WHERE", "SELECT"} if is_computed else {"WHERE"}
    return all(
        _is_plain(words) if name in free else _FORMS[name].fullmatch(_form(words, name)) is not None
        for name, words in zip(names, clauses, strict=True)
    )


def is_plain_list(tokens: Sequence[Token]) -> bool:
    """Whether ``VALUES (…), (…)`` has only signs that both read alike.

    >>> from upsert.sql.dialect import tokens_of
    >>> texts = ["VALUES (1, 'a'), (2, NULL)", "VALUES (1, 'a',), (2, NULL)"]
    >>> [is_plain_list(tokens_of(text, "query")) for text in texts]
    [True, False]
    """
    return tokens[0].token_type is TokenType.VALUES and _is_plain(tokens)


def _clauses(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """The words of each clause."""
    depth, words = 0, list[Token]()
    for token in tokens:
        depth += token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET)
        depth -= token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET)
        if depth == 0 and token.token_type not in _WITH_TEXT and token.text.upper() in _CLAUSES and words:
            yield words
            words = []
        words.append(token)
    if words:
        yield words


def _form(words: Sequence[Token], clause: str) -> str:
    return " ".join(_sign(word, _NAME_OF_TABLE if clause == "FROM" else _NAME) for word in words)


def _sign(token: Token, name: re.Pattern[str]) -> str:
    """What of a word its form depends on; k is a name that is a keyword of sqlglot's."""
    match token.token_type:
        case TokenType.IDENTIFIER:
            return "n"
        case TokenType.STRING:
            return "'"
        case TokenType.NUMBER:
            return "1"
    if token.text.upper() in _WORDS:
        return token.text.upper()
    if name.fullmatch(token.text) is None:
        return token.text
    return "n" if token.token_type is TokenType.VAR else "k"


def _is_plain(words: Sequence[Token]) -> bool:
    """Whether no list has a comma too many, and names without quotes and numbers have Spark's letters."""
    if words[-1].token_type is TokenType.COMMA:
        return False
    others = [word for word in words if word.token_type not in _WITH_TEXT]
    if any(not word.text.isascii() or "$" in word.text for word in others):
        return False
    numbers = (word.text for word in others if word.token_type is TokenType.NUMBER)
    if not all(map(_NUMBER.fullmatch, numbers)):
        return False
    ends = (TokenType.COMMA, TokenType.L_PAREN, TokenType.SELECT, TokenType.VALUES)
    return not any(
        (one.token_type in ends and other.token_type is TokenType.COMMA)
        or (one.token_type is TokenType.COMMA and other.token_type is TokenType.R_PAREN)
        for one, other in pairwise(words)
    )
