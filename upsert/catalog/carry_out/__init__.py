"""What each kind of statement does: functions from a catalog, a statement and a session to a result."""
