"""`LocalKafka` by its older import path; it is in ``upsert.testing``."""

from upsert.testing import LocalKafka
from upsert.testing.local_kafka import main

__all__ = ["LocalKafka"]

if __name__ == "__main__":
    main()
