"""How sqlglot reads Spark SQL here: words, queries, and where in the user's text they stand (pure).

Only the parser is used. The text that Spark gets is the user's own, with tables and a few words exchanged
(``Revision``), so nothing is lost in a translation to and fro.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from threading import Lock
from typing import Any, ClassVar, Final, NamedTuple

from cachetools import LRUCache, cached
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, ParseError, TokenError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from upsert.errors import SchemaError


def position(text: str, offset: int) -> str:
    r"""Line and column of an offset, both counted from 1.

    >>> position("SELECT\n  a", 9)
    'line 2, column 3'
    """
    before = text[:offset]
    return f"line {before.count(chr(10)) + 1}, column {offset - before.rfind(chr(10))}"


def placed(sentence: str, where: str) -> str:
    """A message with the position that it is about.

    >>> placed("did you mean 't'?", "line 1, column 15")
    "did you mean 't'? at line 1, column 15"
    """
    return f"{sentence}{'' if sentence.endswith('?') else ','} at {where}"


@dataclass(frozen=True)
class Edit:
    """A part of a text that is exchanged: from ``start`` to before ``end``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Revision:
    """A text after edits, which knows where its characters come from.

    >>> revision = Revision("SELECT a FROM t").edited([Edit(14, 15, "`view 1`"), Edit(7, 8, "bee")])
    >>> revision.text, revision.original(revision.text.index("view"))
    ('SELECT bee FROM `view 1`', 14)
    """

    text: str
    before: Revision | None = None
    _starts: tuple[int, ...] = (0,)
    _origins: tuple[tuple[int, bool], ...] = ((0, True),)
    """Of each piece of the text: where it stood before, and whether it was left as it is."""

    def edited(self, edits: Iterable[Edit]) -> Revision:
        """The text after edits, none of which may overlap another one."""
        pieces: list[tuple[str, int, bool]] = []
        reached = 0
        for edit in sorted(edits, key=lambda one: (one.start, one.end)):
            if edit.start < reached:
                raise AssertionError(f"two edits overlap at {edit.start} of {self.text!r}")
            pieces += [(self.text[reached : edit.start], reached, True), (edit.text, edit.start, False)]
            reached = edit.end
        pieces.append((self.text[reached:], reached, True))
        starts = (0, *accumulate(len(piece) for piece, _, _ in pieces))
        origins = tuple((origin, is_same) for _, origin, is_same in pieces)
        return Revision("".join(piece for piece, _, _ in pieces), self, starts[:-1], origins)

    @property
    def first(self) -> str:
        """The text before all edits."""
        return self.text if self.before is None else self.before.first

    def original(self, offset: int) -> int:
        """Where a character stood in the first text, or the one that it replaced."""
        number = bisect_right(self._starts, offset) - 1
        origin, is_same = self._origins[number]
        found = origin + (offset - self._starts[number] if is_same else 0)
        return found if self.before is None else self.before.original(found)


class TableChanges(exp.Expression, exp.Func):
    """``table_changes(table, from [, to])``: the parts of the table's name, and two of its states."""

    arg_types: ClassVar[dict[str, bool]] = {"name": True, "start": True, "end": False}


def visible_name(table: exp.Table) -> str:
    """What stands before a column of a table in its query."""
    if isinstance(table.this, TableChanges) and not table.alias:
        return "table_changes"
    return str(table.alias_or_name)


START: Final = "start"
END: Final = "end"
"""Keys of a node's ``meta``: offsets in the text, the end exclusive for nodes that this dialect makes."""

WORD: Final = "word"
"""Key of the ``meta`` of a function without brackets, such as ``current_date``: a column may be called so."""


class CatalogDialect(Spark):
    """Spark SQL as the catalog reads it.

    Two differences of words: a quote inside a text may be doubled (``'it''s'``, as in Flink and in standard
    SQL), and keywords are single words. One of queries: ``FOR SYSTEM_VERSION AS OF``, and versions know where
    they stand in the text.
    """

    class Tokenizer(Spark.Tokenizer):
        """Spark's words, one at a time, texts with doubled quotes, and ``$`` in names of system tables."""

        STRING_ESCAPES = ["'", '"', "\\"]  # noqa: RUF012 - sqlglot's metaclass reads plain class attributes
        VAR_SINGLE_TOKENS: ClassVar[set[str]] = {"$"}
        KEYWORDS = {key: kind for key, kind in Spark.Tokenizer.KEYWORDS.items() if " " not in key}  # noqa: RUF012
        COMMANDS: ClassVar[set[TokenType]] = set()
        """Statements that would be one word: none."""


