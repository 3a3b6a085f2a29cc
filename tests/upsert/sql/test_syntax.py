"""The syntax that the reference shows is what the parser reads.

A syntax is taken as the small grammar that it is, and written out: with and without each part in brackets,
with each alternative, with one and with two of what repeats. Each such text must be parsed to its class.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import pytest

from upsert.errors import SchemaError
from upsert.sql import parser, table_statements
from upsert.sql import statements as s
from upsert.sql.parser import parse
from upsert.sql.syntax import PARTS, SYNTAX, Syntax

TOKEN = re.compile(r"/\*\+|\*/|'[^']*'|=>|\w+|[^\w\s]")

SAMPLES = {
    "table": "t",
    "view": "v",
    "column": "a",
    "column2": "b",
    "names": "a, b",
    "element2": "c INT",
    "'number'": "'5'",
    "unit": "SECOND",
    "name": "n",
    "name2": "m",
    "time": "at",
    "field": "f",
    "field2": "g",
    "database": "d",
    "catalog": "c",
    "procedure": "p",
    "source": "q",
    "value": "1",
    "precision": "6",
    "scale": "2",
    "length": "9",
    "snapshot": "3",
    "expression": "b + 1",
    "expressions": "a, b",
    "condition": "a = 1",
    "query": "SELECT a FROM u",
    "merge": "MERGE INTO t USING q ON t.a = q.a WHEN MATCHED THEN DELETE",
    "statement_set": "BEGIN STATEMENT SET; INSERT INTO t SELECT a FROM u; END",
    "SELECT …": "SELECT a FROM u",
    "WITH …": "WITH w AS (SELECT 1 AS a) SELECT a FROM w",
    "VALUES …": "VALUES (1)",
    "FROM …": "FROM u SELECT a",
}
"""What stands for the user's words; what is written twice has other names the second time."""

AROUND = {
    "element": "a INT NOT NULL, b INT NOT NULL, at TIMESTAMP, {}",
    "change": "{}",
}
"""What must stand beside a part so that a statement with it makes sense."""


@dataclass(frozen=True)
class Part:
    """What a part of a syntax may be written as: lists of words, the shortest first."""

    ways: tuple[tuple[str, ...], ...]


def tokens(text: str) -> list[str]:
    return TOKEN.findall(text)


def second(word: str) -> str:
    """A word that is written again after a comma."""
    if word.startswith("'"):
        return f"{word[:-1]}2'"
    return f"{word}2" if f"{word}2" in SAMPLES else word


def in_turn(parts: list[Part]) -> Part:
    """One part after the other: all at their shortest, all at their longest, and each way of each once."""
    if not parts:
        return Part(((),))
    shortest = [part.ways[0] for part in parts]
    found = [shortest, [max(part.ways, key=len) for part in parts]]
    for number, part in enumerate(parts):
        found += [[*shortest[:number], way, *shortest[number + 1 :]] for way in part.ways]
    return Part(tuple(dict.fromkeys(tuple(word for way in ways for word in way) for ways in found)))


def begins_list(part: Part) -> bool:
    """Whether what repeats begins after this part: a bracket, or a word of SQL."""
    ((first, *_), *_) = (way or ("",) for way in part.ways)
    return len(part.ways) == 1 and (first in "(<" or first.isupper())


