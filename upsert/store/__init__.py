"""The managed store: tables as LSM trees of immutable files, published by snapshots. No Spark in here.

Other packages use ``Table`` and the values that its methods take and return.
"""

from upsert.store.snapshot import Snapshot
from upsert.store.table import StagedFiles, Table
from upsert.store.version import Version

__all__ = ["Snapshot", "StagedFiles", "Table", "Version"]