class QueryDialect(Spark):
    """The same for whole queries, whose parser needs keywords of several words."""

    class Tokenizer(Spark.Tokenizer):
        """Spark's words, texts with doubled quotes, and ``$`` in the names of system tables."""

        STRING_ESCAPES = ["'", '"', "\\"]  # noqa: RUF012
        VAR_SINGLE_TOKENS: ClassVar[set[str]] = {"$"}
        COMMANDS: ClassVar[set[TokenType]] = set()

    class Parser(SparkParser):
        """Spark's queries; versions, changes, ``current_date`` and ``max_by`` know their places."""

        COLON_IS_VARIANT_EXTRACT = True
        NESTED_TYPE_TOKENS: ClassVar[set[TokenType]] = {TokenType.ARRAY, TokenType.MAP, TokenType.STRUCT}
        """Those that Spark has: ``range < 5`` compares a column."""

        FUNCTION_PARSERS = {  # noqa: RUF012
            **SparkParser.FUNCTION_PARSERS,
            "TABLE_CHANGES": lambda self: self._parse_table_changes(),
            "MAX_BY": lambda self: self._parse_by(exp.ArgMax),
            "MIN_BY": lambda self: self._parse_by(exp.ArgMin),
        }
        PIPE_SYNTAX_TRANSFORM_PARSERS: ClassVar = {  # where they stand is enough: all is read of a pipe
            **SparkParser.PIPE_SYNTAX_TRANSFORM_PARSERS,
            "DROP": lambda self, query: self._parse_pipe_names(query),
            "SET": lambda self, query: self._parse_pipe_values(query),
            "LIMIT": lambda self, query: (self._parse_limit(), self._parse_offset()) and query,
            "OFFSET": lambda self, query: self._parse_offset() and query,
            "SORT BY": lambda self, query: self._parse_sort(exp.Sort, TokenType.SORT_BY) and query,
            "CLUSTER BY": lambda self, query: self._parse_sort(exp.Cluster, TokenType.CLUSTER_BY) and query,
            "DISTRIBUTE BY": (
                lambda self, query: self._parse_sort(exp.Distribute, TokenType.DISTRIBUTE_BY) and query
            ),
            "LATERAL": lambda self, query: self._parse_lateral() and query,
        }
        VERSION_PHRASES = {  # noqa: RUF012
            **SparkParser.VERSION_PHRASES,
            ("FOR", "SYSTEM_VERSION"): "VERSION",
        }

        def _parse_function_call(self, *args: Any, **given: Any) -> exp.Expr | None:
            token = self._curr
            found: exp.Expr | None = super()._parse_function_call(*args, **given)
            if found is not None and self._prev is token:
                found.meta.update({WORD: token.text.lower(), START: token.start, END: token.end + 1})
            elif found is not None and token.token_type is TokenType.TABLE:  # an argument of a function
                self._match_text_seq("WITH", "SINGLE", "PARTITION")
                for kinds in (
                    (TokenType.PARTITION_BY, TokenType.DISTRIBUTE_BY),
                    (TokenType.ORDER_BY, TokenType.SORT_BY),
                ):
                    if self._match_set(kinds):  # one column, or several in brackets
                        is_one = not self._match(TokenType.L_PAREN, advance=False)
                        self._parse_ordered() if is_one else self._parse_wrapped_csv(self._parse_ordered)
            return found

        def validate_expression(self, expression: Any, args: list[Any] | None = None) -> Any:
            """As sqlglot, but a function may have arguments that it does not know: Spark says which."""
            if args is None or isinstance(expression, exp.IgnoreNulls) or not expression.error_messages(args):
                return super().validate_expression(expression, args)
            made = exp.AnonymousAggFunc if isinstance(expression, exp.AggFunc) else exp.Anonymous
            return made(this=expression.sql_name(), expressions=args)

        def _parse_term(self, *args: Any, **given: Any) -> exp.Expr | None:
            signs = self._tokens[max(0, self._index - 2) : self._index + 1]
            if [token.token_type for token in signs] == [TokenType.GT] * 3 and _are_joined(signs):
                self._advance()  # >>>, of which two are a sign to sqlglot
            found: exp.Expr | None = super()._parse_term(*args, **given)
            return found

        def _parse_table_alias(self, *args: Any, **given: Any) -> exp.TableAlias | None:
            found: exp.TableAlias | None = super()._parse_table_alias(*args, **given)
            if self._match_text_seq("MAX", "RECURSION", "LEVEL"):
                self._parse_number()
            return found

        def _parse_pivot_aggregation(self) -> exp.Expr | None:
            found: exp.Expr | None = self._parse_alias(self._parse_bitwise())
            return found

        def _parse_derived_table_values(self, *args: Any, **given: Any) -> exp.Values | None:
            """As sqlglot, but brackets in which ``VALUES`` goes on, by UNION or LIMIT, hold a query."""
            read = partial(super()._parse_derived_table_values, *args, **given)
            is_in_brackets = self._match_pair(TokenType.L_PAREN, TokenType.VALUES, advance=False)
            found: exp.Values | None = self._try_parse(read) if is_in_brackets else read()
            return found

        def _parse_select(self, *args: Any, **given: Any) -> exp.Expr | None:
            found: exp.Expr | None = super()._parse_select(*args, **given)
            if isinstance(found, exp.Values) and self._match(TokenType.PIPE_GT, advance=False):
                return self._parse_pipe_syntax_query(exp.select("*").from_(found, copy=False))
            return found

        def _parse_by(self, kind: type[exp.AggFunc]) -> exp.AggFunc:
            start = self._tokens[self._index - 2].start
            found: exp.AggFunc = self._parse_distinct_arg_function(kind)
            found.meta[START] = start  # as other functions have it
            return found

        def _parse_pipe_syntax_set_operator(self, query: exp.Query) -> exp.Query | None:
            found = self.parse_set_operation(this=query)
            if not isinstance(found, exp.SetOperation):
                return None
            return exp.select("*", copy=False).from_(found.subquery(copy=False), copy=False)

        def _parse_pipe_names(self, query: exp.Select) -> exp.Select:
            self._advance()
            self._parse_csv(self._parse_id_var)
            return query

        def _parse_pipe_values(self, query: exp.Select) -> exp.Select:
            self._advance()
            values = self._parse_csv(self._parse_assignment)
            return query.where(*values, copy=False)  # there their subqueries are found

        def _parse_version(self) -> exp.Version | None:
            start = self._curr.start if self._curr else 0
            version = super()._parse_version()
            if version is not None:
                version.meta.update({START: start, END: self._prev.end + 1})
            return version

        def _parse_table_changes(self) -> TableChanges:
            start = self._tokens[self._index - 2].start
            if self._match(TokenType.STRING):
                names: list[exp.Expr | None] = [
                    exp.to_identifier(part) for part in self._prev.text.split(".")
                ]
            else:
                names = [self._parse_id_var()]
                while self._match(TokenType.DOT):
                    names.append(self._parse_id_var())
            if not all(names):
                self.raise_error("expected table_changes(table, from [, to])")
            states = []
            while self._match(TokenType.COMMA):
                states.append(self._parse_bitwise())
            if (
                len(states) not in (1, 2)
                or not all(states)
                or not self._curr
                or self._curr.token_type != TokenType.R_PAREN
            ):
                self.raise_error("expected table_changes(table, from [, to])")
            found = TableChanges(name=names, start=states[0], end=states[1] if len(states) > 1 else None)
            found.meta.update({START: start, END: self._curr.end + 1})
            return found


