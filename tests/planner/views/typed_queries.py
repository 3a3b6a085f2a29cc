"""Random queries over columns of many types with odd values, and random histories of their tables.

No table was made for views: none has an index, one has no key, one has partitions, one is often empty. They
are emptied, overwritten, rolled back, altered and compacted. What a query gives is what Spark gives for the
same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.helpers import of_kind
from upsert import Catalog, Table
from upsert.schema import Column
from upsert.spark.columns import spark_schema
from upsert.store.alterations import AddColumn

_SQL: Final = {
    "n": "INT",
    "s": "STRING",
    "d": "DOUBLE",
    "e": "DECIMAL(38, 10)",
    "t": "TIMESTAMP_NTZ",
    "f": "FLOAT",
    "o": "BOOLEAN",
    "y": "BINARY",
    "c": "DATE",
    "z": "TIMESTAMP",
    "r": "STRUCT<x: INT, y: STRING>",
    "l": "ARRAY<INT>",
    "h": "DECIMAL(9, 2)",
}

_COLUMNS: Final = ", ".join(f"{name} {type_}" for name, type_ in _SQL.items())

TABLES = f"""
    CREATE TABLE one (id INT, {_COLUMNS}, PRIMARY KEY (id) NOT ENFORCED);
    CREATE TABLE parts (day INT, id INT, {_COLUMNS}, PRIMARY KEY (day, id) NOT ENFORCED) PARTITIONED BY (day);
    CREATE TABLE bag ({_COLUMNS});
    CREATE TABLE seldom (id BIGINT, {_COLUMNS}, PRIMARY KEY (id) NOT ENFORCED)"""

NAMES: Final = ("one", "parts", "bag", "seldom")

_TIME: Final = datetime(2024, 3, 31)

VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "n": (None, None, 0, 1, 2, 3, 4, 5, -7),
    "s": (None, "", "a", "A", "a ", "nul\0x", "\U0001f350", "\u00e4"),
    "d": (None, 0.0, -0.0, float("nan"), float("inf"), 1.5, -2.25, 3.0),
    "e": (
        None,
        Decimal(0),
        Decimal("1.5"),
        Decimal("-0.0000000001"),
        Decimal("9999999999999999999999999999.9999999999"),
        Decimal("-9999999999999999999999999999.9999999999"),
    ),
    "t": (None, *(_TIME + timedelta(minutes=minutes) for minutes in (0, 1, 59, 61, 125, 1439))),
    "f": (None, 0.0, -0.0, float("nan"), float("-inf"), 0.5, -2.25),
    "o": (None, True, False),
    "y": (None, b"", b"a", b"\0\xff"),
    "c": (None, date(2024, 3, 31), date(2024, 3, 30), date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31)),
    "z": (None, *((_TIME + timedelta(minutes=minutes)).replace(tzinfo=UTC) for minutes in (-60, 0, 59, 61))),
    "r": (None, *({"x": x, "y": y} for x, y in ((1, "a"), (1, "A"), (None, "a"), (None, None)))),
    "l": (None, [], [1], [None], [1, None, 2], [3]),
    "h": (None, Decimal(0), Decimal("1.50"), Decimal("-9999999.99"), Decimal("3.00")),
}
"""Those of each column, which is named by a letter for its type."""

_LITERALS: Final = {
    "n": ("0", "2", "4"),
    "s": ("''", "'a'", "'\U0001f350'"),
    "d": ("0.0D", "1.5D", "double('NaN')"),
    "e": ("0", "1.5", "-0.0000000001"),
    "t": ("TIMESTAMP_NTZ '2024-03-31 00:59:00'", "TIMESTAMP_NTZ '2024-03-31 02:00:00'"),
    "f": ("float(0.0)", "float(0.5)", "float('NaN')"),
    "o": ("true", "false"),
    "y": ("X''", "X'61'"),
    "c": ("DATE '2024-03-31'", "DATE '1969-12-31'"),
    "z": ("TIMESTAMP '2024-03-31 00:00:00Z'", "TIMESTAMP '2024-03-31 01:30:00Z'"),
    "r": ("named_struct('x', 1, 'y', 'a')", "named_struct('x', CAST(NULL AS INT), 'y', 'a')"),
    "l": ("array(1)", "array(1, CAST(NULL AS INT), 2)"),
    "h": ("0", "1.5", "3.00"),
}

_ALIKE: Final = (
    ("n", "e"),
    ("n", "h"),
    ("h", "e"),
    ("f", "d"),
    ("n", "d"),
    ("c", "t"),
    ("c", "z"),
    ("t", "z"),
)
"""Types of which Spark compares values, each as one of the wider type."""


class Queries:
    """Draws queries of two columns, ``a`` and ``b``, of given types; any value of them may be NULL."""

    def __init__(self, random_: Random) -> None:
        """From a source of chance."""
        self._random = random_

    def query(self, a: str, b: str, depth: int) -> str:
        """A SELECT of any kind that gives such columns."""
        if depth == 0:
            return self._leaf(a, b)
        kinds = [*_KINDS, *(_OF_NUMBERS if b == "n" else ()), *(("sessions",) if a in ("t", "z") else ())]
        kinds += _OF_TIMES if a in ("t", "z") and b == "n" else ()
        return getattr(self, f"_{self._random.choice(kinds)}")(a, b, depth - 1)

    def _one_of(self, *texts: str) -> str:
        return self._random.choice(texts)

    def _type(self) -> str:
        return self._random.choice(list(VALUES))

    def _leaf(self, a: str, b: str) -> str:
        return f"SELECT {a} AS a, {b} AS b FROM {self._random.choice(NAMES)}"

    def _less(self, depth: int) -> int:
        return self._random.randrange(depth + 1)

    def _condition(self, side: str, a: str, b: str) -> str:
        column, type_ = self._random.choice((("a", a), ("b", b)))
        literal = self._one_of(*_LITERALS[type_])
        return self._one_of(
            f"{side}.{column} {self._one_of('<', '>=', '=', '<>', '<=>')} {literal}",
            f"{side}.{column} IS {self._one_of('NULL', 'NOT NULL')}",
            f"{side}.{column} {self._one_of('IN', 'NOT IN')} ({literal}, {self._one_of(*_LITERALS[type_])})",
        )

    def _filter(self, a: str, b: str, depth: int) -> str:
        return f"SELECT a, b FROM ({self.query(a, b, depth)}) q WHERE {self._condition('q', a, b)}"

    def _case(self, a: str, b: str, depth: int) -> str:
        when = self._condition("q", a, b)
        return f"SELECT a, CASE WHEN {when} THEN b END AS b FROM ({self.query(a, b, depth)}) q"

    def _swapped(self, a: str, b: str, depth: int) -> str:
        return f"SELECT b AS a, a AS b FROM ({self.query(b, a, depth)}) q"

    def _join(self, a: str, b: str, depth: int) -> str:
        on, how = self._type(), self._one_of("JOIN", "LEFT JOIN", "FULL JOIN", "RIGHT JOIN")
        also = self._one_of(
            "", "", f"AND {self._condition('x', a, on)}", f"AND {self._condition('y', on, b)}"
        )
        left, right = self.query(a, on, depth), self.query(on, b, self._less(depth))
        return f"SELECT x.a, y.b FROM ({left}) x {how} ({right}) y ON x.b {self._equal()} y.a {also}"

    def _cast_join(self, a: str, b: str, depth: int) -> str:
        """By values of two types, of which at least one is cast; or by what is computed."""
        one, other = self._random.sample(self._random.choice(_ALIKE), 2)
        how = self._one_of("JOIN", "LEFT JOIN", "FULL JOIN", "RIGHT JOIN")
        left, right = self.query(a, one, depth), self.query(other, b, self._less(depth))
        on = f"x.b {self._equal()} y.a"
        if self._random.random() < 0.3:
            left, right = self.query(a, "r", depth), self.query("n", b, self._less(depth))
            on = f"x.b.x {self._equal()} y.a"
        return f"SELECT x.a, y.b FROM ({left}) x {how} ({right}) y ON {on}"

    def _pivot(self, a: str, b: str, depth: int) -> str:
        below = f"SELECT q.a, q.b, n AS k FROM ({self.query(a, b, depth)}) q, (VALUES (0), (2)) v(n)"
        how = f"{self._one_of('min', 'max')}(b) FOR k IN (0 AS v, 1 AS w)"
        return f"SELECT a, v AS b FROM ({below}) PIVOT ({how})"

    def _unpivot(self, a: str, b: str, depth: int) -> str:
        nulls = self._one_of("INCLUDE NULLS", "EXCLUDE NULLS", "")
        below = f"SELECT a, b, b AS also FROM ({self.query(a, b, depth)}) q"
        return f"SELECT a, v AS b FROM ({below}) UNPIVOT {nulls} (v FOR k IN (b, also))"

    def _positions(self, a: str, b: str, depth: int) -> str:
        below, outer = self.query(a, "l", depth), self._one_of("", "OUTER")
        how = self._one_of("explode(b) t AS e", "posexplode(b) t AS p, e")
        shown = "e" if b == "n" else f"CAST(NULL AS {_SQL[b]})"
        return f"SELECT q.a, {shown} AS b FROM ({below}) q LATERAL VIEW {outer} {how}"

    def _equal(self) -> str:
        return self._one_of("=", "=", "<=>")

    def _twice(self, a: str, b: str, depth: int) -> str:
        how = self._one_of("JOIN", "LEFT JOIN", "FULL JOIN")
        both = f"SELECT x.a, y.b FROM t x {how} t y ON x.a {self._equal()} y.a"
        return f"WITH t AS ({self.query(a, b, depth)}) {both}"

    def _exists(self, a: str, b: str, depth: int) -> str:
        other, how = self._other(a, depth), self._one_of("EXISTS", "NOT EXISTS")
        also = self._one_of("", f"OR {self._condition('x', a, b)}", f"AND {self._condition('x', a, b)}")
        found = f"{how} (SELECT 1 FROM ({other}) y WHERE y.a {self._equal()} x.a)"
        return f"SELECT a, b FROM ({self.query(a, b, depth)}) x WHERE {found} {also}"

    def _two_exist(self, a: str, b: str, depth: int) -> str:
        found = (
            f"{self._one_of('', 'NOT ')}EXISTS (SELECT 1 FROM ({self._other(a, depth)}) y WHERE y.a = x.a)"
            for _ in range(2)
        )
        return f"SELECT a, b FROM ({self.query(a, b, depth)}) x WHERE {' OR '.join(found)}"

    def _in(self, a: str, b: str, depth: int) -> str:
        columns, inner = self._random.choice((("a", "a"), ("(a, b)", "a, b")))
        other = self.query(a, b, self._less(depth))
        how = self._one_of("IN", "NOT IN")
        found = f"{columns} {how} (SELECT {inner} FROM ({other}) y)"
        return f"SELECT a, b FROM ({self.query(a, b, depth)}) x WHERE {found}"

    def _other(self, a: str, depth: int) -> str:
        return self.query(a, self._type(), self._less(depth))

    def _scalar(self, a: str, b: str, depth: int) -> str:
        inner = f"SELECT {self._one_of('min', 'max')}(b) FROM ({self.query(a, b, self._less(depth))}) y"
        where = self._one_of("", f"WHERE y.a {self._equal()} x.a")
        return self._one_of(
            f"SELECT a, ({inner} {where}) AS b FROM ({self._other(a, depth)}) x",
            f"SELECT a, b FROM ({self.query(a, b, depth)}) x WHERE b >= ({inner} {where})",
        )

    def _group(self, a: str, b: str, depth: int) -> str:
        having = self._one_of("", "", "HAVING count(*) > 1", "HAVING count(b) < 3")
        below = self.query(a, b, depth)
        by = self._one_of("a", "ALL") if not having else "a"
        return f"SELECT a, {self._aggregate(b)} AS b FROM ({below}) q GROUP BY {by} {having}"

    def _sets(self, a: str, b: str, depth: int) -> str:
        sets = self._one_of("ROLLUP (a, b)", "CUBE (a, b)", "GROUPING SETS ((a), (b), ())", "ROLLUP (b, a)")
        return f"SELECT a, {self._aggregate(b)} AS b FROM ({self.query(a, b, depth)}) q GROUP BY {sets}"

    def _aggregate(self, b: str) -> str:
        own = self._one_of("min(b)", "max(b)", "min(b) FILTER (WHERE a IS NOT NULL)")
        return own if b != "n" else self._number()

    def _number(self) -> str:
        return self._one_of("min(b)", "max(b)", *_COUNTS)

    def _number_of(self, a: str, b: str, depth: int) -> str:  # noqa: ARG002 - a number, whatever it is of
        below, number = self._other(a, depth), self._random.choice(_COUNTS)
        return f"SELECT a, {number} AS b FROM ({below}) q GROUP BY a"

    def _sum(self, a: str, b: str, depth: int) -> str:
        how = self._one_of("sum(b)", "sum(DISTINCT b)", "sum(b) FILTER (WHERE b > 0)")
        return f"SELECT a, CAST({how} % 100 AS INT) AS b FROM ({self.query(a, b, depth)}) q GROUP BY a"

    def _all(self, a: str, b: str, depth: int) -> str:
        below = self.query(a, b, depth)
        return f"SELECT {self._one_of('min', 'max')}(a) AS a, {self._aggregate(b)} AS b FROM ({below}) q"

    def _distinct(self, a: str, b: str, depth: int) -> str:
        return f"SELECT DISTINCT a, b FROM ({self.query(a, b, depth)}) q"

    def _set(self, a: str, b: str, depth: int) -> str:
        how = self._one_of("UNION", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL")
        left, right = self.query(a, b, depth), self.query(a, b, self._less(depth))
        return f"SELECT a, b FROM ({left}) x {how} SELECT a, b FROM ({right}) y"

    def _top(self, a: str, b: str, depth: int) -> str:
        by = ", ".join(
            f"{one} {self._one_of('ASC', 'DESC')} NULLS {self._one_of('FIRST', 'LAST')}"
            for one in self._random.sample("ab", 2)
        )
        limit = f"LIMIT {self._random.randrange(7)} {self._one_of('', 'OFFSET 2')}"
        return f"SELECT a, b FROM ({self.query(a, b, depth)}) q ORDER BY {by} {limit}"

    def _window(self, a: str, b: str, depth: int) -> str:
        what = self._one_of("lag(b)", "lead(b, 2)", "min(b)", "max(b)", "first_value(b)", "nth_value(b, 2)")
        frames = (
            "",
            "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
            "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
            "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
        )
        frame = "" if what.startswith("l") else self._one_of(*frames)
        order = f"ORDER BY b {self._one_of('ASC', 'DESC')} NULLS {self._one_of('FIRST', 'LAST')}"
        below = self.query(a, b, depth)
        if self._random.random() < 0.7:
            return f"SELECT a, {what} OVER (PARTITION BY a {order} {frame}) AS b FROM ({below}) q"
        # rows of other values of a are in one partition: which of equal values of b is whose is not known
        by = self._one_of("PARTITION BY a IS NULL", "")
        return (
            f"SELECT CAST(NULL AS {_SQL[a]}) AS a, {what} OVER ({by} {order} {frame}) AS b FROM ({below}) q"
        )

    def _ranked(self, a: str, b: str, depth: int) -> str:
        what = self._one_of("row_number()", "rank()", "dense_rank()")
        over = (
            f"PARTITION BY a ORDER BY b {self._one_of('ASC', 'DESC')} NULLS {self._one_of('FIRST', 'LAST')}"
        )
        compared = f"{self._one_of('<=', '=')} {self._random.randrange(1, 4)}"
        return f"SELECT a, b FROM ({self.query(a, b, depth)}) q QUALIFY {what} OVER ({over}) {compared}"

    def _place(self, a: str, b: str, depth: int) -> str:  # noqa: ARG002 - a number, whatever it is of
        what = self._one_of("row_number()", "rank()", "dense_rank()", "ntile(2)", "count(*)", "count(b)")
        over = f"PARTITION BY a ORDER BY b {self._one_of('ASC', 'DESC')}"
        if what.startswith("count"):
            over = self._one_of("PARTITION BY a", over)
        return f"SELECT a, CAST({what} OVER ({over}) AS INT) AS b FROM ({self._other(a, depth)}) q"

    def _unnest(self, a: str, b: str, depth: int) -> str:
        below = self.query(a, b, depth)
        return self._one_of(
            f"SELECT q.a, t.b FROM ({below}) q LATERAL VIEW explode(array(b, NULL, b)) t AS b",
            f"SELECT a, explode_outer(filter(array(b), x -> x IS NOT NULL)) AS b FROM ({below}) q",
        )

    def _latest(self, a: str, b: str, depth: int) -> str:
        order = f"ORDER BY b {self._one_of('ASC', 'DESC')} LIMIT {self._random.randrange(1, 3)}"
        inner = f"SELECT b FROM ({self.query(a, b, self._less(depth))}) y WHERE y.a = x.a {order}"
        how = self._one_of("JOIN LATERAL", "LEFT JOIN LATERAL")
        if self._random.random() < 0.3:
            return (
                f"SELECT x.a, ({inner.replace(' LIMIT 2', ' LIMIT 1')}) AS b FROM ({self._other(a, depth)}) x"
            )
        return f"SELECT x.a, z.b FROM ({self._other(a, depth)}) x {how} ({inner}) z"

    def _values(self, a: str, b: str, depth: int) -> str:
        one, two = self._one_of(*_LITERALS[a]), self._one_of(*_LITERALS[a])
        rows = f"VALUES (CAST({one} AS {_SQL[a]})), (CAST({two} AS {_SQL[a]})), (NULL)"
        how = self._one_of("JOIN", "LEFT JOIN", "RIGHT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
        below = self.query(a, b, depth)
        if "SEMI" not in how and "ANTI" not in how and self._random.random() < 0.5:
            return f"SELECT v.a, x.b FROM ({below}) x {how} ({rows}) v(a) ON x.a {self._equal()} v.a"
        return f"SELECT x.a, x.b FROM ({below}) x {how} ({rows}) v(a) ON x.a {self._equal()} v.a"

    def _near(self, a: str, b: str, depth: int) -> str:
        how = self._one_of("JOIN", "LEFT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
        right = self.query(a, b, self._less(depth))
        shown = "x.a, x.b" if "SEMI" in how or "ANTI" in how else self._one_of("x.a, x.b", "y.a, x.b")
        return f"SELECT {shown} FROM ({self.query(a, b, depth)}) x {how} ({right}) y ON x.a < y.a"

    def _sessions(self, a: str, b: str, depth: int) -> str:
        gap = f"session_window(a, '{self._one_of('1 minute', '1 hour')}')"
        return f"SELECT session_window.start AS a, b FROM ({self.query(a, b, depth)}) q GROUP BY {gap}, b"

    def _beyond(self, a: str, b: str, depth: int) -> str:
        """Rows compared with the value of a row, which is no aggregate."""
        row = f"(SELECT {b} FROM one WHERE id = {self._random.randrange(40)})"
        below, how = self.query(a, b, depth), self._one_of("<=", ">", "<>")
        return self._one_of(
            f"SELECT a, b FROM ({below}) q WHERE b {how} {row}",
            f"SELECT a, max(b) AS b FROM ({below}) q GROUP BY a HAVING min(b) {how} {row}",
            f"SELECT a, b FROM ({below}) q ORDER BY b = {row} NULLS LAST, b NULLS FIRST, a LIMIT 5",
        )

    def _hours(self, a: str, b: str, depth: int) -> str:
        size = self._one_of("'1 hour'", "'1 hour', '20 minutes'", "'90 minutes', '30 minutes', '5 minutes'")
        below = self.query(a, b, depth)
        return f"SELECT window.start AS a, {self._number()} AS b FROM ({below}) q GROUP BY window(a, {size})"


_KINDS: Final = (
    "filter", "case", "swapped", "join", "join", "twice", "exists", "two_exist", "in", "scalar", "group",
    "sets", "all", "distinct", "set", "set", "top", "window", "ranked", "unnest", "latest", "beyond",
    "values", "near", "cast_join", "cast_join", "pivot", "unpivot", "positions",
)  # fmt: skip
_COUNTS: Final = (
    "CAST(count(*) AS INT)",
    "CAST(count(DISTINCT b) + count(b) AS INT)",
    "CAST(count(DISTINCT a) - count(DISTINCT b) AS INT)",
    "CAST(count(DISTINCT a, b) AS INT)",
    "CAST(count(a) FILTER (WHERE b IS NOT NULL) AS INT)",
    "size(collect_set(b))",
)
_OF_NUMBERS: Final = ("number_of", "sum", "place", "place")
_OF_TIMES: Final = ("hours", "hours")


def made(catalog: Catalog) -> Catalog:
    """The catalog with the tables, and some rows in each but one."""
    for statement in TABLES.split(";"):
        catalog.sql(statement)
    random_ = Random(0)
    for name in ("one", "parts", "bag"):
        table = catalog.table(name)
        table.write(rows(table, random_, 25))
    return catalog


def rows(table: Table, random_: Random, count: int) -> pa.Table:
    """Random rows of a table, each key once."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number in range(count):
        row = {name: random_.choice(VALUES[name]) for name in table.schema.names if name in VALUES}
        row |= {name: random_.randrange(40) for name in table.schema.names if name == "id"}
        row |= {name: random_.randrange(3) for name in table.schema.names if name == "day"}
        key = tuple(row[name] for name in table.schema.primary_key) or (number,)
        found[key] = row
    return pa.Table.from_pylist([*found.values()], table.schema.arrow)


