"""A query in pieces: those that WITH names, those in brackets in FROM, and those of IN and EXISTS (pure).

Each is a text of its own. What is left is a query of tables alone, some of which are names of pieces. Each
piece stands in its text where the user has written it, so places in messages stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, pairwise, product
from typing import Final

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from planner.connect.matches import conjuncts, match_of
from upsert.sql.dialect import outside_of_brackets, tokens_of
from upsert.sql.query import QueryText
from upsert.sql.tokens import blanked, white
from upsert.types import quoted

_BEGINS: Final = (TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.L_PAREN)
"""Words with which a query begins."""


@dataclass(frozen=True)
class Piece:
    """A query of tables alone.

    Attributes:
        query: its text.
        seen: the queries that it may name as tables, by their names in lower case, in pieces in their turn.
        first: the first query of the UNION ALL that it is chosen from, which names the columns; else None.
        matched: the queries of IN and EXISTS in its WHERE, by the names that stand for them.
    """

    query: QueryText
    seen: Mapping[str, tuple[Piece, ...]]
    first: Piece | None = None
    matched: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)


def pieces(query: QueryText, seen: Mapping[str, tuple[Piece, ...]] | None = None) -> tuple[Piece, ...]:
    """The queries with UNION ALL between them that a query is, each without WITH and queries in its FROM.

    A form that is not known stays in the text: WITH RECURSIVE, and lists of columns behind a name of WITH.

    >>> (piece,) = pieces(QueryText.of("WITH a AS (SELECT x FROM t) SELECT * FROM a, (SELECT y FROM a) b"))
    >>> piece.query.text
    'SELECT * FROM a, `query 1`          b'
    >>> [(name, one.query.text) for name, (one,) in piece.seen.items()]
    [('a', 'SELECT x FROM t'), ('query 1', 'SELECT y FROM a')]
    >>> (piece,) = pieces(QueryText.of("SELECT * FROM a WHERE x > 1 AND x IN (SELECT y FROM b)"))
    >>> piece.query.text, [(name, one.query.text) for name, (one,) in piece.matched.items()]
    ('SELECT * FROM a WHERE x > 1 AND x IN (`query 1`      )', [('query 1', 'SELECT y FROM b')])
    """
    known = dict(seen or {})
    if query.edits or query.is_piped:
        return (Piece(query, known),)
    tokens = _words(query)
    if tokens and tokens[0].token_type is TokenType.WITH and _has_plain_names(query.tree):
        for name, start, end in _named(tokens):
            known[name.lower()] = pieces(replace(query, start=start, end=end), known)
        query = replace(query, start=_end_of_with(tokens))
    return tuple(_without_brackets(one, known) for one in query.united)


def alternatives(piece: Piece) -> tuple[Piece, ...]:
    """The query once for each choice among the queries with UNION ALL between them that its tables are.

    It stays as it is where it names such a table twice: the choices of both would have to be the same ones.

    >>> text = "SELECT * FROM t JOIN (SELECT x FROM a UNION ALL SELECT y FROM b) u ON t.x = u.x"
    >>> found = alternatives(*pieces(QueryText.of(text)))
    >>> [one.query.text for each in found for one in each.seen["query 1"]]
    ['SELECT x FROM a', 'SELECT y FROM b']
    """
    used = [name for one in piece.query.references if (name := one.name.lower()) in piece.seen]
    choices = []
    for name in dict.fromkeys(used):
        found = tuple(each for part in piece.seen[name] for each in alternatives(part))
        if len(found) > 1 and used.count(name) > 1:
            return (piece,)
        first = found[0] if len(found) > 1 else None
        choices.append([(name, (replace(each, first=first),)) for each in found])
    return tuple(replace(piece, seen={**piece.seen, **dict(chosen)}) for chosen in product(*choices))


def _has_plain_names(tree: exp.Expr) -> bool:
    with_ = tree.args.get("with_")
    return (
        with_ is not None
        and not with_.recursive
        and not any(one.alias_column_names for one in with_.expressions)
    )


def _words(query: QueryText) -> list[Token]:
    text = blanked(query.statement, query.start, query.end)
    return list(outside_of_brackets(tokens_of(text, query.subject)))


def _named(tokens: list[Token]) -> Iterator[tuple[str, int, int]]:
    """The name of each query of WITH, and where it stands, by the words outside of brackets."""
    at = 1
    while True:  # name [AS] ( ) and a comma, or the query itself
        opens = at + 1 if tokens[at + 1].token_type is TokenType.L_PAREN else at + 2
        yield tokens[at].text, tokens[opens].end + 1, tokens[opens + 1].start
        if tokens[opens + 2].token_type is not TokenType.COMMA:
            return
        at = opens + 3


def _end_of_with(tokens: list[Token]) -> int:
    (*_, (_, _, end)) = _named(tokens)
    return end + 1


def _without_brackets(query: QueryText, seen: Mapping[str, tuple[Piece, ...]]) -> Piece:
    """A query with names in place of the queries in its FROM, and of those of IN and EXISTS."""
    known, matched, statement, last = dict(seen), dict[str, tuple[Piece, ...]](), query.statement, query.end
    free = (name for number in count(1) if (name := f"query {number}") not in query.statement)
    spans = [*((span, known) for span in _in_from(query)), *((span, matched) for span in _in_where(query))]
    for ((start, end), found), name in reversed(list(zip(spans, free, strict=False))):
        found[name] = pieces(replace(query, start=start + 1, end=end - 1), seen)
        if found is matched:
            start, end = start + 1, end - 1  # the brackets stay
        # what follows stays in its line and column
        line, *others = query.statement[start:end].split("\n")
        instead = "\n".join((quoted(name).ljust(len(line)), *map(white, others)))
        statement = f"{statement[:start]}{instead}{statement[end:]}"
        last += len(instead) - (end - start)
    return Piece(replace(query, statement=statement, end=last), known, matched=matched)


def _in_from(query: QueryText) -> Iterator[tuple[int, int]]:
    """From where to where each query in brackets stands that is a table of a query."""
    if not isinstance(query.tree, exp.Select) or query.tree.args.get("from_") is None:
        return
    tables = [query.tree.args["from_"].this, *(join.this for join in query.tree.args.get("joins") or ())]
    found = [node for node in tables if isinstance(node, exp.Subquery)]
    if not all(isinstance(node.this, exp.Select | exp.SetOperation) for node in found):
        return  # a join in brackets
    words = _words(query)
    kinds = [token.token_type for token in words]
    pairs = enumerate(pairwise(kinds))  # after a dot it is a column
    found_at = (at for at, (before, kind) in pairs if kind is TokenType.FROM and before is not TokenType.DOT)
    for at in range(next(found_at, len(words)) + 2, len(words)):
        opens = kinds[at - 1] in (TokenType.FROM, TokenType.JOIN, TokenType.COMMA)
        if opens and kinds[at] is TokenType.L_PAREN and found:
            start, end = words[at].start, words[at + 1].end + 1
            inside = blanked(query.statement, start + 1, end - 1)
            if tokens_of(inside, query.subject)[0].token_type in _BEGINS:  # else a value of IS DISTINCT FROM
                yield start, end
                found.pop()


def _in_where(query: QueryText) -> Iterator[tuple[int, int]]:
    """From where to where each query in brackets stands that WHERE asks for a match."""
    where = query.tree.args.get("where") if isinstance(query.tree, exp.Select) else None
    found = [match for part in conjuncts(where and where.this) if (match := match_of(part)) is not None]
    for match in found:
        if isinstance(match.query, exp.Query):
            at = query.worded.original(match.start)
            yield from (span for span in _matched(query) if span[0] < at < span[1])


def _matched(query: QueryText) -> Iterator[tuple[int, int]]:
    """From where to where the outermost brackets behind IN and EXISTS stand."""
    opened, tokens = list[tuple[int, bool]](), tokens_of(blanked(query.statement, query.start, query.end), "")
    for before, token in pairwise([tokens[0], *tokens]):
        if token.token_type is TokenType.L_PAREN:
            opened.append((token.start, before.token_type in (TokenType.IN, TokenType.EXISTS)))
        elif token.token_type is TokenType.R_PAREN:
            start, is_matched = opened.pop()
            if is_matched and not any(is_outer for _, is_outer in opened):
                yield start, token.end + 1
