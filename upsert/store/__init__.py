"""The managed store: tables as LSM trees of immutable files, published by snapshots. No Spark in here.

Other packages use ``Table`` and the values that its methods take and return.
"""

from upsert.store.commit.staging import StagedFiles
from upsert.store.read.snapshot import Snapshot
from upsert.store.table import Table
from upsert.store.version import Version

__all__ = ["Snapshot", "StagedFiles", "Table", "Version"]