def change(catalog: Catalog, random_: Random) -> str:
    """Change some tables, one or several times each, and say how."""
    names = random_.choices(NAMES, k=random_.randrange(1, len(NAMES) + 2))
    return ", ".join(f"{_change(catalog.table(name), random_)} {name}" for name in names)


def _change(table: Table, random_: Random) -> str:
    weighted = {_write: 12, _delete: 4, _drop_partition: 2}
    weighted |= dict.fromkeys((_empty, _overwrite, _roll_back, _compact, _add_column), 1)
    ways: list[Callable[[Table, Random], None]] = list(weighted)
    (way,) = random_.choices(ways, list(weighted.values()))
    way(table, random_)
    return way.__name__.removeprefix("_")


def _write(table: Table, random_: Random) -> None:
    table.write(rows(table, random_, random_.randrange(1, 9)))


def _delete(table: Table, random_: Random) -> None:
    if table.schema.primary_key:
        gone = rows(table, random_, 9)
        table.write(of_kind(gone, "-D"))
    else:
        table.delete([("n", "=", random_.randrange(5))])


def _empty(table: Table, random_: Random) -> None:
    table.delete([])


def _overwrite(table: Table, random_: Random) -> None:
    table.overwrite(rows(table, random_, 20), tracked=random_.choice((False, None)))