class Grammar:
    """Reads a syntax."""

    def __init__(self, text: str) -> None:
        self.words = tokens(text)
        self.at = 0

    def ways(self) -> Part:
        found = self._choice()
        assert self.at == len(self.words), self.words[self.at :]
        return found

    def _choice(self) -> Part:
        ways = list(self._sequence().ways)
        while self._skip("|"):
            ways += self._sequence().ways
        return Part(tuple(dict.fromkeys(ways)))

    def _sequence(self) -> Part:
        parts: list[Part] = []
        while self.at < len(self.words) and self.words[self.at] not in ("]", "}", "|"):
            if self.words[self.at : self.at + 4] == ["[", ",", "…", "]"]:
                self.at += 4
                start = next((n + 1 for n in reversed(range(len(parts))) if begins_list(parts[n])), 0)
                once = in_turn(parts[start:])
                again = tuple(map(second, once.ways[-1]))
                parts[start:] = [Part((*once.ways, (*once.ways[-1], ",", *again)))]
            elif self._skip("…"):
                parts.append(Part(((), parts[-1].ways[-1])))
            else:
                parts.append(self._one())
        return in_turn(parts)

    def _one(self) -> Part:
        if self._skip("["):
            inner = self._choice()
            assert self._skip("]")
            return Part(((), *inner.ways))
        if self._skip("{"):
            inner = self._choice()
            assert self._skip("}")
            return inner
        word = self.words[self.at]
        self.at += 1
        if self.words[self.at : self.at + 1] == ["…"] and f"{word} …" in SAMPLES:
            self.at += 1
            return Part(((f"{word} …",),))
        if word in PARTS and word not in AROUND and word != "type":
            return Grammar(PARTS[word]).ways()
        return Part(((word,),))

    def _skip(self, word: str) -> bool:
        found = self.words[self.at : self.at + 1] == [word]
        self.at += found
        return found


def written(words: tuple[str, ...], samples: dict[str, str]) -> str:
    return " ".join(samples.get(word, SAMPLES.get(word, word)) for word in words)


def texts(syntax: Syntax) -> Iterator[str]:
    """Statements of a syntax, with each form of the parts that it has once."""
    plain = {"element": "a INT, b INT", "change": "DROP COLUMN a", "type": "INT"}
    ways = Grammar(syntax.text).ways().ways
    for way in ways:
        yield written(way, plain)
    for name, around in AROUND.items():
        if way := min((way for way in ways if name in way), key=len, default=None):
            for part in Grammar(PARTS[name]).ways().ways:
                unique = ", PRIMARY KEY (a) NOT ENFORCED" if "UNIQUE" in part and name == "element" else ""
                yield written(way, plain | {name: around.format(written(part, plain)) + unique})


@pytest.mark.parametrize("syntax", SYNTAX, ids=lambda one: one.title)
def test_each_way_to_write_a_statement_is_parsed_to_its_class(syntax: Syntax) -> None:
    wrong = {}
    for text in [syntax.example, *texts(syntax)]:
        try:
            found = type(parse(text))
        except Exception as error:
            wrong[text] = str(error)
        else:
            if found is not syntax.parsed:
                wrong[text] = found.__name__
    assert wrong == {}


def test_each_statement_has_a_syntax() -> None:
    assert {syntax.parsed for syntax in SYNTAX} == set(get_args(s.Statement))


def test_each_word_that_begins_a_statement_or_a_change_is_in_a_syntax() -> None:
    begun = {text.replace("(", "( ") for syntax in SYNTAX for text in texts(syntax)}
    heads = {" ".join(words).replace("TEMP ", "TEMPORARY ") for words in parser._STATEMENTS}
    assert {head for head in heads if not any(f"{text} ".startswith(f"{head} ") for text in begun)} == set()
    changes = {written(way, {"type": "INT"}) for way in Grammar(PARTS["change"]).ways().ways}
    known = {" ".join(words) for words in table_statements._CHANGES}
    assert {head for head in known if not any(f"{text} ".startswith(f"{head} ") for text in changes)} == set()


def test_each_name_of_a_type_is_one() -> None:
    for way in Grammar(PARTS["type"]).ways().ways:
        type_ = written(way, {"type": "INT"})
        assert isinstance(parse(f"CREATE TABLE t (a {type_})"), s.CreateTable), type_


def test_each_type_that_a_refusal_names_is_in_the_syntax() -> None:
    with pytest.raises(SchemaError) as refused:
        parse("CREATE TABLE t (a NOTHING)")
    named = set(re.findall(r"[A-Z_]{3,}", str(refused.value).partition("one of ")[2].partition(", found")[0]))
    other_names = {"BYTE", "BYTES", "INTEGER", "LONG", "REAL", "SHORT"}
    assert named - other_names <= set(re.findall(r"[A-Z_]+", PARTS["type"]))


def test_what_a_refusal_calls_statements_has_a_syntax() -> None:
    titles = {syntax.title for syntax in SYNTAX}
    heads = {title.partition(" ")[0] for title in titles}
    assert [
        name for name in parser._NAMES.split(", ") if name not in titles and name.split()[0] not in heads
    ] == []
