"""Rows are deleted on both sides and move between join keys: the joined table follows exactly."""

import tempfile

import pyarrow as pa
from pyspark.sql import SparkSession

import planner
import upsert


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        catalog = upsert.Catalog(f"{folder}/warehouse", optimize=planner.optimize)
        for name in ("people", "rooms"):
            catalog.sql(
                f"CREATE TABLE {name} (id INT, floor INT, PRIMARY KEY (id) NOT ENFORCED, INDEX (floor))"
            )
        catalog.sql("CREATE TABLE pairs (person INT, room INT, PRIMARY KEY (person, room) NOT ENFORCED)")
        people, rooms = (catalog.read_changes(spark, name) for name in ("people", "rooms"))
        on_a_floor = people.floor == rooms.floor
        pairs = people.join(rooms, on_a_floor).select(people.id.alias("person"), rooms.id.alias("room"))

        def write(table: str, id_: list[int], floor: list[int], kinds: list[str]) -> None:
            catalog.table(table).write(pa.table({"id": id_, "floor": floor, "_row_kind": kinds}))

        def follow(title: str) -> None:
            writer = catalog.write_changes(pairs, "pairs").trigger(availableNow=True)
            writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
            found = catalog.table("pairs").snapshot().scan().to_pylist()
            print(title, sorted((pair["person"], pair["room"]) for pair in found))

        write("people", [1, 2], [0, 1], ["+I", "+I"])
        write("rooms", [10, 11, 20], [0, 0, 1], ["+I", "+I", "+I"])
        follow("at first:")

        write("people", [2], [0], ["+U"])
        write("rooms", [10], [0], ["-D"])
        follow("2 moves down while room 10 goes:")

        write("people", [1], [0], ["-D"])
        write("rooms", [11, 20], [1, 0], ["+U", "+U"])
        follow("1 leaves while the rooms change floors:")
    spark.stop()


if __name__ == "__main__":
    main()

# Output:
# at first: [(1, 10), (1, 11), (2, 20)]
# 2 moves down while room 10 goes: [(1, 11), (2, 11)]
# 1 leaves while the rooms change floors: [(2, 20)]
