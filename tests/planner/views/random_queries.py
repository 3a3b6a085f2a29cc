"""Random queries of any depth over the tables of `tests.upsert.views.shops`, in words that DuckDB knows."""

from random import Random

COLUMNS = {
    "sales": ("id", "shop", "n"),
    "shops": ("shop",),
    "closed": ("shop", "since"),
}
"""Their columns that are integers."""


def query(random_: Random, depth: int = 3) -> str:
    """A SELECT of columns ``a`` and ``b``, both integers, which may be NULL."""
    if depth == 0:
        return leaf(random_)
    below, other = query(random_, depth - 1), query(random_, random_.randrange(depth))
    kind = random_.choice(("union", "less", "having", *KINDS))
    match kind:
        case "filter":
            return f"SELECT a, b FROM ({below}) q WHERE {condition(random_, 'q')}"
        case "project":
            return f"SELECT b AS a, a + coalesce(b, {random_.randrange(5)}) AS b FROM ({below}) q"
        case "join":
            how = random_.choice(("JOIN", "LEFT JOIN", "FULL JOIN", "RIGHT JOIN"))
            also = random_.choice(("", "AND x.b < y.b"))
            return f"SELECT x.a, y.b FROM ({below}) x {how} ({other}) y ON x.a = y.a {also}"
        case "exists":
            how = random_.choice(("EXISTS", "NOT EXISTS"))
            return f"SELECT a, b FROM ({below}) x WHERE {how} (SELECT 1 FROM ({other}) y WHERE y.a = x.a)"
        case "either":
            inner = f"SELECT 1 FROM ({other}) y WHERE y.a = x.a"
            how = random_.choice(("EXISTS", "NOT EXISTS"))
            return f"SELECT a, b FROM ({below}) x WHERE {how} ({inner}) OR {condition(random_, 'x')}"
        case "rollup":
            sets = f"{random_.choice(('ROLLUP', 'CUBE'))} (a, b)"
            # of no rows DuckDB gives a grand total, as the standard has it, and Spark none
            total = "HAVING count(*) > 0"
            return f"SELECT a, {aggregate(random_)} AS b FROM ({below}) q GROUP BY {sets} {total}"
        case "in":
            how = random_.choice(("IN", "NOT IN"))
            return f"SELECT a, b FROM ({below}) x WHERE a {how} (SELECT b FROM ({other}) y)"
        case "scalar":
            return f"SELECT a, b FROM ({below}) x WHERE b >= (SELECT {aggregate(random_)} FROM ({other}) y)"
        case "correlated":
            inner = f"SELECT {aggregate(random_)} FROM ({other}) y WHERE y.a = x.a"
            return f"SELECT a, b FROM ({below}) x WHERE b >= ({inner})"
        case "group":
            return f"SELECT a, {aggregate(random_)} AS b FROM ({below}) q GROUP BY a"
        case "having":
            total = "HAVING count(*) > 1"
            return f"SELECT b AS a, {aggregate(random_)} AS b FROM ({below}) q GROUP BY b {total}"
        case "all":
            return f"SELECT max(a) AS a, {aggregate(random_)} AS b FROM ({below}) q"
        case "distinct":
            return f"SELECT DISTINCT a, b FROM ({below}) q"
        case "union" | "less":
            words = ("UNION ALL", "UNION") if kind == "union" else ("INTERSECT", "EXCEPT", "EXCEPT ALL")
            return f"SELECT a, b FROM ({below}) x {random_.choice(words)} SELECT a, b FROM ({other}) y"
        case "top":
            order = "a NULLS FIRST, b NULLS FIRST"
            return f"SELECT a, b FROM ({below}) q ORDER BY {order} LIMIT {random_.randrange(1, 9)}"
        case "rank":
            over = "PARTITION BY a ORDER BY b NULLS FIRST"
            return f"SELECT a, {random_.choice(('rank', 'dense_rank'))}() OVER ({over}) AS b FROM ({below}) q"
        case "place":
            what = random_.choice(("row_number()", "lag(b)", "lead(b)", "first_value(b)"))
            return f"SELECT a, {what} OVER (PARTITION BY a ORDER BY b NULLS FIRST) AS b FROM ({below}) q"
        case "parts":
            what = random_.choice(("min", "max", "count"))
            return f"SELECT a, {what}(b) OVER (PARTITION BY a) AS b FROM ({below}) q"
        case _:
            over = "PARTITION BY a ORDER BY b NULLS FIRST"
            return f"SELECT a, sum(b) OVER ({over}) AS b FROM ({below}) q"


KINDS = (
    "filter", "project", "join", "exists", "in", "scalar", "correlated", "group", "all", "distinct", "top",
    "rank", "running", "either", "rollup", "place", "parts",
)  # fmt: skip


def leaf(random_: Random) -> str:
    table = random_.choice(list(COLUMNS))
    a, b = (random_.choice(COLUMNS[table]) for _ in range(2))
    return f"SELECT {a} AS a, {b} AS b FROM {table}"


def condition(random_: Random, side: str) -> str:
    column = random_.choice(("a", "b"))
    return f"{side}.{column} {random_.choice(('<', '>=', '=', '<>'))} {random_.randrange(12)}"


def aggregate(random_: Random) -> str:
    return random_.choice(("count(*)", "count(b)", "sum(b)", "min(b)", "max(b)", "count(DISTINCT b)"))