def _roll_back(table: Table, random_: Random) -> None:
    known = [info.id for info in table.history() if info.changes_rows]
    if known:
        table.rollback_to(random_.choice(known))


def _drop_partition(table: Table, random_: Random) -> None:
    if table.schema.partitioned_by:
        table.drop_partition({"day": random_.randrange(3)})


def _compact(table: Table, random_: Random) -> None:
    table.compact()


def _add_column(table: Table, random_: Random) -> None:
    table.alter(AddColumn(Column(f"more_{random_.getrandbits(32)}", pa.int32())))


def oracle(spark: SparkSession) -> SparkSession:
    """A session in which the tables are views of their rows."""
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "1")
    return own


def expected(catalog: Catalog, own: SparkSession, query: str) -> Counter[str]:
    """What a query gives of the present rows."""
    for name in NAMES:
        table = catalog.table(name)
        scanned = table.snapshot().scan()
        # of no rows there may be no piece, whose type Spark asks for
        found = scanned.combine_chunks() if scanned.num_rows else scanned.schema.empty_table()
        own.createDataFrame(found, spark_schema(table.schema, row_kind=False)).createOrReplaceTempView(name)
    return counted(own.sql(query).toArrow())


def counted(found: pa.Table) -> Counter[str]:
    """Rows as texts, with one zero."""
    columns = [
        [value + 0.0 if isinstance(value, float) else value for value in one.to_pylist()]
        for one in found.columns
    ]
    return Counter(map(repr, zip(*columns, strict=True)))
