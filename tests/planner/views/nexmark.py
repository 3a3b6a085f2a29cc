"""Nexmark: the three tables of an auction with updates, and its queries in words that DuckDB knows too.

Its times are milliseconds, and a window of time is a group by what the time is without its remainder. Left
out are 10, which only writes files, and 11 and 12, whose windows end with a gap or with the clock.
"""

from random import Random
from typing import Any

from tests.planner.random_histories import write
from upsert import Catalog

TABLES = """
    CREATE TABLE person (id BIGINT, name STRING, city STRING, state STRING, ts BIGINT,
                         PRIMARY KEY (id) NOT ENFORCED);
    CREATE TABLE auction (id BIGINT, item STRING, ts BIGINT, expires BIGINT, seller BIGINT, category INT,
                          PRIMARY KEY (id) NOT ENFORCED, INDEX (seller));
    CREATE TABLE bid (id BIGINT, auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
                      ts BIGINT, PRIMARY KEY (id) NOT ENFORCED, INDEX (auction), INDEX (bidder));
    CREATE TABLE side (k BIGINT, v STRING, PRIMARY KEY (k) NOT ENFORCED)"""

_HOPS = "SELECT auction, ts - ts % 2000 - 2000 * k AS starts FROM bid CROSS JOIN (VALUES (0), (1), (2)) w(k)"
_COUNTED = f"SELECT auction, starts, count(*) AS num FROM ({_HOPS}) h GROUP BY auction, starts"
_BIDS_IN_TIME = "auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires"
_BY_PRICE = "row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts, b.id)"
_DAY = "ts - ts % 60000"
_RANKS = """count(*) AS n, count(*) FILTER (WHERE price < 300) AS n1,
    count(*) FILTER (WHERE price >= 300 AND price < 700) AS n2, count(*) FILTER (WHERE price >= 700) AS n3"""
_DISTINCT = """count(DISTINCT bidder) AS b, count(DISTINCT bidder) FILTER (WHERE price < 300) AS b1,
    count(DISTINCT auction) AS a, count(DISTINCT auction) FILTER (WHERE price >= 700) AS a3"""

