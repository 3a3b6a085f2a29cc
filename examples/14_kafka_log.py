"""A table with a log: its rows come from its files, then its changes from Kafka, each of them once."""

import tempfile

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import upsert
from upsert.testing import LocalKafka


def show(rows: DataFrame, _batch: int = 0) -> None:
    """Print the changes of a micro-batch."""
    for row in rows.orderBy("parcel_id", rows["_row_kind"].desc()).collect():
        print("   ", row["_row_kind"], row["parcel_id"], row["status"])


def parcels(**status: str) -> pa.Table:
    """Rows of some parcels, `p7="sent"` for parcel 7."""
    return pa.table({"parcel_id": [int(name[1:]) for name in status], "status": list(status.values())})


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    with LocalKafka() as kafka, tempfile.TemporaryDirectory() as folder:
        catalog = upsert.Catalog(f"{folder}/warehouse")
        catalog.sql(f"""
            CREATE TABLE parcels (parcel_id BIGINT, status STRING, PRIMARY KEY (parcel_id) NOT ENFORCED)
            WITH ('log.system' = 'kafka', 'log.kafka.bootstrap.servers' = '{kafka.bootstrap_servers}')""")
        table = catalog.table("parcels")
        table.write(parcels(p1="packed", p2="packed"))
        table.write(parcels(p1="sent"))

        def follow(title: str) -> None:
            print(title)
            changes = catalog.read_changes(spark, "parcels").writeStream.foreachBatch(show)
            changes = changes.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
            changes.start().awaitTermination()

        follow("the table, from its files")
        table.write(parcels(p2="sent", p3="packed"))
        table.delete([("parcel_id", "=", 1)])
        follow("what has changed since, from Kafka")
        table.write(parcels(p3="lost"))
        follow("and since then")
        catalog.sql("DROP TABLE parcels")
        spark.stop()


if __name__ == "__main__":
    main()

# Output:
# the table, from its files
#     +I 1 sent
#     +I 2 packed
# what has changed since, from Kafka
#     -D 1 sent
#     -U 2 packed
#     +U 2 sent
#     +I 3 packed
# and since then
#     -U 3 packed
#     +U 3 lost
