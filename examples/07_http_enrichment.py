"""A join with what only a web service knows: lookups over HTTP, for the changes of both sides."""

import json
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import deltajoin
import upsert
from deltajoin.lookup import HttpLookup

NEWEST: dict[str, list[Any]] = {"orders": [], "users": []}
FOLDER = Path(tempfile.mkdtemp())


class Service(BaseHTTPRequestHandler):
    """POST /users with {"keys": [{"user": 7}, …]} gives the rows of each key."""

    def do_POST(self) -> None:  # noqa: D102
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["keys"]
        found = [[row for row in NEWEST[self.path[1:]] if row["user"] == key["user"]] for key in asked]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"results": found}).encode())


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    Thread(target=server.serve_forever, daemon=True).start()

    def side(name: str, upsert_key: str, columns: str, /, **types: pa.DataType) -> DataFrame:
        (FOLDER / name).mkdir()
        changes = spark.readStream.schema(columns).json(str(FOLDER / name))
        source = HttpLookup(f"http://127.0.0.1:{server.server_port}/{name}", pa.schema(types), ["user"])
        return deltajoin.with_lookup(changes, source, keys="user", upsert_key=upsert_key, immutable=["user"])

    orders = side("orders", "id", "id INT, user INT", id=pa.int32(), user=pa.int32())
    users = side("users", "user", "user INT, name STRING", user=pa.int32(), name=pa.string())
    joined = deltajoin.lookup_delta_join(orders, users, on="user", how="left").drop("left_user", "right_user")
    catalog = upsert.Catalog(f"{FOLDER}/warehouse")
    catalog.sql("CREATE TABLE named (left_id INT, right_name STRING, PRIMARY KEY (left_id) NOT ENFORCED)")

    for name, row in (("orders", {"id": 1, "user": 7}), ("users", {"user": 7, "name": "ann"})):
        NEWEST[name].append(row)  # the service has it at once, the stream brings it
        (FOLDER / name / "change.json").write_text(json.dumps(row))
        writer = catalog.write_changes(joined, "named").option("checkpointLocation", f"{FOLDER}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        print(name, row, "=>", catalog.table("named").snapshot().scan().to_pylist())


if __name__ == "__main__":
    main()

# Output:
# orders {'id': 1, 'user': 7} => [{'left_id': 1, 'right_name': None}]
# users {'user': 7, 'name': 'ann'} => [{'left_id': 1, 'right_name': 'ann'}]
