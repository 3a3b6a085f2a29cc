"""What each kind of statement does: functions from a context, a statement and a session to a result."""
