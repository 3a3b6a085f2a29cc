"""Random tables, histories, queries, limits, restarts and forms for as long as one likes: `make fuzz`.

Each case follows from its seed. What was run is written to bench/results/fuzz.json.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.helpers import SESSION_OPTIONS, use_this_python
from tests.planner.random_histories import (
    Found,
    History,
    Warehouse,
    compare_aggregate,
    compare_in_steps,
    compare_joins,
    drawn,
    grouped_queries,
    histories,
    queries,
)
from tests.planner.random_queries import GroupedQuery
from upsert.views.session import small_session

RESULTS = Path(__file__).parents[2] / "bench" / "results" / "fuzz.json"
STEPPED = 10
"""Joins that are stepped through without a stream."""
STREAMED = 2
"""Joins of one stream, which are dear: each reads all its tables by processes of its own."""


@dataclass(frozen=True)
class Case:
    """What a seed means."""

    stepped: list[str]
    streamed: list[str]
    aggregate: GroupedQuery | None
    history: History


def _cases(stepped: int, streamed: int, aggregate: bool) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        st.lists(queries(most_tables=4), min_size=stepped, max_size=stepped),
        st.lists(queries(most_tables=2), min_size=streamed, max_size=streamed),
        grouped_queries() if aggregate else st.none(),
        st.integers(2, 3).flatmap(histories),
    )


CASES = _cases(STEPPED, STREAMED, aggregate=True)


def case_of(seed: int, cases: st.SearchStrategy[Case] = CASES) -> Case:
    """The case of a seed: the same as long as strategies and Hypothesis are."""
    return drawn(cases, seed)


def check(spark: SparkSession, seed: int, case: Case, found: Found) -> None:
    """Run the case of a seed; what is wrong is in ``found``, with the seed."""
    parts: list[Callable[[Warehouse], None]] = [
        lambda warehouse: compare_in_steps(warehouse, case.stepped, case.history, found)
    ]
    if case.streamed:
        parts.append(lambda warehouse: compare_joins(warehouse, case.streamed, case.history, found))
    if (grouped := case.aggregate) is not None:
        parts.append(lambda warehouse: compare_aggregate(warehouse, grouped, case.history, found))
    for part in parts:
        before = len(found.wrong)
        with TemporaryDirectory() as folder:
            try:
                part(Warehouse(spark, case.history, Path(folder)))
            except ConnectionError:  # Spark has ended, and no query is wrong for that
                raise
            except Exception as error:  # told with its seed; the other cases go on
                last = traceback.format_exception_only(error)[-1].strip()
                found.wrong.append(f"{type(error).__name__}: {last[:2000]}; {case.aggregate}")
        found.wrong[before:] = [f"seed {seed}: {wrong}" for wrong in found.wrong[before:]]
        for wrong in found.wrong[before:]:
            print(wrong, flush=True)


def session() -> SparkSession:
    """A session like that of the tests."""
    use_this_python(os.environ)
    builder = SparkSession.builder.master("local[2]").appName("fuzz")
    for key, value in SESSION_OPTIONS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> int:
    """Run cases until the time is over; 1 if one of them was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="that of the first case")
    parser.add_argument("--minutes", type=float, default=10.0, help="no case is begun after this time")
    parser.add_argument("--only", action="store_true", help="run the one case of the seed, and show it")
    parser.add_argument(
        "--stepped", type=int, help="a case is so many joins that are stepped through, no stream"
    )
    arguments = parser.parse_args()
    strategy = CASES if arguments.stepped is None else _cases(arguments.stepped, 0, aggregate=False)
    spark, found, begun = session(), Found(), time.monotonic()
    if arguments.stepped is not None:
        spark = small_session(spark)  # half of the time is Spark's, to generate code for a few rows
    cases = 0
    if arguments.only:
        print(case_of(arguments.seed, strategy))
    while not cases or (not arguments.only and time.monotonic() - begun < arguments.minutes * 60):
        seed = arguments.seed + cases
        check(spark, seed, case_of(seed, strategy), found)
        print(
            f"seed {seed}: {found.compared} compared, {len(found.wrong)} wrong so far",
            flush=True,
        )
        cases += 1
    result: dict[str, Any] = {
        "first_seed": arguments.seed,
        "cases": cases,
        "minutes": round((time.monotonic() - begun) / 60, 1),
        **vars(found),
    }
    if not arguments.only:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    print("again: make fuzz SEED=<seed> FUZZ_ARGS=--only")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