_CONTINUED: Final = re.compile(r"--[^\n]*(?:\r(?!\n)|\\\n)")
"""What may be a comment that ends elsewhere to Spark than to sqlglot, to which each ends with its line."""

_QUOTED: Final = re.compile(
    r"""
    \br(?:'[^']*'|"[^"]*") | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*` | /\*.*?\*/
    | (?P<comment>--(?:\\\n|[^\r\n])*)
    """,
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)


def _comments_white(text: str) -> str:
    r"""A text of the same places for sqlglot, white where one of Spark's comments goes on in the next line.

    Behind a backslash it does; and it ends at a carriage return.

    >>> _comments_white("a -- b \\\nc\nd '-- \\\n'")
    "a           \nd '-- \\\n'"
    """
    if _CONTINUED.search(text) is None:
        return text
    return _QUOTED.sub(lambda one: " " * len(one[0]) if one["comment"] else one[0], text)


def _are_joined(tokens: Sequence[Token]) -> bool:
    """Whether nothing stands between words."""
    return all(one.end + 1 == other.start for one, other in pairwise(tokens))


def tokens_of(text: str, subject: str) -> Sequence[Token]:
    """The words of a text."""
    try:
        return _read(text).words
    except TokenError as cause:
        raise SchemaError(
            f"{subject}: the text has an open quote or comment: {_opened(text, cause)}"
        ) from None