QUERIES = {
    0: "SELECT auction, bidder, price, ts FROM bid",
    1: "SELECT auction, bidder, 0.908 * price AS price, ts FROM bid",
    2: "SELECT auction, price FROM bid WHERE auction % 5 = 0",
    3: """SELECT name, city, state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE category = 10 AND state IN ('OR', 'ID', 'CA')""",
    4: f"""SELECT category, avg(final) AS mean FROM
        (SELECT a.id, category, max(price) AS final FROM {_BIDS_IN_TIME} GROUP BY a.id, category) q
        GROUP BY category""",
    5: f"""WITH counted AS ({_COUNTED}) SELECT auction, num, c.starts FROM counted c
        JOIN (SELECT starts, max(num) AS most FROM counted GROUP BY starts) m
        ON c.starts = m.starts AND num >= most""",
    6: f"""SELECT seller, avg(price) OVER
          (PARTITION BY seller ORDER BY ts, id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS mean
        FROM (SELECT a.id, seller, price, b.ts, {_BY_PRICE} AS r FROM {_BIDS_IN_TIME}) q WHERE r = 1""",
    7: """SELECT auction, price, bidder, ts FROM bid b
        JOIN (SELECT max(price) AS most, ts - ts % 10000 AS starts FROM bid GROUP BY ts - ts % 10000) m
        ON price = most AND ts - ts % 10000 = starts""",
    8: """SELECT p.id, name, p.starts FROM (SELECT id, name, ts - ts % 10000 AS starts FROM person) p
        JOIN (SELECT DISTINCT seller, ts - ts % 10000 AS starts FROM auction) a
        ON p.id = seller AND p.starts = a.starts""",
    9: f"""SELECT id, item, category, price FROM
        (SELECT a.id, item, category, price, {_BY_PRICE} AS r FROM {_BIDS_IN_TIME}) q WHERE r <= 1""",
    13: "SELECT auction, bidder, price, v FROM bid JOIN side ON auction % 7 = k",
    14: """SELECT auction, CASE WHEN ts % 60000 >= 40000 THEN 'late' ELSE 'early' END AS part,
          length(url) - length(replace(url, 'c', '')) AS cs FROM bid WHERE 0.908 * price > 100""",
    15: f"SELECT {_DAY} AS day, {_RANKS}, {_DISTINCT} FROM bid GROUP BY {_DAY}",
    16: f"SELECT channel, {_DAY} AS day, {_RANKS}, {_DISTINCT} FROM bid GROUP BY channel, {_DAY}",
    17: f"""SELECT auction, {_DAY} AS day, {_RANKS}, min(price) AS low, max(price) AS high,
          avg(price) AS mean, sum(price) AS total FROM bid GROUP BY auction, {_DAY}""",
    18: """SELECT auction, bidder, price FROM (SELECT auction, bidder, price,
          row_number() OVER (PARTITION BY bidder, auction ORDER BY ts DESC, id DESC) AS r FROM bid) q
        WHERE r <= 1""",
    19: """SELECT auction, bidder, price FROM (SELECT auction, bidder, price,
          row_number() OVER (PARTITION BY auction ORDER BY price DESC, id) AS r FROM bid) q WHERE r <= 10""",
    20: """SELECT auction, bidder, price, item FROM bid b JOIN auction a ON b.auction = a.id
        WHERE category = 10""",
    21: """SELECT auction, CASE WHEN lower(channel) = 'apple' THEN '0' WHEN channel = 'Google' THEN '1'
          ELSE split_part(url, '=', 2) END AS channel_id FROM bid""",
    22: "SELECT auction, split_part(url, '/', 4) AS a, split_part(url, '/', 5) AS b FROM bid",
}


def made(catalog: Catalog) -> Catalog:
    """The catalog with the tables, and some rows in each."""
    for statement in TABLES.split(";"):
        catalog.sql(statement)
    random_ = Random(0)
    for name, count in (("person", 20), ("auction", 60), ("bid", 400), ("side", 5)):
        write(catalog.table(name), [row(name, id, random_) for id in range(count)], "+U")
    return catalog


def change(catalog: Catalog, seed: int) -> None:
    """Insert, update and delete rows of each table."""
    random_ = Random(seed)
    for name, count in (("person", 4), ("auction", 9), ("bid", 40), ("side", 1)):
        ids = random_.sample(range(15 * count), count)
        write(catalog.table(name), [row(name, id, random_) for id in ids], "+U")
        gone = [row(name, id, random_) for id in random_.sample(range(15 * count), count // 3)]
        write(catalog.table(name), gone, "-D")


def row(name: str, id: int, random_: Random) -> dict[str, Any]:
    ts = random_.randrange(120_000)
    match name:
        case "person":
            state = random_.choice(["OR", "ID", "CA", "WA", None])
            return {"id": id, "name": f"p{id}", "city": random_.choice("abc"), "state": state, "ts": ts}
        case "auction":
            category = random_.randrange(8, 12)
            own = {"item": f"i{random_.randrange(9)}", "ts": ts, "expires": ts + random_.randrange(60_000)}
            return {"id": id, **own, "seller": random_.randrange(25), "category": category}
        case "bid":
            url = (
                f"https://n.example/{random_.choice('acx')}/{random_.choice('pqc')}?id={random_.randrange(4)}"
            )
            channel = random_.choice(["apple", "Google", "Baidu", None])
            own = {"price": random_.randrange(1, 1000), "channel": channel, "url": url, "ts": ts}
            return {"id": id, "auction": random_.randrange(70), "bidder": random_.randrange(25), **own}
        case _:
            return {"k": id, "v": random_.choice(["x", "y", None])}
