"""A clinic's tables without any index, changes of them, and queries for its reports."""

from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from tests.planner.random_histories import write
from upsert import Catalog

TABLES = """
    CREATE TABLE ward (ward INT, name STRING, floor INT, PRIMARY KEY (ward) NOT ENFORCED);
    CREATE TABLE patient (patient BIGINT, insurer STRING, PRIMARY KEY (patient) NOT ENFORCED);
    CREATE TABLE stay (stay BIGINT, patient BIGINT, ward INT, arrived TIMESTAMP_NTZ, days INT,
                       cost DECIMAL(9, 2), PRIMARY KEY (stay) NOT ENFORCED);
    CREATE TABLE exam (exam BIGINT, stay BIGINT, kind STRING, taken TIMESTAMP_NTZ, score INT,
                       PRIMARY KEY (exam) NOT ENFORCED);
    CREATE TABLE tariff (low INT, high INT, label STRING, PRIMARY KEY (low) NOT ENFORCED)"""

SIZES = {"ward": 10, "patient": 50, "stay": 200, "exam": 500, "tariff": 4}

_SUMS_BY_DAYS = "SELECT ward, days, sum(cost) AS c FROM stay GROUP BY ward, days"
_BAND = "e.score BETWEEN t.low AND t.high"
_HOURS = "time_bucket(INTERVAL 1 hour, {})"
_HOPS = "time_bucket(INTERVAL 20 minutes, taken) - 20 * k * INTERVAL 1 minute"
_STEPS = "time_bucket(INTERVAL 1 day, taken) + k * INTERVAL 1 hour"

QUERIES = {
    "rollup": """SELECT w.floor, s.ward, sum(cost) AS c, count(*) AS n, avg(days) AS d FROM stay s
        LEFT JOIN ward w ON s.ward = w.ward GROUP BY ROLLUP (w.floor, s.ward)""",
    "grouping sets": """SELECT kind, insurer, count(*) AS n, max(score) AS m, grouping(kind) AS g FROM exam e
        JOIN stay s ON e.stay = s.stay JOIN patient p ON s.patient = p.patient
        GROUP BY GROUPING SETS ((kind), (insurer), ())""",
    "cube": """SELECT insurer, ward, count(DISTINCT s.patient) AS p, count(*) AS n FROM stay s
        JOIN patient p ON s.patient = p.patient GROUP BY CUBE (insurer, ward)""",
    "rank of sums": """SELECT ward, kind, n, rank() OVER (PARTITION BY ward ORDER BY n DESC) AS r FROM
        (SELECT s.ward, e.kind, count(*) AS n FROM stay s JOIN exam e ON e.stay = s.stay
        GROUP BY s.ward, e.kind) q""",
    "intersect": """SELECT patient FROM stay WHERE days > 3 INTERSECT
        SELECT s.patient FROM stay s JOIN exam e ON e.stay = s.stay WHERE e.kind = 'mri'""",
    "except all": "SELECT ward, days FROM stay EXCEPT ALL SELECT ward, floor FROM ward",
    "self-joined CTE": f"""WITH m AS ({_SUMS_BY_DAYS}) SELECT a.ward, a.days, a.c, b.c AS before FROM m a
        LEFT JOIN m b ON a.ward = b.ward AND a.days = b.days + 1""",
    "two EXISTS in an OR": """SELECT s.stay, s.days FROM stay s WHERE s.days > 6
        OR EXISTS (SELECT 1 FROM exam e WHERE e.stay = s.stay AND e.score > 15)
        OR EXISTS (SELECT 1 FROM ward w WHERE w.ward = s.ward AND w.floor = 0)""",
    "three tables in a row": """SELECT p.insurer, e.kind, count(*) AS n, max(e.score) AS m FROM exam e
        JOIN stay s ON e.stay = s.stay JOIN patient p ON s.patient = p.patient GROUP BY p.insurer, e.kind""",
    "qualify": """SELECT stay, exam, score FROM exam
        QUALIFY row_number() OVER (PARTITION BY stay ORDER BY score DESC NULLS LAST, exam) <= 2""",
    "lag and lead": """SELECT stay, days - lag(days) OVER w AS d, lead(cost, 2) OVER w AS c FROM stay
        WINDOW w AS (PARTITION BY patient ORDER BY arrived NULLS FIRST, stay)""",
    "islands": """SELECT ward, min(days) AS f, count(*) AS n FROM (SELECT ward, days,
          days - dense_rank() OVER (PARTITION BY ward ORDER BY days) AS g FROM stay) q GROUP BY ward, g""",
    "latest two": """SELECT w.ward, t.stay, t.cost FROM ward w, LATERAL (SELECT stay, cost FROM stay s
          WHERE s.ward = w.ward ORDER BY cost DESC NULLS LAST, stay LIMIT 2) t""",
    "bands": f"SELECT e.exam, t.label FROM exam e JOIN tariff t ON {_BAND}",
    "no band": f"SELECT e.exam, t.label FROM exam e LEFT JOIN tariff t ON {_BAND}",
    "sums of bands": f"""SELECT t.label, count(*) AS n, sum(e.score) AS s FROM exam e JOIN tariff t
        ON {_BAND} GROUP BY t.label""",
    "outside of bands": f"SELECT e.exam FROM exam e WHERE NOT EXISTS (SELECT 1 FROM tariff t WHERE {_BAND})",
    "not in, with NULL": "SELECT stay FROM stay WHERE days NOT IN (SELECT floor FROM ward WHERE ward > 4)",
    "groups that are not shown": "SELECT sum(cost) AS c, count(*) AS n FROM stay GROUP BY ward, days",
    "groups of floats": """SELECT CAST(days AS DOUBLE) / 2 AS d, count(*) AS n, sum(cost) AS c FROM stay
        GROUP BY CAST(days AS DOUBLE) / 2""",
    "tumble": """SELECT TUMBLE_START(taken, INTERVAL '1' HOUR) AS w, kind, sum(score) AS s FROM exam
        GROUP BY TUMBLE(taken, INTERVAL '1' HOUR), kind""",
    "joined windows": """SELECT a.w, a.n, b.m FROM
        (SELECT window.start AS w, count(*) AS n FROM exam GROUP BY window(taken, '1 hour')) a JOIN
        (SELECT window.start AS w, sum(days) AS m FROM stay GROUP BY window(arrived, '1 hour')) b
        ON a.w = b.w""",
    "hop": """SELECT window_start AS w, sum(score) AS s, max(score) AS m FROM
        TABLE(HOP(TABLE exam, DESCRIPTOR(taken), INTERVAL '20' MINUTE, INTERVAL '1' HOUR))
        GROUP BY window_start, window_end""",
    "cumulate": """SELECT window_end AS w, sum(score) AS s FROM
        TABLE(CUMULATE(TABLE exam, DESCRIPTOR(taken), INTERVAL '1' HOUR, INTERVAL '1' DAY))
        GROUP BY window_start, window_end""",
}

