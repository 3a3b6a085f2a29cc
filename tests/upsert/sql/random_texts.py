"""Random queries in which one name means many things: tables, columns, fields, aliases, parameters."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

TABLES: Final[Mapping[str, str]] = {
    "t": "id INT, a INT, b STRING, t STRUCT<id: INT, u: INT>, d DATE, x ARRAY<INT>",
    "u": "id INT, b STRING, c INT, a DOUBLE",
    "w": "id INT, u STRUCT<id: INT, c: INT, t: STRUCT<a: INT>>, c INT, w INT",
}
COLUMNS: Final = {
    "t": ("id", "a", "b", "t", "t.id", "t.u", "d", "x"),
    "u": ("id", "b", "c", "a"),
    "w": ("id", "u", "u.id", "u.t.a", "c", "w"),
}
NAMES: Final = ("id", "a", "b", "c", "t", "u", "w", "d", "x")
LITERALS: Final = ("1", "2", "0", "-1", "1.0", "1D", "'x'", "''", "'1'", "NULL", "TRUE", "DATE'2020-01-01'")
JOINS: Final = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")


class Texts:
    """Queries drawn by a random generator; Spark refuses many, for a name of which there is none, or two."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.known: dict[str, Sequence[str]] = {}
        """Columns by the alias before them."""

    def of(self, *parts: str) -> str:
        return self.random.choice(parts)

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def cased(self, name: str) -> str:
        return self.of(name, name, name, name.upper(), f"`{name}`")

    def column(self, aliases: Sequence[str]) -> str:
        known = [alias for alias in aliases if alias in self.known]
        if not known or self.chance(0.07):
            return self.of(*NAMES)
        alias = self.of(*known)
        first, *fields = self.of(*self.known[alias]).split(".")
        column = ".".join((self.cased(first), *fields))
        return f"{self.cased(alias)}.{column}" if self.chance(0.8 if len(aliases) > 1 else 0.35) else column

    def value(self, aliases: Sequence[str], depth: int = 0) -> str:
        column = self.column(aliases)
        if depth > 2 or self.chance(0.5):
            return column if self.chance(0.75) else self.of(*LITERALS)
        other = self.value(aliases, depth + 1)
        table, name = self.of(*TABLES), self.of(*NAMES)
        self.known["z"] = COLUMNS[table]
        return self.of(
            f"{other} + {column}",
            f"coalesce({column}, {other})",
            f"CASE WHEN {self.condition(aliases, depth + 1)} THEN {other} END",
            f"transform(x, {name} -> {name} + {self.of('1', 'id', 'a')})",
            f"size(filter(x, a -> a > {column}))",
            f"struct({other} AS {name}).{name}",
            f"(SELECT max({self.column(['z'])}) FROM {table} z WHERE {self.condition(['z', *aliases], 2)})",
            f"count(*) OVER (PARTITION BY {column})",
            f"date_trunc({self.of('b', 'd', LITERALS[6])}, {column})",
            f"identifier('{name}')",
            f"{column}::STRING",
            f"to_json(struct({self.of('*', *(f'{alias}.*' for alias in aliases))}))",
            "current_date",
        )

    def condition(self, aliases: Sequence[str], depth: int = 0) -> str:
        column, literal = self.column(aliases), self.of(*LITERALS)
        simple = self.of(
            f"{column} {self.of('=', '<', '>=', '!=', '<>', '<=>', '==')} {literal}",
            f"{literal} {self.of('=', '<')} {column}",
            f"{column} IS {self.of('', 'NOT ')}NULL",
            f"{column} {self.of('', 'NOT ')}IN ({literal}, {self.of(*LITERALS)})",
            f"{column} BETWEEN {literal} AND {self.of(*LITERALS)}",
        )
        if depth > 2 or self.chance(0.6):
            return simple
        table = self.of(*TABLES)
        return self.of(
            f"{simple} AND {self.condition(aliases, depth + 1)}",
            f"{simple} OR {self.condition(aliases, depth + 1)}",
            f"NOT ({self.condition(aliases, depth + 1)})",
            f"{self.of('', 'NOT ')}EXISTS (SELECT 1 FROM {table} WHERE {self.condition(aliases, depth + 1)})",
            f"{column} IN (SELECT {self.column([])} FROM {table} WHERE {self.condition(aliases, depth + 1)})",
            f"{self.value(aliases, depth + 1)} = {column}",
        )

    def source(self, depth: int, named: Sequence[str]) -> tuple[str, list[str]]:
        """What stands in FROM, and the aliases that it gives."""
        name, alias = self.of(*TABLES, *named), self.of("t", "u", "w", "x", "a", "id")
        kind = self.random.random()
        if kind < 0.15 and depth < 2:
            query = self.query(depth + 1, named)
            self.known[alias] = NAMES[:4]
            return f"({query}) AS {alias}", [alias]
        if kind < 0.22 and depth < 2:
            (left, _), (right, _) = self.source(depth + 1, named), self.source(depth + 1, named)
            self.known["g"] = NAMES[:4]
            return f"({left} {self.of('NATURAL JOIN', 'CROSS JOIN')} {right}) AS g", ["g"]
        if kind < 0.3 and name in TABLES:
            count = len([column for column in COLUMNS[name] if "." not in column])
            self.known[alias] = self.random.sample(NAMES, count)
            return f"{name} AS {alias}({', '.join(self.known[alias])})", [alias]
        alias = alias if kind < 0.6 else name
        self.known[alias] = COLUMNS.get(name, NAMES[:4])
        return (name if alias == name else f"{name} {alias}"), [alias]

    def sources(self, depth: int, named: Sequence[str]) -> tuple[str, list[str]]:
        text, aliases = self.source(depth, named)
        while self.chance(0.3):
            right, own = self.source(depth, named)
            join = self.of(*JOINS, "CROSS JOIN", "NATURAL JOIN")
            both = [*aliases, *own]
            text += f" {join} {right}"
            if join in JOINS:
                text += self.of(f" ON {self.condition(both)}", f" USING ({self.of(*NAMES)})")
            aliases = aliases if "SEMI" in join or "ANTI" in join else both
        if self.chance(0.06):
            text += f" LATERAL VIEW OUTER explode({self.column(aliases)}) e AS {self.of(*NAMES)}"
        elif self.chance(0.05):
            text += f", LATERAL (SELECT {self.of(*aliases)}.*, {self.value(aliases)} AS j) AS l"
        elif self.chance(0.05):
            text += f" PIVOT (sum({self.of(*NAMES)}) FOR {self.of(*NAMES)} IN (1, 2))"
        return text, aliases

    def item(self, aliases: Sequence[str]) -> str:
        value = self.value(aliases)
        named = f"{value} AS {self.of(*NAMES)}"
        return self.of(
            value, value, named, named, "*", f"{self.of(*aliases)}.*", f"* EXCEPT ({self.of(*NAMES)})"
        )

    def query(self, depth: int = 0, named: Sequence[str] = ()) -> str:
        if depth < 2 and self.chance(0.12):
            name = self.of("t", "u", "q", "c")
            inner = self.query(depth + 1, named)
            return f"WITH {name} AS ({inner}) {self.query(depth + 1, [*named, name])}"
        if depth < 2 and self.chance(0.08):
            united = self.of("UNION ALL", "UNION", "UNION ALL BY NAME", "EXCEPT", "INTERSECT")
            return f"{self.query(depth + 1, named)} {united} {self.query(depth + 1, named)}"
        text, aliases = self.sources(depth, named)
        if depth == 0 and self.chance(0.06):
            steps = (
                f"WHERE {self.condition([])}",
                f"SELECT {self.item(aliases)}, {self.item(aliases)}",
                f"SET {self.of(*NAMES)} = {self.value([])}",
                f"DROP {self.of(*NAMES)}",
                "ORDER BY ALL |> LIMIT 3",
                f"AGGREGATE count(*) AS c GROUP BY {self.column(aliases)}",
            )
            return " |> ".join((f"FROM {text}", *self.random.choices(steps, k=3)))
        where = f" WHERE {self.condition(aliases)}" if self.chance(0.7) else ""
        if self.chance(0.12):
            group = self.of("ALL", "1", "g", self.column(aliases))
            items = f"{self.column(aliases)} AS g, count(*) AS c, max({self.value(aliases)}) AS m"
            return f"SELECT {items} FROM {text}{where} GROUP BY {group}"
        items = ", ".join(self.item(aliases) for _ in range(self.random.randrange(1, 4)))
        last = self.of("", "", "", f" QUALIFY row_number() OVER (ORDER BY {self.column(aliases)}) >= 1")
        return f"SELECT {self.of('', '', '', 'DISTINCT ')}{items} FROM {text}{where}{last}"
