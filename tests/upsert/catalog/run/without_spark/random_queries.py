"""Random queries of one to four tables: all joins, groups and expressions, also some that Spark refuses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

COLUMNS = {
    "id": "BIGINT",
    "small": "SMALLINT",
    "tiny": "TINYINT",
    "whole": "INT",
    "flag": "BOOLEAN",
    "ratio": "DOUBLE",
    "single": "FLOAT",
    "price": "DECIMAL(10, 2)",
    "large": "DECIMAL(38, 10)",
    "name": "STRING",
    "short": "VARCHAR(5)",
    "fixed": "CHAR(5)",
    "raw": "BINARY",
    "day": "DATE",
    "at": "TIMESTAMP",
    "local": "TIMESTAMP_NTZ",
    "clock": "TIME(6)",
    "span": "INTERVAL DAY TO SECOND",
    "tags": "ARRAY<STRING>",
    "pair": "STRUCT<a: INT, b: STRING>",
    "counts": "MAP<STRING, INT>",
}
SCALARS = [name for name, type_ in COLUMNS.items() if "<" not in type_]
TABLES = {"a": 20, "b": 15, "c": 6, "d": 0}
"""How many rows each has."""

KINDS = {
    "number": ["id", "small", "tiny", "whole", "ratio", "single", "price", "large"],
    "text": ["name", "short", "fixed"],
    "flag": ["flag"],
    "day": ["day"],
    "time": ["at", "local"],
    "clock": ["clock"],
    "span": ["span"],
    "raw": ["raw"],
    "nested": ["tags", "pair", "counts"],
}
LITERALS = {
    "number": [
        *("0", "1", "-2", "- 3", "7", "1.5", "-0.25", ".5", "2.", "1e1", "-1E-1", "100000", "2147483647"),
        *("2147483648", "9223372036854775807", "3000000000", "12345678901234567890.5", "-0.0", "+1"),
        *("1L", "2S", "3Y", "1.5D", "1.5F", "1.5BD", "-2147483648", "0.00", "(1)", "NULL"),
    ],
    "text": [
        "'a'",
        "''",
        "'b'",
        "'é'",
        "'tea'",
        "'Tea '",
        "'a    '",
        "'😀'",
        '"B"',
        "'it''s'",
        "'a' 'b'",
        "NULL",
    ],
    "flag": ["TRUE", "false", "NULL"],
    "day": [
        "DATE '2020-02-29'",
        "DATE'1970-01-01'",
        "CAST('2020-02-29' AS DATE)",
        "date '2020-2-9'",
        "'1970-01-01'",
    ],
    "time": [
        *("TIMESTAMP '2020-01-01 00:00:00'", "TIMESTAMP '2020-01-01 00:00:00+02:00'"),
        *(
            "TIMESTAMP_NTZ '2020-01-01 03:00:00'",
            "TIMESTAMP '2020-01-01'",
            "TIMESTAMP_LTZ '2020-01-01 01:00:00'",
        ),
    ],
    "clock": ["TIME '00:30:00'", "TIME '01:00:00.000001'"],
    "span": ["INTERVAL '5' SECOND", "INTERVAL '-1 02:03:04' DAY TO SECOND", "INTERVAL 1 MINUTE"],
    "raw": ["X'61'", "CAST('a' AS BINARY)", "NULL"],
    "nested": ["NULL"],
}
PATTERNS = ("'a%'", "'%'", "'_'", "'%e_'", "'a'", "NULL", "name")
STARTS = ("'a'", "''", "'b'", "NULL", "name")
JOINS = ("JOIN", "INNER JOIN", "LEFT JOIN", "LEFT OUTER JOIN", "RIGHT JOIN", "FULL JOIN", "FULL OUTER JOIN")
HALVES = ("LEFT SEMI JOIN", "SEMI JOIN", "LEFT ANTI JOIN", "ANTI JOIN")
HOWS = ("", " DESC", " ASC NULLS LAST", " DESC NULLS FIRST")


@dataclass
class Expressions:
    """Makes expressions over columns that may be named behind some names of tables; () for none.

    ``odd`` is how often an operand is of another kind than its operator wants.
    """

    random: Random
    tables: Sequence[str] = ()
    odd: float = 0.03
    most: int = 2

    def column(self, kind: str) -> str:
        """A column of a kind."""
        name = self.random.choice(KINDS[kind])
        name = self.random.choice([name] * 8 + [name.upper(), f"`{name}`"])
        before = self.random.choice(self.tables) if self.tables else ""
        return f"{before}.{name}" if before else name

    def some(self, kind: str, depth: int = 0) -> str:
        """An expression of a kind."""
        random = self.random
        if random.random() < self.odd:
            kind = random.choice([*KINDS])
        forms = FORMS.get(kind, ())
        if depth >= self.most or not forms or random.random() < 0.3:
            return self.column(kind) if random.random() < 0.65 else random.choice(LITERALS[kind])
        return random.choice(forms)(_At(self, depth + 1))


@dataclass
class _At:
    """Operands at some depth."""

    of: Expressions
    depth: int

    def __getattr__(self, kind: str) -> str:
        return self.of.some(kind, self.depth)

    def one(self, *words: str) -> str:
        """One of some words."""
        return self.of.random.choice(words)

    def any(self) -> str:
        """A kind."""
        return self.of.random.choice(
            ["number", "number", "text", "flag", "day", "time", "clock", "span", "raw"]
        )

    def like(self, kind: str) -> str:
        """An expression of a kind."""
        return self.of.some(kind, self.depth)


def _compared(at: _At) -> str:
    kind = at.any()
    return f"{at.like(kind)} {at.one('=', '==', '<>', '!=', '<', '<=', '>', '>=', '<=>')} {at.like(kind)}"


def _listed(at: _At) -> str:
    kind = at.any()
    few = [at.of.random.choice(LITERALS[kind]) for _ in range(at.of.random.randint(1, 4))]
    if at.of.random.random() < 0.1:
        few.append(at.like(kind))
    return f"{at.like(kind)} {at.one('IN', 'NOT IN')} ({', '.join(few)})"


def _between(at: _At) -> str:
    kind = at.any()
    return f"{at.like(kind)} {at.one('BETWEEN', 'NOT BETWEEN')} {at.like(kind)} AND {at.like(kind)}"


def _case(kind: str) -> Callable[[_At], str]:
    def make(at: _At) -> str:
        last = at.one("", f" ELSE {at.like(kind)}", f" ELSE {at.like(kind)}")
        form = at.one("if", "case", "case", "of")
        if form == "if":
            return f"if({at.flag}, {at.like(kind)}, {at.like(kind)})"
        if form == "case":
            more = at.one("", f" WHEN {at.flag} THEN {at.like(kind)}")
            return f"CASE WHEN {at.flag} THEN {at.like(kind)}{more}{last} END"
        other = at.any()
        return f"CASE {at.like(other)} WHEN {at.like(other)} THEN {at.like(kind)}{last} END"

    return make


def _first(kind: str) -> Callable[[_At], str]:
    def make(at: _At) -> str:
        values = [at.like(kind) for _ in range(at.of.random.choice([2, 2, 3]))]
        return f"{at.one('coalesce', 'COALESCE')}({', '.join(values)})"

    return make


def _cast(kind: str, *types: str) -> Callable[[_At], str]:
    def make(at: _At) -> str:
        type_, other = at.one(*types), at.one(kind, kind, at.any())
        return at.one(
            f"CAST({at.like(other)} AS {type_})",
            f"CAST({at.like(other)} AS {type_})",
            f"TRY_CAST({at.like(other)} AS {type_})",
            f"{at.like(other)} :: {type_}",
        )

    return make


FORMS: dict[str, list[Callable[[_At], str]]] = {
    "number": [
        *[lambda at: f"{at.number} {at.one('+', '-', '*')} {at.number}"] * 2,
        lambda at: f"({at.number} {at.one('+', '-', '*', '/', '%', 'DIV', '&', '|', '^')} {at.number})",
        lambda at: f"{at.one('-', '- ', '+', '~')}{at.number}",
        lambda at: f"abs({at.number})",
        lambda at: f"{at.one('length', 'LENGTH', 'char_length')}({at.text})",
        lambda at: f"{at.one('year', 'month', 'day', 'dayofmonth')}({at.day})",
        lambda at: f"length({at.raw})",
        _first("number"),
        _case("number"),
        _cast(
            "number",
            "INT",
            "BIGINT",
            "SMALLINT",
            "DOUBLE",
            "FLOAT",
            "DECIMAL(12, 3)",
            "DECIMAL(38, 10)",
            "DECIMAL",
        ),
    ],
    "text": [
        lambda at: f"{at.text} || {at.text}",
        lambda at: f"concat({at.text}, {at.text})",
        lambda at: (
            f"{at.one('substring', 'substr')}({at.text}, {at.one('0', '1', '-1')}, {at.one('0', '2')})"
        ),
        lambda at: f"substring({at.text} FROM {at.one('1', '2')} FOR {at.one('1', '3')})",
        lambda at: f"substring({at.text}, 2)",
        _first("text"),
        _case("text"),
        _cast("text", "STRING", "VARCHAR(3)", "CHAR(3)"),
        lambda at: f"{at.one('upper', 'trim')}({at.text})",
    ],
    "flag": [
        *[_compared] * 4,
        *[lambda at: f"{at.flag} {at.one('AND', 'OR')} {at.flag}"] * 2,
        *[lambda at: f"({at.flag} {at.one('AND', 'OR')} {at.flag})"] * 2,
        lambda at: f"{at.one('NOT', 'NOT', '!')} {at.flag}",
        lambda at: f"(NOT {at.flag})",
        _listed,
        _between,
        lambda at: f"{at.text} {at.one('', 'NOT ')}LIKE {at.one(*PATTERNS)}",
        lambda at: f"{at.one('startswith', 'endswith', 'contains')}({at.text}, {at.one(*STARTS)})",
        lambda at: f"{at.like(at.one(*KINDS))} IS {at.one('', 'NOT ')}NULL",
        lambda at: f"{at.flag} IS {at.one('', 'NOT ')}{at.one('TRUE', 'FALSE', 'UNKNOWN')}",
        lambda at: f"{at.number} IS {at.one('', 'NOT ')}DISTINCT FROM {at.number}",
        lambda at: f"isnan({at.number})",
        lambda at: f"{at.one('isnull', 'isnotnull')}({at.number})",
        lambda at: f"{at.day} {at.one('=', '<')} {at.time}",
        _first("flag"),
        _case("flag"),
        _cast("flag", "BOOLEAN"),
    ],
    "day": [_first("day"), _case("day"), _cast("day", "DATE"), lambda at: f"{at.day} + {at.number}"],
    "time": [
        _first("time"),
        _case("time"),
        _cast("time", "TIMESTAMP", "TIMESTAMP_NTZ"),
        lambda at: f"{at.time} + {at.span}",
    ],
    "clock": [_first("clock"), _case("clock")],
    "span": [_first("span"), _case("span")],
    "raw": [_first("raw"), _case("raw")],
}


@dataclass(frozen=True)
class Query:
    """A text, and whether it says the order of all rows."""

    text: str
    is_ordered: bool


def random_query(random: Random) -> Query:
    """A query over one to four tables."""
    tables = random.choices([*TABLES], [5, 4, 3, 1], k=random.choice([1, 1, 2, 2, 2, 3, 4]))
    if len(tables) == 1 and random.random() < 0.7:
        source, called, seen = tables[0], [tables[0]], [""]
        if random.random() < 0.3:
            source, called = f"{tables[0]} {random.choice(['', 'AS '])}k", ["k"]
            seen = random.choice([[""], ["k", ""], ["K"]])
    else:
        source, called = _joined(random, tables)
        seen = called
    expressions = Expressions(random, seen, odd=random.choice([0.0, 0.0, 0.0, 0.05]))
    where = ""
    if random.random() < 0.6:
        parts = [expressions.some("flag") for _ in range(random.choice([1, 1, 2, 3]))]
        where = " WHERE " + " AND ".join(parts)
    if random.random() < 0.35:
        return _of_groups(random, expressions, source, where)
    return _of_rows(random, expressions, source, where, called)


def _joined(random: Random, tables: Sequence[str]) -> tuple[str, list[str]]:
    called = [f"t{number}" for number in range(len(tables))]
    if len(set(tables)) == len(tables) and random.random() < 0.2:
        called = [*tables]
    text, seen = f"{tables[0]} {called[0]}", [called[0]]
    is_using, is_odd = random.random() < 0.3, random.random() < 0.1
    for table, name in zip(tables[1:], called[1:], strict=True):
        how = random.choice(JOINS + JOINS + HALVES)
        columns = random.sample(SCALARS, random.choice([1, 1, 2]))
        pairs = []
        for column in columns:
            other = random.choice(SCALARS) if is_odd else column
            pair = [f"{random.choice(seen)}.{other}", f"{name}.{column}"]
            pairs.append(random.choice(["=", "=", "=="]).join(f" {one} " for one in random.sample(pair, 2)))
        pairs = [random.choice([one, one, f"({one})"]) for one in pairs]
        by = f"USING ({', '.join(columns)})" if is_using else f"ON {' AND '.join(pairs)}"
        text += f" {how} {table} {random.choice(['AS ', ''])}{name} {by}"
        seen += [] if how in HALVES else [name]
    if is_using and random.random() < 0.4:
        seen = ["", *seen]
    return text, seen


def _rest(random: Random, places: int) -> tuple[str, bool]:
    if random.random() < 0.6:
        return "", False
    by = [f"{place}{random.choice(HOWS)}" for place in range(1, places + 1)]
    random.shuffle(by)
    return (
        f" ORDER BY {', '.join(by)}{random.choice(['', ' LIMIT 5', ' LIMIT 4 OFFSET 2', ' OFFSET 3'])}",
        True,
    )


def _of_rows(random: Random, of: Expressions, source: str, where: str, called: Sequence[str]) -> Query:
    if random.random() < 0.2:
        star = random.choice(
            ["*", f"{called[0]}.*", f"*, {of.column('number')} AS more", f"{called[-1]}.*, {called[0]}.*"]
        )
        return Query(f"SELECT {star} FROM {source}{where}", False)
    items = []
    for number in range(random.randint(1, 4)):
        kind = random.choice([*FORMS, "number", "text", "nested"])
        form = random.random()
        if form < 0.4:
            items.append(random.choice(["{}", "{} AS c{}", "{} c{}"]).format(of.column(kind), number))
        else:
            items.append(f"{of.some(kind)} AS c{number}")
    is_distinct = random.random() < 0.15
    rest, is_ordered = _rest(random, len(items))
    distinct = "DISTINCT " if is_distinct else ""
    return Query(f"SELECT {distinct}{', '.join(items)} FROM {source}{where}{rest}", is_ordered)


def _function(random: Random, of: Expressions) -> str:
    name = random.choice(["count", "sum", "avg", "min", "max", "count(DISTINCT"])
    if random.random() < 0.2:
        return random.choice(["count(*)", "COUNT(1)"])
    kind = random.choice(["number"] if name in ("sum", "avg") else [*KINDS, "number"])
    if name == "count(DISTINCT":
        return f"count(DISTINCT {of.column(kind)}{random.choice(['', '', ', ' + of.column('text')])})"
    return f"{name}({of.column(kind)})"


def _of_groups(random: Random, of: Expressions, source: str, where: str) -> Query:
    keys = [of.column(random.choice([*FORMS])) for _ in range(random.choice([0, 1, 1, 2]))]
    functions = [_function(random, of) for _ in range(random.randrange(not keys, 4))]
    items, by = [], []
    for number, key in enumerate(keys):
        form = random.choice(["named", "plain", "hidden", "place"])
        own = {"named": f"{key} AS g{number}", "plain": key, "hidden": None, "place": key}[form]
        if own is not None:
            items.append(own)
        by.append({"named": random.choice([f"g{number}", key]), "place": str(len(items))}.get(form, key))
    named = [f"{one} AS f{number}" if random.random() < 0.4 else one for number, one in enumerate(functions)]
    items += named
    if not items:
        items = ["count(*)"]
    group = f" GROUP BY {', '.join(by)}" if by else ""
    having = ""
    if group and random.random() < 0.35:
        sides = [_function(random, of), *(f"f{n}" for n, one in enumerate(named) if " AS " in one), *by]
        parts = []
        for _ in range(random.choice([1, 1, 2])):
            sign = random.choice(["=", "<", ">", "<=", ">=", "<>", "!="])
            kind = random.choice(["number"] * 4 + [*FORMS])
            parts.append(f"{random.choice(sides)} {sign} {random.choice(LITERALS[kind])}")
        having = " HAVING " + random.choice([" AND ", " OR "]).join(parts)
    rest, is_ordered = _rest(random, len(items))
    if is_ordered and random.random() < 0.3:
        rest, is_ordered = f" ORDER BY {random.choice([*by, *functions, 'f0'])}{random.choice(HOWS)}", False
    return Query(f"SELECT {', '.join(items)} FROM {source}{where}{group}{having}{rest}", is_ordered)
