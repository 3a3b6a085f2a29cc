"""What a text of SQL says of its query is what Spark's plan of it says."""

import re

import pytest
from pyspark.sql import SparkSession

from upsert.sql.volatile import of_more_than_tables
from upsert.views.session import what_it_depends_on


@pytest.mark.long
@pytest.mark.spark
def test_a_text_tells_each_function_whose_result_is_not_that_of_its_rows(spark: SparkSession) -> None:
    """The examples that Spark has of each of its functions, but for those that it cannot analyse."""
    missed, seen = {}, 0
    for (name,) in spark.sql("SHOW SYSTEM FUNCTIONS").collect():
        described = spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect()
        text = "\n".join(row[0] for row in described)
        for example in re.findall(r"> (SELECT .*?);\n", text, re.DOTALL):
            try:
                plan = what_it_depends_on(spark.sql(example))
            except Exception:  # the example needs a setting or a file, and py4j has errors of its own
                continue
            seen += plan is not None
            if plan is not None and of_more_than_tables(example) is None:
                missed[example] = plan.on
    assert missed == {}
    assert seen > 30
