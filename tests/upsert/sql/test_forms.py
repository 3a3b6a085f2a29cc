"""Conditions that are evaluated without Spark have a form that Spark's own parser accepts."""

import random

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from upsert.sql.dialect import tokens_of
from upsert.sql.forms import is_expression

CONDITIONS = """
    id IN (1, 2, 3)
    id = 1 AND name = 'a'
    NOT (id > 1 OR x < 1.5e-1)
    day BETWEEN DATE '2020-01-01' AND DATE '2021-01-01' OR x > .5
    name IS NOT NULL AND b = true
    t.id >= -5 AND `my id` <> 2
    name NOT IN ('a', 'b') AND b IS NOT FALSE
    name NOT LIKE 'a%' AND 3L < 1.5BD
    CASE WHEN id > 1 THEN x WHEN b THEN 1. ELSE 2.0 END > 1
    CASE id WHEN 1 THEN true END
    coalesce(x, 1.0) > 0.5 AND NOT b
    length(name) < 5 AND substring(name, 1, 2) = 'ab'
    substring(name FROM 1 FOR 2) == 'ab'
    id <=> 3 OR if(b, x, 1.0) > 2
    x IS DISTINCT FROM 3 AND current_date() > day
    abs(id) + 2 * id - 1 > 0
    name || 'x' = 'ax'
    CAST(n AS DECIMAL(10, 2)) > 1 AND n :: BIGINT < 5
    at + INTERVAL '1' DAY > TIMESTAMP '2020-01-01 00:00:00' - INTERVAL '1 00:00:00' DAY TO SECOND
    s.inner.field = 1 AND id = :given
    id = 1 AND name = ?
"""
TEXTS = [line.strip() for line in CONDITIONS.strip().splitlines()]
CHANGED = [text for text in TEXTS if "INTERVAL" not in text and "DECIMAL" not in text]
WORDS = """
    , ) ( IN AND OR NOT IS BETWEEN LIKE AS DISTINCT FROM FOR CASE WHEN THEN ELSE END ESCAPE CAST NOTNULL DAY
    id `id` x 1 1. 1e 1.5e- 1L '2020-10-01' NULL é $ coalesce INT = == <> ! - + . || :: DIV ? : ; *
"""


def accepts(spark: SparkSession, text: str) -> bool:
    """Whether Spark's parser does."""
    try:
        spark._jsparkSession.sessionState().sqlParser().parseExpression(text)
    except PySparkException:
        return False
    return True


@pytest.mark.parametrize("text", TEXTS)
def test_a_condition_of_spark_is_an_expression(text: str) -> None:
    assert is_expression(tokens_of(text, "query"))


@pytest.mark.spark
def test_what_is_an_expression_is_one_to_spark(spark: SparkSession) -> None:
    """Of conditions with a word too many, too few, or another one; intervals and types are read elsewhere."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    wrong, accepted, others = [], 0, WORDS.split()
    for _ in range(2000):
        text = chance.choice(CHANGED)
        words = [text[word.start : word.end + 1] for word in tokens_of(text, "query")]
        for _ in range(chance.choice([1, 1, 2])):
            at = chance.randrange(len(words))
            match chance.randrange(4):
                case 0:
                    words.insert(at, chance.choice(others))
                case 1:
                    words[at] = chance.choice(others)
                case 2:
                    words.insert(at, words[at])
                case 3 if len(words) > 1:
                    del words[at]
        text = " ".join(words)
        if is_expression(tokens_of(text, "query")):
            accepted += 1
            wrong += [] if accepts(spark, text) else [text]
    assert wrong == []
    assert accepted > 100
