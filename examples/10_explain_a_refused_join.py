"""A join that cannot be exact without an index: what `explain` says, and how to meet it."""

import tempfile

from pyspark.sql import SparkSession

import planner
import upsert


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        catalog = upsert.Catalog(f"{folder}/warehouse")
        catalog.sql("CREATE TABLE clicks (id BIGINT, page STRING, PRIMARY KEY (id) NOT ENFORCED)")
        catalog.sql("CREATE TABLE pages (page STRING, title STRING, PRIMARY KEY (page) NOT ENFORCED)")
        catalog.sql(
            "CREATE TABLE indexed (id BIGINT, page STRING, PRIMARY KEY (id) NOT ENFORCED, INDEX (page))"
        )
        pages = catalog.read_changes(spark, "pages")

        for name in ("clicks", "indexed"):
            joined = catalog.read_changes(spark, name).join(pages, "page", "left")
            (join,) = planner.explain(joined).joins
            print(f"{name}: {join.form}")
            print("   ", join.remedy or f"its rows are found by {join.indexes[0]}")

        try:
            planner.optimize(catalog.read_changes(spark, "clicks").join(pages, "page", "left"))
        except planner.PlanError as error:
            print(error.refusals[0])
            print("a materialized view can hold it:", error.is_for_a_view)
    spark.stop()


if __name__ == "__main__":
    main()

# Output:
# clicks: refused
#     ALTER TABLE clicks ADD INDEX (page)
# indexed: fused
#     its rows are found by INDEX_page
# no index of 'clicks' lies within its join columns (page); ALTER TABLE clicks ADD INDEX (page)
# a materialized view can hold it: True