DUCKDB = {
    "tumble": f"""SELECT {_HOURS.format("taken")} AS w, kind, sum(score) AS s FROM exam
        WHERE taken IS NOT NULL GROUP BY 1, 2""",
    "joined windows": f"""SELECT a.w, a.n, b.m FROM
        (SELECT {_HOURS.format("taken")} AS w, count(*) AS n FROM exam GROUP BY 1) a JOIN
        (SELECT {_HOURS.format("arrived")} AS w, sum(days) AS m FROM stay GROUP BY 1) b ON a.w = b.w""",
    "hop": f"""SELECT {_HOPS} AS w, sum(score) AS s, max(score) AS m FROM exam, range(3) t(k)
        WHERE taken IS NOT NULL GROUP BY 1""",
    "cumulate": f"""SELECT {_STEPS} AS w, sum(score) AS s FROM exam, range(1, 25) t(k)
        WHERE taken IS NOT NULL AND {_STEPS} > taken GROUP BY 1""",
}
"""Those that DuckDB writes in another way."""


def made(catalog: Catalog) -> Catalog:
    """The catalog with the tables, and some rows in each."""
    for statement in TABLES.split(";"):
        catalog.sql(statement)
    random_ = Random(0)
    for name, count in SIZES.items():
        write(catalog.table(name), [row(name, id, random_) for id in range(count)], "+U")
    return catalog


def change(catalog: Catalog, seed: int) -> None:
    """Insert, update and delete rows; of some tables only, which differ by the seed."""
    random_ = Random(seed)
    for name, count in SIZES.items():
        if random_.random() < 0.25:
            continue
        ids = range(count + count // 5 + 1)
        some = max(1, count // 12)
        write(catalog.table(name), [row(name, id, random_) for id in random_.sample(ids, some)], "+U")
        gone = [row(name, id, random_) for id in random_.sample(ids, max(1, some // 2))]
        write(catalog.table(name), gone, "-D")


def row(name: str, id: int, random_: Random) -> dict[str, Any]:
    """A row of a table, of which each value but the key may be NULL."""
    at = datetime(2024, 1, 1) + timedelta(minutes=random_.randrange(3000))
    values: dict[str, Any]
    match name:
        case "ward":
            values = {"name": random_.choice("abc"), "floor": random_.randrange(4)}
        case "patient":
            values = {"insurer": random_.choice(["aok", "dak", "tk"])}
        case "stay":
            values = {"patient": random_.randrange(60), "ward": random_.randrange(12), "arrived": at}
            values |= {"days": random_.randrange(9), "cost": Decimal(random_.randrange(99_999)) / 100}
        case "exam":
            kind = random_.choice(["ct", "ekg", "lab", "mri"])
            values = {
                "stay": random_.randrange(220),
                "kind": kind,
                "taken": at,
                "score": random_.randrange(20),
            }
        case _:
            high = id * 3 + random_.randrange(1, 5)
            return {"low": id * 3, "high": high, "label": random_.choice("xyz")}
    return {name: id} | {one: None if random_.random() < 0.1 else value for one, value in values.items()}
