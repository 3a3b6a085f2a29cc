"""Fetch the servers that tests start and that no package of Python brings, all at once: `make servers`.

A test that finds its server missing fetches it too, but then one processor waits for the network.
"""

from concurrent.futures import ThreadPoolExecutor

from tests.object_store import azurite
from upsert.testing.local_kafka import kafka_jars


def main() -> None:
    """Fetch what is missing, and say where all of it is."""
    with ThreadPoolExecutor() as threads:
        for folder in threads.map(lambda fetch: fetch(), (kafka_jars, azurite)):
            print(folder)


if __name__ == "__main__":
    main()
