"""A managed table, without Spark: write, update, delete, look up, go back, and read what changed."""

import tempfile

import pyarrow as pa

import upsert


def show(title: str, rows: pa.Table) -> None:
    """Print rows, ordered by their key."""
    print(title)
    for row in rows.sort_by("order_id").to_pylist():
        print("   ", *row.values())


def main() -> None:
    with tempfile.TemporaryDirectory() as warehouse:
        catalog = upsert.Catalog(warehouse)
        catalog.sql(
            "CREATE TABLE orders (order_id BIGINT, product STRING, amount DOUBLE,"
            " PRIMARY KEY (order_id) NOT ENFORCED, INDEX (product))"
        )
        orders = catalog.table("orders")

        columns = ["order_id", "product", "amount"]
        first = orders.write(pa.table([[1, 2, 3], ["tea", "cup", "tea"], [5.0, 7.5, 1.25]], columns))

        # An existing key is an update. A row of kind -D takes its key away.
        kinds = ["+U", "-D", "+I"]
        changes = [[1, 2, 4], ["tea", "cup", "pot"], [6.0, 7.5, 30.0], kinds]
        second = orders.write(pa.table(changes, [*columns, "_row_kind"]))

        show("orders now", orders.snapshot().scan())
        show("amounts above 5", orders.snapshot().scan(["order_id", "amount"], where=[("amount", ">", 5.0)]))
        show(
            "orders of tea, by the index",
            orders.snapshot().lookup(["product"], pa.table({"product": ["tea"]})),
        )
        show("orders as they were", orders.snapshot(first.id).scan())
        show("what changed", orders.changes(first.id, second.id))


if __name__ == "__main__":
    main()

# Output:
# orders now
#     1 tea 6.0
#     3 tea 1.25
#     4 pot 30.0
# amounts above 5
#     1 6.0
#     4 30.0
# orders of tea, by the index
#     1 tea 6.0
#     3 tea 1.25
# orders as they were
#     1 tea 5.0
#     2 cup 7.5
#     3 tea 1.25
# what changed
#     1 tea 5.0 -U
#     1 tea 6.0 +U
#     2 cup 7.5 -D
#     4 pot 30.0 +I
