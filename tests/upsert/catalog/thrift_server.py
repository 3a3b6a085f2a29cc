"""A Thrift server over exposed tables, and its client; the argument is a folder. Prints what that saw."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from upsert import Catalog
from upsert.testing.local_kafka import free_ports

STATEMENTS = (
    "SELECT id, size FROM pears ORDER BY id",
    "INSERT INTO pears VALUES (3, 9.0)",
    "SELECT count(*), sum(size) FROM pears",
)


def main(folder: str) -> None:
    (port,) = free_ports(1)
    settings = {
        "spark.sql.hive.thriftServer.singleSession": "true",
        "spark.hadoop.hive.server2.thrift.port": str(port),
        "spark.hadoop.hive.server2.thrift.bind.host": "127.0.0.1",
        "spark.sql.warehouse.dir": f"{folder}/spark",
    }
    os.chdir(folder)  # where the metastore is made
    spark = SparkSession.builder.config(map=settings).enableHiveSupport().getOrCreate()
    catalog = Catalog(f"{folder}/warehouse")
    catalog.sql("CREATE TABLE pears (id INT, size DOUBLE, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("INSERT INTO pears VALUES (1, 5.0), (2, 6.0)", spark)
    catalog.expose(spark)
    server = spark._jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2  # type: ignore[union-attr]
    server.startWithContext(spark._jsparkSession.sqlContext())
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    java = [f"{os.environ['JAVA_HOME']}/bin/java", "-cp", str(jars), "org.apache.hive.beeline.BeeLine"]
    url = ["-u", f"jdbc:hive2://127.0.0.1:{port}/default", "--outputformat=csv2", "--showHeader=false"]
    told = [argument for statement in STATEMENTS for argument in ("-e", statement)]
    client = subprocess.run([*java, *url, *told], capture_output=True, text=True, timeout=300, check=False)
    rows = [word for word in client.stdout.split() if "," in word]  # it shows its prompts, too
    print(f"client: {rows}\n{client.stderr}")
    os._exit(client.returncode)  # the server's threads outlive the session


if __name__ == "__main__":
    main(*sys.argv[1:])