def outside_of_brackets(tokens: Iterable[Token]) -> Iterator[Token]:
    """The words of a text that stand in no brackets, and the outermost brackets themselves.

    >>> [token.text for token in outside_of_brackets(tokens_of("a + f(b, (c))[d] - e", "query"))]
    ['a', '+', 'f', '(', ')', '[', ']', '-', 'e']
    """
    depth = 0
    for token in tokens:
        depth -= token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET)
        if depth == 0:
            yield token
        depth += token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET)


_KEPT_BYTES: Final = 40_000_000
_KEPT_TEXTS: Final = 1_000


class _Read(NamedTuple):
    """A text and its words."""

    text: str
    words: Sequence[Token]

    @property
    def bytes(self) -> int:
        """About what it takes: of a part of a statement the text is as long as the statement, but white.

        A short text counts for more, so that a program whose statements are all different keeps few of them.
        """
        return max(len(self.text) + 300 * len(self.words), _KEPT_BYTES // _KEPT_TEXTS)


@cached(LRUCache(maxsize=_KEPT_BYTES, getsizeof=lambda read: read.bytes), lock=Lock())
def _read(text: str) -> _Read:
    """A statement is asked for its words a dozen times while it is read: those of the last ones are kept."""
    return _Read(text, tuple(_tokens(CatalogDialect(), text)))


def _tokens(dialect: Spark, text: str) -> list[Token]:
    """The words of a text, without the mark that begins a file of UTF-8.

    A statement of a script stands behind as many empty lines, and a CHECK before all that follows it, as
    blanks: through these sqlglot goes slowly.
    """
    words = text.lstrip(" \n\ufeff")
    white = text[: len(text) - len(words)]
    try:
        tokens: list[Token] = dialect.tokenize(_comments_white(words.rstrip(" \n")))
    except TokenError:
        return list(dialect.tokenize(_comments_white(text)))  # the error has the place in the whole text
    lines, columns = white.count("\n"), len(white) - white.rfind("\n") - 1
    for token in tokens if white else ():
        token.start, token.end = token.start + len(white), token.end + len(white)
        token.line, token.col = token.line + lines, token.col + columns * (token.line == 1)
    return tokens


_MISSING: Final = re.compile(r"Missing (.+) from [0-9]+:([0-9]+)", re.DOTALL)


def _opened(text: str, error: TokenError) -> str:
    """What a text opens and does not close, and where."""
    quote = _MISSING.fullmatch(str(error.__cause__))
    sign, at = (quote[1], int(quote[2])) if quote is not None else ("/*", text.rfind("/*"))
    if not text.startswith(sign, max(at, 0)):
        return str(error)
    return f"what {sign} begins at {position(text, at)} has no end"


def refusal(subject: str, why: str, text: str, token: Token | None) -> SchemaError:
    """The error that says why, which word of the text was found instead, and where; None for its end."""
    if token is None:
        return SchemaError(f"{subject}: {why}, found the end of the text")
    where = position(text, token.start)
    return SchemaError(f"{subject}: {why}, found {token.text!r} at {where}")


def query_tree(text: str, subject: str, revision: Revision | None = None) -> exp.Expr:
    """The tree of a query; ``revision`` tells how its text came from the user's, for places in refusals.

    >>> type(query_tree("SELECT a FROM t FOR SYSTEM_VERSION AS OF 3 AS u", "query")).__name__
    'Select'
    >>> query_tree("SELECT FROM WHERE", "query")
    Traceback (most recent call last):
        ...
    upsert.errors.SchemaError: query: ... found 'WHERE' at line 1, column 13
    """
    return _parsed(text, subject, revision or Revision(text), is_query=True)


def expression_tree(text: str, subject: str) -> exp.Expr:
    """The tree of one expression."""
    return _parsed(text, subject, Revision(text), is_query=False)


_SLIPS: Final = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""With what sqlglot ends at some texts that are no SQL, where it should have refused them."""


def spelled(node: exp.Expr, **how: Any) -> str:
    """An expression as an error names it; sqlglot logs what of others' functions Spark lacks, and may fail.

    >>> spelled(expression_tree("regexp_replace(a, 'b') = 'c'", "check"))  # of three arguments one is missing
    "REGEXP_REPLACE(a, 'b') = 'c'"
    """
    try:
        return str(node.sql("spark", unsupported_level=ErrorLevel.IGNORE, **how))
    except _SLIPS:
        return str(node.sql(unsupported_level=ErrorLevel.IGNORE, **how))


def _parsed(text: str, subject: str, revision: Revision, *, is_query: bool) -> exp.Expr:
    dialect = QueryDialect()
    try:
        tokens = _tokens(dialect, text)
    except TokenError as cause:
        raise SchemaError(f"{subject}: the text has an open quote or comment: {cause}") from None
    _check_no_signs_of_versions(tokens, subject, revision)
    _let_words_be_names(tokens)
    try:
        parser = dialect.parser(error_level=ErrorLevel.IMMEDIATE)
        # an expression may begin with a column that is called like a statement, as comment
        trees = parser.parse(tokens, text) if is_query else parser.parse_into(exp.Condition, tokens, text)
    except ParseError as cause:
        raise SchemaError(f"{subject}: {_described(cause, revision)}") from None
    except RecursionError:
        raise too_deep(subject) from None
    except _SLIPS as cause:
        raise SchemaError(
            f"{subject}: the text cannot be read, {type(cause).__name__} in sqlglot: {cause}; correct it, or "
            "write it in another way"
        ) from cause
    tree = trees[0] if len(trees) == 1 else None
    wanted = (exp.Query, exp.Values) if is_query else exp.Expr
    if tree is None or isinstance(tree, exp.Command) or not isinstance(tree, wanted):
        what = "a query" if is_query else "an expression"
        if isinstance(tree, exp.DML):
            what = "WITH in the query of INSERT, the source of MERGE, or a subquery of UPDATE or DELETE"
        raise SchemaError(f"{subject}: expected {what}, found {text.strip()[:40]!r}")
    _check_lists_go_on(tokens, subject, revision)
    return tree


_SELDOM_OTHERWISE: Final = re.compile(
    "alter|any|case|create|cross|cube|describe|drop|fetch|for|grant|if|ilike|inner|insert|lateral|load|lock"
    "|minus|outer|qualify|revoke|rollback|rollup|serdeproperties|tablesample|uncache|values|window",
    re.IGNORECASE,
)
"""Words that are meant as names where they cannot be read."""

_MAY_BE_NAMES: Final = re.compile(
    f"{_SELDOM_OTHERWISE.pattern}|else|except|having|intersect|into|join|like|limit|offset|then|union|using",
    re.IGNORECASE,
)
"""Words that sqlglot takes for no names without quotes, where Spark may."""

_T: Final = TokenType
_COMPARISONS: Final = {_T.EQ, _T.NEQ, _T.NULLSAFE_EQ, _T.LT, _T.LTE, _T.GT, _T.GTE}
_BEFORE_NAMES: Final = frozenset({
    *(_T.SELECT, _T.FROM, _T.JOIN, _T.WHERE, _T.ON, _T.HAVING, _T.GROUP_BY, _T.ORDER_BY, _T.PARTITION_BY),
    *(_T.AND, _T.OR, _T.NOT, _T.BETWEEN, _T.WHEN, _T.THEN, _T.ELSE, _T.L_PAREN, _T.L_BRACKET, _T.COMMA),
    *(_T.DOT, _T.PLUS, _T.DASH, _T.SLASH, _T.MOD, _T.DPIPE, *_COMPARISONS),
})  # fmt: skip
_BEHIND_NAMES: Final = frozenset({
    *(_T.FROM, _T.COMMA, _T.R_PAREN, _T.R_BRACKET, _T.DOT, _T.ALIAS, _T.WHERE, _T.AND, _T.OR, _T.IS, _T.IN),
    *(_T.BETWEEN, _T.LIKE, _T.THEN, _T.ELSE, _T.END, _T.ASC, _T.DESC, _T.JOIN, _T.LEFT, _T.ON, _T.USING),
    *(_T.HAVING, _T.GROUP_BY, _T.ORDER_BY, _T.LIMIT, _T.SLASH, _T.MOD, _T.DPIPE, _T.DCOLON, _T.SEMICOLON),
    *_COMPARISONS,
})  # fmt: skip
"""Among them is none that may also begin what follows one of those words, as a bracket or a minus."""


def _let_words_be_names(tokens: Sequence[Token]) -> None:
    """Make names of the words that stand alone where a column or a table must stand."""
    kinds = [token.token_type for token in tokens]
    for at, token in enumerate(tokens):
        if kinds[at] in _TEXTS:
            continue
        before = None if at == 0 else kinds[at - 1]
        is_word = _MAY_BE_NAMES.fullmatch(token.text) is not None
        if before is _T.COLON:  # of a parameter
            is_name = is_word or kinds[at] is _T.FROM
        else:
            is_alone = (before is None or before in _BEFORE_NAMES) and (
                at + 1 == len(kinds) or kinds[at + 1] in _BEHIND_NAMES
            )
            is_name = is_alone and is_word and not _begins_value(kinds, at)
        if is_name:
            token.token_type = kinds[at] = TokenType.IDENTIFIER


def _begins_value(kinds: Sequence[TokenType], at: int) -> bool:
    """Whether a value goes on behind CASE or VALUES with what stands behind names, too."""
    if tuple(kinds[at + 1 : at + 3]) in ((_T.LEFT, _T.L_PAREN), (_T.DOT, _T.NUMBER)):
        return True
    further = (kinds[number] for number in range(at + 1, len(kinds)))
    parts = (kind for kind in further if kind in (_T.CASE, _T.WHEN, _T.THEN))
    return kinds[at] is _T.CASE and next(parts, None) is _T.WHEN


_TEXTS: Final = frozenset({TokenType.STRING, TokenType.IDENTIFIER})

_VERSION: Final = re.compile(r"v?(\d+)", re.IGNORECASE)


def _check_no_signs_of_versions(tokens: Sequence[Token], subject: str, revision: Revision) -> None:
    """Refuse ``t@v3``, which Delta has, and Spark has not."""
    for before, sign, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        is_sign = sign.token_type is TokenType.PARAMETER and sign.start == before.end + 1
        if is_sign and (version := _VERSION.fullmatch(after.text)) is not None:
            raise SchemaError(
                f"{subject}: a state of a table must be written {before.text} VERSION AS OF {version[1]}, or "
                f"TIMESTAMP AS OF '…', found {before.text}@{after.text} at "
                f"{position(revision.first, revision.original(before.start))}"
            )


def _check_lists_go_on(tokens: Sequence[Token], subject: str, revision: Revision) -> None:
    """Refuse a comma before FROM, and SELECT FROM, where sqlglot misses nothing, and Spark reads a column."""
    for before, token in pairwise(tokens):
        if token.token_type is TokenType.FROM and before.token_type in (TokenType.SELECT, TokenType.COMMA):
            raise SchemaError(
                f"{subject}: expected a column or a value after {before.text!r}, found {token.text!r} at "
                f"{position(revision.first, revision.original(token.start))}; as a name it is written `FROM`"
            )


def too_deep(subject: str) -> SchemaError:
    """The refusal of a text whose brackets or operators go deeper than a parser does."""
    return SchemaError(
        f"{subject}: brackets, types and operators must be nested less deeply, got more levels than "
        "can be read; use IN for a chain of OR, and columns or views for parts"
    )


_LAST_WORD: Final = re.compile(r"\w+\s*$")


_PATTERNS: Final = re.compile(r"\bMATCH_RECOGNIZE\s*\(", re.IGNORECASE)
_CONFLICTS: Final = re.compile(r"\bON\s+CONFLICT\s+(\([^()]*\)\s*)?DO\b", re.IGNORECASE)


def _described(error: ParseError, revision: Revision) -> str:
    first = error.errors[0]
    what = str(first["description"]).partition(" but got ")[0].rstrip(".")
    what = what[:1].lower() + what[1:]
    if "required keyword" in what.lower():
        what = "the expression is incomplete"
    elif "unexpected token" in what.lower():
        what = "neither a query nor an expression goes on like this"
    if _PATTERNS.search(revision.text):
        what = "MATCH_RECOGNIZE is not supported, as Spark does not have it"
    elif _CONFLICTS.search(revision.text):
        what = (
            "ON CONFLICT is not supported: 'merge-engine' and 'sink.materialize' of the table say which row "
            "of a key stays; leave it out"
        )
    if not (found := first["highlight"]):
        return f"{what}, found the end of the text"
    lines = revision.text.split("\n")[: int(first["line"] or 1) - 1]
    ends_at = sum(len(line) + 1 for line in lines) + int(first["col"] or 1) - 1
    begins_at = max(0, ends_at - len(found) + 1)
    where = position(revision.first, revision.original(begins_at))
    before = _LAST_WORD.search(revision.text[max(0, begins_at - 40) : begins_at])
    words = (found, before[0].strip() if before else "")
    names = [word for word in words if _SELDOM_OTHERWISE.fullmatch(word)]
    remedy = f"; as a name it is written `{names[0]}`" if names else ""
    return f"{what}, found {found!r} at {where}{remedy}"
